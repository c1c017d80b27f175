"""Why a waiting job finds no room: too few GPUs, too few in one place, or no part of one. Computed once per shape."""

from collections import Counter
from collections.abc import Container, Mapping
from functools import cached_property
from typing import NamedTuple

import numpy as np

from ..model.reasons import Reason, counted, reason, spell_instant
from ..model.values import Kind, Role
from ..place.placement import fit
from ..rules.times import ends_at
from ..rules.windows import NEVER
from ..state.fleet import Split
from ..state.grid import Eligible, Ints, ints
from ..state.planning import Cycle
from ..state.work import Work

Key = tuple[int, int]  # shape and quota type


class Narrow(NamedTuple):
    """A role for which one domain has too little room: so many of the workers that are missing."""

    role: Role
    eligible: Eligible
    level: int
    domain: int | None  # to which those that run pin it
    most: int
    missing: int


class Rooms:
    """What the final state has no room for."""

    def __init__(self, cycle: Cycle, *, foresees: bool) -> None:
        """`foresees`: whether it is told who leaves first, as where everyone's start is foreseen."""
        self.cycle = cycle
        self.foresees = foresees
        self.view = cycle.fleet.soon
        self.slots = cycle.slots(self.view)
        self.told: dict[Key, tuple[Reason | None, Work]] = {}  # None: there is room; and of whom that was asked

    def of(self, work: Work, quota_type: int) -> Reason | None:
        if work.seats:
            return self._new_room(work, quota_type)
        key = (work.form.shape, quota_type)
        if key not in self.told:
            self.told[key] = self._new_room(work, quota_type), work
        return self.told[key][0]

    def others_than(self, before: Mapping[Key, tuple[Reason | None, Work]]) -> set[Key]:
        """For which of the shapes that wait there is not the same room any more as in the plan before."""
        shapes = self.cycle.waiting.shapes()
        known = ((key, room, work) for key, (room, work) in before.items() if key[0] in shapes)
        return {key for key, room, one in known if self.of(Work(one.job, one.order, one.home, one.form), key[1]) != room}

    def _new_room(self, work: Work, quota_type: int) -> Reason | None:
        cycle, roles, wants, type_name = self.cycle, work.kind.roles, work.missing(), self.cycle.grid.types[quota_type]
        if (parted := next((roles[place] for place, _ in wants if roles[place].parted), None)) is not None:
            return None if self._fits(work, quota_type) else self._no_part(parted, work.kind, type_name)
        total_needed = sum(roles[place].gpus * len(ranks) for place, ranks in wants)
        allowed = np.zeros(cycle.grid.size, dtype=np.int64)
        worst: Narrow | None = None
        for place, ranks in wants:
            role, eligible = roles[place], work.eligible(place, quota_type)
            if role.gpus or not total_needed:  # on whose nodes GPUs are asked for
                allowed |= eligible.array
            level, domain = self._pinned(work, place) if work.seats else (work.form.width, None)
            most = self.slots.most(role, eligible, level) if domain is None else int(self.slots.sums(role, eligible, level)[domain])
            if most < len(ranks) and (worst is None or most * worst.missing < worst.most * len(ranks)):
                worst = Narrow(role, eligible, level, domain, most, len(ranks))
        pinned = worst is not None and worst.domain is not None and worst.level > 0
        idle = int((self.view.count_np * allowed).sum())
        if idle < total_needed and not pinned:
            detail = f"needs {total_needed} {type_name} GPU{'s' * (total_needed != 1)}; {idle} {'is' if idle == 1 else 'are'} free where it may run"
            first = self._first_to_leave(frozenset(np.flatnonzero(allowed).tolist())) if self.foresees else {}
            if first.get("until") is None:
                first = {}
            else:
                detail += f"; {first['held_by']} is expected to leave first, by {first['until']}"
            return reason("capacity", detail, type=type_name, needed=total_needed, free=idle, **first)
        if worst is None:
            if work.form.plain or self._fits(work, quota_type):
                return None
            detail = f"{self._free(idle, type_name)}, but not grouped as its roles and NVLink groups need them"
            return reason("fragmentation", detail, free=idle, type=type_name)
        return self._too_narrow(work, type_name, worst, idle, total_needed)

    def _pinned(self, work: Work, place: int) -> tuple[int, int | None]:
        """The level in one domain of which the missing workers of a role must stand, and the domain to which those that run pin them."""
        grid, placing = self.cycle.grid, work.kind.roles[place].placing
        level, seats = work.form.width, work.seats
        of_role = tuple(seat for seat in seats if seat.role == place)
        if placing is not None and placing.required is not None and of_role and grid.level_index[placing.required] > level:
            level, seats = grid.level_index[placing.required], of_role
        return level, None if level < 0 else grid.levels[level].domain_of(seats[0].node)

    def _first_to_leave(self, nodes: Container[int], but: Work | None = None) -> dict[str, str | None]:
        """Who of those that stand on some of the nodes leaves first, if anybody, and until when it stays; None: nobody knows."""
        for end, work in self._leaving:
            if work is not but and any(seat.node in nodes for seat in work.seats):
                return {"held_by": work.job.name, "until": None if end >= NEVER else spell_instant(end)}
        return {}

    @cached_property
    def _leaving(self) -> list[tuple[int, Work]]:
        """Who stands, and until when: the next one to leave first."""
        ends = [(ends_at(self.cycle, work), work.order, work) for work in self.cycle.cluster.works if work.seats]
        return [(end, work) for end, _, work in sorted(ends)]

    def _too_narrow(self, work: Work, type_name: str, worst: Narrow, idle: int, needed: int) -> Reason:
        cycle, (role, eligible, level, pinned, most, count) = self.cycle, worst
        host, facts = self._host_binds(role, eligible.array, worst)
        each = f"workers of {counted(1000 * role.gpus)}" if role.gpus else "workers"
        if level <= 0:
            free = f"{self._free(idle, type_name)}, but " if role.gpus else ""
            detail = f"{free}room for only {most} of {count} {each} on one node each{host}"
            # The node that lacks the fewest GPUs for one worker more.
            there = self.view.count_np * eligible.array
            short = np.where((there < role.gpus) & (cycle.grid.usable_np >= role.gpus) & (eligible.array > 0), there, -1)
            node = int(short.argmax())
            near = {"node": cycle.grid.nodes[node].name, "free_there": int(there[node])} if not facts and short[node] >= 0 else {}
            return reason("fragmentation", detail, free=idle, room=most, needed=count, type=type_name, each=role.gpus, **near, **facts)
        name, domain = cycle.grid.level_names[level], int(self.slots.sums(role, eligible, level).argmax()) if pinned is None else pinned
        where = cycle.grid.nodes[domain].name if level == len(cycle.grid.levels) - 1 else cycle.grid.levels[level].names[domain]
        facts |= {"level": name, "domain": where, "room": most, "needed": count, "type": type_name, "each": role.gpus}
        what = "" if len(cycle.grid.types) == 1 else f"{type_name} "
        detail = f"the largest free {name} ({where}) has room for {most} of {count} {what}workers"
        if pinned is not None:
            detail = f"its other workers stand in the {name} {where}, which has room for {most} of {count} more"
            facts["pinned"] = True
        detail += (f": {most * role.gpus} of {counted(1000 * needed)}" if role.gpus else "") + host
        if holder := self._first_to_leave(range(*cycle.grid.levels[level].slice_of(domain)), but=work):
            detail += f"; {holder['held_by']} holds {'GPUs' if role.gpus else 'places'} there until {holder['until'] or 'an unknown time'}"
        return reason("topology", detail, **facts, **holder)

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
        short: dict[str, str] = {}
        for what, each, left, unit in hosts:
            free = np.maximum(ints(left), 0) * (slots > 0)
            if self._most_in(np.minimum(slots, free // each), worst) < worst.missing:
                short[what] = f"{each / unit:g} {what}, of which one node has {int(free.max()) / unit:g} left at most"
        together = " and ".join(f"{each / unit:g} {what}" for what, each, _, unit in hosts) + ", which no node has left together"
        lacks, told = tuple(short or [what for what, *_ in hosts]), " and ".join(short.values()) or together
        return f"; each {'also ' if role.gpus else ''}needs {told}", {"lacks": lacks}

    def _most_in(self, slots: Ints, worst: Narrow) -> int:
        if worst.level <= 0:
            return int(slots.sum())
        sums = self.cycle.grid.levels[worst.level].sums(slots)
        return int(sums.max() if worst.domain is None else sums[worst.domain])

    def closed(self, work: Work) -> int | None:
        """The first node with room for a worker off which the job has to stay because of who stands there, where it finds no place but for that."""
        off, suspect = self.cycle.cluster.apart(work), work.kind.tolerates_suspect
        for quota_type in work.open_types if off else ():
            for place, _ in work.missing():
                role = work.kind.roles[place]
                room = work.form.eligible(place, quota_type, suspect=suspect, spare=bool(work.seats)).bits & self.slots.nodes_for(role) & off
                if room and not self._fits(work, quota_type):
                    return (room & -room).bit_length() - 1
        return None

    def _fits(self, work: Work, quota_type: int) -> bool:
        with self.cycle.cluster.attempt():
            return fit(self.cycle, work, quota_type, self.view) is not None

    def _no_part(self, role: Role, kind: Kind, type_name: str) -> Reason:
        memory = f"{(role.memory_mib or 0) / 1024:g} GB"
        if kind.sharing == "mig":
            asked = role.mig or f"an instance with {memory}"
            empty = sum(len(split.instances) - len(split.taken) for _, split in self._in_mig_mode)
            others = "1 instance of another profile or node is" if empty == 1 else f"{empty} instances of other profiles or nodes are"
            detail = f"no empty {asked} on {type_name}; {others} empty"
        else:
            asked = memory if role.share_milli is None else f"{role.share_milli} milli-GPU"
            detail = f"no GPU of {type_name} that it may share by {kind.sharing} has {asked} left, and none is idle"
        return reason("sharing", detail, asked=asked, type=type_name, sharing=kind.sharing)

    def may_join(self, work: Work) -> bool:
        """Whether on some node split GPUs that are made whole, beside what is free there, would hold a worker of whole GPUs."""
        wanted = min((role.gpus for role in work.kind.roles if role.gpus), default=0)
        split, of_type = Counter(node for node, _ in self._in_mig_mode), self.cycle.grid.type_of
        return any(of_type[node] in work.open_types and count + self.view.count_np[node] >= wanted for node, count in split.items())

    @cached_property
    def _in_mig_mode(self) -> list[tuple[int, Split]]:
        return mig_splits(self.cycle)


def mig_splits(cycle: Cycle) -> list[tuple[int, Split]]:
    """The usable GPUs that are split into instances, each with its node."""
    usable = cycle.grid.usable
    return [(node, split) for (node, gpu), split in cycle.fleet.soon.splits.items() if split.mode == "mig" and usable[node] >> gpu & 1]
