"""All that stands in the way of a waiting job, with numbers and names. Computed once per queue and shape."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import Literal

from ..model.plan import names
from ..model.reasons import Reason, gpus, reason, spell_instant
from ..model.values import ANY_TYPE, Preemptible
from ..passes.consolidate import no_moves, used_up
from ..passes.repartition import could_serve
from ..rules.gates import guarantees_refusing, limits_refusing
from ..rules.legality import Reclaim
from ..rules.times import may_cause_evictions, overdue, protected_for
from ..search.evicting import NOTHING
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work
from .rooms import Rooms

Reasons = tuple[Reason, ...]


class Blockers:
    """Reasons of the final state."""

    def __init__(self, cycle: Cycle, *, foresees: bool) -> None:
        self.cycle = cycle
        self.rooms = Rooms(cycle, foresees=foresees)
        self._groups: dict[tuple[object, ...], Reasons] = {}  # by leaf and shape, and by what else decides
        # The nodes below another one that use more than they may count on.
        self._above = cache(lambda each, over: [place for place in cycle.tree.children[over] if each.used[place] > each.counts_on[place]])
        settings = cycle.settings
        moves = "consolidate" in settings.passes and cycle.cluster.moves_left <= 0 and settings.max_moves
        self._used_up = used_up(moves) if moves else None
        # Beside notes.
        self._any_own = bool(cycle.cluster.windows.upcoming or cycle.cluster.power or cycle.cluster.colocation) or self._used_up is not None
        self._leaves_out = settings.max_moves == 0 or not {"consolidate", "reclaim", "preempt", "repartition"} <= set(settings.passes)
        self._protects = bool(settings.preempt_min_runtime_ms) or cycle.tree.protects  # whether lower work of a queue may be safe for a while
        self._shortages = {division.name: _shortage(cycle.tree, division, total) for division, total in cycle.tree.shortage()}

    def of(self, work: Work) -> Reasons:
        if (static := self.cycle.waiting.static.get(work.order)) is not None:
            return static
        if work.stale:
            return (reason("stale", "ended in this plan; it can start in the next"),)
        group = self._group(work)
        own = self._own(work, group) if self._any_own or work.order in self.cycle.waiting.notes else {}
        late = not may_cause_evictions(self.cycle, work)
        if not own and not late:
            return group
        shared = tuple(one for one in group if one is not ORDER)  # there is more to say than that
        extra = [found for code, found in sorted(own.items()) if not any(one.code == code for one in shared)]
        safe = self._safe([work.home], "preempt") if self._ranks_above(work) else 0
        extra = [_with_safe(found, safe) if found.code == "victims" else found for found in extra]
        if late:
            at = spell_instant(work.job.submitted + work.kind.preemption_delay_ms)
            extra.append(reason("delay", f"causes no eviction before {at}", until=at))
        if late or any(found.code in ("balance", "worth") for found in extra):
            shared = tuple(one for one in shared if one.code != "victims")  # nobody was asked yet, or there is more to say of it
        return shared + tuple(extra)

    def _group(self, work: Work) -> Reasons:
        """What the jobs of a queue that ask for the same have in common."""
        key = (work.home, work.form.shape, work.form.fixed, work.types, self._protects and self._ranks_above(work))
        known = None if work.seats else self._groups.get(key)
        if known is None:
            found = [one for quota_type in work.open_types for one in self._of_type(work, quota_type)]
            known = tuple(dict.fromkeys(found)) or (ORDER,)
            if not work.seats:
                self._groups[key] = known
        return known

    def _ranks_above(self, work: Work) -> bool:
        """Whether there may be work below it that it could preempt."""
        return work.form.level > self.cycle.cluster.forms.least_level

    def _own(self, work: Work, group: Reasons) -> dict[str, Reason]:
        """What the passes have found in its way, as far as that is still so, and what keeps it from a start as well."""
        cycle = self.cycle
        own = dict(cycle.waiting.notes.get(work.order, {}))
        if not work.form.parted and not SPLITTING.isdisjoint(own) and not self.rooms.may_join(work):
            own = {code: found for code, found in own.items() if code not in SPLITTING}
        codes = {one.code for one in group}
        if cycle.cluster.windows.upcoming and "window" not in own:
            own |= _refusal("window", partial(cycle.cluster.windows.gate, cycle.cluster), work)
        if (power := cycle.cluster.power) is not None:
            never = power.never(work)
            own |= _refusal("power", partial(power.gate, cycle), work) if never is None else {"power": never}
        if cycle.cluster.colocation is not None and (node := self.rooms.closed(work)) is not None:
            own["colocation"] = cycle.cluster.colocation.reason(work, node)
        # Whether others could be moved for it, as far as that is told without looking for whom.
        movable = work.kind.preemptible is Preemptible.ALWAYS and not codes.isdisjoint(("fragmentation", "topology"))
        if self._used_up is not None and "moves" not in own and movable and not overdue(cycle, work):
            own["moves"] = self._used_up
        in_vain = ("moves" in own or own.get("victims") is NOTHING) and codes.isdisjoint(("limit", "guarantee"))
        if in_vain and any(self.rooms.of(work, quota_type) is None for quota_type in work.open_types):  # nobody who runs is in its way
            own = {code: found for code, found in own.items() if code != "moves" and found is not NOTHING}
        return own

    def _of_type(self, work: Work, quota_type: int) -> list[Reason]:
        cycle, leaf, milli = self.cycle, work.leaf, work.missing_milli(quota_type)
        found = list(limits_refusing(cycle.tree, leaf, quota_type, milli)) if cycle.tree.limited else []
        if work.form.fixed:
            found.extend(guarantees_refusing(cycle.tree, leaf, quota_type, milli, cycle.cluster.windows.ends(work)))
        if (room := self.rooms.of(work, quota_type)) is not None:
            found.append(room)
            if "reclaim" in cycle.settings.passes:
                found.extend(self._share(work, leaf, quota_type, milli))
            if (short := self._shortages.get(cycle.tree.division(quota_type).name)) is not None:
                found.append(short)
            if self._leaves_out:
                found.extend(self._left_out(work, quota_type, room))
        if not found and not work.seats and "allocate" not in cycle.settings.passes:
            found.append(reason("passes", f"fits, but only {names(cycle.settings.passes)} run"))
        return found

    def _left_out(self, work: Work, quota_type: int, room: Reason) -> Iterator[Reason]:
        """That nobody may be moved or put out, nor a GPU be split anew, where that could make room."""
        settings = self.cycle.settings
        if room.code in ("fragmentation", "topology"):
            if "consolidate" not in settings.passes:
                yield reason("passes", "no running job is moved to make room: consolidate is switched off")
            elif settings.max_moves == 0:
                yield no_moves(0)
        if "repartition" not in settings.passes and could_serve(self.cycle, work, quota_type):
            yield reason("repartition", "a GPU could be repartitioned for it, but repartition is switched off", off=True)
        if evicting := [name for name in ("reclaim", "preempt") if name not in settings.passes]:
            yield reason("passes", f"no job is evicted to make room: {' and '.join(evicting)} {'are' if len(evicting) > 1 else 'is'} switched off")

    def _share(self, work: Work, leaf: int, quota_type: int, milli: int) -> Reasons:
        """What the shares say: only what is idle may be used, or nobody uses more than his, or what those who do have is not enough."""
        tree, name, division = self.cycle.tree, self.cycle.tree.names[leaf], self.cycle.tree.division(quota_type)
        used, fair = division.used[leaf], division.fair[leaf]
        if used + milli > fair:
            detail = f"{name} uses {gpus(used)} of a fair share of {tree.amount(division, fair)}"
            detail += f"; with {gpus(milli)} more it may only use what is idle"
            facts = {"used": used / 1000, "fair": fair / 1000, "needed": milli / 1000, **of_type(division)}
            return (reason("share", detail, quota=name, **facts),)
        places = [over for place in tree.path[leaf] for over in self._above(division, tree.parent[place]) if over != place]
        above = [tree.names[over] for over in places]
        own = self._safe([leaf], "preempt") if self._ranks_above(work) else 0
        if not above:
            none = reason("victims", f"no queue beside {name} uses more{_of(tree, division)} than its share", quota=name)
            return (_with_safe(none, own),)
        rules = Reclaim(self.cycle, work, quota_type, leaf, milli)
        if rules.even is not None and not rules.sources:
            return (rules.even,)
        safe = max(own, self._safe(places, "reclaim"))
        detail = f"above their share{_of(tree, division)}: {names(above)}; their jobs do not free enough GPUs in one place"
        victims = _with_safe(reason("victims", detail, quota=name, above=tuple(above[:MOST_ABOVE]), **of_type(division)), safe)
        return (victims,) if rules.even is None else (victims, rules.even)

    def _safe(self, places: Sequence[int], by: Literal["preempt", "reclaim"]) -> int:
        """How long work below these nodes is safe after its start, in seconds."""
        return max(protected_for(self.cycle, place, by) for place in places) // 1000


def _refusal(code: str, gate: Callable[[Work, int, int], tuple[Reason | None, int]], work: Work) -> dict[str, Reason]:
    """Why a gate would keep a job from a start now, also where there is no room for it anyway."""
    refused = (gate(work, quota_type, work.missing_milli(quota_type))[0] for quota_type in work.open_types)
    return next(({code: found} for found in refused if found is not None), {})


SPLITTING = frozenset({"sharing", "repartition"})
ORDER = reason("order", "fits, but jobs ahead of it take the GPUs")
MOST_ABOVE = 8  # queues that a reason names for programs


def of_type(division: Division) -> dict[str, str]:
    """The GPU type that shares are about; none where all types are one."""
    return {} if division.name == ANY_TYPE else {"type": division.name}


def _of(tree: Tree, division: Division) -> str:
    return "" if len(tree.divisions) == 1 else f" of {division.name}"


def _shortage(tree: Tree, division: Division, total: int) -> Reason:
    """That more is promised than there is, told to those of the type who find no room."""
    healthy = f"{gpus(division.capacity)} {'is' if division.capacity == 1000 else 'are'} healthy"
    facts = {"guaranteed": total / 1000, "healthy": division.capacity / 1000, **of_type(division)}
    return reason("shortage", f"guarantees of {tree.amount(division, total)} are in force; {healthy}", **facts)


def _with_safe(found: Reason, seconds: int) -> Reason:
    """A reason that says as well how long work is safe."""
    if not seconds:
        return found
    return reason("victims", f"{found.detail}; work is protected for {seconds} s after its start", **dict(found.facts), safe_s=seconds)
