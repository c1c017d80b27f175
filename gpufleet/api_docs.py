"""The OpenAPI document, arranged for reading: operations by subject, with what they take and answer, an example of each, and a line to try them."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote, urlencode

from django.utils.html import format_html_join
from django.utils.safestring import SafeString

from gpufleet.api_notes import ANY

_CODE = re.compile(r"`([^`]+)`")
SHORT = 100  # an example that is no longer stands in one line


def described(document: Mapping[str, Any], *, base: str = "") -> dict[str, Any]:
    """What the documentation page shows. `base` is where this console is called."""
    subjects: dict[str, list[dict[str, Any]]] = {}
    schemas: dict[str, Any] = document.get("components", {}).get("schemas", {})
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            subject = operation.get("tags", ["Other"])[0]
            subjects.setdefault(subject, []).append(_operation(path, method, operation, schemas, base))
    problem = _written(schemas.get("Problem", {}).get("example", {}))
    return {"info": document["info"], "subjects": sorted(subjects.items()), "problem": problem}


def noted(text: str) -> SafeString:
    """Prose in which `words` of the API stand between backticks."""
    return format_html_join("", "{}", ((_coded(part, number % 2 == 1),) for number, part in enumerate(_CODE.split(text))))


def _coded(part: str, is_code: bool) -> SafeString | str:
    return format_html_join("", "<code>{}</code>", [(part,)]) if is_code else part


def _operation(path: str, method: str, operation: Mapping[str, Any], schemas: Mapping[str, Any], base: str) -> dict[str, Any]:
    content: Mapping[str, Any] = next(iter(operation.get("requestBody", {}).get("content", {}).values()), {})
    bodies = list(_examples(content))
    parameters = [_parameter(row) for row in operation.get("parameters", [])]
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "paragraphs": [noted(part) for part in operation.get("description", "").split("\n\n") if part],
        "scopes": _scopes(operation),
        "parameters": parameters,
        "body": list(_fields(content.get("schema", {}), schemas)),
        "body_note": _noted(content.get("schema", {}), schemas),
        "bodies": bodies,
        "curl": _curl(base + path, method.upper(), operation, bodies[0]["value"] if bodies else None),
        "answers": [_answer(status, answer, schemas) for status, answer in operation["responses"].items() if str(status).startswith("2")],
        "refusals": [
            {"status": status, "meaning": answer.get("description", "")}
            for status, answer in sorted(operation["responses"].items(), key=lambda row: str(row[0]))
            if not str(status).startswith("2")
        ],
    }


def _scopes(operation: Mapping[str, Any]) -> str:
    scopes = operation.get("x-token-scopes", ())
    if not scopes:
        return "No service token"
    return "A token of any scope" if set(scopes) == set(ANY) else f"A token with the scope {' or '.join(scopes)}"


def _parameter(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "path": row["name"],
        "place": row["in"],
        "required": row.get("required", False),
        "kind": _kind(row.get("schema", {})),
        "note": noted(row.get("description", "")),
    }


def _answer(status: Any, answer: Mapping[str, Any], schemas: Mapping[str, Any]) -> dict[str, Any]:
    kinds: Mapping[str, Any] = answer.get("content", {})
    kind = next(iter(kinds), "")
    content: Mapping[str, Any] = kinds.get(kind, {})
    schema = content.get("schema", {})
    return {
        "status": status,
        "kind": kind,
        "many": schema.get("type") == "array",
        "note": _noted(schema, schemas),
        "fields": list(_fields(schema, schemas)),
        "examples": list(_examples(content)),
    }


def _examples(content: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    named = content.get("examples") or ({"": {"value": content["example"]}} if "example" in content else {})
    for one in named.values():
        value = one["value"]
        yield {"summary": one.get("summary", ""), "value": value, "text": value if isinstance(value, str) else _written(value)}


def _written(value: Any) -> str:
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) <= SHORT else json.dumps(value, ensure_ascii=False, indent=2)


def _curl(address: str, method: str, operation: Mapping[str, Any], body: Any) -> str:
    """A line for a shell. What it sends is quoted, so that the example's own quotes stay text."""
    query = {}
    for row in operation.get("parameters", ()):
        if row["in"] == "path":
            address = address.replace(f"{{{row['name']}}}", quote(str(row.get("example", row["name"])), safe=":/@"))
        elif row["in"] == "query" and row.get("required"):
            query[row["name"]] = str(row.get("example", "loss"))
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    words.append(shlex.quote(address + (f"?{urlencode(query)}" if query else "")))
    lines = [" ".join(words), '-H "Authorization: Bearer $TOKEN"']
    if body is not None:
        lines += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}"]
    return " \\\n  ".join(lines)


def _noted(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> SafeString:
    return noted(_resolved(schema, schemas).get("description", ""))


def _resolved(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    reference = schema.get("$ref")
    return schemas.get(reference.rsplit("/", 1)[-1], {}) if reference else schema


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any], prefix: str = "", within: tuple[str, ...] = ()) -> Iterator[dict[str, Any]]:
    """Each field with its whole path (`shares[].gpu_type`). A schema that contains itself is shown once."""
    title = schema.get("$ref", "")
    if title and title in within:
        return
    within = (*within, title) if title else within
    schema = _resolved(schema, schemas)
    if schema.get("type") == "array":
        yield from _fields(schema.get("items", {}), schemas, f"{prefix}[]" if prefix else "", within)
        return
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield {"path": path, "kind": _kind(field), "required": name in schema.get("required", []), "note": noted(field.get("description", ""))}
        if len(within) < 6:
            for option in [field, *field.get("anyOf", [])]:
                inner = option.get("additionalProperties")
                if isinstance(inner, Mapping) and "$ref" in inner:
                    yield from _fields(inner, schemas, f"{path}.…", within)
                elif "$ref" in option or option.get("type") == "array" or "properties" in option:
                    yield from _fields(option, schemas, path, within)


def _kind(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        return "object"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(_kind(option) for option in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(str(value) or "(empty)" for value in schema["enum"])
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any")) + _bounds(schema)


def _bounds(schema: Mapping[str, Any]) -> str:
    least, most = schema.get("minimum"), schema.get("maximum")
    if least is not None and most is not None:
        return f", {least:,} to {most:,}"
    if least is not None:
        return f", {least:,} or more"
    if most is not None:
        return f", {most:,} or less"
    return f", at most {schema['maxLength']:,} characters" if "maxLength" in schema else ""
