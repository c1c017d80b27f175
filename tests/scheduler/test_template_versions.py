"""Which template and version a job was made from, what a version said and changed, and what it lets be typed at a field."""

import pytest
from django.core.exceptions import ValidationError
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.times import now
from scheduler.jobs.template_rules import SHIPPED_BY_REF, Template
from scheduler.models import Job
from scheduler.presenters.templates import diff_lines
from scheduler.services.jobs.submission import submission_create
from scheduler.services.jobs.templates import template_archive, template_save
from tests import builders

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
REF = f"{TEAM}:serve"


@pytest.fixture
def save(personas):
    """The next version of acme/research/nlp:serve."""
    builders.gpu_type()

    def call(seen, path=TEAM, **facts):
        said = {"name": "serve", "title": "Serve", "body": {"name": "serve", "gpus": 8}, "limits": {"gpus": {"least": 8, "most": 64}}} | facts
        return template_save(access=personas.access("operator"), node=personas.nodes[path], seen=seen, now=now(), **said)

    return call


@pytest.fixture
def submit(personas):
    def call(template, who="submitter", **said):
        access = personas.access(who)
        description = {"template": template, "quota": TEAM, **said}
        return submission_create(access=access, description=description, now=now(), actor=access.actor)[0]

    return call


@pytest.fixture
def listed(personas):
    def call(template, who="viewer"):
        answer = personas.client(who).get("/api/v1/jobs", {"template": template})
        assert answer.status_code == 200, answer.content
        return sorted(row["name"] for row in answer.json()["items"])

    return call


def test_a_job_keeps_which_version_it_was_made_from(personas, save, submit):
    save(0)
    first = submit(REF)
    second = save(1, body={"name": "serve", "gpus": 16})
    newer, older, shipped, own = submit(REF), submit(f"{REF}@1"), submit("notebook", name="n"), submit("", name="own", gpus=1)

    key = second.template.public_id
    assert [(job.template, job.template_version) for job in (first, newer, older)] == [(key, 1), (key, 2), (key, 1)]
    assert older.gpus_milli == 8000
    assert (shipped.template, shipped.template_version) == ("notebook", 1)
    assert own.template is None
    client = personas.client("viewer")
    told = client.get(f"/api/v1/jobs/{older.public_id}").json()
    assert (told["template"], told["template_version"], told["template_ref"]) == (key, 1, f"{REF}@1")
    assert client.get(f"/api/v1/jobs/{shipped.public_id}").json()["template_ref"] == "notebook"
    page = client.get(f"/jobs/{older.public_id}/").content.decode()
    assert f'<a href="/templates/at/{REF}@1">{REF}</a>, version 1' in page
    assert "there is version 2 now" in page
    assert "there is version" not in client.get(f"/jobs/{newer.public_id}/").content.decode()


def test_jobs_are_found_by_their_template(save, submit, listed):
    key = save(0).template.public_id
    submit(REF, name="one")
    save(1)
    submit(REF, name="two")
    submit("notebook", name="three")

    assert listed(REF) == listed(key) == ["one", "two"]
    assert listed(f"{REF}@1") == ["one"]
    assert listed("notebook") == listed("notebook@1") == ["three"]
    assert listed(f"{REF}@none") == listed(f"{REF}@{'9' * 30}") == listed("a:b") == []


def test_a_template_that_is_gone_is_still_named_and_found(personas, save, submit, listed):
    gone = save(0).template
    job = submit(REF, name="one")
    template_archive(access=personas.access("operator"), template=gone, reason="", now=now())
    save(0)
    submit(REF, name="again")

    assert listed(REF) == ["again", "one"]
    told = personas.client("viewer").get(f"/api/v1/jobs/{job.public_id}").json()
    assert (told["template"], told["template_ref"]) == (gone.public_id, None)
    assert "serve, version 1" in personas.client("viewer").get(f"/jobs/{job.public_id}/").content.decode()


def test_each_element_of_an_array_knows_its_template(submit, listed):
    submit("sweep", array={"size": 3})

    assert set(Job.objects.values_list("template", "template_version")) == {("sweep", 1)}
    assert len(listed("sweep")) == 3


# The versions


def test_a_templates_page_shows_a_whole_version_and_what_it_changed(personas, save):
    save(0, body={"name": "serve", "gpus": 8, "launch": {"command": ["a"]}}, locked=["launch.command"])
    save(1, body={"name": "serve", "gpus": 8, "limit_s": 3600, "launch": {"command": ["<b>"]}}, locked=["launch.command"], reason="Shorter")
    client = personas.client("viewer")

    page = client.get(f"/templates/at/{REF}").content.decode()
    assert "<ins>+ limit_s: 3600</ins>" in page and "<del>−     - a</del>" in page
    assert "&lt;b&gt;" in page and "- <b>" not in page
    assert "Shorter" in page and "8 to 64" in page
    older = client.get(f"/templates/at/{REF}@1").content.decode()
    assert "limit_s" not in older and "there is a newer one" in older and "<ins>" not in older
    assert "<del>− limit_s: 3600</del>" in client.get(f"/templates/at/{REF}?to=1&from=2").content.decode()
    assert client.get("/templates/at/notebook").status_code == 200
    for strange in (f"{REF}@9", "nothing", "acme/product:none", f"{REF}@x"):
        assert client.get(f"/templates/at/{strange}").status_code == 404


def test_templates_of_other_teams_have_no_page(personas, save):
    save(0, path="acme/product/search")

    assert personas.client("viewer").get("/templates/at/acme/product/search:serve").status_code == 404
    assert personas.client("operator").get("/templates/at/acme/product/search:serve").status_code == 200


def test_a_new_version_can_begin_with_an_older_one(personas, save):
    save(0, title="First")
    save(1, title="Second")
    client = personas.client("team_lead")

    page = client.get(f"/templates/edit/?ref={REF}&base=1").content.decode()
    assert 'value="First"' in page and 'name="seen" value="2"' in page
    sent = {"title": "First again", "body": "gpus: 8\n", "locked": "", "limits": "", "reason": "Back", "seen": "2"}
    assert client.post(f"/templates/edit/?ref={REF}&base=1", sent).status_code == 302
    versions = client.get(f"/api/v1/templates/{REF}").json()["versions"]
    assert [(one["version"], one["title"], one["body"]["gpus"]) for one in versions] == [(3, "First again", 8), (2, "Second", 8), (1, "First", 8)]


@given(st.lists(st.sampled_from("abcd"), max_size=12), st.lists(st.sampled_from("abcd"), max_size=12))
def test_what_changed_leads_from_one_text_to_the_other(before, after):
    lines = diff_lines("\n".join(before), "\n".join(after))

    assert [line.text for line in lines if line.kind != "new"] == before
    assert [line.text for line in lines if line.kind != "gone"] == after


# What may be typed


@pytest.mark.parametrize(
    ("path", "limit", "said"),
    [
        ("gpus", {"least": 8, "most": 64}, "8 to 64"),
        ("gpus", {"least": 8, "most": 8}, "Always 8"),
        ("gpus", {"most": 2}, "At most 2"),
        ("limit_s", {"least": 60, "most": 86_400}, "1m to 1d"),
        ("gpu_types", {"one_of": ["A100", "H100"]}, "One of A100, H100"),
        ("priority", {"least": 0, "one_of": [10, 20]}, "At least 0; One of 10, 20"),
    ],
)
def test_a_bound_is_said_in_the_units_of_its_field(path, limit, said):
    assert Template("t", "T", limits={path: limit}).bounds == {path: said}


def test_the_form_says_bounds_and_version_before_one_types(personas, save):
    save(0)
    save(1, limits={"gpus": {"least": 8, "most": 16}}, locked=["gpus"], body={"gpus": 8})
    client = personas.client("submitter")

    older = client.get(f"/jobs/new/?template={REF}@1").content.decode()
    assert "8 to 64, by its template." in older and "begin with version 2" in older
    assert f"template: {REF}@1" in older, "and that version is what is submitted"
    newest = client.get(f"/jobs/new/?template={REF}").content.decode()
    assert "by its template" not in newest and "locked by the template" in newest, "what is locked has no bounds"
    look = client.post("/jobs/new/look", {"yaml": f"template: notebook\nname: a\nquota: {TEAM}\n", "_from": "yaml"}).json()
    assert look["bounds"] == {"gpus": "1 to 2, by its template.", "workers": "At most 1, by its template.", "limit_s": "At most 1d, by its template."}


def test_the_api_says_what_may_be_typed(personas):
    told = personas.client("viewer").get("/api/v1/templates/notebook").json()

    said = {one["path"]: one for one in told["fields"]}
    assert said["class"] | {"said": ""} == {
        "path": "class",
        "locked": True,
        "value": "interactive",
        "least": None,
        "most": None,
        "one_of": None,
        "said": "",
    }
    assert (said["gpus"]["least"], said["gpus"]["most"], said["gpus"]["said"], said["gpus"]["locked"]) == (1, 2, "1 to 2", False)
    assert told["fields"][0]["path"] in SHIPPED_BY_REF["notebook"].locked


def test_a_bound_that_is_broken_is_still_told(submit, save):
    save(0)
    with pytest.raises(ValidationError) as refused:
        submit(REF, gpus=4)
    assert "gpus" in refused.value.message_dict
