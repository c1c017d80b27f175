"""The state of one plan in the making, shared by the passes: who waits, and what was computed about it."""

from functools import cached_property
from typing import Any

from ..ahead.reservations import Book
from ..model.values import Scenario
from ..place.slots import SlotCounts, slots_of
from ..place.unbroken import Blocks
from ..rules.claims import charge_claims
from ..rules.held_gates import HeldShares
from ..rules.taken_back import Takers
from ..search.clearable import Movables
from ..search.units import Units
from .charged import Standing
from .cluster import Cluster
from .fleet import View
from .requests import Requests
from .state import Kept
from .waiting import Waiting
from .work import Work

# Whose turn it is: who stays within his fair share; everyone; or everyone as long as nobody starts in vain.
FAIR, ANYONE, IN_ORDER = range(3)


class Cycle:
    def __init__(self, scenario: Scenario, kept: Kept | None = None) -> None:
        self.cluster = Cluster(scenario, kept)
        self.settings = scenario.settings
        self.now = scenario.now
        self.grid = self.cluster.grid
        self.fleet = self.cluster.fleet
        self.tree = self.cluster.tree
        self.is_to_come = self.cluster.is_to_come
        self.turn = IN_ORDER
        self.continues = False  # whether something is left for the next plan
        self.placed = 0  # kept changes; a sweep that leaves it alone was the last one
        self.gave_way: dict[int, int] = {}  # jobs whose surplus went to another's growth, with its least step: they do not grow in the same plan
        self.refused: set[tuple[Any, ...]] = set()  # what a search has refused since a change was kept
        self._memo: dict[tuple[Any, ...], Any] = {}
        self._units: Units | None = None
        self.waiting = Waiting(self.cluster)
        self.book = Book(self)
        self.takers = Takers(self)
        self.held_shares = HeldShares()
        state = self.cluster.state
        if state.prospect is not None and (self.fleet.soon.splits or state.prospect.stays.tenants):
            state.prospect = None  # from plan to plan it follows whole GPUs only
        if state.prospect is not None:
            state.prospect.changed.update(dict.fromkeys(state.since.come, True) | dict.fromkeys(state.since.gone, False))
        self.standing = state.standing = state.standing or Standing(self.cluster)
        self.standing.go_on(self.cluster)
        self.cluster.blocks = Blocks(self.grid, self.waiting.queues.blocks(), state.usual_blocks)
        self.requests = Requests(self.waiting)

    def rest(self) -> None:
        """Take back all that was decided: the next plan begins with what the scenario says."""
        changed = list(dict.fromkeys(self.cluster.journal))
        state = self.cluster.state
        self.book.clear()
        self.cluster.undo(0)
        for work in changed:
            work.types, work.firm, work.sequence = work.form.types, False, 0
        self.waiting.queues.rest(changed, self.waiting.again.values())
        if state.prospect is not None:
            state.prospect.changed.update(dict.fromkeys(changed, True))
        self.standing.rest(changed)

    def slots(self, view: View) -> SlotCounts:
        return view.slot_counts or slots_of(view)

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
        self.refused.clear()
        self._memo.clear()
        if self.cluster.put_out:
            self.requests.by_placement |= self.waiting.judge()
            charge_claims(self)  # who left may have stood before others where work is lined up
        if self.requests.by_placement:
            self.requests.follow()

    def begin_anew(self) -> None:
        """Take back all that was decided, and what was still to be worked out of that state."""
        self.book.clear()
        self.cluster.undo(0)
        self.takers.forget()
        self.gave_way.clear()
        self.held_shares = HeldShares()
        self._units = None
        self.changed()

    def begin_walk(self) -> bool:
        """Whether anybody waits. Reservations are made anew: what was refused because of the old ones may be possible, and is said anew."""
        self.book.clear()
        self._memo.clear()
        self.waiting.notes.clear()
        return self.waiting.anybody()

    def memo(self, key: tuple[Any, ...]) -> Any:
        """Something computed about this state of the cluster, or None."""
        return self._memo.get(key)

    def window_key(self, work: Work) -> tuple[object, ...]:
        """What the windows to come ask about a job beside its shape: where there are any, two jobs of one shape may differ."""
        return (work.home, work.form, work.job.limit_ms) if self.cluster.windows.upcoming or self.cluster.power is not None else ()

    def remember(self, key: tuple[Any, ...], value: Any) -> Any:
        self._memo[key] = value
        return value

    def idle_milli(self, quota_type: int) -> int:
        """Whole idle GPUs of a type, in milli-GPU."""
        soon = self.fleet.soon
        return 1000 * (soon.idle if len(self.grid.types) == 1 else int(soon.count_np[self.grid.on_type[quota_type]].sum()))
