"""The API's frame: who asks, how faults look, and its documentation."""

import html
import json
import threading

import pytest
from django.test import Client, RequestFactory
from ninja import Router

from gpufleet.api import api
from gpufleet.limits import CallerLimit
from quotas.models import ServiceToken
from scheduler.models import Job
from tests.builders import job
from tests.personas import Personas


def _bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def test_nobody_is_told_to_sign_in(db, client: Client):
    answer = client.get("/api/v1/me")

    assert answer.status_code == 401
    assert answer["Content-Type"] == "application/problem+json"
    assert answer["WWW-Authenticate"] == "Bearer"
    assert answer.json()["request_id"] == answer["X-Request-Id"]


def test_a_session_and_a_token_say_who_they_are(personas: Personas):
    assert personas.client("viewer").get("/api/v1/me").json()["grants"] == [{"path": "acme/research/nlp", "capabilities": ["see"]}]

    answer = Client().get("/api/v1/me", headers=_bearer(personas.token("operator", "read", path="acme/product")))

    assert answer.json()["username"] == "operator"
    assert answer.json()["grants"] == [{"path": "acme/product", "capabilities": ["see", "see_audit"]}]


def test_a_wrong_token_is_refused_even_beside_a_good_session(personas: Personas):
    answer = personas.client("superuser").get("/api/v1/me", headers=_bearer("gf_12345678_nonsense"))

    assert answer.status_code == 401
    assert answer.json()["detail"] == "This token is not known here."


def test_guessing_tokens_is_slowed_down_and_does_not_lock_out_the_right_one(personas: Personas):
    statuses = [Client().get("/api/v1/me", headers=_bearer(f"gf_0000_{guess}")).status_code for guess in range(22)]

    assert statuses == [401] * 20 + [429] * 2
    assert Client().get("/api/v1/me", headers=_bearer(personas.token("viewer", "read"))).status_code == 200


def test_a_caller_who_asks_too_often_is_told_how_long_to_wait(personas: Personas, settings, monkeypatch):
    settings.API_REQUESTS_PER_MINUTE = 3
    moment = [1_800_000_012.5]  # 12.5 s into a minute
    monkeypatch.setattr("gpufleet.limits.time.time", lambda: moment[0])
    mine, others = _bearer(personas.token("viewer", "read")), _bearer(personas.token("viewer", "read"))

    answers = [Client().get("/api/v1/me", headers=mine) for _ in range(5)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429, 429]
    assert answers[-1]["Retry-After"] == "48"
    assert answers[-1]["Content-Type"] == "application/problem+json"
    assert Client().get("/api/v1/me", headers=others).status_code == 200, "each token is counted by itself"
    moment[0] += 48
    assert Client().get("/api/v1/me", headers=mine).status_code == 200


def test_requests_at_the_same_time_are_all_counted(settings, monkeypatch):
    """One object serves every thread: what one thread counts must not be written under another's name."""
    settings.API_REQUESTS_PER_MINUTE = 60
    monkeypatch.setattr("gpufleet.limits.time.time", lambda: 1_800_000_000.0)  # no minute begins in between
    limit, allowed, go = CallerLimit(), [], threading.Barrier(8)

    def ask(number):
        request = RequestFactory().get("/")
        request.auth = f"caller {number % 2}"
        go.wait()
        allowed.extend((number % 2, limit.allow_request(request)) for _ in range(25))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [sum(good for caller, good in allowed if caller == wanted) for wanted in (0, 1)] == [60, 60]


@pytest.mark.parametrize("path", ["/api/v1/nowhere", "/api/v1/quotas/q-999999"])
def test_what_is_not_there_is_a_problem_too(personas: Personas, path: str):
    answer = personas.client("superuser").get(path)

    assert answer.status_code == 404
    assert answer["Content-Type"] == "application/problem+json"


@pytest.mark.parametrize("body", ["[1, 2]", '"all"', "7", "null"])
def test_a_body_that_is_no_object_is_not_taken_for_an_empty_one(personas: Personas, body: str):
    answer = personas.client("viewer").post("/api/v1/me/notices/read", body, content_type="application/json")

    assert answer.status_code == 400


def test_a_key_that_is_stated_twice_is_refused_and_not_decided_by_the_last_one(personas: Personas):
    body = '{"name": "x", "quota": "acme/research/nlp", "gpus": 1, "labels": {"a": "1", "a": "2"}}'
    told = _problem(personas.client("submitter").post("/api/v1/jobs", body, content_type="application/json"), 400)

    assert told["detail"] == "“a” is stated twice in one object of the body."
    assert not Job.objects.exists()


# Callers send these back as they have read them, with more than can be changed. Where nothing else is taken, PutBack refuses it.
WHOLE = {"NodeIn", "NodeChange", "ShareIn", "PersonIn", "ChoicesIn", "OwnHookIn", "TemplateIn"}


def test_what_is_sent_so_that_something_is_done_by_it_has_no_keys_that_there_are_not():
    """A misspelt key would be left out, and the rest done for good."""
    document = api.get_openapi_schema()
    schemas, found, line = document["components"]["schemas"], set(), []
    for operation in (one for methods in document["paths"].values() for one in methods.values()):
        line += [answer["schema"] for answer in operation.get("requestBody", {}).get("content", {}).values()]
    while line:
        part = line.pop()
        if isinstance(part, dict):
            name = part.get("$ref", "").rpartition("/")[2]
            if name and name not in found:
                found.add(name)
                line.append(schemas[name])
            line += part.values()
        elif isinstance(part, list):
            line += part

    open_ones = {name for name in found if "properties" in schemas[name] and schemas[name].get("additionalProperties") is not False}
    assert len(found) > 20
    assert open_ones == WHOLE & found


def test_a_head_is_what_a_read_would_answer_without_its_body(personas: Personas):
    caller = personas.client("viewer")
    read, head = caller.get("/api/v1/me"), caller.head("/api/v1/me")

    assert (head.status_code, head.content) == (200, b"")
    assert head["Content-Length"] == str(len(read.content))
    assert head["Content-Type"] == read["Content-Type"]
    assert caller.head("/api/v1/jobs/j-999999").status_code == 404
    assert caller.head("/api/v1/submissions").status_code == 405, "it can't be read"
    assert Client().head("/api/v1/me").status_code == 401


def _problem(answer, status):
    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json"), answer.content
    return answer.json()


def test_a_parameter_that_there_is_not_is_refused_and_nothing_is_done(personas: Personas):
    """`?dryrun=true` would submit for good if what is misspelt were left out."""
    wish = {"name": "x", "quota": "acme/research/nlp", "gpus": 1}
    told = _problem(personas.client("submitter").post("/api/v1/jobs?dryrun=true&x=1", wish, content_type="application/json"), 422)

    assert told["errors"] == [
        {"path": "dryrun", "message": "Unknown parameter; dry_run was perhaps meant."},
        {"path": "x", "message": "Unknown parameter; there are dry_run."},
    ]
    assert not Job.objects.exists()
    assert _problem(personas.client("viewer").get("/api/v1/me?x=1"), 422)["errors"][0]["message"] == "Unknown parameter; there is none."
    assert _problem(Client().get("/api/v1/me?x=1"), 401)
    assert personas.client("quota_admin").get("/api/v1/people?size=5").status_code == 200, "lists name theirs apart"


def test_faults_of_any_request_are_told_in_the_words_of_descriptions(personas: Personas):
    caller = personas.client("team_lead")

    assert _problem(caller.get("/api/v1/jobs/queue?size=x"), 422)["errors"] == [{"path": "size", "message": "A whole number is wanted."}]
    told = _problem(caller.post("/api/v1/webhooks", {"name": "x"}, content_type="application/json"), 422)["errors"]
    assert {error["path"]: error["message"] for error in told} == dict.fromkeys(("quota", "url", "kinds"), "This field is required.")
    assert _problem(caller.post("/api/v1/submissions", {"jobs": []}, content_type="application/json"), 422)["errors"] == [
        {"path": "jobs", "message": "At least 1."}
    ]
    assert _problem(caller.generic("POST", "/api/v1/jobs"), 422)["errors"] == [
        {"path": "", "message": "The request has no body; a JSON object is wanted."}
    ]
    steer = {"action": "cancel", "matching": {"phase": "waiting"}, "dry_run": True}  # it belongs into the address
    assert _problem(caller.post("/api/v1/jobs/bulk", steer, content_type="application/json"), 422)["errors"] == [
        {"path": "dry_run", "message": "There is no key dry_run here."}
    ]


def test_a_body_that_was_sent_as_something_else_is_told_what_is_taken(personas: Personas):
    told = _problem(personas.client("submitter").post("/api/v1/jobs", "name: x", content_type="application/yaml"), 400)

    assert (
        told["detail"]
        == "The body is not valid JSON: line 1, column 1: Expecting value. It was sent as application/yaml; the API takes application/json."
    )


def test_a_token_that_lacks_a_scope_is_told_which_one(personas: Personas):
    """Its owner may do it, so what is missing is no role."""

    def refused(secret, path, body):
        return _problem(Client().post(path, body, content_type="application/json", headers=_bearer(secret)), 403)["detail"]

    mine = job("mine", on=personas.nodes["acme/research/nlp"], owner=personas.users["submitter"])
    wish = {"name": "x", "quota": "acme/research/nlp", "gpus": 1}
    hook = {"name": "x", "url": "https://example.org/", "quota": "acme/research/nlp", "kinds": ["job.failed"]}
    said = "You may do this, but this token may not: it needs the scope {}."

    assert refused(personas.token("submitter", "read"), "/api/v1/jobs", wish) == said.format("submit")
    assert refused(personas.token("submitter", "read"), f"/api/v1/jobs/{mine.public_id}/cancel", {}) == said.format("submit")
    assert refused(personas.token("team_lead", "read"), f"/api/v1/jobs/{mine.public_id}/cancel", {}) == said.format("submit or operate")
    assert refused(personas.token("team_lead", "read", "submit", "operate"), "/api/v1/webhooks", hook) == said.format("admin")
    assert refused(personas.token("operator", "read"), "/api/v1/scheduler/pause", {"reason": "x"}) == said.format("operate")
    assert refused(personas.token("operator", "operate", path="acme/research"), "/api/v1/scheduler/pause", {"reason": "x"}) == (
        "This token is for acme/research alone."
    )
    assert "You may do this" not in refused(personas.token("viewer", "read", "submit"), "/api/v1/jobs", wish), "the role is what lacks"


def test_a_body_that_is_too_large_is_said_to_be(personas: Personas, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 2000

    answer = personas.client("submitter").post("/api/v1/submissions", {"jobs": [{"key": "x" * 3000}]}, content_type="application/json")

    assert answer.status_code == 413
    assert answer["Content-Type"] == "application/problem+json"


def test_operation_ids_are_the_names_of_functions_and_unique(personas: Personas):
    document = personas.client("viewer").get("/api/v1/openapi.json").json()
    ids = [operation["operationId"] for methods in document["paths"].values() for operation in methods.values()]

    assert "me" in ids
    assert len(ids) == len(set(ids))


def test_the_documentation_is_for_callers_and_loads_no_script(personas: Personas):
    page = personas.client("viewer").get("/api/v1/docs")

    assert page.status_code == 200
    assert "/api/v1/me" in page.content.decode()
    assert "cdn" not in page.content.decode()
    assert Client().get("/api/v1/docs").status_code == 401
    token = personas.token("viewer", "read")
    assert Client().get("/api/v1/openapi.json", headers=_bearer(token)).status_code == 200


def test_the_documentation_shows_how_each_operation_is_called(personas: Personas):
    page = html.unescape(personas.client("viewer").get("/api/v1/docs").content.decode())
    part = page[page.index('id="job_end"') : page.index('id="job_held"')]
    whole = page[page.index('id="role_create"') : page.index('id="role_delete"')]

    assert "curl -X POST http://testserver/api/v1/jobs/j-417/cancel" in part
    assert """-d '{"reason": "The data was wrong."}'""" in part
    assert "A token with the scope submit or operate" in part
    assert "<code>public_id</code>" in part
    assert "Id of the job." in part
    assert "The `ETag`" not in part, "backticks are for writers"
    assert "<code>ETag</code>" in part
    assert all(f"<code>{status}</code>" in part for status in (401, 403, 404, 409, 412, 422, 429))
    assert "Path of the node that the role was given on." in whole
    for operation in (one for methods in api.get_openapi_schema()["paths"].values() for one in methods.values()):
        assert f'id="{operation["operationId"]}-curl"' in page


def test_the_last_use_is_written_at_most_once_a_minute(personas: Personas, django_assert_num_queries):
    secret = personas.token("viewer", "read")
    Client().get("/api/v1/me", headers=_bearer(secret))
    first = ServiceToken.objects.get().last_used_at

    with django_assert_num_queries(2):  # the token with its owner, and the owner's roles
        Client().get("/api/v1/me", headers=_bearer(secret))

    assert first is not None
    assert ServiceToken.objects.get().last_used_at == first


def test_routers_are_found_by_every_app():
    assert all(isinstance(router, Router) for _, router, *_ in api._router_registrations)
    assert json.dumps(api.get_openapi_schema(), default=str)


def test_an_address_with_too_many_fields_is_refused(personas) -> None:
    answer = personas.client("viewer").get("/api/v1/jobs?" + "&".join(["state=queued"] * 1001))

    assert answer.status_code == 400
    assert "too many fields" in answer.json()["detail"]
