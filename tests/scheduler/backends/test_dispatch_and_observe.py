"""From orders to runs and back: what is told to a back-end, and what is written down of what it says. The simulated one, in its database."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext

from gpufleet.core.models import Change
from scheduler.backends.base import (
    Backend,
    BackendError,
    BackendRefused,
    BackendSilent,
    FolderSilent,
    RunState,
    SeenCheckpoint,
    SeenRun,
    SeenSteps,
    SeenWorker,
    WorkerSeat,
)
from scheduler.backends.faults import FaultPlan
from scheduler.backends.memory import REMEMBERED, DatabaseStore
from scheduler.backends.registry import Backends
from scheduler.backends.simulated import SimulatedBackend
from scheduler.loop.measures import CALL
from scheduler.models import Attempt, Checkpoint, Cluster, Gpu, Job, JobState, Node, Order, OrderKind, Placement, SimulatedRun
from scheduler.services.jobs.tokens import attempt_token, token_digest
from scheduler.services.loop.dispatch import orders_dispatch, seats_of
from scheduler.services.loop.measuring import tally
from scheduler.services.loop.observe import runs_observe, steps_seen
from scheduler.services.loop.usage import timeline_review
from tests import builders
from tests.invariants import fleet_faults, gang_faults, seat_faults
from tests.scheduler.backends.scenes import at
from tests.scheduler.test_jobs import Blown, Fuse

pytestmark = pytest.mark.django_db
SPEC = {
    "roles": [{"name": "worker", "min": 2, "gpus": 2}],
    "work_s": 100,
    "checkpoint": {"interval_s": 10, "save_s": 2, "restore_s": 3},
    "grace_s": 20,
}


def simulated(**options: Any) -> SimulatedBackend:
    return SimulatedBackend(DatabaseStore(builders.cluster().pk), **options)


def backends(backend: Backend | None = None) -> Backends:
    return Backends({builders.cluster().pk: backend or simulated()})


def started(*, workers: int = 2, gpus: int = 2, state: str = JobState.STARTING, on: Sequence[Node] = (), **fields: Any) -> Attempt:
    """A job that was just given its GPUs, with its order to start."""
    facts = {"spec": SPEC, "launch": {"simulated": {"load_s": 5}}, "state_since": at(0), "submitted_at": at(0)} | fields
    job = builders.job(state=state, gpus_milli=workers * gpus * 1000, **facts)
    attempt = builders.attempt(job, sequence=1, started_at=at(0))
    nodes = list(on) or [builders.node(gpus=gpus) for _ in range(workers)]
    for worker, node in enumerate(nodes):
        for gpu in Gpu.objects.filter(node=node).order_by("index")[:gpus]:
            builders.placement(job, gpu, worker=worker, attempt=attempt, since=at(0))
    order(attempt, OrderKind.START, sequence=1)
    return attempt


def order(attempt: Attempt, kind: str, payload: dict[str, Any] | None = None, *, sequence: int = 0, due: datetime | None = None) -> Order:
    number = sequence or attempt.sequence + 1
    Attempt.objects.filter(pk=attempt.pk).update(sequence=number)
    attempt.sequence = number
    cluster = builders.cluster()
    return Order.objects.create(
        cluster=cluster, attempt=attempt, sequence=number, kind=kind, payload=payload or {}, made_at=at(0), due_at=due or at(0)
    )


def state_of(attempt: Attempt) -> tuple[str, str]:
    attempt.refresh_from_db()
    return attempt.job.__class__.objects.get(pk=attempt.job_id).state, attempt.outcome


def remembered() -> bool:
    return SimulatedRun.objects.filter(REMEMBERED).exists()


def key_of(attempt: Attempt) -> str:
    return f"{attempt.job.public_id}.{attempt.number}"


def asked_to_leave(attempt: Attempt, *, until: datetime, to: str = JobState.PREEMPTED, outcome: str = "preempted") -> None:
    Attempt.objects.filter(pk=attempt.pk).update(stop_to=to, stop_outcome=outcome, stop_asked_at=at(0), stop_until=until)
    Job.objects.filter(pk=attempt.job_id).update(state=JobState.CHECKPOINTING)


def test_a_job_starts_runs_saves_its_work_and_completes() -> None:
    attempt, all_of_them = started(), backends()
    assert orders_dispatch(backends=all_of_them, now=at(1)).sent == 1
    assert orders_dispatch(backends=all_of_them, now=at(1)).sent == 0
    runs_observe(backends=all_of_them, now=at(2))
    assert state_of(attempt) == (JobState.STARTING, "")

    runs_observe(backends=all_of_them, now=at(7))
    assert state_of(attempt) == (JobState.RUNNING, "")

    runs_observe(backends=all_of_them, now=at(30))
    saved = [(row.step, row.shards_expected, row.shards.count(), row.verified_at) for row in Checkpoint.objects.order_by("step")]
    assert saved == [(10_000, 2, 2, at(30)), (20_000, 2, 2, at(30))]

    runs_observe(backends=all_of_them, now=at(200))
    assert state_of(attempt) == (JobState.COMPLETED, "completed")
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert not remembered(), "its end was written down, so it is forgotten"
    assert not fleet_faults()


def test_files_of_step_times_are_taken_in_every_five_seconds_and_keep_no_run_from_ending() -> None:
    class Training(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            return tuple(replace(run, steps=(SeenSteps(now, 1, ((0, 1.0),)),)) for run in super().observe(now=now))

    taken: list[datetime] = []

    def spoilt(now: datetime, **_: Any) -> None:
        taken.append(now)
        raise ValueError("what a job wrote")

    attempt, all_of_them = started(), backends(Training(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(1))
    steps_seen.connect(spoilt)
    try:
        for seconds in (20, 21, 24, 26, 200):
            runs_observe(backends=all_of_them, now=at(seconds), full=True)
    finally:
        steps_seen.disconnect(spoilt)

    assert taken == [at(20), at(26), at(200)]
    assert state_of(attempt) == (JobState.COMPLETED, "completed")


def test_the_back_end_is_told_where_each_worker_sits_and_a_token_that_nobody_else_has() -> None:
    attempt = started()
    seats = seats_of([attempt.pk])[attempt.pk, builders.cluster().pk]
    assert [(seat.role, seat.index, seat.gpus, seat.gpu_milli) for seat in seats] == [("worker", 0, (0, 1), 1000), ("worker", 1, (0, 1), 1000)]
    assert len({uuid for seat in seats for uuid in seat.gpu_uuids}) == 4

    told: list[Any] = []

    class Listening(SimulatedBackend):
        def start(self, order: Any, *, now: datetime) -> None:
            told.append(order)

    orders_dispatch(backends=backends(Listening(DatabaseStore(builders.cluster().pk))), now=at(1))

    attempt.refresh_from_db()
    assert told[0].token == attempt_token(key_of(attempt))
    assert attempt.token_digest == token_digest(told[0].token) != told[0].token
    assert (told[0].grace_seconds, told[0].resume_step, told[0].workers) == (20, 0, tuple(seats))


def test_an_order_is_done_when_its_back_end_has_taken_it_not_when_the_look_began() -> None:
    started()
    orders_dispatch(backends=backends(), now=at(1), clock=lambda: at(1.25))

    assert Order.objects.get().done_at == at(1.25)


def test_runs_that_begin_together_are_looked_up_together() -> None:
    for _ in range(3):
        started(workers=1)
    with CaptureQueriesContext(connection) as queries:
        assert orders_dispatch(backends=backends(), now=at(1)).sent == 3

    reads = [one["sql"] for one in queries if one["sql"].startswith("SELECT") and "simulated_run" in one["sql"]]
    assert len(reads) == 1


def test_a_resumed_attempt_is_told_from_where() -> None:
    attempt = started()
    row = Checkpoint.objects.create(job=attempt.job, attempt=attempt, step=90_000, location="there", verified_at=at(0))
    Attempt.objects.filter(pk=attempt.pk).update(resumed_from=row)
    all_of_them = backends()
    orders_dispatch(backends=all_of_them, now=at(0))

    runs_observe(backends=all_of_them, now=at(5 + 3 + 10))
    assert state_of(attempt) == (JobState.COMPLETED, "completed")


def test_orders_of_one_attempt_are_told_in_their_order_and_a_failed_one_holds_the_next_back() -> None:
    attempt, all_of_them = started(), backends(simulated(faults=FaultPlan(refuses=1.0, until=at(10))))
    order(attempt, OrderKind.SIGNAL, {"signal": "checkpoint"})

    assert orders_dispatch(backends=all_of_them, now=at(1)).put_off == 1
    first, second = Order.objects.order_by("sequence")
    assert (first.tries, first.done_at, second.tries) == (1, None, 0)
    assert "did not take" in first.fault
    assert first.due_at > at(1)

    for seconds in (20, 20, 20):
        orders_dispatch(backends=all_of_them, now=at(seconds))
    assert not Order.objects.filter(done_at__isnull=True).exists()
    assert [run.sequence for run in all_of_them[builders.cluster().pk].observe(now=at(20))] == [2]


def test_a_failed_order_is_tried_later_and_later_but_what_frees_gpus_soon() -> None:
    attempt, all_of_them = started(), backends(simulated(faults=FaultPlan(refuses=1.0)))
    now = 0.0
    for _ in range(12):
        orders_dispatch(backends=all_of_them, now=at(now))
        row = Order.objects.get()
        pause = (row.due_at - at(now)).total_seconds()
        now += pause
    assert 48 <= pause <= 72

    order(attempt, OrderKind.STOP, {"force": True}, due=at(now))
    for _ in range(12):
        orders_dispatch(backends=all_of_them, now=at(now))
        row = Order.objects.get(kind=OrderKind.STOP)
        pause = (row.due_at - at(now)).total_seconds()
        now += pause
    assert 4 <= pause <= 6


def test_orders_that_failed_together_are_not_tried_again_together() -> None:
    for _ in range(12):
        started()
    all_of_them = backends(simulated(faults=FaultPlan(refuses=1.0)))
    for seconds in (0, 10, 30, 60, 120, 240, 400):
        orders_dispatch(backends=all_of_them, now=at(seconds))

    due = sorted((row.due_at - at(400)).total_seconds() for row in Order.objects.all())
    assert len({round(one) for one in due}) > 6
    assert 48 <= due[0] <= due[-1] <= 72


@pytest.mark.parametrize("end", [(OrderKind.SIGNAL, {"signal": "terminate"}), (OrderKind.STOP, {"force": True})])
def test_a_job_that_is_stopped_before_its_start_was_told_never_starts(end: tuple[str, dict[str, Any]]) -> None:
    attempt, all_of_them = started(), backends()
    Order.objects.update(due_at=at(60))  # staggered
    asked_to_leave(attempt, until=at(20), to=JobState.CANCELLED, outcome="cancelled")
    order(attempt, *end)

    orders_dispatch(backends=all_of_them, now=at(1))
    runs_observe(backends=all_of_them, now=at(1))

    assert state_of(attempt) == (JobState.CANCELLED, "cancelled")
    orders_dispatch(backends=all_of_them, now=at(100))
    runs_observe(backends=all_of_them, now=at(100), full=True)
    assert not remembered()
    assert not Order.objects.filter(done_at__isnull=True).exists()


def test_an_evicted_job_keeps_its_gpus_until_it_has_left_and_has_saved_its_work() -> None:
    attempt, all_of_them = started(), backends()
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(50))
    asked_to_leave(attempt, until=at(70))
    order(attempt, OrderKind.SIGNAL, {"signal": "terminate"})
    orders_dispatch(backends=all_of_them, now=at(50))

    runs_observe(backends=all_of_them, now=at(51))
    assert Placement.objects.filter(until__isnull=True).count() == 4

    runs_observe(backends=all_of_them, now=at(52))
    assert state_of(attempt) == (JobState.PREEMPTED, "preempted")
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert Checkpoint.objects.filter(verified_at__isnull=False).order_by("-step").values_list("step", flat=True)[0] == 45_000


def test_what_a_back_end_will_never_do_fails_the_job_with_its_words() -> None:
    class Picky(SimulatedBackend):
        def start(self, order: Any, *, now: datetime) -> None:
            raise BackendRefused("There is no program /no/such/thing.")

    attempt = started(retry_limit=3)
    all_of_them = backends(Picky(DatabaseStore(builders.cluster().pk)))
    assert orders_dispatch(backends=all_of_them, now=at(0)).refused == 1
    orders_dispatch(backends=all_of_them, now=at(1))
    runs_observe(backends=all_of_them, now=at(2), full=True)

    assert state_of(attempt) == (JobState.FAILED, "failed")
    assert "/no/such/thing" in attempt.cause
    assert not fleet_faults()


def test_a_run_that_its_back_end_will_never_resize_restarts_and_holds_nothing_for_those_who_were_to_join() -> None:
    class Picky(SimulatedBackend):
        def resize(self, **_: Any) -> None:
            raise BackendRefused("There is no secret wandb for this job.")

    attempt, all_of_them = started(), backends(Picky(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(6))
    order(attempt, OrderKind.RESIZE, {"add": [["worker", 2]], "leave": []}, due=at(7))
    assert orders_dispatch(backends=all_of_them, now=at(7)).refused == 1

    assert state_of(attempt) == (JobState.CHECKPOINTING, "")
    assert (attempt.stop_to, attempt.stop_cause) == (JobState.QUEUED, "There is no secret wandb for this job.")


def test_a_refused_resize_is_not_forgotten_by_a_scheduler_that_is_killed_while_it_writes_it_down() -> None:
    class Picky(SimulatedBackend):
        def resize(self, **_: Any) -> None:
            raise BackendRefused("There is no secret wandb for this job.")

    attempt, all_of_them = started(), backends(Picky(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(6))
    resize = order(attempt, OrderKind.RESIZE, {"add": [["worker", 2]], "leave": []}, due=at(7))
    for statement in itertools.count(1):
        try:
            with connection.execute_wrapper(Fuse(statement)):
                orders_dispatch(backends=all_of_them, now=at(7))
            break
        except Blown:
            resize.refresh_from_db()
            assert resize.done_at is None, statement
    assert state_of(attempt) == (JobState.CHECKPOINTING, "")


def test_a_worker_that_has_done_its_part_is_not_lost() -> None:
    class Uneven(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            ended = {"state": RunState.ENDED, "exit_code": 0}
            return tuple(replace(run, workers=(replace(run.workers[0], **ended), *run.workers[1:])) for run in super().observe(now=now))

    attempt, all_of_them = started(), backends(Uneven(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(6), full=True)
    Placement.objects.filter(worker=0).update(joining=True)  # and so short that nobody saw it up
    runs_observe(backends=all_of_them, now=at(7), full=True)

    assert state_of(attempt) == (JobState.RUNNING, "")
    assert Placement.objects.filter(until__isnull=True, joining=False).count() == 4


def test_a_cluster_whose_back_end_does_not_answer_waits() -> None:
    attempt, all_of_them = started(), backends(simulated(faults=FaultPlan(silent=1.0, until=at(100))))
    orders_dispatch(backends=all_of_them, now=at(0))
    assert runs_observe(backends=all_of_them, now=at(50)).silent == [builders.cluster().pk]
    assert state_of(attempt) == (JobState.STARTING, "")

    runs_observe(backends=all_of_them, now=at(101))
    assert state_of(attempt) == (JobState.RUNNING, "")


def test_a_change_of_leader_neither_keeps_a_cluster_closed_nor_opens_it_in_the_dark() -> None:
    """Two processes take turns, as each tick is led by whichever comes first."""
    cluster, faults = builders.cluster(), {"is_dark": False}

    class Switched(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            if faults["is_dark"]:
                raise BackendError("dark")
            return ()

        news = observe

    one, other = (backends(Switched(DatabaseStore(cluster.pk))) for _ in range(2))

    def closed(who: Backends, dark: bool, *seconds: int) -> bool:
        faults["is_dark"] = dark
        for second in seconds:
            runs_observe(backends=who, now=at(second))
        return Cluster.objects.get(pk=cluster.pk).silent_since is not None

    assert not closed(one, False, 0)
    assert closed(other, True, 10, 15, 20)
    assert not closed(one, False, 21), "its answer opens it, whoever wrote that it was closed"
    assert closed(one, True, 30, 35, 40)
    assert not closed(other, False, 41)
    assert not closed(one, True, 160), "one call that failed, long after its own silence"
    assert closed(other, True, 160, 165, 170)
    assert closed(one, True, 171)


def test_a_back_end_that_hangs_is_probed_each_ten_seconds_and_told_nothing_until_it_answers() -> None:
    calls: list[str] = []
    silent = True

    class Hanging(SimulatedBackend):
        def _ask(self, call: str) -> None:
            calls.append(call)
            if silent:
                raise BackendSilent("Nobody answers.")

        def probe(self) -> None:
            self._ask("probe")

        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            self._ask("observe")
            return super().observe(now=now)

        news = observe

        def start(self, order: Any, *, now: datetime) -> None:
            self._ask("start")
            super().start(order, now=now)

    def ticks(*seconds: int) -> list[str]:
        calls.clear()
        for second in seconds:
            runs_observe(backends=all_of_them, now=at(second))
            orders_dispatch(backends=all_of_them, now=at(second))
        return list(calls)

    all_of_them = backends(Hanging(DatabaseStore(builders.cluster().pk)))
    attempt = started(workers=1)

    assert ticks(0, 5, 10) == ["observe"] * 3
    assert Cluster.objects.get(pk=builders.cluster().pk).silent_since == at(0)
    assert ticks(*range(11, 31)) == ["probe"] * 2
    assert Order.objects.get().fault == "Nobody answers."
    silent = False
    assert ticks(31, 39) == []
    assert ticks(40, 41) == ["probe", "observe", "start", "observe"], "what was put off is due as soon as it answers"
    assert Cluster.objects.get(pk=builders.cluster().pk).silent_since is None
    assert SimulatedRun.objects.get().attempt_key == key_of(attempt)


def test_where_only_a_folder_hangs_a_run_is_ended_by_force_and_nothing_else_is_told() -> None:
    stopped: list[int] = []
    answers = True

    class Hanging(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            raise FolderSilent("The shared folder does not answer.", Path("/shared"))

        news = observe

        def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
            stopped.append(sequence)
            if not answers:
                raise BackendSilent("Nobody answers.")

    all_of_them = backends(Hanging(DatabaseStore(builders.cluster().pk)))
    gentle, forced, other = (order(started(workers=1), OrderKind.STOP, {"force": force}) for force in (False, True, True))
    Order.objects.filter(pk=other.pk).update(due_at=at(20))
    runs_observe(backends=all_of_them, now=at(0))

    orders_dispatch(backends=all_of_them, now=at(0))
    assert Order.objects.get(pk=forced.pk).done_at == at(0)
    assert Order.objects.get(pk=gentle.pk).fault == "The shared folder does not answer."
    assert stopped == [forced.sequence]

    answers = False
    for second in range(20, 30, 2):
        orders_dispatch(backends=all_of_them, now=at(second))
    assert len(stopped) == 2, "a controller that does not answer either is waited for once until it is probed"


def test_the_start_and_the_end_of_a_silence_are_told_to_the_pages_of_jobs_there() -> None:
    job, all_of_them = started().job, backends(simulated(faults=FaultPlan(silent=1.0, until=at(100))))
    builders.job(state=JobState.QUEUED)
    orders_dispatch(backends=all_of_them, now=at(0))
    Change.objects.all().delete()

    def told(second: int) -> list[list[dict[str, int]]]:
        runs_observe(backends=all_of_them, now=at(second))
        found = list(Change.objects.filter(topic="jobs").order_by("rev").values_list("rows", flat=True))
        Change.objects.all().delete()
        return found

    assert [told(second) for second in (50, 55, 60, 65)] == [[], [], [[{"id": job.pk}]], []]
    assert told(101) == [[{"id": job.pk}]] * 2, "and that it came up"


def test_a_call_that_failed_once_closes_nothing_though_nothing_happens_afterwards() -> None:
    all_of_them = backends(simulated(faults=FaultPlan(silent=1.0, until=at(2))))
    all_of_them.looked(builders.cluster().pk, at(0))
    for second in range(1, 15):
        runs_observe(backends=all_of_them, now=at(second))

    assert not all_of_them.silent
    assert not Cluster.objects.filter(silent_since__isnull=False).exists()


def test_a_lost_worker_makes_its_gang_degraded_and_a_lost_gang_waits_again() -> None:
    pair, single = started(), started(workers=1)
    backend = simulated()
    all_of_them = backends(backend)
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(10))
    for attempt in (pair, single):
        backend.node_lost(node=Placement.objects.filter(attempt=attempt, worker=0)[0].node.name, now=at(20))

    found = runs_observe(backends=all_of_them, now=at(20))

    assert (found.lost_workers, found.ended) == (2, 1)
    assert state_of(pair) == (JobState.DEGRADED, "")
    assert state_of(single) == (JobState.QUEUED, "lost")
    assert Placement.objects.filter(attempt=pair, until__isnull=True).count() == 2
    assert "stays" in pair.events.latest("id").cause


def test_a_worker_that_is_being_replaced_is_not_lost_a_second_time() -> None:
    attempt, backend = started(), simulated()
    all_of_them = backends(backend)
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(10))
    backend.node_lost(node=Placement.objects.filter(attempt=attempt, worker=0)[0].node.name, now=at(20))
    runs_observe(backends=all_of_them, now=at(20))
    for gpu in Gpu.objects.filter(node=builders.node(gpus=2)):
        builders.placement(attempt.job, gpu, worker=0, attempt=attempt)
    Job.objects.filter(pk=attempt.job_id).update(degraded_since=None)
    resize = order(attempt, OrderKind.RESIZE, {"add": [["worker", 0]], "leave": []})

    runs_observe(backends=all_of_them, now=at(21), full=True)
    assert Placement.objects.filter(attempt=attempt, until__isnull=True).count() == 4
    orders_dispatch(backends=all_of_them, now=at(22))
    resize.refresh_from_db()
    assert resize.done_at == at(22)
    runs_observe(backends=all_of_them, now=at(26))

    assert state_of(attempt) == (JobState.RUNNING, "")
    assert not [*seat_faults(), *gang_faults()]


def test_workers_that_were_asked_to_go_are_free_once_they_have_gone() -> None:
    attempt, all_of_them = started(), backends()
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(10))
    Placement.objects.filter(attempt=attempt, worker=1).update(leaving_since=at(10))
    order(attempt, OrderKind.RESIZE, {"add": [], "leave": [["worker", 1]]})
    runs_observe(backends=all_of_them, now=at(11), full=True)
    assert Placement.objects.filter(attempt=attempt, until__isnull=True).count() == 4

    orders_dispatch(backends=all_of_them, now=at(12))
    runs_observe(backends=all_of_them, now=at(12))

    assert set(Placement.objects.filter(attempt=attempt, until__isnull=True).values_list("worker", flat=True)) == {0}
    assert state_of(attempt) == (JobState.RUNNING, "")


def test_a_run_that_nobody_knows_of_is_ended() -> None:
    attempt, backend = started(), simulated()
    all_of_them = backends(backend)
    orders_dispatch(backends=all_of_them, now=at(0))
    SimulatedRun.objects.update(attempt_key="j-77777.1")
    SimulatedRun.objects.update(state={**SimulatedRun.objects.get().state, "key": "j-77777.1"})

    assert runs_observe(backends=all_of_them, now=at(1), full=True).strays == 1
    assert [run.state for run in backend.news(now=at(1))] == [RunState.ENDED]
    runs_observe(backends=all_of_them, now=at(2))
    assert not remembered()
    assert state_of(attempt) == (JobState.STARTING, ""), "not missed for long enough"


def test_a_run_that_is_gone_without_a_word_is_lost_after_a_while_and_kept_away() -> None:
    attempt, all_of_them = started(launch={"simulated": {"load_s": 5, "endless": True}}), backends()
    orders_dispatch(backends=all_of_them, now=at(0))
    runs_observe(backends=all_of_them, now=at(10))
    kept = SimulatedRun.objects.get()
    SimulatedRun.objects.all().delete()

    for seconds in (40, 70):
        runs_observe(backends=all_of_them, now=at(seconds))
        assert state_of(attempt) == (JobState.RUNNING, "")
    runs_observe(backends=all_of_them, now=at(100))
    assert state_of(attempt) == (JobState.QUEUED, "lost")
    assert not Placement.objects.filter(until__isnull=True).exists()

    SimulatedRun.objects.all().delete()
    SimulatedRun.objects.create(cluster=kept.cluster, attempt_key=kept.attempt_key, sequence=1, state={**kept.state}, due_at=at(0))
    assert runs_observe(backends=all_of_them, now=at(140)).strays == 1, "it comes back and is ended"


def test_a_back_end_that_leaves_out_a_run_now_and_then_does_no_harm() -> None:
    attempt, all_of_them = started(), backends(simulated(faults=FaultPlan(seed=2, hides=0.4)))
    orders_dispatch(backends=all_of_them, now=at(0))
    for seconds in range(1, 100):
        runs_observe(backends=all_of_them, now=at(seconds))
        assert state_of(attempt)[1] == ""
    runs_observe(backends=all_of_them, now=at(106))
    runs_observe(backends=all_of_them, now=at(107))
    runs_observe(backends=all_of_them, now=at(108))

    assert state_of(attempt) == (JobState.COMPLETED, "completed")


def test_gpus_that_a_back_end_chose_itself_are_taken_over() -> None:
    attempt = started(workers=1, gpus=2, on=[builders.node("n1", gpus=4)])

    class Choosing(SimulatedBackend):
        @property
        def facts(self) -> Any:
            return super().facts.__class__(pins_gpus=False)

        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            seat = WorkerSeat("worker", 0, "n1", (1, 3))
            return (SeenRun(key_of(attempt), 1, RunState.RUNNING, (SeenWorker(seat, RunState.RUNNING),), started_at=at(3)),)

    all_of_them = backends(Choosing(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(0))
    timeline_review(now=at(2))
    runs_observe(backends=all_of_them, now=at(5))

    held = Placement.objects.filter(attempt=attempt, until__isnull=True).order_by("gpu__index").values_list("gpu__index", flat=True)
    assert list(held) == [1, 3]
    # Until it was known, the GPU that the plan had named was held for it, and nobody else could have it.
    timeline_review(now=at(60))
    assert not fleet_faults()
    (kept, left) = Placement.objects.filter(attempt=attempt, gpu__index__in=(0, 3)).order_by("since", "id")
    assert (kept.until, left.since) == (at(5), at(5))


@pytest.mark.parametrize(
    ("has", "becomes"),
    [
        ((1, 0, 2), (1, 0, 2)),
        ((1, 2, 0), (1, 2, 0)),
        ((3, 0, 2), (0, 1, 2)),  # what another job is known to hold stays that one's, and so does all that waits for it
        ((3, 2, 1), (0, 2, 1)),
    ],
    ids=["two swapped", "three in a ring", "none may move", "two swapped beside one that may not move"],
)
def test_gpus_that_a_back_end_has_swapped_are_taken_over_together(has: tuple[int, ...], becomes: tuple[int, ...]) -> None:
    node = builders.node("n1", gpus=4)
    gpus = {gpu.index: gpu for gpu in Gpu.objects.filter(node=node)}
    attempts = [started(workers=1, gpus=0, on=[node]) for _ in range(4)]
    for index, attempt in enumerate(attempts):
        builders.placement(attempt.job, gpus[index], attempt=attempt, since=at(0))
    Job.objects.update(gpus_milli=1000)

    class Choosing(SimulatedBackend):
        @property
        def facts(self) -> Any:
            return super().facts.__class__(pins_gpus=False)

        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            return tuple(
                SeenRun(key_of(attempt), 1, RunState.RUNNING, (SeenWorker(WorkerSeat("worker", 0, "n1", (index,)), RunState.RUNNING),))
                for attempt, index in zip(attempts, (*has, 3), strict=True)
            )

    all_of_them = backends(Choosing(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(0))
    timeline_review(now=at(2))
    runs_observe(backends=all_of_them, now=at(5))
    timeline_review(now=at(60))

    held = dict(Placement.objects.filter(until__isnull=True).values_list("attempt", "gpu__index"))
    assert tuple(held[attempt.pk] for attempt in attempts) == (*becomes, 3)
    assert not fleet_faults()


@pytest.mark.django_db(transaction=True)
def test_killed_at_any_statement_no_order_is_lost_and_nothing_is_done_twice() -> None:
    """The first statement, then the second, until none is left to be killed at; each time somebody else goes on."""
    kills = 0
    for nth in range(1, 400):
        attempt, all_of_them = started(workers=1, gpus=1), backends()
        fuse = Fuse(nth)
        try:
            with connection.execute_wrapper(fuse):
                orders_dispatch(backends=all_of_them, now=at(0))
                runs_observe(backends=all_of_them, now=at(6))
                runs_observe(backends=all_of_them, now=at(200))
        except Blown:
            kills += 1
        again = backends()
        for seconds in (200, 201, 202):
            orders_dispatch(backends=again, now=at(seconds))
        runs_observe(backends=again, now=at(600))
        assert state_of(attempt) == (JobState.COMPLETED, "completed")
        assert not fleet_faults()
        assert attempt.events.filter(to_state=JobState.COMPLETED).count() == 1
        assert not remembered()
        if kills < nth:
            break
    assert kills > 30


def test_a_back_end_s_fault_in_the_middle_of_many_orders_puts_off_only_its_own() -> None:
    attempts = [started(workers=1, gpus=1) for _ in range(3)]
    bad = key_of(attempts[1])

    class Moody(SimulatedBackend):
        def start(self, order: Any, *, now: datetime) -> None:
            if order.key == bad:
                raise BackendError("Not that one.")
            super().start(order, now=now)

    found = orders_dispatch(backends=backends(Moody(DatabaseStore(builders.cluster().pk))), now=at(0))

    assert (found.sent, found.put_off) == (2, 1)
    assert SimulatedRun.objects.count() == 2


def test_starts_that_cannot_be_announced_are_told_one_by_one_and_the_time_it_took_is_shared() -> None:
    good, bad, ends = started(workers=1), started(workers=1), started(workers=1)
    Job.objects.filter(pk=bad.job_id).update(launch=[])  # whatever it is that cannot be read of one
    order(ends, OrderKind.STOP, {"force": True})

    class Slow(SimulatedBackend):
        def announce(self, orders: Any, *, now: datetime) -> None:
            sleep(0.2)
            raise RecursionError

    tally.take()
    done = orders_dispatch(backends=backends(Slow(DatabaseStore(builders.cluster().pk))), now=at(1))
    assert (done.sent, done.put_off) == (2, 1)
    assert set(Order.objects.filter(done_at__isnull=True).values_list("attempt", flat=True)) == {bad.pk}
    assert SimulatedRun.objects.filter(attempt_key=key_of(good)).exists()
    spent = sum(value for (name, labels, part), value in tally.take().items() if name == CALL.name and OrderKind.START in labels and part == "sum")
    assert spent >= 200_000, "microseconds"


def test_whatever_is_wrong_with_one_run_concerns_that_run_alone() -> None:
    """A back-end whose word on one run cannot be written down, and one that fails in a way that nobody thought of."""
    good, bad = started(workers=1), started(workers=1)
    both = backends()
    orders_dispatch(backends=both, now=at(1))
    real = both[builders.cluster().pk]

    class Strange(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            wild = SeenCheckpoint(2**70, "x", 1, (0,), now)
            return tuple(replace(run, checkpoints=(wild,)) if run.key == key_of(bad) else run for run in real.observe(now=now))

    class Broken(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            raise RecursionError

        def start(self, order: Any, *, now: datetime) -> None:
            if order.job == bad.job.public_id:
                raise RecursionError
            super().start(order, now=now)

    store = DatabaseStore(builders.cluster().pk)
    runs_observe(backends=backends(Strange(store)), now=at(7), full=True)
    assert (state_of(good)[0], state_of(bad)[0]) == (JobState.RUNNING, JobState.STARTING)

    assert runs_observe(backends=backends(Broken(store)), now=at(8), full=True).silent == [builders.cluster().pk]
    Order.objects.update(done_at=None, due_at=at(8))
    done = orders_dispatch(backends=backends(Broken(store)), now=at(8))
    assert (done.sent, done.put_off) == (1, 1)
    assert "RecursionError" in Order.objects.get(attempt=bad).fault


def test_a_new_limit_is_taken_once_and_what_a_back_end_does_not_allow_is_told_to_the_owner() -> None:
    attempt, all_of_them = started(workers=1), backends()
    order(attempt, OrderKind.LIMIT, {"seconds": 600})
    for _ in range(2):
        orders_dispatch(backends=all_of_them, now=at(1))
    runs_observe(backends=all_of_them, now=at(6))
    assert state_of(attempt) == (JobState.RUNNING, "")
    assert simulated().observe(now=at(6))[0].sequence == 2
    gone = started(workers=1)
    Order.objects.filter(attempt=gone).update(done_at=at(1))
    order(gone, OrderKind.LIMIT, {"seconds": 600})

    class Short(SimulatedBackend):
        def limit(self, **_: Any) -> None:
            raise BackendRefused("Its nights are short.")

    assert orders_dispatch(backends=all_of_them, now=at(7)).sent == 1, "of a run that is lost nothing is ended too early"
    order(attempt, OrderKind.LIMIT, {"seconds": 700})
    assert orders_dispatch(backends=backends(Short(DatabaseStore(builders.cluster().pk))), now=at(8)).refused == 1
    assert attempt.events.order_by("pk").last().cause == "Its nights are short."
    assert state_of(attempt) == (JobState.RUNNING, "")


def test_a_run_whose_back_end_ended_it_at_its_limit_is_not_tried_again() -> None:
    attempt = started(workers=1)
    Job.objects.filter(pk=attempt.job_id).update(limit_seconds=100, retry_limit=3)

    class Strict(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            told = {"exit_code": 1, "why": "Ended by the machine.", "limit_over": True}
            return (SeenRun(key_of(attempt), 1, RunState.ENDED, (), started_at=at(3), ended_at=at(110), **told),)

    all_of_them = backends(Strict(DatabaseStore(builders.cluster().pk)))
    orders_dispatch(backends=all_of_them, now=at(1))
    runs_observe(backends=all_of_them, now=at(112))

    assert state_of(attempt) == (JobState.FAILED, "failed")
    assert attempt.cause == "Its time limit of 100 s is over."


def test_a_database_that_is_away_is_no_fault_of_a_back_end_s() -> None:
    class Away(SimulatedBackend):
        def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
            raise OperationalError

    with pytest.raises(OperationalError):
        runs_observe(backends=backends(Away(DatabaseStore(builders.cluster().pk))), now=at(7), full=True)
