"""The page that changes a job: the fields of the submission form that may still be changed, what was typed over, and where each fault stands.

What a value may be is `scheduler.jobs.schema`'s alone; here texts become what `JobChange` reads, and its paths become fields again.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.core.times import written
from scheduler.jobs.fields import PLAIN, ROLE_BY_KEY, Field, description_of, is_same, steps_of, value_at, values_of
from scheduler.jobs.reading import Faults
from scheduler.jobs.stored import COLUMNS, least_of, name_of, roles_of
from scheduler.models import ENDED, HOLDING, Job
from scheduler.presenters.submitting import Row

# What no row has: a form that does not say what it was read at changes nothing.
NO_REVISION = -1
REASON = "reason"
# Before the path of a field: the text that it began with.
SEEN = "seen."
ALWAYS = ("name", "priority", "estimate_s", "limit_s")
UNTIL_IT_STARTS = ("not_before", "deadline", "defer")
LAST = ("retries", "labels", "cost_centre")
# What an empty field says where null is no value.
EMPTY: dict[str, Any] = {"name": "", "labels": {}, "cost_centre": ""}
LONGEST_TOLD = 60


@dataclass(frozen=True, slots=True)
class Typed:
    """The texts that a form sent, and those that it began with."""

    now: Mapping[str, str]
    seen: Mapping[str, str]

    @classmethod
    def of(cls, sent: Iterable[tuple[str, Any]]) -> "Typed":
        texts = {name: str(text).replace("\r\n", "\n") for name, text in sent}
        seen = {name.removeprefix(SEEN): text for name, text in texts.items() if name.startswith(SEEN)}
        return cls({name: text for name, text in texts.items() if not name.startswith(SEEN)}, seen)

    def seen_at(self, path: str, otherwise: Mapping[str, str]) -> str:
        return self.seen.get(path, otherwise.get(path, ""))

    def touched(self, path: str, otherwise: Mapping[str, str]) -> bool:
        return path in self.now and not is_same(path, self.now[path], self.seen_at(path, otherwise))

    def over(self, newest: Mapping[str, str]) -> "Typed":
        """What was typed over, laid over the newest texts."""
        kept = {path: text for path, text in self.now.items() if path == REASON or self.touched(path, newest)}
        return Typed(kept, {})


def revision_typed(text: str) -> int:
    """The revision at which a form was read."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else NO_REVISION


def texts_of(job: Job) -> dict[str, str]:
    """What each field says of the job as it is."""
    roles = [{"name": name_of(role), **_range_of(role)} for role in roles_of(job.spec)]
    described = {key: getattr(job, column) for key, column in COLUMNS.items()}
    return values_of(described | {key: _moment(described[key]) for key in UNTIL_IT_STARTS} | {"roles": roles})


def _moment(value: Any) -> str | None:
    return written(value).replace(".000Z", "Z") if value is not None else None


def _range_of(role: Mapping[str, Any]) -> dict[str, Any]:
    least, most = least_of(role), role.get("max")
    return {"min": least} | ({"max": most} if most is not None and most != least else {})


def fields_of(job: Job) -> list[Field]:
    """What may be changed as the job stands; of what has ended nothing. Labels that a line can't hold are left to the API."""
    if job.state in ENDED:
        return []
    plain = [*ALWAYS, *(() if job.state in HOLDING else UNTIL_IT_STARTS), *LAST]
    if job.labels and description_of({"labels": texts_of(job)["labels"]}).get("labels") != job.labels:
        plain.remove("labels")
    roles = roles_of(job.spec)
    many = len(roles) > 1
    found = [PLAIN[path] for path in plain]
    for number, role in enumerate(roles):
        for key in ("min", "max"):
            field = ROLE_BY_KEY[key].at(number)
            found.append(replace(field, label=f"{name_of(role).capitalize()}: {field.label.lower()}") if many else field)
    return found


def asked_of(job: Job, typed: Typed) -> dict[str, Any]:
    """The change as `JobChange` reads it: what was typed over, and nothing else. An empty field takes a limit or a time away."""
    before = texts_of(job)
    texts = {path: typed.now.get(path, before.get(path, "")) for path in (*before, *typed.now)}
    said = description_of(texts)
    asked: dict[str, Any] = {path: said.get(path, EMPTY.get(path)) for path in (*ALWAYS, *UNTIL_IT_STARTS, *LAST) if typed.touched(path, before)}
    roles = roles_of(job.spec)
    for number, role in enumerate(roles):
        paths = {key: ROLE_BY_KEY[key].at(number).path for key in ("min", "max")}
        if any(typed.touched(path, before) for path in paths.values()):
            # Read by their own paths: a role of which all fields are empty has no place in the list.
            alone = {key: description_of({path: texts.get(path, "")}) for key, path in paths.items()}
            asked.setdefault("workers", {})[name_of(role)] = {key: value_at(one, ("roles", 0, key)) for key, one in alone.items()}
    return asked | {REASON: typed.now.get(REASON, "")}


def faults_at_fields(job: Job, faults: Mapping[str, list[str]], typed: Typed) -> tuple[Faults, list[str]]:
    """Each fault at the field that it is about; the rest with the key that it is about."""
    shown = {field.path for field in fields_of(job)} | {REASON}
    at_fields: Faults = {}
    others: list[str] = []
    for path, told in faults.items():
        field = _field_of(job, path, typed)
        if field in shown:
            inner = path.removeprefix(field).lstrip(".") if path.startswith("labels") else ""
            at_fields.setdefault(field, []).extend(f"{inner}: {message}" if inner else message for message in told)
        else:
            others += told if path in ("all", "description") else [f"{path}: {message}" for message in told]
    return at_fields, others


def faults_worded(faults: Mapping[str, list[str]]) -> list[str]:
    """Each fault behind the label of its field, for where no field stands."""
    labels = {path: PLAIN[path].label if path in PLAIN else path.removeprefix("workers.").capitalize() for path in faults}
    return [message if path in ("all", "description") else f"{labels[path]}: {message}" for path, told in faults.items() for message in told]


def _field_of(job: Job, path: str, typed: Typed) -> str:
    head = steps_of(path)[0] if path else ""
    if head != "workers":
        return str(head)
    before = texts_of(job)
    names = {name_of(role): number for number, role in enumerate(roles_of(job.spec))}
    rest = path.removeprefix("workers").removeprefix(".")
    if not rest:  # what the engine says of all of them stands at the first that was changed
        changed = (field.path for field in fields_of(job) if field.path.startswith("roles[") and typed.touched(field.path, before))
        return next(changed, "")
    name, _, key = rest.rpartition(".") if rest not in names else (rest, "", "min")
    return ROLE_BY_KEY[key].at(names[name]).path if name in names and key in ("min", "max") else ""


def change_rows(job: Job, typed: Typed, faults: Mapping[str, list[str]]) -> list[Row]:
    before = texts_of(job)
    rows = []
    for field in fields_of(job):
        was, value = before.get(field.path, ""), typed.now.get(field.path, before.get(field.path, ""))
        rows.append(Row(field, value, tuple(faults.get(field.path, ())), None if is_same(field.path, value, was) else was, False))
    return rows


def gone_words(job: Job, typed: Typed) -> list[str]:
    """What was typed over and can't be changed any more."""
    offered, before = {field.path for field in fields_of(job)}, texts_of(job)
    lost = [PLAIN[path].label for path in (*ALWAYS, *UNTIL_IT_STARTS, *LAST) if path not in offered and typed.touched(path, before)]
    return [f"{label} can't be changed any more." for label in lost]


def changed_words(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """`priority 50 → 70, time limit none → 2h`. Long values are named only."""
    told = []
    for path in dict.fromkeys([*PLAIN, *before, *after]):
        was, becomes = before.get(path, ""), after.get(path, "")
        if is_same(path, was, becomes):
            continue
        field = PLAIN.get(path) or ROLE_BY_KEY[path.rpartition(".")[2]]
        short = max(len(was), len(becomes)) <= LONGEST_TOLD and "\n" not in was + becomes
        told.append(f"{field.label.lower()} {was or 'none'} → {becomes or 'none'}" if short else field.label.lower())
    return ", ".join(told) or "nothing that differs"
