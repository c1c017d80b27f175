"""Traces for what-ifs: the text of files in, a scenario out, or what is wrong by field. What a trace is on another fleet is told here, too."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import orjson

from gpufleet.core.times import millis
from scheduler.engine.model.values import QUEUED, Job, Kind, Placing, Role, Scenario
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import load
from scheduler.simulation.progress import MILLION, gang_rate
from scheduler.simulation.span import HOUR, THERE
from scheduler.simulation.workload import works_drawn
from scheduler.traces.philly import MACHINE
from scheduler.traces.rows import File, Imported, Shape, TraceFault, header_of
from scheduler.whatifs.wanted import MOST_KINDS, MOST_TRACE_HOURS, nodes_there

KINDS: Mapping[str, str] = {
    "scenario": "gpufleet scenario",
    "gavel": "Gavel",
    "helios": "Helios",
    "openb": "openb (Alibaba)",
    "philly": "Philly",
}
OWN = "own"
FORMATS: Mapping[str, str] = {**KINDS, OWN: "This fleet's past"}
MOST_FILES = 8
MOST_BYTES = 16 * 1024 * 1024
MOST_JOBS = 50_000
MOST_NODES = 10_000
MOST_QUEUES = 5_000  # each is a row of a result
# Of tables, before they are read: a file of so many bytes may have a million short ones, which took a minute and 2 GB of a web request.
MOST_ROWS = 200_000
LINE_ENDS = "\n\v\f\x1c\x1d\x1e\x85\u2028\u2029"  # and a carriage return that is alone
FAULTS_TOLD = 5
FIRST, LAST = 0, millis(datetime(3000, 1, 1, tzinfo=UTC))

Faults = dict[str, list[str]]


class TraceRefused(Exception):
    """Files are no trace that can be replayed; by field: `files`, `nodes`, or `limit`."""

    def __init__(self, faults: Faults) -> None:
        super().__init__("; ".join(text for texts in faults.values() for text in texts))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class TraceRead:
    """What files hold: the scenario and its text, with and without jobs, how many jobs there were, and rows that cannot be played, by reason."""

    scenario: Scenario
    document: bytes
    fleet: bytes
    left_out: Sequence[tuple[str, int]]

    @property
    def hours(self) -> int:
        return hours_of(self.scenario)


def trace_read(kind: str, files: Sequence[File], shapes: Sequence[Shape] = (), limit: int | None = None) -> TraceRead:
    """The first `limit` jobs of a trace. Raises TraceRefused."""
    if not 0 < len(files) <= MOST_FILES:
        raise TraceRefused({"files": [f"Choose 1 to {MOST_FILES} files."]})
    if sum(len(file.text) for file in files) > MOST_BYTES:
        raise TraceRefused({"files": [TOO_LARGE]})
    if sum(shape.nodes for shape in shapes) > MOST_NODES:
        raise TraceRefused({"nodes": [f"At most {MOST_NODES:,} nodes."]})
    left_out, of_nodes = Counter[str](), "nodes" if shapes else "files"
    if kind == "scenario":
        raw = _scenario_raw(files, shapes)
        if limit is not None and isinstance(jobs := raw.get("jobs"), list):
            raw["jobs"] = _first(jobs, limit)
    else:
        if (rows := sum(rows_of(kind, file) for file in files)) > MOST_ROWS:
            raise TraceRefused({"files": [f"The files have {rows:,} rows; at most {MOST_ROWS:,} are read. {AT_A_TERMINAL}"]})
        found = _imported(kind, files, shapes)
        left_out = found.left_out
        _must_be_few(found.nodes, of_nodes)
        if not found.jobs:
            reasons = "".join(f" {count:,} left out: {why}." for why, count in left_out.most_common())
            raise TraceRefused({"files": [f"No row can be replayed.{reasons}"]})
        if limit is None:
            _must_be_few_jobs(found.jobs)
        raw = found.scenario(limit)
    return _kept(raw, of_nodes, left_out)


def own_read(document: bytes, left_out: Counter[str]) -> TraceRead:
    """A trace of this fleet's own past, as `history` writes it. Raises TraceRefused."""
    return _kept(orjson.loads(document), "files", left_out)


def _kept(raw: dict[str, Any], of_nodes: str, left_out: Counter[str]) -> TraceRead:
    """What is wrong with its nodes is told at the field `of_nodes`."""
    if isinstance(raw.get("nodes"), list):
        _must_be_few(raw["nodes"], of_nodes)
    if isinstance(raw.get("jobs"), list):
        _must_be_few_jobs(raw["jobs"])
    document = orjson.dumps(raw)
    if b"\\u0000" in document:  # no column of text holds it
        raise TraceRefused({"files": ["Contains an invalid character (U+0000)."]})
    scenario = _loaded(document)
    if not FIRST <= scenario.now < LAST:
        raise TraceRefused({"files": ["It begins outside the years 1970 to 2999."]})
    if not scenario.jobs:
        raise TraceRefused({"files": ["It has no jobs."]})
    if (kinds := len(nodes_there(scenario.nodes))) > MOST_KINDS:  # each is a field of a form
        raise TraceRefused({of_nodes: [f"It has {kinds:,} kinds of nodes; at most {MOST_KINDS} are replayed."]})
    if (queues := len({job.quota for job in scenario.jobs})) > MOST_QUEUES:
        raise TraceRefused({"files": [f"Its jobs are in {queues:,} queues; at most {MOST_QUEUES:,} are shown."]})
    fleet = orjson.dumps({**raw, "jobs": [], "reservations": [], "demand": []})
    return TraceRead(scenario, document, fleet, left_out.most_common())


AT_A_TERMINAL = "Convert the first jobs with gpufleet trace and add that scenario."
TOO_LARGE = f"The files are larger than {MOST_BYTES >> 20} MiB. {AT_A_TERMINAL}"


def rows_of(kind: str, file: File) -> int:
    """How many rows a table may have. What is read as JSON has its rows anyhow: 0."""
    text = file.text
    if text.lstrip().startswith("{") if kind == "gavel" else kind == "philly" and MACHINE not in header_of(file):
        return 0
    return sum(map(text.count, LINE_ENDS)) + text.count("\r") - text.count("\r\n")


def _must_be_few(nodes: Sequence[object], field: str) -> None:
    if len(nodes) > MOST_NODES:
        raise TraceRefused({field: [f"It has {len(nodes):,} nodes; at most {MOST_NODES:,} are replayed."]})


def _must_be_few_jobs(jobs: Sequence[object]) -> None:
    if len(jobs) > MOST_JOBS:
        raise TraceRefused({"limit": [f"It has {len(jobs):,} jobs; at most {MOST_JOBS:,} are kept. Enter how many."]})


def _scenario_raw(files: Sequence[File], shapes: Sequence[Shape]) -> dict[str, Any]:
    if len(files) != 1:
        raise TraceRefused({"files": ["A scenario is one file."]})
    if shapes:
        raise TraceRefused({"nodes": ["A scenario names its nodes itself."]})
    try:
        raw = orjson.loads(files[0].text)
    except (orjson.JSONDecodeError, RecursionError) as fault:
        raise TraceRefused({"files": [f"{files[0].name} is not JSON: {fault}"]}) from None
    if not isinstance(raw, dict):
        raise TraceRefused({"files": [f"{files[0].name} is not a scenario: it is to be an object with the key format."]})
    return raw


def _imported(kind: str, files: Sequence[File], shapes: Sequence[Shape]) -> Imported:
    try:
        found: Imported = import_module(f"scheduler.traces.{kind}").imported(files, shapes)
    except TraceFault as fault:
        told = str(fault)
        raise TraceRefused({"nodes" if "--nodes" in told else "files": [told.replace("--nodes", "the field Nodes")]}) from None
    return found


def _loaded(document: bytes) -> Scenario:
    try:
        return load(document)
    except ScenarioError as error:
        told = [str(fault) for fault in error.faults[:FAULTS_TOLD]]
        more = len(error.faults) - len(told)
        raise TraceRefused({"files": [*told, *([f"And {more:,} more problems."] if more > 0 else [])]}) from None


def _first(jobs: list[object], limit: int) -> list[object]:
    """By submission; what is no such row is left to the reader, who tells it."""
    if not all(isinstance(job, dict) and isinstance(job.get("submitted"), int | float) for job in jobs):
        return jobs[:limit]
    return sorted(jobs, key=lambda job: job["submitted"])[:limit]  # type: ignore[index]


def hours_of(scenario: Scenario) -> int:
    """Until its last job would have ended, had none waited."""
    works = works_of(scenario)
    end = max(max(job.submitted, scenario.now) + works[job.name] for job in scenario.jobs)
    return max(1, min(MOST_TRACE_HOURS, -(-(end - scenario.now) // HOUR)))


def works_of(scenario: Scenario) -> dict[str, int]:
    """Milliseconds at speed 1.0 that are left as it begins, by job: of what it states, or of what `gpufleet simulate` draws for it."""
    works = works_drawn(scenario, 0) | {job.name: job.work_ms for job in scenario.jobs if job.work_ms is not None}
    types = {node.name: node.gpu_type for node in scenario.nodes}
    for job in scenario.jobs:
        if job.run.state == "running":
            done = _done(job, types, scenario.now)
            while job.work_ms is None and works[job.name] <= done:  # it has outlived what was drawn, as in a simulation
                works[job.name] *= 2
            works[job.name] = max(0, works[job.name] - done)
    return works


def _done(job: Job, types: Mapping[str, str], now: int) -> int:
    """What a job that runs has done by now, where it stands."""
    started = job.run.started if job.run.started is not None else job.run.since
    speeds = [job.kind.speed(types[worker.node]) for worker in job.run.workers]
    rate = gang_rate(speeds, sum(role.least for role in job.kind.roles))
    return 0 if started is None else max(0, now - started) * rate // MILLION


@dataclass(frozen=True, slots=True)
class Comes:
    """A job as it is replayed, so many milliseconds after the beginning, with so much work."""

    job: Job
    after: int
    work: int


def coming(scenario: Scenario, from_hour: int, hours: int) -> list[Comes]:
    """What comes in so many hours: what runs as they begin at once, with what is left of it, then what waits then, then all others.

    What would have ended by then, had it never waited, is left out.
    """
    begin, works, found = scenario.now + from_hour * HOUR, works_of(scenario), []
    for job in scenario.jobs:
        work, since = works[job.name], max(job.submitted, scenario.now)
        after = max(THERE + 1, since - begin)
        if job.run.workers or since < begin:
            after, work = 0, work - max(0, begin - since)
        elif job.submitted < scenario.now:
            after = THERE
        if work > 0 and after < hours * HOUR:
            found.append(Comes(replace(job, run=QUEUED, work_ms=None), after, work))
    return found


class Fitted:
    """What jobs of a trace ask for on another fleet: of its GPU types and levels of topology. What that fleet lacks is not asked for."""

    def __init__(self, types: Collection[str], levels: Collection[str]) -> None:
        self._types, self._levels = frozenset(types), frozenset(levels)
        self._kinds: dict[int, tuple[Kind, Kind]] = {}  # with what it was made of, so that no other has its id

    def kind(self, kind: Kind) -> Kind:
        known = self._kinds.get(id(kind))
        if known is None:
            known = self._kinds[id(kind)] = kind, self._fitted(kind)
        return known[1]

    def _fitted(self, kind: Kind) -> Kind:
        speeds = tuple((name, speed) for name, speed in kind.throughput if name in self._types)
        runs = {name for name in self._types if dict(speeds).get(name, 1)}
        return replace(
            kind,
            roles=tuple(self._role(role) for role in kind.roles),
            placing=self._placing(kind.placing),
            labels=(),
            needs=(),
            throughput=speeds if runs else (),
        )

    def _role(self, role: Role) -> Role:
        types = tuple(name for name in role.gpu_types if name in self._types)
        return replace(role, gpu_types=types, placing=None if role.placing is None else self._placing(role.placing))

    def _placing(self, placing: Placing) -> Placing:
        required = placing.required if placing.required in self._levels else None
        return replace(placing, required=required, preferred=placing.preferred if placing.preferred in self._levels else None)


def places_of(queues: Collection[str], paths: Collection[str], default: str) -> dict[str, str]:
    """The quota node of each queue: the one of its path, or the only one of its name, or the default; a queue without one is not in it."""
    by_name: dict[str, list[str]] = {}
    for path in paths:
        by_name.setdefault(path.rpartition("/")[2], []).append(path)
    found = {}
    for queue in queues:
        same = by_name.get(queue.rpartition("/")[2], ())
        place = queue if queue in paths else same[0] if len(same) == 1 else default
        if place:
            found[queue] = place
    return found
