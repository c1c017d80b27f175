"""A real slurmdbd: what its controller has forgotten Slurm's accounts tell."""

from datetime import UTC, datetime

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState
from tests.scheduler.backends.slurm_site import Site, seat, shell
from tests.scheduler.backends.test_slurm_quotas import Accounted, accounted  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm, pytest.mark.soak]


def told_by_sacct(slurm: Accounted, key: str) -> tuple[datetime, datetime]:
    words = ("sacct", "-a", "-X", "-n", "-P", f"--name=gpufleet-{key}", "--format=Start,End", "--starttime=now-1hour")
    begin, end = slurm.sh("env", "SLURM_TIME_FORMAT=%s", *words).split("|")
    return datetime.fromtimestamp(int(begin), UTC), datetime.fromtimestamp(int(end), UTC)


def test_ends_that_the_controller_has_forgotten_are_told_with_their_codes_and_times(accounted):  # noqa: F811
    with accounted.conf.open("a") as conf:
        conf.write("MinJobAge=2\n")
    accounted.sh("scontrol", "reconfigure")
    site = Site(accounted)
    for key, text in (("j-1.1", "sleep 3; exit 5"), ("j-2.1", "sleep 2"), ("j-3.1", "sleep 300")):
        site.start(key, on=[seat(0, "gpu001", 1)], launch=shell(text))
    for key in ("j-1.1", "j-2.1", "j-3.1"):
        site.until(RunState.RUNNING, key)
    (cancelled,) = (job.id for job in site.client.jobs() if " j-3.1 " in job.comment)
    wait_until(lambda: not any(" j-1.1 " in line and "RUNNING" in line for line in site.mine()), what="the first to end")
    site.slurm.sh("scancel", cancelled)
    wait_until(lambda: site.mine() == [], seconds=240, what="the controller to forget them")

    runs = {run.key: run for run in site.backend.observe(now=now())}

    assert {key: (run.state, run.exit_code, run.node_lost) for key, run in runs.items()} == {
        "j-1.1": (RunState.ENDED, 5, False),
        "j-2.1": (RunState.ENDED, 0, False),
        "j-3.1": (RunState.ENDED, 1, False),
    }
    assert {key: (run.started_at, run.ended_at) for key, run in runs.items()} == {key: told_by_sacct(accounted, key) for key in runs}
    assert all(run.end_is_told for run in runs.values())
