"""The state of one plan in the making, shared by the passes: who waits, and what was computed about it."""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

from ..model.reasons import Reason
from ..model.values import Scenario
from ..place.blocks import Blocks
from ..place.capacity import Capacity
from ..rules.claims import claims
from ..rules.displaced import Displaced
from ..rules.impossible import Verdict, Verdicts
from ..rules.order import QueueOrder
from ..rules.times import overdue
from ..search.movables import Movables
from ..search.reservations import Book
from ..search.units import Units
from .cluster import Cluster
from .fleet import View
from .form import Form
from .kept import Kept
from .queues import Queues
from .requests import Requests
from .standing import Standing
from .stirring import Sift, Stirred, WholeOrder
from .tree import WINDOW_MARK, Division
from .work import Work


class Sieve(NamedTuple):
    """Finds in a queue what is worth trying. Beside the leaf itself it goes by nothing but what it is given, where no window is owed to a class."""

    name: str
    through: "Callable[[Cycle, Any, int, list[Work]], list[Work]]"


# Whose turn it is: who stays within his fair share; everyone; or everyone as long as nobody starts in vain.
FAIR, ANYONE, IN_ORDER = range(3)


class Cycle:
    """What the passes share while one plan is made."""

    def __init__(self, scenario: Scenario, kept: Kept | None = None) -> None:
        self.scenario = scenario
        self.settings = scenario.settings
        self.now = scenario.now
        self.cluster = Cluster(scenario, kept)
        self.grid = self.cluster.grid
        self.fleet = self.cluster.fleet
        self.tree = self.cluster.tree
        self.capacity_now = Capacity(self.cluster.grid, self.fleet.now)
        self.capacity_soon = self.capacity_now
        self.notes: dict[int, dict[str, Reason]] = {}  # what the passes found in the way of a job
        self.tells = True  # whether all of it is told in the end, and so what is kept for whom
        self.served_in_line = False  # whether in the last walk nobody was served behind somebody who was not
        self.book = Book(self)
        self.displaced = Displaced(self)
        self.turn = IN_ORDER
        self.held_off: set[int] = set()  # by order: who would stand outside his guarantee in the end, too soon after an eviction
        self.kept_share: set[int] = set()  # by order: for whom later jobs of the leaf were held back, so that it can reclaim
        self.refused_within: set[int] = set()  # of these, who was refused by all passes nevertheless
        self.continues = False  # whether something is left for the next plan
        self.placed = 0  # kept changes; a sweep that leaves it alone was the last one
        self._claimed = -1  # as of which of them who stands beyond his guarantee is charged to windows of classes
        self.verdicts = Verdicts(self.cluster)
        self._judged: set[int] = set()  # jobs that lost their places, and of which is known where they ask again
        self._asking_again: dict[int, Work] = {}
        self.gave_way: dict[int, int] = {}  # jobs whose surplus went to another's growth, with its least step: they do not grow in the same plan
        self._memo: dict[tuple[Any, ...], Any] = {}
        self._units: Units | None = None
        self._waiting: dict[int, list[Work]] = {}  # of which wait now, as far as that was asked since it last changed
        self._all_waiting: dict[int, list[Work]] | None = None  # the same of all leaves in which anybody waits
        self._stirred: defaultdict[int, dict[Work, None]] = defaultdict(dict)  # by leaf: of which jobs any may have been changed
        self._read = 0  # how much of the cluster's journal it knows
        self.refused: dict[tuple[Any, ...], int] = {}  # what a search refused, and in which state
        self._owed = {window.class_rank for window in self.cluster.windows.lasting if window.class_rank is not None}
        forms = self.cluster.forms
        self.least_level = forms.least_level
        self.wants_instances = forms.instances
        since = self.cluster.first_state.since
        if self.cluster.first_state.goes_on:
            self.who_waits = self.cluster.kept.who_waits
            self.static = self.who_waits.change(self, since.gone, since.come)
            if self.fleet.soon.splits:
                self.cluster.kept.prospect = None  # it follows whole GPUs only
            prospect = self.cluster.kept.prospect
            if prospect is not None:
                prospect.changed.update(dict.fromkeys(since.come, True) | dict.fromkeys(since.gone, False))
            if self.cluster.kept.standing is not None:
                self.cluster.kept.standing.go_on(self.cluster)
        else:
            self.cluster.kept.forget()
            self.who_waits = self.cluster.kept.who_waits = Queues()
            self.static = self.who_waits.change(self, (), self.cluster.works)
        self.leaf_queues = self.who_waits.queues
        self.has_backfilled = bool(self.who_waits.in_gaps)
        self.cluster.blocks = Blocks(self.grid, self.who_waits.blocks(), self.cluster.usual_blocks)
        self.requests = Requests(self)
        self.requests.begin()
        # Whether a placement can change what others ask for, or may have: then shares are computed anew after each.
        several = len(self.tree.divisions) > 1 and any(limit is not None for limit in self.tree.limit_total)
        many = forms.choosy and any(len(work.types) > 1 for work in self.cluster.works)
        # A part by memory is asked for as of the smallest GPU that can hold it, and charged less on a larger one.
        # Who is charged to a window of his class asks for nothing in his own queue any more.
        self.several_types = several or many or forms.by_memory or self.requests.over or bool(self.cluster.windows.of_classes)

    def rest(self) -> None:
        """Take back all that was decided: the next plan begins with what the scenario says."""
        changed = list(dict.fromkeys(self.cluster.journal))
        kept = self.cluster.kept
        prospect = self.book.prospect()
        self.cluster.undo((0, 0))
        for work in changed:
            work.begin_anew()
        self.who_waits.rest(changed, self._asking_again.values())
        kept.prospect = prospect or kept.prospect
        if kept.prospect is not None:
            kept.prospect.changed.update(dict.fromkeys(changed, True))
        if kept.standing is not None:
            kept.standing.rest(changed)
        self.tree.stirred += [work.home for work in changed]
        if kept.whole is not None:
            kept.whole.order.rest()
        for reader in kept.readers():
            reader.catch_up()
            reader.begin()
        self.tree.stirred.clear()

    def rank_in_queue(self, work: Work) -> tuple[bool, int, int, int]:
        """The order of jobs in a queue: a window of the class is owed, class and number, age, name."""
        kind = work.kind
        return (kind.class_rank not in self._owed, -kind.class_rank, -kind.priority, work.order)

    def behind(self, work: Work, others: Iterable[Work]) -> list[Work]:
        """Those of them that come behind a job in that order."""
        if self._owed:
            rank = self.rank_in_queue(work)
            return [one for one in others if self.rank_in_queue(one) > rank]
        order, place = work.form.order, work.order
        return [one for one in others if one.form.order > order or (one.form.order == order and one.order > place)]

    def put_in_order(self, queue: list[Work]) -> None:
        """The same for a whole queue, without a tuple for each job where no window is owed."""
        if self._owed:
            queue.sort(key=self.rank_in_queue)
        else:
            queue.sort(key=attrgetter("order"))
            queue.sort(key=attrgetter("form.order"))

    def _ask_again(self) -> None:
        """Jobs that this plan has put out wait like everyone else, and may find another place in it."""
        if not self.cluster.put_out:
            return
        known, static = self._asking_again, self.static
        put_out = {
            work.order: work
            for work in self.cluster.put_out
            if work.evicted and not work.seats and not work.stale and work.order not in known and work.order not in static
        }
        self.cluster.put_out.clear()
        known.update(put_out)
        here: dict[int, list[Work]] = {}
        home, mine = -1, []
        for work in put_out.values():
            if not work.stood_before:
                continue  # below its minimum it has waited all along
            if work.home != home:  # neighbours are often of one leaf
                home = work.home
                mine = here.setdefault(home, [])
            mine.append(work)
        self._all_waiting = None
        for leaf, works in here.items():
            queue = self.leaf_queues[leaf] = [*self.leaf_queues.get(leaf, ())]  # a walk may still go along the old one
            self._waiting.pop(leaf, None)
            if len(works) > 16:
                queue += works
                self.put_in_order(queue)
            else:
                for work in works:
                    insort(queue, work, key=self.rank_in_queue)

    def alike(self, work: Work) -> Verdict:
        return self.verdicts.alike(work)

    # Reading the state

    def waiting(self) -> Iterator[Work]:
        self._ask_again()
        for leaf in sorted(self.leaf_queues):
            for work in self.leaf_queues[leaf]:
                if self.waits(work):
                    yield work

    def shapes_waiting(self) -> dict[int, Form | None]:
        """The shapes of all that wait, each with a form; with none for those who wait for a part of their workers."""
        shapes: dict[int, Form | None] = {shape: form for (shape, _), (form, count) in self.who_waits.alike.items() if count}
        shapes.update((work.form.shape, work.form) for work in self._asking_again.values())
        if any(work.degraded for work in self.who_waits.open):
            shapes[-1] = None
        return shapes

    def as_it_waits(self, leaf: int, idle: list[int]) -> tuple[object, ...] | None:
        """All that decides, beside what runs there, whether somebody of a leaf could take a place inside it; None where this plan has stirred it."""
        if leaf in self._stirred or self._owed or len(self.tree.divisions) > 1:
            return None
        division = self.tree.divisions[0]
        path = self.tree.path[leaf]
        return (self.who_waits.version.get(leaf, 0), idle, division.used[leaf], division.fair[leaf], [division.fixed[place] for place in path])

    def above(self, queue: list[Work], level: tuple[int, int]) -> list[Work]:
        """Those of a queue above a class and number."""
        if self._owed:
            return [work for work in queue if work.form.level > level]
        if not queue or queue[0].form.level <= level:
            return []
        return queue if queue[-1].form.level > level else queue[: bisect_left(queue, (-level[0], -level[1]), key=attrgetter("form.order"))]

    def asking_again(self) -> Iterable[Work]:
        """Who was put out at some time in this plan, and waited like everyone else then."""
        return self._asking_again.values()

    def anybody_waits(self) -> bool:
        self._ask_again()
        for queue in self.leaf_queues.values():
            for work in queue:  # mostly the first one
                if not work.seats or work.degraded:
                    return True
        return False

    def waits(self, work: Work) -> bool:
        """Whether its minimum has no place."""
        if work.stale:
            return False
        if not work.seats:
            return work.state != "stopping" and work.order not in self.static
        return work.degraded and work.order not in self.cluster.giving

    def any_overdue(self) -> bool:
        return self.settings.waits_end and any(overdue(self, work) for work in self.waiting())

    def waiting_in(self, leaf: int) -> list[Work]:
        """Who waits in a leaf, in its order: with no place, or with fewer workers than its minimum."""
        self._follow()
        known = self._waiting.get(leaf)
        if known is None:
            known = self.leaf_queues.get(leaf, [])
            if leaf in self._stirred:  # of the others nobody has got or lost anything
                out = {work for work in self._stirred[leaf] if not self.waits(work)}
                known = [work for work in known if work not in out]
            self._waiting[leaf] = known
        return known

    def waiting_by_leaf(self) -> dict[int, list[Work]]:
        """The same of every leaf in which anybody waits."""
        self._ask_again()
        self._follow()
        if self._all_waiting is None:
            stirred, of = self._stirred, self.waiting_in
            self._all_waiting = {
                leaf: waiting for leaf, queue in self.leaf_queues.items() if queue and (waiting := of(leaf) if leaf in stirred else queue)
            }
        return self._all_waiting

    def _follow(self) -> None:
        journal = self.cluster.journal
        if len(journal) > self._read:
            self._all_waiting = None
            for work in journal[self._read :]:
                self._waiting.pop(work.home, None)
                self._stirred[work.home][work] = None
            self._read = len(journal)

    @property
    def by_leaf(self) -> bool:
        """Whether the numbers of a leaf and its path tell all about its queue: one division, and no window."""
        return len(self.tree.divisions) == 1 and not self.tree.by_type and not self.cluster.windows.lasting

    def stirred(self, reader: Stirred) -> set[int]:
        """The nodes of the tree that a reader has to look at again. What this plan has stirred is never known for long."""
        self._ask_again()
        self._follow()
        return reader.take().union(self._stirred)

    def whole_order(self, milli: Callable[[Work], int]) -> QueueOrder:
        """The order of all who wait, from the head of each queue, where there is one division."""
        kept = self.cluster.kept
        if kept.whole is None:
            kept.whole = WholeOrder(QueueOrder(self.tree, self.tree.divisions[0], {}, milli), Stirred(self.tree), {})
        order, reader, queues = kept.whole
        stirred = self.stirred(reader)
        for leaf in stirred:
            queues[leaf] = self.waiting_in(leaf) if leaf in self.leaf_queues else []
        order.milli, order.queues = milli, queues
        order.renew(stirred)
        return order

    def sifted(self, sieve: Sieve, given: object) -> dict[int, list[Work]]:
        """By leaf what the sieve lets through; of many queues only those are looked at of which anything has changed."""
        if not self.by_leaf:
            through = sieve.through
            return {leaf: chosen for leaf, queue in self.waiting_by_leaf().items() if (chosen := through(self, given, leaf, queue))}
        sift = self.cluster.kept.sifts.get(sieve.name)
        if sift is None:
            sift = self.cluster.kept.sifts[sieve.name] = Sift(self.tree)
        leaves: Iterable[int] = self.stirred(sift.stirred)
        if sift.as_of != given:
            sift.as_of, leaves = given, [*self.leaf_queues]
        for leaf in leaves:
            queue = self.waiting_in(leaf) if leaf in self.leaf_queues else []
            chosen = sieve.through(self, given, leaf, queue) if queue else []
            if chosen:
                sift.found[leaf] = chosen
            else:
                sift.found.pop(leaf, None)
        return sift.found

    def queues(
        self, division: Division, choice: int, test: Callable[[Work], bool] | None = None, among: dict[int, list[Work]] | None = None
    ) -> dict[int, list[Work]]:
        """Waiting jobs by leaf that try a type of the division as n-th choice and pass the test: all of them, or among these."""
        found: dict[int, list[Work]] = {}
        by_type = self.tree.by_type
        for leaf, chosen in (self.waiting_by_leaf() if among is None else among).items():
            if by_type:
                chosen = [work for work in chosen if self.tried_types(work, choice) == division.types]
            if test is not None:
                chosen = [work for work in chosen if test(work)]
            if chosen:
                found[leaf] = chosen
        return found

    def types_of(self, work: Work) -> tuple[int, ...]:
        return (work.quota_type,) if work.seats else work.types

    def rounds(self) -> Iterator[tuple[int, Division]]:
        """Everyone's first choice of type before anyone's second."""
        if not self.tree.by_type:
            yield 0, self.tree.divisions[0]
            return
        most = max((len(work.types) for queue in self.leaf_queues.values() for work in queue), default=1)
        for choice in range(max(1, most)):
            for division in self.tree.divisions:
                yield choice, division

    def tried_types(self, work: Work, choice: int) -> tuple[int, ...]:
        types = self.types_of(work)
        return types[choice : choice + 1] if self.tree.by_type else types

    def leaves_of(self, work: Work, quota_type: int, since: int | None = None) -> list[int]:
        """Where it may be charged: its own leaf, then a window of its class that is large enough; or those from one of them on."""
        leaves = [work.charged_leaf if work.seats else work.home]
        if not work.seats and self.cluster.windows.lasting:
            type_name = self.grid.types[quota_type]
            for window in self.cluster.windows.lasting:
                fits = window.class_rank == work.kind.class_rank and window.gpu_type == type_name
                if fits and work.form.least_milli(quota_type) <= window.gpus:
                    leaves += [self.tree.position[WINDOW_MARK + window.name]]
        return leaves if since is None else leaves[leaves.index(since) :]

    def limits_of(self, leaf: int) -> tuple[int, ...]:
        """The nodes above a leaf that have a limit: what must leave there can differ from leaf to leaf."""
        tree = self.tree
        return tuple(place for place in tree.path[leaf] if tree.limit_total[place] is not None or tree.limit_by_type[place] is not None)

    def views(self) -> tuple[View, ...]:
        return (self.fleet.now,) if self.fleet.soon is self.fleet.now else (self.fleet.now, self.fleet.soon)

    def capacity(self, view: View) -> Capacity:
        if view is self.fleet.now:
            return self.capacity_now
        if self.capacity_soon.view is not view:
            self.capacity_soon = Capacity(self.cluster.grid, view)
        return self.capacity_soon

    @property
    def standing(self) -> Standing:
        kept = self.cluster.kept
        if kept.standing is None:
            kept.standing = Standing(self.cluster)
        return kept.standing

    @cached_property
    def movables(self) -> Movables:
        return Movables(self.cluster)

    def units(self) -> Units:
        if self._units is None:
            self._units = Units(self.cluster, self.standing)
        else:
            self._units.follow()
        return self._units

    def changed(self) -> None:
        """A change was kept: what was derived from the state before is stale."""
        self.placed += 1
        self._memo.clear()
        if self.cluster.put_out:
            self._judge()
            self.claim_windows()  # who left may have stood before others where work is lined up
        if self.several_types:
            self.requests.follow()

    def _judge(self) -> None:
        """Whoever lost his place asks again only where he could start: there may be types without room for him, or limits below what he had."""
        judged = self._judged
        out = [work for work in self.cluster.put_out if work.order not in judged and work.evicted and not work.seats]
        judged.update([work.order for work in out])
        verdicts: dict[tuple[int, Form], Verdict] = {}
        home, form = -1, None
        for work in out:
            if work.form is not form or work.home != home:  # neighbours are often alike
                home, form = work.home, work.form
                if (home, form) not in verdicts:
                    verdicts[home, form] = self.alike(work)
        if all(not blocked and types == form.types for (_, form), (blocked, types) in verdicts.items()):
            return  # mostly they may ask for what they had
        for work in out:
            blocked, types = verdicts[work.home, work.form]
            if blocked:
                self.static[work.order] = blocked
            if types != work.types:
                work.types = types
                self.several_types = True

    def follow(self, order: QueueOrder, since: int, but: int) -> None:
        """Bring an order of queues up to date after a change; one leaf, whose head was dropped, is so already."""
        if self.several_types or self.cluster.windows.lasting:
            order.refresh_all()
        else:
            order.follow(sorted({work.home for work in self.cluster.journal[since:]} - {but}))

    def begin_anew(self) -> None:
        """Take back all that was decided, and what was still to be worked out of that state."""
        self.book.clear()
        self.cluster.undo((0, 0))
        self.displaced.forget()
        self.gave_way.clear()
        self.kept_share.clear()
        self.refused_within.clear()
        self._units = None
        self.changed()

    def share_in_vain(self) -> bool:
        """Whether later jobs of a leaf were held back for one that no pass could serve after all: they are looked at once more."""
        in_vain = {work.order for work in self.waiting() if work.order in self.kept_share and not overdue(self, work)} - self.refused_within
        self.kept_share.clear()
        self.refused_within |= in_vain
        return bool(in_vain)

    def claim_windows(self) -> None:
        """Charge to windows of classes what the next plan will: who came may stand beyond his guarantee, and who left may have made room in one."""
        windows, tree = self.cluster.windows, self.tree
        if not windows.of_classes or not self.cluster.journal or self._claimed == self.placed:
            return
        before, claimed = len(self.cluster.journal), claims(self.cluster)
        for work in self.cluster.works:
            leaf = claimed.get(work, work.home)
            if work.seats and work.charged_leaf != leaf and (leaf != work.home or tree.limit_gate(leaf, work.quota_type, work.milli) is None):
                self.cluster.charge_elsewhere(work, leaf)
        if len(self.cluster.journal) > before:
            self.changed()
        self._claimed = self.placed

    def has_turn(self, work: Work, quota_type: int, milli: int) -> bool:
        """Whether a job may be served now."""
        if self.turn != FAIR:
            return True
        division = self.tree.divisions[self.tree.division_of[quota_type]]
        leaf = work.charged_leaf if work.seats else work.home
        return division.used[leaf] + milli <= division.fair[leaf]

    def forget(self) -> None:
        """Reservations are made anew: what was refused because of the old ones may be possible, and is said anew."""
        self._memo.clear()
        self.notes.clear()

    def memo(self, key: tuple[Any, ...]) -> Any:
        """Something computed about this state of the cluster, or None."""
        return self._memo.get(key)

    def stay(self, work: Work) -> tuple[object, ...]:
        """What the windows to come ask about a job beside its shape: where there are any, two jobs of one shape may differ."""
        return (work.home, id(work.kind), work.job.limit_ms) if self.cluster.windows.upcoming else ()

    def remember(self, key: tuple[Any, ...], value: Any) -> Any:
        self._memo[key] = value
        return value

    def idle_milli(self, quota_type: int) -> int:
        """Whole idle GPUs of a type, in milli-GPU."""
        if len(self.grid.types) == 1:
            return 1000 * self.fleet.soon.idle
        known = self.memo(("idle", quota_type))
        if known is None:
            soon = self.fleet.soon
            known = self.remember(
                ("idle", quota_type), 1000 * sum(n for n, kind in zip(soon.count, self.grid.type_of, strict=True) if kind == quota_type)
            )
        return int(known)

    def note(self, work: Work, found: Reason) -> None:
        self.notes.setdefault(work.order, {})[found.code] = found
