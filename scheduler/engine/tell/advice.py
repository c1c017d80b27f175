"""The smallest change with which a waiting job would start now. Tried, not guessed."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

from ..model.values import Kind, Placed, Preemptible, Run
from ..passes.allocate import could_start
from ..rules.gates import fixed_gate, limit_gate
from ..rules.times import backoff_until, duration, may_cause_evictions, protected_for
from ..rules.windows import NEVER, Windows
from ..state.planning import Cycle
from ..state.work import Work
from .decisions import stands

Advice = tuple[str, Any]  # what is changed, and to what
Change = tuple[str, Any, Kind]  # the same, and the kind that the job is of then

CHANGEABLE = frozenset({"no_type", "no_node", "empty_fleet", "limit"})  # what may be in the way whatever runs, and is not if less is asked for
MOST_TRIES = 8  # numbers of workers that are tried, from the largest that could have room


class Advisor:
    """Tries changes on what is free when the plan is done."""

    def __init__(self, cycle: Cycle) -> None:
        self.cycle = cycle
        self._known: dict[tuple[object, ...], Advice | None] = {}

    def advice(self, work: Work) -> Advice | None:
        """None also for who is put out by this plan: what it asks for is no longer to be changed while it runs."""
        if work.seats or work.first_seats or "allocate" not in self.cycle.settings.passes:
            return None
        static = self.cycle.waiting.static.get(work.order)
        if static is not None and static[0].code not in CHANGEABLE:
            return None
        if not work.form.plain or (work.form.all_least and work.kind.roles[0].gpus > self.cycle.fleet.soon.largest):
            return None  # none of the changes asks for smaller workers
        cycle, entries = self.cycle, self.cycle.book.entries
        # What tells jobs of one queue and kind apart when they would start.
        place = next((entry.place for entry in entries if entry.work is work), -1)
        length = duration(cycle, work) if entries or cycle.cluster.windows.upcoming or cycle.cluster.power or work.form.fixed else 0
        key = (work.home, work.form, length, place, max(cycle.now, backoff_until(cycle, work)))
        if key not in self._known:
            self._known[key] = next(((change, to) for change, to, kind in self._changes(work) if self._starts(work, change, to, kind)), None)
        return self._known[key]

    def _changes(self, work: Work) -> Iterator[Change]:
        """What may be changed, the smallest first: fewer workers, then a wider level, then another type, then preemptible."""
        kind, types, width, role = work.kind, work.types, work.form.width, work.kind.roles[0]
        most = max((min(role.least - 1, self._room(work, each, width)) for each in types if role.least > 1), default=0)
        for workers in range(most, max(0, most - MOST_TRIES), -1):
            if not (role.most - workers) % role.step and any(self._is_open(work, each, workers) for each in types):
                yield f"roles.{role.name}.min", workers, _with_role(kind, least=workers)
        for wider in range(width - 1, -1, -1):
            if any(self._room(work, each, wider) >= role.least for each in types):
                level = self.cycle.grid.level_names[wider] if wider else None
                yield "topology.required", level, replace(kind, placing=replace(kind.placing, required=level))
        for name in self.cycle.grid.gpu_types:
            if role.gpu_types and name not in role.gpu_types:
                yield "gpu_types", name, _with_role(kind, gpu_types=(name,))
        if work.form.fixed:
            yield "preemptible", True, replace(kind, preemptible=Preemptible.ALWAYS)

    def _room(self, work: Work, quota_type: int, level: int) -> int:
        role = work.kind.roles[0]
        eligible = work.form.eligible(0, quota_type, suspect=work.kind.tolerates_suspect, spare=False)
        return self.cycle.slots(self.cycle.fleet.soon).most(role, eligible, level)

    def _is_open(self, work: Work, quota_type: int, workers: int) -> bool:
        """Whether limits and guarantees leave room for so many workers."""
        tree, milli = self.cycle.tree, workers * work.form.worker_milli(0, quota_type)
        return not (limit_gate(tree, work.home, quota_type, milli) or (work.form.fixed and fixed_gate(tree, work.home, quota_type, milli, NEVER)))

    def _starts(self, work: Work, change: str, to: Any, kind: Kind) -> bool:
        """Whether the job would start on what is free when the plan is done, if it asked for something else."""
        cycle, forms = self.cycle, self.cycle.cluster.forms
        kept, windows = (work.kind, work.form, work.types), cycle.cluster.windows
        kind = forms.changed_kinds.setdefault((work.form, change, to), kind)
        form = forms.of(kind)
        work.kind, work.form, work.types = kind, form, form.types
        try:
            cycle.cluster.windows = self._windows_next
            refused, types = cycle.waiting.verdicts.of(work)
            rank = cycle.waiting.order.rank
            before = [one for one in self._served_next if one.home != work.home or rank(one) < rank(work)]
            types = () if refused else tuple(each for each in types if not any(each in one.open_types for one in before))
            return any(could_start(cycle, work, each) and not self._put_out_again(work, each) for each in types)
        finally:
            work.kind, work.form, work.types = kept
            cycle.cluster.windows = windows

    @cached_property
    def _windows_next(self) -> Windows:
        """The windows as the next plan sees them: what this one decides may leave another block for them."""
        cluster, scenario = self.cycle.cluster, self.cycle.cluster.scenario
        if not cluster.journal or all(ahead.window.level is None for ahead in cluster.windows.upcoming):
            return cluster.windows
        runs: dict[str, Run] = {}
        for work in dict.fromkeys(cluster.journal):
            places = tuple([Placed(seat.role, *stand[1:]) for seat, stand in zip(work.seats, stands(work, self.cycle.grid), strict=True)])
            started = work.job.run.started if work.stayed else self.cycle.now
            runs[work.job.name] = replace(work.job.run, state="running" if places else "queued", started=started, workers=places)
        jobs = tuple(replace(job, run=runs.get(job.name, job.run)) for job in scenario.jobs)
        return Windows(replace(scenario, jobs=jobs), self.cycle.grid)

    @cached_property
    def _served_next(self) -> tuple[Work, ...]:
        """Whom this plan puts out, and a gang that released surplus for the workers that it lost: the next plan keeps for them what is free."""
        evicted = [one for one in self.cycle.cluster.ousted if one.evicted and not one.seats]
        return (*evicted, *(one for one in dict.fromkeys(self.cycle.cluster.journal) if one.degraded and one.gave_back))

    def _put_out_again(self, work: Work, quota_type: int) -> bool:
        """Whether somebody of the same queue who ranks higher would have it give way at once: who takes from his queue no less than he gets does not
        take it further beyond its share, and with the job there is enough to take."""
        cycle, leaf = self.cycle, work.home
        if work.form.fixed or "preempt" not in cycle.settings.passes:
            return False
        division = cycle.tree.division(quota_type)
        room = min(division.fair[place] - division.used[place] for place in cycle.tree.path[leaf])
        spared = protected_for(cycle, leaf, "preempt")
        mine = work.form.least_milli(quota_type)
        if "grow" in cycle.settings.passes:
            mine = max(mine, min(work.form.most_milli(quota_type), cycle.idle_milli(quota_type)))
        above = {one.form: one for one in cycle.waiting.order.above(cycle.waiting.in_leaf(leaf), work.form.level)}
        for one in above.values():  # one of each form
            kept = cycle.waiting.notes.get(one.order, {}).get("reservation")
            if kept is not None and dict(kept.facts).get("holder") == work.job.name:
                return True  # it waits for nothing but the place that is kept for the job, and ranks higher on any other
            if quota_type not in one.open_types or not may_cause_evictions(cycle, one):
                continue
            asked = one.missing_milli(quota_type)
            lower = cycle.standing.freeable_below(leaf, quota_type, one.form.level)
            if lower > 0 and room < asked - lower <= mine and (asked > lower or spared):
                return True
        return False


def _with_role(kind: Kind, **changes: Any) -> Kind:
    return replace(kind, roles=(replace(kind.roles[0], **changes),))
