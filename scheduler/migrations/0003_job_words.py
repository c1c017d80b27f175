"""Words in the names and ids of jobs are found by an index where the database has pg_trgm, or lets its role have it.

Each change of a job is entered at once: a list of changes kept for later had whoever came by when it was full wait two seconds for it, a tick mostly.
Where the database does not have the extension, the same searches read the names one by one: right as well, and slow with a hundred thousand jobs.
`gpufleet doctor` says so.
"""

import logging

from django.db import DatabaseError, migrations, transaction

log = logging.getLogger(__name__)


def make(apps, editor):
    if editor.connection.vendor != "postgresql":
        return
    try:
        with transaction.atomic(using=editor.connection.alias):
            editor.execute("CREATE EXTENSION IF NOT EXISTS pg_trgm")
            columns = "name gin_trgm_ops, public_id gin_trgm_ops"
            editor.execute(f"CREATE INDEX IF NOT EXISTS job_words ON job USING gin ({columns}) WITH (fastupdate = off)")
    except DatabaseError as fault:
        log.warning("Searches for words in jobs go without an index: %s", str(fault).strip().splitlines()[0])


def drop(apps, editor):
    if editor.connection.vendor == "postgresql":
        editor.execute("DROP INDEX IF EXISTS job_words")


class Migration(migrations.Migration):
    replaces = [("scheduler", "0017_job_words")]
    dependencies = [("scheduler", "0002_the_timeline_is_append_only")]
    operations = [migrations.RunPython(make, drop)]
