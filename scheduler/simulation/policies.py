"""The policies that a simulation can compare."""

from dataclasses import replace

from scheduler.engine.cycle import make_plan
from scheduler.engine.plan import Plan
from scheduler.engine.values import QUEUED, Amount, Quota, Scenario

from .applying import changed
from .world import Policy


def fifo(scenario: Scenario) -> Plan:
    """First come, first served over the whole fleet: nobody is put out, and nobody starts before who came earlier."""
    everyone = Quota("all", None, Amount(total=0), Amount(), 1000, 100, None, None, 0, ())
    settings = replace(scenario.settings, passes=("allocate",), forecast="none")
    running = [replace(job, quota="all") for job in scenario.jobs if job.run.workers]
    waiting = [replace(job, quota="all", kind=job.kind) for job in scenario.jobs if not job.run.workers and job.run.state == QUEUED.state]
    plans = []
    for job in waiting:
        jobs = tuple(sorted((*running, job), key=lambda one: (one.submitted, one.name)))
        plan = make_plan(replace(scenario, quotas=(everyone,), windows=(), settings=settings, jobs=jobs))
        plans.append(plan)
        started = [decision for decision in plan.decisions if decision.action == "start"]
        if not started:
            break
        running.append(changed(job, started[0], scenario.now))
    decisions = tuple(decision for plan in plans for decision in plan.decisions if decision.action == "start")
    metrics = plans[-1].metrics if plans else {}
    return Plan(scenario.now, decisions, (), (), None, metrics)


# None is the engine itself, which the world calls with what it keeps between plans.
POLICIES: dict[str, tuple[Policy | None, str]] = {
    "tree": (None, "quota tree with borrowing, reclaim and preemption, as in docs/engine.md"),
    "fifo": (fifo, "first come, first served over the whole fleet, nobody is put out"),
}
