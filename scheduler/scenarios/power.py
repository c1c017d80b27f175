"""The power caps of a scenario."""

from collections.abc import Sequence
from typing import Any

from scheduler.engine.model.values import NO_POWER, Node, PowerCap, PowerCaps

from .checkers import TEXT, moment, table_of, whole
from .faults import Bad
from .fields import Codec, Field, listed, optional, record

WATTS = whole(1, 100_000)  # of a GPU
MOST_WATTS = 10**10


def power_codec(now: int, nodes: Sequence[Node] | None) -> Codec:
    """`nodes` is None where some are faulty: then nobody knows which types are capped."""
    time = moment(now)
    cap = {
        "pool": Field("pool", optional(TEXT), None),
        "watts": Field("watts", whole(0, MOST_WATTS)),
        "start": Field("start", time, now),
        "end": Field("end", optional(time), None),
    }

    def make_cap(**values: Any) -> PowerCap:
        if values["end"] is not None and values["end"] <= values["start"]:
            raise Bad("must lie after start", "end")
        return PowerCap(**values)

    def make(gpu_watts: tuple[tuple[str, int], ...], caps: Sequence[PowerCap]) -> PowerCaps:
        pools, rated = {one.pool for one in caps}, dict(gpu_watts)
        capped = {node.gpu_type for node in nodes or () if pools & {None, dict(node.labels).get("pool", "")}}
        if unrated := sorted(capped - rated.keys()):
            raise Bad(f"must state the rated watts of {', '.join(unrated)}, of which capped pools have nodes", "gpu_watts")
        if not rated and not caps:
            return NO_POWER
        return PowerCaps(gpu_watts, tuple(sorted(caps, key=lambda one: (one.start, one.pool or "", one.watts, one.end or 0))))

    fields = {"gpu_watts": Field("gpu_watts", table_of(WATTS), ()), "caps": Field("caps", listed(record(cap, make_cap)), ())}
    return record(fields, make)
