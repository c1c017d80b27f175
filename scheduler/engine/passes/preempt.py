"""Inside one leaf: strictly lower work gives way to higher."""

from ..model.reasons import Reason, reason
from ..rules.legality import beyond_share, grows_beyond_share, worth
from ..search.evicting import NOTHING, at_limits, fits_already, request, take_cheaply, take_units, tell, told_before
from ..search.units import Unit
from ..search.victims import Found, Ranked, as_if_running, has_fresh, in_categories, no_larger
from ..state.planning import Cycle, Sieve
from ..state.work import Work
from .reclaim import beyond_guarantee, walk

SOME = 64  # jobs of a leaf that are looked at one by one


def run(cycle: Cycle) -> None:
    walk(cycle, may_preempt, preempt, HIGH_ENOUGH, [cycle.idle_milli(quota_type) for quota_type in range(len(cycle.grid.types))])


def high_enough(cycle: Cycle, idle: list[int], leaf: int, queue: list[Work]) -> list[Work]:
    """Those above the lowest that runs in a leaf, as far as all of it together with what is idle could be enough."""
    queue = cycle.above(queue, cycle.least_level)
    if not queue:
        return []
    standing = cycle.standing
    lowest = standing.lowest(leaf)
    if lowest is None:
        return []
    most = lowest.milli + sum(idle)
    high = [work for work in cycle.above(queue, lowest.level) if work.form.lowest <= most or work.seats]
    asked = cycle.as_it_waits(leaf, idle) if high else None
    if asked is None:
        return high
    known = standing.kept(("high", leaf), leaf)
    if known is not None and known[0] == asked:
        found: list[Work] = known[1]
        return found
    # What decides about them is known until something of it changes.
    high = [work for work in high if work.seats or any(may_preempt(cycle, work, quota_type) for quota_type in work.types)]
    standing.keep(("high", leaf), leaf, (asked, high))
    return high


HIGH_ENOUGH = Sieve("preempt", high_enough)


def may_preempt(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """The cheap half: what is lower in the leaf would be enough, in sum and beside the share that is left."""
    leaf = work.charged_leaf if work.seats else work.home
    milli = request(cycle, work, quota_type)
    lower = cycle.standing.freeable_below(leaf, quota_type, work.form.level)
    if not lower or lower + cycle.idle_milli(quota_type) < milli:
        return False
    if work.fixed and beyond_guarantee(cycle, work, leaf, quota_type, milli):
        return False  # whoever gives way is preemptible, and makes no room among what is not
    if lower >= milli:
        return True
    division = cycle.tree.divisions[cycle.tree.division_of[quota_type]]
    return division.used[leaf] - lower + milli <= division.fair[leaf]


def room_without_all(cycle: Cycle, work: Work, quota_type: int, leaf: int) -> bool:
    """A bound: False where no domain that lacks room for the job would have it with all lower work of its leaf gone that is ever preemptible."""
    form = work.form
    if work.seats or not form.plain or not form.roles[0].gpus:
        return True
    role, grid, soon = form.roles[0], cycle.grid, cycle.fleet.soon
    gpus, free = role.gpus, soon.count
    eligible = form.eligible(grid, 0, quota_type, suspect=form.kind.tolerates_suspect, spare=False)
    flags = eligible.flags
    level = grid.levels[form.width] if form.width >= 0 and len(grid.levels[form.width]) > 1 else None
    more: dict[int, int] = {}
    for node, count in _held_below(cycle, leaf, form.level).items():
        # What the host lacks may come free as well, so only GPUs are counted, and what is there now counts for nothing on this node.
        if flags[node] and (room := (free[node] + count) // gpus):
            domain = 0 if level is None else level.domain_of(node)
            more[domain] = more.get(domain, 0) + room
    if more:
        sums = cycle.capacity(soon).sums(role, eligible, -1 if level is None else form.width)
        if any(sums[domain] < role.least <= sums[domain] + room for domain, room in more.items()):
            return True
    return bool(at_limits(cycle, work, quota_type))


def _held_below(cycle: Cycle, leaf: int, level: tuple[int, int]) -> dict[int, int]:
    """GPUs by node of a leaf's work below a class and number, as far as it is ever preemptible; of many jobs, of all of them."""
    below = cycle.standing.below(leaf)
    if len(below) > SOME:
        return {node: count for node, (count, _) in cycle.standing.on_node(leaf).items()}
    held: dict[int, int] = {}
    for one in below:
        if one.form.level < level and not one.fixed:
            for seat in one.seats:
                held[seat.node] = held.get(seat.node, 0) + seat.mask.bit_count() + len(seat.parts)
    return held


def ranked_units(cycle: Cycle, work: Work, quota_type: int, leaf: int, large: int) -> Ranked:
    """Lower units of the leaf that are not protected, in the order in which they are tried."""
    units = cycle.units()
    division = cycle.tree.divisions[cycle.tree.division_of[quota_type]]
    until = cycle.now - cycle.tree.nearest(leaf, "preempt_min_runtime_ms", cycle.settings.preempt_min_runtime_ms)
    level = work.form.level
    key = ("preempt", leaf, level, quota_type, until, large)
    known: Ranked | None = units.kept(key, leaf)
    if known is not None:
        return known
    outside = units.borrowed(leaf, division)
    lower = (
        unit
        for unit in units.of_leaf(leaf)
        if unit.work.quota_type == quota_type and unit.work.form.level < level and (unit.surplus or unit.fresh or unit.began <= until)
    )
    return units.keep(key, leaf, in_categories(lower, outside, large))


def preempt(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    leaf = work.charged_leaf if work.seats else work.home
    key = ("preempt", leaf, work.form.level, work.form.shape, quota_type, work.fixed)
    known = told_before(cycle, key, work)
    if known is not None:
        return known
    if fits_already(cycle, work, quota_type) or not room_without_all(cycle, work, quota_type, leaf):
        return NOTHING
    milli = request(cycle, work, quota_type)
    large = max(8000, 2 * milli)
    ranked = ranked_units(cycle, work, quota_type, leaf, large)
    name = work.job.name

    def why(_: object) -> Reason:
        return reason("preempt", f"{name} has a higher class or number in the same queue")

    def legal(unit: Unit, _: dict[int, int]) -> int | None:
        return leaf

    def guard(found: Found) -> Reason | None:
        return grows_beyond_share(cycle, leaf, quota_type, milli, found) or worth(cycle, work, leaf, quota_type, milli, found)

    def take_from(ranked: Ranked, which: str) -> Reason | None:
        alike = None if which == "later" else ("preempt", leaf, work.form.level, work.form.shape, quota_type, which)
        refused = take_units(cycle, work, quota_type, ranked, legal, why, guard, alike)
        if refused is None or refused.code != "share":
            return refused
        # The least that makes room needs idle GPUs beside it; more, or others, may need none.
        more = ((leaf, leaf + 1, beyond_share(cycle, leaf, quota_type, milli)),)
        again = take_units(cycle, work, quota_type, ranked, legal, why, guard, more=more)
        return refused if again is NOTHING else again

    def take(ranked: Ranked, *, later: bool = False) -> Reason | None:
        small = no_larger(ranked, large)
        refused = take_from(small, "later" if later else "small")
        if (refused is NOTHING or (refused is not None and refused.code == "share")) and len(small) < len(ranked):
            refused = take_from(ranked, "later" if later else "all")
        return refused

    if take_cheaply(
        cycle, work, quota_type, no_larger(ranked, large), legal, why, guard, ("preempt", leaf, work.form.level, work.form.shape, quota_type), leaf
    ):
        return None
    refused = take(ranked)
    if refused is not None and has_fresh(ranked) and take(as_if_running(ranked), later=True) is None:
        refused = None
    if refused is not None:
        tell(cycle, key, work, refused)
    return refused
