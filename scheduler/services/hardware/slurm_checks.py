"""The way of a job to a Slurm cluster, step by step: from an answer of the controller to a submission that is held and cancelled."""

import json
import os
import pwd
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path

from gpufleet.core.findings import Finding, some
from gpufleet.core.times import now
from scheduler.backends.base import BackendError, BackendRefused
from scheduler.backends.slurm.client import SlurmClient, as_account
from scheduler.backends.slurm.errors import SlurmDenied
from scheduler.backends.slurm.gres import Gres
from scheduler.backends.slurm.installing import SETTINGS, program_digest, program_text
from scheduler.backends.slurm.site import partition_of, time_argument
from scheduler.backends.slurm.values import Config, Partition, Settings, SlurmNode
from scheduler.services.hardware.checks import MEANS, Check, Step, in_time, must_be_writable, steps_tried

Seen = Iterator[str | Finding]
TESTED = (22, 5)  # the oldest version that works, and the one that the tests run
MOST_APART_SECONDS = 5.0
NOTHING = ("", "(null)")
ENFORCED = frozenset({"associations", "limits", "qos", "safe", "all"})  # values of AccountingStorageEnforce with which a job needs its account
NOT_VERIFIED = "Nodes do not verify what was promised."
REACH = "Install Slurm's commands (Debian package slurm-client) and make slurm.conf readable on this machine; start slurmctld. sinfo must answer."
MUNGE = "Start munged with the cluster's key (/etc/munge/munge.key), and set the clocks: credentials expire. munge -n | unmunge must succeed."
REST = (
    "Start slurmrestd (openapi/v0.0.38, auth/jwt) for the cluster of slurm.conf, with AuthAltTypes=auth/jwt there. scontrol token must succeed as "
    "the console's user."
)
UNSPOKEN = "Load openapi/v0.0.38 as well (Slurm 22.05 to 23.11), or read with Slurm's commands."
SHARE = "Create the folder at the same path on this machine and on all nodes, owned by the console's user: install -d -m 755 FOLDER."
BY_HAND = "Submit a job with sbatch as the user of jobs, and put right what Slurm says there."
READ = "See slurmctld's log."


@dataclass(frozen=True)
class Site:
    """One cluster as it answers now; what is asked for twice is asked once. Everything but slurmrestd itself is asked by command."""

    settings: Settings

    @cached_property
    def client(self) -> SlurmClient:
        return SlurmClient(replace(self.settings, rest_url=""))

    @cached_property
    def heard(self) -> tuple[datetime, Config, datetime]:
        """How it is configured, between the times when it was asked and when it had answered."""
        return now(), self.client.config(), now()

    @property
    def config(self) -> Config:
        return self.heard[1]

    @cached_property
    def partitions(self) -> dict[str, Partition]:
        return self.client.partitions()

    @cached_property
    def nodes(self) -> list[SlurmNode]:
        return self.client.nodes()

    def stated(self, name: str) -> str:
        return self.config.stated.get(name, "")


def slurm_check(settings: Settings) -> list[Step]:
    """Try each step. Changes nothing but for a job that is submitted held and cancelled at once."""
    site = Site(settings)
    reached = Check("controller", partial(_controller, site), REACH)
    known = Check("credentials", partial(_credentials, site), MUNGE)
    facts = [
        Check("version", partial(_version, site), READ),
        *([Check("slurmrestd", partial(_slurmrestd, site), REST)] if settings.rest_url else []),
        Check("nodes", partial(_nodes, site), READ),
        Check("nodes answer", partial(_answers, site), READ, needed=False),
        Check("partition", partial(_partition, site), READ),
        Check("account", partial(_account, site), "Start slurmdbd, or leave the account empty."),
        Check("user", partial(_user, settings), "Create the user on this machine and on all nodes, with the same number."),
        Check("folder", partial(_folder, settings), SHARE),
        Check("clock", partial(_clock, site), READ, needed=False),
        Check("verification on nodes", partial(_verification, site), READ, needed=False),
    ]
    last = Check("submission", partial(_submission, site), BY_HAND)
    return steps_tried([reached], [known], facts, [last])


def _controller(site: Site) -> Seen:
    try:
        yield f"{site.stated('ClusterName')} at {site.stated('SlurmctldHost[0]')}"
    except SlurmDenied:
        yield "No answer without valid credentials"


def _credentials(site: Site) -> Seen:
    yield f"{site.stated('AuthType')}, as {_own_name()}"


def _version(site: Site) -> Seen:
    version = site.stated("SLURM_VERSION")
    yield version
    number = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if number < TESTED:
        yield Finding(f"Slurm is version {version}; 22.05 or newer is needed.", MEANS, "Upgrade Slurm.")
    elif number > TESTED:
        yield Finding(
            f"Slurm is version {version}; gpufleet is tested with 22.05.",
            "Newer versions may answer differently.",
            "Look at the first job.",
            note=True,
        )
    if others := _grouped([node for node in site.nodes if node.version not in ("", version)]):
        told = [f"{other}: {some(names)}" for other, names in sorted(others.items())]
        yield Finding(
            f"Slurm's controller is version {version}; nodes have {some(told)}.",
            "Slurm allows this while it is upgraded, from older nodes to a newer controller.",
            "Finish the upgrade.",
            note=True,
        )


def _grouped(nodes: Sequence[SlurmNode]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.version, []).append(node.name)
    return found


def _slurmrestd(site: Site) -> Seen:
    """One of another cluster accepts the token as well where both have the same key."""
    client = SlurmClient(site.settings)
    found = client.nodes()
    if client.rest_unspoken:
        yield f"{site.settings.rest_url} is not read"
        yield Finding(client.rest_unspoken, "Each version of its interface has a form of its own.", UNSPOKEN, note=True)
        return
    yield f"{len(found)} nodes at {site.settings.rest_url}"
    if differing := sorted({node.name for node in found} ^ {node.name for node in site.nodes}):
        yield Finding(
            f"slurmrestd and Slurm's commands do not have the same nodes: {some(differing)}.",
            "It belongs to another cluster: jobs would be submitted to one and looked for in the other.",
            REST,
        )


def _nodes(site: Site) -> Seen:
    if not site.nodes:
        yield Finding("Slurm has no nodes.", MEANS, "Add the nodes to slurm.conf, then scontrol reconfigure.")
        return
    gpus: Counter[str] = Counter()
    for node in site.nodes:
        gpus.update({kind or "gpu": count for kind, count in Gres.read(node.gres).types})
    features = sorted({feature for node in site.nodes for feature in node.features})
    yield f"{len(site.nodes)}: {some([node.name for node in site.nodes], 4)}"
    yield f"GPUs {', '.join(f'{kind} × {count}' for kind, count in sorted(gpus.items())) or 'none'}"
    yield f"features {some(features)}" if features else "no features"
    if not gpus:
        yield Finding("No node has GPUs.", "Only jobs without GPUs run.", "Set GresTypes=gpu and Gres= in slurm.conf, and gres.conf.", note=True)


def _answers(site: Site) -> Seen:
    silent = [node.name for node in site.nodes if any(state.startswith(("NOT_RESPONDING", "NO_RESPOND")) for state in node.states)]
    yield f"{len(site.nodes) - len(silent)} of {len(site.nodes)}"
    if silent:
        yield Finding(f"Nodes do not answer Slurm: {some(silent)}.", "Nothing starts on them.", "Check slurmd and the network of these nodes.")
    if refused := [f"{node.name} ({node.reason})" for node in site.nodes if node.reason.startswith("gpufleet-verify ")]:
        yield Finding(
            f"Nodes refused a job: {some(refused)}.",
            "They did not have what was promised, or something was left on them. Slurm has drained them.",
            "docs/reasons.md explains each code. Repair the node, then scontrol update NodeName=… State=RESUME.",
        )


def _partition(site: Site) -> Seen:
    wanted, found = site.settings.partition, site.partitions
    yield wanted or f"the default of {some(sorted(found))}"
    chosen = partition_of(site.settings, found)
    if chosen is not None and (longest := chosen[1].minutes) is not None:
        yield f"jobs end after {longest} min"
    if wanted and wanted not in found:
        yield Finding(f"There is no partition {wanted}; Slurm has {some(sorted(found))}.", MEANS, "Name one of these.")
    elif wanted and found[wanted].state != "up":
        yield Finding(f"Partition {wanted} is {found[wanted].state}.", MEANS, f"scontrol update PartitionName={wanted} State=UP.")


def _account(site: Site) -> Seen:
    wanted, user = site.settings.account, _name_of(site.settings)
    yield wanted or "the default of the user"
    if not wanted:
        return
    if site.stated("AccountingStorageType") in (*NOTHING, "accounting_storage/none"):
        yield Finding(f"Slurm keeps no accounts, so {wanted} was not looked for.", "Slurm ignores it.", "Leave it empty.", note=True)
        return
    lines = site.client.accounting("assoc", ("account", "user"), f"cluster={site.stated('ClusterName')}")
    found = {tuple(line.split("|")[:2]) for line in lines.splitlines()}
    free = ENFORCED.isdisjoint(site.stated("AccountingStorageEnforce").lower().split(","))
    means = "Slurm accepts jobs all the same: AccountingStorageEnforce does not ask for accounts." if free else MEANS
    if wanted not in {account for account, _ in found}:
        known = sorted({account for account, _ in found})
        do = f"Name one of these, or sacctmgr add account {wanted}."
        yield Finding(f"There is no account {wanted}; Slurm has {some(known)}.", means, do, note=free)
    elif (wanted, user) not in found:
        yield Finding(f"{user} is not in the account {wanted}.", means, f"sacctmgr add user {user} account={wanted}.", note=free)


def _name_of(settings: Settings) -> str:
    return settings.user or _own_name()


def _own_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        raise BackendError(f"The console runs as the uid {os.getuid()}, which is no user of this machine.") from None


def _user(settings: Settings) -> Seen:
    name, own = _name_of(settings), os.getuid()
    yield name
    if not settings.user and own == 0:
        yield Finding("The console runs as root: name the user that jobs run as.", MEANS, "Create a user for gpufleet's jobs alone.")
        return
    try:
        number = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise BackendError(f"There is no user {name} on the console's machine.") from None
    if number == 0:
        yield Finding("Jobs on Slurm never run as root.", MEANS, "Create a user for gpufleet's jobs alone.")
    elif own not in (0, number):
        yield Finding(f"Only a console that runs as root can submit jobs of {name}.", MEANS, "Leave the user empty, or run the console as root.")


def _folder(settings: Settings) -> Seen:
    yield settings.folder
    if not settings.folder.startswith("/"):
        yield Finding("The shared folder is an absolute path, the same on the console and on every node.", MEANS, SHARE)
        return
    must_be_writable(settings.folder)


def _clock(site: Site) -> Seen:
    asked, (_, at), answered = site.heard
    if at is None:
        yield "Slurm does not tell its time"
        return
    apart = max((asked - at).total_seconds() - 1, (at - answered).total_seconds(), 0.0)  # Slurm tells whole seconds
    yield f"{apart:.0f} s apart"
    if apart > MOST_APART_SECONDS:
        yield Finding(
            f"The clocks of this machine and of Slurm's controller are {apart:.0f} s apart.",
            "Times and charges of jobs are off by as much; from 5 minutes on Slurm accepts no credentials.",
            "Synchronise both clocks (chrony, systemd-timesyncd).",
        )


def _submission(site: Site) -> Seen:
    name = f"gpufleet-check-{secrets.token_hex(4)}"
    try:
        number = site.client.submit(_held(site, name), "#!/bin/sh\ntrue\n")
    except BackendRefused:
        raise
    except (BackendError, ValueError) as fault:  # it may have been accepted all the same
        _must_cancel(
            partial(site.client.run, "scancel", f"--name={name}"),
            f"{fault} The job {name} may be held in Slurm: cancel it with scancel --name={name}.",
        )
        raise
    _must_cancel(partial(site.client.cancel, [number]), f"Job {number} ({name}) was accepted and is still held: cancel it with scancel {number}.")
    yield f"job {number} was accepted, held and cancelled"


def _must_cancel(cancel: Callable[[], object], otherwise: str) -> None:
    try:
        cancel()
    except BackendError as fault:
        raise BackendError(f"{otherwise} {fault}") from fault


def _held(site: Site, name: str) -> list[str]:
    """As a job without a time limit is submitted."""
    settings, chosen = site.settings, partition_of(site.settings, site.partitions)
    arguments = ["--hold", "--no-requeue", f"--job-name={name}", "--comment=gpufleet check", "--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=1"]
    arguments += ["--chdir=/", "--output=/dev/null", time_argument(chosen[1].minutes if chosen is not None else None)]
    arguments += [f"--{name}={value}" for name in ("partition", "account") if (value := getattr(settings, name))]
    if os.getuid() == 0 and settings.user:
        arguments += as_account(pwd.getpwnam(settings.user))
    return arguments


# What nodes check themselves


def _verification(site: Site) -> Seen:
    """Whether nodes check promises: what Slurm runs there, as far as this machine has it under the same path."""
    user, tag = _name_of(site.settings), site.settings.tag
    of_console = f" --tag {tag}" if tag else ""
    write = f"Write it with gpufleet slurm prolog --write FOLDER --user {user}{of_console} and set what it prints in slurm.conf."
    prolog, epilog = site.stated("Prolog"), site.stated("Epilog")
    yield f"Prolog={prolog}, Epilog={epilog}"
    if absent := [name for name, pattern in (("Prolog", prolog), ("Epilog", epilog)) if pattern in NOTHING]:
        yield Finding(f"Slurm runs no {' and no '.join(absent)}.", NOT_VERIFIED, write, note=True)
    for name, pattern in (("Prolog", prolog), ("Epilog", epilog)):
        if pattern not in NOTHING:
            yield from in_time(pattern, partial(_program, name, pattern, user, tag, write))
    if prolog not in NOTHING and "Alloc" not in site.stated("PrologFlags"):
        yield Finding("PrologFlags lacks Alloc.", "Only the first node of a gang verifies before the start.", "Set PrologFlags=Alloc in slurm.conf.")


def _program(name: str, pattern: str, user: str, tag: str, write: str) -> list[Finding]:
    return list(_faults_of_program(name, pattern, user, tag, write))


def _faults_of_program(name: str, pattern: str, user: str, tag: str, write: str) -> Iterator[Finding]:
    if stuck := [str(path) for path in _matching(pattern) if not path.stat().st_mode & 0o111]:
        yield Finding(f"{name}: Slurm cannot execute {some(stuck)}.", "A job drains its node.", "Move it to another folder.")
    texts = {path: text for path in _matching(pattern) if (text := _text(path))}
    if not texts:
        yield Finding(f"{name}={pattern} cannot be read on this machine.", "Its version is not compared.", write, note=True)
    elif not (ours := {path: text for path, text in texts.items() if "gpufleet-verify" in text}):
        yield Finding(f"{name}={pattern} is not gpufleet's.", NOT_VERIFIED, write, note=True)
    elif program_digest(program_text()) not in map(program_digest, ours.values()):
        yield Finding(f"{name}={pattern} is of another version of gpufleet.", "It may refuse promises that it does not know.", write)
    elif not any(_is_ours(path, user, tag) for path in ours):
        of = f" with the tag {tag}" if tag else ""
        yield Finding(f"{name}={pattern} is not for jobs of {user}{of}.", "This console's jobs are not verified.", write)


def _matching(pattern: str) -> list[Path]:
    """A program, or those of a folder that are not hidden: Slurm takes patterns."""
    path = Path(pattern)
    found = path.parent.glob(path.name) if path.is_absolute() else ()
    return sorted(one for one in found if one.exists() and not one.name.startswith("."))


def prolog_confines(settings: Settings, pattern: str) -> bool:
    """Whether what Slurm runs before each job of this console refuses one that is not kept to its processors and devices, as far as this machine
    has it under the same path."""
    user, tag = _name_of(settings), settings.tag

    def look() -> bool:
        ours = (path for path in _matching(pattern) if "gpufleet-verify" in _text(path) and _is_ours(path, user, tag))
        return any(json.loads(_text(path.resolve().parent / SETTINGS)).get("confined", True) for path in ours)

    return pattern not in NOTHING and in_time(pattern, look)


def _is_ours(program: Path, user: str, tag: str) -> bool:
    """A cluster that is not kept yet has no tag: the program must then be for any."""
    try:
        settings = json.loads(_text(program.resolve().parent / SETTINGS))
        return bool(user in settings["users"] and (not settings["tags"] or tag in settings["tags"]))
    except (ValueError, KeyError, TypeError):
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""
