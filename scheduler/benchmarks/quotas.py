"""What the quota tree costs at its full size, for `gpufleet bench quotas`: its editor, and the previews of a change."""

import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

from django.db import connection, connections, transaction
from django.test import Client

from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.chargeback.months import month_at
from quotas.chargeback.sums import sums_write
from quotas.models import ChargeLine, ChargeMonth, NodeKind, QuotaNode, QuotaShare
from quotas.permissions import access_for_user
from quotas.selectors.changes import change_standing
from quotas.services.changes import Wanted, change_draft
from scheduler.benchmarks.lists import COLUMNS, _jobs, _runs
from scheduler.benchmarks.loop import FULL, hardware, person, say
from scheduler.models import Job, JobState, QuotaReplay
from scheduler.services.forecasts.previews import tree_preview
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.what_ifs import replay_ask, replay_cancel, replay_of

DEPARTMENTS, TEAMS, PROJECTS = 12, 200, 1500
NODES, RUNNING, QUEUED, PAST = 500, 1000, 5000, 20_000
PAGES, PREVIEWS, WARM_UP = 40, 5, 2
HOUR, DOLLAR = 3_600_000, 1_000_000  # in milliseconds; of a whole GPU, in nano-units of a thousandth
SAID = {"gpu_type": FULL, "share_class": "guaranteed", "preemptible": True, "tier": "whole", "cluster": "north"}
NANOS = ("list_nanos", "contracted_nanos", "effective_nanos")
Row = dict[str, Any]


@transaction.atomic
def world_fill() -> None:
    """4,000 GPUs that 1,000 jobs hold, 5,000 that wait, and 20,000 that ended within the last 7 days, in 1,500 projects, with their costs."""
    draw = random.Random(7)
    hardware(nodes=NODES, free_nodes=0)
    projects = _tree()
    person(1)
    people = [User.objects.create_user(f"person-{number}", password=None).pk for number in range(50)]
    count = PAST + QUEUED + RUNNING
    rows_insert(Job, COLUMNS, _jobs(draw, public_ids("j", count), projects, people, now(), RUNNING, queued=QUEUED, days=7))
    _runs(now())
    # As plans leave a fleet: no job that waits comes before one that runs.
    Job.objects.filter(state=JobState.RUNNING).update(priority=100, job_class="inference")
    _costs(now())
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _tree() -> list[int]:
    """The keys of the projects. Each has an even part of the fleet, in thousandths of GPUs."""
    names = iter(public_ids("q", 1 + DEPARTMENTS + TEAMS + PROJECTS))
    each = 1000 * 8 * NODES // PROJECTS
    promised: dict[int, int] = {}
    top = QuotaNode.objects.create(public_id=next(names), name="org", path="org", kind=NodeKind.ORG)
    above = [_node(next(names), top, f"d-{number}", NodeKind.DEPARTMENT) for number in range(DEPARTMENTS)]
    teams = [_node(next(names), above[number % DEPARTMENTS], f"t-{number}", NodeKind.TEAM) for number in range(TEAMS)]
    projects = [_node(next(names), teams[number % TEAMS], f"p-{number}", NodeKind.PROJECT) for number in range(PROJECTS)]
    for node in projects:
        at: QuotaNode | None = node
        while at is not None:
            promised[at.pk] = promised.get(at.pk, 0) + each
            at = at.parent
    rows_insert(QuotaShare, ("node_id", "gpu_type", "guaranteed_milli"), ((key, FULL, milli) for key, milli in promised.items()))
    return [node.pk for node in projects]


def _node(public_id: str, parent: QuotaNode, name: str, kind: str) -> QuotaNode:
    return QuotaNode.objects.create(public_id=public_id, parent=parent, name=name, path=f"{parent.path}/{name}", depth=parent.depth + 1, kind=kind)


def _costs(moment: datetime) -> None:
    """This month's lines: a day of each job that ended, for which the editor adds up what each node costs."""
    month = ChargeMonth.objects.create(first=month_at(moment), currency="USD", rated_to=moment)
    ended = Job.objects.filter(ended_at__isnull=False).order_by("id").values_list("id", "public_id", "quota_id", "quota__path", "gpus_milli")
    rows_insert(
        ChargeLine,
        ("month_id", *SAID, "day", "job", "quota_id", "quota_path", "milli_millis", *NANOS),
        (
            (month.pk, *SAID.values(), month.first + timedelta(key % moment.day), job, node, path, milli * HOUR, *[milli * DOLLAR] * len(NANOS))
            for key, job, node, path, milli in ended
        ),
    )
    sums_write(month)


def measured(case: str) -> None:
    for row in CASES[case]():
        say(row)


def _timed(case: str, seconds: Iterable[float]) -> Iterator[Row]:
    yield {"case": case, "seconds": list(seconds)}


def _editor() -> Iterator[float]:
    browser = Client(raise_request_exception=True, SERVER_NAME="127.0.0.1", HTTP_X_FORWARDED_PROTO="https")
    browser.force_login(User.objects.get(username="root"))
    for number in range(WARM_UP + PAGES):
        began = time.perf_counter()
        answer = browser.get("/quotas/editor/")
        assert answer.status_code == 200, answer.content[:500]
        if number >= WARM_UP:
            yield time.perf_counter() - began


def _draft() -> Any:
    """Ten GPUs more for one project, and for what is above it, at the cost of another one."""
    access = access_for_user(User.objects.get(username="root"))
    first, second = QuotaNode.objects.filter(kind=NodeKind.PROJECT, parent__name="t-0").order_by("pk")[:2]
    edits = []
    for node, more in ((first, 2000), (second, -2000)):
        milli = (node.shares.get(gpu_type=FULL).guaranteed_milli or 0) + more
        edits.append({"op": "update", "node": node.public_id, "set": {"shares": {FULL: {"guaranteed_milli": milli}}}})
    return access, change_draft(access=access, wanted=Wanted(edits), now=now())


def _preview() -> Iterator[float]:
    access, change = _draft()
    for number in range(WARM_UP + PREVIEWS):
        began = time.perf_counter()
        standing = change_standing(access, change)
        tree_preview(access=access, before=standing.before, after=standing.after, now=now())
        if number >= WARM_UP:
            yield time.perf_counter() - began


def _week() -> Iterator[Row]:
    """How long it takes and how many hours of the week are played in that; and how long one goes on that somebody cancels."""
    access, change = _draft()
    began = time.perf_counter()
    asked = replay_ask(access=access, change=change, now=now(), begin=lambda key: None)
    replay_run(key=asked.pk, clock=now)
    seconds, found = time.perf_counter() - began, replay_of(change, now())
    assert found is not None
    yield {"case": "week", "seconds": [seconds], "state": found.state, "hours": found.hours}

    asked = replay_ask(access=access, change=change, now=now(), begin=lambda key: None)
    with ThreadPoolExecutor(1) as pool:
        playing = pool.submit(replay_run, key=asked.pk, clock=now)
        while not playing.done() and not QuotaReplay.objects.filter(pk=asked.pk, hours__gt=0).exists():
            time.sleep(0.05)
        began = time.perf_counter()
        replay_cancel(access=access, change=change, now=now())
        state = playing.result()
        yield {"case": "week-cancel", "seconds": [time.perf_counter() - began], "state": state}
        pool.submit(connections.close_all).result()


CASES: dict[str, Callable[[], Iterator[Row]]] = {
    "editor": lambda: _timed("editor", _editor()),
    "preview": lambda: _timed("preview", _preview()),
    "week": _week,
}
