"""What Slurm calls the GPUs of a node and parts of them (`gpu:h100:6,gpu:1g.10gb:7,mps:h100:600`), and what of it a worker asks for.

Slurm numbers all `gpu` of a node through, type after type; which one a job has it chooses itself. MIG instances are types of their own, as
`AutoDetect=nvml` names them (`nvidia_h100_80gb_hbm3_1g.10gb`) or as the site does (`1g.10gb`). Shares are `mps`, in hundredths of a GPU, or `shard`.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from scheduler.backends.base import BackendRefused, WorkerSeat

NAMED = re.compile(r"(?:^|,)(?P<name>gpu|mps|shard)(?::(?P<type>[^:,()]+))?:(?P<count>\d+)(?=[,(]|$)")
PROFILE = re.compile(r"(?:^|_)(?P<profile>\d+g\.\d+gb(?:\+me)?)$")
WHOLE_MPS = 100


def profile_of(kind: str) -> str:
    """The MIG profile that a type of GRES stands for; empty: whole GPUs."""
    found = PROFILE.search(kind)
    return found["profile"] if found is not None else ""


@dataclass(frozen=True, slots=True)
class Gres:
    """GPUs of a node by type, in the order of Slurm's numbers, and how many hundredths and shards of them Slurm gives out."""

    types: tuple[tuple[str, int], ...] = ()
    mps: int = 0
    shards: int = 0

    @classmethod
    def read(cls, text: str) -> "Gres":
        types: dict[str, int] = {}
        shares: Counter[str] = Counter()
        for match in NAMED.finditer(text):
            kind, count = match["type"] or "", int(match["count"])
            if match["name"] != "gpu":
                shares[match["name"]] += 0 if profile_of(kind) else count
            elif count:
                types[kind] = types.get(kind, 0) + count
        return cls(tuple(types.items()), shares["mps"], shares["shard"])

    @property
    def whole(self) -> tuple[str, int]:
        """The first type of whole GPUs, and how many of it there are."""
        return next(((kind, count) for kind, count in self.types if not profile_of(kind)), ("", 0))

    @property
    def profiles(self) -> dict[str, int]:
        """How many MIG instances of each profile there are."""
        found: dict[str, int] = {}
        for kind, count in self.types:
            if profile := profile_of(kind):
                found[profile] = found.get(profile, 0) + count
        return found

    def named(self, indices: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """What Slurm's numbers are: each the profile, empty of a whole GPU, and which of the node's own of that kind, from 0."""
        each: list[tuple[str, int]] = []
        seen: Counter[str] = Counter()
        for kind, count in self.types:
            profile = profile_of(kind)
            each += [(profile, seen[profile] + number) for number in range(count)]
            seen[profile] += count
        return tuple(each[index] for index in indices if index < len(each))

    def asked(self, seats: Sequence[WorkerSeat]) -> str:
        """What a job of these seats, all on such a node, asks of it (`--gres`); empty: nothing. Raises `BackendRefused` for what it never gives."""
        shares = [seat for seat in seats if is_share(seat)]
        if shares:
            return self._share(shares)
        wanted: Counter[str] = Counter()
        for seat in seats:
            wanted.update(seat.mig or [""] * len(seat.gpus))
        kinds = {profile_of(kind): kind for kind, _ in reversed(self.types)}
        if missing := sorted(profile for profile in wanted if profile and profile not in kinds):
            raise BackendRefused(f"Slurm has no GRES for MIG instances of {', '.join(missing)} on {seats[0].node}.")
        if not self.profiles:
            kinds = {}  # of a node without MIG instances any type will do, as it always has
        return ",".join(f"gpu:{kinds[profile]}:{count}" if kinds.get(profile) else f"gpu:{count}" for profile, count in sorted(wanted.items()))

    def _share(self, seats: Sequence[WorkerSeat]) -> str:
        (seat,) = seats  # each is a job of its own
        if len(seat.gpus) > 1:
            raise BackendRefused("Slurm gives a worker a share of one GPU, not of several.")
        if seat.sharing == "mps":
            if not self.mps:
                raise BackendRefused(f"Slurm has no gres/mps on {seat.node}.")
            return f"mps:{-(-seat.gpu_milli * WHOLE_MPS // 1000)}"
        each = self.shards // max(1, self.whole[1])
        if not each:
            raise BackendRefused(f"Slurm has no gres/shard on {seat.node}.")
        return f"shard:{-(-seat.gpu_milli * each // 1000)}"


def is_share(seat: WorkerSeat) -> bool:
    return bool(seat.gpus) and not seat.mig and seat.gpu_milli < 1000


def promised(asked: str) -> tuple[int, str]:
    """How many whole GPUs a node is to have given, and which parts of GPUs, in the words that it reads before the start (`on_node`)."""
    whole, words = 0, []
    for match in NAMED.finditer(asked):
        profile, count = profile_of(match["type"] or ""), int(match["count"])
        if profile:
            words.append(f"mig={profile}*{count}")
        elif match["name"] == "gpu":
            whole += count
        else:
            words.append(f"{match['name']}={count}")
    return whole, ":".join(sorted(words))
