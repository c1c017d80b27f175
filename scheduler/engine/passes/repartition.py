"""Split GPUs anew for a waiting job: a planned, rate-limited step of its own.

Only instances are destroyed that are empty, or whose tenants may be evicted for the job by the rules of reclaim or preempt;
where empty ones do, nobody is evicted.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product

from ..model.plan import names
from ..model.reasons import Reason, counted, reason, spell_instant
from ..model.values import HOUR_MS
from ..place.placement import fit
from ..rules.legality import Preempt, Reclaim
from ..search.evicting import beside_others, fits_without, release, some_of, targets, told_once
from ..search.victims import Found, Ranked, as_if_running, in_sizes, least_sets, usual_size
from ..state.fleet import Seat, Split, View
from ..state.grid import span_bits
from ..state.planning import Cycle
from ..state.work import Work
from .reclaim import claimant
from .walk import walk

NO_SPLIT = reason("sharing", "no GPU can be repartitioned while its slices are in use")
Key = tuple[int, int]


def run(cycle: Cycle) -> None:
    """Jobs that ask for instances may make them; jobs that ask for whole GPUs, or share them otherwise, may join instances together."""
    if cycle.cluster.forms.instances or has_splits(cycle):
        walk(cycle, lambda cycle, work, quota_type: may_repartition(cycle, work), repartition)


def may_repartition(cycle: Cycle, work: Work) -> bool:
    return work.kind.sharing == "mig" or (any(role.gpus or role.parted for role in work.kind.roles) and has_splits(cycle))


def has_splits(cycle: Cycle) -> bool:
    may_have = cycle.grid.any_split or cycle.cluster.forms.instances
    return may_have and any(split.mode == "mig" for split in cycle.fleet.soon.splits.values())


def _split_within_the_hour(cycle: Cycle) -> dict[str, list[int]]:
    """When GPUs were split anew by now, by pool, which is the label `pool` of the nodes; those of this plan are."""
    known: dict[str, list[int]] | None = cycle.memo(("split within the hour",))
    if known is None:
        made: dict[str, list[int]] = {pool: [] for pool in cycle.grid.pool_of}
        for pool, node in zip(cycle.grid.pool_of, cycle.grid.nodes, strict=True):
            made[pool] += node.repartitioned
        for place, _ in cycle.cluster.geometry:
            made[cycle.grid.pool_of[place]].append(cycle.now)
        within = {pool: [at for at in times if cycle.is_to_come(at + HOUR_MS)] for pool, times in made.items()}
        known = cycle.remember(("split within the hour",), within)
    return known


def could_serve(cycle: Cycle, work: Work, quota_type: int) -> bool:
    """Whether it would find places with GPUs split anew and nobody put out."""
    if not may_repartition(cycle, work):
        return False
    anew = Anew(cycle, work, quota_type)
    with cycle.cluster.attempt():
        return anew.fit(cycle.fleet.soon, 0) is not None


def limited(cycle: Cycle, quota_type: int) -> Reason:
    """That the hour's splits of all pools of a type are used up, and when the first of them has one again."""
    grid, most = cycle.grid, cycle.settings.repartition_per_hour
    here = sorted({pool for pool, of_type in zip(grid.pool_of, grid.type_of, strict=True) if of_type == quota_type})
    made, pools = [_split_within_the_hour(cycle)[pool] for pool in here], [pool for pool in here if pool]
    where = f" in {'the pool' if len(made) == 1 else 'each of the pools'} {names(pools)}" if pools else ""
    facts: dict[str, object] = {"most": most, "type": grid.types[quota_type], **({"pools": tuple(pools)} if pools else {})}
    if not most:
        return reason("repartition", f"no GPU{where} may be repartitioned", **facts)
    at = spell_instant(HOUR_MS + min(sorted(times)[-most] for times in made))
    detail = f"{counted(1000 * most)}{where} may be repartitioned within an hour, and the limit is used up; the next at {at}"
    return reason("repartition", detail, **facts, until=at)


def repartition(cycle: Cycle, work: Work, quota_type: int) -> Reason | None:
    anew = Anew(cycle, work, quota_type)
    if not any(anew.budget[pool] > 0 and of_type == quota_type for pool, of_type in zip(cycle.grid.pool_of, cycle.grid.type_of, strict=True)):
        return limited(cycle, quota_type)
    asks = ("repartition", work.home, quota_type, work.form.shape, work.form.level, work.kind.preemptible)
    return told_once(cycle, asks, work, anew.search)


class Anew:
    """One job in one quota type, and the GPUs that may still be split anew within the hour, by pool."""

    def __init__(self, cycle: Cycle, work: Work, quota_type: int) -> None:
        self.cycle, self.work, self.quota_type, self.milli = cycle, work, quota_type, work.missing_milli(quota_type)
        most = cycle.settings.repartition_per_hour
        self.budget = {pool: most - len(times) for pool, times in _split_within_the_hour(cycle).items()}
        self.claim: int | None = None  # the leaf in whose name it takes from others

    def search(self) -> Reason | None:
        """Nobody is evicted, where that suffices. None: done; else why not, and nothing was changed."""
        refused = NO_SPLIT
        for view in self.cycle.fleet.views():
            with self.cycle.cluster.attempt() as attempt:
                found = self._place(view, 0)
                if isinstance(found, Reason):
                    refused = found
                    continue
                self.cycle.cluster.seat(self.work, found[0], self.quota_type, found[1], reason("repartition", "a GPU is repartitioned for it"))
                attempt.keep()
                self.cycle.changed()
                return None
        return None if self._over_evictable() else refused

    def _over_evictable(self) -> bool:
        """Evict by the rules by which running work may be taken for the job: from those that are not large, else from all."""
        cycle, work, large = self.cycle, self.work, usual_size(self.milli)
        splits, type_of = cycle.fleet.soon.splits, cycle.grid.type_of
        if work.kind.sharing != "mig" and not any(split.mode == "mig" and type_of[node] == self.quota_type for (node, _), split in splits.items()):
            return False
        leaf = claimant(cycle, work, self.quota_type) if "reclaim" in cycle.settings.passes else None
        rules: list[Reclaim | Preempt] = []
        if leaf is not None:
            rules += Reclaim(cycle, work, self.quota_type, leaf, self.milli).variants()
        if "preempt" in cycle.settings.passes:
            rules.append(Preempt(cycle, work, self.quota_type, work.leaf, self.milli))
        joins = work.kind.sharing == "mig" or bool(self._empty(cycle.fleet.soon, 0))
        for rights in rules:
            ranked, self.claim = rights.units(large), rights.leaf
            if not joins and not any(unit.work.kind.sharing == "mig" for _, unit in ranked):
                continue  # no instances that it could join are empty, or would be
            for among in (ranked, as_if_running(ranked)) if any(unit.fresh for _, unit in ranked) else (ranked,):
                if any(self._take(some, rights) for some in in_sizes(among, large)):
                    return True
        return False

    def _take(self, ranked: Ranked, rights: Reclaim | Preempt) -> bool:
        """Evict the least that makes room together with instances split anew."""
        cycle, found = self.cycle, list[Found]()
        for target in targets(cycle, self.work, self.quota_type, counted=False):
            fits = partial(self._fits, ~span_bits(target.low, target.high))
            judged = replace(target, fits=partial(fits_without, cycle, fits), lacking=0)  # GPUs that are joined come free as well
            found += least_sets(cycle.cluster, ranked, rights, judged, cycle.units())
        return any(rights.guard(one) is None and self._carry_out(one, rights) for one in sorted(found, key=Found.rank))

    def _carry_out(self, found: Found, rights: Reclaim | Preempt) -> bool:
        cycle, name, victims = self.cycle, self.work.job.name, [unit.work for unit in found.units]
        before, upset = cycle.cluster.mark(), any(victim.first_seats and not victim.evicted for victim in victims)
        with cycle.cluster.attempt() as attempt:
            detail = f"its place is repartitioned for {name}, which takes {counted(self.milli)}"
            release(cycle, found.units, reason(rights.code, detail), name, rights.own)
            placed = self._place(cycle.fleet.soon, ~span_bits(found.low, found.high))
            if isinstance(placed, Reason):
                return False
            told = reason("repartition", f"a GPU is repartitioned for it; it replaces {some_of({victim.job.name for victim in victims})}")
            cycle.cluster.seat(self.work, placed[0], self.quota_type, placed[1], told)
            attempt.keep()
        cycle.changed()
        cycle.takers.served(self.work, before, victims, "repartition", upset=upset)
        return True

    def _fits(self, outside: int) -> bool:
        return not isinstance(self._place(self.cycle.fleet.soon, outside), Reason)

    def _place(self, view: View, banned: int) -> tuple[tuple[Seat, ...], int] | Reason:
        """Places with GPUs split anew, and the leaf that is charged; or why not."""
        return beside_others(self.cycle, self.work, self.quota_type, self.milli, self.claim, lambda ahead: self.fit(view, banned | ahead), NO_SPLIT)

    def fit(self, view: View, banned: int) -> tuple[Seat, ...] | None:
        """Where it asks for no instances itself, of split GPUs that nobody uses as many as may be are joined: in path order, and where that is
        not all of them those of one node."""
        cycle = self.cycle
        if self.work.kind.sharing == "mig":
            return fit(cycle, self.work, self.quota_type, view, banned, self.budget)
        empty = self._empty(view, banned)
        first = self._within_budget(empty)
        nodes = sorted({node for node, _ in empty}) if len(first) < len(empty) else ()
        of_nodes = ([key for key in empty if key[0] == node] for node in nodes)
        for keys in chain((first,), map(self._within_budget, of_nodes)):
            if keys:
                mark = cycle.cluster.mark()
                joined = [(key, view.splits[key]) for key in keys]
                for key, each in product(keys, cycle.fleet.views()):
                    if key in each.splits and each.splits[key].empty:
                        cycle.fleet.set_split(each, key, None)
                if (seats := fit(cycle, self.work, self.quota_type, view, banned)) is not None:
                    self._split_back(joined)
                    return seats
                cycle.cluster.undo(mark)
        return None

    def _empty(self, view: View, banned: int) -> list[Key]:
        """Split GPUs of the type that nobody uses."""
        grid = self.cycle.grid
        empty = [key for key in sorted(view.splits) if view.splits[key].mode == "mig" and view.splits[key].empty]
        return [key for key in empty if grid.type_of[key[0]] == self.quota_type and grid.usable[key[0]] >> key[1] & 1 and not banned >> key[0] & 1]

    def _within_budget(self, keys: Sequence[Key]) -> list[Key]:
        rest, chosen = dict(self.budget), []
        for key in keys:
            pool = self.cycle.grid.pool_of[key[0]]
            if rest[pool] > 0:
                rest[pool] -= 1
                chosen.append(key)
        return chosen

    def _split_back(self, joined: Sequence[tuple[Key, Split]]) -> None:
        """GPUs that the job did not take keep their instances; the others are decided anew."""
        fleet = self.cycle.fleet
        for (node, gpu), split in joined:
            if not fleet.soon.free[node] >> gpu & 1:
                self.cycle.cluster.split_anew(self.work, (node, gpu))
                continue
            for each in fleet.views():
                if each.free[node] >> gpu & 1:
                    fleet.set_split(each, (node, gpu), split)
