"""What links carry, against what they could: network ports of a node, and the PCIe link of a GPU. Figures in, figures out."""

from collections.abc import Mapping

from scheduler.hardware.pcie import LANE_BYTES

# The headers of packets take part of a link: at so much of it one way, nothing more goes through.
SATURATED = 0.8
GIGABIT_BYTES = 125_000_000
# A second: whoever sends fewer TCP segments says nothing of the network by those that it repeats.
LEAST_SEGMENTS = 100

Speeds = Mapping[str, float]  # bytes a second by network port
Slow = dict[int, dict[str, float]]  # Gb/s by node and network port


def is_saturated(*, generation: float | None, width: float | None, tx: float | None, rx: float | None) -> int | None:
    """Whether a PCIe link carries all that it can, 1 or 0, by the bytes a second of both ways; None where it is not known."""
    lane = LANE_BYTES.get(int(generation or 0))
    if lane is None or not width or tx is None or rx is None:
        return None
    return int(max(tx, rx) >= SATURATED * lane * width)


def speeds_lost(speeds: Mapping[int, Speeds], nominal: Mapping[int, Mapping[str, int]]) -> tuple[dict[int, int], Slow]:
    """Percent of its speed that the slowest port of each node has lost, and those ports. A node none of whose ports was read is left out."""
    lost: dict[int, int] = {}
    slow: Slow = {}
    for node, read in speeds.items():
        for name, gbps in nominal.get(node, {}).items():
            if name not in read:
                continue
            percent = max(0, int(100 - 100 * read[name] / (gbps * GIGABIT_BYTES)))
            lost[node] = max(percent, lost.get(node, 0))
            if percent:
                slow.setdefault(node, {})[name] = round(read[name] / GIGABIT_BYTES, 1)
    return lost, slow


def per_ten_thousand(part: float) -> int:
    """The part of segments that were sent again, as health rules have it."""
    return round(10_000 * min(1.0, part))
