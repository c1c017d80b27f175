"""The start that a job is deferred to, held against every minute of the time that it has."""

from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.power.deferring import FURTHEST_MS, Choice, Course, Span, Wish, best_start, course_of

MINUTE = 60_000
DAY = 24 * 60


def spans():
    start = st.integers(0, DAY).map(lambda minute: minute * MINUTE)
    end = st.none() | st.integers(0, 2 * DAY).map(lambda minute: minute * MINUTE)
    found = st.builds(Span, st.sampled_from(["", "a", "b"]), st.integers(-5, 40), start, end, st.booleans())
    return st.lists(found.filter(lambda span: span.end is None or span.end > span.start), max_size=7)


def wishes():
    minutes = st.integers(1, 400).map(lambda minute: minute * MINUTE)
    earliest = st.integers(0, 300).map(lambda minute: minute * MINUTE)
    return st.builds(lambda at, length, slack: Wish(at, length, at + length + slack * MINUTE), earliest, minutes, st.integers(0, 600))


def slowly_valued(found, pool, moment):
    """What counts at a moment, in so many words."""
    there = [span for span in found if span.start <= moment and (span.end is None or moment < span.end)]
    for of_pool in (pool, ""):
        for forecast in (True, False):
            mine = [span for span in there if span.pool == of_pool and span.forecast is forecast]
            if mine:
                return max(mine, key=lambda span: (span.start, span.value)).value
    return None


def slowly_summed(found, pool, start, length):
    values = [slowly_valued(found, pool, start + minute * MINUTE) for minute in range(length // MINUTE)]
    return None if None in values else sum(values) * MINUTE


@given(spans(), st.sampled_from(["a", "b", ""]))
def test_the_pools_own_goes_first_then_forecasts_then_what_began_last(found, pool):
    course = course_of(found, pool, 0, 2 * DAY * MINUTE)

    for minute in range(0, 2 * DAY, 7):
        assert course.value(minute * MINUTE) == slowly_valued(found, pool, minute * MINUTE)


@given(spans(), wishes(), st.sampled_from([["a"], ["a", "b"], [""]]), st.integers(0, 30))
@example([Span("", 2, 0, None), Span("", 1, 60 * MINUTE, 120 * MINUTE)], Wish(0, 60 * MINUTE, 600 * MINUTE), [""], 5)
def test_the_best_start_is_that_of_a_look_at_every_minute(found, wish, pools, least):
    courses = {pool: course_of(found, pool, wish.earliest, wish.deadline) for pool in pools}
    choice = best_start(courses, wish, least)

    tried = []
    for pool in pools:
        for start in range(wish.earliest, wish.latest + 1, MINUTE):
            total = slowly_summed(found, pool, start, wish.length)
            if total is not None:
                tried.append((total, start, pool))
    at_once = [total for total, start, _ in tried if start == wish.earliest]
    if not at_once:
        assert choice is None
        return
    total, start, pool = min(tried)
    saves = min(at_once) - total
    if saves > 0 and 100 * saves >= least * abs(min(at_once)):
        assert choice == Choice(start, pool, total, min(at_once), wish.length)
    else:
        assert choice is None


def test_a_start_is_not_looked_for_beyond_the_furthest():
    cheap = FURTHEST_MS + MINUTE
    found = [Span("", 9, 0, None), Span("", 1, cheap, None)]
    wish = Wish(0, MINUTE, cheap + 10 * MINUTE)

    assert best_start({"": course_of(found, "", 0, wish.deadline)}, wish, 5) is None


def test_figures_of_a_choice_are_of_the_mean_over_the_run():
    course = Course([0, 100, 200], [240_000, 110_000])
    choice = best_start({"": course}, Wish(0, 100, 200), 5)

    assert (choice.start, choice.mean_now, choice.mean) == (100, 240_000, 110_000)
    assert choice.saved(12_800) == 1_664_000  # 12.8 kWh at 0.13 less
