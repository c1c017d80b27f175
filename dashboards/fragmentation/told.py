"""How fragmentation is told: names of causes, shapes in words, and sums over piles."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from dashboards.fragmentation.measure import Against, Pile, Shape, Why
from gpufleet.core.templatetags.shell import plural


@dataclass(frozen=True, slots=True)
class Told:
    """How a cause is named, what it means, and its colour in charts."""

    label: str
    meaning: str
    colour: str


CAUSES: Mapping[Why, Told] = {
    Why.PARTIAL: Told("Nodes too full", "Too few GPUs are left on the node for one worker, or for all workers on such nodes", "waste"),
    Why.HOST: Told("Processors or memory", "The GPUs are free, but the node's processors or memory are allocated", "series-8"),
    Why.TOPOLOGY: Told("Topology", "No domain of the required level has room for all workers", "series-6"),
    Why.SPLIT: Told("Shared GPUs", "Free parts of GPUs that are split or shared", "series-9"),
    Why.RESERVATION: Told("Reservations", "Reservations keep the free GPUs for their owners", "series-3"),
    Why.GEOMETRY: Told("MIG geometry", "Free MIG instances that the job does not fit as the GPUs are split now", "series-2"),
}


def shape_told(shape: Shape) -> str:
    """`4 workers × 8 GPUs in one leaf`."""
    each = plural(shape.gpus, "GPU")
    if not shape.gpus:
        each = shape.mig or (f"{shape.share_milli / 10:g}% of a GPU" if shape.share_milli else "part of a GPU")
    text = each if shape.workers == 1 else f"{plural(shape.workers, 'worker')} × {each}"
    return f"{text} in one {shape.level}" if shape.level and shape.level not in ("cluster", "node") and shape.workers > 1 else text


def summed(piles: Iterable[Pile]) -> tuple[int, Against, Against]:
    """What is free, and what it is worth to the queue and to the usual demand, of several piles together."""
    rows: Sequence[Pile] = tuple(piles)
    return sum(pile.free_milli for pile in rows), _added([pile.waiting for pile in rows]), _added([pile.usual for pile in rows])


def _added(parts: Sequence[Against]) -> Against:
    useless = {why: sum(part.useless[why] for part in parts) for why in Why}
    return Against(max((part.jobs for part in parts), default=0), useless, sum(part.short for part in parts))
