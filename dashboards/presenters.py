"""What the overview shows. `overview_shared` is the same for everybody and goes over the socket; names and money are added for each viewer.

static/js/overview.js makes the same texts out of the same values, so that a change that changes nothing touches nothing on the page.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.urls import reverse

from dashboards.figures import Figures, Holding, as_columns, gap_cost, holdings, queue_by_class
from dashboards.free import figures_with_free
from dashboards.selectors import OUTSIDE, SEVERAL, Owner, SickNode, fleet_read, jobs_waiting, nodes_needing_attention
from gpufleet.core.rounding import rounded, shares
from gpufleet.core.templatetags.shell import CURRENCY_SIGNS, NOTHING, THIN, duration, gpus, money, percent_of, plural
from gpufleet.core.times import millis
from scheduler.hardware.lifecycle import NEXT, next_verb
from scheduler.models import Health, JobClass

SICK_SHOWN = 3
HOLDERS_SHOWN = 4
OTHERS = 0
ROUND_MONEY_FROM = 100_000_000
SVG_WIDTH = 1000
TENTH = 100  # milli-GPU
HELD = ("computing", "gap", "unread")  # parts that are allocated


def overview_shared(*, now: datetime) -> dict[str, Any]:
    """The fleet's figures as plain values. Holds no team's name and no price."""
    fleet = fleet_read(now=now)
    sick = nodes_needing_attention(fleet)
    queue = queue_by_class(jobs_waiting(), classes=JobClass.values, now=now)
    return {
        "at": millis(now),
        "telemetry": max((millis(frame.at) for frame in fleet.frames), default=None),
        "nodes": len(set(fleet.node_ids.tolist())),
        "types": {name: asdict(figures) for name, figures in figures_with_free(fleet, now=now).items()},
        "sick": [_sick(node) for node in sick[:SICK_SHOWN]],
        "sick_total": len(sick),
        "holders": as_columns(holdings(fleet)),
        "queue": as_columns(queue),
    }


def _sick(node: SickNode) -> list[Any]:
    """The last says whether the node itself drains next: a bad GPU of a healthy node is drained by itself, on its page."""
    drains = node.node_health == Health.SUSPECT
    return [node.public_id, node.name, node.health, node.reason, millis(node.since), node.gpus_hurt, node.jobs, drains]


def overview_own(*, owners: Mapping[int, Owner | None], rates: Mapping[str, int] | None) -> dict[str, Any]:
    """What only this viewer sees: the teams that may be named, and prices. An owner that is not listed is another team."""
    return {
        "owners": {pk: [owner.team, owner.name] for pk, owner in owners.items() if owner},
        "rates": dict(rates) if rates is not None else None,
        "currency": CURRENCY_SIGNS.get(settings.CURRENCY, settings.CURRENCY + THIN),
    }


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of the split bar, in thousandths of its width."""

    key: str
    word: str
    x: int
    width: int
    milli: int
    tenths: int  # of GPUs as printed: the parts add up to the whole

    @property
    def gpus(self) -> str:
        return tenths_told(self.tenths)


def tenths_told(tenths: int) -> str:
    return f"{tenths // 10:,}.{tenths % 10}" if tenths % 10 else f"{tenths // 10:,}"


def split(figures: Figures) -> list[Part]:
    """All that there is, cut by what it does: computing, held without computing, held without a reading, free, out of service."""
    lengths = (
        ("computing", "Computing", figures.active_held),
        ("gap", "Idle", figures.gap),
        ("unread", "Allocated, no reading", figures.held_unread),
        ("free", "Free", figures.free),
        ("away", "Out of service, unallocated", figures.away),
    )
    parts, before = [], 0
    printed = rounded([milli for _, _, milli in lengths], TENTH)
    for (key, word, milli), tenths in zip(lengths, printed, strict=True):
        x = before * SVG_WIDTH // max(1, figures.milli)
        before += milli
        parts.append(Part(key, word, x, before * SVG_WIDTH // max(1, figures.milli) - x, milli, tenths))
    return parts


def free_told(figures: Figures) -> str:
    """`40 startable, 30 kept, 20 fragmented, 5 suspect`: what is free, told apart; the parts add up to what is printed of it."""
    free = next(part.tenths for part in split(figures) if part.key == "free")
    parts = [("startable", figures.startable), ("kept", figures.kept), ("fragmented", figures.scattered), ("suspect", figures.suspect)]
    printed = shares(free, [milli for _, milli in parts]) if figures.free else []
    return ", ".join(f"{tenths_told(tenths)} {word}" for (word, _), tenths in zip(parts, printed, strict=False) if tenths)


def whole_gpus(milli: int) -> str:
    """Rounded to whole GPUs, half up; less than a half is not said to be none."""
    return "<1" if 0 < milli < 500 else f"{(milli + 500) // 1000:,}"


def _worth(gpus: str) -> str:
    return "1 GPU's worth" if gpus == "1" else f"{gpus} GPUs' worth"


def round_money(micros: int) -> str:
    return money(micros, 0 if micros >= ROUND_MONEY_FROM else 2)


def figure_texts(figures: Figures, cost: int | None) -> dict[str, str]:
    """The headline figures, by the name of their place on the page."""
    read = figures.read > 0
    if figures.unread and read:
        unread = f"{figures.unread:,} without a reading"
    else:
        unread = "" if read or not figures.gpus else "No telemetry yet"
    parts = {part.key: part for part in split(figures)}
    gap = parts["gap"].gpus if figures.held_read or not figures.held else NOTHING
    held = tenths_told(sum(parts[key].tenths for key in HELD))
    return {
        "gpus": f"{figures.gpus:,}",
        "gpus_note": f"{figures.out:,} out of service" if figures.out else "all in service",
        "held": percent_of(figures.held, figures.milli),
        "held_note": f"{held} of {plural(figures.gpus, 'GPU')}",
        "sm": percent_of(figures.active, figures.read * 1000) if read else NOTHING,
        "sm_note": unread or _worth(whole_gpus(figures.active)),
        "sm_held": percent_of(figures.active_held, figures.held_read),
        "gap": gap,
        "gap_unit": "GPU" if gap == "1" else "GPUs",
        "free_note": free_told(figures),
        "cost": NOTHING if cost is None or (figures.held and not figures.held_read) else round_money(cost),
    }


@dataclass(frozen=True, slots=True)
class TypeRow:
    name: str
    texts: Mapping[str, str]
    parts: Sequence[Part]


def type_rows(by_type: Mapping[str, Figures], rates: Mapping[str, int] | None) -> list[TypeRow]:
    rows = []
    for name, figures in by_type.items():
        cost = gap_cost({name: figures}, dict(rates)) if rates is not None and name in rates else None
        parts = split(figures)
        free = next(part.gpus for part in parts if part.key == "free")
        rows.append(TypeRow(name, figure_texts(figures, cost) | {"free": free}, parts))
    return rows


@dataclass(frozen=True, slots=True)
class HolderRow:
    key: int
    name: str
    idle: str
    held: str
    sm: str


@dataclass(frozen=True, slots=True)
class Holders:
    """The teams with most idle GPUs, and what the others have: together all that is idle."""

    rows: Sequence[HolderRow]
    more: int = 0
    more_idle: str = ""


def holders_told(holders: Sequence[Holding], owners: Mapping[int, Owner | None]) -> Holders:
    """Teams that hold idle GPUs, the most first. What this viewer may not name is one row at the end."""
    teams: dict[int, tuple[str, list[int]]] = {}
    for holding in holders:
        owner = owners.get(holding.owner)
        if holding.owner == SEVERAL:
            key, name = SEVERAL, "Shared by several teams"
        elif holding.owner == OUTSIDE:
            key, name = OUTSIDE, "Outside gpufleet"
        else:
            key, name = (owner.team, owner.name) if owner else (OTHERS, "Other teams")
        sums = teams.setdefault(key, (name, [0, 0, 0, 0]))[1]
        for number, value in enumerate((holding.idle, holding.held, holding.read, holding.active)):
            sums[number] += value
    idle = [(key, name, sums) for key, (name, sums) in teams.items() if sums[0]]
    idle.sort(key=lambda row: (row[0] <= OTHERS, -row[2][0], -row[2][1], row[0]))
    printed = rounded([sums[0] for _, _, sums in idle], TENTH)
    held = rounded([sums[1] for _, _, sums in idle], TENTH)
    rows = [
        HolderRow(key, name, tenths_told(below), tenths_told(allocated), percent_of(sums[3], sums[2]) if sums[2] else NOTHING)
        for (key, name, sums), below, allocated in zip(idle[:HOLDERS_SHOWN], printed, held, strict=False)
    ]
    return Holders(rows, len(idle) - len(rows), tenths_told(sum(printed[HOLDERS_SHOWN:])))


@dataclass(frozen=True, slots=True)
class SickRow:
    key: str
    name: str
    url: str
    health: str
    reason: str
    since: datetime
    gpus: int
    jobs: int
    drains: bool

    @property
    def verb(self) -> str:
        return next_verb(self.health)


@dataclass(frozen=True, slots=True)
class QueueRow:
    key: str
    name: str
    jobs: str
    gpus: str
    median: str
    longest: str


def overview_page(shared: Mapping[str, Any], own: Mapping[str, Any], owners: Mapping[int, Owner | None]) -> dict[str, Any]:
    """The overview's template context, made from what the socket sends as well."""
    by_type = {name: Figures(**values) for name, values in shared["types"].items()}
    whole = sum(by_type.values(), Figures())
    rates = own["rates"]
    texts = figure_texts(whole, gap_cost(by_type, rates) if rates is not None else None)
    told = holders_told([Holding(*row) for row in shared["holders"]], owners)
    return {
        "whole": whole,
        "texts": texts,
        "answer": fleet_answer(gpus=whole.gpus, sick=shared["sick_total"], gap=texts["gap"], unit=texts["gap_unit"]),
        "parts": split(whole),
        "types": type_rows(by_type, rates),
        "unpriced": sorted(set(by_type) - set(rates)) if rates is not None else [],
        "sees_costs": rates is not None,
        "telemetry": _moment(shared["telemetry"]),
        "nodes": shared["nodes"],
        "sick": [SickRow(row[0], row[1], reverse("node", args=[row[0]]), row[2], row[3], _moment(row[4]), *row[5:]) for row in shared["sick"]],
        "verbs": [(health, next_verb(health)) for health in NEXT],
        "sick_more": shared["sick_total"] - len(shared["sick"]),
        "holders": told.rows,
        "holders_more": told,
        "queue": [
            QueueRow(row[0], JobClass(row[0]).label, f"{row[1]:,}", gpus(row[2]), *(duration(wait) if row[1] else NOTHING for wait in row[3:5]))
            for row in shared["queue"]
        ],
    }


def fleet_answer(*, gpus: int, sick: int, gap: str, unit: str) -> str:
    """How the fleet stands, in at most eight words."""
    if not gpus:
        return "No hardware yet."
    nodes = f"{plural(sick, 'node')} need{'s' if sick == 1 else ''} attention" if sick else "All nodes healthy"
    if gap == NOTHING:
        return f"{nodes}, no telemetry."
    return f"{nodes}, no GPU idle." if gap == "0" else f"{nodes}, {gap} {unit} idle."


def _moment(at: int | None) -> Any:
    return None if at is None else datetime.fromtimestamp(at / 1000, UTC)
