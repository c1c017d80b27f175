"""What another split of a GPU opens, as its preview says before anybody asks for it."""

from datetime import timedelta

import pytest
from django.urls import reverse

from gpufleet.core.times import now
from scheduler.models import Gpu, GpuMode, GpuSplit, Job, JobState, MigInstance, Repartition
from tests import builders
from tests.scheduler.loop.worlds import Loop, submit

pytestmark = pytest.mark.django_db
HALVES = "3g.40gb@0 3g.40gb@4"


@pytest.fixture
def full(personas):
    """A GPU that a job holds whole, and three jobs that wait for halves of one."""
    builders.node("n1", gpus=1)
    team, loop = personas.nodes["acme/research/nlp"], Loop()
    loop.now = now() - timedelta(minutes=30)
    whole = submit(team, at=loop.now, gpus=1, name="whole", spec={"estimate_s": 86_400})
    loop.tick()
    loop.up(whole)
    for number in range(3):
        submit(team, at=loop.now, name=f"half-{number}", spec={"roles": [{"mig": "3g.40gb"}], "sharing": "mig"}, gpus_milli=500)
    loop.now = now()
    loop.tick()
    assert list(Job.objects.filter(name__startswith="half").values_list("state", flat=True)) == [JobState.QUEUED] * 3
    return personas, whole


def cleared(whole: Job) -> None:
    """Nothing runs, and nothing waits."""
    Job.objects.filter(name__startswith="half").delete()
    whole.placements.update(until=now())
    Job.objects.filter(pk=whole.pk).update(state=JobState.COMPLETED, ended_at=now())


def shown(personas, layout: str, mode: str = "mig") -> str:
    sent = {"mode": mode, "layout": layout, "seen": "", "reason": "small jobs"}
    answer = personas.client("operator").post(reverse("gpu_geometry", args=[Gpu.objects.get().public_id]), sent)
    assert answer.status_code == 200
    assert not GpuSplit.objects.exists()
    return answer.content.decode()


def limit_used_up() -> None:
    """So that the scheduler splits no GPU by itself."""
    gpu = Gpu.objects.get()
    Repartition.objects.bulk_create(
        Repartition(gpu=gpu, cluster_id=gpu.node.cluster_id, at=now() - timedelta(minutes=5), instances=[]) for _ in range(20)
    )


def test_jobs_that_would_start_by_it_are_named_and_only_those(full):
    personas, _ = full
    limit_used_up()

    text = shown(personas, HALVES)

    assert "Once they have ended, half-0 with 1 × 3g.40gb would start." in text
    assert "Once they have ended, half-1 with 1 × 3g.40gb would start." in text
    assert "half-2" not in text
    assert "The largest gang of H100-SXM-80GB in one node: 1 → 0 GPUs." in text


def test_what_the_scheduler_would_start_anyway_is_told_apart(full):
    """It splits the GPU by itself once the job has ended."""
    text = shown(full[0], HALVES)

    assert text.count("would start here even without the repartition.") == 2
    assert "would start." not in text


def test_a_split_that_serves_nobody_says_so_and_what_it_costs_others(full):
    personas, whole = full
    cleared(whole)
    limit_used_up()
    submit(personas.nodes["acme/research/nlp"], at=now(), gpus=1, name="next", spec={"estimate_s": 3600})

    text = shown(personas, HALVES)

    assert "No waiting job would start because of it." in text and "Once they have ended" not in text
    assert "next with 1 GPU would keep waiting: it would start without the repartition." in text


def test_a_gpu_that_is_made_whole_opens_it_to_whole_jobs(full):
    personas, whole = full
    cleared(whole)
    gpu = Gpu.objects.get()
    Gpu.objects.update(mode=GpuMode.MIG)
    MigInstance.objects.create(public_id="m-1", gpu=gpu, profile="3g.40gb", start=0, size=4, created_at=now())
    limit_used_up()
    submit(personas.nodes["acme/research/nlp"], at=now(), gpus=1, name="next", spec={"estimate_s": 3600})

    assert "next with 1 GPU would start." in shown(personas, "", mode="whole")
