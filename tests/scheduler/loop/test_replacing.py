"""Replicas are started anew a few at a time under the loop: who waits for whom, what stops it, and that a dead leader loses nothing."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.live.news import News
from gpufleet.core.models import AuditEntry
from quotas.permissions import Access
from scheduler.models import (
    Cluster,
    Delivery,
    Job,
    JobState,
    Notice,
    Order,
    OrderKind,
    Placement,
    Replacement,
    ReplacementStep,
    Scaling,
    Sending,
    SimulatedRun,
    WorkerState,
)
from scheduler.selectors.readiness import replicas_not_ready
from scheduler.selectors.replacing import replacements_told
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.replacing import job_replace, job_replace_stop, replacement_foreseen, replacements_advance
from scheduler.services.jobs.scaling import job_scale
from scheduler.services.notify.notices import job_follow, notices_choose
from scheduler.services.notify.outbox import outbox_turn
from tests import builders
from tests.personas import Personas
from tests.scheduler.loop.test_readiness import PROBE, Played, readiness, service
from tests.scheduler.loop.worlds import attempt_of, gpus_of, state

pytestmark = pytest.mark.django_db


@pytest.fixture
def access(personas: Personas) -> Access:
    return personas.access("superuser")


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def running(*, replicas: int = 3, ready_s: int = 4, **facts: Any) -> tuple[Job, Played]:
    builders.node(gpus=8)
    served, loop = service(desired=replicas, ready_s=ready_s, **facts), Played()
    loop.tick()
    loop.seconds(14)
    assert state(served) == JobState.RUNNING and readiness(served).ready == replicas
    return served, loop


def replace(access: Access, job: Job, loop: Played, **facts: Any) -> Replacement:
    return job_replace(access=access, job=fresh(job), now=loop.now, **facts)


def begun() -> list[int]:
    return list(ReplacementStep.objects.filter(began_at__isnull=False).order_by("worker").values_list("worker", flat=True))


def test_replicas_are_replaced_one_at_a_time_each_once_the_one_before_can_serve(access: Access) -> None:
    served, loop = running()
    gpus, seats = gpus_of(served), set(Placement.objects.values_list("pk", flat=True))
    replace(access, served, loop, reason="New weights.")
    loop.seconds(2)
    assert not replicas_not_ready(loop.now), "one that has just been taken down is late for nobody"
    assert WorkerState.objects.get(worker=0).since >= loop.now - timedelta(seconds=3)
    least = 3
    for _ in range(60):
        loop.seconds(1)
        least = min(least, readiness(served).ready)
        assert ReplacementStep.objects.filter(began_at__isnull=False, over_at__isnull=True).count() <= 1
        if not Replacement.objects.filter(over_at__isnull=True).exists():
            break
    (told,) = replacements_told(served, now=loop.now)
    assert (told.row.end, told.done, [step.end for step in told.steps]) == ("done", 3, ["ready"] * 3)
    assert (least, readiness(served).ready) == (2, 3)
    assert (gpus_of(served), set(Placement.objects.values_list("pk", flat=True))) == (gpus, seats), "its GPUs stay its own"
    assert attempt_of(served).number == 1
    orders = Order.objects.filter(kind=OrderKind.REPLACE).order_by("pk")
    assert [order.payload["workers"] for order in orders] == [[["server", worker]] for worker in range(3)]
    causes = list(served.events.filter(cause__contains="anew").order_by("pk").values_list("cause", flat=True))
    assert causes == [
        "3 replicas of server are to start anew, 1 at a time. New weights.",
        "Server 0 starts anew (1 of 3).",
        "Server 1 starts anew (2 of 3).",
        "Server 2 starts anew (3 of 3).",
    ]
    assert served.events.filter(cause="3 replicas of server have been replaced.").exists()
    assert AuditEntry.objects.get(action="job.replace").reason == "New weights."


def test_without_a_probe_the_next_follows_once_the_new_one_has_started(access: Access) -> None:
    served, loop = running()
    Job.objects.update(launch={"simulated": {"load_s": 3}})
    replace(access, served, loop, max_unavailable=2)
    assert begun() == [0, 1]
    loop.seconds(2)
    assert begun() == [0, 1]
    loop.seconds(20)
    assert Replacement.objects.get().end == "done"


def test_one_that_cannot_serve_in_time_stops_the_rest_and_the_others_serve_on(access: Access) -> None:
    served, loop = running()
    Job.objects.update(launch={"simulated": {"load_s": 3, "ready_s": 500}, "ready": PROBE})
    # The back-end plays what it was told at the start: the new one takes longer than the bound.
    replace(access, served, loop, within_seconds=10)
    run = SimulatedRun.objects.get()
    run.state["nature"]["ready"] = 500_000
    run.save()
    loop.seconds(20)
    row = Replacement.objects.get()
    assert (row.end, row.why) == ("failed", "Server 0 was not ready 10 s after it was taken down. It still loads.")
    assert begun() == [0] and readiness(served).ready == 2 and state(served) == JobState.RUNNING
    assert served.events.filter(cause__startswith="The replacement of its replicas stopped after 0 of 3. Server 0 was not ready").exists()


def test_a_leader_that_dies_in_between_loses_nothing(access: Access) -> None:
    """Another one, with nothing in its memory, goes on from the rows; the order is told again, and done once."""
    served, loop = running()
    replace(access, served, loop)
    Order.objects.filter(kind=OrderKind.REPLACE).update(done_at=None)
    other = Played("two")
    other.now = loop.now
    for _ in range(6):
        other.after(seconds=20)  # beyond the lease of the one that died
        other.tick()
        other.seconds(6)
    assert (Replacement.objects.get().end, readiness(served).ready) == ("done", 3)
    assert Order.objects.filter(kind=OrderKind.REPLACE).count() == 3


def test_it_is_stopped_by_a_person_and_goes_no_further(access: Access) -> None:
    served, loop = running()
    replace(access, served, loop)
    with pytest.raises(Conflict, match="being replaced already"):
        replace(access, served, loop)
    job_replace_stop(access=access, job=fresh(served), reason="Wrong weights.", now=loop.now)
    loop.seconds(20)
    assert (Replacement.objects.get().end, begun(), readiness(served).ready) == ("stopped", [0], 3)
    with pytest.raises(Conflict, match="are being replaced"):
        job_replace_stop(access=access, job=fresh(served), now=loop.now)


def test_a_replica_that_cannot_serve_goes_first_and_a_good_one_waits_for_the_others(access: Access) -> None:
    served, loop = running()
    WorkerState.objects.filter(worker=2).update(ready=False)
    replace(access, served, loop, within_seconds=30)
    assert begun() == [2]
    loop.seconds(12)
    assert ReplacementStep.objects.get(worker=2).end == "ready" and begun() == [0, 2]


def test_others_that_cannot_serve_hold_it_up_until_it_stops(access: Access) -> None:
    served, loop = running()
    row = replace(access, served, loop, within_seconds=20)
    loop.seconds(7)
    ReplacementStep.objects.filter(worker__gt=0).update(began_at=None, sequence=0)
    ReplacementStep.objects.filter(worker=0).update(over_at=loop.now, end="ready")
    Order.objects.filter(kind=OrderKind.REPLACE, done_at__isnull=True).delete()
    WorkerState.objects.filter(worker=0).update(ready=False)
    before = begun()
    replacements_advance(now=loop.after(seconds=5).now, news=News())
    assert begun() == before, "a good one is not taken down beside one that cannot serve"
    replacements_advance(now=loop.after(seconds=30).now, news=News())
    row.refresh_from_db()
    assert (row.end, row.why) == ("failed", "Other replicas cannot serve, so no further one is taken down.")


def test_it_ends_with_the_run_and_passes_over_who_left(access: Access) -> None:
    served, loop = running()
    replace(access, served, loop)
    job_scale(access=access, job=fresh(served), replicas=2, now=loop.now)
    loop.seconds(40)
    assert [step.end for step in ReplacementStep.objects.order_by("worker")] == ["ready", "ready", "left"]
    assert Replacement.objects.get().end == "done" and Scaling.objects.get().end == "released"

    replace(access, served, loop)
    job_stop(job=served, to=JobState.PREEMPTED, outcome="preempted", cause="Restarted.", now=loop.now, actor=Actor(None, "Ada", "system"))
    loop.seconds(8)
    assert Replacement.objects.latest("pk").end == "restarted" and attempt_of(served).number == 2


def test_what_cannot_be_replaced_says_why_and_changes_nothing(access: Access, personas: Personas) -> None:
    served, loop = running()
    for facts, field in (({"max_unavailable": 0}, "max_unavailable"), ({"within_seconds": 5}, "within_s"), ({"role": "driver"}, "role")):
        with pytest.raises(ValidationError) as fault:
            replace(access, served, loop, **facts)
        assert [*fault.value.message_dict] == [field]
    with pytest.raises(Stale):
        replace(access, served, loop, revision=fresh(served).revision - 1)
    foreseen = replacement_foreseen(access=access, job=fresh(served), max_unavailable=1)
    assert foreseen.workers == (0, 1, 2) and "At least 2 of 3 serve meanwhile, if all do now." in foreseen.sentences
    Cluster.objects.update(backend="local")
    with pytest.raises(Conflict, match=r"launch\.in_place"):
        replace(access, served, loop)
    Cluster.objects.update(backend="slurm")
    with pytest.raises(Conflict, match=r"launch\.in_place"):
        replace(access, served, loop)
    Job.objects.update(launch={"in_place": True})
    assert replacement_foreseen(access=access, job=fresh(served)).workers == (0, 1, 2)
    Job.objects.update(state=JobState.QUEUED)
    with pytest.raises(Conflict, match="does not run"):
        replace(access, served, loop)
    assert not Replacement.objects.exists() and not Order.objects.filter(kind=OrderKind.REPLACE).exists()


def test_only_those_who_may_steer_it_replace_its_replicas(personas: Personas) -> None:
    served, loop = running()
    for who in ("viewer", "finance"):
        with pytest.raises(PermissionDenied):
            job_replace(access=personas.access(who), job=fresh(served), now=loop.now)
        with pytest.raises(PermissionDenied):
            job_replace_stop(access=personas.access(who), job=fresh(served), now=loop.now)


def owned(personas: Personas, who: str) -> tuple[Job, Played]:
    """A running service of somebody, of which the outbox has told what there was to tell."""
    served, loop = running()
    Job.objects.update(owner=personas.users[who], quota=personas.nodes["acme/research/nlp"])
    outbox_turn(now=loop.now)
    Notice.objects.all().delete()
    return served, loop


def told(loop: Played) -> dict[str, tuple[str, str]]:
    outbox_turn(now=loop.now)
    return {one.user.username: (one.title, one.text) for one in Notice.objects.filter(kind="replacement").select_related("user")}


def test_its_owner_its_followers_and_who_began_it_are_told_that_it_stopped_by_itself(personas: Personas) -> None:
    served, loop = owned(personas, "submitter")
    hook = builders.webhook(personas.nodes["acme/research/nlp"])
    hook.kinds = ["job.replace_stopped"]
    hook.save()
    job_follow(access=personas.access("viewer"), job=served, follows=True, now=loop.now)
    # What was chosen before there was such a kind says nothing of it; and the owner's choice is not that of who began it.
    notices_choose(access=personas.access("submitter"), ways={"failed": ["console"], "replacement": []})
    replace(personas.access("operator"), served, loop, within_seconds=10)
    run = SimulatedRun.objects.get()
    run.state["nature"]["ready"] = 500_000
    run.save()
    loop.seconds(20)

    found = told(loop)

    assert set(found) == {"viewer", "operator"}
    title, text = found["operator"]
    assert title == "Replacing replicas of train stopped"
    assert text == "The replacement of its replicas stopped after 0 of 3. Server 0 was not ready 10 s after it was taken down. It still loads."
    assert Notice.objects.filter(kind="replacement", job=served.public_id).count() == 2
    assert Delivery.objects.filter(hook=hook, kind="job.replace_stopped", job=served.public_id).count() == 1


def test_who_began_it_is_told_by_mail_though_nobody_else_wants_to_know(personas: Personas, settings: Any) -> None:
    settings.EMAIL_HOST = "mail.example.org"
    lead = personas.users["team_lead"]
    lead.email = "lead@example.org"
    lead.save()
    served, loop = owned(personas, "submitter")
    notices_choose(access=personas.access("submitter"), ways={})
    notices_choose(access=personas.access("team_lead"), ways={"replacement": ["email"]})
    replace(personas.access("team_lead"), served, loop)
    job_replace_stop(access=personas.access("operator"), job=fresh(served), reason="Wrong weights.", now=loop.now)

    assert told(loop)["team_lead"][1] == "No further replica is replaced. Wrong weights."
    assert Sending.objects.get().way == "email"


def test_of_a_replacement_that_is_done_and_of_ones_own_stop_nobody_is_told(personas: Personas) -> None:
    served, loop = owned(personas, "submitter")
    mine = personas.access("submitter")
    replace(mine, served, loop)
    job_replace_stop(access=mine, job=fresh(served), now=loop.now)
    assert not told(loop)
    loop.seconds(20)
    replace(mine, served, loop, max_unavailable=3)
    loop.seconds(30)
    assert Replacement.objects.latest("pk").end == "done" and not told(loop)
