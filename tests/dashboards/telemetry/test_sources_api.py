"""Prometheus servers over the API: added, changed, tested and removed by the rules of their pages, and a secret goes in and never out."""

import json
from typing import Any

import pytest
from django.test import Client

from dashboards.prometheus.credentials import secret_of
from dashboards.prometheus.models import PrometheusServer
from gpufleet.core.models import AuditEntry
from tests.personas import Personas

pytestmark = pytest.mark.django_db
SOURCES = "/api/v1/telemetry/sources"
SERVER = {"name": "main", "url": "https://prometheus.example.org", "sign_in": "basic", "username": "gpufleet", "secret": "kept-to-itself"}


@pytest.fixture
def operator(personas: Personas) -> Client:
    return personas.client("operator")


def send(client: Client, method: str, address: str, body: Any = None, **headers: str) -> Any:
    return client.generic(method, address, b"" if body is None else json.dumps(body), content_type="application/json", headers=headers)


def test_a_server_is_added_changed_and_removed(operator: Client) -> None:
    made = send(operator, "POST", SOURCES, SERVER | {"reason": "New fleet"})
    assert made.status_code == 201
    told, address = made.json(), f"{SOURCES}/{made.json()['id']}"
    assert (told["state"], told["sign_in"], told["enabled"]) == ("new", "basic", True)
    assert made["ETag"] == '"1"'

    changed = send(operator, "PATCH", address, {"name": "north"}, **{"If-Match": '"1"'})
    assert (changed.status_code, changed.json()["name"], changed.json()["username"]) == (200, "north", "gpufleet")
    assert send(operator, "PATCH", address, {"name": "south"}, **{"If-Match": '"1"'}).status_code == 412
    assert operator.get(address).json()["name"] == "north"
    assert secret_of(PrometheusServer.objects.get()) == "kept-to-itself", "what is not named stays"

    assert send(operator, "DELETE", f"{address}?reason=Gone").status_code == 204
    assert operator.get(address).status_code == 404
    assert list(AuditEntry.objects.filter(object_kind="prometheus_server").order_by("pk").values_list("action", "reason")) == [
        ("prometheus.create", "New fleet"),
        ("prometheus.change", ""),
        ("prometheus.remove", "Gone"),
    ]


def test_no_answer_has_the_secret(operator: Client) -> None:
    made = send(operator, "POST", SOURCES, SERVER)
    address = f"{SOURCES}/{made.json()['id']}"
    answers = [made, operator.get(address), operator.get(SOURCES), send(operator, "PATCH", address, {"secret": "another-of-its-own"})]

    assert not [answer for answer in answers if b"kept-to-itself" in answer.content or b"another-of-its-own" in answer.content]
    assert secret_of(PrometheusServer.objects.get()) == "another-of-its-own"


def test_another_address_wants_the_secret_again(operator: Client) -> None:
    address = f"{SOURCES}/{send(operator, 'POST', SOURCES, SERVER).json()['id']}"
    moved = send(operator, "PATCH", address, {"url": "https://other.example.org"})

    assert moved.status_code == 422
    assert [fault["path"] for fault in moved.json()["errors"]] == ["secret"]
    assert PrometheusServer.objects.get().url == SERVER["url"]


def test_faults_are_told_at_their_fields(operator: Client) -> None:
    send(operator, "POST", SOURCES, SERVER)
    wrong = send(operator, "POST", SOURCES, SERVER | {"url": "ftp://prometheus.example.org", "tenant": "two words"})

    assert wrong.status_code == 422
    assert sorted(fault["path"] for fault in wrong.json()["errors"]) == ["name", "tenant", "url"]


def test_a_test_says_what_it_found_and_keeps_nothing(operator: Client) -> None:
    address = f"{SOURCES}/{send(operator, 'POST', SOURCES, {'name': 'main', 'url': 'https://prometheus.invalid'}).json()['id']}"
    tried = send(operator, "POST", f"{address}/test")

    assert (tried.status_code, tried.json()["gpus"]) == (200, 0)
    assert tried.json()["fault"]
    assert PrometheusServer.objects.get().looked_at is None
