"""XIDs of this machine's GPUs from the kernel's log.

The driver's library tells XIDs only to a program that stays connected to the GPUs, which keeps them from being reset or repartitioned. The driver
also writes each into the kernel's log, with a moment: any process can read it there, at any time, and count it once.
"""

import errno
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

LOG, DRIVER_GPUS = Path("/dev/kmsg"), Path("/proc/driver/nvidia/gpus")
RECORD = 8192  # the longest that the kernel gives at once
# `6,1042,8123456789,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, …`: microseconds since the machine was started. Of a MIG instance the bracket goes
# on: `(PCI:0000:3b:00 GPU-I:05 GPU-CI:00)`.
_XID = re.compile(rb"\d+,\d+,(\d+),[^;]*;NVRM: Xid \(PCI:([0-9a-fA-F:.]+)[^)]*\): (\d+)")
_UUID = re.compile(r"GPU UUID:\s*(GPU-[0-9a-fA-F-]+)")


@dataclass(frozen=True, slots=True)
class Xid:
    """One that the driver reported, and of which GPU."""

    at: datetime
    uuid: str
    code: int


def xids_read(*, log: Path = LOG, gpus: Path = DRIVER_GPUS) -> list[Xid]:
    """All that the log still holds, the oldest first. None where it can't be read: it takes root, or the capability CAP_SYSLOG."""
    uuids = _uuids(gpus)
    if not uuids:
        return []
    started = time.time() - time.monotonic()
    found = []
    for record in _records(log):
        told = _XID.match(record)
        if told is not None and (uuid := uuids.get(_place(told[2].decode()))) is not None:
            found.append(Xid(datetime.fromtimestamp(started + int(told[1]) / 1e6, UTC), uuid, int(told[3])))
    return found


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
