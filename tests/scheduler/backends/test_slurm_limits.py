"""Time limits of jobs and of partitions on a real Slurm: what is submitted, what Slurm will never start, and what the owner reads of it."""

from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from gpufleet.core.audit import SYSTEM
from gpufleet.core.live.news import News
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendRefused, NotFound, RunState
from scheduler.backends.slurm.looking import AGREED
from scheduler.backends.slurm.outcomes import UNTOLD
from scheduler.jobs.schema import JobChange
from scheduler.models import Attempt, Job, JobState, Order, SlurmRun
from scheduler.services.hardware.slurm_checks import slurm_check
from scheduler.services.jobs.edits import job_edit
from scheduler.services.loop.observe import runs_observe
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
    numbers = [str(part["id"]) for part in SlurmRun.objects.get(attempt_key=key).state["parts"]]
    return [site.slurm.sh("squeue", "--noheader", f"--jobs={number}", "--format=%l") for number in numbers]


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

    # While it goes through its queue, Slurm names another reason for a moment.
    seen = wait_until(lambda: (run := site.seen(later=AGREED)).why and run, seconds=20, what="what never starts to be given up")
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


def test_a_changed_limit_is_told_to_slurm_for_every_part_once_it_runs_and_never_so_short_that_it_ends_at_once(site):
    parts = [seat(0, "gpu001", 1), seat(1, "gpu002", 2)]
    site.start(on=parts, launch=shell("sleep 300"), limit_seconds=60, grace_seconds=90)
    site.until(RunState.RUNNING)
    assert minutes(site) == ["4:00", "4:00"]

    site.backend.limit(key="j-1.1", sequence=2, seconds=600, now=now())
    assert minutes(site) == ["13:00", "13:00"]
    site.backend.limit(key="j-1.1", sequence=2, seconds=60, now=now())
    assert minutes(site) == ["13:00", "13:00"], "done already"
    site.backend.limit(key="j-1.1", sequence=3, seconds=None, now=now())
    assert minutes(site) == ["UNLIMITED", "UNLIMITED"]
    site.backend.limit(key="j-1.1", sequence=4, seconds=60, now=now() + timedelta(minutes=30))
    assert minutes(site) == ["34:00", "34:00"], "it has run for half an hour, and is to have its grace"
    assert site.seen().sequence == 4
    with pytest.raises(NotFound):
        site.backend.limit(key="j-2.1", sequence=2, seconds=60, now=now())


def test_a_limit_that_slurm_does_not_allow_is_told_as_far_as_it_goes(site, longest):
    longest(60)
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"), limit_seconds=60)
    site.until(RunState.RUNNING)

    with pytest.raises(BackendRefused, match="7200 s is longer than Slurm's partition main allows: 3600 s"):
        site.backend.limit(key="j-1.1", sequence=2, seconds=7200, now=now())

    assert minutes(site) == ["1:00:00"]
    assert site.seen().sequence == 2, "it is not told again"


def test_an_owner_extends_a_job_that_runs(console, longest):  # noqa: F811
    longest("30:00:00")
    job = job_on("sleep 300", gpus=1, limit_seconds=60)
    console.until(job, JobState.RUNNING)
    everything = Access(SYSTEM, (Grant("", frozenset(Can)),))

    job_edit(access=everything, job=job, change=JobChange(limit_s=24 * HOUR), now=now())
    console.tick()
    assert minutes(console, f"{job.public_id}.1") == ["1-00:02:00"]
    job_edit(access=everything, job=job, change=JobChange(limit_s=48 * HOUR), now=now())
    console.tick()

    assert "partition main allows" in job.events.order_by("pk").last().cause
    assert not Order.objects.filter(done_at__isnull=True).exists()
    console.until(job, JobState.RUNNING)


@pytest.mark.soak
def test_a_job_that_slurm_ends_at_its_limit_has_failed_and_is_not_tried_again(console):  # noqa: F811
    """With the words of the console where its own limit is over, with Slurm's where somebody has shortened it there."""
    short, long = (job_on("sleep 300", gpus=1, limit_seconds=3000) for _ in range(2))
    Job.objects.update(retry_limit=3)
    for job in (short, long):
        console.until(job, JobState.RUNNING)
    for part in (row.state["parts"][0] for row in SlurmRun.objects.all()):
        console.slurm.sh("scontrol", "update", f"JobId={part['id']}", "EndTime=now+1")
    wait_until(lambda: [one.state for one in console.client.jobs()].count("TIMEOUT") == 2, seconds=90, what="Slurm to end them")
    Job.objects.filter(pk=short.pk).update(limit_seconds=1)
    runs_observe(backends=console.backends, now=now(), full=True)

    causes = dict(Attempt.objects.filter(outcome="failed").values_list("job", "cause"))
    assert causes[short.pk] == "Its time limit of 1 s is over."
    assert causes[long.pk].endswith(": time limit reached.")
    assert not Attempt.objects.exclude(number=1).exists()
    assert set(Job.objects.values_list("state", flat=True)) == {JobState.FAILED}


def test_the_steps_tell_the_longest_time_of_a_job_and_submit_one_without_a_limit(site, longest):
    longest(60)

    steps = {step.name: step for step in slurm_check(site.settings)}

    assert steps["partition"].seen == "the default of main; jobs end after 60 min"
    assert steps["submission"].result == "ok"
