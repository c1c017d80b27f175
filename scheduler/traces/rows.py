"""What the importers have in common: files as text, rows with their line, the fleet where a trace names none, and the scenario in the end."""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple

UNDATED = "2024-01-01T00:00:00Z"  # the beginning of traces that count seconds
FIRST_LINE = 10_000  # characters, in which it ends
MOST_NODES = 100_000  # of one shape
FIRST_YEAR = 1990  # earlier years are epochs and slips
NEVER_RAN = "never started, so the run time is unknown"
STILL_RUNS = "no end, so the run time is unknown"
BACKWARDS = "ends before it starts"
NOTHING_ASKED = "asks for neither GPUs nor CPUs"


class TraceFault(Exception):
    """A file is missing, is not one of this trace, or has a row that cannot be read."""


class File(NamedTuple):
    name: str
    text: str


class Shape(NamedTuple):
    """So many nodes of one size."""

    nodes: int
    gpus: int
    gpu_type: str | None = None
    cpus: int | None = None


def shape_of(text: str) -> Shape:
    """As people write it. Raises ValueError."""
    size, _, gpu_type = text.partition(":")
    count, _, gpus = size.partition("x")
    if not (count.isdecimal() and gpus.isdecimal() and len(size) < 12 and 0 < int(count) <= MOST_NODES and 0 < int(gpus) <= 64):
        raise ValueError(f"{text[:60]} is not COUNTxGPUS[:TYPE] with at most {MOST_NODES} nodes of at most 64 GPUs, such as 6x4:v100")
    return Shape(int(count), int(gpus), gpu_type or None)


@dataclass(frozen=True, slots=True)
class Row:
    """A row with its place, for what is said of it."""

    file: str
    line: int
    values: Mapping[str, str]

    def bad(self, why: str) -> TraceFault:
        return TraceFault(f"{self.file}, line {self.line}: {why}")

    def text(self, key: str) -> str:
        found = self.values[key].strip()
        if not found:
            raise self.bad(f"{key} is empty")
        return found

    def whole(self, key: str, least: int = 0) -> int:
        return int(self.number(key, least, whole=True))

    def number(self, key: str, least: float = 0, *, whole: bool = False) -> float:
        written = self.values[key].strip()
        try:
            found = float(written)
            fits = least <= found < 1e12 and (not whole or found == int(found))
        except (ValueError, OverflowError):
            fits = False
        if not fits:
            raise self.bad(f"{key} is {written[:40]!r}; a {'whole number' if whole else 'number'} from {least:g} is expected")
        return found

    def moment(self, key: str) -> datetime | None:
        """A time without a zone, taken as UTC; None where there is none."""
        try:
            return moment(self.values[key])
        except ValueError as why:
            raise self.bad(f"{key} {why}") from None


def moment(written: str | None) -> datetime | None:
    if written is None or written.strip() in ("", "None", "Unknown", "N/A"):
        return None
    wrong = ValueError(f"is {written[:40]!r}; a time such as 2020-06-09 18:41:01 is expected")
    try:
        found = datetime.fromisoformat(written.strip())
        found = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
    except (ValueError, OverflowError):
        raise wrong from None
    if found.year < FIRST_YEAR:
        raise wrong
    return found


def header_of(file: File) -> frozenset[str]:
    """The names of the columns, as far as the first line has any."""
    try:
        return frozenset(name.strip() for name in next(csv.reader([file.text[:FIRST_LINE].split("\n")[0]]), ()))
    except csv.Error:
        return frozenset()  # such as a carriage return in the middle of it


def table(file: File, columns: frozenset[str], trace: str) -> Iterator[Row]:
    """The rows of a file of comma-separated values that has these columns, and perhaps others."""
    reader = csv.reader(io.StringIO(file.text))
    try:
        header = [name.strip() for name in next(reader, ())]
        missing = columns - frozenset(header)
        if missing:
            raise TraceFault(f"{file.name} is not a list of the {trace} trace: it has no column {min(missing)}.")
        for values in reader:
            if not values:
                continue
            row = Row(file.name, reader.line_num, dict(zip(header, values, strict=False)))
            if len(values) != len(header):
                raise row.bad(f"has {len(values)} values; the header names {len(header)} columns")
            yield row
    except csv.Error as error:
        raise TraceFault(f"{file.name}, line {reader.line_num}: {error}") from None


def once(known: set[str], name: str, bad: TraceFault) -> str:
    """A name that was not given before."""
    if name in known:
        raise bad
    known.add(name)
    return name


def nodes_of(shapes: Sequence[Shape], usual_type: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for shape in shapes:
        for _ in range(shape.nodes):
            node: dict[str, Any] = {"name": f"n{len(found):05}", "gpu_type": shape.gpu_type or usual_type, "gpus": shape.gpus}
            found.append(node if shape.cpus is None else node | {"cpus": shape.cpus})
    return found


def largest_of(nodes: Sequence[Mapping[str, Any]]) -> int:
    return max((int(node["gpus"]) for node in nodes), default=0)


def gang(gpus: int, largest: int) -> tuple[int, int]:
    """Workers, and GPUs of each: one where a node is large enough, else as few equal ones as fit."""
    if gpus <= largest:
        return 1, gpus
    each = max((size for size in range(1, largest + 1) if not gpus % size), default=1)
    return gpus // each, each


def role(workers: int, **asked: Any) -> dict[str, Any]:
    return {"name": "worker", "min": workers, "max": workers, **asked} if workers > 1 else {"name": "worker", **asked}


@dataclass(slots=True)
class Imported:
    """What was read: the parts of a scenario, and by reason how many rows cannot be played."""

    nodes: list[dict[str, Any]]
    quotas: list[dict[str, Any]] = field(default_factory=list)
    jobs: list[tuple[float, dict[str, Any]]] = field(default_factory=list)  # with seconds since the beginning, or since 1970
    left_out: Counter[str] = field(default_factory=Counter)
    dated: bool = False
    settings: dict[str, Any] = field(default_factory=dict)
    demand: list[dict[str, Any]] = field(default_factory=list)

    def scenario(self, most: int | None = None) -> dict[str, Any]:
        """The first so many of its jobs, in the order of submission. It begins with the first of them."""
        jobs = sorted(self.jobs, key=lambda one: (one[0], one[1]["name"]))[:most]
        begin = jobs[0][0] if jobs else 0.0
        return {
            "format": "gpufleet-scenario/1",
            "now": f"{datetime.fromtimestamp(begin, UTC):%Y-%m-%dT%H:%M:%SZ}" if self.dated else UNDATED,
            "settings": self.settings,
            "nodes": self.nodes,
            "quotas": self.quotas,
            **({"demand": self.demand} if self.demand else {}),
            "jobs": [job | {"submitted": round(at - begin, 3)} | _moved(job, begin) for at, job in jobs],
        }


def _moved(job: Mapping[str, Any], begin: float) -> dict[str, Any]:
    return {"deadline": round(job["deadline"] - begin, 3)} if "deadline" in job else {}


def quotas_of(names: Sequence[str], guaranteed: Mapping[str, int] | None = None) -> list[dict[str, Any]]:
    """One for each group, the same for all where nothing is known of them."""
    return [{"name": name, "guaranteed": (guaranteed or {}).get(name, 0)} for name in sorted({*names, *(guaranteed or ())})]


def run_time(start: float, end: float) -> float:
    """What took less than a second, as the clock of a trace has it, took one."""
    return max(1.0, end - start)
