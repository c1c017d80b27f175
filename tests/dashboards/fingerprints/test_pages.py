"""What people see of phases: on the page of a template and in the API, of the runs that they may see."""

from datetime import timedelta

import pytest
from django.urls import reverse

from dashboards.fingerprints.learning import Confidence
from dashboards.fingerprints.phases import Phase
from dashboards.fingerprints.selectors import example_chart, template_learned
from dashboards.fingerprints.store import runs_learn, runs_note
from gpufleet.core.times import now
from quotas.models import QuotaNode
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
    access = personas.access(who)
    return template_learned(access, template_named(personas.access("superuser"), REF), now=moment)


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
