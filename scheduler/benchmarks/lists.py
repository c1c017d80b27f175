"""A database with a hundred thousand jobs, for `gpufleet bench api`, and what a page of them asks of it.

Runs inside a console's own process (`manage.py shell`): what it prints is one line of JSON. Rows are written in bulk, as what the services would
have done over months; nothing of it is planned, so only web servers are measured on it.
"""

import random
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import QuotaNode, RoleBinding
from scheduler.benchmarks.loop import FULL, REPLAY_QUOTAS, hardware, person, say, tree
from scheduler.jobs.marks import marks_of
from scheduler.models import Attempt, Gpu, Job, JobEvent, JobMark, JobState, Outlook, Placement
from scheduler.services.forecasts.outlooks import codes_of
from scheduler.services.jobs.marks import types_sat_on

PEOPLE = 50
WORDS = ("train", "tune", "eval", "serve", "sweep", "embed", "distil", "export")
# Of a hundred: what months of work leave behind, what waits now, what holds GPUs now.
QUEUED_PERCENT, RUNNING_PERCENT = 5, 1
SCENES = {JobState.COMPLETED: 80, JobState.FAILED: 12, JobState.CANCELLED: 8}
SPEC = {"roles": [{"name": "worker", "min": 1, "gpus": 4, "gpu_types": [FULL]}], "grace_s": 30}
REASON = {"code": "limit", "detail": "The team's guarantee is used up and nothing idle is left to borrow."}
COLUMNS = (
    "public_id",
    "name",
    "quota_id",
    "owner_id",
    "job_class",
    "priority",
    "state",
    "state_since",
    "submitted_at",
    "ended_at",
    "spec",
    "gpus_milli",
    "launch",
    "labels",
    "cost_centre",
)
# Of so many jobs one has a label of its own, one names a GPU type that few do, one waits for something that few do.
RARE = 1000
RARE_TYPE = "H200-SXM-141GB"
RARE_SPEC = SPEC | {"roles": [{"name": "worker", "min": 1, "gpus": 4, "gpu_types": [FULL, RARE_TYPE]}]}


def many_jobs(count: int) -> None:
    """Jobs of a hundred days in thirty queues by fifty people: ended ones with their run, waiting ones with what the last plan told them."""
    draw = random.Random(7)
    running = count * RUNNING_PERCENT // 100
    hardware(nodes=-(-running // 2), free_nodes=0)
    tree(REPLAY_QUOTAS, 20)
    tokens = person(1)
    quotas = list(QuotaNode.objects.filter(path__in=REPLAY_QUOTAS).order_by("path").values_list("pk", flat=True))
    people = [User.objects.create_user(f"person-{number}", password=None).pk for number in range(PEOPLE)]
    RoleBinding.objects.create(user_id=people[0], node=QuotaNode.objects.get(path="org/group-0"), role="viewer")
    moment = now()
    names = public_ids("j", count)
    rows_insert(Job, COLUMNS, _jobs(draw, names, quotas, people, moment, running))
    _runs(moment)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    say({"tokens": tokens, "jobs": Job.objects.count(), "viewer": "person-0"})


def _jobs(
    draw: random.Random,
    names: list[str],
    quotas: list[int],
    people: list[int],
    moment: datetime,
    running: int,
    *,
    queued: int | None = None,
    days: int = 100,
) -> Iterator[tuple[Any, ...]]:
    count = len(names)
    queued = count * QUEUED_PERCENT // 100 if queued is None else queued
    ended = [state for state, share in SCENES.items() for _ in range(share)]
    for number, name in enumerate(names):
        submitted = moment - timedelta(days=days) * (count - number) / count
        state = draw.choice(ended)
        if number >= count - queued - running:
            state = JobState.QUEUED if number % (queued + running) >= running else JobState.RUNNING
        over = None if state in (JobState.QUEUED, JobState.RUNNING) else min(moment, submitted + timedelta(minutes=draw.randint(5, 3000)))
        kind = draw.choice(("batch", "batch", "interactive", "inference"))
        words = f"{draw.choice(WORDS)}-{draw.choice(WORDS)}-{number}"
        yield (
            name,
            words,
            draw.choice(quotas),
            draw.choice(people),
            kind,
            draw.randint(0, 100),
            state,
            over or submitted,
            submitted,
            over,
            RARE_SPEC if number % RARE == 1 else SPEC,
            4000,
            {"command": ["python", f"{words}.py"]},
            {"project": f"p-{number % 20}"} | ({"paper": f"{number // RARE}"} if number % RARE == 0 else {}),
            f"CC-{number % 40}",
        )


def _runs(moment: datetime) -> None:
    """Each job that began has its run, each that goes on holds its GPUs, each that waits was told why."""
    began = Job.objects.exclude(state=JobState.QUEUED).order_by("id").values_list("id", "submitted_at", "ended_at", "state")
    columns = ("job_id", "number", "started_at", "running_at", "ended_at", "outcome", "cause")
    rows_insert(
        Attempt,
        columns,
        ((key, 1, at, at, over, "" if over is None else str(state), "" if over is None else "Exit code 0.") for key, at, over, state in began),
    )
    events = Job.objects.order_by("id").values_list("id", "submitted_at")
    rows_insert(JobEvent, ("job_id", "at", "to_state", "cause"), ((key, at, "queued", "Submitted.") for key, at in events))
    gpus = iter(Gpu.objects.order_by("node_id", "index").values_list("id", "node_id"))
    running = Attempt.objects.filter(ended_at__isnull=True).order_by("id").values_list("id", "job_id", "started_at")
    held = [(attempt, job, *next(gpus), since) for attempt, job, since in running for _ in range(4)]
    rows_insert(
        Placement,
        ("attempt_id", "job_id", "role", "worker", "node_id", "gpu_id", "since"),
        ((attempt, job, "worker", 0, node, gpu, since) for attempt, job, gpu, node, since in held),
    )
    waiting = Job.objects.filter(state=JobState.QUEUED).order_by("id").values_list("id", flat=True)
    told = [REASON, {"code": "capacity", "detail": f"No {FULL} is free."}]
    rare = [*told, {"code": "topology", "detail": "No leaf has room for it."}]
    said = ((key, rare if number % (RARE // 10) == 0 else told) for number, key in enumerate(waiting))
    rows_insert(
        Outlook,
        ("job_id", "at", "reasons", "codes", "predicted_start"),
        ((key, moment, reasons, codes_of(reasons), moment + timedelta(hours=2)) for key, reasons in said),
    )
    marked = Job.objects.order_by("id").values_list("id", "spec", "labels")
    rows_insert(JobMark, ("job_id", "kind", "key", "value"), ((key, *mark) for key, spec, labels in marked for mark in marks_of(spec, labels)))
    types_sat_on(Attempt.objects.filter(ended_at__isnull=True).values_list("id", flat=True))


def queries(paths: list[str], token: str) -> None:
    """How many statements each address takes, and which of them read a table from one end to the other."""
    found = {}
    browser = Client(raise_request_exception=True, SERVER_NAME="127.0.0.1", HTTP_X_FORWARDED_PROTO="https")
    browser.force_login(User.objects.get(username="root"))
    for path in paths:
        headers = {"Authorization": f"Bearer {token}"} if path.startswith("/api/") else {}
        for _ in range(2):
            with CaptureQueriesContext(connection) as captured:
                status = browser.get(path, headers=headers).status_code
        scans = sorted({scan for query in captured for scan in _scans(query["sql"])})
        # A count ends at a limit, or is one of the rows that are shown.
        counts = [query["sql"] for query in captured if re.search(r"\bCOUNT\(", query["sql"]) and not re.search(r" LIMIT |= ANY\(", query["sql"])]
        found[path] = {"status": status, "queries": len(captured), "scans": scans, "unbounded_counts": len(counts)}
    say(found)


def _scans(sql: str) -> list[str]:
    """Tables of more than a thousand rows that a statement reads whole, by what the database says it would do."""
    if connection.vendor != "postgresql" or not sql.startswith("SELECT"):
        return []
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN {sql}")
        plan = "\n".join(row[0] for row in cursor.fetchall())
    return [table for table, rows in re.findall(r"Seq Scan on (\w+).*?rows=(\d+)", plan) if int(rows) > 1000]


def signed_in() -> None:
    """The session of the superuser, as its cookie."""
    browser = Client()
    browser.force_login(User.objects.get(username="root"))
    say(browser.cookies["sessionid"].value)


MEASURES: dict[str, Callable[..., None]] = {"many_jobs": many_jobs, "queries": queries, "signed_in": signed_in}
