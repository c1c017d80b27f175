"""What an end means by what Slurm and the run's folder say: an exit code, and whether the job is to blame or the hardware.

What Slurm or its daemons did is no failure of the job.
"""

import os
import re
import signal
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from scheduler.backends.base import FolderSilent, Refusal
from scheduler.backends.slurm import shared
from scheduler.backends.slurm.runs import Run, log_name
from scheduler.backends.slurm.script import joins_later
from scheduler.backends.slurm.values import SlurmJob, SlurmNode

T = TypeVar("T")
SIGKILLED = 128 + signal.SIGKILL
ENDED_BY_SLURM = (SIGKILLED, 128 + signal.SIGTERM)  # what ends so was ended, be it by Slurm or by whom else
NO_FOLDER = 126  # with which alone a script ends that leaves no code: the job names a working directory that is not there
AT_ITS_START = timedelta(seconds=2)
WHOLE_SECONDS = timedelta(seconds=1)  # in which Slurm tells times
CLOCKS_APART = timedelta(seconds=1)  # at most a node's is behind that of the controller
TOLD_WITHIN = timedelta(seconds=30)  # of its last exit code Slurm has told the end of a job
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "REVOKED"})
GIVEN_UP = LOST | {"CANCELLED"}
# Why a job waits that no time ends, beside limits that a single job is above (AssocMaxWallDurationPerJobLimit).
NEVER_STARTS = frozenset(
    {
        "PartitionTimeLimit", "PartitionNodeLimit", "PartitionDown", "PartitionInactive", "BadConstraints", "InvalidAccount", "InvalidQOS",
        "AccountNotAllowed", "QOSNotAllowed", "DeadLine",
    }
)  # fmt: skip
UNTOLD = frozenset({"", "None", "(null)", "JobHeldUser"})  # reasons that say nothing
LOCAL = re.compile(r"(?P<node>\S+) (?P<folder>/[^\n]*/gpufleet-[A-Za-z0-9]{8})\n")
REFUSED = re.compile(r"gpufleet-verify (?P<job>[0-9]+) start (?P<code>[a-z]+): (?P<words>.*)")  # what `on_node` says of a node


def outcome(
    run: Run, part: Mapping[str, Any], job: SlurmJob | None, given_again: Callable[[int], bool] = lambda _number: False
) -> tuple[int | None, str, bool]:
    """Exit code, the reason for its owner, and whether the hardware is to blame. `given_again`: whether another job had that number before."""
    if job is None:
        code = _left_code(run, part)
        if code == SIGKILLED and part.get("missing"):  # its controller forgot it while it ran, and has its node end what it does not know
            return None, f"Slurm forgot job {part.get('id')}, and its node ended it.", True
        if code is not None and not (code and run.withdrawn):
            return code, f"Exit code {code}." if code else "", False
        return None, f"Slurm no longer knows job {part.get('id')}, and it left no exit code.", True
    nodes = ", ".join(part["nodes"])
    if job.state == "COMPLETED":
        if not _has_completed(run, part):
            return None, f"Slurm took the end of another job for that of job {job.id}, {_how_far(run, part)} on {nodes}.", True
        return 0, "", False
    if run.withdrawn and job.state == "CANCELLED":
        return None, run.withdrawn, True
    if _never_ran(run, part, job):
        return None, f"Slurm withdrew job {job.id} {f'while {nodes} started it' if job.nodes else 'before it had nodes'}.", True
    if not run.stopping and not run.killed and _was_started_twice(run, part, job):
        return None, f"Slurm had forgotten that it started job {job.id}, started it again, and {nodes} cancelled it.", True
    if name := _not_started(run, part, job):
        return None, f"Slurm could not start {name} of job {job.id} on {nodes}.", True
    if job.reason == "Prolog":
        return None, f"Slurm's prolog failed on {nodes}.", True
    if job.state in LOST:
        return None, f"Slurm job {job.id} on {nodes}: {job.state.lower().replace('_', ' ')}.", True
    if job.state == "FAILED" and not run.stopping and not run.killed:
        if job.exit_code != NO_FOLDER and _left_no_code(run, part):
            return None, f"Job {job.id} on {nodes} did not end by itself: its script left no exit code, Slurm says {job.exit_code}.", True
        if job.exit_code in ENDED_BY_SLURM and given_again(job.id):
            return None, f"Slurm gave number {job.id} to two jobs and ended this one on {nodes} for the other.", True
    words = {"TIMEOUT": "time limit reached", "OUT_OF_MEMORY": "out of memory", "CANCELLED": "cancelled", "PREEMPTED": "preempted by Slurm"}
    what = words.get(job.state, f"exit code {job.exit_code}")
    return job.exit_code or 1, f"Slurm job {job.id} on {nodes}: {what}.", job.state == "PREEMPTED"


def ran_out_of_time(job: SlurmJob | None) -> bool:
    return job is not None and job.state == "TIMEOUT"


def never_starts(job: SlurmJob) -> bool:
    return job.reason in NEVER_STARTS or "PerJob" in job.reason


def not_started(job: SlurmJob) -> str:
    return f"Slurm did not start job {job.id}: {job.reason}."


def _not_started(run: Run, part: Mapping[str, Any], job: SlurmJob) -> str:
    """The worker for which srun failed and not its program, where that ended the job. The script of a gang says so in its folder."""
    return "" if run.stopping or run.killed else _lost_by_srun(run, part, job)


def _lost_by_srun(run: Run, part: Mapping[str, Any], job: SlurmJob) -> str:
    if part.get("single", run.single):
        return ""
    try:
        said = asked_of(run, lambda: text_of(Path(run.folder), f"lost.{job.id}")).strip()
    except OSError:
        return ""
    return said if said in {f"{seat['role']}-{seat['index']}" for part in run.parts for seat in part["seats"]} else ""


def refusals_of(part: Mapping[str, Any], job: SlurmJob | None, nodes: Callable[[], Mapping[str, SlurmNode]]) -> list[Refusal]:
    """Nodes that did not start the job, and why: each says so of itself, which no job can do for it."""
    if job is None or not job.ended or job.state == "COMPLETED":
        return []
    found = []
    for name in part["nodes"]:
        node = nodes().get(name)
        said = REFUSED.fullmatch(node.reason) if node is not None else None
        if said is not None and int(said["job"]) == job.id:
            found.append(Refusal(name, said["code"], said["words"]))
    return found


def _left_code(run: Run, part: Mapping[str, Any]) -> int | None:
    codes = _left(run, part, 0)
    return None if codes is None else next((code for code in codes if code), 0)


def _left(run: Run, part: Mapping[str, Any], word: int) -> list[int] | None:
    """A number of what each of its workers left when it ended: its exit code and, in seconds since 1970, when its script began."""
    try:
        texts = asked_of(run, lambda: [text_of(Path(run.folder), exit_name(seat, part)) for seat in part["seats"]])
        return [int(text.split()[word]) for text in texts]
    except (OSError, ValueError, IndexError):
        return None


def exit_name(seat: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    """Of each part its own: one that was given up may end when another has taken its place already."""
    return f"{seat['role']}-{seat['index']}.{part['number']}.exit"


def left_since(run: Run, part: Mapping[str, Any]) -> datetime | None:
    """When a part began of which Slurm no longer tells that, by what it left at its end: soon after its start in Slurm."""
    begins = _left(run, part, 1)
    try:
        return datetime.fromtimestamp(max(begins), UTC) if begins else None
    except (OverflowError, ValueError, OSError):  # the job can write any number
        return None


def left_at(run: Run, part: Mapping[str, Any]) -> datetime | None:
    """When a part ended that Slurm has forgotten, by its last exit code; nothing where it left none."""
    try:
        ends = asked_of(run, lambda: [_written_at(Path(run.folder), exit_name(seat, part)) for seat in part["seats"]])
    except OSError:
        return None
    try:
        return datetime.fromtimestamp(max(ends), UTC) if ends else None
    except (OverflowError, ValueError):  # the job can give its files any date
        return None


def completed_at(run: Run, part: Mapping[str, Any], job: SlurmJob, now: datetime) -> datetime | None:
    """When a part was completed where Slurm no longer knows that: a controller that was killed before it had saved the end comes back with an older
    state. The job waits or runs again then, runs on where nothing runs any more, or is given up some time later. `now`: before Slurm was asked."""
    if _left_code(run, part) != 0 or (moment := left_at(run, part)) is None:
        return None
    if job.state == "PENDING":
        return moment if moment < now else None  # it has run since Slurm was asked, and the next look sees that
    if job.started_at is not None and moment < job.started_at:
        return moment
    if job.ended:
        if job.state not in GIVEN_UP or job.ended_at is None:
            return None
        # In the second of its end, too, where that is called one before it ran. What somebody cancels may leave 0 because of that.
        same = WHOLE_SECONDS if _never_ran(run, part, job) else timedelta(0)
        return moment if moment < job.ended_at + same else None
    ended_unseen = job.state == "RUNNING" and now - moment > TOLD_WITHIN and not kept_on_node(run, part)  # which may take long to copy
    return moment if ended_unseen else None


def _never_ran(run: Run, part: Mapping[str, Any], job: SlurmJob) -> bool:
    """Whether Slurm itself cancelled it before a process ran, which would have had a code. A controller that forgot its last jobs gives their numbers
    to others, and what a node says of such a number ends the wrong one: the node's slurmd does not take it, or its end is taken for this one's."""
    if run.stopping or run.killed or job.state != "CANCELLED" or job.exit_code:
        return False
    if not job.nodes or job.started_at is None or job.ended_at is None or job.ended_at - job.started_at <= AT_ITS_START:
        return True
    return not _has_begun(run, part)


def _was_started_twice(run: Run, part: Mapping[str, Any], job: SlurmJob) -> bool:
    """Whether a controller that was killed had forgotten a start and made it again, which the node refuses and cancels: by what the script left, it
    had begun before Slurm says so. Both tell whole seconds, each by a clock of its own."""
    if job.state != "CANCELLED" or job.exit_code not in ENDED_BY_SLURM or job.started_at is None or job.ended_at is None:
        return False
    since = left_since(run, part)
    return job.ended_at - job.started_at <= AT_ITS_START and since is not None and since < job.started_at - CLOCKS_APART


def began(run: Run, part: Mapping[str, Any], job: SlurmJob) -> bool:
    """Whether a part that was lost had started before: to Slurm it starts when it has its nodes, also where its prolog or srun then fails."""
    return not _lost_by_srun(run, part, job) and _has_begun(run, part)


def _has_begun(run: Run, part: Mapping[str, Any]) -> bool:
    """Whether the node has made the file of its output, which it does before the script. Where the folder can't be read: yes, as nearly each has."""
    seat = part["seats"][0]
    name = f"{seat['role']}-{seat['index']}"
    ways = (False,) if joins_later(part["number"]) else (True, False)
    files = [Path(run.folder) / log_name(own=own, seat=name, part=part["number"]) for own in ways]
    try:
        return asked_of(run, lambda: any(map(os.path.lexists, files)))
    except OSError:
        return True


def _left_no_code(run: Run, part: Mapping[str, Any]) -> bool:
    """Whether the script of a part has not ended, also where Slurm says so. A controller that has forgotten its last jobs gives their numbers to
    others, and a node tells of an end by number: its comment is then that of the other. Or somebody killed it. Where the folder can't be read nobody
    knows."""
    names = [exit_name(seat, part) for seat in part["seats"]]
    return _looked_anew(run, lambda folder: not any(os.path.lexists(folder / name) for name in names), otherwise=False)


def _has_completed(run: Run, part: Mapping[str, Any]) -> bool:
    """Whether each of its workers has left a code and none another than 0: what Slurm says it says by number. One that is empty met a full disk.
    Where the folder can't be read: yes."""
    names = [exit_name(seat, part) for seat in part["seats"]]
    return _looked_anew(run, lambda folder: all(os.path.lexists(folder / name) and not _is_failure(folder, name) for name in names), otherwise=True)


def _is_failure(folder: Path, name: str) -> bool:
    try:
        return text_of(folder, name).split()[:1] not in ([], ["0"])
    except OSError:
        return False


def _how_far(run: Run, part: Mapping[str, Any]) -> str:
    return "which had not ended" if _has_begun(run, part) else "which had not begun"


def asked_of(run: Run, call: Callable[[], T]) -> T:
    """Of the run's folder, in the shared one of its time. OSError where that is a former one and hangs: then it can't be read."""
    folder = Path(run.folder)
    top = folder.parents[1] if len(folder.parents) > 1 else folder
    try:
        return shared.asked(top, call)
    except FolderSilent as fault:
        if shared.is_former(top):
            raise TimeoutError(str(fault)) from fault
        raise


def _looked_anew(run: Run, look: Callable[[Path], bool], *, otherwise: bool) -> bool:
    """What a look at the run's folder says, which a network file system reads anew for who opens it. `otherwise`: where it can't be read."""
    folder = Path(run.folder)

    def opened_first() -> bool:
        os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
        return look(folder)

    try:
        return asked_of(run, opened_first)
    except OSError:
        return otherwise


def _written_at(folder: Path, name: str) -> float:
    with opened(folder, name) as file:
        return os.fstat(file).st_mtime


@contextmanager
def opened(folder: Path, name: str) -> Iterator[int]:
    """A plain file that a job may have written: never through a link, and never one that blocks."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=descriptor)
    finally:
        os.close(descriptor)
    try:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            raise FileNotFoundError(name)
        yield file
    finally:
        os.close(file)


def text_of(folder: Path, name: str, *, most: int = 64) -> str:
    with opened(folder, name) as descriptor:
        return os.read(descriptor, most).decode(errors="replace")


def kept_on_node(run: Run, part: Mapping[str, Any]) -> tuple[str, str] | None:
    """The node that has logs of a part which are not all copied yet, and the folder there. The script of the job says so, and can say anything: the
    folder is only ever read as the job's user."""
    try:
        said = LOCAL.fullmatch(asked_of(run, lambda: text_of(Path(run.folder), f"local-{part['number']}", most=500)))
    except OSError:
        return None
    return (said["node"], said["folder"]) if said is not None and said["node"] in part["nodes"] else None
