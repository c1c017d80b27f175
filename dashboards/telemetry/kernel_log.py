"""XIDs of this machine's GPUs from the kernel's log.

The driver's library tells XIDs only to a program that stays connected to the GPUs, which keeps them from being reset or repartitioned. The driver
also writes each into the kernel's log: any process can read it there, at any time. What tells a record that was counted from a new one is its number
and the boot it is of. Its time is the processor's, which nobody sets right: it drifts from the clock by seconds a day.
"""

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LOG, DRIVER_GPUS, BOOT = Path("/dev/kmsg"), Path("/proc/driver/nvidia/gpus"), Path("/proc/sys/kernel/random/boot_id")
RECORD = 8192  # the longest that the kernel gives at once
# `6,1042,8123456789,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …`: the second figure numbers the records of a boot. Of a MIG instance the bracket
# goes on: `(PCI:0000:3b:00 GPU-I:05 GPU-CI:00)`.
_NUMBER = re.compile(rb"\d+,(\d+),\d+,")
_XID = re.compile(rb"[^;]*;NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True, slots=True)
class Xid:
    """One that the driver reported, of which GPU, in which record of the log."""

    number: int
    uuid: str
    code: int


@dataclass(frozen=True, slots=True)
class KernelLog:
    """What the log still holds of XIDs, the oldest first; `newest` numbers its last record, whatever that says."""

    boot: str
    booted: datetime
    newest: int
    uuids: frozenset[str]  # of all GPUs of which it would tell
    xids: tuple[Xid, ...] = ()


def kernel_log_read(*, log: Path = LOG, gpus: Path = DRIVER_GPUS, boot: Path = BOOT) -> KernelLog | None:
    """None where the driver has no GPUs, and where the log can't be read: that takes root, or the capability CAP_SYSLOG."""
    uuids = _uuids(gpus)
    if not uuids:
        return None
    newest, found = -1, []
    for record in _records(log):
        numbered = _NUMBER.match(record)
        if numbered is None:
            continue  # a line that belongs to the record above
        newest = max(newest, int(numbered[1]))
        told = _XID.match(record)
        if told is not None and (uuid := uuids.get(_place(told[1].decode()))) is not None:
            found.append(Xid(int(numbered[1]), uuid, int(told[2])))
    try:
        named = boot.read_text().strip()
    except OSError:
        return None
    if newest < 0:
        return None
    booted = datetime.fromtimestamp(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME), UTC)
    return KernelLog(named, booted, newest, frozenset(uuids.values()), tuple(found))


def _uuids(gpus: Path) -> dict[tuple[int, ...], str]:
    """UUIDs by place on the PCI bus, also of a GPU that has fallen off it."""
    found = {}
    for told in sorted(gpus.glob("*/information")):
        try:
            uuid = _UUID.search(told.read_text(errors="replace"))
        except OSError:
            continue  # it has just gone
        if uuid is not None:
            found[_place(told.parent.name)] = uuid[1]
    return found


def _place(text: str) -> tuple[int, ...]:
    """`0000:3b:00` and `00000000:3B:00.0` alike: domain, bus and device."""
    return tuple(int(part, 16) for part in text.partition(".")[0].split(":"))


def _records(log: Path) -> Iterator[bytes]:
    try:
        device = os.open(log, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return  # not for us, or there is none
    try:
        while True:
            try:
                record = os.read(device, RECORD)
            except BlockingIOError:
                return
            except OSError as fault:
                if fault.errno == errno.EPIPE:  # it was overwritten while we read; the next one is there
                    continue
                return
            if not record:
                return
            yield from record.splitlines()  # the kernel gives one at a time, a file several
    finally:
        os.close(device)
