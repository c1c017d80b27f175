"""What gpufleet says to Slurm and hears from it: its own commands with argument lists, and slurmrestd for reading where one is chosen.

No shell is involved. Every call has a time limit, because Slurm's commands wait for a controller that is away.
"""

import grp
import logging
import os
import pwd
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from scheduler.backends.base import BackendError, BackendRefused
from scheduler.backends.slurm.errors import SlurmDenied, SlurmFailed, SlurmSilent
from scheduler.backends.slurm.printed import (
    ACCOUNT_FIELDS,
    FIELDS,
    NODE_FIELDS,
    accounted_job,
    gpus_held,
    limit_minutes,
    moment_of,
    printed_job,
    printed_node,
    whole,
)
from scheduler.backends.slurm.rest import Slurmrestd, job_of, node_of
from scheduler.backends.slurm.values import Config, KnownGpus, Partition, Settings, SlurmJob, SlurmNode

log = logging.getLogger(__name__)
SECONDS = 5.0  # of one call
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


class SlurmClient:
    def __init__(self, settings: Settings, *, seconds: float = SECONDS) -> None:
        self.settings, self.seconds = settings, seconds
        self.keeps_accounts = False  # whether there is a slurmdbd, as far as the controller has been asked for its configuration
        self._rest = Slurmrestd(settings.rest_url, command=self.run, seconds=seconds)
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

    def cancel(self, ids: Sequence[int | str], *flags: str) -> None:
        """Jobs, or steps as `JOB.STEP`. Many with one call: what is wrong with one of them keeps none of the others from it."""
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
        if (found := self._rest.read("jobs")) is not None:
            return [job_of(one) for one in found.get("jobs", ())]
        known, told = self._printed, self._fields("squeue", FIELDS, "--all", "--states=all")
        self._printed = {one: known.get(one) or printed_job(one) for one in told}
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
        if not asked or self._rest.is_read:
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
            found |= {job.id: gpus_held(job, answer) for job, answer in zip(part, answers, strict=False)}
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
        if (found := self._rest.read("nodes")) is not None:
            return [node_of(one) for one in found.get("nodes", ())]
        printed = map(printed_node, self._fields("sinfo", NODE_FIELDS, "--all", "--Node"))
        return list({node.name: node for node in printed}.values())  # one in several partitions is printed for each

    def ping(self) -> None:
        """Ask for little. `SlurmSilent` where nobody answers that."""
        if self._rest.read("partitions") is None:
            self.partitions()

    def partitions(self) -> dict[str, Partition]:
        found = {}
        for line in self.run("sinfo", "--all", "--noheader", "--format=%P|%a|%l").splitlines():
            name, state, limit = line.strip().rsplit("|", 2)
            found[name.removesuffix("*")] = Partition(state, limit_minutes(limit), name.endswith("*"))
        return found

    def config(self) -> Config:
        """What the controller is configured with, by name, and what time it has."""
        first, _, rest = self.run("scontrol", "show", "config", env={"SLURM_TIME_FORMAT": "%s"}).partition("\n")
        pairs = (line.partition("=") for line in rest.splitlines())
        stated = {name.strip(): value.strip() for name, equals, value in pairs if equals}
        self.keeps_accounts = stated.get("AccountingStorageType") == "accounting_storage/slurmdbd"
        return Config(stated, moment_of(whole(first.rpartition(" ")[2])))

    def booted_at(self) -> datetime | None:
        """When the controller was started last."""
        return moment_of(whole(self.config().stated.get("BOOT_TIME", "")))

    def accounted(self, ids: Sequence[int], names: Iterable[str]) -> list[SlurmJob]:
        """Ends of jobs that the controller may have forgotten, by number and name, as slurmdbd has them: a number is given more than once. That one
        was cancelled is left out where nobody did that: a controller that lost its state says so of all that it forgot, and some may still run."""
        asked = f"--jobs={','.join(map(str, ids))}", f"--name={','.join(sorted(set(names)))}", f"--format={','.join(ACCOUNT_FIELDS)}"
        words = ("sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2", *asked)
        lines = [line.split("|") for line in self.run(*words, env={"SLURM_TIME_FORMAT": "%s"}).splitlines()]
        found = [accounted_job(dict(zip(ACCOUNT_FIELDS, line, strict=True))) for line in lines if len(line) == len(ACCOUNT_FIELDS)]
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
        return self._rest.unspoken
