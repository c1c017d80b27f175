"""Lists of processors as the kernel writes them: `0-3,8`."""

from collections.abc import Iterable


def read_list(text: str) -> frozenset[int]:
    """The processors of a list. `ValueError` for what is none."""
    found: set[int] = set()
    for span in filter(None, text.strip().split(",")):
        low, _, high = span.partition("-")
        found.update(range(int(low), int(high or low) + 1))
    return frozenset(found)


def list_of(processors: Iterable[int]) -> str:
    spans: list[list[int]] = []
    for one in sorted(processors):
        if spans and spans[-1][1] == one - 1:
            spans[-1][1] = one
        else:
            spans.append([one, one])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in spans)
