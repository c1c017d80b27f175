"""The image that a job runs in: read as registries write it, kept the whole way, and never sent where nothing runs images."""

import re
from typing import Any

import pytest
from django.core.exceptions import ValidationError

from scheduler.backends import registry
from scheduler.jobs.image import EXAMPLE, LONGEST_NAME, PATTERN, image_fault
from scheduler.models import Job, Placement
from scheduler.services.jobs.submission import submission_create
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, Loop, leaf
from tests.scheduler.test_fitting import fit

PATH = "acme/research/nlp"
IMAGE = "registry.example.org:5000/nlp/train:1.4"
DIGEST = "sha256:" + 64 * "a"


@pytest.mark.parametrize(
    "text",
    ["python", "python:3.12", IMAGE, EXAMPLE, f"a@{DIGEST}", f"{IMAGE}@{DIGEST}", "localhost/a", "[::1]:5000/a__b/c--d.e", "R.example.org/a:B-1_c.d"],
)
def test_references_as_registries_write_them(text: str) -> None:
    assert image_fault(text) == ""
    assert re.match(PATTERN, text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("https://r.io/a:1", "write r.io/a:1"),
        ("r.io/a b", "no blanks"),
        ("r.io/NLP/Train:1", "nlp/train"),
        ("r.io/a:", "After the colon"),
        ("r.io/a:-x", "After the colon"),
        (f"r.io/a:{129 * 'x'}", "After the colon"),
        ("r.io/a@sha256:12", "After @"),
        ("r.io/a@", "After @"),
        (f"a@{DIGEST}@{DIGEST}", "After @"),
        ((1 + LONGEST_NAME) * "x", f"at most {LONGEST_NAME}"),
        *((text, "An image is wanted as") for text in ("", "/a", "a/", "a//b", "-a", "é", "r.io:123456/a", "a:b:c", "$(id)", "a;b", "<b>")),
    ],
)
def test_what_is_none_is_told_which_part_is_wrong(text: str, words: str) -> None:
    assert words in image_fault(text)
    assert not re.fullmatch(PATTERN, text) or words.startswith("at most")


def description(**launch: Any) -> dict[str, Any]:
    return {"name": "train", "quota": PATH, "gpus": 1, "launch": {"command": ["train"], "image": IMAGE} | launch}


@pytest.fixture
def both(personas: Any) -> Any:
    """A cluster whose back-end runs images, and one of this machine, which runs none."""
    builders.node("big", of=builders.cluster("north"), gpus=2)
    builders.node("desk", of=builders.cluster("here", backend="local"), gpus=8, type_name="RTX")
    leaf("research/nlp", 8)
    return personas


def submit(personas: Any, **said: Any) -> Job:
    access = personas.access("submitter")
    (job,) = submission_create(access=access, description=description() | said, now=NOON, actor=access.actor)
    return job


def faults(personas: Any, **said: Any) -> dict[str, list[str]]:
    with pytest.raises(ValidationError) as refused:
        submit(personas, **said)
    return refused.value.message_dict


@pytest.mark.django_db
def test_a_job_with_an_image_stands_only_where_images_run(both: Any) -> None:
    first, second = submit(both), submit(both, gpus=2)
    plain = submit(both, launch={"command": ["true"]}, gpu_types=["RTX"])
    Loop().tick()

    assert first.launch == {"command": ["train"], "image": IMAGE}
    assert list(Placement.objects.filter(job=first).values_list("node__name", flat=True)) == ["big"]
    assert not Placement.objects.filter(job=second).exists(), "eight GPUs are free on a cluster that runs no images"
    assert Placement.objects.filter(job=plain, node__name="desk").exists()


@pytest.mark.django_db
def test_what_no_cluster_could_run_is_told_at_the_field(both: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_ours", registry.Backends({}))
    registry.backends_all([builders.Cluster(pk=10**6, name="gone", backend="simulated")])  # was there when the process began
    assert faults(both, gpu_types=["RTX"]) == {"launch.image": ["RTX is only on here, which runs no images."]}
    assert submit(both, gpu_types=["RTX", H100]).spec["in_image"] is True
    builders.Cluster.objects.filter(name="north").update(backend="local")
    (told,) = faults(both)["launch.image"]
    assert told.startswith("No cluster's back-end runs images")
    assert faults(both, launch={"image": "Bad Image"}) == {"launch.image": ["A reference holds no blanks."]}


@pytest.mark.django_db
def test_the_fit_says_where_an_image_keeps_a_job_from(both: Any) -> None:
    from scheduler.presenters.fitting import fit_facts

    found = fit(both.access("submitter"), **description())
    assert [stand.node for stand in found.stands] == ["north/big"]
    assert fit_facts(found, both.access("submitter"))["notes"] == [
        "It names an image, so it does not run on here: no images are run there.",
    ]
    assert not fit(both.access("submitter"), **description() | {"launch": {}}).without_images


@pytest.mark.django_db
def test_an_image_is_the_same_by_form_yaml_clone_and_api(both: Any) -> None:
    client = both.client("submitter")
    told = client.post("/jobs/new/look", {"name": "train", "quota": PATH, "gpus": "1", "launch.image": IMAGE, "_from": "form"}).json()
    assert (told["faults"], told["yaml"]) == ({}, f"name: train\nquota: {PATH}\ngpus: 1\nlaunch:\n  image: {IMAGE}\n")
    assert f'"image": "{IMAGE}"' in told["curl"]
    wrong = client.post("/jobs/new/look", {"name": "train", "quota": PATH, "gpus": "1", "launch.image": "r.io/A/b", "_from": "form"}).json()
    assert wrong["faults"] == {"launch.image": ["The name of an image has no capital letters: a/b."]}

    job = submit(both)
    again = client.get(f"/api/v1/jobs/{job.public_id}/description").json()
    assert again["launch"]["image"] == IMAGE
    assert "in_image" not in again
    answer = client.post("/api/v1/jobs", again, content_type="application/json")
    assert answer.status_code == 201, answer.content
    assert Job.objects.latest("pk").launch == job.launch
    page = client.get(f"/jobs/new/?clone={job.public_id}").content.decode()
    assert IMAGE in page
    assert "in_image" not in page
