"""Whom local jobs run as, what keeps them from each other, and the folders that are theirs."""

import contextlib
import errno
import fcntl
import grp
import json
import os
import pwd
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from scheduler.backends import supervisor
from scheduler.backends.base import BackendError, BackendRefused, StartOrder
from scheduler.backends.hostile_files import FOLDER
from scheduler.backends.supervising.files import write_whole

LOCAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
SPAWN_SECONDS = 10


@dataclass(frozen=True, slots=True)
class Rules:
    """Who local jobs run as, and what they may use. `allowed` says why nothing may run, or nothing."""

    user: str = ""
    same_user: bool = False
    secrets: Callable[[str, str], str | None] = lambda _name, _team: None  # by name and the path of the job's queue
    allowed: Callable[[], str] = lambda: ""
    report_url: str = ""
    checkpoints: Path | None = None  # instead of a folder beside the runs
    log_segment: int = 4 * 1024 * 1024
    log_segments: int = 8
    uids: tuple[int, int] | None = None  # the first and the last of those that jobs get, one each
    pin: bool = False  # each worker has processors of that cgroup for itself, or shares those that nobody has
    numa: Callable[[Sequence[str]], int | None] = lambda _gpus: None  # node of GPUs by UUID
    cgroup: Path | None = None  # of version 2, in which each worker gets one of its own; None: what a job asks for of the host binds only the plan
    kept_bytes: int = 4 * 1024**3  # of the folders of runs that are over


@dataclass(frozen=True, slots=True)
class Account:
    """The user that processes run as; `uid` None: the console's own."""

    name: str
    home: str
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    alone: bool = False  # nobody but one job has this uid


class Accounts:
    """Of the back-end in a folder. Which job has which uid is kept there."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.folder, self.rules = folder, rules

    def account(self, order: StartOrder) -> Account:
        """Whom the job's processes run as. Refused where that would not keep it from others' work."""
        if why := self.rules.allowed():
            raise BackendRefused(why)
        if self.rules.uids is not None and not self.rules.same_user:
            account = self._of_range(order)
        else:
            account = self._named(_own())
        if account.uid is not None and (why := self.not_apart()):
            self._only_team(order.team, why)
        return account

    def runs_as(self) -> str:
        """Whom jobs run as, in words. `BackendRefused` where the settings let none run."""
        if self.rules.uids is not None and not self.rules.same_user:
            self._groups_of_range()
            return f"a user of {self.rules.uids[0]}-{self.rules.uids[1]} for each job"
        return self._named(_own()).name

    def of_jobs(self) -> Account:
        """Whom jobs run as; of a range its first user stands for all."""
        if self.rules.uids is not None and not self.rules.same_user:
            first, groups = self.rules.uids[0], self._groups_of_range()
            return Account(f"gpufleet-{first}", "", first, first, groups, alone=True)
        return self._named(_own())

    def must_enter(self) -> None:
        """`BackendRefused` where those whom jobs run as cannot enter the folder of checkpoints."""
        account = self.of_jobs()
        root = self.checkpoint_root()
        if root.exists():
            self._can_be_entered(root, account)
        else:
            _must_pass(nearest(root), account)

    def _named(self, own: pwd.struct_passwd) -> Account:
        if not self.rules.user:
            if self.rules.same_user:
                return Account(own.pw_name, own.pw_dir)
            raise BackendRefused("Local jobs need users of their own: set GPUFLEET_LOCAL_UIDS, or GPUFLEET_LOCAL_USER for one team.")
        found = self._user()
        if found.pw_uid == own.pw_uid:
            if self.rules.same_user:
                return Account(own.pw_name, own.pw_dir)
            raise BackendRefused(f"{self.rules.user} is the console's own user: a job could read its database and its keys.")
        if found.pw_uid == 0:
            raise BackendRefused("Local jobs never run as root.")
        if os.getuid() != 0:
            raise BackendRefused(f"Only a console that runs as root can start jobs as {self.rules.user}.")
        return Account(found.pw_name, found.pw_dir, found.pw_uid, found.pw_gid, _groups_of(found))

    def _user(self) -> pwd.struct_passwd:
        try:
            return pwd.getpwnam(self.rules.user)
        except KeyError:
            raise BackendRefused(f"There is no user {self.rules.user} on this machine (GPUFLEET_LOCAL_USER).") from None

    def _groups_of_range(self) -> tuple[int, ...]:
        if os.getuid() != 0:
            raise BackendRefused("Only a console that runs as root can start jobs as users of GPUFLEET_LOCAL_UIDS.")
        if not self.rules.user:
            return ()
        named = self._user()
        if named.pw_uid == 0:
            raise BackendRefused("Local jobs never run as root.")
        return _groups_of(named)

    def _of_range(self, order: StartOrder) -> Account:
        groups = self._groups_of_range()
        uid = self.uid_of(order.job)
        if why := _taken(uid):
            raise BackendRefused(f"{why}; GPUFLEET_LOCAL_UIDS must be a range that nothing else uses.")
        home = str(self.checkpoint_root() / order.job / "home")
        return Account(f"gpufleet-{uid}", home, uid, uid, groups, alone=True)

    def uid_of(self, job: str) -> int:
        """The uid of a job, the same for all of its attempts. It goes to another job when nothing of this one is left on the machine."""
        assert self.rules.uids is not None
        low, high = self.rules.uids
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        with (self.folder / "uids.lock").open("a") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            path = self.folder / "uids.json"
            known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"last": low - 1, "jobs": {}}
            jobs: dict[str, int] = known["jobs"]
            if low <= jobs.get(job, -1) <= high:
                return jobs[job]
            taken = set(jobs.values())
            if len(taken) >= high - low + 1:
                jobs = {name: uid for name, uid in jobs.items() if self._is_on_disk(name)}
                taken = set(jobs.values())
            last = known["last"] if low <= known["last"] <= high else low - 1
            uid = next((one for one in (*range(last + 1, high + 1), *range(low, last + 1)) if one not in taken), None)
            if uid is None:
                raise BackendError("Every uid of GPUFLEET_LOCAL_UIDS belongs to a job whose checkpoints are kept. Delete some, or widen the range.")
            jobs[job] = uid
            write_whole(path, {"last": uid, "jobs": jobs})
            return uid

    def _is_on_disk(self, job: str) -> bool:
        return os.path.lexists(self.checkpoint_root() / job) or any(self.folder.glob(f"runs/{job}.*"))

    def not_apart(self) -> str:
        """Why jobs that run as other users than the console are not kept from each other; empty: they are."""
        if self.rules.uids is None:
            return f"all local jobs run as {self.rules.user or 'one user'} (GPUFLEET_LOCAL_UIDS gives each a user of its own)"
        if (why := namespaces_missing()) and not proc_hides_others():
            return f"every process of this machine is visible to all jobs: there are no PID namespaces ({why}), and /proc has no hidepid"
        return ""

    def _only_team(self, team: str, why: str) -> None:
        """Where jobs cannot be kept apart, only those of one team run: of the first that comes."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        path = self.folder / "only-team.json"
        if not path.exists():
            write_whole(path, team)
        first = json.loads(path.read_text())
        if first != team:
            raise BackendRefused(f"This machine runs jobs of {first or 'one team'} only, as {why}.")

    def folders(self) -> tuple[Path, ...]:
        """What the console writes to: runs with their logs, and checkpoints."""
        return (self.folder, self.checkpoint_root())

    def checkpoint_root(self) -> Path:
        return self.rules.checkpoints or self.folder / "checkpoints"

    def checkpoint_folder(self, order: StartOrder, account: Account) -> Path:
        """Where the attempt saves its work. The job owns this folder and nothing above it.

        Everything goes by descriptors that follow no link, and what is there already is only taken if it is ours or the job's.
        """
        if not KEY.fullmatch(order.job):
            raise BackendRefused(f"{order.job!r} is not a name of a job.")
        root = self.checkpoint_root()
        try:
            root.mkdir(parents=True, exist_ok=True, mode=0o750 if account.uid is None else 0o751)
            self._can_be_entered(root, account)
            top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            with _closing(top):
                job = _own_folder(top, order.job, account, ours=True)
                with _closing(job):
                    for name in (str(order.attempt), *(["home"] if account.alone else [])):
                        os.close(_own_folder(job, name, account, ours=False))
        except OSError as fault:
            raise BackendError(f"The checkpoint folder of {order.job} cannot be made: {fault}") from fault
        return root / order.job / str(order.attempt)

    def _can_be_entered(self, root: Path, account: Account) -> None:
        if account.uid is None:
            return
        look = root.stat()
        if account.alone and look.st_mode & 0o022 and not look.st_mode & stat.S_ISVTX:
            raise BackendRefused(f"Others may write to {root}, where all jobs save their work: take that right away.")
        _must_pass(root, account)


def _must_pass(folder: Path, account: Account) -> None:
    """Through every folder down to this one."""
    if account.uid is None:
        return
    mine = {account.gid, *account.groups}
    for path in (folder.resolve(), *folder.resolve().parents):
        look = path.stat()
        bit = 0o100 if look.st_uid == account.uid else 0o010 if look.st_gid in mine else 0o001
        if not look.st_mode & bit:
            raise BackendRefused(f"Jobs of another user cannot enter {path}: name another folder in GPUFLEET_LOCAL_CHECKPOINTS.")


def nearest(folder: Path) -> Path:
    """A folder, or the first above it that is there."""
    return next(path for path in (folder, *folder.parents) if path.exists())


def _own() -> pwd.struct_passwd:
    try:
        return pwd.getpwuid(os.getuid())
    except KeyError:
        raise BackendRefused(f"The console runs as the uid {os.getuid()}, which is no user of this machine.") from None


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _own_folder(parent: int, name: str, account: Account, *, ours: bool) -> int:
    """A folder that is there or is made, open. `ours`: it stays the console's, and the job may only pass through."""
    made = False
    with contextlib.suppress(FileExistsError):
        os.mkdir(name, 0o750, dir_fd=parent)
        made = True
    try:
        found = os.open(name, FOLDER, dir_fd=parent)
    except OSError as fault:
        if fault.errno in (errno.ELOOP, errno.ENOTDIR):
            raise BackendRefused(f"The checkpoint folder {name} is not a folder: something else has been put there.") from None
        raise
    try:
        owner = os.fstat(found).st_uid
        if not made and owner not in {os.getuid(), account.uid}:
            raise BackendRefused(f"The checkpoint folder {name} belongs to another user ({owner}).")
        if account.uid is not None and account.gid is not None:
            # Earlier versions gave the parent to the job as well: it is taken back.
            os.fchown(found, os.getuid() if ours else account.uid, account.gid)
            os.fchmod(found, 0o750)
    except BaseException:
        os.close(found)
        raise
    return found


def _groups_of(user: pwd.struct_passwd) -> tuple[int, ...]:
    groups = tuple(os.getgrouplist(user.pw_name, user.pw_gid))
    if 0 in groups:
        raise BackendRefused(f"{user.pw_name} is in the group of root; local jobs never are (GPUFLEET_LOCAL_USER).")
    return groups


def _taken(uid: int) -> str:
    """What else a uid of the range belongs to: a user or group of the machine, or a range for somebody's containers."""
    with contextlib.suppress(KeyError):
        return f"The uid {uid} is that of {pwd.getpwuid(uid).pw_name}"
    with contextlib.suppress(KeyError):
        return f"The gid {uid} is that of the group {grp.getgrgid(uid).gr_name}"
    for path in (Path("/etc/subuid"), Path("/etc/subgid")):
        with contextlib.suppress(OSError):
            for line in path.read_text(errors="replace").splitlines():
                name, _, rest = line.partition(":")
                first, _, count = rest.partition(":")
                if first.isdigit() and count.isdigit() and int(first) <= uid < int(first) + int(count):
                    return f"The uid {uid} is one that {path} gives to {name}"
    return ""


@cache
def namespaces_missing() -> str:
    """Why this machine has no PID namespaces for jobs; empty: it has."""
    if os.getuid() != 0:
        return "the console does not run as root"
    asked = subprocess.run(
        [sys.executable, "-I", "-S", supervisor.__file__, "probe"],
        capture_output=True,
        text=True,
        env={"PATH": LOCAL_PATH, "LANG": "C.UTF-8"},
        timeout=SPAWN_SECONDS,
        check=False,
    )
    return asked.stdout.strip() if asked.returncode == 0 else asked.stderr.strip()[-200:] or "the kernel refused"


def proc_hides_others() -> bool:
    """Whether /proc shows each user only their own processes."""
    for line in Path("/proc/mounts").read_text().splitlines():
        _, place, kind, options, *_ = line.split()
        if (place, kind) == ("/proc", "proc"):
            return any(one.startswith("hidepid=") and one not in ("hidepid=0", "hidepid=off") for one in options.split(","))
    return False
