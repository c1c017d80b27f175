"""The fields of the submission form: one for every key of a description, with the words that stand beside it.

What a value may be is the schema's alone (`scheduler.jobs.schema`). Here a text becomes a value of the kind that is meant; what
does not read so stays a text, for the schema to name it.
"""

import json
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from gpufleet.core.lengths import seconds_read
from scheduler.models import CatchUp, Overlap

Steps = tuple[int | str, ...]
MOST_ROLES = 20


@dataclass(frozen=True, slots=True)
class Field:
    """`kind`: text, code (several lines), number, length (of time), choice, or one of the lists below."""

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


def _choices(*pairs: tuple[str, str], blank: str = "–") -> tuple[tuple[str, str], ...]:
    return (("", blank), *pairs)


YES_NO = _choices(("true", "Yes"), ("false", "No"))
PLACING = (
    Field("topology.required", "All in one", hint="A level of the fleet, such as leaf or node: it waits for that."),
    Field("topology.preferred", "Rather in one", hint="As deep as possible, but it does not wait for it."),
    Field("topology.tp_group", "GPUs of a TP group", "number", "So many in consecutive ranks share one NVLink island."),
)
ROLE = (
    Field("name", "Role", placeholder="worker"),
    Field("min", "Workers at least", "number", placeholder="1"),
    Field("max", "Workers at most", "number", "More than at least: elastic."),
    Field("step", "In steps of", "number", placeholder="1"),
    Field("gpus", "GPUs each", "number", "Whole ones, on one node."),
    Field("mig", "MIG profile", hint="Instead of whole GPUs: 1g.10gb."),
    Field("gpu_memory_gb", "GPU memory, GB", "number", "Instead: a part by its memory."),
    Field("gpu_share", "Share of a GPU", "number", "Instead: 0.25."),
    Field("devices", "So many parts", "number", "Each on another GPU of one node."),
    Field("gpu_types", "GPU types", "words", "Empty: any that suits."),
    Field("cpus", "CPUs each", "number", placeholder="0"),
    Field("host_memory_gb", "Host memory each, GB", "number", placeholder="0"),
    *PLACING,
)
# On the page always, seen where a cluster is simulated or a job says something of it.
SIMULATED = "simulated"
SECTIONS = (
    Section(
        "what",
        "The job",
        (
            Field("quota", "Team", "quota", "Type to search; the path of its quota."),
            Field("gpus", "GPUs of each worker", "number", "Whole ones, on one node."),
            Field("gpu_types", "GPU types", "types", "Empty: any that suits."),
            Field("launch.command", "Command", "command", "Arguments as in a terminal; no shell.", placeholder="python train.py"),
            Field("limit_s", "Time limit", "length", "Such as 90m, 12h or 1d. A limit lets it start in gaps."),
            Field("name", "Name"),
            Field("workers", "Workers", "number", placeholder="1"),
        ),
        True,
    ),
    Section(
        "order",
        "Class, priority and run time",
        (
            Field(
                "class",
                "Class",
                "choice",
                "Batch, unless the team has a default class.",
                choices=_choices(("batch", "Batch"), ("interactive", "Interactive"), ("inference", "Inference"), blank="Default of the team"),
            ),
            Field("priority", "Priority", "number", "In its class and queue; higher goes first.", placeholder="50"),
            Field("estimate_s", "Estimated run time", "length", "Such as 90m, 2h, 1d, or seconds; at speed 1."),
            Field("throughput", "Relative speed by type", "numbers", "One TYPE=factor a line; 1 where none is stated, 0: can't run there."),
        ),
    ),
    Section(
        "run",
        "Script, image and environment",
        (
            Field("launch.shell", "Shell script", "code", "Instead of a command."),
            Field("launch.image", "Image", hint="registry/name:tag or …@sha256:…. Empty: what its nodes have.", placeholder="registry/name:tag"),
            Field("launch.per", "A process for each", "choice", choices=_choices(("worker", "Worker"), ("gpu", "GPU"), blank="Worker")),
            Field("launch.workdir", "Working directory", placeholder="/data/…"),
            Field("launch.env", "Environment", "pairs", "One KEY=value a line."),
            Field("launch.secrets", "Secrets", "pairs", "One VARIABLE=name-of-the-secret a line; the operator keeps them."),
            Field("launch.port", "Port", "number", "That it listens on, as a notebook does.", placeholder="8888"),
            Field("launch.in_place", "Resized in place", "choice", "Its processes meet again by themselves, as torchrun's do.", choices=YES_NO),
            Field("launch.idle_end_s", "Ended when idle for", "length", "Such as 1h: no activity of its GPUs for so long."),
        ),
    ),
    Section("roles", "Elastic, parts of GPUs, several roles", (), False),
    Section(
        "place",
        "Where it may run",
        (
            *PLACING,
            Field(
                "sharing",
                "Sharing",
                "choice",
                choices=_choices(("exclusive", "Whole GPUs"), ("mig", "MIG"), ("mps", "MPS"), ("timeslice", "Time slice")),
            ),
            Field("node_labels", "Labels of its nodes", "pairs", "One key=value a line."),
            Field("needs", "Attributes of its nodes", "numbers", "At least; one key=number a line: pcie_gbps=40 (GB/s)."),
            Field("tolerates_suspect", "Also on suspect nodes", "choice", choices=YES_NO),
        ),
    ),
    Section(
        "when",
        "When, and after what",
        (
            Field("not_before", "Not before (UTC)", "moment"),
            Field("deadline", "Deadline (UTC)", "moment", "Not started by then, it has failed."),
            Field("after", "After these jobs", "after", "One a line: j-17, or j-17 ended for any end."),
            Field("hold", "Held back", "choice", choices=YES_NO),
            Field("draft", "Only a draft", "choice", choices=YES_NO),
            Field("retries", "Retries", "number", "After failures of its own.", placeholder="0"),
        ),
    ),
    Section(
        "repeat",
        "Repeat",
        (
            Field(
                "repeat.cron",
                "Due",
                "cron",
            ),
            Field("repeat.zone", "Time zone", hint="Such as Europe/Berlin; its summer time is kept.", placeholder="UTC"),
            Field("repeat.overlap", "If an earlier run has not ended", "choice", choices=_choices(*Overlap.choices, blank=Overlap.SKIP.label)),
            Field("repeat.catch_up", "Times that were missed", "choice", choices=_choices(*CatchUp.choices, blank=CatchUp.LAST.label)),
            Field("repeat.start_within_s", "Submitted at most so late", "length", "Such as 90m, or seconds. Empty: as late as it comes."),
            Field("repeat.starts_at", "From (UTC)", "moment"),
            Field("repeat.ends_at", "Until (UTC)", "moment", "Not due after."),
        ),
    ),
    Section(
        "give",
        "Giving way and saving work",
        (
            Field(
                "preemptible",
                "Preemptible",
                "choice",
                choices=_choices(("true", "Always"), ("when_borrowed", "When borrowed"), ("false", "Never"), blank="By its class"),
            ),
            Field("grace_s", "Grace", "length", "Between the signal and the end by force.", placeholder="30"),
            Field("preemption_delay_s", "Preempts nothing for", "length"),
            Field("checkpoint", "Checkpoints", "choice", choices=_choices(("null", "Can't be moved"), blank="As stated below")),
            Field("checkpoint.interval_s", "Saved every", "length"),
            Field("checkpoint.save_s", "Saving takes", "length"),
            Field("checkpoint.restore_s", "Restoring takes", "length"),
        ),
    ),
    Section(
        "many",
        "Many alike, labels and cost centre",
        (
            Field("array.size", "So many", "number"),
            Field("array.grid", "Or a sweep", "grid", "A variable a line with its values: LR=0.1 0.01 0.001."),
            Field(
                "array.combine",
                "Its values",
                "choice",
                choices=_choices(("product", "Every combination"), ("zip", "First with first, …"), blank="Every combination"),
            ),
            Field("array.values", "Or one for each set", "sets", "One set of variables a line: LR=0.1 SEED=7."),
            Field("labels", "Labels", "pairs", "One key=value a line."),
            Field("cost_centre", "Cost centre"),
            Field("template", "Template"),
        ),
    ),
    Section(
        SIMULATED,
        "On simulated hardware",
        (
            Field("work_s", "Simulated work", "length", "How long it computes there."),
            Field("launch.simulated", "Behaviour", "json", "How the job behaves there, as JSON."),
        ),
    ),
)
PLAIN = {field.path: field for section in SECTIONS for field in section.fields}
# When a job recurs is no key of its description: a schedule submits it.
REPEAT = "repeat."
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
