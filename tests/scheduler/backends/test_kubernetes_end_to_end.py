"""The whole way of a job on Kubernetes: submitted, placed by the engine, carried out as pods, preempted, resumed and completed."""

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.registry import Backends
from scheduler.models import (
    HOLDING,
    Attempt,
    Checkpoint,
    Health,
    Job,
    JobState,
    KubernetesCluster,
    KubernetesRun,
    Node,
    Placement,
    Replacement,
)
from scheduler.selectors.readiness import readiness_of
from scheduler.services.hardware.kubernetes_nodes import kubernetes_nodes_reconcile
from scheduler.services.jobs.replacing import job_replace
from scheduler.services.jobs.scaling import job_scale
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.elastic import Gang, grown_shrunk_and_repaired
from tests.scheduler.backends.kubernetes_site import NODES, Api, Site
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db]


class Console:
    """The loop over Kubernetes, by the real clock."""

    def __init__(self, api: Api, **settings: Any) -> None:
        self.site = Site(api, **settings)
        for name in NODES:
            builders.node(name, of=self.site.cluster, gpus=8)
        self.restart()

    def restart(self) -> None:
        self.site.restart()
        self.backends, self.memory = Backends({self.site.cluster.pk: self.site.backend}), Memory()

    def tick(self) -> None:
        tick_run(holder="test", now=now(), backends=self.backends, memory=self.memory)

    def until(self, job: Job, *states: str) -> Job:
        def there() -> Job | None:
            self.tick()
            return Job.objects.filter(pk=job.pk, state__in=states).first()

        return wait_until(there, seconds=60, what=f"{job.name} to be {' or '.join(states)}: {self.site.mine()}")


@pytest.fixture
def console(k8s_api: Api, settings: Any) -> Iterator[Console]:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    there = Console(k8s_api)
    yield there
    there.site.backend.pods.stop()
    k8s_api.clear()


def with_volume(claim: str, api: Api, settings: Any, folder: Path) -> tuple[Console, Path]:
    """A console that sees the volume in which pods save their work, and where that lies."""
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    volume = folder / "volume"
    volume.mkdir()
    api.volume(claim, volume)
    return Console(api, claim=claim, mount=f"/{claim}", folder=str(volume), uid=0), volume


def job_on(text: str, *, workers: int = 1, gpus: int = 8, **more: Any) -> Job:
    spec = {"roles": [{"name": "worker", "min": workers, "gpus": gpus, "cpus": 2}], **more.pop("spec", {})}
    return submit(leaf("team", 32), gpus=gpus, workers=workers, at=now(), spec=spec, launch={"shell": text}, **more)


def test_a_gang_of_four_nodes_runs_and_completes(console):
    job = job_on('test "$WORLD_SIZE" = 4', workers=4)

    console.until(job, JobState.COMPLETED)
    console.tick()

    attempt = Attempt.objects.get(job=job)
    assert attempt.exit_code == 0
    assert attempt.running_at is not None
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert KubernetesRun.objects.get().forgotten_at is not None
    assert not fleet_faults()


def test_a_higher_class_preempts_it_and_it_comes_back(console):
    low = job_on("trap 'exit 1' TERM; while :; do sleep 0.1; done", workers=4, spec={"grace_s": 2}, name="low")
    console.until(low, JobState.RUNNING)

    high = job_on("sleep 1", workers=2, job_class="interactive", name="high")
    console.until(high, JobState.COMPLETED)
    console.until(low, JobState.RUNNING)

    assert Attempt.objects.get(job=low, number=1).outcome == "preempted"
    assert Attempt.objects.filter(job=low).count() == 2
    assert not fleet_faults()


def test_a_job_that_fails_says_why(console):
    job = job_on("exit 4", workers=2)

    console.until(job, JobState.FAILED)

    attempt = Attempt.objects.get(job=job)
    assert (attempt.exit_code, attempt.outcome) == (4, "failed")


def test_another_process_that_leads_adopts_what_runs(console):
    """As after kill -9 of the worker: nothing is started twice, and nothing is lost."""
    job = job_on("exec sleep 300", workers=2)
    console.until(job, JobState.RUNNING)
    before = sorted(pod["metadata"]["uid"] for pod in console.site.api.pods())

    console.restart()
    for _ in range(3):
        console.tick()

    assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
    assert sorted(pod["metadata"]["uid"] for pod in console.site.api.pods()) == before
    assert Attempt.objects.filter(job=job).count() == 1


def test_a_pod_that_is_deleted_brings_its_job_back_without_a_failure(console):
    job = job_on("exec sleep 300", workers=2)
    console.until(job, JobState.RUNNING)

    pod = KubernetesRun.objects.get().state["workers"][1]["pod"]
    console.site.api.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{pod}", grace=1)
    wait_until(lambda: console.tick() or Attempt.objects.filter(job=job).count() == 2, seconds=60, what="another attempt")
    console.until(job, JobState.RUNNING)

    assert Attempt.objects.get(job=job, number=1).outcome == "lost"
    assert not fleet_faults()


def test_a_checkpoint_in_the_volume_is_found_and_resumed_from(k8s_api, settings, tmp_path):
    console, volume = with_volume("checkpoints", k8s_api, settings, tmp_path)
    text = """
        if [ "$GPUFLEET_RESUME_FROM" ]; then
          [ "$(cat "$GPUFLEET_RESUME_FROM/shard-0.bin")" = saved ] && exit 0
          exit 9
        fi
        place=$GPUFLEET_CHECKPOINT_DIR/step-7; mkdir "$place"; printf saved > "$place/shard-0.bin"
        echo '{"shards": 1, "files": [{"shard": 0, "file": "shard-0.bin", "bytes": 5}]}' > "$place/0.json"
        exec sleep 300
    """
    job = job_on(text, spec={"checkpoint": {"interval_s": 60}, "grace_s": 1})
    try:
        console.until(job, JobState.RUNNING)
        wait_until(lambda: console.tick() or Checkpoint.objects.filter(step=7, verified_at__isnull=False).exists(), what="its checkpoint")
        pod = KubernetesRun.objects.get().state["workers"][0]["pod"]
        k8s_api.admin.delete(f"/api/v1/namespaces/gpufleet/pods/{pod}", grace=1)
        console.until(job, JobState.COMPLETED)
    finally:
        console.site.backend.pods.stop()
        k8s_api.clear()

    assert Attempt.objects.get(job=job, number=2).resumed_from == Checkpoint.objects.get(step=7)
    old = Checkpoint.objects.get(step=7)
    assert old.location == f"{volume}/gpufleet-{console.site.settings.tag}/checkpoints/{job.public_id}/1/step-7"


def test_a_server_that_does_not_answer_gets_nothing_new_and_loses_nothing(console, monkeypatch):
    job = job_on("exec sleep 300", workers=2, gpus=2)
    console.until(job, JobState.RUNNING)
    if console.site.api.double is None:
        pytest.skip("The real one is stopped by another test.")
    console.site.api.double.silent = True
    monkeypatch.setattr("scheduler.backends.kubernetes.watching.ASKED_EACH", 0.2)
    monkeypatch.setattr("scheduler.backends.kubernetes.watching.ASKED_FOR", 0.3)
    try:
        wait_until(lambda: console.tick() or console.backends.silent, what="it to be silent")
        waiting = job_on("true", gpus=1)
        console.tick()
        assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
        assert Job.objects.get(pk=waiting.pk).state in (JobState.QUEUED, *HOLDING)
    finally:
        console.site.api.double.silent = False

    console.until(waiting, JobState.COMPLETED)
    assert Attempt.objects.filter(job=job).count() == 1


def test_a_cordoned_node_gets_nothing_new(console, monkeypatch):
    monkeypatch.setattr("scheduler.services.hardware.kubernetes_nodes.client_of", lambda _: nullcontext(console.site.api.client))
    KubernetesCluster.objects.create(cluster=console.site.cluster, context="test", namespace="gpufleet", tag=console.site.settings.tag)
    for name in NODES[1:]:
        console.site.api.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True}})
    try:
        kubernetes_nodes_reconcile(now=now())
        job = job_on("true")
        console.until(job, JobState.COMPLETED)
        assert set(Placement.objects.filter(job=job).values_list("node__name", flat=True)) == {NODES[0]}
    finally:
        for name in NODES[1:]:
            console.site.api.admin.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": None}})


def says(api: Api, node: str, ready: str) -> None:
    condition = {"type": "Ready", "status": ready, "reason": "NodeStatusUnknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    api.admin.patch(f"/api/v1/nodes/{node}/status", {"status": {"conditions": [condition]}})


def test_a_gang_is_grown_shrunk_and_repaired_in_place_while_its_healthy_workers_train_on(k8s_api, settings, tmp_path):
    console, volume = with_volume("trained", k8s_api, settings, tmp_path)
    Node.objects.filter(name=NODES[-1]).update(spare=True)
    top = volume / f"gpufleet-{console.site.settings.tag}" / "checkpoints"
    gang = Gang(console, lambda job: top / job.public_id / "1", least=2, most=3, gpus=8, guaranteed=24)
    gone = []

    def lose(node: Node, process: int) -> None:
        """The machine is off: nobody hears of its kubelet, and what ran there is gone."""
        gone.append(node.name)
        k8s_api.nodes.dead.add(node.name)
        says(k8s_api, node.name, "Unknown")
        os.kill(process, signal.SIGKILL)
        Node.objects.filter(pk=node.pk).update(health=Health.DOWN)

    try:
        attempt = grown_shrunk_and_repaired(gang, most=3, lose=lose, saves=False)
        assert attempt.outcome == "completed"
        pods = {pod["metadata"]["name"] for pod in k8s_api.pods() if pod["metadata"]["labels"]["gpufleet/run"] == f"{gang.job.public_id}.1"}
        row = KubernetesRun.objects.get(attempt_key=f"{gang.job.public_id}.1")
        assert pods <= {one["pod"] for one in (*row.state["earlier"], *row.state["workers"])}, "none is left behind"
    finally:
        k8s_api.nodes.dead.difference_update(gone)
        for name in gone:
            says(k8s_api, name, "True")
        console.site.backend.pods.stop()
        k8s_api.clear()


def test_replicas_of_a_service_come_and_are_replaced_while_the_others_serve(console, personas):
    launch = {"shell": "trap 'exit 0' TERM; touch ready; while :; do sleep 0.05; done", "in_place": True}
    launch |= {"ready": {"command": ["test", "-e", "ready"], "period_s": 1}}
    role = {"name": "server", "min": 1, "max": 4, "gpus": 1, "desired": 2}
    served = submit(
        leaf("team", 32), gpus=1, job_class="inference", preemptible="when_borrowed", at=now(), spec={"roles": [role], "grace_s": 5}, launch=launch
    )
    access = personas.access("superuser")

    def serving(replicas: int) -> dict[str, str] | None:
        """The pods by replica, once so many can serve."""
        console.tick()
        found = readiness_of(Job.objects.get(pk=served.pk), Attempt.objects.filter(job=served).last())
        labels = {
            pod["metadata"]["uid"]: pod["metadata"]["labels"]["gpufleet/worker"]
            for pod in console.site.api.pods()
            if pod.get("status", {}).get("phase") == "Running"
        }
        return {index: uid for uid, index in labels.items()} if found is not None and found.ready == replicas == len(labels) else None

    first = wait_until(lambda: serving(2), seconds=60, what="two to serve")
    job_scale(access=access, job=Job.objects.get(pk=served.pk), replicas=3, now=now())
    more = wait_until(lambda: serving(3), seconds=60, what="a third to serve")
    assert first.items() <= more.items()

    job_replace(access=access, job=Job.objects.get(pk=served.pk), reason="New weights.", now=now())
    least = []

    def done() -> bool:
        console.tick()
        least.append(readiness_of(Job.objects.get(pk=served.pk), Attempt.objects.get(job=served)).ready)
        return not Replacement.objects.filter(over_at__isnull=True).exists()

    wait_until(done, seconds=90, what="all three to be replaced")
    assert (Replacement.objects.get().end, min(least)) == ("done", 2)
    anew = wait_until(lambda: serving(3), seconds=60, what="three to serve")
    assert not set(anew.values()) & set(more.values())
    assert Attempt.objects.filter(job=served).count() == 1
    assert not fleet_faults()
