"""A place for a job as it waits: the tightest that suffices, in one view of the fleet."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..state.fleet import NO_PARTS, Seat, View, lowest, new_seat
from ..state.work import Work
from .placement import Placer, best_node

if TYPE_CHECKING:
    from ..state.planning import Cycle


def fit(cycle: "Cycle", work: Work, quota_type: int, view: View, banned: int = 0, budget: Mapping[str, int] | None = None) -> tuple[Seat, ...] | None:
    """Take places for what is missing of a job, a repair on spares where nothing else suffices; the seats, or None and nothing taken."""
    banned |= cycle.cluster.apart(work)
    if is_alone(cycle, work):
        return fit_one(cycle, work, quota_type, view, banned)
    wants = work.missing()
    repairing = bool(work.seats)
    if not repairing and not cycle.slots(view).could_fit(work.form, quota_type, suspect=work.kind.tolerates_suspect):
        return None
    for spare in (False, True)[: 1 + repairing]:
        placer = Placer(cycle.cluster, work, quota_type, view, banned=banned, spare=spare, budget=budget)
        seats = placer.place(wants)
        if seats is not None:
            for key in placer.parts.new_splits:
                cycle.cluster.split_anew(work, key)
            return seats
    return None


def is_alone(cycle: "Cycle", work: Work) -> bool:
    """Whether it asks for one worker of whole GPUs that may stand on any node that serves it."""
    form = work.form
    return form.sole and not work.seats and not form.kind.tolerates_suspect and not cycle.grid.narrow_islands


def fit_one(cycle: "Cycle", work: Work, quota_type: int, view: View, banned: int) -> tuple[Seat] | None:
    """The seat of a job that `is_alone`, on the tightest node; None where none has room."""
    role = work.kind.roles[0]
    bits = work.form.eligible(0, quota_type, suspect=False, spare=False).bits
    if banned:
        bits &= ~banned
    node = best_node(cycle.cluster, view, role, bits)
    if node is None:
        return None
    seat = new_seat((0, 0, node, lowest(view.free[node], role.gpus), role.cpu_milli, role.host_memory_mib, role.gpus * 1000, NO_PARTS))
    cycle.fleet.take(seat)
    return (seat,)
