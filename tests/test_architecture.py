"""Imports point one way. Every `import` of the product is read, also those inside functions, and one that points up is named with its line."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import PROJECT

PACKAGES = ("gpufleet", "scheduler", "quotas", "dashboards")
# From the ground up: a package may import itself and those before it. The roof (the rest of `gpufleet`) may import everything.
FLOORS = ("gpufleet.core", "quotas", "scheduler", "dashboards")
# Small modules of `gpufleet` that stand beside the ground floor because they import nothing of ours above it.
GROUND = ("gpufleet.environment", "gpufleet.layers", "gpufleet.settings")
# Views, and what else takes requests in, call whom they like.
EDGES = ("views", "urls", "api", "tasks", "consumers", "forms", "apps", "admin", "templatetags", "management")
# What is a function of its arguments, and what of ours each may import beside itself: the engine takes a typed scenario, wherever it is from.
PURE = {"scheduler.engine": (), "scheduler.scenarios": ("scheduler.engine",), "scheduler.simulation": ("scheduler.engine",), "scheduler.traces": ()}
PURE_MAY_USE = {"numpy"}
# Inside one app: what reads rows and what decides must not know who asks.
INNER = ("services", "selectors", "models", "snapshots", "presenters")
OUTER = ("views", "urls", "forms", "api", "consumers", "management")
CLOCK_AND_CHANCE = {"random", "secrets", "uuid", "subprocess", "socket", "threading", "asyncio", "urllib", "http", "sqlite3", "tempfile"}


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted((PROJECT / package).rglob("*.py")):
            parts = path.relative_to(PROJECT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(name: str, path: Path) -> Iterator[tuple[int, str]]:
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((node.lineno, f"{base}.{alias.name}") for alias in node.names)


def within(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(package + ".") for package in packages)


def floor_of(name: str) -> int | None:
    """Which floor a module stands on; None for the roof."""
    for number, floor in enumerate(FLOORS):
        if within(name, floor):
            return number
    return 0 if within(name, *GROUND) else None


def is_edge(name: str) -> bool:
    return any(part in EDGES for part in name.split(".")[1:])


def points_up(name: str, target: str) -> str | None:
    """Why this import is not allowed, or None."""
    if not within(target, *PACKAGES):
        return None
    mine, theirs = floor_of(name), floor_of(target)
    if within(name, *INNER_MODULES) and within(target, *OUTER_MODULES):
        return "services, selectors and models know nothing of those who ask"
    if mine is None or is_edge(name):
        return None
    if theirs is None:
        return "only the roof may import the roof"
    if theirs > mine:
        return f"{FLOORS[mine]} lies below {FLOORS[theirs]}"
    return None


INNER_MODULES = tuple(f"{app}.{part}" for app in PACKAGES for part in INNER)
OUTER_MODULES = tuple(f"{app}.{part}" for app in PACKAGES for part in OUTER)


def test_imports_point_down():
    faults = [
        f"{path.relative_to(PROJECT)}:{line}: imports {target}: {why}"
        for name, path in modules()
        if ".migrations" not in name
        for line, target in imports(name, path)
        if (why := points_up(name, target))
    ]

    assert faults == []


def test_the_engine_is_standard_library_and_numpy():
    faults = [
        f"{path.relative_to(PROJECT)}:{line}: imports {target}"
        for name, path in modules()
        for pure, below in PURE.items()
        if within(name, pure)
        for line, target in imports(name, path)
        if not within(target, pure, *below)
        and (top := target.split(".")[0]) not in PURE_MAY_USE
        and (top not in sys.stdlib_module_names or top in CLOCK_AND_CHANCE)
        # Text is decoded with types at the door, and nowhere behind it.
        and not (within(name, "scheduler.scenarios.written") and top == "msgspec")
        # A random generator may be named as the type of an argument; the engine never makes one.
        and not (within(name, "scheduler.simulation") and top == "random")
    ]

    assert faults == []


def test_the_engine_asks_no_clock():
    """Time is an argument, so that yesterday's odd decision can be run again today."""
    faults = [
        f"{path.relative_to(PROJECT)}:{node.lineno}: {ast.unparse(node)}"
        for name, path in modules()
        if within(name, *PURE)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func).split(".")[-1] in {"now", "utcnow", "today", "time", "monotonic", "open", "print", "input"}
        and ast.unparse(node.func) not in {"self.now", "clock.now"}
    ]

    assert faults == []


@pytest.mark.parametrize(
    ("name", "target", "allowed"),
    [
        ("scheduler.services.jobs.jobs", "quotas.models", True),
        ("quotas.services", "scheduler.models", False),
        ("gpufleet.core.tables", "quotas.permissions", False),
        ("gpufleet.core.audit", "gpufleet.api", False),
        ("quotas.views", "scheduler.services.jobs.jobs", True),
        ("quotas.views", "gpufleet.navigation", True),
        ("gpufleet.demo.seed", "scheduler.models", True),
        ("scheduler.services.jobs.jobs", "scheduler.views", False),
        ("scheduler.selectors", "dashboards.telemetry", False),
        ("dashboards.telemetry.frames", "scheduler.models", True),
    ],
)
def test_the_rule_itself(name, target, allowed):
    assert (points_up(name, target) is None) is allowed
