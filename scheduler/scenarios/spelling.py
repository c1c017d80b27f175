"""A typed scenario as plain data again: reading the result gives the same scenario, and so the same plan."""

from typing import Any

from scheduler.engine.model.plan import Stand
from scheduler.engine.model.values import NO_POWER, QUEUED, Job, Kind, Placed, Scenario

from .checkers import spell_instant
from .jobs import job_tables
from .kinds import kind_codec
from .nodes import TOPOLOGY, node_codec
from .power import power_codec
from .quotas import quota_codec, window_codec
from .reading import APART, FORMAT, SETTINGS, demand_codec

_OWN, _STANDING = job_tables(0)
_SHARED = kind_codec(())


def spelt(scenario: Scenario) -> dict[str, Any]:
    return spelt_head(scenario) | spelt_rest(scenario) | {"jobs": [spelt_job(job) for job in scenario.jobs]}


def spelt_head(scenario: Scenario) -> dict[str, Any]:
    return {"format": FORMAT, "now": spell_instant(scenario.now), "settings": SETTINGS.write(scenario.settings)}


def spelt_rest(scenario: Scenario) -> dict[str, Any]:
    """What changes seldom: nodes, quotas and what belongs to them."""
    topology = scenario.topology
    node, quota, window, part = node_codec(topology, 0), quota_codec(0), window_codec(0, topology, (), None), demand_codec(topology)
    power = {"power": power_codec(0, None).write(scenario.power)} if scenario.power != NO_POWER else {}
    apart = {"apart": APART.write(scenario.apart)} if scenario.apart else {}
    return (
        power
        | apart
        | {
            "topology": TOPOLOGY.write(topology),
            "nodes": [node.write(one) for one in scenario.nodes],
            "quotas": [quota.write(one) for one in scenario.quotas],
            "reservations": [window.write(one) for one in scenario.windows],
            "demand": [part.write(one) for one in scenario.demand],
        }
    )


def spelt_job(job: Job) -> dict[str, Any]:
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
