"""Who may stand beside a service, one pair of jobs and one node at a time."""

from .world import Job, Node, World


def serves(job: Job) -> bool:
    return job.cls == "inference"


def clash(world: World, one: Job, other: Job, node: Node) -> str:
    """Why two jobs may not both stand on a node; empty where they may."""
    asked = world.settings["colocation"]
    if serves(one) is serves(other):
        return ""
    service, beside = (one, other) if serves(one) else (other, one)
    both_split = one.sharing == other.sharing == "mig"
    known = {(service.tenant, beside.tenant, "node"), *([(service.tenant, beside.tenant, "gpu")] if both_split else [])}
    if known & world.measured:
        return f"{service.name} broke its service level beside {beside.name}"
    if asked == "any":
        return ""
    if known & world.apart:
        return f"{service.name} would break its service level beside {beside.name}"
    if asked == "node" and "cores" not in node.boundaries:
        return f"{node.name} pins nobody to processors"
    return f"{node.name} enforces no MIG instances" if both_split and "mig" not in node.boundaries else ""
