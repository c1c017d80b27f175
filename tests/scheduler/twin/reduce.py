"""Making a scenario that shows a fault as small as it goes: take parts away as long as the fault stays."""

import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

Json = dict[str, Any]


def reduced(scenario: Json, shows: Callable[[Json], bool]) -> Json:
    """A scenario from which nothing more can be taken away. `shows` must refuse (return False for) what is no valid scenario."""
    current = copy.deepcopy(scenario)
    again = True
    while again:
        again = False
        for step in list(_steps(current)):
            smaller = step(copy.deepcopy(current))
            if smaller is not None and smaller != current and shows(smaller):
                current, again = smaller, True
    return current


def _steps(scenario: Json) -> Iterator[Callable[[Json], Json | None]]:
    """Everything that makes it smaller, the large steps first. From the end of each list, so that a step leaves the others valid."""
    for name in ("jobs", "nodes", "reservations", "demand", "quotas"):
        for place in reversed(range(len(scenario.get(name) or []))):
            yield partial(_without, (name,), place)
    for quota in scenario["quotas"]:
        if quota.get("parent"):
            yield partial(_folded, quota["name"], quota["parent"])
    for path, keys in _objects(scenario):
        for key in keys:
            yield partial(_without, path, key)
    for place, node in enumerate(scenario["nodes"]):
        for gpus in range(1, node["gpus"]):
            yield partial(_narrowed, place, gpus)


def _without(path: tuple[str | int, ...], key: str | int, document: Json) -> Json | None:
    try:
        del _at(document, path)[key]
    except (KeyError, IndexError, TypeError):
        return None  # an earlier step took it away with something larger
    return document


def _narrowed(place: int, gpus: int, document: Json) -> Json | None:
    if place >= len(document["nodes"]) or document["nodes"][place]["gpus"] <= gpus:
        return None
    document["nodes"][place]["gpus"] = gpus
    return document


def _folded(leaf: str, parent: str, less: Json) -> Json | None:
    """The tree with a leaf folded into its parent."""
    less["quotas"] = [quota for quota in less["quotas"] if quota["name"] != leaf]
    for job in less["jobs"]:
        if job["quota"] == leaf:
            job["quota"] = parent
    for quota in less["quotas"]:
        if quota.get("parent") == leaf:
            quota["parent"] = parent
    return less


_KEPT = {
    "format",
    "now",
    "nodes",
    "quotas",
    "jobs",
    "name",
    "gpu_type",
    "gpus",
    "quota",
    "roles",
    "state",
    "workers",
    "role",
    "index",
    "node",
    "path",
}


def _objects(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], list[str]]]:
    """Every object in the document with the keys that it could do without."""
    if isinstance(value, dict):
        yield path, [key for key in value if key not in _KEPT]
        for key, item in value.items():
            yield from _objects(item, (*path, key))
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _objects(item, (*path, place))


def _at(document: Any, path: tuple[str | int, ...]) -> Any:
    for step in path:
        document = document[step]
    return document
