"""Who may stand beside a service, one pair of jobs and one node at a time."""

from .world import Job, Node, World


def serves(job: Job) -> bool:
    return job.cls == "inference"


def clash(world: World, one: Job, other: Job, node: Node) -> str:
    """Why two jobs may not both stand on a node; empty where they may."""
    asked = world.settings["colocation"]
    if asked == "any" or serves(one) is serves(other):
        return ""
    service, beside = (one, other) if serves(one) else (other, one)
    both_split = one.sharing == other.sharing == "mig"
    if (service.tenant, beside.tenant, "node") in world.apart or (both_split and (service.tenant, beside.tenant, "gpu") in world.apart):
        return f"{service.name} would break its service level beside {beside.name}"
    if asked == "node" and "cores" not in node.boundaries:
        return f"{node.name} pins nobody to processors"
    return f"{node.name} enforces no MIG instances" if both_split and "mig" not in node.boundaries else ""
