"""Places kept for blocked jobs, and what may run in the gaps before them."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from .asking import Asking
from .capacity import widest
from .cluster import Cluster, Work
from .columns import ints
from .fleet import Fleet, Seat
from .grid import Grid, Ints
from .lookahead import END, FOREVER, Lookahead
from .reading import spell_instant
from .reasons import Reason, reason
from .rehearsal import Rehearsal, Stay, counts_of
from .tree import Tree
from .values import Kind, Preemptible, Role, Settings
from .windows import NEVER

MANY = 64  # jobs that changed from which a look-ahead is made anew
MOST_CHANGES = 4096  # that are looked through
NO_NODES: frozenset[int] = frozenset()


class Surroundings(Protocol):
    """What a book of reservations asks of the plan in the making."""

    cluster: Cluster
    fleet: Fleet
    grid: Grid
    tree: Tree
    settings: Settings
    now: int
    asking: Asking
    has_backfilled: bool

    def ends_at(self, work: Work) -> int: ...

    def duration(self, work: Work) -> int: ...

    def least_milli(self, kind: Kind, quota_type: int) -> int: ...

    def rank_in_queue(self, work: Work) -> tuple[bool, int, int, int]: ...


class Date(NamedTuple):
    """When a job could start, and where."""

    at: int  # milliseconds from now
    places: list[tuple[int, int]]  # (node, whole GPUs)
    seats: tuple[Seat, ...]  # its workers one by one, where it was tried and not only counted


@dataclass(slots=True)
class Entry:
    work: Work
    quota_type: int
    at: int  # milliseconds from now
    length: int
    places: list[tuple[int, int]]  # (node, GPUs)
    guaranteed: bool  # whether its holder would stay within its guarantees
    place: int  # in the order of the book
    date: Date
    known: "Known"
    served: bool = False  # by a later pass: its holder stands, and nothing is kept any more

    def keeps(self, node: int) -> int:
        return sum(count for place, count in self.places if place == node)


class Held(NamedTuple):
    """How a job stands in a book: until which instant (0: it gives way at once), and where."""

    until: int
    seats: tuple[Seat, ...]


NOWHERE = Held(0, ())


@dataclass(slots=True, eq=False)
class Known:
    """What came of a blocked job that asked for a place in a type: from when on it is kept, where; or no date at all."""

    work: Work
    quota_type: int
    instant: int
    places: list[tuple[int, int]] | None
    counted: bool  # whether that is a matter of counting GPUs over time, and so the same as long as these are
    read: int = 0  # so many changes of the fleet it takes into account
    before: tuple["Known", ...] = ()  # whose places were kept then

    @property
    def nodes(self) -> Iterator[int]:
        return (node for node, _ in self.places or ())


class Prospect:
    """A look-ahead to go on from in the next plan, and what was told on it."""

    def __init__(self, settings: Settings, ahead: Lookahead, held: "Stays", ends_now: bool, told: "Told") -> None:
        self.settings = settings
        self.ends_now = ends_now  # whether somebody's time was up when it was made, or would have been
        self.ahead = ahead
        self.held = held
        self.told = told
        self.changed: dict[Work, bool] = {}  # jobs that may stand otherwise by now, and whether they are still there


class Stays(dict[Work, Held]):
    """Who stands where until when, as the look-ahead has it. Of those of whom nobody knows when they end, it is made when it is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.endless: dict[Work, tuple[Seat, ...]] = {}

    def of(self, work: Work) -> Held:
        known = self.get(work)
        if known is None:
            seats = self.endless.pop(work, None)
            if seats is None:
                return NOWHERE
            known = self[work] = Held(END, seats)
        return known


class Line(NamedTuple):
    """Who asked for places one after the other, and what came of it."""

    asked: list[tuple[Work, int]]  # and in which type
    known: list[Known]
    before: list[tuple[Known, ...]]  # whose places were kept then, by who asked
    entries: list[Entry]
    nodes: frozenset[int]  # of the places of all of them
    read: int  # so many changes of the fleet it takes into account


class Told:
    """What blocked jobs were told, and what has changed on the fleet since.

    A date is the same again as long as its places can still be had, and no node that has changed offers one that comes before it: whether
    another job stands there since, or another one has a place kept.
    """

    def __init__(self) -> None:
        self.dates: dict[Work, Known] = {}
        self.lately: dict[Work, Known] = {}  # of this plan alone
        self.changes: list[int] = []  # nodes on which somebody stands otherwise than before, in order; below zero (~node): there is only less room
        self.line: Line | None = None  # what came of the last ones who asked
        self._since = (0, 0, NO_NODES, NO_NODES)  # of which of the changes, and the nodes with more and with less room by them

    def go_on(self) -> None:
        if len(self.dates) > MANY:
            self.dates = self.lately
        self.lately = {}
        if len(self.changes) > MOST_CHANGES:
            self.dates.clear()
            self.changes.clear()
            self.line = None
            self._since = (0, 0, NO_NODES, NO_NODES)

    def note(self, known: Known, before: Sequence[Known]) -> None:
        known.read, known.before = len(self.changes), tuple(before)
        self.dates[known.work] = self.lately[known.work] = known

    def changed_since(self, known: Known, before: Sequence[Known]) -> tuple[frozenset[int], frozenset[int]]:
        """The nodes on which there may be more room than when it was told, with these places kept now; and those on which there may be less."""
        more, less = self.since(known.read)
        told = known.before
        if gone := [one for one in told if one not in before]:
            more = more.union(*[one.nodes for one in gone])
        if come := [one for one in before if one not in told]:
            less = less.union(*[one.nodes for one in come])
        return more, less

    def since(self, read: int) -> tuple[frozenset[int], frozenset[int]]:
        """The same by who stands there alone."""
        known, until, more, less = self._since
        if known != read or until != len(self.changes):  # mostly all of them were told at one time
            changes = self.changes[read:]
            more, less = frozenset([node for node in changes if node >= 0]), frozenset([~node for node in changes if node < 0])
            self._since = (read, len(self.changes), more, less)
        return more, less


def _largest(work: Work) -> tuple[Role, int] | None:
    """The role with the largest workers on GPUs among those that have no place, and how many."""
    roles = work.kind.roles
    counted = [(roles[place].gpus, place, len(ranks)) for place, ranks in work.missing() if roles[place].gpus]
    if not counted:
        return None
    _, place, count = max(counted)
    return roles[place], count


class Book:
    """The reservations of one sweep, on top of a look-ahead over what runs. Both follow what the plan changes meanwhile."""

    def __init__(self, cycle: Surroundings) -> None:
        self.cycle = cycle
        self._entries: list[Entry] = []
        self._asking: list[tuple[Work, int]] = []  # who was promised an answer, and in which type: it is worked out when somebody wants to know
        self._walk: Callable[[], None] | None = None  # finds those, where nobody has gone along the queue yet
        self.per_type: dict[int, int] = {}
        self.blocked_within: set[int] = set()
        self._asked_at: dict[int, int] = {}  # how many reservations stood before a blocked job, whether or not it has one
        self._by_node: dict[int, list[Entry]] = {}
        self._ahead: Lookahead | None = None
        self._read = 0  # so much of the cluster's journal is in the look-ahead
        self._ends_now = False  # whether somebody's time was up, or his place lent, when the look-ahead was made
        self._full: dict[tuple[int, int], tuple[int, int]] = {}  # for shapes that found no room now: as of when, and for how short a stay
        self._geometry: list[tuple[int, int]] = []
        self._held = Stays()
        self._hosts_bind: bool | None = None
        self._rehearsed: Rehearsal | None = None
        self._rehearsed_read = 0  # so much of the cluster's journal is in it
        self._tenants: dict[tuple[int, int], dict[Work, int]] = {}  # of GPUs in parts: until when, by job
        self._told = Told()
        self._lenders: tuple[int, list[Work]] | None = None  # as of how much of the cluster's journal
        self._keeping: list[Known] = []  # whose places are kept now, in order
        self._unheld: list[Entry] = []  # whose places nobody has asked the look-ahead about since they were told again: it does not know of them
        self.looked_at = False  # whether anybody has asked what is kept, since it was set

    @property
    def entries(self) -> list[Entry]:
        """What is kept, in order."""
        self.looked_at = True
        if self._asking or self._walk is not None:
            self.settle()
        return self._entries

    @property
    def unsettled(self) -> bool:
        """Whether somebody's place is not worked out yet."""
        return bool(self._asking) or self._walk is not None

    @property
    def nodes(self) -> Collection[int]:
        """On which anything is kept."""
        self.looked_at = True
        if self._asking or self._walk is not None:
            self.settle()
        return self._by_node

    def settle(self) -> None:
        """Work out what was asked for later. Nothing may have changed since then, so the cluster asks for it before anything does."""
        self.cycle.cluster.before_changes = None
        walk, self._walk = self._walk, None
        if walk is not None:
            walk()
        asking, self._asking = self._asking, []
        self.cycle.cluster.before_changes = None
        first = bool(asking) and not self._entries
        if first and self._all_again(asking):
            return
        for work, quota_type in asking:
            self.per_type[quota_type] -= 1
            self.add(work, (quota_type,))
        if first:
            self._note_line(asking)

    def _all_again(self, asking: list[tuple[Work, int]]) -> bool:
        """Whether the same have asked in the same order as the last time, and get all that they got then."""
        ahead, told, now = self._renew_but_unheld(), self._told, self.cycle.now
        line = told.line
        if line is None or line.asked != asking:
            return False
        more, less = told.since(line.read)
        if not line.nodes.isdisjoint(more) or not line.nodes.isdisjoint(less):
            return False
        if any(entry.known.instant <= now for entry in line.entries):
            return False
        for known in line.known:
            if not self._counted(known.work) or (more and not self._no_others(ahead, known, more)):
                return False
        for known, before in zip(line.known, line.before, strict=True):
            self._asked_at.setdefault(known.work.order, len(before))
            told.note(known, before)
        self._keep_again(line.entries)
        told.line = line._replace(read=len(told.changes))
        return True

    def _keep_again(self, entries: list[Entry]) -> None:
        now, tree, by_node = self.cycle.now, self.cycle.tree, self._by_node
        for entry in entries:
            work, known = entry.work, entry.known
            if entry.at != known.instant - now:
                entry.at = known.instant - now
                entry.date = Date(entry.at, entry.places, ())
            entry.guaranteed = tree.within_guarantee(work.home, entry.quota_type, self.cycle.least_milli(work.kind, entry.quota_type))
            entry.served = False
            for node, _ in entry.places:
                if node in by_node:
                    by_node[node].append(entry)
                else:
                    by_node[node] = [entry]
        self._entries += entries
        self._unheld += entries
        self._keeping += [entry.known for entry in entries]

    def _note_line(self, asking: list[tuple[Work, int]]) -> None:
        """Remember what came of all who asked, where that was a matter of counting."""
        told = self._told
        known = [one for work, _ in asking if (one := told.lately.get(work)) is not None and one.read == len(told.changes)]
        told.line = None
        if len(known) == len(asking) and all(entry.at > 0 for entry in self._entries):
            nodes = frozenset([node for entry in self._entries for node, _ in entry.places])
            told.line = Line(asking, known, [one.before for one in known], [*self._entries], nodes, len(told.changes))

    def clear(self) -> None:
        """Forget what was reserved; the look-ahead stays and goes on to follow what changes."""
        self._asking.clear()
        self._walk = None
        self.cycle.cluster.before_changes = None
        held = self._entries[: len(self._entries) - len(self._unheld)] if self._ahead is not None else ()
        for entry in held:
            if not entry.served and self._ahead is not None:
                self._ahead.give_back(entry.at, entry.length, entry.places)
        self._unheld.clear()
        self._keeping.clear()
        self._entries.clear()
        self.per_type.clear()
        self.blocked_within.clear()
        self._asked_at.clear()
        self._by_node.clear()
        self._full.clear()

    @property
    def ahead(self) -> Lookahead:
        """The look-ahead as of this moment, with the places that are kept by now."""
        return self._renew()

    def _renew(self) -> Lookahead:
        ahead = self._renew_but_unheld()
        if self._unheld:
            self._hold_all()
        return ahead

    def _hold_all(self) -> None:
        assert self._ahead is not None
        for entry in self._unheld:
            self._ahead.reserve(entry.at, entry.length, entry.places)
        self._unheld.clear()

    def _renew_but_unheld(self) -> Lookahead:
        cluster = self.cycle.cluster
        if self._ahead is None or (not self._entries and self._geometry != [*cluster.geometry]):
            self._tenants, self._geometry = {}, [*cluster.geometry]
            prospect, cluster.kept.prospect = cluster.kept.prospect, None
            if prospect is not None and prospect.settings == self.cycle.settings and len(prospect.changed) <= MANY:
                self._ahead = self._go_on(prospect)
            else:
                self._held, self._told = Stays(), Told()
                self._ahead = self._lookahead(self._held, self._tenants)
                self._ends_now = self._anyone_ends()
            self._read = len(cluster.journal)
        elif self._read < len(cluster.journal):
            self._hold_all()
            self._follow(self._ahead)
        return self._ahead

    def _go_on(self, prospect: Prospect) -> Lookahead:
        """The look-ahead of an earlier plan as of now."""
        ahead, held, now = prospect.ahead, prospect.held, self.cycle.now
        later = now != ahead.now
        ahead.pass_time(now)
        self._held, self._told = held, prospect.told
        self._told.go_on()
        changed = prospect.changed | dict.fromkeys(self.cycle.cluster.journal, True)
        if later:
            for work, stay in held.items():
                if stay.until < END and (stay.until <= now or work.job.run.started is None):
                    changed.setdefault(work, True)  # its time was up, or is counted from now on
        self._take_up(ahead, [(work, self._held_by(work) if there else NOWHERE) for work, there in changed.items()])
        for work, there in changed.items():
            if not there:
                self._told.dates.pop(work, None)
        if later:
            self._ends_now = self._anyone_ends()
        else:
            self._ends_now = prospect.ends_now or any(held[work].until <= now for work in changed if work in held)
        return ahead

    def _anyone_ends(self) -> bool:
        return any(held.until <= self.cycle.now for held in self._held.values())

    def prospect(self) -> Prospect | None:
        """What the next plan can go on from, with all reservations taken back; only where GPUs are held whole."""
        if self._ahead is None or self._tenants or self._geometry:
            return None
        ahead = self._renew_but_unheld()
        self.clear()
        return Prospect(self.cycle.settings, ahead, self._held, self._ends_now, self._told)

    def fresh_lookahead(self) -> Lookahead:
        return self._lookahead(Stays(), {})

    def _lookahead(self, known: Stays, tenants: dict[tuple[int, int], dict[Work, int]]) -> Lookahead:
        """What is idle now or being freed, and when the rest comes free. Backfilled work gives way at once."""
        cycle = self.cycle
        soon = cycle.fleet.soon
        idle = list(soon.count)
        releases: list[tuple[int, int, int]] = []
        usable, now, endless = cycle.grid.usable, cycle.now, known.endless
        for work in cycle.cluster.works:
            seats = work.seats
            if not seats:
                continue
            job = work.job
            if job.limit_ms is None and job.estimate_ms is None and not work.backfilled and not work.form.parted:
                endless[work] = seats  # nobody knows when it ends
                continue
            held = known[work] = self._held_by(work)
            until = self._left(held)
            for seat in held.seats:
                node = seat.node
                if seat.mask:
                    if not until:
                        idle[node] += (seat.mask & usable[node]).bit_count()
                    elif until < END:
                        releases.append((now + until, node, (seat.mask & usable[node]).bit_count()))
                for part in seat.parts:
                    tenants.setdefault((node, part.gpu), {})[work] = until if part.mode != "mig" else END
        for (node, gpu), ends in tenants.items():  # a shared GPU is whole again when the last of them has left
            until = max(ends.values())
            if usable[node] >> gpu & 1 and until < END:
                if until:
                    releases.append((now + until, node, 1))
                else:
                    idle[node] += 1
        return Lookahead(cycle.grid, now, idle, releases)

    def _held_by(self, work: Work) -> Held:
        if not work.seats:
            return NOWHERE
        if self.lent(work):
            return Held(0, work.seats)
        end = self.cycle.ends_at(work)
        return Held(END if end >= NEVER else end if end > self.cycle.now else 0, work.seats)

    def _left(self, held: Held) -> int:
        """So many milliseconds from now it stands there."""
        return END if held.until >= END else max(0, held.until - self.cycle.now)

    def _follow(self, ahead: Lookahead) -> None:
        """Take up what has changed about jobs: places given, taken back, or only tried; and who was served meanwhile."""
        journal = self.cycle.cluster.journal
        moved = {work.order: work for work in journal[self._read :]}
        self._read = len(journal)
        self._take_up(ahead, [(moved[order], self._held_by(moved[order])) for order in sorted(moved)])
        for entry in self._entries:
            served = bool(entry.work.seats) and not entry.work.degraded
            if served != entry.served:
                entry.served = served
                if served:
                    self._keeping.remove(entry.known)
                    ahead.give_back(entry.at, entry.length, entry.places)
                else:
                    self._keeping.append(entry.known)
                    ahead.reserve(entry.at, entry.length, entry.places)

    def _take_up(self, ahead: Lookahead, stays: Iterable[tuple[Work, Held]]) -> None:
        """These jobs stand so from now on. Of what cancels out, as who has become another job where he stands, nothing is noted."""
        usable, changed = self.cycle.grid.usable, self._told.changes
        by_node: dict[int, dict[int, int]] = {}  # by the time of leaving so many GPUs more, or less
        for work, new in stays:
            old = self._held.of(work)
            if old == new:
                continue
            for held, sign in ((old, -1), (new, 1)):
                until = self._left(held)
                for seat in held.seats:
                    if seat.mask and until:
                        here = by_node.setdefault(seat.node, {})
                        here[until] = here.get(until, 0) + sign * (seat.mask & usable[seat.node]).bit_count()
                    for part in seat.parts:
                        changed.append(seat.node)
                        self._share(ahead, (seat.node, part.gpu), work, until if part.mode != "mig" else END, sign)
            if new.seats:
                self._held[work] = new
            else:
                del self._held[work]
        for node, leaving in by_node.items():
            more, most, least = 0, 0, 0
            for until in sorted(leaving, reverse=True):
                if leaving[until]:
                    ahead.hold(0, until, node, leaving[until])
                    more += leaving[until]
                    most, least = max(most, more), min(least, more)
            if least < 0:
                changed.append(node)
            elif most > 0:
                changed.append(~node)

    def _share(self, ahead: Lookahead, key: tuple[int, int], work: Work, until: int, sign: int) -> None:
        """One tenant more or less on a GPU, which is held until the last one has left."""
        ends = self._tenants.setdefault(key, {})
        before = max(ends.values(), default=0)
        if sign > 0:
            ends[work] = until
        else:
            ends.pop(work, None)
        after = max(ends.values(), default=0)
        if self.cycle.grid.usable[key[0]] >> key[1] & 1:
            if after > before:
                ahead.hold(before, after, key[0], 1)
            elif before > after:
                ahead.hold(after, before, key[0], -1)

    # Asking

    def length(self, work: Work) -> int:
        return min(FOREVER, self.cycle.duration(work))

    def earliest(self, ahead: Lookahead, work: Work, quota_type: int, rehearsal: Rehearsal | None = None) -> Date | None:
        """When and where its minimum could start.

        By counting GPUs, role by role, where that decides; else that is the soonest moment from which on it is tried. What takes parts of GPUs
        is only tried for a forecast, which hands over its own rehearsal: nothing is kept for it.
        """
        wants, roles = work.missing(), work.kind.roles
        parted = any(roles[place].parted for place, _ in wants)
        if (parted and rehearsal is None) or not any(roles[place].gpus or roles[place].parted for place, _ in wants):
            return None
        length = self.length(work)
        bound = self._by_counting(ahead, work, quota_type, length)
        if bound is None:
            return None
        if self.cycle.cluster.windows.upcoming:
            bound = self._beside_windows(ahead, work, quota_type, length, bound)
            if bound is None:
                return None
        role = roles[wants[0][0]]
        if work.form.plain and not work.seats:
            if not self.hosts_bind or not (role.cpus or role.host_memory_mib):
                return bound
            rehearsal = rehearsal or self._own_rehearsal(ahead)
            counts = [(node, count // role.gpus) for node, count in bound.places]
            if rehearsal.hosts_suffice((role.cpus, role.host_memory_mib), counts, bound.at, length):
                return bound
        rehearsal = rehearsal or self._own_rehearsal(ahead)
        found = rehearsal.earliest(work, quota_type, bound.at, length)
        if found is None:
            return None
        at, seats = found
        return Date(at, counts_of(seats, self.cycle.grid.usable), seats)

    def _beside_windows(self, ahead: Lookahead, work: Work, quota_type: int, length: int, soonest: Date) -> Date | None:
        """The same where no coming window is in the way of a start then: it would not be let in, and the place would be kept in vain."""
        cluster, now = self.cycle.cluster, self.cycle.now
        windows = cluster.windows
        milli = cluster.wants_milli(work.kind, work.missing(), quota_type)
        if not windows.lets(cluster, work, quota_type, milli, now + soonest.at):
            return None
        banned = windows.kept_off(cluster, work, quota_type, milli, now + soonest.at)
        if not banned:
            return soonest
        if not work.form.plain:
            return None
        found = self._by_counting(ahead, work, quota_type, length, banned)
        return found if found is not None and windows.lets(cluster, work, quota_type, milli, now + found.at) else None

    def _by_counting(self, ahead: Lookahead, work: Work, quota_type: int, length: int, banned: int = 0) -> Date | None:
        """The soonest by whole GPUs: when the last of its roles could start, each looked at alone."""
        width = widest(self.cycle.cluster, work.kind)
        level = self.cycle.grid.levels[width] if width >= 0 else None
        last = Date(0, [], ())
        for place, ranks in work.missing():
            role = work.kind.roles[place]
            if role.gpus:
                nodes = self._nodes(work, role, quota_type)
                if banned:
                    nodes = nodes * ints([not banned >> node & 1 for node in range(len(nodes))])
                found = ahead.earliest(role.gpus, len(ranks), length, nodes, level)
                if found is None:
                    return None
                if found[0] >= last.at:
                    last = Date(found[0], found[1], ())
        return last

    def _nodes(self, work: Work, role: Role, quota_type: int) -> Ints:
        kind = work.kind
        return self.cycle.grid.eligible(kind, role, quota_type, suspect=kind.tolerates_suspect, spare=bool(work.seats)).array

    @property
    def hosts_bind(self) -> bool:
        """Whether processors or memory of a host could run out before its GPUs do."""
        if self._hosts_bind is None:
            self._hosts_bind = any(
                not gpus or cpus * there > room * gpus or memory * there > space * gpus
                for gpus, cpus, memory in self.cycle.cluster.forms.asked
                for there, room, space in self.cycle.grid.hosts
            )
        return self._hosts_bind

    def rehearsal(self, ahead: Lookahead) -> Rehearsal:
        """The fleet of this moment and what is reserved on it, to try jobs on it later."""
        rehearsal = self._bare_rehearsal(ahead)
        self._add_reserved(rehearsal)
        return rehearsal

    def _bare_rehearsal(self, ahead: Lookahead) -> Rehearsal:
        works = self.cycle.cluster.works
        return Rehearsal(self.cycle.cluster, ahead, ((work, stay) for work in works if work.seats and (stay := self._stay(work)) is not None))

    def _stay(self, work: Work) -> Stay | None:
        left = self._left(self._held_by(work))
        return Stay(0, left, work.seats) if work.seats and left else None

    def _add_reserved(self, rehearsal: Rehearsal) -> None:
        for entry in self.entries:
            if not entry.served:
                rehearsal.add(entry.at, entry.length, self.seats_of(entry.work, entry.date))

    def _own_rehearsal(self, ahead: Lookahead) -> Rehearsal:
        """The same for who asks for a reservation; it follows what changes from one to the next."""
        journal = self.cycle.cluster.journal
        if self._rehearsed is None:
            self._rehearsed = self._bare_rehearsal(ahead)
        else:
            self._rehearsed.ahead = ahead
            self._rehearsed.clear()
            for work in dict.fromkeys(journal[self._rehearsed_read :]):
                self._rehearsed.move(work, self._stay(work))
        self._rehearsed_read = len(journal)
        self._add_reserved(self._rehearsed)
        return self._rehearsed

    def seats_of(self, work: Work, date: Date) -> Sequence[Seat]:
        """Where workers stand at a date: as they were placed, or one by one on the nodes that were counted."""
        if date.seats:
            return date.seats
        role = next(work.kind.roles[place] for place, _ in work.missing())
        each = role.gpus or 1
        counted = (node for node, count in date.places for _ in range(count // each))
        return [Seat(0, 0, node, 0, role.cpus, role.host_memory_mib, 0) for node in counted]

    # Keeping

    def room_for_more(self, quota_type: int) -> bool:
        return self.per_type.get(quota_type, 0) < self.cycle.settings.backfill_depth

    def asks(self, work: Work) -> bool:
        """Whether a place is kept for it. Who has no date in one type may ask again in another."""
        for one, _ in self._asking:
            if one is work:
                self.settle()
                break
        return work.order in self._asked_at and any(entry.work is work for entry in self._entries)

    def keep_later(self, walk: Callable[[], None]) -> None:
        """A walk along the queue that would only keep places, of this state, once that matters."""
        self._walk = walk
        self.cycle.cluster.before_changes = self.settle

    def add_later(self, work: Work, quota_type: int) -> None:
        """The same as `add`, of this state, once it matters: mostly nobody starts, and nobody is told of it."""
        self._asking.append((work, quota_type))
        self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        self.cycle.cluster.before_changes = self.settle

    def add(self, work: Work, types: Sequence[int], *, only_now: bool = False) -> Entry | None:
        """Keep the earliest place for a blocked job in one of these types; None where there is no date (or only a later one): nothing is kept."""
        self._asked_at.setdefault(work.order, len(self.entries))
        quota_type = types[0]
        known = None if only_now or len(types) > 1 else self._told_again(self._renew_but_unheld(), work, quota_type)
        again = known is not None
        if known is not None:
            found = None if known.places is None else Date(known.instant - self.cycle.now, known.places, ())
            if found is None:
                self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        else:
            found = None
            for each in types:
                date = self._date(work, each, only_now=only_now)
                if date is not None and (found is None or date.at < found.at):
                    found, quota_type = date, each
            instant, places = (END, None) if found is None else (self.cycle.now + found.at, found.places)
            known = Known(work, quota_type, instant, places, len(types) == 1 and not only_now and self._counted(work))
        keeping = self._keeping
        if known.counted:
            self._told.note(known, keeping)
        if found is None:
            return None
        self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        at, places, _ = found
        length = self.length(work)
        keeping.append(known)
        tree, entries, by_node = self.cycle.tree, self._entries, self._by_node
        guaranteed = tree.within_guarantee(work.home, quota_type, self.cycle.least_milli(work.kind, quota_type))
        entry = Entry(work, quota_type, at, length, places, guaranteed, len(entries), found, known)
        if again:
            self._unheld.append(entry)
        else:
            self.ahead.reserve(at, length, places)
        entries.append(entry)
        for node, _ in places:
            if node in by_node:
                by_node[node].append(entry)
            else:
                by_node[node] = [entry]
        return entry

    def _counted(self, work: Work) -> bool:
        """Whether its date is a matter of counting GPUs over time, and so the same as long as nobody stands otherwise."""
        role = work.form.roles[0]
        return work.form.plain and not work.seats and not (self.hosts_bind and (role.cpus or role.host_memory_mib))

    def _told_again(self, ahead: Lookahead, work: Work, quota_type: int) -> Known | None:
        """What it was told when it asked the last time, if it would be told the same now."""
        known = self._told.dates.get(work)
        if known is None or known.quota_type != quota_type or not self._counted(work):
            return None
        at = known.instant - self.cycle.now if known.places is not None else END
        if at <= 0:
            return None
        more, less = self._told.changed_since(known, self._keeping)
        if more or less:
            places = dict(known.places or ())
            # Where there is only less room nothing comes before the date, and who is not asked for it cannot fail it.
            nodes = more.union(less.intersection(places)) if less else more
            if self._unheld and not self._by_node.keys().isdisjoint(nodes):
                self._hold_all()
            if nodes and not self._no_others(ahead, known, nodes):
                return None
        return known

    def _no_others(self, ahead: Lookahead, known: Known, nodes: Iterable[int]) -> bool:
        """Whether none of these nodes, as they are now, makes it another date."""
        work = known.work
        role, suspect = work.form.roles[0], work.kind.tolerates_suspect
        flags = work.form.eligible(self.cycle.grid, 0, known.quota_type, suspect=suspect, spare=False).flags
        near = [node for node in nodes if flags[node]]
        if not near:
            return True
        length, places = self.length(work), dict(known.places or ())
        at = known.instant - self.cycle.now if known.places is not None else END
        return all(ahead.is_no_other(node, role.gpus, role.least, length, at, places.get(node, 0)) for node in near)

    def _date(self, work: Work, quota_type: int, *, only_now: bool) -> Date | None:
        """The earliest in one type. Who asked without a date counts there as one that has a reservation."""
        if only_now and (self.is_full(work, quota_type) or not self._may_be_room(work, quota_type)):
            return None
        found = self.earliest(self.ahead, work, quota_type)
        if only_now and (found is None or found.at):
            self._fill(work, quota_type)
            return None
        if found is None:
            self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        return found

    def withdraw(self, entry: Entry) -> None:
        """Keep the latest place no longer."""
        assert entry is self.entries[-1]
        self._entries.pop()
        self.per_type[entry.quota_type] -= 1
        self._keeping.remove(entry.known)
        self.ahead.give_back(entry.at, entry.length, entry.places)
        for node, _ in entry.places:
            self._by_node[node].remove(entry)
            if not self._by_node[node]:
                del self._by_node[node]

    def _fill(self, work: Work, quota_type: int) -> None:
        self._full[work.form.shape, quota_type] = (len(self.cycle.cluster.journal), self.length(work))

    def _may_be_room(self, work: Work, quota_type: int) -> bool:
        """A bound that needs no look-ahead of this moment: whether so many GPUs are idle or being freed, or could be had from who is due to leave."""
        if self._ahead is None or self._ends_now or self.cycle.has_backfilled or self._suffice(work, quota_type, self.cycle.fleet.soon.count_np):
            return True
        self._fill(work, quota_type)
        return False

    def lenders(self) -> list[Work]:
        """Who stands in a gap and would leave it on short notice."""
        journal = self.cycle.cluster.journal
        if self._lenders is None or self._lenders[0] != len(journal):
            some = dict.fromkeys((*self.cycle.asking.in_gaps, *journal)) if self.cycle.has_backfilled else ()
            self._lenders = len(journal), [work for work in some if work.seats and self.lent(work)]
        return self._lenders[1]

    def suffice_without(self, leaving: Iterable[Work], work: Work, quota_type: int) -> bool:
        """A bound: False where a job could not start at once even if these left."""
        counts = self.cycle.fleet.soon.count_np.copy()
        for one in leaving:
            for seat in one.seats:
                counts[seat.node] += seat.mask.bit_count() + len(seat.parts)
        return self._suffice(work, quota_type, counts)

    def _suffice(self, work: Work, quota_type: int, counts: Ints) -> bool:
        """Whether so many GPUs by node hold the role with its largest workers, as far as counting tells."""
        wanted = _largest(work)
        if wanted is None:
            return True
        role, workers = wanted
        slots = counts // role.gpus * self._nodes(work, role, quota_type)
        width = widest(self.cycle.cluster, work.kind)
        return int(slots.sum() if width < 0 else self.cycle.grid.levels[width].sums(slots).max(initial=0)) >= workers

    def is_full(self, work: Work, quota_type: int) -> bool:
        """Whether a job of its shape that would stay no longer found no room now, and nothing has come free since."""
        known = None if work.seats else self._full.get((work.form.shape, quota_type))
        return known is not None and known[0] == len(self.cycle.cluster.journal) and known[1] <= self.length(work)

    def lent(self, work: Work) -> bool:
        """Whether it stands in a gap and is off its place on short notice when the holder of a reservation wants it."""
        return work.backfilled and work.kind.preemptible is not Preemptible.NEVER and self._quick(work)

    def _quick(self, work: Work) -> bool:
        return work.kind.grace_ms <= self.cycle.settings.backfill_notice_ms

    def yields(self, work: Work) -> bool:
        """Whether it may run in a gap that ends before it does."""
        return work.kind.preemptible is Preemptible.ALWAYS and self._quick(work)

    def banned(self, work: Work, quota_type: int, milli: int) -> int:
        """Nodes on which a worker would certainly delay a reservation, as a bit set."""
        if not self.entries or any(role.parted for role in work.kind.roles):
            return 0  # who takes a part may stand beside somebody who stays longer anyway
        gpus = max((role.gpus for role in work.kind.roles), default=0) or 1
        until, inside = self._span(work, quota_type, milli)
        self._renew()
        bits = 0
        for node, entries in self._by_node.items():
            if self._room(node, entries, 0, until, inside, work) < gpus:
                bits |= 1 << node
        return bits

    def _span(self, work: Work, quota_type: int, milli: int) -> tuple[int, bool]:
        until = max(1, min(END - 1, self.length(work)))
        return until, self.cycle.tree.within_guarantee(work.charged_leaf, quota_type, milli)

    def _room(self, node: int, entries: list[Entry], since: int, until: int, inside: bool, work: Work) -> int:
        """GPUs of a node that work may take from one instant to another: what the reservations that bind it leave from their time on."""
        first = END
        others: list[tuple[int, int, int]] = []
        own = self._asked_at.get(work.order, len(self._entries))
        for entry in entries:
            if entry.served:
                continue
            # A reservation binds what comes behind it; and what stays within its guarantee is not held back by a job above its own.
            if entry.place >= own or (inside and not entry.guaranteed) or self._behind(entry, work):
                others.append((entry.at, entry.at + entry.length, entry.keeps(node)))
            elif entry.at < until:
                first = min(first, entry.at)
        first = max(first, since)
        return END if first >= until else self.ahead.least_free(node, first, until, others)

    def _behind(self, entry: Entry, work: Work) -> bool:
        """In its own queue a reservation binds only what comes behind its holder."""
        if entry.work.home != work.home:
            return False
        rank = self.cycle.rank_in_queue
        return rank(work) < rank(entry.work)

    def delays(self, work: Work, quota_type: int, milli: int, seats: tuple[Seat, ...]) -> list[int]:
        """Nodes on which the seats together take more than the reservations leave. The fleet holds the seats already, the job not yet."""
        if not self.entries or all(seat.node not in self._by_node for seat in seats):
            return []
        self._renew()
        until, inside = self._span(work, quota_type, milli)
        crowded = []
        for node, starts in self._taken(seats).items():
            entries = self._by_node[node]
            for number, since in enumerate(starts, 1):
                # What joins others on a GPU takes it only from the time on at which they have left.
                if since < until and number > self._room(node, entries, since, until, inside, work):
                    crowded.append(node)
                    break
        return crowded

    def _taken(self, seats: tuple[Seat, ...]) -> dict[int, list[int]]:
        """By node, from when on each GPU is held that somebody could miss."""
        taken: dict[int, list[int]] = {}
        shared: set[tuple[int, int]] = set()
        for seat in seats:
            if seat.node in self._by_node:
                starts = taken.setdefault(seat.node, [])
                starts.extend([0] * seat.mask.bit_count())
                shared.update((seat.node, part.gpu) for part in seat.parts)
        for node, gpu in sorted(shared):
            taken[node].append(max(self._tenants.get((node, gpu), {}).values(), default=0))
        for starts in taken.values():
            starts.sort()
        return taken

    def held_back(self, nodes: list[int]) -> Reason:
        """Whose reservation stands in the way on the nodes."""
        entry = self._by_node[nodes[0]][0]
        at = spell_instant(self.cycle.now + entry.at)
        holder = entry.work.job.name
        detail = f"would still run at {at}, when {holder} has {len(entry.places)} node{'s' * (len(entry.places) != 1)} reserved"
        return reason("reservation", detail, holder=holder, at=at, gpus=sum(count for _, count in entry.places))
