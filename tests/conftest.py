"""Fixtures that every test may use."""

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache as once
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from channels.layers import channel_layers
from django.core.cache import cache
from django.core.management.color import no_style
from django.db import connection, transaction
from django.test import TransactionTestCase
from hypothesis import HealthCheck, settings
from pytest_django import DjangoDbBlocker

from gpufleet.collector import collect_seldom

if TYPE_CHECKING:
    from tests.servers import Prepared  # pytest itself imports it, as a plugin

collect_seldom()
pytest_plugins = ["tests.servers", "tests.browser.harness", "tests.personas"]

# ci: the same examples on every machine, so that a red build is somebody's change. soak: new examples for every commit (Makefile).
_calm = [HealthCheck.too_slow, HealthCheck.data_too_large]
settings.register_profile("ci", max_examples=40, deadline=None, derandomize=True, suppress_health_check=_calm, print_blob=True)
settings.register_profile("few", settings.get_profile("ci"), max_examples=10)
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=_calm)
settings.register_profile("soak", max_examples=1000, deadline=None, suppress_health_check=_calm, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

HERE = Path(__file__).parent
# What they remember of rows is of a database that goes on: with another test the same keys are other rows.
SNAPSHOTS_KEPT = ("scheduler.services.forecasts.previews", "dashboards.fragmentation.defragmenting")
# They plan thousands of scenarios, or keep a browser and whole fleets busy. The longest first.
TAKE_LONG = (
    "browser/test_every_page",
    "gpufleet/storm/",
    "test_on_postgres",
    "scheduler/twin/",
    "gpufleet/demo/",
    "test_api_fuzz",
    "test_hostile_bodies",
    "browser/",
    "scheduler/loop/",
    "test_migrations",
    "test_doctor",
    "scheduler/notices/",
    "test_url_matrix",
    "test_inert",
    "test_wheel",
    "test_docs",
    "test_private",
    "dashboards/telemetry/",
    "scheduler/test_job_words",
    "scheduler/test_foresight",
    "scheduler/simulation/",
    "scheduler/engine/",
)
# They wait for servers more than they compute.
WAIT_LONG = (
    "test_kill",
    "test_production",
    "test_submit_local",
    "scheduler/backends/test_slurm",
    "scheduler/backends/test_kubernetes",
    "attacks/",
    "test_up",
    "scheduler/loop/test_lease",
    "dashboards/telemetry/test_prometheus",
    "scheduler/backends/test_two_clusters",
    "test_live",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make soak` imports only the files that have long tests: one in eight, and every process of a run imports them."""
    if config.getoption("-m") != "soak" or not collection_path.match("test_*.py"):
        return None
    return True if "soak" not in collection_path.read_text(encoding="utf-8") else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long tests run when they are asked for: `-m soak`, as `make soak` does. Files that take minutes for a few tests come first: at the end one
    worker would be at the last of them while the others have nothing left. Those that compute and those that wait take turns, so that few
    at a time share the processor or leave it idle."""
    soak = "soak" in config.getoption("-m")
    left_out = [] if soak else [item for item in items if _is_long(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not _is_long(item)]
    files = dict.fromkeys(_file(item) for item in items if not soak or _is_long(item))
    waiting = [file for prefix in WAIT_LONG for file in files if file.startswith(prefix)]
    computing = [file for prefix in TAKE_LONG for file in files if file.startswith(prefix) and file not in waiting]
    turns = [file for pair in zip_longest(waiting, computing) for file in pair if file is not None]
    place = {file: number for number, file in enumerate(dict.fromkeys(turns))}
    items.sort(key=lambda item: place.get(_file(item), len(place)))


def pytest_collection_finish() -> None:
    """What was collected stays: the garbage collector need not go through it again and again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def django_db_keepdb(request: pytest.FixtureRequest, django_db_modify_db_settings: None, prepared: "Prepared") -> bool:
    """Of the processes of a test run only one makes the tables of SQLite. One that is alone makes its own: it needs no other program for that."""
    if connection.vendor == "sqlite" and "PYTEST_XDIST_WORKER" in os.environ:
        prepared.file(Path(connection.settings_dict["TEST"]["NAME"]))
        return True
    return bool(request.config.getvalue("reuse_db"))


@pytest.fixture(scope="module")
def founded(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """A transaction around all tests of a module: what its fixtures make of that scope is made once, and each test undoes only what it does itself.
    Tests that commit can't be in such a module."""
    with django_db_blocker.unblock(), transaction.atomic():
        yield
        transaction.set_rollback(True)


def _is_long(item: pytest.Item) -> bool:
    return item.get_closest_marker("soak") is not None  # among its keywords are the names of folders, and a checkout may be called soak


# Django makes them anew from the models after each test that commits, the same rows each time.
MADE_FROM_MODELS = {"django_content_type", "auth_permission", "django_migrations"}
_flush = TransactionTestCase._fixture_teardown


@once
def _tables() -> list[str]:
    return sorted({*connection.introspection.django_table_names(only_existing=True, include_views=False)} - MADE_FROM_MODELS)


def _empty(case: TransactionTestCase) -> None:
    """What a test has committed goes. Django's own way takes 80 ms, and this one 3: it empties what has rows, and leaves what would come again."""
    if [*case._databases_names(include_mirrors=False)] != ["default"] or connection.vendor != "sqlite":
        _flush(case)
        return
    with connection.cursor() as cursor:
        cursor.execute(" UNION ALL ".join(f"SELECT '{table}' WHERE EXISTS (SELECT 1 FROM \"{table}\")" for table in _tables()))
        filled = [table for (table,) in cursor.fetchall()]
    with connection.constraint_checks_disabled():
        connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), filled))


TransactionTestCase._fixture_teardown = _empty


def _file(item: pytest.Item) -> str:
    return item.path.relative_to(HERE).as_posix()


@pytest.fixture(autouse=True)
def _nothing_left_over(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test has its own channel layer (its queues belong to one event loop), an empty cache (sign-in rate limits live there), and no fleet."""
    channel_layers.backends.clear()
    cache.clear()
    if "db" in request.fixturenames or "scheduler.services.forecasts.grounds" in sys.modules:
        from scheduler.services.forecasts import grounds

        grounds.GROUNDS.forget()
        # A thread would not see what a test's transaction holds: the fleet is read in the thread of whoever asks.
        monkeypatch.setattr(grounds.Grounds, "_beside", grounds.Grounds._make_and_tell)
    for name in SNAPSHOTS_KEPT:
        if name in sys.modules:
            monkeypatch.setattr(sys.modules[name], "_snapshots", sys.modules["scheduler.snapshots"].Snapshots())
    yield
    channel_layers.backends.clear()
