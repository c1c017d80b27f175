"""What a year of charges costs: measured in processes that share a database of their own (`gpufleet bench chargeback`)."""

import json
import random
import resource
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from itertools import islice
from typing import Any

from django.db import connection, transaction
from django.test import Client

from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.chargeback.cards import card_activate, card_draft
from quotas.chargeback.files import file_of
from quotas.chargeback.months import Span, chain_faults, month_at, month_close, month_refresh
from quotas.chargeback.periods import Period
from quotas.chargeback.sums import sums_write
from quotas.models import ChargeMonth, LedgerEntry, NodeKind, QuotaNode, QuotaShare, RoleBinding
from quotas.permissions import Access, access_for_user

MONTHS, DEPARTMENTS, TEAMS, PEOPLE = 12, 10, 200, 1000
TYPES = ("H100-SXM-80GB", "A100-SXM-80GB", "L40S-48GB")
PAGES, WARM_UP = 40, 3
FILES = {"export-csv": "csv", "export-focus": "focus-1.4", "export-xlsx": "xlsx", "export-pdf": "pdf", "export-summary": "summary"}
PAGE_CASES = ("page", "page-job", "page-label", "page-period", "page-days")
CASES = ("rate-month", "sum-month", "close-month", *PAGE_CASES, "doctor", *FILES)
BATCH = 20_000
COLUMNS = (
    *("attempt", "job", "attempt_number", "role", "worker", "surplus", "cluster", "node", "gpu_type", "gpu_milli", "parts", "tier", "pool", "phase"),
    *("share_class", "quota_id", "quota_path", "job_class", "priority", "preemptible", "owner", "labels", "stated_cost_centre", "cost_centre"),
    *("began_at", "since", "until"),
)


def say(case: dict[str, Any]) -> None:
    print(json.dumps(case), flush=True)


def year_fill(intervals: int) -> None:
    """A tree of 200 teams, two cards, and so many intervals of the ledger, evenly over the last twelve whole months."""
    chance = random.Random(7)  # noqa: S311 - made up
    moment = now()
    first = _months(moment)[0]
    teams = _tree()
    finance = User.objects.create_user("finance", password=None)
    RoleBinding.objects.create(user=finance, node=QuotaNode.objects.get(parent__isnull=True), role="finance")
    for began, micros in (
        (Span(first).start - timedelta(days=30), 3_000_000),
        (Span(_months(moment)[MONTHS // 2]).start + timedelta(days=9, hours=7), 2_900_000),
    ):
        lines: list[dict[str, Any]] = [{"gpu_type": name, "list_micros": micros + 500_000, "contracted_micros": micros} for name in TYPES]
        lines += [line | {"share_class": "preemptible", "discount_ppm": 400_000} for line in lines]
        access = _access()
        card_activate(
            access=access, card=card_draft(access=access, given={"name": "Rates", "valid_from": began, "lines": lines}, now=moment), now=moment
        )
    rows = _intervals(chance, intervals, teams, Span(first).start, Span(month_at(moment)).start)
    with transaction.atomic():
        while batch := list(islice(rows, BATCH)):
            rows_insert(LedgerEntry, COLUMNS, batch)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _tree() -> list[tuple[int, str]]:
    names = iter(public_ids("q", 1 + DEPARTMENTS + TEAMS))
    top = QuotaNode.objects.create(public_id=next(names), name="org", path="org", kind=NodeKind.ORG)
    teams = []
    for number in range(DEPARTMENTS):
        path = f"org/d-{number}"
        above = QuotaNode.objects.create(public_id=next(names), parent=top, name=f"d-{number}", path=path, depth=1, kind=NodeKind.DEPARTMENT)
        for place in range(number, TEAMS, DEPARTMENTS):
            said = {"name": f"t-{place}", "path": f"{path}/t-{place}", "depth": 2, "kind": NodeKind.TEAM, "cost_centre": f"CC-{place % 60}"}
            made = QuotaNode.objects.create(public_id=next(names), parent=above, **said)
            QuotaShare.objects.create(node=made, gpu_type=TYPES[0], guaranteed_milli=8000)
            teams.append((made.pk, made.path))
    return teams


def _intervals(chance: random.Random, count: int, teams: list[tuple[int, str]], start: datetime, end: datetime) -> Iterator[tuple[Any, ...]]:
    """Four intervals a job: it starts, runs, is evicted and runs on elsewhere."""
    names = iter(public_ids("j", count // 4 + 1))
    step = (end - start) / (count // 4 + 1)
    for number in range(count // 4 + 1):
        since, job = start + step * number, next(names)
        (key, path), owner = chance.choice(teams), f"person-{chance.randrange(PEOPLE)}"
        kind, milli = chance.choice(TYPES), 1000 * chance.choice((1, 1, 2, 4, 8))
        labels = {"run": f"r-{number % 5000}", "purpose": chance.choice(("train", "tune", "serve"))}
        for part in range(min(4, count - 4 * number)):
            until = min(end, since + timedelta(milliseconds=chance.randrange(60_000, 6 * 3_600_000)))
            share_class, preemptible = chance.choice((("guaranteed", "no"), ("guaranteed", "no"), ("borrowed", "yes")))
            yield (
                *(number + 1, job, 1, "worker", part, False, "north", f"node-{number % 500}", kind, milli, [], "whole", "north/main", "running"),
                *(share_class, key, path, "batch", 0, preemptible, owner, labels, "", f"CC-{int(path.rpartition('-')[2]) % 60}"),
                *(since, since, until),
            )
            since = until


def _months(moment: datetime) -> list[Any]:
    """The first days of the last twelve whole months."""
    found = [Span(month_at(moment)).before]
    while len(found) < MONTHS:
        found.append(Span(found[-1]).before)
    return found[::-1]


def _access() -> Access:
    return access_for_user(User.objects.get(username="finance"))


def measured(case: str) -> dict[str, Any]:
    """One case, in this process: its peak memory is that of the process."""
    run: Callable[[], dict[str, Any]] = {"rate-month": _rating, "sum-month": _summing, "close-month": _closing, "doctor": _doctor}.get(case) or (
        partial(_page, case) if case in PAGE_CASES else partial(_export, case)
    )
    found = run()
    return {"case": case} | found | {"peak_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)}


def _timed(run: Callable[[], Any], cpu: list[float]) -> float:
    began, computed = time.perf_counter(), time.process_time()
    run()
    cpu.append(time.process_time() - computed)
    return time.perf_counter() - began


def _rating() -> dict[str, Any]:
    took, cpu, lines, moment = [], list[float](), 0, now()
    for first in _months(moment):
        took.append(_timed(partial(month_refresh, first=first, now=moment), cpu))
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM charge_line")
            (lines,) = cursor.fetchone()
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return {"seconds": took, "cpu": cpu, "lines": lines}


def _summing() -> dict[str, Any]:
    """With telemetry of nine jobs in ten."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO charge_use (month_id, day, job, measured, computing)"
            " SELECT month_id, day, job, sum(milli_millis), sum(milli_millis) / 3 * 2 FROM charge_line WHERE job NOT LIKE '%7' GROUP BY 1, 2, 3"
        )
        cursor.execute("ANALYZE")
    cpu = list[float]()
    return {"seconds": [_timed(partial(sums_write, month), cpu) for month in ChargeMonth.objects.order_by("first")], "cpu": cpu}


def _closing() -> dict[str, Any]:
    """All but the newest, which stays an estimate."""
    cpu, moment, access = list[float](), now(), _access()
    closing = partial(month_close, access=access, mode="chargeback", now=moment)
    return {"seconds": [_timed(partial(closing, first=first), cpu) for first in _months(moment)[:-1]], "cpu": cpu}


def _page(case: str) -> dict[str, Any]:
    """The page of costs over all middleware, of closed months and of the open one: of a month, by team mostly, or by what has no stored sums; of a
    quarter; and of forty days that cut two months."""
    browser = Client(HTTP_HOST="localhost")
    browser.force_login(User.objects.get(username="finance"))
    months = _months(now())
    of_case = {"page-job": ("job",), "page-label": ("label:run", "label:purpose")}
    by = of_case.get(case, ("team", "team", "cost_centre", "gpu_type", "owner"))

    def ask(number: int) -> None:
        first = months[-1 - number % (MONTHS - 2)]
        asked = {"month": f"{first:%Y-%m}"}
        if case == "page-period":
            asked = {"from": f"{Span(Span(first).before).before}", "to": f"{Span(first).next - timedelta(days=1)}"}
        elif case == "page-days":
            asked = {"from": f"{Span(first).before.replace(day=10)}", "to": f"{first.replace(day=19)}"}
        asked |= {"by": by[number % len(by)]} | ({"idle": "use"} if case == "page" else {})
        answer = browser.get("/cost/", asked)
        assert answer.status_code == 200, answer.status_code

    for number in range(WARM_UP):
        ask(number)
    cpu: list[float] = []
    return {"seconds": [_timed(partial(ask, number), cpu) for number in range(PAGES)], "cpu": cpu}


def _doctor() -> dict[str, Any]:
    """The chain of closed months and their sums, all computed anew."""
    cpu = list[float]()

    def check() -> None:
        assert chain_faults() == []

    return {"seconds": [_timed(check, cpu)], "cpu": cpu}


def _export(case: str) -> dict[str, Any]:
    access, moment, written = _access(), now(), 0

    def write() -> None:
        nonlocal written
        written = sum(len(piece) for piece in file_of(access, Period.of(_months(moment)[-2]), FILES[case], users=True, now=moment).pieces)

    cpu: list[float] = []
    return {"seconds": [_timed(write, cpu)], "cpu": cpu, "mib": round(written / 2**20, 1)}
