"""The usage ledger and the capacity timeline: whatever happens, they say what was held, to the millisecond and the thousandth of a GPU."""

from collections import defaultdict
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import DatabaseError, transaction
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from gpufleet.core.audit import SYSTEM, Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import millis
from quotas.models import CHARGED, LedgerClock, LedgerEntry, QuotaNode, QuotaShare
from quotas.permissions import Access, Can, Grant
from quotas.rules import NodeValues, Share
from quotas.services.budgets import SETTLED
from quotas.services.ledger import LATE, ledger_hour
from quotas.services.nodes import node_move, node_update
from scheduler.hardware.lifecycle import steps_from
from scheduler.jobs.transitions import FOLLOWING, OUTCOMES, gives_back, takes_gpus
from scheduler.models import HOLDING, USES, Attempt, CapacityEntry, Gpu, Job, JobState, Node, Placement, UsageStep
from scheduler.selectors.reconciliation import usage_differences
from scheduler.services.hardware.hardware import gpu_health_change, node_health_change
from scheduler.services.jobs.jobs import Seat, job_create, job_release, job_start, job_transition
from scheduler.services.loop.runs import Ended, Stop, attempts_ended, attempts_seen, attempts_stop
from scheduler.services.loop.usage import timeline_review
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults, ledger_faults

SECOND = timedelta(seconds=1)
H100 = "H100-SXM-80GB"


def root() -> Access:
    return Access(actor=SYSTEM, grants=(Grant("", frozenset(Can)),))


def new_job(on: QuotaNode, gpus: int = 2, **fields: object) -> Job:
    facts = {
        "name": "train",
        "quota": on,
        "owner": None,
        "job_class": "batch",
        "spec": builders.spec_of(workers=gpus, gpus=1),
        "gpus_milli": gpus * 1000,
        "now": NOON,
    }
    return job_create(**(facts | {"actor": Actor(None, "Ada", "system")} | fields))  # type: ignore[arg-type]


def start(job: Job, node: Node, count: int, first: int = 0, *, now: datetime = NOON) -> None:
    gpus = Gpu.objects.filter(node=node).order_by("index")[first : first + count]
    job_start(job=job, seats=[Seat(gpu.node_id, gpu.pk, worker) for worker, gpu in enumerate(gpus)], now=now, cause="")


def told(*names: str) -> list[tuple[object, ...]]:
    """The ledger's entries, times as seconds after noon."""
    rows = LedgerEntry.objects.order_by("worker", "since", "id").values_list(*names)
    return [tuple((value - NOON).total_seconds() if isinstance(value, datetime) else value for value in row) for row in rows]


@pytest.mark.django_db
class TestLedger:
    def test_an_entry_for_each_phase_of_each_worker(self) -> None:
        team = builders.quota("a", parent=builders.quota("org"), cost_centre="cc-7")
        job = new_job(team, 2, labels={"project": "llm"})
        start(job, builders.node(gpus=2), 2)
        job_transition(job=job, to=JobState.RUNNING, now=NOON + 9 * SECOND, cause="")
        job_transition(job=job, to=JobState.CHECKPOINTING, now=NOON + 60 * SECOND, cause="")
        job_release(job=job, to=JobState.PREEMPTED, outcome="preempted", now=NOON + timedelta(seconds=71.5), cause="")

        phases = [("starting", 0.0, 9.0), ("running", 9.0, 60.0), ("stopping", 60.0, 71.5)]
        assert told("worker", "phase", "since", "until") == [(worker, *phase) for worker in range(2) for phase in phases]
        entry = LedgerEntry.objects.latest("id")
        assert (entry.gpu_milli, entry.gpu_type, entry.quota_path, entry.cost_centre, entry.labels) == (
            1000,
            H100,
            "org/a",
            "cc-7",
            {"project": "llm"},
        )
        assert not fleet_faults()

    def test_a_worker_of_many_gpus_is_one_entry_that_names_them(self) -> None:
        node = builders.node(gpus=8)
        gpus = list(Gpu.objects.filter(node=node).order_by("index"))
        job_start(job=new_job(builders.quota(), 8), seats=[Seat(gpu.node_id, gpu.pk, 0) for gpu in gpus], now=NOON, cause="")

        entry = LedgerEntry.objects.get()
        assert entry.gpu_milli == 8000
        assert entry.parts == sorted([gpu.public_id, 1000, ""] for gpu in gpus)

    def test_a_clock_that_is_behind_never_makes_time_run_backwards(self) -> None:
        node, team = builders.node(gpus=2), builders.quota()
        first, second = new_job(team), new_job(team)
        start(first, node, 2)
        job_transition(job=first, to=JobState.RUNNING, now=NOON + 10 * SECOND, cause="")
        job_release(job=first, to=JobState.COMPLETED, outcome="completed", now=NOON + 4 * SECOND, cause="")
        start(second, node, 2, now=NOON + 5 * SECOND)

        assert set(Placement.objects.filter(job=first).values_list("until", flat=True)) == {NOON + 10 * SECOND}
        assert set(Placement.objects.filter(job=second).values_list("since", flat=True)) == {NOON + 10 * SECOND}
        assert not fleet_faults()

    def test_the_later_of_two_borrows_and_stands_inside_from_the_next_full_hour_on(self) -> None:
        team = builders.quota("a", parent=builders.quota("org"))
        for node in (team, team.parent):
            QuotaShare.objects.create(node=node, gpu_type=H100, guaranteed_milli=2000)
        node = builders.node(gpus=4)
        first, second = new_job(team), new_job(team)
        start(first, node, 2)
        start(second, node, 2, 2, now=NOON + SECOND)
        job_transition(job=first, to=JobState.RUNNING, now=NOON + 2 * SECOND, cause="")
        job_release(job=first, to=JobState.COMPLETED, outcome="completed", now=NOON + 5 * SECOND, cause="")
        assert ledger_hour(now=NOON + timedelta(minutes=59)) == 0
        assert ledger_hour(now=NOON + timedelta(minutes=61)) == 2
        assert ledger_hour(now=NOON + timedelta(minutes=62)) == 0

        assert [row for row in told("worker", "job", "share_class", "since") if row[0] == 0] == [
            (0, first.public_id, "guaranteed", 0.0),
            (0, second.public_id, "borrowed", 1.0),
            (0, first.public_id, "guaranteed", 2.0),
            (0, second.public_id, "guaranteed", 3660.0),
        ]
        assert not fleet_faults()

    def test_a_change_of_the_tree_decides_anew_and_writes_the_new_path(self) -> None:
        org = builders.quota("org")
        team = builders.quota("a", parent=org)
        job = new_job(team)
        start(job, builders.node(gpus=2), 2)
        for node in (org, team):
            values = NodeValues(node.kind, shares={H100: Share(2000)}, cost_centre="cc-1" if node == org else "")
            node_update(access=root(), node=node, values=values, revision=1, now=NOON + 5 * SECOND)
        node_move(access=root(), node=team, parent=org, name="b", revision=2, now=NOON + 8 * SECOND)

        rows = [row[1:] for row in told("worker", "share_class", "quota_path", "cost_centre", "since", "until") if row[0] == 0]
        assert rows == [
            ("borrowed", "org/a", "", 0.0, 5.0),
            ("borrowed", "org/a", "cc-1", 5.0, 5.0),
            ("guaranteed", "org/a", "cc-1", 5.0, 8.0),
            ("guaranteed", "org/b", "cc-1", 8.0, None),
        ]
        assert not fleet_faults()

    def test_the_database_refuses_to_change_or_forget_what_was_written(self) -> None:
        job = new_job(builders.quota())
        start(job, builders.node(gpus=2), 2)
        job_transition(job=job, to=JobState.RUNNING, now=NOON + SECOND, cause="")
        for model in (LedgerEntry, CapacityEntry):
            ended, still_open = model.objects.filter(until__isnull=False), model.objects.filter(until__isnull=True)
            for write in (
                lambda rows=ended: rows.delete(),
                lambda rows=ended: rows.update(until=NOON),
                lambda rows=ended: rows.update(until=None),
                lambda rows=still_open: rows.update(since=NOON),
                lambda rows=still_open: rows._raw_delete(rows.db),
            ):
                assert ended.exists()
                with pytest.raises(DatabaseError, match="append-only"), transaction.atomic():
                    write()
        assert not fleet_faults()

    def test_what_ran_before_the_ledger_began_is_taken_up_when_it_begins(self) -> None:
        held = builders.placement(builders.job(state=JobState.RUNNING, gpus_milli=1000))
        job = new_job(builders.quota())
        start(job, builders.node(gpus=2), 2, now=NOON + 30 * SECOND)

        assert LedgerClock.objects.get().began_at == NOON + 30 * SECOND
        assert LedgerEntry.objects.get(attempt=held.attempt_id).since == NOON + 30 * SECOND
        assert not fleet_faults()

    def test_a_difference_is_found_whichever_record_is_wrong(self) -> None:
        job = new_job(builders.quota())
        start(job, builders.node(gpus=2), 2)
        job_transition(job=job, to=JobState.RUNNING, now=NOON + 10 * SECOND, cause="")
        assert usage_differences() == []
        Placement.objects.filter(worker=1).update(until=NOON + 4 * SECOND)

        ledger, timeline = usage_differences()
        assert "worker 1" in ledger.what
        assert (ledger.gpu_millis, timeline.gpu_millis) == (6_000_000, 6_000_000)


@pytest.mark.django_db
class TestStarts:
    """A run that takes its GPUs at noon and is seen 40 s later. Its back-end says when it came up."""

    def run(self, node: Node, count: int = 2, first: int = 0) -> Attempt:
        job = new_job(builders.quota("a", parent=builders.quota("org")), count)
        start(job, node, count, first)
        return job.attempts.get()

    def told(self, run: Attempt) -> list[tuple[str, float, float | None]]:
        entries = LedgerEntry.objects.filter(attempt=run.pk, worker=0).order_by("since", "id")
        return [(one.phase, (one.since - NOON).total_seconds(), None if one.until is None else (one.until - NOON).total_seconds()) for one in entries]

    @pytest.mark.parametrize(
        ("said", "since"),
        [
            pytest.param(7, 7, id="as the back-end says"),
            pytest.param(-1, 0, id="in whole seconds"),
            pytest.param(-2, 40, id="its clock is behind"),
            pytest.param(41, 40, id="its clock is ahead"),
            pytest.param(None, 40, id="it does not say"),
        ],
    )
    def test_a_run_is_charged_since_it_came_up_and_until_then_its_gpus_are_starting(self, said: int | None, since: int) -> None:
        run = self.run(builders.node(gpus=2))
        attempts_seen(up={run.pk: None if said is None else NOON + said * SECOND}, ends=[], now=NOON + 40 * SECOND)

        run.refresh_from_db()
        assert run.running_at == NOON + since * SECOND
        assert [one for one in self.told(run) if one[1] != one[2]] == [("starting", 0, since), ("running", since, None)][since == 0 :]
        uses = CapacityEntry.objects.filter(used_milli=1000).values_list("since", flat=True)
        assert set(uses) == {NOON + since * SECOND}
        assert not fleet_faults()

    @pytest.mark.parametrize("over", [False, True])
    def test_one_that_its_back_end_starts_again_is_not_charged_before(self, over: bool) -> None:
        """Nor is its GPU in use: those that share one with another run stay as they were told."""
        node = builders.node(gpus=3)
        run = self.run(node)
        shares = [Seat(node.pk, Gpu.objects.get(node=node, index=2).pk, gpu_milli=250)]
        shared = [job_start(job=new_job(run.job.quota, 0), seats=shares, now=NOON, cause="") for _ in range(2)]
        attempts_seen(up={one.pk: NOON + 5 * SECOND for one in (run, *shared)}, ends=[], now=NOON + 10 * SECOND)
        anew = {run.pk: NOON + 23 * SECOND, shared[0].pk: NOON + 23 * SECOND}
        ends = [Ended(run.pk, 0, started_at=NOON + 23 * SECOND, ended_at=NOON + 30 * SECOND)] if over else []
        attempts_seen(up=anew, ends=ends, anew=anew, now=NOON + 40 * SECOND)

        told = [one for one in self.told(run) if one[1] != one[2]]
        assert told == [("starting", 0, 5), ("starting", 5, 23), ("running", 23, 30 if over else None)]
        assert [self.told(one)[-1] for one in shared] == [("running", 5, None)] * 2
        assert AuditEntry.objects.get(action="usage.correct").object_id == run.job.public_id
        assert set(CapacityEntry.objects.filter(used_milli=1000).values_list("since", flat=True)) >= {NOON + 23 * SECOND}
        assert not ledger_faults()

    @pytest.mark.parametrize("exit_code", [0, 1])
    def test_one_that_nobody_saw_run(self, exit_code: int) -> None:
        """Its whole life since the last look is in the ledger, also where another one comes up in that look."""
        node = builders.node(gpus=4)
        run, other = self.run(node), self.run(node, first=2)
        over = Ended(run.pk, exit_code, started_at=NOON + 3 * SECOND, ended_at=NOON + 30 * SECOND)
        attempts_seen(up={other.pk: NOON + 5 * SECOND}, ends=[over], now=NOON + 40 * SECOND)

        assert self.told(run) == [("starting", 0, 3), ("running", 3, 30)]
        assert self.told(other) == [("starting", 0, 5), ("running", 5, None)]
        assert not fleet_faults()

    def test_several_on_one_gpu_are_charged_since_the_last_of_them_came_up(self) -> None:
        """Those who share a GPU, whatever comes up on others; one whose start is not believed comes up when that is seen."""
        runs: list[list[Attempt]] = []
        for gpu, count in zip(Gpu.objects.filter(node=builders.node(gpus=3)).order_by("index"), (3, 2, 2), strict=True):
            shares = [Seat(gpu.node_id, gpu.pk, gpu_milli=250)]
            runs.append([job_start(job=new_job(builders.quota(), 0), seats=shares, now=NOON, cause="") for _ in range(count)])
        said = [(2, 6), (1, 3), (5, -2)]
        up = {run.pk: NOON + at * SECOND for group, times in zip(runs, said, strict=True) for run, at in zip(group, times, strict=False)}
        over = Ended(runs[0][2].pk, 0, started_at=NOON + 4 * SECOND, ended_at=NOON + 30 * SECOND)
        attempts_seen(up=up, ends=[over], now=NOON + 40 * SECOND)

        assert [self.told(run)[-1] for run in runs[0]] == [("running", 6, None), ("running", 6, None), ("running", 6, 40)]
        assert [self.told(run)[-1] for run in runs[1]] == [("running", 3, None)] * 2
        assert [self.told(run)[-1] for run in runs[2]] == [("running", 40, None)] * 2
        assert not ledger_faults()

    def test_the_doctor_finds_a_charge_while_the_timeline_says_starting(self) -> None:
        run = self.run(builders.node(gpus=2))
        attempts_seen(up={run.pk: NOON + 7 * SECOND}, ends=[], now=NOON + 40 * SECOND)
        CapacityEntry.objects.create(gpu=Gpu.objects.latest("pk"), since=NOON, until=NOON + 7 * SECOND, used_milli=1000)

        assert [fault for fault in ledger_faults() if "charged" in fault] == [
            f"What the timeline says is used of {H100} is not what is charged, from 2026-11-20 12:00:00.000 on. ({1000 * 7000})"
        ]

    def test_a_run_whose_node_was_lost_is_charged_since_its_start(self) -> None:
        run = self.run(builders.node(gpus=2))
        over = Ended(run.pk, None, node_lost=True, started_at=NOON + 5 * SECOND, ended_at=NOON + 20 * SECOND)
        attempts_ended(ends=[over], now=NOON + 40 * SECOND)

        assert self.told(run) == [("starting", 0, 5), ("running", 5, 40)]
        assert not fleet_faults()

    def test_one_that_comes_up_when_its_start_was_given_up_is_charged_and_counts_as_a_lost_start(self) -> None:
        node = builders.node(gpus=2)
        job = new_job(builders.quota())
        pauses = []
        for second in (0, 60):
            start(job, node, 2, now=NOON + second * SECOND)
            run = job.attempts.latest("number")
            attempts_stop(stops=[Stop(job.pk, JobState.QUEUED, "lost", "")], now=NOON + (second + 10) * SECOND)
            up = {run.pk: NOON + (second + 15) * SECOND}
            assert [attempts_seen(up=up, ends=[], now=NOON + (second + 20) * SECOND) for _ in range(2)] == [(0, 0)] * 2
            attempts_ended(ends=[Ended(run.pk, 143)], now=NOON + (second + 40) * SECOND)
            job.refresh_from_db()
            pauses.append(job.retry_at is not None)
            assert self.told(run)[-1] == ("stopping", second + 15, second + 40)

        assert (job.state, pauses) == (JobState.QUEUED, [False, True])
        assert not fleet_faults()

    def test_one_that_never_came_up_is_not_charged_and_one_that_came_up_while_it_was_stopped_is(self) -> None:
        node = builders.node(gpus=4)
        never, late = self.run(node), self.run(node, first=2)
        stops = [Stop(run.job_id, JobState.CANCELLED, "cancelled", "") for run in (never, late)]
        attempts_stop(stops=stops, now=NOON + 10 * SECOND)
        ends = [Ended(never.pk, None, ended_at=NOON + 20 * SECOND), Ended(late.pk, 143, started_at=NOON + 15 * SECOND, ended_at=NOON + 20 * SECOND)]
        attempts_ended(ends=ends, now=NOON + 40 * SECOND)

        assert self.told(never) == [("starting", 0, 20)]
        assert self.told(late) == [("starting", 0, 15), ("stopping", 15, 20)]
        assert [LedgerEntry.objects.filter(CHARGED, attempt=run.pk).count() for run in (never, late)] == [0, 2]
        assert not fleet_faults()


@pytest.mark.django_db
class TestEnds:
    """A run that is up 9 s after noon and whose end is seen 40 s after it. Its back-end says when it ended."""

    def run(self, node: Node, count: int = 2, first: int = 0) -> Job:
        job = new_job(builders.quota("a", parent=builders.quota("org")), count)
        start(job, node, count, first)
        job_transition(job=job, to=JobState.RUNNING, now=NOON + 9 * SECOND, cause="")
        return job

    @pytest.mark.parametrize(
        ("until", "said"),
        [
            pytest.param(30, {"ended_at": 30, "started_at": 2}, id="as the back-end says"),
            pytest.param(30, {"ended_at": 30, "started_at": -1}, id="in whole seconds"),
            pytest.param(40, {"ended_at": 30, "started_at": -2}, id="its clock is behind"),
            pytest.param(40, {"ended_at": 41, "started_at": 2}, id="its clock is ahead"),
            pytest.param(40, {"ended_at": 30, "started_at": 2, "node_lost": True}, id="lost"),
            pytest.param(40, {}, id="it does not say"),
            pytest.param(9, {"ended_at": 8, "started_at": 2}, id="before it was seen to run"),
        ],
    )
    def test_a_run_is_charged_until_it_ended_and_its_gpus_are_given_away_when_that_is_seen(self, until: int, said: dict[str, Any]) -> None:
        node = builders.node(gpus=2)
        job = self.run(node)
        told = {key: NOON + value * SECOND if key != "node_lost" else value for key, value in said.items()}
        attempts_ended(ends=[Ended(job.attempts.get().pk, 0, **told)], now=NOON + 40 * SECOND)
        start(new_job(job.quota), node, 2, now=NOON + 40 * SECOND)

        end = NOON + until * SECOND
        assert job.attempts.get().ended_at == end
        assert set(job.placements.values_list("until", flat=True)) == {end}
        assert LedgerEntry.objects.filter(job=job.public_id).latest("until").until == end
        assert set(Placement.objects.exclude(job=job).values_list("since", flat=True)) == {NOON + 40 * SECOND}
        assert not fleet_faults()

    def test_no_further_back_than_what_is_added_up_already(self) -> None:
        first, second = self.run(builders.node(gpus=2)), self.run(builders.node(gpus=2))
        seen = NOON + timedelta(minutes=20)
        attempts_ended(ends=[Ended(first.attempts.get().pk, 0, ended_at=NOON + 30 * SECOND)], now=seen)
        step = seen - 5 * SECOND
        UsageStep.objects.create(at=step, half_life_seconds=60, used={}, capacity={})
        attempts_ended(ends=[Ended(second.attempts.get().pk, 0, ended_at=NOON + 30 * SECOND)], now=seen)

        assert (first.attempts.get().ended_at, second.attempts.get().ended_at) == (seen - LATE, step)
        assert LATE < SETTLED
        assert not fleet_faults()

    def test_two_on_one_gpu(self) -> None:
        """Each by itself ends when it ended; both together when that is seen."""
        node = builders.node(gpus=1)
        gpu = builders.gpu(node)
        jobs = [new_job(builders.quota(), 0) for _ in range(4)]
        for job in jobs:
            job_start(job=job, seats=[Seat(gpu.node_id, gpu.pk, gpu_milli=250)], now=NOON, cause="")
            job_transition(job=job, to=JobState.RUNNING, now=NOON + 9 * SECOND, cause="")
        ends = [Ended(job.attempts.get().pk, 0, ended_at=NOON + (20 + number) * SECOND) for number, job in enumerate(jobs)]
        attempts_ended(ends=ends[:1], now=NOON + 30 * SECOND)
        attempts_ended(ends=ends[1:2], now=NOON + 30 * SECOND)
        attempts_ended(ends=ends[2:], now=NOON + 30 * SECOND)

        assert [(job.attempts.get().ended_at - NOON) // SECOND for job in jobs] == [20, 21, 30, 30]
        assert not fleet_faults()


@pytest.mark.django_db
class TestTimeline:
    def uses(self, gpu: Gpu) -> list[tuple[dict[str, int], float, float | None]]:
        rows = CapacityEntry.objects.filter(gpu=gpu).order_by("since", "id")
        return [
            (
                {use: milli for use in USES if (milli := getattr(row, f"{use}_milli"))},
                (row.since - NOON).total_seconds(),
                (row.until - NOON).total_seconds() if row.until else None,
            )
            for row in rows
        ]

    def test_a_part_of_a_gpu_is_used_and_the_rest_is_free(self) -> None:
        gpu = builders.gpu(builders.node(gpus=1))
        job = new_job(builders.quota(), 0)
        job_start(job=job, seats=[Seat(gpu.node_id, gpu.pk, gpu_milli=300)], now=NOON, cause="")
        job_transition(job=job, to=JobState.RUNNING, now=NOON + SECOND, cause="")
        new_job(builders.quota())
        timeline_review(now=NOON + 5 * SECOND)
        job_release(job=job, to=JobState.COMPLETED, outcome="completed", now=NOON + 9 * SECOND, cause="")

        assert self.uses(gpu)[1:] == [
            ({"starting": 300, "unwanted": 700}, 0.0, 1.0),
            ({"used": 300, "unwanted": 700}, 1.0, 5.0),
            ({"used": 300, "blocked": 700}, 5.0, 9.0),
            ({"blocked": 1000}, 9.0, None),
        ]
        assert not fleet_faults()

    def test_out_of_service_is_no_free_capacity_but_work_on_it_goes_on(self) -> None:
        node = builders.node(gpus=2)
        job = new_job(builders.quota(), 1)
        start(job, node, 1)
        node_health_change(access=root(), node=node, to="draining", reason="fan", now=NOON + SECOND)
        other = Gpu.objects.get(node=node, index=1)
        gpu_health_change(access=root(), gpu=other, to="down", reason="fell off the bus", now=NOON + 2 * SECOND)

        assert [uses for uses, _, _ in self.uses(other)] == [{"unwanted": 1000}, {"draining": 1000}, {"down": 1000}]
        assert self.uses(Gpu.objects.get(node=node, index=0))[-1][0] == {"starting": 1000}
        assert not fleet_faults()


class Usage(RuleBasedStateMachine):
    """Submissions, starts, steps, ends, health, the tree and clocks that jump: the records agree after every one."""

    def __init__(self) -> None:
        super().__init__()
        self.undone = transaction.atomic()
        self.undone.__enter__()
        self.now = NOON
        org = builders.quota("org")
        self.teams = [builders.quota(name, parent=org) for name in ("a", "b")]
        for node in (org, *self.teams):
            QuotaShare.objects.create(node=node, gpu_type=H100, guaranteed_milli=3000)
        self.nodes = [builders.node(gpus=4, created_at=NOON) for _ in range(2)]
        Gpu.objects.update(created_at=NOON)
        self.jobs: list[Job] = []

    @rule(team=st.integers(0, 1), gpus=st.integers(1, 3), preemptible=st.sampled_from(["yes", "no", "when_borrowed"]), elastic=st.booleans())
    def submit(self, team: int, gpus: int, preemptible: str, elastic: bool) -> None:
        spec = {"roles": [{"name": "worker", "min": 1, "max": gpus, "gpus": 1}]} if elastic else builders.spec_of(workers=gpus, gpus=1)
        self.jobs.append(new_job(self.teams[team], 1 if elastic else gpus, preemptible=preemptible, spec=spec))

    @precondition(lambda self: self.jobs)
    @rule(which=st.integers(0), to=st.sampled_from(list(JobState)), first=st.integers(0, 5), milli=st.sampled_from([1000, 1000, 400]))
    def step(self, which: int, to: JobState, first: int, milli: int) -> None:
        job = self.jobs[which % len(self.jobs)]
        if to not in FOLLOWING[job.state]:
            return
        if takes_gpus(job.state, to):
            count = job.gpus_milli // 1000
            gpus = list(Gpu.objects.order_by("node", "index"))[first : first + (count if milli == 1000 else 1)]
            job.gpus_milli = min(job.gpus_milli, len(gpus) * milli)
            Job.objects.filter(pk=job.pk).update(gpus_milli=job.gpus_milli)
            try:
                seats = [Seat(gpu.node_id, gpu.pk, worker, gpu_milli=milli) for worker, gpu in enumerate(gpus)]
                job_start(job=job, seats=seats, now=self.now, cause="", to=to)
            except Conflict:
                return
        elif gives_back(job.state, to):
            job_release(job=job, to=to, outcome=min(OUTCOMES[to]), now=self.now, cause="")
        else:
            job_transition(job=job, to=to, now=self.now, cause="")

    @rule(seconds=st.sampled_from([-90, -0.001, 0.001, 1, 30, 1900, 3600]))
    def clock(self, seconds: float) -> None:
        self.now = max(NOON, self.now + timedelta(seconds=seconds))

    @rule()
    def hour(self) -> None:
        ledger_hour(now=self.now)
        timeline_review(now=self.now)

    @rule(which=st.integers(0, 1), step=st.integers(0, 3), single=st.booleans())
    def health(self, which: int, step: int, single: bool) -> None:
        node = Node.objects.get(pk=self.nodes[which].pk)
        device = Gpu.objects.get(node=node, index=step) if single else node
        following = steps_from(device.health)
        change = {"to": following[step % len(following)].to, "reason": "test", "now": self.now}
        try:
            if isinstance(device, Gpu):
                gpu_health_change(access=root(), gpu=device, **change)
            else:
                node_health_change(access=root(), node=device, **change)
        except ValidationError:
            assert Placement.objects.filter(node=node, until__isnull=True).exists()

    @rule(which=st.integers(0, 1), gpus=st.integers(0, 3))
    def promise(self, which: int, gpus: int) -> None:
        team = QuotaNode.objects.get(pk=self.teams[which].pk)
        values = NodeValues(team.kind, shares={H100: Share(gpus * 1000)})
        try:
            node_update(access=root(), node=team, values=values, revision=team.revision, now=self.now)
        except ValidationError as refused:
            assert "shares" in str(refused)

    @invariant()
    def the_records_agree(self) -> None:
        assert fleet_faults() == []

    def teardown(self) -> None:
        try:
            self.sums_agree()
        finally:
            transaction.set_rollback(True)
            self.undone.__exit__(None, None, None)

    def sums_agree(self) -> None:
        held: dict[int, int] = defaultdict(int)
        charged: dict[int, int] = defaultdict(int)
        end = LedgerClock.objects.get().at if LedgerClock.objects.exists() else NOON
        for attempt, since, until, milli in Placement.objects.values_list("attempt_id", "since", "until", "gpu_milli"):
            held[attempt] += milli * (millis(until or end) - millis(since))
        for attempt, since, until, milli in LedgerEntry.objects.values_list("attempt", "since", "until", "gpu_milli"):
            charged[attempt] += milli * (millis(until or end) - millis(since))
        assert charged == held
        assert Placement.objects.filter(until__isnull=True).exclude(job__state__in=HOLDING).count() == 0


@pytest.mark.django_db
def test_whatever_happens_the_records_agree() -> None:
    run_state_machine_as_test(Usage, settings=settings(stateful_step_count=30))
