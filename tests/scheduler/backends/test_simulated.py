"""What every back-end promises, shown by the simulated one with both of its memories; and what only it can do."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from scheduler.backends import memory, simulated
from scheduler.backends.base import Backend, BackendError, BackendRefused, NotFound, RunState, Signal
from scheduler.backends.faults import FaultPlan
from scheduler.backends.memory import DatabaseStore
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import SimulatedRun
from tests import builders
from tests.scheduler.backends.scenes import at, seat, start_order

Make = Callable[..., SimulatedBackend]


@pytest.fixture(params=["memory", "database"])
def make(request: pytest.FixtureRequest, db: None) -> Make:
    def backend(**options: object) -> SimulatedBackend:
        store = MemoryStore() if request.param == "memory" else DatabaseStore(builders.cluster().pk)
        return SimulatedBackend(store, **options)  # type: ignore[arg-type]

    return backend


def test_a_run_comes_up_saves_its_work_and_ends(make: Make) -> None:
    backend: Backend = make()
    backend.start(start_order(), now=at(0))
    assert [(run.key, run.state) for run in backend.observe(now=at(1))] == [("j-1.1", RunState.STARTING)]
    assert backend.next_event_at(now=at(1)) is not None

    (run,) = backend.observe(now=at(20))
    assert (run.state, run.started_at) == (RunState.RUNNING, at(5))
    assert [(save.step, save.shards, save.at) for save in run.checkpoints] == [(10_000, (0, 1), at(17))]

    (run,) = backend.observe(now=at(500))
    assert (run.state, run.ended_at, run.exit_code) == (RunState.ENDED, at(105), 0)


def test_an_end_is_told_until_it_is_forgotten(make: Make) -> None:
    backend = make()
    backend.start(start_order(), now=at(0))
    for seconds in (500, 501):
        assert [run.state for run in backend.news(now=at(seconds))] == [RunState.ENDED]

    backend.forget(keys=["j-1.1", "j-9.9"], now=at(502))

    assert backend.news(now=at(503)) == backend.observe(now=at(503)) == ()


def log_of(backend: SimulatedBackend, key: str) -> bytes:
    return backend.logs(key=key, role="worker", index=0, offset=0, limit=1000).data


def test_its_log_is_read_on_when_it_has_been_forgotten_and_the_oldest_give_way(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (simulated, memory):
        monkeypatch.setattr(module, "LOGS_KEPT", 2)
    backend = make(clock=lambda: at(600))
    before = {}
    for number in (1, 2, 3):
        key = f"j-{number}.1"
        backend.start(start_order(key), now=at(number))
        backend.news(now=at(500 + number))
        before[key] = log_of(backend, key)
        backend.forget(keys=[key], now=at(510 + number))

    assert b"ended with exit code 0" in before["j-3.1"]
    assert {key: log_of(backend, key) for key in ("j-2.1", "j-3.1")} == {key: before[key] for key in ("j-2.1", "j-3.1")}
    with pytest.raises(NotFound):
        log_of(backend, "j-1.1")
    assert backend.observe(now=at(601)) == backend.news(now=at(601)) == ()
    assert backend.next_event_at(now=at(601)) is None


def test_what_ends_and_is_forgotten_in_one_turn_is_over_as_well(make: Make) -> None:
    backend = make(clock=lambda: at(600))
    backend.start(start_order(), now=at(0))
    with backend.together():
        backend.stop(key="j-1.1", sequence=2, force=True, now=at(20))
        backend.forget(keys=["j-1.1"], now=at(20))

    assert b"ended with exit code" in log_of(backend, "j-1.1")
    assert backend.observe(now=at(601)) == ()


def test_what_runs_is_not_forgotten(make: Make) -> None:
    backend = make()
    backend.start(start_order(), now=at(0))
    backend.forget(keys=["j-1.1"], now=at(10))

    assert [run.key for run in backend.observe(now=at(11))] == ["j-1.1"]


def test_news_are_those_that_something_happened_to(make: Make) -> None:
    backend = make()
    for number in (1, 2):
        backend.start(start_order(f"j-{number}.1"), now=at(10 * number))
    backend.news(now=at(21))

    assert [run.key for run in backend.news(now=at(23))] == []
    assert [(run.key, run.state) for run in backend.news(now=at(25))] == [("j-1.1", RunState.RUNNING), ("j-2.1", RunState.RUNNING)]
    assert backend.next_event_at(now=at(25)) == at(27), "the first checkpoint of the first"


@pytest.mark.django_db
def test_what_another_process_did_to_a_run_is_seen_although_it_is_remembered() -> None:
    store = DatabaseStore(builders.cluster().pk)
    ours, theirs = SimulatedBackend(store), SimulatedBackend(store)
    for number in (1, 2):
        ours.start(start_order(f"j-{number}.1"), now=at(0))
    for _ in range(2):
        assert ours.observe(now=at(6)) == theirs.observe(now=at(6))
    theirs.stop(key="j-1.1", sequence=2, force=True, now=at(7))
    with CaptureQueriesContext(connection) as queries:
        seen = ours.observe(now=at(8))

    assert [(run.key, run.state) for run in seen] == [("j-1.1", RunState.ENDED), ("j-2.1", RunState.RUNNING)]
    assert seen == theirs.observe(now=at(8)) == SimulatedBackend(store).observe(now=at(8))
    assert not [one for one in queries if '"state"' in one["sql"] and "j-2.1" in one["sql"]], "what nobody has touched is not read again"


def test_an_order_told_twice_or_late_changes_nothing(make: Make) -> None:
    backend = make()
    backend.start(start_order(), now=at(0))
    backend.signal(key="j-1.1", sequence=3, signal=Signal.TERMINATE, now=at(20))
    before = backend.observe(now=at(20))

    backend.start(start_order(), now=at(20))
    backend.start(start_order(sequence=9), now=at(20))
    backend.signal(key="j-1.1", sequence=2, signal=Signal.CHECKPOINT, now=at(20))
    backend.resize(key="j-1.1", sequence=2, add=[seat(5)], leave=[], now=at(20))

    assert backend.observe(now=at(20)) == before


def test_a_run_that_was_stopped_before_it_was_started_is_never_begun(make: Make) -> None:
    backend = make()
    backend.stop(key="j-1.1", sequence=2, force=False, now=at(0))
    backend.start(start_order(), now=at(1))

    assert [(run.key, run.state) for run in backend.news(now=at(2))] == [("j-1.1", RunState.ENDED)]


def test_who_is_not_there_can_be_told_nothing(make: Make) -> None:
    backend = make()
    with pytest.raises(NotFound):
        backend.signal(key="j-1.1", sequence=1, signal=Signal.TERMINATE, now=at(0))
    with pytest.raises(NotFound):
        backend.resize(key="j-1.1", sequence=1, add=[], leave=[], now=at(0))
    with pytest.raises(NotFound):
        backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=100)


def test_it_leaves_within_its_grace_with_its_work_saved_or_is_killed(make: Make) -> None:
    backend = make()
    backend.start(start_order(), now=at(0))
    backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=at(50))
    assert [run.state for run in backend.news(now=at(51))] == [RunState.STOPPING]

    (run,) = backend.news(now=at(52))
    assert (run.state, run.ended_at, run.checkpoints[-1].step) == (RunState.ENDED, at(52), 45_000)
    assert run.exit_code

    backend.start(start_order("j-2.1", launch={"simulated": {"load_s": 5, "stubborn": True}}), now=at(60))
    backend.signal(key="j-2.1", sequence=2, signal=Signal.TERMINATE, now=at(70))
    backend.stop(key="j-2.1", sequence=3, force=True, now=at(90))
    assert [run.ended_at for run in backend.news(now=at(91)) if run.key == "j-2.1"] == [at(90)]


def test_a_run_resumes_where_its_checkpoint_was(make: Make) -> None:
    backend = make()
    backend.start(start_order("j-1.2", resume_step=90_000), now=at(0))

    (run,) = backend.observe(now=at(60))
    assert run.ended_at == at(5 + 3 + 10)


def test_a_node_that_goes_dark_takes_its_workers(make: Make) -> None:
    backend = make()
    backend.start(start_order(), now=at(0))
    backend.start(start_order("j-2.1", workers=1), now=at(0))
    backend.news(now=at(6))

    backend.node_lost(node="n0", now=at(20))

    seen = {run.key: run for run in backend.news(now=at(20))}
    assert [worker.state for worker in seen["j-1.1"].workers] == [RunState.ENDED, RunState.RUNNING]
    assert (seen["j-2.1"].state, seen["j-2.1"].node_lost) == (RunState.ENDED, True)

    backend.resize(key="j-1.1", sequence=2, add=[seat(0, "n8")], leave=[], now=at(30))
    (run, _) = backend.observe(now=at(34))
    assert [(worker.seat.node, worker.state) for worker in run.workers] == [("n1", RunState.RUNNING), ("n8", RunState.RUNNING)]


def test_orders_that_belong_together_are_done_together_or_not_at_all(make: Make) -> None:
    backend = make()

    class Killed(Exception):
        pass

    with pytest.raises(Killed), backend.together():
        backend.start(start_order("j-1.1"), now=at(0))
        backend.start(start_order("j-2.1"), now=at(0))
        raise Killed
    assert backend.observe(now=at(0)) == ()

    with backend.together():
        backend.start(start_order("j-1.1"), now=at(0))
        backend.signal(key="j-1.1", sequence=2, signal=Signal.TERMINATE, now=at(0))
    assert [run.state for run in backend.observe(now=at(0))] == [RunState.ENDED]


def test_a_log_grows_and_is_read_in_parts(make: Make) -> None:
    clock = [at(0)]
    backend = make(clock=lambda: clock[0])
    backend.start(start_order(spec={"roles": [{"min": 1}], "work_s": 600}, workers=1), now=at(0))
    backend.observe(now=at(200))
    clock[0] = at(200)
    first = backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=60)
    rest = backend.logs(key="j-1.1", role="worker", index=0, offset=first.next_offset, limit=9999)
    assert "loading" in first.text
    assert "minute 3" in rest.text
    assert not rest.ended

    backend.observe(now=at(1000))
    clock[0] = at(1000)
    whole = backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=9999)
    assert whole.text.startswith(first.text + rest.text)
    assert whole.ended
    assert "exit code 0" in whole.text


def test_each_rank_of_a_worker_begins_its_lines_with_its_number(make: Make) -> None:
    backend = make(clock=lambda: at(200))
    seat = replace(start_order().workers[0], gpus=(0, 1))
    order = replace(start_order(spec={"roles": [{"min": 1}], "work_s": 600}, workers=1, launch={"per": "gpu"}), workers=(seat,))
    backend.start(order, now=at(0))
    backend.observe(now=at(200))
    lines = backend.logs(key="j-1.1", role="worker", index=0, offset=0, limit=9999).text.splitlines()
    assert [line[:4] for line in lines] == ["[0] ", "[1] "] * (len(lines) // 2)
    assert [line[4:] for line in lines[::2]] == [line[4:] for line in lines[1::2]]


@pytest.mark.parametrize("play", [{"load_s": "soon"}, {"busy": 3}, {"rhythm": "jazz"}, {"fails": {}}, {"fails": 1, "fails_with": 7}, [1]])
def test_what_cannot_be_played_is_refused_in_words(make: Make, play: object) -> None:
    with pytest.raises(BackendRefused, match="simulated"):
        make().start(start_order(launch={"simulated": play}), now=at(0))


def test_faults_strike_as_the_plan_says_and_always_the_same_way(make: Make) -> None:
    plan = FaultPlan(seed=3, refuses=0.3, times_out=0.3, repeats=0.3, hides=0.3, silent=0.2, until=at(1000))

    def story(backend: SimulatedBackend) -> list[str]:
        told = []
        for number in range(1, 31):
            try:
                backend.start(start_order(f"j-{number}.1"), now=at(number))
            except BackendError as fault:
                told.append(f"{number}: {fault}")
        for second in range(10):
            try:
                told.append(" ".join(run.key for run in backend.observe(now=at(40 + second))))
            except BackendError as fault:
                told.append(str(fault))
        return told

    with transaction.atomic():
        first = story(make(faults=plan))
        SimulatedRun.objects.all().delete()
    assert first == story(make(faults=plan))
    assert any("did not take" in line for line in first)
    assert any("in time" in line for line in first)
    calm = make(faults=replace(plan, until=at(0)))
    calm.start(start_order("j-99.1"), now=at(1))


@pytest.mark.django_db
def test_two_clusters_have_two_memories() -> None:
    one, other = (SimulatedBackend(DatabaseStore(builders.cluster(name).pk)) for name in ("north", "south"))
    one.start(start_order(), now=at(0))

    assert other.observe(now=at(1)) == ()
    assert len(one.observe(now=at(1))) == 1
