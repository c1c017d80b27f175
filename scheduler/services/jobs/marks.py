"""Writing what jobs are looked for by, along with the jobs themselves and with where they run."""

import json
from collections.abc import Iterable

from django.db import DEFAULT_DB_ALIAS, connections, transaction

from gpufleet.core.bulk import rows_insert
from gpufleet.core.prepared import prepared_cursor
from scheduler.jobs.marks import label_marks, marks_of
from scheduler.models import Job, JobMark, MarkKind

COLUMNS = ("job_id", "kind", "key", "value")
AMONG = {"postgresql": "= ANY(%s)", "sqlite": "IN (SELECT value FROM json_each(%s))"}
# Nothing is read for it, and nobody waits for an answer: it is part of every plan that starts something.
SITTING = """
INSERT INTO job_mark (job_id, kind, key, value)
SELECT DISTINCT placement.job_id, 'type', gpu.gpu_type_id, '' FROM placement JOIN gpu ON gpu.id = placement.gpu_id
WHERE placement.attempt_id {} AND placement.until IS NULL
ON CONFLICT (job_id, kind, key) DO NOTHING
"""


def marks_write(jobs: Iterable[Job]) -> None:
    """Of jobs that are new, in the transaction that makes them."""
    rows_insert(JobMark, COLUMNS, [(job.pk, *mark) for job in jobs for mark in marks_of(job.spec, job.labels)])


def labels_renew(job: Job) -> None:
    """Of a job whose labels have changed."""
    JobMark.objects.filter(job=job, kind=MarkKind.LABEL).delete()
    rows_insert(JobMark, COLUMNS, [(job.pk, *mark) for mark in label_marks(job.labels)])


def types_sat_on(attempts: Iterable[int]) -> None:
    """A job that has run on a GPU type is found by it, also where it had named none."""
    database = connections[DEFAULT_DB_ALIAS]
    keys = sorted(set(attempts))
    if not keys:
        return
    with transaction.mark_for_rollback_on_error(using=DEFAULT_DB_ALIAS), prepared_cursor(database) as cursor:
        cursor.execute(SITTING.format(AMONG[database.vendor]), [keys if database.vendor == "postgresql" else json.dumps(keys)])
