"""Rules and silences of one team name it, and those of costs tell of them: only readers of that see them."""

import re
from datetime import timedelta
from typing import Any

import pytest

from dashboards.alerts.models import AlertRule
from dashboards.alerts.services import silence_create
from gpufleet.core.times import now
from tests.personas import Personas

pytestmark = pytest.mark.django_db
OTHER = "acme/research/vision"


def rule(name: str, figure: str, subject: str) -> AlertRule:
    return AlertRule.objects.create(public_id=f"ar-{name}", name=name, figure=figure, subject=subject, threshold=20, clear_at=10)


@pytest.fixture
def rules(personas: Personas) -> dict[str, AlertRule]:
    AlertRule.objects.all().delete()
    made = [
        rule("each", "floor_gap", "*"),
        rule("own", "idle_gpus", "acme/research/nlp"),
        rule("other", "idle_gpus", OTHER),
        rule("costs", "cost_week", "*"),
        rule("pool", "nodes_out", "main"),
    ]
    return {one.name: one for one in made}


SEEN = {
    "viewer": {"each", "own", "pool"},
    "quota_admin": {"each", "own", "other", "pool"},
    "operator": {"each", "own", "other", "pool"},
    "superuser": {"each", "own", "other", "costs", "pool"},
}


@pytest.mark.parametrize("who", SEEN)
def test_rules_are_seen_by_those_who_see_what_they_are_about(who: str, rules: dict[str, AlertRule], personas: Personas) -> None:
    client = personas.client(who)
    found = client.get("/api/v1/alerts/rules").json()["items"]
    assert {one["name"] for one in found} == SEEN[who]
    page = client.get("/activity/alerts/rules/").content.decode()
    assert (OTHER in page) is ("other" in SEEN[who])
    assert {name for name, one in rules.items() if client.get(f"/api/v1/alerts/rules/{one.public_id}").status_code == 200} == SEEN[who]


@pytest.mark.parametrize("who", SEEN)
def test_silences_are_seen_by_those_who_see_what_they_are_about(who: str, rules: dict[str, AlertRule], personas: Personas) -> None:
    facts: dict[str, Any] = {"access": personas.access("superuser"), "until": now() + timedelta(hours=1), "now": now()}
    silences = {name: silence_create(rule=one, reason=f"of {name}", **facts) for name, one in rules.items()}
    of_teams = {"each-own": "acme/research/nlp", "each-other": OTHER}
    silences |= {name: silence_create(rule=rules["each"], subject=path, reason=f"of {name}", **facts) for name, path in of_teams.items()}
    silences |= {"all": silence_create(reason="of all", **facts), "all-main": silence_create(subject="main", reason="of all-main", **facts)}
    silences |= {"all-other": silence_create(subject=OTHER, reason="of all-other", **facts)}
    seen = SEEN[who] | {"each-own", "all", "all-main"} | ({"each-other", "all-other"} if "other" in SEEN[who] else set())

    client = personas.client(who)
    found = client.get("/api/v1/alerts/silences").json()["items"]

    assert {one["reason"] for one in found} == {f"of {name}" for name in seen}
    page = client.get("/activity/alerts/").content.decode()
    assert {name for name in silences if re.search(rf"\bof {name}\b(?!-)", page)} == seen
    assert (OTHER in page) is ("other" in SEEN[who])
    hidden = [one for name, one in silences.items() if name not in seen]
    answers = {client.delete(f"/api/v1/alerts/silences/{one.public_id}").status_code for one in hidden}
    assert answers <= {404}
