"""How one run progresses, by hand: what it has done, saved and lost at every moment."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.simulation.progress import EXIT_KILLED, MILLION, Life, Member, Nature, Pace, Phase, gang_rate, life_begun, nature_of

SECOND = 1000
NATURE = Nature(seed=1, work=100 * SECOND * MILLION, least=2, load=5 * SECOND)
SAVING = replace(NATURE, interval=10 * SECOND, save=2 * SECOND, restore=3 * SECOND)


def begun(nature: Nature = NATURE, *, workers: int = 2, resume_step: int = 0) -> Life:
    members = [Member("worker", index, f"n{index}") for index in range(workers)]
    return life_begun(key="j-1.1", nature=nature, members=members, resume_step=resume_step, sequence=1, now=0)


def test_it_loads_computes_and_ends_with_nought() -> None:
    life = begun()
    assert (life.phase, life.next_at) == (Phase.LOADING, 5 * SECOND)

    life.advance(5 * SECOND)
    assert (life.phase, life.up_at, life.next_at) == (Phase.COMPUTING, 5 * SECOND, 105 * SECOND)

    life.advance(200 * SECOND)
    assert (life.phase, life.ended_at, life.exit_code) == (Phase.ENDED, 105 * SECOND, 0)


def test_a_gang_goes_at_the_pace_of_its_slowest_and_more_workers_are_faster() -> None:
    assert gang_rate([MILLION, MILLION // 2], 2) == MILLION // 2
    assert gang_rate([MILLION] * 4, 2) == 2 * MILLION
    assert gang_rate([], 2) == 0
    life = begun(workers=4)
    life.advance(200 * SECOND)
    assert life.ended_at == 55 * SECOND


def test_a_checkpoint_counts_when_it_is_complete_and_holds_what_was_done_when_it_began() -> None:
    life = begun(SAVING)
    life.advance(16 * SECOND)
    assert (life.saved, life.saves) == (0, []), "begun at 15, complete at 17"

    life.advance(17 * SECOND)
    assert (life.saved, life.saves[0].step, life.saves[0].at) == (10 * SECOND * MILLION, 10 * SECOND, 17 * SECOND)


def test_who_is_asked_to_leave_saves_first_and_the_next_attempt_goes_on_there() -> None:
    life = begun(SAVING)
    life.terminate(50 * SECOND)
    assert (life.phase, life.next_at) == (Phase.LEAVING, 52 * SECOND)

    life.advance(52 * SECOND)
    assert (life.phase, life.ended_at, life.saves[-1].step) == (Phase.ENDED, 52 * SECOND, 45 * SECOND)

    again = begun(SAVING, resume_step=life.saves[-1].step)
    assert again.next_at == 8 * SECOND, "load and restore"
    again.advance(500 * SECOND)
    assert again.ended_at == (5 + 3 + 55) * SECOND


def test_who_cannot_save_leaves_at_once_and_who_is_killed_saves_nothing() -> None:
    life = begun()
    life.terminate(50 * SECOND)
    assert life.ended_at == 50 * SECOND
    assert life.exit_code != 0

    life = begun(SAVING)
    life.terminate(50 * SECOND)
    life.kill(51 * SECOND)
    assert (life.ended_at, life.exit_code, life.saves[-1].step) == (51 * SECOND, EXIT_KILLED, 40 * SECOND)


def test_a_stubborn_one_stays_until_it_is_killed() -> None:
    life = begun(replace(SAVING, stubborn=True))
    life.terminate(50 * SECOND)
    assert life.phase == Phase.COMPUTING
    life.kill(60 * SECOND)
    assert life.phase == Phase.ENDED


def test_a_gang_that_loses_a_worker_waits_and_goes_on_from_its_checkpoint() -> None:
    life = begun(SAVING)
    assert life.lose(lambda member: member.node == "n1", 50 * SECOND)
    assert (life.phase, life.next_at) == (Phase.BROKEN, None)
    assert life.progress.done == 40 * SECOND * MILLION, "the checkpoint begun at 45 is complete at 47"

    life.resize(add=[Member("worker", 1, "n7")], leave=(), now=60 * SECOND)
    assert [(member.index, member.node, member.lost) for member in life.members] == [(0, "n0", False), (1, "n7", False)]
    life.advance(500 * SECOND)
    assert life.ended_at == (60 + 3 + 60) * SECOND


def test_a_gang_without_workers_has_ended_by_the_hardware_s_fault() -> None:
    life = begun()
    life.lose(lambda member: True, 50 * SECOND)

    assert (life.phase, life.exit_code, life.node_lost) == (Phase.ENDED, None, True)
    assert "n0" in life.why


def test_a_resize_told_twice_changes_nothing_the_second_time() -> None:
    once, twice = begun(), begun()
    more = [Member("worker", 2, "n2"), Member("worker", 3, "n3")]
    once.resize(add=more, leave=(), now=10 * SECOND)
    for _ in range(2):
        twice.resize(add=more, leave=(), now=10 * SECOND)

    assert once.document() == twice.document()
    once.advance(500 * SECOND)
    assert once.ended_at == (10 + 95 // 2) * SECOND + SECOND // 2


def test_failing_belongs_to_the_attempt_and_work_to_the_job() -> None:
    launch = {"simulated": {"fails": 0.5, "fails_with": ["a", "b"], "load_s": 0}}
    spec = {"roles": [{"min": 1, "gpus": 1}]}
    natures = [nature_of(job="j-5", key=f"j-5.{number}", spec=spec, launch=launch, limit=None, pace=Pace()) for number in range(40)]

    assert len({nature.work for nature in natures}) == 1
    assert 8 < sum(nature.fails_at is not None for nature in natures) < 32
    failing = next(nature for nature in natures if nature.fails_at is not None)
    life = begun(failing, workers=1)
    life.advance(10**9)
    assert (life.exit_code, life.why in ("a", "b")) == (1, True)


TOLD = st.lists(st.tuples(st.integers(0, 40 * SECOND), st.sampled_from(("advance", "checkpoint", "terminate", "kill", "lose", "join"))), max_size=8)


@given(st.sampled_from((NATURE, SAVING, replace(SAVING, fails_at=60 * SECOND * MILLION))), TOLD)
def test_whatever_it_is_told_it_stays_a_life_and_survives_being_written_down(nature: Nature, told: list[tuple[int, str]]) -> None:
    life, now = begun(nature), 0
    for later, what in told:
        now += later
        before = life.progress.done
        match what:
            case "lose":
                life.lose(lambda member: member.index == 1, now)
            case "join":
                life.resize(add=[Member("worker", 1, "n9")], leave=(), now=now)
            case _:
                getattr(life, what)(now)
        assert life.saved <= max(before, life.progress.done)
        assert life.progress.work is not None
        assert 0 <= life.progress.done <= life.progress.work
        assert (life.phase == Phase.ENDED) == (life.ended_at is not None)
        assert life.next_at is None or life.next_at > now
        assert Life.read(json.loads(json.dumps(life.document()))) == life
        life = Life.read(life.document())
