"""What one plan can hand to the next. A plan made with it equals the plan made from scratch; it is only sooner there.

Jobs are recognised by identity: who keeps state between plans passes the same objects for what has not changed. At the end of a plan
all that it decided is taken back, and the next one takes up only the jobs that changed. Handed on are

- `FirstState`: the fleet, the tree and the jobs where they stand;
- `Queues`: the queues, what is asked for, and how many wait for what. It changes by who came and went, and by time for who is held;
- `Prospect`: the look-ahead without reservations. Times in it are instants, so a later plan only moves its beginning, takes up the jobs
  that changed, and looks again at those whose time was up or has not begun;
- `Told`: the reasons of each waiting job. They come from the numbers of the tree around its leaf and from the room for its shape:
  both are compared by value with those of the plan before, and where they are the same so are the reasons. Whoever has something of his
  own to tell (a note, a date, a delay), or had it in the plan before, is told anew;
- `Wakes`: when a later plan could differ because of a job that stands as it did;
- `Standing`: who stands below which leaf, and what follows from that whatever the time;
- `First`: who held what when the plan began, against which the last word on a plan checks what it has changed.

Each of them is valid only behind the plan that it was made by, on the same nodes, quotas and settings. Where GPUs are in MIG mode, somebody
leaves a share of a GPU or a window is stated, the first state is made anew, and all of it with it. Where shares are held, the look-ahead is
made anew.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..model.values import Demand, Node, Quota, Scenario, Topology, Window
from ..rules.windows import Windows
from .first_state import FirstState
from .form import Forms
from .grid import Grid
from .tree import Tree

if TYPE_CHECKING:
    from ..place.blocks import Block
    from ..place.gradient import Gradient
    from ..rules.invariants import First
    from ..search.entries import Prospect
    from ..tell.told import Told
    from ..tell.waking import Wakes
    from .planning import Cycle
    from .queues import Queues
    from .standing import Standing


class Kept:
    def __init__(self) -> None:
        self._grid: Grid | None = None
        self._made_of: tuple[tuple[Node, ...], Topology, str, str]  # and how it is filled
        self._tree: Tree | None = None
        self._quotas: tuple[Quota, ...] | None = None
        self.forms: Forms
        self.gradient: Gradient | None = None
        self.usual_blocks: tuple[tuple[Demand, ...], tuple[Block, ...]] | None = None  # of which usual demand
        self.fits_empty: dict[tuple[int, int], bool] = {}
        self.who_waits: Queues
        self.turn = 0  # the plan that is being made: what another one than the last has kept is out of date
        self.told: Told | None = None
        self.wakes: Wakes | None = None
        self.prospect: Prospect | None = None
        self.first: First | None = None
        self.standing: Standing | None = None
        self._first_state: FirstState | None = None

    def first_state(self, scenario: Scenario) -> FirstState:
        """What a plan begins with: the state of the plan before, where it can go on from that, or all anew. One that is broken off leaves none."""
        grid = self._grid_of(scenario)
        windows = Windows(scenario, grid)
        before, self._first_state = self._first_state, None
        self.turn += 1
        if before is not None and before.go_on(scenario, windows):
            return before
        return FirstState(scenario, grid, self.forms, self._tree_of(scenario, grid, windows.lasting), windows)

    def keep(self, cycle: "Cycle") -> None:
        """The state of a plan that is made, for the next one to go on from."""
        cycle.rest()
        self._first_state = cycle.cluster.first_state

    def forget(self) -> None:
        """The first state is made anew, and what was derived from the one before is worth nothing."""
        self.prospect = self.first = self.standing = None

    def _tree_of(self, scenario: Scenario, grid: Grid, windows: Sequence[Window]) -> Tree:
        """The tree with nothing charged to it yet."""
        if windows:
            return Tree(scenario, grid.types, grid.capacity, windows)
        if self._tree is None or scenario.quotas != self._quotas:
            self._tree, self._quotas = Tree(scenario, grid.types, grid.capacity, windows), scenario.quotas
        else:
            self._tree.clear(scenario)
        return self._tree

    def _grid_of(self, scenario: Scenario) -> Grid:
        """The grid of the scenario; what depended on another one is forgotten."""
        # What would fit an empty fleet depends on how it is filled.
        made_of = scenario.nodes, scenario.topology, scenario.settings.sharing_trust, scenario.settings.placement
        if self._grid is None or made_of != self._made_of:
            self.__init__()  # type: ignore[misc]
            self._made_of = made_of
            self._grid = Grid(scenario)
            self.forms = Forms(self._grid)
        return self._grid
