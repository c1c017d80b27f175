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

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ..model.values import Node, Scenario, Topology
from ..rules.windows import Windows
from .first_state import FirstState
from .form import Forms
from .grid import Grid
from .tree import Tree

if TYPE_CHECKING:
    from .planning import Cycle

T = TypeVar("T")


class Kept:
    def __init__(self) -> None:
        self._grid: Grid | None = None
        self._made_of: tuple[tuple[Node, ...], Topology, str, str]  # and how it is filled
        self.forms: Forms
        self._known: dict[str, tuple[object, Any]] = {}
        self.fits_empty: dict[tuple[int, int], bool] = {}
        self._first_state: FirstState | None = None

    def first_state(self, scenario: Scenario) -> FirstState:
        """What a plan begins with: the state of the plan before, where it can go on from that, or all anew. One that is broken off leaves none."""
        # What would fit an empty fleet depends on how it is filled.
        made_of = scenario.nodes, scenario.topology, scenario.settings.sharing_trust, scenario.settings.placement
        if self._grid is None or made_of != self._made_of:  # what depended on another grid is forgotten
            self.__init__()  # type: ignore[misc]
            self._made_of, self._grid = made_of, Grid(scenario)
            self.forms = Forms(self._grid)
        grid, windows = self._grid, Windows(scenario, self._grid)
        before, self._first_state = self._first_state, None
        if before is not None and before.go_on(scenario, windows):
            return before
        return FirstState(scenario, grid, self.forms, Tree(scenario, grid.types, grid.capacity, windows.lasting), windows)

    def known(self, name: str, of: object, make: Callable[[], T]) -> T:
        """What was made of something on these nodes, as long as that is the same."""
        known = self._known.get(name)
        if known is None or known[0] != of:
            known = self._known[name] = of, make()
        return cast(T, known[1])

    def keep(self, cycle: "Cycle") -> None:
        """The state of a plan that is made, for the next one to go on from."""
        cycle.rest()
        self._first_state = cycle.cluster.first_state
