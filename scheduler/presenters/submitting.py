"""The submission page: fields with their values and faults, the same job as YAML and as command lines, and what differs from where it began."""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from gpufleet.core.schema_words import WORDS
from gpufleet.core.templatetags.shell import duration, money, plural
from scheduler.jobs.fields import REPEAT, ROLE, SECTIONS, SIMULATED, Field, differences, field_at, field_for_fault, roles_of, values_of
from scheduler.jobs.reading import Faults
from scheduler.jobs.template_rules import Template
from scheduler.jobs.yaml_text import Document
from scheduler.models import Schedule
from scheduler.schedules.pattern import Pattern, pattern_of
from scheduler.selectors.schedules import times_ahead
from scheduler.services.forecasts.presets import PresetFit

DUE_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Row:
    """A field as the page shows it. `was` is what it said where the job began, if that differs; `locked` by its template."""

    field: Field
    value: str
    faults: tuple[str, ...]
    was: str | None
    locked: bool
    bound: str = ""  # what its template lets it be

    @property
    def when(self) -> Pattern:
        return pattern_of(self.value)

    @property
    def described_by(self) -> str:
        return " ".join([f"{self.field.id}-hint"] * bool(self.field.hint) + [f"{self.field.id}-bound", f"{self.field.id}-fault"])


@dataclass(frozen=True, slots=True)
class Group:
    key: str
    title: str
    rows: tuple[Row, ...]
    roles: tuple[tuple[Row, ...], ...]
    is_open: bool
    is_hidden: bool = False  # nothing here needs it; the page shows it once something in it is set or wrong


# What a form reads from a text that cannot be read is the text itself, and the schema says only that it is of another type.
OF_A_TYPE = frozenset(WORDS[kind] for kind in ("int_type", "float_type", "list_type", "dict_type"))
NOTATIONS = {
    "length": "Use a duration, such as 90m, 12h or 1d.",
    "command": "A quotation mark is not closed.",
    "pairs": "Use one key=value a line.",
    "numbers": "Use one key=number a line.",
    "grid": "Use one variable a line with its values, such as LR=0.1 0.01.",
    "sets": "Use one set of variables a line, such as LR=0.1 SEED=7.",
    "json": "This is not valid JSON.",
}
LINES = ("after", "sets")


def form_groups(
    description: Mapping[str, Any],
    faults: Faults,
    began: Mapping[str, Any] | None,
    template: Template | None,
    *,
    values: Mapping[str, str] | None = None,
    repeat: Mapping[str, str] | None = None,
    simulates: bool = True,
) -> list[Group]:
    """`values` are the texts as they were typed, where a form was sent; `repeat` those that say when it recurs. `simulates`: a cluster does."""
    said = {**(values if values is not None else values_of(description)), **(repeat or {})}
    was = {path: before for path, before, _ in differences(began, description)} if began is not None else {}
    at_fields = faults_by_field(faults, typed=values is not None)
    locked, bounds = (template.locked, bounds_said(template)) if template else ((), {})

    def row(field: Field) -> Row:
        return Row(
            field,
            said.get(field.path, ""),
            tuple(at_fields.get(field.path, ())),
            was.get(field.path),
            field.path in locked,
            bounds.get(field.path, ""),
        )

    groups = []
    for section in SECTIONS:
        rows = tuple(row(field) for field in section.fields)
        roles: tuple[tuple[Row, ...], ...] = ()
        if section.key == "roles":
            count = max(
                1, len(roles_of(description)), 1 + max((int(path[6 : path.index("]")]) for path in said if path.startswith("roles[")), default=0)
            )
            roles = tuple(tuple(row(field.at(number)) for field in ROLE) for number in range(count))
        used = [one for one in (*rows, *(one for role in roles for one in role)) if one.value or one.faults or one.was is not None]
        is_hidden = section.key == SIMULATED and not simulates and not used
        groups.append(Group(section.key, section.title, rows, roles, section.is_open or bool(used), is_hidden))
    return groups


def due_told(schedule: Schedule, now: datetime) -> dict[str, Any]:
    """When it would be due next, as the clock of its zone shows it and in UTC."""
    zone, ahead = ZoneInfo(schedule.zone), times_ahead(schedule, now)[:DUE_SHOWN]
    shown = [{"at": due, "local": f"{due.astimezone(zone):%a %d %b %Y, %H:%M}"} for due in ahead]
    return {"recurs": True, "never": not ahead, "zone": schedule.zone, "cron": schedule.cron, "when": schedule.when, "due": shown}


def bounds_said(template: Template | None) -> dict[str, str]:
    """What a template lets each field be, told before somebody types."""
    return {path: f"{said}, by its template." for path, said in template.bounds.items()} if template else {}


def faults_by_field(faults: Faults, *, typed: bool = False) -> Faults:
    """The faults of a description at the fields of the form. `typed` into these fields, they are told in the notation of each field."""
    found: Faults = {}
    for path, messages in faults.items():
        name = field_for_fault(path)
        field = field_at(name)
        if field:
            inner = _inner(field.kind, path[len(name) :].lstrip("."), typed)
            found.setdefault(name, []).extend(f"{inner}{_in_notation(field.kind, message) if typed else message}" for message in messages)
    return found


def _inner(kind: str, rest: str, typed: bool) -> str:
    """Which part of a field a fault is about: its line, where each line of the field is one."""
    if typed and kind in LINES and (place := re.match(r"\[(\d+)\]", rest)):
        return f"Line {int(place[1]) + 1}: "
    return f"{rest}: " if rest else ""


def _in_notation(kind: str, message: str) -> str:
    return NOTATIONS.get(kind, message) if message in OF_A_TYPE else message


def other_faults(faults: Faults, document: Document | None) -> list[str]:
    """Those that have no field, with their line in the YAML."""
    found = []
    for path, messages in faults.items():
        if field_for_fault(path):
            continue
        line = document.line(path) if document is not None else None
        named = "" if path in ("description", "yaml") else f"{path}: "
        found += [f"{f'Line {line}: ' if line and named else ''}{named}{message}" for message in messages]
    return found


def repeat_faults(faults: Faults) -> Faults:
    """Faults of a schedule by the fields of the form; those of its job stand at the job's own fields."""
    found: Faults = {}
    for path, messages in faults.items():
        head, _, inner = path.partition(".")
        field = inner or head if head in ("description", "name") else f"{REPEAT}{path}"
        found.setdefault(field, []).extend(message for message in messages if message not in found.get(field, ()))
    return found


@dataclass(frozen=True, slots=True)
class Preset:
    """A template as a card: its name and size; `now` says when it starts and what an hour costs, once that was found."""

    template: Template
    size: str
    now: str = ""


def presets_of(templates: Sequence[Template]) -> list[Preset]:
    return [Preset(template, _size(template.body)) for template in templates]


def _size(body: Mapping[str, Any]) -> str:
    """`8 GPUs`, `32 to 64 GPUs`, `1g.10gb slice`, `10 × 1 GPU`; empty where the template leaves it open."""
    roles = roles_of(body) or ([{"gpus": body["gpus"], "min": body.get("workers", 1)}] if body.get("gpus") else [])
    whole = [role for role in roles if role.get("gpus")]
    least = sum(role["gpus"] * role.get("min", 1) for role in whole)
    most = sum(role["gpus"] * max(role.get("max") or 0, role.get("min", 1)) for role in whole)
    size = plural(least, "GPU") if least == most else f"{least:,} to {plural(most, 'GPU')}"
    if not whole:
        part = next((role for role in roles if role.get("mig") or role.get("gpu_share") or role.get("gpu_memory_gb")), {})
        size = f"{part['mig']} slice" if part.get("mig") else "Part of a GPU" if part else ""
    count = (body.get("array") or {}).get("size")
    return f"{count} × {size}" if count and size else size


STARTS = {"now": "starts now", "soon": "starts soon", "later": "starts soon", "never": "does not fit here", "held": "held back"}


def preset_said(fit: PresetFit) -> str:
    """`$2.10/h, starts now`. A start that was foreseen and whose moment has passed since is soon."""
    ahead = "" if fit.starts_in_ms is None else duration(max(60, fit.starts_in_ms // 60_000 * 60))
    starts = STARTS.get(fit.verdict, "no start predicted")
    starts = f"starts in about {ahead}" if ahead and fit.verdict in ("soon", "later") else starts
    return starts.capitalize() if fit.hour_micros is None else f"{money(fit.hour_micros)}/h, {starts}"


FLAGS = {"cron": "cron", "zone": "zone", "overlap": "overlap", "catch_up": "catch-up", "start_within_s": "start-within"}
FLAGS |= {"starts_at": "from", "ends_at": "until"}


def command_line(yaml: str, repeat: Mapping[str, Any]) -> str:
    """The same by `gpufleet submit`, or `gpufleet schedule add`, which read it from standard input."""
    end = "JOB"
    while end in yaml.splitlines():
        end += "_"
    flags = "".join(f" --{flag}={shlex.quote(str(repeat[key]))}" for key, flag in FLAGS.items() if key in repeat)
    return f"gpufleet {f'schedule add -{flags}' if repeat else 'submit -'} <<'{end}'\n{yaml}{end}"


def curl_line(description: Mapping[str, Any], repeat: Mapping[str, Any], origin: str) -> str:
    said = {"name": description.get("name"), **repeat, "description": description} if repeat else description
    body = shlex.quote(json.dumps(said, ensure_ascii=False, default=str))
    address = f"{origin}/api/v1/{'schedules' if repeat else 'jobs'}"
    return f'curl -X POST {address} -H "Authorization: Bearer $TOKEN" -H "Content-Type: application/json" -d {body}'
