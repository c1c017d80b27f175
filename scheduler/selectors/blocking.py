"""Who holds what a waiting job waits for, by reason: what a limit counts, GPUs of a type, of a domain, of a node. One query for all of them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, Q, Sum

from quotas.permissions import Access, Can, at_or_below, is_within
from scheduler.jobs.speeds import as_planned, seconds_at, speed_on
from scheduler.models import Gpu, Health, Outlook
from scheduler.selectors.holders import open_placements
from scheduler.snapshots.fleet import domain_named, node_named
from scheduler.snapshots.overrun import overrun_for

SHOWN = 5
TEAMS_SHOWN = 3
NODES_SHOWN = 3
# Where GPUs that are out of service are missed.
OF_HARDWARE = ("capacity", "fragmentation", "topology", "shortage")


@dataclass(frozen=True, slots=True)
class BlockHolder:
    """A job that holds something of what is waited for. Who it is stays empty where the reader may not know."""

    job_id: str
    job_name: str
    quota: str
    named: bool
    gpus_milli: int
    ends_at: datetime | None  # by its limit or estimate; None: nobody knows


@dataclass(frozen=True, slots=True)
class Holders:
    """Who leaves first, how many others there are, and what each team holds; under '' that of all teams which the reader may not know."""

    first: Sequence[BlockHolder]
    others: int
    gpus_milli: int
    teams: Sequence[tuple[str, int]]
    more_teams: int  # that the reader may see and that hold less
    missing_milli: int | None  # what has to be given back; None: that can't be counted
    enough_at: datetime | None  # when so much will have been given back; None: nobody knows

    def fewer(self, most: int) -> "Holders":
        """With at most so many jobs named."""
        return replace(self, first=self.first[:most], others=self.others + max(0, len(self.first) - most))


@dataclass(frozen=True, slots=True)
class Scope:
    """Which holds a reason is about, and how much of them has to be given back."""

    quotas: tuple[str, ...] = ()  # subtrees; none: all of the tree
    gpu_type: str = ""
    cluster: str = ""
    domain: str = ""
    node: str = ""
    only_fixed: bool = False
    profile: str = ""
    only_parts: bool = False
    missing_milli: int | None = None

    @property
    def placed(self) -> bool:
        return bool(self.cluster)

    def condition(self) -> Q:
        found = Q()
        for path in self.quotas:
            found |= at_or_below(path, "job__quota__path")
        if self.gpu_type:
            found &= Q(gpu__gpu_type_id=self.gpu_type)
        if self.cluster:
            found &= Q(node__cluster__name=self.cluster)
        if self.node:
            found &= Q(node__name=self.node)
        if self.domain:
            found &= Q(node__domain__path=self.domain) | Q(node__domain__path__startswith=f"{self.domain}/")
        if self.only_fixed:
            found &= Q(job__preemptible="no")
        if self.profile:
            found &= Q(mig__profile=self.profile)
        return found & Q(gpu_milli__lt=1000, gpu__isnull=False) if self.only_parts else found

    def holds(self, held: "_Held") -> bool:
        """As the condition has it."""
        here = not self.placed or (held.cluster == self.cluster and self.node in ("", held.node) and (not self.domain or self._within(held.domain)))
        whose = not self.quotas or any(is_within(held.path, path) for path in self.quotas)
        part = not self.only_parts or (held.part and self.profile in ("", held.profile))
        return here and whose and part and self.gpu_type in ("", held.gpu_type) and (held.fixed or not self.only_fixed)

    def _within(self, domain: str) -> bool:
        return domain == self.domain or domain.startswith(f"{self.domain}/")


@dataclass(frozen=True, slots=True)
class _Held:
    """What a job holds of one kind in one place."""

    path: str
    gpu_type: str
    cluster: str
    domain: str
    node: str
    fixed: bool
    part: bool
    profile: str
    job: str
    milli: int
    ends_at: datetime | None
    name: str


def block_holders(access: Access, outlook: Outlook | None, now: datetime) -> list[Holders | None]:
    """For each reason of an outlook who holds what it is about: None where it is about no GPUs, or nobody holds any.

    One query, and where estimates say when jobs end, another two.
    """
    scopes = [scope_of(reason) for reason in outlook.reasons] if outlook else []
    asked = [scope for scope in scopes if scope is not None]
    held = _held(asked, now) if asked else []
    return [_holders(access, scope, [one for one in held if scope.holds(one)], now) if scope is not None else None for scope in scopes]


def scope_of(reason: Mapping[str, Any]) -> Scope | None:
    """What a reason says of whose GPUs it is about. Outlooks of an earlier version say less, and then nobody is named."""
    of, kind = reason.get("code"), str(reason.get("type", ""))
    quotas = (str(reason["quota"]),) if "quota" in reason else ()
    match of:
        case "limit" if quotas:
            return Scope(quotas, kind, missing_milli=beyond(reason, "limit"))
        case "guarantee" if quotas:
            return Scope(quotas, kind, only_fixed=True, missing_milli=beyond(reason, "guaranteed"))
        case "share" if quotas and "needed" in reason:
            return Scope(quotas, kind, missing_milli=beyond(reason, "fair"))
        case "victims" if reason.get("above"):
            return Scope(tuple(map(str, reason["above"])), kind)
        case "balance" if reason.get("other"):
            return Scope((str(reason["other"]),), kind)
        case "capacity" if kind:
            return Scope(gpu_type=kind, missing_milli=1000 * (reason["needed"] - reason["free"]))
        case "fragmentation" if reason.get("node"):
            cluster, node = node_named(str(reason["node"]))
            return Scope(gpu_type=kind, cluster=cluster, node=node, missing_milli=1000 * (reason["each"] - reason["free_there"]))
        case "topology" if reason.get("domain") and "each" in reason:
            named = str(reason["domain"])
            cluster, domain, node = (*node_named(named)[:1], "", node_named(named)[1]) if reason.get("level") == "node" else domain_named(named)
            missing = 1000 * (reason["needed"] - reason["room"]) * reason["each"]
            return Scope(gpu_type=kind, cluster=cluster, domain=domain, node=node, missing_milli=missing)
        case "sharing" if kind:
            profile = str(reason["asked"]) if reason.get("sharing") == "mig" and "GB" not in str(reason["asked"]) else ""
            return Scope(gpu_type=kind, only_parts=True, profile=profile, missing_milli=1 if profile else None)
    return None


def beyond(reason: Mapping[str, Any], line: str) -> int:
    """By how much the job would go over a line, in milli-GPU."""
    return max(0, round(1000 * (reason["used"] + reason["needed"] - reason[line])))


def _held(scopes: Sequence[Scope], now: datetime) -> list[_Held]:
    condition = scopes[0].condition()
    for scope in scopes[1:]:
        condition |= scope.condition()
    # A gang on many nodes is one row unless a reason asks where they stand.
    places = ("node__cluster__name", "node__domain__path", "node__name") if any(scope.placed for scope in scopes) else ()
    parts = ("gpu_milli", "mig__profile") if any(scope.only_parts for scope in scopes) else ()
    rows = (
        open_placements()
        .filter(condition)
        .order_by("job__public_id")
        .values(
            "job__quota__path",
            "gpu__gpu_type_id",
            "job__public_id",
            "job__name",
            "job__preemptible",
            "job__spec__throughput",
            "job__estimate_seconds",
            "job__limit_seconds",
            "attempt__running_at",
            *places,
            *parts,
        )
        .annotate(milli=Sum("gpu_milli"))
    )
    held = list(rows)
    overrun = overrun_for((row["job__estimate_seconds"], row["job__limit_seconds"]) for row in held)
    return [_read(row, now, overrun) for row in held]


def _read(row: Mapping[str, Any], now: datetime, overrun: int) -> _Held:
    kind, limit = row["gpu__gpu_type_id"] or "", row["job__limit_seconds"]
    speed, estimate = speed_on({"throughput": row["job__spec__throughput"]}, kind), as_planned(row["job__estimate_seconds"], limit, overrun)
    return _Held(
        path=row["job__quota__path"],
        gpu_type=kind,
        cluster=row.get("node__cluster__name") or "",
        domain=row.get("node__domain__path") or "",
        node=row.get("node__name") or "",
        fixed=row["job__preemptible"] == "no",
        part=row.get("gpu_milli", 1000) < 1000,
        profile=row.get("mig__profile") or "",
        job=row["job__public_id"],
        milli=row["milli"],
        ends_at=_ends_at(row["attempt__running_at"] or now, seconds_at(speed, estimate, limit), limit, now),
        name=row["job__name"],
    )


def _ends_at(started: datetime, expected: int | None, limit: int | None, now: datetime) -> datetime | None:
    """By its estimate, or, where it has outlived that, by its limit."""
    for seconds in (expected, limit):
        if seconds is not None and started + timedelta(seconds=seconds) > now:
            return started + timedelta(seconds=seconds)
    return None


def _holders(access: Access, scope: Scope, held: Iterable[_Held], now: datetime) -> Holders | None:
    """Who leaves first in front. What a job holds on several nodes is one."""
    jobs: dict[str, list[_Held]] = {}
    for one in held:
        jobs.setdefault(one.job, []).append(one)
    if not jobs:
        return None
    holders = [_holder(access, parts) for parts in jobs.values()]
    holders.sort(key=lambda holder: (holder.ends_at is None, holder.ends_at or now))
    teams: Counter[str] = Counter()
    for holder in holders:
        teams[holder.quota] += holder.gpus_milli
    hidden = teams.pop("", 0)
    known = teams.most_common(TEAMS_SHOWN)
    told = [*known, *([("", hidden)] if hidden else [])]
    total = sum(holder.gpus_milli for holder in holders)
    enough_at = _enough_at(holders, scope.missing_milli) if scope.missing_milli is not None else None
    return Holders(holders[:SHOWN], max(0, len(holders) - SHOWN), total, told, len(teams) - len(known), scope.missing_milli, enough_at)


def _holder(access: Access, parts: Sequence[_Held]) -> BlockHolder:
    first, milli = parts[0], sum(part.milli for part in parts)
    # A gang goes at the pace of its slowest worker, and all of it leaves together.
    ends = [part.ends_at for part in parts]
    ends_at = None if any(end is None for end in ends) else max(end for end in ends if end is not None)
    if access.can(Can.SEE, first.path):
        return BlockHolder(first.job, first.name, first.path, True, milli, ends_at)
    return BlockHolder("", "", "", False, milli, ends_at)


def _enough_at(holders: Sequence[BlockHolder], missing: int) -> datetime | None:
    for holder in holders:
        missing -= holder.gpus_milli
        if missing <= 0:
            return holder.ends_at
    return None


@dataclass(frozen=True, slots=True)
class OutOfService:
    """GPUs of a type that are no capacity now, with the nodes that have most of them."""

    gpus: int
    nodes: tuple[str, ...]
    more_nodes: int


def out_of_service(outlook: Outlook | None) -> dict[str, OutOfService]:
    """By GPU type, of the types that an outlook misses GPUs of ('' has all types together). One query, none where it misses none."""
    reasons = [reason for reason in outlook.reasons if reason.get("code") in OF_HARDWARE] if outlook else []
    if not reasons:
        return {}
    sick = Q(node__health__in=[health for health in Health if health not in (Health.HEALTHY, Health.SUSPECT)]) | ~Q(health=Health.HEALTHY)
    rows = Gpu.objects.filter(sick, removed_at__isnull=True, node__removed_at__isnull=True)
    kinds = {str(reason.get("type", "")) for reason in reasons}
    if "" not in kinds:
        rows = rows.filter(gpu_type_id__in=kinds)
    by_node = rows.order_by("node__name").values_list("gpu_type_id", "node__name").annotate(count=Count("pk"))
    found: dict[str, Counter[str]] = {}
    for kind, node, count in by_node:
        for key in {kind, ""} & kinds:
            found.setdefault(key, Counter())[node] += count
    return {key: _out(nodes) for key, nodes in found.items()}


def _out(nodes: Counter[str]) -> OutOfService:
    first = tuple(name for name, _ in nodes.most_common(NODES_SHOWN))
    return OutOfService(sum(nodes.values()), first, len(nodes) - len(first))
