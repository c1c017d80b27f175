"""The rows behind each figure of the gap: of the newest snapshot the GPUs, each with how much of it counts; of a week its days."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.db.models import Q, QuerySet

from dashboards.gap.causes import Cause, Part, Piece
from dashboards.gap.figures import CAUSES, DIMENSIONS, Dimension, cost_of, part_names
from dashboards.gap.models import GapPart
from dashboards.gap.store import gap_over, pieces_newest
from dashboards.selectors import NO_POOL, NOBODYS, OTHER_TEAMS, OUTSIDE_TEAMS, owners_named, rates_visible
from gpufleet.core.tables import Choice, Column, Table, Text
from quotas.permissions import Access, Can
from scheduler.models import Gpu, Job, JobClass

DAY = timedelta(days=1)


@dataclass(slots=True)
class Counted:
    """What of one GPU a figure counts, and whose it is."""

    milli: int = 0
    cost_micros: int | None = None
    teams: list[str] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    jobs: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Behind:
    """The GPUs behind a figure: what they add up to is the figure, exactly, in GPUs and in money."""

    at: datetime | None
    gpus: Mapping[int, Counted]
    milli: int
    hour_micros: int | None


@dataclass(frozen=True, slots=True)
class Row:
    """A GPU of the list."""

    gpu: Gpu
    counted: Counted
    jobs: Sequence[Job]  # those that the reader may see


def gap_behind(access: Access, wanted: Mapping[str, Sequence[str]], *, now: datetime) -> Behind:
    """What of the newest snapshot has one of the wanted values in each dimension, the cause among them, named as this reader sees them.

    A team that no team is called is a part of names, in any case.
    """
    access.must_somewhere(Can.SEE)
    newest = pieces_newest()
    if newest is None:
        return Behind(None, {}, 0, None)
    rates = rates_visible(access, now=now)
    owners = owners_named(access)
    names = {dimension: part_names(access, dimension, owners) for dimension in DIMENSIONS}

    chosen = {key: set(values) for key, values in wanted.items() if values}
    every = {piece.part for piece in newest[1]}
    if "team" in chosen:
        known = {owner.name for owner in owners.values() if owner is not None}
        chosen["team"] = _teams_meant(chosen["team"], known | {names["team"](part) for part in every})

    def is_wanted(part: Part) -> bool:
        causes = chosen.get("cause")
        return (causes is None or part.cause in causes) and all(name(part) in chosen[key] for key, name in names.items() if key in chosen)

    parts = {part: is_wanted(part) for part in every}
    told = {part: (names["team"](part), names["class"](part)) for part, counts in parts.items() if counts}
    gpus: dict[int, Counted] = defaultdict(Counted)
    sums: dict[Part, int] = defaultdict(int)
    for piece in newest[1]:
        if piece.part in told:
            before = cost_of({piece.part: sums[piece.part]}, rates)
            sums[piece.part] += piece.milli
            after = cost_of({piece.part: sums[piece.part]}, rates)
            # By how much the sum grows with it: so the rounded costs of pieces add up to the rounded cost of their part.
            _count(gpus[piece.gpu], piece, *told[piece.part], None if before is None or after is None else after - before)
    return Behind(newest[0], gpus, sum(sums.values()), cost_of(sums, rates))


def _teams_meant(written: set[str], teams: set[str]) -> set[str]:
    return {team for text in written for team in teams if (team == text if text in teams else text.lower() in team.lower())}


def _count(counted: Counted, piece: Piece, team: str, job_class: str, cost: int | None) -> None:
    counted.milli += piece.milli
    counted.cost_micros = None if cost is None else (counted.cost_micros or 0) + cost
    for known, one in ((counted.teams, team), (counted.classes, job_class)):
        if one not in known:
            known.append(one)
    if piece.job is not None and piece.job not in counted.jobs:
        counted.jobs.append(piece.job)


def gpus_behind(behind: Behind) -> QuerySet[Gpu]:
    """Also those that were removed since the snapshot: they are part of the figure."""
    return Gpu.objects.filter(pk__in=sorted(behind.gpus)).select_related("node", "node__pool")


def rows_presented(access: Access, behind: Behind, gpus: Sequence[Gpu]) -> list[Row]:
    keys = {job for gpu in gpus for job in behind.gpus[gpu.pk].jobs}
    seen = Job.objects.filter(access.visible(Can.SEE, "quota__path"), pk__in=keys).only("public_id", "name").in_bulk()
    return [Row(gpu, behind.gpus[gpu.pk], [seen[key] for key in behind.gpus[gpu.pk].jobs if key in seen]) for gpu in gpus]


def _stored(column: str, otherwise: str) -> list[tuple[str, str]]:
    values = GapPart.objects.order_by(column).values_list(column, flat=True).distinct()
    return [(value or otherwise, value or otherwise) for value in values]


def _any(_: object) -> Q:
    """The view has chosen the GPUs by all filters together: a GPU may count by one of its jobs and not by another."""
    return Q()


_CLASSES = [(label, label) for label in [*(str(label) for label in JobClass.labels), NOBODYS, OUTSIDE_TEAMS, OTHER_TEAMS]]

GAP_GPUS = Table(
    name="gap-gpus",
    noun="GPU",
    columns=(
        Column(
            "node",
            "Node",
            "gpu.node.name",
            sort=("node__name", "index"),
            cell="""<a class="nowrap" href="{% url 'node' row.gpu.node.public_id %}">{{ row.gpu.node.name }}</a>""",
        ),
        Column("index", "GPU", "gpu.index", cell="""<a class="nowrap" href="{% url 'gpu' row.gpu.public_id %}">GPU {{ row.gpu.index }}</a>"""),
        Column("id", "Id", "gpu.public_id", on_page=False),
        Column(
            "type",
            "GPU type",
            "gpu.gpu_type_id",
            sort=("gpu_type", "node__name", "index"),
            cell="<span class=nowrap>{{ row.gpu.gpu_type_id }}</span>",
        ),
        Column(
            "pool", "Pool", "gpu.node.pool.name", sort=("node__pool__name", "node__name", "index"), cell="{{ row.gpu.node.pool.name|default:'–' }}"
        ),
        Column("team", "Team", lambda row: ", ".join(row.counted.teams), cell="{{ row.counted.teams|join:', ' }}"),
        Column("class", "Class", lambda row: ", ".join(row.counted.classes), cell="{{ row.counted.classes|join:', ' }}"),
        Column("jobs", "Jobs", lambda row: " ".join(job.public_id for job in row.jobs), cell="""{% include "dashboards/_row_jobs.html" %}"""),
        Column("gpus", "Counted", lambda row: row.counted.milli / 1000, numeric=True, cell="{{ row.counted.milli|gpus }}", hint="GPUs in the figure"),
        Column(
            "cost",
            "Cost an hour",
            lambda row: None if row.counted.cost_micros is None else row.counted.cost_micros / 1_000_000,
            numeric=True,
            cell="{{ row.counted.cost_micros|money }}",
        ),
    ),
    filters=(
        Choice("cause", "Cause", [(cause.value, CAUSES[cause].label) for cause in Cause], apply=_any),
        Text("team", "Team", apply=_any),
        Choice("class", "Class", _CLASSES, apply=_any),
        Choice("type", "GPU type", partial(_stored, "gpu_type", ""), apply=_any),
        Choice("pool", "Pool", partial(_stored, "pool", NO_POOL), apply=_any),
    ),
    default_sort="node",
    empty="No GPU is counted. The newest snapshot is taken each minute.",
    empty_next=("/gpus/", "GPUs"),
)


@dataclass(frozen=True, slots=True)
class DayRow:
    """A day of a week: so many snapshots, and what they come to together and on average."""

    at: datetime
    snapshots: int
    milli: int

    @property
    def mean(self) -> int | None:
        return round(self.milli / self.snapshots) if self.snapshots else None


def gap_days(access: Access, *, until: datetime, causes: Sequence[str], wanted: Mapping[Dimension, str]) -> tuple[list[DayRow], DayRow]:
    """The seven days before `until`, and all of them together: the figure of a week is what they come to, divided by the snapshots.

    `wanted`: of one team, class, type or pool alone, as this reader sees it named.
    """
    found = []
    named = [(part_names(access, dimension), name) for dimension, name in wanted.items()]
    for day in range(7):
        start = until - (7 - day) * DAY
        gap = gap_over(start, start + DAY)
        milli = sum(amount for part, amount in gap.sums.items() if part.cause in causes and all(name(part) == one for name, one in named))
        found.append(DayRow(start, gap.snapshots, milli))
    return found, DayRow(found[0].at, sum(row.snapshots for row in found), sum(row.milli for row in found))


def filters_asked(parameters: Any) -> dict[str, list[str]]:
    """What the filters of an address ask for."""
    bound = GAP_GPUS.page_asked(parameters, Gpu.objects.none()).filters
    return {item.key: [value for value, _ in item.values] for item in bound if item.active}
