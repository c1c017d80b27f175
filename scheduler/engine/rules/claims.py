"""Who is charged to the window of his class: what stands inside no guarantee of its own queue, first come first served.

That a window is a node of its own at the top of the tree, and so no share of a queue: tree.py. Which windows a waiting job may be charged to:
`leaves_of` in cluster.py.
"""

from typing import TYPE_CHECKING

from ..model.values import Window
from ..state.tree import WINDOW_MARK
from ..state.work import Work
from .gates import limit_gate

if TYPE_CHECKING:
    from ..state.planning import Cycle
    from .windows import Charged


def claims(cluster: "Charged") -> dict[Work, int]:
    """Who is charged to a window of his class, and to which."""
    claimed: dict[Work, int] = {}
    beyond = _beyond_guarantees(cluster)
    for window in cluster.windows.of_classes:
        leaf, room = cluster.tree.position[WINDOW_MARK + window.name], window.gpus
        for work in beyond:
            if work not in claimed and _may_be_charged(cluster, window, work) and _asks(work) <= room:
                room -= _asks(work)
                claimed[work] = leaf
    return claimed


def charge_claims(cycle: "Cycle") -> None:
    """Charge to windows of classes what the next plan will: who came may stand beyond his guarantee, and who left may have made room in one."""
    cluster, windows, tree = cycle.cluster, cycle.cluster.windows, cycle.cluster.tree
    if not windows.of_classes or not cluster.journal or windows.claimed_at == cycle.placed:
        return
    before, claimed = len(cluster.journal), claims(cluster)
    for work in cluster.works:
        leaf = claimed.get(work, work.home)
        if work.seats and work.charged_leaf != leaf and (leaf != work.home or limit_gate(tree, leaf, work.quota_type, work.milli) is None):
            cluster.charge_elsewhere(work, leaf)
    if len(cluster.journal) > before:
        cycle.changed()
    windows.claimed_at = cycle.placed


def _beyond_guarantees(cluster: "Charged") -> list[Work]:
    """Those of the classes of windows who would be borrowed at a node above them, where all its work is lined up but what windows can hold; in the
    order in which they come to a window: of those who began at one moment, who took back its place stands there by its name."""
    tree, windows, found = cluster.tree, cluster.windows, []
    since = {work: work.here_since(windows.now) for work in cluster.works if work.seats}
    sums: dict[tuple[int, int], int] = {}
    for work in sorted(since, key=lambda one: (one.form.protected, since[one], one.job.name)):
        at = tree.division_of[work.quota_type]
        promised = tree.divisions[at].guaranteed
        sums_with = {(at, place): sums.get((at, place), 0) + work.milli for place in tree.path[work.home]}
        if any(total > most for (_, place), total in sums_with.items() if (most := promised[place]) is not None):
            if mine := [window for window in windows.of_classes if _may_be_charged(cluster, window, work)]:
                found.append(work)
            if any(_asks(work) <= window.gpus for window in mine):
                continue
        sums.update(sums_with)
    return sorted(found, key=lambda one: (since[one], not _took_back(one), one.order))


def _asks(work: Work) -> int:
    """What it asks of a window: what it holds, and what its minimum lacks."""
    return work.milli + work.missing_milli(work.quota_type)


def _took_back(work: Work) -> bool:
    return work.job.run.reclaimed is not None if work.first_seats else work.why is not None and work.why.code == "reclaim"


def _may_be_charged(cluster: "Charged", window: Window, work: Work) -> bool:
    return work.kind.class_rank == window.class_rank and cluster.grid.types[work.quota_type] == window.gpu_type
