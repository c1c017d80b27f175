"""Templates of subtrees: who sees and writes them, versions, locks and bounds."""

import pytest
from django.core.exceptions import PermissionDenied, ValidationError

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from scheduler.jobs.template_rules import SHIPPED, SHIPPED_BY_REF, Template
from scheduler.models import Job, JobTemplateVersion
from scheduler.selectors.templates import template_named, templates_visible
from scheduler.services.jobs.submission import submission_create
from scheduler.services.jobs.templates import template_archive, template_save
from tests import builders
from tests.builders import NOON

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
BODY = {"gpus": 8, "class": "inference", "topology": {"tp_group": 8}, "launch": {"command": ["serve"], "env": {"A": "1"}}}

BOUNDS = {"gpus": {"least": 8, "most": 8}}


@pytest.fixture
def save(personas):
    def call(who="team_lead", path=TEAM, **facts):
        given = {
            "name": "serve",
            "title": "Serve",
            "body": BODY,
            "locked": ["topology.tp_group"],
            "limits": {"gpus": {"least": 8, "most": 8}},
        } | facts
        return template_save(access=personas.access(who), node=personas.nodes[path], now=NOON, **given)

    return call


def refs(personas, who):
    return [one.ref for one in templates_visible(personas.access(who)) if one.quota]


def test_a_template_serves_its_subtree_and_is_seen_by_those_who_submit_there(personas, save):
    save("operator", "acme/research", name="wide")
    save("operator", "acme/product/search", name="theirs")
    save()

    assert refs(personas, "submitter") == ["acme/research:wide", f"{TEAM}:serve"], "that of a node above, where he sees nothing else, too"
    assert refs(personas, "viewer") == [f"{TEAM}:serve"]
    assert refs(personas, "stranger") == []
    for everywhere in ("operator", "superuser"):
        assert set(refs(personas, everywhere)) == {"acme/research:wide", "acme/product/search:theirs", f"{TEAM}:serve"}
    assert template_named(personas.access("submitter"), "acme/product/search:theirs") is None
    assert [one.ref for one in templates_visible(personas.access("submitter"))][2:] == [one.ref for one in SHIPPED]


def test_versions_follow_each_other_and_the_older_ones_stay(personas, save):
    save()
    second = save(title="Serve better", body=BODY | {"gpus": 8, "priority": 70}, seen=1, reason="faster")

    assert second.number == 2
    access = personas.access("submitter")
    assert template_named(access, f"{TEAM}:serve").body["priority"] == 70
    assert "priority" not in template_named(access, f"{TEAM}:serve@1").body
    assert template_named(access, f"{TEAM}:serve@3") is None
    with pytest.raises(Conflict, match="There is version 2"):
        save(seen=1)
    assert [entry.action for entry in AuditEntry.objects.filter(object_kind="template").order_by("id")] == ["template.create", "template.update"]
    template_archive(access=personas.access("team_lead"), template=second.template, reason="", now=NOON)
    assert template_named(access, f"{TEAM}:serve") is None
    assert save().number == 1, "its name is free again"


@pytest.mark.parametrize("who", ["viewer", "submitter", "finance", "stranger"])
def test_others_write_none(save, who):
    with pytest.raises(PermissionDenied):
        save(who)
    assert not JobTemplateVersion.objects.exists()


def test_a_team_lead_writes_none_above_the_team(save):
    with pytest.raises(PermissionDenied):
        save("team_lead", "acme/research")


@pytest.mark.parametrize(
    ("facts", "path"),
    [
        ({"name": "a b"}, "name"),
        ({"name": "notebook"}, "name"),
        ({"title": " "}, "title"),
        ({"body": {"gpuz": 1}}, "body.gpuz"),
        ({"body": {"gpus": -1}}, "body.gpus"),
        ({"body": ["gpus"]}, "body"),
        ({"body": {"template": "notebook"}}, "body.template"),
        ({"body": {"name": "a\0"}}, "body.name"),
        ({"locked": ["colour"]}, "locked.colour"),
        ({"locked": ["priority"]}, "locked.priority"),
        ({"limits": {"colour": {"most": 1}}}, "limits.colour"),
        ({"limits": {"gpus": {"most": "many"}}}, "limits.gpus"),
        ({"limits": {"gpus": {}}}, "limits.gpus"),
    ],
)
def test_what_is_wrong_with_a_template_is_told_at_its_place(save, facts, path):
    with pytest.raises(ValidationError) as refused:
        save(**facts)
    assert path in refused.value.message_dict
    assert not JobTemplateVersion.objects.exists()


def test_a_description_says_only_what_is_its_own(personas, save):
    builders.gpu_type()
    save()
    access = personas.access("submitter")
    said = {"template": f"{TEAM}:serve", "name": "mine", "quota": TEAM, "launch": {"env": {"B": "2"}}}
    (job,) = submission_create(access=access, description=said, now=NOON, actor=access.actor)

    assert (job.job_class, job.gpus_milli, job.spec["topology"]) == ("inference", 8000, {"tp_group": 8})
    assert job.launch == {"command": ["serve"], "env": {"A": "1", "B": "2"}}
    for change, path in (({"topology": {"tp_group": 4}}, "topology.tp_group"), ({"gpus": 4}, "gpus"), ({"quota": "acme/product/search"}, "quota")):
        with pytest.raises(ValidationError) as refused:
            submission_create(access=access, description=said | change, now=NOON, actor=access.actor)
        assert path in refused.value.message_dict
    assert Job.objects.count() == 1


def test_a_template_is_for_its_subtree_alone(personas, save):
    builders.gpu_type()
    save()
    access = personas.access("superuser")
    said = {"template": f"{TEAM}:serve", "name": "x", "quota": "acme/research/vision"}
    with pytest.raises(ValidationError) as refused:
        submission_create(access=access, description=said, now=NOON, actor=access.actor)
    assert refused.value.message_dict == {"template": [f"It is for {TEAM} and what lies below."]}


def test_what_is_stated_another_way_takes_the_place_of_the_templates():
    elastic, notebook = SHIPPED_BY_REF["elastic-training"], SHIPPED_BY_REF["notebook"]

    assert "roles" not in elastic.completed({"gpus": 4})
    assert "gpus" not in notebook.completed({"roles": [{"gpus": 1}]})
    assert elastic.completed({"roles": [{"name": "worker", "max": 6}]})["roles"] == [{"name": "worker", "min": 4, "max": 6, "step": 1, "gpus": 8}]
    bounded = Template("x", "X", body={"gpus": 1}, limits={"class": {"one_of": ["batch"]}, "gpus": {"least": 2}})
    assert bounded.faults({"class": "inference", "gpus": 1}) == {
        "class": ["One of batch, by the template x."],
        "gpus": ["At least 2, by the template x."],
    }


def test_the_pages_show_write_and_archive_them(personas):
    client = personas.client("team_lead")
    assert "Elastic training" in client.get("/templates/").content.decode()
    form = {
        "node": TEAM,
        "name": "own",
        "title": "Own",
        "body": "gpus: 2\nclass: batch\n",
        "locked": "class",
        "limits": "gpus: {most: 4}",
        "seen": "0",
    }
    refused = client.post("/templates/edit/", form | {"body": "gpus: [", "title": ""})
    assert refused.status_code == 422
    assert "this is not valid YAML" in refused.content.decode()
    refused = client.post("/templates/edit/", form | {"body": "gpuz: 1", "locked": "x"})
    assert refused.status_code == 422
    assert "gpuz: There is no key gpuz here; gpus was perhaps meant." in refused.content.decode()
    assert client.post("/templates/edit/", form | {"node": "acme/product"}).status_code == 422
    assert client.post("/templates/edit/", form).status_code == 302
    assert "gpus: 2" in client.get(f"/templates/edit/?ref={TEAM}:own").content.decode()
    assert client.post(f"/templates/edit/?ref={TEAM}:own", form | {"title": "Newer", "seen": "1"}).status_code == 302
    assert client.post(f"/templates/edit/?ref={TEAM}:own", form | {"seen": "1"}).status_code == 409
    assert personas.client("submitter").get(f"/templates/edit/?ref={TEAM}:own").status_code == 403
    assert "Newer" in personas.client("submitter").get("/jobs/new/").content.decode()
    assert "locked by the template" in personas.client("submitter").get(f"/jobs/new/?template={TEAM}:own").content.decode()
    assert client.post("/templates/archive/", {"ref": f"{TEAM}:own"}).status_code == 302
    assert "Newer" not in client.get("/templates/").content.decode()


def test_programs_do_the_same(personas):
    client = personas.client("team_lead")
    body = {"quota": TEAM, "name": "own", "title": "Own", "body": {"gpus": 2}, "locked": ["gpus"]}
    saved = client.put("/api/v1/templates", body, content_type="application/json")
    assert saved.status_code == 200, saved.content
    assert saved.json()["version"] == 1
    assert client.put("/api/v1/templates", body, content_type="application/json").status_code == 409
    assert (
        client.put("/api/v1/templates", body | {"locked": ["x"], "seen": 1}, content_type="application/json").json()["errors"][0]["path"]
        == "locked.x"
    )
    detail = client.get(f"/api/v1/templates/{TEAM}:own").json()
    assert (detail["body"], detail["locked"], [one["version"] for one in detail["versions"]]) == ({"gpus": 2}, ["gpus"], [1])
    assert client.get("/api/v1/templates/notebook").json()["quota"] is None
    assert client.get("/api/v1/templates/none").status_code == 404
    assert client.post("/api/v1/templates/archive", {"ref": f"{TEAM}:own"}, content_type="application/json").status_code == 200
    assert f"{TEAM}:own" not in [one["ref"] for one in client.get("/api/v1/templates").json()["items"]]


def test_templates_are_walked_by_pages(personas, save):
    client = personas.client("team_lead")
    for name in ("b", "a", "c"):
        save(name=name, title=f"Title of {name}")
    whole = [one["ref"] for one in client.get("/api/v1/templates").json()["items"]]
    told, after = [], ""
    while after is not None:
        page = client.get("/api/v1/templates", {"size": 2, "after": after}).json()
        told += [one["ref"] for one in page["items"]]
        after = page["next"]

    assert told == whole
    assert whole[:3] == [f"{TEAM}:a", f"{TEAM}:b", f"{TEAM}:c"]
    assert client.get("/api/v1/templates?after=nowhere").status_code == 422
