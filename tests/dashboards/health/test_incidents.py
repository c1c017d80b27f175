"""Incidents: when they open and end, what they tell, and what they cost."""

from datetime import datetime, timedelta

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from dashboards.alerts.models import AlertRule
from dashboards.alerts.round import alerts_round
from dashboards.health.incidents import calm_needed, incidents_follow, jobs_hurt
from dashboards.health.models import HealthFinding, HealthRule, HealthSettings, Incident
from dashboards.health.round import health_round
from dashboards.models import ActivityEntry
from gpufleet.core.live.news import News
from quotas.models import QuotaNode
from scheduler.hardware import causes
from scheduler.models import Attempt, Delivery, Gpu, Health, InventoryEvent, Job, JobState, Node
from scheduler.services.hardware.draining import nodes_drain
from scheduler.services.hardware.hardware import gpu_health_change, hardware_event, node_health_change
from scheduler.services.loop.runs import Ended, Stop, attempts_ended, attempts_stop
from scheduler.services.loop.timers import nodes_lost
from tests import builders
from tests.builders import NOON
from tests.dashboards.health_worlds import LOOK, health_of, look, looks, rule
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.mark.parametrize("gpu_is_sick", [False, True])
def test_an_incident_of_a_node_that_stayed_healthy_ends_with_its_findings(fleet, personas: Personas, gpu_is_sick):
    """So it is where rules change nothing; unless a GPU of the node is not healthy, which a person said."""
    nodes, gpus = fleet
    rule()
    HealthSettings.objects.create(pk=1, acts=False)
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 2 * MINUTE)
    health_round(now=NOON + 2 * MINUTE)
    assert Incident.objects.get().closed_at is None
    if gpu_is_sick:
        gpu_health_change(access=personas.access("operator"), gpu=gpus[1], to=Health.SUSPECT, reason="Odd.", now=NOON + 2 * MINUTE)
    for minute in range(3, 20):
        look(gpus, {}, at=NOON + minute * MINUTE)
        health_round(now=NOON + minute * MINUTE)

    finding = HealthFinding.objects.get()
    assert finding.cleared_at is not None and Incident.objects.get().closed_at is None
    for minute in range(20, 25):
        health_round(now=NOON + minute * MINUTE)
    assert (Incident.objects.get().closed_at, health_of(nodes[0])) == (None if gpu_is_sick else finding.cleared_at + 5 * MINUTE, Health.HEALTHY)


def test_a_flapping_gpu_of_a_node_that_stayed_healthy_has_no_incident_each_time(fleet):
    """It must be calm for as long as a suspect, each time for longer."""
    _, gpus = fleet
    rule(clear_minutes=1)
    HealthSettings.objects.create(pk=1, acts=False)
    for number in range(4 * 60):
        at = NOON + number * LOOK
        look(gpus, {"thermal": {gpus[0]: 1}} if number % 50 < 6 else {}, at=at)
        health_round(now=at)
    assert (HealthFinding.objects.count(), Incident.objects.count()) == (5, 2)


def test_the_incident_of_a_node_that_was_removed_ends(fleet, personas: Personas):
    nodes, gpus = fleet
    AlertRule.objects.all().delete()
    AlertRule.objects.create(
        public_id="ar-1", name="Incidents", figure="incidents", subject="*", threshold=1, clear_at=1, for_minutes=0, told=["operator"]
    )
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + MINUTE)
    health_round(now=NOON + MINUTE)
    assert alerts_round(now=NOON + MINUTE).fired == 1
    Node.objects.filter(pk=nodes[0].pk).update(removed_at=NOON + 2 * MINUTE)
    looks(gpus[2:], {}, start=NOON + MINUTE + LOOK, end=NOON + 3 * MINUTE)

    health_round(now=NOON + 3 * MINUTE)

    assert Incident.objects.get().closed_at == NOON + 2 * MINUTE
    assert HealthFinding.objects.get().cleared_at is not None
    ended = ActivityEntry.objects.get(kind="incident.closed")
    assert (ended.title, ended.at) == (f"{nodes[0].name} was removed", NOON + 3 * MINUTE)
    assert alerts_round(now=NOON + 4 * MINUTE).resolved == 1


def test_who_falls_ill_again_and_again_is_trusted_later_each_time():
    assert [calm_needed(count) / MINUTE for count in (0, 1, 2, 3, 4, 99)] == [5, 5, 10, 20, 40, 320]


def test_incidents_tell_of_hands_too_and_measure_what_they_cost(fleet, personas: Personas):
    nodes, gpus = fleet
    access = personas.access("operator")
    job = builders.job(state=JobState.RUNNING, on=builders.quota(), gpus_milli=2000)
    for gpu in gpus[:2]:
        builders.placement(job, gpu, since=NOON - 60 * MINUTE)
    Attempt.objects.filter(job=job).update(running_at=NOON - 60 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.DOWN, reason="Dark.", now=NOON)
    attempts_ended(ends=[Ended(Attempt.objects.get(job=job).pk, None, "Node lost.", node_lost=True)], now=NOON + MINUTE)
    health_round(now=NOON + 30 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.BURN_IN, reason="Back.", now=NOON + 40 * MINUTE)
    node_health_change(access=access, node=nodes[0], to=Health.HEALTHY, reason="Fine.", now=NOON + 60 * MINUTE)
    health_round(now=NOON + 61 * MINUTE)

    incident = Incident.objects.get()
    assert (incident.title, incident.by_rule, incident.worst) == ("Dark.", False, "down")
    assert incident.closed_at == NOON + 60 * MINUTE
    assert incident.out_milli_millis == 2000 * 60 * 60_000
    assert (incident.jobs, incident.lost_milli_millis) == (1, 2000 * 61 * 60_000)
    page = personas.client("operator").get(f"/incidents/{incident.public_id}/").content.decode()
    assert page.count("Dark.") == 1 and job.name in page
    assert job.name not in personas.client("viewer").get(f"/incidents/{incident.public_id}/").content.decode()


def test_an_event_that_comes_to_light_after_a_later_one_has_its_incident_too(fleet, personas: Personas):
    """Keys are given in order, and transactions do not end in it: a drain of many nodes ends after that of one that began later."""
    nodes, _ = fleet
    access = personas.access("operator")
    for number, node in enumerate(nodes[:3]):
        node_health_change(access=access, node=node, to=Health.DOWN, reason=f"Dark {number}.", now=NOON + number * MINUTE)
    rows = list(InventoryEvent.objects.filter(kind="health").order_by("pk"))
    InventoryEvent.objects.filter(pk__in=[row.pk for row in rows[:2]]).delete()
    with transaction.atomic():
        assert incidents_follow() == 1
    for row in rows[:2]:
        row.save(force_insert=True)

    with transaction.atomic():
        assert (incidents_follow(), incidents_follow()) == (2, 0)

    assert list(Incident.objects.order_by("node").values_list("title", "node")) == [(f"Dark {n}.", nodes[n].pk) for n in range(3)]


def test_what_made_no_step_ends_no_incident_that_was_opened_after_it(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    access = personas.access("operator")
    with transaction.atomic():
        for to, minute in ((Health.DOWN, 0), (Health.SUSPECT, 1), (Health.HEALTHY, 2)):
            node_health_change(access=access, node=nodes[1], to=to, reason="By hand.", now=NOON + minute * MINUTE)
        healths = {"before": {"health": "suspect"}, "after": {"health": "healthy"}}
        hardware_event(actor=access.actor, node=nodes[0], gpu=None, kind="health", cause="Old.", now=NOON, **healths)
        node_health_change(access=access, node=nodes[2], to=Health.DOWN, reason="Dark.", now=NOON + 3 * MINUTE)
        incidents_follow()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON + 3 * MINUTE, end=NOON + 5 * MINUTE)

    for minute in (5, 6):
        health_round(now=NOON + minute * MINUTE)

    assert set(Incident.objects.filter(closed_at=None).values_list("node", flat=True)) == {nodes[0].pk, nodes[2].pk}
    assert Incident.objects.get(node=nodes[1]).closed_at == NOON + 2 * MINUTE


def test_the_page_of_an_incident_names_its_rule_once_and_leads_to_the_drain(fleet, personas: Personas):
    nodes, gpus = fleet
    rule()
    looks(gpus, {"thermal": {gpus[0]: 1}}, start=NOON, end=NOON + 3 * MINUTE)
    health_round(now=NOON + 3 * MINUTE)
    incident = Incident.objects.get()

    pages = [personas.client(name).get(f"/incidents/{incident.public_id}/").content.decode() for name in ("operator", "viewer")]

    drain = f"/nodes/{nodes[0].public_id}/health/?to=draining"
    assert [drain in page for page in pages] == [True, False]
    for page in pages:
        shown = page[page.index("<main") :]
        assert (shown.count("Throttles"), shown.count(incident.title.rstrip(".")), shown.count("The rule held.")) == (1, 1, 1)
    Incident.objects.update(closed_at=NOON + 5 * MINUTE)
    assert drain not in personas.client("operator").get(f"/incidents/{incident.public_id}/").content.decode(), "it is over"


def running(team: QuotaNode, *gpus: Gpu, **fields) -> Job:
    job = builders.job(state=JobState.RUNNING, on=team, gpus_milli=1000 * len(gpus), preemptible="yes", **fields)
    for worker, gpu in enumerate(gpus):
        builders.placement(job, gpu, since=NOON - 60 * MINUTE, worker=worker)
    Attempt.objects.filter(job=job).update(running_at=NOON - 60 * MINUTE)
    return job


def ended(job: Job, at: datetime, exit_code: int | None = None, why: str = "", **fields) -> None:
    attempts_ended(ends=[Ended(Attempt.objects.get(job=job, ended_at=None).pk, exit_code, why, **fields)], now=at)


def stopped(job: Job, cause: str, at: datetime, to: str = JobState.PREEMPTED, outcome: str = "preempted") -> None:
    attempts_stop(stops=[Stop(job.pk, to, outcome, cause)], now=at)
    ended(job, at + timedelta(seconds=30))


def hurt_of(node: Node) -> list[tuple[str, str]]:
    incident = Incident.objects.get(node=node)
    return [(one.attempt.job.name, one.how) for one in jobs_hurt([incident], now=NOON + 60 * MINUTE)[incident.pk]]


def test_of_a_suspect_node_only_ends_that_the_incident_caused_are_its(fleet, personas: Personas):
    """Two nodes are suspect, then one is drained, which sends its jobs away. Others gave way to a job of higher priority, or ended by themselves."""
    nodes, gpus = fleet
    team, access = personas.nodes["acme/research/vision"], personas.access("operator")
    jobs = {name: running(team, gpus[index], name=name) for index, name in enumerate(("early", "late", "reclaimed", "wrong"))}
    over = running(team, gpus[4], name="over", limit_seconds=60)
    for node in nodes[:3]:
        node_health_change(access=access, node=node, to=Health.SUSPECT, reason="Odd.", now=NOON)
    stopped(jobs["early"], "Preempted for j-1, which has a higher priority.", NOON + MINUTE)
    stopped(jobs["reclaimed"], "1 GPU idle since 11:00 UTC: reclaimed.", NOON + MINUTE)
    ended(jobs["wrong"], NOON + 2 * MINUTE, exit_code=1)
    ended(over, NOON + 2 * MINUTE, limit_over=True)
    nodes_drain(access=access, nodes=[Node.objects.get(pk=nodes[0].pk)], way="move", at=None, reason="Sick.", now=NOON + 3 * MINUTE)
    ended(jobs["late"], NOON + 4 * MINUTE)
    health_round(now=NOON + 5 * MINUTE)

    assert [hurt_of(node) for node in nodes[:3]] == [[("late", "preempted")], [], []]
    assert [Incident.objects.get(node=node).jobs for node in nodes[:3]] == [1, 0, 0]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_gang_that_another_node_ended_is_not_hurt_by_this_one(fleet, personas: Personas, elsewhere: bool):
    nodes, gpus = fleet
    access, job = personas.access("operator"), running(personas.nodes["acme/research/vision"], gpus[0], gpus[2], name="gang")
    node_health_change(access=access, node=nodes[0], to=Health.SUSPECT, reason="Odd.", now=NOON)
    node_health_change(access=access, node=nodes[1], to=Health.DOWN, reason="Dark.", now=NOON)
    if elsewhere:
        stopped(job, f"{nodes[1].name} is down: 1 worker lost.", NOON + MINUTE, JobState.QUEUED, "lost")
    else:
        ended(job, NOON + MINUTE, why="Its node was lost.", node_lost=True)
    health_round(now=NOON + 2 * MINUTE)

    assert [hurt_of(node) for node in nodes[:2]] == [[], [("gang", "lost")]]


def test_a_gang_that_goes_on_without_its_workers_of_the_node_is_hurt_too(fleet, personas: Personas):
    """It goes back to its last checkpoint, all of it."""
    nodes, gpus = fleet
    access, job = personas.access("operator"), running(personas.nodes["acme/research/vision"], gpus[0], gpus[2], name="gang")
    node_health_change(access=access, node=nodes[1], to=Health.DOWN, reason="Dark.", now=NOON)
    with transaction.atomic():
        nodes_lost(now=NOON + MINUTE, news=News())
    health_round(now=NOON + 2 * MINUTE)

    assert (hurt_of(nodes[1]), job.attempts.get().ended_at) == ([("gang", "degraded")], None)
    assert Incident.objects.get().lost_milli_millis == 2000 * 61 * 60_000
    assert "degraded" in personas.client("operator").get(f"/incidents/{Incident.objects.get().public_id}/").content.decode()


def test_a_run_that_failed_as_its_gpu_told_an_error_is_hurt(fleet, personas: Personas):
    """It fails before the rule about it holds. One on the other GPU failed by itself."""
    nodes, gpus = fleet
    rule(name="XID", signal="xid", group="support", threshold=1, window_minutes=15, clear_below=1, clear_minutes=30)
    killed, wrong = (running(personas.nodes["acme/research/vision"], gpu, name=name) for gpu, name in zip(gpus, ("killed", "wrong"), strict=False))
    for job in (killed, wrong):
        ended(job, NOON, exit_code=1)
    look(gpus, {}, at=NOON + LOOK, xids=[(gpus[0], 79)])
    health_round(now=NOON + 2 * LOOK)

    assert (Incident.objects.get().opened_at > NOON, hurt_of(nodes[0])) == (True, [("killed", "failed")])


def test_a_fabric_that_fails_costs_a_round_as_many_queries_for_two_hundred_nodes_as_for_twenty(personas: Personas):
    """As findings open, go on, are over, and incidents end. A chat gets one message that lists them."""
    HealthRule.objects.all().delete()
    HealthSettings.objects.create(pk=1, acts=False)
    rule(name="NICs", signal="nic_errors", threshold=100, window_minutes=5, clear_below=10, clear_minutes=5)
    builders.webhook(builders.quota(), kinds=["incident.opened", "incident.closed"], name="Chat", form="slack")
    found = []
    for count in (20, 200):
        start = NOON + count * timedelta(hours=1)
        of = builders.cluster(f"fabric-{count}")
        nodes = [builders.node(gpus=1, of=of, heartbeat_at=start) for _ in range(count)]
        gpus = [gpu for node in nodes for gpu in gpus_of(node)]
        for gpu in gpus:
            running(personas.nodes["acme/research/vision"], gpu)
        queries, told = [], []
        for minute in range(25):
            at = start + minute * MINUTE
            look(gpus, {}, at=at, nic_errors=200 * min(minute, 5))
            Node.objects.filter(pk__in=[node.pk for node in nodes]).update(heartbeat_at=at)
            Delivery.objects.all().delete()
            with CaptureQueriesContext(connection) as asked:
                done = health_round(now=at)
            queries.append(len(asked))
            told.append((done.opened, done.cleared, Delivery.objects.count()))
        assert [one for one in told if any(one)] == [(count, 0, 1), (0, count, 0), (0, 0, 1)]
        assert Incident.objects.filter(node__in=nodes, closed_at__isnull=False).count() == count
        found.append(queries)

    assert found[0] == found[1]


@pytest.mark.parametrize("names", [("n1",), ("n2", "n1")])
def test_a_cause_that_nodes_are_down_is_read_as_it_is_written(names: tuple[str, ...]):
    cause = causes.down(names, 2)
    assert (causes.nodes_down(cause), causes.is_drain(cause)) == (sorted(names), False)
    assert causes.is_drain(causes.drained(" and ".join(names), "(a fan is loud)"))
