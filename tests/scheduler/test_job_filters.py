"""The list of jobs by GPU type, labels, cost centre, array and what stands in a job's way: as page, API and suggestions give it."""

from urllib.parse import quote

import pytest
from django.db import connection
from django.http import QueryDict
from django.test.utils import CaptureQueriesContext

from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.jobs import filters as job_filters
from scheduler.jobs.lists import JOBS
from scheduler.jobs.marks import LONGEST, mark_value
from scheduler.jobs.schema import JobChange
from scheduler.models import JobMark, JobState
from scheduler.selectors.jobs import jobs_listed
from scheduler.selectors.suggestions import filter_suggestions
from scheduler.services.jobs.edits import job_edit
from scheduler.services.jobs.submission import submission_create
from tests.builders import gpu, gpu_type, job, node, outlook, placement, quota

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def theirs(personas):
    return personas.nodes["acme/product/search"]


@pytest.fixture
def found(personas):
    """The names that an address finds, by age."""

    def call(address, who="viewer"):
        page = JOBS.page(QueryDict(address), jobs_listed(personas.access(who)))
        assert page.problems == []
        return sorted(row.name for row in page.slice.rows)

    return call


def test_labels_are_found_by_key_and_by_value(found, ours):
    job("a", on=ours, labels={"team": "vision", "paper": "7"})
    job("b", on=ours, labels={"team": "speech"})
    job("c", on=ours)

    assert found("label=team") == ["a", "b"]
    assert found("label=team=vision") == ["a"]
    assert found("label=team=Vision") == [], "a value is what it is"
    assert found("label=team+paper=7") == found("label=team&label=paper=7") == ["a"], "all of them hold"
    assert found("label=none") == found("label=team=") == []


def test_a_value_of_several_words_and_a_long_one_are_found_as_a_whole(found, ours):
    long = "x" * 3000
    job("a", on=ours, labels={"note": "two words", "text": long})
    job("b", on=ours, labels={"text": long + "y"})

    assert found('label="note=two words"') == ["a"]
    assert found(f"label=text={long}") == ["a"], "and not what only begins alike"
    assert len(mark_value(long)) <= LONGEST


def test_a_value_with_quotes_is_found_as_it_is_offered(found, ours, personas):
    job("a", on=ours, labels={"note": 'say "x" twice'})
    job("b", on=ours, labels={"note": "say x twice"})

    offered = next(one for one in filter_suggestions(personas.access("viewer"), "label", "note=") if '"x' in one)

    assert offered == '"note=say ""x"" twice"'
    assert found(f"label={quote(offered)}") == ["a"]


def test_a_type_finds_who_names_it_and_who_has_run_on_it(found, ours):
    h100 = gpu_type("H100-SXM-80GB")
    job("names it", on=ours, spec={"gpu_types": ["H100-SXM-80GB"], "roles": [{"name": "worker"}]})
    job("a role does", on=ours, spec={"roles": [{"name": "worker", "gpu_types": ["A100", "H100-SXM-80GB"]}]})
    placement(job("sits there", on=ours, state=JobState.RUNNING), gpu(node(gpus=1, gpu_type=h100)))
    job("elsewhere", on=ours, spec={"gpu_types": ["A100"]})

    assert found("type=H100-SXM-80GB") == ["a role does", "names it", "sits there"]
    assert found("type=A100") == ["a role does", "elsewhere"]


def test_cost_centre_and_array_are_found_exactly(found, ours):
    job("a", on=ours, cost_centre="CC-1", array="a-1", array_index=0)
    job("b", on=ours, cost_centre="CC-10")

    assert found("cost_centre=CC-1") == found("array=A-1") == ["a"]
    assert found("cost_centre=") == ["a", "b"]


def test_a_blocker_finds_waiting_jobs_that_are_told_it_among_others(found, ours):
    outlook(job("full", on=ours), "no room", code="capacity")
    outlook(job("both", on=ours), reasons=[{"code": "limit", "detail": "at"}, {"code": "capacity", "detail": "full"}])
    outlook(job("quota", on=ours), "at", code="limit")
    outlook(job("started", on=ours, state=JobState.RUNNING), "no room", code="capacity")

    assert found("blocker=capacity") == ["both", "full"]
    assert found("blocker=limit") == ["both", "quota"]
    assert found("blocker=limit&blocker=capacity") == ["both", "full", "quota"]


def test_no_filter_leads_out_of_ones_subtrees(found, ours, theirs):
    for where, name in ((ours, "ours"), (theirs, "theirs")):
        outlook(job(name, on=where, labels={"k": "v"}, cost_centre="CC", spec={"gpu_types": ["T"]}), "no room")

    for address in ("label=k", "type=T", "cost_centre=CC", "blocker=capacity"):
        assert found(address) == ["ours"]
        assert found(address, "operator") == ["ours", "theirs"]


def test_what_is_common_is_found_as_what_is_rare(found, ours, monkeypatch):
    for number in range(6):
        job(f"n{number}", on=ours, labels={"k": f"{number % 2}"}, spec={"gpu_types": ["T"]})
    before = {address: found(address) for address in ("label=k", "label=k=1", "type=T", "label=k+k=0")}
    monkeypatch.setattr(job_filters, "COMMON", 2)

    assert {address: found(address) for address in before} == before
    assert len(before["label=k"]) == 6


def test_a_submission_and_a_change_of_labels_are_found_at_once(found, personas, ours):
    gpu_type("H100-SXM-80GB")
    said = {"name": "new", "quota": ours.path, "gpus": 1, "gpu_types": ["H100-SXM-80GB"], "labels": {f"k{n}": "v" for n in range(5)}}
    (made,) = submission_create(access=personas.access("submitter"), description=said, now=now(), actor=personas.access("submitter").actor)
    assert found("label=k4=v") == found("type=H100-SXM-80GB") == ["new"]

    job_edit(access=personas.access("submitter"), job=made, change=JobChange(labels={"k4": "w"}), now=now())

    assert found("label=k4=w") == found("type=H100-SXM-80GB") == ["new"]
    assert found("label=k0") == []
    assert JobMark.objects.filter(job=made).count() == 2


def test_the_page_the_api_and_a_view_take_the_same_filters(personas, ours):
    outlook(job("a", on=ours, labels={"k": "v"}, cost_centre="CC", spec={"gpu_types": ["T"]}), "no room")
    job("b", on=ours)
    address = "label=k%3Dv&type=T&cost_centre=CC&blocker=capacity"
    client = personas.client("viewer")

    html = client.get(f"/jobs/?{address}").content.decode()
    assert ">a</a>" in html and ">b</a>" not in html
    assert [row["name"] for row in client.get(f"/api/v1/jobs?{address}").json()["items"]] == ["a"]
    assert "a," in client.get(f"/jobs/?{address}&format=csv").getvalue().decode()
    kept = client.post("/api/v1/jobs/views", {"name": "Mine", "parameters": {"label": "k=v", "blocker": "capacity"}}, content_type="application/json")
    assert kept.status_code == 201, kept.content
    assert client.get("/api/v1/jobs?blocker=nonsense").status_code == 422


@pytest.mark.parametrize(
    "address", ["", "label=k", "type=T", "cost_centre=CC", "blocker=capacity", "label=k+j&type=T&cost_centre=CC&blocker=capacity"]
)
def test_a_filtered_page_asks_as_much_for_few_as_for_many(personas, ours, address):
    def queries():
        with CaptureQueriesContext(connection) as seen:
            assert personas.client("viewer").get(f"/jobs/?size=25&{address}").status_code == 200
        return len(seen)

    def more(count):
        for number in range(count):
            outlook(job(f"n{number}", on=ours, labels={"k": "v", "j": ""}, cost_centre="CC", spec={"gpu_types": ["T"]}), "no room")

    more(26)
    queries()
    few = queries()
    more(30)
    assert queries() == few
    # A type is looked up by the part of its name that is given. On SQLite each mark is first asked for how common it is.
    assert few <= 12 + ("type" in address) + (connection.vendor == "sqlite") * len(
        [word for word in address.replace("&", "+").split("+") if word[:2] in ("la", "j", "ty")]
    )


# What a filter could be


def suggested(personas, who, **asked):
    answer = personas.client(who).get("/jobs/suggest/", asked)
    assert answer.status_code == 200
    return answer.json()["values"]


def test_a_filter_says_what_it_could_be_by_the_jobs_that_one_may_see(personas, ours, theirs):
    gpu_type("H100-SXM-80GB")
    for number in range(3):
        job(f"n{number}", on=ours, labels={"team": "nlp"}, cost_centre="CC-1", array="a-1", owner=personas.users["submitter"])
    job("one", on=ours, labels={"team": "a b", "odd": "x" * 500})
    job("hidden", on=theirs, labels={"secret": "plan"}, cost_centre="CC-9", owner=personas.users["operator"])

    assert suggested(personas, "viewer", field="label", typed="te") == ["team", "team=nlp", '"team=a b"']
    assert suggested(personas, "viewer", field="label", typed="odd te")[0] == "odd team"
    assert suggested(personas, "viewer", field="label", typed="odd") == ["odd"], "a value that is too long to be told is not"
    assert suggested(personas, "viewer", field="cost_centre", typed="") == ["CC-1"]
    assert suggested(personas, "viewer", field="owner", typed="") == [personas.users["submitter"].username]
    assert suggested(personas, "viewer", field="array", typed="A") == ["a-1"]
    assert suggested(personas, "viewer", field="type", typed="h1") == ["H100-SXM-80GB"]
    assert suggested(personas, "viewer", field="team", typed="") == [ours.path]
    assert "secret=plan" in suggested(personas, "operator", field="label", typed="sec")
    assert suggested(personas, "viewer", field="password", typed="") == []


def test_the_team_of_a_submission_is_found_among_any_number(personas):
    """The form once knew the first 300 teams alone: those behind could not be found in it."""
    lab = personas.nodes["acme/research/nlp"]
    for number in range(30):
        quota(f"a{number:02}", parent=quota("nlp-lab", parent=lab))
    last, gone = quota("zeta-nlp", parent=lab), quota("zeta-gone", parent=lab)
    QuotaNode.objects.filter(pk=gone.pk).update(archived_at=now())

    assert suggested(personas, "submitter", field="quota", typed="zeta") == [last.path]
    assert suggested(personas, "submitter", field="quota", typed="nlp zet") == [last.path]
    assert suggested(personas, "submitter", field="quota", typed="ZETA-NLP") == [last.path]
    assert suggested(personas, "submitter", field="quota", typed="a29")[0] == "acme/research/nlp/nlp-lab/a29"
    assert suggested(personas, "submitter", field="quota", typed="vision") == [], "no role there"
    assert suggested(personas, "viewer", field="quota", typed="zeta") == [], "who only looks submits nothing"
    assert lab.path not in suggested(personas, "submitter", field="quota", typed=""), "jobs belong to leaves"
    answer = personas.client("submitter").get("/jobs/suggest/", {"field": "quota", "typed": "nlp"}).json()
    assert len(answer["values"]) == len(answer["labels"]) == 20
    assert answer["labels"] == [path.rpartition("/")[2] for path in answer["values"]]
    form = personas.client("submitter").get("/jobs/new/").content.decode()
    assert form.count('data-suggest="/jobs/suggest/"') == 1 and "js/suggest" in form
    assert form.partition('id="suggested-quota">')[2].partition("</datalist>")[0].count("<option") == 20


def test_a_team_that_is_called_so_comes_before_teams_below_one(personas):
    lab = personas.nodes["acme/research/nlp"]
    below = [quota(f"a{number:02}", parent=quota("speech", parent=lab)).path for number in range(25)]
    named = quota("speech-zero", parent=quota("zz", parent=lab))

    assert suggested(personas, "submitter", field="quota", typed="speech") == [named.path, *below[:19]]


def test_a_filtered_page_of_a_reader_who_may_not_see_all_costs_few_queries(personas):
    """Each kind of row is on it: who waits and names others, who runs, who has run; and the reader of a part of the tree is told least."""
    team = personas.nodes["acme/research/nlp"]
    theirs = job("theirs", on=personas.nodes["acme/product/search"])
    for number in range(3):
        outlook(job(f"w{number}", on=team, labels={"a": "b"}), f"{theirs.public_id} holds 4 GPUs of {theirs.quota.path}")
    running = job("runs", on=team, labels={"a": "b"}, state=JobState.RUNNING)
    placement(running, node("n1", gpus=2).gpus.first())
    client = personas.client("viewer")

    with CaptureQueriesContext(connection) as asked:
        page = client.get("/jobs/?label=a%3Db&team=acme").content.decode()

    assert page.count("<tr") == 5
    assert "another job holds 4 GPUs of another team" in page.replace("Another", "another")
    assert len(asked) <= 13 + (connection.vendor == "sqlite"), "SQLite is asked how common the label is"
