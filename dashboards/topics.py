"""The topics that the dashboards follow: what is sent of a changed row, and what a page starts from."""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboards.fleetmap import gpu_columns, map_snapshot, telemetry_frames
from dashboards.presenters import overview_own, overview_shared
from dashboards.selectors import owners_named, rates_visible
from gpufleet.core.live.topics import topic_register
from gpufleet.core.times import now
from quotas.permissions import Access, Can

# Readings come every two seconds; sending them more often would say nothing new.
READINGS_WINDOW_SECONDS = 2.0


def overview_load(ids: Sequence[int]) -> dict[str, Any]:
    return overview_shared(now=now())


def overview_snapshot(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    moment = now()
    return {
        "rows": overview_shared(now=moment),
        "own": overview_own(owners=owners_named(access), rates=rates_visible(access, now=moment)),
    }


def nodes_load(ids: Sequence[int]) -> dict[str, list[Any]]:
    """A node's health is its GPUs' health too, so its GPUs are what is sent."""
    return gpu_columns(node_ids=ids)


def gpus_load(ids: Sequence[int]) -> dict[str, list[Any]]:
    return gpu_columns(gpu_ids=ids)


def fleet_snapshot(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    return map_snapshot(access, now=now())


def telemetry_load(ids: Sequence[int]) -> list[dict[str, Any]]:
    return telemetry_frames(clusters=ids)


def telemetry_snapshot(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    return {"rows": telemetry_frames()}


def nothing_named(ids: Sequence[int]) -> list[Any]:
    """The page asks for itself."""
    return []


def nothing_more(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    return {"rows": []}


def topics_register() -> None:
    topic_register("sources", Can.SEE, nothing_named, nothing_more)
    topic_register("fragmentation", Can.SEE, nothing_named, nothing_more)
    topic_register("gap", Can.SEE, nothing_named, nothing_more)
    follows = ("gpus", "nodes", "telemetry", "jobs")
    topic_register("overview", Can.SEE, overview_load, overview_snapshot, follows=follows)
    topic_register("gpus", Can.SEE, gpus_load, fleet_snapshot)
    topic_register("nodes", Can.SEE, nodes_load, fleet_snapshot)
    topic_register("telemetry", Can.SEE, telemetry_load, telemetry_snapshot, window_seconds=READINGS_WINDOW_SECONDS)
