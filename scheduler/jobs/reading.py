"""Reading a description so that every fault of it is told in one round, and what is good of it can still be checked further.

A value that is wrong is taken out, and the rest is read again, until nothing is left to complain about. What remains is no description to submit; it
is there so that the engine, the tree and the back-ends can say at once what they would object to as well.
"""

import copy
import difflib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.exceptions import ValidationError
from pydantic import ValidationError as SchemaError

from gpufleet.core.schema_words import said
from scheduler.jobs.schema import HTTP_PATH, VARIABLE, WAYS, WORD, JobChange, JobDescription
from scheduler.jobs.stored import READY_WAYS

Faults = dict[str, list[str]]
Step = int | str
MOST_ROUNDS = 60
# Nobody mends more at once, and finding the key that was meant costs time for each.
MOST_FAULTS = 50
LONGEST_KEY = 60
# Put where something is missing, so that the rest can be checked. What is told of them is not passed on.
STAND_INS: dict[tuple[Step, ...], Any] = {("name",): "job", ("quota",): "none", ("gpus",): 1}


@dataclass(frozen=True, slots=True)
class Read:
    """A description, or its faults by path. `rest` is what can be checked further; None where there is nothing."""

    description: JobDescription | None
    faults: Faults
    rest: JobDescription | None

    def is_new(self, path: str) -> bool:
        """Whether a fault found later at a path is one of its own, not a consequence of what was taken out."""
        return not any(_is_about(path, known) for known in self.faults)


def read_description(raw: Any) -> Read:
    try:
        description = JobDescription.model_validate(raw)
        return Read(description, {}, description)
    except SchemaError as error:
        first = error
    faults: dict[str, list[str]] = defaultdict(list)
    if not isinstance(raw, Mapping):
        return Read(None, {"description": ["It describes no job: keys with values are wanted."]}, None)
    rest: Any = copy.deepcopy(dict(raw))
    error_now: SchemaError | None = first
    for _ in range(MOST_ROUNDS):
        if error_now is None:
            break
        errors = error_now.errors(include_url=False)
        told = 0
        for fault in errors:
            if len(faults) >= MOST_FAULTS:
                break
            told += 1
            steps, message = _told(fault, _DESCRIPTION)
            path = spelt(steps) or "description"
            if not any(_is_about(path, known) for known in faults if known != path) and message not in faults[path]:
                faults[path].append(message)
        if more := len(errors) - told:
            return Read(None, dict(faults) | {"description": [and_more(more)]}, None)
        found = [_steps_of(fault) for fault in errors]
        for steps in sorted(found, key=lambda steps: [str(step) for step in steps], reverse=True):
            _take_out(rest, steps)
        if any(steps[:1] == ("array",) for steps in found) and isinstance(array := rest.get("array"), dict) and not array.keys() & {*WAYS}:
            del rest["array"]  # without what it got wrong it says nothing, which is no fault of its own
        if any(steps[:2] == ("launch", "ready") for steps in found):
            launch = rest.get("launch")
            if isinstance(launch, dict) and isinstance(ready := launch.get("ready"), dict) and not ready.keys() & {*READY_WAYS}:
                del launch["ready"]
        try:
            return Read(None, dict(faults), JobDescription.model_validate(rest))
        except SchemaError as error:
            error_now = error
    return Read(None, dict(faults), None)


def change_read(raw: Any) -> JobChange:
    """What is to be changed of a job; a Django `ValidationError` names every fault by its path."""
    try:
        return JobChange.model_validate(raw)
    except SchemaError as error:
        faults = faults_of(error, _CHANGE)
        for key in faults.keys() & set(_keys_at((), _DESCRIPTION)) - set(_keys_at((), _CHANGE)):
            faults[key] = [f"{key} stays as it was submitted; clone the job to have another one."]
        raise ValidationError(faults) from error


def faults_of(error: SchemaError, schema: Any = None) -> Faults:
    """Each fault by its path, in words for people. Of what the schema has, it names the key that was perhaps meant."""
    faults: dict[str, list[str]] = defaultdict(list)
    errors = error.errors(include_url=False)
    for fault in errors[:MOST_FAULTS]:
        steps, message = _told(fault, schema or {})
        faults[spelt(steps) or "description"].append(message)
    if len(errors) > MOST_FAULTS:
        faults["description"].append(and_more(len(errors) - MOST_FAULTS))
    return dict(faults)


def and_more(count: int) -> str:
    return f"{count:,} more {'problem is' if count == 1 else 'problems are'} not listed."


def spelt(steps: Sequence[Step]) -> str:
    """`roles[0].gpus`."""
    path = ""
    for step in steps:
        path += f"[{step}]" if isinstance(step, int) else f".{step}" if path else str(step)
    return path


def _is_about(path: str, known: str) -> bool:
    """Whether one of two paths holds the other."""
    longer, shorter = (path, known) if len(path) > len(known) else (known, path)
    return longer == shorter or (longer.startswith(shorter) and longer[len(shorter)] in ".[")


def _steps_of(fault: Any) -> tuple[Step, ...]:
    """Where a fault is, in keys of the description."""
    steps: tuple[Step, ...] = tuple(fault["loc"])
    if fault["type"] == "rule":
        return (*steps, fault["ctx"]["field"])
    if fault["type"] == "extra_forbidden":  # the key is whatever somebody wrote, also what looks like a step of pydantic's
        return (*_own(steps[:-1]), steps[-1])
    return _own(steps)


def _told(fault: Any, schema: Any) -> tuple[tuple[Step, ...], str]:
    """Where it is, and what is wrong, in words for people."""
    steps, context = _steps_of(fault), fault.get("ctx") or {}
    if fault["type"] == "rule":
        return steps, fault["msg"]
    if fault["type"] == "extra_forbidden":
        return steps, f"There is no key {_short(steps[-1])} here{_nearest(steps, schema)}."
    return steps, PATTERNS.get(context.get("pattern", "")) or said(fault)


def _short(key: Step) -> str:
    """A key as a message names it: whatever length somebody gave it."""
    text = str(key)
    return text if len(text) <= LONGEST_KEY else f"{text[:LONGEST_KEY]}…"


def _own(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Without what a union tried, which is no key of the description."""
    return tuple(step for step in steps if isinstance(step, int) or ("[" not in step and step not in ("bool", "literal")))


# What a pattern asks for.
PATTERNS: dict[str, str] = {
    WORD: "Letters, digits and . _ / - are allowed; it begins with a letter or a digit.",
    VARIABLE: "A variable's name has letters, digits and _, and begins with no digit.",
    "^/": "An absolute path is wanted; it begins with /.",
    HTTP_PATH: "A path is wanted: it begins with /, and has at most 200 characters of ASCII without spaces.",
}


def _nearest(steps: Sequence[Step], schema: Any) -> str:
    """The key that was perhaps meant."""
    keys = _keys_at(steps[:-1], schema)
    if len(str(steps[-1])) > LONGEST_KEY:
        return ""
    meant = difflib.get_close_matches(str(steps[-1]), keys, 1, 0.7)
    return f"; {meant[0]} was perhaps meant" if meant else ""


def _keys_at(steps: Sequence[Step], whole: Any) -> list[str]:
    schema = whole
    for step in steps:
        schema = _resolved(schema, whole)
        schema = schema.get("items", {}) if isinstance(step, int) else schema.get("properties", {}).get(step, {})
    return list(_resolved(schema, whole).get("properties", {}))


_DESCRIPTION, _CHANGE = JobDescription.model_json_schema(), JobChange.model_json_schema()


def _resolved(schema: Any, whole: Any) -> Any:
    """Behind references, and behind "or null"."""
    for choice in schema.get("anyOf", ()):
        if choice.get("type") != "null":
            schema = choice
            break
    if "$ref" in schema:
        return _resolved(whole["$defs"][schema["$ref"].rpartition("/")[2]], whole)
    return schema


def _take_out(rest: Any, steps: Sequence[Step]) -> None:
    """Remove what a fault is about: the key, or the whole list where an element of it is wrong."""
    if tuple(steps) in STAND_INS:
        if steps[0] == "gpus":
            if "roles" in rest and rest.get("gpus") == STAND_INS["gpus",]:
                rest.pop("gpus")  # it is told that both are stated, so the roles are looked at alone
                rest.pop("workers", None)
                return
            if "roles" not in rest:
                rest.pop("workers", None)
        rest[steps[0]] = STAND_INS[tuple(steps)]
        return
    holder, above = rest, []
    for step in steps[:-1]:
        above.append((holder, step))
        try:
            holder = holder[step]
        except (KeyError, IndexError, TypeError):
            break  # taken out already
    last = steps[-1] if steps else ""
    if isinstance(holder, dict) and last in holder:
        del holder[last]
        return
    # An element of a list, or a key that something needs: the nearest thing with a name goes.
    while above:
        holder, step = above.pop()
        if isinstance(holder, dict) and step in holder:
            del holder[step]
            break
    if "roles" not in rest and "gpus" not in rest:
        rest["gpus"] = STAND_INS["gpus",]
        rest.pop("workers", None)
