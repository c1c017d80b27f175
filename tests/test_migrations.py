"""Migrations are one line per app, each can be undone, and nothing is left out of them."""

import json
import re
import sqlite3
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db.migrations.loader import MigrationLoader

from tests.servers import Manage, free_port

APPS = ("core", "quotas", "scheduler", "dashboards")

# Takes back our migrations one by one, and what stands on them, and then applies them all again. One executor goes the whole way back: each that is
# made draws the models of every migration anew, which takes longer than the statements.
BACK_AND_FORTH = """
import json
from django.db import connection
from django.db.migrations.executor import MigrationExecutor

class Told(MigrationExecutor):
    def unapply_migration(self, state, migration, fake=False):
        back.append((migration.app_label, migration.name))
        return super().unapply_migration(state, migration, fake)

apps, back = %r, []
there = Told(connection)
ours = {key for key in there.loader.applied_migrations if key[0] in apps and key in there.loader.disk_migrations}
there.migrate([(app, None) for app in apps])
again = MigrationExecutor(connection)
assert ours <= set(back) and len(back) == len(set(back))
assert not [key for key in again.loader.applied_migrations if key[0] in apps]
left = set(connection.introspection.table_names()) & {model._meta.db_table for model in again.loader.project_state().apps.get_models()}
again.migrate(again.loader.graph.leaf_nodes())
print(json.dumps({"steps": len(ours), "left": sorted(left)}))
"""


def test_each_app_has_one_line_of_migrations_without_gaps_or_nameless_ones():
    loader = MigrationLoader(None)
    faults = []
    for app in APPS:
        names = sorted(name for label, name in loader.disk_migrations if label == app)
        if [int(name[:4]) for name in names] != list(range(1, len(names) + 1)):
            faults.append(f"{app}: numbers are not 1, 2, 3 …: {names}")
        faults += [f"{app}.{name}: name it for its idea" for name in names if re.search(r"_auto_|_merge", name)]
        if len(loader.graph.leaf_nodes(app)) != 1:
            faults.append(f"{app}: more than one end: {loader.graph.leaf_nodes(app)}")

    assert faults == []


def test_every_operation_can_be_undone():
    loader = MigrationLoader(None)
    faults = [
        f"{app}.{name}: {operation.describe()}"
        for (app, name), migration in loader.disk_migrations.items()
        if app in APPS
        for operation in migration.operations
        if not operation.reversible
    ]

    assert faults == []


@pytest.mark.django_db
def test_no_change_of_a_model_lacks_its_migration():
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


def test_whoever_has_applied_what_a_migration_stands_for_has_applied_it(prepared, tmp_path):
    manage = prepared.migrated(tmp_path)
    replacing = {key: migration.replaces for key, migration in MigrationLoader(None).disk_migrations.items() if migration.replaces}
    stood_for = [key for keys in replacing.values() for key in keys]
    with sqlite3.connect(tmp_path / "gpufleet.sqlite3") as file:
        file.executemany("DELETE FROM django_migrations WHERE app = ? AND name = ?", list(replacing))
        file.executemany("INSERT INTO django_migrations (app, name, applied) VALUES (?, ?, '2026-11-25')", stood_for)

    assert "No migrations to apply" in manage.run("migrate").stdout
    assert not [one for one in json.loads(manage.run("doctor", "--json", check=False).stdout)["findings"] if "igrations are" in one["what"]]


def test_a_database_that_is_too_old_is_refused_with_a_word_and_stays_as_it_is(prepared, tmp_path):
    manage = prepared.migrated(tmp_path)
    key = ("quotas", "0001_all_tables")
    replaced = MigrationLoader(None).disk_migrations[key].replaces
    with sqlite3.connect(tmp_path / "gpufleet.sqlite3") as file:
        file.executemany("DELETE FROM django_migrations WHERE app = ? AND name = ?", [key, replaced[-1]])
    before = _sqlite_schema(tmp_path / "gpufleet.sqlite3")

    for command in (["migrate"], ["up", "--port", str(free_port())], ["doctor"]):
        refused = manage.run(*command, check=False, seconds=60)
        assert refused.returncode == 1
        assert f"lacks quotas.{replaced[-1][1]}" in refused.stdout + refused.stderr
        assert "Traceback" not in refused.stderr
    assert _sqlite_schema(tmp_path / "gpufleet.sqlite3") == before


def _round_trip(manage: Manage) -> None:
    told = manage.run("shell", "--verbosity", "0", "-c", BACK_AND_FORTH % (APPS,), seconds=1200).stdout
    assert json.loads(told)["steps"] >= len(APPS)


def _sqlite_schema(path: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(path) as file:
        return sorted(file.execute("SELECT type, name, sql FROM sqlite_master WHERE sql IS NOT NULL").fetchall())


@pytest.mark.soak
def test_each_migration_goes_back_and_forth_on_sqlite(prepared, tmp_path):
    manage = prepared.migrated(tmp_path)
    before = _sqlite_schema(tmp_path / "gpufleet.sqlite3")

    _round_trip(manage)

    assert _sqlite_schema(tmp_path / "gpufleet.sqlite3") == before


@pytest.mark.soak
@pytest.mark.postgres
def test_each_migration_goes_back_and_forth_on_postgresql(tmp_path, postgres):
    url = postgres.create_database()
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=url)
    manage.run("migrate", "--verbosity", "0")  # `migrated_postgres` may have been dumped, which spells some conditions in another way
    before = postgres.schema(url)

    _round_trip(manage)

    assert postgres.schema(url) == before
