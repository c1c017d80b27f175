"""Jobs of a cluster that gpufleet did not start: what they hold is written down exactly, is nobody else's, and ends with them."""

from dataclasses import replace
from datetime import timedelta

import pytest

from dashboards.gap.causes import Cause
from dashboards.gap.snapshot import gap_now
from dashboards.selectors import OUTSIDE, fleet_read
from gpufleet.core.models import User
from quotas.permissions import Access, access_for_user
from scheduler.backends.slurm.values import SlurmJob
from scheduler.engine.model.values import Scenario
from scheduler.loop.policy import policy
from scheduler.models import Cluster, JobState, OutsideJob, OutsideSeat
from scheduler.selectors.clusters import cluster_tree
from scheduler.selectors.holders import node_holders
from scheduler.selectors.outside import outside_jobs, outside_usage
from scheduler.services.hardware.outside import outside_follow
from scheduler.services.hardware.removing import cluster_remove
from scheduler.snapshots.taking import Snapshots
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


@pytest.fixture
def cluster() -> Cluster:
    found = builders.cluster("hpc", backend="slurm")
    for name in ("gpu1", "gpu2"):
        builders.node(name, of=found, gpus=4, cpus=64, host_memory_mib=512_000)
    return found


def slurm_job(number: int = 7, **more) -> SlurmJob:
    told = {"nodes": ("gpu1",), "gpus": {"gpu1": (1, 2)}, "cpus": 16, "memory_mib": 64_000, "gpu_count": 2, "name": "train", "partition": "main"}
    plain = {"state": "RUNNING", "comment": "", "user": "alice", "exit_code": None, "held": False, "reason": "", "started_at": NOON, "ended_at": None}
    return SlurmJob(id=number, **plain | told | more)


def follow(cluster: Cluster, *jobs: SlurmJob, after: timedelta = timedelta(0)) -> int:
    return outside_follow(cluster=cluster.pk, jobs=jobs, now=NOON + after)


def held_now() -> set[tuple[str, int]]:
    rows = OutsideSeat.objects.filter(job__until__isnull=True, gpu__isnull=False)
    return set(rows.values_list("node__name", "gpu__index"))


def test_it_is_followed_from_its_start_to_its_end(cluster):
    pending = replace(slurm_job(8), state="PENDING", nodes=(), gpus={})

    assert follow(cluster, slurm_job(), pending) == 1
    assert follow(cluster, slurm_job(), pending, after=HOUR) == 0, "nothing has changed"
    assert held_now() == {("gpu1", 1), ("gpu1", 2)}
    assert follow(cluster, slurm_job(gpus={"gpu1": (1,)}, gpu_count=1), after=HOUR) == 1, "it has shrunk"
    assert follow(cluster, replace(slurm_job(), state="COMPLETED"), after=2 * HOUR) == 1
    assert held_now() == set()
    assert list(OutsideJob.objects.order_by("since").values_list("number", "since", "until")) == [
        (7, NOON, NOON + HOUR),
        (7, NOON + HOUR, NOON + 2 * HOUR),
    ]
    usage = outside_usage(operator(), cluster, start=NOON + HOUR / 2, end=NOON + 5 * HOUR)
    assert [(one.person, one.jobs, one.gpu_hours) for one in usage] == [("alice", 1, 2.0)], "two GPUs for half an hour, one for an hour"


def test_what_slurm_told_before_its_cluster_was_removed_is_not_written_down_afterwards(cluster):
    """Nobody would end it any more."""
    cluster_remove(access=operator(), cluster=cluster, reason="Sold.", confirm="hpc", now=NOON)

    assert follow(cluster, slurm_job()) == 0
    assert not OutsideJob.objects.exists()


def test_where_slurm_does_not_say_which_gpus_they_are_the_same_are_taken_each_time(cluster):
    told, untold = slurm_job(7, gpus={"gpu1": (3,)}, gpu_count=1), slurm_job(8, gpus={}, gpu_count=2)

    follow(cluster, untold)
    assert held_now() == {("gpu1", 2), ("gpu1", 3)}
    follow(cluster, untold, told)
    assert held_now() == {("gpu1", 1), ("gpu1", 2), ("gpu1", 3)}
    assert follow(cluster, untold, told) == 0


def test_the_engine_is_given_neither_its_gpus_nor_its_processors(cluster):
    follow(cluster, slurm_job())

    nodes = {node.name: node for node in snapshot().nodes}
    assert (nodes["hpc/gpu1"].unhealthy, nodes["hpc/gpu1"].cpu_milli, nodes["hpc/gpu1"].host_memory_mib) == (0b0110, 48_000, 448_000)
    assert (nodes["hpc/gpu2"].unhealthy, nodes["hpc/gpu2"].cpu_milli) == (0, 64_000)


def test_a_job_of_ours_keeps_a_gpu_that_slurm_has_given_to_another(cluster):
    """Until Slurm's own choice for it is adopted: to the engine it is not a job that has lost hardware."""
    node = cluster.nodes.get(name="gpu1")
    job = builders.job(state=JobState.RUNNING, gpus_milli=1000)
    builders.placement(job, node.gpus.get(index=1), attempt=builders.attempt(job, running_at=NOON))
    follow(cluster, slurm_job())

    assert next(one.unhealthy for one in snapshot().nodes if one.name == "hpc/gpu1") == 0b0100


def test_it_counts_as_allocated_everywhere_and_is_named_to_operators_alone(cluster):
    follow(cluster, slurm_job())
    node = cluster.nodes.get(name="gpu1")
    fleet = fleet_read(now=NOON)
    sums = cluster_tree(cluster).sums

    assert (int(fleet.held.sum()), int((fleet.owner == OUTSIDE).sum())) == (2000, 2)
    assert (sums.taken_milli, sums.outside, sums.free) == (2000, 2, 6)
    assert {part.cause: milli for part, milli in gap_now(now=NOON).items()} == {Cause.UNREAD: 2000, Cause.UNWANTED: 6000}
    assert {holder.label for holder in node_holders(operator(), node.pk)} == {"Slurm job 7 of alice"}
    vera = builders.person("vera")
    builders.role(vera)
    viewer = access_for_user(vera)
    assert {holder.label for holder in node_holders(viewer, node.pk)} == {"a job outside gpufleet"}
    (row,) = outside_jobs(operator(), cluster)
    assert (row.number, row.person, row.gpus, row.nodes) == (7, "alice", 2, ("gpu1",))


def test_the_page_of_the_cluster_and_the_api_list_it(cluster, client):
    follow(cluster, slurm_job(name="<b>train</b>"))
    operator()
    client.force_login(User.objects.get(username="root"))

    page = client.get("/clusters/hpc/").content.decode()
    assert "Jobs outside gpufleet" in page
    assert "&lt;b&gt;train" in page
    assert "2 outside gpufleet" in page
    told = client.get("/api/v1/clusters/hpc/outside-jobs?days=7").json()
    assert [(job["number"], job["person"], job["gpus"], job["nodes"]) for job in told["items"]] == [(7, "alice", 2, ["gpu1"])]
    assert [one["person"] for one in told["usage"]] == ["alice"]
    assert client.get("/api/v1/clusters/hpc/outside-jobs?days=0").status_code == 422


def operator() -> Access:
    return access_for_user(User.objects.filter(is_superuser=True).first() or User.objects.create_superuser("root", "root@example.org", "-"))


def snapshot() -> Scenario:
    return Snapshots().take(settings=policy().engine, now=NOON, start_timeout=HOUR).scenario
