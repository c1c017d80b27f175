"""Scenarios as bytes, most of which are those of the one before."""

import json
from typing import Any
from zlib import crc32

from scheduler.engine.model.values import Job, Scenario
from scheduler.scenarios.spelling import spelt_head, spelt_job, spelt_rest

JOBS_A_BLOCK = 256


class Speller:
    """Scenarios as bytes of JSON, one after the other. What is the same object as last time is not spelt again."""

    def __init__(self) -> None:
        self._jobs: dict[str, tuple[Job, bytes, bool]] = {}
        self._fixed: tuple[tuple[Any, ...], bytes] = ((), b"")

    def spell(self, scenario: Scenario) -> bytes:
        return b"".join(self.blocks(scenario))

    def blocks(self, scenario: Scenario) -> list[bytes]:
        """The document in parts, most of which are the same bytes as last time: a part ends where a job's name says so, not after so many jobs."""
        jobs: dict[str, tuple[Job, bytes, bool]] = {}
        found, part = [_bytes(spelt_head(scenario))[:-1] + b",", self._seldom(scenario) + b',"jobs":['], list[bytes]()
        for job in scenario.jobs:
            known = self._jobs.get(job.name)
            if known is None or known[0] is not job:
                known = (job, _bytes(spelt_job(job)), not crc32(job.name.encode()) % JOBS_A_BLOCK)
            jobs[job.name] = known
            part.append(known[1])
            if known[2]:
                found.append(b",".join(part) + b",")
                part.clear()
        self._jobs = jobs
        if not part and jobs:
            found[-1] = found[-1][:-1]
        return [*found, b",".join(part) + b"]}"]

    def _seldom(self, scenario: Scenario) -> bytes:
        parts = (scenario.topology, scenario.nodes, scenario.quotas, scenario.windows, scenario.demand, scenario.power, scenario.apart)
        if len(self._fixed[0]) != len(parts) or any(one is not other for one, other in zip(self._fixed[0], parts, strict=True)):
            self._fixed = (parts, _bytes(spelt_rest(scenario))[1:-1])
        return self._fixed[1]


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
