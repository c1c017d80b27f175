"""`gpufleet trace own`: the fleet's own past, written as a scenario and played."""

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest
from django.utils import timezone

from gpufleet.cli import main
from quotas.models import QuotaNode, QuotaShare, Reservation, Window
from scheduler.models import Attempt, Gpu, Job, Repartition
from scheduler.scenarios.reading import load
from scheduler.services.forecasts.history import history
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, submit
from tests.servers import PROJECT

TEAM = "acme/research/nlp"


def ran(name: str, begin: timedelta, length: timedelta, *, gpus: int = 8, now: timezone.datetime = NOON) -> Job:
    at = now - begin
    job = submit(QuotaNode.objects.get(path=TEAM), gpus=gpus, name=name, at=at, spec={"preemptible": "yes"})
    Attempt.objects.create(job=job, number=1, started_at=at, running_at=at, ended_at=at + length, outcome="completed")
    Job.objects.filter(pk=job.pk).update(state="completed", ended_at=at + length)
    return job


@pytest.fixture
def fleet(personas: Personas) -> Personas:
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    for path in ("acme", "acme/research", TEAM):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=16_000)
    return personas


def test_the_past_is_a_scenario_of_what_was_asked_and_how_long_it_ran(fleet: Personas) -> None:
    hour, left_out = timedelta(hours=1), Counter[str]()
    ran("too old", 60 * hour, 2 * hour)
    there, short = ran("there", 50 * hour, 5 * hour), ran("short", 10 * hour, 2 * hour, gpus=4)
    never = submit(QuotaNode.objects.get(path=TEAM), gpus=8, name="never", at=NOON - 3 * hour)
    Job.objects.filter(pk=never.pk).update(state="cancelled", ended_at=NOON - 2 * hour)
    gpu = Gpu.objects.order_by("id")[0]
    Repartition.objects.create(gpu=gpu, cluster_id=gpu.node.cluster_id, at=NOON - timedelta(minutes=10))
    facts = {"quota": fleet.nodes[TEAM], "gpu_type": H100, "gpus_milli": 8000, "requested_name": "Root", "state": "approved"}
    begin, end = NOON - 20 * hour, NOON - 19 * hour
    made = Reservation.objects.create(public_id="rv-1", name="Demo", starts_at=begin, ends_at=end, requested_at=NOON - 60 * hour, **facts)
    Window.objects.create(reservation=made, starts_at=begin, ends_at=end)

    scenario = load(history(length=timedelta(days=2), now=NOON, left_out=left_out))

    assert [(job.name, job.quota, job.submitted - scenario.now, job.work_ms) for job in scenario.jobs] == [
        (there.public_id, TEAM, 0, 3 * 3_600_000),
        (short.public_id, TEAM, 38 * 3_600_000, 2 * 3_600_000),
    ]
    assert [role.gpus for job in scenario.jobs for role in job.kind.roles] == [8, 4]
    assert len(scenario.nodes) == 2
    assert {quota.name for quota in scenario.quotas} >= {"acme", TEAM}
    assert [(window.quota, window.start - scenario.now, window.end) for window in scenario.windows] == [
        (TEAM, 28 * 3_600_000, scenario.now + 29 * 3_600_000)
    ]
    assert left_out == {"ended without having run": 1}


def test_the_command_writes_what_simulate_plays(fleet: Personas, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = ran("today", timedelta(hours=3), timedelta(hours=1), now=timezone.now())
    out = tmp_path / "own.json"

    assert main(["gpufleet", "trace", "own", "--days", "1", "--out", str(out)]) == 0
    assert "1 jobs, " in capsys.readouterr().err
    assert main(["gpufleet", "simulate", str(out), "--json", "--per-job"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["per_job"]
    assert row["job"] == job.public_id
    assert row["started"] == pytest.approx(21 * 3600, abs=60) and row["ended"] - row["started"] == pytest.approx(3600, abs=1)


def test_a_folder_without_a_console_is_told_and_left_as_it_is(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GPUFLEET_", "DJANGO_"))}
    called = [sys.executable, str(PROJECT / "manage.py"), "trace", "own", "--data-dir", str(tmp_path / "none")]

    done = subprocess.run(called, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"There is no database in {tmp_path / 'none'}. Name the folder of the console by --data-dir.\n"
    assert not (tmp_path / "none" / "db.sqlite3").exists()
