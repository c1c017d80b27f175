"""Time limits of jobs and of partitions on a real Slurm: what is submitted, what Slurm will never start, and what the owner reads of it."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from gpufleet.core.live.news import News
from gpufleet.core.times import now
from scheduler.backends.base import BackendRefused, RunState
from scheduler.backends.slurm.looking import AGREED
from scheduler.backends.slurm.outcomes import UNTOLD
from scheduler.models import Attempt, JobState, SlurmRun
from scheduler.services.hardware.slurm_checks import slurm_check
from scheduler.services.loop.timers import starts_give_up
from tests.scheduler.backends.slurm_site import seat, shell
from tests.scheduler.backends.test_slurm_end_to_end import console, job_on  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
HOUR = 3600


@pytest.fixture
def longest(slurm) -> Iterator[Callable[[object], None]]:
    """Sets the longest time limit of the partition."""

    def set_to(limit: object) -> None:
        slurm.sh("scontrol", "update", "PartitionName=main", f"MaxTime={limit}")

    yield set_to
    set_to("INFINITE")


def minutes(site, key: str = "j-1.1") -> list[str]:
    """The time limits that Slurm has of the jobs of a run."""
    numbers = ",".join(str(part["id"]) for part in SlurmRun.objects.get(attempt_key=key).state["parts"])
    return site.slurm.sh("squeue", "--noheader", f"--jobs={numbers}", "--format=%l").split()


@pytest.mark.parametrize(
    ("limit", "partition", "told"),
    [
        (None, 60, "1:00:00"),
        (None, "2-00:30:00", "2-00:30:00"),
        (None, "INFINITE", "UNLIMITED"),
        (60, 60, "3:00"),
        (HOUR, 60, "1:00:00"),
    ],
)
def test_a_job_starts_whatever_its_limit_is_and_that_of_the_partition(site, longest, limit, partition, told):
    """Its own limit is followed by a minute and its grace, as far as the partition allows."""
    longest(partition)

    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"), limit_seconds=limit)

    site.until(RunState.RUNNING)
    assert minutes(site) == [told]


def test_a_limit_above_that_of_the_partition_is_refused_in_words(site, longest):
    longest(60)

    with pytest.raises(BackendRefused, match="time limit of 3601 s is longer than Slurm's partition main allows: 3600 s"):
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("true"), limit_seconds=HOUR + 1)

    assert not SlurmRun.objects.exists()
    assert site.mine() == []


def test_the_owner_reads_that_the_limit_is_longer_than_the_partition_allows(console, longest):  # noqa: F811
    longest(60)
    job = job_on("true", gpus=1, limit_seconds=HOUR + 1)

    console.until(job, JobState.FAILED)

    assert "longer than Slurm's partition main allows" in Attempt.objects.get(job=job).cause


def test_what_slurm_will_never_start_is_withdrawn_with_its_reason(site, longest):
    site.start("j-2.1", on=[seat(0, "gpu002", 1)], launch=shell("sleep 300"))  # the limit is known from now on
    longest(60)
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    wait_until(lambda: any("PartitionTimeLimit" in line for line in site.mine()), what="Slurm to say why it waits")
    assert site.seen().why == ""

    seen = site.seen(later=AGREED)
    number = SlurmRun.objects.get(attempt_key="j-1.1").state["parts"][0]["id"]
    assert (seen.why, seen.node_lost) == (f"Slurm did not start job {number}: PartitionTimeLimit.", True)
    ended = site.until(RunState.ENDED)
    assert (ended.why, ended.node_lost) == (seen.why, True)


def test_a_start_that_is_given_up_says_what_slurm_waited_for(console):  # noqa: F811
    """A job beside gpufleet's holds the GPUs, and nobody has seen it yet."""
    beside = ["--nodelist=gpu001,gpu002,gpu003,gpu004", "--gres=gpu:8", "--chdir=/", "--output=/dev/null", "--wrap=sleep 300"]
    other = int(console.slurm.sh("sbatch", "--parsable", *beside))
    try:
        job = job_on("true", gpus=8, spec={"grace_s": 1})
        console.until(job, JobState.STARTING)
        wait_until(lambda: any(one.state == "PENDING" and one.reason not in UNTOLD for one in console.client.jobs()), what="Slurm to say why")

        starts_give_up(now=now(), timeout=timedelta(), news=News())
        first = Attempt.objects.filter(job=job, number=1, outcome="lost")
        wait_until(lambda: console.tick() or first.exists(), what="the first start to be given up")
    finally:
        console.client.cancel([other])

    assert first.get().cause.startswith("It was not running 0 s after it got its GPUs. Slurm did not start job ")


def test_the_steps_tell_the_longest_time_of_a_job_and_submit_one_without_a_limit(site, longest):
    longest(60)

    steps = {step.name: step for step in slurm_check(site.settings)}

    assert steps["partition"].seen == "the default of main; jobs end after 60 min"
    assert steps["submission"].result == "ok"
