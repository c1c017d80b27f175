"""Jobs in words: what one does or waits for in a line, its shape, where its workers sit."""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from gpufleet.core.audit import SYSTEM
from gpufleet.core.templatetags.shell import gpus, plural, relative
from scheduler.jobs.filters import BLOCKERS
from scheduler.jobs.speeds import as_planned, seconds_at, slowest_on, speed_on
from scheduler.jobs.stored import least_of, most_of, name_of, roles_of, types_of
from scheduler.jobs.waiting import DEFERRED_FOR
from scheduler.models import ENDED, HOLDING, Attempt, Job, JobEvent, JobState, Outlook, Promise, Wait
from scheduler.presenters.explained import change_in_words
from scheduler.selectors.alignment import Alignment
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.foreseen import ForeseenStart, foreseen_start
from scheduler.selectors.jobs import NODES_SHOWN, JobRow, Sitting

CELL, GAP = 14, 4
MOST_WORDS = 8  # of a line in a list
ASKED_TO_STOP = "Asked to stop."
ON_ITS_PAGE = "Details on its page."
_CLAUSE = re.compile(r"[;:](?=\s)|\s[–(]")


@dataclass(frozen=True, slots=True)
class Line:
    """What a job does now, or what it waits for, in one sentence. `at` is a moment that belongs to it: when it is expected to go on, or went."""

    text: str
    at: datetime | None = None
    before: str = ""  # the word in front of the moment
    more: int = 0  # further reasons that the job's page tells
    short: str = ""  # the same in a few words, where there are some
    window: tuple[datetime, datetime] | None = None  # of a predicted start: the earliest and the latest

    @property
    def brief(self) -> str:
        """The sentence; where a list has no room for it what stands for it, else its first clause. It is never cut within a clause."""
        if len(self.text.split()) <= MOST_WORDS:
            return self.text
        clause, *rest = _CLAUSE.split(self.text, maxsplit=1)
        return self.short or (f"{clause}." if rest and 1 < len(clause.split()) <= MOST_WORDS else ON_ITS_PAGE)

    @property
    def form(self) -> str:
        """How the moment is written: a start that was expected earlier comes at any moment, and is late two minutes on."""
        return {"starts": "start", "since": "for"}.get(self.before, "relative")


@dataclass(frozen=True, slots=True)
class JobLine:
    """A row of the list."""

    job: Job
    line: Line
    nodes: tuple[tuple[str, str], ...]
    more_nodes: int
    attempt: Attempt | None = None
    held_milli: int = 0

    @property
    def gpus_milli(self) -> int:
        """What an elastic job holds, which may be more than the least that it needs."""
        return max(self.held_milli, self.job.gpus_milli)

    @property
    def state(self) -> str:
        return str(self.job.state)

    def run_seconds(self, now: datetime) -> int | None:
        """How long its last run has taken, or took."""
        if self.attempt is None:
            return None
        return round(((self.attempt.ended_at or now) - self.attempt.started_at).total_seconds())


def job_lines(rows: Sequence[JobRow], now: datetime, *, every_node: bool = False) -> list[JobLine]:
    found = []
    for row in rows:
        shown = len(row.nodes) if every_node else NODES_SHOWN
        found.append(JobLine(row.job, line_of(row, now), row.nodes[:shown], max(0, len(row.nodes) - shown), row.attempt, row.held_milli))
    return found


WORDS = ("non-preemptible",)  # with a hyphen, and no names
_INSTANT = re.compile(r"\b(\d{4}-\d\d-\d\d)T(\d\d:\d\d)(?::\d\d(?:\.\d+)?)?Z")


# The name of the role of those who name none.
_ITS_ROLE = re.compile(r"\b(workers?) of role worker\b")


def sentence(text: str) -> str:
    """The engine's words as a sentence: a capital in front, a stop behind, moments as people write them."""
    text = _INSTANT.sub(r"\1 \2 UTC", _ITS_ROLE.sub(r"\1", text.strip()))
    if not text:
        return ""
    # Names are written as they are, also where they begin a sentence.
    first = text.split(maxsplit=1)[0]
    begins = first if "/" in first or ("-" in first and first not in WORDS) else first[0].upper() + first[1:]
    return begins + text[len(first) :] + ("" if text[-1] in ".!?…" else ".")


def line_of(row: JobRow, now: datetime) -> Line:
    job = row.job
    if job.state in ENDED:
        return Line(sentence(row.discretion.text(row.attempt.cause)) if row.attempt and row.attempt.cause else "")
    if job.state in HOLDING:
        return _holding(row)
    if job.state == JobState.DRAFT:
        return Line("Not submitted yet.")
    return _waiting(row, now)


def _holding(row: JobRow) -> Line:
    attempt = row.attempt
    if attempt and attempt.stop_asked_at:
        return Line(sentence(row.discretion.text(attempt.stop_cause)) or ASKED_TO_STOP, attempt.stop_until, "gone by", short=ASKED_TO_STOP)
    if row.job.degraded_since:
        return Line("Some of its workers are lost.", row.job.degraded_since, "since")
    return Line("")


def _waiting(row: JobRow, now: datetime) -> Line:
    job, promise, outlook = row.job, row.promise, row.outlook
    if job.held_at:
        return Line("Held back by a person.", job.held_at, "since")
    if promise:
        return Line(promised(promise, job.public_id, row.discretion), promise.until, "expires", short="GPUs promised, not free yet.")
    if row.unmet:
        return Line(f"Waits for {plural(row.unmet, 'job')} to end.")
    if job.not_before and job.not_before > now:
        return Line("Not due yet.", job.not_before, "due")
    if job.deferred_to and job.deferred_to > now:
        return Line(f"Deferred for {DEFERRED_FOR.get(job.defer or '', 'a better hour')}.", job.deferred_to, "due")
    if job.retry_at and job.retry_at > now:
        return Line("Backs off before it is tried again.", job.retry_at, "tried")
    foreseen = foreseen_start(job, outlook)
    starts, window = (foreseen.moment, foreseen.window) if foreseen else (None, None)
    if outlook and outlook.reasons:
        first, short = str(outlook.reasons[0].get("detail", "")), BLOCKERS.get(outlook.reasons[0].get("code", ""), "")
        if foreseen and outlook.reasons[0].get("held_by"):
            first = first.rpartition("; ")[0] or first  # who leaves first is for the job's page: here it is told when it starts
        more = len(outlook.reasons) - 1
        return Line(sentence(row.discretion.text(first)), starts, "starts", more=more, short=f"{short}." if short else "", window=window)
    if foreseen:
        return Line("Its turn comes.", starts, "starts", window=window)
    return Line("Not looked at yet.")


@dataclass(frozen=True, slots=True)
class DeadlineTold:
    """Whether a job meets its deadline, and when it is predicted to end, where that is known."""

    word: str
    is_missed: bool = False
    end: datetime | None = None


def deadline_told(row: JobRow, gpu_types: Collection[str], now: datetime, overrun_millionths: int) -> DeadlineTold | None:
    """None: it has no deadline, or has ended. `gpu_types` are those that it runs on. What the last plan said of a waiting job goes before."""
    job = row.job
    leaves = row.attempt is not None and row.attempt.stop_asked_at is not None and job.state in HOLDING
    if job.deadline is None or job.state in ENDED or job.state in (JobState.DRAFT, JobState.RESERVED) or leaves:
        return None
    speed = slowest_on(job.spec, gpu_types or [name for name in types_of(job.spec) if speed_on(job.spec, name)])
    seconds = seconds_at(speed, as_planned(job.estimate_seconds, job.limit_seconds, overrun_millionths), job.limit_seconds)
    if job.state in HOLDING and row.attempt is not None:
        end = None if seconds is None else row.attempt.started_at + timedelta(seconds=seconds)
        if end is None or end <= now:  # an estimate that is over says nothing about the end
            return DeadlineTold("missed" if job.deadline <= now else "its end is not known", job.deadline <= now)
        return DeadlineTold("will be missed" if end > job.deadline else "will be met", end > job.deadline, end)
    foreseen = foreseen_start(job, row.outlook)
    runs = timedelta(seconds=seconds or 0)
    start = None if foreseen is None else max(foreseen.moment, now)
    end = start + runs if start is not None and seconds is not None else None
    if job.deadline <= now or (row.outlook is not None and "deadline" in row.outlook.codes.split()):
        # The plan counts with the limit; an end by the estimate that lies before the deadline would contradict it.
        return DeadlineTold("will be missed", True, end if end is not None and end > job.deadline else None)
    if foreseen is None or start is None:
        return DeadlineTold("no start is predicted yet")
    if start + runs > job.deadline:
        return DeadlineTold("will be missed", True, end)
    late = foreseen.latest is not None and foreseen.latest + runs > job.deadline
    return DeadlineTold("may be missed, as it can start later" if late else "will be met", False, end)


@dataclass(frozen=True, slots=True)
class StartMark:
    """A moment of a start bar: where it stands in percent, and its label."""

    kind: str  # now, earliest, predicted or latest
    text: str
    x: float
    top: int
    foot: int
    text_y: int

    @property
    def anchor(self) -> str:
        """On which side of its mark the label has room."""
        return "start" if self.x < 25 else "end" if self.x > 75 else "middle"


@dataclass(frozen=True, slots=True)
class StartBar:
    """The time until a job starts, drawn: from now to the latest start, with the range in which it starts."""

    said: str
    marks: tuple[StartMark, ...]
    height: int
    latest: datetime | None
    from_x: float  # where the range begins

    @property
    def range_width(self) -> float:
        return round(100 - self.from_x, 1)


def start_bar(foreseen: ForeseenStart | None, now: datetime) -> StartBar | None:
    """None: no start is foreseen, or it is due."""
    if foreseen is None or foreseen.moment <= now:
        return None
    start = foreseen.moment
    earliest = start if foreseen.earliest is None else min(max(foreseen.earliest, now), start)
    latest = foreseen.latest if foreseen.latest and foreseen.latest > start else None
    is_apart = now < earliest < start  # the earliest start has a label of its own
    whole = (latest or start) - now

    def at(moment: datetime) -> float:
        return round(100 * ((moment - now) / whole), 1)

    def told(moment: datetime) -> str:
        return relative(moment, now)

    low = 60 if is_apart else 44  # the baseline of what stands at the ends: below the label of the earliest start
    marks = [StartMark("now", "Now", 0, 20, low - 10, low)]
    if is_apart:
        marks.append(StartMark("earliest", f"Earliest {told(earliest)}", at(earliest), 20, 33, 44))
    marks.append(StartMark("predicted", f"Predicted {told(start)}", at(start), 17, 33, 12))
    said = [f"Starts {told(start)}"]
    if latest:
        marks.append(StartMark("latest", f"Latest {told(latest)}", 100, 20, low - 10, low))
        said += [f"{told(earliest) if earliest > now else 'now'} at the earliest", f"{told(latest)} at the latest"]
    return StartBar(f"{', '.join(said)}.", tuple(marks), low + 4, latest, at(earliest))


def promised(promise: Promise, own: str, discretion: Discretion) -> str:
    """Which GPUs are still left for it, mostly by others. `own` is its own id: it may have to leave itself before it stands elsewhere."""
    leaving = [discretion.text(str(name)) for name in promise.after]
    itself = [name for name in leaving if name == own]
    named = [name for name in leaving if name.startswith("j-") and name != own]
    others = len(leaving) - len(named) - len(itself)
    parts = [*(["its own last attempt"] if itself else []), *named[:3]]
    if len(named) > 3:
        parts.append(plural(len(named) - 3, "more job"))
    if others:
        parts.append(plural(others, "job of another team", "jobs of other teams"))
    if not parts:
        return "Has been promised GPUs and starts at once."
    last = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"Has been promised the GPUs that {last} {'leave' if len(leaving) > 1 else 'leaves'}."


def would_start_if(outlook: Outlook | None, discretion: Discretion) -> str:
    """The change that would let it start now, as the end of a sentence."""
    change = outlook.would_start_if if outlook else None
    if not change:
        return ""
    return discretion.text(change_in_words(str(change.get("change", "")), change.get("to")))


# The shape: what a job asks for.


@dataclass(frozen=True, slots=True)
class RoleShape:
    name: str
    workers: str
    each: str


def shape_of(spec: Mapping[str, Any]) -> list[RoleShape]:
    """A line for each role: how many workers, and what each of them needs."""
    return [_role(role) for role in roles_of(spec)]


def _role(role: Mapping[str, Any]) -> RoleShape:
    least, most = least_of(role), most_of(role)
    return RoleShape(name_of(role), f"{least} to {most}" if most != least else f"{least}", _each(role))


def _each(role: Mapping[str, Any]) -> str:
    parts = role.get("devices", 1)
    if role.get("mig"):
        device = f"{parts} × {role['mig']}"
    elif role.get("gpu_share") is not None:
        device = f"{parts} × {float(role['gpu_share']):g} of a GPU"
    elif role.get("gpu_memory_gb") is not None:
        device = f"{parts} × {float(role['gpu_memory_gb']):g} GB of a GPU"
    else:
        device = plural(int(role.get("gpus", 0)), "GPU")
    host = [
        f"{role['cpus']} CPUs" if role.get("cpus") else "",
        f"{float(role['host_memory_gb']):g} GB of host memory" if role.get("host_memory_gb") else "",
    ]
    return ", ".join([device, *(part for part in host if part)])


# Where the workers sit.


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU of a node as the picture shows it."""

    x: int
    state: str  # held, leaving or rest
    label: str


@dataclass(frozen=True, slots=True)
class NodeSeats:
    """One node with the devices that this job holds there."""

    node_id: str
    node: str
    cells: tuple[Cell, ...]
    workers: str
    devices: str
    milli: int
    since: datetime
    leaving: bool

    @property
    def width(self) -> int:
        return len(self.cells) * (CELL + GAP) - GAP


def seats_by_node(sittings: Sequence[Sitting], sizes: Mapping[str, int]) -> list[NodeSeats]:
    """The picture of a gang: a row of GPUs for each node. `sizes` says how many GPUs a node has, by its id."""
    grouped: dict[str, list[Sitting]] = {}
    for sitting in sorted(sittings, key=lambda one: (one.node, one.node_id, one.index if one.index is not None else -1, one.worker)):
        grouped.setdefault(sitting.node_id, []).append(sitting)
    return [_node_seats(node_id, here, sizes.get(node_id, 0)) for node_id, here in grouped.items()]


MOST_DOMAINS = 6


def alignment_told(found: Alignment | None) -> str:
    """`Rail-aligned: all 4 nodes in leaf spine-1/leaf-2.` Empty where there is nothing to say."""
    if found is None:
        return ""
    together = f"All {found.nodes} nodes in {found.level} {found.domain}." if found.level else ""
    if found.is_aligned is None:
        return together
    (first, *rest) = found.rail_domains
    if found.is_aligned:
        return f"Rail-aligned: all {found.nodes} nodes in {found.rail_level} {first}."
    shown = [f"{name or 'unknown'}: {found.rail_domains[name]}" for name in (first, *rest)[:MOST_DOMAINS]]
    more = f" and {len(found.rail_domains) - MOST_DOMAINS} more" if len(found.rail_domains) > MOST_DOMAINS else ""
    told = f"Not rail-aligned: {found.nodes} nodes in {plural(len(found.rail_domains), 'domain')} of level {found.rail_level}"
    return f"{told} ({', '.join(shown)}{more}). {together}".strip()


def _node_seats(node_id: str, here: Sequence[Sitting], size: int) -> NodeSeats:
    by_index: dict[int, list[Sitting]] = {}
    for sitting in here:
        if sitting.index is not None:
            by_index.setdefault(sitting.index, []).append(sitting)
    cells = []
    for index in range(max(size, max(by_index, default=-1) + 1)):
        mine = by_index.get(index, [])
        state = "rest" if not mine else "leaving" if all(one.leaving_since for one in mine) else "held"
        cells.append(Cell(index * (CELL + GAP), state, f"GPU {index}"))
    workers = dict.fromkeys((one.role, one.worker) for one in here)
    return NodeSeats(
        node_id,
        here[0].node,
        tuple(cells),
        _ranges(workers),
        devices_told(here),
        sum(one.gpu_milli for one in here),
        min(one.since for one in here),
        all(one.leaving_since for one in here),
    )


def _ranges(workers: Mapping[tuple[str, int], None]) -> str:
    """`worker 0–3, 7; ps 0`: numbers that follow each other are drawn together."""
    by_role: dict[str, list[int]] = {}
    for role, number in workers:
        by_role.setdefault(role, []).append(number)
    return "; ".join(f"{role} {span(sorted(numbers))}" for role, numbers in by_role.items())


def span(numbers: Sequence[int]) -> str:
    """`0–3, 7`."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else f"{part[0]}" for part in parts)


def devices_told(here: Sequence[Sitting]) -> str:
    """What is held of one node: `GPU 0–3`, `3g.40gb on GPU 1`."""
    if all(one.index is None for one in here):
        return "no GPU"
    if any(one.profile for one in here):
        return ", ".join(f"{one.profile} on GPU {one.index}" for one in here)
    if any(one.gpu_milli < 1000 for one in here):
        return ", ".join(f"{gpus(one.gpu_milli)} of GPU {one.index}" for one in here)
    return f"GPU {span(sorted({one.index for one in here if one.index is not None}))}"


# What happened.


@dataclass(frozen=True, slots=True)
class EventLine:
    event: JobEvent
    state: str  # empty for a note
    cause: str
    by: str
    attempt: int | None


def event_lines(events: Sequence[JobEvent], discretion: Discretion) -> list[EventLine]:
    return [_event_line(event, discretion) for event in events]


def _event_line(event: JobEvent, discretion: Discretion) -> EventLine:
    state = event.to_state if event.to_state != event.from_state else ""
    by = "" if event.actor_name == SYSTEM.name else event.actor_name
    return EventLine(event, state, sentence(discretion.text(event.cause)), by, event.attempt.number if event.attempt else None)


@dataclass(frozen=True, slots=True)
class Run:
    """An attempt as its page tells it."""

    attempt: Attempt
    cause: str
    start_seconds: float | None  # from taking GPUs to running
    run_seconds: float | None
    outcome: str


def runs_of(attempts: Sequence[Attempt], discretion: Discretion, now: datetime) -> list[Run]:
    return [_run(attempt, discretion, now) for attempt in attempts]


def _run(attempt: Attempt, discretion: Discretion, now: datetime) -> Run:
    end = attempt.ended_at or now
    started = attempt.running_at
    outcome = attempt.outcome or ("stopping" if attempt.stop_asked_at else "running" if started else "starting")
    return Run(
        attempt,
        sentence(discretion.text(attempt.cause or attempt.stop_cause)),
        ((started or end) - attempt.started_at).total_seconds(),
        (end - started).total_seconds() if started else None,
        outcome,
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """One part of a job's life so far."""

    key: str
    label: str
    seconds: float
    x: int = 0
    width: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """Where the time went from submission until now or the end, as parts of a bar that is 1,000 wide."""

    parts: tuple[Spent, ...]
    total_seconds: float = field(default=0.0)


LIFE = (
    ("quota", "Waited for quota"),
    ("gpus", "Waited for GPUs"),
    ("aside", "Held or not due"),
    ("deferred", "Deferred"),
    ("start", "Started up"),
    ("run", "Ran"),
)
SELDOM = ("aside", "deferred")  # told only of jobs that did
BAR = 1000


def life_of(job: Job, attempts: Sequence[Attempt], now: datetime, wait: Wait | None) -> Life:
    """Every attempt has its start and its run; what is not in any was waiting: for GPUs, unless that was written down otherwise. A draft does not."""
    end = job.ended_at or (job.submitted_at if job.state == JobState.DRAFT else now)
    total = max(timedelta(0), end - job.submitted_at)
    spent = {"start": timedelta(0), "run": timedelta(0)}
    for attempt in attempts:
        over = attempt.ended_at or end
        running = attempt.running_at or over
        spent["start"] += max(timedelta(0), running - attempt.started_at)
        spent["run"] += max(timedelta(0), over - running)
    spent["gpus"] = max(timedelta(0), total - spent["start"] - spent["run"])
    for key, length in _waited(job, wait, now).items():
        spent[key] = min(length, spent["gpus"])
        spent["gpus"] -= spent[key]
    spent["deferred"] = left = min(_deferred(job, end), spent["aside"] + spent["gpus"])
    for key in ("aside", "gpus"):  # nobody looked at it each moment: until then it seemed to wait for GPUs
        taken = min(left, spent[key])
        spent[key], left = spent[key] - taken, left - taken
    told = [(key, label, spent[key].total_seconds()) for key, label in LIFE if spent[key] or key not in SELDOM]
    whole = sum(seconds for _, _, seconds in told)
    parts, before = [], 0.0
    for key, label, seconds in told:
        x = int(before / whole * BAR) if whole else 0
        before += seconds
        parts.append(Spent(key, label, seconds, x, (int(before / whole * BAR) if whole else 0) - x))
    return Life(tuple(parts), total.total_seconds())


def _deferred(job: Job, end: datetime) -> timedelta:
    """How long it was put off to a better hour, up to that hour or until a person ended it."""
    if job.deferred_to is None:
        return timedelta(0)
    begin = max(job.submitted_at, job.not_before or job.submitted_at)
    return max(timedelta(0), min(job.deferred_to, end) - begin)


def _waited(job: Job, wait: Wait | None, now: datetime) -> dict[str, timedelta]:
    """For what else than GPUs, with what goes on now."""
    if wait is None:
        return {"quota": timedelta(0), "aside": timedelta(0)}
    found = {"quota": timedelta(milliseconds=wait.quota_ms), "aside": timedelta(milliseconds=wait.aside_ms)}
    if wait.kind in found and job.state in (JobState.QUEUED, JobState.PREEMPTED):
        found[wait.kind] += max(timedelta(0), now - max(wait.since, job.state_since))
    return found
