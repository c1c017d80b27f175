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
    spare: bool = False
    domains: Mapping[str, str] = field(default_factory=dict)  # where it stands, by level


UP, BROKEN, AWAY = "up", "broken", "away"


@dataclass(frozen=True, slots=True)
class Role:
    """So many workers with so many GPUs each of one of the types; empty: any. `milli`: of a part of a GPU. All in one domain of `level`, if any."""

    workers: int
    gpus: int
    types: frozenset[str] = frozenset()
    milli: int = 0
    level: str = ""

    @property
    def milli_in_all(self) -> int:
        return self.workers * (self.milli or 1000 * self.gpus)


@dataclass(frozen=True, slots=True)
class Ask:
    """What a waiting job needs: all of its roles together, in one domain of `level`; empty: anywhere.

    `behind`: a reservation's window that starts before the job could end keeps it waiting, so what it would take is kept for that.
    """

    roles: tuple[Role, ...]
    level: str = ""
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
    usual = [one for one in free if not one.device.spare]
    for kept in reserved:
        left = kept.milli
        for one in usual:
            if left and one.device.gpu_type == kept.gpu_type:
                left -= one.take(Cause.RESERVED, left, kept.quota)
    short = _serve(usual, asks)
    # What would serve the rest of the queue if it lay together is fragmented; nobody waits for what is left after that.
    rest, none_left = usual, set[frozenset[str]]()
    for types, milli in short:
        if types in none_left:
            continue
        rest, left = [one for one in rest if one.left], milli
        for one in rest:
            if left and (not types or one.device.gpu_type in types):
                left -= one.take(Cause.FRAGMENTED, left)
        if left:
            none_left.add(types)
    for one in free:
        one.take(Cause.UNWANTED, one.left)


def _serve(free: list[_Free], asks: Iterable[Ask]) -> list[tuple[frozenset[str], int]]:
    """Let each waiting job have what hardware alone would let it have, in their order. Returns what found no room."""
    rooms = _Rooms(free)
    short: list[tuple[frozenset[str], int]] = []
    hopeless: set[Ask] = set()
    for ask in asks:
        if ask in hopeless or not rooms.seat(ask):
            hopeless.add(ask)
            short += [(role.types, role.milli_in_all) for role in ask.roles]
    return short


class _Rooms:
    """What is free by node and by domain. How many GPUs of a node a worker could have is counted once for each kind of worker."""

    def __init__(self, free: Iterable[_Free]) -> None:
        self._nodes: dict[int, list[_Free]] = defaultdict(list)
        for one in free:
            self._nodes[one.device.node].append(one)
        self._counts: dict[tuple[int, frozenset[str]], dict[int, int]] = {}
        self._levels: dict[str, dict[str, list[int]]] = {}

    def seat(self, ask: Ask) -> bool:
        """Let it have all that it asks for, or nothing."""
        roles = sorted(ask.roles, key=lambda role: -role.gpus)
        for nodes in self._domains(ask.level, roles, None):
            found: list[tuple[_Free, int]] = []
            fits = all(self._role(role, nodes, found) for role in roles)
            for one, milli in found:
                one.left += milli
                if fits:
                    one.take(Cause.RESERVED if ask.behind else Cause.WANTED, milli)
            if fits:
                return True
            for node in {one.device.node for one, _ in found}:
                self._count(node)
        return False

    def _role(self, role: Role, nodes: Sequence[int] | None, found: list[tuple[_Free, int]]) -> bool:
        return any(self._workers(role, inner, found) for inner in self._domains(role.level, [role], nodes))

    def _workers(self, role: Role, nodes: Sequence[int] | None, found: list[tuple[_Free, int]]) -> bool:
        """Seats for all workers of a role on these nodes, or none. The fullest first, as the scheduler packs."""
        each, size = role.milli or 1000, 1 if role.milli else role.gpus
        if self._holds(role, nodes) < role.workers:
            return False
        counts, wanted = self._of(role), role.workers
        for count, node in sorted((counts[node], node) for node in self._among(counts, nodes) if counts[node] >= size):
            room = sorted((one for one in self._nodes[node] if _may_have(one, each, role.types)), key=lambda one: (one.left, one.device.key))
            seats = [(one, each) for one in room[: size * min(wanted, count // size)]]
            for one, milli in seats:
                one.left -= milli
            self._count(node)
            found += seats
            wanted -= len(seats) // size
            if not wanted:
                break
        return True

    def _domains(self, level: str, roles: Sequence[Role], nodes: Sequence[int] | None) -> list[Sequence[int] | None]:
        """Nodes of each domain of a level that may hold these roles, the fullest domain first; None: all nodes there are."""
        if not level:
            return [nodes]
        within = None if nodes is None else set(nodes)
        found = []
        for name, its in self._of_level(level).items():
            inner = its if within is None else [node for node in its if node in within]
            if all(self._holds(role, inner) >= role.workers for role in roles):
                counts = self._of(roles[0])
                found.append((sum(counts.get(node, 0) for node in inner), name, inner))
        return [inner for _, _, inner in sorted(found)]

    def _holds(self, role: Role, nodes: Sequence[int] | None) -> int:
        """How many workers of a role these nodes have room for."""
        counts, size = self._of(role), 1 if role.milli else role.gpus
        return sum(counts[node] // size for node in self._among(counts, nodes))

    @staticmethod
    def _among(counts: Mapping[int, int], nodes: Sequence[int] | None) -> Iterable[int]:
        return counts if nodes is None else [node for node in nodes if node in counts]

    def _of(self, role: Role) -> dict[int, int]:
        """By node the GPUs that a worker of this role could have."""
        key = role.milli or 1000, role.types
        if key not in self._counts:
            counts = {node: sum(_may_have(one, *key) for one in mine) for node, mine in self._nodes.items()}
            self._counts[key] = {node: count for node, count in counts.items() if count}
        return self._counts[key]

    def _count(self, node: int) -> None:
        for key, counts in self._counts.items():
            if count := sum(_may_have(one, *key) for one in self._nodes[node]):
                counts[node] = count
            else:
                counts.pop(node, None)

    def _of_level(self, level: str) -> dict[str, list[int]]:
        if level not in self._levels:
            domains: dict[str, list[int]] = defaultdict(list)
            for node, mine in self._nodes.items():
                if (name := mine[0].device.domains.get(level)) is not None:
                    domains[name].append(node)
            self._levels[level] = domains
        return self._levels[level]


def _may_have(one: _Free, milli: int, types: frozenset[str]) -> bool:
    return one.left >= milli and (not types or one.device.gpu_type in types)
