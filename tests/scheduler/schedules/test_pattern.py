"""Days and a time as fields, and the cron expression that they are."""

from datetime import datetime, timedelta
from itertools import islice, pairwise

import pytest
from cronsim import CronSim, CronSimError
from hypothesis import given
from hypothesis import strategies as st

from scheduler.schedules.pattern import WEEK, Pattern, pattern_of, pattern_sent, words_of
from tests.builders import NOON
from tests.scheduler.schedules.making import EXPRESSIONS

NUMBERS = st.integers(0, 31).map(str)
WORDS = [*"01234567", "1-5", "5-7", "0-2", "SUN-TUE", "FRI-SAT", "SAT-SUN", "sun", "MON", "L"]
DAYS_OF_WEEK = st.lists(st.sampled_from(WORDS), min_size=1).map(",".join)
SIMPLE = st.builds("{} {} {} * {}".format, NUMBERS, NUMBERS | st.just("*"), st.just("*") | NUMBERS, st.just("*") | DAYS_OF_WEEK)
PATTERNS = st.builds(
    Pattern,
    st.sampled_from(["week", "month", "hour"]),
    days=st.sets(st.sampled_from(WEEK)).map(lambda days: tuple(day for day in WEEK if day in days)),
    time=st.times().map(lambda time: f"{time:%H:%M}") | st.just(""),
    day=st.integers(1, 31).map(str) | st.just(""),
    minute=st.integers(0, 59).map(str) | st.just(""),
)


def times(expression: str) -> list[datetime] | None:
    try:
        return list(islice(CronSim(expression, NOON), 40))
    except CronSimError:
        return None


@given(EXPRESSIONS | SIMPLE)
def test_the_fields_of_an_expression_are_due_at_the_same_times(expression: str):
    found = pattern_of(expression)
    assert found.cron == expression
    if found.every != "cron":
        assert times(found.expression) == times(expression) is not None


@given(PATTERNS)
def test_what_is_chosen_comes_back_also_half_made(chosen: Pattern):
    found = pattern_of(chosen.expression)
    assert (found.every, found.expression, found.fault) == (chosen.every, chosen.expression, chosen.fault)
    due = times(chosen.expression)
    assert bool(chosen.fault) == (due is None)
    if due is not None and chosen.every == "week":
        assert {f"{one:%a}".upper() for one in due} == set(chosen.days) and {f"{one:%H:%M}" for one in due} == {chosen.time}
    if due is not None and chosen.every == "hour":
        assert {late - early for early, late in pairwise(due)} == {timedelta(hours=1)}


@pytest.mark.parametrize(
    ("sent", "expression"),
    [
        ({"cron": "*/15 * * * *"}, "*/15 * * * *"),  # a form that knows only the expression
        ({"cron": "30 2 * * 1-5", "cron-every": "week", "cron-days": [*WEEK[:5]], "cron-time": "02:30"}, "30 2 * * 1-5"),
        ({"cron": "30 2 * * 1-5", "cron-every": "week", "cron-days": ["MON", "SAT"], "cron-time": "02:30"}, "30 2 * * MON,SAT"),
        ({"cron": "30 2 * * 1-5", "cron-every": "month", "cron-day": "31", "cron-time": "06:05"}, "5 6 31 * *"),
        ({"cron": "30 2 * * *", "cron-every": "cron", "cron-days": [*WEEK]}, "30 2 * * *"),
        ({"cron": "30 2 * * *", "cron-every": "", "cron-days": [*WEEK]}, ""),
        ({"cron": "", "cron-every": "week", "cron-days": [], "cron-time": "02:30"}, "30 2 * * -"),
        ({"cron": "", "cron-every": "perhaps"}, ""),
        ({"cron": " ", "cron-every": "cron"}, "-"),  # not once: an expression is missing
    ],
)
def test_what_a_form_sends_is_an_expression(sent: dict, expression: str):
    assert pattern_sent("cron", sent.get, lambda name: sent.get(name, [])).cron == expression


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        ("30 2 * * *", "Every day at 02:30"),
        ("0 6 * * 1-5", "Monday to Friday at 06:00"),
        ("0 6 * * MON", "Mondays at 06:00"),
        ("0 6 * * SUN,WED", "Wed, Sun at 06:00"),
        ("5 6 31 * *", "Day 31 of months that have one at 06:05"),
        ("0 * * * *", "Every hour"),
        ("20 * * * *", "Every hour at :20"),
        ("*/15 * * * *", "Every 15 minutes"),
        ("*/7 * * * *", "*/7 * * * *"),  # 56 and 0 are four minutes apart
        ("30 */6 * * *", "Every 6 hours from 00:30"),
        ("* * * * *", "Every minute"),
        ("0 6 1 1 *", "0 6 1 1 *"),
        ("0 6 - * *", "0 6 - * *"),
    ],
)
def test_an_expression_is_told_in_words_where_they_say_it(expression: str, words: str):
    assert words_of(expression) == words
