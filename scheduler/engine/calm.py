"""A fleet on which everyone has what he asks for: a plan decides nothing there, and of what is kept nothing has to be taken up.

Where one job comes to it and fits, it starts, and nothing else is decided: of what is kept only the fleet and the tree have to be taken up.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from .model.plan import Course, placing
from .model.reasons import Reason
from .model.values import Job, Scenario
from .passes.allocate import FITS
from .place.blocks import Blocks
from .place.capacity import Capacity
from .place.seating import fit
from .rules.invariants import check_changes
from .state.cluster import Cluster
from .state.fleet import Seat, View
from .state.kept import Kept
from .state.roll import Open, Roll, Step
from .state.work import Work
from .tell.outcome import stands


@dataclass(frozen=True, slots=True)
class Calm:
    wake: int | None  # when a later plan could differ although nothing happens
    newcomer: Job | None  # who waits; nobody else does

    def course(self) -> Course:
        return Course((), self.wake, 0)

    def with_newcomer(self, cluster: Cluster) -> Course | None:
        """The course in which he starts; None where that takes more than idle GPUs.

        What is derived from who waits and who stands is not taken up, but by the next plan that is made.
        """
        work = next(one for one in reversed(cluster.works) if one.job is self.newcomer)
        first = cluster.kept.first
        if not cluster.goes_on or first is None:
            return None
        seats = Room(cluster).start(work)
        if seats is None:
            return None
        first.follow(cluster)
        check_changes(cluster, first)
        decision = placing("start", FITS, work.job.name, None, stands(work, cluster.grid), (), False)
        cluster.rest((work,))
        cluster.kept.pass_by(cluster)
        return Course((decision,), self.wake, 0)


def calm_at(scenario: Scenario, kept: Kept, steps: Sequence[Step] | None = None) -> Calm | None:
    """How calm a fleet is; None where more could be decided, or only a closer look would tell.

    Everyone must stand whole, with nobody leaving or growing, and at most one waiting. What has changed since the last plan is taken up by the next
    one that is made. The steps lead here from the jobs of the last scenario of which this was asked.
    """
    roll = kept.roll
    if roll is None or steps is None:
        roll = kept.roll = Roll(scenario.jobs, kept.forms)
    else:
        roll.follow(steps, scenario.jobs)
    loud, waiting, _ = roll.count
    if loud or waiting > 1:
        return None
    forms = kept.forms
    if scenario.windows or forms.elastic or forms.desired or not kept.is_of(scenario):
        return None
    now, step = scenario.now, scenario.settings.fairness.step_ms
    wake: int | None = None
    newcomer: Job | None = None
    for what, job in roll.open.values():
        if what is Open.WAITS:
            if not _starts_who_fits(scenario, kept):
                return None
            newcomer = job
            continue
        run = job.run
        at = run.until
        if at is not None and at > now and (wake is None or at < wake):
            wake = at
        if run.reclaimed is not None and step:
            at = (run.reclaimed // step + 1) * step
            if at > now and (wake is None or at < wake):
                wake = at
    return Calm(wake, newcomer)


def _starts_who_fits(scenario: Scenario, kept: Kept) -> bool:
    """Whether a job alone starts where it fits, past all gates, and nothing but its place is a matter of choice."""
    settings = scenario.settings
    return "allocate" in settings.passes and not settings.waits_end and kept.of_one_type


class Room:
    """The fleet as it is, with nobody waiting but one job: no block is spared for it, as its own costs as much anywhere in a domain."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.grid = cluster.grid
        self.fleet = cluster.fleet
        self.settings = cluster.settings
        cluster.blocks = Blocks(self.grid, (), cluster.usual_blocks)

    def capacity(self, view: View) -> Capacity:
        """Of a gang that is asked once, by shape and domain; who comes with one worker is not asked for."""
        assert view is self.fleet.now, "nobody leaves"
        return Capacity(self.cluster.grid, view)

    def start(self, work: Work) -> tuple[Seat, ...] | None:
        """Give it the place that a walk along the queue would."""
        cluster = self.cluster
        milli = cluster.wants_milli(work.kind, work.missing(), 0)
        if work.form.types != (0,) or self._refused(work, milli) is not None:
            return None
        seats = fit(self, work, 0, self.fleet.now)
        if seats is not None:
            cluster.seat(work, seats, 0, work.home, FITS)
        return seats

    def _refused(self, work: Work, milli: int) -> Reason | None:
        tree = self.cluster.tree
        refused = tree.limit_gate(work.home, 0, milli)
        return tree.fixed_gate(work.home, 0, milli, self.cluster.windows.ends(work)) if refused is None and work.fixed else refused
