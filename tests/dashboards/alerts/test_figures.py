"""Figures that alert rules watch: what they count, and that what is not known fires and ends nothing."""

from datetime import timedelta

import pytest

from dashboards.alerts.figures import FIGURES, figures_now
from dashboards.alerts.models import Alert
from dashboards.alerts.round import alerts_round
from dashboards.health.models import Incident
from dashboards.idle.models import IdleEpisode
from dashboards.prometheus.models import PrometheusServer
from quotas.models import NodeKind, QuotaShare
from scheduler.models import Attempt, Dependency, JobState
from scheduler.selectors.measures import queue_figures
from tests import builders
from tests.builders import NOON
from tests.dashboards.alert_worlds import rule
from tests.dashboards.worlds import gpus_of, readings
from tests.personas import Personas

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


def test_what_is_not_known_neither_fires_nor_ends(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    for gpu in gpus:
        builders.placement(builders.job(state=JobState.RUNNING), gpu)
    rule(figure="gap_percent", subject="", threshold=50, clear_at=40, for_minutes=0)
    readings(dict.fromkeys(gpus, 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    for minute in (10, 20, 30):  # the source is stale by then
        alerts_round(now=NOON + minute * MINUTE)
    assert Alert.objects.get().state == "firing"
    readings(dict.fromkeys(gpus, 90), at=NOON + 40 * MINUTE)
    alerts_round(now=NOON + 40 * MINUTE)
    assert alerts_round(now=NOON + 41 * MINUTE).resolved == 1 or Alert.objects.get().state == "resolved"


@pytest.mark.parametrize(("figure", "threshold"), [("gap_percent", 50), ("gap_cost", 1)])
def test_an_idle_share_ends_with_the_allocations_whether_readings_are_there_or_not(personas: Personas, figure, threshold):
    gpus = gpus_of(builders.node(gpus=2))
    builders.rate(gpus[0].gpu_type_id, since=NOON - timedelta(days=1), micros=2_000_000)
    held = [builders.placement(builders.job(state=JobState.RUNNING), gpu) for gpu in gpus]
    rule(figure=figure, subject="", threshold=threshold, clear_at=threshold, for_minutes=0)
    readings(dict.fromkeys(gpus, 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    for placement in held:
        type(placement).objects.filter(pk=placement.pk).update(until=NOON)

    assert alerts_round(now=NOON + 10 * MINUTE).resolved == 1


def test_an_alert_on_a_gpu_type_ends_when_its_last_gpu_is_gone(personas: Personas):
    node = builders.node(gpus=2)
    for gpu in gpus_of(node):
        builders.placement(builders.job(state=JobState.RUNNING), gpu)
    rule(figure="gap_percent", subject="*", threshold=50, clear_at=40, for_minutes=0)
    readings(dict.fromkeys(gpus_of(node), 0), at=NOON)
    assert alerts_round(now=NOON).fired == 1

    type(node).objects.update(removed_at=NOON)

    assert alerts_round(now=NOON + MINUTE).resolved == 1


def test_a_cluster_whose_last_node_was_removed_is_silent_for_no_time(personas: Personas):
    old, other = builders.node(gpus=1), builders.node(gpus=1, of=builders.cluster("south"))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    for node in (old, other):
        readings(dict.fromkeys(gpus_of(node), 10), at=NOON)
    assert alerts_round(now=NOON + 2 * MINUTE).fired == 2

    type(old).objects.filter(pk=old.pk).update(removed_at=NOON + 3 * MINUTE)
    alerts_round(now=NOON + 4 * MINUTE)

    assert list(Alert.objects.filter(resolved_at=None).values_list("subject", flat=True)) == ["south"]
    assert figures_now(now=NOON + 4 * MINUTE, wanted=["telemetry_age"])["telemetry_age"] == {"": 240.0, "north": 0.0, "south": 240.0}


def test_stale_telemetry_is_told_within_a_minute(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    readings(dict.fromkeys(gpus, 10), at=NOON)
    assert alerts_round(now=NOON + timedelta(seconds=45)).fired == 0

    assert alerts_round(now=NOON + timedelta(seconds=61)).fired == 1
    assert Alert.objects.get().subject == "north"


def test_one_silent_server_is_told_where_another_source_speaks_for_the_rest_of_its_cluster(personas: Personas):
    gpus = gpus_of(builders.node(gpus=2))
    rule(figure="telemetry_age", threshold=60, clear_at=30, for_minutes=0, severity="critical")
    readings(dict.fromkeys(gpus, 10), at=NOON + timedelta(seconds=60))
    seen = {"enabled": True, "url": "http://127.0.0.1:1", "changed_at": NOON - timedelta(days=1)}
    for name, seconds in (("main", 60), ("silent", 0)):
        PrometheusServer.objects.create(public_id=f"ps-{name}", name=name, read_at=NOON + timedelta(seconds=seconds), **seen)
    PrometheusServer.objects.create(public_id="ps-off", name="off", read_at=NOON - timedelta(hours=1), **{**seen, "enabled": False})
    PrometheusServer.objects.create(public_id="ps-new", name="new", **{**seen, "changed_at": NOON + timedelta(seconds=30)})

    assert alerts_round(now=NOON + timedelta(seconds=61)).fired == 1
    assert Alert.objects.get().subject == "Prometheus silent"

    PrometheusServer.objects.filter(name="silent").update(enabled=False)
    for seconds in (75, 90):
        alerts_round(now=NOON + timedelta(seconds=seconds))
    assert Alert.objects.get(subject="Prometheus silent").resolved_at is not None, "nobody waits for a server that is switched off"


def test_guarantees_beyond_what_is_healthy_alert_until_the_node_is_back(personas: Personas):
    first, second = builders.node(gpus=8), builders.node(gpus=8)
    kind = gpus_of(first)[0].gpu_type_id
    QuotaShare.objects.create(node=personas.nodes["acme"], gpu_type=kind, guaranteed_milli=12_000)
    rule(figure="guarantee_shortage", subject="*", threshold=1, clear_at=1, for_minutes=0)
    assert alerts_round(now=NOON).fired == 0

    type(second).objects.filter(pk=second.pk).update(health="down")
    assert alerts_round(now=NOON + MINUTE).fired == 1
    alert = Alert.objects.get()
    assert (alert.subject, alert.value) == (kind, 4.0)

    type(second).objects.filter(pk=second.pk).update(health="healthy")
    alerts_round(now=NOON + 2 * MINUTE)
    assert figures_now(now=NOON, wanted=["guarantee_shortage"])["guarantee_shortage"] == {"": 0.0, kind: 0.0}
    assert alerts_round(now=NOON + 30 * MINUTE).resolved == 1 or Alert.objects.get().state == "resolved"


def test_every_figure_can_be_read_in_an_empty_console_and_in_one_with_work(personas: Personas, django_assert_max_num_queries):
    assert set(figures_now(now=NOON)) <= set(FIGURES)
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type="H100-SXM-80GB", guaranteed_milli=8000)
    builders.job(on=team, gpus_milli=4000, spec={"roles": [{"gpu_types": ["H100-SXM-80GB"]}]}, submitted_at=NOON - 30 * MINUTE)
    Incident.objects.create(public_id="in-1", node=builders.node(gpus=1), opened_at=NOON, title="Test")
    with django_assert_max_num_queries(33):
        found = figures_now(now=NOON)

    assert found["floor_gap"][team.path] == 4.0
    assert found["queue_wait"]["batch"] == 30.0
    assert found["incidents"][""] == 1.0


def test_a_job_has_waited_since_it_last_ran_and_not_while_it_is_held_or_before_its_time(personas: Personas):
    """A notebook that had run for a day and was preempted a minute ago was an alert of a wait of a day."""
    team = personas.nodes["acme/research/nlp"]
    day = {"on": team, "job_class": "interactive", "submitted_at": NOON - timedelta(days=1)}
    back = builders.job("back", state=JobState.PREEMPTED, **day)
    Attempt.objects.create(job=back, number=1, started_at=NOON - 1000 * MINUTE, ended_at=NOON - 3 * MINUTE, outcome="preempted")
    builders.job("held", held_at=NOON - MINUTE, **day)
    builders.job("tonight", not_before=NOON + 60 * MINUTE, **day)
    behind = builders.job("behind", **day)
    Dependency.objects.create(job=behind, on=back)
    builders.job("again-later", retry_at=NOON + MINUTE, **day)
    builders.job("since-noon", deferred_to=NOON - 2 * MINUTE, **day)

    (row,) = [one for one in queue_figures(NOON) if one.job_class == "interactive"]

    assert (row.waiting, row.waited.count, row.waited.longest) == (6, 2, 180.0)
    assert figures_now(now=NOON, wanted=["queue_wait"])["queue_wait"]["interactive"] == 3.0


A100, H100, B200 = "A100-SXM-80GB", "H100-SXM-80GB", "B200-SXM-180GB"


@pytest.mark.parametrize(
    ("waiting", "gap"),
    [
        ([(32, None)], 32),
        ([(32, [A100, H100])], 32),
        ([(32, [H100])], 32),
        ([(32, [A100])], 0),
        ([(64, None)], 40),
        ([(24, [H100, B200]), (8, [B200])], 32),
        ([(40, [H100, B200]), (8, [B200])], 40),
        ([(4, None)], 4),
    ],
)
def test_a_guarantee_is_waited_for_by_whoever_accepts_its_type(personas: Personas, waiting, gap):
    """32 H100 and 8 B200 are guaranteed. Nothing counts twice."""
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type=H100, guaranteed_milli=32_000)
    QuotaShare.objects.create(node=team, gpu_type=B200, guaranteed_milli=8_000)
    for gpus, types in waiting:
        builders.job(on=team, gpus_milli=1000 * gpus, spec={"roles": [{"min": 1, "gpus": gpus} | ({"gpu_types": types} if types else {})]})

    assert figures_now(now=NOON, wanted=["floor_gap"])["floor_gap"][team.path] == gap


@pytest.mark.parametrize(("types", "gap"), [([A100], 0), ([H100], 16)])
def test_a_role_without_gpus_accepts_no_type_of_them(personas: Personas, types, gap):
    team = personas.nodes["acme/research/nlp"]
    QuotaShare.objects.create(node=team, gpu_type=H100, guaranteed_milli=32_000)
    roles = [{"name": "driver", "min": 1, "cpu": 4}, {"name": "worker", "min": 2, "gpus": 8, "gpu_types": types}]
    builders.job(on=team, gpus_milli=16_000, spec={"roles": roles})

    assert figures_now(now=NOON, wanted=["floor_gap"])["floor_gap"][team.path] == gap


def test_idle_gpus_of_a_team_are_those_of_its_projects_too(personas: Personas):
    team = personas.nodes["acme/research/nlp"]
    project = builders.quota(parent=team, name="eval", kind=NodeKind.PROJECT)
    for number, quota in enumerate((team, project)):
        job = builders.job(state=JobState.RUNNING, on=quota)
        sizes = {"waste": "low", "held_milli": 2000, "idle_milli": 2000, "activity_centi": 0, "started_at": NOON, "seen_at": NOON, "stage_at": NOON}
        IdleEpisode.objects.create(public_id=f"e-{number}", job=job, attempt=builders.attempt(job), quota=quota, **sizes)

    found = figures_now(now=NOON, wanted=["idle_gpus"])["idle_gpus"]
    assert (found[""], found[team.path], project.path in found) == (4, 4, False)


def test_nodes_without_a_pool_are_a_subject_of_their_own(personas: Personas):
    for number in range(10):
        builders.node(gpus=1, health="down" if number else "healthy")
    builders.node(gpus=1, pool=builders.pool())
    rule(for_minutes=0)

    assert alerts_round(now=NOON).fired == 1
    alert = Alert.objects.get()
    assert (alert.subject, alert.value) == ("No pool", 90.0)
    assert set(figures_now(now=NOON, wanted=["nodes_out"])["nodes_out"]) == {"", "main", "No pool"}
