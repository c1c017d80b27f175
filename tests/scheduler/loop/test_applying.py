"""Writing a plan down although the world moved on: what changed is dropped with all that hangs on it, the rest is done, and nothing is ever half."""

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from gpufleet.core.live.news import News
from quotas.models import QuotaNode
from scheduler.engine.model.mig import Instance
from scheduler.engine.model.plan import Decision, Plan, Stand
from scheduler.engine.model.reasons import reason
from scheduler.models import Attempt, Gpu, GpuMode, Job, JobEvent, JobState, MigInstance, Node, Order, Placement, PlanRecord, Promise, Repartition
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.loop.applying import LEAVERS_FIRST, _goes_from, plan_apply
from scheduler.services.loop.lease import lease_take
from scheduler.services.power import cap_set
from scheduler.services.windows.reservations import reservation_request
from tests import builders
from tests.builders import NOON
from tests.invariants import fleet_faults
from tests.scheduler.loop.test_lease import interrupted
from tests.scheduler.loop.test_snapshots import take
from tests.scheduler.loop.worlds import H100, Loop, attempt_of, gpus_of, leaf, state, submit
from tests.scheduler.test_jobs import Blown, Fuse

pytestmark = pytest.mark.django_db


def cancel(job: Job, now: Any = NOON) -> None:
    job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Not needed.", now=now)


def borrowed_fleet() -> tuple[Loop, Job, Any]:
    """Eight GPUs, all held by a borrower that may be put out by now, and the leaf that they are guaranteed to."""
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop, taken = Loop(), submit(borrower, gpus=8)
    loop.tick()
    loop.up(taken)
    loop.after(hours=1)
    return loop, taken, lender


def dropped() -> list[tuple[str, str]]:
    """(action, why) of what the last plan could not do."""
    record = PlanRecord.objects.order_by("-id")[0]
    return [(decision["action"], decision["dropped"]) for decision in record.dropped]


def test_a_cancelled_winner_puts_nobody_out() -> None:
    loop, taken, lender = borrowed_fleet()
    owner = submit(lender, gpus=4, at=loop.now)
    interrupted(loop, lambda: cancel(owner, loop.now))
    result = loop.tick()

    assert (result.dropped, result.again) == (2, True)
    assert dropped() == [
        ("evict", "The job that it makes room for does not start."),
        ("start", "Its job has moved on since the snapshot."),
    ]
    assert (state(taken), state(owner)) == (JobState.RUNNING, JobState.CANCELLED)
    assert not Promise.objects.exists()


@pytest.mark.parametrize(("limit", "becomes"), [(8, JobState.QUEUED), (None, JobState.STARTING)])
def test_nobody_takes_the_room_below_a_limit_that_a_victim_does_not_leave(limit: int | None, becomes: JobState) -> None:
    """The victim would have left two GPUs more than the cancelled winner takes, and the third job was to have them."""
    builders.node(gpus=8)
    builders.node("gpu-02", gpus=8)
    team = leaf("team", 8, limit)
    loop, taken, stays = Loop(), submit(team, gpus=4, priority=10), submit(team, gpus=4, priority=90)
    loop.tick()
    loop.up(taken)
    loop.up(stays)
    loop.after(hours=1)
    winner, third = submit(team, gpus=2, at=loop.now, priority=80), submit(team, gpus=2, at=loop.now, priority=5)
    interrupted(loop, lambda: cancel(winner, loop.now))
    loop.tick()

    assert (state(taken), state(stays), state(winner), state(third)) == (JobState.RUNNING, JobState.RUNNING, JobState.CANCELLED, becomes)
    assert not fleet_faults()


@pytest.mark.parametrize(("kept", "becomes"), [(8, JobState.QUEUED), (None, JobState.STARTING)])
def test_nobody_takes_the_room_of_a_window_that_a_victim_does_not_leave(kept: int | None, becomes: JobState, personas: Any) -> None:
    """The same for a job of another team: of sixteen GPUs eight are kept idle for inference jobs, and the other eight are held."""
    builders.node(gpus=8)
    builders.node("gpu-02", gpus=8)
    team = leaf("team", 8, 8)
    loop, taken, stays = Loop(), submit(team, gpus=4, priority=10), submit(team, gpus=4, priority=90)
    loop.tick()
    loop.up(taken)
    loop.up(stays)
    if kept is not None:
        begins = NOON + timedelta(minutes=30)
        floor: dict[str, Any] = {"name": "Serving", "job_class": "inference", "gpu_type": H100, "gpus": kept, "starts_at": begins}
        reservation_request(access=personas.access("superuser"), given=floor, now=NOON)
    loop.after(hours=1)
    winner, third = submit(team, gpus=2, at=loop.now, priority=80), submit(leaf("other"), gpus=2, at=loop.now, priority=5)
    interrupted(loop, lambda: cancel(winner, loop.now))
    loop.tick()

    assert (state(taken), state(stays), state(winner), state(third)) == (JobState.RUNNING, JobState.RUNNING, JobState.CANCELLED, becomes)


@pytest.mark.parametrize(("watts", "becomes"), [(5600, JobState.QUEUED), (None, JobState.STARTING)])
def test_nobody_takes_the_power_that_a_victim_does_not_leave(watts: int | None, becomes: JobState, personas: Any) -> None:
    loop, taken, lender = borrowed_fleet()
    if watts is not None:
        cap_set(access=personas.access("operator"), given={"watts": watts}, now=loop.now)
    builders.node("l40s-01", gpus=4, type_name="L40S")
    owner, third = submit(lender, gpus=4, at=loop.now), submit(gpus=2, at=loop.now, spec={"gpu_types": ["L40S"]})
    interrupted(loop, lambda: cancel(owner, loop.now))
    loop.tick()

    assert (state(taken), state(owner), state(third)) == (JobState.RUNNING, JobState.CANCELLED, becomes)


def test_a_victim_that_ended_by_itself_stands_in_nobodys_way() -> None:
    loop, taken, lender = borrowed_fleet()
    owner = submit(lender, gpus=4, at=loop.now)
    interrupted(loop, lambda: loop.over(taken))
    result = loop.tick()

    assert (result.dropped, state(taken), state(owner)) == (0, JobState.COMPLETED, JobState.STARTING)
    assert not fleet_faults()


def test_a_victim_that_changed_keeps_its_place_and_the_winner_waits() -> None:
    loop, taken, lender = borrowed_fleet()
    owner = submit(lender, gpus=4, at=loop.now)
    interrupted(loop, lambda: Job.objects.filter(pk=taken.pk).update(priority=99, revision=77))
    result = loop.tick()

    assert result.dropped == 2
    assert (state(taken), state(owner)) == (JobState.RUNNING, JobState.QUEUED)
    assert {why for _, why in dropped()} == {"Its job has moved on since the snapshot.", "A decision that it depends on was dropped."}
    assert loop.tick().decided == 2  # by what is true now


def test_the_rest_of_a_plan_is_done() -> None:
    builders.node(gpus=8)
    stays, goes = submit(gpus=2), submit(gpus=2)
    loop = Loop()
    interrupted(loop, lambda: cancel(goes))
    result = loop.tick()

    assert (result.decided, result.dropped) == (1, 1)
    assert (state(stays), state(goes)) == (JobState.STARTING, JobState.CANCELLED)


def test_new_jobs_refuse_nothing() -> None:
    builders.node(gpus=8)
    job, loop = submit(gpus=2), Loop()
    interrupted(loop, lambda: submit(gpus=8))
    assert loop.tick().dropped == 0
    assert state(job) == JobState.STARTING


@pytest.mark.parametrize("change", [{"health": "down"}, {"health": "draining"}, {"removed_at": NOON}])
def test_hardware_that_went_meanwhile_is_given_to_nobody(change: dict[str, Any]) -> None:
    for kind, rows in (("node", Node.objects), ("gpu", Gpu.objects)):
        node = builders.node(gpus=8)
        job, loop = submit(gpus=8), Loop()
        where = {"pk": node.pk} if kind == "node" else {"node": node, "index": 5}
        interrupted(loop, lambda rows=rows, where=where: rows.filter(**where).update(**change))  # type: ignore[misc]
        assert loop.tick().dropped == 1
        assert state(job) == JobState.QUEUED
        cancel(job)
        Node.objects.filter(pk=node.pk).update(removed_at=NOON)


def test_another_tree_means_another_plan() -> None:
    builders.node(gpus=8)
    job, loop = submit(leaf("team", 8), gpus=8), Loop()
    interrupted(loop, lambda: QuotaNode.objects.filter(path="acme/team").update(revision=2))
    assert loop.tick().dropped == 1
    assert dropped() == [("start", "The quota tree has changed since the snapshot.")]
    assert loop.tick().decided == 1
    assert state(job) == JobState.STARTING


def test_what_is_dropped_again_and_again_is_not_tried_without_a_pause() -> None:
    builders.node(gpus=8)
    submit(leaf("team", 8), gpus=8)
    loop = Loop()
    asked = []
    for turn in range(4):
        interrupted(loop, lambda turn=turn: QuotaNode.objects.filter(path="acme/team").update(revision=2 + turn))  # type: ignore[misc]
        result = loop.tick(force=True)
        asked.append((result.again, (result.next_at or loop.now) - loop.now))
    assert asked == [(True, timedelta(0)), (False, timedelta(seconds=1)), (False, timedelta(seconds=3)), (False, timedelta(seconds=7))]


@pytest.mark.django_db(transaction=True)
def test_a_tick_that_dies_at_any_statement_leaves_nothing_half_and_the_next_one_goes_on() -> None:
    builders.node(gpus=8)
    # The first statements are of every kind; of the later ones every fifth.
    for nth in (*range(1, 25), *range(25, 400, 5)):
        quota = leaf("team", 8)
        job, loop = submit(quota, gpus=3), Loop(f"loop-{nth}")
        loop.now = NOON + timedelta(seconds=10 * nth)
        fuse = Fuse(nth)
        try:
            with connection.execute_wrapper(fuse):
                loop.tick()
        except Blown:
            died = True
        else:
            died = False
        assert not fleet_faults()
        after = Loop("after")
        after.now = loop.now + timedelta(seconds=5)
        after.tick()
        assert state(job) == JobState.STARTING
        after.over(job)
        if not died:
            break
    assert nth > 40
    assert Attempt.objects.count() == Job.objects.count()


def test_an_elastic_job_grows_into_idle_gpus_and_gives_them_back() -> None:
    builders.node(gpus=8)
    lender, borrower = leaf("lender", 8), leaf("borrower")
    loop = Loop()
    elastic = submit(borrower, gpus=2, workers=2, spec={"roles": [{"name": "worker", "min": 2, "max": 4, "gpus": 2}]})
    loop.tick()
    loop.up(elastic)
    assert gpus_of(elastic) == list(range(8))
    owner = submit(lender, gpus=4, at=loop.after(hours=1).now)
    loop.tick()

    # Surplus leaves; the minimum goes on running.
    assert (state(elastic), state(owner)) == (JobState.RUNNING, JobState.RESERVED)
    order = Order.objects.get(kind="resize")
    assert order.payload == {"add": [], "leave": [["worker", 2], ["worker", 3]]}
    assert Placement.objects.filter(leaving_since__isnull=False).count() == 4
    from scheduler.services.loop.runs import workers_left

    workers_left(attempt=attempt_of(elastic), workers=[("worker", 2), ("worker", 3)], now=loop.after(seconds=20).now)
    loop.tick()
    assert (state(owner), len(gpus_of(elastic)), len(gpus_of(owner))) == (JobState.STARTING, 4, 4)
    loop.up(owner)
    loop.over(owner)
    loop.after(hours=1).tick()
    assert len(gpus_of(elastic)) == 8
    assert Order.objects.filter(kind="resize").order_by("-id")[0].payload["add"] == [["worker", 2], ["worker", 3]]
    assert state(elastic) == JobState.RUNNING


def test_a_gang_that_lost_a_worker_is_repaired_beside_its_healthy_members() -> None:
    first, _second, _spare = (builders.node(gpus=8) for _ in range(3))
    loop, gang = Loop(), submit(leaf("team", 24), gpus=8, workers=2)
    loop.tick()
    run = loop.up(gang)
    from scheduler.services.loop.runs import workers_lost

    lost = Placement.objects.filter(job=gang, node=first, until__isnull=True).values_list("worker", flat=True).first()
    assert lost is not None
    Node.objects.filter(pk=first.pk).update(health="down")
    workers_lost(attempt=run, workers=[("worker", lost)], now=loop.after(seconds=5).now, cause="Its node does not answer.")
    assert state(gang) == JobState.DEGRADED
    loop.tick()

    assert len(gpus_of(gang)) == 16
    assert Order.objects.get(kind="resize").payload == {"add": [["worker", lost]], "leave": []}
    assert not Placement.objects.filter(until__isnull=True, node=first).exists()
    loop.after(seconds=20).up(gang)
    assert state(gang) == JobState.RUNNING
    assert Attempt.objects.count() == 1


def test_a_gang_that_can_not_be_repaired_in_time_waits_again_whole() -> None:
    first, _second = (builders.node(gpus=8) for _ in range(2))
    loop, gang = Loop(), submit(leaf("team", 16), gpus=8, workers=2)
    loop.tick()
    run = loop.up(gang)
    from scheduler.services.loop.runs import workers_lost

    lost = Placement.objects.get(job=gang, node=first, gpu__index=0).worker
    Node.objects.filter(pk=first.pk).update(health="down")
    workers_lost(attempt=run, workers=[("worker", lost)], now=loop.after(seconds=5).now, cause="Its node does not answer.")
    loop.tick()
    assert state(gang) == JobState.DEGRADED
    loop.after(seconds=60).tick()
    assert state(gang) == JobState.CHECKPOINTING
    loop.over(gang, exit_code=143)
    assert (state(gang), Attempt.objects.get().outcome) == (JobState.QUEUED, "lost")
    assert not fleet_faults()


def test_a_gpu_is_split_for_a_waiting_part_and_its_back_end_told_first() -> None:
    builders.node(gpus=1)
    part = submit(leaf("team", 8), gpus=1, spec={"roles": [{"mig": "3g.40gb"}]}, gpus_milli=500)
    Loop().tick()

    assert state(part) == JobState.STARTING
    assert Gpu.objects.get().mode == GpuMode.MIG
    assert MigInstance.objects.filter(removed_at__isnull=True).exists()
    assert [order.kind for order in Order.objects.order_by("id")] == ["repartition", "start"]
    assert Repartition.objects.count() == 1
    assert not fleet_faults()


def part(profile: str, milli: int, quota: QuotaNode, at: Any = NOON) -> Job:
    return submit(quota, spec={"roles": [{"mig": profile}], "sharing": "mig"}, gpus_milli=milli, at=at)


def test_a_gpu_is_split_anew_beside_those_who_use_it() -> None:
    gpu = builders.mig_gpu(builders.node(gpus=1), [("3g.40gb", 0, 4), ("3g.40gb", 4, 4)])
    quota, loop = leaf("team", 8), Loop()
    first = part("3g.40gb", 500, quota)
    loop.tick()
    loop.up(first)
    used = Placement.objects.get(job=first).mig
    others = [part("1g.10gb", 125, quota, at=loop.now) for _ in range(2)]
    result = loop.after(seconds=5).tick()

    assert used is not None
    assert ([state(job) for job in others], result.dropped) == ([JobState.STARTING] * 2, 0)
    here = MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True)
    assert here.get(pk=used.pk).start == used.start
    assert here.filter(profile="1g.10gb").count() >= 2
    assert not fleet_faults()


def test_who_sits_on_instances_that_go_leaves_before_the_gpu_is_split_anew() -> None:
    """Nothing is dropped over it, so nothing is planned again and again meanwhile."""
    gpu = builders.mig_gpu(builders.node(gpus=1))
    lender, borrower = leaf("lender", 1), leaf("borrower")
    loop = Loop()
    tenants = [part("3g.40gb", 500, borrower) for _ in range(2)]
    loop.tick()
    for tenant in tenants:
        loop.up(tenant)
    owner = submit(lender, gpus=1, at=loop.after(hours=1).now)

    result = loop.tick()
    assert (result.dropped, result.again) == (0, False)
    assert dropped() == [("repartition", LEAVERS_FIRST), ("start", LEAVERS_FIRST)]
    assert [state(job) for job in (*tenants, owner)] == [JobState.CHECKPOINTING, JobState.CHECKPOINTING, JobState.QUEUED]
    loop.over(tenants[0], exit_code=143)
    result = loop.after(seconds=2).tick()
    assert (result.dropped, state(owner)) == (0, JobState.QUEUED)
    loop.over(tenants[1], exit_code=143)
    loop.after(seconds=2).tick()

    gpu.refresh_from_db()
    assert (gpu.mode, state(owner)) == (GpuMode.WHOLE, JobState.STARTING)
    assert not MigInstance.objects.filter(gpu=gpu, removed_at__isnull=True).exists()
    assert not fleet_faults()


def test_a_gpu_is_split_anew_once_a_worker_that_an_elastic_job_gives_back_has_left_it() -> None:
    """It shrinks for the part that waits. The GPU is not empty yet: that is no reason to drop all of it, again and again."""
    here, there = builders.node("here", gpus=1), builders.node("there", gpus=1)
    quota, loop = leaf("team", 8), Loop()
    elastic = submit(quota, spec={"roles": [{"name": "worker", "min": 1, "max": 2, "gpus": 1}]}, gpus_milli=1000)
    loop.tick()
    loop.up(elastic)
    loop.after(minutes=10).tick()
    run = attempt_of(elastic)
    assert Placement.objects.filter(job=elastic, until__isnull=True).count() == 2
    Placement.objects.filter(job=elastic).update(joining=False)
    kept = Placement.objects.get(job=elastic, worker=0)
    stays, split = (here, there) if kept.node_id == here.pk else (there, here)
    waits = part("7g.80gb", 1000, quota, at=loop.now)
    why = reason("reclaim", "as the test says")
    at = f"{split.cluster.name}/{split.name}"

    def applied() -> tuple[list[str], tuple[Any, ...]]:
        snapshot = take(now=loop.now)
        decisions = [
            Decision("repartition", why, for_job=waits.public_id, after=(elastic.public_id,), node=at, gpu=0, instances=(Instance(0, "7g.80gb"),)),
            Decision("start", why, waits.public_id, workers=(Stand("worker", 0, at, 1, mig=((0, "7g.80gb", 0),)),), after=(elastic.public_id,)),
        ]
        if not Placement.objects.filter(job=elastic, leaving_since__isnull=False).exists():
            left = Stand("worker", 0, f"{stays.cluster.name}/{stays.name}", 1)
            decisions.insert(0, Decision("shrink", why, elastic.public_id, waits.public_id, workers=(left,)))
        lease = lease_take(name="tick", holder=loop.holder, now=loop.now)
        assert lease is not None
        plan = Plan(snapshot.scenario.now, tuple(decisions), (), (), None)
        done = plan_apply(plan=plan, snapshot=snapshot, lease=lease, now=loop.now, facts={}, news=News())
        return [decision.action for decision in done.done], done.dropped

    assert applied() == (["shrink"], ())
    assert Placement.objects.get(job=elastic, worker=1).leaving_since == loop.now
    assert applied() == ([], ()), "it is still leaving"
    Placement.objects.filter(attempt=run, worker=1).update(until=loop.now)
    assert applied() == (["repartition", "start"], ())
    assert Gpu.objects.get(node=split).mode == GpuMode.MIG


def test_a_worker_on_an_instance_that_stays_is_not_in_the_way_of_a_split() -> None:
    why = reason("reclaim", "as the test says")
    split = Decision("repartition", why, node="north/n1", gpu=2, instances=(Instance(0, "3g.40gb"), Instance(4, "1g.10gb")))

    def goes(*workers: Stand) -> bool:
        return _goes_from(Decision("shrink", why, "j-1", workers=workers), split)

    assert goes(Stand("worker", 0, "north/n1", 4, mig=((2, "3g.40gb", 0),)), Stand("worker", 1, "north/n2", 4))
    assert not goes(Stand("worker", 0, "north/n1", 4, mig=((2, "3g.40gb", 4),)))
    assert not goes(Stand("worker", 0, "north/n1", 4))
    assert goes(Stand("worker", 0, "north/n1", 3))


def test_a_job_that_moves_is_promised_its_new_places_alone() -> None:
    """A second worker was to join it there once a tenant has left: the promise was widened, and the GPU promised twice."""
    here, there = builders.node("here", gpus=1), builders.node("there", gpus=1)
    quota, loop = leaf("team", 8), Loop()
    mover = submit(quota, spec={"roles": [{"name": "worker", "min": 1, "max": 2, "gpus": 1}]}, gpus_milli=1000)
    tenant = submit(quota)
    loop.tick()
    for job in (mover, tenant):
        loop.up(job)
    on = Placement.objects.get(job=mover, until__isnull=True).node
    old, new = (f"{node.cluster.name}/{node.name}" for node in ((here, there) if on == here else (there, here)))
    why = reason("reclaim", "as the test says")

    def applied(*decisions: Decision) -> None:
        lease = lease_take(name="tick", holder=loop.holder, now=loop.now)
        assert lease is not None
        snapshot = take(now=loop.now)
        plan = Plan(snapshot.scenario.now, decisions, (), (), None)
        done = plan_apply(plan=plan, snapshot=snapshot, lease=lease, now=loop.now, facts={}, news=News())
        assert done.dropped == ()

    both = (Stand("worker", 0, old, 1), Stand("worker", 1, new, 1))
    evicted = Decision("evict", why, tenant.public_id, mover.public_id)
    applied(evicted, Decision("grow", why, mover.public_id, workers=both, after=(tenant.public_id,)))
    assert list(Promise.objects.values_list("kind", "seats__worker")) == [("grow", 1)]

    applied(Decision("move", why, mover.public_id, workers=(Stand("worker", 0, new, 1),), after=(tenant.public_id,)))

    promised = [("move", 0, new.partition("/")[2])]
    assert list(Promise.objects.values_list("kind", "seats__worker", "seats__node__name")) == promised
    assert not fleet_faults()


def test_nobody_is_promised_the_place_of_a_job_that_can_only_move_later() -> None:
    """It moves to a GPU that has to be split anew first, once its tenant is gone."""
    here, there = builders.node("here", gpus=1), builders.mig_gpu(builders.node("there", gpus=1)).node
    quota, loop = leaf("team", 8), Loop()
    tenant, mover = part("3g.40gb", 500, quota), submit(quota)
    loop.tick()
    for job in (tenant, mover):
        loop.up(job)
    winner = submit(quota)
    snapshot = take(now=loop.now)
    why = reason("reclaim", "as the test says")
    old, new = (Stand("worker", 0, f"{node.cluster.name}/{node.name}", 1) for node in (here, there))
    decisions = (
        Decision("evict", why, tenant.public_id, mover.public_id),
        Decision("move", why, mover.public_id, workers=(new,), after=(tenant.public_id,)),
        Decision("repartition", why, for_job=mover.public_id, after=(tenant.public_id,), node=new.node, gpu=0),
        Decision("start", why, winner.public_id, workers=(old,), after=(mover.public_id,)),
    )
    lease = lease_take(name="tick", holder=loop.holder, now=loop.now)
    assert lease is not None
    plan = Plan(snapshot.scenario.now, decisions, (), (), None)
    applied = plan_apply(plan=plan, snapshot=snapshot, lease=lease, now=loop.now, facts={}, news=News())

    assert ([decision.action for decision in applied.done], applied.dropped) == (["evict"], ())
    assert [state(job) for job in (tenant, mover, winner)] == [JobState.CHECKPOINTING, JobState.RUNNING, JobState.QUEUED]
    assert not Promise.objects.exists()


def test_a_job_that_moves_leaves_first_and_resumes_at_its_promised_place() -> None:
    """Two halves of two nodes are idle; the one job that may move makes a whole node."""
    left, right = builders.node(gpus=8), builders.node(gpus=8)
    quota = leaf("team", 16)
    loop = Loop()
    saving = {"checkpoint": {"interval_s": 60, "save_s": 1, "restore_s": 1}}
    jobs = [submit(quota, gpus=4, spec=saving) for _ in range(4)]
    loop.tick()
    for job in jobs:
        run = loop.up(job)
        run.checkpoints.create(job=job, step=1, verified_at=loop.now, reported_at=loop.now)
    by_node: dict[int, list[Job]] = {left.pk: [], right.pk: []}
    for job in jobs:
        by_node[Placement.objects.filter(job=job)[0].node_id].append(job)
    for pair in by_node.values():
        loop.over(pair[0])
    loop.after(hours=1)
    block = submit(quota, gpus=8, at=loop.now, estimate_seconds=36_000)
    loop.tick()
    moving = Job.objects.get(state=JobState.CHECKPOINTING)

    assert Promise.objects.get(job=moving).kind == "move"
    assert state(block) == JobState.RESERVED
    loop.after(seconds=5).over(moving, exit_code=143)
    assert state(moving) == JobState.RESERVED
    loop.tick()
    assert (state(moving), state(block)) == (JobState.RESUMING, JobState.STARTING)
    assert list(Attempt.objects.filter(job=moving).order_by("number").values_list("outcome", flat=True)) == ["moved", ""]
    moving.refresh_from_db()
    assert (moving.evictions, moving.last_moved_at is not None) == (0, True)
    assert not fleet_faults()


def test_a_job_over_which_the_engines_check_fails_is_planned_around(monkeypatch: pytest.MonkeyPatch) -> None:
    from scheduler.engine import cycle
    from scheduler.engine.rules.invariants import InvariantBroken, check
    from scheduler.engine.tell import outcome

    builders.node(gpus=8)
    bad, good = submit(gpus=2), submit(gpus=2)

    def picky(state: Any) -> None:
        for work in state.cluster.works:
            if work.job.name == bad.public_id and work.seats:
                raise InvariantBroken(f"{bad.public_id} is in two places", bad.public_id)
        check(state)

    monkeypatch.setattr(outcome, "check", picky)
    assert cycle.conclude is outcome.conclude
    loop = Loop()
    result = loop.tick()

    assert (state(bad), state(good), result.decided) == (JobState.QUEUED, JobState.STARTING, 1)
    fault = PlanRecord.objects.exclude(fault="").get()
    assert "is in two places" in fault.fault
    assert fault.scenario is not None
    assert fault.decisions == []
    assert JobEvent.objects.filter(job=bad, cause__startswith="Planned without it for 10 min").count() == 1
    monkeypatch.setattr(outcome, "check", check)
    loop.after(minutes=10).tick()
    assert state(bad) == JobState.STARTING  # tried again after its time, by the clock alone


def test_an_engine_that_fails_altogether_writes_nothing_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    builders.node(gpus=8)
    job, loop = submit(), Loop()

    def fails(*_: Any) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patched:
        patched.setattr("scheduler.services.loop.tick.make_plan", fails)
        result = loop.tick()
        assert (result.fault, result.again) == ("ZeroDivisionError()", False)
        assert not loop.after(seconds=29).tick().planned
    assert state(job) == JobState.QUEUED
    assert loop.after(seconds=1).tick().decided == 1
