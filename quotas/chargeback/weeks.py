"""What teams cost in the last week, and in the four weeks before it: what an alert of rising costs is about."""

from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta

from django.core.cache import cache
from django.db.models import Q, Sum

from quotas.chargeback.months import month_at
from quotas.models import ChargeLine, ChargeMonth, NodeKind, QuotaNode

WEEK, BEFORE = timedelta(days=7), timedelta(days=28)


@dataclass(frozen=True, slots=True)
class Weeks:
    """Nano-units: of the last seven whole days in UTC, and of the 28 days before these."""

    cost: int = 0
    before: int = 0


KEPT, KEPT_SECONDS = "costs-of-weeks", 3600


def weeks_by_team(now: datetime) -> dict[str, Weeks]:
    """By path of the team. Added up again when a month was rated since: alerts ask every fifteen seconds."""
    today = now.astimezone(UTC).date()
    first = month_at(now - WEEK - BEFORE - timedelta(days=1))
    months = list(ChargeMonth.objects.filter(first__gte=first, first__lte=today).order_by("first").values_list("pk", "rated_to", "settled_to"))
    teams = _teams()
    state = f"{today} {months} {len(teams)} {teams[-1:]}"
    kept = cache.get(KEPT)
    if kept is None or kept["state"] != state:
        kept = {"state": state, "weeks": _weeks(today, [pk for pk, *_ in months], teams)}
        cache.set(KEPT, kept, KEPT_SECONDS)
    return {path: Weeks(*amounts) for path, amounts in kept["weeks"].items()}


def _teams() -> tuple[str, ...]:
    return tuple(QuotaNode.objects.filter(kind=NodeKind.TEAM).order_by("path").values_list("path", flat=True))


def _weeks(today: date, months: list[int], teams: tuple[str, ...]) -> dict[str, list[int]]:
    since = today - WEEK
    lines = ChargeLine.objects.filter(month__in=months, corrects__isnull=True, day__gte=since - BEFORE, day__lt=today)
    rows = lines.order_by().values_list("quota_path").annotate(cost=Sum("effective_nanos", filter=Q(day__gte=since)), all=Sum("effective_nanos"))
    known, sums = set(teams), defaultdict[str, list[int]](lambda: [0, 0])
    for path, cost, whole in rows:
        steps = path.split("/")
        team = next((above for depth in range(len(steps), 0, -1) if (above := "/".join(steps[:depth])) in known), None)
        if team is not None:
            sums[team][0] += int(cost or 0)
            sums[team][1] += int(whole or 0) - int(cost or 0)
    return dict(sums)
