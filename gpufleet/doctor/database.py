"""Is the database there, whole, and as this version needs it?"""

from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor

from gpufleet.core.upgrades import JOINED, too_old
from gpufleet.doctor import Finding, some
from scheduler.models import Job

OLDEST_POSTGRESQL = 140_000
# As the migration 0003_job_words makes it where it may.
WORDS_EXTENSION = "CREATE EXTENSION IF NOT EXISTS pg_trgm"
WORDS_BROKEN = "DROP INDEX job_words"
WORDS_INDEX = "CREATE INDEX CONCURRENTLY job_words ON job USING gin (name gin_trgm_ops, public_id gin_trgm_ops) WITH (fastupdate = off)"
# With fewer jobs nobody notices that there is none.
MANY_JOBS = 20_000


def reachable() -> Iterator[Finding]:
    if connection.vendor == "sqlite" and not Path(connection.settings_dict["NAME"]).exists():
        yield Finding(
            f"There is no database in {settings.DATA_DIR} yet.",
            "No console has run on this folder.",
            "Start it with gpufleet up, or name the right folder with --data-dir.",
        )
        return
    try:
        connection.ensure_connection()
    except DatabaseError as error:
        yield Finding(
            f"The database does not answer: {str(error).strip().splitlines()[0]}",
            "Nothing works without it.",
            "Check that it runs and that GPUFLEET_DATABASE_URL names it.",
        )


def migrated() -> Iterator[Finding]:
    if any(reachable()):
        return
    if why := too_old(connection):
        yield Finding(why, "The program is newer than the database.", f"gpufleet migrate as of {JOINED}, then as of this version")
        return
    executor = MigrationExecutor(connection)
    known = executor.loader.graph.leaf_nodes()
    waiting = [f"{migration.app_label}.{migration.name}" for migration, _ in executor.migration_plan(known)]
    if waiting:
        yield Finding(f"Migrations are not applied: {some(waiting)}.", "The program is newer than the database.", "gpufleet migrate")
    ours = executor.loader.disk_migrations
    replaced = {key for migration in ours.values() for key in migration.replaces}
    ahead = sorted(f"{app}.{name}" for app, name in executor.loader.applied_migrations.keys() - ours.keys() - replaced)
    if ahead:
        yield Finding(
            f"Migrations are applied that this version does not have: {some(ahead)}.",
            "The database is newer than the program: an older version was put back without undoing them.",
            "Install the newer version again, or undo the migrations with it before you go back.",
        )


def whole() -> Iterator[Finding]:
    if any(reachable()):
        return
    with connection.cursor() as cursor:
        if connection.vendor == "sqlite":
            cursor.execute("PRAGMA quick_check(5)")
            faults = [row[0] for row in cursor.fetchall() if row[0] != "ok"]
            cursor.execute("PRAGMA foreign_key_check")
            dangling = [f"{table} row {row}" for table, row, *_ in cursor.fetchall()]
            if faults:
                yield Finding(f"SQLite finds its file damaged: {some(faults)}.", "Data is lost or will be.", "Stop the console and restore a backup.")
            if dangling:
                yield Finding(
                    f"Rows refer to rows that do not exist: {some(dangling)}.",
                    "Something wrote past gpufleet.",
                    "Restore a backup, or remove the rows.",
                )
        elif (version := connection.pg_version) < OLDEST_POSTGRESQL:  # type: ignore[attr-defined]
            yield Finding(f"PostgreSQL is version {version // 10_000}.", "gpufleet is tested with 14 and newer.", "Upgrade the server.")


def words_indexed() -> Iterator[Finding]:
    """Whether PostgreSQL finds words in the names of jobs without reading all of them."""
    if connection.vendor != "postgresql" or any(reachable()) or any(migrated()):
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('job_words')")
        made = cursor.fetchone()
    if made == (True,):
        return
    anew = f"{WORDS_BROKEN}; " if made else ""  # making it was interrupted, and what is left is of no use
    yield Finding(
        "The index of the words in jobs' names is not whole." if made else "There is no index of the words in jobs' names.",
        "Searches read every name: right, and with 100,000 jobs they take a third of a second. gpufleet's role may not create the extension pg_trgm,"
        " or making the index was interrupted.",
        f"Once, as an administrator of the database: {WORDS_EXTENSION}; then as its owner: {anew}{WORDS_INDEX};",
        note=Job.objects.order_by()[:MANY_JOBS].count() < MANY_JOBS,
    )


CHECKS = {"reachable": reachable, "migrated": migrated, "whole": whole, "words indexed": words_indexed}
