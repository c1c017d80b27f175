"""On PostgreSQL roll-ups lie in partitions by time: rows are written and read as before, and go with their partition."""

import json

import pytest

from tests.servers import Manage

pytestmark = pytest.mark.postgres

# Rows from before there were partitions, then all that a console does with them since.
BEFORE = """
from django.core.management import call_command
call_command("migrate", "dashboards", "0002", verbosity=0)
from datetime import datetime, timedelta, UTC
from dashboards.models import GpuRollup, JobRollup, TelemetryMinute
from scheduler.models import Cluster
noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
cluster = Cluster.objects.create(public_id="c-1", name="c")
for days in (0, 1, 20, 29, 33, 399, 420):
    at = noon - timedelta(days=days)
    TelemetryMinute.objects.create(cluster=cluster, at=at, frames=1, gpu_ids=b"", sm_sum=b"", sm_read=b"", memory_sum=b"", memory_read=b"")
    for span in (900, 3600):
        GpuRollup.objects.create(cluster=cluster, span=span, at=at, gpu_ids=b"", minutes=b"", sm=b"", memory=b"")
call_command("migrate", verbosity=0)
"""
SINCE = """
import json
from datetime import datetime, timedelta, UTC
from django.db import connection
from dashboards.models import GpuRollup, TelemetryMinute
from dashboards.telemetry.spans import JobSums, jobs_write
from gpufleet.retention import retention_prune
from scheduler.models import Cluster
import numpy as np
noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
none = np.zeros(0, np.int64)
def parts():
    with connection.cursor() as cursor:
        cursor.execute("SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid JOIN pg_class t ON t.oid = i.inhparent"
                       " WHERE t.relname LIKE '%%_rollup' OR t.relname = 'telemetry_minute'")
        return sorted(name for (name,) in cursor.fetchall())
def days(rows):
    return sorted((noon - at).days for at in rows.values_list("at", flat=True))
told = {"fresh": parts()}
keys = sorted(GpuRollup.objects.values_list("pk", flat=True))
rounds = [retention_prune(now=noon) for _ in range(6)]
told |= {"gone": sum(sum(one.values()) for one in rounds), "quiet": rounds[-1], "minutes": days(TelemetryMinute.objects),
         "quarters": days(GpuRollup.objects.filter(span=900)), "hours": days(GpuRollup.objects.filter(span=3600)), "parts": parts()}
with connection.cursor() as cursor:
    cursor.execute("SELECT count(*) FROM gpu_rollup_rest")
    told["rest"] = cursor.fetchone()[0]
cluster = Cluster.objects.get()
row = lambda at, sm: GpuRollup(cluster=cluster, span=900, at=at, gpu_ids=b"", minutes=b"", sm=sm, memory=b"")
for at, sm in ((noon, b"again"), (noon + timedelta(days=1), b"ahead"), (noon + timedelta(days=300), b"far"), (noon + timedelta(days=300), b"twice")):
    GpuRollup.objects.bulk_create([row(at, sm)], update_conflicts=True, unique_fields=["cluster", "span", "at"], update_fields=["sm"])
for _ in range(2):
    jobs_write(60, {noon: JobSums(none.astype(np.uint32), none, none, none)})
told["written"] = [bytes(sm).decode() for sm in GpuRollup.objects.filter(span=900, at__gte=noon).order_by("at").values_list("sm", flat=True)]
told["new_keys"] = not set(keys) & set(GpuRollup.objects.filter(sm__in=[b"ahead", b"twice"]).values_list("pk", flat=True))
asked = GpuRollup.objects.filter(cluster=cluster, span=900, at__gte=noon - timedelta(hours=3), at__lt=noon)
told["read_by"] = [line for line in asked.explain().splitlines() if " on gpu_rollup" in line]
gone = retention_prune(now=noon + timedelta(days=30, hours=13))
told["a_month_later"] = {"quarters": days(GpuRollup.objects.filter(span=900)), "gone": gone}
cluster.delete()
told["after_its_cluster"] = GpuRollup.objects.count() + TelemetryMinute.objects.count()
print(json.dumps(told))
"""
# Somebody reads an old partition and does not stop; there are also more old rows without a partition than go in one transaction.
READ = """
import json
from datetime import datetime, timedelta, UTC
import psycopg
from django.db import connection
from dashboards.models import TelemetryMinute
from gpufleet.core import partitions
from scheduler.models import Cluster
partitions.PATIENCE, partitions.BATCH = "200ms", 2
noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
series = partitions.Series("telemetry_minute", timedelta(hours=12))
keep = lambda at: partitions.partitions_keep(series, keep=timedelta(days=2), now=at)
def parts():
    return sorted(name for name in partitions._partitions("telemetry_minute"))
cluster = Cluster.objects.create(public_id="c-1", name="c")
def add(at):
    TelemetryMinute.objects.create(cluster=cluster, at=at, frames=1, gpu_ids=b"", sm_sum=b"", sm_read=b"", memory_sum=b"", memory_read=b"")
keep(noon)
for hours in (0, 12, 24):
    add(noon + timedelta(hours=hours))
for minutes in range(5):
    add(noon - timedelta(days=40, minutes=minutes))
waits = []
def steps(execute, sql, params, many, context):
    if "DROP TABLE" in str(sql):
        waits.append(1)
    return execute(sql, params, many, context)
told = {}
later = noon + timedelta(days=5)
with connection.execute_wrapper(steps), psycopg.connect(**{key: value for key, value in connection.get_connection_params().items()
                                                          if key in ("dbname", "host", "port", "user", "password")}) as reader:
    reader.execute("SELECT count(*) FROM telemetry_minute_2026030212")
    told["gone"] = keep(later)
    told["ahead"] = "telemetry_minute_2026031012" in parts()
    told["again"], told["waits"] = keep(later + timedelta(minutes=1)), len(waits)
    reader.rollback()
    told["afterwards"] = keep(later + timedelta(minutes=11))
    # Nor is a table waited for that may not even be read: those that come after it would get no turn.
    reader.execute("LOCK TABLE telemetry_minute_rest IN ACCESS EXCLUSIVE MODE")
    told["locked"] = keep(later + timedelta(days=20))
    reader.rollback()
    keep(later + timedelta(days=20, minutes=11))
    told["next"] = "telemetry_minute_2026032712" in parts()
told["left"] = TelemetryMinute.objects.count()
print(json.dumps(told))
"""
SPANS = ("gap_rollup", "gpu_rollup", "job_rollup", "fragmentation_rollup")


def test_rows_move_into_partitions_are_written_over_and_go_with_them(tmp_path, migrated_postgres):
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres())

    told = json.loads(manage.run("shell", "--verbosity", "0", "-c", BEFORE + SINCE).stdout)

    # Nobody's row is lost but what is past its time, and in the end nothing is left where rows without a partition lie.
    assert told["fresh"] == sorted(f"{table}_rest" for table in (*SPANS, "telemetry_minute"))
    assert (told["gone"], told["quiet"], told["rest"]) == (5 + 3 + 1, {}, 0)
    assert (told["minutes"], told["quarters"], told["hours"]) == ([0, 1], [0, 1, 20, 29], [0, 1, 20, 29, 33, 399])
    assert {"gpu_rollup_900_2026030200", "gpu_rollup_900_2026030500", "telemetry_minute_2026030212"} <= set(told["parts"])
    assert {f"{table}_3600_2026022600" for table in SPANS} <= set(told["parts"])
    assert told["written"] == ["again", "ahead", "twice"]
    assert told["new_keys"]
    assert told["read_by"], told
    assert all("gpu_rollup_900_2026030200" in line for line in told["read_by"]), told["read_by"]
    # Those of one day go at once; those of the next stay until all of them are a month old.
    assert told["a_month_later"]["quarters"] == [-300, -1]
    assert told["a_month_later"]["gone"]["dashboards.GpuRollup"] >= 1
    assert told["after_its_cluster"] == 0


def test_whoever_reads_old_rows_keeps_no_partition_from_being_made(tmp_path, migrated_postgres):
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=migrated_postgres())

    told = json.loads(manage.run("shell", "--verbosity", "0", "-c", READ).stdout)

    # What has no partition goes all the same, and the table is left alone for a while after one wait.
    assert told == {"gone": 5, "ahead": True, "again": 0, "waits": 1, "afterwards": 3, "locked": 0, "next": True, "left": 0}
