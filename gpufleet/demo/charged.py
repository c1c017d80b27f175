"""The ledger of the demo before its past day: what teams held in the last weeks, so that months of costs can be looked at.

The ledger names jobs and outlives them, so these rows need no jobs. They end before the ledger's own beginning.
"""

import random
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Sum

from dashboards.charged import BATCH, uses_write
from dashboards.models import JobRollup
from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.demo.rows import LEDGER_COLUMNS, cost_centre_of
from quotas.chargeback.months import Span, month_at, month_close, month_refresh
from quotas.chargeback.sums import sums_write
from quotas.models import ChargeMode, ChargeMonth, ChargeUse, LedgerEntry, QuotaNode, QuotaShare, ShareClass
from quotas.permissions import Access
from scheduler.services.costs import costs_step

# Of its guarantee, and of what it borrows beyond that on most days, so that the fleet was lent and computed as in the demo's past day.
WEEKDAY, WEEKEND = (0.5, 0.8), (0.4, 0.65)
BORROWS, BORROWED = 0.6, (0.3, 0.7)
COMPUTES = (0.17, 0.45)
PURPOSES = ("pretraining", "finetune", "evaluation", "sweep")


def charged_seed(*, people: dict[str, list[str]], cluster: str, seed: int, until: datetime, now: datetime) -> None:
    """`people` by path of their team. From the first day of the month before last `until` the jobs of the demo's past have entries of their own."""
    chance = random.Random(f"{seed}-charged")  # noqa: S311 - a demo
    first = Span(Span(month_at(now)).before).before
    start = Span(first).start
    centres = dict(QuotaNode.objects.values_list("path", "cost_centre"))
    shares = [
        (share.node, share.gpu_type, (share.guaranteed_milli or 0) // 1000)
        for share in QuotaShare.objects.filter(node__path__in=list(people), guaranteed_milli__gte=1000).select_related("node").order_by("id")
    ]
    days = (until - start).days + 1
    jobs = iter(public_ids("j", max(1, days * len(shares))))
    rows: list[tuple[Any, ...]] = []
    for number in range(days):
        day = start + timedelta(days=number)
        for node, gpu_type, guaranteed in shares:
            if not guaranteed:
                next(jobs)
                continue
            rows += _day(chance, day, next(jobs), node, gpu_type, guaranteed, people[node.path], cost_centre_of(centres, node.path), cluster)
    rows = [(*row[:-1], min(row[-1], until)) for row in rows if row[-2] < until]
    first_key = -len(rows)
    rows_insert(LedgerEntry, LEDGER_COLUMNS, ((first_key + place, *row) for place, row in enumerate(rows)))


def _day(
    chance: random.Random, day: datetime, job: str, node: QuotaNode, gpu_type: str, guaranteed: int, owners: list[str], centre: str, cluster: str
) -> list[tuple[Any, ...]]:
    """One job of a team on one day, within its guarantee, and sometimes more that is borrowed. It takes most of the day: the fleet was as busy then
    as in the demo's past day."""
    since = day + timedelta(minutes=chance.randrange(0, 150))
    until = min(day + timedelta(days=1), since + timedelta(minutes=chance.randrange(1200, 1500), milliseconds=chance.randrange(1000)))
    owner, labels = chance.choice(owners), {"purpose": chance.choice(PURPOSES)}
    gpus = max(1, round(guaranteed * chance.uniform(*(WEEKEND if day.weekday() >= 5 else WEEKDAY))))
    held = [(ShareClass.GUARANTEED, gpus)]
    if chance.random() < BORROWS:
        held.append((ShareClass.BORROWED, max(1, round(guaranteed * chance.uniform(*BORROWED)))))
    return [
        (
            *(job, 1, "worker", worker, False, cluster, "", gpu_type, 1000 * amount, [], "whole", "", "running", share_class),
            *(node.pk, node.path, "batch", 0, "yes" if share_class == ShareClass.BORROWED else "no", owner, labels, "", centre),
            *(since, since, until),
        )
        for worker, (share_class, amount) in enumerate(held)
    ]


def months_seed(*, access: Access, now: datetime) -> None:
    """The month before last is closed, the last one and this one are estimates; of each it is known what jobs computed."""
    last = Span(month_at(now)).before
    month = month_refresh(first=Span(last).before, now=now)
    _computed(month, before=now)
    month_close(access=access, first=month.first, mode=ChargeMode.CHARGEBACK, now=now)
    costs_step(now=now)
    for month in ChargeMonth.objects.filter(closed_at__isnull=True).order_by("first"):
        _computed(month, before=now)
        if not uses_write(month, now.date()):
            sums_write(month)


def _computed(month: ChargeMonth, *, before: datetime) -> None:
    """What jobs of the days before the demo's past day computed; of later ones there is telemetry."""
    telemetry = JobRollup.objects.order_by("at").values_list("at", flat=True).first() or before
    chance = random.Random(f"{month}-computed")  # noqa: S311 - a demo
    used = month.lines.filter(day__lt=telemetry.date()).order_by("quota_path", "day", "job").values_list("quota_path", "day", "job")
    usual: dict[str, float] = {}
    rows = []
    for path, day, job, milli_millis in used.annotate(Sum("milli_millis")):
        part = usual.setdefault(path, chance.uniform(*COMPUTES)) * chance.uniform(0.85, 1.15)
        measured = round(milli_millis * chance.uniform(0.96, 1.0))
        rows.append(ChargeUse(month=month, day=day, job=job, measured=measured, computing=round(measured * part)))
    ChargeUse.objects.bulk_create(rows, batch_size=BATCH)
