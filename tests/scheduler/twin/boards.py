"""What a GPU can be split into, as a plain table: name of the profile -> (compute slices, memory slices, starts, most).

Kept apart from the engine's catalogue on purpose: a slip in one is met by the other.
"""

import re
from itertools import pairwise

_GB_OF_SIZES = {  # memory in the type's name -> GB in the names of 1g, 2g (and the double-memory 1g), 3g/4g, 7g
    40: (5, 10, 20, 40),
    80: (10, 20, 40, 80),
    94: (12, 24, 47, 94),
    96: (12, 24, 48, 96),
    141: (18, 35, 71, 141),
    180: (23, 45, 90, 180),
    186: (23, 47, 93, 186),
}


def profiles_of(gpu_type: str) -> dict[str, tuple[int, int, tuple[int, ...], int]]:
    """The profiles of a type; none where it can't be split (or the twin does not know it)."""
    if "A30-" in gpu_type + "-":
        return {"1g.6gb": (1, 1, (0, 1, 2, 3), 4), "2g.12gb": (2, 2, (0, 2), 2), "4g.24gb": (4, 4, (0,), 1)}
    size = re.search(r"(\d+)GB", gpu_type)
    if not size or int(size.group(1)) not in _GB_OF_SIZES or not re.match(r"(A100|H100|H200|B200|GB200|GH200)", gpu_type):
        return {}
    one, two, three, seven = _GB_OF_SIZES[int(size.group(1))]
    return {
        f"1g.{one}gb": (1, 1, tuple(range(7)), 7),
        f"1g.{one}gb+me": (1, 1, tuple(range(7)), 1),
        f"1g.{two}gb": (1, 2, (0, 2, 4, 6), 4),
        f"2g.{two}gb": (2, 2, (0, 2, 4), 3),
        f"3g.{three}gb": (3, 4, (0, 4), 2),
        f"4g.{three}gb": (4, 4, (0,), 1),
        f"7g.{seven}gb": (7, 8, (0,), 1),
    }


def slices_of(gpu_type: str) -> tuple[int, int]:
    """(compute, memory) slices of the whole board."""
    return (4, 4) if "A30-" in gpu_type + "-" else (7, 8)


def charge_milli(gpu_type: str, profile: str) -> int:
    """What an instance costs: 125 milli for a memory slice of eight, 250 for one of four."""
    return profiles_of(gpu_type)[profile][1] * (1000 // slices_of(gpu_type)[1])


def layout_faults(gpu_type: str, instances: list[tuple[str, int]]) -> list[str]:
    """Why no board of the type can be split like that; instances are (profile, start)."""
    known = profiles_of(gpu_type)
    unknown = [name for name, _ in instances if name not in known]
    if unknown:
        return [f"{gpu_type} has no MIG profile {name}" for name in unknown]
    faults = [f"{name} can't start at slice {start}" for name, start in instances if start not in known[name][2]]
    spans = sorted((start, start + known[name][1], name) for name, start in instances)
    faults += [f"{a[2]} at {a[0]} overlaps {b[2]} at {b[0]}" for a, b in pairwise(spans) if b[0] < a[1]]
    if sum(known[name][0] for name, _ in instances) > slices_of(gpu_type)[0]:
        faults.append("more compute slices than the board has")
    names = [name for name, _ in instances]
    faults += [f"{names.count(name)} x {name}" for name in sorted(set(names)) if names.count(name) > known[name][3]]
    return faults
