"""What must hold of the roles of one job together: their GPU types, their groups, and how they share GPUs."""

from collections.abc import Sequence

from ..model.reasons import counted
from ..model.values import CLASS_RANK, Placing, Role
from .checkers import Faults

Path = tuple[str | int, ...]


def check_types(roles: Sequence[Role], path: Path, faults: Faults) -> None:
    """A gang is judged in one quota type at a time, so its roles must have one in common."""
    named = [set(role.gpu_types) for role in roles if role.gpu_types and (role.gpus or role.parted)]
    if len(named) > 1 and not set.intersection(*named):
        faults.add((*path, "roles"), "roles that share no GPU type are not supported: a gang stands in one quota type")


def check_groups(role: Role, placing: Placing, path: Path, place: int, faults: Faults) -> None:
    """Its workers come to whole groups: several of them hold one together, or each holds some."""
    group = role.placing.tp_group if role.placing is not None else placing.tp_group
    if not role.gpus or not (group % role.gpus and role.gpus % group):
        return
    detail = f"workers of {counted(1000 * role.gpus)} hold no whole groups of {group}: it must divide their GPUs, or be a multiple of them"
    if group == placing.tp_group:
        faults.add((*path, "topology", "tp_group"), f"{detail}; a role may state its own")
    else:
        faults.add((*path, "roles", place, "topology", "tp_group"), detail)


def check_sharing(stated: str | None, roles: Sequence[Role], rank: int, placing: Placing, path: Path, faults: Faults, *, told_all: bool) -> str:
    """How its workers share GPUs. `told_all`: whether every role could be read; of one that could not nobody knows what it asks for."""
    parted = [role for role in roles if role.parted]
    wants_mig = any(role.mig is not None for role in roles)
    sharing = stated or ("mig" if wants_mig else "mps" if parted else "exclusive")
    if parted and sharing == "exclusive":
        faults.add((*path, "sharing"), "a part of a GPU needs mig, mps or timeslice")
    if told_all and not parted and sharing != "exclusive":
        faults.add((*path, "sharing"), f"{sharing} needs a role that asks for a part (mig, gpu_memory_gb or gpu_share)")
    if wants_mig and sharing != "mig":
        faults.add((*path, "sharing"), f"a MIG profile can't be served by {sharing}")
    if sharing == "mig" and any(role.share_milli is not None for role in roles):
        faults.add((*path, "sharing"), "gpu_share needs mps or timeslice; MIG has profiles (mig) or memory (gpu_memory_gb)")
    if sharing == "timeslice" and CLASS_RANK["interactive"] != rank:
        faults.add((*path, "sharing"), "time slices serve the interactive class only")
    groups = [placing.tp_group, *(role.placing.tp_group for role in roles if role.placing)]
    if parted and max(groups) > 1:
        faults.add((*path, "topology", "tp_group"), "a group that needs NVLink takes whole GPUs")
    return sharing
