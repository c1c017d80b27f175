"""Turns in words: who is asked before whom, and why."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.templatetags.shell import gpus_tenths, gpus_tenths_told
from quotas.permissions import Access
from scheduler.engine.model.values import CLASSES, Job
from scheduler.engine.tell.turns import Side, Turn
from scheduler.models import Job as JobRecord
from scheduler.presenters.jobs import Line, line_of
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.foreseen import ForeseenStart, foreseen_start
from scheduler.selectors.jobs import WAITING
from scheduler.selectors.queue import QueuePart

FIRST = "Next in line."
ROUND = "Jobs for the preceding GPU type come first: first choices are scheduled before second choices, type by type."


def ordinal(number: int) -> str:
    """12th, 21st."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def why_there(turn: Turn, discretion: Discretion | None = None) -> str:
    """Why a job is asked directly behind another one.

    Without discretion it names both, and the nodes that were compared. With one that has read these words it names whom its reader may know, and
    keeps the figures of others back with their names.
    """
    before = turn.before
    if before is None:
        return FIRST if turn.by == "first" else ROUND
    if turn.ours is None or turn.theirs is None:
        said = f"Behind {before.name} of the same team: {_OF_JOBS[turn.by](before, turn.job)}."
    else:
        said = f"Behind {before.name}: {_OF_NODES[turn.by](_Told(turn.theirs, discretion), _Told(turn.ours, discretion))}."
    return discretion.text(said) if discretion else said


class _Told:
    """A node of the tree as its reader may know it."""

    def __init__(self, side: Side, discretion: Discretion | None) -> None:
        self.name, self.side = side.quota, side
        self.known = discretion is None or discretion.text(side.quota) == side.quota

    def figures(self, amount: int, of: int, before: str = "", more: str = "") -> str:
        return f" ({before}{gpus_tenths(amount)} of {gpus_tenths_told(of)}{more})" if self.known else ""

    def with_job(self, of: int) -> str:
        return self.figures(self.side.used + self.side.asked, of, more=" with the job")

    def part(self, amount: int) -> str:
        """As a part of what it may count on."""
        of = self.side.counts_on
        return self.figures(amount, of, f"{(200 * amount + of) // (2 * of)}%, " if of else "")


@dataclass(frozen=True, slots=True)
class TurnLine:
    """A job's turn on its own page."""

    place: str
    why: str


def turn_line(turn: Turn, discretion: Discretion) -> TurnLine:
    """`discretion` has read the words of `why_there`."""
    return TurnLine(ordinal(turn.number), why_there(turn, discretion))


_OF_JOBS: dict[str, Callable[[Job, Job], str]] = {
    "window": lambda one, other: "a window of its class is owed GPUs",
    "class": lambda one, other: f"class {CLASSES[one.kind.class_rank]} goes before {CLASSES[other.kind.class_rank]}",
    "priority": lambda one, other: f"priority {one.kind.priority} goes before {other.kind.priority}",
    "submitted": lambda one, other: (
        "it was submitted earlier" if one.submitted < other.submitted else "it was submitted at the same moment, and its id comes first"
    ),
}


def _fair(one: _Told, other: _Told) -> str:
    theirs, ours = (told.figures(told.side.used, told.side.fair) for told in (one, other))
    return f"{one.name} is not above its fair share{theirs}, {other.name} is above its own{ours}"


def _guarantee(one: _Told, other: _Told) -> str:
    promised = one.side.guaranteed
    within = "has a guarantee without end" if promised is None else f"stays within its guarantee{one.with_job(promised)}"
    return f"{one.name} {within}, {other.name} would not{other.with_job(other.side.guaranteed or 0)}"


def _node_priority(one: _Told, other: _Told) -> str:
    theirs, ours = (f" ({told.side.priority})" if told.known else "" for told in (one, other))
    return f"the priority of {one.name}{theirs} goes before that of {other.name}{ours}"


def _nothing(one: _Told, other: _Told) -> str:
    return f"{one.name} has a fair share, {other.name} has none"


def _share_with(one: _Told, other: _Told) -> str:
    theirs, ours = (told.part(told.side.used + told.side.asked) for told in (one, other))
    return f"with its next job {one.name} takes less of its fair share{theirs} than {other.name}{ours}"


def _share(one: _Told, other: _Told) -> str:
    return f"{one.name} uses less of its fair share{one.part(one.side.used)} than {other.name}{other.part(other.side.used)}"


def _counted_on(one: _Told, other: _Told) -> str:
    return f"{one.name} and {other.name} use the same part of their fair shares, and the share of {one.name} is smaller"


def _age(one: _Told, other: _Told) -> str:
    return f"{one.name} and {other.name} are level, and {one.name} is older"


_OF_NODES: dict[str, Callable[[_Told, _Told], str]] = {
    "fair": _fair,
    "guarantee": _guarantee,
    "node_priority": _node_priority,
    "nothing": _nothing,
    "share_with": _share_with,
    "share": _share,
    "counted_on": _counted_on,
    "age": _age,
}


@dataclass(frozen=True, slots=True)
class QueueLine:
    """A row of the queue. `others` jobs that are not shown stand before it."""

    turn: Turn
    job: JobRecord
    line: Line
    nodes: tuple[tuple[str, str], ...]
    why: str
    others: int
    waits: bool  # it may have started or ended since
    foreseen: ForeseenStart | None

    @property
    def more_nodes(self) -> int:
        return 0

    @property
    def told_wait(self) -> str:
        return self.line.text if self.waits else ""


def queue_lines(access: Access, part: QueuePart, now: datetime) -> list[QueueLine]:
    """In as few queries as one needs for all names together."""
    said = [why_there(item.turn) for item in part.items]
    told = Discretion(access, said)
    lines = []
    for item in part.items:
        row, waits = item.row, item.row.job.state in WAITING
        start = foreseen_start(row.job, row.outlook)
        lines.append(QueueLine(item.turn, row.job, line_of(row, now), row.nodes, why_there(item.turn, told), item.others, waits, start))
    return lines
