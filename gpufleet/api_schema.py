"""The API's description as programs read it: what every operation may answer besides its own, and whether a change of it breaks callers."""

from collections.abc import Iterator, Mapping
from typing import Any

PROBLEM: dict[str, Any] = {
    "title": "Problem",
    "type": "object",
    "description": "Every error (RFC 9457). `errors` names each bad value by its path.",
    "required": ["type", "title", "status", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["path", "message"],
                "properties": {"path": {"type": "string"}, "message": {"type": "string"}},
            },
        },
        "request_id": {"type": "string"},
    },
    "example": {
        "type": "about:blank",
        "title": "Some values are not right",
        "status": 422,
        "detail": "Nothing was changed.",
        "errors": [{"path": "gpus", "message": "At least 0."}],
        "request_id": "0d5c4b2e6f7a4c0b9d1f",
    },
}
MEANINGS = {
    400: "It can't be read",
    401: "Not signed in, or a token that is not good",
    403: "Not allowed here",
    404: "No such thing, or outside the caller's subtrees",
    409: "Somebody else was faster, or its state does not allow it",
    412: "It has changed since the revision of If-Match",
    413: "It is larger than a request may be",
    422: "Some values are not right; each is named",
    429: "Too many requests; Retry-After says how long to wait",
}
ALWAYS = (400, 401, 403, 429)
WRITES = ("post", "put", "patch", "delete")


def with_problems(document: dict[str, Any]) -> dict[str, Any]:
    """The same description with the errors that each operation may answer with."""
    document.setdefault("components", {}).setdefault("schemas", {})["Problem"] = PROBLEM
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            answers = operation["responses"]
            stated = {int(status) for status in answers}  # some tell more than a problem does
            for sent in operation.get("requestBody", {}).get("content", {}).values():
                if len(sent.get("schema", {}).get("allOf", ())) == 1:  # as the framework writes a body that may be left out
                    (sent["schema"],) = sent["schema"]["allOf"]
            answers |= {status: _answer(status) for status in _statuses(path, method, operation) if status not in stated}
    return document


def _statuses(path: str, method: str, operation: Mapping[str, Any]) -> Iterator[int]:
    yield from ALWAYS
    if "{" in path or method in WRITES:
        yield 404
    if method in WRITES:
        yield from (409, 413, 422)
    elif operation.get("parameters"):
        yield 422
    if any(parameter["name"] == "If-Match" for parameter in operation.get("parameters", ())):
        yield 412


def _answer(status: int) -> dict[str, Any]:
    return {
        "description": MEANINGS[status],
        "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }


def breaking_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What a program that was written for `before` would stumble over in `after`, a sentence each."""
    found: list[str] = []
    for path, methods in before["paths"].items():
        for method, was in methods.items():
            name, now = f"{method.upper()} {path}", after["paths"].get(path, {}).get(method)
            if now is None:
                found.append(f"{name} is gone.")
                continue
            if was["operationId"] != now["operationId"]:
                found.append(f"{name} was named {was['operationId']} and is now {now['operationId']}.")
            found += _parameters_broken(name, was, now)
            found += _bodies_broken(name, was, now, before, after)
            found += _answers_broken(name, was, now, before, after)
    return found


def _parameters_broken(name: str, was: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    old = {(one["in"], one["name"]): one for one in was.get("parameters", ())}
    new = {(one["in"], one["name"]): one for one in now.get("parameters", ())}
    for key in old.keys() - new.keys():
        yield f"{name} no longer takes {key[1]}."
    for key, one in new.items():
        if one.get("required") and not old.get(key, {}).get("required"):
            yield f"{name} now needs {key[1]}."
    for key in old.keys() & new.keys():
        gone = set(map(str, _choices(old[key].get("schema", {})))) - set(map(str, _choices(new[key].get("schema", {}))))
        if gone and _choices(new[key].get("schema", {})):
            yield f"{name} no longer takes {', '.join(sorted(gone))} for {key[1]}."


def _bodies_broken(name: str, was: Mapping[str, Any], now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    old, new = _content(was.get("requestBody")), _content(now.get("requestBody"))
    if new is not None:
        yield from _taken_less(f"{name}, body", old or {}, new, before, after)


def _answers_broken(name: str, was: Mapping[str, Any], now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    for status, answer in was["responses"].items():
        if str(status).startswith("2"):
            there = {str(key): value for key, value in now["responses"].items()}.get(str(status))
            if there is None:
                yield f"{name} no longer answers {status}."
            elif (schema := _content(answer)) is not None:
                yield from _told_less(f"{name}, answer", schema, _content(there) or {}, before, after)


def _content(part: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    for kind in (part or {}).get("content", {}).values():
        return dict(kind.get("schema", {}))
    return None


def _choices(schema: Mapping[str, Any]) -> list[Any]:
    return list(schema.get("enum") or schema.get("items", {}).get("enum") or ())


def _seen(schema: Mapping[str, Any], document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Behind a reference, and behind "or null"."""
    while True:
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        elif choices := [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]:
            if len(choices) > 1:
                return {"anyOf": choices}
            schema = choices[0]
        else:
            return schema


def _told_less(
    where: str, was: Mapping[str, Any], now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], depth: int = 0
) -> Iterator[str]:
    """Answers: every property that was told is told still, in the same type."""
    old, new = _seen(was, before), _seen(now, after)
    if "type" in old and old["type"] != new.get("type"):
        yield f"{where} was {old['type']} and is now {new.get('type')}."
        return
    for key, inner in old.get("properties", {}).items():
        if key not in new.get("properties", {}):
            yield f"{where} no longer tells {key}."
        elif depth < 8:
            yield from _told_less(f"{where}.{key}", inner, new["properties"][key], before, after, depth + 1)
    if "items" in old and depth < 8:
        yield from _told_less(f"{where}[]", old["items"], new.get("items", {}), before, after, depth + 1)


def _taken_less(
    where: str, was: Mapping[str, Any], now: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any], depth: int = 0
) -> Iterator[str]:
    """Requests: what was taken is taken still, and nothing more is needed."""
    old, new = _seen(was, before), _seen(now, after)
    for key in set(new.get("required", ())) - set(old.get("required", ())):
        yield f"{where} now needs {key}."
    gone = set(map(str, _choices(old))) - set(map(str, _choices(new)))
    if gone and _choices(new):
        yield f"{where} no longer takes {', '.join(sorted(gone))}."
    if "type" in old and "type" in new and old["type"] != new["type"]:
        yield f"{where} was {old['type']} and is now {new['type']}."
    for key, inner in old.get("properties", {}).items():
        if key not in new.get("properties", {}):
            yield f"{where} no longer takes {key}."
        elif depth < 8:
            yield from _taken_less(f"{where}.{key}", inner, new["properties"][key], before, after, depth + 1)
    if "items" in old and "items" in new and depth < 8:
        yield from _taken_less(f"{where}[]", old["items"], new["items"], before, after, depth + 1)
