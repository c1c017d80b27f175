"""What a job's workers wrote, as its back-end has it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import inf

from django.db.models import Count

from gpufleet.core.faults import Missing
from scheduler.backends.base import BackendError, LogPart, NotFound, attempt_key
from scheduler.backends.registry import backend_for
from scheduler.models import Attempt, Cluster, Job, Placement
from scheduler.selectors.log_ranks import AHEAD, RankPart, rank_part

# Of one answer. A reader that wants more asks again from `next_offset`.
MOST_BYTES = 256 * 1024


class LogState(StrEnum):
    """Why there is text, or none."""

    TEXT = "text"
    NOT_STARTED = "not_started"
    HELD_NOTHING = "held_nothing"
    EMPTY = "empty"
    GONE = "gone"
    UNREACHABLE = "unreachable"


@dataclass(frozen=True, slots=True)
class Writer:
    """A worker that wrote, or may yet write. Its ranks are `ranks` in the gang, as their variable RANK says."""

    role: str
    index: int
    ranks: range


@dataclass(frozen=True, slots=True)
class Log:
    """A part of a worker's log, from `offset` on; only what `rank` wrote where one was asked for. `note` says why there is no text where there
    should be some; `ended`: nothing will be added."""

    attempt: int
    role: str
    index: int
    rank: int | None
    text: str
    offset: int
    next_offset: int
    ended: bool
    state: LogState
    note: str = ""


@dataclass(frozen=True, slots=True)
class Unread:
    """Nothing could be read, and why."""

    state: LogState
    note: str
    ended: bool


@dataclass(frozen=True, slots=True)
class LogSource:
    """Where one worker's log is read, part by part. `local`: only lines of this rank of the worker are asked for."""

    attempt: int
    role: str
    index: int
    over: bool
    read: Callable[[int, int], LogPart | Unread]  # offset, negative ones from the end, and how many bytes
    rank: int | None = None
    local: int | None = None

    @property
    def named(self) -> tuple[int, str, int, int | None]:
        return self.attempt, self.role, self.index, self.rank

    def part(self, offset: int, limit: int) -> LogPart | RankPart | Unread:
        if self.local is None:
            return self.read(offset, limit)
        return rank_part(self.read, local=self.local, offset=offset, limit=min(limit, MOST_BYTES - AHEAD), over=self.over)


def job_writers(job: Job, attempt: Attempt) -> list[Writer]:
    """The workers of an attempt in the order of their ranks: one each, or one for each of its GPUs where the job starts a process for each."""
    rows = Placement.objects.filter(attempt=attempt).order_by().values_list("role", "worker", "until").annotate(gpus=Count("gpu"))
    held: dict[tuple[str, int], tuple[float, int]] = {}  # what it held last: GPUs that a back-end chose anew have rows of their own
    for role, index, until, gpus in rows:
        latest = (inf if until is None else until.timestamp(), gpus)
        held[role, index] = max(held.get((role, index), latest), latest)
    per_gpu = job.launch.get("per") == "gpu"
    writers: list[Writer] = []
    first = 0
    for (role, index), (_, gpus) in sorted(held.items()):
        ranks = range(first, first + (max(1, gpus) if per_gpu else 1))
        writers.append(Writer(role, index, ranks))
        first = ranks.stop
    return writers


def job_log(job: Job, *, attempt: int | None, role: str, index: int, offset: int, limit: int, rank: int | None = None) -> Log:
    """A part of what one worker of an attempt wrote, or of it what one rank wrote; of the latest attempt and the first role where none is named.

    Offsets are those of the worker's log: a part may have no text of the rank, and the next one some.
    """
    source = log_source(job, attempt=attempt, role=role, index=index, rank=rank)
    part = source.part(offset, limit)
    if isinstance(part, Unread):
        start = max(offset, 0)
        return Log(*source.named, "", start, start, part.ended, part.state, part.note)
    # Whoever wrote can write no more once the attempt is over, and everything that was written has been read.
    ended = part.ended or (source.over and part.next_offset == part.offset)
    return Log(*source.named, part.text, part.offset, part.next_offset, ended, *nothing_written(part, ended))


def nothing_written(part: LogPart | RankPart, ended: bool) -> tuple[LogState, str]:
    """How things stand with what could be read, and in words where it is nothing at all."""
    if part.next_offset:
        return LogState.TEXT, ""
    return LogState.EMPTY, "It wrote nothing." if ended else "It has written nothing yet."


def log_source(job: Job, *, attempt: int | None, role: str, index: int, rank: int | None = None) -> LogSource:
    """What is common to all parts of a log, looked up once. A rank names its worker."""
    run = _attempt(job, attempt)
    if run is None:
        if attempt is not None:
            raise Missing(f"{job.public_id} had no attempt {attempt}.")
        ended = job.ended_at is not None
        never = Unread(LogState.NOT_STARTED, "It ended without having been started." if ended else "It has not been started yet.", ended)
        return LogSource(0, role, index, ended, lambda offset, limit: never, rank)
    over = run.ended_at is not None
    where = Cluster.objects.filter(nodes__placements__attempt=run).first()
    if where is None:
        nothing = Unread(LogState.HELD_NOTHING, "It held nothing, so nothing was written.", over)
        return LogSource(run.number, role, index, over, lambda offset, limit: nothing, rank)
    local = None
    if rank is None:
        role = _role_of(job, run, role, index)
    else:
        writer = _writer_of(job, run, rank)
        role, index = writer.role, writer.index
        local = writer.ranks.index(rank) if len(writer.ranks) > 1 else None
    key = attempt_key(job=job.public_id, attempt=run.number)

    def read(offset: int, limit: int) -> LogPart | Unread:
        try:
            return backend_for(where).logs(key=key, role=role, index=index, offset=offset, limit=min(limit, MOST_BYTES))
        except NotFound:
            if over:
                return Unread(LogState.GONE, f"The log is no longer kept: the back-end of {where.name} deletes logs of finished runs.", True)
            return Unread(LogState.EMPTY, "It has written nothing yet.", False)
        except BackendError as fault:
            # Perhaps later: whoever follows it goes on asking.
            return Unread(LogState.UNREACHABLE, f"The back-end of {where.name} can't give it now: {fault}", False)

    return LogSource(run.number, role, index, over, read, rank, local)


def _attempt(job: Job, number: int | None) -> Attempt | None:
    attempts = job.attempts.order_by("-number")
    return (attempts if number is None else attempts.filter(number=number)).first()


def _role_of(job: Job, attempt: Attempt, role: str, index: int) -> str:
    """The role that was asked for, or the first one with such a worker."""
    rows = Placement.objects.filter(attempt=attempt, worker=index, **({"role": role} if role else {}))
    found: str | None = rows.order_by("role").values_list("role", flat=True).first()
    if found is None:
        raise Missing(f"Attempt {attempt.number} of {job.public_id} had no {role or 'worker'} {index}; it had {_told(job_writers(job, attempt))}.")
    return found


def _writer_of(job: Job, attempt: Attempt, rank: int) -> Writer:
    writers = job_writers(job, attempt)
    found = next((writer for writer in writers if rank in writer.ranks), None)
    if found is None:
        last = writers[-1].ranks.stop - 1
        raise Missing(f"Attempt {attempt.number} of {job.public_id} had no rank {rank}; it had {f'ranks 0 to {last}' if last else 'rank 0 alone'}.")
    return found


def _told(writers: Sequence[Writer]) -> str:
    """`driver 0 and worker 0 to 7`."""
    roles: dict[str, list[int]] = {}
    for writer in writers:
        roles.setdefault(writer.role, []).append(writer.index)
    return " and ".join(f"{role} {places[0]}" + (f" to {places[-1]}" if len(places) > 1 else "") for role, places in roles.items())
