"""What gpufleet says to Slurm and hears from it: its own commands with argument lists, and slurmrestd for reading where there is one.

No shell is involved. Every call has a time limit, because Slurm's commands wait for a controller that is away.
"""

import grp
import json
import logging
import os
import pwd
import re
import secrets
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from http.client import HTTPException
from time import monotonic
from typing import Any, NamedTuple

from scheduler.backends.base import BackendError, BackendRefused, BackendSilent

log = logging.getLogger(__name__)
SECONDS = 5.0  # of one call
TOKEN_SECONDS = 600
REST_VERSION = "v0.0.38"  # of slurmrestd's interface: each has a form of its own, and this one is read
REST_TRIED_EACH = 600.0  # seconds at least between two times that a slurmrestd without it is asked for it
REST_PATH = re.compile(r"/slurm/(v[0-9]+\.[0-9]+\.[0-9]+)/jobs/?")
RELEASED_A_CALL = 200
CANCELLED_A_CALL = 200
LIMITED_A_CALL = 200
OVER = ("invalid job id", "already", "job/step", "completing or completed", "not pending", "no longer")  # says Slurm of a job that has ended
JOBS_A_CALL = 100  # whose GPUs are asked for
# What Slurm answers where a description can never run; everything else may be different next time.
NEVER = (
    "invalid partition", "invalid account", "invalid qos", "invalid generic resource", "requested node configuration is not available",
    "invalid node name", "invalid user id", "user not permitted", "access/permission denied", "unable to open file", "batch script",
    "exceeds", "more processors requested than permitted", "invalid job credential",
)  # fmt: skip
# What is said where credentials do not hold: a controller just closes the connection.
DENIED = ("munge encode failed", "zero bytes were transmitted", "authentication error", "invalid authentication credential", "error fetching token")
ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED"}
)
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING"})
MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
UNITS_MIB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
INDEX = re.compile(r"\(IDX:([^)]*)\)")
HELD_ON = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
# What `squeue` is asked to print of a job. Its JSON costs fifteen times as much, with all jobs of the last minutes in each.
FIELDS = (
    "jobid", "state", "reason", "prioritylong", "exit_code", "starttime", "endtime", "tres-alloc", "nodelist", "username", "partition",
    "name", "comment", "userid",
)  # fmt: skip
# `sacct`, of one that has ended.
ACCOUNT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "UID", "NodeList")
# And `sinfo` of a node.
NODE_FIELDS = ("nodelist", "nodeaddr", "statecomplete", "cpus", "memory", "gres", "features", "version", "reason")


class _Stays(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the token of the console's user goes to no other address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# Past any proxy of the environment, too.
STRAIGHT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stays)


class SlurmSilent(BackendSilent):
    """The controller did not answer in time."""


class SlurmFailed(BackendError):
    """One of Slurm's commands said no. `lines`: what it printed, one of each job that it is about."""

    def __init__(self, words: str, lines: Sequence[str]) -> None:
        super().__init__(words)
        self.lines = lines


class RestUnspoken(BackendError):
    """slurmrestd has other versions of its interface than the one that is read."""


class SlurmDenied(BackendError):
    """Slurm does not know who asks: no credentials could be made, or it does not accept them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """How one cluster is reached and what its jobs run as."""

    conf: str = ""  # path of slurm.conf; empty: the machine's own
    partition: str = ""
    account: str = ""
    user: str = ""  # whom jobs run as; empty: the console's own user
    folder: str = ""  # for scripts, logs and checkpoints, seen by console and nodes alike
    tag: str = ""  # marks this console's jobs
    rest_url: str = ""
    node_logs: str = ""  # folder of the nodes where logs stay until they are asked for; empty: they are written to `folder`
    former: tuple[str, ...] = ()  # shared folders of before, where files of earlier jobs lie


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm shows it."""

    id: int
    state: str
    comment: str
    user: str
    nodes: tuple[str, ...]
    gpus: Mapping[str, tuple[int, ...]]  # indices by node, as far as Slurm tells
    exit_code: int | None
    held: bool
    reason: str
    started_at: datetime | None
    ended_at: datetime | None
    uid: int | None = None
    name: str = ""
    partition: str = ""
    cpus: int = 0  # on all its nodes
    memory_mib: int = 0
    gpu_count: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def running(self) -> bool:
        return self.state in RUNNING


@dataclass(frozen=True, slots=True)
class SlurmNode:
    name: str
    address: str
    states: tuple[str, ...]  # IDLE, ALLOCATED, MIXED, DOWN, with DRAIN, NOT_RESPONDING, … behind
    reason: str
    cpus: int
    memory_mib: int
    gres: str
    features: tuple[str, ...] = field(default=())
    version: str = ""  # of slurmd


class Partition(NamedTuple):
    state: str  # up, down, or drained or inactive (drain, inact)
    minutes: int | None  # the longest time limit of its jobs; None: any
    is_default: bool = False


class Config(NamedTuple):
    """How a controller is configured, and what time it had when it said so."""

    stated: Mapping[str, str]
    at: datetime | None


# GPUs by node of jobs that run, each known by number, start, nodes and how many they are: for so long they stay the same.
KnownGpus = dict[tuple[int, datetime | None, tuple[str, ...], int], Mapping[str, tuple[int, ...]]]


def uid_of(settings: Settings) -> int | None:
    """Whom jobs run as. None: there is no such user on this machine."""
    try:
        return pwd.getpwnam(settings.user).pw_uid if settings.user else os.getuid()
    except KeyError:
        return None


def as_account(account: pwd.struct_passwd) -> list[str]:
    """Whom `sbatch` submits as, with its group: of a job that is submitted by root it would be root's. By name where they have one: it takes a number
    for a name first, and asks all directories of users in vain."""
    group = str(account.pw_gid)
    with suppress(KeyError):
        name = grp.getgrgid(account.pw_gid).gr_name
        group = name if grp.getgrnam(name).gr_gid == account.pw_gid else group
    return [f"--uid={account.pw_name}", f"--gid={group}"]


def mark_of(comment: str, tag: str) -> tuple[str, int]:
    """The run and the number of its part that a comment names with this console's tag. Anybody can read the tag and write such a comment: it counts
    only of a job that runs as the run's account."""
    words = comment.split(" ")
    if len(words) in (5, 6) and words[:2] == ["gpufleet", tag] and words[3].isdigit():
        return words[2], int(words[3])
    return "", 0


def hostlist(text: str) -> tuple[str, ...]:
    """`gpu[001-003,7],login` as names, in the order written."""
    found: list[str] = []
    for part in _split(text):
        head, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        inside, _, tail = rest.partition("]")
        for span in inside.split(","):
            low, dash, high = span.partition("-")
            numbers = range(int(low), int(high) + 1) if dash else (int(low),)
            found += [name for number in numbers for name in hostlist(f"{head}{number:0{len(low)}d}{tail}")]
    return tuple(found)


def _split(text: str) -> Iterator[str]:
    depth, begun = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            if text[begun:place]:
                yield text[begun:place]
            begun = place + 1
    if text[begun:]:
        yield text[begun:]


def indices(text: str) -> tuple[int, ...]:
    """The GPU indices of `gpu:h100:3(IDX:0-1,5)`."""
    found: list[int] = []
    for inside in INDEX.findall(text):
        for span in inside.split(","):
            low, dash, high = span.partition("-")
            if low.isdigit() and (not dash or high.isdigit()):
                found += range(int(low), int(high or low) + 1)
    return tuple(found)


class SlurmClient:
    def __init__(self, settings: Settings, *, seconds: float = SECONDS) -> None:
        self.settings, self.seconds = settings, seconds
        self.keeps_accounts = False  # whether there is a slurmdbd, as far as the controller has been asked for its configuration
        self._token: tuple[str, float] | None = None
        self._unspoken: tuple[str, float] | None = None  # what slurmrestd has in place of the version that is read, and until when that is believed
        self._printed: dict[tuple[str, ...], SlurmJob] = {}  # by what squeue printed of it the last time: most of it prints again

    # Commands

    def run(
        self,
        *command: str,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        partly: bool = False,
        account: pwd.struct_passwd | None = None,
    ) -> str:
        """The output of one of Slurm's commands. `SlurmSilent` where it takes too long, `BackendError` with Slurm's own words where it fails.

        `partly`: also what it printed before a part of it failed. `account`: whom the command runs as.
        """
        program = shutil.which(command[0])
        other = account if os.getuid() == 0 else None
        if program is None:
            raise BackendError(f"Slurm's command {command[0]} is not installed on this machine (Debian package slurm-client).")
        try:
            done = subprocess.run(
                [program, *command[1:]],
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=self.seconds,
                env=self._environment() | dict(env or {}),
                cwd="/",
                check=False,
                user=None if other is None else other.pw_uid,
                group=None if other is None else other.pw_gid,
                extra_groups=None if other is None else [],
            )
        except subprocess.TimeoutExpired:
            raise SlurmSilent(f"Slurm did not answer {command[0]} within {self.seconds:g} s.") from None
        if done.returncode and not partly:
            words = " ".join(done.stderr.split())[-300:] or f"{command[0]} ended with {done.returncode}."
            low = words.lower()
            if command[0] == "sbatch" and any(one in low for one in NEVER):
                raise BackendRefused(f"Slurm refuses the job: {words}")
            if "unable to contact slurm controller" in low or "connection refused" in low or "socket timed out" in low:
                raise SlurmSilent(f"Slurm's controller does not answer: {words}")
            if any(one in low for one in DENIED):
                raise SlurmDenied(f"{command[0]}: {words}")
            raise SlurmFailed(f"{command[0]}: {words}", done.stderr.splitlines())
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Nothing of the console's own environment: a job inherits what sbatch is started with."""
        found = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "LANG": "C.UTF-8"}
        conf = self.settings.conf or os.environ.get("SLURM_CONF", "")
        return found | ({"SLURM_CONF": conf} if conf else {})

    def submit(self, arguments: Sequence[str], script: str) -> int:
        printed = self.run("sbatch", "--parsable", *arguments, stdin=script)
        return int(printed.strip().split(";")[0])

    def release(self, ids: Sequence[int]) -> None:
        """Those behind one that Slurm does not release are released all the same; then its words are raised."""
        faults: list[SlurmFailed] = []
        for first in range(0, len(ids), RELEASED_A_CALL):
            part = ids[first : first + RELEASED_A_CALL]
            try:
                self.run("scontrol", "release", ",".join(map(str, part)))
            except SlurmFailed:
                # One that has ended or was released before fails the whole call: the others are released one by one.
                for one in part:
                    try:
                        self._unless_over("scontrol", "release", str(one))
                    except SlurmFailed as fault:
                        faults.append(fault)
        if faults:
            raise faults[0]

    def cancel(self, ids: Sequence[int], *flags: str) -> None:
        """Many with one call: what is wrong with one of them keeps none of the others from it."""
        for first in range(0, len(ids), CANCELLED_A_CALL):
            self._unless_over("scancel", *flags, *map(str, ids[first : first + CANCELLED_A_CALL]))

    def set_time_limit(self, ids: Sequence[int], minutes: int | None) -> None:
        """`BackendRefused` where Slurm says no to any of them, whatever the reason: sites configure these. The others have the new one then."""
        faults: list[SlurmFailed] = []
        for first in range(0, len(ids), LIMITED_A_CALL):
            jobs = ",".join(map(str, ids[first : first + LIMITED_A_CALL]))
            try:
                self._unless_over("scontrol", "update", f"JobId={jobs}", f"TimeLimit={'UNLIMITED' if minutes is None else minutes}")
            except SlurmFailed as fault:
                faults.append(fault)
        if faults:
            raise BackendRefused(f"Slurm did not take the new time limit: {faults[0]}") from faults[0]

    def _unless_over(self, *command: str) -> None:
        """An order for a job that has ended meanwhile has nothing left to do."""
        try:
            self.run(*command)
        except SlurmFailed as fault:
            if not fault.lines or not all(any(one in line.lower() for one in OVER) for line in fault.lines if line.strip()):
                raise

    def on_node(self, job: int, node: str, *command: str, account: pwd.struct_passwd) -> str:
        """Run a command beside a job that runs, on one of its nodes and as its user."""
        where = (f"--jobid={job}", f"--nodelist={node}", "--nodes=1", "--ntasks=1", "--overlap", "--mem=0", "--gres=none")
        return self.run("srun", *where, "--chdir=/", "--input=none", *command, account=account)

    def node_update(self, name: str, state: str, reason: str = "") -> None:
        """DRAIN or RESUME a node; needs an operator of Slurm."""
        printable = "".join(letter for letter in reason if letter.isprintable())[:200]
        self.run("scontrol", "update", f"NodeName={name}", f"State={state}", *([f"Reason={printable}"] if printable else []))

    # Reading

    def jobs(self) -> list[SlurmJob]:
        """All jobs that the controller still remembers, ended ones included. Of their GPUs only slurmrestd tells at once (`with_gpus`)."""
        if (found := self._by_rest("jobs")) is not None:
            return [_job(one) for one in found.get("jobs", ())]
        known, told = self._printed, self._fields("squeue", FIELDS, "--all", "--states=all")
        self._printed = {one: known.get(one) or _printed_job(one) for one in told}
        return list(self._printed.values())

    def _fields(self, program: str, fields: Sequence[str], *flags: str) -> list[tuple[str, ...]]:
        """What a program prints of each. Names, comments and reasons are anybody's, line breaks included: each value ends with a word that nobody can
        know."""
        end = f"|{secrets.token_hex(8)}"  # what begins with a digit is a width
        wanted = ",".join(f"{name}:{end}" for name in fields)
        values = self.run(program, "--noheader", *flags, f"--Format={wanted}", env={"SLURM_TIME_FORMAT": "%s"}).split(end)
        if len(values) % len(fields) != 1:
            raise BackendError(f"{program} printed other fields than it was asked for; Slurm 22.05 or newer is needed.")
        return [tuple(values[first : first + len(fields)]) for first in range(0, len(values) - 1, len(fields))]

    def outputs(self, ids: Sequence[int]) -> dict[int, str]:
        """By number of those that are still known, the file of their output."""
        told = self._fields("squeue", ("jobid", "stdout"), "--all", "--states=all", f"--jobs={','.join(map(str, ids))}")
        return {int(number): path for number, path in told}

    def with_gpus(self, jobs: Sequence[SlurmJob]) -> list[SlurmJob]:
        """The same with the GPUs that they hold, by index, as far as Slurm tells. `scontrol` alone prints them, and it is asked for many at once.

        Where it has told of a job, its nodes have an entry, also those without a GPU of it.
        """
        asked = [job for job in jobs if job.running and job.state != "COMPLETING" and not job.gpus]
        if not asked or self._reads_rest:
            return list(jobs)
        found: dict[int, Mapping[str, tuple[int, ...]]] = {}
        for first in range(0, len(asked), JOBS_A_CALL):
            begin, part = secrets.token_hex(8), asked[first : first + JOBS_A_CALL]
            questions = "".join(f"show hostnames {begin}\nshow job {job.id}\n" for job in part)
            try:
                printed = self.run("scontrol", "--details", "--oneliner", stdin=questions, partly=True)
            except BackendError as fault:
                log.warning("the GPUs of %d jobs could not be read: %s", len(asked) - first, fault)
                break
            answers = f"\n{printed}".split(f"\n{begin}\n")[1:]
            found |= {job.id: _gpus_held(job, answer) for job, answer in zip(part, answers, strict=False)}
        return [replace(job, gpus=found.get(job.id, job.gpus)) for job in jobs]

    def with_known_gpus(self, jobs: Sequence[SlurmJob], known: KnownGpus, *, most: int) -> list[SlurmJob]:
        """As `with_gpus`, but only for those of which `known` does not tell yet, and for at most so many of them. What is learnt is added to it, and
        what is over is dropped."""
        running = {(job.id, job.started_at, job.nodes, job.gpu_count): job for job in jobs if job.running}
        fresh = self.with_gpus([job for place, job in running.items() if place not in known][:most])
        told = {job.id: job.gpus for job in fresh if job.gpus}
        kept = {place: gpus for place, job in running.items() if (gpus := known.get(place) or told.get(job.id))}
        known.clear()
        known.update(kept)
        by_id = {place[0]: gpus for place, gpus in kept.items()}
        return [replace(job, gpus=by_id.get(job.id, job.gpus)) for job in jobs]

    def nodes(self) -> list[SlurmNode]:
        """Those of any partition. Of `sinfo --json` each version of Slurm has a form of its own; its fields stay."""
        if (found := self._by_rest("nodes")) is not None:
            return [_node(one) for one in found.get("nodes", ())]
        printed = map(_printed_node, self._fields("sinfo", NODE_FIELDS, "--all", "--Node"))
        return list({node.name: node for node in printed}.values())  # one in several partitions is printed for each

    def ping(self) -> None:
        """Ask for little. `SlurmSilent` where nobody answers that."""
        if self._by_rest("partitions") is None:
            self.partitions()

    def partitions(self) -> dict[str, Partition]:
        found = {}
        for line in self.run("sinfo", "--all", "--noheader", "--format=%P|%a|%l").splitlines():
            name, state, limit = line.strip().rsplit("|", 2)
            found[name.removesuffix("*")] = Partition(state, _minutes(limit), name.endswith("*"))
        return found

    def config(self) -> Config:
        """What the controller is configured with, by name, and what time it has."""
        first, _, rest = self.run("scontrol", "show", "config", env={"SLURM_TIME_FORMAT": "%s"}).partition("\n")
        pairs = (line.partition("=") for line in rest.splitlines())
        stated = {name.strip(): value.strip() for name, equals, value in pairs if equals}
        self.keeps_accounts = stated.get("AccountingStorageType") == "accounting_storage/slurmdbd"
        return Config(stated, _moment(_whole(first.rpartition(" ")[2])))

    def booted_at(self) -> datetime | None:
        """When the controller was started last."""
        return _moment(_whole(self.config().stated.get("BOOT_TIME", "")))

    def accounted(self, ids: Sequence[int], names: Iterable[str]) -> list[SlurmJob]:
        """Ends of jobs that the controller may have forgotten, by number and name, as slurmdbd has them: a number is given more than once. That one
        was cancelled is left out where nobody did that: a controller that lost its state says so of all that it forgot, and some may still run."""
        asked = f"--jobs={','.join(map(str, ids))}", f"--name={','.join(sorted(set(names)))}", f"--format={','.join(ACCOUNT_FIELDS)}"
        words = ("sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2", *asked)
        lines = [line.split("|") for line in self.run(*words, env={"SLURM_TIME_FORMAT": "%s"}).splitlines()]
        found = [_accounted_job(dict(zip(ACCOUNT_FIELDS, line, strict=True))) for line in lines if len(line) == len(ACCOUNT_FIELDS)]
        said = {(line[0], line[1]) for line in lines if line[2:3] == ["CANCELLED"]}
        return [job for job in found if job.ended and (str(job.id), job.name) not in said]

    def accounting(self, what: str, fields: Sequence[str], *where: str) -> str:
        """What slurmdbd has, a line each with `|` between."""
        return self.run("sacctmgr", "--noheader", "--parsable2", "show", what, *(["where", *where] if where else []), f"format={','.join(fields)}")

    def topology(self) -> str:
        return self.run("scontrol", "show", "topology")

    @property
    def rest_unspoken(self) -> str:
        """Which versions slurmrestd has in place of the one that is read, as far as it has been asked. Slurm's commands are used then."""
        return self._unspoken[0] if self._unspoken is not None else ""

    @property
    def _reads_rest(self) -> bool:
        return bool(self.settings.rest_url) and (self._unspoken is None or monotonic() > self._unspoken[1])

    def _by_rest(self, what: str) -> dict[str, Any] | None:
        """What slurmrestd says; None where the commands are to be asked."""
        if not self._reads_rest:
            return None
        try:
            found = self._rest(what)
        except RestUnspoken as fault:
            if self._unspoken is None:
                log.warning("%s", fault)
            self._unspoken = (str(fault), monotonic() + REST_TRIED_EACH)
            return None
        self._unspoken = None
        return found

    def _rest(self, what: str) -> dict[str, Any]:
        """Reading through slurmrestd costs its controller no process of ours; writes go by command, since REST cannot pin nodes before v0.0.40."""
        try:
            return _answer("slurmrestd", self._got(f"slurm/{REST_VERSION}/{what}"))
        except urllib.error.HTTPError as fault:
            self._token = None
            if fault.code == 404 and (versions := self._rest_versions()) and REST_VERSION not in versions:
                there = f"slurmrestd at {self.settings.rest_url} has {', '.join(versions)}"
                raise RestUnspoken(f"{there}; gpufleet reads {REST_VERSION}. Slurm's commands are used instead.") from None
            kind = SlurmDenied if fault.code in (401, 403) else BackendError
            raise kind(f"slurmrestd answered {fault.code} to {what}.") from None

    def _rest_versions(self) -> list[str]:
        """In which it tells of jobs, by what it says of itself."""
        try:
            paths = self._got("openapi.json").get("paths")
        except urllib.error.HTTPError:
            return []
        except SlurmSilent:  # what it says of itself may be some megabytes
            return ["other versions"]
        found = [REST_PATH.fullmatch(path) for path in paths] if isinstance(paths, dict) else []
        return sorted({match[1] for match in found if match is not None}, key=lambda version: [int(part) for part in version[1:].split(".")])

    def _got(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the address is an operator's, and http or https (services.hardware.slurm)
            f"{self.settings.rest_url.rstrip('/')}/{path}",
            headers={"X-SLURM-USER-NAME": self._rest_user(), "X-SLURM-USER-TOKEN": self._jwt()},
        )
        try:
            with STRAIGHT.open(request, timeout=self.seconds) as answer:
                found = json.loads(answer.read().decode(errors="replace"))  # names of others' jobs need not be UTF-8
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError, HTTPException) as fault:
            raise SlurmSilent(f"slurmrestd does not answer at {self.settings.rest_url}: {fault}") from None
        return found if isinstance(found, dict) else {}

    def _rest_user(self) -> str:
        return pwd.getpwuid(os.getuid()).pw_name

    def _jwt(self) -> str:
        if self._token is None or monotonic() > self._token[1]:
            printed = self.run("scontrol", "token", f"lifespan={TOKEN_SECONDS}")
            self._token = (printed.strip().partition("=")[2], monotonic() + TOKEN_SECONDS / 2)
        return self._token[0]


def _answer(program: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was asked for. Lists beside an error are empty, and nobody may take them for what there is."""
    if errors := found.get("errors"):
        words = "; ".join(str(one.get("description") or one.get("error") or one) if isinstance(one, dict) else str(one) for one in errors)
        raise BackendError(f"{program}: {words}")
    return found


def _number(value: Any) -> int | None:
    """A number as versions before and after 23.02 write it."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) else None


def _moment(value: Any) -> datetime | None:
    seconds = _number(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def _state(value: Any) -> str:
    """The first word: newer versions give a list with flags behind."""
    states = value if isinstance(value, list) else [value]
    return str(states[0] if states else "").split(" ")[0].rstrip("+") or "UNKNOWN"


def _exit_code(one: Mapping[str, Any]) -> int | None:
    value = one.get("exit_code")
    if isinstance(value, dict):
        code, signal = _number(value.get("return_code")), _number((value.get("signal") or {}).get("id", (value.get("signal") or {}).get("signal_id")))
        return 128 + signal if signal else code
    if not isinstance(value, int):
        return None
    return 128 + (value & 0x7F) if value & 0x7F else value >> 8


def _job(one: Mapping[str, Any]) -> SlurmJob:
    nodes = hostlist(str(one.get("nodes") or ""))
    detail = one.get("gres_detail") or ()
    reason = str(one.get("state_reason") or "")
    state = _state(one.get("job_state"))
    return SlurmJob(
        id=int(one["job_id"]),
        state=state,
        comment=str(one.get("comment") or ""),
        user=str(one.get("user_name") or one.get("user_id") or ""),
        nodes=nodes,
        gpus={node: indices(str(text)) for node, text in zip(nodes, detail, strict=False)},
        exit_code=_exit_code(one) if state in ENDED else None,
        held=_number(one.get("priority")) == 0 and state == "PENDING",
        reason=reason,
        started_at=_moment(one.get("start_time")) if state in RUNNING or state in ENDED else None,
        ended_at=_moment(one.get("end_time")) if state in ENDED else None,
        uid=_number(one.get("user_id")),
        name=str(one.get("name") or ""),
        partition=str(one.get("partition") or ""),
        **_allocated(str(one.get("tres_alloc_str") or "")),
    )


def _printed_job(values: Sequence[str]) -> SlurmJob:
    """One job of `squeue`, its values in the order of `FIELDS`."""
    told = dict(zip(FIELDS, values, strict=True))
    state = _state(told["state"])
    return SlurmJob(
        id=int(told["jobid"]),
        state=state,
        comment="" if told["comment"] == "(null)" else told["comment"],
        user=told["username"],
        nodes=hostlist(told["nodelist"]),
        gpus={},
        exit_code=_exit_code({"exit_code": _status(told["exit_code"])}) if state in ENDED else None,
        held=told["prioritylong"] == "0" and state == "PENDING",
        reason=told["reason"],
        started_at=_moment(_whole(told["starttime"])) if state in RUNNING or state in ENDED else None,
        ended_at=_moment(_whole(told["endtime"])) if state in ENDED else None,
        uid=int(told["userid"]),
        name=told["name"],
        partition=told["partition"],
        **_allocated(told["tres-alloc"] if told["nodelist"] else ""),  # before it has nodes this is what it asks for
    )


def _accounted_job(told: Mapping[str, str]) -> SlurmJob:
    state = _state(told["State"])
    return SlurmJob(
        id=int(told["JobIDRaw"]),
        state=state,
        comment="",
        user="",
        nodes=() if told["NodeList"] == "None assigned" else hostlist(told["NodeList"]),
        gpus={},
        exit_code=_exit_code({"exit_code": _status(told["ExitCode"])}),
        held=False,
        reason="",
        started_at=_moment(_whole(told["Start"])),
        ended_at=_moment(_whole(told["End"])),
        uid=_whole(told["UID"]),
        name=told["JobName"],
    )


def _status(text: str) -> int:
    """`3:0` and `0:9`, an exit code and a signal, as one number."""
    code, _, signal = text.partition(":")
    return int(code) << 8 | int(signal) if signal else int(code)


def _gpus_held(job: SlurmJob, told: str) -> dict[str, tuple[int, ...]]:
    """Of one job as `scontrol` prints it. Between its name and the wishes of its submitter stands nothing that others may choose."""
    _, _, after_name = told.partition(f" JobName={job.name} UserId=")
    held = after_name.partition(" JOB_GRES=")[2].partition(" MinCPUsNode=")[0]
    return {node: indices(gres) for nodes, gres in HELD_ON.findall(held) for node in hostlist(nodes)}


def _allocated(text: str) -> dict[str, int]:
    """What `cpu=64,mem=400G,node=2,billing=64,gres/gpu=8,gres/gpu:h100=8` hands out over all nodes."""
    stated = dict(part.partition("=")[::2] for part in text.split(","))
    memory = MEMORY.fullmatch(stated.get("mem", ""))
    return {
        "cpus": _whole(stated.get("cpu", "")),
        "memory_mib": int(float(memory[1]) * UNITS_MIB[memory[2]]) if memory else 0,
        "gpu_count": _whole(stated.get("gres/gpu", "")),
    }


def _minutes(text: str) -> int | None:
    """`2-12:00:00` and `30:00` as Slurm prints time limits; nothing of `infinite`."""
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":") if part.isdigit()]
    if len(parts) < 2:
        return None
    hours, minutes = parts[-3] if len(parts) > 2 else 0, parts[-2]
    return 1440 * _whole(days) + 60 * hours + minutes


def _whole(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _printed_node(values: Sequence[str]) -> SlurmNode:
    """One node of `sinfo`, its values in the order of `NODE_FIELDS`."""
    told = {name: "" if value in ("(null)", "N/A") else value for name, value in zip(NODE_FIELDS, values, strict=True)}
    return SlurmNode(
        name=told["nodelist"].lstrip("\n"),
        address=told["nodeaddr"],
        states=tuple(word for word in told["statecomplete"].upper().split("+") if word),
        reason="" if told["reason"] == "none" else told["reason"],
        cpus=_whole(told["cpus"]),
        memory_mib=_whole(told["memory"]),
        gres=told["gres"],
        features=tuple(part for part in told["features"].split(",") if part),
        version=told["version"],
    )


def _node(one: Mapping[str, Any]) -> SlurmNode:
    states = one.get("state") or "UNKNOWN"
    flags = one.get("state_flags") or ()
    words = [*(states if isinstance(states, list) else [states]), *(flags if isinstance(flags, list) else [flags])]
    features = one.get("features") or ()
    return SlurmNode(
        name=str(one.get("name") or ""),
        address=str(one.get("address") or one.get("hostname") or ""),
        states=tuple(str(word).upper() for word in words if word),
        reason=str(one.get("reason") or ""),
        cpus=int(one.get("cpus") or 0),
        memory_mib=int(one.get("real_memory") or 0),
        gres=str(one.get("gres") or ""),
        features=tuple(features if isinstance(features, list) else [part for part in str(features).split(",") if part]),
        version=str(one.get("slurmd_version") or one.get("version") or ""),
    )
