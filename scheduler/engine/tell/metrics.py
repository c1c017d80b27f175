"""How much of the fleet is in use, and how much of what is idle nobody could use."""

from functools import cache
from typing import Any

from ..model.mig import board_of, fitting_profiles
from ..model.reasons import thousandths
from ..state.grid import Ints
from ..state.planning import Cycle
from .rooms import mig_splits


def measure(cycle: Cycle) -> dict[str, Any]:
    grid = cycle.grid
    milli = sum(division.used[place] for division in cycle.tree.divisions for place in cycle.tree.children[0])
    result: dict[str, Any] = {"gpus": grid.gpus, "allocated": thousandths(milli), "fragmented": fragmented(cycle), "largest_gang": {}}
    room = cycle.fleet.soon.count_np * grid.startable[False]  # idle GPUs by node that a start may use
    for index, name in enumerate(grid.types):
        idle = room * grid.on_type[index]
        result["largest_gang"][name] = {level.name: int(level.sums(idle).max()) if len(level) else 0 for level in grid.levels}
    if cycle.cluster.scenario.demand:
        result["fragmented_by_demand"] = _against_demand(cycle, room)
    if stranded := _idle_slices(cycle):
        result["idle_slices"] = stranded
    if displaced := cycle.cluster.windows.displaced_by(cycle.cluster):
        result["displaced"] = [{"window": window, "job": job} for window, job in displaced]
    return result


def fragmented(cycle: Cycle) -> int:
    """Idle GPUs that a waiting job can't use, on average over the jobs that wait."""
    if not cycle.fleet.soon.idle:
        return 0
    counts = {key: [form, count] for key, (form, count) in cycle.waiting.queues.alike.items()}
    started = [work for work in dict.fromkeys(cycle.cluster.journal) if work.seats and not work.first_seats]
    put_out = [work for work in cycle.waiting.asking_again() if work.first_seats and not work.seats and not work.stale]
    for works, sign in ((started, -1), (put_out, 1)):
        for work in works:
            counts.setdefault((work.form.shape, work.types[0]), [work.form, 0])[1] += sign
    total = weight = 0
    room = cycle.slots(cycle.fleet.soon)
    for (_, quota_type), (form, count) in counts.items():
        if count and form.largest is not None:
            weight += count
            total += count * room.useless(form, form.largest, quota_type)
    return total // weight if weight else 0


def _against_demand(cycle: Cycle, room: Ints) -> float:
    """Idle GPUs that the usual demand can't use, on average over the demand."""
    grid, idle = cycle.grid, int(room.sum())
    total = weight = 0
    for part in cycle.cluster.scenario.demand:
        if not part.gpus:
            continue  # of whole GPUs nothing is useless to who asks for a share, and who asks for none is not asked here
        slots = room // part.gpus
        sums = slots.sum(keepdims=True) if part.required is None else grid.levels[grid.level_index[part.required]].sums(slots)
        usable = int(sums[sums >= part.workers].sum()) * part.gpus
        total += part.share * (idle - usable)
        weight += part.share
    return round(total / weight, 3) if weight else 0.0


def _idle_slices(cycle: Cycle) -> int:
    """Empty MIG instances that no waiting job asks for."""
    splits = [(board_of(cycle.grid.nodes[node].gpu_type), split) for node, split in mig_splits(cycle)]
    if not splits:
        return 0
    roles = [role for form in {work.form for work in cycle.waiting if work.kind.sharing == "mig"} for role in form.kind.roles if role.parted]
    asked = cache(lambda board: {name for role in roles for name, _ in fitting_profiles(role, board)})
    empty = ((board, one) for board, split in splits if board is not None for one in split.instances if one not in split.taken)
    return sum(one.profile not in asked(board) for board, one in empty)
