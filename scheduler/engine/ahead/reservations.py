"""Places kept for blocked jobs, and what may run in the gaps before them. Which jobs get one, and which head them: backfill.py."""

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from ..model.reasons import Reason, reason, spell_instant
from ..model.values import Preemptible
from ..rules.held_gates import Hold
from ..rules.times import overdue
from ..state.charged import most_freed
from ..state.fleet import Seat
from ..state.work import Work
from .entries import Date, Entry
from .lookahead import END
from .prospects import Prospects

if TYPE_CHECKING:
    from ..state.planning import Cycle


class Book(Prospects):
    """The reservations of one sweep, on top of a look-ahead over what runs. Both follow what the plan changes meanwhile."""

    def __init__(self, cycle: "Cycle") -> None:
        super().__init__(cycle)
        self.per_type: dict[int, int] = {}
        self.blocked_within: set[int] = set()
        self.holds: list[Hold] = []  # gates that blocked jobs keep, in order
        self._staying: dict[Work, tuple[Work, ...]] = {}  # who stands in a gap and does not give way to whom
        self._asked_at: dict[int, int] = {}  # how many reservations stood before a blocked job, whether or not it has one
        self._by_node: dict[int, list[Entry]] = {}
        self._full: dict[tuple[int, int], tuple[int, int]] = {}  # for shapes that found no room now: as of when, and for how short a stay
        self._lenders: tuple[int, list[Work]] | None = None  # as of how much of the journal
        self.has_backfilled = bool(cycle.waiting.queues.in_gaps)  # whether anybody stands in a gap, or did

    @property
    def nodes(self) -> Collection[int]:
        """On which anything is kept."""
        return self._by_node if self.entries else ()

    def date_of(self, work: Work) -> int | None:
        """In how many milliseconds a place is kept for it, if one is."""
        self._settle_up_to(work)
        if any(one is work for one, _ in self.asking):  # it has asked before, in another type
            self.settle()
        return next((entry.at for entry in self._entries if entry.work is work), None)

    def has_no_date(self, work: Work) -> bool:
        """Whether a job has asked for a place and no estimate says when there is one."""
        return _is_counted(self, work) and self.date_of(work) is None and work.order in self._asked_at

    def settle(self) -> None:
        asking, self.asking = self.asking, []
        self.cycle.cluster.before_changes = None
        for work, quota_type in asking:
            self.per_type[quota_type] -= 1
            self.add(work, (quota_type,))

    def _settle_up_to(self, work: Work) -> None:
        """Work out what is kept before a job asks, or has asked: what is kept behind it does not bind it."""
        asking, rank = self.asking, self.cycle.waiting.order.rank
        many = len(self.cycle.grid.types) > 1  # who comes before it in its queue may have asked for another type behind it
        if asking and (work.order not in self._asked_at or (many and any(one.home == work.home and rank(one) < rank(work) for one, _ in asking))):
            self.settle()

    def clear(self) -> None:
        """Forget what was reserved; the look-ahead stays and goes on to follow what changes."""
        self.asking.clear()
        self.cycle.cluster.before_changes = None
        if (prospect := self.cycle.cluster.state.prospect) is not None:
            prospect.ahead.keep_nothing()
        forgotten = (self._entries, self.holds, self.per_type, self.blocked_within, self._asked_at, self._by_node, self._full, self._staying)
        for known in forgotten:
            known.clear()

    def room_for_more(self, quota_type: int) -> bool:
        return self.per_type.get(quota_type, 0) < self.cycle.settings.backfill_depth

    def asks(self, work: Work) -> bool:
        """Whether a place is kept for it. Who has no date in one type may ask again in another."""
        if any(one is work for one, _ in self.asking):
            self.settle()
        return work.order in self._asked_at and any(entry.work is work for entry in self._entries)

    def stay(self, work: Work, lenders: Iterable[Work]) -> bool:
        """Its time has not come as long as these stand in gaps: they do not give way to it. Returns whether that is news."""
        known = self._staying.get(work, ())
        if more := [one for one in lenders if one not in known]:
            self._staying[work] = (*known, *more)
        return bool(more)

    def add_later(self, work: Work, quota_type: int) -> None:
        """Do `add` of this state once it matters: mostly nobody starts, and nobody is told of it."""
        self.asking.append((work, quota_type))
        self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        self.cycle.cluster.before_changes = self.settle

    def add(self, work: Work, types: Sequence[int], *, only_now: bool = False) -> Entry | None:
        """Keep the earliest place for a blocked job in one of these types; None where there is no date (or only a later one): nothing is kept."""
        self._asked_at.setdefault(work.order, len(self.entries))
        found, quota_type = self._date_in(work, types, only_now=only_now)
        if (staying := self._staying.get(work)) and found is not None and not found.at:
            with self.standing(self.ahead, staying):
                found, quota_type = self._date_in(work, types, only_now=only_now)
        if found is None:
            return None
        self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        return self._keep(work, quota_type, found)

    def _keep(self, work: Work, quota_type: int, date: Date) -> Entry:
        inside = self.cycle.tree.within_guarantee(work.home, quota_type, work.form.least_milli(quota_type))
        entry = Entry(work, quota_type, date, self.length(work), inside, len(self._entries))
        self.ahead.reserve(entry.at, entry.length, entry.places)
        self._entries.append(entry)
        for node, _ in entry.places:
            self._by_node.setdefault(node, []).append(entry)
        return entry

    def _date_in(self, work: Work, types: Sequence[int], *, only_now: bool) -> tuple[Date | None, int]:
        """The earliest in one of these types, and in which."""
        dates = ((self._date(work, each, only_now=only_now), each) for each in types)
        return min(((date, each) for date, each in dates if date is not None), key=lambda found: found[0].at, default=(None, types[0]))

    def _date(self, work: Work, quota_type: int, *, only_now: bool) -> Date | None:
        """The earliest in one type. Who asked without a date counts there as one that has a reservation."""
        if only_now and self.is_full(work, quota_type):
            return None
        never = not self._entries and self.finds_no_room_ever(work, quota_type)
        found = None if never else self.earliest(self.ahead, work, quota_type)
        if only_now and (found is None or found.at):
            if self.cycle.cluster.power is None:  # under a cap who stays longer may find room where another one does not
                self._full[work.form.shape, quota_type] = (len(self.cycle.cluster.journal), self.length(work))
            return None
        if found is None:
            self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        return found

    def add_from(self, work: Work, quota_type: int, since: int) -> None:
        """Keep the earliest place from an instant on, in milliseconds from now, for a job that its gates refuse until then."""
        self._asked_at.setdefault(work.order, len(self.entries))
        self.per_type[quota_type] = self.per_type.get(quota_type, 0) + 1
        if not _is_counted(self, work) or not any(work.kind.roles[place].gpus for place, _ in work.missing()):
            return  # only its gates are kept
        if (found := self.counted(self.ahead, work, quota_type, self.length(work), since=since)) is not None:
            self._keep(work, quota_type, found)

    def withdraw(self, entry: Entry) -> None:
        """Keep the latest place no longer."""
        assert entry is self.entries[-1]
        self._entries.pop()
        self.per_type[entry.quota_type] -= 1
        self.ahead.give_back(entry.at, entry.length, entry.places)
        for node, _ in entry.places:
            self._by_node[node].remove(entry)
            if not self._by_node[node]:
                del self._by_node[node]

    def ahead_of(self, work: Work, quota_type: int, milli: int) -> list[Entry]:
        """What is kept that binds so much more of a job."""
        if not (entries := self.entries):
            return entries
        reach = Reach(self, work, quota_type, milli)
        return [entry for entry in entries if not entry.stands and entry.work is not work and reach.binds(entry)]

    def lenders(self) -> list[Work]:
        """Who stands in a gap and would leave it on short notice."""
        journal = self.cycle.cluster.journal
        if self._lenders is None or self._lenders[0] != len(journal):
            some = dict.fromkeys((*self.cycle.waiting.queues.in_gaps, *journal)) if self.has_backfilled else ()
            self._lenders = len(journal), [work for work in some if work.seats and self.lent(work)]
        return self._lenders[1]

    def lent_milli(self) -> int:
        """Milli-GPU that may become idle without all of them."""
        return sum(map(most_freed, self.lenders()))

    def is_full(self, work: Work, quota_type: int) -> bool:
        """Whether a job of its shape that would stay no longer found no room now, and nothing has come free since."""
        known = None if work.seats else self._full.get((work.form.shape, quota_type))
        return known is not None and known[0] == len(self.cycle.cluster.journal) and known[1] <= self.length(work)


def _is_counted(book: Book, work: Work) -> bool:
    """Whether its date is a matter of counting GPUs over time."""
    return not work.seats and book.only_gpus_count(work.form) and not book.cycle.cluster.windows.upcoming


def yields(cycle: "Cycle", work: Work) -> bool:
    """Whether it may run in a gap that ends before it does."""
    return work.kind.preemptible is Preemptible.ALWAYS and work.kind.grace_ms <= cycle.settings.backfill_notice_ms


def off_limits(book: Book, work: Work, quota_type: int, milli: int) -> int:
    """Nodes on which a worker would certainly delay a reservation, as a bit set."""
    if not book.entries or any(role.parted for role in work.kind.roles):
        return 0  # who takes a part may stand beside somebody who stays longer anyway
    if not (gpus := min(role.gpus for role in work.kind.roles)):
        return 0
    reach = Reach(book, work, quota_type, milli)
    return sum(1 << node for node in book._by_node if reach.room(node, 0) < gpus)


def places_of_overdue(book: Book, work: Work) -> int:
    """The nodes that are kept for others that have waited `max_wait_s`, as a bit set."""
    others = [entry for entry in book.entries if entry.work is not work and not entry.served] if book.cycle.settings.waits_end else []
    return sum(1 << node for node in {node for entry in others if overdue(book.cycle, entry.work) for node, _ in entry.places})


class Reach:
    """So much more of a job beside the reservations: for how long it would stay, and whether inside its guarantees."""

    def __init__(self, book: Book, work: Work, quota_type: int, milli: int) -> None:
        self.book, self.work = book, work
        self.until = max(1, min(END - 1, book.length(work)))
        self.inside = book.cycle.tree.within_guarantee(work.charged_leaf, quota_type, milli)
        self.own = book._asked_at.get(work.order, len(book._entries))

    def binds(self, entry: Entry) -> bool:
        """A reservation binds what comes behind it; and what stays within its guarantee is not held back by a job above its own. In its own queue it
        binds all that comes behind its holder, also who had asked for another type before."""
        if entry.work.home == self.work.home:
            rank = self.book.cycle.waiting.order.rank
            return (entry.place < self.own or len(self.book.cycle.grid.types) > 1) and rank(entry.work) < rank(self.work)
        return entry.place < self.own and (entry.guaranteed or not self.inside)

    def binding(self, node: int) -> list[Entry]:
        """What is kept on a node before the job has left, and binds it."""
        return [entry for entry in self.book._by_node[node] if not entry.served and entry.at < self.until and self.binds(entry)]

    def room(self, node: int, since: int) -> int:
        """GPUs of a node that it may take from an instant on: what the reservations that bind it leave from their time on."""
        first, others = END, list[tuple[int, int, int]]()
        for entry in self.book._by_node[node]:
            if not entry.served and self.binds(entry):
                first = min(first, entry.at)
            elif not entry.served:
                others.append((entry.at, entry.at + entry.length, entry.keeps(node)))
        first = max(first, since)
        return END if first >= self.until else self.book.ahead.least_free(node, first, self.until, others)


def delays(book: Book, work: Work, quota_type: int, milli: int, seats: tuple[Seat, ...]) -> list[int]:
    """Nodes on which the seats together take more than the reservations leave. The fleet holds the seats already, the job not yet."""
    book._settle_up_to(work)
    if not book._entries or all(seat.node not in book._by_node for seat in seats):
        return []
    reach, crowded = Reach(book, work, quota_type, milli), list[int]()
    taken: dict[int, list[int]] = {}  # by node, from when on each GPU is held that somebody could miss
    for seat in seats:
        if seat.node in book._by_node:
            taken.setdefault(seat.node, []).extend([0] * seat.mask.bit_count())
    for node, gpu in {(seat.node, part.gpu) for seat in seats for part in seat.parts if seat.node in taken}:
        # What joins others on a GPU takes it only from the time on at which they have left.
        taken[node].append(max(0, book.stays.shared_until(node, gpu) - book.cycle.now))
    for node, starts in taken.items():
        if any(since < reach.until and number > reach.room(node, since) for number, since in enumerate(sorted(starts), 1)):
            crowded.append(node)
    colocation, hosts = book.cycle.cluster.colocation, book.hosts_bind and any(seat.cpus or seat.memory for seat in seats)
    if colocation is None and not hosts:
        return crowded
    kept = [(node, reach.binding(node)) for node in sorted({seat.node for seat in seats}) if node in book._by_node]
    if colocation is not None:
        crowded += [node for node, entries in kept if any(colocation.parts(work, entry.work, node) for entry in entries)]
    rehearsal = book.rehearsal(book.ahead)
    for node, entries in kept if hosts else ():  # those that start there meanwhile need processors and memory, too
        here = [seat for seat in seats if seat.node == node]
        cpus, memory = sum(seat.cpus for seat in here), sum(seat.memory for seat in here)
        if not all(rehearsal.host_suffices(cpus, memory, node, entry.at, 1) for entry in entries):
            crowded.append(node)
    return [*dict.fromkeys(crowded)]


def held_back(book: Book, work: Work, quota_type: int, milli: int, node: int) -> Reason:
    """Whose reservation on a node stands in the way of a job: the first that binds it."""
    # Of one that was served meanwhile, too, the job may have been held off.
    entry = (Reach(book, work, quota_type, milli).binding(node) or book._by_node[node])[0]
    at = spell_instant(book.cycle.now + entry.at)
    holder = entry.work.job.name
    detail = f"would still run at {at}, when {holder} has {len(entry.places)} node{'s' * (len(entry.places) != 1)} reserved"
    return reason("reservation", detail, holder=holder, at=at, gpus=sum(count for _, count in entry.places))
