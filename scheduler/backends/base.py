"""What carries decisions out: the protocol that every back-end keeps (JOB-2).

A back-end is told only what is committed, may be told the same thing twice, and is asked what truly runs. It knows a run by its key
(`attempt_key`) and each order by a number that grows within the run: an order that it has done, or that is older than one it has done, changes
nothing. It never decides anything and never writes to the scheduler's tables; what happened is told by `observe`.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol


class BackendError(Exception):
    """The back-end could not do it now: it does not answer, or says no. The order is tried again."""


class BackendSilent(BackendError):
    """It does not answer: whatever else it were told now would wait as long."""


class FolderSilent(BackendSilent):
    """A folder hangs: whatever else is asked of it now would hang as well."""

    def __init__(self, words: str, folder: Path) -> None:
        super().__init__(words)
        self.folder = folder


class BackendRefused(BackendError):
    """The back-end will never do this, in words for the job's owner. The order is not tried again."""


class NotFound(BackendError):
    """It knows no such run, or has no such log any more."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a back-end can do. The engine plans with it, and submission refuses with it what could never run."""

    pins_gpus: bool = True  # False: the plan's GPU indices are a wish, and the reported ones are adopted
    resizes_in_place: bool = True  # False: a resize is checkpoint, stop and start
    resizes_stated: bool = False  # and this: unless the job states that it can be resized in place (`launch.in_place`)
    creates_mig: bool = True
    runs_mps: bool = True
    runs_timeslices: bool = True
    runs_images: bool = True  # False: it starts what its nodes have themselves
    adopts_strays: bool = True
    spans_clusters: bool = False  # can run a part of a job whose other parts run on other clusters
    latency_ms: int = 1000  # from being told to the first process


@dataclass(frozen=True, slots=True)
class WorkerSeat:
    """One worker of a gang and the GPUs it is to use, or does use."""

    role: str
    index: int
    node: str
    gpus: tuple[int, ...] = ()  # indices on the node
    gpu_uuids: tuple[str, ...] = ()
    mig_uuids: tuple[str, ...] = ()
    gpu_milli: int = 1000  # of each GPU
    mig: tuple[str, ...] = ()  # profiles of its MIG instances, one for each of `gpus`
    sharing: str = ""  # of a share: how (mps, timeslice)


class Signal(StrEnum):
    CHECKPOINT = "checkpoint"  # save now, go on
    WARN = "warn"  # the time limit is near
    TERMINATE = "terminate"  # save and leave; the grace runs


@dataclass(frozen=True, slots=True)
class StartOrder:
    key: str
    sequence: int
    job: str  # public id
    attempt: int  # number within the job
    workers: tuple[WorkerSeat, ...]
    launch: dict[str, Any]  # Job.launch, secrets still by name
    spec: dict[str, Any]  # Job.spec: what a model of progress needs to know
    token: str  # with which its ranks report checkpoints
    owner: str = ""
    team: str = ""  # path of the job's queue: what is kept from other teams, and the secrets that it may have
    resume_from: str = ""  # location of the checkpoint it resumes from
    resume_step: int = 0
    grace_seconds: int = 30
    limit_seconds: int | None = None
    serves: bool = False  # a service
    access_token: str = ""  # that its service may ask visitors for; empty: it states no port

    @property
    def service(self) -> dict[str, str]:
        """What the first worker is told of the port that it is to listen on."""
        if not self.access_token:
            return {}
        return {"GPUFLEET_PORT": str(self.launch["port"]), "GPUFLEET_ACCESS_TOKEN": self.access_token}


class RunState(StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class SeenWorker:
    seat: WorkerSeat
    state: RunState
    exit_code: int | None = None
    # What it has where the back-end numbers the parts of a node and not its GPUs: each the MIG profile, empty of a whole GPU, and its number among
    # those of the node. It says more than the seat's `gpus`.
    parts: tuple[tuple[str, int], ...] = ()
    # Of one whose job states a probe (`launch.ready`), where the back-end asks it: whether it can serve, since when, and why not.
    ready: bool | None = None
    ready_since: datetime | None = None
    ready_why: str = ""
    began: int = 0  # number of the order that replaced it in its place last; 0: none


@dataclass(frozen=True, slots=True)
class SeenCheckpoint:
    step: int
    location: str
    shards_expected: int
    shards: tuple[int, ...]  # numbers of those that are there
    at: datetime


@dataclass(frozen=True, slots=True)
class OldCheckpoint:
    """One that no attempt resumes from any more."""

    job: str  # public id
    attempt: int  # number within the job
    step: int
    location: str  # as it was told


@dataclass(frozen=True, slots=True)
class SeenSteps:
    """What a file says of step times (docs/job-processes.md). `seconds`: by rank."""

    at: datetime  # when it was written
    ranks: int
    seconds: tuple[tuple[int, float], ...]
    flops: float | None = None
    precision: str = "bf16"


@dataclass(frozen=True, slots=True)
class Refusal:
    """A node that did not start a run, as it has not what was promised. `code` is one of docs/reasons.md."""

    node: str
    code: str
    words: str

    @property
    def told(self) -> str:
        return f"{self.node} refused it ({self.code}): {self.words}"


@dataclass(frozen=True, slots=True)
class SeenRun:
    """One run as it truly is. An ended run is told until it is forgotten, so that nobody misses its end."""

    key: str
    sequence: int  # of the newest order it has carried out
    state: RunState
    workers: tuple[SeenWorker, ...]
    started_at: datetime | None = None  # all workers up
    ended_at: datetime | None = None
    exit_code: int | None = None  # 0 only if every worker ended with 0
    why: str = ""  # for the job's owner: which worker, which signal, which node
    limit_over: bool = False  # its back-end ended it because its time was over
    waited_for: str = ""  # of one that ended before it was started: what kept it from that
    is_one_start: bool = False  # its workers start together: where it is later than was told before, that start did not hold
    node_lost: bool = False  # it ended by the hardware's fault, not by its own
    end_is_told: bool = False  # when it ended is certain, also of one that was lost: nothing of it went on unseen
    refusals: tuple[Refusal, ...] = ()  # nodes that are not to be placed on until somebody has looked at them
    checkpoints: tuple[SeenCheckpoint, ...] = field(default=())
    steps: tuple[SeenSteps, ...] = ()  # of a run that is not over


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of a log as they were written, from `offset` on: behind the one that was asked for where what is older has been given up."""

    offset: int
    data: bytes
    ended: bool

    @property
    def text(self) -> str:
        return self.data.decode(errors="replace")

    @property
    def next_offset(self) -> int:
        return self.offset + len(self.data)


def whole_characters(data: bytes) -> bytes:
    """Without the beginning of a character at its end, so that the next part has all of it."""
    for back in range(1, min(4, len(data))):
        if data[-back] & 0xC0 == 0x80:  # it goes on with what came before
            continue
        length = next((size for size, mask, mark in _CHARACTERS if data[-back] & mask == mark), 1)
        return data[:-back] if length > back else data
    return data


_CHARACTERS = ((2, 0xE0, 0xC0), (3, 0xF0, 0xE0), (4, 0xF8, 0xF0))


@dataclass(frozen=True, slots=True)
class Reach:
    """How people get at a worker: the machine that it runs on, and the command that opens a shell in it, where there is one."""

    host: str
    shell: str = ""
    user: str = ""  # whom it runs as
    forward: str = ""  # a command that forwards ports of it, which are written behind it; empty: ssh to its host does


class Backend(Protocol):
    """Every method may raise `BackendError`; none blocks for longer than a few seconds; `now` is the loop's clock."""

    @property
    def facts(self) -> Facts: ...

    def probe(self) -> None:
        """Whether it answers again: asked now and then of one that was silent, before anything else. `BackendError` where it does not, within a
        second or so."""
        ...

    def together(self, keys: Sequence[str] = ()) -> AbstractContextManager[None]:
        """Calls inside belong together, which may be cheaper; `keys` are the runs that they are about, as far as is known.

        It may not be told anything until the end of the block, and all may be told again.
        """
        ...

    def announce(self, orders: Sequence[StartOrder], *, now: datetime) -> None:
        """Runs that are to begin, told at the begin of a block of `together`: what is cheaper for all at once is done here. `start` of each
        follows in the block, and raises what went wrong with it."""
        ...

    def start(self, order: StartOrder, *, now: datetime) -> None: ...

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
        """Workers to add, and (role, index) of those that are to go. `order`: what those who join are told, with all workers that the run is to have.

        A worker to add may take the place of one that was lost.
        """
        ...

    def replace(self, *, key: str, sequence: int, workers: Sequence[tuple[str, int]], now: datetime, order: StartOrder) -> None:
        """Workers of a run that goes on are asked to leave and begun anew in their place: (role, index) of each. `order` is what they are told now.

        Until the last has been begun it raises `BackendError`, and is told again; `SeenWorker.began` then has the number of the order.
        """
        ...

    def signal(self, *, key: str, sequence: int, signal: Signal, now: datetime) -> None: ...

    def stop(self, *, key: str, sequence: int, force: bool, now: datetime) -> None:
        """End it: asked to leave, or killed. A run that has ended is no error; one that it does not know is remembered as ended, so that an older
        order which comes late does not begin it."""
        ...

    def limit(self, *, key: str, sequence: int, seconds: int | None, now: datetime) -> None:
        """The time limit of its job is another one now. The scheduler ends what is past it: this is for a back-end that would end it by itself.

        `BackendRefused`: it will end the run at a time of its own.
        """
        ...

    def repartition(self, *, node: str, gpu: int, instances: Sequence[tuple[str, int]], sequence: int, now: datetime) -> None: ...

    def observe(self, *, now: datetime) -> tuple[SeenRun, ...]:
        """All that runs here or has ended and is not forgotten, by key."""
        ...

    def news(self, *, now: datetime) -> tuple[SeenRun, ...]:
        """Those of `observe` that something may have happened to since they were last told; ended ones until they are forgotten.

        Cheap, so that it can be asked every second. Whatever it misses is seen by the next `observe`.
        """
        ...

    def forget(self, *, keys: Sequence[str], now: datetime) -> None:
        """Their ends have been written down."""
        ...

    def give_up(self, *, keys: Sequence[str], now: datetime) -> None:
        """These runs are over though it does not answer, and it is not asked now: should it answer again, none of them begins any more."""
        ...

    def tidy(self) -> int:
        """Give up what it keeps of forgotten runs beyond its bounds, the oldest first. Returns of how many runs. Asked for now and then."""
        ...

    def delete_checkpoint(self, old: OldCheckpoint) -> int:
        """Delete its files, where they lie in the folder that its attempt was given. Returns the bytes that became free; 0 where nothing is left, or
        it lies elsewhere. Never asked within a tick."""
        ...

    def next_event_at(self, *, now: datetime) -> datetime | None:
        """When something is known to happen by itself; None: nothing is known, ask now and then."""
        ...

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        """At most `limit` bytes of what a worker wrote, from `offset` on; a negative one counts from the end of what there is."""
        ...

    def reach(self, *, key: str) -> Reach | None:
        """The first worker of a run that goes on; None: there is no such run, or nothing real that could be reached."""
        ...


# What `Order.payload` says, by kind. Where a worker sits is not repeated in it: a start and a resize read the attempt's open placements when they are
# sent, so an order never speaks of GPUs that somebody else has meanwhile.
#   start        {}
#   resize       {"add": [[role, index], …], "leave": [[role, index], …]}
#   replace      {"workers": [[role, index], …]}
#   signal       {"signal": one of Signal}
#   stop         {"force": true or false}
#   limit        {"seconds": the time limit, or null}
#   repartition  {"node": name, "gpu": index, "instances": [[profile, start], …]}


def attempt_key(*, job: str, attempt: int) -> str:
    """`j-17.2`: the second attempt of job j-17. Never reused, and readable in a process list."""
    return f"{job}.{attempt}"
