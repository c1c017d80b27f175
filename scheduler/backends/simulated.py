"""The simulated back-end: runs that live only in its memory, by the model of `scheduler.simulation.progress`. The demo and the tests run on it.

Its memory is a store: rows of the database in the demo, so that it outlives the console, or plain values in a storm. It has a clock only for logs;
all else happens at the moment that it is told.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Protocol

from gpufleet.core.times import millis
from scheduler.backends.base import (
    BackendError,
    BackendRefused,
    Facts,
    LogPart,
    NotFound,
    OldCheckpoint,
    Reach,
    RunState,
    SeenCheckpoint,
    SeenRun,
    SeenWorker,
    Signal,
    StartOrder,
    WorkerSeat,
    whole_characters,
)
from scheduler.backends.faults import NO_FAULTS, FaultPlan
from scheduler.simulation.progress import MILLION, Life, Member, Pace, Phase, life_begun, life_never_begun, nature_of

STATES = {
    Phase.LOADING: RunState.STARTING,
    Phase.COMPUTING: RunState.RUNNING,
    Phase.BROKEN: RunState.RUNNING,
    Phase.LEAVING: RunState.STOPPING,
    Phase.ENDED: RunState.ENDED,
}
LOG_LINE = timedelta(minutes=1)
LOGS_KEPT = 2000  # of runs that are over, in each cluster


Mark = tuple[object, ...]


class Store(Protocol):
    """Where lives are kept. Everything between entering and leaving `turn` happens at once, or not at all."""

    def turn(self) -> "Turn": ...

    def next_due(self) -> int | None: ...


class Turn(Protocol):
    def __enter__(self) -> "Turn": ...

    def __exit__(self, *fault: object) -> None: ...

    def fetch(self, keys: Sequence[str]) -> None:
        """These are going to be asked for."""
        ...

    def get(self, key: str) -> Life | None: ...

    def marks(self) -> Mapping[str, Mark]:
        """Of every life what is another one after each change of it."""
        ...

    def due(self, now: int) -> Sequence[Life]:
        """Those whose moment has come, by key."""
        ...

    def on_node(self, node: str) -> Sequence[Life]:
        """Those that have a worker there and have not ended."""
        ...

    def put(self, life: Life, due: int | None) -> None: ...

    def remove(self, keys: Sequence[str]) -> None:
        """These have ended and are asked for no more, but for their logs: the newest `LOGS_KEPT` of those stay readable."""
        ...

    def past(self, key: str) -> Life | None:
        """One that was removed, as long as its log is kept."""
        ...


def moment_of(at: int) -> datetime:
    return datetime.fromtimestamp(at // 1000, UTC).replace(microsecond=at % 1000 * 1000)


class SimulatedBackend:
    def __init__(
        self,
        store: Store,
        *,
        faults: FaultPlan = NO_FAULTS,
        facts: Facts | None = None,
        pace: Pace | None = None,
        speed_of: Callable[[str], str] | None = None,
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        """`speed_of` names the GPU type of a node, for jobs that state a speed by type; `clock` says until when a log has been written."""
        self.store, self.faults, self.pace = store, faults, pace or Pace()
        self._facts = facts or Facts()
        self._type_of, self._clock = speed_of, clock
        self._held = threading.local()
        self._looked: dict[str, tuple[Mark, SeenRun]] = {}

    @property
    def facts(self) -> Facts:
        return self._facts

    # Being told

    def announce(self, orders: Sequence[StartOrder], *, now: datetime) -> None:
        """`together` has read what is needed already."""

    @contextmanager
    def together(self, keys: Sequence[str] = ()) -> Iterator[None]:
        if getattr(self._held, "turn", None) is not None:
            yield
            return
        with self.store.turn() as turn:
            turn.fetch(keys)
            self._held.turn = turn
            try:
                yield
            finally:
                self._held.turn = None

    @contextmanager
    def _turn(self) -> Iterator[Turn]:
        with self.together():
            yield self._held.turn

    def _told(self, kind: str, key: str, sequence: int, now: datetime, act: Callable[[Turn, Life | None], Life | None]) -> None:
        """Do what an order says, unless one as new has been done already. `act` returns the life that has changed."""
        if self.faults.strikes("refuse", self.faults.refuses, now, kind, key, sequence):
            raise BackendError("The simulated back-end did not take the order.")
        for _ in range(2 if self.faults.strikes("repeat", self.faults.repeats, now, kind, key, sequence) else 1):
            with self._turn() as turn:
                life = turn.get(key)
                if life is None or life.sequence < sequence:
                    changed = act(turn, life)
                    if changed is not None:
                        changed.sequence = sequence
                        turn.put(changed, millis(now))
        if self.faults.strikes("time-out", self.faults.times_out, now, kind, key, sequence):
            raise BackendError("The simulated back-end did not answer in time.")

    def start(self, order: StartOrder, *, now: datetime) -> None:
        def begin(_: Turn, life: Life | None) -> Life | None:
            if life is not None:
                return None
            limit = None if order.limit_seconds is None else order.limit_seconds * 1000
            try:
                nature = nature_of(
                    job=order.job,
                    key=order.key,
                    spec=order.spec,
                    launch=order.launch,
                    limit=limit,
                    pace=self.pace,
                    resume_step=order.resume_step,
                )
            except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as fault:
                # What a person wrote into launch.simulated is read here for the first time.
                raise BackendRefused(f"launch.simulated can't be played: {fault}.") from fault
            members = [self._member(seat, nature.throughput) for seat in order.workers]
            return life_begun(key=order.key, nature=nature, members=members, resume_step=order.resume_step, sequence=order.sequence, now=millis(now))

        self._told("start", order.key, order.sequence, now, begin)

    def _member(self, seat: WorkerSeat, throughput: object) -> Member:
        speed = MILLION
        if throughput and self._type_of is not None and isinstance(throughput, dict):
            speed = int(throughput.get(self._type_of(seat.node), MILLION))
        return Member(
            seat.role, seat.index, seat.node, list(seat.gpus), list(seat.gpu_uuids), list(seat.mig_uuids), milli=seat.gpu_milli, speed=speed
        )

    def resize(
        self,
        *,
        key: str,
        sequence: int,
        add: Sequence[WorkerSeat],
        leave: Sequence[tuple[str, int]],
        now: datetime,
        order: StartOrder | None = None,
    ) -> None:
        def change(_: Turn, life: Life | None) -> Life:
            if life is None:
                raise NotFound(f"No run {key}.")
            life.resize(add=[self._member(seat, dict(life.nature.throughput)) for seat in add], leave=leave, now=millis(now))
            return life

        self._told("resize", key, sequence, now, change)

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        def change(_: Turn, life: Life | None) -> Life:
            if life is None:
                raise NotFound(f"No run {key}.")
            life.replace(workers, sequence, millis(now))
            return life

        self._told("replace", key, sequence, now, change)

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None:
        def tell(_: Turn, life: Life | None) -> Life:
            if life is None:
                raise NotFound(f"No run {key}.")
            if signal == Signal.TERMINATE:
                life.terminate(millis(now))
            else:
                life.checkpoint(millis(now))
            return life

        self._told("signal", key, sequence, now, tell)

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        def end(_: Turn, life: Life | None) -> Life:
            if life is None:
                return life_never_begun(key=key, sequence=sequence, now=millis(now))
            if force:
                life.kill(millis(now))
            else:
                life.terminate(millis(now))
            return life

        self._told("stop", key, sequence, now, end)

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """It ends no run because of its limit."""
        self._told("limit", key, sequence, now, lambda _, life: life)

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None:
        """Its GPUs are split as the inventory says, so there is nothing to do."""
        if self.faults.strikes("refuse", self.faults.refuses, now, "repartition", node, gpu, sequence):
            raise BackendError("The simulated back-end did not take the order.")

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        with self._turn() as turn:
            turn.fetch(keys)
            turn.remove([key for key in keys if (life := turn.get(key)) is not None and life.phase == Phase.ENDED])

    def give_up(self, *, keys: Sequence[str], now: datetime) -> None:
        """Nothing waits to begin: what still runs is ended as a stray."""

    def tidy(self) -> int:
        """What is forgotten is gone."""
        return 0

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        """There are no files."""
        return 0

    # Being asked

    def probe(self) -> None:
        """`observe` says whether it answers."""

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        with self._asked(now) as turn:
            seen = {life.key: seen_of(life) for life in self._moved(turn, now)}
            marks = {key: mark for key, mark in turn.marks().items() if key not in seen}
            # What nobody has touched since it was last looked at is as it was then.
            stale = [key for key, mark in marks.items() if key not in self._looked or self._looked[key][0] != mark]
            turn.fetch(stale)
            fresh = {key: (marks[key], seen_of(life)) for key in stale if (life := turn.get(key)) is not None}
            self._looked = {key: fresh.get(key) or self._looked[key] for key in marks if key in fresh or key in self._looked}
            seen |= {key: run for key, (_, run) in self._looked.items()}
            return self._shown([seen[key] for key in sorted(seen)], now)

    def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
        with self._asked(now) as turn:
            return self._shown([seen_of(life) for life in self._moved(turn, now)], now)

    @contextmanager
    def _asked(self, now: datetime) -> Iterator[Turn]:
        if self.faults.strikes("silent", self.faults.silent, now):
            raise BackendError("The simulated back-end does not answer.")
        with self._turn() as turn:
            yield turn

    def _moved(self, turn: Turn, now: datetime) -> Sequence[Life]:
        """Those whose moment has come, as they are now."""
        lives = turn.due(millis(now))
        for life in lives:
            life.advance(millis(now))
            # An ended one stays due until it is forgotten, so that nobody misses its end.
            turn.put(life, life.ended_at if life.phase == Phase.ENDED else life.next_at)
        return lives

    def _shown(self, runs: Iterable[SeenRun], now: datetime) -> tuple[SeenRun, ...]:
        return tuple(run for run in runs if not self.faults.strikes("hide", self.faults.hides, now, run.key))

    def next_event_at(self, *, now: datetime) -> datetime | None:
        due = self.store.next_due()
        return None if due is None else max(moment_of(due), now)

    def reach(self, *, key: str) -> Reach | None:
        return None

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        with self._turn() as turn:
            life = turn.get(key) or turn.past(key)
        member = next((one for one in life.members if one.name == (role, index)), None) if life is not None else None
        if life is None or member is None:
            raise NotFound(f"No log of {role} {index} of {key}.")
        until = millis(self._clock()) if self._clock is not None else life.progress.since
        written = log_text(life, index, until, ranks=max(1, len(member.gpus)) if life.nature.per_gpu else 1).encode()
        offset = max(0, len(written) + offset) if offset < 0 else offset
        part = whole_characters(written[offset : offset + limit]) if offset + limit < len(written) else written[offset:]
        return LogPart(offset, part, life.phase == Phase.ENDED and offset + len(part) >= len(written))

    # Playing the hardware's part

    def node_lost(self, *, node: str, now: datetime) -> None:
        """The node has gone dark, and all that ran on it with it."""
        with self._turn() as turn:
            for life in turn.on_node(node):
                if life.lose(lambda member: member.node == node, millis(now)):
                    turn.put(life, millis(now))


def seen_of(life: Life) -> SeenRun:
    state = STATES[Phase(life.phase)]
    is_asked = life.nature.ready is not None and state == RunState.RUNNING
    return SeenRun(
        key=life.key,
        sequence=life.sequence,
        state=state,
        workers=tuple(
            SeenWorker(
                _seat(member),
                RunState.ENDED if member.lost else RunState.STARTING if member.back_at is not None else state,
                life.exit_code if state == RunState.ENDED else None,
                ready=member.ready if is_asked and not member.lost else None,
                ready_since=None if not is_asked else moment_of((member.ready_at if member.ready else member.up_at) or life.began),
                ready_why="It still loads." if is_asked and not member.ready else "",
                began=member.began,
            )
            for member in life.members
        ),
        started_at=None if life.up_at is None else moment_of(life.up_at),
        ended_at=None if life.ended_at is None else moment_of(life.ended_at),
        exit_code=life.exit_code,
        why=life.why,
        node_lost=life.node_lost,
        checkpoints=tuple(
            SeenCheckpoint(save.step, f"simulated://{life.key}/{save.step}", save.shards, tuple(range(save.shards)), moment_of(save.at))
            for save in life.saves
        ),
    )


def _seat(member: Member) -> WorkerSeat:
    return WorkerSeat(member.role, member.index, member.node, tuple(member.gpus), tuple(member.uuids), tuple(member.migs), member.milli)


def log_text(life: Life, index: int, until: int, *, ranks: int = 1) -> str:
    """What a worker would have written by then. It only ever grows. Each of several ranks begins its lines with its number."""

    def line(at: int, words: str) -> str:
        text = f"{moment_of(at):%Y-%m-%d %H:%M:%S} [{index}] {words}\n"
        return text if ranks == 1 else "".join([f"[{rank}] {text}" for rank in range(ranks)])

    lines = [line(life.began, f"simulated run {life.key}: loading")]
    end = until if life.ended_at is None else min(life.ended_at, until)
    if life.up_at is not None:
        lines.append(line(life.up_at, "all workers are up"))
        pace = LOG_LINE // timedelta(milliseconds=1)
        lines += [line(at, f"minute {number}") for number, at in enumerate(range(life.up_at + pace, end + 1, pace), 1)]
    if life.ended_at is not None and life.ended_at <= until:
        lines.append(line(life.ended_at, f"ended with exit code {life.exit_code}. {life.why}".rstrip()))
    return "".join(lines)


class MemoryStore:
    """Lives as values of this process; for storms and tests. A turn that ends with a fault has changed nothing that was put in it."""

    def __init__(self) -> None:
        self.lives: dict[str, Life] = {}
        self.dues: dict[str, int] = {}
        self.over: dict[str, Life] = {}  # the newest last

    def turn(self) -> "MemoryTurn":
        return MemoryTurn(self)

    def next_due(self) -> int | None:
        return min(self.dues.values(), default=None)


class MemoryTurn:
    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.taken: dict[str, Life] = {}
        self.changes: dict[str, tuple[Life, int | None] | None] = {}
        self.over: dict[str, Life] = {}

    def __enter__(self) -> "MemoryTurn":
        return self

    def __exit__(self, *fault: object) -> None:
        if fault[0] is not None:
            return
        for key, change in self.changes.items():
            self.store.lives.pop(key, None)
            self.store.dues.pop(key, None)
            if change is not None:
                self.store.lives[key] = change[0]
                if change[1] is not None:
                    self.store.dues[key] = change[1]
        self.store.over.update(self.over)
        for key in [*self.store.over][: max(0, len(self.store.over) - LOGS_KEPT)]:
            del self.store.over[key]

    def fetch(self, keys: Sequence[str]) -> None:
        """All of them are at hand."""

    def get(self, key: str) -> Life | None:
        if key in self.changes:
            change = self.changes[key]
            return None if change is None else change[0]
        if key not in self.taken and key in self.store.lives:
            self.taken[key] = copy_of(self.store.lives[key])
        return self.taken.get(key)

    def _all(self, keys: Sequence[str]) -> list[Life]:
        return [life for key in sorted(keys) if (life := self.get(key)) is not None]

    def every(self) -> list[Life]:
        return self._all([*{**self.store.lives, **self.changes}])

    def marks(self) -> dict[str, Mark]:
        return {key: (life.sequence, self.store.dues.get(key), life.ended_at) for key, life in self.store.lives.items()}

    def due(self, now: int) -> Sequence[Life]:
        return self._all([key for key, due in self.store.dues.items() if due <= now])

    def on_node(self, node: str) -> Sequence[Life]:
        return [life for life in self.every() if life.phase != Phase.ENDED and any(member.node == node for member in life.members)]

    def put(self, life: Life, due: int | None) -> None:
        self.changes[life.key] = (life, due)

    def remove(self, keys: Sequence[str]) -> None:
        self.over |= {key: life for key in keys if (life := self.get(key)) is not None}
        self.changes.update(dict.fromkeys(keys))

    def past(self, key: str) -> Life | None:
        return self.store.over.get(key)


def copy_of(life: Life) -> Life:
    """Another life with the same past. What is never changed in place is shared."""
    return replace(
        life,
        members=[replace(member) for member in life.members],
        progress=replace(life.progress),
        saving=replace(life.saving) if life.saving else None,
        saves=list(life.saves),
    )
