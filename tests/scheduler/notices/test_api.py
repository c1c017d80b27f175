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
