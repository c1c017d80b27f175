"""What a waiting job may take: by reclaim from other queues, by preempt inside its own; and whether the whole of a set is fair and worth it."""

from collections.abc import Iterator
from copy import copy
from functools import cached_property
from typing import NamedTuple

from ..model.reasons import Reason, counted, gpus, reason
from ..search.units import Cost, Unit
from ..search.victims import ANY, NOBODY, Found, Giver, Ranked, Rights, category, in_categories
from ..state.planning import Cycle
from ..state.tree import INFINITE, Division
from ..state.work import Work
from .times import protected_for, waited_long

Signature = tuple[object, ...]
Pair = tuple[tuple[int, ...], Unit]
WAITED = reason("victims", "the jobs that would have to leave started after a long wait, and give way only to work within its guarantees")


def rank_and_cost(ranked: Pair) -> tuple[tuple[int, ...], Cost]:
    return ranked[0], ranked[1].cost


class Source(NamedTuple):
    """A node from which something may be taken: while it uses more than the line, and as far as it is left the floor."""

    place: int
    line: int
    floor: int  # with less it would have less of its fair share than whoever takes it


class Asked(Rights):
    """The rules for one job that asks for so much in one quota type, charged to a leaf."""

    def __init__(self, cycle: Cycle, work: Work, quota_type: int, leaf: int, milli: int) -> None:
        self.cycle, self.tree = cycle, cycle.tree
        self.work, self.quota_type, self.leaf, self.milli = work, quota_type, leaf, milli
        self.division: Division = cycle.tree.division(quota_type)

    def worth(self, found: Found) -> Reason | None:
        """Work above its guarantee may not destroy more than it is worth."""
        most = self.cycle.settings.worth_gpu_ms[self.work.kind.class_rank]
        if most is None or (lost := found.lost) <= most or self.tree.within_guarantee(self.leaf, self.quota_type, self.milli, found.charged):
            return None
        detail = f"{lost // 1000} GPU-seconds of others would be lost; the settings allow {most // 1000}"
        return reason("worth", detail, lost_gpu_s=lost / 1000, allowed_gpu_s=most / 1000)


class Reclaim(Asked):
    """The rules between queues, with values as they are at the start of the search."""

    code = "reclaim"

    def __init__(self, cycle: Cycle, work: Work, quota_type: int, leaf: int, milli: int) -> None:
        super().__init__(cycle, work, quota_type, leaf, milli)
        self.own = work.leaf
        self.barred = -1 if leaf == work.home else work.home  # in a window's name, too, a job takes nothing from its own queue
        self.since = self._window_start()
        self.even: Reason | None = None  # why nothing may be taken from somebody who is above his line
        self.sources = self._sources()
        all_gone = {place: self.division.used[place] for place, _, _ in self.sources}
        self.spares_long_waits = cycle.settings.waits_end and not self.tree.within_guarantee(leaf, quota_type, milli, all_gone)
        self.sparing = tuple([place for place, _, _ in self.sources if self._rests_on_usage(place)])
        # Searches with the same sources find the same victims.
        self.signature: Signature = (quota_type, self.barred, self.since, self.spares_long_waits, *self.sources, *self.sparing)
        if self.own_surplus:
            self.signature = (*self.signature, self.own, work.form.level, work.order if work.seats else -1)

    def _sources(self) -> list[Source]:
        """The nodes beside the job's path from which something may be taken, down to where they would be served less than its own node."""
        tree, division = self.tree, self.division
        found = []
        for place in tree.path[self.leaf]:
            promised = division.guaranteed[place]
            mine, fair = division.used[place] + self.milli, division.fair[place]
            inside = promised is None or mine <= promised
            for sibling in tree.children[tree.parent[place]]:
                used, line, guaranteed = division.used[sibling], division.counts_on[sibling], division.guaranteed[sibling]
                if inside and guaranteed is not None and guaranteed < line:
                    line = guaranteed
                if sibling == place or used <= line:
                    continue
                floor = 0
                if mine > fair and division.fair[sibling] > 0:
                    floor = mine * division.fair[sibling] // fair + 1 if fair > 0 else INFINITE
                if used > floor:
                    found.append(Source(sibling, line, floor))
                elif self.even is None:
                    name, other = tree.names[place], tree.names[sibling]
                    detail = f"{name} would use {gpus(mine)} of a fair share of {counted(fair)}, no less than {other} with {gpus(used)} of "
                    self.even = reason("balance", f"{detail}{gpus(division.fair[sibling])} left", quota=name, other=other)
        return found

    def units(self, large: int, *, surplus_only: bool = False) -> Ranked:
        """All that may be taken from the sources, or their surplus alone, and what the leaf itself gives back, in the order in which it is tried."""
        ranked: list[Pair] = [] if surplus_only else [*self.own_surplus]
        parts, units = len(self.sources) + bool(ranked), self.cycle.units()
        for place, _, _ in self.sources:
            asked = [unit for unit in units.below(place) if unit.quota_type == self.quota_type and (unit.surplus or not surplus_only)]
            asked = unprotected(self.cycle, asked, protected_for(self.cycle, place, "reclaim"), self.since)
            below = in_categories(asked, units.borrowed(place, self.division), large)
            if place in self.sparing:
                below = [pair for pair in below if not self._came_in_this_step(pair[1].work)]
            if place <= self.barred < self.tree.end[place]:
                below = [pair for pair in below if pair[1].leaf != self.barred]
            if self.spares_long_waits:
                below = [pair for pair in below if pair[1].surplus or not waited_long(self.cycle, pair[1].work)]
            ranked.extend(below)
        if parts > 1:
            ranked.sort(key=rank_and_cost)
        return ranked

    def _window_start(self) -> int:
        """When the window began that gives the right to take; who came before it is not protected against its start. 0: no window does."""
        cycle, tree, division = self.cycle, self.tree, self.division
        if (own := tree.window_at.get(self.leaf)) is not None:
            return own.start
        began = 0
        for window in cycle.cluster.windows.lasting:
            owner = -1 if window.quota is None else tree.position[window.quota]
            if owner in tree.path[self.leaf] and window.gpu_type == cycle.grid.types[self.quota_type]:
                standing, promised = division.standing[owner], division.guaranteed[owner]
                if standing is not None and promised is not None and standing < division.used[owner] + self.milli <= promised:
                    began = max(began, window.start)
        return began

    def _rests_on_usage(self, place: int) -> bool:
        """Whether only past usage lets the queue take from a node: then it spares who came there by reclaim within this step of fairness."""
        cycle, division = self.cycle, self.division
        if not cycle.settings.fairness.step_ms or not self.tree.usage_weight:
            return False
        key = ("without usage", division.name)
        fair, counts_on = cycle.memo(key) or cycle.remember(key, self.tree.shares_without_usage(division))
        used, guaranteed = division.used, division.guaranteed
        if used[self.leaf] + self.milli > fair[self.leaf]:
            return True
        if used[place] > counts_on[place]:
            return False
        # The node of the job's path beside it, with the job within its guarantee, may take what stands above the other's.
        mine = next(at for at in self.tree.path[self.leaf] if self.tree.parent[at] == self.tree.parent[place])
        inside = (promised := guaranteed[mine]) is None or used[mine] + self.milli <= promised
        return not (inside and (theirs := guaranteed[place]) is not None and used[place] > theirs)

    def _came_in_this_step(self, work: Work) -> bool:
        step, at = self.cycle.settings.fairness.step_ms, work.job.run.reclaimed
        if step is None or at is None or at // step != self.cycle.now // step:
            return False
        return self.cycle.is_to_come((at // step + 1) * step)

    @cached_property
    def own_surplus(self) -> Ranked:
        """What its own leaf gives back for its minimum."""
        return own_surplus(self.cycle, self.work, self.quota_type, self.own) if "shrink" in self.cycle.settings.passes else ()

    def crosses(self, found: Found) -> bool:
        """Whether a set takes running work and leaves the node of a victim in another leaf below its line."""
        used, running = self.division.used, not all(unit.fresh for unit in found.units)
        return running and any(used[place] - milli < self._line(place) for place, milli in found.charged.items() if place != self.own)

    def _line(self, place: int) -> int:
        """The line of a victim's node: its fair share where it stands above, else its guarantee."""
        division = self.division
        used, line = division.used[place], division.counts_on[place]
        return line if used >= line else min(used, division.guaranteed[place] or 0)

    def crossing_none(self) -> "Reclaim":
        """These rules for sets that leave every victim's node at its line or above."""
        rules = copy(self)
        rules.sources = [source._replace(floor=max(source.floor, self._line(source.place))) for source in self.sources]
        rules.signature = (*self.signature, "crossing none")
        return rules

    def giver(self, leaf: int) -> Giver:
        """The sibling that answers for a leaf, above its line before a unit and no lower than its floor without it; its own for its surplus."""
        if leaf == self.own:
            return Giver(leaf)
        used, end = self.division.used, self.tree.end
        for place, line, floor in self.sources:
            if place <= leaf < end[place]:
                return Giver(place, used[place] - line, used[place] - floor)
        return NOBODY

    def guard(self, found: Found) -> Reason | None:
        return self.order(found) or self._long_wait(found) or self.worth(found)

    def _long_wait(self, found: Found) -> Reason | None:
        """Who started after a long wait gives way only to a job within its guarantees with the victims gone."""
        if not self.cycle.settings.waits_end or self.tree.within_guarantee(self.leaf, self.quota_type, self.milli, found.charged):
            return None
        return WAITED if any(waited_long(self.cycle, unit.work) for unit in found.units if not unit.surplus) else None

    def variants(self) -> Iterator["Reclaim"]:
        """The rules, and where the victims decide whether the job is within its guarantees those that spare who has waited long in any case."""
        yield self
        if self.cycle.settings.waits_end and not self.spares_long_waits and not self.tree.within_guarantee(self.leaf, self.quota_type, self.milli):
            rules = copy(self)
            rules.spares_long_waits, rules.signature = True, (*self.signature, "sparing")
            yield rules

    def order(self, found: Found) -> Reason | None:
        """With the victims gone, the job must be served before every one of them that asks again."""
        tree, division = self.tree, self.division
        for leaf, victim in found.minima():
            if leaf == self.leaf:
                continue  # in one leaf class and number decide, and those were compared
            least = victim.form.least_milli(self.quota_type)
            mine, theirs = tree.fork(self._asking_from(victim, least), leaf)
            my_key = tree.key(mine, division, self.milli, tree.sum_below(mine, found.charged))
            if my_key > tree.key(theirs, division, least, tree.sum_below(theirs, found.charged)):
                detail = f"with {victim.job.name} gone, {tree.names[theirs]} would be served before {tree.names[mine]} again"
                return reason("balance", detail, quota=tree.names[mine], other=tree.names[theirs])
        return None

    def _asking_from(self, victim: Work, least: int) -> int:
        """The leaf by which a job and a victim that asks again are compared: that of the job, where both may ask in the name of one window."""
        tree, division = self.tree, self.division
        window = tree.window_at.get(self.leaf)
        if window is None or victim.kind.class_rank != window.class_rank or division.used[self.leaf] + least > window.gpus:
            return self.leaf
        return self.work.home


def own_surplus(cycle: Cycle, work: Work, quota_type: int, leaf: int) -> Ranked:
    """What jobs of a leaf give back for the minimum of one of them that ranks no lower."""
    units = cycle.units()
    given = [
        unit
        for unit in (units.of_leaf(leaf) if cycle.cluster.forms.elastic else ())
        if unit.surplus and unit.form.level <= work.form.level and unit.work is not work and unit.quota_type == quota_type
    ]
    borrowed = units.borrowed(leaf, cycle.tree.division(quota_type)) if given else ()
    return [(category(unit, unit in borrowed, ANY), unit) for unit in given]


def unprotected(cycle: Cycle, units: list[Unit], span: int, since: int = 0) -> list[Unit]:
    """Those of the units that no minimum run time protects: for so long it protects minima that began at or after an instant."""
    from_then = max(cycle.now - span + 1, since)
    young = [unit for unit in units if unit.began >= from_then and not (unit.surplus or unit.fresh)] if span else ()
    if not young:
        return units
    cycle.is_to_come(min([unit.began for unit in young]) + span)
    return [unit for unit in units if unit.began < from_then or unit.surplus or unit.fresh]


class Preempt(Asked):
    """The rules inside one leaf: strictly lower work that is not protected gives way to higher, and surplus that is no higher to a minimum."""

    code = "preempt"

    def units(self, large: int) -> Ranked:
        """Everything that may be taken, in the order in which it is tried."""
        cycle, leaf, quota_type, level, units = self.cycle, self.leaf, self.quota_type, self.work.form.level, self.cycle.units()
        shrinks = "shrink" in cycle.settings.passes
        lower = [
            unit
            for unit in units.of_leaf(leaf)
            if unit.quota_type == quota_type
            and (unit.form.level < level or (shrinks and unit.surplus and unit.form.level == level and unit.work is not self.work))
        ]
        lower = unprotected(cycle, lower, protected_for(cycle, leaf, "preempt"))
        return in_categories(lower, units.borrowed(leaf, self.division), large)

    def giver(self, leaf: int) -> Giver:
        return Giver(self.leaf)

    def guard(self, found: Found) -> Reason | None:
        return self._beyond_share(found) or self.worth(found)

    def least(self) -> int:
        """What must leave at least so that the job does not take the leaf further beyond a share."""
        division = self.division
        return min(self.milli, max(0, *(division.used[place] + self.milli - division.fair[place] for place in self.cycle.tree.path[self.leaf])))

    def _beyond_share(self, found: Found) -> Reason | None:
        """An eviction must not take the leaf further beyond its share: others would take it back at once, and so on for ever."""
        division, more = self.division, self.milli - found.milli
        for place in self.tree.path[self.leaf] if more > 0 else ():
            name, used, fair = self.tree.names[place], division.used[place], division.fair[place]
            if used + more > fair:
                detail = f"{name} would use {gpus(used + more)} of a fair share of {counted(fair)}, which others would take back"
                return reason("share", detail, quota=name, used=used / 1000, fair=fair / 1000)
        return None
