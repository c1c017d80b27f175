"""The fleet's own past as a scenario: written by `gpufleet trace own`, kept as a trace of the what-if lab, downloaded, and played."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.urls import reverse
from django.utils import timezone

from gpufleet.cli import main
from gpufleet.core.faults import Conflict, Missing
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode, QuotaShare, Reservation, Window
from scheduler.models import Attempt, Gpu, Job, QuotaReplay, Repartition, Trace
from scheduler.scenarios.reading import load
from scheduler.selectors.traces import trace_ready
from scheduler.services.forecasts import own_traces
from scheduler.services.forecasts.history import history
from scheduler.services.forecasts.own_traces import own_past_file, own_trace_ask, own_trace_write
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.traces import trace_present, trace_remove
from scheduler.services.forecasts.what_ifs import replay_teams, what_if_ask
from scheduler.whatifs.wanted import Wanted
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, submit
from tests.servers import PROJECT

TEAM = "acme/research/nlp"


def ran(name: str, begin: timedelta, length: timedelta, *, gpus: int = 8, now: timezone.datetime = NOON) -> Job:
    at = now - begin
    job = submit(QuotaNode.objects.get(path=TEAM), gpus=gpus, name=name, at=at, spec={"preemptible": "yes"})
    Attempt.objects.create(job=job, number=1, started_at=at, running_at=at, ended_at=at + length, outcome="completed")
    Job.objects.filter(pk=job.pk).update(state="completed", ended_at=at + length)
    return job


@pytest.fixture
def fleet(personas: Personas) -> Personas:
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    for path in ("acme", "acme/research", TEAM):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=16_000)
    return personas


def test_the_past_is_a_scenario_of_what_was_asked_and_how_long_it_ran(fleet: Personas) -> None:
    hour, left_out = timedelta(hours=1), Counter[str]()
    ran("too old", 60 * hour, 2 * hour)
    there, short = ran("there", 50 * hour, 5 * hour), ran("short", 10 * hour, 2 * hour, gpus=4)
    never = submit(QuotaNode.objects.get(path=TEAM), gpus=8, name="never", at=NOON - 3 * hour)
    Job.objects.filter(pk=never.pk).update(state="cancelled", ended_at=NOON - 2 * hour)
    gpu = Gpu.objects.order_by("id")[0]
    Repartition.objects.create(gpu=gpu, cluster_id=gpu.node.cluster_id, at=NOON - timedelta(minutes=10))
    facts = {"quota": fleet.nodes[TEAM], "gpu_type": H100, "gpus_milli": 8000, "requested_name": "Root", "state": "approved"}
    begin, end = NOON - 20 * hour, NOON - 19 * hour
    made = Reservation.objects.create(public_id="rv-1", name="Demo", starts_at=begin, ends_at=end, requested_at=NOON - 60 * hour, **facts)
    Window.objects.create(reservation=made, starts_at=begin, ends_at=end)

    scenario = load(history(length=timedelta(days=2), now=NOON, left_out=left_out))

    assert [(job.name, job.quota, job.submitted - scenario.now, job.work_ms) for job in scenario.jobs] == [
        (there.public_id, TEAM, 0, 3 * 3_600_000),
        (short.public_id, TEAM, 38 * 3_600_000, 2 * 3_600_000),
    ]
    assert [role.gpus for job in scenario.jobs for role in job.kind.roles] == [8, 4]
    assert len(scenario.nodes) == 2
    assert {quota.name for quota in scenario.quotas} >= {"acme", TEAM}
    assert [(window.quota, window.start - scenario.now, window.end) for window in scenario.windows] == [
        (TEAM, 28 * 3_600_000, scenario.now + 29 * 3_600_000)
    ]
    assert left_out == {"ended without having run": 1}


def test_the_command_writes_what_simulate_plays(fleet: Personas, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ran("today", timedelta(hours=3), timedelta(hours=1), now=timezone.now())
    out = tmp_path / "own.json"

    assert main(["gpufleet", "trace", "own", "--days", "1", "--out", str(out)]) == 0
    assert "1 jobs, " in capsys.readouterr().err
    assert main(["gpufleet", "simulate", str(out), "--json", "--per-job"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["per_job"]
    assert row["job"] == job.public_id
    assert row["started"] == pytest.approx(21 * 3600, abs=60) and row["ended"] - row["started"] == pytest.approx(3600, abs=1)


def test_a_folder_without_a_console_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUFLEET_", "DJANGO_"))}
    called = [sys.executable, str(PROJECT / "manage.py"), "trace", "own", "--data-dir", str(tmp_path / "none")]

    done = subprocess.run(called, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"There is no database in {tmp_path / 'none'}. Name the folder of the console by --data-dir.\n"
    assert not (tmp_path / "none" / "db.sqlite3").exists()


# As a trace of the what-if lab


OTHERS = "acme/product/search"


@pytest.fixture
def busy(fleet: Personas) -> Personas:
    """A job of a team that its admin sees, and one of a team that he does not."""
    ran("ours", timedelta(hours=10), timedelta(hours=2), gpus=4)
    secret = {"command": ["train", "--key", "hunter2"], "env": {"TOKEN": "hunter2"}}
    job = submit(QuotaNode.objects.get(path=OTHERS), gpus=8, name="hunter2", at=NOON - timedelta(hours=8), launch=secret)
    Attempt.objects.create(job=job, number=1, started_at=job.submitted_at, running_at=job.submitted_at)
    Job.objects.filter(pk=job.pk).update(state="running")
    never = submit(QuotaNode.objects.get(path=TEAM), gpus=8, name="never", at=NOON - timedelta(hours=3))
    Job.objects.filter(pk=never.pk).update(state="cancelled", ended_at=NOON - timedelta(hours=2))
    return fleet


def asked(personas: Personas, who: str = "operator", *, days: int = 2, **facts: object) -> Trace:
    return own_trace_ask(access=personas.access(who), days=days, now=NOON, begin=lambda key: None, **facts)  # type: ignore[arg-type]


def written(personas: Personas, who: str = "operator") -> Trace:
    made = asked(personas, who)
    assert own_trace_write(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()
    return made


def test_the_last_days_are_a_trace_once_a_worker_has_written_them(busy: Personas, django_capture_on_commit_callbacks) -> None:
    begun: list[int] = []
    with django_capture_on_commit_callbacks(execute=True):
        made = own_trace_ask(access=busy.access("operator"), days=2, now=NOON, begin=begun.append)
    assert (begun, made.state, made.title, made.kind) == ([made.pk], "waiting", "Last 2 days before 2026-11-20", "own")
    with pytest.raises(Missing, match="Last 2 days before 2026-11-20 is not ready"):
        trace_ready(busy.access("operator"), made.public_id)
    client = busy.client("operator")
    assert made.title not in client.get("/what-if/new/").content.decode()
    assert client.get("/what-if/new/", {"trace": made.public_id}).status_code == 404
    assert client.get(f"/api/v1/traces/{made.public_id}/file").status_code == 404

    assert own_trace_write(key=made.pk, clock=lambda: NOON) == "done"
    assert own_trace_write(key=made.pk, clock=lambda: NOON) is None, "a doubled call finds it written"

    made.refresh_from_db()
    assert (made.state, made.jobs, made.nodes, made.gpus, made.queues) == ("done", 2, 2, 16, [OTHERS, TEAM])
    assert made.rows_left_out == [{"why": "ended without having run", "rows": 1}]
    assert made.title in client.get("/what-if/new/").content.decode()
    document = client.get(f"/api/v1/traces/{made.public_id}/file").content
    assert json.loads(document) == json.loads(history(length=timedelta(days=2), now=NOON, left_out=Counter()))
    assert b"hunter2" not in document, "neither names of jobs nor what they run"
    assert [*AuditEntry.objects.order_by("pk").values_list("action", "object_id")][-2:] == [("trace.add", made.public_id), ("export", made.public_id)]


def test_a_what_if_replays_it_like_any_other_trace(busy: Personas) -> None:
    trace = written(busy)
    facts = {"access": busy.access("operator"), "change": None, "now": NOON, "trace": trace, "there": trace_present(trace)}
    found = what_if_ask(wanted=Wanted(trace=trace.public_id, policy={"order": "fifo"}), begin=lambda key: None, **facts)
    replay_run(key=found.pk, clock=lambda: NOON)

    found = QuotaReplay.objects.get()
    assert (found.state, found.fault, found.figures["before"]["came"]) == ("done", "", 2)
    assert sorted(team.path for team in replay_teams(busy.access("operator"), found)) == [OTHERS, TEAM]
    assert [team.path for team in replay_teams(busy.access("quota_admin"), found)] == [TEAM]


def test_who_sees_a_part_keeps_the_whole_past_but_reads_no_names_and_no_file(busy: Personas) -> None:
    """As a what-if of the last days: it is of the whole fleet, and teams are told to those who see them."""
    made = written(busy, "quota_admin")
    assert made.jobs == 2

    both = [OTHERS, TEAM]
    for who, queues, file in (("quota_admin", [TEAM], 403), ("viewer", [TEAM], 403), ("operator", both, 200), ("finance", both, 200)):
        client = busy.client(who)
        page = client.get(reverse("trace", args=[made.public_id])).content.decode()
        assert (OTHERS in page, "Download" in page) == (OTHERS in queues, file == 200), who
        assert client.get(f"/api/v1/traces/{made.public_id}").json()["queues"] == queues, who
        assert client.get(reverse("trace-file", args=[made.public_id])).status_code == file, who
        assert client.get(f"/api/v1/traces/{made.public_id}/file").status_code == file, who
    for who in ("quota_admin", "finance", "viewer"):
        assert busy.client(who).get("/api/v1/traces/own").status_code == 403, who
    with pytest.raises(PermissionDenied):
        own_past_file(access=busy.access("quota_admin"), days=1, now=NOON)
    with pytest.raises(PermissionDenied):
        asked(busy, "team_lead")


def test_few_jobs_are_a_file_at_once(busy: Personas, monkeypatch: pytest.MonkeyPatch) -> None:
    job, client = ran("today", timedelta(hours=3), timedelta(hours=1), now=timezone.now()), busy.client("operator")

    answer = client.get("/api/v1/traces/own", {"days": 1})

    assert [one.name for one in load(answer.content).jobs][-1] == job.public_id
    entry = AuditEntry.objects.latest("pk")
    assert (entry.action, entry.object_kind, entry.object_id, entry.after) == ("export", "trace", "own", {"days": 1})
    assert not Trace.objects.exists()
    monkeypatch.setattr(own_traces, "DIRECT_JOBS", 0)
    refused = client.get("/api/v1/traces/own", {"days": 1})
    assert (refused.status_code, "Add them as a trace" in refused.json()["detail"]) == (409, True)
    assert client.get("/api/v1/traces/own", {"days": 366}).status_code == 422


def test_days_that_cannot_be_kept_are_refused_before_a_worker_reads_them(busy: Personas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_traces, "MOST_JOBS", 2)
    with pytest.raises(ValidationError) as refused:
        asked(busy)
    assert refused.value.message_dict == {"days": ["3 jobs came in the last 2 days; at most 2 are kept. Choose fewer days."]}
    Job.objects.all().delete()
    with pytest.raises(ValidationError) as refused:
        asked(busy, days=1)
    assert refused.value.message_dict == {"days": ["No job was submitted or ran in the last day."]}
    for days in (0, 366):
        with pytest.raises(ValidationError, match="Enter 1 to 365 days"):
            asked(busy, days=days)


def test_one_is_written_at_a_time_and_one_that_is_lost_with_its_worker_stops_none(busy: Personas) -> None:
    lost = asked(busy)
    with pytest.raises(Conflict, match="is being written"):
        asked(busy)
    Trace.objects.filter(pk=lost.pk).update(created_at=NOON - timedelta(minutes=16))

    assert asked(busy).state == "waiting"
    page = busy.client("operator").get(reverse("trace", args=[lost.public_id])).content.decode()
    assert "could not be written: Not written within 15 minutes" in page
    assert busy.client("operator").get(f"/api/v1/traces/{lost.public_id}").json()["state"] == "failed"
    trace_remove(access=busy.access("operator"), trace=lost)
    assert own_trace_write(key=lost.pk, clock=lambda: NOON) is None


def test_what_cannot_be_written_is_told_on_its_page(busy: Personas, monkeypatch: pytest.MonkeyPatch) -> None:
    never = Attempt.objects.all()
    never.delete()
    Job.objects.update(state="cancelled", ended_at=NOON - timedelta(hours=1))
    made = asked(busy)
    assert own_trace_write(key=made.pk, clock=lambda: NOON) == "failed"
    page = busy.client("operator").get(reverse("trace", args=[made.public_id])).content.decode()
    assert "The trace could not be written: It has no jobs." in page

    def breaks(**_: object) -> bytes:
        raise KeyError("a column")

    broken = asked(busy)
    monkeypatch.setattr(own_traces, "history", breaks)
    with pytest.raises(KeyError):
        own_trace_write(key=broken.pk, clock=lambda: NOON)
    broken.refresh_from_db()
    assert (broken.state, broken.fault) == ("failed", "Internal error (KeyError). The log has the details.")


def test_it_is_added_at_a_page_and_over_http(fleet: Personas) -> None:
    ran("today", timedelta(hours=3), timedelta(hours=1), now=timezone.now())
    client, add = fleet.client("operator"), reverse("trace-own")

    wrong = client.post(add, {"own-days": "0", "own-title": "x"})
    assert (wrong.status_code, wrong.context["own"].errors["days"]) == (422, ["Enter 1 or more."])
    assert client.post(add, {"own-days": "2", "own-title": "Two days"}).url == reverse("trace", args=[Trace.objects.get().public_id])
    again = client.post(add, {"own-days": "2"})
    assert (again.status_code, "is being written" in again.content.decode()) == (409, True)

    trace = Trace.objects.get()
    own_trace_write(key=trace.pk, clock=timezone.now)
    file = client.get(reverse("trace-file", args=[trace.public_id]))
    assert (file["Content-Disposition"], file["Content-Type"]) == (f'attachment; filename="trace-{trace.public_id}.json"', "application/json")
    assert len(load(file.content).jobs) == 1
    assert AuditEntry.objects.latest("pk").object_id == reverse("trace-file", args=[trace.public_id])
    assert "This fleet&#x27;s past, 2 days" in client.get(reverse("trace", args=[trace.public_id])).content.decode()

    sent = client.post("/api/v1/traces/own", {"days": 1}, content_type="application/json")
    assert (sent.status_code, sent.json()["state"], sent.json()["days"], sent.json()["jobs"]) == (202, "waiting", 1, 0)
    assert client.get(sent["Location"]).json() == sent.json()
    assert {row["id"] for row in client.get("/api/v1/traces", {"state": "waiting"}).json()["items"]} == {sent.json()["id"]}
