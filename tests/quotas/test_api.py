"""The tree and its people over the API: the same rules, and faults that name their field."""

import json

import pytest
from django.http import HttpResponse
from django.test import Client

from gpufleet import problems
from gpufleet.core.models import AuditEntry
from quotas.models import QuotaNode
from tests import builders
from tests.personas import Personas


def _send(client: Client, method: str, path: str, body: object = None, **headers: str) -> HttpResponse:
    return getattr(client, method)(path, json.dumps(body) if body is not None else None, content_type="application/json", headers=headers)


@pytest.fixture
def root(personas: Personas) -> Client:
    return personas.client("superuser")


def test_a_tree_is_made_read_and_changed(root: Client, personas: Personas):
    acme = personas.nodes["acme"]
    body = {"kind": "org", "revision": 1, "shares": {"H100": {"guaranteed_milli": 16_000}}}
    assert _send(root, "put", f"/api/v1/quotas/{acme.public_id}", body).json()["shares"]["H100"] == {
        "guaranteed_milli": 16_000,
        "limit_milli": None,
        "weight": None,
        "priority": None,
        "used_milli": 0,
    }
    body = {"parent": acme.public_id, "name": "ops", "kind": "department", "shares": {"H100": {"guaranteed_milli": 4_000}}}

    made = _send(root, "post", "/api/v1/quotas", body)

    assert made.status_code == 201
    assert made.json()["path"] == "acme/ops"
    assert "acme/ops" in [node["path"] for node in root.get("/api/v1/quotas").json()]


def test_the_tree_is_walked_by_pages_and_whole_without(root: Client, personas: Personas):
    whole = [node["path"] for node in root.get("/api/v1/quotas").json()]
    address, told = "/api/v1/quotas?size=2", []
    while address:
        page = root.get(address)
        told += [node["path"] for node in page.json()]
        assert len(page.json()) <= 2
        address = page["Link"].removeprefix("<").removesuffix('>; rel="next"') if "Link" in page else ""

    assert told == whole == sorted(whole)
    first = root.get("/api/v1/quotas?size=2")
    assert [node["path"] for node in root.get(f"/api/v1/quotas?after={first['X-Next']}").json()] == whole[2:]
    assert root.get("/api/v1/quotas?size=2&after=nowhere").status_code == 422
    assert root.get("/api/v1/quotas?size=0").status_code == 422


def test_what_is_held_is_added_up(root: Client, personas: Personas):
    builders.placement(builders.job(on=personas.nodes["acme/research/nlp"]), builders.gpu())

    assert root.get(f"/api/v1/quotas/{personas.nodes['acme/research'].public_id}").json()["shares"]["H100-SXM-80GB"]["used_milli"] == 1000


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"shares": {"H100": {"guaranteed_milli": 1}}}, "shares.H100.guaranteed_milli"),
        ({"shares": {"H100": {"guaranteed_milli": "many"}}}, "shares.H100.guaranteed_milli"),
        ({"shares": []}, "shares"),
        ({"kind": "galaxy"}, "kind"),
        ({"revision": None}, "revision"),
        ({"weight": -1}, "weight"),
        ({"reason": "x" * 501}, "reason"),
    ],
    ids=str,
)
def test_each_fault_names_its_field(root: Client, personas: Personas, change: dict[str, object], path: str):
    node = personas.nodes["acme/research"]

    answer = _send(root, "put", f"/api/v1/quotas/{node.public_id}", {"kind": "department", "revision": 1} | change)

    assert answer.status_code == 422
    assert answer["Content-Type"] == "application/problem+json"
    assert path in [error["path"] for error in answer.json()["errors"]]
    assert QuotaNode.objects.get(pk=node.pk).revision == 1


def test_bad_json_is_said_to_be_bad(root: Client, personas: Personas):
    answer = root.post("/api/v1/quotas", "{", content_type="application/json")

    assert (answer.status_code, answer.json()["status"]) == (400, 400)


def test_an_old_revision_is_a_conflict(root: Client, personas: Personas):
    path, body = f"/api/v1/quotas/{personas.nodes['acme/research'].public_id}", {"kind": "department", "revision": 1}
    _send(root, "put", path, body)

    assert _send(root, "put", path, body).status_code == 409


def test_a_write_on_an_etag_that_is_gone_is_refused_with_the_new_one(root: Client, personas: Personas):
    path = f"/api/v1/quotas/{personas.nodes['acme/research/nlp'].public_id}"
    tag = root.get(path)["ETag"]
    assert tag == '"1"'
    written = _send(root, "put", path, {"kind": "team", "title": "Words"}, **{"If-Match": tag})
    assert (written.status_code, written["ETag"], written.json()["revision"]) == (200, '"2"', 2)

    writes = [
        ("put", "", {"kind": "team", "title": "Sentences"}),
        ("post", "/move", {"parent": personas.nodes["acme/product"].public_id, "name": "nlp"}),
        ("post", "/archive", {}),
        ("post", "/restore", {}),
    ]
    for method, below, body in writes:
        for said in ({}, {"revision": 2}):  # the header counts, whatever the body says
            refused = _send(root, method, path + below, body | said, **{"If-Match": tag})
            assert (refused.status_code, refused["ETag"]) == (412, '"2"'), below
        nothing_said = _send(root, method, path + below, body)
        assert (nothing_said.status_code, nothing_said.json()["errors"][0]["path"]) == (422, "revision"), below
        assert _send(root, method, path + below, body, **{"If-Match": "nonsense"}).json()["errors"][0]["path"] == "If-Match"
    found = QuotaNode.objects.get(path="acme/research/nlp")
    assert (found.title, found.revision, found.archived_at) == ("Words", 2, None)
    assert _send(root, "put", path, {"kind": "team", "title": "Sentences"}, **{"If-Match": "*"}).json()["title"] == "Sentences"
    moved = _send(root, "post", path + "/move", {"parent": personas.nodes["acme/product"].public_id, "name": "nlp"}, **{"If-Match": '"3"'})
    assert (moved.json()["path"], moved["ETag"]) == ("acme/product/nlp", '"4"')


def test_a_new_node_comes_with_its_etag(root: Client, personas: Personas):
    made = _send(root, "post", "/api/v1/quotas", {"parent": personas.nodes["acme"].public_id, "name": "ops", "kind": "department"})

    assert (made.status_code, made["ETag"]) == (201, '"1"')


def test_what_others_own_does_not_exist(personas: Personas):
    answer = personas.client("viewer").get(f"/api/v1/quotas/{personas.nodes['acme/product'].public_id}")

    assert answer.status_code == 404
    assert "acme" not in answer.content.decode()


def test_a_token_writes_in_its_own_name_and_only_in_its_subtree(personas: Personas):
    token = {"Authorization": f"Bearer {personas.token('superuser', 'admin', path='acme/research')}"}
    inside, outside = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]

    assert _send(Client(), "put", f"/api/v1/quotas/{inside.public_id}", {"kind": "team", "revision": 1, "title": "L"}, **token).status_code == 200
    assert _send(Client(), "put", f"/api/v1/quotas/{outside.public_id}", {"kind": "team", "revision": 1}, **token).status_code == 404
    entry = AuditEntry.objects.get(action="quota.update")
    assert entry.via.startswith("token:")
    assert entry.actor == personas.users["superuser"]


def test_a_token_gives_no_role_beyond_itself(personas: Personas):
    token = {"Authorization": f"Bearer {personas.token('superuser', 'admin')}"}
    path = f"/api/v1/quotas/{personas.nodes['acme'].public_id}/roles"

    assert _send(Client(), "post", path, {"role": "operator", "username": "stranger"}, **token).status_code == 403
    assert _send(Client(), "post", path, {"role": "viewer", "username": "stranger"}, **token).status_code == 201


def test_the_audit_is_read_in_pages(root: Client, personas: Personas):
    for number in range(30):
        AuditEntry.objects.create(actor_name="test", via="system", action="made", object_kind="t", object_id=str(number))

    first = root.get("/api/v1/audit", {"size": 25, "action": "made"}).json()
    second = root.get("/api/v1/audit", {"size": 25, "action": "made", "after": first["next"]}).json()

    assert [row["object_id"] for row in [*first["items"], *second["items"]]] == [str(number) for number in reversed(range(30))]
    assert second["next"] == ""
    assert root.get("/api/v1/audit", {"sort": "colour"}).status_code == 422


def test_a_caller_in_a_hurry_is_slowed_down(personas: Personas, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gpufleet.limits.time.time", lambda: 1_800_000_000.0)  # requests are counted by minutes of the clock: all fall into one
    token = {"Authorization": f"Bearer {personas.token('viewer', 'read')}"}
    statuses = {Client().get("/api/v1/openapi.json", headers=token).status_code}
    answers = [Client().get("/api/v1/me", headers=token) for _ in range(601)]

    assert statuses == {200}
    assert {answer.status_code for answer in answers[:600]} == {200}
    assert answers[600].status_code == 429
    assert int(answers[600]["Retry-After"]) > 0


def test_a_fault_of_ours_shows_no_trace(personas: Personas, monkeypatch: pytest.MonkeyPatch):
    def broken(*arguments: object) -> None:
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr("quotas.api.tree.tree_list", broken)

    answer = personas.client("superuser").get("/api/v1/quotas")

    assert answer.status_code == 500
    assert "secret" not in answer.content.decode()
    assert answer.json()["title"] == problems.TITLES[500]


def test_a_wrong_method_is_a_problem_too(root: Client):
    answer = root.patch("/api/v1/quotas")

    assert (answer.status_code, answer["Content-Type"]) == (405, "application/problem+json")


def test_a_node_is_put_back_as_it_was_read_and_a_misspelt_key_is_no_default(root: Client, personas: Personas):
    node = personas.nodes["acme/research"]
    read = root.get(f"/api/v1/quotas/{node.public_id}").json()

    assert _send(root, "put", f"/api/v1/quotas/{node.public_id}", read).status_code == 200
    read["shares"] = {"H100-SXM-80GB": {"used_milli": 0, "guaranted_milli": 1000}}
    answer = _send(root, "put", f"/api/v1/quotas/{node.public_id}", {**read, "revision": read["revision"] + 1, "titel": "x"})

    assert answer.status_code == 422
    faults = {fault["path"]: fault["message"] for fault in answer.json()["errors"]}
    assert set(faults) == {"titel", "shares.H100-SXM-80GB.guaranted_milli"}
