"""How work progresses, wherever it is simulated: loading, computing at a speed, saving checkpoints, failing, ending.

`Progress` is the arithmetic of one job's work and serves `simulate` as it is. `Life` is a whole run of a job as a back-end has it: its workers,
what it was told and what becomes of it. Work is in millionths of a millisecond at speed 1.0, moments and lengths are milliseconds. Everything is a
function of its arguments, and what looks like chance is drawn from the job's own number, so a run that is asked twice gives the same answer.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from hashlib import blake2b
from math import exp, log
from typing import Any

MILLION = 1_000_000
HOUR = 3_600_000
LEAST_WORK = 1000
KEPT_SAVES = 3
READY_SECONDS = 8  # a worker needs so long until it can serve, where its job says nothing
EXIT_KILLED = 137  # as a shell tells it: 128 + the signal
EXIT_TERMINATED = 143


def drawn(*parts: object) -> float:
    """A number in [0, 1) that looks random and depends on nothing but what is given."""
    return int.from_bytes(blake2b(repr(parts).encode(), digest_size=7).digest(), "big") / (1 << 56)


@lru_cache(maxsize=65_536)
def seed_of(job: str) -> int:
    """The number from which all that is particular about a job is drawn."""
    return int(drawn(job) * (1 << 40))


def gang_rate(speeds: Iterable[int], least: int) -> int:
    """Millionths of the speed of `least` workers at speed 1.0. A gang goes at the pace of its slowest; more workers are proportionally faster."""
    every = list(speeds)
    return min(every) * len(every) // max(1, least) if every else 0


@dataclass(slots=True)
class Progress:
    """`done` is booked up to `since`, which lies ahead while the job still loads. Work that is None goes on until somebody ends it."""

    work: int | None
    done: int = 0
    rate: int = 0
    since: int = 0

    def book(self, now: int) -> None:
        if self.rate and now > self.since:
            self.done += (now - self.since) * self.rate
        self.since = max(self.since, now)

    def done_by(self, now: int) -> int:
        """What is done at an instant, without booking it."""
        return self.done + (now - self.since) * self.rate if self.rate and now > self.since else self.done

    def form(self, rate: int, ready: int) -> None:
        """New places: from `ready` on it computes at this rate."""
        self.rate, self.since = rate, ready

    @property
    def ends_at(self) -> int | None:
        return None if self.work is None else self.reaches(self.work)

    def reaches(self, work: int) -> int | None:
        """When so much will be done."""
        return self.since + max(0, -(-(work - self.done) // self.rate)) if self.rate else None

    def interrupt(self, now: int, *, saves: bool, interval: int | None) -> int:
        """Stop computing. What no checkpoint holds is lost, unless there is time to save one now. Returns the work that is lost."""
        before = self.done
        self.book(now)
        if saves:
            return 0
        ran, kept = self.done - before, 0
        if interval and self.rate:
            span = interval * self.rate
            kept = ran // span * span
        self.done -= ran - kept
        return ran - kept


class Rhythm(StrEnum):
    """How a kind of work uses its GPUs over time; `telemetry` draws each."""

    STEADY = "steady"  # training: high, with dips at checkpoints
    STARVED = "starved"  # waits for its data half of the time
    SERVING = "serving"  # follows the day
    TRIAL = "trial"  # short runs of middling use
    BURSTS = "bursts"  # a person at a notebook
    IDLE = "idle"  # taken and not used
    WAVES = "waves"  # simulate, then render


@dataclass(frozen=True, slots=True)
class Nature:
    """What is particular about a job, wherever it runs."""

    seed: int
    work: int | None
    least: int
    load: int
    interval: int | None = None  # between checkpoints; None: it saves none
    save: int = 0
    restore: int = 0
    fails_at: int | None = None  # so much work done, and it ends with exit code 1
    fails_with: str = ""
    stubborn: bool = False  # does not leave when it is asked to
    throughput: Mapping[str, int] = field(default_factory=dict)  # millionths by GPU type
    rhythm: str = Rhythm.STARVED
    busy: tuple[float, float] = (0.30, 0.60)
    memory: tuple[float, float] = (0.30, 0.70)
    per_gpu: bool = False  # a process for each GPU of a worker, as its log shows
    ready: int | None = None  # so long after it is up a worker can serve, where it is asked; None: it is not asked


@dataclass(frozen=True, slots=True)
class Pace:
    """How long a back-end takes to bring a gang up, where the job does not say."""

    load: int = 2_000
    spread: int = 0
    per_worker: int = 0


def nature_of(
    *, job: str, key: str, spec: Mapping[str, Any], launch: Mapping[str, Any], limit: int | None, pace: Pace, resume_step: int = 0
) -> Nature:
    """From what a job says about itself: its scenario form, and `launch.simulated` for what only a play needs to know.

    `simulated` may hold load_s, ready_s, fails (a probability), fails_with (sentences to choose from), stubborn, endless, rhythm, busy and memory
    (ranges).
    How much work it is belongs to the job; whether it fails, to the attempt, so that a retry has another chance.
    """
    play = launch.get("simulated") or {}
    checkpoint = spec.get("checkpoint") or {}
    least = max(1, sum(int(role.get("min", 1)) for role in spec.get("roles") or ()))
    work = _work(job, spec, endless=bool(play.get("endless")), limit=limit)
    sentences = play.get("fails_with") or ["Worker 0 ended with exit code 1."]
    load = _millis(play.get("load_s"))
    low, high = play.get("busy") or (0.30, 0.60)
    little, much = play.get("memory") or (0.30, 0.70)
    ahead = (work or 0) - resume_step * MILLION
    fails = ahead > 0 and drawn(key, "fails") < float(play.get("fails", 0))
    return Nature(
        seed=seed_of(job),
        work=work,
        least=least,
        load=pace.load + int(drawn(job, "load") * pace.spread) + pace.per_worker * least if load is None else load,
        interval=_millis(checkpoint.get("interval_s")) or None,
        save=_millis(checkpoint.get("save_s")) or 0,
        restore=_millis(checkpoint.get("restore_s")) or 0,
        fails_at=resume_step * MILLION + int(ahead * drawn(key, "when")) if fails else None,
        fails_with=str(sentences[int(drawn(key, "why") * len(sentences))]) if fails else "",
        stubborn=bool(play.get("stubborn")),
        throughput={name: int(speed * MILLION) for name, speed in (spec.get("throughput") or {}).items()},
        rhythm=Rhythm(play.get("rhythm", Rhythm.STARVED)),
        busy=(float(low), float(high)),
        memory=(float(little), float(much)),
        per_gpu=launch.get("per") == "gpu",
        ready=_millis(play.get("ready_s", READY_SECONDS)) if launch.get("ready") else None,
    )


def _millis(seconds: Any) -> int | None:
    return None if seconds is None else int(float(seconds) * 1000)


def _work(job: str, spec: Mapping[str, Any], *, endless: bool, limit: int | None) -> int | None:
    """As stated; else drawn around what the job may take: half of all need less than two thirds of it."""
    if endless:
        return None
    stated = _millis(spec.get("work_s"))
    if stated is not None:
        return stated * MILLION
    odds = min(max(drawn(job, "work"), 1e-9), 1 - 1e-9)
    # A logistic spread of the logarithm: as lognormal as a play needs, and drawn with one number.
    stretch = exp(0.28 * log(odds / (1 - odds)))
    return max(LEAST_WORK, int(min(limit or HOUR, HOUR) * 0.66 * stretch)) * MILLION


class Phase(StrEnum):
    LOADING = "loading"
    COMPUTING = "computing"
    BROKEN = "broken"  # too few of its workers are left; those that are wait for others to join
    LEAVING = "leaving"
    ENDED = "ended"


@dataclass(slots=True)
class Member:
    """A worker of a run where it sits."""

    role: str
    index: int
    node: str
    gpus: list[int] = field(default_factory=list)
    uuids: list[str] = field(default_factory=list)
    migs: list[str] = field(default_factory=list)
    milli: int = 1000
    speed: int = MILLION
    lost: bool = False
    ready_at: int | None = None  # it can serve from then on
    ready: bool = False
    began: int = 0  # number of the order that replaced it; 0: none
    back_at: int | None = None  # and until when it starts
    up_at: int | None = None  # of one that is asked whether it can serve

    @property
    def name(self) -> tuple[str, int]:
        return self.role, self.index


@dataclass(slots=True)
class Save:
    """A checkpoint on its way or complete. `done` is the work that it holds."""

    done: int
    at: int  # complete then
    shards: int

    @property
    def step(self) -> int:
        """One a millisecond of work at speed 1.0."""
        return self.done // MILLION


@dataclass(slots=True)
class Life:
    """One run from its start to its end. Only `advance`, and what it is told, change it."""

    key: str
    nature: Nature
    members: list[Member]
    progress: Progress
    sequence: int = 0
    phase: str = Phase.LOADING
    began: int = 0
    until: int | None = None  # the phase ends then by itself
    up_at: int | None = None  # all workers up, for the first time
    ended_at: int | None = None
    exit_code: int | None = None
    why: str = ""
    node_lost: bool = False
    saving: Save | None = None
    saves: list[Save] = field(default_factory=list)
    saved: int = 0  # work that survives the gang
    next_save: int | None = None

    # What is going to happen by itself

    @property
    def next_at(self) -> int | None:
        """The next moment at which something happens, None where nothing ever will."""
        moments = [moment for moment, _ in self._ahead()]
        return min(moments, default=None)

    def _ahead(self) -> list[tuple[int, Callable[[int], None]]]:
        """Events ahead with their moments; the earlier in the list, the earlier of those at one moment."""
        if self.phase == Phase.ENDED:
            return []
        found: list[tuple[int, Callable[[int], None]]] = []
        if self.saving:
            found.append((self.saving.at, self._saved))
        if self.nature.ready is not None:
            found += [(member.ready_at, self._be_ready) for member in self.present if member.ready_at is not None and not member.ready]
        found += [(member.back_at, self._come_back) for member in self.members if member.back_at is not None and not member.lost]
        if self.until is not None:
            found.append((self.until, self._come_up if self.phase == Phase.LOADING else self._gone))
        if self.phase == Phase.COMPUTING:
            if self.nature.fails_at is not None and (moment := self.progress.reaches(self.nature.fails_at)) is not None:
                found.append((moment, self._fail))
            if (moment := self.progress.ends_at) is not None:
                found.append((moment, self._complete))
            if self.next_save is not None and self.saving is None:
                found.append((self.next_save, self._begin_save))
        return found

    def advance(self, now: int) -> bool:
        """Live up to `now`. Says whether anything happened."""
        happened = False
        while ahead := self._ahead():
            moment, act = min(ahead, key=lambda event: event[0])
            if moment > now:
                break
            act(moment)
            happened = True
        return happened

    def _come_up(self, now: int) -> None:
        self.phase, self.until = Phase.COMPUTING, None
        self.up_at = now if self.up_at is None else self.up_at
        self.progress.since = now
        self._plan_save(now)
        self._prepare(self.present, now)

    def _prepare(self, members: Iterable[Member], now: int) -> None:
        """They are up, and can serve after a while."""
        for member in members:
            if member.ready_at is None and self.nature.ready is not None:
                member.up_at, member.ready_at = now, now + self.nature.ready

    def replace(self, workers: Iterable[tuple[str, int]], sequence: int, now: int) -> None:
        """Members that are started anew in their place; the others go on."""
        self.advance(now)
        wanted = set(workers)
        for member in self.present if self.phase == Phase.COMPUTING else ():
            if member.name in wanted and member.began < sequence:
                member.began, member.back_at = sequence, now + self.nature.load
                member.ready, member.ready_at, member.up_at = False, None, now
        self.advance(now)

    def _come_back(self, now: int) -> None:
        back = [member for member in self.present if member.back_at is not None and member.back_at <= now]
        for member in back:
            member.back_at = None
        self._prepare(back, now)

    def _be_ready(self, now: int) -> None:
        for member in self.present:
            member.ready = member.ready or (member.ready_at is not None and member.ready_at <= now)

    def _plan_save(self, now: int) -> None:
        self.next_save = now + self.nature.interval if self.nature.interval else None

    def _begin_save(self, now: int) -> None:
        self.progress.book(now)
        self.saving = Save(self.progress.done, now + self.nature.save, len(self.present))
        self._plan_save(now)
        if not self.nature.save:
            self._saved(now)

    def _saved(self, now: int) -> None:
        assert self.saving is not None
        self.saved, self.saves = self.saving.done, [*self.saves, self.saving][-KEPT_SAVES:]
        self.saving = None

    def _complete(self, now: int) -> None:
        self.progress.book(now)
        self._end(now, 0, "")

    def _fail(self, now: int) -> None:
        self.progress.book(now)
        self._end(now, 1, self.nature.fails_with)

    def _gone(self, now: int) -> None:
        self._end(now, EXIT_TERMINATED, "Left when it was asked to.")

    def _end(self, now: int, code: int | None, why: str) -> None:
        self.phase, self.until, self.ended_at, self.exit_code, self.why = Phase.ENDED, None, now, code, why
        self.saving = self.next_save = None

    # What is done to it

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members if not member.lost]

    def checkpoint(self, now: int) -> None:
        """Asked to save now and go on."""
        self.advance(now)
        if self.phase == Phase.COMPUTING and self.nature.interval and self.saving is None:
            self._begin_save(now)

    def terminate(self, now: int) -> None:
        """Asked to leave: what computes and can saves first."""
        self.advance(now)
        if self.phase in (Phase.LEAVING, Phase.ENDED) or self.nature.stubborn:
            return
        if self.phase == Phase.COMPUTING and self.nature.interval:
            self._begin_save(now)
            leave = self.saving.at if self.saving else now
        else:
            leave = now
        self.progress.book(now)
        self.phase, self.until, self.progress.rate, self.next_save = Phase.LEAVING, leave, 0, None
        self.advance(now)

    def kill(self, now: int) -> None:
        self.advance(now)
        if self.phase != Phase.ENDED:
            self._end(now, EXIT_KILLED, "Killed.")

    def lose(self, gone: Callable[[Member], bool], now: int) -> bool:
        """The hardware below some of its workers has gone. What is left goes on from the last checkpoint if it is enough, else it waits."""
        self.advance(now)
        struck = [member for member in self.present if gone(member)]
        if self.phase == Phase.ENDED or not struck:
            return False
        for member in struck:
            member.lost = True
        where = ", ".join(sorted({member.node for member in struck}))
        if not self.present:
            self._end(now, None, f"{where} stopped answering.")
            self.node_lost = True
        elif self.phase != Phase.LEAVING:
            self._set_back(now)
        self.advance(now)
        return True

    def resize(self, *, add: Sequence[Member], leave: Iterable[tuple[str, int]], now: int) -> None:
        """Members that join and members that go. A gang that lost somebody takes up its work again once it is whole."""
        self.advance(now)
        if self.phase in (Phase.LEAVING, Phase.ENDED):
            return
        going, joining = set(leave), {member.name for member in add}
        here = {member.name for member in self.present}
        if not (going & here) and joining <= here:
            return
        broken = self.phase == Phase.BROKEN
        self.members = [member for member in self.members if member.name not in going and not (member.lost and member.name in joining)]
        self.members += [member for member in add if member.name not in here]
        if not self.present:
            self._end(now, EXIT_TERMINATED, "All of its workers were asked to leave.")
        elif broken:
            self._set_back(now)
        elif self.phase == Phase.COMPUTING:
            self.progress.book(now)
            self.progress.form(self.rate, now)
            self._prepare(self.present, now)
        self.advance(now)

    @property
    def rate(self) -> int:
        return gang_rate([member.speed for member in self.present], self.nature.least)

    def _set_back(self, now: int) -> None:
        """Back to the last checkpoint: at once if enough workers are left, else when others have joined."""
        self.progress.book(now)
        self.progress.done, self.saving, self.next_save = self.saved, None, None
        if len(self.present) < self.nature.least:
            self.phase, self.until, self.progress.rate = Phase.BROKEN, None, 0
        else:
            ready = now + self.nature.restore
            self.phase, self.until = Phase.LOADING, ready
            self.progress.form(self.rate, ready)

    # As it is kept

    def document(self) -> dict[str, Any]:
        """As `dataclasses.asdict` has it, in a fifth of the time: every run is written at each of its steps."""
        held = _columns(self)
        held["nature"], held["progress"] = _columns(self.nature), _columns(self.progress)
        held["members"] = [_columns(member) for member in self.members]
        held["saving"] = _columns(self.saving) if self.saving else None
        held["saves"] = [_columns(save) for save in self.saves]
        return held

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "Life":
        held = dict(document)
        nature = dict(held["nature"])
        nature["busy"], nature["memory"] = tuple(nature["busy"]), tuple(nature["memory"])
        held["nature"] = Nature(**nature)
        held["members"] = [Member(**member) for member in held["members"]]
        held["progress"] = Progress(**held["progress"])
        held["saving"] = Save(**held["saving"]) if held["saving"] else None
        held["saves"] = [Save(**save) for save in held["saves"]]
        return cls(**held)


def _columns(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


def life_never_begun(*, key: str, sequence: int, now: int) -> Life:
    """A run that was ended before it was ever begun: it keeps the place, so that an order to begin which comes late changes nothing."""
    nature = Nature(seed=0, work=0, least=1, load=0)
    life = Life(key, nature, [], Progress(0), sequence=sequence, phase=Phase.ENDED, began=now, ended_at=now)
    life.exit_code, life.why = EXIT_TERMINATED, "Ended before it was begun."
    return life


def life_begun(*, key: str, nature: Nature, members: Sequence[Member], resume_step: int, sequence: int, now: int) -> Life:
    """A run that starts now: it loads, restores what it resumes from, and then computes."""
    resumed = resume_step * MILLION
    ready = now + nature.load + (nature.restore if resumed else 0)
    life = Life(key, nature, list(members), Progress(nature.work, resumed), sequence=sequence, began=now, until=ready, saved=resumed)
    life.progress.form(life.rate, ready)
    life.advance(now)
    return life
