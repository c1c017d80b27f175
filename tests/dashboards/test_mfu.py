"""MFU: reported by a job's ranks, told on its page and by the API; figures that can't be told say why."""

import json
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from dashboards.health.steps import FEW_RANKS, looks_of, steps_of_files
from dashboards.job_usage import job_usage
from dashboards.models import StepLook
from dashboards.telemetry.peaks import peak_tflops
from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import RunState, SeenRun, SeenSteps, SeenWorker, WorkerSeat, attempt_key
from scheduler.backends.registry import Backends
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.backends.stepfiles import steps_in
from scheduler.models import Attempt, Job, JobState, Placement
from scheduler.selectors.jobs import attempt_sittings, job_attempts
from scheduler.services.jobs.tokens import token_digest
from scheduler.services.loop.observe import runs_observe, steps_seen
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of

PEAK = 989e12


@pytest.fixture
def told(client: Client, db: None):
    """`told(flops=…)`: a gang of 16 H100 reports, and what the API and the page say then."""
    User.objects.create_superuser("root", "root@example.org", "x")
    client.force_login(User.objects.get(username="root"), backend="allauth.account.auth_backends.AuthenticationBackend")
    job = builders.job(state=JobState.RUNNING, gpus_milli=16_000)
    builders.attempt(job, token_digest=token_digest("secret"))
    for worker in range(2):
        for gpu in gpus_of(builders.node(gpus=8)):
            builders.placement(job, gpu, worker=worker)

    def report(**body: object) -> tuple[dict | None, str]:
        sent = Client().post("/api/v1/steps", body, content_type="application/json", headers={"Authorization": "Bearer secret"})
        assert sent.status_code == 204, sent.content
        return shown(client)

    return report


def shown(client: Client) -> tuple[dict, str]:
    """What the API and the page of the only job say."""
    name = Job.objects.get().public_id
    page = client.get(reverse("job", args=[name]))
    return client.get(f"/api/v1/jobs/{name}/usage").json()["mfu"], " ".join(page.content.decode().split())


def test_operations_by_the_slowest_rank_and_the_peak_of_all_gpus_held(told):
    found, page = told(ranks=2, seconds={"0": 1.0, "1": 1.25}, flops=0.4 * 16 * PEAK)

    assert found["percent"] == 32.0
    assert (found["step_seconds"], found["precision"], found["fault"]) == (1.25, "bf16", "")
    assert "MFU <strong>32.0%</strong> in bf16." in page and "A step takes 1.25 s" in page


def test_a_file_tells_the_same_and_an_old_one_nothing(told):
    run = Attempt.objects.get()
    moment = now()

    def by_file(after_seconds: float, seconds: float, flops: float = 0.5 * 16 * PEAK, precision: str = "bf16") -> None:
        one = SeenSteps(moment + timedelta(seconds=after_seconds), 2, ((0, 1.0), (1, seconds)), flops, precision)
        steps_seen.send(None, told=[(run.pk, one)], now=moment)

    for after in (-3600, 3600):
        by_file(after, 1.0)
    assert not StepLook.objects.exists()
    by_file(-40, 1.25)
    by_file(-40, 9.0)
    by_file(-20, 1.25, precision="int3")

    found, page = told(ranks=2, seconds={"0": 1.0})
    assert (found["percent"], found["step_seconds"]) == (40.0, 1.25)
    assert "MFU <strong>40.0%</strong>" in page


def test_files_of_ranks_reach_page_and_api_by_way_of_each_clusters_back_end(told, client: Client, tmp_path: Path):
    run, held = Attempt.objects.get(), Placement.objects.order_by("worker", "pk").select_related("node")
    seats = {one.worker: SeenWorker(WorkerSeat(one.role, one.worker, one.node.name), RunState.RUNNING) for one in held}

    class LeavesFiles(SimulatedBackend):
        def __init__(self, name: str) -> None:
            super().__init__(MemoryStore())
            self.folder = tmp_path / name
            self.folder.mkdir()

        def write(self, rank: int, seconds: float, **more: float) -> None:
            (self.folder / f"steps-{rank}.json").write_text(json.dumps({"ranks": 2, "seconds": {rank: seconds}, **more}))

        def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
            key = attempt_key(job=run.job.public_id, attempt=run.number)
            return (SeenRun(key, 0, RunState.RUNNING, tuple(seats.values()), started_at=NOON, steps=steps_in(self.folder)),)

    here, there = LeavesFiles("here"), LeavesFiles("there")
    backends = Backends({builders.cluster().pk: here, builders.cluster("south").pk: there})
    here.write(0, 1.0, flops=0.4 * 16 * PEAK)
    runs_observe(backends=backends, now=now(), full=False)
    # Within the five seconds for which nothing more is taken from the first.
    there.write(1, 1.25)
    here.write(0, 9.0)
    runs_observe(backends=backends, now=now(), full=False)

    found, page = shown(client)
    assert (found["percent"], found["step_seconds"], found["fault"]) == (32.0, 1.25, "")
    assert "MFU <strong>32.0%</strong> in bf16." in page and "A step takes 1.25 s" in page


def test_ranks_whose_file_is_seen_late_are_not_lost(told):
    """As those of another cluster, which is looked at by itself."""
    run, moment = Attempt.objects.get(), now()
    begin = moment - timedelta(seconds=(moment.timestamp() % 15) + 15)  # of a look

    def by_file(after: float, rank: int, seconds: float, flops: float | None = None) -> None:
        steps_of_files(told=[(run.pk, SeenSteps(begin + timedelta(seconds=after), 2, ((rank, seconds),), flops))], now=moment)

    by_file(9, 0, 1.0)
    by_file(3, 1, 1.25, flops=1e15)
    by_file(4, 1, 9.0)

    row = StepLook.objects.get()
    assert (looks_of(row).tolist(), row.flops) == ([[1.0, 1.25]], 1e15)


def test_a_gang_larger_than_what_its_attempt_holds_is_not_believed(told):
    told(ranks=FEW_RANKS + 1, seconds={"0": 1.0})
    assert not StepLook.objects.exists()
    told(ranks=FEW_RANKS, seconds={"0": 1.0})
    assert StepLook.objects.exists()


def test_operations_hold_until_others_are_told(told):
    told(ranks=2, seconds={"0": 1.0}, flops=0.5 * 16 * 1979e12, precision="fp8")
    found, _ = told(ranks=2, seconds={"1": 1.0})

    assert (found["percent"], found["precision"]) == (50.0, "fp8")
    assert told(ranks=2, seconds={"1": 1.0}, flops=0.2 * 16 * PEAK)[0]["percent"] == 20.0


def test_of_an_attempt_that_has_ended_what_it_held_at_its_end_counts(told):
    told(ranks=2, seconds={"0": 1.0}, flops=0.4 * 8 * PEAK)
    run = Attempt.objects.get()
    Placement.objects.filter(worker=1).update(until=NOON + timedelta(hours=1))
    Placement.objects.filter(worker=0).update(until=NOON + timedelta(hours=9))
    Attempt.objects.update(ended_at=NOON + timedelta(hours=9))

    access = Access(actor=SYSTEM, grants=(Grant("", frozenset({Can.SEE})),))
    used = job_usage(access, run.job, job_attempts(run.job), attempt_sittings(run), now=NOON + timedelta(hours=10))
    assert used.attempt is not None and used.attempt.mfu is not None
    assert used.attempt.mfu.percent == 40.0


def test_an_attempt_that_ended_a_moment_ago_may_hold_its_places_still(told):
    Attempt.objects.update(ended_at=NOON)
    run = Attempt.objects.get()

    access = Access(actor=SYSTEM, grants=(Grant("", frozenset({Can.SEE})),))
    assert job_usage(access, run.job, job_attempts(run.job), attempt_sittings(run), now=NOON).attempt is not None


def test_a_step_of_no_time_is_not_believed(told):
    found, _ = told(ranks=1, seconds={"0": 1e-50}, flops=1e15)

    assert found is None


def test_a_job_that_tells_no_operations_has_none(told):
    found, page = told(ranks=2, seconds={"0": 1.0})

    assert found is None and "MFU" not in page


def test_more_than_the_gpus_can_compute_is_a_fault_and_no_figure(told):
    found, page = told(ranks=2, seconds={"0": 1.0}, flops=2 * 16 * PEAK)

    assert found["percent"] is None and found["fault"].startswith("The operations told are 200% of what its GPUs can compute in a step")
    assert "No MFU: The operations told are 200%" in page


def test_a_precision_that_the_gpus_lack_is_a_fault(told):
    assert told(ranks=2, seconds={"0": 1.0}, flops=1e15, precision="fp4")[0]["fault"] == "The peak of H100-SXM-80GB in fp4 is not known."


@pytest.mark.parametrize("wrong", [{"flops": 0}, {"flops": -1}, {"flops": 1e300}, {"flops": "1e15"}, {"flops": 1e15, "precision": "int4"}])
def test_impossible_operations_are_refused(told, wrong):
    sent = Client().post(
        "/api/v1/steps", {"ranks": 2, "seconds": {}, **wrong}, content_type="application/json", headers={"Authorization": "Bearer secret"}
    )

    assert sent.status_code == 422
    assert not StepLook.objects.exists()


def test_a_form_is_found_before_its_model():
    names = ("H100-SXM-80GB", "NVIDIA H100 PCIe", "H200 NVL", "NVIDIA GB200", "gtx")
    assert [peak_tflops(name, "bf16") for name in names] == [989, 756, 835, 2500, None]
