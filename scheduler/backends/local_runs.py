"""A local run as it is kept in its folder, and as the files there and the machine's processes show its workers."""

import contextlib
import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler.backends.base import BackendRefused, LogPart, Refusal, RunState, SeenRun, StartOrder, WorkerSeat, whole_characters
from scheduler.backends.local_launch import free_port
from scheduler.backends.supervising import processes
from scheduler.backends.supervising.files import write_whole

ROLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
# A supervisor that has not written its state so long after it was started never will.
COME_UP = timedelta(seconds=20)
# A worker that somebody kills so often in one run is no victim of the machine: then it has failed, as any other that ends so.
MOST_KILLED = 3
# Times of files lie so far back at most: some file systems keep whole seconds, others the moment of the kernel's last tick.
FILE_CLOCK = timedelta(seconds=1)
# A worker that fails so soon after another was lost could not go on without it: the loss is to blame, and not the job.
REFORMS = timedelta(seconds=120)
USR1, TERM, KILL = int(signal.SIGUSR1), int(signal.SIGTERM), int(signal.SIGKILL)


@dataclass(slots=True)
class Run:
    """What is known of a run besides its workers' own files."""

    key: str
    sequence: int
    at: str
    workers: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: str = ""
    stopping: str = ""  # since when it has been asked to leave
    term_at: str = ""  # and when it is told so more clearly
    killed: bool = False
    uid: int | None = None  # that nobody but this job has
    reformed: str = ""  # when one was last replaced or asked to leave

    @property
    def never_begun(self) -> bool:
        return not self.workers

    @property
    def in_place(self) -> bool:
        """Whether it is resized in place, and goes on without a worker that was lost."""
        return any(worker.get("in_place") for worker in self.workers)


@dataclass(frozen=True, slots=True)
class Look:
    """A worker as its files and the machine's processes show it."""

    state: RunState
    exit_code: int | None
    why: str
    started: datetime | None
    ended: datetime | None
    lost: bool = False  # by no doing of its own
    ready: bool | None = None  # of one that is asked whether it can serve
    ready_since: datetime | None = None
    ready_why: str = ""
    refused: tuple[str, str] | None = None  # by its node: code and words


def look_at(place: Path, run: Run, worker: Mapping[str, Any], now: datetime) -> Look:
    name = f"{worker['role']} {worker['index']}"
    state = state_in(worker_folder(place, worker["role"], worker["index"]))
    started, ended = moment_of(state.get("started_at")), moment_of(state.get("ended_at"))
    if state.get("state") == "ended":
        code, why = state["exit_code"], state["why"]
        if said := state.get("refused"):
            refused = Refusal(worker["node"], said["code"], said["words"])
            return Look(RunState.ENDED, None, refused.told, started, ended, lost=True, refused=(refused.code, refused.words))
        lost = why == f"ended by {signal.SIGKILL.name}" or bool(worker.get("given_up"))
        lost = lost or (code != 0 and bool(worker.get("on_trial")) and never_served(state, started, ended))
        lost = lost and worker.get("lost", 0) < MOST_KILLED - 1
        return Look(RunState.ENDED, code, f"{name.capitalize()}: {why}." if why else "", started, ended, lost)
    alive = [one for one in state.get("processes", ()) if processes.started_ticks(one["pid"]) == one["ticks"]]
    keeper = state.get("supervisor")
    if alive or (keeper and processes.started_ticks(keeper["pid"]) == keeper["ticks"]):
        ready = (state.get("ready"), moment_of(state.get("ready_since")), state.get("ready_why") or "")
        return Look(RunState.RUNNING if started is not None else RunState.STARTING, None, "", started, None, False, *ready)
    if not keeper and now - datetime.fromisoformat(worker.get("at") or run.at) < COME_UP:
        return Look(RunState.STARTING, None, "", None, None)
    return Look(
        RunState.ENDED,
        None,
        f"{name.capitalize()} and its supervisor are gone without a word; perhaps the machine was restarted.",
        started,
        now,
        lost=True,
    )


def never_served(state: Mapping[str, Any], started: datetime | None, ended: datetime | None) -> bool:
    """Whether a worker that was begun in the place of another could not take it: the others serve on."""
    if state.get("ready") is not None:
        return not state.get("was_ready")
    return started is None or ended is None or ended - started <= REFORMS


def begins_again(look: Look) -> Look:
    """Of a worker that is being replaced: it leaves, or is about to be begun anew."""
    return replace(look, state=RunState.STARTING, exit_code=None, why="", lost=False, ready=None, ready_since=None, ready_why="")


def is_over(place: Path, run: Run, now: datetime) -> bool:
    return all(look_at(place, run, worker, now).state == RunState.ENDED for worker in run.workers)


def is_for_a_loss(run: Run, bad: Look, wrong: Sequence[Look]) -> bool:
    """Whether those who stayed failed only because they could not re-form without one that was lost, or had to leave."""
    if bad.lost:
        return not all(look.lost for look in wrong)
    return bad.exit_code != 128 + KILL and bad.ended is not None and re_forms(run.reformed, bad.ended)


def re_forms(since: str, at: datetime) -> bool:
    """Whether a gang may have been about to re-form: one that was lost was replaced shortly before, or one was asked to leave."""
    return bool(since) and abs(at - datetime.fromisoformat(since)) <= REFORMS


def has_saved(seen: SeenRun, since: str) -> bool:
    """Whether its work is saved as it was when it was asked to save it."""
    asked = datetime.fromisoformat(since) - FILE_CLOCK
    return any(len(one.shards) == one.shards_expected and one.at >= asked for one in seen.checkpoints)


def worker_of(order: StartOrder, seat: WorkerSeat, port: int) -> dict[str, Any]:
    """A worker as its run keeps it."""
    stated: dict[str, Any] = {"in_place": True} if order.launch.get("in_place") else {}
    if order.launch.get("ready"):
        stated |= {"ready_port": free_port()}
    return asdict(seat) | {"port": port, "grace": order.grace_seconds} | stated


def worker_folder(place: Path, role: str, index: int) -> Path:
    if not ROLE.fullmatch(role):
        raise BackendRefused(f"{role!r} cannot be used as a folder name for a role.")
    return place / f"{role}-{index}"


def bytes_in(place: Path) -> int:
    """What a folder takes up on its disk."""
    found = 0
    for path in place.rglob("*"):
        with contextlib.suppress(FileNotFoundError):
            found += path.lstat().st_blocks * 512
    return found


def read(place: Path) -> Run | None:
    try:
        return Run(**json.loads((place / "run.json").read_text()))
    except FileNotFoundError:
        return None
    except TypeError as fault:
        raise ValueError(f"run.json is not one of this program: {fault}") from fault


def write(place: Path, run: Run) -> None:
    write_whole(place / "run.json", asdict(run))


def state_in(spot: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((spot / "state.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def seat_of(worker: Mapping[str, Any]) -> WorkerSeat:
    return WorkerSeat(
        worker["role"],
        worker["index"],
        worker["node"],
        tuple(worker["gpus"]),
        tuple(worker["gpu_uuids"]),
        tuple(worker["mig_uuids"]),
        worker["gpu_milli"],
        tuple(worker.get("mig") or ()),
        worker.get("sharing") or "",
    )


def moment_of(seconds: float | None) -> datetime | None:
    if seconds is None:
        return None
    found = datetime.fromtimestamp(seconds, UTC)
    return found.replace(microsecond=found.microsecond // 1000 * 1000)


def log_part(spot: Path, offset: int, limit: int) -> LogPart:
    segments = sorted(spot.glob("log.*"))
    if not segments:
        raise FileNotFoundError(spot)
    begins = [int(path.suffix[1:]) for path in segments]
    if offset < 0:
        offset += begins[-1] + segments[-1].stat().st_size
    offset = max(offset, begins[0])  # what is older has been given up
    number = max(place for place, begin in enumerate(begins) if begin <= offset)
    data = b""
    for path, begin in list(zip(segments, begins, strict=True))[number:]:
        if data and begin > offset + len(data):
            break  # the one before was given up meanwhile
        offset = max(offset, begin) if not data else offset
        with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
            file.seek(offset + len(data) - begin)
            data += file.read(limit - len(data))
        if len(data) >= limit:
            break
    ended = state_in(spot).get("state") == "ended" and len(data) < limit
    return LogPart(offset, whole_characters(data) if len(data) >= limit else data, ended)
