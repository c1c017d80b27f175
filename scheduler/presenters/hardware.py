"""What pages draw: MIG layouts as slices on a line, and changes of hardware as sentences."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from gpufleet.core.templatetags.shell import memory
from scheduler.engine.model.mig import BOARDS, Board, Instance, Profile, room_for
from scheduler.hardware.boundaries import BOUNDARIES, VOUCHERS, Voucher, boundaries_of
from scheduler.hardware.layouts import stranded
from scheduler.hardware.lifecycle import step_verb
from scheduler.imports.plan import Change
from scheduler.models import DrainWay, Gpu, GpuSplit, Health, InventoryEvent, MigInstance, Node, PlannedHealth, SplitState
from scheduler.selectors.holders import Holder

SLICE_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Part:
    """One instance, or one free slice, as a box on the line of memory slices."""

    x: int
    width: int
    label: str
    detail: str
    state: str

    @property
    def middle(self) -> int:
        return self.x + self.width // 2

    @property
    def is_narrow(self) -> bool:
        """Whether its name needs smaller letters to fit."""
        return self.width <= SLICE_WIDTH


@dataclass(frozen=True, slots=True)
class Drawing:
    """A GPU's memory slices from left to right."""

    parts: tuple[Part, ...]
    width: int
    spoken: str


def drawing_of(gpu: Gpu, instances: Sequence[MigInstance], holders: Sequence[Holder] = ()) -> Drawing | None:
    """The layout of a GPU that is split; None for others."""
    board = BOARDS.get(gpu.gpu_type.board)
    if board is None or gpu.mode != "mig":
        return None
    by_instance = {holder.mig_id: holder for holder in holders if holder.mig_id is not None}
    parts: list[Part] = []
    taken: set[int] = set()
    for instance in instances:
        holder = by_instance.get(instance.pk)
        detail = f"held by {holder.label}" if holder else "free"
        parts.append(_part(instance.start, instance.size, instance.profile, detail, "held" if holder else "open"))
        taken.update(range(instance.start, instance.start + instance.size))
    return _drawing(board, parts, taken)


def drawing_of_layout(board: Board, layout: Sequence[Instance]) -> Drawing:
    """A layout that is offered."""
    parts: list[Part] = []
    taken: set[int] = set()
    for instance in layout:
        profile = board.known(instance.profile)
        parts.append(_part(instance.start, profile.memory, profile.name, "", "open"))
        taken.update(range(instance.start, instance.start + profile.memory))
    return _drawing(board, parts, taken)


def _part(start: int, size: int, label: str, detail: str, state: str) -> Part:
    return Part(start * SLICE_WIDTH, size * SLICE_WIDTH, label, detail, state)


def _drawing(board: Board, parts: list[Part], taken: set[int]) -> Drawing:
    spoken = ", ".join(f"{part.label} at slice {part.x // SLICE_WIDTH}{f' {part.detail}' if part.detail else ''}" for part in parts)
    unused = [_part(position, 1, "", "no instance", "none") for position in range(board.memory_slices) if position not in taken]
    whole = tuple(sorted([*parts, *unused], key=lambda part: part.x))
    return Drawing(whole, board.memory_slices * SLICE_WIDTH, spoken or "No instances")


@dataclass(frozen=True, slots=True)
class Addition:
    """One more instance that fits, and where."""

    profile: Profile
    start: int

    @property
    def instance(self) -> Instance:
        return Instance(self.start, self.profile.name)


def additions(board: Board, layout: Sequence[Instance]) -> list[Addition]:
    """What still fits beside the layout; the start that spoils least comes first for each profile."""
    return [Addition(profile, start) for profile in board.profiles for start in room_for(board, tuple(layout), profile.name)]


def stranded_text(board: Board, layout: Sequence[Instance]) -> str:
    """What a full layout leaves over, in words."""
    compute, memory = stranded(board, layout)
    parts = [
        f"{compute} of {board.compute_slices} compute slices" if compute else "",
        f"{memory} of {board.memory_slices} memory slices" if memory else "",
    ]
    return " and ".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One event as a sentence."""

    event: InventoryEvent
    subject: str
    text: str
    health: str


def history_lines(events: Sequence[InventoryEvent]) -> list[HistoryLine]:
    return [HistoryLine(event, _subject(event), _sentence(event), _health(event)) for event in events]


def event_told(event: InventoryEvent) -> str:
    """One event in a few words, as the chart of a node marks it."""
    return health_told(_subject(event), event.before, event.after) if event.kind == "health" else f"{_subject(event)} {_sentence(event)}"


def health_told(subject: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """A change of health: `Node draining`."""
    was, health = (str((one or {}).get("health", "")) for one in (before, after))
    return f"{subject} {Health(health).label.lower() if health in Health else f'{_health_word(was)} → {_health_word(health)}'}"


def _subject(event: InventoryEvent) -> str:
    return f"GPU {event.gpu.index}" if event.gpu_id and event.gpu else "Node"


def _health(event: InventoryEvent) -> str:
    return str((event.after or {}).get("health", "")) if event.kind == "health" else ""


def split_status(split: GpuSplit) -> str:
    """How far a repartition is."""
    match split.state:
        case SplitState.DRAINING:
            return "draining; no new jobs, running jobs finish"
        case SplitState.ORDERED:
            fault = split.order.fault if split.order is not None else ""
            return f"the back-end does not do it yet: {fault}" if fault else "ordered; waits for the back-end to confirm"
        case SplitState.REFUSED:
            return f"refused: {split.fault}"
        case _:
            return SplitState(split.state).label.lower()


def _sentence(event: InventoryEvent) -> str:
    before, after = event.before or {}, event.after or {}
    match event.kind:
        case "health":
            return f"{_health_word(before.get('health'))} → {_health_word(after.get('health'))}"
        case "geometry":
            layout = after.get("layout") or " ".join(f"{profile}@{start}" for profile, start in after.get("instances") or ())
            return f"split as {layout or 'nothing'}" if after.get("mode", "mig" if layout else "whole") == "mig" else "made whole"
        case "spare":
            return "kept as a spare" if after.get("spare") else "no longer a spare"
        case "boundaries" if "verified" in after:
            return "verified to pin jobs to their processors" if after["verified"] else "no longer verified to pin jobs to their processors"
        case "boundaries":
            return f"stated to enforce {' and '.join(after.get('boundaries') or ()) or 'no boundary'}"
        case "drain":
            return drain_text(str(after.get("jobs", "")), str(after.get("at") or ""))
        case "planned_drain" | "planned_health":
            return _planned_text(before, after)
        case "added" | "removed":
            return event.kind
        case _:
            return changed_text(before, after) or event.kind


@dataclass(frozen=True, slots=True)
class BoundaryTold:
    """A boundary between jobs as the page of a node says it. `by` is empty where nobody vouches for it."""

    name: str
    title: str
    by: str
    is_stated: bool
    may_state: bool


def boundaries_told(node: Node) -> list[BoundaryTold]:
    known = boundaries_of(node.labels, node.cluster.backend)
    found = []
    for name, title in BOUNDARIES.items():
        by = known.get(name)
        is_stated = by == Voucher.OPERATOR
        found.append(BoundaryTold(name, title, VOUCHERS[by] if by else "", is_stated, is_stated or by is None))
    return found


def plan_text(plan: PlannedHealth) -> str:
    """What a planned change does: "Mark down", or "Drain; running jobs finish"."""
    verb = step_verb(plan.to)
    if plan.to != Health.DRAINING:
        return verb
    return f"{verb}; {drain_text(plan.way, (plan.at or plan.begins_at).astimezone(UTC).isoformat())}"


def _planned_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Of a planned change of health; those that were written as planned drains name no health."""
    to = (after or before).get("to", Health.DRAINING)
    what = "drain" if to == Health.DRAINING else f"change to {_health_word(to).lower()}"
    if not after:
        return f"planned {what} called off"
    said = f"{what} planned for {moment_told(after['begins'])}"
    return f"{said}; {drain_text(str(after['jobs']), str(after['at'] or after['begins']))}" if to == Health.DRAINING else said


def drain_text(way: str, at: str) -> str:
    if way not in (DrainWay.MOVE, DrainWay.STOP):
        return "running jobs finish"
    return f"running jobs are {'moved' if way == DrainWay.MOVE else 'stopped'} at {moment_told(at)}"


def moment_told(written: str) -> str:
    return f"{written[:16].replace('T', ' ')} UTC"


def _health_word(value: object) -> str:
    return Health(value).label if value in Health.values else "Unknown"


def changed_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    return "; ".join(f"{key.replace('_', ' ')} {_shown(before.get(key))} → {_shown(after[key])}" for key in after)


def _shown(value: Any) -> str:
    if value in (None, "", {}, []):
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items())
    return str(value)


def difference_lines(change: Change) -> list[tuple[str, str, str]]:
    """The fields of a change as (name, before, after)."""
    return [(_field_name(part.field), _in_words(part.field, part.before), _in_words(part.field, part.after)) for part in change.differences]


def _field_name(field: str) -> str:
    return field.removesuffix("_centi").removesuffix("_mib").replace("_", " ")


def _in_words(field: str, value: Any) -> str:
    """As the file says it: the database keeps hundredths and mebibytes."""
    if isinstance(value, int) and field.endswith("_centi"):
        return f"{value / 100:g}"
    return memory(value) if isinstance(value, int) and field.endswith("_mib") else _shown(value)
