"""A defragmentation: for a while more running jobs may be moved than a plan may move by itself, so that a gang finds room."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.audit import SYSTEM
from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.permissions import Access, Can, Grant
from scheduler.models import Defragmentation, Health, Job, JobState, Lease, Node
from scheduler.services.defragmenting import defragmentation_rule, defragmentation_start, defragmentation_stop, leave_now, moves_by_rule
from tests import builders
from tests.scheduler.loop.worlds import Loop, leaf, state, submit

pytestmark = pytest.mark.django_db
OPERATOR = Access(SYSTEM, (Grant("", frozenset({Can.OPERATE, Can.SEE})),))


@pytest.fixture
def scattered(settings):
    """Three nodes of four GPUs with a job of one GPU on each, and a gang that needs two whole nodes: two moves, and a plan may make one."""
    settings.SCHEDULER = {**settings.SCHEDULER, "MAX_MOVES": 1}
    loop, team = Loop(), leaf("team", 12)
    nodes = [builders.node(f"n{number}", gpus=4) for number in range(3)]
    small = []
    for node in nodes:
        Node.objects.exclude(pk=node.pk).update(health=Health.DRAINING)
        Node.objects.filter(pk=node.pk).update(health=Health.HEALTHY)
        small.append(submit(team, at=loop.now, spec={"estimate_s": 86_400}))
        loop.tick()
        loop.up(small[-1])
    Node.objects.update(health=Health.HEALTHY)
    gang = submit(team, workers=2, gpus=4, at=loop.now, spec={"estimate_s": 86_400})
    loop.after(minutes=20).tick()
    assert state(gang) == JobState.QUEUED
    return loop, small, gang


def moving(jobs: list[Job]) -> int:
    return sum(state(job) != JobState.RUNNING for job in jobs)


def start(loop: Loop, **fields) -> Defragmentation:
    given = {"moves": 2, "reason": "the gang waits"} | fields
    return defragmentation_start(access=OPERATOR, now=loop.now, **given)


def test_a_gang_finds_room_that_a_plan_may_not_make_by_itself(scattered):
    loop, small, gang = scattered

    found = start(loop)
    loop.after(seconds=1).tick()

    assert moving(small) == 2
    found.refresh_from_db()
    assert (found.moves_done, found.state, found.ended_because) == (2, "ended", "All of its moves are made.")
    for job in small:
        if state(job) != JobState.RUNNING:
            loop.over(job)
    loop.after(seconds=1).tick()
    assert state(gang) in (JobState.STARTING, JobState.RUNNING)
    assert AuditEntry.objects.filter(action="defragmentation.start", object_id=found.public_id).count() == 1


def test_before_its_time_nothing_moves_and_then_the_loop_wakes_by_itself(scattered):
    loop, small, _ = scattered
    start(loop, starts_at=loop.now + timedelta(minutes=5))

    loop.after(seconds=1).tick()

    assert moving(small) == 0
    assert Lease.objects.get(name="tick").next_wake_at <= loop.now + timedelta(minutes=5)
    loop.after(minutes=5).tick()
    assert moving(small) == 2


def test_it_ends_after_an_hour_or_when_it_is_stopped_and_only_one_is_open(scattered):
    loop, small, _ = scattered
    found = start(loop)
    with pytest.raises(Conflict, match="is open until"):
        start(loop)
    assert defragmentation_rule(moves=3, reason="by rule", now=loop.now) is None
    defragmentation_stop(access=OPERATOR, found=found, now=loop.now)
    with pytest.raises(Conflict, match="ended already"):
        defragmentation_stop(access=OPERATOR, found=found, now=loop.now)
    loop.after(seconds=1).tick()
    assert moving(small) == 0

    second = start(loop)
    loop.after(hours=1)
    assert leave_now(now=loop.now) is None
    second.refresh_from_db()
    assert second.ended_because == "Its time is over."


def test_one_that_is_scheduled_does_not_keep_the_rule_from_acting_before_it(scattered):
    """That of the rule ends where the scheduled one begins, which is planned as the fleet is then."""
    loop, small, _ = scattered
    begins = loop.now + timedelta(minutes=40)
    later = start(loop, starts_at=begins, moves=5)
    loop.after(seconds=1).tick()
    assert moving(small) == 0

    by_rule = defragmentation_rule(moves=2, reason="by rule", now=loop.now)
    assert by_rule is not None and (by_rule.starts_at, by_rule.ends_at) == (loop.now, begins)
    loop.after(seconds=1).tick()
    assert moving(small) == 2
    by_rule.refresh_from_db()
    assert (by_rule.moves_done, by_rule.state) == (2, "ended")

    again = defragmentation_rule(moves=1, reason="by rule", now=loop.now)
    assert again is not None
    loop.after(minutes=1).tick()
    assert Lease.objects.get(name="tick").next_wake_at <= begins
    loop.now = begins
    loop.tick()
    again.refresh_from_db()
    later.refresh_from_db()
    assert (again.state, again.ended_because) == ("ended", "Its time is over.")
    assert (later.state, later.moves_done) == ("open", 0), "the rule has made the room already"
    assert defragmentation_rule(moves=1, reason="by rule", now=loop.now) is None


def test_one_may_be_scheduled_for_when_that_of_the_rule_is_over(scattered):
    loop, _, _ = scattered
    by_rule = defragmentation_rule(moves=2, reason="by rule", now=loop.now)
    assert by_rule is not None
    with pytest.raises(Conflict, match=f"A defragmentation is open until {by_rule.ends_at:%Y-%m-%d %H:%M} UTC. Stop it first, or begin later."):
        start(loop, starts_at=by_rule.ends_at - timedelta(minutes=1))

    start(loop, starts_at=by_rule.ends_at)

    with pytest.raises(Conflict, match="A defragmentation is scheduled for "):
        start(loop, starts_at=by_rule.ends_at + timedelta(hours=3))


def test_what_a_rule_allowed_counts_within_the_hour(scattered):
    loop, _, _ = scattered
    found = defragmentation_rule(moves=3, reason="by rule", now=loop.now)
    assert found is not None
    hour = loop.now - timedelta(hours=1)
    assert moves_by_rule(since=hour) == 3
    defragmentation_stop(access=OPERATOR, found=found, now=loop.now)
    assert moves_by_rule(since=hour) == 0


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("moves", 0, "between 1 and 1,000"),
        ("moves", 1001, "between 1 and 1,000"),
        ("reason", " ", "A reason is required"),
        ("starts_at", -3600, "within the next seven days"),
        ("starts_at", 8 * 86_400, "within the next seven days"),
    ],
)
def test_bad_values_are_told_at_their_fields(scattered, field, value, message):
    loop = scattered[0]
    given = {field: loop.now + timedelta(seconds=value) if field == "starts_at" else value}
    with pytest.raises(ValidationError) as fault:
        start(loop, **given)
    assert message in fault.value.message_dict[field][0]
    assert not Defragmentation.objects.exists()
