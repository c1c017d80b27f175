"""Why even an empty fleet refuses a job."""

from .capacity import Capacity, widest
from .cluster import Cluster, Work
from .reasons import Reason, reason
from .values import Kind


def never_fits(cluster: Cluster, empty: Capacity, work: Work) -> Reason:
    """The reason, from the room of the fleet were nothing there."""
    kind = work.kind
    role = max(kind.roles, key=lambda one: (one.gpus, one.least))
    best = 0
    level = widest(cluster, kind)
    for quota_type in work.types:
        eligible = cluster.grid.eligible(kind, role, quota_type, suspect=kind.tolerates_suspect, spare=False)
        if not role.parted:
            best = max(best, empty.most(role, eligible, level))
    where = level_name(cluster, kind)
    if role.parted:
        return reason("no_node", f"no node offers what role {role.name} asks for, however empty")
    if not best:
        wanted = f"{role.gpus} GPUs, {role.cpus} processors and {role.host_memory_mib // 1024} GB on one node"
        return reason("no_node", f"no node, however empty, offers role {role.name} its {wanted}, labels and attributes")
    detail = f"the largest {where}, were it empty, holds {best} of {role.least} workers of {role.gpus} GPUs"
    return reason("empty_fleet", detail, level=where, holds=best, needed=role.least)


def level_name(cluster: Cluster, kind: Kind) -> str:
    level = widest(cluster, kind)
    return "fleet" if level < 0 else cluster.grid.level_names[level]
