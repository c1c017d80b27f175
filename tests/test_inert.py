"""What people, jobs and machines write stays text wherever it is shown: markup, scripts, formulas and terminal commands in every free text field.

The rows are those of the matrix of addresses, and every address that answers a reader is read.
"""

import csv
import io
import json
from collections.abc import Iterator
from urllib.parse import quote

import pytest
import yaml
from django.apps import apps
from django.db import models

from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.models import LedgerEntry, QuotaNode, RoleBinding
from scheduler.models import (
    Checkpoint,
    Delivery,
    InventoryEvent,
    Job,
    JobBatch,
    JobEvent,
    JobMark,
    JobTemplateVersion,
    Node,
    Outlook,
    PlanRecord,
    Schedule,
    ScheduleRun,
    Webhook,
)
from scheduler.services.jobs.templates import draft_save
from tests import builders
from tests.personas import Personas
from tests.scheduler.test_log_stream import Writing
from tests.test_url_matrix import _address
from tests.url_expectations import EXPECTED, World

HOSTILE = """=1+1"'><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7|add:42 }}\x1b[2J$(id)"""
# Raw, each of these would be obeyed by a browser; 49 is what a template would make of it.
OBEYED = ("<script>alert", "<img src=x", "\"'><", "=1+149")
# Names by which rows are found, and words that the program itself chooses.
NOT_FREE = set(
    "cron rule zone path prefix digest token_digest key password array body backend group holder location username email uuid url".split()  # noqa: SIM905
)
READ = [expect for expect in EXPECTED if expect.method == "GET" and "superuser" in expect.who]
FORMULA = ("=", "+", "-", "@", "\t", "\r")


def free_fields(model: type[models.Model]) -> list[models.Field]:  # type: ignore[type-arg]
    """Texts of people, of jobs and of machines: no keys, and nothing that is one of a few words."""
    return [
        column
        for column in model._meta.concrete_fields
        if isinstance(column, models.CharField | models.TextField)
        and not isinstance(column, models.SlugField)
        and not (column.choices or column.unique or column.primary_key)
        and column.name not in NOT_FREE
        and (column.max_length or 1000) >= 60
    ]


@pytest.fixture
def hostile(personas: Personas) -> Iterator[World]:
    """A world in which whoever could write something wrote this."""
    world = World(personas)
    for expect in READ:
        _address(expect, world)
    builders.outlook(builders.job(on=world.team), HOSTILE)
    written = 0
    for model in apps.get_models():
        if model._meta.app_label in ("core", "quotas", "scheduler") and model._meta.db_table not in ("audit_entry", "change", "ledger_entry"):
            values = {column.name: HOSTILE[: column.max_length] for column in free_fields(model)}
            written += model._default_manager.update(**values) * len(values) if values else 0  # type: ignore[attr-defined]
    assert written > 40
    for entry in LedgerEntry.objects.order_by("pk")[:1]:  # entries never change: one more
        hostile_texts = {column.name: HOSTILE[: column.max_length] for column in free_fields(LedgerEntry)}
        LedgerEntry.objects.create(
            **{column.attname: getattr(entry, column.attname) for column in entry._meta.concrete_fields if not column.primary_key}
            | {"worker": entry.worker + 1}
            | hostile_texts
        )
    Job.objects.update(labels={HOSTILE: HOSTILE}, launch={"command": [HOSTILE], "env": {"X": HOSTILE}}, cost_centre=HOSTILE[:40])
    Outlook.objects.update(reasons=[{"code": "topology", "detail": HOSTILE}], would_start_if={"change": HOSTILE, "to": [HOSTILE]})
    PlanRecord.objects.update(decisions=[{"action": "start", "job": "j-1", "workers": [], "why": {"code": "fits", "detail": HOSTILE}}])
    verdict = {"id": "j-1", "name": HOSTILE, "state": "queued", "revision": 1, "effect": "changes", "detail": HOSTILE}
    JobBatch.objects.update(verdicts=[verdict, verdict | {"effect": "stale"}, verdict | {"id": HOSTILE[:24], "name": "", "effect": "unknown"}])
    Schedule.objects.update(description={"name": HOSTILE, "gpus": 1, "labels": {HOSTILE: HOSTILE}, "launch": {"shell": HOSTILE}})
    ScheduleRun.objects.update(faults={HOSTILE: [HOSTILE]})
    Delivery.objects.update(body=json.dumps({"cause": HOSTILE}))
    # What is too short or too well-formed to be free, and yet typed by somebody.
    QuotaNode.objects.update(cost_centre=HOSTILE[:40])
    JobMark.objects.update(key=HOSTILE[:100])
    RoleBinding.objects.exclude(group="").update(group=HOSTILE)
    Checkpoint.objects.update(location=HOSTILE)
    User.objects.exclude(pk=personas.users["superuser"].pk).update(email=HOSTILE)
    Webhook.objects.update(url=f"https://hooks.example.org/{HOSTILE}")
    Node.objects.update(labels={HOSTILE: HOSTILE})
    InventoryEvent.objects.update(before={HOSTILE: HOSTILE}, after={HOSTILE: HOSTILE})
    PlanRecord.objects.update(
        dropped=[{"action": "start", "job": "j-1", "workers": [], "why": {"code": "fits", "detail": HOSTILE}, "dropped": HOSTILE}]
    )
    JobTemplateVersion.objects.update(body={"gpus": 1, "name": HOSTILE, "launch": {"shell": HOSTILE}}, locked=["launch.shell"])
    JobEvent.objects.update(detail={"why": HOSTILE})
    facts = {"object_kind": "quota", "object_id": world.team.public_id, "before": {HOSTILE: HOSTILE}, "after": {HOSTILE: [HOSTILE]}}
    AuditEntry.objects.create(actor_name=HOSTILE, via="system", action="t", quota_path=world.team.path, reason=HOSTILE[:500], **facts)
    said = {"name": HOSTILE, "quota": world.team.path, "gpus": 1, "labels": {HOSTILE: HOSTILE}, "launch": {"shell": HOSTILE}, "template": HOSTILE}
    access = personas.access("superuser")
    world.draft = draft_save(access=access, public="", name=HOSTILE[:200], text=yaml.safe_dump(said), now=now())  # type: ignore[attr-defined]
    yield world


@pytest.fixture
def job_log(monkeypatch: pytest.MonkeyPatch) -> Writing:
    """What every job has written, as its back-end tells it."""
    back_end = Writing()
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: back_end)
    return back_end


def begun(world: World) -> list[str]:
    """Pages that begin with what somebody wrote elsewhere, or has typed into the address."""
    typed = quote(HOSTILE)
    new = [f"clone={world.job.public_id}", f"clone={world.running_job.public_id}", f"draft={world.draft.public_id}", f"template={world.template}"]  # type: ignore[attr-defined]
    new += [f"clone={typed}", f"draft={typed}", f"template={typed}", f"with.name={typed}"]
    templates = [f"ref={world.template}", f"like={world.template}", f"ref={typed}", f"like={typed}"]
    lists = ("jobs", "nodes", "gpus", "clusters", "quotas", "people", "tokens", "audit", "schedules", "webhooks", "search", "notifications")
    searched = [f"/{name}/?q={typed}&sort={typed}&after={typed}&size={typed}" for name in lists]
    return [
        *(f"/jobs/new/?{query}" for query in new),
        *(f"/templates/edit/?{query}" for query in templates),
        f"/schedules/new/?repeat={typed}",
        f"/schedules/new/?repeat={world.job.public_id}",
        f"/jobs/queue/?team={typed}&job={typed}",
        f"/jobs/?phase={typed}&quota={typed}&owner={typed}&view={typed}",
        *searched,
    ]


@pytest.mark.django_db
def test_no_page_file_or_answer_obeys_what_it_shows(hostile: World) -> None:
    reader = hostile.personas.client("superuser")
    shown, faults = 0, []
    for expect in READ:
        address = _address(expect, hostile)
        for query in ("?format=csv", "") if not expect.is_api else ("",):
            answer = reader.get(address + query)
            body = (b"".join(answer) if answer.streaming else answer.content).decode(errors="replace")
            kind = answer.headers.get("Content-Type", "")
            shown += "script>alert" in body or "script&gt;alert" in body
            faults += [f"{address}{query}: {fault}" for fault in obeyed(kind, body, answer)]
            if answer.status_code == 200 and kind.startswith("text/html"):
                break  # it has no file: this is the page
    assert faults == []
    assert shown > 15, "what was written is shown in many places, or this looks at nothing"


@pytest.mark.django_db
def test_no_page_obeys_what_it_begins_with_or_is_asked(hostile: World) -> None:
    reader = hostile.personas.client("superuser")
    statuses, shown, faults = set(), 0, []
    for address in begun(hostile):
        answer = reader.get(address)
        body = answer.content.decode(errors="replace")
        statuses.add(answer.status_code)
        shown += "script&gt;alert" in body
        faults += [f"{address}: {fault}" for fault in obeyed(answer.headers.get("Content-Type", ""), body, answer)]

    assert faults == []
    assert statuses <= {200, 404}
    assert shown > 15


def obeyed(kind: str, body: str, answer: object) -> list[str]:
    if kind.startswith("text/html"):
        return [f"holds {word}" for word in OBEYED if word in body]
    if kind.startswith("text/csv"):
        cells = [cell for row in csv.reader(io.StringIO(body, newline="")) for cell in row]
        return [f"begins with a formula: {cell[:20]}" for cell in cells if cell.startswith(FORMULA) and not _is_number(cell)]
    if "json" in kind:
        json.loads(body)
        return [] if answer.headers["X-Content-Type-Options"] == "nosniff" else ["may be taken for a page"]  # type: ignore[attr-defined]
    return []


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@pytest.mark.django_db
def test_what_a_job_writes_stays_text_in_its_log(hostile: World, job_log: Writing) -> None:
    job_log.text, job_log.ended = f"{HOSTILE}\n\nevent: end\ndata: {HOSTILE}\n", True
    reader, job = hostile.personas.client("superuser"), hostile.running_job.public_id
    for address in (f"/jobs/{job}/", f"/jobs/{job}/log/", f"/jobs/{job}/log/?q=alert", f"/jobs/{job}/log/?download=1"):
        answer = reader.get(address)
        body = (b"".join(answer) if answer.streaming else answer.content).decode(errors="replace")
        assert obeyed(answer.headers.get("Content-Type", ""), body, answer) == [], address
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert reader.get(f"/api/v1/jobs/{job}/logs").json()["text"] == job_log.text
    stream = b"".join(reader.get(f"/api/v1/jobs/{job}/logs/stream")).decode()  # type: ignore[call-overload]
    assert stream.count("\nevent: end\n") == 1, "the job's own lines end nothing"


@pytest.mark.django_db(transaction=True)
def test_no_terminal_obeys_what_it_prints(hostile: World, job_log: Writing, live_server, monkeypatch, tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    from gpufleet.cli import main

    monkeypatch.setenv("GPUFLEET_CLIENT_DIR", str(tmp_path))
    monkeypatch.setenv("GPUFLEET_URL", live_server.url)
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("GPUFLEET_TOKEN", hostile.personas.token("superuser", "read", "operate"))

    job_log.text, job_log.ended = f"{HOSTILE}\n", True
    # Into a file a log goes as it is; what is looked at here is what somebody reads at a terminal.
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    logs = (("logs", hostile.running_job.public_id), ("logs", "--search", "alert", hostile.running_job.public_id))
    schedule = (*logs, ("schedule", "ls"), ("schedule", "show", hostile.schedule.public_id))
    for words in (("ls", "--all"), ("show", hostile.job.public_id), ("why", hostile.job.public_id), ("quota",), ("fleet",), *schedule):
        main(["gpufleet", *words])
        printed = capsys.readouterr()
        assert printed.out
        assert "\x1b" not in printed.out + printed.err, words
