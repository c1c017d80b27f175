"""People, their roles and their tokens over the API: what the pages do, with the same rules."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.db.models import CharField
from django.http import HttpResponse
from django.test import Client
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.models import RoleBinding, ServiceToken
from tests import builders
from tests.personas import Personas


def _send(client: Client, method: str, path: str, body: object = None, **headers: str) -> HttpResponse:
    sent = json.dumps(body) if body is not None else None
    answer: HttpResponse = getattr(client, method)(f"/api/v1/{path}", sent, content_type="application/json", headers=headers)
    return answer


@pytest.fixture
def root(personas: Personas) -> Client:
    return personas.client("superuser")


# ---- People


def test_a_person_is_made_and_sets_a_password_by_the_link(root: Client, personas: Personas):
    made = _send(root, "post", "people", {"username": "ada", "display_name": "Ada Lund", "email": "ada@example.org"})

    assert made.status_code == 201
    assert made["Cache-Control"] == "no-store"
    browser = Client()
    form = browser.get(made.json()["password_link"], follow=True)
    browser.post(form.request["PATH_INFO"], {"new_password1": "plum tree in may", "new_password2": "plum tree in may"})
    assert browser.post(reverse("account_login"), {"login": "ada", "password": "plum tree in may"}).status_code == 302
    assert "password_link" not in root.get(f"/api/v1/people/{made.json()['id']}").json()


def test_a_person_is_read_changed_shut_out_and_let_in(root: Client, personas: Personas):
    viewer, path = personas.client("viewer"), f"people/{personas.users['viewer'].public_id}"

    assert _send(root, "put", path, {"display_name": "Vera", "email": "vera@example.org"}).json()["name"] == "Vera"
    assert _send(root, "post", f"{path}/deactivate", {"reason": "Left"}).json()["active"] is False
    assert viewer.get("/api/v1/me").status_code == 401
    assert _send(root, "post", f"{path}/activate", {}).json()["active"] is True
    assert [(role["role"], role["node"]) for role in root.get(f"/api/v1/{path}").json()["roles"]] == [("viewer", "acme/research/nlp")]
    assert AuditEntry.objects.get(action="person.deactivate").reason == "Left"


def test_a_person_is_not_changed_over_somebody_elses_change(root: Client, personas: Personas):
    path = f"people/{personas.users['viewer'].public_id}"
    read = root.get(f"/api/v1/{path}")["ETag"]

    changed = _send(root, "put", path, {"display_name": "Vera"}, **{"If-Match": read})
    late = _send(root, "put", path, {"display_name": "Wera"}, **{"If-Match": read})

    assert (changed.status_code, late.status_code) == (200, 412)
    assert late["ETag"] == changed["ETag"] == root.get(f"/api/v1/{path}")["ETag"] != read
    assert root.get(f"/api/v1/{path}").json()["name"] == "Vera"
    assert _send(root, "put", path, {"display_name": "Wera"}, **{"If-Match": late["ETag"]}).status_code == 200


def test_the_list_is_sorted_by_every_column_that_it_names(root: Client, personas: Personas):
    for column in ("name", "username", "email", "roles", "last"):
        assert root.get(f"/api/v1/people?sort={column}").status_code == 200, column
    assert [row["username"] for row in root.get("/api/v1/people?sort=-roles,username&size=1").json()["items"]] == ["finance"]


def test_a_reset_ends_the_sessions_and_hands_out_a_link(root: Client, personas: Personas):
    viewer = personas.client("viewer")

    answer = _send(root, "post", f"people/{personas.users['viewer'].public_id}/reset", {})

    assert "/accounts/password/first/" in answer.json()["password_link"]
    assert viewer.get("/api/v1/me").status_code == 401


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"username": "VIEWER", "display_name": "X"}, "username"),
        ({"username": "x", "display_name": " "}, "display_name"),
        ({"username": "x", "display_name": "X", "email": "no"}, "email"),
        ({"display_name": "X"}, "username"),
    ],
    ids=str,
)
def test_a_bad_account_is_refused_at_its_field(root: Client, body: dict[str, str], path: str):
    answer = _send(root, "post", "people", body)

    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == [path]


def test_nobody_shuts_themselves_out(root: Client, personas: Personas):
    answer = _send(root, "post", f"people/{personas.users['superuser'].public_id}/deactivate", {})

    assert answer.status_code == 422
    assert User.objects.get(username="superuser").is_active


def test_a_token_does_not_take_over_who_can_do_more_than_it(personas: Personas):
    """The owner could, but the token holds less than the operator does, and a link would make its holder the operator."""
    token = {"Authorization": f"Bearer {personas.token('superuser', 'admin')}"}

    answer = _send(Client(), "post", f"people/{personas.users['operator'].public_id}/reset", {}, **token)

    assert answer.status_code == 403
    assert "password_link" not in answer.json()


def test_rules_for_groups_are_made_listed_and_ended(root: Client, personas: Personas):
    node = personas.nodes["acme/research/nlp"]
    made = _send(root, "post", f"quotas/{node.public_id}/roles", {"role": "viewer", "group": "ml"}).json()

    assert [(rule["group"], rule["node"]) for rule in root.get("/api/v1/group-rules").json()] == [("ml", node.path)]
    assert personas.client("team_lead").get("/api/v1/group-rules").json() != []
    assert _send(root, "delete", f"roles/{made['id']}?reason=Over").status_code == 204
    assert not RoleBinding.objects.filter(group="ml").exists()
    assert AuditEntry.objects.get(action="role.revoke").reason == "Over"


def test_the_clock_is_chosen_by_the_person_only(personas: Personas):
    assert _send(personas.client("viewer"), "put", "me/clock", {"utc": True}).status_code == 204
    assert User.objects.get(username="viewer").clock_utc

    token = {"Authorization": f"Bearer {personas.token('viewer', 'read', 'admin')}"}
    assert _send(Client(), "put", "me/clock", {"utc": False}, **token).status_code == 403


def test_one_audit_entry_is_read_where_it_may_be_seen(personas: Personas):
    entry = AuditEntry.objects.create(actor_name="t", via="system", action="t", object_kind="t", object_id="1", quota_path="acme/product")

    assert personas.client("finance").get(f"/api/v1/audit/{entry.pk}").json()["quota_path"] == "acme/product"
    assert personas.client("quota_admin").get(f"/api/v1/audit/{entry.pk}").status_code == 404


# ---- Tokens


def _wanted(**change: Any) -> dict[str, Any]:
    return {"name": "nightly", "scopes": ["read"], "expires_at": (now() + timedelta(hours=1)).isoformat()} | change


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_a_person_makes_a_token_whose_secret_is_told_once(personas: Personas):
    client = personas.client("viewer")

    made = _send(client, "post", "tokens", _wanted())

    assert (made.status_code, made["Cache-Control"]) == (201, "no-store")
    secret = made.json()["secret"]
    assert Client().get("/api/v1/me", headers=_bearer(secret)).json()["username"] == "viewer"
    assert secret not in client.get("/api/v1/tokens").content.decode()


def test_tokens_are_listed_in_pages_and_by_state(personas: Personas):
    for _ in range(30):
        personas.token("viewer", "read")
    client = personas.client("viewer")
    _send(client, "delete", f"tokens/{ServiceToken.objects.earliest('pk').public_id}")

    first = client.get("/api/v1/tokens", {"size": 25, "state": "valid"}).json()
    second = client.get("/api/v1/tokens", {"size": 25, "state": "valid", "after": first["next"]}).json()

    assert (len(first["items"]), len(second["items"]), second["next"]) == (25, 4, "")
    assert [row["state"] for row in client.get("/api/v1/tokens", {"state": "revoked"}).json()["items"]] == ["revoked"]
    assert client.get("/api/v1/tokens", {"state": "lost"}).status_code == 422


def test_people_are_listed_by_state_and_role(root: Client):
    assert [row["username"] for row in root.get("/api/v1/people", {"role": ["finance", "viewer"]}).json()["items"]] == ["finance", "viewer"]
    assert root.get("/api/v1/people", {"active": "no"}).json()["items"] == []


def test_a_session_without_the_csrf_token_makes_none(personas: Personas):
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(personas.users["viewer"], backend="django.contrib.auth.backends.ModelBackend")

    assert _send(browser, "post", "tokens", _wanted()).status_code == 403
    assert not ServiceToken.objects.exists()


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ({"scopes": ["read", "operate"]}, "scopes"),
        ({"expires_at": (now() + timedelta(days=2)).isoformat()}, "expires_at"),
        ({"node": None}, "node"),
        ({"expires_at": "2030-01-01T00:00:00"}, "expires_at"),
        ({"name": "x" * 81}, "name"),
    ],
    ids=["more scopes", "longer life", "wider subtree", "no zone", "long name"],
)
def test_a_token_makes_none_that_reaches_further_than_itself(personas: Personas, change: dict[str, Any], path: str):
    own = _bearer(personas.token("superuser", "read", "admin", path="acme/research"))
    fine = {"node": personas.nodes["acme/research/nlp"].public_id}

    answer = _send(Client(), "post", "tokens", _wanted(**fine | change), **own)

    assert answer.status_code == 422
    assert [error["path"] for error in answer.json()["errors"]] == [path]
    assert ServiceToken.objects.count() == 1
    assert _send(Client(), "post", "tokens", _wanted(**fine), **own).status_code == 201


def test_the_longest_names_still_fit_into_the_audit(personas: Personas):
    """PostgreSQL refuses what is too long for its column, and with it the write that was to be recorded."""
    User.objects.filter(username="superuser").update(display_name="D" * 120)
    made = _send(personas.client("superuser"), "post", "tokens", _wanted(name="t" * 80, scopes=["read", "admin"])).json()

    _send(Client(), "put", f"quotas/{personas.nodes['acme'].public_id}", {"kind": "org", "revision": 1, "title": "A"}, **_bearer(made["secret"]))

    entry = AuditEntry.objects.get(action="quota.update")
    for field in AuditEntry._meta.get_fields():
        if isinstance(field, CharField):
            assert len(getattr(entry, field.name)) <= (field.max_length or 0)


def test_a_node_outside_the_tokens_subtree_does_not_exist_for_it(personas: Personas):
    own = _bearer(personas.token("superuser", "read", "admin", path="acme/research"))

    assert _send(Client(), "post", "tokens", _wanted(node=personas.nodes["acme/product"].public_id), **own).status_code == 404


def test_only_a_token_that_administers_makes_or_ends_others(personas: Personas):
    own, other = personas.token("viewer", "read"), personas.token("viewer", "read")
    ids = {token.prefix: token.public_id for token in ServiceToken.objects.all()}

    assert _send(Client(), "post", "tokens", _wanted(), **_bearer(own)).status_code == 403
    assert _send(Client(), "delete", f"tokens/{ids[other.split('_')[1]]}", **_bearer(own)).status_code == 403
    assert _send(Client(), "delete", f"tokens/{ids[own.split('_')[1]]}", **_bearer(own)).status_code == 204
    assert Client().get("/api/v1/me", headers=_bearer(own)).status_code == 401
    assert Client().get("/api/v1/me", headers=_bearer(other)).status_code == 200


def test_with_a_token_end_those_that_it_made(personas: Personas):
    first = personas.token("superuser", "read", "admin")
    top = ServiceToken.objects.get()
    wanted = _wanted(scopes=["admin"])
    second = _send(Client(), "post", "tokens", wanted, **_bearer(first)).json()["secret"]
    third = _send(Client(), "post", "tokens", wanted, **_bearer(second)).json()
    beside = personas.token("superuser", "read")
    assert third["made_with"] == ServiceToken.objects.get(prefix=second.split("_")[1]).public_id

    _send(personas.client("superuser"), "delete", f"tokens/{top.public_id}")

    statuses = [Client().get("/api/v1/me", headers=_bearer(secret)).status_code for secret in (first, second, third["secret"], beside)]
    assert statuses == [401, 401, 401, 200]
    assert AuditEntry.objects.filter(action="token.revoke").count() == 3


def test_a_deactivated_owner_ends_a_token_that_a_token_made(root: Client, personas: Personas):
    builders.role(personas.users["stranger"], "viewer", personas.nodes["acme"])
    own = personas.token("stranger", "read", "admin")
    made = _send(Client(), "post", "tokens", _wanted(), **_bearer(own)).json()["secret"]

    _send(root, "post", f"people/{personas.users['stranger'].public_id}/deactivate", {})

    assert Client().get("/api/v1/me", headers=_bearer(made)).status_code == 401
