"""The way of a job to the console's own machine, step by step: allowed, as whom, where its files lie, and on which GPUs."""

from collections import Counter
from collections.abc import Iterator
from functools import partial

import pynvml
from django.conf import settings
from django.db import DatabaseError

from gpufleet.core.findings import Finding
from gpufleet.core.times import now
from scheduler.backends.base import BackendError
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Accounts, nearest
from scheduler.backends.registry import LOCAL, local_backend, why_not_local
from scheduler.hardware.discovery import NothingFound, machine_name, machine_read
from scheduler.models import Node
from scheduler.services.hardware.checks import MEANS, Check, Step, in_time, must_be_writable, steps_tried

Seen = Iterator[str | Finding]
ALLOW = "Set GPUFLEET_LOCAL=on and start the console again (docs/operate/back-ends.md, Local jobs)."
WHO = "Set GPUFLEET_LOCAL_UIDS for several teams, GPUFLEET_LOCAL_USER for one, GPUFLEET_LOCAL_SAME_USER for one person; then start the console again."
FOLDER = "Make the folder writable for the console's user, or name another one (GPUFLEET_DATA_DIR, GPUFLEET_LOCAL_CHECKPOINTS)."
PIN = "Give GPUFLEET_LOCAL_CGROUP the controller cpuset, or set GPUFLEET_LOCAL_PIN=off (docs/operate/back-ends.md, Pinned processors)."
GPUS = "Install NVIDIA's driver, or set GPUFLEET_VIRTUAL_GPUS to try the console."


def local_check() -> list[Step]:
    """Try each step. Starts nothing."""
    backend = local_backend()
    accounts = backend.accounts
    return steps_tried(
        [Check("local jobs", _allowed, ALLOW), Check("user", partial(_user, accounts), WHO)],
        [Check("folders", partial(_folders, accounts), FOLDER), Check("GPUs", _gpus, GPUS), *_of_pins(backend)],
    )


def _of_pins(backend: LocalBackend) -> list[Check]:
    return [Check("processors", partial(_processors, backend), PIN)] if backend.rules.pin else []


def _processors(backend: LocalBackend) -> Seen:
    """Pins a process on trial."""
    if why := backend.pins.missing(backend.accounts.of_jobs()):
        yield Finding(f"Jobs cannot be pinned to processors: {why.rstrip('.')}.", "The node refuses every job, and pins are not a boundary.", PIN)
        return
    if why := backend.pins.unvouched(now()):
        yield Finding(
            f"Jobs are pinned to processors, but the back-end does not vouch for the boundary: {why}",
            "Services and other work stand on different nodes if the fleet-wide rule colocation is “node”.",
            "See docs/operate/back-ends.md, pinned processors.",
            note=True,
        )
    most = backend.pins.capacity() or 0
    if Node.objects.filter(cluster__backend=LOCAL, name=machine_name(), removed_at__isnull=True, cpus__gt=most).exists():
        yield Finding(
            f"The inventory counts more processors of this machine than workers can own, which are {most}.",
            "Jobs that are placed on all of them wait for processors, or fail.",
            "Discover this machine again: gpufleet inventory discover --apply.",
            note=True,
        )
    yield f"workers can own {most}"


def _allowed() -> Seen:
    try:
        why = why_not_local()
    except DatabaseError as fault:  # the doctor looks while there is none as well
        raise BackendError(f"Whether local jobs are allowed cannot be read: {fault}") from fault
    yield Finding(why, MEANS, ALLOW) if why else "allowed"


def _user(accounts: Accounts) -> Seen:
    rules = accounts.rules
    if not rules.same_user and (rules.user or rules.uids) and (why := accounts.not_apart()):
        yield Finding(
            f"Local jobs are not kept apart: {why}.",
            "This machine runs jobs of one queue only, the queue of its first job.",
            "See docs/operate/back-ends.md, what separates jobs on one machine.",
            note=True,
        )
    yield accounts.runs_as()


def _folders(accounts: Accounts) -> Seen:
    for folder in accounts.folders():
        yield str(folder)
        there = in_time(folder, partial(nearest, folder))  # the rest is made with the first job
        must_be_writable(there)
    in_time(accounts.checkpoint_root(), accounts.must_enter)


def _gpus() -> Seen:
    try:
        machine = machine_read(virtual=settings.VIRTUAL_GPUS)
    except NothingFound as nothing:
        yield Finding(f"{nothing}.", "There is nothing for jobs to run on.", GPUS)
        return
    except pynvml.NVMLError as fault:
        raise BackendError(f"NVIDIA's driver does not tell of its GPUs: {fault}.") from fault
    kinds = Counter(device.name for device in machine.devices)
    yield ", ".join(f"{kind} × {count}" for kind, count in sorted(kinds.items()))
    for note in machine.notes:
        yield Finding(note, "", "", note=True)
