"""What the plan before has told, as long as nothing that it was told from has changed.

The reasons of a waiting job come from the books of its leaf, of all above it and of what stands beside that path, and from the room
on the fleet for its shape. Where all of these are as they were, so are the reasons. Everything else (a note of this plan, a date, a
delay that runs out, whoever was changed in it) is told anew.
"""

from ..model.plan import Share, Waiting
from ..model.reasons import Reason
from ..state.planning import Cycle
from ..state.tree import Tree
from ..state.work import Work
from .forecast import Forecast
from .rooms import Key


class Told:
    def __init__(self) -> None:
        self.turn = -1  # of which plan it is
        self.entries: dict[Work, Waiting] = {}
        self.own: dict[Work, None] = {}  # of whom that plan told something that came from itself alone
        self.rooms: dict[Key, tuple[Reason | None, Work]] = {}
        self.shares: dict[int, list[Share]] = {}  # by node of the tree
        self._books: list[tuple[int, ...]] | None = None  # by node what is used, of which fixed, fair shares, and what may be counted on

    @classmethod
    def before(cls, cycle: Cycle, forecast: Forecast) -> "Told":
        """What the plan before has told, without the jobs that have gone since; or nothing."""
        state, told = cycle.cluster.state, cycle.cluster.state.told
        goes_on = not cycle.fleet.soon.splits and not forecast.advises_all
        if told is None or not goes_on or told.turn + 1 != state.turn:
            told = state.told = cls()
        for work in state.since.gone:
            told.entries.pop(work, None)
            told.own.pop(work, None)
        told.turn = state.turn
        return told

    def changed_places(self, tree: Tree) -> list[int] | None:
        """Nodes of the tree whose numbers are not those of the plan before; None: there are none to compare. These count from now on."""
        before = self._books
        self._books = [*zip(*[numbers for each in tree.divisions for numbers in (each.used, each.fixed, each.fair, each.counts_on)], strict=True)]
        if before is None or len(before) != len(self._books):
            return None
        return [place for place, now in enumerate(self._books) if now != before[place]]
