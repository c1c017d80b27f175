"""Philly (Microsoft, 2017): `cluster_job_log`, a JSON list of jobs with their attempts, and `cluster_machine_list` if it is there.

A job asks for the GPUs of its last attempt that had any. How the scheduler of then spread them over machines is not what was asked for, so they are
one worker where a node is large enough. All attempts together are the work: a retry began again, and held its GPUs all the same.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from .rows import (
    BACKWARDS,
    NEVER_RAN,
    NOTHING_ASKED,
    STILL_RUNS,
    File,
    Imported,
    Shape,
    TraceFault,
    gang,
    header_of,
    largest_of,
    moment,
    nodes_of,
    once,
    quotas_of,
    role,
    run_time,
    table,
)

NAME = "philly"
MACHINE, GPUS, MEMORY = "machineId", "number of GPUs", "single GPU mem"
SPACE = re.compile(r"[ \t\r\n]*")
MOST_GPUS = 64


def imported(files: Sequence[File], shapes: Sequence[Shape]) -> Imported:
    """Nodes are those of --nodes, else of the list of machines, else the machines on which jobs ran."""
    lists = [file for file in files if MACHINE in header_of(file)]
    logs = [file for file in files if MACHINE not in header_of(file)]
    if not logs:
        raise TraceFault("No cluster_job_log is among the files.")
    entries = [entry for file in logs for entry in _entries(file)]
    nodes = nodes_of(shapes, "GPU") or [node for file in lists for node in _listed(file)] or _seen(entries)
    found = Imported(nodes, quotas_of([entry.vc for entry in entries]), dated=True)
    known: set[str] = set()
    largest = largest_of(nodes)
    for entry in entries:
        name = once(known, entry.name, entry.bad(f"jobid {entry.name} is given twice"))
        if (why := entry.unplayable()) is not None:
            found.left_out[why] += 1
            continue
        workers, each = gang(entry.gpus, largest)
        job = {"name": name, "quota": entry.vc, "roles": [role(workers, gpus=each)], "work_s": run_time(0, entry.ran_s)}
        found.jobs.append((entry.submitted.timestamp(), job))
    return found


class Entry:
    """One job of the log, with its place."""

    def __init__(self, file: File, line: int, raw: Any) -> None:
        self.where = f"{file.name}, line {line}"
        if not isinstance(raw, dict):
            raise self.bad("a job is an object")
        self.name, self.vc = self._text(raw, "jobid"), self._text(raw, "vc")
        submitted = self._moment(raw, "submitted_time")
        if submitted is None:
            raise self.bad("submitted_time is empty")
        self.submitted = submitted
        self.spans: list[tuple[datetime | None, datetime | None]] = []
        self.machines: dict[str, int] = {}  # by machine: GPUs that it has at least
        self.gpus = 0
        for attempt in self._list(raw, "attempts"):
            self._attempt(attempt)

    def _attempt(self, attempt: Any) -> None:
        if not isinstance(attempt, dict):
            raise self.bad("an attempt is an object")
        self.spans.append((self._moment(attempt, "start_time"), self._moment(attempt, "end_time")))
        gpus = 0
        for part in self._list(attempt, "detail"):
            if not isinstance(part, dict):
                raise self.bad("a part of detail is an object")
            names = self._list(part, "gpus")
            numbers = [re.fullmatch(r"gpu(\d{1,2})", str(name)) for name in names]
            gpus += len(names)
            least = max([len(names), *(int(found[1]) + 1 for found in numbers if found)])
            ip = self._text(part, "ip")
            self.machines[ip] = max(least, self.machines.get(ip, 0))
        self.gpus = gpus or self.gpus

    @property
    def ran_s(self) -> float:
        return sum((end - start).total_seconds() for start, end in self.spans if start is not None and end is not None)

    def unplayable(self) -> str | None:
        if any(start is not None and end is not None and end < start for start, end in self.spans):
            return BACKWARDS
        if self.spans and self.spans[-1][0] is not None and self.spans[-1][1] is None:
            return STILL_RUNS
        if not any(start is not None and end is not None for start, end in self.spans):
            return NEVER_RAN
        return None if self.gpus else NOTHING_ASKED

    def bad(self, why: str) -> TraceFault:
        return TraceFault(f"{self.where}: {why}")

    def _text(self, raw: Mapping[str, Any], key: str) -> str:
        found = raw.get(key)
        if not isinstance(found, str) or not found:
            raise self.bad(f"{key} is {str(found)[:40]!r}; text is expected" if key in raw else f"{key} is missing")
        return found

    def _list(self, raw: Mapping[str, Any], key: str) -> list[Any]:
        found = raw.get(key)
        if not isinstance(found, list):
            raise self.bad(f"{key} is {str(found)[:40]!r}; a list is expected" if key in raw else f"{key} is missing")
        return found

    def _moment(self, raw: Mapping[str, Any], key: str) -> datetime | None:
        written = raw.get(key)
        try:
            return moment(None if written is None else str(written))
        except ValueError as why:
            raise self.bad(f"{key} {why}") from None


def _entries(file: File) -> Iterator[Entry]:
    """Job by job, so that each has its line."""
    text, decoder = file.text, json.JSONDecoder()

    def past_space(at: int) -> int:
        found = SPACE.match(text, at)
        return found.end() if found else at

    at, line, counted = past_space(0), 1, 0
    if text[at : at + 1] != "[":
        raise TraceFault(f"{file.name} is not a cluster_job_log: it does not begin with [.")
    at = past_space(at + 1)
    first = True
    while text[at : at + 1] != "]":
        if not first:
            if text[at : at + 1] != ",":
                raise TraceFault(f"{file.name}, line {1 + text.count(chr(10), 0, at)}: a comma or ] is expected")
            at = past_space(at + 1)
        line, counted, first = line + text.count("\n", counted, at), at, False
        try:
            raw, end = decoder.raw_decode(text, at)
        except json.JSONDecodeError as error:
            raise TraceFault(f"{file.name}, line {error.lineno}: {error.msg}") from None
        except ValueError:  # Python reads no whole number of thousands of digits
            raise TraceFault(f"{file.name}, line {line}: a number has too many digits") from None
        except RecursionError:
            raise TraceFault(f"{file.name}, line {line}: it is nested too deeply") from None
        yield Entry(file, line, raw)
        at = past_space(end)


def _listed(file: File) -> Iterator[dict[str, Any]]:
    known: set[str] = set()
    for row in table(file, frozenset({MACHINE, GPUS, MEMORY}), NAME):
        name = once(known, row.text(MACHINE), row.bad(f"{MACHINE} {row.values[MACHINE]} is given twice"))
        yield {"name": name, "gpu_type": f"GPU-{row.text(MEMORY)}", "quota_type": "GPU", "gpus": row.whole(GPUS)}


def _seen(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    machines: dict[str, int] = {}
    for entry in entries:
        for name, gpus in entry.machines.items():
            machines[name] = max(gpus, machines.get(name, 0))
    return [{"name": name, "gpu_type": "GPU", "gpus": min(gpus, MOST_GPUS)} for name, gpus in sorted(machines.items()) if gpus]
