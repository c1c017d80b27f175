"""Idle episodes as people and programs ask for them, inside the reader's subtrees."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.db.models import Count, Q, QuerySet, Sum
from django.http import Http404

from dashboards.idle.models import IdleEpisode, IdleStep
from dashboards.idle.steps import idle_of, may_act, may_snooze
from dashboards.selectors import rates_visible
from gpufleet.core.money import cost_micros
from quotas.permissions import Access, Can
from scheduler.models import Gpu

WEEK, MILLISECOND = timedelta(days=7), timedelta(milliseconds=1)
WORST = 5
COUNTED = (
    "owner__display_name",
    "owner__username",
    "quota__path",
    "gpu_type",
    "started_at",
    "seen_at",
    "ended_at",
    "idle_milli",
    "wasted_milli_millis",
    "fault",
    "public_id",
    "job__name",
)


@dataclass(frozen=True, slots=True)
class IdleRow:
    """An episode as lists show it. Money is None for readers who may not see it, and where no rate is known."""

    episode: IdleEpisode
    cost_micros: int | None
    may_act: bool
    may_snooze: bool

    @property
    def hours_milli(self) -> int:
        """Wasted GPU-hours, in thousandths."""
        return hours_milli(self.episode.wasted_milli_millis)

    @property
    def hours_told(self) -> str:
        return hours_told(self.hours_milli)

    @property
    def idle(self) -> timedelta:
        """For how long readings show it idle."""
        return idle_of(self.episode)

    @property
    def won_told(self) -> str:
        return hours_told(hours_milli(self.episode.won_milli_millis))

    @property
    def activity_told(self) -> str:
        return f"{self.episode.activity_centi / 100:.1f}%"

    @property
    def state(self) -> str:
        return "ended" if self.episode.ended_at else "idle"


def hours_told(milli: int) -> str:
    """GPU-hours out of thousandths of them."""
    return f"{milli / 1000:,.1f}"


def hours_milli(milli_millis: int) -> int:
    return round(milli_millis / 3_600_000)


def episodes_listed(access: Access) -> QuerySet[IdleEpisode]:
    access.must_somewhere(Can.SEE)
    return IdleEpisode.objects.filter(access.visible(Can.SEE, "quota__path")).select_related("job", "quota", "owner")


def gpu_episodes(access: Access, gpu: int) -> list[IdleEpisode]:
    """Those that are open and count this GPU."""
    held = episodes_listed(access).filter(ended_at__isnull=True, job__placements__gpu=gpu, job__placements__until__isnull=True)
    return [one for one in held.order_by("pk").distinct() if gpu in one.gpus]


def episode_for(access: Access, public_id: str) -> IdleEpisode:
    found = episodes_listed(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no idle episode {public_id}.")
    return found


def idle_rows(access: Access, episodes: Sequence[IdleEpisode], *, now: datetime) -> list[IdleRow]:
    """One query, for the rates."""
    rates = rates_visible(access, now=now)
    return [
        IdleRow(
            one,
            cost_of(one.wasted_milli_millis, one.gpu_type, rates) if access.can(Can.SEE_COSTS, one.quota.path) else None,
            one.ended_at is None and may_act(access, one),
            one.ended_at is None and may_snooze(access, one),
        )
        for one in episodes
    ]


def cost_of(milli_millis: int, gpu_type: str, rates: Mapping[str, int] | None) -> int | None:
    if rates is None or gpu_type not in rates:
        return None
    return cost_micros(gpu_milli=1, millis=milli_millis, micros_per_gpu_hour=rates[gpu_type])


def episode_steps(episode: IdleEpisode) -> list[IdleStep]:
    return list(episode.steps.order_by("at", "id"))


def episode_gpus(episode: IdleEpisode) -> list[Gpu]:
    return list(Gpu.objects.filter(pk__in=episode.gpus).select_related("node").order_by("node__name", "index"))


@dataclass(frozen=True, slots=True)
class Hoarder:
    """An owner with what was idle in the last week; `rows` is the address of these episodes."""

    owner: str
    rows: str
    quota: str
    episodes: int
    milli_millis: int
    cost_micros: int | None

    @property
    def hours_milli(self) -> int:
        return hours_milli(self.milli_millis)

    @property
    def hours_told(self) -> str:
        return hours_told(self.hours_milli)


@dataclass(frozen=True, slots=True)
class IdleSummary:
    """What is idle now, and the last seven days. `faults` are ids and job names of episodes that the last round could not go on with."""

    episodes: int
    gpus_milli: int
    cost_per_hour_micros: int | None
    week_hours_milli: int
    week_cost_micros: int | None
    won_hours_milli: int
    reclaims: int
    week_hours_told: str
    won_hours_told: str
    worst: Sequence[Hoarder]
    faults: Sequence[tuple[str, str]]


def idle_summary(access: Access, *, now: datetime) -> IdleSummary:
    """Two queries, and those for the rates."""
    rates = rates_visible(access, now=now) if access.can_somewhere(Can.SEE_COSTS) else None
    rows, since = episodes_listed(access), now - WEEK
    open_rows: list[tuple[str, int]] = []
    faults: list[tuple[str, str]] = []
    by_owner: dict[tuple[str, str, str], list[tuple[str, int]]] = defaultdict(list)
    counted = rows.filter(Q(ended_at__isnull=True) | Q(ended_at__gt=since)).order_by("pk").values_list(*COUNTED)
    for shown, username, path, gpu_type, started, seen, ended, idle_milli, wasted, fault, public_id, job in counted:
        if ended is None:
            open_rows.append((gpu_type, idle_milli))
            faults += [(public_id, job)] if fault else []
        if seen > since:
            by_owner[shown or username or "no owner", username or "", path].append((gpu_type, wasted_since(since, started, seen, wasted)))
    hoarders = [
        Hoarder(
            owner,
            f"?{urlencode({'owner': username, 'team': path, 'from': f'{since:%Y-%m-%d}'})}" if username else "",
            path,
            len(parts),
            sum(total for _, total in parts),
            _sum_cost(parts, rates) if access.can(Can.SEE_COSTS, path) else None,
        )
        for (owner, username, path), parts in by_owner.items()
    ]
    hoarders.sort(key=lambda one: (-one.milli_millis, one.owner, one.quota))
    won = rows.filter(reclaimed_at__gte=since).aggregate(total=Sum("won_milli_millis"), count=Count("pk"))
    won_hours = hours_milli(won["total"] or 0)
    every = [part for parts in by_owner.values() for part in parts]
    week_hours = hours_milli(sum(total for _, total in every))
    return IdleSummary(
        episodes=len(open_rows),
        gpus_milli=sum(milli for _, milli in open_rows),
        cost_per_hour_micros=_sum_cost([(gpu_type, milli * 3_600_000) for gpu_type, milli in open_rows], rates),
        week_hours_milli=week_hours,
        week_cost_micros=_sum_cost(every, rates),
        won_hours_milli=won_hours,
        reclaims=won["count"],
        week_hours_told=hours_told(week_hours),
        won_hours_told=hours_told(won_hours),
        worst=[one for one in hoarders if one.milli_millis][:WORST],
        faults=faults,
    )


def wasted_since(since: datetime, started: datetime, seen: datetime, wasted: int) -> int:
    """The part of an episode's waste that lies after `since`, as if it had been wasted evenly from its first to its last reading."""
    if started >= since:
        return wasted
    within, span = ((seen - begin) // MILLISECOND for begin in (since, started))
    return wasted * max(0, within) // max(1, span)


def _sum_cost(parts: Sequence[tuple[str, int]], rates: Mapping[str, int] | None) -> int | None:
    if rates is None:
        return None
    return sum(cost_of(total, gpu_type, rates) or 0 for gpu_type, total in parts)
