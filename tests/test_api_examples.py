"""What the API's description tells to those who read it: every operation with examples that hold, and with notes on all that it takes."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="The package jsonschema-rs is not installed (requirements-dev.lock).")

from ninja import NinjaAPI, Schema  # noqa: E402

from gpufleet.api import api  # noqa: E402
from gpufleet.api_examples import Maker, parts, sheet, with_examples  # noqa: E402
from gpufleet.api_notes import SCOPES, fields  # noqa: E402
from gpufleet.core.models import User  # noqa: E402
from quotas.models import QuotaNode  # noqa: E402
from scheduler.models import Job  # noqa: E402
from tests import builders  # noqa: E402
from tests.personas import Personas, person  # noqa: E402
from tests.test_url_matrix import _address, _bare, _undone  # noqa: E402
from tests.url_expectations import EXPECTED, Expect, World  # noqa: E402

DOCUMENT = json.loads(json.dumps(api.get_openapi_schema(), default=str))
PARTS = {f"{operation['operationId']} {key}": content for operation, key, content in parts(DOCUMENT)}
OPERATIONS = {operation["operationId"]: operation for methods in DOCUMENT["paths"].values() for operation in methods.values()}


def examples_of(content: dict[str, Any]) -> list[Any]:
    named = content.get("examples", {})
    return [content["example"]] if "example" in content else [one["value"] for one in named.values()]


@pytest.mark.parametrize("part", PARTS)
def test_what_is_sent_and_answered_has_an_example_that_its_schema_allows(part: str):
    content = PARTS[part]
    assert content.get("schema"), f"{part} says nothing of its form: give the operation a response schema."
    check = jsonschema_rs.Draft202012Validator(content["schema"] | {"components": DOCUMENT["components"]}, validate_formats=True)

    assert examples_of(content), f"{part} has no example: add one to gpufleet/api_examples.yaml."
    assert [str(fault) for example in examples_of(content) for fault in check.iter_errors(example)] == []


def test_every_field_of_an_answer_has_a_value():
    plain = json.loads(json.dumps(NinjaAPI.get_openapi_schema(api), default=str))
    maker = Maker(plain["components"]["schemas"])

    with_examples(plain, maker)

    assert maker.missing == [], "Give these fields a value in gpufleet/api_examples.yaml, or `examples` where they are declared."


def test_the_sheet_names_nothing_that_is_gone():
    schemas, operations = DOCUMENT["components"]["schemas"], sheet()["operations"]

    assert set(sheet()["schemas"]) - set(schemas) == set()
    assert [f"{title}.{name}" for title, said in sheet()["schemas"].items() for name in said if name not in schemas[title]["properties"]] == []
    assert [f"{name} {key}" for name, said in operations.items() for key in said if f"{name} {key}" not in PARTS] == []
    used = {name for schema in schemas.values() for name in schema.get("properties", {})}
    assert set(sheet()["words"]) - used == set()


def test_every_field_says_what_it_means():
    unsaid = {
        f"{title}.{name}"
        for title, schema in DOCUMENT["components"]["schemas"].items()
        for name, field in schema.get("properties", {}).items()
        if not field.get("description")
    }

    assert unsaid == set(), "Describe these fields in gpufleet/api_fields.yaml, or where they are declared."


def test_the_notes_on_fields_name_nothing_that_is_gone_or_described_elsewhere():
    schemas = DOCUMENT["components"]["schemas"]
    told = [(title, name, note) for title, said in fields()["schemas"].items() for name, note in said.items()]
    shown = {(title, name, field.get("description")) for title, schema in schemas.items() for name, field in schema.get("properties", {}).items()}

    assert [one for one in told if one not in shown] == []
    assert set(fields()["words"].values()) - {note for _, _, note in shown} == set()


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_says_what_it_is_for_and_what_it_takes(name: str):
    operation = OPERATIONS[name]

    assert operation["summary"]
    assert [row["name"] for row in operation.get("parameters", ()) if not row.get("description")] == []
    answers = {status: answer for status, answer in operation["responses"].items() if status.startswith("2")}
    assert answers
    assert [status for status, answer in answers.items() if status != "204" and not answer.get("content")] == []


def test_the_scopes_that_are_told_are_those_that_get_in():
    told = {(method.upper(), _bare(path.lstrip("/"))): set(operation["x-token-scopes"]) for path, method, operation in _all()}
    found = {(expect.method, _bare(expect.route)): set(expect.tokens) for expect in EXPECTED if expect.is_api}

    assert {key: (scopes, found[key]) for key, scopes in told.items() if scopes != found[key]} == {}
    assert set(SCOPES) - set(OPERATIONS) == set()


def test_no_two_schemas_share_a_name():
    """In the description one of them would stand for both."""

    def below(kind: type) -> Iterator[type]:
        for one in kind.__subclasses__():
            yield one
            yield from below(one)

    places: dict[str, set[str]] = {}
    for one in below(Schema):
        if one.__module__.split(".")[0] in ("gpufleet", "quotas", "scheduler", "dashboards"):
            places.setdefault(one.__name__, set()).add(one.__module__)

    assert {name: where for name, where in places.items() if len(where) > 1} == {}


def _all() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield path, method, operation


SENT = [expect for expect in EXPECTED if expect.is_api and expect.method in ("POST", "PUT", "PATCH") and not expect.case]
# A machine without GPUs, and a rank's report that no browser sends, have tests of their own.
NOT_HERE = {"api/v1/inventory/discovery", "api/v1/checkpoints", "api/v1/steps"}


@pytest.mark.django_db
@pytest.mark.parametrize("expect", [expect for expect in SENT if expect.route not in NOT_HERE], ids=str)
def test_what_the_examples_send_is_understood(expect: Expect, personas: Personas, settings, monkeypatch):
    """Rows that they name may not be here, or at another revision; none is refused for what it says."""
    (operation,) = [one for path, method, one in _all() if (method.upper(), _bare(path.lstrip("/"))) == (expect.method, _bare(expect.route))]
    content = PARTS.get(f"{operation['operationId']} body")
    settings.EMAIL_HOST = "mail.example.org"
    monkeypatch.setattr("quotas.api.tokens.now", lambda: datetime(2026, 3, 2, tzinfo=UTC))  # the day on which the examples were written
    for module in ("scheduler.api.energy", "scheduler.api.reservations", "quotas.api.budgets"):
        monkeypatch.setattr(f"{module}.now", lambda: datetime(2026, 3, 2, tzinfo=UTC))
    settings.SLURM_USERS = ("gpujobs",)
    if "reservations" in expect.route:
        for number in range(4):
            builders.node(f"big-{number}", gpus=8)
    world, client = World(personas), personas.client("superuser")
    address = _address(expect, world)
    if expect.route.endswith(("/slurm", "/kubernetes")):
        address += "?dry_run=true"  # there is nothing that it could be stored for
    monkeypatch.setattr("scheduler.services.hardware.kubernetes.contexts_of", lambda _: ("gpu-prod",))
    builders.gpu_type()
    if expect.route.endswith("/roles"):
        person("ada")
    User.objects.update(email="ada@example.org")
    assert world.job
    if "quota-changes" in expect.route and not expect.route.endswith("/steps"):
        QuotaNode.objects.filter(pk=world.team.pk).update(public_id="q-9")
        QuotaNode.objects.update(overcommit=True)
    Job.objects.update(spec={"roles": [{"name": "worker", "min": 1, "max": 8, "gpus": 1}]})
    for example in examples_of(content) if content else ():
        with _undone():
            answer = client.generic(expect.method, address, json.dumps(example), content_type="application/json")
        assert answer.status_code in (200, 201, 202, 204, 404, 409), answer.content.decode()
