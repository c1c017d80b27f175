"""The submission form: its sections, one field for every key of a description, and what the text in a field means.

What a key is called and what it may be is the schema's alone (`scheduler.jobs.schema`). Here a text becomes a value of the kind that is meant;
what does not read so stays a text, for the schema to name it.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from pydantic import BaseModel

from gpufleet.core.lengths import seconds_read
from scheduler.jobs.schema import MOST_ROLES, JobDescription, RoleForm
from scheduler.jobs.shown import keys_of, part_of, shown_of
from scheduler.schedules.schema import ScheduleIn

Steps = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class Field:
    path: str
    label: str
    kind: str = "text"
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()
    placeholder: str = ""

    def at(self, role: int) -> "Field":
        return replace(self, path=f"roles[{role}].{self.path}")

    @property
    def id(self) -> str:
        return "f-" + re.sub(r"[^A-Za-z0-9]+", "-", self.path).strip("-")


class Section(NamedTuple):
    key: str
    title: str
    fields: tuple[Field, ...]
    is_open: bool = False


def _field(schema: type[BaseModel], path: str, below: str = "") -> Field:
    """The field of a key, by what the schema says of it."""
    key, inner, rest = path.partition(".")
    info = keys_of(schema)[key]
    if inner:
        return _field(part_of(info), rest, f"{below}{key}.")
    shown = shown_of(info)
    assert shown is not None, f"{below}{key} has no words"
    kind, choices = shown.kind_of(key, info), shown.choices_of(key, info)
    return Field(f"{below}{key}", shown.label, kind, shown.hint, choices, shown.placeholder_of(key, info))


def _fields(schema: type[BaseModel], below: str = "") -> tuple[Field, ...]:
    """Those of all keys of a part, in its order."""
    return tuple(_field(schema, key, below) for key, info in keys_of(schema).items() if shown_of(info))


def _section(key: str, title: str, *paths: str, is_open: bool = False) -> Section:
    return Section(key, title, tuple(_field(JobDescription, path) for path in paths), is_open)


# When a job recurs is no key of its description: a schedule submits it.
REPEAT = "repeat."
RECURS = ("cron", "zone", "overlap", "catch_up", "start_within_s", "starts_at", "ends_at")
PLACING = ("topology.required", "topology.preferred", "topology.tp_group")
ROLE = (*_fields(RoleForm), *(_field(RoleForm, path) for path in PLACING))
# On the page always, seen where a cluster is simulated or a job says something of it.
SIMULATED = "simulated"
SECTIONS = (
    _section("what", "The job", "quota", "gpus", "gpu_types", "launch.command", "limit_s", "name", "workers", is_open=True),
    _section("order", "Class, priority and run time", "class", "priority", "estimate_s", "throughput", "type_choice"),
    _section(
        "run",
        "Script, image and environment",
        *(f"launch.{key}" for key in ("shell", "image", "per", "workdir", "env", "secrets", "port", "in_place", "idle_end_s")),
    ),
    _section(
        "ready",
        "Ready probe",
        *(f"launch.ready.{key}" for key in ("http.path", "http.port", "tcp.port", "command", "period_s", "timeout_s", "failures")),
    ),
    _section("roles", "Elastic, parts of GPUs, several roles"),
    _section("place", "Where it may run", *PLACING, "sharing", "node_labels", "needs", "tolerates_suspect"),
    _section("when", "When, and after what", "not_before", "deadline", "defer", "after", "hold", "draft", "retries"),
    Section("repeat", "Repeat", tuple(_field(ScheduleIn, key, REPEAT) for key in RECURS)),
    _section(
        "give",
        "Preemption and checkpoints",
        *("preemptible", "grace_s", "preemption_delay_s", "checkpoint"),
        *(f"checkpoint.{key}" for key in ("interval_s", "save_s", "restore_s")),
    ),
    _section(
        "many",
        "Array, labels and cost centre",
        *(f"array.{key}" for key in ("size", "grid", "combine", "values")),
        *("labels", "cost_centre", "template"),
    ),
    _section(SIMULATED, "On simulated hardware", "work_s", "launch.simulated"),
)
PLAIN = {field.path: field for section in SECTIONS for field in section.fields}
ROLE_BY_KEY = {field.path: field for field in ROLE}


def field_at(path: str) -> Field | None:
    """The field of a path, if there is one."""
    found = re.fullmatch(r"roles\[(\d+)\]\.(.+)", path)
    if found:
        role = ROLE_BY_KEY.get(found[2])
        return role.at(int(found[1])) if role else None
    return PLAIN.get(path)


def field_for_fault(path: str) -> str:
    """The path of the field at which a fault is shown: its own, or the nearest around it; empty where there is none."""
    while path:
        if field_at(path) is not None:
            return path
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return ""


def steps_of(path: str) -> Steps:
    return tuple(int(step) if step.isdigit() else step for step in re.findall(r"[^.\[\]]+", path))


# From texts to a description


def description_of(values: Mapping[str, str]) -> dict[str, Any]:
    """What a form says; empty fields say nothing."""
    found: dict[str, Any] = {}
    roles: dict[int, dict[str, Any]] = {}
    for path, text in values.items():
        field = field_at(path)
        if field is None or not text.strip() or path.startswith(REPEAT):
            continue
        value = _read(field.kind, text)
        steps = steps_of(path)
        if steps[0] == "roles":
            _put(roles.setdefault(int(steps[1]), {}), steps[2:], value)
        elif path == "checkpoint":
            found["checkpoint"] = None
        elif not (steps[0] == "checkpoint" and "checkpoint" in found and found["checkpoint"] is None):
            _put(found, steps, value)
    if roles:
        found["roles"] = [roles[number] for number in sorted(roles)]
    return found


def repeat_of(values: Mapping[str, str]) -> dict[str, Any]:
    """What a form says of when a job recurs, in the words of a schedule."""
    said = {path: text for path, text in values.items() if path.startswith(REPEAT) and path in PLAIN and text.strip()}
    return {path.removeprefix(REPEAT): _read(PLAIN[path].kind, text) for path, text in said.items()}


def _put(holder: dict[str, Any], steps: Sequence[int | str], value: Any) -> None:
    for step in steps[:-1]:
        holder = holder.setdefault(str(step), {})
    holder[str(steps[-1])] = value


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _length(text: str) -> Any:
    found = seconds_read(text)
    return _number(text) if found is None else int(found) if found.is_integer() else found


def _choice(text: str) -> Any:
    return {"true": True, "false": False}.get(text, text)


def _words(text: str) -> Any:
    return [word for word in re.split(r"[\s,]+", text) if word]


def _command(text: str) -> Any:
    try:
        return shlex.split(text)
    except ValueError:
        return text  # a quotation that does not end


def _pairs(text: str) -> Any:
    found = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, value = line.partition("=")
        if not equals:
            return text
        found[key.strip()] = value
    return found


def _numbers(text: str) -> Any:
    found = _pairs(text)
    return {key: _number(value.strip()) for key, value in found.items()} if isinstance(found, dict) else found


def _sets(text: str) -> Any:
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        words = _command(line)
        if isinstance(words, str) or any("=" not in word for word in words):
            return text
        found.append({key: value for key, _, value in (word.partition("=") for word in words)})
    return found


def _grid(text: str) -> Any:
    found: dict[str, Any] = {}
    for line in filter(None, (line.strip() for line in text.splitlines())):
        key, equals, values = line.partition("=")
        words = _command(values)
        if not equals or isinstance(words, str) or key.strip() in found:
            return text
        found[key.strip()] = words
    return found


def _after(text: str) -> Any:
    found = []
    for line in filter(None, (line.strip() for line in text.splitlines())):
        job, _, condition = line.partition(" ")
        found.append({"job": job} | ({"if": condition.strip()} if condition else {}))
    return found


def _moment(text: str) -> Any:
    """As the browser's picker says it, which knows no zones: in UTC."""
    found = re.fullmatch(r"(\d{4}-\d\d-\d\dT\d\d:\d\d)(:\d\d(?:\.\d+)?)?", text, re.ASCII)
    return f"{found[1]}{found[2] or ':00'}Z" if found else text


def is_same(path: str, one: str, other: str) -> bool:
    """Whether two texts of a field say the same. A browser's picker leaves out seconds that are none."""
    field = field_at(path)
    if field is None or field.kind != "moment":
        return one.strip() == other.strip()
    first, second = (_instant(_moment(text.strip())) for text in (one, other))
    return first == second


def _instant(text: str) -> Any:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


READERS: dict[str, Callable[[str], Any]] = {
    "number": _number,
    "length": _length,
    "choice": _choice,
    "words": _words,
    "types": _words,
    "command": _command,
    "pairs": _pairs,
    "numbers": _numbers,
    "sets": _sets,
    "grid": _grid,
    "after": _after,
    "moment": _moment,
    "json": _json,
}


def _read(kind: str, text: str) -> Any:
    if kind == "code":
        return text.replace("\r\n", "\n")
    text = text.replace("\r\n", "\n").strip()
    return READERS[kind](text) if kind in READERS else text


# From a description to texts


def values_of(description: Mapping[str, Any]) -> dict[str, str]:
    """What each field shows. What has no field, or is not of its kind, is left to the YAML."""
    found: dict[str, str] = {}
    for path in PLAIN:
        if path.startswith(REPEAT):
            continue
        value = value_at(description, steps_of(path))
        if path == "checkpoint":
            found[path] = "null" if "checkpoint" in description and value is None else ""
        elif value is not None:
            found[path] = _written(PLAIN[path].kind, value)
    for number, role in enumerate(roles_of(description)):
        for field in ROLE:
            value = value_at(role, steps_of(field.path))
            if value is not None:
                found[field.at(number).path] = _written(field.kind, value)
    return found


def roles_of(description: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    roles = description.get("roles")
    return [role for role in roles if isinstance(role, Mapping)][:MOST_ROLES] if isinstance(roles, list) else []


def value_at(holder: Any, steps: Sequence[int | str]) -> Any:
    for step in steps:
        if isinstance(holder, Mapping):
            holder = holder.get(str(step))
        elif isinstance(holder, list) and isinstance(step, int) and step < len(holder):
            holder = holder[step]
        else:
            return None
    return holder


def _written(kind: str, value: Any) -> str:
    match kind, value:
        case "command", list():
            return shlex.join(map(str, value))
        case (("words" | "types"), list()):
            return " ".join(map(str, value))
        case (("pairs" | "numbers"), dict()):
            return "\n".join(f"{key}={_plain(one)}" for key, one in value.items())
        case "sets", list():
            return "\n".join(shlex.join(f"{key}={one}" for key, one in each.items()) if isinstance(each, dict) else str(each) for each in value)
        case "grid", dict() if all(isinstance(values, list) for values in value.values()):
            return "\n".join(f"{key}={shlex.join(map(_plain, values))}" for key, values in value.items())
        case "after", list():
            return "\n".join(f"{one.get('job', '')} {one.get('if', '')}".strip() if isinstance(one, dict) else str(one) for one in value)
        case "length", int() if value and not isinstance(value, bool):
            return next((f"{value // size}{unit}" for unit, size in (("d", 86_400), ("h", 3600), ("m", 60)) if value % size == 0), str(value))
        case "moment", _:
            return _picked(value)
        case "json", _:
            return json.dumps(value, ensure_ascii=False, default=str)
    return _plain(value)


def _picked(value: Any) -> str:
    """A moment as the browser's picker takes it. What is none stays as it is."""
    try:
        read = datetime.fromisoformat(str(value))
        precise = "milliseconds" if read.microsecond else "seconds"  # more is none to the picker
        return read.astimezone(UTC).replace(tzinfo=None).isoformat(timespec=precise) if read.tzinfo else _plain(value)
    except (ValueError, OverflowError):
        return _plain(value)


def value_written(path: str, value: Any) -> str:
    """A value as the field of a path shows it."""
    field = field_at(path)
    return _written(field.kind, value) if field is not None else _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str) if isinstance(value, (dict, list)) else str(value)


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """(path, was, is) of every field that says something else."""
    was, now = values_of(before), values_of(after)
    return [(path, was.get(path, ""), now.get(path, "")) for path in dict.fromkeys([*was, *now]) if was.get(path, "") != now.get(path, "")]
