"""The API's description: what it promises to programs, and that a promise is not broken by accident.

`python -m tests.test_api_schema` writes the description of now into docs/openapi.json. A change that breaks callers then shows in the diff of that
file, beside the line of the changelog that tells them.
"""

import copy
import json
import os
from functools import cache

import pytest

from tests.servers import PROJECT

SNAPSHOT = PROJECT / "docs/openapi.json"
RENEW = "If it is meant, renew docs/openapi.json with `python -m tests.test_api_schema`, and say so in CHANGELOG.md."


def current():
    return json.loads(_written())


@cache
def _written() -> str:
    from gpufleet.api import api

    return json.dumps(api.get_openapi_schema(), default=str, sort_keys=True)


def operations(document):
    return {(path, method): operation for path, methods in document["paths"].items() for method, operation in methods.items()}


def test_nothing_that_callers_rely_on_has_gone():
    from gpufleet.api_schema import breaking_changes

    assert breaking_changes(json.loads(SNAPSHOT.read_text()), current()) == [], RENEW


def test_every_operation_is_in_the_snapshot():
    assert set(operations(current())) - set(operations(json.loads(SNAPSHOT.read_text()))) == set(), RENEW


def test_every_operation_says_how_it_refuses_in_the_common_form():
    document = current()

    for (path, _), operation in operations(document).items():
        answers = operation["responses"]
        assert {"400", "401", "403", "429"} <= set(answers), path
        assert "404" in answers or "{" not in path
        own = {"409"} if path == "/api/v1/inventory/discovery" else set()  # it tells what was tried
        refusals = [answer["content"] for status, answer in answers.items() if status[0] in "45" and status not in own]
        assert all(set(content) == {"application/problem+json"} for content in refusals), path
    assert "If-Match" in {one["name"] for one in document["paths"]["/api/v1/jobs/{public_id}"]["patch"]["parameters"]}
    assert {one["name"] for one in document["paths"]["/api/v1/jobs/{public_id}"]["patch"]["parameters"]} == {"public_id", "If-Match"}


BREAKS = [
    (lambda d: d["paths"].pop("/api/v1/me"), "GET /api/v1/me is gone."),
    (lambda d: d["paths"]["/api/v1/me"]["get"].update(operationId="who"), "GET /api/v1/me was named me and is now who."),
    (lambda d: d["components"]["schemas"]["JobOut"]["properties"].pop("state"), "answer.items[].state"),
    (lambda d: d["components"]["schemas"]["JobOut"]["properties"]["priority"].update(type="string"), "priority was integer and is now string."),
    (lambda d: d["components"]["schemas"]["BatchIn"]["required"].append("name"), "POST /api/v1/submissions, body now needs name."),
    (lambda d: d["components"]["schemas"]["WishIn"]["properties"].pop("key"), "POST /api/v1/submissions, body.jobs[] no longer takes key."),
    (lambda d: d["paths"]["/api/v1/jobs"]["get"]["parameters"].pop(0), "GET /api/v1/jobs no longer takes phase."),
    (lambda d: d["paths"]["/api/v1/jobs"]["get"]["parameters"][0].update(required=True), "GET /api/v1/jobs now needs phase."),
    (
        lambda d: d["paths"]["/api/v1/jobs"]["get"]["parameters"][0]["schema"]["items"]["enum"].remove("ended"),
        "GET /api/v1/jobs no longer takes ended for phase.",
    ),
    (lambda d: d["paths"]["/api/v1/tokens"]["post"]["responses"].pop("201"), "POST /api/v1/tokens no longer answers 201."),
]


@pytest.mark.parametrize(("change", "said"), BREAKS, ids=[said for _, said in BREAKS])
def test_a_change_that_breaks_callers_is_noticed(change, said):
    from gpufleet.api_schema import breaking_changes

    before = current()
    after = copy.deepcopy(before)
    change(after)

    told = breaking_changes(before, after)
    assert told
    assert said in told or said.split(".state")[0] in " ".join(told)


def test_what_is_only_added_breaks_nobody():
    from gpufleet.api_schema import breaking_changes

    before = current()
    after = copy.deepcopy(before)
    after["paths"]["/api/v1/fresh"] = after["paths"]["/api/v1/me"]
    after["components"]["schemas"]["JobOut"]["properties"]["fresh"] = {"type": "string"}
    after["components"]["schemas"]["WishIn"]["properties"]["fresh"] = {"type": "string"}
    after["paths"]["/api/v1/jobs"]["get"]["parameters"].append({"in": "query", "name": "fresh", "schema": {"type": "string"}})

    assert breaking_changes(before, after) == []


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
    import django

    django.setup()
    SNAPSHOT.write_text(json.dumps(current(), indent=1, sort_keys=True) + "\n")
