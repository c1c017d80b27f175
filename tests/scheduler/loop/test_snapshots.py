"""Rows as the engine's scenario: what is shown and what is not, the same objects for what did not change, and the same plan from the export."""

import gzip
import json
from datetime import timedelta

import pytest

from gpufleet.core.times import millis
from quotas.models import QuotaNode
from scheduler.cli import spell
from scheduler.engine.cycle import make_plan
from scheduler.loop.policy import policy
from scheduler.models import Checkpoint, Gpu, Job, JobState, Outlook, PlanRecord, Repartition
from scheduler.scenarios.reading import load
from scheduler.scenarios.spelling import spelt
from scheduler.services.forecasts.forecasting import forecast_run
from scheduler.services.jobs.jobs import Seat, job_hold, job_let_go, job_start, job_stop, job_transition
from scheduler.services.loop.plans import NotKept, plan_export, plan_replay, plans_forget
from scheduler.snapshots import Snapshot, Snapshots
from scheduler.snapshots.spelling import Speller
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import Loop, attempt_of, leaf, submit

pytestmark = pytest.mark.django_db


def take(snapshots: Snapshots | None = None, now: object = NOON) -> Snapshot:
    chosen = policy()
    return (snapshots or Snapshots()).take(settings=chosen.engine, now=now, start_timeout=chosen.start_timeout)  # type: ignore[arg-type]


def busy_world() -> Loop:
    """Two clusters with other levels, a split GPU, a sick one; jobs in every state that the engine knows."""
    builders.cluster(levels=("spine", "leaf"))
    node = builders.node(gpus=8, at="spine-1/leaf-1", labels={"pool": "a"}, pcie_gbps=55)
    builders.node(gpus=8, at="spine-1/leaf-2", of=builders.cluster())
    builders.mig_gpu(node)
    Gpu.objects.filter(node=node, index=7).update(health="down")
    builders.node(gpus=4, of=builders.cluster("south", levels=("leaf", "rack")))
    builders.node(of=builders.cluster("south"), name="login")
    loop = Loop()
    lender, borrower = leaf("lender", 16), leaf("borrower", 0, 12)
    jobs = [submit(borrower, gpus=4, spec={"checkpoint": {"interval_s": 600}}) for _ in range(3)]
    submit(lender, gpus=1, spec={"roles": [{"mig": "3g.40gb"}], "throughput": {"H100-SXM-80GB": 0.5}}, gpus_milli=500)
    loop.tick()
    for job in jobs:
        if Job.objects.get(pk=job.pk).state == JobState.STARTING:
            run = loop.up(job)
            Checkpoint.objects.create(job=job, attempt=run, step=3, verified_at=NOON, reported_at=NOON)
    loop.after(hours=1)
    submit(lender, gpus=1, at=loop.now, priority=95)
    submit(lender, gpus=8, at=loop.now, priority=90)
    submit(lender, gpus=1, workers=16, at=loop.now, spec={"checkpoint": None})
    loop.tick()
    return loop


def test_the_export_is_the_same_scenario_and_gives_the_same_plan() -> None:
    loop = busy_world()
    snapshot = take(now=loop.now)
    document = json.dumps(spelt(snapshot.scenario))
    again = load(document)

    states = {job.run.state for job in snapshot.scenario.jobs}
    assert {"starting", "stopping", "reserved"} <= states
    assert spelt(again) == spelt(snapshot.scenario)
    assert spell(make_plan(again).as_json()) == spell(make_plan(snapshot.scenario, snapshot.kept).as_json())
    speller = Speller()
    assert json.loads(speller.spell(snapshot.scenario)) == json.loads(document)
    assert json.loads(speller.spell(snapshot.scenario)) == json.loads(document)  # the second time from what is known


def test_who_came_by_a_clock_that_is_ahead_has_come() -> None:
    """Nothing waits for the clock of the scheduler to catch up, and the plan can be made again from its file."""
    builders.node(gpus=8)
    ahead = submit(leaf("team", 8), gpus=8, at=NOON + timedelta(milliseconds=40))
    snapshots = Snapshots()
    first = take(snapshots)
    (job,) = first.scenario.jobs

    assert job.name == ahead.public_id
    assert job.submitted == first.scenario.now
    assert [one.action for one in make_plan(load(json.dumps(spelt(first.scenario)))).decisions] == ["start"]
    assert first.came == {job.name: job.submitted + 40}
    assert take(snapshots, NOON + timedelta(milliseconds=40)).came == {}


def test_who_was_promised_places_until_now_is_shown_without_them() -> None:
    """Also where no timer has run yet: what a page asks of the engine, and the export, are no plans of the loop."""
    loop = busy_world()
    snapshots = Snapshots()
    before = {job.name: job for job in take(snapshots, loop.now).scenario.jobs}
    late = max(job.run.until or 0 for job in before.values()) - millis(loop.now)
    snapshot = take(snapshots, loop.now + timedelta(milliseconds=late))
    after = {job.name: job.run for job in snapshot.scenario.jobs}

    assert {"reserved", "starting"} <= {job.run.state for job in before.values()}
    for name, job in before.items():
        if job.run.state == "reserved":
            assert (after[name].state, after[name].workers) == ("queued", ())
        elif job.run.state == "starting":
            assert (after[name].state, after[name].workers) == ("stopping", job.run.workers)
        else:
            assert after[name] == job.run
    assert spell(make_plan(load(json.dumps(spelt(snapshot.scenario)))).as_json()) == spell(make_plan(snapshot.scenario, snapshot.kept).as_json())


def test_every_recorded_plan_can_be_made_again_from_its_export() -> None:
    busy_world()
    records = list(PlanRecord.objects.order_by("id"))

    assert [len(record.decisions) for record in records if record.decisions]
    for record in records:
        assert plan_replay(record=record)["identical"]
    decisions = [decision["action"] for record in records for decision in record.decisions]
    assert {"start", "evict"} <= set(decisions)
    # A plan that was tampered with is found out: the comparison compares.
    broken = records[0]
    broken.decisions = [*broken.decisions, {"action": "start"}]
    assert not plan_replay(record=broken)["identical"]


def test_scenarios_are_dropped_after_three_hours_and_records_stay() -> None:
    loop = busy_world()
    kept = PlanRecord.objects.filter(scenario__isnull=False).count()
    assert kept >= 2
    assert json.loads(plan_export(record=PlanRecord.objects.order_by("id")[0]))["format"] == "gpufleet-scenario/1"
    assert plans_forget(now=NOON + timedelta(hours=3, minutes=1)) == 1
    assert plans_forget(now=loop.now + timedelta(hours=3, minutes=1)) == kept - 1
    with pytest.raises(NotKept):
        plan_export(record=PlanRecord.objects.order_by("id")[0])


def test_what_did_not_change_is_the_same_object_and_what_did_is_not() -> None:
    loop = busy_world()
    snapshots = Snapshots()
    before = take(snapshots, loop.now)
    same = take(snapshots, loop.now)
    assert all(one is other for one, other in zip(before.scenario.jobs, same.scenario.jobs, strict=True))
    assert same.scenario.nodes is before.scenario.nodes
    assert same.scenario.quotas is before.scenario.quotas

    changed = next(job for job in before.scenario.jobs if job.run.state == "queued")
    Job.objects.filter(public_id=changed.name).update(priority=7, revision=99)
    after = {job.name: job for job in take(snapshots, loop.now).scenario.jobs}
    assert after[changed.name].kind.priority == 7
    assert [job.name for job in before.scenario.jobs if after[job.name] is not job] == [changed.name]

    Gpu.objects.filter(node__name=before.scenario.nodes[0].name.split("/")[1], index=0).update(health="down")
    assert take(snapshots, loop.now).scenario.nodes is not before.scenario.nodes
    fresh = take(now=loop.now)
    assert spelt(take(snapshots, loop.now).scenario) == spelt(fresh.scenario)  # remembering changes nothing


def test_who_is_not_demand_is_not_shown() -> None:
    builders.node(gpus=8)
    held, later, retried, drawn, behind = (submit() for _ in range(5))
    Job.objects.filter(pk=held.pk).update(held_at=NOON)
    Job.objects.filter(pk=later.pk).update(not_before=NOON + timedelta(seconds=1))
    Job.objects.filter(pk=retried.pk).update(retry_at=NOON + timedelta(seconds=1))
    Job.objects.filter(pk=drawn.pk).update(state=JobState.DRAFT)
    behind.dependencies.create(on=held)
    shown = submit()

    assert [job.name for job in take().scenario.jobs] == [shown.public_id]
    assert len(take(now=NOON + timedelta(seconds=1)).scenario.jobs) == 3


def test_the_bound_of_a_wait_counts_from_when_it_could_start() -> None:
    """A job on hold for a day would head all reservations the moment it is released."""
    builders.node(gpus=8)
    team = leaf("team", 8)
    QuotaNode.objects.filter(parent=None).update(policy={"max_wait_batch_s": 3600})
    loop, snapshots = Loop(), Snapshots()
    waits, held = submit(team, gpus=9), submit(team, gpus=9)
    job_hold(job=held, now=loop.now)
    loop.tick()
    forecast_run(holder="tests", now=loop.now)
    loop.after(hours=2)
    job_let_go(job=Job.objects.get(pk=held.pk), now=loop.now)

    for _ in range(2):  # as it is released, and once its wait for GPUs was written down
        found = {job.name: job for job in take(snapshots, loop.now).scenario.jobs}
        assert found[waits.public_id].waiting_since == millis(NOON)
        assert found[held.public_id].waiting_since == millis(NOON + timedelta(hours=2))
        loop.tick()
        loop.after(minutes=1).tick()

    QuotaNode.objects.filter(parent=None).update(policy={})
    assert {job.waits_since for job in take(snapshots, loop.now).scenario.jobs} == {None}, "nobody asks"


def test_a_job_that_cant_be_read_keeps_its_gpus_to_itself() -> None:
    node = builders.node(gpus=8)
    odd = submit(gpus=4)
    gpus = list(Gpu.objects.filter(node=node).order_by("index"))
    job_start(job=odd, seats=[Seat(node.pk, gpu.pk) for gpu in gpus[2:6]], now=NOON, cause="")
    job_transition(job=odd, to=JobState.RUNNING, now=NOON, cause="")
    Job.objects.filter(pk=odd.pk).update(spec={"roles": [{"gpus": 3, "colour": "blue"}]}, revision=50)
    late = submit(gpus=8)
    small = submit(gpus=4)
    snapshot = take()

    assert "colour" in snapshot.left_out[odd.public_id].why
    assert snapshot.scenario.nodes[0].unhealthy == 0b111100
    Loop().tick()
    assert (Job.objects.get(pk=late.pk).state, Job.objects.get(pk=small.pk).state) == ("queued", "starting")


def test_a_waiting_job_that_cant_be_read_says_so() -> None:
    builders.node(gpus=8)
    odd = submit(gpus=4)
    Job.objects.filter(pk=odd.pk).update(spec={"roles": [{"gpus": 4, "colour": "blue"}]})
    Loop().tick()

    def said() -> list[tuple[str, bool]]:
        return [(one["code"], "colour" in one["detail"]) for one in Outlook.objects.get(job=odd).reasons]

    assert said() == [("aside", True)]
    forecast_run(holder="one", now=NOON, force=True)
    assert said() == [("aside", True)]


def test_levels_of_several_clusters_become_one_list_and_paths_are_whole() -> None:
    busy_world()
    scenario = take().scenario

    assert scenario.topology.levels == ("spine", "leaf", "rack")
    assert [node.path for node in scenario.nodes if node.name.startswith("north")] == [
        ("north", "spine-1", "leaf-1", f"only {name}") if name == first else ("north", "spine-1", "leaf-2", f"only {name}")
        for first in [scenario.nodes[0].name.split("/")[1]]
        for name in [node.name.split("/")[1] for node in scenario.nodes if node.name.startswith("north")]
    ]
    assert all(len(node.path) == 4 for node in scenario.nodes)
    assert not any(node.name.endswith("login") for node in scenario.nodes)  # no GPUs, no type


def test_work_on_an_inner_node_of_the_tree_is_a_leaf_of_its_own() -> None:
    builders.node(gpus=8)
    leaf("team", 8)
    job = submit(builders.quota(), gpus=1)
    scenario = take().scenario

    assert [quota.name for quota in scenario.quotas] == ["acme", "acme/-", "acme/team"]
    assert scenario.jobs[0].quota == "acme/-"
    assert Loop().tick().decided == 1
    assert attempt_of(job)


def test_a_running_job_whose_stop_was_asked_is_stopping_until_its_grace_is_over() -> None:
    builders.node(gpus=8)
    loop, job = Loop(), submit()
    loop.tick()
    loop.up(job)
    job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="", now=NOON, grace_seconds=90)
    run = take().scenario.jobs[0].run

    assert (run.state, run.until) == ("stopping", take().scenario.now + 90_000)


def test_what_was_split_within_the_hour_counts_for_the_rate() -> None:
    gpu = builders.gpu(builders.node(gpus=2))
    for minutes in (61, 60, 59, 1, -5):  # the last one by a clock that has been set back since
        Repartition.objects.create(gpu=gpu, cluster_id=gpu.node.cluster_id, at=NOON - timedelta(minutes=minutes))
    snapshots = Snapshots()

    (node,) = take(snapshots).scenario.nodes
    assert node.repartitioned == tuple(millis(NOON - timedelta(minutes=minutes)) for minutes in (59, 1))
    assert load(json.dumps(spelt(take(snapshots).scenario))).nodes == (node,)
    assert take(snapshots, NOON + timedelta(hours=2)).scenario.nodes[0].repartitioned == ()


def test_the_packed_scenario_is_gzip() -> None:
    busy_world()
    packed = PlanRecord.objects.exclude(scenario=None).order_by("id").values_list("scenario", flat=True)[0]
    assert json.loads(gzip.decompress(bytes(packed)))["jobs"]
