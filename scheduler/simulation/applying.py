"""The world after a plan was carried out, as the next scenario: typed in, typed out."""

from dataclasses import replace

from scheduler.engine.model.plan import Decision, Plan, Stand
from scheduler.engine.model.values import HOUR_MS, QUEUED, Job, Kind, Node, Placed, Run, Scenario, SplitGpu, new_placed, new_run


def placed(kind: Kind, stands: tuple[Stand, ...]) -> tuple[Placed, ...]:
    if len(kind.roles) == 1:
        return tuple([new_placed(0, index, node, gpus, share, mig) for _, index, node, gpus, share, mig in stands])
    roles = {role.name: place for place, role in enumerate(kind.roles)}
    return tuple([new_placed(roles[role], index, node, gpus, share, mig) for role, index, node, gpus, share, mig in stands])


def carried_out(scenario: Scenario, plan: Plan) -> Scenario:
    """Everyone who had to leave is gone, everyone who was to start runs; time stands still."""
    jobs: dict[str, Job] = {job.name: job for job in scenario.jobs}
    nodes: dict[str, Node] = {node.name: node for node in scenario.nodes}
    leavers = {name for decision in plan.decisions for name in decision.after}
    for decision in plan.decisions:
        if decision.action == "repartition":
            split_anew(nodes, decision, scenario.now)
        elif decision.job is not None and decision.action != "reserve":
            jobs[decision.job] = changed(jobs[decision.job], decision, scenario.now)
    left = (job for job in jobs.values() if not (job.run.state == "stopping" and job.name in leavers))
    return replace(scenario, jobs=tuple(left), nodes=tuple(nodes[node.name] for node in scenario.nodes))


def split_anew(nodes: dict[str, Node], decision: Decision, now: int) -> None:
    assert decision.node is not None
    assert decision.gpu is not None
    node, gpu = nodes[decision.node], decision.gpu
    rest = [one for one in node.mig if one.gpu != gpu]
    if decision.instances:
        rest.append(SplitGpu(gpu, tuple(sorted(decision.instances))))
    lately = (*(at for at in node.repartitioned if at > now - HOUR_MS), now)
    nodes[node.name] = replace(node, mig=tuple(sorted(rest)), repartitioned=lately)


def changed(job: Job, decision: Decision, now: int) -> Job:
    run = job.run
    if decision.action == "evict":
        return replace(job, run=replace(QUEUED, last_evicted=now, evictions=run.evictions + 1))
    workers = placed(job.kind, decision.workers)
    if decision.action == "start":
        run = new_run("running", now, now, None, workers, (), decision.backfilled, None, run.last_evicted, run.last_moved, run.evictions)
    elif decision.action == "move":
        run = replace(run, workers=workers, started=now, last_moved=now, backfilled=decision.backfilled)
    elif decision.action == "repair":
        run = replace(run, workers=workers, degraded_since=None)
    else:
        run = replace(run, workers=workers)
    return replace(job, run=replace(run, reclaimed=came_by_reclaim(run, decision, now)))


def came_by_reclaim(run: Run, decision: Decision, now: int) -> int | None:
    """When the job came to its place by reclaim, after the decision."""
    if decision.action in ("start", "repair", "grow") and decision.why.code == "reclaim":
        return now
    return None if decision.action == "start" else run.reclaimed
