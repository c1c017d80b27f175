"""Whether, when and where a job would start, asked before it is submitted (UI-3).

Each process that is asked keeps the fleet of a moment (`Ground`), made from the database as the loop's snapshot is, and tries
descriptions on it. It is made beside the requests, also the first time: who asks while that goes on is answered from the one
before, which is seconds old and says so, or, where there is none, is asked to come again in a moment. Nothing is written.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from django.core.exceptions import ValidationError
from django.db import connection

from gpufleet.core.money import cost_micros
from gpufleet.core.times import MILLISECOND, millis
from quotas.lineup import GUARANTEED, RESERVED, Worker
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from quotas.services.ledger import ledger_class_if
from scheduler.backends.registry import backends_all, clusters_without_images
from scheduler.engine.cycle import settled
from scheduler.engine.model.mig import Board, Profile, board_of
from scheduler.engine.model.plan import Decision, Stand
from scheduler.engine.model.values import QUEUED, Job, Scenario, Settings
from scheduler.engine.rules.invariants import check
from scheduler.engine.state.grid import type_rank
from scheduler.engine.state.state import Kept
from scheduler.engine.tell.decisions import decisions_of
from scheduler.engine.tell.turns import Turn, turns
from scheduler.engine.trial import Ground, Level, Trial, starts_at_once
from scheduler.jobs.schema import JobDescription
from scheduler.jobs.speeds import MILLION, is_cut, seconds_at, slowest_on, speed_on
from scheduler.jobs.stored import Spec, roles_of, sharing_of, takes_gpus, types_of, wanted_of
from scheduler.loop.foresight import Foreseen, Foresight, estimated, ruled
from scheduler.loop.policy import policy, without_splitting
from scheduler.models import Lease as LeaseRow
from scheduler.selectors.energy import Tariffs, sees_prices
from scheduler.selectors.loop import pause_now
from scheduler.selectors.predictions import Recalled, foresight_now, past_recalled
from scheduler.services.forecasts.budgeting import budgets_said
from scheduler.services.forecasts.differences import Effect, differences
from scheduler.services.forecasts.proposals import Change, changes_found, moment_of
from scheduler.services.jobs.deferring import Deferral
from scheduler.services.jobs.submission import Checked, deferral_of, submissions_check
from scheduler.services.loop.lease import TICK
from scheduler.simulation.applying import changed as changed_by
from scheduler.simulation.futures import Stage, plans_each, waits_foreseen
from scheduler.snapshots import Snapshots
from scheduler.snapshots.jobs import Kinds

# As long as nothing was decided since, a ground serves so long; after a decision it is made anew as soon as this.
FRESH, FRESH_QUIET = timedelta(seconds=5), timedelta(seconds=60)
# Making one takes at most such a part of the time: it computes beside the answers of its process, which wait for it in turns.
MOST_OF_THE_TIME = 0.1
# An older one says nothing any more.
STALE = timedelta(minutes=5)
# Small fleets are read within this: who asks first is then answered at once.
PATIENCE_SECONDS = 0.25
# Who looks at what an action on many jobs comes to looks once, and does not ask again by itself: so long for the fleet, and for his turn.
LONG_PATIENCE_SECONDS = 2.0
AGAIN_SECONDS = 1
# What was typed is remembered by what is kept from ground to ground; after so much of it all is begun anew.
MOST_KINDS = 2000
MOST_LOOKS = 40_000  # of plans at jobs in all futures, while somebody waits for the answer: half a second, or one
MOST_SECONDS = 2.0  # where the machine is slower, or a plan dearer
ANY = ""  # a type that stands for all
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PAUSED = "The scheduler is paused: it starts nothing until an operator resumes it."
log = logging.getLogger(__name__)
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class OnType:
    """How a job would run on one of the types that it accepts. `cut`: its limit ends it before its work is done."""

    gpu_type: str
    speed: float
    run_seconds: int | None
    cut: bool
    cost_micros: int | None
    chosen: bool  # what the rest of the fit speaks of


@dataclass(frozen=True, slots=True)
class Fit:
    """What would become of a job.

    `verdict`: now, soon (when others have left), later, held (until somebody or something lets it go), never, or unknown.
    """

    verdict: str
    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    as_of: datetime
    reasons: tuple[dict[str, Any], ...]
    stands: tuple[Stand, ...]
    nodes: tuple[tuple[str, int], ...]
    after: tuple[str, ...]
    others: tuple[Decision, ...]
    backfilled: bool
    quota: str
    gpu_type: str
    gpus_milli: int
    count: int
    levels: tuple[Level, ...]
    guaranteed: bool  # beside what runs now
    claimants: tuple[str, ...]
    preemptible: str
    run_seconds: int | None
    cost_micros: int | None  # of one job, for those who may see costs
    limit_cost_micros: int | None
    hourly_micros: int | None
    changes: tuple[Change, ...]
    waits_for: tuple[str, ...]  # what holds it whatever the fleet has
    budgets: tuple[str, ...]  # those that it would bring near their end, or beyond it
    on_types: tuple[OnType, ...]  # as they are tried; empty where it states no speeds and the fastest would go first
    type_choice: str  # its own, or the fleet's
    zero_types: tuple[str, ...]  # which it would accept and never stands on: its speed there is 0
    states_speeds: bool
    speeds_of: str  # the template that gave it these speeds, as it states none; and their number
    speeds_number: int
    without_images: tuple[str, ...]  # of a job with an image: the clusters whose back-ends run none, where it never stands
    wanted_milli: int  # whole GPUs that an elastic job wants; it may start on fewer
    sharing: str  # exclusive, mig, mps or timeslice
    instances: tuple[tuple[Board, Profile], ...]  # those that its roles name, as this GPU type has them
    deferral: Deferral | None  # of a job that may be deferred: to which hour it would be
    sees_energy: bool  # whether the reader may see what energy costs

    @property
    def all_milli(self) -> int:
        """What all jobs of an array hold if all run at once."""
        return self.count * self.gpus_milli

    @property
    def all_cost_micros(self) -> int | None:
        return None if self.cost_micros is None else self.count * self.cost_micros


@dataclass(frozen=True, slots=True)
class Start:
    """When a job would start, and what all its jobs hold then."""

    verdict: str  # as of a `Fit`
    at: datetime | None
    gpu_type: str
    all_milli: int


@dataclass(frozen=True, slots=True)
class Sequel:
    """Who would start at once, by their names and in the order of the plan, if something else became of some jobs.

    `effects` has all that only one of the two plans does, those starts included; `later` by how many more jobs each is overtaken that waits on.
    """

    as_of: datetime
    starts: tuple[str, ...]
    effects: tuple[Effect, ...] = ()
    later: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """Waiting jobs in scheduling order, as of a moment; and where each stands in it, by name."""

    as_of: datetime
    decided: int  # what had been decided by then
    turns: tuple[Turn, ...]
    place: Mapping[str, int]

    def is_behind(self) -> bool:
        """Whether something was decided since, so that the order may be another one soon."""
        return decided_now() != self.decided

    def turn_of(self, job: str) -> Turn | None:
        place = self.place.get(job)
        return None if place is None else self.turns[place]


@dataclass(slots=True)
class Side:
    """A ground with all that it is made anew from."""

    snapshots: Snapshots
    ground: Ground | None = None
    taken_at: datetime = EPOCH
    took: timedelta = timedelta(0)
    looked_at: datetime = EPOCH  # when it was last compared with what was decided
    decided: int = -1
    kinds: int = 0
    begun: frozenset[str] = frozenset()  # who waits by the database and stands in it, as the next plan starts them
    foresight: Foresight = field(default_factory=Foresight)
    past: Recalled | None = None
    queue: Queue | None = None  # once somebody has asked for it
    answers: dict[Hashable, Any] = field(default_factory=dict)  # what was found on it and is asked for again


class Grounds:
    """The process's own: one that is asked, one that is made anew meanwhile."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self._serving: Side | None = None
        self._spare: Side | None = None
        self._making = threading.Lock()
        self._trying = threading.Lock()
        self._playing = threading.Lock()
        self._previewing = threading.Lock()
        self._made = threading.Event()  # set whenever no reading is under way
        self._fault: Exception | None = None

    def trial(self, make: Callable[[Side], Job], now: datetime, *, dated: bool) -> tuple[Trial, datetime] | None:
        """One trial and of which moment it is; None: the fleet is being read. Trials take a few hundredths of a second, one after the other."""
        self._see_to_it(now)
        with self._trying:
            side = self._serving  # under the lock: the one that is made anew is never the one that is tried on
            if side is None or not _serves(side, now):
                return None
            assert side.ground is not None
            return side.ground.trial(make(side), dated=dated), side.taken_at

    def again(self, name: str, make: Callable[[Side, Job], Job], now: datetime, *, dated: bool) -> tuple[Trial | None, datetime] | None:
        """The same of a job that waits, changed as `make` says, in its place; nothing where it does not wait there."""
        self._see_to_it(now)
        with self._trying:
            side = self._serving
            if side is None or not _serves(side, now):
                return None
            assert side.ground is not None
            waiting = side.ground.waiting(name)
            trial = side.ground.trial(make(side, waiting), dated=dated, instead_of=name) if waiting is not None else None
            return trial, side.taken_at

    def at_hand(self, now: datetime) -> bool:
        """Whether a reading serves now; it is seen to that the next one comes. For who goes by what was `remembered`."""
        self._see_to_it(now)
        side = self._serving
        return side is not None and _serves(side, now)

    def remembered(self, key: Hashable, find: Callable[[], Answer]) -> Answer:
        """What takes many trials is looked for once for each reading. The key has all that it depends on beside the fleet."""
        side = self._serving
        if side is None:
            return find()
        if key not in side.answers:
            side.answers[key] = find()
        return cast(Answer, side.answers[key])

    @property
    def settings(self) -> Settings:
        """Those of the fleet as it was read last."""
        side = self._serving
        return Settings() if side is None or side.ground is None else side.ground.scenario.settings

    def types_of(self, nodes: Iterable[str] | None) -> set[str]:
        """The GPU types of these nodes, or of all, in the fleet as it was read last."""
        side = self._serving
        if side is None or side.ground is None:
            return set()
        named = None if nodes is None else set(nodes)
        return {node.gpu_type for node in side.ground.scenario.nodes if node.gpus and (named is None or node.name in named)}

    def sequel(
        self,
        change: Callable[[Sequence[Job], Kinds], Sequence[Job]],
        now: datetime,
        *,
        overtaking: Collection[str] = (),
        drained: Collection[str] = (),
    ) -> Sequel | None:
        """A plan of the fleet with other jobs. None: the fleet is being read, or too many ask for such plans.

        `overtaking` are the jobs that may come to stand before others in the queue, `drained` nodes that take no jobs meanwhile.

        Where `change` gives back the very jobs, nothing follows. Else it is made from nothing: where hundreds of jobs differ little of what
        trials keep is of use, and so no trial waits for it, nor takes back what it changed. One at a time, or a few people who look at what
        they are about to do would take all of the processor.
        """
        self._see_to_it(now, LONG_PATIENCE_SECONDS)
        with self._trying:
            side = self._serving
            if side is None or not _serves(side, now):
                return None
            assert side.ground is not None
            before, taken_at, begun = side.ground.scenario, side.taken_at, side.begun
            jobs = change(before.jobs, side.snapshots.kinds)
            if jobs is before.jobs:
                return Sequel(taken_at, ())
            side.kinds += max(0, len(jobs) - len(before.jobs))  # those that join were read by what trials keep
            answers, queue = side.answers, self._queue_of(side).turns if overtaking else ()
        if not self._previewing.acquire(timeout=LONG_PATIENCE_SECONDS):
            return None
        try:
            if "decided" not in answers:
                answers["decided"] = _decided(before, before.jobs)
            nodes = tuple(replace(node, health="draining") if node.name in drained else node for node in before.nodes) if drained else before.nodes
            effects = tuple(differences(answers["decided"], _decided(replace(before, nodes=nodes), jobs), begun))
            starts = tuple(one.job for one in effects if one.effect == "starts")
            later = _overtaken(queue, turns(replace(before, jobs=tuple(jobs))), set(overtaking)) if overtaking else {}
            touched = {one.job for one in effects}
            return Sequel(taken_at, starts, effects, {name: by for name, by in later.items() if name not in touched})
        finally:
            self._previewing.release()

    def queue(self, now: datetime) -> Queue | None:
        """In which order those who wait are asked, worked out once for each reading. None: the fleet is being read."""
        self._see_to_it(now)
        with self._trying:
            side = self._serving
            if side is None or not _serves(side, now):
                return None
            return self._queue_of(side)

    def _queue_of(self, side: Side) -> Queue:
        if side.queue is None:
            assert side.ground is not None
            asked = turns(side.ground.scenario, side.ground.kept)
            side.queue = Queue(side.taken_at, side.decided, asked, {turn.job.name: place for place, turn in enumerate(asked)})
        return side.queue

    def queue_at_hand(self, now: datetime) -> Queue | None:
        """The same where it has been worked out already: nothing is read or computed, and nobody waits."""
        side = self._serving
        return None if side is None or not _serves(side, now) else side.queue

    def foreseen(self, make: Callable[[Side], Job], wait: int) -> Foreseen:
        """The range around a start that a trial found: by futures, where few enough jobs are there to play them while somebody waits.

        Futures take a second or more and are played on values that nothing changes: no trial waits for them. One job's at a time.
        """
        with self._trying:
            side = self._serving
            if side is None or side.ground is None or side.past is None:
                return ruled(estimated(wait))
            jobs, foresight = side.ground.scenario.jobs, side.foresight
            if plans_each(len(jobs) + 1, most_looks=MOST_LOOKS) is None:
                return foresight.foreseen(estimated(wait))
            job, seed = make(side), millis(side.taken_at)
            stage = Stage(replace(side.ground.scenario, jobs=(*jobs, job)), side.past.past)
        with self._playing:
            until = time.monotonic() + MOST_SECONDS
            played = waits_foreseen(stage, {job.name}, seed=seed, most_looks=MOST_LOOKS, goes_on=lambda: time.monotonic() < until)
        return foresight.foreseen(played.get(job.name) or estimated(wait))

    def foreseen_by_estimates(self, wait: int) -> Foreseen:
        """The same by how such forecasts came out before."""
        side = self._serving
        return ruled(estimated(wait)) if side is None else side.foresight.foreseen(estimated(wait))

    def read(self, now: datetime) -> None:
        """Read the fleet at once, in the caller's own thread."""
        with self._making:
            self._make(now)

    def _see_to_it(self, now: datetime, patience: float = PATIENCE_SECONDS) -> None:
        """Have the fleet read where what is there is too old or nothing is there; wait a little for it in the latter case."""
        side = self._serving
        serves = side is not None and _serves(side, now)
        if not serves and self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault  # whoever asks next has it tried again
        if (not serves or (side is not None and self._is_old(side, now))) and self._making.acquire(blocking=False):
            self._made.clear()
            self._beside(now)
        # Who comes after a quiet while gets a small fleet as it is now; of a large one what is there is told meanwhile.
        if not serves or (side is not None and now - side.taken_at >= FRESH_QUIET):
            self._made.wait(patience)

    def _is_old(self, side: Side, now: datetime) -> bool:
        age = now - side.taken_at
        if age >= FRESH_QUIET:
            return True
        # One answer tries many descriptions at one moment.
        if side.looked_at == now or age < max(FRESH, side.took / MOST_OF_THE_TIME):
            return False
        side.looked_at = now
        return decided_now() != side.decided

    def _beside(self, now: datetime) -> None:
        threading.Thread(target=self._make_in_thread, args=(now,), name="fit-ground", daemon=True).start()

    def _make_in_thread(self, now: datetime) -> None:
        try:
            self._make_and_tell(now)
        finally:
            connection.close()

    def _make_and_tell(self, now: datetime) -> None:
        try:
            self._make(now)
        except Exception as fault:
            log.exception("The fleet could not be read for trials; the last one serves on")
            self._fault = fault
        finally:
            self._making.release()
            self._made.set()

    def _make(self, now: datetime) -> None:
        side = self._spare
        if side is None or side.kinds > MOST_KINDS:
            side = Side(Snapshots())
        chosen = policy()
        facts = [backend.facts for backend in backends_all().values()]
        engine = chosen.engine if not facts or any(one.creates_mig for one in facts) else without_splitting(chosen.engine)
        began = time.monotonic()
        side.decided = decided_now()
        snapshot = side.snapshots.take(settings=engine, now=now, start_timeout=chosen.start_timeout)
        scenario, side.begun = _begun(snapshot.scenario, snapshot.kept)
        side.ground, side.queue = Ground(scenario, snapshot.kept), None
        side.taken_at, side.foresight, side.answers = now, foresight_now(), {}
        side.past = past_recalled(side.past, kinds=side.snapshots.kinds, now=now)
        side.took = timedelta(seconds=time.monotonic() - began)
        with self._trying:  # whoever still tries on the old one ends first
            self._spare, self._serving = self._serving, side
        self._fault = None


def _begun(scenario: Scenario, kept: Kept) -> tuple[Scenario, frozenset[str]]:
    """With those standing whom the loop's next plan starts at once: otherwise every trial starts them anew, which takes it several times as long."""
    starts = {one.job: one for one in starts_at_once(scenario, kept)}
    if not starts:
        return scenario, frozenset()
    begun = (changed_by(job, starts[job.name], scenario.now) if job.name in starts else job for job in scenario.jobs)
    return replace(scenario, jobs=tuple(begun)), frozenset(name for name in starts if name is not None)


def _decided(scenario: Scenario, jobs: Sequence[Job]) -> Sequence[Decision]:
    """What is decided at once if these are the fleet's jobs, in the order of the plan."""
    cycle = settled(replace(scenario, jobs=tuple(jobs)), Kept())
    check(cycle)
    return decisions_of(cycle)


def _overtaken(queue: Sequence[Turn], changed: Sequence[Turn], named: Set[str]) -> dict[str, int]:
    """How many more of these jobs stand before each of the others in the changed queue, of those that may want the same GPUs."""
    before, after = _ahead(queue, named), _ahead(changed, named)
    return {name: count - before.get(name, 0) for name, count in after.items() if count > before.get(name, 0)}


def _ahead(queue: Sequence[Turn], named: Set[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    groups: Counter[frozenset[str]] = Counter()  # of those named so far, by the types that they accept
    for turn in queue:
        wants = frozenset(name for role in turn.job.kind.roles for name in role.gpu_types or (ANY,))
        if turn.job.name in named:
            groups[wants] += 1
        else:
            found[turn.job.name] = sum(count for theirs, count in groups.items() if ANY in wants or ANY in theirs or wants & theirs)
    return found


def _serves(side: Side, now: datetime) -> bool:
    return timedelta(0) <= now - side.taken_at < STALE


GROUNDS = Grounds()


def decided_now() -> int:
    """How many events the loop's plans have seen."""
    return LeaseRow.objects.filter(name=TICK).values_list("done", flat=True).first() or 0


def sequel_of(
    change: Callable[[Sequence[Job], Kinds], Sequence[Job]], now: datetime, *, overtaking: Collection[str] = (), drained: Collection[str] = ()
) -> Sequel | None:
    """What would be decided at once if the fleet's jobs were what `change` makes of them, and `drained` nodes took none."""
    return GROUNDS.sequel(change, now, overtaking=overtaking, drained=drained)


def placeless_after(nodes: Collection[str], jobs: Collection[str], now: datetime) -> frozenset[str] | None:
    """Which of these running jobs would wait if they left at once and these nodes (`cluster/name`) took no jobs. None: nobody knows yet."""
    is_read = True

    def instead(planned: Sequence[Job], kinds: Kinds) -> Sequence[Job]:
        nonlocal is_read
        is_read = set(jobs) <= {one.name for one in planned if one.run.workers}
        return [one.with_run(one.run.as_it_waits()) if one.name in jobs else one for one in planned] if is_read else planned

    try:
        found = sequel_of(instead, now, drained=nodes)
    except Exception:
        log.exception("Whether jobs find places elsewhere could not be computed")
        return None
    return None if found is None or not is_read else frozenset(jobs) - set(found.starts)


def fit_of(*, access: Access, description: Mapping[str, Any], now: datetime, changes: bool = True) -> Fit | None:
    """What would become of a job that holds all rules; None while the fleet is still being read.

    A `ValidationError` names every fault, as a submission does.
    """
    (checked,) = submissions_check(access=access, descriptions=[description], now=now)
    return fit_checked(access=access, checked=checked, raw=description, now=now, changes=changes)


def fit_checked(*, access: Access, checked: Checked, raw: Mapping[str, Any], now: datetime, changes: bool = True) -> Fit | None:
    tried = _tried(checked, now)
    if tried is None:
        return None
    found, as_of = tried
    said = checked.description
    at = moment_of(found, as_of, now)
    paused = [PAUSED] if pause_now() else []
    range_ = None if at is None else _range(checked, found, at, now)
    if range_ is not None:
        at = range_[1]
    deferral, gates = _gates(checked, now)
    start = max([at, *gates]) if at is not None else None
    standing = GROUNDS.types_of((*(stand.node for stand in found.stands), *(node for node, _ in found.nodes))) or {found.quota_type}
    run = seconds_at(slowest_on(said.spec, standing), said.estimate_s, said.limit_s)
    rates = rates_now(now=now) if access.can(Can.SEE_COSTS, checked.quota.path) else {}
    costs = rates.get(found.quota_type)
    count = checked.count
    price = rates_now(now=now).get(found.quota_type)
    charged = _cost(found.milli, run, price)
    budgets = budgets_said(
        access,
        checked.quota.path,
        gpu_type=found.quota_type,
        gpus_milli=count * (found.milli or checked.gpus_milli),
        seconds=run,
        cost_micros=None if charged is None else count * charged,
        now=now,
    )
    held = (*_held(said, now), *budgets.holds, *paused)
    better: tuple[Change, ...] = ()
    is_deferred = deferral is not None and deferral.to is not None and start is not None and not found.never
    if changes and not held and not is_deferred and (at is None or at > now or not _is_at_once(found)):
        better = changes_found(access, checked, raw, found, lambda _, other, dated: _tried(other, now, dated=dated), now)
    fit = Fit(
        verdict=_verdict(found, held, start, now),
        at=start,
        earliest=None if range_ is None else max([range_[0], now, *gates]),
        latest=None if range_ is None else max([range_[2], now, *gates]),
        as_of=as_of,
        reasons=tuple(reason.as_json() for reason in found.reasons),
        stands=found.stands,
        nodes=found.nodes,
        after=found.after,
        others=found.others,
        backfilled=found.backfilled,
        quota=checked.quota.path,
        gpu_type=found.quota_type,
        gpus_milli=found.milli or checked.gpus_milli,
        count=count,
        levels=found.levels,
        guaranteed=found.guaranteed or _goes_before_others(checked, found, now),
        claimants=found.claimants,
        preemptible=said.preemptible_column,
        run_seconds=run,
        cost_micros=_cost(found.milli, run, costs),
        limit_cost_micros=_cost(found.milli, said.limit_s, costs),
        hourly_micros=_cost(found.milli, 3600, costs),
        changes=better,
        waits_for=held,
        budgets=budgets.notes,
        on_types=_on_types(said, found, standing, rates),
        type_choice=type_choice_of(said),
        zero_types=_zero_types(said),
        states_speeds=bool(said.throughput),
        speeds_of=checked.template.ref if checked.template and checked.speeds else "",
        speeds_number=checked.speeds or 0,
        without_images=clusters_without_images() if said.launch.image is not None else (),
        wanted_milli=sum(1000 * (role.get("gpus") or 0) * wanted_of(role) for role in roles_of(said.spec)),
        sharing=sharing_of(said.spec),
        instances=_instances(said.spec, found.quota_type),
        deferral=deferral,
        sees_energy=sees_prices(access, checked.quota.path),
    )
    # Where it would stand, and whom it would put out, is known of a start at once, and this one starts in some hours.
    return replace(fit, stands=(), nodes=(), after=(), others=(), reasons=(), backfilled=False) if is_deferred else fit


def start_checked(*, checked: Checked, holds: tuple[str, ...], now: datetime) -> Start | None:
    """The start alone, by estimates and how these came out before: no futures are played, which may take many seconds. `holds`: what keeps it back
    beside what it says itself. None while the fleet is still being read."""
    tried = _tried(checked, now)
    if tried is None:
        return None
    found, as_of = tried
    at = moment_of(found, as_of, now)
    if at is not None and not _is_at_once(found):
        at = now + MILLISECOND * GROUNDS.foreseen_by_estimates((at - now) // MILLISECOND).at
    _, gates = _gates(checked, now)
    start = max([at, *gates]) if at is not None else None
    verdict = _verdict(found, (*_held(checked.description, now), *holds), start, now)
    return Start(verdict, start, found.quota_type, checked.count * (found.milli or checked.gpus_milli))


def _gates(checked: Checked, now: datetime) -> tuple[Deferral | None, list[datetime]]:
    """To which hour it would be deferred, and all moments before which it does not start."""
    said = checked.description
    held_back = said.draft or said.hold or bool(said.after)  # then its hour is chosen later
    deferral = None if held_back else deferral_of(checked, Tariffs(now), now)
    return deferral, [gate for gate in (said.not_before, deferral.to if deferral else None) if gate is not None]


def _instances(spec: Spec, gpu_type: str) -> tuple[tuple[Board, Profile], ...]:
    board = board_of(gpu_type)
    if board is None or "PCIE" in gpu_type.upper():  # what is known of multiprocessors was read off SXM modules
        return ()
    named = dict.fromkeys(role["mig"] for role in roles_of(spec) if role.get("mig"))
    return tuple((board, profile) for name in named if (profile := board.profile(name)) is not None)


def _goes_before_others(checked: Checked, found: Trial, now: datetime) -> bool:
    """Whether it is within the guarantee although more than that is used: what is lower or easier to put out stands behind it then, and borrows.

    It is the line in which it stands once it runs, so that its page says the same.
    """
    said = checked.description
    if not found.levels or all(not level.guaranteed for level in found.levels):
        return False
    would = Worker(
        key=(0, "", -1, found.quota_type),
        surplus=False,
        path=checked.quota.path,
        gpu_milli=found.milli,
        preemptible=said.preemptible_column,
        job_class=said.job_class,
        priority=said.priority,
        began=millis(now) + 1,  # behind all that runs
        job="",
    )
    leave = {one.job for one in found.others if one.action == "evict" and one.job is not None} | set(found.after)
    return ledger_class_if(worker=would, without=leave, at=now) in (GUARANTEED, RESERVED)


def _on_types(said: JobDescription, found: Trial, standing: Collection[str], rates: Mapping[str, int]) -> tuple[OnType, ...]:
    """What it would be on each type of the fleet that it accepts: for those who choose between sooner, faster and cheaper."""
    settings = GROUNDS.settings
    choice, prices = type_choice_of(said), dict(settings.gpu_prices)
    if not said.throughput and choice == "fastest":
        return ()
    roles = [role for role in roles_of(said.spec) if takes_gpus(role)]
    # A part that is stated by its memory is charged otherwise on GPUs of another size.
    alike = not any(role.get("gpu_memory_gb") for role in roles)
    named = types_of(said.spec)
    rows = []
    for name in _types_accepted(said):
        if not (speed := speed_on(said.spec, name)):
            continue
        run = seconds_at(speed, said.estimate_s, said.limit_s)
        cost = _cost(found.milli, run, rates.get(name)) if alike or name == found.quota_type else None
        rows.append(OnType(name, speed, run, is_cut(speed, said.estimate_s, said.limit_s), cost, name in standing))

    def place_of(row: OnType) -> tuple[Any, str]:
        at = named.index(row.gpu_type) if named else 0
        return type_rank(choice, prices, row.gpu_type, round(MILLION * row.speed) or 1, at), row.gpu_type

    return tuple(sorted(rows, key=place_of)) if said.throughput or len(rows) > 1 else ()


def type_choice_of(said: JobDescription) -> str:
    """Its own, or the fleet's as it was read last."""
    return said.type_choice or GROUNDS.settings.type_choice


def _types_accepted(said: JobDescription) -> list[str]:
    """Types of the fleet that all its roles accept, whatever its speed there."""
    roles = [role for role in roles_of(said.spec) if takes_gpus(role)]
    return [name for name in sorted(GROUNDS.types_of(None)) if all(name in (role.get("gpu_types") or (name,)) for role in roles)]


def _zero_types(said: JobDescription) -> tuple[str, ...]:
    return tuple(name for name in _types_accepted(said) if not speed_on(said.spec, name)) if said.throughput else ()


def _tried(checked: Checked, now: datetime, *, dated: bool = True) -> tuple[Trial, datetime] | None:
    return GROUNDS.trial(lambda side: job_of(checked, side), now, dated=dated)


def job_of(checked: Checked, side: Side) -> Job:
    """The job as the engine has it, of a kind that the ground knows and keeps."""
    said = checked.description
    asks = side.snapshots.kinds.asks(said.spec, said.job_class, said.priority, said.preemptible_column)
    if isinstance(asks, str):
        raise ValidationError({"description": [asks]})
    side.kinds += 1
    assert side.ground is not None
    scenario = side.ground.scenario
    return Job(
        name=side.ground.name,
        quota=checked.quota.path,
        kind=side.snapshots.of_template(asks.kind, checked.template.key if checked.template else ""),
        submitted=scenario.now,
        estimate_ms=None if said.estimate_s is None else 1000 * said.estimate_s,
        limit_ms=None if said.limit_s is None else 1000 * said.limit_s,
        deadline=None if said.deadline is None else millis(said.deadline),
        not_before=None,
        checkpoint=asks.saving,
        movable=asks.movable,
        work_ms=None,
        run=QUEUED,
    )


def _held(said: JobDescription, now: datetime) -> tuple[str, ...]:
    """What keeps it back whatever the fleet has."""
    held = []
    if said.draft:
        held.append("It is a draft: it is not in the queue.")
    if said.hold:
        held.append("It is held until it is released.")
    if said.after:
        held.append(f"It waits for {', '.join(one.job for one in said.after[:4])}{' and more' if len(said.after) > 4 else ''}.")
    return tuple(held)


def _verdict(found: Trial, held: tuple[str, ...], start: datetime | None, now: datetime) -> str:
    if found.never:
        return "never"
    if held:
        return "held"
    if start is None:
        return "unknown"
    if start <= now and _is_at_once(found):
        return "now"
    return "soon" if found.stands and not found.reasons and start - now < timedelta(hours=1) else "later"


def _is_at_once(found: Trial) -> bool:
    """Whether it starts by the very plan, now or when others have left. A date that has come since the fleet was read is no start."""
    return bool(found.stands) or not found.reasons


def _range(checked: Checked, found: Trial, at: datetime, now: datetime) -> tuple[datetime, datetime, datetime]:
    """The earliest, the expected and the latest start. Who starts now, or once others have left after their grace, is told no history."""
    wait = (at - now) // MILLISECOND
    sure = ruled(estimated(wait)) if _is_at_once(found) else GROUNDS.foreseen(lambda side: job_of(checked, side), wait)
    return now + MILLISECOND * sure.earliest, now + MILLISECOND * sure.at, now + MILLISECOND * sure.latest


def _cost(milli: int, seconds: int | None, rate: int | None) -> int | None:
    return None if seconds is None or rate is None else cost_micros(gpu_milli=milli, millis=1000 * seconds, micros_per_gpu_hour=rate)
