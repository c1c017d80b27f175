"""What was submitted to a real Slurm and not released when its controller fell silent: it begins only if it is still to begin when that answers."""

from collections.abc import Iterator, Sequence

import pytest

from gpufleet.core.audit import SYSTEM
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.models import Cluster, Job, JobState, Order, SlurmCluster, SlurmRun
from scheduler.services.hardware.giving_up import cluster_give_up
from scheduler.services.loop.runs import Stop, attempts_stop
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, console, job_on  # noqa: F401 - a fixture
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


class Silenced:
    """A console whose job was submitted, and whose Slurm fell silent before the release."""

    def __init__(self, console: Console, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
        self.console = console
        self.released: list[int] = []
        release = console.client.release

        def silent(_ids: Sequence[int]) -> None:
            raise SlurmSilent("nobody answers")

        def counted(ids: Sequence[int]) -> None:
            self.released += ids
            release(ids)

        monkeypatch.setattr(console.client, "release", silent)
        self.job = job_on("sleep 300", gpus=1, spec={"grace_s": 1})
        console.until(self.job, JobState.STARTING)
        monkeypatch.setattr(console.client, "release", counted)
        assert [job.held for job in self.jobs()] == [True]

    def jobs(self):
        return [job for job in self.console.client.jobs() if self.console.settings.tag in job.comment]

    def is_cancelled_unstarted(self) -> bool:
        self.console.tick()
        (job,) = self.jobs()
        assert job.nodes == (), "it was started"
        return job.state == "CANCELLED"


@pytest.fixture
def silenced(console, monkeypatch) -> Iterator[Silenced]:  # noqa: F811
    yield Silenced(console, monkeypatch)


def test_one_that_is_still_wanted_begins_by_its_order(silenced):
    silenced.console.slurm_backend.observe(now=now())
    assert silenced.released == [], "the order is to be sent again"

    silenced.console.until(silenced.job, JobState.RUNNING)
    assert silenced.released == [silenced.jobs()[0].id]


def test_one_that_was_cancelled_meanwhile_never_begins(silenced):
    attempts_stop(stops=[Stop(silenced.job.pk, JobState.CANCELLED, "cancelled", "Wrong data.")], now=now())

    silenced.console.until(silenced.job, JobState.CANCELLED)

    assert silenced.is_cancelled_unstarted()
    assert silenced.released == []


def test_one_that_slurm_holds_again_after_its_order_was_carried_out_goes_on(silenced):
    """Its controller was killed before it had saved the release."""
    Order.objects.update(done_at=now(), fault="")

    silenced.console.slurm_backend.observe(now=now())

    assert silenced.released == [silenced.jobs()[0].id]


@pytest.mark.soak
def test_one_whose_cluster_was_given_up_never_begins_when_that_answers_again(silenced):
    site = silenced.console
    values = {name: getattr(site.settings, name) for name in ("conf", "user", "folder", "tag")}
    SlurmCluster.objects.create(cluster_id=site.cluster, changed_at=now(), **values)
    site.slurm.saved(f"{silenced.job.public_id}.1")
    site.slurm.end("slurmctld")
    Cluster.objects.filter(pk=site.cluster).update(silent_since=now())
    cluster = Cluster.objects.get(pk=site.cluster)
    everything = Access(SYSTEM, (Grant("", frozenset(Can)),))
    try:
        cluster_give_up(access=everything, cluster=cluster, after="fail", reason="It burned down.", confirm="hpc", now=now())
        assert Job.objects.get().state == JobState.FAILED
        assert SlurmRun.objects.get().state["killed"]
    finally:
        site.slurm.start_controller()
    wait_until(lambda: len(site.slurm.idle()) == len(site.slurm.names), what="Slurm to answer again")

    wait_until(silenced.is_cancelled_unstarted, what="what is left there to be cancelled")

    assert silenced.released == []
    assert not fleet_faults()
