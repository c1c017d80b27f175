"""/metrics: who may read it, and that the figures are those of the records."""

from datetime import timedelta

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from dashboards.alerts.models import Alert, AlertRule
from gpufleet.core.times import now
from scheduler.loop.measures import MEASURES, ORDER, PHASE, PLANS, Counted
from scheduler.models import JobState, Lease, Order
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.measuring import Tally, measures_write, tally
from scheduler.tasks import tick
from tests.builders import attempt, cluster, job, node, placement, plan
from tests.dashboards.worlds import readings
from tests.servers import PROJECT

pytestmark = pytest.mark.django_db


@pytest.fixture
def scrape(personas):
    """Samples as {name: {labels: value}}, read with a token."""

    def call(who="operator"):
        answer = Client().get("/metrics", headers={"Authorization": f"Bearer {personas.token(who, 'read')}"})
        assert answer.status_code == 200, answer.content
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(answer.content.decode()):
            for sample in family.samples:
                found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
        return found

    return call


def test_only_those_who_see_the_whole_fleet_may_scrape(personas):
    for who, status in {
        "anonymous": 401,
        "stranger": 403,
        "viewer": 403,
        "team_lead": 403,
        "operator": 200,
        "finance": 200,
        "superuser": 200,
    }.items():
        assert personas.client(who).get("/metrics").status_code == status, who
    narrow = personas.token("operator", "read", path="acme/research")
    assert Client().get("/metrics", headers={"Authorization": f"Bearer {narrow}"}).status_code == 403
    assert Client().get("/metrics", headers={"Authorization": "Bearer gf_12345678_wrong"}).status_code == 401


def test_costs_are_in_the_scrape_of_those_alone_who_may_see_them(scrape, personas):
    for name, figure in (("Idle cost", "gap_cost"), ("Nodes out", "nodes_out")):
        rule = AlertRule.objects.create(public_id=f"ar-{figure}", name=name, figure=figure, threshold=1, clear_at=1)
        Alert.objects.create(public_id=f"al-{figure}", rule=rule, state="firing", value=2, worst=2, since=now(), fired_at=now())
    gpu = node(gpus=1).gpus.first()
    placement(job(state=JobState.RUNNING), gpu)
    readings({gpu: 10}, at=now())

    def told(who: str) -> tuple[set[str], set[str]]:
        found = scrape(who)
        return {key for key, _ in found["gpufleet_figure"]}, {rule for rule, _ in found["gpufleet_alerts_firing"]}

    assert told("finance") == (told("operator")[0] | {"gap_cost"}, {"Idle cost", "Nodes out"})
    assert told("operator")[1] == {"Nodes out"}
    assert not {"gap_cost", "cost_rise", "cost_week"} & told("operator")[0]


def test_an_empty_console_has_figures_too(scrape):
    found = scrape()

    assert found["gpufleet_scheduler_state"][("never",)] == 1
    assert found["gpufleet_plan_conflicts_total"][()] == 0
    assert found["gpufleet_jobs_waiting"][("batch",)] == 0
    assert "gpufleet_tick_seconds_bucket" not in found
    assert found["process_resident_memory_bytes"][()] > 0


def test_the_figures_are_those_of_the_records(scrape):
    moment = now()
    place = cluster()
    plan(at=moment)
    Lease.objects.create(name="tick", holder="w1", epoch=9, wanted=7, done=5)
    job(job_class="inference", gpus_milli=2500, submitted_at=moment - timedelta(minutes=2))
    placement(job(state=JobState.RUNNING), node(gpus=2).gpus.first())
    attempt(job(state=JobState.RUNNING, job_class="batch"))
    Order.objects.create(cluster=place, sequence=2, kind="stop", due_at=moment, made_at=moment - timedelta(minutes=1), fault="no answer")

    found = scrape()

    assert found["gpufleet_plan_last_timestamp_seconds"][()] == moment.timestamp()
    assert found["gpufleet_scheduler_unseen_events"][()] == 2
    assert found["gpufleet_scheduler_lease_holder_info"][("w1",)] == 1
    assert found["gpufleet_jobs"][("running",)] == 2
    assert found["gpufleet_jobs_waiting_gpus"][("inference",)] == 2.5
    assert 119 < found["gpufleet_job_waiting_seconds"][("inference", "0.5")] < 180
    assert found["gpufleet_backend_orders_failing"][("simulated", "north")] == 1
    assert found["gpufleet_gpus"][("held", "H100-SXM-80GB")] == 1
    assert found["gpufleet_gpus"][("free", "H100-SXM-80GB")] == 1


def test_what_several_processes_counted_adds_up(scrape):
    """Each gathers for itself, and both add to the same rows."""
    one, other = Tally(), Tally()
    north = cluster()
    for mine, seconds in ((one, (0.003, 0.2)), (other, (0.005, 90.0))):
        for taken in seconds:
            mine.time(PHASE, "plan", seconds=taken)
        mine.count(PLANS, "failed")
        mine.time(ORDER, north.pk, "start", seconds=2)
        assert measures_write(counted=mine)
        assert not measures_write(counted=mine), "what was added is not added again"

    found = scrape()

    buckets = {bound: count for (bound, phase), count in found["gpufleet_tick_phase_seconds_bucket"].items() if phase == "plan"}
    assert (buckets["0.0025"], buckets["0.005"], buckets["0.25"], buckets["5.0"], buckets["+Inf"]) == (0, 2, 3, 3, 4)
    assert found["gpufleet_tick_phase_seconds_count"][("plan",)] == 4
    assert found["gpufleet_tick_phase_seconds_sum"][("plan",)] == 90.208
    assert found["gpufleet_plans_total"][("failed",)] == 2
    assert found["gpufleet_backend_order_seconds_count"][("north", "start")] == 2


def test_what_could_not_be_written_is_counted_the_next_time(scrape, monkeypatch):
    mine = Tally()
    mine.count(PLANS, "nothing", n=3)
    with monkeypatch.context() as broken:
        broken.setattr("scheduler.services.loop.measuring._add", lambda rows: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            measures_write(counted=mine)
    mine.count(PLANS, "nothing")
    measures_write(counted=mine)

    assert scrape()["gpufleet_plans_total"][("nothing",)] == 4


def test_the_ticks_of_a_worker_are_in_the_figures(scrape, monkeypatch, django_capture_on_commit_callbacks):
    monkeypatch.setattr("scheduler.tasks._Written.at", -3600.0)
    tally.take()  # what tests before this one left in the process
    node(gpus=2)
    moment = now()
    job(job_class="batch", gpus_milli=1000, submitted_at=moment - timedelta(minutes=2))
    job(job_class="inference", gpus_milli=1000, submitted_at=moment - timedelta(minutes=9), not_before=moment - timedelta(minutes=2))

    with django_capture_on_commit_callbacks(execute=True):
        lease_want(hint=False)
        tick()
    measures_write()

    found = scrape()
    assert found["gpufleet_tick_seconds_count"][()] >= 1
    assert {phase for _, phase in found["gpufleet_tick_phase_seconds_bucket"]} >= {"observe", "snapshot", "plan", "apply", "dispatch"}
    assert found["gpufleet_plans_total"][("carried_out",)] == 1
    assert found["gpufleet_plan_decisions_total"][()] == 2
    waited = found["gpufleet_job_time_to_start_seconds_bucket"]
    assert (waited["batch", "60.0"], waited["batch", "300.0"]) == (0, 1)
    assert (waited["inference", "60.0"], waited["inference", "300.0"]) == (0, 1), "it could not have started before its time"
    assert found["gpufleet_backend_call_seconds_count"][("start", "north")] >= 1


def test_a_scrape_costs_few_queries_however_much_was_counted(personas, django_assert_max_num_queries):
    node(gpus=1)
    mine = Tally()
    for number in range(300):
        mine.time(PHASE, f"phase {number}", seconds=number / 100)
    measures_write(counted=mine)
    headers = {"Authorization": f"Bearer {personas.token('operator', 'read')}"}
    Client().get("/metrics", headers=headers)

    with django_assert_max_num_queries(47):
        Client().get("/metrics", headers=headers)


def test_the_manual_has_every_counter_and_histogram():
    text = (PROJECT / "docs/operate/scheduler.md").read_text()
    exposed = [f"{one.name}_total" if isinstance(one, Counted) else one.name for one in MEASURES]
    assert [name for name in exposed if f"`{name}" not in text] == []
