"""The way of a job through the loop: decided, started, put out, promised, resumed, moved on by time. Every clock is an argument."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.urls import reverse

from quotas.models import LedgerEntry
from scheduler.models import (
    Attempt,
    CapacityEntry,
    Checkpoint,
    Gpu,
    Health,
    Job,
    JobEvent,
    JobState,
    Order,
    Outlook,
    Placement,
    PlanRecord,
    Promise,
)
from scheduler.services.hardware.draining import Back, nodes_drain, nodes_drain_undo
from scheduler.services.hardware.hardware import gpu_health_change, health_mark, node_health_change
from scheduler.services.jobs.jobs import job_hold, job_let_go, job_stop
from scheduler.services.loop.lease import lease_pause, lease_resume
from scheduler.services.loop.retries import LONGEST_AFTER_LOSS_SECONDS, retry_delay
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import Loop, attempt_of, gpus_of, leaf, state, submit, wishes

pytestmark = pytest.mark.django_db


def test_a_job_is_started_runs_and_completes() -> None:
    builders.node(gpus=8)
    job, loop = submit(gpus=4), Loop()
    result = loop.tick()

    assert (result.led, result.planned, result.decided, result.dropped) == (True, True, 1, 0)
    assert state(job) == JobState.STARTING
    order = Order.objects.get()
    assert (order.kind, order.sequence, order.due_at, order.attempt) == ("start", 1, NOON, attempt_of(job))
    loop.after(seconds=5).up(job)
    assert state(job) == JobState.RUNNING
    loop.after(hours=1).over(job)
    assert state(job) == JobState.COMPLETED
    assert [event.to_state for event in JobEvent.objects.order_by("id")] == ["queued", "starting", "running", "completed"]
    assert not fleet_faults()


def test_without_a_wish_and_before_the_next_wake_no_plan_is_made() -> None:
    builders.node(gpus=8)
    submit(gpus=4)
    loop = Loop()
    loop.tick()

    assert wishes() == 0
    assert not loop.after(seconds=1).tick().planned
    submit(at=loop.now)
    assert wishes() == 1
    assert loop.tick().planned


def test_a_guarantee_is_taken_back_by_checkpoint_and_the_victim_resumes() -> None:
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop = Loop()
    taken = submit(borrower, gpus=8, spec={"grace_s": 60})
    loop.tick()
    loop.after(seconds=5).up(taken)
    loop.after(hours=1)
    owner = submit(lender, gpus=4, at=loop.now)
    loop.tick()

    # The victim is asked to save, and holds its GPUs until its back-end says that it left; the winner holds nothing yet.
    assert (state(taken), state(owner)) == (JobState.CHECKPOINTING, JobState.RESERVED)
    assert gpus_of(taken) == list(range(8))
    promise = Promise.objects.get(job=owner)
    assert promise.after == [taken.public_id]
    assert [(order.kind, order.payload) for order in Order.objects.order_by("id")[1:]] == [("signal", {"signal": "terminate"})]
    assert not fleet_faults()
    loop.after(seconds=20).over(taken, exit_code=143)
    assert state(taken) == JobState.PREEMPTED
    loop.tick()
    assert (state(owner), gpus_of(owner)) == (JobState.STARTING, [0, 1, 2, 3])
    assert not Promise.objects.exists()
    taken.refresh_from_db()
    assert (taken.evictions, taken.last_evicted_at) == (1, NOON + timedelta(hours=1, seconds=5))

    loop.after(seconds=5).up(owner)
    loop.after(hours=1).over(owner)
    loop.tick()
    assert state(taken) == JobState.RESUMING
    assert list(Attempt.objects.filter(job=taken).order_by("number").values_list("number", "outcome")) == [(1, "preempted"), (2, "")]
    assert not fleet_faults()


def test_who_does_not_leave_is_ended_by_force_when_the_grace_is_over() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit(gpus=8)
    loop.tick()
    loop.up(job)
    job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Enough.", now=loop.now, grace_seconds=60)
    loop.after(seconds=59).tick()
    assert not Order.objects.filter(kind="stop").exists()
    loop.after(seconds=1).tick()
    loop.after(seconds=30).tick()

    assert list(Order.objects.filter(kind="stop").values_list("payload", "sequence")) == [({"force": True}, 3)]
    loop.over(job, exit_code=137)
    assert state(job) == JobState.CANCELLED


def test_a_job_that_finishes_while_it_is_asked_to_leave_is_completed() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit(gpus=8)
    loop.tick()
    loop.up(job)
    job_stop(job=job, to=JobState.PREEMPTED, outcome="preempted", cause="Room.", now=loop.now)
    loop.over(job, exit_code=0)

    assert (state(job), Attempt.objects.get().outcome) == (JobState.COMPLETED, "completed")


@pytest.mark.parametrize("kind", ["inference", "interactive"])
@pytest.mark.parametrize(("to", "outcome"), [("preempted", "preempted"), ("cancelled", "cancelled")])
def test_a_server_that_ends_well_when_it_is_asked_to_leave_has_not_completed(kind: str, to: str, outcome: str) -> None:
    """Most servers exit with 0 on SIGTERM: drained, preempted or resized, such a service would never have come back."""
    builders.node(gpus=8)
    loop, job = Loop(), submit(gpus=8, job_class=kind)
    loop.tick()
    loop.up(job)
    job_stop(job=job, to=JobState(to), outcome=outcome, cause="Room.", now=loop.now)
    loop.over(job, exit_code=0)

    assert (state(job), Attempt.objects.get().outcome, Attempt.objects.get().exit_code) == (to, outcome, 0)


def test_so_short_a_job_that_nobody_saw_it_run_is_completed() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()
    loop.tick()
    loop.over(job)

    assert state(job) == JobState.COMPLETED
    assert [event.to_state for event in JobEvent.objects.order_by("id")] == ["queued", "starting", "running", "completed"]


def test_a_promise_that_nobody_makes_room_for_lapses() -> None:
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop, taken = Loop(), submit(borrower, gpus=8)
    loop.tick()
    loop.up(taken)
    loop.after(hours=1)
    owner = submit(lender, gpus=8, at=loop.now)
    loop.tick()
    until = Promise.objects.get().until
    loop.now = until
    loop.tick()

    # The victim is still there: the owner waits again, and the next plan promises it anew.
    assert JobEvent.objects.filter(job=owner, from_state="reserved", to_state="queued").count() == 1
    assert gpus_of(taken) == list(range(8))
    assert not fleet_faults()


def test_failures_are_retried_with_growing_pauses_until_the_budget_is_spent() -> None:
    builders.node(gpus=8)
    loop = Loop()
    job = submit()
    Job.objects.filter(pk=job.pk).update(retry_limit=2)
    pauses = []
    for _ in range(2):
        loop.tick()
        loop.after(seconds=1).up(job)
        loop.after(seconds=1).over(job, exit_code=1)
        job.refresh_from_db()
        assert job.state == JobState.QUEUED
        assert job.retry_at is not None
        pauses.append((job.retry_at - loop.now).total_seconds())
        assert not loop.tick().decided  # not due
        loop.now = job.retry_at
    assert 24 <= pauses[0] <= 36
    assert 48 <= pauses[1] <= 72
    assert loop.tick().decided == 1  # by the clock alone, nobody asked
    loop.up(job)
    loop.over(job, exit_code=1)
    job.refresh_from_db()
    assert (job.state, job.failures) == (JobState.FAILED, 3)


def test_a_lost_node_is_no_fault_of_the_job() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()
    loop.tick()
    loop.up(job)
    loop.over(job, exit_code=None, node_lost=True, why="node-1 does not answer.")
    job.refresh_from_db()

    assert (job.state, job.failures, job.retry_at) == (JobState.QUEUED, 0, None)


def test_starts_that_are_lost_one_after_the_other_back_off_until_one_runs(personas) -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()

    def lost(*, runs: bool = False) -> float:
        """One start that is lost. Returns for how long its job then backs off."""
        assert loop.tick().decided == 1
        if runs:
            loop.up(job)
        loop.after(seconds=1).over(job, exit_code=None, node_lost=True, why="Slurm did not take it.")
        row = Job.objects.get(pk=job.pk)
        assert (row.state, row.failures) == (JobState.QUEUED, 0)
        pause = ((row.retry_at or loop.now) - loop.now).total_seconds()
        if pause:
            assert not loop.tick().decided
        loop.after(seconds=pause)
        return pause

    pauses = [lost() for _ in range(4)]
    assert pauses[0] == 0
    assert all(0.8 <= pause / usual <= 1.2 for pause, usual in zip(pauses[1:], (30, 60, 120), strict=True)), pauses
    assert Attempt.objects.order_by("-pk")[0].cause.startswith("4 starts in a row failed; the next is due at ")
    assert Attempt.objects.order_by("-pk")[0].cause.endswith("Slurm did not take it.")
    page = personas.client("superuser").get(reverse("job", args=[job.public_id])).content.decode()
    assert "4 starts in a row failed" in page
    assert max(lost() for _ in range(4)) <= 1.2 * 300, "what loses starts may be mended by now"
    assert [lost(runs=True), lost(), lost() > 0] == [0, 0, True]
    assert retry_delay(job_id=job.pk, failures=2000, longest=LONGEST_AFTER_LOSS_SECONDS) <= timedelta(seconds=360), "lost for a week"


def test_hardware_that_comes_back_gets_the_jobs_that_wait_for_it(personas) -> None:
    """By its change alone: on a fleet that is at rest nothing else asks for a plan."""
    node, access = builders.node(gpus=8), personas.access("superuser")
    loop = Loop()
    node_health_change(access=access, node=node, to=Health.DRAINING, reason="Cable.", now=loop.now)
    job = submit()
    assert not loop.after(seconds=1).tick().decided
    node_health_change(access=access, node=node, to=Health.HEALTHY, reason="It is in.", now=loop.after(seconds=1).now)
    assert loop.tick().decided == 1
    loop.up(job)
    loop.over(job)
    gpu = Gpu.objects.get(node=node, index=0)
    waits = submit(gpus=8, at=loop.now)
    gpu_health_change(access=access, gpu=gpu, to=Health.SUSPECT, reason="ECC.", now=loop.now)
    assert not loop.tick().decided
    gpu_health_change(access=access, gpu=gpu, to=Health.HEALTHY, reason="Was reset.", now=loop.after(seconds=1).now)
    assert loop.tick().decided == 1
    assert state(waits) == JobState.STARTING


def test_a_drain_of_many_that_is_undone_gives_the_nodes_to_jobs_that_wait(personas) -> None:
    node, access, loop = builders.node(gpus=8), personas.access("superuser"), Loop()
    done = nodes_drain(access=access, nodes=[node], way="finish", at=None, reason="Power.", now=loop.now)
    job = submit()
    assert not loop.after(seconds=1).tick().decided

    nodes_drain_undo(access=access, back=[Back(node, health_mark(done.nodes[0]), Health.HEALTHY, "", None, "")], now=loop.after(seconds=1).now)

    assert loop.tick().decided == 1
    assert state(job) == JobState.STARTING


def test_a_run_that_does_not_come_up_waits_again() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()
    loop.tick()
    loop.after(seconds=599).tick()
    assert state(job) == JobState.STARTING
    loop.after(seconds=1).tick()
    assert state(job) == JobState.CHECKPOINTING
    loop.over(job, exit_code=137)
    assert (state(job), Attempt.objects.get().outcome) == (JobState.QUEUED, "lost")


def test_a_time_limit_warns_first_and_ends_then() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit(limit_seconds=1000)
    loop.tick()
    loop.up(job)
    loop.after(seconds=699).tick()
    assert Order.objects.count() == 1
    loop.after(seconds=1).tick()
    assert list(Order.objects.order_by("id").values_list("payload", flat=True))[1:] == [{"signal": "warn"}]
    loop.after(seconds=300).tick()
    assert state(job) == JobState.CHECKPOINTING
    loop.over(job, exit_code=143)
    job.refresh_from_db()
    assert (job.state, JobEvent.objects.filter(job=job).order_by("-id")[0].cause) == (JobState.FAILED, "Its time limit of 1000 s is over.")


def test_a_held_job_waits_and_is_told_so_by_nobody_starting_it() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()
    job_hold(job=job, now=NOON)
    assert not loop.tick().decided
    job_let_go(job=job, now=NOON)
    assert loop.tick().decided == 1


def test_who_waits_is_told_why() -> None:
    builders.node(gpus=8)
    first, second = submit(gpus=8), submit(gpus=8)
    Loop().tick()

    assert state(first) == JobState.STARTING
    told = Outlook.objects.get(job=second)
    assert "capacity" in {reason["code"] for reason in told.reasons}


def test_while_paused_nothing_is_decided_and_what_runs_goes_on() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit(limit_seconds=100)
    loop.tick()
    loop.up(job)
    lease_pause(by="Ada", reason="Upgrade.", now=loop.now)
    waiting = submit()
    result = loop.after(seconds=100).tick()

    assert (result.led, result.planned, result.again) == (True, False, False)
    assert state(waiting) == JobState.QUEUED
    assert state(job) == JobState.CHECKPOINTING  # its time limit holds also now
    lease_resume()
    assert loop.tick().decided == 1


def test_starts_that_are_due_together_are_spread_over_time() -> None:
    builders.node(gpus=8)
    for _ in range(8):
        submit()
    Loop().tick()

    due = list(Order.objects.order_by("id").values_list("due_at", flat=True))
    assert due == [NOON + timedelta(milliseconds=20 * place) for place in range(8)]


def test_a_gpu_that_went_out_of_service_meanwhile_gives_its_gang_to_nobody() -> None:
    node = builders.node(gpus=8)
    loop, job = Loop(), submit(gpus=8)
    loop.tick()
    loop.up(job)
    loop.over(job)
    builders.gpu(node, health="down")
    late = submit(gpus=8)
    loop.tick()

    assert state(late) == JobState.QUEUED
    assert not Placement.objects.filter(until__isnull=True).exists()


def test_a_plan_is_recorded_with_what_it_did_and_how_long_it_took() -> None:
    builders.node(gpus=8)
    submit(gpus=4)
    loop = Loop()
    result = loop.tick()
    record = PlanRecord.objects.get(pk=result.record_id)

    assert (record.at, [decision["action"] for decision in record.decisions], record.dropped, record.fault) == (NOON, ["start"], [], "")
    assert {"snapshot", "plan", "apply"} <= record.phases.keys()
    assert JobEvent.objects.get(to_state="starting").detail == {"action": "start", "code": "fits", "plan": record.pk}


@pytest.mark.skipif(connection.vendor != "sqlite", reason="PostgreSQL goes through what is small, whatever is asked")
def test_no_question_goes_through_history() -> None:
    """Jobs, attempts and what was written about them are kept for months; what a tick costs is to depend on what is there now."""
    asked: dict[str, Any] = {}

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if not many and sql.lstrip()[:6] in ("SELECT", "UPDATE", "DELETE"):
            asked[sql] = params
        return execute(sql, params, many, context)

    builders.node(gpus=8)
    low, high, loop = leaf("low"), leaf("high", 8), Loop()
    with connection.execute_wrapper(note):
        victim = submit(low, gpus=4, workers=2)
        loop.tick()
        loop.up(victim)
        submit(high, gpus=8)
        loop.after(seconds=60).tick()
        loop.after(hours=1).tick()
    kept = {model._meta.db_table for model in (Job, Attempt, Placement, JobEvent, LedgerEntry, CapacityEntry, Order, Checkpoint, PlanRecord, Outlook)}
    with connection.cursor() as cursor:
        for sql, params in asked.items():
            cursor.execute(f"EXPLAIN QUERY PLAN {sql}", params)
            for *_, step in cursor.fetchall():
                words = step.split()
                assert words[0] != "SCAN" or "USING" in words or words[1] not in kept, f"{step} for {sql}"


def test_a_job_that_comes_while_the_tick_looks_begins_no_earlier_than_it_came() -> None:
    """The tick's moment is its beginning; who submits in between is in its snapshot all the same."""
    loop, came = Loop(), NOON + timedelta(milliseconds=700)
    job = submit(leaf("team", 8), at=came)
    builders.node(gpus=8)
    loop.tick()

    run = attempt_of(job)
    assert run.started_at == came
    assert set(job.placements.values_list("since", flat=True)) == {came}
    assert set(Order.objects.filter(attempt=run).values_list("made_at", "due_at")) == {(came, came)}
    assert set(LedgerEntry.objects.values_list("since", "began_at")) == {(came, came)}
