"""The policies that a simulation can compare."""

from dataclasses import replace

from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import QUEUED, Amount, Quota, Scenario

from .applying import changed, split_anew
from .world import Policy


def fifo(scenario: Scenario) -> Plan:
    """First come, first served over the whole fleet: nobody is preempted, and nobody starts before who came earlier."""
    everyone = Quota("all", None, Amount(), Amount(), 1000, 100, None, None, 0, ())
    settings = replace(scenario.settings, passes=("allocate", "repartition"), forecast="none")
    running = [replace(job, quota="all") for job in scenario.jobs if job.run.workers]
    waiting = [replace(job, quota="all", kind=job.kind) for job in scenario.jobs if not job.run.workers and job.run.state == QUEUED.state]
    plans: list[Plan] = []
    nodes = {node.name: node for node in scenario.nodes}
    wake = min((job.not_before for job in waiting if job.not_before is not None and job.not_before > scenario.now), default=None)
    for job in waiting:
        if job.not_before is not None and job.not_before > scenario.now:
            continue  # it has not come yet
        jobs = tuple(sorted((*running, job), key=lambda one: (one.submitted, one.name)))
        plan = make_plan(replace(scenario, nodes=tuple(nodes.values()), quotas=(everyone,), windows=(), settings=settings, jobs=jobs))
        plans.append(plan)
        started = [decision for decision in plan.decisions if decision.action == "start"]
        if started:
            running.append(changed(job, started[0], scenario.now))
            for decision in plan.decisions:
                if decision.action == "repartition":
                    split_anew(nodes, decision, scenario.now)
        elif not _never(plan):
            wakes = (wake, plan.next_wake)  # an hour's bound on splitting may be what it waits for
            wake = min((at for at in wakes if at is not None), default=None)
            break
    decisions = tuple(decision for plan in plans for decision in plan.decisions if decision.action in ("start", "repartition"))
    metrics = plans[-1].metrics if plans else {}
    return Plan(scenario.now, decisions, (), (), wake, metrics)


def _never(plan: Plan) -> bool:
    """Whether the job that waits could not start on an empty fleet either: nobody waits behind that."""
    return any(one.code in ("no_type", "no_node", "empty_fleet") for waiting in plan.waiting for one in waiting.reasons)


# None is the engine itself, which the world calls with what it keeps between plans.
POLICIES: dict[str, tuple[Policy | None, str]] = {
    "tree": (None, "quota tree with borrowing, reclaim and preemption, as in docs/engine.md"),
    "fifo": (fifo, "first come, first served over the whole fleet, nobody is preempted"),
}
