"""A prepared question finds what its query set finds, whatever is given, and is made once."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import DatabaseError, IntegrityError, connection, transaction
from django.db.models import Exists, Func, Max, OuterRef, Q, Value
from django.test.utils import CaptureQueriesContext

from gpufleet.core.bulk import moment_read
from gpufleet.core.models import Sequence
from gpufleet.core.prepared import Prepared, PreparedDelete, PreparedUpdate, together
from quotas.models import QuotaNode
from scheduler.models import Attempt, Job, Order, OrderKind
from tests import builders

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
SOON = NOON + timedelta(microseconds=1_000_900)


@pytest.fixture
def jobs(db: None) -> list[Job]:
    team = builders.quota("team")
    made = [builders.job(f"job-{number}", on=team, spec={"roles": [{"name": "worker", "min": number}]}) for number in range(4)]
    cluster = builders.cluster()
    for number, job in enumerate(made[:3], 1):
        attempt = Attempt.objects.create(job=job, number=number, started_at=NOON + timedelta(seconds=number))
        Order.objects.create(attempt=attempt, cluster=cluster, sequence=1, kind=OrderKind.START, made_at=NOON, due_at=NOON, payload={"n": number})
    return made


# From what is given to a query set; keys are those of the jobs.
QUESTIONS: list[Callable[[Any, Any], Any]] = [
    lambda keys, at: Job.objects.filter(pk__among=keys, submitted_at__lte=at).order_by("id"),
    lambda keys, at: Job.objects.filter(pk__among=keys).order_by("-id").defer("labels", "launch"),
    lambda keys, at: Job.objects.filter(pk__among=keys).order_by("-id").values_list("pk", flat=True)[:2],
    lambda keys, at: Job.objects.exclude(pk__among=keys).order_by("id").values_list("id", "spec", "submitted_at"),
    lambda keys, at: Job.objects.filter(Q(pk__among=keys) | Q(name="job-3")).order_by("id").values_list("spec", "id"),
    lambda keys, at: Attempt.objects.filter(job__among=keys, started_at__lte=at).order_by("id").values("id", "started_at", "job__spec", "job_id"),
    lambda keys, at: Attempt.objects.filter(job__among=keys).order_by("id").select_related("job__quota", "resumed_from"),
    lambda keys, at: Attempt.objects.filter(job__among=keys).order_by("id").select_related("job").only("number", "job__public_id"),
    lambda keys, at: Attempt.objects.filter(job__among=keys).values("job").annotate(last=Max("number")).order_by("job").values_list("job", "last"),
    lambda keys, at: Job.objects.filter(Exists(Attempt.objects.filter(job=OuterRef("pk"), started_at__lt=at)), pk__among=keys).order_by("id"),
    lambda keys, at: Order.objects.filter(attempt__job__among=keys, made_at__lt=at).order_by("id").values_list("kind", "payload"),
    lambda keys, at: Job.objects.select_for_update().filter(pk__among=keys).order_by("pk"),
]


def seen(found: Any) -> list[Any]:
    """All that was read of objects, and of objects with them."""
    return [_seen(one) for one in found]


def _seen(one: Any) -> Any:
    if not hasattr(one, "_meta"):
        return one
    cached = {name: _seen(other) for name, other in one._state.fields_cache.items() if other is not None}
    return type(one), {name: value for name, value in vars(one).items() if name != "_state"}, one._state.db, one._state.adding, cached


@pytest.mark.parametrize("make", QUESTIONS)
def test_it_finds_what_the_query_set_finds(make: Callable[[Any, Any], Any], jobs: list[Job]) -> None:
    question = Prepared(make)

    keys = [job.pk for job in jobs]
    for some in (keys, keys[1:2], [], set(keys[:2]), dict.fromkeys(keys[2:])):
        for at in (NOON, SOON, NOON + timedelta(days=400)):
            assert seen(question(some, at)) == seen(make(list(some), at))


@pytest.mark.parametrize("logged", [False, True])
def test_many_that_are_asked_together_are_each_answered_as_alone(logged: bool, jobs: list[Job]) -> None:
    keys = [job.pk for job in jobs]
    asked = [(make, some) for make in QUESTIONS for some in (keys, keys[1:2], [])]
    alone = [seen(make(some, SOON)) for make, some in asked]
    with CaptureQueriesContext(connection) if logged else nullcontext():
        answers = together(*(Prepared(make).asking(some, SOON) for make, some in asked))
    assert [seen(answer) for answer in answers] == alone
    raw = Prepared(lambda keys: Attempt.objects.filter(job__among=keys).order_by("id").values_list("id", "started_at"))
    (told,) = together(raw.asking_raw(keys))
    assert [(key, moment_read(at)) for key, at in told] == raw(keys)
    assert together() == []


@pytest.mark.django_db(transaction=True)
def test_one_question_that_fails_is_told_and_the_connection_goes_on() -> None:
    names = Prepared(lambda: QuotaNode.objects.values_list("name", flat=True))
    broken = Prepared(lambda: QuotaNode.objects.values_list(Func(Value("x"), function="no_such_function"), flat=True))
    builders.quota("team")

    for _ in range(3):
        with pytest.raises(DatabaseError, match="no_such_function"):
            together(names.asking(), broken.asking(), names.asking())
        assert together(names.asking(), names.asking()) == [["team"], ["team"]]


def test_what_is_asked_often_goes_on_seeing_what_is_new(jobs: list[Job], monkeypatch: pytest.MonkeyPatch) -> None:
    """As the database keeps its plans, and lets go of them."""
    monkeypatch.setattr("gpufleet.core.prepared.PLAN_SECONDS", 0.0)
    question = Prepared(lambda name: Job.objects.filter(name__gte=name).order_by("name").values_list("name", flat=True))
    for number in range(10, 25):
        builders.job(f"job-{number}", on=jobs[0].quota)
        assert len(question("job-1")) == len(together(question.asking("job-1"), question.asking("job-9"))[0]) == number - 10 + 1 + 3


def test_it_is_made_once(jobs: list[Job]) -> None:
    made = []

    def make(keys: Any) -> Any:
        made.append(keys)
        return Job.objects.filter(pk__among=keys)

    question = Prepared(make)
    first = len(question([jobs[0].pk])), len(made)
    assert [len(question([job.pk])) for job in jobs] == [1] * 4
    assert len(made) == first[1]


def test_nothing_is_asked_about_no_keys(jobs: list[Job]) -> None:
    question = Prepared(lambda keys: Job.objects.filter(pk__among=keys))
    question([jobs[0].pk])

    with CaptureQueriesContext(connection) as asked:
        assert question([]) == []
    assert not asked.captured_queries


def test_first_is_the_first_one(jobs: list[Job]) -> None:
    question = Prepared(lambda name: Job.objects.filter(name__gte=name).order_by("name").values_list("pk", flat=True))

    assert question.first("job-2") == jobs[2].pk
    assert question.first("z") is None


@pytest.mark.django_db(transaction=True)
def test_a_lock_is_taken_inside_of_a_transaction_only() -> None:
    question = Prepared(lambda keys: Job.objects.select_for_update().filter(pk__among=keys))
    with transaction.atomic():
        assert question([1]) == []
    with pytest.raises(AssertionError):
        question([1])


def test_an_update_changes_what_the_query_set_would(jobs: list[Job]) -> None:
    change = PreparedUpdate(
        lambda keys, at, cause: (Attempt.objects.filter(job__among=keys, ended_at__isnull=True), {"ended_at": at, "cause": cause})
    )

    assert change([jobs[0].pk, jobs[1].pk, jobs[3].pk], SOON, "over") == 2
    assert change([], SOON, "over") == 0
    assert change([jobs[0].pk], SOON, "twice") == 0
    ended = Attempt.objects.filter(ended_at__isnull=False).order_by("id").values_list("job", "ended_at", "cause")
    assert list(ended) == [(job.pk, NOON + timedelta(seconds=1), "over") for job in jobs[:2]]  # whole milliseconds, as everywhere


def test_an_update_may_empty_a_column(jobs: list[Job]) -> None:
    hold = PreparedUpdate(lambda key, at: (Job.objects.filter(pk=key), {"held_at": at}))
    hold(jobs[0].pk, NOON)
    assert Job.objects.get(pk=jobs[0].pk).held_at == NOON
    hold(jobs[0].pk, None)
    assert Job.objects.get(pk=jobs[0].pk).held_at is None


def test_an_update_that_fails_spoils_its_transaction_as_any_other(db: None) -> None:
    Sequence.objects.create(name="one")
    Sequence.objects.create(name="two")
    rename = PreparedUpdate(lambda before, after: (Sequence.objects.filter(name=before), {"name": after}))

    with pytest.raises(IntegrityError), transaction.atomic():
        rename("one", "two")
    assert rename("one", "three") == 1


def test_annotated_objects_are_refused(db: None) -> None:
    with pytest.raises(AssertionError):
        Prepared(lambda key: Job.objects.filter(pk=key).annotate(last=Max("attempts__number")))(1)


def test_a_delete_takes_what_the_query_set_finds(jobs: list[Job]) -> None:
    gone = PreparedDelete(lambda keys, kind: Order.objects.filter(attempt__among=keys, kind=kind))
    first, second, third = Attempt.objects.order_by("id")

    assert gone([], OrderKind.START) == 0
    assert gone([first.pk, third.pk], OrderKind.STOP) == 0
    assert gone([first.pk, third.pk], OrderKind.START) == 2
    assert list(Order.objects.values_list("attempt_id", flat=True)) == [second.pk]


def test_who_watches_statements_sees_these_too(jobs: list[Job]) -> None:
    question = Prepared(lambda name: Job.objects.filter(name=name).values_list("pk", flat=True))
    change = PreparedUpdate(lambda key, name: (Job.objects.filter(pk=key), {"name": name}))
    seen_by: list[str] = []

    def watch(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        seen_by.append(sql.split()[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(watch):
        assert question(jobs[0].name) == [jobs[0].pk]
        assert change(jobs[0].pk, "other") == 1
    assert seen_by == ["SELECT", "UPDATE"]


def test_nothing_is_asked_in_a_transaction_that_is_spoilt(db: None) -> None:
    names = Prepared(lambda: QuotaNode.objects.values_list("name", flat=True))
    with transaction.atomic():
        transaction.set_rollback(True)
        with pytest.raises(transaction.TransactionManagementError):
            names()


def test_nothing_is_asked_on_an_event_loop(db: None) -> None:
    names = Prepared(lambda: QuotaNode.objects.values_list("name", flat=True))

    async def ask() -> None:
        names()

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(ask())
