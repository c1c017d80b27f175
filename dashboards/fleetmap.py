"""Every GPU of the fleet as columns: what the map draws, what a change of it sends, and what only this viewer may be told."""

import binascii
import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from dashboards.selectors import (
    FRESH,
    NOBODY,
    SEVERITY,
    Frame,
    Holds,
    frames_newest,
    gpus_facts,
    gpus_of_nodes,
    holds_open,
    level_names,
    owners_named,
    places_all,
)
from gpufleet.core.times import millis
from quotas.permissions import Access
from scheduler.models import IN_SERVICE


def telemetry_frames(clusters: Sequence[int] | None = None) -> list[dict[str, Any]]:
    """The newest readings, one byte a GPU. `order` changes when the GPUs behind the bytes do: then a page takes a snapshot."""
    return [_sent(frame) for frame in frames_newest(clusters)]


def _sent(frame: Frame) -> dict[str, Any]:
    return {
        "cluster": frame.cluster,
        "at": millis(frame.at),
        "order": zlib.crc32(frame.ids.tobytes()),
        "sm": binascii.b2a_base64(frame.sm.tobytes(), newline=False).decode(),
    }


def gpu_columns(*, gpu_ids: Sequence[int] | None = None, node_ids: Sequence[int] | None = None) -> dict[str, list[Any]]:
    """What changes about a GPU, by column. Owners are numbers: who may know a name has it from the snapshot."""
    wanted = list(gpu_ids or ()) + (gpus_of_nodes(node_ids) if node_ids else [])
    facts = gpus_facts(wanted)
    holds = holds_open(wanted)
    present = {row[0] for row in facts}
    return {"id": [row[0] for row in facts], **_state_columns(facts, holds), "gone": [pk for pk in wanted if pk not in present]}


def _state_columns(facts: Sequence[tuple[int, str, int, int, str, str, str, str]], holds: Holds) -> dict[str, list[Any]]:
    rank: dict[str, int] = {health: number for number, health in enumerate(SEVERITY)}
    return {
        "health": [max(rank[row[6]], rank[row[7]]) for row in facts],
        "mode": [row[5] for row in facts],
        "milli": [holds.milli.get(row[0], 0) for row in facts],
        "owner": [holds.owner.get(row[0], NOBODY) for row in facts],
        "since": [holds.since.get(row[0], 0) // 1000 for row in facts],
    }


def map_snapshot(access: Access, *, now: datetime) -> dict[str, Any]:
    """The whole map for one viewer: GPUs in the order of the topology, places, readings, and the owners that may be named."""
    places = places_all()
    order = {place.pk: number for number, place in enumerate(places)}
    facts = sorted((row for row in gpus_facts() if row[2] in order), key=lambda row: (order[row[2]], row[3]))
    types = sorted({row[4] for row in facts})
    number_of = {name: number for number, name in enumerate(types)}
    owners = owners_named(access)
    frames = frames_newest()
    return {
        "at": millis(now),
        "fresh_seconds": int(FRESH.total_seconds()),
        "healths": [str(health) for health in SEVERITY],
        "in_service": [number for number, health in enumerate(SEVERITY) if health in IN_SERVICE],
        "types": types,
        "levels": level_names(),
        "nodes": {
            "id": [place.public_id for place in places],
            "name": [place.name for place in places],
            "cluster": [place.cluster for place in places],
            "path": ["/".join(place.domains) for place in places],
            "pool": [place.pool for place in places],
            "spare": [number for number, place in enumerate(places) if place.spare],
        },
        "gpus": {
            "id": [row[0] for row in facts],
            "public_id": [row[1] for row in facts],
            "node": [order[row[2]] for row in facts],
            "index": [row[3] for row in facts],
            "type": [number_of[row[4]] for row in facts],
            **_state_columns(facts, holds_open()),
        },
        "readings": [{**_sent(frame), "ids": frame.ids.tolist()} for frame in frames],
        "weak_clusters": sorted(frame.name for frame in frames if frame.is_weak),
        "owners": {pk: [owner.team, owner.name] for pk, owner in owners.items() if owner},
    }
