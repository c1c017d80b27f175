"""The OpenAPI document, arranged for reading: operations by subject, their parameters, bodies and answers as flat tables."""

from collections.abc import Iterator
from typing import Any


def described(document: dict[str, Any]) -> dict[str, Any]:
    """What the documentation page shows."""
    subjects: dict[str, list[dict[str, Any]]] = {}
    schemas: dict[str, Any] = document.get("components", {}).get("schemas", {})
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            subject = operation.get("tags", ["Other"])[0]
            subjects.setdefault(subject, []).append(_operation(path, method, operation, schemas))
    return {"info": document["info"], "subjects": sorted(subjects.items())}


def _operation(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    content = operation.get("requestBody", {}).get("content", {})
    body: dict[str, Any] | None = next((kind.get("schema") for kind in content.values()), None)
    answers = [
        {"status": status, "fields": list(_fields(_answer_schema(answer), schemas)), "many": _answer_schema(answer).get("type") == "array"}
        for status, answer in operation.get("responses", {}).items()
    ]
    return {
        "id": operation["operationId"],
        "method": method.upper(),
        "path": path,
        "summary": operation.get("summary", ""),
        "description": operation.get("description", ""),
        "parameters": [
            {
                "name": row["name"],
                "place": row["in"],
                "required": row.get("required", False),
                "kind": _kind(row.get("schema", {})),
                "note": row.get("schema", {}).get("description", ""),
            }
            for row in operation.get("parameters", [])
        ],
        "body": list(_fields(body, schemas)) if body else [],
        "answers": answers,
    }


def _answer_schema(answer: dict[str, Any]) -> dict[str, Any]:
    content = answer.get("content", {})
    schema: dict[str, Any] = content.get("application/json", {}).get("schema", {})
    return schema


def _resolved(schema: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    reference = schema.get("$ref")
    return schemas.get(reference.rsplit("/", 1)[-1], {}) if reference else schema


def _fields(schema: dict[str, Any], schemas: dict[str, Any], prefix: str = "", depth: int = 0) -> Iterator[dict[str, Any]]:
    """Each field with its whole path (`shares[].gpu_type`), as far as five levels down: schemas may contain themselves."""
    schema = _resolved(schema, schemas)
    if schema.get("type") == "array":
        yield from _fields(schema.get("items", {}), schemas, prefix + "[]" if prefix else "", depth)
        return
    for name, field in schema.get("properties", {}).items():
        path = f"{prefix}.{name}" if prefix else name
        yield {"path": path, "kind": _kind(field), "required": name in schema.get("required", []), "note": field.get("description", "")}
        if depth < 5:
            for option in [field, *field.get("anyOf", [])]:
                if "$ref" in option or option.get("type") == "array":
                    yield from _fields(option, schemas, path, depth + 1)


def _kind(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        return str(schema["$ref"].rsplit("/", 1)[-1])
    if "anyOf" in schema:
        return " or ".join(_kind(option) for option in schema["anyOf"])
    if "enum" in schema:
        return " | ".join(str(value) for value in schema["enum"])
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type", "any"))
