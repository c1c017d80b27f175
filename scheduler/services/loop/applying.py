"""Writing a plan down. Each decision is carried out only if its rows are as the snapshot saw them; the others are, whatever becomes of it.

A decision that is dropped takes with it what depends on it: whoever was to get the places that its job would have left, or the room below a limit or
beside a window or power cap, and whoever would have been put out for a job that now does not start. What ended by itself meanwhile is in nobody's
way. One transaction, and the lease's epoch is checked in it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property

from django.db import transaction

from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared, together
from scheduler.backends.base import Facts
from scheduler.engine.model.mig import board_of
from scheduler.engine.model.plan import Decision, Plan, Stand
from scheduler.engine.state.fleet import bits_of
from scheduler.models import HOLDING, Attempt, Job, JobState, OrderKind, Placement, Promise, PromisedSeat
from scheduler.services.loop.holds import OPEN_OF, WHOLE_MILLI, Seat, seats_faults
from scheduler.services.loop.lease import Lease
from scheduler.services.loop.promises import SLACK, Grant, Starter, promise_make, promised_seats_insert, workers_in
from scheduler.services.loop.runs import Clusters, Stop, by_attempt, stop_ask
from scheduler.services.loop.splitting import Splitter
from scheduler.services.loop.steps import LOCKED, OPEN_ATTEMPTS, Steps
from scheduler.snapshots import Snapshot
from scheduler.snapshots.tree import tree_revision

GIVING_WAY = ("evict", "shrink")
LEAVING = (*GIVING_WAY, "move")
GETTING = ("start", "move", "repair", "grow")
MOVED_ON = "Its job has moved on since the snapshot."
TREE_CHANGED = "The quota tree has changed since the snapshot."
HARDWARE_CHANGED = "One of its GPUs or nodes is no longer in the fleet."
NO_ROOM = "A decision that it depends on was dropped."
NOT_SPLIT = "The back-end of its cluster can't split GPUs."
IN_VAIN = "The job that it makes room for does not start."
LEAVERS_FIRST = "A GPU can be repartitioned only after its jobs have exited. The next plan decides again."
PROMISES = Prepared[Promise](lambda jobs: Promise.objects.filter(job__among=jobs))
STOPPING_UNTIL: Prepared[datetime | None] = Prepared(
    lambda jobs: Attempt.objects.filter(job__public_id__among=jobs, ended_at__isnull=True, stop_until__isnull=False).values_list(
        "stop_until", flat=True
    )
)
MOST_NAMED = 6
KINDS = {"start": Promise.Kind.START, "move": Promise.Kind.MOVE, "repair": Promise.Kind.REPAIR, "grow": Promise.Kind.GROW}


@dataclass(frozen=True, slots=True)
class Applied:
    """What became of a plan's decisions."""

    done: tuple[Decision, ...]
    dropped: tuple[tuple[Decision, str], ...]
    put_off: tuple[Decision, ...] = ()  # until those who leave are gone, which makes another plan by itself

    @property
    def not_done(self) -> list[tuple[Decision, str]]:
        """For those who read the plan."""
        return [*self.dropped, *((decision, LEAVERS_FIRST) for decision in self.put_off)]

    @property
    def asks_again(self) -> bool:
        """What was dropped is planned anew, from what is true now."""
        return bool(self.dropped)


@dataclass(slots=True)
class _Item:
    """A decision on its way into the database."""

    decision: Decision
    job: Job | None
    fault: str = ""
    moot: bool = False  # what it asks for has happened by itself
    seats: list[Seat] = field(default_factory=list)  # that its job does not hold yet
    waits: bool = False  # somebody still sits there
    split: bool = False  # its GPU is split by now, whoever uses it
    later: bool = False  # a GPU of it can only be split once those who leave are gone: then it is decided anew


def plan_apply(
    *, plan: Plan, snapshot: Snapshot, lease: Lease, now: datetime, facts: Mapping[int, Facts], news: News, plan_id: int | None = None
) -> Applied:
    """Carry out what still holds, in the caller's transaction or one of its own. `Fenced` where somebody newer leads: nothing is written then."""
    decisions = [decision for decision in plan.decisions if decision.action != "reserve"]
    with transaction.atomic(savepoint=False):
        applied = _Applying(decisions, snapshot, now, facts, plan_id).run(news) if decisions else Applied((), ())
        news.publish()  # the feed's row is locked before the lease's, here as everywhere
        lease.still_ours_or_raise()
    return applied


class _Applying:
    def __init__(self, decisions: Sequence[Decision], snapshot: Snapshot, now: datetime, facts: Mapping[int, Facts], plan_id: int | None) -> None:
        self.steps = Steps(now=now)
        self.now = self.steps.now
        self.snapshot = snapshot
        self.fleet = snapshot.fleet
        self.quotas = {quota.name: quota for quota in snapshot.tree.quotas}
        self.facts = facts
        self.plan_id = plan_id
        seen = (snapshot.jobs.get(decision.job or "") for decision in decisions)
        named = {row.id for row in seen if row is not None}
        # Jobs are locked first: what is asked behind that is true until the end of the transaction.
        jobs, attempts, promises = together(LOCKED.asking(named), OPEN_ATTEMPTS.asking(named), PROMISES.asking(named))
        self.jobs: dict[str, Job] = {job.public_id: job for job in jobs}
        self.attempts: dict[int, Attempt] = {attempt.job_id: attempt for attempt in attempts}
        self.held = by_attempt(OPEN_OF(attempt.pk for attempt in attempts))
        self.promises: dict[int, Promise] = {promise.job_id: promise for promise in promises}
        self.clusters = Clusters(self.attempts.values())
        self.splitter = Splitter(self.fleet, self.steps)
        self.items = [_Item(decision, self.jobs.get(decision.job or "")) for decision in decisions]
        self.latest = self.now  # when the last of those who leave has to be gone

    def run(self, news: News) -> Applied:
        unchanged = tree_revision() == self.snapshot.tree.revision
        for item in self.items:
            item.fault = self._fault(item) if unchanged else TREE_CHANGED
        self._drop_dependents()
        self._split()
        self._find_seats()
        self._put_off_dependents()
        self._drop_dependents()
        self._check_seats()
        self._drop_dependents()
        self._write(news)
        return Applied(
            tuple(item.decision for item in self.items if not item.fault and not item.moot and not item.later),
            tuple((item.decision, item.fault) for item in self.items if item.fault),
            tuple(item.decision for item in self.items if item.later),
        )

    # What still holds

    def _fault(self, item: _Item) -> str:
        if item.decision.action == "repartition":
            return ""
        seen, job = self.snapshot.jobs.get(item.decision.job or ""), item.job
        if seen is None or job is None:
            return MOVED_ON
        if (job.state, job.revision) == (seen.state, seen.revision):
            return ""
        leaves_by_itself = (job.state not in HOLDING and job.state != JobState.RESERVED) or job.state == JobState.CHECKPOINTING
        if item.decision.action in GIVING_WAY and leaves_by_itself:
            item.moot = True
            return ""
        return MOVED_ON

    def _drop_dependents(self) -> None:
        """Until nothing more falls: who waits for a job that stays, and who would give way for one that does not start."""
        by_job = {item.decision.job or "": item for item in self.items if item.decision.job is not None}
        again = True
        while again:
            again = False
            needed = {name for item in self.items if not item.fault for name in item.decision.after}
            for item in self.items:
                if item.fault or item.moot or item.split:
                    continue
                item.fault = self._dependent_fault(item, by_job, needed)
                again = again or bool(item.fault)

    def _dependent_fault(self, item: _Item, by_job: Mapping[str, _Item], needed: set[str]) -> str:
        decision = item.decision
        for name in decision.after:
            before = by_job.get(name)
            if before is not None and before.fault and not self._is_gone(before):
                return NO_ROOM
        served = by_job.get(decision.for_job) if decision.for_job is not None else None
        if served is not None and served.fault and decision.job not in needed:
            return IN_VAIN
        # Whoever was to give way for this job and does not: then it has no right to start, even on GPUs that are free.
        # The same where the plan filled the room that another was to leave below a limit, or for a window or power cap.
        if decision.action in GETTING:
            earlier, adds = True, decision.action in ("start", "grow")
            for other in self.items:
                earlier = earlier and other is not item
                if other.decision.action not in LEAVING or not other.fault or self._is_gone(other):
                    continue
                if other.decision.action in GIVING_WAY and other.decision.for_job == decision.job:
                    return NO_ROOM
                if earlier and (self._room_is_kept or (adds and other.decision.action in GIVING_WAY and self._one_limit_holds(item, other))):
                    return NO_ROOM
        return ""

    @cached_property
    def _room_is_kept(self) -> bool:
        """Whether some of the fleet, or of its power, is kept for others. Where that is, and what is left beside it, follows from the whole plan."""
        scenario = self.snapshot.scenario
        return bool(scenario.windows or scenario.power.caps)

    def _one_limit_holds(self, *items: _Item) -> bool:
        """Whether a node of the tree limits all of these."""
        return bool(set.intersection(*(self._limits_of(item.job) for item in items)))

    def _limits_of(self, job: Job | None) -> set[str]:
        found, name = set(), self.snapshot.tree.paths.get(job.quota_id) if job is not None else None
        while name is not None:
            quota = self.quotas[name]
            found |= set() if quota.limit.unlimited else {name}
            name = quota.parent
        return found

    def _is_gone(self, item: _Item) -> bool:
        """Whether its job holds nothing any more, or is on its way out: a decision about it may be dropped, its places are free all the same."""
        return item.job is not None and (item.job.state not in HOLDING or item.job.state == JobState.CHECKPOINTING)

    # Places

    def _split(self) -> None:
        for item in self.items:
            if item.decision.action != "repartition" or item.fault:
                continue
            if not self._can_split(item.decision):
                item.fault = NOT_SPLIT
                continue
            fault, sitting = self.splitter.split(item.decision)
            item.split = not fault
            item.later = bool(sitting) and sitting <= self._leaving(sitting, item.decision)
            item.fault = "" if item.later else fault

    def _leaving(self, jobs: Iterable[int], split: Decision) -> set[int]:
        """Those of these jobs that go from a GPU by this plan, or are on their way out already: all of a job, or its workers there."""
        gives_way = {item.job.pk for item in self.items if item.job is not None and not item.fault and _goes_from(item.decision, split)}
        gives_way.update(Job.objects.filter(pk__in=jobs, state=JobState.CHECKPOINTING).values_list("pk", flat=True))
        node = self.fleet.node_ids.get(split.node or "", 0)
        there = Placement.objects.filter(node=node, gpu__index=split.gpu or 0, job__in=jobs, until__isnull=True)
        kept = {(one.profile, one.start) for one in split.instances}
        rows = list(there.values_list("job_id", "leaving_since", "mig__profile", "mig__start"))
        staying = {job for job, leaving, profile, start in rows if leaving is None and (profile, start) not in kept}
        return gives_way | ({row[0] for row in rows} - staying)

    def _can_split(self, decision: Decision) -> bool:
        """The engine is told what the whole fleet can do (`scheduler.services.loop.tick`); here it is known where the GPU stands."""
        cluster = self.fleet.clusters.get(self.fleet.node_ids.get(decision.node or "", 0), 0)
        return self.facts.get(cluster, Facts()).creates_mig

    def _find_seats(self) -> None:
        not_yet = {(item.decision.node, item.decision.gpu) for item in self.items if item.later}
        refused = {(item.decision.node, item.decision.gpu) for item in self.items if item.decision.action == "repartition" and item.fault}
        for item in self.items:
            if item.decision.action not in GETTING or item.fault:
                continue
            places = {(stand.node, gpu) for stand in item.decision.workers for gpu in bits_of(stand.gpus)}
            if not places.isdisjoint(refused):
                item.fault = NO_ROOM
                continue
            if not places.isdisjoint(not_yet):
                item.later = True
                continue
            has = self._workers_of(item)
            try:
                new = [stand for stand in item.decision.workers if (stand.role, stand.index) not in has]
                item.seats = [seat for stand in new for seat in self._seats(stand)]
            except KeyError:
                item.fault = HARDWARE_CHANGED

    def _put_off_dependents(self) -> None:
        """Who moves later stands where it stood, so whoever was to come after it comes later, too."""
        waits_for: set[str | None] = {item.decision.job for item in self.items if item.later and item.decision.job is not None}
        while waits_for:
            put_off = [
                item
                for item in self.items
                if not (item.fault or item.moot or item.split or item.later) and not waits_for.isdisjoint(item.decision.after)
            ]
            for item in put_off:
                item.later, item.seats = True, []
            waits_for = {item.decision.job for item in put_off}

    def _workers_of(self, item: _Item) -> set[tuple[str, int]]:
        """The workers that stay where they are: all of a run that is joined, none of one that starts or moves."""
        assert item.job is not None
        if item.decision.action in ("start", "move") or self._by_restart(item):
            return set()
        staying: set[tuple[str, int]] = set()
        promise = self.promises.get(item.job.pk)
        if promise is not None:
            staying.update(PromisedSeat.objects.filter(promise=promise).values_list("role", "worker"))
        if not self._on_its_way(item):
            held = self.held.get(self.attempts[item.job.pk].pk, ())
            staying.update((one.role, one.worker) for one in held if one.leaving_since is None)
        return staying

    def _on_its_way(self, item: _Item) -> bool:
        """Whether all that its job has is a promise: it holds nothing yet, or is leaving what it holds."""
        attempt = self._attempt_of(item)
        return attempt is None or bool(attempt.stop_to)

    def _seats(self, stand: Stand) -> list[Seat]:
        """The GPUs of a worker as rows; a KeyError where one is not there."""
        node = self.fleet.node_ids[stand.node]
        if not stand.gpus:
            return [Seat(node, None, stand.index, stand.role, 0)]
        slices = {gpu: (profile, start) for gpu, profile, start in stand.mig}
        found = []
        for index in bits_of(stand.gpus):
            gpu = self.fleet.gpu_ids[node, index]
            if index in slices:
                profile, start = slices[index]
                mig = self.fleet.slice_ids.get((gpu, profile, start)) or self.splitter.slice_id(gpu, profile, start)
                found.append(Seat(node, gpu, stand.index, stand.role, self._charge(stand.node, profile), mig))
            else:
                found.append(Seat(node, gpu, stand.index, stand.role, WHOLE_MILLI if stand.share_milli is None else stand.share_milli))
        return found

    def _charge(self, node: str, profile: str) -> int:
        kind = next(one.gpu_type for one in self.fleet.nodes if one.name == node)
        board = board_of(kind)
        assert board is not None
        return board.charge_milli(board.known(profile))

    def _check_seats(self) -> None:
        """Which places are free now, in the order of decisions. A place where somebody who is evicted still sits is promised."""
        asking = {place: item for place, item in enumerate(self.items) if item.seats and not item.fault}
        own = {place: item.job.pk for place, item in asking.items() if item.job is not None}
        broken, busy = seats_faults(wanted={place: item.seats for place, item in asking.items()}, own=own)
        for place, item in asking.items():
            if place in broken:
                item.fault = broken[place]
            elif place in busy:
                item.waits = bool(item.decision.after) or item.decision.action == "move" or self._by_restart(item)
                item.fault = "" if item.waits else busy[place]

    def _by_restart(self, item: _Item) -> bool:
        """Whether a run has to be stopped and started to change its size: its back-end can't do it in place, or can only if the job states it."""
        if item.decision.action not in ("shrink", "grow", "repair") or item.job is None or self._on_its_way(item):
            return False
        facts = [self.facts.get(cluster, Facts()) for cluster in self.clusters.of(self.attempts[item.job.pk])]
        restarting = [one for one in facts if not one.resizes_in_place]
        return bool(restarting) and not (all(one.resizes_stated for one in restarting) and item.job.launch.get("in_place"))

    # Writing

    def _write(self, news: News) -> None:
        live = [item for item in self.items if not item.fault and not item.moot and not item.later]
        getting = [item for item in live if item.decision.action in GETTING]
        self.splitter.write([item.decision for item in live if item.decision.action == "repartition"], news)
        for item in live:
            if item.decision.action == "evict":
                self._evict(item)
            elif item.decision.action == "shrink":
                self._shrink(item)
            elif item.decision.action == "move":
                self._leave_to_move(item)
        self._count_leavers(live)
        starter = Starter(self.steps, [item.job.pk for item in getting if item.job is not None], [seat for item in getting for seat in item.seats])
        for item in getting:
            later = item.decision.action in ("grow", "repair") and self._on_its_way(item)
            if item.waits or item.decision.action == "move" or later or self._by_restart(item):
                self._promise(item)
            elif item.seats:
                starter.grant(self._grant(item))
        self.steps.write(news)

    def _cause(self, item: _Item) -> str:
        why = item.decision.why.detail
        # A name in front stays as it is.
        return f"{why[:1].upper() if why.partition(' ')[0].isalpha() else why[:1]}{why[1:]}."

    def _detail(self, item: _Item) -> dict[str, object]:
        found: dict[str, object] = {"action": item.decision.action, "code": item.decision.why.code}
        if item.decision.for_job:
            found["for"] = item.decision.for_job
        if self.plan_id is not None:
            found["plan"] = self.plan_id
        return found

    def _grant(self, item: _Item) -> Grant:
        assert item.job is not None
        resumes = item.job.state == JobState.PREEMPTED
        kind = KINDS[item.decision.action]
        return Grant(item.job, kind, item.seats, self._cause(item), item.decision.backfilled, resumes, self._reclaimed(item), self._detail(item))

    def _reclaimed(self, item: _Item) -> datetime | None:
        """When its job came to its place by reclaim: now, if others give way to it; who only moves takes it along, and a fresh start has none."""
        if item.decision.why.code == "reclaim" and item.decision.action in KINDS and item.decision.action != "move":
            return self.now
        attempt = self._attempt_of(item)
        if item.decision.action == "start" or item.job is None:
            return None
        promise = self.promises.get(item.job.pk)
        return (promise.reclaimed_at if promise is not None else None) or (attempt.reclaimed_at if attempt is not None else None)

    def _attempt_of(self, item: _Item) -> Attempt | None:
        return self.attempts.get(item.job.pk) if item.job is not None else None

    def _evict(self, item: _Item) -> None:
        job, attempt = item.job, self._attempt_of(item)
        assert job is not None
        promise = self.promises.get(job.pk)
        if promise is not None:
            self.steps.forget_promise(job)
        if attempt is None:  # promised GPUs, and never got them
            assert promise is not None
            self.steps.move(job, promise.back_to, self._cause(item), detail=self._detail(item))
            return
        if attempt.stop_to:  # on its way to the place that it was promised, and now to none
            self.steps.attempt(attempt, stop_outcome="preempted")
        elif item.decision.why.code == "stale":
            self._stop(item, attempt, JobState.QUEUED, "lost")
            return
        else:
            self._stop(item, attempt, JobState.PREEMPTED, "preempted")
        self.steps.change(job, evictions=job.evictions + 1, last_evicted_at=self.now)

    def _stop(self, item: _Item, attempt: Attempt, to: str, outcome: str) -> None:
        assert item.job is not None
        grace = item.decision.grace_ms / 1000 if item.decision.action == "evict" else None
        stop = Stop(item.job.pk, to, outcome, self._cause(item), grace)
        stop_ask(self.steps, item.job, attempt, self.clusters.of(attempt), stop, self._detail(item))

    def _leave_to_move(self, item: _Item) -> None:
        attempt = self._attempt_of(item)
        assert item.job is not None
        assert attempt is not None
        self._stop(item, attempt, JobState.PREEMPTED, "moved")
        self.steps.change(item.job, last_moved_at=self.now)

    def _shrink(self, item: _Item) -> None:
        job, attempt = item.job, self._attempt_of(item)
        assert job is not None
        staying = {(stand.role, stand.index) for stand in item.decision.workers}
        promise = self.promises.get(job.pk)
        if promise is not None:
            self.steps.touch(PromisedSeat.objects.filter(promise=promise).values_list("gpu_id", flat=True))
            _narrow(promise, staying)
        if attempt is None or attempt.stop_to:
            return
        going = [one for one in self.held.get(attempt.pk, ()) if one.leaving_since is None and (one.role, one.worker) not in staying]
        if not going:
            return
        if self._by_restart(item):
            self._leave_to_move(item)
            item.seats = [seat for stand in item.decision.workers for seat in self._seats(stand)]
            self._promise(item)
            return
        self.steps.leave(going)
        self.steps.note(job, self._cause(item), attempt=attempt, detail=self._detail(item))
        for cluster, some in _by_cluster(going, self.fleet.clusters).items():
            self.steps.order(attempt, OrderKind.RESIZE, cluster, {"add": [], "leave": workers_in(_seat_of(one) for one in some)})

    def _count_leavers(self, live: Iterable[_Item]) -> None:
        """Until when promises of this plan hold."""
        names = {name for item in live for name in item.decision.after}
        ends = [*STOPPING_UNTIL(names), *(attempt.stop_until for attempt in self.attempts.values())]
        self.latest = max((end for end in ends if end is not None), default=self.now)

    def _promise(self, item: _Item) -> None:
        job = item.job
        assert job is not None
        moving = Grant(job, Promise.Kind.MOVE, item.seats, self._cause(item), resumes=True, reclaimed_at=self._reclaimed(item))
        grant = self._grant(item) if item.decision.action in KINDS else moving
        attempt = self._attempt_of(item)
        if item.decision.action in ("grow", "repair") and self._by_restart(item) and attempt is not None and not attempt.stop_to:
            self._leave_to_move(item)
            grant = moving
        after = [*item.decision.after, *([job.public_id] if grant.kind == Promise.Kind.MOVE else [])]
        back_to = job.state if job.state in (JobState.QUEUED, JobState.PREEMPTED) else JobState.PREEMPTED
        until = max(self.latest, (attempt.stop_until if attempt is not None else None) or self.now) + SLACK
        promise = self.promises.get(job.pk)
        self.steps.touch(seat.gpu_id for seat in grant.seats)
        if promise is not None and grant.kind == Promise.Kind.MOVE:
            # All of its workers have other places now, also who was promised one to join it.
            self.steps.touch(PromisedSeat.objects.filter(promise=promise.pk).values_list("gpu_id", flat=True))
            Promise.objects.filter(pk=promise.pk).delete()
            back_to, promise = promise.back_to if job.state == JobState.RESERVED else back_to, None
        if promise is None:
            promise_make(grant=grant, after=after, until=until, now=self.now, back_to=back_to, plan_id=self.plan_id)
        else:
            _widen(promise, grant, after, until)
        if job.state in (JobState.QUEUED, JobState.PREEMPTED):
            self.steps.move(job, JobState.RESERVED, f"{self._cause(item)} {_once_gone(item.decision.after)}"[:300], detail=self._detail(item))
        elif job.state in (JobState.RUNNING, JobState.DEGRADED):
            self.steps.note(job, self._cause(item), detail=self._detail(item))


def _once_gone(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    shown = f"{', '.join(names[:MOST_NAMED])}{f' and {more} more' if more > 0 else ''}"
    return f"It starts once {shown} {'has' if len(names) == 1 else 'have'} made room."


def _narrow(promise: Promise, staying: set[tuple[str, int]]) -> None:
    """Give up what is promised beyond the workers that stay."""
    kept = 0
    for seat in PromisedSeat.objects.filter(promise=promise):
        if (seat.role, seat.worker) in staying:
            kept += 1
        else:
            seat.delete()
    if not kept:
        promise.delete()


def _widen(promise: Promise, grant: Grant, after: Sequence[str], until: datetime) -> None:
    """More workers for a run that is promised some already."""
    known = dict.fromkeys([*promise.after, *after])
    Promise.objects.filter(pk=promise.pk).update(after=list(known), until=max(promise.until, until), reclaimed_at=grant.reclaimed_at)
    promised_seats_insert(promise, grant.seats)


def _seat_of(placement: Placement) -> Seat:
    return Seat(placement.node_id, placement.gpu_id, placement.worker, placement.role, placement.gpu_milli, placement.mig_id)


def _goes_from(decision: Decision, split: Decision) -> bool:
    """Whether a job leaves the GPU that is split: it is evicted or moved, or shrinks to workers elsewhere or on instances that stay."""
    if decision.action in ("evict", "move"):
        return True
    kept = {(split.gpu, one.profile, one.start) for one in split.instances}
    here = [stand for stand in decision.workers if stand.node == split.node and stand.gpus >> (split.gpu or 0) & 1]
    return decision.action == "shrink" and all(any(slice_ in kept for slice_ in stand.mig) for stand in here)


def _by_cluster(placements: Iterable[Placement], clusters: Mapping[int, int]) -> dict[int, list[Placement]]:
    found: dict[int, list[Placement]] = {}
    for one in placements:
        found.setdefault(clusters[one.node_id], []).append(one)
    return found
