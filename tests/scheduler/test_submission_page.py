"""The submission page: one job as a form and as YAML, every fault at its field, drafts, clones and templates."""

import re

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from scheduler.jobs.fields import PLAIN, REPEAT, ROLE_BY_KEY, SECTIONS, description_of, values_of
from scheduler.jobs.reading import read_description
from scheduler.jobs.schema import Array, HttpProbe, JobDescription, Launch, Placing, Ready, RoleForm, Saving, TcpProbe
from scheduler.jobs.template_rules import SHIPPED
from scheduler.models import Cluster, Job, JobDraft, JobEvent, JobState, Schedule
from scheduler.presenters.submitting import preset_said
from scheduler.services.forecasts.presets import PresetFit
from tests import builders

pytestmark = pytest.mark.django_db
PATH = "acme/research/nlp"


@pytest.fixture
def look(personas):
    builders.node("n1", gpus=8)

    def ask(who="submitter", status=200, **fields):
        answer = personas.client(who).post("/jobs/new/look", fields)
        assert answer.status_code == status, answer.content
        return answer.json() if status == 200 else None

    return ask


def test_every_key_of_a_description_has_its_field():
    def paths(model, before=""):
        found = [before + (field.alias or name) for name, field in model.model_fields.items()]
        # No back-end can do it, so the form does not offer what would be refused.
        return [path for path in found if path != "topology.span_clusters"]

    keys = [key for key in paths(JobDescription) if key not in ("roles", "topology", "launch", "array")]
    for model, before in ((Placing, "topology."), (Launch, "launch."), (Saving, "checkpoint."), (Array, "array."), (Ready, "launch.ready.")):
        keys += paths(model, before)
    keys += paths(HttpProbe, "launch.ready.http.") + paths(TcpProbe, "launch.ready.tcp.")
    keys = [key for key in keys if key not in ("launch.ready", "launch.ready.http", "launch.ready.tcp")]
    assert [key for key in keys if key not in PLAIN] == []
    roles = [key for key in paths(RoleForm) if key != "topology"] + paths(Placing, "topology.")
    assert [key for key in roles if key not in ROLE_BY_KEY] == []


def test_every_field_stands_in_one_section_and_offers_what_its_key_takes():
    stand = [field.path for section in SECTIONS for field in section.fields]
    assert len(stand) == len(set(stand))
    for field in (*PLAIN.values(), *ROLE_BY_KEY.values()):
        assert (field.kind == "choice") == bool(field.choices), field.path

    def is_taken(path: str, text: str) -> bool:
        return path not in read_description({"name": "x", "quota": PATH, "gpus": 1} | description_of({path: text})).faults

    for path, field in PLAIN.items():
        if field.kind == "choice" and not path.startswith(REPEAT):
            assert [text for text, _ in field.choices if text and not is_taken(path, text)] == [], path
            assert path == "checkpoint" or not is_taken(path, "nonsense"), path


WHOLE = {
    "name": "x",
    "quota": PATH,
    "class": "interactive",
    "priority": 70,
    "preemptible": "when_borrowed",
    "roles": [
        {"name": "a", "min": 2, "max": 4, "gpus": 1, "gpu_types": ["A", "B"], "topology": {"required": "leaf", "tp_group": 2}},
        {"name": "b", "mig": "1g.10gb"},
    ],
    "throughput": {"A": 1, "B": 0.5},
    "checkpoint": {"interval_s": 600, "save_s": 5},
    "launch": {"image": "r/a:1", "command": ["a b", "--x"], "env": {"A": "1=2", "B": "c"}, "secrets": {"T": "token"}, "simulated": {"fails": True}},
    "array": {"values": [{"LR": "0.1", "N": "a b"}, {"LR": "0.2"}]},
    "after": [{"job": "j-1"}, {"job": "j-2", "if": "ended"}],
    "labels": {"team": "nlp"},
    "hold": True,
    "retries": 3,
    "not_before": "2026-11-20T09:00:00Z",
}


@pytest.mark.parametrize("description", [WHOLE, WHOLE | {"checkpoint": None}, *(dict(template.body) for template in SHIPPED)])
def test_the_form_says_what_the_description_says(description):
    assert description_of(values_of(description)) == description


def test_lengths_are_written_as_people_write_them():
    assert description_of({"estimate_s": "90m", "limit_s": "2 h", "grace_s": "45"}) == {"estimate_s": 5400, "limit_s": 7200, "grace_s": 45}


def test_as_one_types_the_yaml_follows_and_the_fit_is_told(look):
    told = look(name="train", quota=PATH, gpus="4", **{"launch.command": "python train.py"}, _from="form")

    assert told["faults"] == {} and told["others"] == []
    assert told["yaml"] == f"name: train\nquota: {PATH}\ngpus: 4\nlaunch:\n  command:\n    - python\n    - train.py\n"
    assert "Starts now" in told["fit"] and "n1" in told["fit"]
    assert told["command"] == f"gpufleet submit - <<'JOB'\n{told['yaml']}JOB"
    assert "/api/v1/jobs" in told["curl"] and '"gpus": 4' in told["curl"]
    assert not Job.objects.exists()


def test_the_form_follows_the_yaml(look):
    told = look(yaml="name: a\nquota: acme/research/nlp\nroles:\n- {min: 1, max: 4, gpus: 2}\n- {name: b, gpus: 1}\n", _from="yaml", _roles="1")

    assert told["faults"] == {}
    assert told["values"]["roles[0].max"] == "4"
    assert 'name="roles[1].gpus"' in told["form"], "it has other fields now"
    assert "form" not in look(yaml="name: a\nquota: acme/research/nlp\ngpus: 1\n", _from="yaml", _roles="1")


# What is wrong, as the YAML has it, and the field at which it is told (none: in the list above the form).
BROKEN = {
    "name": ("''", "name"),
    "quota": ("acme/nowhere", "quota"),
    "class": ("urgent", "class"),
    "priority": ("high", "priority"),
    "preemptible": ("perhaps", "preemptible"),
    "gpus": ("100", "gpus"),
    "workers": ("0", "workers"),
    "gpu_types": ("[Z9]", "gpu_types"),
    "topology": ("{required: moon, tp_group: none, depth: 3}", "topology.required topology.tp_group"),
    "sharing": ("politely", "sharing"),
    "node_labels": ("[a]", "node_labels"),
    "needs": ("{pcie_gbps: fast}", "needs"),
    "tolerates_suspect": ("perhaps", "tolerates_suspect"),
    "preemption_delay_s": ("-1", "preemption_delay_s"),
    "grace_s": (".nan", "grace_s"),
    "throughput": ("{Z9: 1}", "throughput"),
    "checkpoint": ("{interval_s: soon}", "checkpoint.interval_s"),
    "work_s": ("[]", "work_s"),
    "estimate_s": ("0", "estimate_s"),
    "limit_s": ("1.5", "limit_s"),
    "not_before": ("2026-11-20T09:00:00", "not_before"),
    "deadline": ("2001-01-01T00:00:00Z", "deadline"),
    "retries": ("-3", "retries"),
    "labels": ("{'a b': c}", "labels"),
    "cost_centre": ("'" + "x" * 41 + "'", "cost_centre"),
    "launch": (
        "{command: [], shell: x, workdir: data, env: {'A B': c}, secrets: {T: 'no name'}, per: node}",
        "launch.command launch.workdir launch.env launch.secrets launch.per",
    ),
    "array": ("{size: 0}", "array.size"),
    "after": ("[{job: j-999999}]", "after"),
    "hold": ("perhaps", "hold"),
    "draft": ("perhaps", "draft"),
    "template": ("nothing-like-it", "template"),
    "colour": ("red", ""),
}


def test_every_fault_of_thirty_kinds_is_named_at_its_field_in_one_round(look):
    assert len(BROKEN) >= 30
    told = look(yaml="".join(f"{key}: {value}\n" for key, (value, _) in BROKEN.items()), _from="yaml")

    wanted = {path for _, paths in BROKEN.values() for path in paths.split()}
    assert wanted - told["faults"].keys() == set()
    lines = {key: number for number, key in enumerate(BROKEN, 1)}
    assert f"Line {lines['colour']}: colour: There is no key colour here." in told["others"]
    assert any("depth" in fault for fault in told["others"])
    assert "to see when it starts" in told["fit"], "of what is broken nothing is foreseen"


def test_a_job_over_several_clusters_is_refused_where_the_form_has_no_field_for_it(look):
    told = look(yaml="name: x\nquota: acme/research/nlp\ngpus: 1\ntopology: {span_clusters: true}\n", _from="yaml")

    assert any("span_clusters: No back-end can run a part of a job" in fault for fault in told["others"])


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("name: [a", "Line 1, column 9: this is not valid YAML"),
        ("- a", "It describes no job"),
        ("", "It describes no job"),
        ("name: a\n---\nname: b\n", "Line 3: a second document"),
        ("name: &x a\ngpus: *y\n", "Line 2, column 7"),
    ],
)
def test_what_is_no_description_is_told_with_its_line(look, yaml, said):
    assert any(said in fault for fault in look(yaml=yaml, _from="yaml")["others"])


@pytest.mark.parametrize(
    "yaml",
    [
        "name: !!binary aGVsbG8=",
        "? [a, b]\n: c",
        "launch: {env: [1, {a: .inf}], command: {a: b}}",
        "roles: [1, [2], {min: {a: b}}]",
        "after: [1, {job: [a]}]",
        "array: {values: [a, 1, {b: [c]}]}",
        "a: &a [x, x, x, x, x, x, x, x]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b]\n"
        "d: &d [*c, *c, *c, *c, *c, *c, *c, *c]\ne: [*d, *d, *d, *d, *d, *d, *d, *d]",
        "a: &a [*a]",
        "priority: 1e400",
        'name: "\\0"',
        "gpus: 12345678901234567890123",
    ],
)
def test_whatever_the_yaml_holds_it_is_answered(look, yaml):
    told = look(yaml=yaml, _from="yaml")

    assert told["faults"] or told["others"]


def test_a_key_that_is_stated_twice_is_a_fault(look):
    told = look(yaml=f"name: a\nquota: {PATH}\ngpus: 1\ngpus: 2\n", _from="yaml")

    assert told["faults"] == {"gpus": ["gpus is stated twice; the second time in line 4."]}


@pytest.mark.parametrize(
    ("field", "text", "said"),
    [
        ("limit_s", "soon", "Use a duration, such as 90m, 12h or 1d."),
        ("launch.command", "python 'train.py", "A quotation mark is not closed."),
        ("array.grid", "lr: [0.1, 0.01]", "Use one variable a line with its values, such as LR=0.1 0.01."),
        ("array.values", "LR", "Use one set of variables a line, such as LR=0.1 SEED=7."),
        ("labels", "run", "Use one key=value a line."),
        ("throughput", "H100", "Use one key=number a line."),
        ("launch.simulated", "{", "This is not valid JSON."),
        ("roles[0].gpus", "many", "A whole number is wanted."),
        ("after", "j-999", "Line 1: There is no job j-999."),
    ],
)
def test_a_fault_of_what_was_typed_is_told_in_the_notation_of_its_field(look, field, text, said):
    told = look(**{"name": "a", "quota": PATH, "_from": "form", field: text} | ({} if field.startswith("roles") else {"gpus": "1"}))

    assert told["faults"] == {field: [said]}


def test_a_fault_of_the_yaml_is_told_in_the_notation_of_a_description(look):
    told = look(yaml=f"name: a\nquota: {PATH}\ngpus: 1\nlimit_s: 90m\nafter: [{{job: j-999}}]\n", _from="yaml")

    assert told["faults"] == {"limit_s": ["A whole number is wanted."], "after": ["[0].job: There is no job j-999."]}


def test_a_job_is_submitted_by_the_form_also_without_scripts(personas, look):
    client = personas.client("submitter")
    answer = client.post("/jobs/new/", {"name": "train", "quota": PATH, "gpus": "2", "labels": "run=7", "_from": "form"})

    made = Job.objects.get()
    assert answer.headers["Location"] == reverse("job", args=[made.public_id])
    assert (made.name, made.gpus_milli, made.labels, made.owner) == ("train", 2000, {"run": "7"}, personas.users["submitter"])
    refused = client.post("/jobs/new/", {"name": "train", "quota": PATH, "gpus": "none", "_from": "form"})
    assert refused.status_code == 422
    assert "A whole number is wanted." in refused.content.decode()
    assert 'value="none"' in refused.content.decode(), "what was typed stays"
    checked = client.post("/jobs/new/", {"name": "train", "quota": PATH, "gpus": "2", "check": "1", "_from": "form"}, follow=True)
    assert "Starts now" in checked.content.decode()
    assert Job.objects.count() == 1


@pytest.mark.parametrize(("address", "when"), [("job_new", {}), ("job_recurring", {"repeat.cron": "30 2 * * *"})])
def test_what_is_sent_is_judged_once(personas, look, address, when):
    client = personas.client("submitter")
    with CaptureQueriesContext(connection) as asked:
        answer = client.post(reverse(address), {"name": "train", "quota": PATH, "gpus": "2", "_from": "form", **when})

    assert (answer.status_code, Job.objects.count(), Schedule.objects.count()) == (302, not when, bool(when))
    assert len([one for one in asked if '"gpu_type"' in one["sql"]]) == 1, "whether the fleet knows its types is asked for each judgement"


@pytest.mark.parametrize(("button", "kept"), [("_from", JobState.QUEUED), ("check", None), ("keep", JobState.DRAFT)])
def test_without_scripts_the_yaml_is_read_by_its_own_buttons_alone(personas, look, button, kept):
    client = personas.client("submitter")
    sent = {"name": "form", "quota": PATH, "gpus": "1", "_from": "form", "yaml": f"name: yaml\nquota: {PATH}\ngpus: 2\nwork_s: 60\n"}
    refused = client.post("/jobs/new/", sent | {"yaml": "name: [", button: "yaml"}, follow=True)
    assert "this is not valid YAML" in refused.content.decode()
    assert '<input type="hidden" name="_from" value="form">' in refused.content.decode(), "what is then put right in the form counts"

    answer = client.post("/jobs/new/", sent | {button: "yaml"}, follow=True)
    if kept is None:
        assert 'value="yaml"' in answer.content.decode() and not Job.objects.exists()
    else:
        assert Job.objects.values_list("name", "state").get() == ("yaml", kept)
    client.post("/jobs/new/", sent)
    assert Job.objects.order_by("-id")[0].name == "form"


def test_what_only_simulated_hardware_reads_is_in_the_form_and_seen_where_it_is_set(personas, look):
    cluster = Cluster.objects.get()
    cluster.backend = "local"
    cluster.save()

    def section(query=""):
        page = personas.client("submitter").get(f"/jobs/new/{query}").content.decode()
        return re.search(r'<details[^>]*data-group="simulated"([^>]*)>', page)[1]

    assert (section(), section("?with.work_s=60")) == (" hidden", " open")
    assert look(name="a", quota=PATH, gpus="1", work_s="60", _from="form")["yaml"].endswith("work_s: 60\n")


@pytest.mark.parametrize(
    ("fit", "said"),
    [
        (PresetFit("later", 7_260_000, 2_100_000), "$2.10/h, starts in about 2\u00a0h 1\u00a0min"),
        (PresetFit("later", None, None), "Starts soon"),  # its moment has passed since the fleet was read
        (PresetFit("unknown", None, None), "No start predicted"),
    ],
)
def test_a_preset_says_when_it_starts(fit, said):
    assert preset_said(fit) == said


def test_who_may_not_submit_is_turned_away_and_a_stranger_sees_no_others(personas, look):
    assert personas.client("viewer").get("/jobs/new/").status_code == 403
    look("viewer", 403)
    html = personas.client("submitter").get("/jobs/new/").content.decode()
    assert PATH in html and "acme/product/search" not in html


def test_a_draft_is_kept_for_its_owner_alone_and_goes_when_it_is_submitted(personas, look):
    client = personas.client("submitter")
    first = client.post("/jobs/new/draft", {"name": "half", "gpus": "", "_from": "form"}).json()["draft"]
    again = client.post("/jobs/new/draft", {"yaml": "name: [half", "_from": "yaml", "_draft": first}).json()["draft"]

    assert first == again
    assert JobDraft.objects.get().text == "name: [half"
    assert "name: [half" in client.get(f"/jobs/new/?draft={first}").content.decode()
    assert first in client.get("/jobs/new/").content.decode()
    other = personas.client("team_lead")
    assert other.get(f"/jobs/new/?draft={first}").status_code == 404
    assert other.post("/jobs/new/draft", {"yaml": "name: mine", "_from": "yaml", "_draft": first}).json()["draft"] != first
    other.post(f"/jobs/new/draft/{first}/delete/")
    assert JobDraft.objects.count() == 2
    client.post("/jobs/new/", {"name": "whole", "quota": PATH, "gpus": "1", "_from": "form", "_draft": first})
    assert JobDraft.objects.get().user == personas.users["team_lead"]
    for number in range(25):
        client.post("/jobs/new/draft", {"name": f"d{number}", "_from": "form"})
    assert JobDraft.objects.filter(user=personas.users["submitter"]).count() == 20


def test_a_job_is_kept_as_a_draft_and_submitted_by_a_button(personas, look):
    builders.node(gpus=4)
    client = personas.client("submitter")
    wish = {"name": "whole", "quota": PATH, "gpus": "1", "_from": "form"}
    assert client.post("/jobs/new/", wish | {"gpus": "none", "keep": "1"}).status_code == 422
    assert client.post("/jobs/new/", wish | {"keep": "1"}).status_code == 302
    kept = Job.objects.get()
    assert kept.state == JobState.DRAFT

    listed = client.get("/jobs/new/").content.decode()
    assert f"/jobs/{kept.public_id}/enqueue/" in listed
    assert kept.public_id not in personas.client("team_lead").get("/jobs/new/").content.decode(), "a draft of somebody else is on its page alone"
    page = client.get(f"/jobs/{kept.public_id}/").content.decode()
    assert f"/jobs/{kept.public_id}/enqueue/" in page and "Not submitted yet." in page
    assert "Kept as a draft." in page and "<dt>Created</dt>" in page and "Submitted" not in page
    assert JobEvent.objects.get().cause == "Kept as a draft."
    assert f"/jobs/{kept.public_id}/enqueue/" not in personas.client("viewer").get(f"/jobs/{kept.public_id}/").content.decode()
    assert client.post(f"/jobs/{kept.public_id}/enqueue/").status_code == 302
    assert Job.objects.get().state == JobState.QUEUED
    assert f"/jobs/{kept.public_id}/enqueue/" not in client.get(f"/jobs/{kept.public_id}/").content.decode()
    assert client.post(f"/jobs/{kept.public_id}/enqueue/").status_code == 409


def test_a_clone_is_the_same_again_and_shows_what_differs(personas, look):
    client = personas.client("submitter")
    wish = {"name": "train", "quota": PATH, "gpus": "2", "workers": "3", "launch.command": "python train.py", "labels": "run=7", "_from": "form"}
    client.post("/jobs/new/", wish | {"limit_s": "2h", "priority": "60"})
    first = Job.objects.get()
    page = client.get(f"/jobs/new/?clone={first.public_id}")
    values = values_of(page.context["sent"].description)

    told = look(**values | {"workers": "4"}, _from="form", _clone=first.public_id)
    assert told["differs"] == [{"path": "workers", "was": "3", "is": "4"}]
    client.post("/jobs/new/", values | {"_from": "form"})
    second = Job.objects.order_by("-id")[0]
    assert (second.spec, second.launch, second.labels, second.limit_seconds, second.priority) == (first.spec, first.launch, first.labels, 7200, 60)
    hidden = builders.job(on=personas.nodes["acme/product/search"])
    assert client.get(f"/jobs/new/?clone={hidden.public_id}").status_code == 404
    foreign = builders.job(on=personas.nodes[PATH], launch={"env": {"KEY": "secret value"}})
    assert "secret value" not in client.get(f"/jobs/new/?clone={foreign.public_id}").content.decode()


def test_a_shipped_template_is_submitted_as_it_comes(personas, look):
    client = personas.client("submitter")
    for template in SHIPPED:
        if template.ref == "mig-replica":
            continue  # this fleet has nothing split
        page = client.get(f"/jobs/new/?template={template.ref}")
        values = values_of(page.context["sent"].description)
        answer = client.post("/jobs/new/", values | {"_from": "form", "_template": template.ref})
        assert answer.status_code == 302, (template.ref, answer.context["sent"].faults)
        leads_to = "/jobs/arrays/a-" if template.ref == "sweep" else "/jobs/j-"
        assert answer["Location"].startswith(leads_to), "what was submitted as a whole is followed as a whole"
    event = Job.objects.filter(name="notebook").get().events.get()
    assert event.cause == "Submitted by the template notebook."
    assert Job.objects.filter(array__gt="", state=JobState.QUEUED).count() == 10


def test_what_a_template_locks_and_bounds_holds_wherever_it_is_submitted(personas, look):
    told = look(yaml=f"template: notebook\nname: a\nquota: {PATH}\nclass: batch\ngpus: 4\nlimit_s: 90000\n", _from="yaml")

    assert told["faults"] == {
        "class": ["The template notebook keeps it at interactive."],
        "gpus": ["At most 2, by the template notebook."],
        "limit_s": ["At most 1d, by the template notebook."],
    }
    answer = personas.client("submitter").post(
        "/api/v1/jobs", {"template": "notebook", "name": "mine", "quota": PATH}, content_type="application/json"
    )
    assert answer.status_code == 201, answer.content
    made = Job.objects.get()
    assert (made.job_class, made.gpus_milli, made.limit_seconds) == ("interactive", 1000, 28_800)
