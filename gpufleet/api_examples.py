"""An example for each body and each answer of the API's description, put together from one sheet of values (`api_examples.yaml`).

What an operation states itself stands. A field of an answer is never left out: `missing` names those that nobody gave a value.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

SHEET = Path(__file__).with_suffix(".yaml")
NOTHING = object()


@cache
def sheet() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(SHEET.read_text())
    return read


def with_examples(document: dict[str, Any], maker: "Maker | None" = None) -> dict[str, Any]:
    """The same description with an example wherever JSON is sent or answered."""
    maker = maker or Maker(document["components"]["schemas"])
    own = sheet()["operations"]
    for operation, key, content in parts(document):
        if content.keys() & {"example", "examples"}:
            continue
        where = f"{operation['operationId']} {key}"
        said = own.get(operation["operationId"], {}).get(key, NOTHING)
        content["example"] = maker.value(content.get("schema") or {}, where, body=key == "body") if said is NOTHING else said
    return document


def parts(document: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str, dict[str, Any]]]:
    """Every JSON body and 2xx answer: its operation, `body` or the status, and the part of the description that has its schema."""
    for methods in document["paths"].values():
        for operation in methods.values():
            if content := operation.get("requestBody", {}).get("content", {}).get("application/json"):
                yield operation, "body", content
            for status, answer in operation["responses"].items():
                if str(status).startswith("2") and (content := answer.get("content", {}).get("application/json")) is not None:
                    yield operation, str(status), content


@dataclass
class Maker:
    """Puts examples together. `missing` has a path for each field without a value."""

    schemas: Mapping[str, Any]
    missing: list[str] = field(default_factory=list)

    def value(self, schema: Mapping[str, Any], where: str, *, body: bool, name: str = "") -> Any:
        """An example of the schema, or NOTHING where none can be made."""
        if examples := schema.get("examples"):
            return examples[0]
        if len(schema.get("allOf", ())) == 1:
            return self.value(schema["allOf"][0], where, body=body, name=name)
        if "$ref" in schema:
            title = schema["$ref"].rpartition("/")[2]
            named = self.schemas[title]
            return named["examples"][0] if "examples" in named else self._object(named, title, title, body=body)
        if choices := [one for one in schema.get("anyOf", ()) if one.get("type") != "null"]:
            if not any("$ref" in one or one.get("type") in ("array", "object") for one in choices) and name in sheet()["words"]:
                return sheet()["words"][name]
            return self.value(choices[0], where, body=body, name=name)
        if schema.get("type") == "array" and name not in sheet()["words"]:
            one = self.value(schema.get("items", {}), f"{where}[]", body=body)
            return NOTHING if one is NOTHING else [one]
        if schema.get("type") == "object" and "properties" in schema:
            return self._object(schema, schema.get("title", ""), where, body=body)
        return self._plain(schema, where, name)

    def _plain(self, schema: Mapping[str, Any], where: str, name: str) -> Any:
        word = sheet()["words"].get(name, NOTHING)
        if word is not NOTHING and word in schema.get("enum", (word,)):
            return word
        for key in ("default", "const"):
            if key in schema:
                return schema[key]
        if "enum" in schema:
            return schema["enum"][0]
        self.missing.append(where)
        return NOTHING

    def _object(self, schema: Mapping[str, Any], title: str, where: str, *, body: bool) -> Any:
        said: Mapping[str, Any] = sheet()["schemas"].get(title, {})
        made = {}
        for name, inner in schema.get("properties", {}).items():
            if name in said:
                made[name] = said[name]
            elif not body or name in schema.get("required", ()):
                made[name] = self.value(inner, f"{where}.{name}", body=body, name=name)
        return {name: value for name, value in made.items() if value is not NOTHING}
