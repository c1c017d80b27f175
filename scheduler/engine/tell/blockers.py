"""All that stands in the way of a waiting job, with numbers and names. Computed once per queue and shape."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..model.plan import names
from ..model.reasons import Reason, counted, gpus, reason
from ..model.values import ANY_TYPE, Kind, Preemptible, Role
from ..passes.consolidate import no_moves, used_up
from ..passes.repartition import could_serve
from ..place.capacity import plain, widest
from ..place.seating import fit
from ..reading.checkers import spell_instant
from ..rules.legality import Reclaim, rules_of
from ..rules.windows import NEVER
from ..search.evicting import NOTHING, request
from ..state.grid import Eligible, Ints
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work

Reasons = tuple[Reason, ...]


class Narrow(NamedTuple):
    """A role for which one domain has too little room: so many of the workers that are missing."""

    role: Role
    eligible: Eligible
    level: int
    domain: int | None  # to which those that run pin it
    most: int
    missing: int


class Blockers:
    """Reasons of the final state."""

    def __init__(self, cycle: Cycle, *, foresees: bool | None = None) -> None:
        """`foresees`: whether it is told who leaves first, as where everyone's start is foreseen."""
        self.cycle = cycle
        self.foresees = cycle.settings.forecast == "all" if foresees is None else foresees
        self.view = cycle.fleet.soon
        self.capacity = cycle.capacity(self.view)
        self._groups: dict[tuple[int, int], Reasons] = {}  # by leaf and form
        self._alike: dict[tuple[int, int, bool, tuple[int, ...], bool], Reasons] = {}  # by leaf and shape
        self._roomy: dict[tuple[int, int], bool] = {}  # whether there is room for it, by the reasons of its group and shape
        self.rooms: dict[tuple[int, int], Reason | None] = {}
        self._joined: dict[tuple[int, ...], tuple[Reasons, Reasons]] = {}
        settings = cycle.settings
        moves = "consolidate" in settings.passes and cycle.cluster.moves_left <= 0 and settings.max_moves
        self._used_up = used_up(moves) if moves else None
        self._leaves_out = settings.max_moves == 0 or not {"consolidate", "reclaim", "preempt", "repartition"} <= set(settings.passes)
        self._with: dict[tuple[str, int], Reason] = {}
        self._holders: dict[tuple[int, int], list[tuple[Work, int | None]]] = {}
        self._shares: dict[tuple[int, int, int, bool], Reasons] = {}
        self._above: dict[tuple[str, int], list[int]] = {}
        self._splits: dict[tuple[int, int], bool] = {}  # whether a GPU split anew would serve it
        self._joins: dict[tuple[int, tuple[int, ...]], bool] = {}
        self._on_node: dict[int, list[Work]] | None = None
        self._protects = bool(settings.preempt_min_runtime_ms) or cycle.tree.protects  # whether lower work of a queue may be safe for a while
        self._shortages = {division.name: _shortage(cycle.tree, division, total) for division, total in cycle.tree.shortage()}

    def of(self, work: Work) -> Reasons:
        cycle = self.cycle
        static = cycle.static.get(work.order)
        if static is not None:
            return static
        if work.stale:
            return (reason("stale", "ended in this plan; it can start in the next"),)
        form = work.form
        key = (work.home, id(form))
        group = None if work.seats else self._groups.get(key)
        if group is None:
            alike = (work.home, form.shape, work.fixed, work.types, self._protects and form.level > cycle.least_level)
            group = self._alike.get(alike)
            if group is None or work.seats:
                group = self._group(work)
                if not work.seats:
                    self._alike[alike] = group
            if not work.seats:
                self._groups[key] = group
        own = cycle.notes.get(work.order)
        if own and not work.form.parted and not SPLITTING.isdisjoint(own) and not self._may_join(work):
            own = {code: found for code, found in own.items() if code not in SPLITTING}
        if cycle.cluster.windows.upcoming and "window" not in (own or {}):
            own = (own or {}) | self._window(work)
        if self._used_up is not None and "moves" not in (own or {}) and self._might_move(work, group):
            own = (own or {}) | {"moves": self._used_up}
        if own and ("moves" in own or own.get("victims") is NOTHING) and self._has_room(work, group):
            own = {code: found for code, found in own.items() if code != "moves" and found is not NOTHING}
        late = work.form.delay and work.job.submitted + work.kind.preemption_delay_ms > cycle.now
        if not own and not late:
            return group
        return self._with_own(work, group, own or {}, bool(late))

    def _might_move(self, work: Work, group: Reasons) -> bool:
        """Whether others could be moved for it, as far as that is told without looking for whom."""
        movable = work.kind.preemptible is Preemptible.ALWAYS and not self.cycle.overdue(work)
        return movable and any(one.code in ("fragmentation", "topology") for one in group)

    def _with_own(self, work: Work, group: Reasons, own: dict[str, Reason], late: bool) -> Reasons:
        shared = tuple(one for one in group if one is not ORDER)  # there is more to say than that
        extra = [found for code, found in sorted(own.items()) if not any(one.code == code for one in shared)]
        safe = self._safe([work.home], "preempt_min_runtime_ms") if work.form.level > self.cycle.least_level else 0
        if safe:
            extra = [self._with_safe(found, safe) if found.code == "victims" else found for found in extra]
        if late:
            shared = tuple(one for one in shared if one.code != "victims")  # nobody was asked yet
            at = spell_instant(work.job.submitted + work.kind.preemption_delay_ms)
            extra.append(reason("delay", f"causes no eviction before {at}", until=at))
        key = (id(group), *(id(one) for one in extra))
        known = self._joined.get(key)
        if known is not None:
            return known[1]
        if any(found.code in ("balance", "worth") for found in extra):
            shared = tuple(one for one in shared if one.code != "victims")
        joined = shared + tuple(extra)
        if not late:
            self._joined[key] = (group, joined)  # with the group itself, so that no other one gets its identity meanwhile
        return joined

    def _with_safe(self, found: Reason, seconds: int) -> Reason:
        """The same reason, and how long lower work of the own queue is safe; the same object for the same."""
        key = (found.detail, seconds)
        if key not in self._with:
            detail = f"{found.detail}{_safe_for(seconds, OWN)}"
            self._with[key] = reason("victims", detail, **dict(found.facts), **_safe_fact(seconds))
        return self._with[key]

    def _window(self, work: Work) -> dict[str, Reason]:
        """The window that would keep it from a start now, also where there is no room for it anyway."""
        cycle = self.cycle
        for quota_type in cycle.types_of(work):
            refused, _ = cycle.cluster.windows.gate(cycle.cluster, work, quota_type, request(cycle, work, quota_type))
            if refused is not None:
                return {"window": refused}
        return {}

    def _has_room(self, work: Work, group: Reasons) -> bool:
        """Whether nobody who runs is in its way: then it is not for want of moves or victims that it waits."""
        key = (id(group), work.form.shape)
        known = None if work.seats else self._roomy.get(key)
        if known is None:
            gated = any(one.code in ("limit", "guarantee") for one in group)
            known = not gated and any(self._room(work, quota_type) is None for quota_type in self.cycle.types_of(work))
            if not work.seats:
                self._roomy[key] = known
        return known

    # What a queue's jobs of one kind have in common

    def _group(self, work: Work) -> Reasons:
        types = self.cycle.types_of(work)
        found = [one for quota_type in types for one in self._of_type(work, quota_type)]
        return tuple(dict.fromkeys(found) if len(types) > 1 else found) or (ORDER,)  # of one type each is another one

    def _of_type(self, work: Work, quota_type: int) -> list[Reason]:
        cycle = self.cycle
        milli = request(cycle, work, quota_type)
        leaf = work.charged_leaf if work.seats else work.home
        found = list(cycle.tree.limits_refusing(leaf, quota_type, milli)) if cycle.tree.limited else []
        if work.fixed:
            found.extend(cycle.tree.guarantees_refusing(leaf, quota_type, milli, cycle.cluster.windows.ends(work)))
        room = self._room(work, quota_type)
        if room is not None:
            found.append(room)
            if "reclaim" in cycle.settings.passes:
                found.extend(self._share(work, leaf, quota_type, milli))
            short = self._shortages.get(cycle.tree.divisions[cycle.tree.division_of[quota_type]].name)
            if short is not None:
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
        if "repartition" not in settings.passes and self._could_split(work, quota_type):
            yield reason("repartition", "a GPU could be repartitioned for it, but repartition is switched off", off=True)
        evicting = [name for name in ("reclaim", "preempt") if name not in settings.passes]
        if evicting:
            yield reason("passes", f"no job is evicted to make room: {' and '.join(evicting)} {'are' if len(evicting) > 1 else 'is'} switched off")

    def _could_split(self, work: Work, quota_type: int) -> bool:
        key = (work.form.shape, quota_type)
        known = None if work.seats else self._splits.get(key)
        if known is None:
            known = could_serve(self.cycle, work, quota_type)
            if not work.seats:
                self._splits[key] = known
        return known

    def _share(self, work: Work, leaf: int, quota_type: int, milli: int) -> Reasons:
        division = self.cycle.tree.divisions[self.cycle.tree.division_of[quota_type]]
        beyond = division.used[leaf] + milli > division.fair[leaf]
        key = (leaf, quota_type, milli, not beyond and work.form.level > self.cycle.least_level)
        known = self._shares.get(key)
        if known is None:
            known = self._shares[key] = self._new_share(work, leaf, quota_type, milli)
        return known

    def _new_share(self, work: Work, leaf: int, quota_type: int, milli: int) -> Reasons:
        tree = self.cycle.tree
        division = tree.divisions[tree.division_of[quota_type]]
        used, fair = division.used[leaf], division.fair[leaf]
        name = tree.names[leaf]
        if used + milli > fair:
            detail = f"{name} uses {gpus(used)} of a fair share of {tree.amount(division, fair)}"
            detail += f"; with {gpus(milli)} more it may only use what is idle"
            facts = {"used": used / 1000, "fair": fair / 1000, "needed": milli / 1000, **of_type(division)}
            return (reason("share", detail, quota=name, **facts),)
        places = [over for place in tree.path[leaf] for over in self._above_line(division, tree.parent[place]) if over != place]
        above = [tree.names[over] for over in places]
        own = self._safe([leaf], "preempt_min_runtime_ms") if work.form.level > self.cycle.least_level else 0
        if not above:
            detail = f"no queue beside {name} uses more{_of(tree, division)} than its share"
            return (reason("victims", f"{detail}{_safe_for(own, OWN)}", quota=name, **_safe_fact(own)),)
        rules = rules_of(self.cycle, work, quota_type, leaf, milli)
        if rules.even is not None and not rules.sources:
            return (rules.even,)
        safe = max(own, self._safe(places, "reclaim_min_runtime_ms"))
        detail = f"above their share{_of(tree, division)}: {names(above)}"
        detail += f"; their jobs do not free enough GPUs in one place{_safe_for(safe, 'work is')}"
        victims = reason("victims", detail, quota=name, above=tuple(above[:MOST_ABOVE]), **of_type(division), **_safe_fact(safe))
        return (victims,) if rules.even is None else (victims, rules.even)

    def _safe(self, places: Sequence[int], field: str) -> int:
        """How long work below these nodes is safe after its start, in seconds."""
        default = getattr(self.cycle.settings, field)
        return max(self.cycle.tree.nearest(place, field, default) for place in places) // 1000

    def _above_line(self, division: Division, parent: int) -> list[int]:
        """The nodes below another one that use more than they may count on."""
        key = (division.name, parent)
        known = self._above.get(key)
        if known is None:
            used, counts_on = division.used, division.counts_on
            known = self._above[key] = [place for place in self.cycle.tree.children[parent] if used[place] > counts_on[place]]
        return known

    # Room

    def _room(self, work: Work, quota_type: int) -> Reason | None:
        if work.seats:
            return self._new_room(work, quota_type)
        key = (work.form.shape, quota_type)
        if key not in self.rooms:
            self.rooms[key] = self._new_room(work, quota_type)
        return self.rooms[key]

    def has_other_room(self, work: Work, before: Mapping[tuple[int, int], Reason | None]) -> bool:
        """Whether there is not the same room for it any more."""
        return any(self._room(work, quota_type) != before.get((work.form.shape, quota_type), UNKNOWN) for quota_type in work.types)

    def _new_room(self, work: Work, quota_type: int) -> Reason | None:
        kind = work.kind
        cycle = self.cycle
        type_name = cycle.grid.types[quota_type]
        wants = work.missing()
        if any(kind.roles[place].parted for place, _ in wants):
            if self._fits(work, quota_type):
                return None
            role = next(kind.roles[place] for place, _ in wants if kind.roles[place].parted)
            return self._no_part(role, kind, type_name)
        total_needed = sum(kind.roles[place].gpus * len(ranks) for place, ranks in wants)
        allowed = np.zeros(cycle.grid.size, dtype=np.int64)
        worst: Narrow | None = None
        for place, ranks in wants:
            role = kind.roles[place]
            eligible = cycle.grid.eligible(kind, role, quota_type, suspect=kind.tolerates_suspect, spare=bool(work.seats))
            if role.gpus or not total_needed:  # on whose nodes GPUs are asked for
                allowed |= eligible.array
            level, domain = self._pinned(work, place) if work.seats else (widest(cycle.cluster, kind), None)
            if domain is None:
                most = self.capacity.most(role, eligible, level)
            else:
                most = int(self.capacity.sums(role, eligible, level)[domain])
            if most < len(ranks) and (worst is None or most * worst.missing < worst.most * len(ranks)):
                worst = Narrow(role, eligible, level, domain, most, len(ranks))
        if worst is not None and worst.domain is not None and worst.level > 0:
            return self._too_narrow(work, type_name, worst, 0, total_needed)
        idle = int((self.view.count_np * allowed).sum())
        if idle < total_needed:
            detail = f"needs {total_needed} {type_name} GPU{'s' * (total_needed != 1)}; {idle} {'is' if idle == 1 else 'are'} free where it may run"
            first = self._first_to_leave(allowed) if self.foresees else None
            if first is None:
                return reason("capacity", detail, type=type_name, needed=total_needed, free=idle)
            detail += f"; {first[0]} is expected to leave first, by {first[1]}"
            return reason("capacity", detail, type=type_name, needed=total_needed, free=idle, held_by=first[0], until=first[1])
        if worst is None:
            if plain(cycle.cluster, kind) or self._fits(work, quota_type):
                return None
            detail = f"{self._free(idle, type_name)}, but not grouped as its roles and NVLink groups need them"
            return reason("fragmentation", detail, free=idle, type=type_name)
        return self._too_narrow(work, type_name, worst, idle, total_needed)

    def _pinned(self, work: Work, place: int) -> tuple[int, int | None]:
        """The level in one domain of which the missing workers of a role must stand, and the domain to which those that run pin them."""
        grid, placing = self.cycle.grid, work.kind.roles[place].placing
        level, seats = widest(self.cycle.cluster, work.kind), work.seats
        if placing is not None and placing.required is not None:
            of_role = tuple(seat for seat in seats if seat.role == place)
            own = grid.level_index[placing.required]
            if of_role and own > level:
                level, seats = own, of_role
        return level, None if level < 0 else grid.levels[level].domain_of(seats[0].node)

    def _first_to_leave(self, allowed: Ints) -> tuple[str, str] | None:
        """Who leaves some of these nodes next, as far as that is known."""
        for end, nodes, name in self._leaving:
            if allowed[nodes].any():
                return name, spell_instant(end)
        return None

    @cached_property
    def _leaving(self) -> list[tuple[int, list[int], str]]:
        cycle = self.cycle
        ends = [(end, work.order, work) for work in cycle.cluster.works if work.seats and (end := cycle.ends_at(work)) < NEVER]
        return [(end, [seat.node for seat in work.seats], work.job.name) for end, _, work in sorted(ends)]

    def _too_narrow(self, work: Work, type_name: str, worst: Narrow, idle: int, needed: int) -> Reason:
        cycle = self.cycle
        role, eligible, level, pinned, most, count = worst
        host, facts = self._host_binds(role, eligible.array, worst)
        each = f"workers of {counted(1000 * role.gpus)}" if role.gpus else "workers"
        if level <= 0:
            free = f"{self._free(idle, type_name)}, but " if role.gpus else ""
            detail = f"{free}room for only {most} of {count} {each} on one node each{host}"
            near = {} if facts else self._nearest(role, eligible.array)
            return reason("fragmentation", detail, free=idle, room=most, needed=count, type=type_name, each=role.gpus, **near, **facts)
        name = cycle.grid.level_names[level]
        domain = int(self.capacity.sums(role, eligible, level).argmax()) if pinned is None else pinned
        where = cycle.grid.nodes[domain].name if level == len(cycle.grid.levels) - 1 else cycle.grid.levels[level].names[domain]
        facts |= {"level": name, "domain": where, "room": most, "needed": count, "type": type_name, "each": role.gpus}
        if pinned is None:
            what = "" if len(cycle.grid.types) == 1 else f"{type_name} "
            detail = f"the largest free {name} ({where}) has room for {most} of {count} {what}workers"
        else:
            detail = f"its other workers stand in the {name} {where}, which has room for {most} of {count} more"
            facts["pinned"] = True
        if role.gpus:
            detail += f": {most * role.gpus} of {counted(1000 * needed)}"
        detail += host
        holder = self._holder(level, domain, work)
        if holder is not None:
            until = "an unknown time" if holder[1] is None else spell_instant(holder[1])
            detail += f"; {holder[0]} holds {'GPUs' if role.gpus else 'places'} there until {until}"
            facts["held_by"] = holder[0]
            facts["until"] = None if holder[1] is None else spell_instant(holder[1])
        return reason("topology", detail, **facts)

    def _free(self, idle: int, type_name: str) -> str:
        what = counted(1000 * idle) if len(self.cycle.grid.types) == 1 else f"{idle} {type_name} GPU{'s' * (idle != 1)}"
        return f"{what} {'is' if idle == 1 else 'are'} free"

    def _host_binds(self, role: Role, allowed: Ints, worst: Narrow) -> tuple[str, dict[str, object]]:
        """What is to be said where by GPUs alone there would be room: of what the hosts have too little left."""
        view = self.view
        hosts = [("processors", role.cpu_milli, view.cpus, 1000), ("GB of host memory", role.host_memory_mib, view.memory, 1024)]
        hosts = [one for one in hosts if one[1]]
        slots = view.count_np * allowed // role.gpus if role.gpus else worst.missing * allowed
        if not hosts or self._most_in(slots, worst) < worst.missing:
            return "", {}
        short, lacks = [], []
        for what, each, left, unit in hosts:
            free = np.maximum(np.array(left, dtype=np.int64), 0) * (slots > 0)
            if self._most_in(np.minimum(slots, free // each), worst) < worst.missing:
                short.append(f"{each / unit:g} {what}, of which one node has {int(free.max()) / unit:g} left at most")
                lacks.append(what)
        if not short:
            lacks = [what for what, _, _, _ in hosts]
            short = [" and ".join(f"{each / unit:g} {what}" for what, each, _, unit in hosts) + ", which no node has left together"]
        return f"; each {'also ' if role.gpus else ''}needs {' and '.join(short)}", {"lacks": tuple(lacks)}

    def _most_in(self, slots: Ints, worst: Narrow) -> int:
        if worst.level <= 0:
            return int(slots.sum())
        sums = self.cycle.grid.levels[worst.level].sums(slots)
        return int(sums.max() if worst.domain is None else sums[worst.domain])

    def _nearest(self, role: Role, allowed: Ints) -> dict[str, object]:
        """The node that lacks the fewest GPUs for one worker more."""
        free = self.view.count_np * allowed
        short = np.where((free < role.gpus) & (self._sizes >= role.gpus) & (allowed > 0), free, -1)
        node = int(short.argmax()) if len(short) else -1
        return {"node": self.cycle.grid.nodes[node].name, "free_there": int(free[node])} if node >= 0 and short[node] >= 0 else {}

    @cached_property
    def _sizes(self) -> Ints:
        return np.array(self.cycle.grid.usable_count, dtype=np.int64)

    def _holder(self, level: int, domain: int, work: Work) -> tuple[str, int | None] | None:
        """Who of the others leaves a domain first, and when."""
        key = (level, domain)
        if key not in self._holders:
            low, high = self.cycle.grid.levels[level].slice_of(domain)
            if self._on_node is None:
                self._on_node = {}
                for one in self.cycle.cluster.works:
                    for node in {seat.node for seat in one.seats}:
                        self._on_node.setdefault(node, []).append(one)
            here = {one.order: one for node in range(low, high) for one in self._on_node.get(node, ())}
            ends = sorted((self.cycle.ends_at(one), order) for order, one in here.items())
            self._holders[key] = [(here[order], None if end >= NEVER else end) for end, order in ends[:2]]
        return next(((one.job.name, end) for one, end in self._holders[key] if one is not work), None)

    def _fits(self, work: Work, quota_type: int) -> bool:
        with self.cycle.cluster.attempt():
            return fit(self.cycle, work, quota_type, self.view) is not None

    def _no_part(self, role: Role, kind: Kind, type_name: str) -> Reason:
        if kind.sharing == "mig":
            asked = role.mig or f"an instance with {(role.memory_mib or 0) / 1024:g} GB"
            usable, splits = self.cycle.grid.usable, self.view.splits.items()
            empty = sum(len(split.instances) - len(split.taken) for (node, gpu), split in splits if split.mode == "mig" and usable[node] >> gpu & 1)
            others = "1 instance of another profile or node is" if empty == 1 else f"{empty} instances of other profiles or nodes are"
            detail = f"no empty {asked} on {type_name}; {others} empty"
            return reason("sharing", detail, asked=asked, type=type_name, sharing=kind.sharing)
        asked = f"{role.share_milli} milli-GPU" if role.share_milli is not None else f"{(role.memory_mib or 0) / 1024:g} GB"
        detail = f"no GPU of {type_name} that it may share by {kind.sharing} has {asked} left, and none is idle"
        return reason("sharing", detail, asked=asked, type=type_name, sharing=kind.sharing)

    def _may_join(self, work: Work) -> bool:
        """Whether on some node split GPUs that are made whole, beside what is free there, would hold a worker of whole GPUs."""
        key = (work.form.shape, work.types)
        if key not in self._joins:
            wanted = min((role.gpus for role in work.kind.roles if role.gpus), default=0)
            types = set(self.cycle.types_of(work))
            of_type = self.cycle.grid.type_of
            self._joins[key] = any(of_type[node] in types and split + self.view.count_np[node] >= wanted for node, split in self._split.items())
        return self._joins[key]

    @cached_property
    def _split(self) -> Counter[int]:
        """How many GPUs of a node are split into instances."""
        usable = self.cycle.grid.usable
        return Counter(node for (node, gpu), split in self.view.splits.items() if split.mode == "mig" and usable[node] >> gpu & 1)

    def may_reclaim(self, work: Work, quota_type: int) -> bool:
        milli = self.cycle.least_milli(work.kind, quota_type)
        return bool(Reclaim(self.cycle, work, quota_type, work.home, milli).sources)


SPLITTING = frozenset({"sharing", "repartition"})
ORDER = reason("order", "fits, but jobs ahead of it take the GPUs")
UNKNOWN: Any = object()
OWN = "lower work of its own queue is"
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


def _safe_for(seconds: int, who: str) -> str:
    return f"; {who} protected for {seconds} s after its start" if seconds else ""


def _safe_fact(seconds: int) -> dict[str, int]:
    return {"safe_s": seconds} if seconds else {}
