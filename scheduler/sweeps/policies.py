"""Policies that a sweep compares: named changes of what a scenario states."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from scheduler.engine.model.values import Kind, Scenario
from scheduler.simulation.policies import POLICIES as SIMULATED
from scheduler.simulation.progress import drawn
from scheduler.simulation.world import Policy

from .sharing.objectives import OBJECTIVES
from .sharing.rounds import BLIND, rounds_of

MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Variant:
    """A scenario as one policy has it."""

    scenario: Scenario
    policy: Policy | None = None  # None: the engine itself
    kinds: Mapping[int, Kind] = field(default_factory=dict)  # what jobs truly are, by the identity of the kind that the scheduler sees


def _placing(placement: str) -> Callable[[Scenario], Variant]:
    return lambda scenario: Variant(replace(scenario, settings=replace(scenario.settings, placement=placement)))


def _without(*passes: str) -> Callable[[Scenario], Variant]:
    left = frozenset(passes)
    return lambda scenario: Variant(
        replace(scenario, settings=replace(scenario.settings, passes=tuple(one for one in scenario.settings.passes if one not in left)))
    )


def _fair(scenario: Scenario) -> Variant:
    settings = scenario.settings
    return Variant(replace(scenario, settings=replace(settings, fairness=replace(settings.fairness, usage_weight_millionths=MILLION))))


def _fifo(scenario: Scenario) -> Variant:
    return Variant(scenario, SIMULATED["fifo"][0])


def _fifo_blind(scenario: Scenario) -> Variant:
    return replace(type_blind(scenario), policy=SIMULATED["fifo"][0])


def _shared(name: str) -> Callable[[Scenario], Variant]:
    return lambda scenario: Variant(scenario, rounds_of(name.removesuffix(BLIND), aware=not name.endswith(BLIND)))


def type_blind(scenario: Scenario) -> Variant:
    """The scheduler sees one speed on every type on which a job runs, and no order of types; jobs run at their true speeds.

    Each kind of job has the types in an order of its own, drawn once: the order of names would favour one type.
    """
    types = {node.gpu_type for node in scenario.nodes}
    seen: dict[int, Kind] = {}
    true: dict[int, Kind] = {}
    jobs = []
    for job in scenario.jobs:
        kind = job.kind
        if id(kind) not in seen:
            order = sorted(types, key=lambda name: drawn("type", len(seen), name))
            # An order makes two kinds of one role differ; a role that names no type may stand on all of them.
            roles = tuple(replace(role, gpu_types=_in(order, role.gpu_types)) if role.gpus or role.parted else role for role in kind.roles)
            blind = replace(kind, roles=roles, throughput=tuple((name, speed) for name, speed in kind.throughput if speed == 0))
            seen[id(kind)], true[id(blind)] = blind, kind
        jobs.append(replace(job, kind=seen[id(kind)]))
    return Variant(replace(scenario, jobs=tuple(jobs)), kinds=true)


def _in(order: list[str], stated: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(one for one in order if not stated or one in stated) or stated


SHARED = {
    f"{name}{'' if aware else BLIND}": f"time shares: {meaning}{'' if aware else '; it knows no speeds'}"
    for name, (_, meaning) in OBJECTIVES.items()
    for aware in (True, False)
}
# Every policy changes one thing of the scenario, so that what differs is due to it.
POLICIES: dict[str, tuple[Callable[[Scenario], Variant], str]] = {
    "stated": (Variant, "the settings as the scenario states them"),
    "fifo": (_fifo, "baseline: one queue in order of submission; no quotas, no backfill, no preemption"),
    "type-blind": (type_blind, "baseline: the scheduler knows no job's speed by GPU type and no order of types"),
    "fair": (_fair, "past usage counts fully in shares (fairness.usage_weight 1)"),
    "pack": (_placing("pack"), "placement pack"),
    "spread": (_placing("spread"), "placement spread"),
    "fgd": (_placing("fgd"), "placement by fragmentation"),
    "no-backfill": (_without("backfill"), "without the pass backfill"),
    "no-preemption": (_without("reclaim", "preempt"), "without the passes reclaim and preempt"),
    "fifo-blind": (_fifo_blind, "fifo that knows no job's speed by GPU type and no order of types"),
    **{name: (_shared(name), meaning) for name, meaning in SHARED.items()},
}
BASELINES = ("fifo", "type-blind")
