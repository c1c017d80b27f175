"""The life cycle of a node that falls ill (HLT-7), played through: raw state, rules, the running loop and a simulated back-end, minute by minute."""

from collections.abc import Sequence
from datetime import timedelta

import pytest

from dashboards.health.models import HealthRule, HealthSettings, Incident
from dashboards.health.round import health_round
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import IN_SERVICE, Cluster, Gpu, GpuMode, Health, Job, JobState, Node
from scheduler.services.hardware.hardware import node_health_change
from scheduler.services.loop.runs import Ended, attempts_ended
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import look
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas
from tests.scheduler.loop.worlds import leaf, state, submit

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def nodes_of(job: Job) -> set[str]:
    return set(job.placements.filter(until__isnull=True).values_list("node__name", flat=True))


def test_a_node_that_falls_ill_has_its_gang_moved_to_a_spare_and_is_repaired_tested_and_back() -> None:
    HealthRule.objects.all().delete()
    builders.cluster(levels=("spine", "leaf"))
    pool, other = builders.pool(), builders.pool("other")
    spares = {"n8": ("spine-1/leaf-2", pool), "n9": ("spine-1/leaf-1", pool), "x0": ("spine-1/leaf-1", other)}
    for number in range(8):
        builders.node(f"n{number}", gpus=2, at=f"spine-1/leaf-{1 + number // 4}", pool=pool)
    for name, (at, its) in spares.items():
        builders.node(name, gpus=2, at=at, pool=its, spare=True)
    for action, threshold in (("suspect", 10), ("drain", 50)):
        facts = {"signal": "ecc_corrected", "window_minutes": 5, "clear_below": 5, "clear_minutes": 5}
        HealthRule.objects.create(public_id=f"hr-{action}", name=f"ECC: {action}", threshold=threshold, action=action, **facts)
    HealthSettings.objects.create(pk=1, most_percent=10, patience_minutes=3, repair_minutes=8, burn_in_minutes=5)
    backends, memory = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}, Memory()

    def tick(seconds: int) -> None:
        tick_run(holder="one", now=NOON + timedelta(seconds=seconds), backends=backends, memory=memory)

    team = leaf("team", 16)
    long = {"estimate_s": 86_400, "work_s": 86_400, "grace_s": 30, "checkpoint": {"interval_s": 60, "save_s": 5, "restore_s": 1}}
    gang = submit(team, workers=2, gpus=2, name="gang", preemptible="yes", spec=long)
    tick(-900)
    others = [submit(team, gpus=2, name=f"single-{number}", preemptible="yes", spec=long) for number in range(6)]
    tick(-600)
    waiting = submit(team, gpus=2, name="waiting", preemptible="yes", spec=long)
    for seconds in (-300, -200, -100):
        tick(seconds)
    assert {state(job) for job in [gang, *others]} == {JobState.RUNNING}
    assert state(waiting) == JobState.QUEUED
    sick = Node.objects.get(name=min(nodes_of(gang)))
    also = Node.objects.get(name=nodes_of(others[0]).pop())
    assert sick.pk < also.pk, "rules look at it first"

    gpus, errors, lives = [gpu for node in Node.objects.order_by("pk") for gpu in gpus_of(node)], 0, []
    for minute in range(40):
        errors += 20 * (1 <= minute <= 3)
        look(gpus, {"ecc_corrected": {gpus_of(sick)[1]: errors, gpus_of(also)[0]: errors}}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)
        lives.append(dict(Node.objects.values_list("name", "health")))
        assert sum(health not in IN_SERVICE for health in lives[-1].values()) <= 1, "10% of ten nodes"
        tick(60 * minute + 1)
        tick(60 * minute + 35)

    def life(node: Node) -> list[str]:
        healths = [one[node.name] for one in lives]
        return [health for before, health in zip(["", *healths], healths, strict=False) if health != before]

    assert life(sick) == ["healthy", "suspect", "draining", "drained", "repairing", "burn_in", "healthy"]
    assert life(also) == ["healthy", "suspect", "healthy"]
    assert state(gang) == JobState.RUNNING
    assert "n9" in nodes_of(gang) and sick.name not in nodes_of(gang), "the spare of its pool that is nearest"
    assert [attempt.outcome for attempt in gang.attempts.order_by("pk")] == ["moved", ""]
    assert {state(job) for job in others} == {JobState.RUNNING}

    incident, held = Incident.objects.get(node=sick), Incident.objects.get(node=also)
    test = incident.burn_in
    assert test is not None and (test.state, test.placements.count()) == (JobState.COMPLETED, 2)
    assert set(test.placements.values_list("node__name", flat=True)) == {sick.name}
    assert incident.closed_at is not None and held.closed_at is not None
    assert held.steps.filter(text__startswith="Not taken out of service").exists()

    assert incident.steps.filter(text="1 job was asked to save and moves to n9, a spare.").count() == 1
    assert set(Node.objects.filter(spare=True).values_list("name", flat=True)) == spares.keys(), "it serves as a replacement and stays a spare"
    assert nodes_of(waiting) == {sick.name}, "no job that waits comes in between; it has the node that came back"


def in_burn_in(
    personas: Personas, *, modes: Sequence[GpuMode] = (GpuMode.WHOLE,) * 2, backend: str = "simulated", after: timedelta = timedelta()
) -> Node:
    """A node that a rule drained, and that a person has repaired since, so long after minute 30."""
    HealthRule.objects.all().delete()
    builders.quota()
    node = builders.node(gpus=len(modes), of=builders.cluster(backend=backend))
    gpus = gpus_of(node)
    for gpu, mode in zip(gpus, modes, strict=True):
        Gpu.objects.filter(pk=gpu.pk).update(mode=mode)
    facts = {"signal": "xid", "group": "support", "threshold": 1, "window_minutes": 5, "clear_below": 1, "clear_minutes": 5, "action": "drain"}
    HealthRule.objects.create(public_id="hr-1", name="XID", **facts)
    look(gpus, {}, at=NOON, xids=[(gpus[0], 79)])
    for minute in range(3):
        health_round(now=NOON + minute * MINUTE)
    node_health_change(access=personas.access("operator"), node=node, to=Health.BURN_IN, reason="A new board.", now=NOON + 30 * MINUTE + after)
    rounds(gpus, 30, 32)
    return Node.objects.get(pk=node.pk)


def rounds(gpus: Sequence[Gpu], first: int, last: int) -> None:
    for minute in range(first, last):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)


@pytest.mark.parametrize("backend", ["local", "slurm"])
def test_without_a_test_command_a_node_in_burn_in_waits_for_a_person(personas: Personas, backend: str) -> None:
    node = in_burn_in(personas, backend=backend)
    rounds(gpus_of(node), 32, 60)

    incident = Incident.objects.get()
    node.refresh_from_db()
    assert (node.health, incident.burn_in, Job.objects.count()) == (Health.BURN_IN, None, 0)
    for place in (f"/incidents/{incident.public_id}/", f"/nodes/{node.public_id}/"):
        assert "Not tested: no test command is set." in personas.client("operator").get(place).content.decode()
    assert incident.steps.filter(text__contains="Not tested").count() == 1

    HealthSettings.objects.create(pk=1, burn_in_command=["dcgmi", "diag", "-r", "2"])
    rounds(gpus_of(node), 60, 61)
    incident.refresh_from_db()
    assert incident.burn_in is not None
    assert incident.burn_in.launch["command"] == ["dcgmi", "diag", "-r", "2"]


def test_a_node_that_is_repaired_a_moment_after_a_round_has_looked_at_its_clock_is_tested_once(
    personas: Personas, caplog: pytest.LogCaptureFixture
) -> None:
    node = in_burn_in(personas, after=timedelta(milliseconds=13))
    test = Incident.objects.get().burn_in
    assert test is not None and test.submitted_at == node.health_since
    rounds(gpus_of(node), 32, 35)

    assert Job.objects.get() == test
    assert "failed" not in caplog.text


def test_a_test_that_began_before_the_node_was_repaired_is_ended_and_another_takes_its_place(
    personas: Personas, caplog: pytest.LogCaptureFixture
) -> None:
    node = in_burn_in(personas)
    Job.objects.update(submitted_at=NOON + 29 * MINUTE)
    rounds(gpus_of(node), 32, 33)
    old = Job.objects.get()
    assert old.state in (JobState.CANCELLED, JobState.CHECKPOINTING)
    for attempt in old.attempts.filter(ended_at__isnull=True):
        attempts_ended(ends=[Ended(attempt.pk, 143, "")], now=NOON + 33 * MINUTE)
    rounds(gpus_of(node), 33, 36)

    test = Incident.objects.get().burn_in
    assert test is not None and test != old and test.placements.filter(until__isnull=True).count() == 2
    assert "failed" not in caplog.text


def test_gpus_that_no_test_job_runs_on_have_not_passed(personas: Personas) -> None:
    node = in_burn_in(personas, modes=(GpuMode.MIG, GpuMode.MIG))
    rounds(gpus_of(node), 32, 60)
    node.refresh_from_db()
    assert (node.health, node.health_reason) == (Health.BURN_IN, "Not tested: none of its GPUs is whole. Mark it healthy once it is checked.")


def test_a_test_whose_node_was_lost_has_failed_though_its_job_passes_elsewhere(personas: Personas) -> None:
    """A node that restarts in its test: the job waits again, and the scheduler would let it run on any node."""
    node = in_burn_in(personas)
    test = Incident.objects.get().burn_in
    assert test is not None
    attempts_ended(ends=[Ended(test.attempts.get().pk, None, "The node restarted.", node_lost=True)], now=NOON + 33 * MINUTE)
    test.refresh_from_db()
    assert test.state == JobState.QUEUED
    for gpu in gpus_of(builders.node(gpus=2)):
        builders.placement(test, gpu, since=NOON + 34 * MINUTE, until=NOON + 44 * MINUTE)
    Job.objects.filter(pk=test.pk).update(state=JobState.COMPLETED, ended_at=NOON + 44 * MINUTE)

    rounds(gpus_of(node), 45, 47)

    node.refresh_from_db()
    assert node.health == Health.REPAIRING
    assert Incident.objects.get().closed_at is None


def test_a_test_that_lost_its_node_is_not_started_again(personas: Personas) -> None:
    node = in_burn_in(personas)
    test = Incident.objects.get().burn_in
    assert test is not None
    attempts_ended(ends=[Ended(test.attempts.get().pk, None, "The node restarted.", node_lost=True)], now=NOON + 33 * MINUTE)

    rounds(gpus_of(node), 33, 36)

    test.refresh_from_db()
    node.refresh_from_db()
    assert (test.state, node.health) == (JobState.CANCELLED, Health.REPAIRING)
    assert f"Burn-in failed: {test.public_id} lost {node.name}." in node.health_reason


def test_a_test_of_some_gpus_of_a_node_leaves_the_others_to_a_person(personas: Personas) -> None:
    node = in_burn_in(personas, modes=(GpuMode.WHOLE, GpuMode.MIG))
    test = Incident.objects.get().burn_in
    assert test is not None and test.placements.count() == 1
    attempts_ended(ends=[Ended(test.attempts.get().pk, 0)], now=NOON + 40 * MINUTE)
    rounds(gpus_of(node), 40, 60)

    node.refresh_from_db()
    assert node.health == Health.BURN_IN
    assert node.health_reason == "Burn-in passed on 1 of 2 GPUs; the others are not whole. Mark it healthy once they are checked."
