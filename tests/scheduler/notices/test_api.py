"""Which tokens stand for the person whose notices they are."""

import pytest
from django.test import Client

from tests.builders import job
from tests.personas import Personas

pytestmark = pytest.mark.django_db
OWN = (
    ("GET", "notices"),
    ("POST", "notices/read"),
    ("GET", "notices/choices"),
    ("PUT", "notices/choices"),
    ("POST", "notices/test"),
    ("GET", "notices/log"),
)
HOOK = ("PUT", "notices/webhook"), ("DELETE", "notices/webhook")


def status(secret: str, method: str, path: str) -> int:
    bodies = {"notices/webhook": {"url": "https://hooks.example.org/x"}, "notices/choices": {"ways": {"failed": ["console"]}}}
    headers = {"Authorization": f"Bearer {secret}"}
    return (
        Client()
        .generic(method, f"/api/v1/me/{path}", data=str(bodies.get(path, {})).replace("'", '"'), content_type="application/json", headers=headers)
        .status_code
    )


def test_a_token_for_a_part_of_the_tree_learns_nothing_of_a_persons_notices(personas: Personas) -> None:
    whole = personas.token("team_lead", "read", "submit")
    part = personas.token("team_lead", "read", "submit", path="acme/research/nlp")

    assert {one: status(whole, *one) for one in OWN} == dict.fromkeys(OWN, 200)
    assert {one: status(part, *one) for one in OWN} == dict.fromkeys(OWN, 403)


def test_no_token_says_where_notices_are_sent(personas: Personas) -> None:
    for path in (None, "acme/research/nlp"):
        secret = personas.token("team_lead", "read", "submit", path=path)
        assert {one: status(secret, *one) for one in HOOK} == dict.fromkeys(HOOK, 403)


def test_a_token_for_a_part_of_the_tree_follows_jobs_there(personas: Personas) -> None:
    secret = personas.token("team_lead", "read", "submit", path="acme/research/nlp")
    there = job(on=personas.nodes["acme/research/nlp"])

    answer = Client().put(f"/api/v1/jobs/{there.public_id}/follow", headers={"Authorization": f"Bearer {secret}"})

    assert (answer.status_code, answer.json()["follows"]) == (200, True)


def test_nobodys_change_of_choices_or_of_a_webhook_is_overwritten(personas: Personas) -> None:
    client = personas.client("viewer")

    def put(path: str, body: dict[str, object], revision: object) -> int:
        headers = {"If-Match": f'"{revision}"'}
        return int(client.put(f"/api/v1/me/notices/{path}", body, content_type="application/json", headers=headers).status_code)

    url, read = {"url": "https://hooks.example.org/x"}, client.get("/api/v1/me/notices/choices")
    assert (read["ETag"], read.json()["webhook_revision"]) == ('"0"', 0)
    assert [put("choices", {"ways": {"failed": ["console"]}}, 0), put("choices", {"ways": {}}, 0)] == [200, 412]
    assert [put("webhook", url, 0), put("webhook", url, 0)] == [200, 412]
    revision = client.get("/api/v1/me/notices/choices").json()["webhook_revision"]
    assert put("webhook", {"url": "https://hooks.example.org/y"}, revision) == 200
    assert client.delete("/api/v1/me/notices/webhook", headers={"If-Match": f'"{revision}"'}).status_code == 412
    assert client.get("/api/v1/me/notices/choices").json()["webhook"] == "https://hooks.example.org/y"
    assert client.delete("/api/v1/me/notices/webhook").status_code == 204
    assert put("webhook", url, revision) == 412
