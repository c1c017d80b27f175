"""What a GPU can be split into: the vendor's MIG profiles per board, and which of them fit side by side.

A board has memory slices in a row (8, or 4 on the smallest one) and a number of compute slices. An instance takes an
interval of memory slices that begins at one of its profile's starts. A layout is a set of instances that share no
memory slice, need no more compute slices than the board has, stay within each profile's count, and hold at most one
instance with the media engines (`+me`). Nothing else can exist, so nothing else can be entered. What a request
for memory is charged: `part_milli` in values.py.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from .values import Instance, Role


@dataclass(frozen=True, slots=True)
class Profile:
    """One kind of instance on one board. `usable_mib` is what a process can allocate; the name promises more than that."""

    name: str
    compute: int
    memory: int
    starts: tuple[int, ...]  # in the order in which they should be used
    most: int
    nvml_id: int
    usable_mib: int
    media: bool = False
    double_memory: bool = False
    inferred: bool = False  # derived from sister boards, not read off a device
    sms: int | None = None  # multiprocessors; None: not known


@dataclass(frozen=True, slots=True, eq=False)
class Board:
    """A GPU model in one memory size, and what it can be split into. There is one of each."""

    name: str
    models: tuple[str, ...]
    memory_gb: int
    memory_slices: int
    compute_slices: int
    profiles: tuple[Profile, ...]
    usable_mib: int
    sms: int | None = None  # of the whole GPU, as an SXM module

    def profile(self, name: str) -> Profile | None:
        return next((profile for profile in self.profiles if profile.name == name), None)

    def known(self, name: str) -> Profile:
        profile = self.profile(name)
        assert profile is not None, "an instance that the board does not know was refused at the door"
        return profile

    def charge_milli(self, profile: Profile) -> int:
        """What an instance is charged in milli-GPU: its memory slices."""
        return profile.memory * (1000 // self.memory_slices)


Layout = tuple[Instance, ...]

# Small instances fill the far end first: the slices 0 to 3 are the only place for a 4g.
_STARTS = {1: (6, 4, 5, 2, 3, 0, 1), 2: (4, 2, 0), 3: (4, 0), 4: (0,), 7: (0,)}
_DOUBLE_STARTS = (6, 4, 2, 0)


# Multiprocessors of the whole GPU, and of 1g, 1g with double memory, 2g, 3g, 4g and 7g. A PCIe card of the same name may have fewer.
_AMPERE = (108, 14, 14, 28, 42, 56, 98)
_HOPPER = (132, 16, 26, 32, 60, 64, 132)
_UNKNOWN = (None,) * 7


def _seven_slice_board(
    name: str,
    models: tuple[str, ...],
    memory_gb: int,
    named: tuple[int, int, int, int],
    usable_gib: tuple[float, ...] | None = None,
    sms: tuple[int | None, ...] = _UNKNOWN,
) -> Board:
    """A board of 7 compute and 8 memory slices. `named` is the GB in the names of 1g, 2g, 3g and 7g; `usable_gib` was measured. Without a measurement
    the usable memory is taken low (0.88 of the name, below every measured board): nothing is promised in vain."""
    inferred = usable_gib is None
    one, two, three, seven = (int(gib * 1024) for gib in (usable_gib or tuple(gb * 0.88 for gb in named)))
    g1, g2, g3, g7 = named
    whole, sm1, sm1_double, sm2, sm3, sm4, sm7 = sms
    profiles = (
        Profile(f"1g.{g1}gb", 1, 1, _STARTS[1], 7, 19, one, inferred=inferred, sms=sm1),
        Profile(f"1g.{g1}gb+me", 1, 1, _STARTS[1], 1, 20, one, media=True, inferred=inferred, sms=sm1),
        Profile(f"1g.{g2}gb", 1, 2, _DOUBLE_STARTS, 4, 15, two, double_memory=True, inferred=inferred, sms=sm1_double),
        Profile(f"2g.{g2}gb", 2, 2, _STARTS[2], 3, 14, two, inferred=inferred, sms=sm2),
        Profile(f"3g.{g3}gb", 3, 4, _STARTS[3], 2, 9, three, inferred=inferred, sms=sm3),
        Profile(f"4g.{g3}gb", 4, 4, _STARTS[4], 1, 5, three, inferred=inferred, sms=sm4),
        Profile(f"7g.{g7}gb", 7, 8, _STARTS[7], 1, 0, seven, inferred=inferred, sms=sm7),
    )
    return Board(name, models, memory_gb, 8, 7, profiles, seven, whole)


_FOUR_SLICES = (
    Profile("1g.6gb", 1, 1, (3, 2, 1, 0), 4, 14, 5960, inferred=True),
    Profile("2g.12gb", 2, 2, (2, 0), 2, 5, 11920, inferred=True),
    Profile("4g.24gb", 4, 4, (0,), 1, 0, 23840, inferred=True),
)
_BOARDS = (
    _seven_slice_board("A100-40", ("A100",), 40, (5, 10, 20, 40), (4.75, 9.62, 19.5, 39.25), _AMPERE),
    _seven_slice_board("A100-80", ("A100",), 80, (10, 20, 40, 80), (9.75, 19.62, 39.5, 79.25), _AMPERE),
    _seven_slice_board("H100-80", ("H100",), 80, (10, 20, 40, 80), (9.75, 19.62, 39.5, 79.25), _HOPPER),
    _seven_slice_board("H100-94", ("H100",), 94, (12, 24, 47, 94)),
    _seven_slice_board("H100-96", ("H100", "GH200"), 96, (12, 24, 48, 96)),
    _seven_slice_board("H200-141", ("H200",), 141, (18, 35, 71, 141), (16.0, 32.5, 65.0, 140.0), _HOPPER),
    _seven_slice_board("B200-180", ("B200",), 180, (23, 45, 90, 180)),
    _seven_slice_board("GB200-186", ("GB200",), 186, (23, 47, 93, 186)),
    _seven_slice_board("B300-269", ("B300",), 269, (34, 67, 135, 269)),
    _seven_slice_board("GB300-278", ("GB300",), 278, (35, 70, 139, 278)),
    Board("A30-24", ("A30",), 24, 4, 4, _FOUR_SLICES, 23840),
)
BOARDS: dict[str, Board] = {board.name: board for board in _BOARDS}


@cache
def board_of(gpu_type: str) -> Board | None:
    """The board behind a type name such as `H100-SXM-80GB` or `NVIDIA H200`; None where the type can't be split. The memory in the name decides
    between boards of one model; a model known in one size needs none."""
    words = re.split(r"[^A-Z0-9]+", gpu_type.upper())
    candidates = [board for board in _BOARDS if any(model in words for model in board.models)]
    sizes = [int(match) for match in re.findall(r"(\d+) ?GB", gpu_type.upper())]
    if exact := [board for board in candidates if board.memory_gb in sizes]:
        return exact[0]
    # A vendor rounds the size of one board in several ways (GB200: 186, 189 or 192): the model decides where it has one board.
    return candidates[0] if len(candidates) == 1 else None


def layout_faults(board: Board, instances: Iterable[Instance]) -> list[str]:
    """Everything that is wrong with a layout, one sentence per fault; empty where the board can hold it."""
    faults: list[str] = []
    taken: dict[int, str] = {}
    counts: dict[str, int] = {}
    compute = media = 0
    for instance in sorted(instances):
        if (profile := board.profile(instance.profile)) is None:
            allowed = ", ".join(p.name for p in board.profiles)
            faults.append(f"{board.name} has no profile {instance.profile}; it has {allowed}")
            continue
        counts[profile.name] = counts.get(profile.name, 0) + 1
        compute += profile.compute
        media += profile.media
        if instance.start not in profile.starts:
            allowed = ", ".join(str(start) for start in sorted(profile.starts))
            faults.append(f"{profile.name} can't start at slice {instance.start} on {board.name}; it can at {allowed}")
            continue
        for position in range(instance.start, instance.start + profile.memory):
            if position in taken:
                faults.append(f"{profile.name} at slice {instance.start} overlaps {taken[position]} on memory slice {position}")
                break
            taken[position] = f"{profile.name} at slice {instance.start}"
    for name, count in counts.items():
        if (profile := board.profile(name)) is not None and count > profile.most:
            faults.append(f"{count} x {name}; {board.name} holds at most {profile.most}")
    if compute > board.compute_slices:
        faults.append(f"{compute} compute slices; {board.name} has {board.compute_slices}")
    if media > 1:
        faults.append(f"{media} instances with media engines (+me); a GPU holds at most one")
    return faults


def valid_layout(board: Board, instances: Iterable[Instance]) -> bool:
    return not layout_faults(board, instances)


@cache
def room_for(board: Board, instances: Layout, name: str) -> tuple[int, ...]:
    """Starts at which one more instance of a profile fits beside the given ones, the preferred one first."""
    return tuple([start for start in board.known(name).starts if valid_layout(board, (*instances, Instance(start, name)))])


def fitting_profiles(role: Role, board: Board) -> tuple[tuple[str, int], ...]:
    """(profile, charge) of the instances that serve a role on a board, the smallest first."""
    return _serving(role.mig, role.memory_mib, board)


@cache
def _serving(mig: str | None, memory_mib: int | None, board: Board) -> tuple[tuple[str, int], ...]:
    found = []
    for profile in board.profiles:
        named = mig is not None and profile.name == mig
        roomy = memory_mib is not None and profile.usable_mib >= memory_mib and not profile.media
        if named or roomy:
            found.append((board.charge_milli(profile), profile.compute, profile.name))
    return tuple([(name, charge) for charge, _, name in sorted(found)])


@cache
def most_beside(board: Board, taken: Layout, profiles: tuple[tuple[str, int], ...]) -> int:
    """A bound: how many instances of these profiles there is room for beside those that stay."""
    known, stay = [board.known(name) for name, _ in profiles], [board.known(one.profile) for one in taken]
    memory = board.memory_slices - sum([one.memory for one in stay])
    compute = board.compute_slices - sum([one.compute for one in stay])
    starts = sum([len(room_for(board, taken, name)) for name, _ in profiles])
    return min(starts, memory // min(one.memory for one in known), compute // min(one.compute for one in known))
