"""What people see of phases: on the page of a template and in the API, of the runs that they may see."""

from datetime import timedelta

import numpy as np
import pytest
from django.urls import reverse

from dashboards.fingerprints.learning import Confidence
from dashboards.fingerprints.neighbours import neighbours_of
from dashboards.fingerprints.phases import COUNTERS, Phase
from dashboards.fingerprints.selectors import example_chart, job_phase, template_learned
from dashboards.fingerprints.store import runs_learn, runs_note
from dashboards.gap.store import gap_turn
from dashboards.models import TelemetryMinute
from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.models import Attempt
from scheduler.selectors.templates import template_named
from tests import builders
from tests.dashboards.fingerprints.drawn import blind, drawn_run
from tests.dashboards.fingerprints.worlds import MINUTE, minutes_stored, run_made, template_made
from tests.dashboards.worlds import gpus_of

pytestmark = pytest.mark.django_db
TEAM, OTHER = "acme/research/nlp", "acme/research"
REF = f"{TEAM}:train"


@pytest.fixture
def learned(personas):
    """Ten runs of a template, four of them of the node above the team, that ended two hours ago."""
    moment = now().replace(second=0, microsecond=0)
    template = template_made(personas)
    since = moment - timedelta(hours=5)
    for number in range(10):
        gpus = gpus_of(builders.node(f"n{number}", gpus=1, of=builders.cluster(f"c{number}")))
        minutes_stored(gpus, blind(drawn_run(minutes=180, seed=number).counters, ["tensor"]), since=since)
        run_made(template, gpus, since=since, until=since + 180 * MINUTE, on=QuotaNode.objects.get(path=OTHER if number < 4 else TEAM))
    runs_note(since=moment - timedelta(hours=6), now=moment)
    assert runs_learn(now=moment) == 10
    return moment


def of(personas, who, moment):
    template = template_named(personas.access("superuser"), REF)
    assert template is not None
    return template_learned(personas.access(who), template.key, now=moment)


def test_who_sees_only_a_part_of_the_tree_learns_from_that_part(personas, learned, django_assert_max_num_queries) -> None:
    with django_assert_max_num_queries(4):
        everything = of(personas, "superuser", learned)

    assert (everything.fingerprint.runs, everything.fingerprint.confidence) == (10, Confidence.GOOD)
    team = of(personas, "team_lead", learned)
    assert (team.fingerprint.runs, team.fingerprint.confidence) == (6, Confidence.LOW)


def test_what_is_older_than_a_quarter_is_not_told(personas, learned) -> None:
    assert not of(personas, "superuser", learned + timedelta(days=91)).fingerprint.is_known


def test_the_band_has_the_colour_of_each_phase_and_no_value_outside_of_it(personas, learned) -> None:
    example = of(personas, "superuser", learned).example
    assert example is not None

    chart = example_chart(example)

    assert [column.name for column in chart.columns] == ["Time", "Load", "Compute", "Checkpoint"]
    assert all(sum(value is not None for value in row[1:]) == 1 for row in chart.rows)
    assert len(chart.rows) == 2 * len(example.run.parts)


def test_the_page_of_a_template_tells_its_phases(personas, learned) -> None:
    page = personas.client("superuser").get(reverse("template", args=[REF])).content.decode()

    assert "10 runs, 30 h read" in page
    assert "A checkpoint every 12 minutes" in page
    assert "not read" in page  # tensor activity
    assert "low confidence" in personas.client("team_lead").get(reverse("template", args=[REF])).content.decode()


def test_a_template_without_runs_says_what_is_missing(personas) -> None:
    page = personas.client("superuser").get(reverse("template", args=["fine-tune"])).content.decode()

    assert "Not enough runs: 0 of 3" in page


def test_the_api_says_the_same(personas, learned) -> None:
    found = personas.client("superuser").get(f"/api/v1/fingerprints/{REF}@1").json()

    assert (found["ref"], found["confidence"], found["runs"], found["left_out"], found["weak"]) == (REF, "good", 10, 0, 0)
    assert [one["phase"] for one in found["phases"]] == [Phase.LOAD, Phase.COMPUTE, Phase.CHECKPOINT]
    assert found["checkpoint_minutes"]["median"] == pytest.approx(12, abs=0.5)
    assert {one["tensor_percent"] for one in found["phases"]} == {None}
    assert personas.client("superuser").get("/api/v1/fingerprints/none").status_code == 404


def test_a_template_of_another_subtree_is_not_told_of(personas, learned) -> None:
    strangers = [name for name, user in personas.users.items() if template_named(personas.access(name), REF) is None]
    assert strangers
    for name in strangers:
        assert personas.client(name).get(f"/api/v1/fingerprints/{REF}").status_code in (403, 404)


def running(personas, moment, *, minutes=30, template=None):
    """A run of the same template that goes on, on a cluster of its own."""
    gpus = gpus_of(builders.node("r1", gpus=1, of=builders.cluster("running")))
    since = moment - minutes * MINUTE
    minutes_stored(gpus, drawn_run(minutes=minutes, seed=99).counters, since=since)
    key = template_named(personas.access("superuser"), REF).key if template is None else template
    return run_made(key, gpus, since=since, until=None, on=QuotaNode.objects.get(path=TEAM)), gpus


def test_a_running_job_tells_its_phase_and_the_next_checkpoint(personas, learned, django_assert_max_num_queries) -> None:
    run, _ = running(personas, learned)

    with django_assert_max_num_queries(8):
        told = job_phase(personas.access("superuser"), run.job, run, now=learned + timedelta(seconds=10))

    assert told is not None and told.expected is not None
    assert (told.at, told.phase, told.next, told.is_late) == (learned, Phase.COMPUTE, Phase.CHECKPOINT, False)
    drawn = drawn_run(minutes=60, seed=99)
    coming = min(at for at in drawn.saves if at > 30 * 60)
    assert abs((told.expected - (learned - 30 * MINUTE)).total_seconds() - coming) < 120
    page = personas.client("team_lead").get(reverse("job", args=[run.job.public_id])).content.decode()
    assert "Next: checkpoint" in page and "Low confidence: 6 runs" in page
    found = personas.client("team_lead").get(f"/api/v1/jobs/{run.job.public_id}/phase").json()["phase"]
    assert (found["phase"], found["next"], found["confidence"]) == ("compute", "checkpoint", "low")


def test_no_phase_is_told_without_readings_of_sm_activity_or_without_a_template(personas, learned) -> None:
    run, gpus = running(personas, learned)
    access, later = personas.access("superuser"), learned + timedelta(seconds=10)

    TelemetryMinute.objects.filter(cluster=gpus[0].node.cluster).delete()
    unread = job_phase(access, run.job, run, now=later)
    assert unread is not None and (unread.phase, unread.next) == (Phase.UNKNOWN, None)
    run.job.template = "notebook"
    assert job_phase(access, run.job, run, now=later) is None
    run.job.template = None
    assert job_phase(access, run.job, run, now=later) is None


def test_beside_which_templates_it_goes_well(personas, learned, django_assert_max_num_queries) -> None:
    light = template_made(personas, name="embed")
    since = learned - timedelta(hours=1)
    for number in range(3):
        gpus = gpus_of(builders.node(f"e{number}", gpus=1, of=builders.cluster(f"embed{number}")))
        minutes_stored(gpus, dict.fromkeys(COUNTERS, np.full(50, 10.0)), since=since)
        run_made(light, gpus, since=since, until=since + 50 * MINUTE, on=QuotaNode.objects.get(path=TEAM))
    runs_note(since=since, now=learned)
    runs_learn(now=learned)
    template = template_named(personas.access("superuser"), REF)
    assert template is not None

    with django_assert_max_num_queries(5):
        found = neighbours_of(personas.access("superuser"), template, now=learned)

    assert [(one.template.ref, one.verdict, one.scarce) for one in found] == [(f"{TEAM}:embed", "well", "None"), (REF, "no", "SM")]
    assert found[1].found.gpu == pytest.approx(1.35, abs=0.08)
    page = personas.client("team_lead").get(reverse("template", args=[REF])).content.decode()
    assert "Sharing with others" in page and "Memory too small" in page
    told = personas.client("team_lead").get(f"/api/v1/fingerprints/{REF}").json()["beside"]
    assert [(one["verdict"], one["unread"]) for one in told] == [("well", []), ("no", [])]


# The load ahead


def test_the_load_ahead_stands_on_the_pages_of_the_gap_and_of_a_team_with_what_it_rests_on(personas, learned) -> None:
    gap_turn(now=learned)
    client = personas.client("team_lead")
    team = QuotaNode.objects.get(path=TEAM)
    idle, page = client.get(reverse("gap")).content.decode(), client.get(reverse("quota", args=[team.public_id])).content.decode()
    assert "No job runs on whole GPUs." in idle and "No job runs on whole GPUs." in page
    assert reverse("gap-ahead") not in idle, "an empty chart says no more than the sentence"

    gpus = gpus_of(builders.node("n0", gpus=2, of=builders.cluster("c9")))
    above = gpus_of(builders.node("n1", gpus=4, of=builders.cluster("c9")))
    run_made("unknown", gpus, since=learned - 30 * MINUTE, until=None, on=team)
    assert "Too little is known of 1 running job: phases" in client.get(reverse("gap")).content.decode()

    run_made(Attempt.objects.earliest("pk").job.template, above, since=learned - 30 * MINUTE, until=None, on=QuotaNode.objects.get(path=OTHER))
    runs_note(since=learned, now=learned)
    fleet, page = client.get(reverse("gap")).content.decode(), client.get(reverse("quota", args=[team.public_id])).content.decode()
    said = "1 running job on 4 GPUs, if all continue and no others start. 1 more job on 2 GPUs is not included: too few runs are known."
    assert said in fleet
    assert "Too little is known of 1 running job" in page, "the other one is above the team"
    for header in ("Allocated to these jobs (GPUs)", "Low (GPUs)", "High (GPUs)", "Computing (GPUs)"):
        assert header in fleet

    chart = client.get(reverse("gap-ahead")).json()
    assert (chart["label"], chart["empty"]) == ("Expected load, next 4 hours", False)
    assert "80% range" in chart["legend"]
    assert client.get(reverse("quota-ahead", args=[team.public_id])).json()["empty"]
    lines = b"".join(client.get(reverse("gap-ahead"), {"format": "csv"}).streaming_content).decode().splitlines()
    assert len(lines) == 1 + 4 * 12


def test_the_load_ahead_is_told_of_subtrees_that_the_caller_sees(personas, learned) -> None:
    gpus = gpus_of(builders.node("n0", gpus=2, of=builders.cluster("c9")))
    run_made(Attempt.objects.earliest("pk").job.template, gpus, since=learned - 30 * MINUTE, until=None, on=QuotaNode.objects.get(path=TEAM))
    runs_note(since=learned, now=learned)
    mine, other = (QuotaNode.objects.get(path=path).public_id for path in (TEAM, "acme/research/vision"))
    client = personas.client("team_lead")

    found = client.get("/api/v1/fleet/load-ahead", {"quota": mine, "hours": 1}).json()

    assert (found["jobs"], found["gpus"], found["other_jobs"], found["others"]) == (1, 2, 0, 0)
    assert all(low <= mean <= high for low, mean, high in zip(found["low"], found["computing"], found["high"], strict=True))
    assert client.get("/api/v1/fleet/load-ahead", {"quota": mine, "gpu_type": "other"}).json()["jobs"] == 0
    refused = client.get("/api/v1/fleet/load-ahead", {"quota": other})
    assert (refused.status_code, refused.json()["errors"]) == (422, [{"path": "quota", "message": "There is no such quota node."}])
    assert personas.client("superuser").get("/api/v1/fleet/load-ahead", {"quota": other}).json()["jobs"] == 0
