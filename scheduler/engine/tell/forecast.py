"""When a waiting job will probably start."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from operator import attrgetter
from typing import NamedTuple

from ..ahead.entries import Date, seats_of
from ..ahead.lookahead import Lookahead
from ..ahead.rehearsal import Rehearsal, newly_shared
from ..rules.gates import fixed_gate
from ..rules.times import backoff, backoff_until
from ..rules.windows import NEVER
from ..state.fleet import Seat
from ..state.planning import Cycle
from ..state.tree import Division, Tree
from ..state.work import Work
from .advice import Advisor
from .openings import Allowances, Taken


def serving(
    cycle: Cycle, choice: int, division: Division, queues: Mapping[int, Sequence[Work]], gone: Iterable[tuple[int, int, str]] = ()
) -> Iterator[tuple[Work, int]]:
    """Who waits in one round, in the order in which queues are served when room comes, each with the milli-GPU that it asks for. What is foreseen for
    a queue counts as used by it, so that queues take turns. `gone`: the leaf, milli-GPU and name of who had its turn."""
    then = copy(division)
    then.used = [*division.used]
    for leaf, asked, _ in gone:
        for place in cycle.tree.path[leaf]:
            then.used[place] += asked
    order = cycle.waiting.order_of(then, choice, queues)
    while (work := order.best()) is not None:
        asked = order.asks[work.home]
        for place in cycle.tree.path[work.home]:
            then.used[place] += asked
        order.drop(work.home)
        yield work, asked


class Foreseen(NamedTuple):
    """A date, the type that it is about, and when the gates let the job in, which is when it starts: then or later."""

    date: Date
    quota_type: int
    at: int


class Outlook(NamedTuple):
    """What those leave who are foreseen so far: GPUs over time, whole places where more than GPUs decides, and what counts against limits."""

    cycle: Cycle
    ahead: Lookahead
    rehearsal: Rehearsal | None
    allowances: Allowances

    def earliest(self, work: Work, types: tuple[int, ...], due: int = 0, then: Tree | None = None) -> Foreseen | None:
        """The earliest date in one of the types; `due`: from when on, in milliseconds from now, and `then` with which limits."""
        dates = [self._earliest_in(work, quota_type, due, then or self.cycle.tree) for quota_type in types]
        return min((found for found in dates if found is not None), key=attrgetter("at"), default=None)

    def _earliest_in(self, work: Work, quota_type: int, due: int, tree: Tree) -> Foreseen | None:
        cycle, ahead, allowances = self.cycle, self.ahead, self.allowances
        milli, length = work.missing_milli(quota_type), cycle.book.length(work)
        if work.form.fixed and fixed_gate(cycle.tree, work.home, quota_type, milli, NEVER) is not None:
            return None  # nothing that ends by itself is sure to make room inside a guarantee
        if allowances.binds and not allowances.may_open(work, quota_type, milli, length, tree):
            return None
        found = cycle.book.earliest(ahead, work, quota_type, self.rehearsal)
        if cycle.cluster.windows.upcoming and (found is None or found.at):
            opened = self.behind_windows(work, quota_type, due)
            if opened is not None and (found is None or opened.at < found.at):
                found = opened
        if found is None:
            return None
        since = max(due, ahead.now - cycle.now + found.at)
        if cycle.settings.hysteresis_ms and backoff(cycle, work, work.home, quota_type, milli) is not None:
            since = max(since, backoff_until(cycle, work) - cycle.now)
        at = allowances.opens(work, quota_type, milli, length, since, tree) if allowances.binds else since
        return None if at is None else Foreseen(found, quota_type, at)

    def behind_windows(self, work: Work, quota_type: int, due: int = 0) -> Date | None:
        """When and where there is room for a job once some of the windows to come have begun: `due`, in milliseconds from now, at the earliest."""
        cycle, windows = self.cycle, self.cycle.cluster.windows
        best: Date | None = None
        milli = work.missing_milli(quota_type)
        found: dict[int, Date | None] = {}  # by the nodes that later windows keep clear
        for start in windows.starts():
            since = max(due, start - cycle.now)
            if best is not None and best.at <= since:
                break
            _, banned = windows.allows(cycle.cluster, work, quota_type, milli, cycle.now + since)
            if banned not in found:
                found[banned] = cycle.book.earliest(self.ahead, work, quota_type, self.rehearsal, banned=banned)
            if (date := found[banned]) is None or (best is not None and best.at <= max(since, date.at)):
                continue
            at = max(since, date.at)
            allowed, kept_off = windows.allows(cycle.cluster, work, quota_type, milli, cycle.now + at)
            if allowed and not kept_off & ~banned:
                best = date._replace(at=at)
        return best


class Dated(NamedTuple):
    """Who waits and has a date, and what is kept for it: GPUs by node, and its workers one by one where that decides for others."""

    name: str
    at: int
    length: int
    places: list[tuple[int, int]]
    seats: Sequence[Seat]


class Forecast:
    """Predicted starts by a job's place: of the reserved ones, or of everyone who waits."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self.advisor = Advisor(cycle)
        self.advises_all = cycle.settings.forecast == "all"
        self.predicted: dict[int, int] = {}
        self.kept = {entry.work.order: cycle.now + entry.at for entry in cycle.book.entries}  # from when on a place is, whatever is predicted
        self.dates: list[Dated] = []  # of those without a reservation, in their order
        self.taken: list[Taken] = []  # what everyone will count against limits, in the same order behind the reserved ones
        if self.advises_all:
            self.everyone()
        elif cycle.settings.forecast == "head":
            self.predicted = dict(self.kept)

    def everyone(self) -> None:
        """Reserve for every waiting job in the order of queues; later ones find what earlier ones leave."""
        cycle, book, upcoming = self.cycle, self.cycle.book, self.cycle.cluster.windows.upcoming
        ahead = book.fresh_lookahead()
        outlook = Outlook(cycle, ahead, None, Allowances(cycle))
        for entry in book.entries:
            opened = outlook.behind_windows(entry.work, entry.quota_type) if upcoming and entry.at else None
            self.predicted[entry.work.order] = cycle.now + (entry.at if opened is None else min(entry.at, opened.at))
            ahead.reserve(entry.at, entry.length, entry.places)
            self._take(outlook, entry.work, entry.quota_type, entry.at)
        rehearsal = book.rehearsal(ahead)
        outlook = outlook._replace(rehearsal=rehearsal)
        for choice, division in cycle.waiting.rounds():
            queues = cycle.waiting.of_round(division, choice, lambda work: work.order not in self.predicted)
            for work, _ in serving(cycle, choice, division, queues):
                self._predict(outlook, rehearsal, work, cycle.waiting.tried_types(work, choice))
        if upcoming:
            self._widened(outlook)
        if cycle.waiting.queues.held:
            self._not_due(outlook)

    def _widened(self, outlook: Outlook) -> None:
        """Whom only his limits refuse: as soon as a window of his queue widens them so that they alone would let him in."""
        cycle = self.cycle
        windows, works = cycle.cluster.windows, cycle.cluster.works
        refused = [works[order] for order, (first, *_) in cycle.waiting.static.items() if first.code == "limit"]
        starts = windows.starts(owned=True) if refused else []
        lasting = [(start, [window for window in windows.promised if window.lasts(start)]) for start in starts]
        trees = [(start, Tree(cycle.cluster.scenario, cycle.grid.types, cycle.grid.capacity, those)) for start, those in lasting]
        for work in refused:
            types = tuple(each for each in work.form.types if cycle.waiting.verdicts.fits_empty(work, each))
            found = (outlook.earliest(work, types, start - cycle.now, tree) for start, tree in trees)
            if (foreseen := next((one for one in found if one is not None), None)) is not None:
                self._foresee(outlook, work, foreseen)

    def _not_due(self, outlook: Outlook) -> None:
        """Who is held until a moment to come, behind everyone who is due: by counting GPUs from then on, where that tells."""
        cycle, book, later = self.cycle, self.cycle.book, outlook.ahead.copy()
        by_count = outlook._replace(ahead=later, rehearsal=None)
        for due, _, work in sorted((work.job.not_before or 0, work.order, work) for work in cycle.waiting.queues.held):
            blocked, types = cycle.waiting.verdicts.of(work)
            since = due - cycle.now
            counted = book.only_gpus_count(work.form) and not cycle.cluster.windows.upcoming
            later.now = due
            foreseen = None if blocked else (by_count if counted else outlook).earliest(work, types, since)
            if foreseen is None:
                continue
            self._foresee(outlook, work, foreseen)
            if counted and foreseen.at == since + foreseen.date.at:
                later.foresee(foreseen.date.at, book.length(work), foreseen.date.places)

    def _predict(self, outlook: Outlook, rehearsal: Rehearsal, work: Work, types: tuple[int, ...]) -> None:
        book, ahead = self.cycle.book, outlook.ahead
        foreseen = outlook.earliest(work, types)
        if foreseen is not None and not foreseen.at and (lenders := book.lenders()):
            with book.standing(ahead, lenders):
                foreseen = outlook.earliest(work, types)
        if foreseen is None:
            return
        self._foresee(outlook, work, foreseen)
        date, length = foreseen.date, book.length(work)
        if foreseen.at > date.at:
            return  # which GPUs are free when it is let in is left open: they go to whoever comes first
        places = [*date.places, *newly_shared(date.seats, rehearsal, date.at, length)]
        dated = Dated(work.job.name, date.at, length, places, seats_of(work, date) if book.hosts_bind or date.seats else ())
        self.dates.append(dated)
        ahead.foresee(date.at, length, places)
        rehearsal.add(date.at, length, dated.seats)

    def _foresee(self, outlook: Outlook, work: Work, foreseen: Foreseen) -> None:
        self._take(outlook, work, foreseen.quota_type, foreseen.at)
        self.predicted[work.order] = self.cycle.now + foreseen.at

    def _take(self, outlook: Outlook, work: Work, quota_type: int, at: int) -> None:
        if outlook.allowances.binds:
            self.taken.append(Taken(work, quota_type, work.missing_milli(quota_type), at, self.cycle.book.length(work)))
            outlook.allowances.take(self.taken[-1])
