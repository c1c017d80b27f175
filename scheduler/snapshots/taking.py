"""Taking a snapshot: read the rows of one moment, reuse what is unchanged, and leave out what can't be planned."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import chain, islice, takewhile
from operator import attrgetter
from typing import Any, NamedTuple

from gpufleet.core.moment import one_moment
from gpufleet.core.prepared import Prepared, together
from gpufleet.core.times import millis
from scheduler.engine.model.values import CLASS_RANK, HOUR_MS, NO_POWER, Demand, Job, Kind, PowerCaps, Scenario, Settings, Topology, has_lapsed
from scheduler.engine.state.state import Kept
from scheduler.loop.policy import ReliefRule, gpu_prices, relief_rule, ruled
from scheduler.models import Job as JobModel
from scheduler.snapshots import jobs as rows_of
from scheduler.snapshots.demand import ASKED as DEMAND
from scheduler.snapshots.demand import demand_of
from scheduler.snapshots.fleet import FleetView, fleet_asked, fleet_view
from scheduler.snapshots.jobs import (
    Asks,
    Kinds,
    Row,
    Standing,
    Unreadable,
    job_of,
    job_rows,
    jobs_asked,
    run_of,
    set_aside,
    standing_asked,
    standing_of,
    workers_of,
)
from scheduler.snapshots.neighbours import Neighbours, neighbours_now
from scheduler.snapshots.overrun import ASKED as OVERRUN
from scheduler.snapshots.overrun import corrected
from scheduler.snapshots.power import Rows as Caps
from scheduler.snapshots.power import power_caps
from scheduler.snapshots.tree import Past, TreeView, archived_nodes, inner_nodes, past_usage, policy_of, tree_asked, tree_view
from scheduler.snapshots.windows import WindowsView, windows_asked

ALONE = Neighbours()
MINUTE_MS = 60_000
ASKED = Prepared(lambda keys: JobModel.objects.filter(pk__among=keys).order_by().values_list("id", "spec"))


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job as the snapshot saw it: what has to be unchanged for a decision about it to be carried out."""

    id: int
    state: str
    revision: int
    quota_id: int


class LeftOut(NamedTuple):
    """A job that the engine was not shown, and why."""

    id: int
    state: str
    why: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    scenario: Scenario
    jobs: Mapping[str, JobRow]
    fleet: FleetView
    tree: TreeView
    left_out: Mapping[str, LeftOut]
    kept: Kept
    calendar: WindowsView
    came: Mapping[str, int]  # by the name of a job that has come since it was begun, when; its scenario says that it is there
    unruled: Settings  # those of the scenario without the fleet-wide rules
    relief: ReliefRule | None = None  # when jobs beside services over their objective give way


@dataclass(slots=True)
class _Known:
    """A job of the last snapshot with all that it was made from."""

    source: tuple[Any, ...]
    job: Job
    row: JobRow


class Snapshots:
    """Takes snapshots, and remembers the last one so that the next is cheap. One thread at a time."""

    def __init__(self) -> None:
        self.kept = Kept()
        self._fleet: FleetView | None = None
        self._blocked_fleet: FleetView | None = None
        self._tree: TreeView | None = None
        self._tree_key: tuple[Any, ...] = ()
        self._past: Past | None = None
        self._demand: tuple[Any, Topology, tuple[Demand, ...]] | None = None
        self._power: tuple[Any, PowerCaps] | None = None
        self._rules: tuple[Settings, Mapping[str, Any], Settings] | None = None
        self._prices: tuple[int, tuple[tuple[str, int], ...]] | None = None  # as of which minute
        self._kinds: Kinds | None = None
        self._known: dict[int, _Known] = {}
        self._asks: dict[int, tuple[int, Asks | str]] = {}  # by job: revision, and what it asks for or why it can't be read
        self._rows: dict[int, Row] = {}
        self._neighbours = ALONE
        self._aside: Mapping[int, int] = {}

    def take(self, *, settings: Settings, now: datetime, start_timeout: timedelta) -> Snapshot:
        with one_moment():
            fleet_raw, tree_raw, window_rows, demand_rows, overrun_rows, seen, standing = _asked(now, settings)
            fleet = self._fleet_of(fleet_raw)
            caps = Caps.read(now) if fleet.capped else None
            unruled = corrected(settings, overrun_rows)
            if len({node.gpu_type for node in fleet.nodes}) > 1:
                unruled = replace(unruled, gpu_prices=self._prices_at(now))
            rules = policy_of(tree_raw)
            settings = self._ruled(unruled, rules)
            learned, relief = settings.colocation != "any", relief_rule(rules)
            self._meet(neighbours_now(learned=learned, away_at=None if relief is None else now) if learned or relief is not None else ALONE)
            self._set_aside(set_aside(now) if settings.waits_end else {})
            self._past = past_usage(now, settings.fairness, self._past)
            known, fresh = job_rows(seen, self._rows)
            rows = known.values()
            # All of them where what was known is of another topology.
            self._ask(fresh if self._asks else rows)
        self._rows = known
        tree = self._tree_of((*tree_raw, tuple(sorted(fleet.capacity_milli.items()))), {row[rows_of.QUOTA] for row in rows})
        jobs, left_out, blocked = self._jobs(rows, standing, fleet, tree, now, start_timeout)
        if fleet.outside:
            # Where a job of ours is said to be as well, Slurm has given it others by now, and they are about to be adopted.
            ours = {seat[4] for seats in (*standing[1].values(), *standing[3].values()) for seat in seats}
            _block(blocked, fleet.outside - ours, fleet)
        fleet = self._without(fleet, blocked)
        there, came = _come(jobs, millis(now))
        calendar = WindowsView.of(
            window_rows,
            paths={quota.name for quota in tree.quotas},
            types=fleet.capacity_milli.keys(),
            levels=fleet.topology.all_levels,
            now=now,
        )
        scenario = Scenario(
            now=millis(now),
            settings=settings,
            topology=fleet.topology,
            nodes=fleet.nodes,
            quotas=tree.quotas,
            windows=calendar.windows,
            demand=self._demand_of(demand_rows, fleet.topology),
            jobs=there,
            power=self._power_of(caps, fleet, settings, now),
            apart=self._neighbours.apart,
        )
        return Snapshot(scenario, {known.job.name: known.row for known in jobs}, fleet, tree, left_out, self.kept, calendar, came, unruled, relief)

    @property
    def kinds(self) -> Kinds:
        """Those of the last snapshot: what jobs ask for is known by identity to all that is planned from it."""
        assert self._kinds is not None, "none was taken"
        return self._kinds

    def _meet(self, neighbours: Neighbours) -> None:
        """The same object as long as nothing has changed; a job is made anew only if it is another tenant than before."""
        if neighbours != self._neighbours:
            changed = dict(neighbours.tenants.items() ^ self._neighbours.tenants.items())
            for key in changed:
                self._known.pop(key, None)
            self._neighbours = neighbours

    def _set_aside(self, aside: Mapping[int, int]) -> None:
        """A job is made anew if it was set aside for longer than was known."""
        for key, _ in aside.items() ^ self._aside.items():
            self._known.pop(key, None)
        self._aside = aside

    def of_template(self, kind: Kind, template: str) -> Kind:
        """The kind of a job that would begin with a template now. Of a service nothing is known before it runs."""
        is_known = kind.class_rank != CLASS_RANK["inference"] and any(pair.other == template for pair in self._neighbours.apart)
        return self.kinds.as_tenant(kind, template) if is_known else kind

    def _fleet_of(self, rows: tuple[Any, ...]) -> FleetView:
        if self._fleet is None or self._fleet.rows != rows:
            fleet = fleet_view(rows)
            if self._fleet is None or self._fleet.topology != fleet.topology:
                self._kinds = Kinds(fleet.topology)
                self._asks.clear()
            self._fleet, self._blocked_fleet = fleet, None
            self._known.clear()
        return self._fleet

    def _ruled(self, settings: Settings, policy: Mapping[str, Any]) -> Settings:
        if self._rules is None or self._rules[:2] != (settings, policy):
            self._rules = (settings, policy, ruled(settings, policy))
        return self._rules[2]

    def _prices_at(self, now: datetime) -> tuple[tuple[str, int], ...]:
        """How GPU types compare in price; read once a minute."""
        minute = millis(now) // MINUTE_MS
        if self._prices is None or self._prices[0] != minute:
            self._prices = minute, gpu_prices(now)
        return self._prices[1]

    def _tree_of(self, rows: tuple[Any, ...], quotas: set[int]) -> TreeView:
        inner, archived = inner_nodes(rows) & quotas, archived_nodes(rows) & quotas
        key = (rows, inner, archived, self._past.id if self._past is not None else None)
        if self._tree is None or self._tree_key != key:
            self._tree, self._tree_key = tree_view(rows, inner, archived, self._past), key
            self._known.clear()
        return self._tree

    def _without(self, fleet: FleetView, blocked: Mapping[int, int]) -> FleetView:
        if not blocked:
            return fleet
        if self._blocked_fleet is None or self._blocked_fleet.blocked != blocked:
            self._blocked_fleet = fleet.without(blocked)
        return self._blocked_fleet

    def _demand_of(self, rows: list[Any], topology: Topology) -> tuple[Demand, ...]:
        if self._demand is None or self._demand[0] != rows or self._demand[1] is not topology:
            self._demand = rows, topology, demand_of(rows[0][0], topology) if rows else ()
        return self._demand[2]

    def _power_of(self, rows: Caps | None, fleet: FleetView, settings: Settings, now: datetime) -> PowerCaps:
        """The same object as long as nothing has changed; what recurs is written out once an hour."""
        if rows is None:
            return NO_POWER
        key = (rows, sorted(fleet.capacity_milli), settings.window_horizon_ms, millis(now) // HOUR_MS)
        if self._power is None or self._power[0] != key:
            self._power = key, power_caps(rows, fleet.capacity_milli, now=now, horizon_ms=settings.window_horizon_ms)
        return self._power[1]

    # Jobs

    def _ask(self, rows: Iterable[Row]) -> None:
        """What each job asks for, looked up where its revision has moved on."""
        assert self._kinds is not None
        asks = self._asks
        wanted = {row[rows_of.ID]: row for row in rows if asks.get(row[rows_of.ID], (0,))[0] != row[rows_of.REVISION]}
        for key, spec in ASKED.raw(wanted) if wanted else ():
            row = wanted[key]
            asks[key] = row[rows_of.REVISION], self._kinds.kept(spec, row[rows_of.CLASS], row[rows_of.PRIORITY], row[rows_of.PREEMPT])

    def _jobs(
        self, rows: Collection[Row], standing: Standing, fleet: FleetView, tree: TreeView, now: datetime, start_timeout: timedelta
    ) -> tuple[list[_Known], dict[str, LeftOut], dict[int, int]]:
        attempts, held, promises, seats, saved = standing
        known_before, known_now = self._known, {}
        left_out: dict[str, LeftOut] = {}
        blocked: dict[int, int] = {}
        moment = millis(now)
        for row in rows:
            key = row[rows_of.ID]
            known = known_before.get(key)
            if row[rows_of.ASIDE] is None and known is not None and known.source[0] is row and key not in attempts and key not in promises:
                known_now[key] = known  # it waits, and nothing about it has changed
                continue
            source = (row, attempts.get(key), held.get(key), promises.get(key), seats.get(key), saved.get(key), self._asks[key][1])
            aside = (rows_of.moment(row[rows_of.ASIDE]) or 0) > moment
            if known is None or aside or known.source != source:
                try:
                    if aside:
                        raise Unreadable("the engine's own check failed over it; it is tried again later")
                    known = self._job(source, fleet, tree, start_timeout)
                except Unreadable as fault:
                    left_out[row[rows_of.NAME]] = LeftOut(key, row[rows_of.STATE], str(fault))
                    _block(blocked, [seat[4] for seat in (*(held.get(key) or ()), *(seats.get(key) or ()))], fleet)
                    continue
            known_now[key] = _as_of(known, moment)
        self._known = known_now
        if len(self._asks) > 2 * len(rows) + 1000:
            self._asks = {row[rows_of.ID]: self._asks[row[rows_of.ID]] for row in rows}
        return sorted(known_now.values(), key=lambda known: (known.job.submitted, known.job.name)), left_out, blocked

    def _job(self, source: tuple[Any, ...], fleet: FleetView, tree: TreeView, start_timeout: timedelta) -> _Known:
        row, attempt, held, promise, seats, last, ask = source
        if isinstance(ask, str):
            raise Unreadable(ask)
        kind, saving, movable = ask
        if tenant := self._neighbours.tenants.get(row[rows_of.ID]):
            kind = self.kinds.as_tenant(kind, tenant)
        staying = [one for one in held or () if one[7] is None]
        going = [one for one in held or () if one[7] is not None]
        placed, leaving, promised = (workers_of(group, kind, fleet.names, fleet.gpu_places, fleet.slices) for group in (staying, going, seats or ()))
        run = run_of(row, attempt, placed, leaving, promise, promised, start_timeout)
        if run.state in ("reserved", "starting", "running") and not run.workers:
            raise Unreadable("it holds nothing")
        job = job_of(row, tree.paths[row[rows_of.QUOTA]], kind, saving, movable, last, run, self._aside.get(row[rows_of.ID], 0))
        return _Known(source, job, JobRow(row[rows_of.ID], row[rows_of.STATE], row[rows_of.REVISION], row[rows_of.QUOTA]))


def _as_of(known: _Known, now: int) -> _Known:
    """A promise whose time is up is kept no longer, and who is not up in time is about to be stopped: timers see to it."""
    run = known.job.run
    if not has_lapsed(run.state, run.until, now):
        return known
    after = run.given_up() if run.state == "reserved" else replace(run, state="stopping")
    return _Known(known.source, replace(known.job, run=after), known.row)


def _come(jobs: Sequence[_Known], now: int) -> tuple[tuple[Job, ...], dict[str, int]]:
    """All of them as come by now, and when those came who did while this was read, or by a clock that is ahead."""
    came = {known.job.name: known.job.submitted for known in takewhile(lambda known: known.job.submitted > now, reversed(jobs))}
    if not came:
        return tuple(known.job for known in jobs), came
    there = (replace(known.job, submitted=now) if known.job.name in came else known.job for known in jobs)
    return tuple(sorted(there, key=attrgetter("submitted", "name"))), came


def _asked(now: datetime, settings: Settings) -> tuple[tuple[Any, ...], tuple[Any, ...], list[Any], list[Any], list[Any], list[Any], Standing]:
    """Fleet, tree, windows, usual demand, the factor on estimates, jobs with their revisions, and where they stand, in one go."""
    fleet, tree, jobs, standing = fleet_asked(now), tree_asked(), jobs_asked(now), standing_asked()
    others = [windows_asked(now, settings.window_horizon_ms), DEMAND.asking(), OVERRUN.asking()]
    answers = iter(together(*fleet, *tree, *others, *jobs, *standing))
    fleet_raw, tree_raw, (kept, usual, learned), seen, rows = (tuple(islice(answers, len(asked))) for asked in (fleet, tree, others, jobs, standing))
    return fleet_raw, tree_raw, list(kept), list(usual), list(learned), list(chain(*seen)), standing_of(*rows)


def _block(blocked: dict[int, int], gpus: Iterable[int], fleet: FleetView) -> None:
    """What a job holds that the engine is not shown is nobody else's."""
    for gpu in gpus:
        place = fleet.gpu_places.get(gpu)
        if place is not None and place[0] in fleet.names:
            blocked[place[0]] = blocked.get(place[0], 0) | 1 << place[1]
