"""Fixtures that every test may use."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from channels.layers import channel_layers
from django.core.cache import cache
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.servers", "tests.browser.harness", "tests.personas"]

# ci: the same examples on every machine, so that a red build is somebody's change. soak: new examples for every commit (Makefile).
_calm = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_calm, print_blob=True)
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_calm)
settings.register_profile("soak", max_examples=1000, deadline=None, suppress_health_check=_calm, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

HERE = Path(__file__).parent
# What they remember of rows is of a database that goes on: with another test the same keys are other rows.
SNAPSHOTS_KEPT = ("scheduler.services.forecasts.previews", "dashboards.fragmentation.defragmenting")
# They start servers, browsers and whole fleets, or plan thousands of scenarios.
TAKE_LONG = (
    "browser/",
    "gpufleet/demo/",
    "gpufleet/storm/",
    "scheduler/loop/",
    "scheduler/notices/",
    "scheduler/twin/",
    "test_api_fuzz",
    "test_doctor",
    "test_kill",
    "test_live",
    "test_migrations",
    "test_production",
    "test_submit_local",
    "test_up",
)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests run when they are asked for: `-m soak`, as `make soak` does. Files that take minutes for a few tests come first: at the end one
    worker would be at the last of them while the others have nothing left."""
    items.sort(key=lambda item: not item.path.relative_to(HERE).as_posix().startswith(TAKE_LONG))
    if "soak" in config.getoption("-m"):
        return
    kept = [item for item in items if "soak" not in item.keywords]
    config.hook.pytest_deselected(items=[item for item in items if "soak" in item.keywords])
    items[:] = kept


@pytest.fixture(autouse=True)
def _nothing_left_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own channel layer (its queues belong to one event loop), an empty cache (sign-in rate limits live there), and no fleet."""
    channel_layers.backends.clear()
    cache.clear()
    if "db" in request.fixturenames or "scheduler.services.forecasts.fitting" in sys.modules:
        from scheduler.services.forecasts import fitting

        fitting.GROUNDS.forget()
        # A thread would not see what a test's transaction holds: the fleet is read in the thread of whoever asks.
        monkeypatch.setattr(fitting.Grounds, "_beside", fitting.Grounds._make_and_tell)
    for name in SNAPSHOTS_KEPT:
        if name in sys.modules:
            monkeypatch.setattr(sys.modules[name], "_snapshots", sys.modules["scheduler.snapshots"].Snapshots())
    yield
    channel_layers.backends.clear()
