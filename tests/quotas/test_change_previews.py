"""What a change would do, before it is done: on its page and over the API."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpufleet.core.models import AuditEntry
from quotas.models import QuotaChange, QuotaNode, QuotaShare, Reservation, Window
from quotas.selectors.changes import change_standing
from quotas.services.changes import Wanted, change_apply, change_draft, changes_turn
from scheduler.engine.cycle import make_plan
from scheduler.presenters.tree_changes import tree_sentences
from scheduler.services.forecasts import previews
from scheduler.services.forecasts.previews import Preview, tree_preview
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, Loop, state, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def world(personas: Personas) -> Personas:
    """16 GPUs: 8 for each department. A team of research has filled all of them; a job of the other department waits for what is not its own."""
    for number in range(2):
        builders.node(f"n{number}", gpus=8)
    for path, milli in {"acme": 16_000, "acme/research": 8_000, "acme/research/nlp": 8_000, "acme/product": 0, "acme/product/search": 0}.items():
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=milli)
    return personas


def _share(world: Personas, path: str, **share: int | None) -> dict[str, object]:
    return {"op": "update", "node": world.nodes[path].public_id, "set": {"shares": {H100: share}}}


def _preview(world: Personas, who: str, *edits: object) -> Preview:
    root = world.access("superuser")
    change = change_draft(access=root, wanted=Wanted(list(edits)), now=NOON)
    standing = change_standing(root, change)
    return tree_preview(access=world.access(who), before=standing.before, after=standing.after, now=NOON)


def _full(world: Personas) -> tuple[Loop, list[object]]:
    """Two jobs of nlp hold all that there is, the second one borrows; one of search waits."""
    loop = Loop()
    jobs = [submit(QuotaNode.objects.get(path="acme/research/nlp"), gpus=8, name=f"nlp-{number}", spec={"preemptible": "yes"}) for number in (1, 2)]
    loop.tick()
    for job in jobs:
        loop.up(job)
    waits = submit(QuotaNode.objects.get(path="acme/product/search"), gpus=8, name="search-1", at=loop.now, spec={"preemptible": "no"})
    loop.after(hours=2).tick()
    assert [state(job) for job in (*jobs, waits)] == ["running", "running", "queued"]
    return loop, [*jobs, waits]


def test_more_for_one_names_the_job_of_the_other_that_is_preempted(world: Personas):
    loop, (_, second, waits) = _full(world)
    edits = [_share(world, path, guaranteed_milli=8_000) for path in ("acme/product", "acme/product/search")]
    root = world.access("superuser")
    change = change_draft(access=root, wanted=Wanted(edits), now=loop.now)
    standing = change_standing(root, change)

    told = tree_preview(access=root, before=standing.before, after=standing.after, now=loop.now)

    effects = {(one.effect, one.name) for one in told.jobs}
    assert ("preempted", "nlp-2") in effects
    assert {(one.path, one.guaranteed) for one in told.shares} >= {("acme/product/search", (0, 8_000))}
    change_apply(access=root, change=change, revision=change.revision, capacity={H100: 16_000}, now=loop.now)
    loop.after(seconds=30).tick()
    assert state(second) in ("stopping", "checkpointing", "preempted", "queued"), "what the preview said is what happened"
    assert state(waits) in ("queued", "reserved", "starting")


def test_names_of_other_teams_stay_theirs(world: Personas):
    loop, _ = _full(world)
    root = world.access("superuser")
    edits = [_share(world, path, guaranteed_milli=8_000) for path in ("acme/product", "acme/product/search")]
    change = change_draft(access=root, wanted=Wanted(edits), now=loop.now)
    standing = change_standing(root, change)

    told = tree_preview(access=world.access("team_lead"), before=standing.before, after=standing.after, now=loop.now)

    assert {one.path for one in told.jobs} == {"acme/research/nlp"}
    assert all("product" not in one.detail for one in told.jobs)
    assert {one.path for one in told.shares} <= {"acme/research/nlp"}


def test_a_limit_below_what_is_in_use_is_never_silent(world: Personas):
    _full(world)

    told = _preview(world, "superuser", _share(world, "acme/research/nlp", limit_milli=8_000))

    assert any("none → 8, with 16 in use" in text for text in told.warnings)


def test_a_lower_guarantee_makes_borrowers_by_name(world: Personas):
    _full(world)

    told = _preview(world, "superuser", _share(world, "acme/research/nlp", guaranteed_milli=0))

    assert ("borrows", "nlp-1") in {(one.effect, one.name) for one in told.jobs}
    assert any("Guarantee of acme/research/nlp" in text for text in told.warnings)


def test_what_a_guarantee_or_limit_is_worth_is_told_to_those_who_may_see_costs(world: Personas):
    """At $2.50 an hour, 8 GPUs of a month's 730 hours are $14,600. What is or becomes unlimited has no sum."""
    builders.rate(H100, since=NOON, micros=2_500_000)
    QuotaShare.objects.filter(node__path="acme/product").update(limit_milli=8_000)
    edits = [
        _share(world, "acme/research/nlp", guaranteed_milli=0, limit_milli=16_000),
        _share(world, "acme/research", guaranteed_milli=0),
        _share(world, "acme/product", guaranteed_milli=2_000, limit_milli=4_000),
    ]

    told = _preview(world, "superuser", *edits)

    worth = {(one.path, one.field): (one.milli, one.micros_per_month) for one in told.worth}
    assert worth == {
        ("acme/research/nlp", "guaranteed"): (-8_000, -14_600_000_000),
        ("acme/research", "guaranteed"): (-8_000, -14_600_000_000),
        ("acme/product", "guaranteed"): (2_000, 3_650_000_000),
        ("acme/product", "limit"): (-4_000, -7_300_000_000),
    }
    said = tree_sentences(told)
    assert "acme/research/nlp is guaranteed 8 GPUs of H100-SXM-80GB less: $14,600 a month at the guaranteed rate." in said
    assert "acme/product may use 4 GPUs of H100-SXM-80GB less: at most $7,300 a month at the guaranteed rate." in said
    assert _preview(world, "viewer", *edits).worth == ()
    answer = world.client("superuser").post("/api/v1/quota-changes/preview", {"edits": edits}, content_type="application/json").json()
    assert answer["sentences"] == said and answer["worth"][0]["micros_per_month"] == -14_600_000_000


def test_a_change_from_the_form_to_its_revert(world: Personas):
    _full(world)
    client, node = world.client("superuser"), QuotaNode.objects.get(path="acme/product")
    form = {"kind": "department", "weight": 1, "priority": 100, "revision": node.revision, "reason": "Launch"}
    answer = client.post(f"/quotas/{node.public_id}/edit/", form | {f"share-{H100}-guaranteed": "8"})
    change = QuotaChange.objects.get()
    assert answer["Location"] == f"/quotas/changes/{change.public_id}/"
    page = client.get(answer["Location"]).content.decode()
    assert f"{H100} guaranteed" in page and "Apply now" in page
    assert QuotaShare.objects.get(node=node).guaranteed_milli == 0, "a draft changes nothing"

    client.post(f"{answer['Location']}step/", {"step": "apply", "revision": change.revision})
    assert QuotaShare.objects.get(node=node).guaranteed_milli == 8_000
    back = client.post(f"{answer['Location']}step/", {"step": "revert", "reason": "Not needed"})["Location"]
    undoing = QuotaChange.objects.get(reverts=change)
    client.post(f"{back}step/", {"step": "apply", "revision": undoing.revision})

    assert QuotaShare.objects.get(node=node).guaranteed_milli == 0
    history = client.get("/quotas/changes/?team=acme/product").content.decode()
    assert history.count('href="/quotas/changes/qc-') == 2


def test_two_admins_at_one_form(world: Personas):
    client, node = world.client("superuser"), QuotaNode.objects.get(path="acme/product")
    form = {"kind": "department", "weight": 2, "priority": 100, "revision": node.revision + 1}

    assert "Somebody else changed this node" in client.post(f"/quotas/{node.public_id}/edit/", form).content.decode()
    assert QuotaChange.objects.count() == 0


def _api(client: Client, path: str, body: object) -> dict[str, object]:
    answer = client.post(f"/api/v1/{path}", body, content_type="application/json")
    assert answer.status_code in (200, 201), answer.content.decode()
    return answer.json()


def test_over_the_api_from_draft_to_revert(world: Personas):
    client = world.client("superuser")
    edits = [_share(world, "acme/product", guaranteed_milli=4_000)]
    looked = _api(client, "quota-changes/preview", {"edits": edits})
    assert [one["guaranteed_milli"] for one in looked["shares"] if one["path"] == "acme/product"] == [[0, 4_000]]
    made = _api(client, "quota-changes", {"edits": edits, "reason": "Launch"})
    assert made["lines"] == [
        {
            "path": "acme/product",
            "node": world.nodes["acme/product"].public_id,
            "field": f"{H100}.guaranteed_milli",
            "before": 0,
            "after": 4_000,
            "what": "",
        }
    ]
    assert {"apply", "schedule", "withdraw"} == set(made["steps"])

    applied = _api(client, f"quota-changes/{made['id']}/steps", {"step": "apply"})
    assert (applied["state"], applied["steps"]) == ("applied", ["revert"])
    undoing = _api(client, f"quota-changes/{made['id']}/steps", {"step": "revert"})
    assert undoing["reverts"] == made["id"] and undoing["lines"][0]["after"] == 0
    then = client.get("/api/v1/quota-tree", {"at": "2000-01-01T00:00:00Z"}).json()
    assert then["items"] == []


def test_a_plan_over_capacity_is_told_on_the_page(world: Personas):
    client = world.client("superuser")
    made = _api(client, "quota-changes", {"edits": [_share(world, "acme", guaranteed_milli=17_000)]})

    page = client.get(f"/quotas/changes/{made['id']}/").content.decode()
    assert "17 GPUs of H100-SXM-80GB would be guaranteed; 16 are healthy." in page
    assert "Allow above capacity" in page
    answer = client.post(f"/api/v1/quota-changes/{made['id']}/steps", {"step": "apply"}, content_type="application/json")
    assert answer.status_code == 422


def test_the_past_tree_shows_what_was(world: Personas):
    client = world.client("viewer")

    page = client.get("/quotas/past/?at=2100-01-01T00:00").content.decode()
    assert "nlp" in page and "vision" not in page
    assert client.get("/quotas/past/?at=soon").status_code == 422


def test_a_rename_of_a_node_that_has_reserved_is_previewed(world: Personas):
    """Its windows had its path of before, and nothing in the drafted tree: the page broke."""
    loop, _ = _full(world)
    search = world.nodes["acme/product/search"]
    begin, end = loop.now + timedelta(minutes=30), loop.now + timedelta(hours=9)
    facts = {"quota": search, "gpu_type": H100, "gpus_milli": 8000, "requested_name": "Root", "state": "approved"}
    made = Reservation.objects.create(public_id="rv-1", name="Demo", starts_at=begin, ends_at=end, requested_at=loop.now, **facts)
    Window.objects.create(reservation=made, starts_at=begin, ends_at=end)
    root = world.access("superuser")
    change = change_draft(
        access=root, wanted=Wanted([{"op": "move", "node": search.public_id, "parent": search.parent.public_id, "name": "find"}]), now=loop.now
    )
    standing = change_standing(root, change)

    told = tree_preview(access=root, before=standing.before, after=standing.after, now=loop.now)

    assert (told.jobs, told.shares) == ((), ()), "nothing changes but the name"


def test_a_preview_that_is_not_saved_leaves_nothing(world: Personas):
    node, client, other = QuotaNode.objects.get(path="acme/product/search"), world.client("superuser"), world.client("operator")
    form = {"name": "find", "parent": world.nodes["acme/product"].public_id, "revision": node.revision, "reason": ""}
    before = AuditEntry.objects.count()

    def previewed(name: str) -> QuotaChange:
        client.post(f"/quotas/{node.public_id}/move/", form | {"name": name})
        return QuotaChange.objects.get(state="preview")

    second = previewed("seek")
    address, step = f"/quotas/changes/{second.public_id}/", f"/quotas/changes/{second.public_id}/step/"
    page = client.get(address).content.decode()
    assert ">Discard</button>" in page and ">Save draft</button>" in page and "Apply now" in page
    assert other.get(address).status_code == 404
    assert second.public_id not in client.get("/quotas/changes/").content.decode()
    assert [one["id"] for one in client.get("/api/v1/quota-changes").json()["items"]] == []
    assert AuditEntry.objects.count() == before
    client.post(step, {"step": "withdraw", "revision": second.revision})
    assert not QuotaChange.objects.exists() and AuditEntry.objects.count() == before

    third = previewed("find")
    client.post(f"/quotas/changes/{third.public_id}/step/", {"step": "save", "revision": third.revision})
    assert third.public_id in other.get("/quotas/changes/").content.decode()
    assert AuditEntry.objects.filter(action="quota_change.draft", object_id=third.public_id).count() == 1
    fourth = previewed("seek")
    changes_turn(capacity=dict, now=fourth.made_at + timedelta(hours=23))
    assert QuotaChange.objects.count() == 2, "a draft stays"
    changes_turn(capacity=dict, now=fourth.made_at + timedelta(hours=24))
    assert set(QuotaChange.objects.values_list("pk", flat=True)) == {third.pk}


def _to_find(world: Personas) -> QuotaChange:
    """A preview of a move whose node somebody else has changed since."""
    root, node = world.access("superuser"), QuotaNode.objects.get(path="acme/product/search")
    edit = {"op": "move", "node": node.public_id, "parent": world.nodes["acme/product"].public_id, "name": "find"}
    made = change_draft(access=root, wanted=Wanted([edit]), preview=True, now=NOON)
    other = change_draft(access=root, wanted=Wanted([{"op": "update", "node": node.public_id, "set": {"weight": 3}}]), now=NOON)
    change_apply(access=root, change=other, revision=other.revision, capacity={}, now=NOON)
    return made


@pytest.mark.parametrize("step", ["rebase", "allow"])
def test_a_preview_that_is_rebased_or_allowed_stays_its_authors_alone(world: Personas, step: str):
    made, client = _to_find(world), world.client("superuser")
    entries = AuditEntry.objects.count()

    page = client.post(f"/quotas/changes/{made.public_id}/step/", {"step": step, "revision": made.revision, "reason": "Launch"}, follow=True)

    change = QuotaChange.objects.get(pk=made.pk)
    assert (change.state, change.over_capacity, change.reason) == ("preview", step == "allow", "Launch")
    assert change.bases[change.edits[0]["node"]]["weight"] == 3, "its edits are as of the tree of now"
    assert AuditEntry.objects.count() == entries
    assert ">Discard</button>" in page.content.decode() and ">Save draft</button>" in page.content.decode()
    assert world.client("operator").get(f"/quotas/changes/{made.public_id}/").status_code == 404
    assert change.public_id not in {one["id"] for one in client.get("/api/v1/quota-changes").json()["items"]}
    told = _api(client, f"quota-changes/{made.public_id}/steps", {"step": "apply"})
    assert (told["state"], QuotaNode.objects.filter(path="acme/product/find").count()) == ("applied", 1)
    assert set(AuditEntry.objects.filter(object_id=made.public_id).values_list("action", flat=True)) == {"quota_change.draft", "quota_change.apply"}


def test_a_preview_that_is_withdrawn_over_the_api_leaves_nothing(world: Personas):
    made, client = _to_find(world), world.client("superuser")
    entries, address = AuditEntry.objects.count(), f"quota-changes/{made.public_id}/steps"

    late = client.post(f"/api/v1/{address}", {"step": "withdraw"}, content_type="application/json", headers={"If-Match": '"7"'})
    assert late.status_code == 412 and QuotaChange.objects.filter(pk=made.pk).exists()
    told = _api(client, address, {"step": "withdraw"})

    assert (told["state"], told["steps"]) == ("withdrawn", [])
    assert not QuotaChange.objects.filter(pk=made.pk).exists() and AuditEntry.objects.count() == entries
    assert client.get(f"/api/v1/quota-changes/{made.public_id}").status_code == 404


def test_a_move_offers_the_top_level_by_name_to_those_who_may_move_there(world: Personas):
    address = f"/quotas/{world.nodes['acme/research/nlp'].public_id}/move/"

    for_all, for_department = (world.client(name).get(address).content.decode() for name in ("superuser", "quota_admin"))

    assert '<option value="">Top level</option>' in for_all and "-----" not in for_all
    assert "Top level" not in for_department and "-----" not in for_department
    assert f'<option value="{world.nodes["acme/research"].public_id}" selected>acme/research</option>' in for_department


def test_a_move_is_previewed_on_its_own_page_before_it_is_done(world: Personas):
    node, client = QuotaNode.objects.get(path="acme/product/search"), world.client("superuser")
    address = f"/quotas/{node.public_id}/move/"
    form = {"name": "find", "parent": world.nodes["acme/research"].public_id, "revision": node.revision, "reason": "Merged"}

    shown = client.post(address, form, follow=True)

    change = QuotaChange.objects.get()
    assert shown.redirect_chain[-1][0] == f"/quotas/changes/{change.public_id}/" and change.reason == "Merged"
    page = shown.content.decode()
    assert "Nothing has changed yet" in page and "acme/research/find" in page
    assert QuotaNode.objects.get(pk=node.pk).path == "acme/product/search", "there is no other way to send the form"
    for wrong, told in (({"name": "nlp"}, "name"), ({"revision": node.revision + 1}, "Somebody else changed this node")):
        refused = client.post(address, form | wrong)
        assert refused.status_code == 422 and told in refused.content.decode().split('class="form"')[1]
    assert QuotaChange.objects.count() == 1

    applied = client.post(f"/quotas/changes/{change.public_id}/step/", {"step": "apply", "revision": change.revision}, follow=True).content.decode()
    assert QuotaNode.objects.get(pk=node.pk).path == "acme/research/find" and ">Undo</button>" in applied
    client.post(f"/quotas/changes/{change.public_id}/step/", {"step": "revert", "reason": "Undo."})
    back = QuotaChange.objects.get(reverts=change)
    client.post(f"/quotas/changes/{back.public_id}/step/", {"step": "apply", "revision": back.revision})
    assert QuotaNode.objects.get(pk=node.pk).path == "acme/product/search"


@pytest.mark.parametrize(
    ("edit", "plans"),
    [
        ({"title": "Search", "cost_centre": "CC-7"}, 0),
        ({"waiting_limit": 1, "submits_per_minute": 60, "default_class": "batch", "needs_approval": True}, 0),
        ({"weight": 2}, 2),
        ({"priority": 7}, 2),
        ({"reclaim_min_runtime_s": 60}, 2),
        ({"shares": {H100: {"guaranteed_milli": 0, "limit_milli": 8_000}}}, 2),
    ],
)
def test_an_edit_that_the_engine_does_not_read_is_not_planned(world: Personas, monkeypatch: pytest.MonkeyPatch, edit: dict[str, object], plans: int):
    """Two plans of 10,000 waiting jobs can take over a minute, only to find that another cost centre preempts nothing."""
    _full(world)
    made, taken = [], []
    take = previews._snapshots.take
    monkeypatch.setattr(previews, "make_plan", lambda *args: made.append(args) or make_plan(*args))
    monkeypatch.setattr(previews._snapshots, "take", lambda **given: taken.append(given) or take(**given))

    told = _preview(world, "superuser", {"op": "update", "node": world.nodes["acme/product/search"].public_id, "set": edit})

    assert (len(made), len(taken)) == (plans, 1)
    assert plans or (told.jobs, told.shares, told.counts, told.unseen) == ((), (), {}, 0)


def test_the_queries_of_a_preview_do_not_grow_with_the_jobs_that_wait(world: Personas):
    node = world.nodes["acme/product/search"]
    root = world.access("superuser")
    change = change_draft(access=root, wanted=Wanted([_share(world, "acme/product/search", limit_milli=1_000)]), now=NOON)

    def queries(*, more: int) -> tuple[int, int]:
        for _ in range(more):
            submit(node, gpus=1, at=NOON)
        standing = change_standing(root, change)
        with CaptureQueriesContext(connection) as found:
            told = tree_preview(access=root, before=standing.before, after=standing.after, now=NOON)
        return len(found), told.counts["waits"]

    queries(more=2)
    (few, two), (many, fourteen) = queries(more=1), queries(more=12)

    assert (two, fourteen) == (2, 14), "one starts within the limit"
    assert many == few


def test_a_waiting_limit_below_what_waits_is_warned_of(world: Personas):
    for name in ("a", "b"):
        builders.job(name, on=world.nodes["acme/research/nlp"])

    def told(limit: int) -> list[str]:
        edit = {"op": "update", "node": world.nodes["acme/research"].public_id, "set": {"waiting_limit": limit, "submits_per_minute": 60}}
        return [text for text in _preview(world, "superuser", edit).warnings if "Waiting limit" in text]

    assert told(1) == ["Waiting limit of acme/research: 1, with 2 jobs waiting. Nothing more is submitted there until fewer wait."]
    assert told(2) == told(0) == []
