"""Views of lists that people keep: whose they are, who sees them, and what they may say."""

import threading
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import Http404
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from dashboards.viewed_lists import VIEWED
from gpufleet.core.models import AuditEntry
from gpufleet.core.tables import Table
from quotas.models import Role, RoleBinding
from scheduler.jobs.view_queries import QUERY_LENGTH, query_read, query_said
from scheduler.models import SavedView, ViewedList
from scheduler.selectors.saved_views import MOST_SHOWN, view_for
from scheduler.services.jobs.saved_views import view_change, view_remove, view_save
from tests.builders import NOON, job

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Of:
    """A list, and what its views may say: two queries as they are kept, one of them in words, and what it could not read."""

    name: str
    one: str
    words: str
    two: str
    wrong: dict[str, str]

    @property
    def page(self) -> str:
        return f"/{self.name}/"

    @property
    def views(self) -> str:
        return f"/jobs/views/?list={self.name}"

    @property
    def api(self) -> str:
        return f"/api/v1/jobs/views?list={self.name}"

    @property
    def parameters(self) -> dict[str, list[str]]:
        return parse_qs(self.one)


JOBS = Of("jobs", "phase=waiting", "Jobs: Waiting", "held=yes", {"phase": "nonsense"})
GPUS = Of("gpus", "condition=throttling", "Condition: Throttling", "taken=no", {"condition": "nonsense"})


@pytest.fixture(params=[JOBS, GPUS], ids=lambda of: of.name)
def of(request: Any) -> Of:
    return request.param


def save(client: Any, of: Of, status: int = 201, **body: Any) -> Any:
    answer = client.post("/api/v1/jobs/views", {"list": of.name, "name": "Waits"} | body, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


def change(client: Any, view: str, status: int = 200, **body: Any) -> Any:
    answer = client.patch(f"/api/v1/jobs/views/{view}", body, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


def names(client: Any, of: Of) -> list[str]:
    return [view["name"] for view in client.get(of.api).json()["items"]]


def test_what_is_saved_is_beside_the_filters_and_shows_the_same(personas):
    client = personas.client("viewer")
    team = personas.nodes["acme/research/nlp"]
    job("waits", on=team), job("has-ended", on=team, state="completed")

    answer = client.post("/jobs/views/new/", {"name": " Mine  waiting ", "query": "?phase=waiting&sort=-gpus&after=xyz&state="}, follow=True)

    assert answer.redirect_chain[-1][0] == "/jobs/?sort=-gpus&phase=waiting"
    html = answer.content.decode()
    assert "The view Mine waiting is saved." in html
    assert 'href="?sort=-gpus&amp;phase=waiting" aria-current="page"' in html
    assert "waits" in html and "has-ended" not in html
    assert "Jobs: Waiting" in client.get(JOBS.views).content.decode()
    told = client.get(JOBS.api).json()["items"][0]
    assert told["parameters"] == {"sort": ["-gpus"], "phase": ["waiting"]}
    assert client.get("/api/v1/jobs", told["parameters"]).status_code == 200


def test_each_list_has_views_of_its_own(personas):
    """What the list of GPUs shows is kept, and its name, its default and its room are those of this list alone."""
    client = personas.client("operator")
    told = save(client, JOBS, parameters=JOBS.parameters, default=True)

    answer = client.post("/jobs/views/new/", {"list": "gpus", "name": "Waits", "query": f"?{GPUS.one}&after=x", "is_default": "1"}, follow=True)

    assert answer.redirect_chain[-1][0] == f"/gpus/?{GPUS.one}"
    html = answer.content.decode()
    assert f'href="?{GPUS.one}" aria-current="page" title="Yours; the list opens with it"' in html
    assert html.count('class="view-name"') == 1, "those of jobs are not here"
    assert '<a href="/gpus/?q=">All</a>' in html, "everything is one step away"
    assert client.get("/gpus/").headers["Location"] == f"/gpus/?{GPUS.one}"
    assert client.get("/jobs/").headers["Location"] == f"/jobs/?{JOBS.one}"
    assert GPUS.words in client.get(GPUS.views).content.decode()
    assert names(client, JOBS) == names(client, GPUS) == ["Waits"]
    assert [(entry.after["list"], entry.action) for entry in AuditEntry.objects.filter(object_kind="saved_view").order_by("id")] == [
        ("jobs", "view.save"),
        ("gpus", "view.save"),
    ]
    # Who says no list means jobs, as before there were others.
    assert [view["id"] for view in client.get("/api/v1/jobs/views").json()["items"]] == [told["id"]]
    assert save(client, JOBS, 422, list="people")["errors"][0]["path"] == "list"
    assert client.get("/jobs/views/?list=people").status_code == client.post("/jobs/views/new/", {"list": "people"}).status_code == 404


@pytest.mark.parametrize("name", ViewedList.values)
def test_each_list_of_which_views_are_kept_shows_them_and_can_be_cleared(personas, name):
    """Cleared, the address still says something: with nothing it would open the default again."""
    client, address = personas.client("operator"), reverse(name)
    SavedView.objects.create(public_id="v-1", owner=personas.users["operator"], list=name, name="Mine", query="q=none", is_default=True)

    html = client.get(address, follow=True).content.decode()

    assert 'href="?q=none" aria-current="page"' in html
    assert f'<input type="hidden" name="list" value="{name}">' in html
    assert html.count('href="?q="') == (1 if name == ViewedList.QUEUE else 2), "above the list, and in one that is not empty anyway"
    region = {"HX-Request": "true", "HX-Target": f"table-{name}"}
    assert client.get(f"{address}?q=", headers=region).headers["HX-Push-Url"] == "?q="
    page = client.get(f"/jobs/views/?list={name}").content.decode()
    assert f'href="{address}?q=none"' in page and "Search: none" in page


def test_a_view_is_its_owners_until_it_is_shared(personas, of):
    lead, mate, above, aside = (personas.client(name) for name in ("team_lead", "viewer", "finance", "quota_admin"))
    view = save(lead, of, parameters=of.parameters)["id"]
    assert names(mate, of) == names(above, of) == []

    change(lead, view, shared_with="acme/research/nlp")
    assert names(mate, of) == names(above, of) == names(aside, of) == ["Waits"]
    assert "Waits" in mate.get(of.page).content.decode()
    assert "By Team Lead" in mate.get(of.page).content.decode()
    change(mate, view, 403, name="Other")
    assert mate.delete(f"/api/v1/jobs/views/{view}").status_code == 403

    change(lead, view, shared_with="")
    assert names(mate, of) == []
    change(mate, view, 404, name="Other")


def test_who_sees_a_part_of_a_subtree_is_among_those_it_is_shared_with(personas, of):
    SavedView.objects.create(list=of.name, public_id="v-1", owner=personas.users["superuser"], name="All", shared_with=personas.nodes["acme"])
    SavedView.objects.create(
        list=of.name, public_id="v-2", owner=personas.users["superuser"], name="Theirs", shared_with=personas.nodes["acme/product/search"]
    )
    SavedView.objects.create(list=of.name, public_id="v-3", owner=personas.users["superuser"], name="Own")

    assert names(personas.client("viewer"), of) == ["All"]
    assert names(personas.client("operator"), of) == ["All", "Theirs"]
    assert names(personas.client("superuser"), of) == ["All", "Own", "Theirs"]
    assert personas.client("stranger").get(of.api).status_code == 403


def test_nobody_puts_a_view_in_front_of_teams_that_are_not_theirs(personas, of):
    for who, path in (("viewer", "acme/research/nlp"), ("team_lead", "acme/product/search"), ("team_lead", "acme"), ("team_lead", "no/where\0")):
        told = save(personas.client(who), of, 422, shared_with=path)
        assert told["errors"][0]["path"] == "shared_with"
    assert not SavedView.objects.exists()


def test_who_manages_jobs_of_a_team_ends_that_a_view_is_shared_with_it(personas, of):
    view = save(personas.client("submitter"), of, shared_with="acme/research/nlp")["id"]

    assert "No longer share" in personas.client("team_lead").get(of.views).content.decode()
    assert personas.client("team_lead").delete(f"/api/v1/jobs/views/{view}").status_code == 204

    assert names(personas.client("team_lead"), of) == []
    assert names(personas.client("submitter"), of) == ["Waits"], "it is its owner's still"
    entry = AuditEntry.objects.get(action="view.unshare")
    assert (entry.quota_path, entry.before) == ("acme/research/nlp", {"shared_with": "acme/research/nlp"})


def test_names_are_one_owners_own_and_views_are_not_endless(personas, monkeypatch, of):
    client = personas.client("viewer")
    save(client, of)
    assert "of that name" in str(save(client, of, 422, name="WAITS"))
    save(personas.client("submitter"), of)
    other = save(client, of, name="Other")["id"]
    change(client, other, 422, name="waits")
    for bad in ("", "  ", "x" * 81, "a\0b", "a\x1b[2Jb"):
        assert save(client, of, 422, name=bad)["errors"][0]["path"] == "name"
    monkeypatch.setattr("scheduler.services.jobs.saved_views.MOST_VIEWS", 2)
    assert "as many as there may be" in str(save(client, of, 422, name="Third"))


def test_the_list_opens_with_ones_default_and_everything_else_is_one_step_away(personas, of):
    client = personas.client("viewer")
    first = save(client, of, parameters=of.parameters, default=True)["id"]
    assert client.get(of.page).headers["Location"] == f"{of.page}?{of.one}"
    assert client.get(f"{of.page}?q=").status_code == 200
    assert client.get(of.page, headers={"HX-Request": "true", "HX-Target": f"table-{of.name}"}).status_code == 200
    assert personas.client("submitter").get(of.page).status_code == 200

    save(client, of, name="Held", parameters=parse_qs(of.two), default=True)
    assert client.get(of.page).headers["Location"] == f"{of.page}?{of.two}"
    assert SavedView.objects.filter(is_default=True).count() == 1
    change(client, first, default=True)
    assert client.get(of.page).headers["Location"] == f"{of.page}?{of.one}"
    change(client, first, default=False)
    assert client.get(of.page).status_code == 200
    # A default of somebody else is none of mine, also where it is shared.
    SavedView.objects.update(shared_with=personas.nodes["acme/research/nlp"], is_default=False)
    SavedView.objects.filter(public_id=first).update(is_default=True)
    shared = next(view for view in personas.client("submitter").get(of.api).json()["items"] if view["id"] == first)
    assert (shared["default"], shared["mine"]) == (False, False)


def test_what_the_list_could_not_read_is_not_kept(personas, of):
    client = personas.client("viewer")
    for parameters in (of.wrong, {"colour": "red"}, {"sort": "colour"}, {"size": "7"}, {"from": "yesterday"}, {"q": "x" * QUERY_LENGTH}):
        assert save(client, of, 422, parameters=parameters)["errors"][0]["path"] == "query", parameters
    answer = client.post("/jobs/views/new/", {"list": of.name, "name": "Odd", "query": f"?{urlencode(of.wrong)}"})
    assert answer.status_code == 422
    assert "can&#x27;t be “nonsense”" in answer.content.decode()
    assert 'value="Odd"' in answer.content.decode()


def test_a_change_writes_only_what_it_names_however_old_what_was_read_is(personas, of):
    """The owner renames what a manager has unshared since he read it: it stays unshared."""
    owner, lead = personas.access("submitter"), personas.access("team_lead")
    made = view_save(access=owner, viewed=VIEWED[of.name], name="Waits", query="", shared_with="acme/research/nlp", now=NOON)
    read = view_for(owner, made.public_id)
    view_remove(access=lead, view=view_for(lead, made.public_id))

    view_change(access=owner, view=read, viewed=VIEWED[of.name], name="Other", now=NOON)

    kept = SavedView.objects.get()
    assert (kept.name, kept.shared_with) == ("Other", None)
    assert AuditEntry.objects.get(action="view.change").before == {"name": "Waits"}


def test_who_changes_what_was_removed_meanwhile_is_told_that_it_is_gone(personas, of):
    owner, lead = personas.access("submitter"), personas.access("team_lead")
    made = view_save(access=owner, viewed=VIEWED[of.name], name="Waits", query="", shared_with="acme/research/nlp", now=NOON)
    mine, theirs = view_for(owner, made.public_id), view_for(lead, made.public_id)
    view_remove(access=owner, view=made)

    for late in (
        lambda: view_change(access=owner, view=mine, viewed=VIEWED[of.name], name="Other", now=NOON),
        lambda: view_remove(access=lead, view=theirs),
        lambda: view_remove(access=owner, view=mine),
    ):
        with pytest.raises(Http404):
            late()
    assert AuditEntry.objects.filter(object_kind="saved_view").count() == 2


def test_a_write_can_name_the_revision_that_was_read(personas, of):
    client, lead = personas.client("submitter"), personas.client("team_lead")
    made = save(client, of, shared_with="acme/research/nlp")
    address, read = f"/api/v1/jobs/views/{made['id']}", {"If-Match": f'"{made["revision"]}"'}
    assert lead.delete(address, headers=read).status_code == 204

    answer = client.patch(address, {"name": "Other"}, content_type="application/json", headers=read)
    assert (answer.status_code, answer.headers["ETag"]) == (412, '"2"')
    assert client.delete(address, headers=read).status_code == 412
    # The same by the page, which was opened before.
    form = {"name": "Other", "shared_with": "acme/research/nlp", "revision": "1"}
    page = client.post(f"/jobs/views/{made['id']}/", form)
    assert page.status_code == 409
    assert "at revision 2 by now" in page.content.decode()
    assert names(lead, of) == []

    answer = client.patch(address, {"name": "Other"}, content_type="application/json", headers={"If-Match": answer.headers["ETag"]})
    assert (answer.status_code, answer.headers["ETag"], answer.json()["revision"]) == (200, '"3"', 3)
    # What another one's becoming the default takes from it is a change of it, too.
    change(client, made["id"], default=True)
    save(client, of, name="Second", default=True)
    assert client.patch(address, {"name": "Third"}, content_type="application/json", headers={"If-Match": '"4"'}).status_code == 412


@pytest.mark.django_db(transaction=True)
def test_two_that_are_saved_at_once_do_not_both_find_room_nor_both_become_the_default(personas, monkeypatch, of):
    monkeypatch.setattr("scheduler.services.jobs.saved_views.MOST_VIEWS", 3)
    access = personas.access("submitter")
    view_save(access=access, viewed=VIEWED[of.name], name="First", query="", is_default=True, now=NOON)
    start, outcomes = threading.Barrier(4), []

    def keep(name: str) -> None:
        try:
            start.wait(10)
            view_save(access=access, viewed=VIEWED[of.name], name=name, query="", is_default=True, now=NOON)
            outcomes.append("kept")
        except ValidationError as fault:
            outcomes.append(str(fault.message_dict["name"]))
        finally:
            connection.close()

    threads = [threading.Thread(target=keep, args=[name]) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert SavedView.objects.count() == 3
    assert SavedView.objects.filter(is_default=True).count() == 1
    assert outcomes.count("kept") == 2
    assert sum("as many as there may be" in outcome for outcome in outcomes) == 2


def test_who_no_longer_works_there_does_not_change_what_a_team_is_shown(personas, of):
    client = personas.client("submitter")
    view = save(client, of, parameters=of.parameters, shared_with="acme/research/nlp")["id"]
    RoleBinding.objects.filter(user=personas.users["submitter"]).update(role=Role.VIEWER)

    for body in ({"name": "Other"}, {"parameters": parse_qs(of.two)}, {"name": "Other", "shared_with": None}):
        assert "share it no more" in change(client, view, 403, **body)["detail"]
    assert client.post(f"/jobs/views/{view}/", {"name": "Other", "shared_with": "acme/research/nlp"}).status_code == 403
    kept = SavedView.objects.get()
    assert (kept.name, kept.query) == ("Waits", of.one)

    # What concerns him alone stays his: to open the list with it, to take it back, and then to call it what he likes.
    assert client.post(f"/jobs/views/{view}/", {"name": "Waits", "shared_with": "acme/research/nlp", "is_default": "1"}).status_code == 302
    change(client, view, shared_with="", name="Other")
    assert names(client, of) == ["Other"]


def test_a_token_for_a_part_of_the_tree_has_the_views_of_that_part(personas, of):
    owner = personas.users["team_lead"]
    RoleBinding.objects.create(user=owner, role=Role.SUBMITTER, node=personas.nodes["acme/product/search"])
    everywhere = personas.client("team_lead")
    made = {path: save(everywhere, of, name=path or "Own", shared_with=path)["id"] for path in ("", "acme/research/nlp", "acme/product/search")}
    secret = personas.token("team_lead", "read", "submit", path="acme/research/nlp")
    cut = Client(headers={"Authorization": f"Bearer {secret}"})
    assert names(cut, of) == ["acme/research/nlp"]

    for path in ("", "acme/product/search"):
        change(cut, made[path], 404, name="Other")
        assert cut.delete(f"/api/v1/jobs/views/{made[path]}").status_code == 404
    save(cut, of, 403, name="New")
    save(cut, of, 403, name="New", shared_with="acme/research/nlp", default=True)
    change(cut, made["acme/research/nlp"], 403, default=True)
    assert SavedView.objects.filter(is_default=True).count() == 0

    there = save(cut, of, name="New", shared_with="acme/research/nlp")["id"]
    change(cut, there, name="Newer", parameters=of.parameters)
    assert cut.delete(f"/api/v1/jobs/views/{there}").status_code == 204
    assert len(names(everywhere, of)) == 3


def test_ones_own_come_first_however_many_are_shared_and_the_rest_by_pages(personas, of):
    other, team = personas.users["superuser"], personas.nodes["acme/research/nlp"]
    SavedView.objects.bulk_create(
        SavedView(list=of.name, public_id=f"v-s{number}", owner=other, name=f"A {number:03}", shared_with=team)
        for number in range(MOST_SHOWN * 2 + 5)
    )
    client = personas.client("viewer")
    save(client, of, name="Z of mine")
    assert names(client, of)[:2] == ["Z of mine", "A 000"]
    assert "Z of mine" in client.get(of.page).content.decode()
    html = client.get(of.views).content.decode()
    assert "Z of mine" in html and "More of what is shared" in html

    found, after = [], ""
    while page := client.get("/api/v1/jobs/views", {"list": of.name, "size": 60, "after": after}).json():
        found += [view["name"] for view in page["items"]]
        after = page["next"]
        if not after:
            break
    assert found == ["Z of mine", *(f"A {number:03}" for number in range(MOST_SHOWN * 2 + 5))]
    assert client.get("/api/v1/jobs/views", {"after": "nowhere"}).status_code == 422
    assert client.get(of.views + "&after=nowhere").headers["Location"] == of.views
    assert client.post("/jobs/views/new/?after=nowhere", {"list": of.name, "name": ""}).status_code == 422


LONG = "a " * 500_000


def test_what_is_too_much_is_refused_before_it_is_read(personas, monkeypatch, of):
    """Neither a thousand values nor a search of a million words becomes a query."""

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("It was read.")

    monkeypatch.setattr(Table, "page_asked", read)
    client = personas.client("submitter")
    kept = SavedView.objects.create(list=of.name, public_id="v-1", owner=personas.users["submitter"], name="Kept").public_id
    together = {"q": "a " * 1000, "team": ["b" * 2000] * 100}
    for parameters in ({"team": ["a"] * 1001}, {"q": LONG}, {"team": [LONG]}, together, {f"k{number}": "" for number in range(41)}):
        save(client, of, 422, parameters=parameters)
        change(client, kept, 422, parameters=parameters)
        body = {"action": "hold", "matching": parameters}
        assert client.post("/api/v1/jobs/bulk?dry_run=true", body, content_type="application/json").status_code == 422
    for query in ("a=&" * 1001, "q=" + "+a" * 500_000):
        assert client.post("/jobs/views/new/", {"list": of.name, "name": "Odd", "query": query}).status_code == 422
    assert SavedView.objects.get().query == ""


def test_what_fills_many_jobs_filter_is_bounded_as_a_whole(personas):
    """Each value is short enough, all of them together are not."""
    body = {"action": "hold", "matching": {"q": "a " * 900, "team": ["b" * 500]}}
    answer = personas.client("submitter").post("/api/v1/jobs/bulk?dry_run=true", body, content_type="application/json")
    assert answer.status_code == 422
    assert "2,000 characters" in str(answer.json())


def keys_shown(client: Any, address: str) -> list[str]:
    return [column.key for column in client.get(address).context["page"].columns]


def test_a_view_keeps_the_columns_that_were_chosen(personas):
    """A choice of columns was one browser's alone: a view that was shared showed others."""
    client, other = personas.client("team_lead"), personas.client("viewer")
    client.post("/columns", {"table": "nodes", "column": ["temperature-of-old", "jobs", "health"], "next": "/nodes/"})
    asked = {"list": "nodes", "name": "Where", "query": "?health=suspect", "shared_with": "acme/research/nlp"}

    address = client.post("/jobs/views/new/", asked).headers["Location"]

    assert address == "/nodes/?columns=health.jobs&health=suspect", "in the list's order, without what there is no more"
    assert keys_shown(client, address) == keys_shown(other, address) == ["name", "health", "jobs"]
    html = other.get(address).content.decode()
    assert 'href="?columns=health.jobs&amp;health=suspect" aria-current="page"' in html
    assert 'name="columns" value="health.jobs"' in html, "a filter keeps them"
    assert 'name="next" value="/nodes/?health=suspect"' in html, "another choice leaves those of the view"
    assert "Columns: Node, Health, Jobs" in client.get("/jobs/views/?list=nodes").content.decode()
    assert keys_shown(other, "/nodes/?columns=none-such") == ["name"]
    assert "name" in keys_shown(other, "/nodes/?q=") and len(keys_shown(other, "/nodes/?q=")) > 3

    told = client.get("/api/v1/jobs/views?list=nodes").json()["items"][0]
    assert told["parameters"] == {"health": ["suspect"]}, "programs ask for rows alone"
    assert client.get("/api/v1/nodes", told["parameters"]).status_code == 200
    change(client, told["id"], parameters={"health": "down"})
    assert SavedView.objects.get().query == "columns=health.jobs&health=down"
    assert "Columns are chosen in the console" in str(change(client, told["id"], 422, parameters={"columns": "jobs"}))


def test_a_view_without_chosen_columns_says_none(personas):
    client = personas.client("team_lead")
    for query in ("?health=suspect", "?" + "&" * 1500):
        client.post("/jobs/views/new/", {"list": "nodes", "name": "Plain", "query": query})
    assert SavedView.objects.get().query == "health=suspect"


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)


@given(st.fixed_dictionaries({}, optional={"q": TEXTS, "team": TEXTS, "owner": TEXTS, "phase": st.sampled_from(("waiting", "ended"))}))
def test_a_view_is_spelt_in_one_way(parameters):
    viewed = VIEWED["jobs"]
    spelt = query_read(f"?{urlencode(parameters)}&after=x", viewed)
    assert query_read(spelt, viewed) == spelt
    assert query_read(urlencode(dict(reversed(parameters.items()))), viewed) == spelt
    assert query_said(spelt, viewed.table)


def test_every_change_is_in_the_audit_log_and_the_forms_do_the_same(personas, of):
    client = personas.client("submitter")
    view = save(client, of, parameters=of.parameters)["id"]

    assert client.post(f"/jobs/views/{view}/", {"name": "Ours", "shared_with": "acme/research/nlp", "is_default": "1"}).status_code == 302
    kept = SavedView.objects.get()
    assert (kept.name, kept.query, kept.is_default) == ("Ours", of.one, True)
    refused = client.post(f"/jobs/views/{view}/", {"name": "", "shared_with": "acme"})
    assert refused.status_code == 422
    assert refused.content.decode().count('role="alert"') == 2
    assert client.post(f"/jobs/views/{view}/remove/").status_code == 302
    assert not SavedView.objects.exists()
    assert list(AuditEntry.objects.filter(object_kind="saved_view").order_by("id").values_list("action", flat=True)) == [
        "view.save",
        "view.change",
        "view.remove",
    ]


def test_views_cost_the_list_two_queries_however_many_there_are(personas, of):
    def asked(address: str) -> int:
        client = personas.client("viewer")
        client.get(address)
        with CaptureQueriesContext(connection) as seen:
            assert client.get(address).status_code == 200
        return len(seen)

    before = asked(of.page)
    for number in range(5):
        SavedView.objects.create(
            list=of.name, public_id=f"v-{number}", owner=personas.users["submitter"], name=f"{number}", shared_with=personas.nodes["acme"]
        )

    assert asked(of.page) == before
    assert asked(f"{of.page}?{of.one}") == before - 1
