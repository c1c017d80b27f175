"""Every GPU divided among causes: pure arithmetic over one snapshot, in whole thousandths of a GPU. Nothing is missing and nothing counts twice."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from gpufleet.core.rounding import shares


class Cause(StrEnum):
    """What a part of a GPU is up to, from what the fleet is there for to what nobody wants."""

    COMPUTING = "computing"
    IDLE = "idle"
    UNREAD = "unread"
    STARTING = "starting"
    FAILED = "failed"
    RESERVED = "reserved"
    DRAINED = "drained"
    WANTED = "wanted"
    FRAGMENTED = "fragmented"
    UNWANTED = "unwanted"


class Part(NamedTuple):
    """Whose a piece of the fleet is. Without a job of ours: no class and no quota, but for reserved GPUs, which have their owner's."""

    cause: Cause
    gpu_type: str
    pool: str
    job_class: str
    quota: int | None


class Piece(NamedTuple):
    """What of one GPU is in a part, and which job holds it; none: it is free, or the job is not ours."""

    part: Part
    gpu: int
    job: int | None
    milli: int


@dataclass(frozen=True, slots=True)
class Hold:
    """What one job holds of a GPU; no class and no quota: it is not ours."""

    milli: int
    job_class: str
    quota: int | None
    is_starting: bool
    job: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU. `sm` is its activity in percent, None without a fresh reading. `state`: up, broken (down or in repair), or away (kept from work)."""

    key: int
    node: int
    gpu_type: str
    pool: str
    state: str
    sm: int | None
    holds: Sequence[Hold] = ()
    promised: int = 0


UP, BROKEN, AWAY = "up", "broken", "away"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a waiting job still needs: so many workers with so many GPUs each of one of the types; empty: any. `milli`: of a part of a GPU.

    `behind`: a reservation's window that starts before the job could end keeps it waiting, so what it would take is kept for that.
    """

    workers: int
    gpus: int
    types: frozenset[str] = frozenset()
    milli: int = 0
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """Free GPUs of a type that a reservation keeps for its owner."""

    gpu_type: str
    milli: int
    quota: int | None
    path: str = ""  # of that quota; without one the owner is the class
    job_class: str = ""


@dataclass(slots=True)
class _Free:
    """What is free of one GPU, and what becomes of it."""

    device: Device
    left: int
    taken: dict[tuple[Cause, int | None], int] = field(default_factory=lambda: defaultdict(int))

    def take(self, cause: Cause, milli: int, quota: int | None = None) -> int:
        took = min(milli, self.left)
        if took:
            self.taken[cause, quota] += took
            self.left -= took
        return took


def divided(devices: Sequence[Device], asks: Iterable[Ask] = (), reserved: Iterable[Reserved] = ()) -> dict[Part, int]:
    """The parts of the fleet. Their sum is a thousand for every device."""
    return summed(pieces(devices, asks, reserved))


def summed(found: Iterable[Piece]) -> dict[Part, int]:
    sums: dict[Part, int] = defaultdict(int)
    for piece in found:
        sums[piece.part] += piece.milli
    return dict(sums)


def pieces(devices: Sequence[Device], asks: Iterable[Ask] = (), reserved: Iterable[Reserved] = ()) -> list[Piece]:
    """Every GPU cut up into parts: the rows behind each figure. Their sum is a thousand for every device."""
    found: list[Piece] = []
    free: list[_Free] = []
    for device in sorted(devices, key=lambda one: (one.node, one.key)):
        rest = _held(device, found)
        if not rest:
            continue
        if device.state == UP:
            free.append(_Free(device, rest))
        else:
            cause = Cause.FAILED if device.state == BROKEN else Cause.DRAINED
            found.append(Piece(Part(cause, device.gpu_type, device.pool, "", None), device.key, None, rest))
    _free(free, asks, reserved)
    for one in free:
        for (cause, quota), milli in one.taken.items():
            found.append(Piece(Part(cause, one.device.gpu_type, one.device.pool, "", quota), one.device.key, None, milli))
    assert sum(piece.milli for piece in found) == 1000 * len(devices), "the parts of the gap are the fleet"
    return found


def _held(device: Device, found: list[Piece]) -> int:
    """What holds make of a GPU; returns what is left of it."""

    def add(cause: Cause, hold: Hold, milli: int) -> None:
        if milli:
            found.append(Piece(Part(cause, device.gpu_type, device.pool, hold.job_class, hold.quota), device.key, hold.job, milli))

    rest, running = 1000, []
    for hold in device.holds:
        milli = min(hold.milli, rest)
        rest -= milli
        if device.state == BROKEN:
            add(Cause.FAILED, hold, milli)
        elif hold.is_starting:
            add(Cause.STARTING, hold, milli)
        elif device.sm is None:
            add(Cause.UNREAD, hold, milli)
        else:
            running.append((hold, milli))
    if running and device.sm is not None:
        held = sum(milli for _, milli in running)
        computing = shares(min(held, 10 * device.sm), [milli for _, milli in running])
        for (hold, milli), active in zip(running, computing, strict=True):
            add(Cause.COMPUTING, hold, active)
            add(Cause.IDLE, hold, milli - active)
    return rest


def _free(free: list[_Free], asks: Iterable[Ask], reserved: Iterable[Reserved]) -> None:
    for one in free:
        # A job has been promised it: it is about to be held.
        one.take(Cause.WANTED, one.device.promised)
    for kept in reserved:
        left = kept.milli
        for one in free:
            if left and one.device.gpu_type == kept.gpu_type:
                left -= one.take(Cause.RESERVED, left, kept.quota)
    short = _serve(free, asks)
    # What would serve the rest of the queue if it lay together is fragmented; nobody waits for what is left after that.
    for types, milli in short:
        left = milli
        for one in free:
            if left and (not types or one.device.gpu_type in types):
                left -= one.take(Cause.FRAGMENTED, left)
    for one in free:
        one.take(Cause.UNWANTED, one.left)


def _serve(free: list[_Free], asks: Iterable[Ask]) -> list[tuple[frozenset[str], int]]:
    """Let each waiting job have what hardware alone would let it have, in their order. Returns what found no room."""
    nodes: dict[int, list[_Free]] = defaultdict(list)
    for one in free:
        nodes[one.device.node].append(one)
    short: list[tuple[frozenset[str], int]] = []
    hopeless: set[Ask] = set()
    for ask in asks:
        if ask in hopeless or not _fits(nodes, ask):
            hopeless.add(ask)
            short.append((ask.types, ask.milli or ask.workers * ask.gpus * 1000))
    return short


def _fits(nodes: Mapping[int, list[_Free]], ask: Ask) -> bool:
    each = ask.milli or 1000
    count = 1 if ask.milli else ask.gpus
    chosen: list[list[_Free]] = []
    # The fullest first, as the scheduler packs.
    rooms = {node: [one for one in mine if one.left >= each and (not ask.types or one.device.gpu_type in ask.types)] for node, mine in nodes.items()}
    for node in sorted((node for node, room in rooms.items() if len(room) >= count), key=lambda node: (len(rooms[node]), node)):
        room = sorted(rooms[node], key=lambda one: (one.left, one.device.key))
        while len(room) >= count and len(chosen) < ask.workers:
            chosen.append(room[:count])
            room = room[count:]
        if len(chosen) == ask.workers:
            break
    if len(chosen) < ask.workers:
        return False
    for group in chosen:
        for one in group:
            one.take(Cause.RESERVED if ask.behind else Cause.WANTED, each)
    return True
