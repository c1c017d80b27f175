"""The fleet of a moment, kept by each process that is asked what would become of something: descriptions, changes and actions are tried on it (UI-3).

A `Ground` is made from the database as the loop's snapshot is, beside the requests, also the first time: who asks while that goes on is answered from
the one before, which is seconds old and says so, or, where there is none, is asked to come again in a moment. Nothing is written.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

from django.db import connection

from gpufleet.core.times import millis
from scheduler.backends.registry import backends_all
from scheduler.engine.cycle import settled
from scheduler.engine.model.plan import Decision
from scheduler.engine.model.values import Job, Scenario, Settings
from scheduler.engine.rules.invariants import check
from scheduler.engine.state.state import Kept
from scheduler.engine.tell.decisions import decisions_of
from scheduler.engine.tell.turns import Turn, turns
from scheduler.engine.trial import Ground, Trial, starts_at_once
from scheduler.loop.foresight import Foreseen, Foresight, estimated, ruled
from scheduler.loop.policy import policy, without_splitting
from scheduler.models import Lease as LeaseRow
from scheduler.selectors.predictions import Recalled, foresight_now, past_recalled
from scheduler.services.forecasts.differences import Effect, differences
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
