"""Whether a database can be brought to this version at once. One migration of an app stands for many that there were before (its `replaces`)."""

from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder

# The day up to which migrations are one for each app.
JOINED = "29 November 2026"


def left_out(connection: BaseDatabaseWrapper) -> list[tuple[str, str]]:
    """Migrations that a database lacks of those that one here stands for. None: all of them are applied, or none is."""
    loader = MigrationLoader(connection, load=False)
    loader.load_disk()
    applied = MigrationRecorder(connection).applied_migrations()
    found = []
    for key, migration in loader.disk_migrations.items():
        if key not in applied and any(one in applied for one in migration.replaces):
            found += [one for one in migration.replaces if one not in applied]
    return found


def too_old(connection: BaseDatabaseWrapper) -> str:
    """Why a database can't be brought to this version at once; empty where it can."""
    if not (missing := left_out(connection)):
        return ""
    named = ", ".join(".".join(key) for key in sorted(missing)[:3])
    return f"The database is of an older version, and lacks {named}. Start gpufleet once as it was on {JOINED}, then this version."
