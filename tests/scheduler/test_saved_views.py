"""Views of the list of jobs that people keep: whose they are, who sees them, and what they may say."""

import threading
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.http import Http404
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.models import AuditEntry
from gpufleet.core.tables import Table
from quotas.models import Role, RoleBinding
from scheduler.jobs.view_queries import QUERY_LENGTH, query_read, query_said
from scheduler.models import SavedView
from scheduler.selectors.saved_views import MOST_SHOWN, view_for
from scheduler.services.jobs.saved_views import view_change, view_remove, view_save
from tests.builders import NOON, job

pytestmark = pytest.mark.django_db


def save(client: Any, status: int = 201, **body: Any) -> Any:
    answer = client.post("/api/v1/jobs/views", {"name": "Waits"} | body, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


def change(client: Any, view: str, status: int = 200, **body: Any) -> Any:
    answer = client.patch(f"/api/v1/jobs/views/{view}", body, content_type="application/json")
    assert answer.status_code == status, answer.content
    return answer.json()


def names(client: Any) -> list[str]:
    return [view["name"] for view in client.get("/api/v1/jobs/views").json()["items"]]


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
    assert "Jobs: Waiting" in client.get("/jobs/views/").content.decode()
    told = client.get("/api/v1/jobs/views").json()["items"][0]
    assert told["parameters"] == {"sort": ["-gpus"], "phase": ["waiting"]}
    assert client.get("/api/v1/jobs", told["parameters"]).status_code == 200


def test_a_view_is_its_owners_until_it_is_shared(personas):
    lead, mate, above, aside = (personas.client(name) for name in ("team_lead", "viewer", "finance", "quota_admin"))
    view = save(lead, parameters={"phase": "waiting"})["id"]
    assert names(mate) == names(above) == []

    change(lead, view, shared_with="acme/research/nlp")
    assert names(mate) == names(above) == names(aside) == ["Waits"]
    assert "Waits" in mate.get("/jobs/").content.decode()
    assert "By Team Lead" in mate.get("/jobs/").content.decode()
    change(mate, view, 403, name="Other")
    assert mate.delete(f"/api/v1/jobs/views/{view}").status_code == 403

    change(lead, view, shared_with="")
    assert names(mate) == []
    change(mate, view, 404, name="Other")


def test_who_sees_a_part_of_a_subtree_is_among_those_it_is_shared_with(personas):
    SavedView.objects.create(public_id="v-1", owner=personas.users["superuser"], name="All", shared_with=personas.nodes["acme"])
    SavedView.objects.create(public_id="v-2", owner=personas.users["superuser"], name="Theirs", shared_with=personas.nodes["acme/product/search"])
    SavedView.objects.create(public_id="v-3", owner=personas.users["superuser"], name="Own")

    assert names(personas.client("viewer")) == ["All"]
    assert names(personas.client("operator")) == ["All", "Theirs"]
    assert names(personas.client("superuser")) == ["All", "Own", "Theirs"]
    assert personas.client("stranger").get("/api/v1/jobs/views").status_code == 403


def test_nobody_puts_a_view_in_front_of_teams_that_are_not_theirs(personas):
    for who, path in (("viewer", "acme/research/nlp"), ("team_lead", "acme/product/search"), ("team_lead", "acme"), ("team_lead", "no/where\0")):
        told = save(personas.client(who), 422, shared_with=path)
        assert told["errors"][0]["path"] == "shared_with"
    assert not SavedView.objects.exists()


def test_who_manages_jobs_of_a_team_ends_that_a_view_is_shared_with_it(personas):
    view = save(personas.client("submitter"), shared_with="acme/research/nlp")["id"]

    assert "No longer share" in personas.client("team_lead").get("/jobs/views/").content.decode()
    assert personas.client("team_lead").delete(f"/api/v1/jobs/views/{view}").status_code == 204

    assert names(personas.client("team_lead")) == []
    assert names(personas.client("submitter")) == ["Waits"], "it is its owner's still"
    entry = AuditEntry.objects.get(action="view.unshare")
    assert (entry.quota_path, entry.before) == ("acme/research/nlp", {"shared_with": "acme/research/nlp"})


def test_names_are_one_owners_own_and_views_are_not_endless(personas, monkeypatch):
    client = personas.client("viewer")
    save(client)
    assert "of that name" in str(save(client, 422, name="WAITS"))
    save(personas.client("submitter"))
    other = save(client, name="Other")["id"]
    change(client, other, 422, name="waits")
    for bad in ("", "  ", "x" * 81, "a\0b", "a\x1b[2Jb"):
        assert save(client, 422, name=bad)["errors"][0]["path"] == "name"
    monkeypatch.setattr("scheduler.services.jobs.saved_views.MOST_VIEWS", 2)
    assert "as many as there may be" in str(save(client, 422, name="Third"))


def test_the_list_opens_with_ones_default_and_everything_else_is_one_step_away(personas):
    client = personas.client("viewer")
    first = save(client, parameters={"phase": "waiting"}, default=True)["id"]
    assert client.get("/jobs/").headers["Location"] == "/jobs/?phase=waiting"
    assert client.get("/jobs/?phase=").status_code == 200
    assert client.get("/jobs/", headers={"HX-Request": "true", "HX-Target": "table-jobs"}).status_code == 200
    assert personas.client("submitter").get("/jobs/").status_code == 200

    save(client, name="Held", parameters={"held": "yes"}, default=True)
    assert client.get("/jobs/").headers["Location"] == "/jobs/?held=yes"
    assert SavedView.objects.filter(is_default=True).count() == 1
    change(client, first, default=True)
    assert client.get("/jobs/").headers["Location"] == "/jobs/?phase=waiting"
    change(client, first, default=False)
    assert client.get("/jobs/").status_code == 200
    # A default of somebody else is none of mine, also where it is shared.
    SavedView.objects.update(shared_with=personas.nodes["acme/research/nlp"], is_default=False)
    SavedView.objects.filter(public_id=first).update(is_default=True)
    shared = next(view for view in personas.client("submitter").get("/api/v1/jobs/views").json()["items"] if view["id"] == first)
    assert (shared["default"], shared["mine"]) == (False, False)


def test_what_the_list_could_not_read_is_not_kept(personas):
    client = personas.client("viewer")
    for parameters in ({"phase": "nonsense"}, {"colour": "red"}, {"sort": "colour"}, {"size": "7"}, {"from": "yesterday"}, {"q": "x" * QUERY_LENGTH}):
        assert save(client, 422, parameters=parameters)["errors"][0]["path"] == "query", parameters
    answer = client.post("/jobs/views/new/", {"name": "Odd", "query": "?phase=nonsense"})
    assert answer.status_code == 422
    assert "can&#x27;t be “nonsense”" in answer.content.decode()
    assert 'value="Odd"' in answer.content.decode()


def test_a_change_writes_only_what_it_names_however_old_what_was_read_is(personas):
    """The owner renames what a manager has unshared since he read it: it stays unshared."""
    owner, lead = personas.access("submitter"), personas.access("team_lead")
    made = view_save(access=owner, name="Waits", query="", shared_with="acme/research/nlp", now=NOON)
    read = view_for(owner, made.public_id)
    view_remove(access=lead, view=view_for(lead, made.public_id))

    view_change(access=owner, view=read, name="Other", now=NOON)

    kept = SavedView.objects.get()
    assert (kept.name, kept.shared_with) == ("Other", None)
    assert AuditEntry.objects.get(action="view.change").before == {"name": "Waits"}


def test_who_changes_what_was_removed_meanwhile_is_told_that_it_is_gone(personas):
    owner, lead = personas.access("submitter"), personas.access("team_lead")
    made = view_save(access=owner, name="Waits", query="", shared_with="acme/research/nlp", now=NOON)
    mine, theirs = view_for(owner, made.public_id), view_for(lead, made.public_id)
    view_remove(access=owner, view=made)

    for late in (
        lambda: view_change(access=owner, view=mine, name="Other", now=NOON),
        lambda: view_remove(access=lead, view=theirs),
        lambda: view_remove(access=owner, view=mine),
    ):
        with pytest.raises(Http404):
            late()
    assert AuditEntry.objects.filter(object_kind="saved_view").count() == 2


def test_a_write_can_name_the_revision_that_was_read(personas):
    client, lead = personas.client("submitter"), personas.client("team_lead")
    made = save(client, shared_with="acme/research/nlp")
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
    assert names(lead) == []

    answer = client.patch(address, {"name": "Other"}, content_type="application/json", headers={"If-Match": answer.headers["ETag"]})
    assert (answer.status_code, answer.headers["ETag"], answer.json()["revision"]) == (200, '"3"', 3)
    # What another one's becoming the default takes from it is a change of it, too.
    change(client, made["id"], default=True)
    save(client, name="Second", default=True)
    assert client.patch(address, {"name": "Third"}, content_type="application/json", headers={"If-Match": '"4"'}).status_code == 412


@pytest.mark.django_db(transaction=True)
def test_two_that_are_saved_at_once_do_not_both_find_room_nor_both_become_the_default(personas, monkeypatch):
    monkeypatch.setattr("scheduler.services.jobs.saved_views.MOST_VIEWS", 3)
    access = personas.access("submitter")
    view_save(access=access, name="First", query="", is_default=True, now=NOON)
    start, outcomes = threading.Barrier(4), []

    def keep(name: str) -> None:
        try:
            start.wait(10)
            view_save(access=access, name=name, query="", is_default=True, now=NOON)
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


def test_who_no_longer_works_there_does_not_change_what_a_team_is_shown(personas):
    client = personas.client("submitter")
    view = save(client, parameters={"phase": "waiting"}, shared_with="acme/research/nlp")["id"]
    RoleBinding.objects.filter(user=personas.users["submitter"]).update(role=Role.VIEWER)

    for body in ({"name": "Other"}, {"parameters": {"phase": "ended"}}, {"name": "Other", "shared_with": None}):
        assert "share it no more" in change(client, view, 403, **body)["detail"]
    assert client.post(f"/jobs/views/{view}/", {"name": "Other", "shared_with": "acme/research/nlp"}).status_code == 403
    kept = SavedView.objects.get()
    assert (kept.name, kept.query) == ("Waits", "phase=waiting")

    # What concerns him alone stays his: to open the list with it, to take it back, and then to call it what he likes.
    assert client.post(f"/jobs/views/{view}/", {"name": "Waits", "shared_with": "acme/research/nlp", "is_default": "1"}).status_code == 302
    change(client, view, shared_with="", name="Other")
    assert names(client) == ["Other"]


def test_a_token_for_a_part_of_the_tree_has_the_views_of_that_part(personas):
    owner = personas.users["team_lead"]
    RoleBinding.objects.create(user=owner, role=Role.SUBMITTER, node=personas.nodes["acme/product/search"])
    everywhere = personas.client("team_lead")
    made = {path: save(everywhere, name=path or "Own", shared_with=path)["id"] for path in ("", "acme/research/nlp", "acme/product/search")}
    secret = personas.token("team_lead", "read", "submit", path="acme/research/nlp")
    cut = Client(headers={"Authorization": f"Bearer {secret}"})
    assert names(cut) == ["acme/research/nlp"]

    for path in ("", "acme/product/search"):
        change(cut, made[path], 404, name="Other")
        assert cut.delete(f"/api/v1/jobs/views/{made[path]}").status_code == 404
    save(cut, 403, name="New")
    save(cut, 403, name="New", shared_with="acme/research/nlp", default=True)
    change(cut, made["acme/research/nlp"], 403, default=True)
    assert SavedView.objects.filter(is_default=True).count() == 0

    there = save(cut, name="New", shared_with="acme/research/nlp")["id"]
    change(cut, there, name="Newer", parameters={"phase": "waiting"})
    assert cut.delete(f"/api/v1/jobs/views/{there}").status_code == 204
    assert len(names(everywhere)) == 3


def test_ones_own_come_first_however_many_are_shared_and_the_rest_by_pages(personas):
    other, team = personas.users["superuser"], personas.nodes["acme/research/nlp"]
    SavedView.objects.bulk_create(
        SavedView(public_id=f"v-s{number}", owner=other, name=f"A {number:03}", shared_with=team) for number in range(MOST_SHOWN * 2 + 5)
    )
    client = personas.client("viewer")
    save(client, name="Z of mine")
    assert names(client)[:2] == ["Z of mine", "A 000"]
    assert "Z of mine" in client.get("/jobs/").content.decode()
    html = client.get("/jobs/views/").content.decode()
    assert "Z of mine" in html and "More of what is shared" in html

    found, after = [], ""
    while page := client.get("/api/v1/jobs/views", {"size": 60, "after": after}).json():
        found += [view["name"] for view in page["items"]]
        after = page["next"]
        if not after:
            break
    assert found == ["Z of mine", *(f"A {number:03}" for number in range(MOST_SHOWN * 2 + 5))]
    assert client.get("/api/v1/jobs/views", {"after": "nowhere"}).status_code == 422
    assert client.get("/jobs/views/", {"after": "nowhere"}).status_code == 302
    assert client.post("/jobs/views/new/?after=nowhere", {"name": ""}).status_code == 422


LONG = "a " * 500_000


def test_what_is_too_much_is_refused_before_it_is_read(personas, monkeypatch):
    """Neither a thousand values nor a search of a million words becomes a query."""

    def read(*_: Any, **__: Any) -> Any:
        raise AssertionError("It was read.")

    monkeypatch.setattr(Table, "page_asked", read)
    client = personas.client("submitter")
    kept = SavedView.objects.create(public_id="v-1", owner=personas.users["submitter"], name="Kept").public_id
    together = {"q": "a " * 1000, "team": ["b" * 2000] * 100}
    for parameters in ({"team": ["a"] * 1001}, {"q": LONG}, {"team": [LONG]}, together, {f"k{number}": "" for number in range(41)}):
        save(client, 422, parameters=parameters)
        change(client, kept, 422, parameters=parameters)
        body = {"action": "hold", "matching": parameters}
        assert client.post("/api/v1/jobs/bulk?dry_run=true", body, content_type="application/json").status_code == 422
    for query in ("a=&" * 1001, "q=" + "+a" * 500_000):
        assert client.post("/jobs/views/new/", {"name": "Odd", "query": query}).status_code == 422
    assert SavedView.objects.get().query == ""


def test_what_fills_many_jobs_filter_is_bounded_as_a_whole(personas):
    """Each value is short enough, all of them together are not."""
    body = {"action": "hold", "matching": {"q": "a " * 900, "team": ["b" * 500]}}
    answer = personas.client("submitter").post("/api/v1/jobs/bulk?dry_run=true", body, content_type="application/json")
    assert answer.status_code == 422
    assert "2,000 characters" in str(answer.json())


TEXTS = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=30)


@given(st.fixed_dictionaries({}, optional={"q": TEXTS, "team": TEXTS, "owner": TEXTS, "phase": st.sampled_from(("waiting", "ended"))}))
def test_a_view_is_spelt_in_one_way(parameters):
    from urllib.parse import urlencode

    spelt = query_read(f"?{urlencode(parameters)}&after=x")
    assert query_read(spelt) == spelt
    assert query_read(urlencode(dict(reversed(parameters.items())))) == spelt
    assert query_said(spelt)


def test_every_change_is_in_the_audit_log_and_the_forms_do_the_same(personas):
    client = personas.client("submitter")
    view = save(client, parameters={"phase": "waiting"})["id"]

    assert client.post(f"/jobs/views/{view}/", {"name": "Ours", "shared_with": "acme/research/nlp", "is_default": "1"}).status_code == 302
    kept = SavedView.objects.get()
    assert (kept.name, kept.query, kept.is_default) == ("Ours", "phase=waiting", True)
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


def test_views_cost_the_list_two_queries_however_many_there_are(personas):
    def asked(address: str) -> int:
        client = personas.client("viewer")
        client.get(address)
        with CaptureQueriesContext(connection) as seen:
            assert client.get(address).status_code == 200
        return len(seen)

    before = asked("/jobs/")
    for number in range(5):
        SavedView.objects.create(public_id=f"v-{number}", owner=personas.users["submitter"], name=f"{number}", shared_with=personas.nodes["acme"])

    assert asked("/jobs/") == before
    assert asked("/jobs/?phase=waiting") == before - 1
