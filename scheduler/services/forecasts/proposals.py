"""Which changes of a description would start it sooner: each is tried, and only what does start it sooner is proposed."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from quotas.permissions import Access
from scheduler.engine.trial import Trial
from scheduler.jobs.schema import JobDescription
from scheduler.services.jobs.submission import Checked, submissions_judge

MOST_CHANGES = 3
MOST_DATED = 4
MOST_BETWEEN = 4  # numbers of workers that are tried between one that starts it sooner and the next larger one that does not
FOREVER_MS = 10 * 366 * 86_400_000

# What becomes of a job with a change at a path, and of which moment that is; None: the fleet is being read. Dates take longest.
TriedAs = Callable[[str, Checked, bool], tuple[Trial, datetime] | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A key of the description with another value, and what it would bring."""

    path: str
    to: Any
    at: datetime
    now: bool


def moment_of(found: Trial, as_of: datetime, now: datetime) -> datetime | None:
    if found.at is None or found.at > FOREVER_MS:
        return None
    return max(now, as_of + timedelta(milliseconds=found.at)) if found.at else now


def changes_found(access: Access, checked: Checked, raw: Mapping[str, Any], found: Trial, tried_as: TriedAs, now: datetime) -> tuple[Change, ...]:
    """The gentlest changes that start it at once; where there are fewer than three, those that start it sooner than `found`, which is as it is."""
    known: dict[str, Change] = {}
    refused: dict[str, Any] = {}  # the value of each path that was tried last, and brings nothing
    later: list[tuple[str, Any, Checked]] = []
    candidates = list(_candidates(checked.description))
    alone = {key: value for key, value in raw.items() if key != "array"}
    judged = submissions_judge(access=access, descriptions=[changed(alone, path, value) for path, value in candidates], now=now)
    for (path, value), other in zip(candidates, judged, strict=True):
        if len(known) >= MOST_CHANGES:
            break
        if path in known or not isinstance(other, Checked):
            continue
        answer = tried_as(path, other, False)
        if answer is None:
            break
        tried, as_of = answer
        if tried.at is not None and (better := _better(path, value, tried, found, as_of, now)) is not None:
            known[path] = _largest(access, alone, checked.description, better, refused.get(path), found, tried_as, now)
            continue
        refused[path] = value
        if tried.at is None and not tried.never and not any(one == path for one, _, _ in later):
            later.append((path, value, other))
    for path, value, other in later[:MOST_DATED]:
        if len(known) >= MOST_CHANGES or path in known:
            continue
        answer = tried_as(path, other, True)
        if answer is None:
            break
        tried, as_of = answer
        at_then = moment_of(tried, as_of, now)
        if at_then is not None and _is_sooner(tried, found):
            known[path] = Change(path, value, at_then, False)
    return tuple(sorted(known.values(), key=lambda change: (not change.now, change.at, change.path)))


def _better(path: str, value: Any, tried: Trial, found: Trial, as_of: datetime, now: datetime) -> Change | None:
    """The change, if it starts the job at once or sooner."""
    at = moment_of(tried, as_of, now) or now
    return Change(path, value, at, at <= now) if at <= now or _is_sooner(tried, found) else None


def _largest(
    access: Access,
    raw: Mapping[str, Any],
    said: JobDescription,
    better: Change,
    refused: int | None,
    found: Trial,
    tried_as: TriedAs,
    now: datetime,
) -> Change:
    """The same with as many workers as start it just as soon: only some numbers were tried, and it may be one between two of them."""
    counts = [] if refused is None else _between(said, better.path, better.to, refused)
    for _ in range(MOST_BETWEEN):
        if not counts:
            break
        middle = len(counts) // 2
        (judged,) = submissions_judge(access=access, descriptions=[changed(raw, better.path, counts[middle])], now=now)
        answer = tried_as(better.path, judged, False) if isinstance(judged, Checked) else None
        if answer is None:
            break
        tried, as_of = answer
        more = _better(better.path, counts[middle], tried, found, as_of, now) if tried.at is not None else None
        if more is not None and more.at <= better.at:
            better, counts = more, counts[middle + 1 :]
        else:
            counts = counts[:middle]
    return better


def _between(said: JobDescription, path: str, low: int, high: int) -> list[int]:
    """The numbers of workers between two that the job may have."""
    if path == "workers":
        return list(range(low + 1, high))
    if path != "roles[0].min" or said.roles is None:
        return []
    role = said.roles[0]
    most = role.max or role.min
    return [count for count in range(low + 1, high) if (most - count) % role.step == 0]


def _is_sooner(tried: Trial, found: Trial) -> bool:
    """A minute sooner is worth nobody's while."""
    return found.at is None or (tried.at or 0) + 60_000 < found.at * 0.9


def changed(raw: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A description with another value at a path such as `topology.required` or `roles[0].min`; None takes the key out."""
    steps: list[str | int] = []
    for word in path.split("."):
        name, _, rest = word.partition("[")
        steps.append(name)
        steps += [int(number.rstrip("]")) for number in rest.split("[") if number]
    return _changed(raw, steps, value)


def _changed(raw: Any, steps: list[str | int], value: Any) -> Any:
    first, rest = steps[0], steps[1:]
    if isinstance(first, int):
        return [_changed(item, rest, value) if place == first else item for place, item in enumerate(raw)]
    copy = dict(raw or {})
    if rest:
        copy[first] = _changed(copy.get(first) or ([] if isinstance(rest[0], int) else {}), rest, value)
    elif value is None:
        copy.pop(first, None)
    else:
        copy[first] = value
    return copy


def _candidates(said: JobDescription) -> Iterator[tuple[str, Any]]:
    """What could be asked for instead, the gentlest first. Several values of one key go from the nearest on."""
    if said.gpu_types:
        yield "gpu_types", None
    topology = said.topology
    if topology is not None and topology.required:
        yield "topology.required", None
    if said.preemptible_column != "yes":
        yield "preemptible", True
    if said.roles is None:
        workers, gpus = said.workers or 1, said.gpus or 0
        yield from (("workers", count) for count in _fewer(workers))
        if workers == 1:
            yield from (("gpus", count) for count in _halved(gpus))
    else:
        role = said.roles[0]
        if role.gpu_types:
            yield "roles[0].gpu_types", None
        if role.topology is not None and role.topology.required:
            yield "roles[0].topology.required", None
        most = role.max or role.min
        yield from (("roles[0].min", count) for count in _fewer(role.min) if (most - count) % role.step == 0)
        if role.min == 1 and role.gpus:
            yield from (("roles[0].gpus", count) for count in _halved(role.gpus))
    longest = said.limit_s or said.estimate_s
    if longest and longest >= 1200:
        yield ("limit_s", longest // 2)


def _halved(gpus: int) -> list[int]:
    """Half of them, and again, at most as often as it takes from more than any node has to what one node may have."""
    return [gpus >> times for times in range(1, 5) if gpus >> times]


def _fewer(workers: int) -> list[int]:
    """Some numbers below, the largest first."""
    return sorted({workers - 1, workers * 3 // 4, workers // 2, workers // 4, 1} & set(range(1, workers)), reverse=True)
