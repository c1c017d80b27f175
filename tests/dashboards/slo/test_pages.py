"""A service level is stated, changed and removed on the job's page and over the API, by those who may steer the job; others read what they may."""

import csv
import io
import json
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.models import BreachCause, BreachEnd, ServiceBreach, ServiceLevel, ServiceSample
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.engine.relief import REFUSALS
from scheduler.models import Delivery, Job, JobState, Relief, Relieved
from tests import builders
from tests.personas import Personas

pytestmark = pytest.mark.django_db
LEVEL = {"title": "Time to first token", "latency": "max(ttft_seconds)", "objective_ms": 250, "rate": "sum(rate(r[5m]))"}


@pytest.fixture
def job(personas: Personas) -> Job:
    moment = now() - timedelta(minutes=30)
    found = builders.job(
        "chat",
        state=JobState.RUNNING,
        job_class="inference",
        on=personas.nodes["acme/research/nlp"],
        owner=personas.users["submitter"],
        submitted_at=moment,
    )
    builders.attempt(found, started_at=moment)
    return found


def stated(job: Job, **fields: Any) -> ServiceLevel:
    read = {"looked_at": now(), "read_at": now(), "latency_ms": 182.4, "requests": 41.5, "replicas_wanted": 3.2, "replicas": 3}
    given = {"title": "p99 latency", "latency": "max(p99)", "rate": "r", "wanted": "w", "objective_ms": 250}
    return ServiceLevel.objects.create(job=job, **given | read | fields)


def allowed() -> None:
    PrometheusServer.objects.create(public_id="ps-1", name="main", url="https://prometheus.example.org", for_services=True)


def send(client: Client, method: str, job: Job, body: Any = None, **headers: str) -> Any:
    data = b"" if body is None else json.dumps(body)
    return client.generic(method, f"/api/v1/jobs/{job.public_id}/service-level", data, content_type="application/json", headers=headers)


def page(client: Client, job: Job) -> str:
    return " ".join(client.get(f"/jobs/{job.public_id}/").content.decode().split())


def test_it_is_stated_on_its_page(personas: Personas, job: Job) -> None:
    owner, address = personas.client("submitter"), f"/jobs/{job.public_id}/service-level/"
    assert "Set objective" in page(owner, job)
    assert "No objective is set" not in page(personas.client("viewer"), job), "of nothing nothing is shown to who can't change it"

    shown = owner.get(address)
    assert (shown.status_code, shown.context["form"].initial["revision"]) == (200, 0)
    sent = owner.post(address, LEVEL | {"wanted": " w ", "reason": "New autoscaler", "revision": "0"})
    assert (sent.status_code, sent.url) == (302, f"/jobs/{job.public_id}/")
    level = ServiceLevel.objects.get()
    assert (level.title, level.objective_ms, level.wanted, level.changed_by) == ("Time to first token", 250, "w", "Submitter")
    entry = AuditEntry.objects.get(action="job.service_level")
    assert (entry.object_id, entry.reason, entry.before, entry.after["latency"]) == (job.public_id, "New autoscaler", None, "max(ttft_seconds)")
    assert "Not read yet" in page(owner, job)

    again = owner.post(address, LEVEL | {"revision": "0"})
    assert again.status_code == 409, "somebody stated it first"
    wrong = owner.post(address, LEVEL | {"latency": "", "objective_ms": "0", "revision": "1"})
    assert (wrong.status_code, sorted(wrong.context["form"].errors)) == (422, ["latency", "objective_ms"])


def test_who_may_not_steer_the_job_changes_nothing(personas: Personas, job: Job) -> None:
    viewer = personas.client("viewer")
    assert viewer.get(f"/jobs/{job.public_id}/service-level/").status_code == 403
    assert viewer.post(f"/jobs/{job.public_id}/service-level/", LEVEL).status_code == 403
    assert send(viewer, "PUT", job, LEVEL).status_code == 403
    stated(job)
    assert viewer.post(f"/jobs/{job.public_id}/service-level/remove/").status_code == 403
    assert send(viewer, "DELETE", job).status_code == 403
    assert send(viewer, "GET", job).json()["queries"] is None
    assert send(personas.client("submitter"), "GET", job).json()["queries"] == {"latency": "max(p99)", "rate": "r", "wanted": "w"}
    assert "Set objective" not in page(viewer, job)


def test_only_a_job_that_serves_has_one(personas: Personas, job: Job) -> None:
    lead = personas.client("team_lead")
    Job.objects.filter(pk=job.pk).update(job_class="batch")
    assert send(lead, "PUT", job, LEVEL).status_code == 409
    assert lead.get(f"/jobs/{job.public_id}/service-level/").status_code == 404
    assert "Service level" not in page(lead, job)
    Job.objects.filter(pk=job.pk).update(job_class="inference", state=JobState.CANCELLED, ended_at=now())
    assert send(lead, "PUT", job, LEVEL).json()["detail"] == f"{job.public_id} has ended."
    assert send(lead, "GET", job).status_code == 404


def test_the_api_states_changes_and_removes_it(personas: Personas, job: Job) -> None:
    owner = personas.client("submitter")
    made = send(owner, "PUT", job, LEVEL, **{"If-Match": '"0"'})
    assert (made.status_code, made["ETag"], made.json()["state"], made.json()["title"]) == (200, '"1"', "new", "Time to first token")
    assert send(owner, "PUT", job, LEVEL, **{"If-Match": '"1"'})["ETag"] == '"1"', "the same again changes nothing"
    assert send(owner, "PUT", job, LEVEL | {"objective_ms": 300}, **{"If-Match": '"0"'}).status_code == 412
    assert send(owner, "PUT", job, LEVEL | {"objective_ms": 0}).status_code == 422
    assert send(owner, "PUT", job, LEVEL | {"latency": "x" * 1001}).status_code == 422
    assert send(owner, "PUT", job, LEVEL | {"latency": "  "}).json()["errors"][0]["path"] == "latency"
    assert send(owner, "DELETE", job).status_code == 204
    assert send(owner, "DELETE", job).status_code == 404
    assert list(AuditEntry.objects.filter(object_kind="job").order_by("pk").values_list("action", flat=True)) == [
        "job.service_level",
        "job.service_level_remove",
    ]


def test_what_was_read_by_another_query_is_not_kept(personas: Personas, job: Job) -> None:
    stated(job, over=2)
    ServiceBreach.objects.create(job=job, since=now(), objective_ms=250, worst_ms=300)
    answer = send(personas.client("submitter"), "PUT", job, LEVEL).json()

    assert (answer["state"], answer["latency_ms"], answer["read_at"]) == ("new", None, None)
    assert [one["end"] for one in answer["breaches"]] == [BreachEnd.REMOVED]
    assert ServiceLevel.objects.get().over == 0


def test_who_was_told_of_a_breach_is_told_that_it_is_watched_no_more(personas: Personas, job: Job) -> None:
    builders.webhook(job.quota, kinds=["service.breached", "service.resolved"])
    for method, body in (("PUT", LEVEL), ("DELETE", None)):
        stated(job)
        ServiceBreach.objects.create(job=job, since=now() - timedelta(minutes=5), objective_ms=250, worst_ms=300)
        assert send(personas.client("submitter"), method, job, body).status_code < 300
        ServiceLevel.objects.all().delete()
    told = ActivityEntry.objects.filter(kind="service.resolved")
    assert [entry.title for entry in told] == ["chat is no longer watched"] * 2
    assert told[0].text.startswith("Objective changed or removed after 5")
    assert told[0].by == "Submitter"
    assert Delivery.objects.filter(kind="service.resolved").count() == 2


def test_the_page_shows_it_beside_the_gpus_and_the_api_the_same(personas: Personas, job: Job) -> None:
    allowed()
    stated(job, faults={"wanted": "No series: check the name of the metric and its labels."})
    shown, told = page(personas.client("viewer"), job), send(personas.client("viewer"), "GET", job).json()

    assert (told["state"], told["latency_ms"], told["requests"], told["replicas"], told["replicas_wanted"]) == ("met", 182.4, 41.5, 3, 3.2)
    for text in ("182 ms", "objective 250 ms", "Met", "41.5", "4 wanted", "Replicas wanted: No series: check the name of the metric and its labels."):
        assert text in shown
    assert "No Prometheus server" not in shown
    PrometheusServer.objects.update(for_services=False)
    assert "No Prometheus server answers queries of services." in page(personas.client("viewer"), job)


def test_what_a_server_repeats_of_a_query_is_told_only_to_who_may_read_it(personas: Personas, job: Job) -> None:
    refused = 'main: it refused the query: 1:5: parse error: unexpected identifier "board_salaries"'
    stated(job, faults={"latency": refused, "wanted": "No series: check the name of the metric and its labels."}, latency_ms=None)
    owner, viewer = personas.client("submitter"), personas.client("viewer")

    assert send(owner, "GET", job).json()["faults"]["latency"] == refused
    assert "board_salaries" in page(owner, job)
    assert send(viewer, "GET", job).json()["faults"] == {
        "latency": "main: it refused the query.",
        "wanted": "No series: check the name of the metric and its labels.",
    }
    shown = page(viewer, job)
    assert "board_salaries" not in shown
    assert "Latency: main: it refused the query." in shown


def test_of_a_job_that_ended_nothing_is_stale_or_at_fault(personas: Personas, job: Job) -> None:
    stated(job, looked_at=now() - timedelta(days=1), faults={"wanted": "No series: check the name of the metric and its labels."})
    Job.objects.update(state=JobState.COMPLETED, ended_at=now())
    assert send(personas.client("viewer"), "GET", job).json()["state"] == "ended"
    shown = page(personas.client("viewer"), job)
    assert "Service level" in shown
    assert "objective 250 ms" in shown
    for text in ("Stale", "182 ms", "No series", "No Prometheus server"):
        assert text not in shown


def test_an_answer_reads_the_service_level_once(personas: Personas, job: Job) -> None:
    stated(job)
    with CaptureQueriesContext(connection) as asked:
        send(personas.client("viewer"), "GET", job)
    assert len([one for one in asked.captured_queries if 'FROM "service_level"' in one["sql"]]) == 1, "between two reads it may be removed"


@pytest.mark.parametrize(
    ("fields", "state", "text"),
    [
        ({"looked_at": None, "latency_ms": None}, "new", "Not read yet"),
        ({"looked_at": now() - timedelta(minutes=2)}, "stale", "<strong>Stale</strong>: last read"),
        ({"latency_ms": None}, "unknown", "–"),
        ({"latency_ms": 251.0}, "over", "Over"),
    ],
)
def test_states_that_are_no_figure(personas: Personas, job: Job, fields: dict[str, Any], state: str, text: str) -> None:
    stated(job, **fields)
    assert send(personas.client("viewer"), "GET", job).json()["state"] == state
    shown = page(personas.client("viewer"), job)
    assert text in shown
    assert "182 ms" not in shown


def test_it_is_removed_on_its_page(personas: Personas, job: Job) -> None:
    owner, address = personas.client("submitter"), f"/jobs/{job.public_id}/service-level/remove/"
    assert owner.get(address).status_code == 404
    stated(job)
    assert "It is not read any more" in owner.get(address).content.decode()
    assert owner.post(address, {"reason": "x" * 290}).status_code == 422
    assert owner.post(address, {"reason": "Moved"}).status_code == 302
    assert AuditEntry.objects.get(action="job.service_level_remove").reason == "Moved"
    assert not ServiceLevel.objects.exists()


def test_a_cause_names_only_whom_the_reader_may_see(personas: Personas, job: Job) -> None:
    theirs = builders.job("theirs", on=personas.nodes["acme/research/vision"])
    stated(job, latency_ms=412.0)
    said = f"{theirs.public_id} shares its GPUs."
    ServiceBreach.objects.create(job=job, since=now(), objective_ms=250, worst_ms=1412, cause=BreachCause.CO_TENANT, said=said)

    assert said in page(personas.client("operator"), job)
    shown = page(personas.client("viewer"), job)
    assert theirs.public_id not in shown
    assert "worst 1.41 s. Co-tenant: another job shares its GPUs." in shown
    told = send(personas.client("viewer"), "GET", job).json()
    assert (told["state"], told["breaches"][0]["text"], told["breaches"][0]["cause"]) == ("breached", "another job shares its GPUs.", "co_tenant")


def co_tenants(job: Job, other: Job, **fields: Any) -> None:
    QuotaNode.objects.filter(parent__isnull=True).update(policy={"relief": "evict"})
    stated(job, latency_ms=400.0)
    at = now() - timedelta(minutes=5)
    ServiceBreach.objects.create(
        job=job, since=at, objective_ms=250, worst_ms=400, cause=BreachCause.CO_TENANT, said=f"{other.public_id} shares its GPUs."
    )
    given = {"since": at, "read_at": now(), "figure": "p99 latency", "latency_ms": 400, "objective_ms": 250, "beside": [other.public_id]}
    Relief.objects.create(job=job, **given | fields)


def test_what_comes_next_names_only_whom_the_reader_may_see(personas: Personas, job: Job) -> None:
    other, due = builders.job("train", state=JobState.RUNNING, on=personas.nodes["acme/research/vision"]), now() + timedelta(minutes=5)
    co_tenants(job, other, next_job=other.public_id, next_at=due, refused={other.public_id: "silent"})
    Relieved.objects.create(service=job, job=other, at=now(), figure="p99", latency_ms=400, objective_ms=250, how="shares", lost_gpu_seconds=90)

    shown = page(personas.client("viewer"), job)
    assert "If the breach lasts, another job is evicted at" in shown
    assert "Another job runs on a cluster that is not responding." in shown
    assert other.public_id not in shown
    told = send(personas.client("viewer"), "GET", job).json()
    assert (told["relief"]["state"], told["relief"]["job"], told["relieved"][0]["job"]) == ("next", None, None)
    assert f'If the breach lasts, <a href="/jobs/{other.public_id}/">{other.public_id}</a> is evicted at' in page(personas.client("operator"), job)


def test_a_breach_that_goes_on_without_co_tenants_says_so(personas: Personas, job: Job) -> None:
    co_tenants(job, builders.job("train", on=job.quota), since=None, beside=[])

    assert "No co-tenant is left beside it: no job is evicted." in page(personas.client("viewer"), job)
    assert send(personas.client("viewer"), "GET", job).json()["relief"]["state"] == "gone"
    Relief.objects.all().delete()
    assert send(personas.client("viewer"), "GET", job).json()["relief"]["state"] == "looking"


@pytest.mark.parametrize("code", REFUSALS)
def test_why_a_co_tenant_stays_is_a_sentence(personas: Personas, job: Job, code: str) -> None:
    other = builders.job("train", state=JobState.RUNNING, on=job.quota)
    co_tenants(job, other, refused={other.public_id: code})

    shown = page(personas.client("viewer"), job)
    assert "No co-tenant can be evicted now." in shown
    assert f"<li>{other.public_id} " in shown
    QuotaNode.objects.update(policy={})
    assert "No co-tenant is evicted: the fleet-wide rule Relief is off." in page(personas.client("viewer"), job)
    assert send(personas.client("viewer"), "GET", job).json()["relief"]["state"] == "off"


@pytest.mark.parametrize(
    ("role", "wanted", "replicas", "text"),
    [
        ({"min": 2, "max": 3}, 5, 3, "Its description allows at most 3 replicas: raise that."),
        ({"min": 1, "max": 4, "desired": 1}, 6, 1, "Set 4 replicas, or let it follow its metric."),
        ({"min": 2, "max": 8, "desired": 2}, 5, 2, "Set 5 replicas, or let it follow its metric."),
        ({"min": 3, "max": 8, "desired": 5}, 5, 2, "The scheduler preempts lower work for the missing replicas"),
        ({"min": 1, "max": 8, "desired": 5}, 5, 2, "above the minimum they preempt no job"),
    ],
)
def test_missing_capacity_says_what_helps(personas: Personas, job: Job, role: dict[str, Any], wanted: int, replicas: int, text: str) -> None:
    Job.objects.filter(pk=job.pk).update(spec=builders.spec_of({"roles": [role | {"gpus": 1}]}))
    stated(job, latency_ms=400.0, replicas_wanted=wanted, replicas=replicas)
    ServiceBreach.objects.create(job=job, since=now(), objective_ms=250, worst_ms=400, cause=BreachCause.CAPACITY, said="Runs fewer.")

    shown = page(personas.client("submitter"), job)
    assert text in shown
    assert f'<a href="/jobs/{job.public_id}/{"replicas" if "Set" in text else "edit"}/">' in shown
    assert text in send(personas.client("viewer"), "GET", job).json()["helps"][0]


def test_history_is_drawn_and_told(personas: Personas, job: Job) -> None:
    minute = now().replace(second=0, microsecond=0)
    for ago, latency in ((4, 180.0), (3, None), (2, 320.5)):
        ServiceSample.objects.create(
            job=job, at=minute - timedelta(minutes=ago), objective_ms=250, latency_ms=latency, requests=9, replicas_wanted=2, replicas=2
        )
    viewer = personas.client("viewer")
    told = viewer.get(f"/api/v1/jobs/{job.public_id}/service-level/history").json()
    read = [row for row in zip(told["at"], told["latency_ms"], told["objective_ms"], told["replicas"], strict=True) if row[2] is not None]
    assert [row[1:] for row in read] == [(180.0, 250, 2), (None, 250, 2), (320.5, 250, 2)]
    assert told["step_seconds"] == 60

    assert "Latency over time" in page(viewer, job), "what was read is kept where nothing is stated any more"
    file = b"".join(viewer.get(f"/jobs/{job.public_id}/service-level/course?format=csv").streaming_content)  # type: ignore[arg-type]
    rows = list(csv.reader(io.StringIO(file.decode("utf-8-sig"))))
    assert rows[0] == ["Time", "Latency (ms)", "Objective (ms)"]
    assert [row[1] for row in rows[1:] if row[2]] == ["180.0", "", "320.5"]


def test_every_breach_of_the_range_is_marked(personas: Personas, job: Job) -> None:
    stated(job)
    for ago in range(12):
        since = now() - timedelta(minutes=2 * ago + 1)
        ServiceBreach.objects.create(job=job, since=since, until=since + timedelta(minutes=1), end="met", objective_ms=250, worst_ms=300)
    shown = personas.client("viewer").get(f"/jobs/{job.public_id}/service-level/course").json()
    assert shown["table"].count("Over its objective: unknown") == 12


def test_a_job_without_a_service_costs_nothing(personas: Personas, job: Job, django_assert_max_num_queries: Any) -> None:
    Job.objects.filter(pk=job.pk).update(job_class="batch")
    client = personas.client("viewer")
    page(client, job)
    with django_assert_max_num_queries(60) as asked:
        page(client, job)
    assert not [one for one in asked.captured_queries if "service_" in one["sql"]]


def test_an_operator_says_which_server_answers(personas: Personas) -> None:
    operator = personas.client("operator")
    form = {"name": "main", "url": "https://prometheus.example.org", "enabled": "on"}
    assert operator.post("/telemetry/new/", form).status_code == 302
    server = PrometheusServer.objects.get()
    assert not server.for_services, "only where somebody says so"
    assert operator.post(f"/telemetry/{server.public_id}/", form | {"for_services": "on"}).status_code == 302
    server.refresh_from_db()
    assert server.for_services
    assert AuditEntry.objects.get(action="prometheus.change").after["for_services"] is True
    assert "Services</span>" in operator.get("/telemetry/").content.decode()
    told = operator.get(f"/api/v1/telemetry/sources/{server.public_id}").json()
    assert told["for_services"] is True
