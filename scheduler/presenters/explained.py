"""A plan for people: what happens now and why, then who waits, for what, and what would help."""

from scheduler.engine.model.plan import Decision, Plan, Stand, names
from scheduler.engine.model.reasons import counted, gpus, spell_instant

_VERBS = {"evict": "stop", "reserve": "keep a place for"}  # the others are verbs already
_CHANGES = {
    "topology.required": "with its required level widened to {to}",
    "gpu_types": "on {to}",
    "preemptible": "as preemptible work",
}


def explain(plan: Plan) -> str:
    lines = [f"Plan for {spell_instant(plan.now)}", ""]
    if not plan.decisions:
        lines.append("Nothing changes now.")
    for decision in plan.decisions:
        lines.extend(_decision(decision))
    if plan.waiting:
        lines += ["", "1 job waits:" if len(plan.waiting) == 1 else f"{len(plan.waiting)} jobs wait:"]
    for waiting in plan.waiting:
        lines.append(f"  {waiting.job}")
        lines.extend(f"    - {one.detail} ({one.code})" for one in waiting.reasons)
        if waiting.predicted_start is not None:
            lines.append(f"    expected to start at {spell_instant(waiting.predicted_start)}")
        if waiting.would_start_if is not None:
            lines.append(f"    would start now {change_in_words(*waiting.would_start_if)}")
    lines += ["", "Shares in GPUs (used of fair share; guaranteed; borrowed):"]
    for share in plan.shares:
        promised = "unlimited" if share.guaranteed is None else gpus(share.guaranteed)
        lines.append(f"  {share.quota} [{share.quota_type}]: {gpus(share.used)} of {gpus(share.fair)}; {promised}; {gpus(share.borrowed)}")
    metrics = plan.metrics
    if metrics:
        lines += ["", f"{metrics['allocated']} GPUs are in use, {metrics['gpus']} in service; {metrics['fragmented']} idle ones fit no waiting job."]
    if plan.next_wake is not None:
        lines.append(f"Nothing changes by itself before {spell_instant(plan.next_wake)}.")
    return "\n".join(lines)


def _decision(decision: Decision) -> list[str]:
    if decision.action == "repartition":
        layout = ", ".join(f"{one.profile}@{one.start}" for one in decision.instances) or "whole"
        return [f"  split GPU {decision.gpu} of {decision.node} into {layout}: {decision.why.detail}"]
    line = f"  {_VERBS.get(decision.action, decision.action)} {decision.job}"
    if decision.at is not None:
        line += f" from {spell_instant(decision.at)}"
    if decision.workers and decision.action != "shrink":
        line += f" on {_places(decision.workers)}"
    line += f": {decision.why.detail} ({decision.why.code})"
    if decision.after:
        line += f"; after {names(decision.after)}"
    return [line]


def _places(workers: tuple[Stand, ...]) -> str:
    by_node: dict[str, int] = {}
    for worker in workers:
        by_node[worker.node] = by_node.get(worker.node, 0) + worker.gpus.bit_count()
    return names([f"{node} ({counted(1000 * count)})" if count else node for node, count in by_node.items()], of=" nodes")


def change_in_words(change: str, to: object) -> str:
    """What would let a job start now, as the end of a sentence."""
    shown = " or ".join(map(str, to)) if isinstance(to, list | tuple) else to
    if change.startswith("roles."):
        role = change.split(".")[1]
        return f"with {shown} worker{'s' * (to != 1)}{f' of role {role}' * (role != 'worker')}"
    if change not in _CHANGES:
        return f"with {change} as {shown}"
    return _CHANGES[change].format(to=shown or "the whole cluster")
