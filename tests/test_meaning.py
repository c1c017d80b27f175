"""What a caller sends means one thing: true is no number, the machine's own zone is no place, and a bound holds whichever way a job is described."""

import json

import pytest
from pydantic import BaseModel, ValidationError

from gpufleet.core.strict import Strict
from gpufleet.core.zones import zone_named
from scheduler.jobs.template_rules import SHIPPED_BY_REF, Template
from scheduler.models import Job
from tests import builders


class Part(BaseModel):
    flag: bool = False


class Body(Strict):
    number: int = 0
    numbers: list[int] = []
    flag: bool = False
    either: bool | str = ""
    by_name: dict[str, float] = {}
    parts: list[Part] = []


@pytest.mark.parametrize("wrong", [{"number": True}, {"numbers": [1, False]}, {"by_name": {"a": True}}])
def test_true_and_false_are_refused_where_a_number_is_wanted(wrong):
    with pytest.raises(ValidationError, match="not allowed here"):
        Body.model_validate(wrong)


def test_true_and_false_are_taken_where_they_are_meant():
    Body.model_validate({"flag": True, "either": False, "parts": [{"flag": True}], "number": 1})


@pytest.mark.django_db
@pytest.mark.parametrize(("path", "body"), [("/api/v1/jobs?dry_run=true", {"gpus": True}), ("/api/v1/me/notices/read", {"ids": [False]})])
def test_the_api_refuses_them_at_their_field(personas, path, body):
    base = {"name": "a", "quota": "acme/research/nlp"} if "dry_run" in path else {}
    answer = personas.client("team_lead").post(path, json.dumps({**base, **body}), content_type="application/json")

    assert answer.status_code == 422
    assert any("not allowed here" in error["message"] and error["path"] in ("gpus", "ids") for error in answer.json()["errors"])


@pytest.mark.parametrize(
    "name", ["localtime", "posixrules", "Factory", "posix/Europe/Berlin", "right/UTC", "../etc/passwd", "", "x" * 200, "Nowhere/Land"]
)
def test_what_is_not_a_place_is_not_a_zone(name):
    with pytest.raises(ValueError):
        zone_named(name)


def test_places_and_utc_are_zones():
    assert str(zone_named("Europe/Berlin")) == "Europe/Berlin"
    assert str(zone_named("UTC")) == "UTC"


GPUS = Template("t", "T", body={"gpus": 1}, limits={"gpus": {"most": 2}, "workers": {"most": 4}, "gpu_types": {"one_of": ["A100"]}})
ROLES = Template(
    "t", "T", body={"roles": [{"name": "worker", "min": 1, "gpus": 8}]}, limits={"roles[0].max": {"most": 4}, "roles[0].gpus": {"most": 8}}
)


@pytest.mark.parametrize(
    ("template", "raw", "where"),
    [
        (GPUS, {"gpus": 3}, {"gpus"}),
        (GPUS, {"roles": [{"gpus": 3}]}, {"roles[0].gpus"}),
        (GPUS, {"roles": [{"gpus": 1}, {"name": "other", "gpus": 64}]}, {"roles[1].gpus"}),
        (GPUS, {"roles": [{"gpus": 1, "min": 5, "max": 9}]}, {"roles[0].min", "roles[0].max"}),
        (GPUS, {"roles": [{"gpus": 1, "gpu_types": ["H100"]}]}, {"roles[0].gpu_types"}),
        (GPUS, {"gpus": 2, "workers": 4, "gpu_types": ["A100"]}, set()),
        (ROLES, {"roles": [{"max": 5, "gpus": 1}]}, {"roles[0].max"}),
        (ROLES, {"roles": [{"max": 1, "gpus": 1}, {"name": "way-around", "max": 64, "gpus": 16}]}, {"roles[1].max", "roles[1].gpus"}),
        (ROLES, {"gpus": 16, "workers": 5}, {"gpus", "workers"}),
        (ROLES, {"gpus": 8, "workers": 4}, set()),
    ],
)
def test_a_bound_holds_for_every_way_of_saying_the_same(template, raw, where):
    assert set(template.faults(raw)) == where


def test_a_notebook_is_one_worker():
    assert "workers" in SHIPPED_BY_REF["notebook"].faults({"class": "interactive", "gpus": 2, "workers": 9})


@pytest.mark.django_db
def test_a_change_goes_no_further_than_the_template_of_the_job(personas):
    builders.node("n1", of=builders.cluster("c"), gpus=8)
    client = personas.client("team_lead")
    body = {"name": "a", "quota": "acme/research/nlp", "template": "notebook", "limit_s": 3600}
    made = client.post("/api/v1/jobs", json.dumps(body), content_type="application/json")
    assert made.status_code == 201, made.content
    job = Job.objects.get()

    def patch(**change):
        return client.patch(f"/api/v1/jobs/{job.public_id}", json.dumps(change), content_type="application/json")

    assert patch(limit_s=200_000).status_code == 422
    assert "by the template notebook" in patch(limit_s=200_000).content.decode()
    assert patch(workers={"worker": {"min": 5}}).status_code == 422
    assert patch(limit_s=7200).status_code == 200


@pytest.mark.django_db
def test_a_token_for_a_part_of_the_tree_neither_sees_nor_revokes_wider_ones(personas, client):
    wide = personas.token("quota_admin", "read", "admin")
    cut = personas.token("quota_admin", "read", "admin", path="acme/research/nlp")
    below = personas.token("quota_admin", "read", path="acme/research/nlp")
    assert wide
    assert below
    mine = {"Authorization": f"Bearer {cut}"}

    def tokens(secret: str) -> list[dict[str, str]]:
        return client.get("/api/v1/tokens", headers={"Authorization": f"Bearer {secret}"}).json()["items"]

    seen, all_of_them = tokens(cut), tokens(wide)
    wider = next(one["id"] for one in all_of_them if one["node"] is None)

    assert {one["node"] for one in seen} == {"acme/research/nlp"}
    assert len(seen) == 2
    assert len(all_of_them) == 3
    assert client.delete(f"/api/v1/tokens/{wider}", headers=mine).status_code == 404
    assert client.delete(f"/api/v1/tokens/{next(one['id'] for one in seen if one['scopes'] == ['read'])}", headers=mine).status_code == 204


@pytest.mark.django_db
def test_the_verdict_of_an_elastic_job_names_the_size_that_it_starts_with(personas):
    builders.node("n1", of=builders.cluster("c"), gpus=8)
    client = personas.client("team_lead")

    def verdict(**roles: int) -> str:
        yaml = {"name": "a", "quota": "acme/research/nlp", "estimate_s": 60, "roles": [{"name": "worker", "gpus": 1, **roles}]}
        return client.post("/jobs/new/look", {"yaml": json.dumps(yaml), "_from": "yaml"}).json()["fit"]

    assert "Starts now on 8 of 64 GPUs" in verdict(min=4, max=64)
    assert "Starts now<" in verdict(min=4, max=4)
