"""The life of a job as the services write it: legal steps only, whole gangs only, an event for each, and nothing half."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.django import TestCase

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry, Change
from scheduler.jobs.transitions import FOLLOWING, OUTCOMES, gives_back, takes_gpus
from scheduler.models import ENDED, HOLDING, Attempt, Gpu, Job, JobEvent, JobState, Placement
from scheduler.services.jobs.jobs import IllegalTransition, Seat, job_create, job_release, job_start, job_transition
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults


def new_job(gpus: int = 2, **fields: object) -> Job:
    facts = {
        "name": "train",
        "quota": builders.quota(),
        "owner": None,
        "job_class": "batch",
        "spec": builders.spec_of(workers=gpus, gpus=1),
        "gpus_milli": gpus * 1000,
        "now": NOON,
    }
    return job_create(**(facts | {"actor": Actor(None, "Ada", "system")} | fields))  # type: ignore[arg-type]


def seats(node: object, count: int, first: int = 0) -> list[Seat]:
    gpus = Gpu.objects.filter(node=node).order_by("index")[first : first + count]
    return [Seat(gpu.node_id, gpu.pk, worker) for worker, gpu in enumerate(gpus)]


@pytest.mark.django_db
class TestLife:
    def test_a_job_runs_and_ends_with_an_event_for_every_step(self) -> None:
        node, job = builders.node(gpus=4), new_job()
        attempt = job_start(job=job, seats=seats(node, 2), now=NOON, cause="On idle GPUs.")
        job_transition(job=job, to=JobState.RUNNING, now=NOON + timedelta(seconds=9), cause="Up.")
        job_release(job=job, to=JobState.COMPLETED, outcome="completed", now=NOON + timedelta(hours=1), cause="Done.")

        steps = list(JobEvent.objects.order_by("id").values_list("from_state", "to_state", "cause", "actor_name"))
        assert steps == [
            ("", "queued", "Submitted.", "Ada"),
            ("queued", "starting", "On idle GPUs.", "gpufleet"),
            ("starting", "running", "Up.", "gpufleet"),
            ("running", "completed", "Done.", "gpufleet"),
        ]
        attempt.refresh_from_db()
        assert (attempt.outcome, attempt.running_at, attempt.ended_at) == ("completed", NOON + timedelta(seconds=9), NOON + timedelta(hours=1))
        assert set(Placement.objects.values_list("until", flat=True)) == {NOON + timedelta(hours=1)}
        assert not fleet_faults()

    def test_a_preempted_job_resumes_as_a_second_attempt(self) -> None:
        node, job = builders.node(gpus=4), new_job()
        job_start(job=job, seats=seats(node, 2), now=NOON, cause="")
        job_transition(job=job, to=JobState.RUNNING, now=NOON, cause="")
        job_transition(job=job, to=JobState.CHECKPOINTING, now=NOON, cause="")
        job_release(job=job, to=JobState.PREEMPTED, outcome="preempted", now=NOON, cause="")
        job_start(job=job, seats=seats(node, 2, 2), now=NOON, cause="")

        assert job.state == JobState.RESUMING
        assert list(Attempt.objects.order_by("number").values_list("number", "outcome")) == [(1, "preempted"), (2, "")]
        assert not fleet_faults()

    def test_half_a_gang_is_refused(self) -> None:
        with pytest.raises(IllegalTransition, match="half a gang"):
            job_start(job=new_job(3), seats=seats(builders.node(gpus=4), 2), now=NOON, cause="")
        assert not Attempt.objects.exists()

    def test_a_taken_gpu_refuses_the_whole_gang(self) -> None:
        node = builders.node(gpus=4)
        job_start(job=new_job(), seats=seats(node, 2), now=NOON, cause="")
        late = new_job(3)

        with pytest.raises(Conflict, match="taken meanwhile"):
            job_start(job=late, seats=seats(node, 3, 1), now=NOON, cause="")
        assert late.state == JobState.QUEUED
        assert not fleet_faults()

    def test_parts_of_a_gpu_never_add_up_to_more_than_one(self) -> None:
        node = builders.node(gpus=1)
        (seat,) = seats(node, 1)
        for milli in (600, 400):
            part = Seat(seat.node_id, seat.gpu_id, gpu_milli=milli)
            job_start(job=new_job(gpus=0), seats=[part], now=NOON, cause="")
        with pytest.raises(Conflict, match="taken meanwhile"):
            job_start(job=new_job(gpus=0), seats=[Seat(seat.node_id, seat.gpu_id, gpu_milli=1)], now=NOON, cause="")

    def test_a_split_gpu_is_only_held_by_its_own_slices(self) -> None:
        gpu, other = builders.mig_gpu(), builders.mig_gpu()
        part, foreign = gpu.mig_instances.first(), other.mig_instances.first()
        assert part is not None
        assert foreign is not None

        for bad in (Seat(gpu.node_id, gpu.pk), Seat(gpu.node_id, gpu.pk, gpu_milli=500, mig_id=foreign.pk)):
            with pytest.raises(Conflict, match="split differently"):
                job_start(job=new_job(gpus=0), seats=[bad], now=NOON, cause="")
        job_start(job=new_job(gpus=0), seats=[Seat(gpu.node_id, gpu.pk, gpu_milli=500, mig_id=part.pk)], now=NOON, cause="")
        with pytest.raises(Conflict, match="taken meanwhile"):
            job_start(job=new_job(gpus=0), seats=[Seat(gpu.node_id, gpu.pk, gpu_milli=500, mig_id=part.pk)], now=NOON, cause="")

    def test_a_removed_gpu_or_node_is_a_conflict(self) -> None:
        node = builders.node(gpus=2)
        gone = seats(node, 2)
        Gpu.objects.filter(pk=gone[0].gpu_id).update(removed_at=NOON)
        with pytest.raises(Conflict, match="no longer in the fleet"):
            job_start(job=new_job(), seats=gone, now=NOON, cause="")

    def test_who_comes_second_finds_that_the_job_has_moved(self) -> None:
        node = builders.node(gpus=4)
        job = new_job()
        seen_earlier = Job.objects.get(pk=job.pk)
        job_start(job=job, seats=seats(node, 2), now=NOON, cause="")

        with pytest.raises(Conflict):
            job_start(job=seen_earlier, seats=seats(node, 2, 2), now=NOON, cause="")
        with pytest.raises(Conflict, match="moved on"):
            job_transition(job=seen_earlier, to=JobState.CANCELLED, now=NOON, cause="")
        assert not fleet_faults()

    def test_what_a_person_does_is_in_the_audit_log(self) -> None:
        person = builders.person("ada")
        actor = Actor(person, "Ada", "session")
        job = new_job(actor=actor)
        job_transition(job=job, to=JobState.CANCELLED, now=NOON, cause="Wrong data.", actor=actor)

        assert list(AuditEntry.objects.order_by("id").values_list("action", "reason")) == [("job.create", ""), ("job.state", "Wrong data.")]

    def test_live_pages_are_told_once_a_transaction(self) -> None:
        node, job = builders.node(gpus=4), new_job()
        Change.objects.all().delete()
        job_start(job=job, seats=seats(node, 2), now=NOON, cause="")

        told = {change.topic: change.rows for change in Change.objects.all()}
        assert told["jobs"] == [{"id": job.pk}]
        assert told["gpus"] == [{"id": seat.gpu_id} for seat in seats(node, 2)]

    def test_the_database_itself_refuses_a_second_holder_and_a_second_attempt(self) -> None:
        held = builders.placement()
        for bad in (
            lambda: builders.placement(builders.job(state=JobState.RUNNING), held.gpu),
            lambda: Attempt.objects.create(job=held.job, number=9, started_at=NOON),
        ):
            with pytest.raises(IntegrityError), transaction.atomic():
                bad()

    def test_starting_fails_at_any_statement_and_leaves_nothing(self) -> None:
        node, job = builders.node(gpus=4), new_job()
        for nth in range(1, 100):
            fuse = Fuse(nth)
            try:
                with transaction.atomic(), connection.execute_wrapper(fuse):
                    job_start(job=Job.objects.get(pk=job.pk), seats=seats(node, 2), now=NOON, cause="")
            except Blown:
                assert not fleet_faults()
                assert not Attempt.objects.exists()
                continue
            break
        assert nth > 8
        assert Placement.objects.count() == 2


class Blown(BaseException):
    """A kill: nothing that handles faults gets to see it."""


class Fuse:
    """Fails the nth statement, as a dying database or process would.

    The end of a savepoint is not counted: tests have one where the program has a commit, and who dies in a commit has no say in what became of it.
    """

    def __init__(self, nth: int) -> None:
        self.left = nth

    def __call__(self, execute: object, sql: str, params: object, many: bool, context: object) -> object:
        self.left -= not sql.startswith("RELEASE SAVEPOINT")
        if self.left == 0:
            raise Blown
        return execute(sql, params, many, context)  # type: ignore[operator]


class StateMachine(TestCase):
    """Whatever is asked for, in whatever order: the services do the legal steps and nothing else."""

    @given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(list(JobState)), st.sampled_from(["completed", "lost", "preempted"])), max_size=14))
    def test_only_legal_steps_happen(self, wishes: list[tuple[int, JobState, str]]) -> None:
        node = builders.node(gpus=4)
        jobs = [new_job(), new_job(), new_job()]
        for which, to, outcome in wishes:
            job, before = jobs[which], jobs[which].state
            legal = to in FOLLOWING[before]
            try:
                if takes_gpus(before, to):
                    job_start(job=job, seats=seats(node, 2, 2 * (which % 2)), now=NOON, cause="", to=to)
                elif gives_back(before, to):
                    legal = legal and outcome in OUTCOMES.get(to, ())
                    job_release(job=job, to=to, outcome=outcome, now=NOON, cause="")
                else:
                    job_transition(job=job, to=to, now=NOON, cause="")
            except IllegalTransition:
                assert not legal
                assert job.state == before
            except Conflict:
                assert takes_gpus(before, to)
                assert job.state == before
            else:
                assert legal
            assert not fleet_faults()
        stored = {job.pk: job.state for job in Job.objects.all()}
        assert stored == {job.pk: job.state for job in jobs}
        assert JobEvent.objects.count() == sum(job.revision for job in jobs)


def test_every_state_says_what_may_follow_and_ends_are_ends() -> None:
    assert set(FOLLOWING) == set(JobState)
    assert all(not FOLLOWING[state] for state in ENDED)
    reached = set()
    border = {JobState.DRAFT}
    while border:
        reached |= border
        border = {following for state in border for following in FOLLOWING[state]} - reached
    assert reached == set(JobState)


def test_every_way_off_the_gpus_has_an_outcome() -> None:
    for state in HOLDING:
        for to in FOLLOWING[state]:
            assert to in HOLDING or OUTCOMES[to]
