"""Every address and method, for every kind of person: who gets in, who is told what, and that writes leave a trace.

The expectations are in tests/url_expectations; the first test here names what is missing there.
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from django.core.cache import cache
from django.db import transaction
from django.http import HttpResponse
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from gpufleet.api import api
from gpufleet.core.live.topics import _topics, topic_register
from gpufleet.core.models import AuditEntry
from quotas.permissions import Can
from tests.personas import PEOPLE, Personas, settled
from tests.url_expectations import EXPECTED, FIELDS, FLEET, NOT_THERE, TOKEN_SCOPES, Expect, World
from tests.url_expectations import team as TEAM

WRITES = ("POST", "PUT", "PATCH", "DELETE")
PARAMETER = re.compile(r"<(?:\w+:)?(\w+)>|\{(?:\w+:)?(\w+)\}")


def _routes(patterns: list[URLPattern | URLResolver], prefix: str = "") -> Iterator[str]:
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        else:
            yield route


def _bare(route: str) -> str:
    """The route without the names of its parameters: Django writes <slug:name>, OpenAPI writes {name}."""
    return PARAMETER.sub("{}", route)


def _declared(route: str) -> set[str]:
    return {expect.method for expect in EXPECTED if _bare(expect.route) == _bare(route)}


def _path(route: str, values: dict[str, object]) -> str:
    return "/" + PARAMETER.sub(lambda found: str(values[found[1] or found[2]]), route)


def _ask(client: Client, expect: Expect, world: World, **headers: str) -> HttpResponse:
    path, body = _address(expect, world), expect.data(world)
    if expect.method not in WRITES:
        body = body or None  # of a question: what its address asks for
    kind = {"content_type": "application/json"} if expect.is_api and expect.method in WRITES else {}
    return _send(client, expect.method, path, body, kind, headers)


def _address(expect: Expect, world: World) -> str:
    return _path(expect.route, expect.at(world))


def _send(client: Client, method: str, path: str, body: object, kind: dict[str, str], headers: dict[str, str]) -> HttpResponse:
    send = getattr(client, method.lower())
    return send(path, body, headers=headers, **kind) if body is not None else send(path, headers=headers)


@contextmanager
def _undone() -> Iterator[None]:
    """What happens inside did not happen."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture(scope="module")
def everybody(founded: None) -> Personas:
    people = settled()
    for name in PEOPLE:
        people.client(name)
    return people


@pytest.fixture
def world(everybody: Personas, db: None) -> Iterator[World]:
    topic_register("test-topic", Can.SEE, lambda ids: [], lambda viewer, query: {"rows": []})
    yield World(everybody.afresh())
    _topics.pop("test-topic", None)


def test_every_address_has_an_expectation():
    paths = api.get_openapi_schema()["paths"]
    operations = {(method.upper(), path.lstrip("/")) for path, methods in paths.items() for method in methods}
    of_api = {_bare(route) for _, route in operations}
    routes = {route for route in _routes(get_resolver().url_patterns) if _bare(route) not in of_api}

    holes = sorted(f"{method} {route}" for method, route in operations if method not in _declared(route))
    holes += sorted(route for route in routes - set(NOT_THERE) if not _declared(route))

    assert holes == [], "These addresses have no line in tests/url_expectations"


def test_no_expectation_is_about_an_address_that_is_gone():
    known = {_bare(route) for route in _routes(get_resolver().url_patterns)}

    assert [str(expect) for expect in EXPECTED if _bare(expect.route) not in known] == []


@pytest.mark.parametrize("expect", EXPECTED, ids=str)
def test_who_gets_in(expect: Expect, world: World):
    found, wanted = {}, {}
    _address(expect, world), expect.data(world)  # the rows that it names are made before anything is undone
    for name in PEOPLE:
        with _undone():
            client = world.personas.client(name)
            cache.clear()
            found[name] = _verdict(_ask(client, expect, world), expect)
        wanted[name] = _wanted(expect, name)

    assert found == wanted


# What the address names, and the same of a team that viewer, submitter, team lead and quota admin can't see.
OF_OTHERS = {FIELDS[name]: FIELDS["others' job"] for name in ("job", "running job", "draft job", "held job")}
OF_OTHERS |= {FIELDS["webhook"]: FIELDS["others' webhook"], TEAM: lambda w: {"public_id": w.other.public_id}}


@pytest.mark.parametrize("expect", [expect for expect in EXPECTED if expect.at in OF_OTHERS and expect.who - FLEET], ids=str)
def test_what_belongs_to_another_team_is_not_there(expect: Expect, world: World):
    expect = replace(expect, at=OF_OTHERS[expect.at])
    _address(expect, world), expect.data(world)
    found = {}
    for name in expect.who - FLEET:
        with _undone():
            cache.clear()
            found[name] = _ask(world.personas.client(name), expect, world).status_code

    assert found == dict.fromkeys(found, 404)


def _wanted(expect: Expect, name: str) -> str:
    if name in expect.who:
        return "in"
    if name == "anonymous":
        return "sign in"
    return "404" if name in expect.hidden else "403"


def _verdict(answer: HttpResponse, expect: Expect) -> str:
    if answer.status_code == 401 or (
        answer.status_code == 302 and answer["Location"].startswith("/accounts/login/") and "next=" in answer["Location"]
    ):
        return "sign in"
    if answer.status_code in (403, 404):
        return str(answer.status_code)
    fine = expect.lands if expect.method == "GET" else (200, 201, 202, 204, 302, 409, 422)
    return "in" if answer.status_code in fine else f"unexpected {answer.status_code}"


@pytest.mark.parametrize("expect", [expect for expect in EXPECTED if expect.is_api], ids=str)
def test_which_token_gets_in(expect: Expect, world: World):
    found = {}
    _address(expect, world), expect.data(world)
    for scope in TOKEN_SCOPES:
        with _undone():
            secret = world.personas.token("superuser", scope)
            found[scope] = _verdict(_ask(Client(), expect, world, Authorization=f"Bearer {secret}"), expect)

    assert {scope for scope, verdict in found.items() if verdict == "in"} == expect.tokens, found


@pytest.mark.parametrize("expect", [expect for expect in EXPECTED if expect.method in WRITES and expect.who], ids=str)
def test_every_write_is_in_the_audit(expect: Expect, world: World):
    who = "superuser" if "superuser" in expect.who else sorted(expect.who)[0]
    client, path = world.personas.client(who), _address(expect, world)
    expect.data(world)
    before = AuditEntry.objects.count()

    answer = _ask(client, expect, world)

    if expect.silent:
        assert AuditEntry.objects.count() == before
    else:
        assert answer.status_code in (200, 201, 202, 204, 302), f"The body of {path} is not good: {answer.content.decode()[:2000]}"
        assert AuditEntry.objects.count() > before


def test_no_address_takes_a_method_that_nobody_declared(world: World):
    client, surprises = world.personas.client("superuser"), []
    for expect in {expect.route: expect for expect in EXPECTED}.values():
        path = _address(expect, world)
        for method in ("GET", *WRITES):
            if method not in _declared(expect.route):
                with _undone():
                    answer = _send(client, method, path, None, {}, {})
                if answer.status_code != 405:
                    surprises.append(f"{method} {expect.route}: {answer.status_code}")

    assert surprises == []


def test_what_is_not_offered_is_not_there(world: World):
    for route in NOT_THERE:
        path = _path(route, {"provider_id": "sso"})
        assert world.personas.client("superuser").get(path).status_code == 404, path


def test_a_token_opens_no_page(world: World):
    secret = world.personas.token("superuser", *TOKEN_SCOPES)

    assert Client().get("/quotas/", headers={"Authorization": f"Bearer {secret}"}).status_code == 302


def test_without_the_csrf_token_no_write_gets_in(world: World):
    """Also where signing in is the only condition: the cookie alone never writes."""
    browser = Client(enforce_csrf_checks=True)
    browser.force_login(world.personas.users["superuser"], backend="django.contrib.auth.backends.ModelBackend")
    for expect in EXPECTED:
        if expect.method in WRITES:
            _address(expect, world), expect.data(world)
            with _undone():
                assert _ask(browser, expect, world).status_code == 403, str(expect)


def _texts_taken() -> dict[Expect, list[tuple[str, str]]]:
    """Each text of a body or an address that a write of the API takes: where it stands and its name."""
    described = api.get_openapi_schema()
    schemas = described["components"]["schemas"]
    operations = {(method.upper(), _bare(path)): one for path, methods in described["paths"].items() for method, one in methods.items()}
    found = {}
    for expect in EXPECTED:
        if expect.is_api and expect.method in WRITES:
            operation = operations[expect.method, "/" + _bare(expect.route)]
            asked = [("query", row["name"]) for row in operation.get("parameters", ()) if row["in"] == "query" and _is_text(row["schema"])]
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {}).get("$ref", "")
            fields = schemas[body.rpartition("/")[2]].get("properties", {}) if body else {}
            asked += [("body", name) for name, inner in fields.items() if any(_is_text(one) for one in (inner, *inner.get("anyOf", ())))]
            if asked:
                found[expect] = asked
    return found


def _is_text(schema: dict[str, object]) -> bool:
    return schema.get("type") == "string" and not {"enum", "format", "const"} & set(schema)


TEXTS_TAKEN = _texts_taken()


@pytest.mark.parametrize("expect", TEXTS_TAKEN, ids=str)
def test_no_text_that_no_column_holds_is_taken(expect: Expect, world: World):
    path, body = _address(expect, world), expect.data(world)
    client = world.personas.client("superuser")
    taken = {}
    for where, name in TEXTS_TAKEN[expect]:
        odd = {name: "a\0b"}
        to, sent = (f"{path}?{urlencode(odd)}", body) if where == "query" else (path, {**body, **odd})  # type: ignore[dict-item]
        with _undone():
            status = _send(client, expect.method, to, sent, {"content_type": "application/json"}, {}).status_code
        if not 400 <= status < 500:
            taken[where, name] = status

    assert taken == {}
