"""What one plan can hand to the next. A plan made with it equals the plan made from scratch; it is only sooner there.

Jobs are recognised by identity: who keeps state between plans passes the same objects for what has not changed. Where a `State` can't go on, a
new one is built with the same `Forms` and their grid, if these serve the scenario.
"""

from typing import TYPE_CHECKING

from ..model.values import Scenario
from .form import Forms
from .state import State

if TYPE_CHECKING:
    from .planning import Cycle


class Kept:
    def __init__(self) -> None:
        self.state: State | None = None

    def begin(self, scenario: Scenario) -> State:
        """What a plan begins with: the state of the plan before, where it can go on from that, or all anew. One that is broken off leaves none."""
        before, self.state = self.state, None
        if before is None:
            return State(scenario, Forms(scenario))
        if before.go_on(scenario):
            return before
        forms = before.forms if before.forms.serve(scenario) else Forms(scenario)
        vars(before).clear()  # its parts know it: without this it would stay until the garbage collector comes by
        return State(scenario, forms)

    def keep(self, cycle: "Cycle") -> None:
        """The state of a plan that is made, for the next one to go on from."""
        cycle.rest()
        self.state = cycle.cluster.state
