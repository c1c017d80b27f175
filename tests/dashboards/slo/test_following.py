"""A service that follows its metric: more at once, fewer after the cool-down, and nothing by what was not read just now."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.causes import causes_of
from dashboards.slo.models import BreachCause, ServiceBreach, ServiceLevel
from dashboards.slo.services import service_level_remove, service_level_set
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.models import Job, JobEvent, Lease, ReplicaRule, Scaling
from scheduler.selectors.scaling import replicas_told
from scheduler.services.jobs.scaling import COOLDOWN, job_scale, replicas_follow, replicas_follow_set
from tests.builders import NOON
from tests.dashboards.slo.test_round import ROUND, Answers, run, service
from tests.personas import Personas

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"


@pytest.fixture
def answers() -> Iterator[Answers]:
    found = Answers()
    PrometheusServer.objects.create(public_id="ps-1", name="main", url=f"http://127.0.0.1:{found.port}", for_services=True)
    yield found
    found.stop()


@pytest.fixture
def level(personas: Personas) -> ServiceLevel:
    """Two of four replicas have their place, and two are wanted."""
    found = service(workers=2, of=personas.nodes[TEAM])
    scaled(personas, found.job, 2)
    return found


def scaled(personas: Personas, job: Job, replicas: int) -> None:
    job_scale(access=personas.access("operator"), job=Job.objects.get(pk=job.pk), replicas=replicas, now=NOON)


def follow(personas: Personas, level: ServiceLevel, **facts: Any) -> None:
    replicas_follow_set(access=personas.access("operator"), job=level.job, follows=True, now=NOON, **facts)


def wanted(level: ServiceLevel) -> int | None:
    found: int | None = Job.objects.get(pk=level.job_id).spec["roles"][0].get("desired")
    return found


def test_more_come_at_once_and_fewer_after_the_cool_down(personas: Personas, level: ServiceLevel, answers: Answers) -> None:
    answers.by_service["chat"] = {"latency": 0.1, "wanted": 2.4}
    run(1)
    assert wanted(level) == 2, "it is not followed unless its owner says so"
    follow(personas, level)
    run(1, begin=1)
    assert wanted(level) == 3
    row = Scaling.objects.latest("pk")
    assert (row.before, row.after, row.by_metric, row.actor_name) == (2, 3, True, "gpufleet")
    assert JobEvent.objects.filter(job=level.job).latest("id").cause == "2 → 3 replicas wanted. Follows its metric, which says 3."
    answers.by_service["chat"]["wanted"] = 99
    before = Lease.objects.get(name="tick").wanted
    run(1, begin=2)
    assert wanted(level) == 4 and Lease.objects.get(name="tick").wanted > before, "no more than its range"
    # Fewer: the most of what it said in that time.
    for number, figure in enumerate([1, 2, *[1] * 18]):
        answers.by_service["chat"]["wanted"] = figure
        run(1, begin=3 + number)
        assert wanted(level) == 4
    run(1, begin=23)  # 300 seconds after the first lower one
    assert wanted(level) == 2


def test_a_reading_that_fails_or_lapses_gives_no_replicas_away(personas: Personas, level: ServiceLevel, answers: Answers) -> None:
    follow(personas, level, cooldown_seconds=60)
    answers.by_service["chat"] = {"latency": 0.1, "wanted": 1}
    run(2)
    answers.by_service["chat"] = {"latency": 0.1}
    run(6, begin=2)  # the cool-down is over, and nobody knows what it says
    assert wanted(level) == 2
    answers.by_service["chat"] = {"latency": 0.1, "wanted": 1}
    run(4, begin=8)
    assert wanted(level) == 2, "it is counted anew"
    run(1, begin=12)
    assert wanted(level) == 1


def test_a_peak_begins_the_cool_down_anew_and_steps_are_whole(personas: Personas, level: ServiceLevel) -> None:
    spec = {"roles": [{"name": "worker", "min": 1, "max": 6, "step": 2, "gpus": 1, "desired": 5}]}
    Job.objects.filter(pk=level.job_id).update(spec=spec)
    follow(personas, level, cooldown_seconds=30)

    def said(figure: int, seconds: int) -> int | None:
        replicas_follow(figures={level.job_id: figure}, now=NOON + timedelta(seconds=seconds))
        return wanted(level)

    assert [said(2, 15), said(5, 30), said(2, 45), said(2, 60), said(2, 75)] == [5, 5, 5, 5, 3]
    assert said(4, 90) == 5, "a step that is begun is whole"
    assert [said(0, 105), said(0, 120), said(0, 135)] == [5, 5, 1]


def test_by_hand_is_refused_meanwhile_and_an_end_of_the_metric_ends_it(personas: Personas, level: ServiceLevel) -> None:
    client, address = personas.client("submitter"), f"/api/v1/jobs/{level.job.public_id}/replicas"
    Job.objects.filter(pk=level.job_id).update(owner=personas.users["submitter"])

    def put(status: int, **body: Any) -> Any:
        answer = client.put(address, body, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    found = put(200, follow=True)["follow"]
    assert (found["role"], found["cooldown_s"], found["by"], found["figure"]) == ("worker", COOLDOWN, "Submitter", None)
    assert AuditEntry.objects.get(action="job.follow_metric").after == {"role": "worker", "cooldown_s": COOLDOWN}
    assert "follows its metric" in put(409, replicas=3)["detail"]
    assert put(422, replicas=3, follow=True)["errors"][0]["path"] == "replicas" == put(422)["errors"][0]["path"]
    assert put(422, follow=True, cooldown_s=-1)["errors"][0]["path"] == "cooldown_s"
    assert put(200, replicas=3, follow=False)["follow"] is None and wanted(level) == 3
    put(200, follow=True, cooldown_s=0)
    page = client.get(f"/jobs/{level.job.public_id}/").content.decode()
    assert "Follows its metric since" in page and "not read yet" in page
    service_level_set(
        access=personas.access("operator"), job=level.job, values={"latency": "l", "objective_ms": 250}, now=now(), revision=level.revision
    )
    assert not ReplicaRule.objects.exists()
    assert "no longer follows its metric" in JobEvent.objects.filter(job=level.job).latest("id").cause
    assert put(422, follow=True)["errors"][0]["path"] == "follow"
    ServiceLevel.objects.filter(pk=level.pk).update(wanted="w")
    put(200, follow=True)
    service_level_remove(access=personas.access("operator"), job=level.job, now=now())
    assert not ReplicaRule.objects.exists()


def test_the_form_has_it_follow_and_stops_that(personas: Personas, level: ServiceLevel) -> None:
    client, address = personas.client("operator"), f"/jobs/{level.job.public_id}/replicas/"
    job = Job.objects.get(pk=level.job_id)
    sent = {"replicas": "2", "revision": str(job.revision), "follow": "yes", "cooldown_s": "90"}
    assert "Its metric says how many" in client.post(address, sent | {"preview": "1"}).content.decode() and not ReplicaRule.objects.exists()
    refused = client.post(address, sent | {"cooldown_s": "soon"})
    assert refused.status_code == 422 and b'value="soon"' in refused.content
    assert client.post(address, sent).status_code == 302 and ReplicaRule.objects.get().cooldown_seconds == 90
    job.refresh_from_db()
    assert b'<option value="yes" selected>' in client.get(address).content
    assert client.post(address, sent | {"follow": "", "replicas": "3", "revision": str(job.revision)}).status_code == 302
    assert not ReplicaRule.objects.exists() and wanted(level) == 3
    ServiceLevel.objects.update(wanted="")
    assert b'name="follow"' not in client.get(address).content


def test_a_breach_says_whether_capacity_is_missing_or_the_number_set_is_too_low(level: ServiceLevel) -> None:
    level.replicas, level.replicas_wanted = 2, 4.0
    level.job.refresh_from_db()
    found = causes_of({level.job_id: level}, {level.job_id: NOON})[level.job_id]
    assert (found.kind, found.said) == (BreachCause.CAPACITY, "Runs 2 of 4 replicas wanted. It is set to 2 replicas.")


def test_missing_capacity_stands_beside_the_replicas(personas: Personas, level: ServiceLevel) -> None:
    ServiceLevel.objects.update(looked_at=now(), read_at=now(), latency_ms=400, replicas_wanted=4)
    ServiceBreach.objects.create(job=level.job, since=now() - ROUND, objective_ms=250, worst_ms=400, cause=BreachCause.CAPACITY, said="Runs 2 of 4.")
    page = " ".join(personas.client("operator").get(f"/jobs/{level.job.public_id}/").content.decode().split())
    assert "for missing capacity" not in page, "nothing is missing of what is set"
    scaled(personas, level.job, 4)
    replicas_follow_set(access=personas.access("operator"), job=level.job, follows=True, now=NOON)
    assert "for missing capacity" in " ".join(personas.client("operator").get(f"/jobs/{level.job.public_id}/").content.decode().split())


def test_nothing_is_done_for_one_that_has_ended(personas: Personas, level: ServiceLevel) -> None:
    follow(personas, level)
    Job.objects.filter(pk=level.job_id).update(state="completed", ended_at=NOON)
    assert replicas_follow(figures={level.job_id: 4}, now=NOON) == 0 and wanted(level) == 2


def test_what_it_said_under_another_range_never_goes_beyond_the_present_one(personas: Personas, level: ServiceLevel) -> None:
    """Fewer means fewer, in whole steps of the range that holds when the cool-down is over."""
    role = {"name": "worker", "min": 1, "max": 10, "gpus": 1, "desired": 9}
    Job.objects.filter(pk=level.job_id).update(spec={"roles": [role]})
    follow(personas, level, cooldown_seconds=30)

    def said(figure: int, seconds: int) -> int | None:
        replicas_follow(figures={level.job_id: figure}, now=NOON + timedelta(seconds=seconds))
        return wanted(level)

    assert said(7, 15) == 9
    Job.objects.filter(pk=level.job_id).update(spec={"roles": [role | {"max": 4, "desired": 4}]})
    assert [said(2, 30), said(2, 45), said(2, 60)] == [4, 4, 2], "seven is four of four: it has been lower since the second reading"
    Job.objects.filter(pk=level.job_id).update(spec={"roles": [role | {"max": 9, "desired": 9, "step": 2}]})
    assert said(6, 75) == 9
    Job.objects.filter(pk=level.job_id).update(spec={"roles": [role | {"min": 2, "max": 10, "desired": 10, "step": 4}]})
    assert [said(3, 90), said(3, 105)] == [10, 6]


def test_what_is_not_read_any_more_foretells_no_release(personas: Personas, level: ServiceLevel) -> None:
    follow(personas, level, cooldown_seconds=90)
    replicas_follow(figures={level.job_id: 1}, now=NOON)

    def foretold(seconds: int) -> datetime | None:
        return replicas_told(level.job, now=NOON + timedelta(seconds=seconds)).fewer_from

    assert foretold(60) == NOON + timedelta(seconds=90)
    assert foretold(61) is None, "the cool-down begins anew with the next reading"


def test_a_job_that_is_no_service_is_told_so_whatever_is_asked(personas: Personas, level: ServiceLevel) -> None:
    client, address = personas.client("operator"), f"/api/v1/jobs/{level.job.public_id}/replicas"
    Job.objects.filter(pk=level.job_id).update(job_class="batch")
    for body in ({"replicas": 2}, {"follow": True}, {"follow": False}):
        assert client.put(address, body, content_type="application/json").status_code == 409


def test_a_round_asks_as_much_of_many_services_that_are_given_more_as_of_some(personas: Personas, level: ServiceLevel) -> None:
    many = [level.job_id, *(service(f"chat-{number}", of=personas.nodes[TEAM]).job_id for number in range(13))]
    for one in many:
        Job.objects.filter(pk=one).update(spec={"roles": [{"name": "worker", "min": 1, "max": 8, "gpus": 1, "desired": 2}]})
        replicas_follow_set(access=personas.access("operator"), job=Job.objects.get(pk=one), follows=True, now=NOON)

    def queries(jobs: list[int], figure: int) -> int:
        with CaptureQueriesContext(connection) as asked:
            assert replicas_follow(figures=dict.fromkeys(jobs, figure), now=NOON) == len(jobs)
        return len(asked)

    queries(many, 3)
    assert queries(many[:10], 4) == queries(many, 5)
    assert Scaling.objects.filter(after=5, before__in=(3, 4), end="").count() == len(many)


def test_another_role_than_the_one_that_follows_is_set_by_hand(personas: Personas, level: ServiceLevel) -> None:
    roles = [{"name": name, "min": 1, "max": 4, "gpus": 1, "desired": 2} for name in ("router", "worker")]
    Job.objects.filter(pk=level.job_id).update(spec={"roles": roles})
    follow(personas, level, role="worker")
    client, address = personas.client("operator"), f"/api/v1/jobs/{level.job.public_id}/replicas"
    put = partial(client.put, address, content_type="application/json")
    assert put({"replicas": 3, "role": "router"}).status_code == 200
    assert put({"replicas": 3, "role": "worker"}).status_code == 409
    page = f"/jobs/{level.job.public_id}/replicas/"
    shown = client.get(page).content.decode()
    assert '<option value="worker" selected>' in shown and '<option value="yes" selected>' in shown
    sent = {"role": "router", "replicas": "4", "follow": "", "revision": str(Job.objects.get(pk=level.job_id).revision)}
    assert client.post(page, sent).status_code == 302
    assert ReplicaRule.objects.get().role == "worker" and "Worker follows its metric" in client.get(f"/jobs/{level.job.public_id}/").content.decode()
    assert [role["desired"] for role in Job.objects.get(pk=level.job_id).spec["roles"]] == [4, 2]
