"""The look-ahead under a book of reservations: it follows what the plan changes, and says when a job could start."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, NamedTuple

from ..model.values import Preemptible
from ..rules.power import Left, Power, stays_of
from ..rules.times import duration, ends_at
from ..rules.windows import NEVER
from ..state.fleet import Seat
from ..state.form import Form
from ..state.grid import flags_of
from ..state.work import Work
from .entries import NOWHERE, Date, Entry, Held, Prospect, Stays, seats_of
from .lookahead import END, FOREVER, Lookahead
from .rehearsal import Rehearsal, counts_of

if TYPE_CHECKING:
    from ..state.planning import Cycle

MOST_OPENINGS = 256  # of capped pools that are tried for one date
MANY = 64  # jobs that changed from which a look-ahead is made anew


class Closed(NamedTuple):
    """Where and when power caps, and those that may not be its neighbours, keep one job out. Moments are counted in milliseconds from now."""

    until: Mapping[int, int]  # by node the moment by which the last of those has left
    power: Power | None
    asked: Mapping[str | None, int]  # milliwatts by pool
    stays: int
    courses: Mapping[str | None, Left]  # by pool: with what is kept for others

    def _opens(self, power: Power, pool: str | None, moment: int) -> int | None:
        at = power.opens(self.courses[pool], self.asked[pool], power.now + moment, self.stays)
        return None if at is None else at - power.now

    def off(self, moment: int) -> int:
        """The nodes that are closed to it at a moment."""
        closed, power = sum(1 << node for node, until in self.until.items() if until > moment), self.power
        shut = [power.nodes[pool] for pool in self.asked if self._opens(power, pool, moment) != moment] if power is not None else []
        return reduce(or_, shut, closed)

    def closes(self, nodes: Iterable[int], moment: int) -> bool:
        off = self.off(moment)
        return bool(off) and any(off >> node & 1 for node in nodes)

    def next_opening(self, moment: int) -> int | None:
        """When the next of those that are closed at a moment lets it in."""
        opening: list[int | None] = [until for until in self.until.values() if until < END]
        if self.power is not None:
            opening += [self._opens(self.power, pool, moment) for pool in self.asked]
        return min([at for at in opening if at is not None and at > moment], default=None)


class Prospects(ABC):
    """When places come free, by who stands where and what is kept."""

    def __init__(self, cycle: "Cycle") -> None:
        self.cycle = cycle
        self._entries: list[Entry] = []
        # Who was promised an answer, and in which type: it is worked out when somebody wants to know.
        self.asking: list[tuple[Work, int]] = []
        self._read = 0  # so much of the cluster's journal is in the look-ahead
        # Nobody gives way to a reservation where none is made.
        self._lends = "backfill" in cycle.settings.passes and cycle.settings.backfill_depth > 0

    @property
    def entries(self) -> list[Entry]:
        """What is kept, in order."""
        if self.asking:
            self.settle()
        return self._entries

    @abstractmethod
    def settle(self) -> None:
        """Work out what was asked for later, of the state in which it was asked for."""

    @property
    def ahead(self) -> Lookahead:
        """The look-ahead as of this moment, with the places that are kept by now."""
        return self._prospect().ahead

    @property
    def stays(self) -> Stays:
        """Who stands where until when, as of this moment."""
        return self._prospect().stays

    def _prospect(self) -> Prospect:
        """Both: those of the plan before, as of now, where not too much has changed since."""
        cycle, cluster = self.cycle, self.cycle.cluster
        known = cluster.state.prospect
        if known is None or len(known.changed) > MANY or (not self._entries and known.geometry != [*cluster.geometry]):
            self._read, stays = len(cluster.journal), Stays()
            known = cluster.state.prospect = Prospect([*cluster.geometry], self.fresh_lookahead(stays), stays)
        elif known.changed or self._read < len(cluster.journal) or known.ahead.now != cycle.now:
            self._follow(known)
        return known

    def fresh_lookahead(self, stays: Stays | None = None) -> Lookahead:
        """What is idle now or being freed, and when the rest comes free, as it is noted in `stays`. Backfilled work gives way at once."""
        cycle, stays = self.cycle, stays or Stays()
        releases: list[tuple[int, int, int]] = []
        for work in cycle.cluster.works:
            if work.seats:
                held = self._held_by(work)
                stays.change(work, held)
                releases += [(held.until, seat.node, cycle.grid.usable[seat.node] & seat.mask) for seat in work.seats if seat.mask]
        releases += [(stays.shared_until(node, gpu), node, cycle.grid.usable[node] & 1 << gpu) for node, gpu in stays.tenants]
        return Lookahead(cycle.grid, cycle.now, [*cycle.fleet.soon.count], [(until, node, mask.bit_count()) for until, node, mask in releases])

    def _held_by(self, work: Work) -> Held:
        if not work.seats:
            return NOWHERE
        return Held(0, work.seats) if self.lent(work) else self._as_expected(work, work.seats)

    def _as_expected(self, work: Work, seats: tuple[Seat, ...]) -> Held:
        end = ends_at(self.cycle, work)
        return Held(END if end >= NEVER else end if end > self.cycle.now else 0, seats)

    def lent(self, work: Work) -> bool:
        """Whether it stands in a gap and leaves it when the holder of a reservation wants its place: also where the notice is shorter by now."""
        return self._lends and work.backfilled and work.kind.preemptible is not Preemptible.NEVER

    @contextmanager
    def standing(self, ahead: Lookahead, works: Iterable[Work]) -> Iterator[None]:
        """As if these did not give way, who stand in gaps: they stay as long as they are expected to."""
        stays = self.stays
        before = [(work, stays.of(work)) for work in works]
        self._take_up(ahead, stays, [(work, self._as_expected(work, held.seats)) for work, held in before])
        try:
            yield
        finally:
            self._take_up(ahead, stays, before)

    def _follow(self, known: Prospect) -> None:
        """Take up what has changed about jobs: who came and went, places given, taken back, or only tried; and who was served meanwhile."""
        ahead, now, journal = known.ahead, self.cycle.now, self.cycle.cluster.journal
        changed = known.changed | dict.fromkeys(journal[self._read :], True)
        known.changed, self._read = {}, len(journal)
        if now != ahead.now:
            ahead.now, held = now, known.stays.held.items()
            # Whose time was up by now, or is counted from now on. Who gives way at once goes on to do so.
            due = [work for work, (until, _) in held if 0 < until < END and (until <= now or work.job.run.started is None)]
            changed = dict.fromkeys(due, True) | changed
        self._take_up(ahead, known.stays, [(work, self._held_by(work) if there else NOWHERE) for work, there in changed.items()])
        for entry in self._entries:
            if entry.stands != entry.served:
                entry.served = entry.stands
                (ahead.give_back if entry.served else ahead.reserve)(entry.at, entry.length, entry.places)

    def _take_up(self, ahead: Lookahead, stays: Stays, changed: Iterable[tuple[Work, Held]]) -> None:
        """These jobs stand so from now on. Of what cancels out, as who has become another job where he stands, nothing is changed."""
        usable = self.cycle.grid.usable
        by_node: defaultdict[int, Counter[int]] = defaultdict(Counter)  # by the instant of leaving so many GPUs more, or less
        shared: dict[tuple[int, int], int] = {}  # until when GPUs in parts were held before
        for work, new in changed:
            old = stays.of(work)
            if old == new:
                continue
            for held, sign in ((old, -1), (new, 1)):
                for seat in held.seats:
                    if seat.mask:
                        by_node[seat.node][held.until] += sign * (seat.mask & usable[seat.node]).bit_count()
                    for part in seat.parts:
                        shared.setdefault((seat.node, part.gpu), self._shared_until(stays, seat.node, part.gpu))
            stays.change(work, new)
        for (node, gpu), before in shared.items():
            by_node[node][before] -= usable[node] >> gpu & 1
            by_node[node][self._shared_until(stays, node, gpu)] += usable[node] >> gpu & 1
        for node, leaving in by_node.items():
            if any(leaving.values()):
                ahead.change(node, leaving)

    def _shared_until(self, stays: Stays, node: int, gpu: int) -> int:
        """Until when a GPU is in parts: one that was split before this plan stays so, whoever leaves it."""
        return END if self.cycle.grid.nodes[node].split >> gpu & 1 else stays.shared_until(node, gpu)

    def length(self, work: Work) -> int:
        return min(FOREVER, duration(self.cycle, work))

    def earliest(
        self, ahead: Lookahead, work: Work, quota_type: int, rehearsal: Rehearsal | None = None, *, banned: int | None = None
    ) -> Date | None:
        """When and where its minimum could start, beside all windows to come or, where `banned` is given, off these nodes whatever comes. By counting
        GPUs, role by role, where that decides; else that is the soonest moment from which on it is tried. What takes parts of GPUs is only tried for
        a forecast, which hands over its own rehearsal: nothing is kept for it."""
        wants, roles = work.missing(), work.kind.roles
        parted = any(roles[place].parted for place, _ in wants)
        if (parted and rehearsal is None) or not any(roles[place].gpus or roles[place].parted for place, _ in wants):
            return None
        length = self.length(work)
        bound = self.counted(ahead, work, quota_type, length, banned or 0)
        if bound is None or self._over_by_then(work, bound.at):
            return None
        if banned is None and self.cycle.cluster.windows.upcoming:
            beside = self._beside_windows(ahead, work, quota_type, length, bound, tried=rehearsal is not None)
            if beside is None:
                return None
            bound, banned = beside
        if not work.seats and self.only_gpus_count(work.form):
            return bound
        rehearsal = rehearsal or self.rehearsal(ahead)
        if work.form.plain and not work.seats:
            role = roles[wants[0][0]]
            counts = [(node, count // role.gpus) for node, count in bound.places]
            cpus, memory = role.cpu_milli, role.host_memory_mib
            if all(rehearsal.host_suffices(count * cpus, count * memory, node, bound.at, length) for node, count in counts):
                return bound
        found = self._tried(ahead, rehearsal, work, quota_type, bound.at, length, banned or 0)
        if found is None or self._over_by_then(work, found[0]):
            return None
        return Date(found[0], counts_of(found[1], self.cycle.grid.usable), found[1])

    def finds_no_room_ever(self, work: Work, quota_type: int) -> bool:
        """Whether it surely gets no date: nothing is kept for who asks for a part of a GPU or for none, nor where nobody is known to leave and as
        things stand there is too little room on all nodes together."""
        cluster, form = self.cycle.cluster, work.form
        asked = [role for role in form.kind.roles if role.least]
        if not work.seats and (any(role.parted for role in asked) or not any(role.gpus for role in asked)):
            return True
        if work.seats or not form.plain or cluster.windows.lasting or cluster.windows.upcoming:
            return False
        if cluster.state.leavers or cluster.state.ending or any(one.seats and one.ends for one in cluster.journal):
            return False
        return not self.cycle.slots(self.cycle.fleet.soon).could_fit(form, quota_type)

    def only_gpus_count(self, form: Form) -> bool:
        """Whether counting GPUs over time tells when a job without places could start."""
        role = form.kind.roles[0]
        return form.plain and not ((role.cpu_milli or role.host_memory_mib) and self.hosts_bind)

    def _over_by_then(self, work: Work, at: int) -> bool:
        """Whether a gang that has lost workers is expected to have ended before they could be replaced."""
        return bool(at and work.seats) and self.cycle.now + at >= ends_at(self.cycle, work)

    def _beside_windows(self, ahead: Lookahead, work: Work, quota_type: int, length: int, soonest: Date, *, tried: bool) -> tuple[Date, int] | None:
        """The soonest date at which no coming window is in the way of a start, and the nodes that one keeps clear until later. There it would not be
        let in, and the place would be kept in vain. Jobs of several roles and parts of GPUs are only tried for a forecast."""
        cluster, windows, milli = self.cycle.cluster, self.cycle.cluster.windows, work.missing_milli(quota_type)
        allowed, banned = windows.allows(cluster, work, quota_type, milli, self.cycle.now + soonest.at)
        if not allowed or not banned:
            return (soonest, 0) if allowed else None
        if not work.form.plain and not tried:
            return None
        found = self.counted(ahead, work, quota_type, length, banned)
        return (found, banned) if found is not None and windows.allows(cluster, work, quota_type, milli, self.cycle.now + found.at)[0] else None

    def _tried(
        self, ahead: Lookahead, rehearsal: Rehearsal, work: Work, quota_type: int, since: int, length: int, banned: int
    ) -> tuple[int, tuple[Seat, ...]] | None:
        """The first moment at which it finds a place, where power caps and neighbours let it."""
        if (under := self._closed(ahead, work, quota_type)) is None:
            return rehearsal.earliest(work, quota_type, since, length, banned)
        for _ in range(MOST_OPENINGS):
            found = rehearsal.earliest(work, quota_type, since, length, banned | under.off(since))
            if found is not None and not under.closes([seat.node for seat in found[1]], found[0]):
                return found
            turns = [under.next_opening(since), None if found is None or found[0] == since else found[0]]
            if (later := min(filter(None, turns), default=None)) is None:
                return None
            since = later
        return None

    def _closed(self, ahead: Lookahead, work: Work, quota_type: int) -> Closed | None:
        """What keeps a job out at each moment, beside what is taken; None where nothing does."""
        power, until = self.cycle.cluster.power, dict[int, int]()
        if (colocation := self.cycle.cluster.colocation) is not None:
            for other, node in colocation.neighbours(work):
                gone = self.stays.of(other).until
                until[node] = max(until.get(node, 0), gone if gone >= END else gone - self.cycle.now)
        if power is None:
            return Closed(until, None, {}, 0, {}) if until else None
        kept = [entry for entry in self._entries if not entry.stands and entry.work is not work]
        coming = [(self.cycle.now + entry.at, duration(self.cycle, entry.work), entry.places) for entry in kept]
        others = power.draws([*coming, *ahead.foreseen])
        asked = {pool: more for pool, more in power.asked(work, quota_type, work.missing_milli(quota_type)).items() if more}
        return Closed(until, power, asked, stays_of(work), {pool: power.course(pool, others.get(pool, ())) for pool in asked})

    def counted(self, ahead: Lookahead, work: Work, quota_type: int, length: int, banned: int = 0, since: int = 0) -> Date | None:
        """The soonest by whole GPUs, off some nodes and from a moment on, where power caps and neighbours let it."""
        found = self._counted(ahead, work, quota_type, length, banned, since)
        under = None if found is None else self._closed(ahead, work, quota_type)
        if under is None:
            return found
        begun = ahead.now - self.cycle.now  # moments of a look-ahead count from there
        for _ in range(MOST_OPENINGS):
            if found is None or not under.closes([node for node, _ in found.places], begun + found.at):
                return found
            again = self._counted(ahead, work, quota_type, length, banned | under.off(begun + found.at), found.at)
            if again is not None and again.at == found.at:
                return again
            opens = under.next_opening(begun + found.at)
            turns = [at for at in (None if opens is None else opens - begun, None if again is None else again.at) if at is not None]
            if not turns:
                return None
            found = self._counted(ahead, work, quota_type, length, banned, min(turns))
        return None

    def _counted(self, ahead: Lookahead, work: Work, quota_type: int, length: int, banned: int, since: int) -> Date | None:
        """When the last of its roles could start, each looked at alone."""
        width = work.form.width
        level = self.cycle.grid.levels[width] if width >= 0 else None
        last = Date(0, [], ())
        for place, ranks in work.missing():
            role = work.kind.roles[place]
            if role.gpus:
                eligible = work.eligible(place, quota_type)
                nodes = eligible.array * flags_of(~banned, self.cycle.grid.size) if banned else eligible.array
                if (found := ahead.earliest(role.gpus, len(ranks), length, nodes, level, since)) is None:
                    return None
                if found[0] >= last.at:
                    last = Date(found[0], found[1], ())
        return last

    @property
    def hosts_bind(self) -> bool:
        """Whether processors or memory of a host could run out before its GPUs do."""
        return self.cycle.cluster.state.crowding > 0

    def rehearsal(self, ahead: Lookahead) -> Rehearsal:
        """The fleet over time with what is reserved on it, to try jobs on it."""
        rehearsal = Rehearsal(self.cycle.cluster, ahead, self.stays)
        for entry in self.entries:
            if not entry.served:
                rehearsal.add(entry.at, entry.length, seats_of(entry.work, entry.date))
        return rehearsal
