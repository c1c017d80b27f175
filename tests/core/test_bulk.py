"""Rows and keys by the hundred: the same as the ORM's own ways, on either database."""

import contextlib
from datetime import UTC, datetime

import pytest
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError

from gpufleet.core.bulk import moment_read, objects_insert, row_insert, row_made, rows_fetch, rows_insert
from gpufleet.core.times import whole_millis
from scheduler.models import Attempt, Gpu, Job, JobEvent, Placement
from tests import builders

pytestmark = pytest.mark.django_db
NOON = datetime(2026, 3, 1, 12, 0, 0, 123_456, tzinfo=UTC)
EVENT = ("job_id", "attempt_id", "at", "from_state", "to_state", "cause", "actor_name", "detail")


def test_what_is_inserted_reads_as_if_the_orm_had_written_it() -> None:
    job = builders.job()
    detail = {"code": "fits", "words": ["ä\t\n\\N", None], "n": 1.5}
    JobEvent.objects.filter(job=job).delete()
    JobEvent.objects.create(job=job, at=NOON, to_state="queued", cause="A tab\t and \\.", detail=detail)
    rows_insert(JobEvent, EVENT, [(job.pk, None, NOON, "", "queued", "A tab\t and \\.", "gpufleet", detail)])

    one, other = JobEvent.objects.filter(job=job).order_by("id").values(*EVENT)
    assert one == other
    assert other["at"] == NOON.replace(microsecond=123_000)


def test_one_row_is_told_by_its_key() -> None:
    job = builders.job()
    detail = {"words": ["ä\t\n\\N", None], "n": 1.5}
    key = row_insert(JobEvent, job_id=job.pk, at=NOON, to_state="failed", cause="A tab\t and 100 %.", detail=detail)

    event = JobEvent.objects.get(pk=key)
    assert (event.job_id, event.to_state, event.cause, event.detail) == (job.pk, "failed", "A tab\t and 100 %.", detail)
    assert (event.at, event.actor_name, event.attempt_id) == (whole_millis(NOON), "gpufleet", None)


def test_a_new_instance_is_the_row_that_was_made_of_it() -> None:
    job = builders.job()
    made = row_made(JobEvent(job=job, at=whole_millis(NOON), to_state="failed", detail={"n": [1, None]}))

    assert made.pk is not None
    assert not made._state.adding
    kept = JobEvent.objects.get(pk=made.pk)
    for field in JobEvent._meta.concrete_fields:
        assert getattr(kept, field.attname) == getattr(made, field.attname), field
    made.cause = "Changed."
    made.save()
    assert JobEvent.objects.get(pk=made.pk).cause == "Changed."


def test_a_row_that_is_refused_spoils_its_transaction_as_any_other() -> None:
    with transaction.atomic():
        with contextlib.suppress(IntegrityError):
            row_insert(JobEvent, job_id=None, at=NOON, to_state="failed")
        with pytest.raises(TransactionManagementError):
            Job.objects.exists()
        transaction.set_rollback(True)


def test_nothing_to_insert_is_no_statement(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    with django_assert_num_queries(0):
        rows_insert(JobEvent, EVENT, [])


def test_a_row_that_the_database_refuses_takes_the_others_with_it() -> None:
    job, gpu = builders.job(), Gpu.objects.get(pk=builders.gpu().pk)
    attempt = builders.attempt(job)
    columns = ("attempt_id", "job_id", "role", "worker", "node_id", "gpu_id", "mig_id", "gpu_milli", "since", "until", "leaving_since")
    row = (attempt.pk, job.pk, "worker", 0, gpu.node_id, gpu.pk, None, 1000, NOON, None, None)

    with pytest.raises(IntegrityError), transaction.atomic():
        rows_insert(Placement, columns, [row, row])

    assert not Placement.objects.exists()


def test_a_column_that_is_not_named_gets_its_default() -> None:
    job = builders.job()
    rows_insert(JobEvent, ("job_id", "at", "to_state"), [(job.pk, NOON, "failed")])

    event = JobEvent.objects.get(job=job, to_state="failed")
    assert (event.attempt_id, event.actor_name, event.detail) == (None, "gpufleet", {})


@pytest.mark.parametrize("count", [1, 4, 2500])
def test_objects_are_inserted_as_the_orm_would(count: int) -> None:
    quota = builders.quota()
    ahead = NOON.replace(microsecond=999_999)

    def make(name: str) -> list[Job]:
        odd = {"labels": {"ä\\N": [None, "\t'"]}, "not_before": ahead, "owner": None, "quota": quota, "job_class": "batch"}
        return [Job(public_id=f"{name}-{number}", name=f"{name[:1]} {number}", **odd) for number in range(count)]

    ours, theirs = make("j"), Job.objects.bulk_create(make("k"), batch_size=500)
    objects_insert(ours)

    columns = [
        column.attname for column in Job._meta.concrete_fields if column.attname not in ("id", "public_id", "name", "state_since", "submitted_at")
    ]
    assert list(Job.objects.filter(public_id__startswith="j-").order_by("id").values_list(*columns)) == list(
        Job.objects.filter(public_id__startswith="k-").order_by("id").values_list(*columns)
    )
    assert {job.pk: job.public_id for job in ours} == dict(Job.objects.filter(public_id__startswith="j-").values_list("id", "public_id"))
    assert not any(job._state.adding for job in ours)
    assert ours[0].not_before == theirs[0].not_before == Job.objects.get(pk=ours[0].pk).not_before


def test_no_objects_are_no_statement(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    with django_assert_num_queries(0):
        objects_insert([])


@pytest.mark.parametrize("count", [1, 3, 4])
def test_few_rows_and_many_are_inserted_alike(count: int) -> None:
    job = builders.job()
    JobEvent.objects.filter(job=job).delete()
    rows_insert(JobEvent, EVENT, [(job.pk, None, NOON, "", "queued", f"'{number}\\", "Ada", {"n": number}) for number in range(count)])
    assert list(JobEvent.objects.order_by("id").values_list("cause", "detail")) == [(f"'{number}\\", {"n": number}) for number in range(count)]


def test_among_finds_what_in_finds() -> None:
    jobs = [builders.job() for _ in range(4)]
    attempts = [builders.attempt(job) for job in jobs]
    some = {jobs[0].pk, jobs[2].pk, 10**9}

    assert set(Attempt.objects.filter(job__among=some)) == {attempts[0], attempts[2]}
    assert set(Attempt.objects.filter(job__public_id__among=[jobs[1].public_id, 'a "quoted", {name}'])) == {attempts[1]}
    assert set(Attempt.objects.exclude(pk__among=[attempts[0].pk])) == set(attempts[1:])
    assert Attempt.objects.filter(pk__among=[one.pk for one in attempts[:3]]).update(cause="told") == 3


def test_among_nothing_is_nobody_and_no_statement(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    with django_assert_num_queries(0):
        assert not list(Attempt.objects.filter(pk__among=[]))


def test_moments_that_were_fetched_are_read_as_they_were_written() -> None:
    job = builders.job()
    for at in (NOON, NOON.replace(microsecond=0), NOON.replace(microsecond=120_000)):
        Job.objects.filter(pk=job.pk).update(submitted_at=at)
        [(pk, submitted, ended)] = rows_fetch(Job.objects.filter(pk=job.pk).values_list("pk", "submitted_at", "ended_at"))
        assert (pk, moment_read(submitted), moment_read(ended)) == (job.pk, whole_millis(at), None)


def test_nothing_to_fetch_is_no_statement(django_assert_num_queries) -> None:  # type: ignore[no-untyped-def]
    with django_assert_num_queries(0):
        assert rows_fetch(Job.objects.filter(pk__among=[]).values_list("pk")) == []


@pytest.mark.parametrize("word", ["train", "TRAIN", "50%", "_", "a\\b", "'", "(", "j-", "nothing of it"])
def test_holds_finds_what_icontains_finds(word: str) -> None:
    for name in ("train-50%", "TRAINING", "a_b", "a\\b", "O'Neill (x)", "plain"):
        builders.job(name)

    assert set(Job.objects.filter(name__holds=word)) == set(Job.objects.filter(name__icontains=word))
    assert set(Job.objects.filter(quota__path__holds="a")) == set(Job.objects.filter(quota__path__icontains="a"))


@pytest.mark.skipif(connection.vendor != "postgresql", reason="Only PostgreSQL has the choice.")
def test_postgresql_knows_how_many_rows_hold_a_word() -> None:
    """Where it only guesses, it sorts all rows that hold a common word instead of walking the list's own order."""
    for number in range(300):
        builders.job(f"train-{number}")
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE job")
    assert "rows=300" in Job.objects.filter(name__holds="train").explain()
