"""Whether a gang is rail-aligned, or over which domains its nodes are spread: on its page and for programs."""

import pytest
from django.urls import reverse

from scheduler.models import Job, JobState, Node, TopologyLevel
from tests import builders
from tests.personas import Personas

pytestmark = pytest.mark.django_db


def gang(personas: Personas, *places: str, rails: bool = True) -> Job:
    """A job with a GPU of a node at each of these places; an empty one is unknown."""
    cluster = builders.cluster(levels=("spine", "leaf"))
    TopologyLevel.objects.filter(name="leaf").update(is_rail_level=rails)
    job = builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING)
    run = builders.attempt(job)
    for place in places:
        node = builders.node(of=cluster, gpus=8, at=place)
        builders.placement(job, node.gpus.first(), attempt=run)
    return job


def told(personas: Personas, job: Job) -> tuple[str, dict[str, object] | None]:
    reader = personas.client("viewer")
    page = reader.get(reverse("job", args=[job.public_id])).content.decode()
    line = next((part for part in page.split("<p>") if "ail-aligned" in part or part.startswith("All ")), "").partition("</p>")[0]
    return line, reader.get(f"/api/v1/jobs/{job.public_id}").json()["alignment"]


def test_a_gang_below_one_set_of_rail_switches_is_aligned(personas: Personas) -> None:
    line, facts = told(personas, gang(personas, "spine-1/leaf-1", "spine-1/leaf-1", "spine-1/leaf-1"))

    assert line == "Rail-aligned: all 3 nodes in leaf spine-1/leaf-1."
    assert facts == {
        "nodes": 3,
        "level": "leaf",
        "domain": "spine-1/leaf-1",
        "rail_level": "leaf",
        "rail_domains": {"spine-1/leaf-1": 3},
        "rail_aligned": True,
    }


def test_one_that_is_spread_says_over_what(personas: Personas) -> None:
    line, facts = told(personas, gang(personas, "spine-1/leaf-2", "spine-1/leaf-1", "spine-1/leaf-2"))

    assert line == "Not rail-aligned: 3 nodes in 2 domains of level leaf (spine-1/leaf-1: 1, spine-1/leaf-2: 2). All 3 nodes in spine spine-1."
    assert facts is not None
    assert (facts["level"], facts["domain"], facts["rail_aligned"]) == ("spine", "spine-1", False)


def test_what_is_not_known_is_not_aligned(personas: Personas) -> None:
    line, facts = told(personas, gang(personas, "spine-1/leaf-1", ""))

    assert line == "Not rail-aligned: 2 nodes in 2 domains of level leaf (unknown: 1, spine-1/leaf-1: 1)."
    assert facts is not None
    assert (facts["level"], facts["rail_domains"]) == (None, {"": 1, "spine-1/leaf-1": 1})


def test_two_nodes_of_which_nothing_is_known_are_not_aligned_either(personas: Personas) -> None:
    assert told(personas, gang(personas, "", ""))[0].startswith("Not rail-aligned: 2 nodes in 1 domain of level leaf (unknown: 2)")


def test_without_rails_the_narrowest_common_domain_is_told(personas: Personas) -> None:
    line, facts = told(personas, gang(personas, "spine-1/leaf-1", "spine-1/leaf-2", rails=False))

    assert line == "All 2 nodes in spine spine-1."
    assert facts is not None
    assert (facts["rail_level"], facts["rail_aligned"]) == (None, None)


@pytest.mark.parametrize("clusters", [1, 2])
def test_of_one_node_and_of_several_clusters_nothing_is_said(personas: Personas, clusters: int) -> None:
    job = gang(personas, *["spine-1/leaf-1"] * clusters)
    if clusters == 2:
        Node.objects.filter(pk=Node.objects.latest("pk").pk).update(cluster=builders.cluster("south"), domain=None)
    line, facts = told(personas, job)

    assert line == ""
    assert (facts is None) == (clusters == 1)
