"""The demo on PostgreSQL: the same story as on SQLite, two drivers at once, and a kill in the middle."""

from collections.abc import Callable

import psycopg
import pytest

from tests.servers import Manage, wait_until

SEED = """
from datetime import UTC, datetime
from gpufleet.demo.seed import demo_seed
demo_seed(size="small", seed=3, now=datetime(2026, 11, 20, 12, tzinfo=UTC), hours=0.1)
"""
DRIVE = """
import itertools
from datetime import timedelta
from django.db import connection
from gpufleet.core.models import Progress
from gpufleet.demo.present import demo_advance
from dashboards.telemetry.rollups import telemetry_rollup
from scheduler.backends.registry import backends_all
from scheduler.services.loop.tick import Memory, tick_run
import os
memory = Memory()
for turn in itertools.count():
    moment = Progress.objects.get(name="demo").reached_at + timedelta(seconds=2)
    demo_advance(now=moment)
    tick_run(holder=str(os.getpid()), now=moment, backends=backends_all(), memory=memory)
    telemetry_rollup(now=moment)
    if turn == {turns}:
        break
"""
LOOK = """
from gpufleet.core.models import Progress
from scheduler.models import Job, JobEvent
from dashboards.models import FleetSample
from tests.invariants import fleet_faults
print(fleet_faults(), JobEvent.objects.count(), FleetSample.objects.count(), Progress.objects.get(name="demo").reached_at.timestamp())
"""


@pytest.mark.postgres
def test_two_drivers_and_a_kill_leave_a_sound_fleet(tmp_path, migrated_postgres: Callable[[], str]) -> None:
    address = migrated_postgres()
    manage = Manage(tmp_path, GPUFLEET_DATABASE_URL=address)
    shell = ("shell", "--verbosity", "0", "-c")
    before = manage.run(*shell, SEED + LOOK).stdout.split()
    assert before[0] == "[]"

    drivers = [manage.start("manage.py", *shell, DRIVE.format(turns=10_000), name=f"driver-{number}") for number in (1, 2)]
    with psycopg.connect(address, autocommit=True) as looking:

        def reached() -> float:
            row = looking.execute("SELECT extract(epoch FROM reached_at) FROM progress WHERE name = 'demo'").fetchone()
            return float(row[0]) if row else 0.0

        wait_until(lambda: reached() > float(before[-1]) + 20, seconds=180, what="the demo moves")
    for driver in drivers:
        driver.kill()

    after = manage.run(*shell, LOOK).stdout.split()
    assert after[0] == "[]"
    assert int(after[1]) > int(before[1])
    assert manage.run(*shell, DRIVE.format(turns=3) + LOOK).stdout.split()[0] == "[]"
