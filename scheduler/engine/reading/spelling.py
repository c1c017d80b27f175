"""A typed scenario as plain data again: reading the result gives the same scenario, and so the same plan."""

import json
from typing import Any
from zlib import crc32

from ..model.plan import Stand
from ..model.values import QUEUED, Job, Kind, Placed, Scenario
from .checkers import spell_instant
from .jobs import job_tables
from .kinds import kind_table
from .nodes import TOPOLOGY, node_codec
from .quotas import quota_codec, window_codec
from .scenario import FORMAT, SETTINGS, demand_codec

_OWN, _STANDING = job_tables(0)
_SHARED = kind_table(())


def spelt(scenario: Scenario) -> dict[str, Any]:
    return _head(scenario) | _rest(scenario) | {"jobs": [_job(job) for job in scenario.jobs]}


def _head(scenario: Scenario) -> dict[str, Any]:
    return {"format": FORMAT, "now": spell_instant(scenario.now), "settings": SETTINGS.write(scenario.settings)}


def _rest(scenario: Scenario) -> dict[str, Any]:
    """What changes seldom: nodes, quotas and what belongs to them."""
    topology = scenario.topology
    node, quota, window, part = node_codec(topology, 0), quota_codec(0), window_codec(0, topology, (), None), demand_codec(topology)
    return {
        "topology": TOPOLOGY.write(topology),
        "nodes": [node.write(one) for one in scenario.nodes],
        "quotas": [quota.write(one) for one in scenario.quotas],
        "reservations": [window.write(one) for one in scenario.windows],
        "demand": [part.write(one) for one in scenario.demand],
    }


def _job(job: Job) -> dict[str, Any]:
    """What is not stated is left out."""
    document = {key: value for key, value in (_OWN.write(job) | _SHARED.write(job.kind)).items() if value is not None and value != {}}
    if not job.movable:
        document["checkpoint"] = None
    if job.run != QUEUED:
        standing = _STANDING.write(job.run)
        standing["workers"] = [_worker(worker, job.kind) for worker in job.run.workers]
        standing["leaving"] = [_worker(worker, job.kind) for worker in job.run.leaving]
        document |= {key: value for key, value in standing.items() if value is not None and value != []}
    return document


def _worker(worker: Placed, kind: Kind) -> dict[str, Any]:
    role = kind.roles[worker.role]
    share = None if role.share_milli is None else worker.share_milli  # one by memory follows from that
    return Stand(role.name, worker.index, worker.node, worker.gpus, share, worker.mig).as_json()


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
        found, part = [_bytes(_head(scenario))[:-1] + b",", self._seldom(scenario) + b',"jobs":['], list[bytes]()
        for job in scenario.jobs:
            known = self._jobs.get(job.name)
            if known is None or known[0] is not job:
                known = (job, _bytes(_job(job)), not crc32(job.name.encode()) % JOBS_A_BLOCK)
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
        parts = (scenario.topology, scenario.nodes, scenario.quotas, scenario.windows, scenario.demand)
        if len(self._fixed[0]) != len(parts) or any(one is not other for one, other in zip(self._fixed[0], parts, strict=True)):
            self._fixed = (parts, _bytes(_rest(scenario))[1:-1])
        return self._fixed[1]


def _bytes(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
