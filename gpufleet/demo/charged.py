"""The ledger of the demo before its past day: what teams held in the last weeks, so that months of costs can be looked at.

The ledger names jobs and outlives them, so these rows need no jobs. They end before the ledger's own beginning.
"""

import random
from datetime import datetime, timedelta
from typing import Any

from gpufleet.core.bulk import rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.demo.rows import LEDGER_COLUMNS, cost_centre_of
from quotas.chargeback.months import Span, month_at, month_close, month_refresh
from quotas.models import ChargeMode, LedgerEntry, QuotaNode, QuotaShare, ShareClass
from quotas.permissions import Access
from scheduler.services.costs import costs_step

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
            if (day.weekday() >= 5 and chance.random() < 0.6) or not guaranteed:
                next(jobs)
                continue
            rows += _day(chance, day, next(jobs), node, gpu_type, guaranteed, people[node.path], cost_centre_of(centres, node.path), cluster)
    rows = [(*row[:-1], min(row[-1], until)) for row in rows if row[-2] < until]
    first_key = -len(rows)
    rows_insert(LedgerEntry, LEDGER_COLUMNS, ((first_key + place, *row) for place, row in enumerate(rows)))


def _day(
    chance: random.Random, day: datetime, job: str, node: QuotaNode, gpu_type: str, guaranteed: int, owners: list[str], centre: str, cluster: str
) -> list[tuple[Any, ...]]:
    """One job of a team on one day: within its guarantee, and sometimes more that is borrowed."""
    since = day + timedelta(minutes=chance.randrange(30, 600))
    until = since + timedelta(minutes=chance.randrange(60, 1200), milliseconds=chance.randrange(1000))
    owner, labels = chance.choice(owners), {"purpose": chance.choice(PURPOSES)}
    gpus = max(1, round(guaranteed * chance.uniform(0.4, 1.0)))
    held = [(ShareClass.GUARANTEED, gpus)]
    if chance.random() < 0.3:
        held.append((ShareClass.BORROWED, max(1, gpus // 3)))
    return [
        (
            *(job, 1, "worker", worker, False, cluster, "", gpu_type, 1000 * amount, [], "whole", "", "running", share_class),
            *(node.pk, node.path, "batch", 0, "yes" if share_class == ShareClass.BORROWED else "no", owner, labels, "", centre),
            *(since, since, until),
        )
        for worker, (share_class, amount) in enumerate(held)
    ]


def months_seed(*, access: Access, now: datetime) -> None:
    """The month before last is closed, the last one and this one are estimates."""
    last = Span(month_at(now)).before
    month_refresh(first=Span(last).before, now=now)
    month_close(access=access, first=Span(last).before, mode=ChargeMode.CHARGEBACK, now=now)
    costs_step(now=now)
