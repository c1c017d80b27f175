"""Scenarios as most are written, decoded with types in one go.

The decoder stops at the first thing that is not as usual, and then nothing is decoded: the careful readers take the same text and
name all that is wrong, if anything is. What many jobs share stays raw text here, as it is read once for all of them.
"""

import json
from typing import Any

import msgspec
import numpy as np
from msgspec import UNSET, Raw, Struct, UnsetType

Count = int | UnsetType
Length = int | float | UnsetType | None
Moment = str | int | float | UnsetType | None
NOT_PLAIN = -1


class WrittenWorker(Struct, forbid_unknown_fields=True):
    node: str
    gpus: list[int]
    role: str | UnsetType = UNSET
    index: Count = UNSET
    gpu_share: Any = UNSET
    gpu_memory_gb: Any = UNSET
    mig: Any = UNSET

    @property
    def in_part(self) -> bool:
        return self.gpu_share is not UNSET or self.gpu_memory_gb is not UNSET or self.mig is not UNSET


class WrittenCheckpoint(Struct, forbid_unknown_fields=True):
    interval_s: Length = UNSET
    last: Moment = UNSET
    save_s: int | float | UnsetType = UNSET
    restore_s: int | float | UnsetType = UNSET


class WrittenJob(Struct, forbid_unknown_fields=True):
    name: str
    quota: str
    roles: Raw
    class_: str | UnsetType = msgspec.field(name="class", default=UNSET)
    priority: Count = UNSET
    preemptible: bool | str | UnsetType = UNSET
    topology: Raw | UnsetType = UNSET
    sharing: str | UnsetType | None = UNSET
    node_labels: Raw | UnsetType = UNSET
    needs: Raw | UnsetType = UNSET
    tolerates_suspect: bool | UnsetType = UNSET
    preemption_delay_s: int | float | UnsetType = UNSET
    grace_s: int | float | UnsetType = UNSET
    throughput: Raw | UnsetType = UNSET
    submitted: str | int | float | UnsetType = UNSET
    estimate_s: Length = UNSET
    limit_s: Length = UNSET
    deadline: Moment = UNSET
    not_before: Moment = UNSET
    checkpoint: WrittenCheckpoint | UnsetType | None = UNSET
    work_s: Length = UNSET
    state: str | UnsetType = UNSET
    since: Moment = UNSET
    started: Moment = UNSET
    until: Moment = UNSET
    workers: list[WrittenWorker] | UnsetType = UNSET
    leaving: list[WrittenWorker] | UnsetType = UNSET
    backfilled: bool | UnsetType = UNSET
    degraded_since: Moment = UNSET
    last_evicted: Moment = UNSET
    last_moved: Moment = UNSET
    evictions: Count = UNSET
    reclaimed: Moment = UNSET


class Written(Struct, forbid_unknown_fields=True):
    """A scenario whose jobs are typed; the other lists are short and stay plain data."""

    format: Any = UNSET
    now: Any = UNSET
    settings: Any = UNSET
    topology: Any = UNSET
    nodes: Any = UNSET
    quotas: Any = UNSET
    reservations: Any = UNSET
    demand: Any = UNSET
    jobs: list[WrittenJob] | UnsetType = UNSET

    def plain(self) -> dict[str, Any]:
        """As a plain decoder would have it, but for the jobs."""
        return {name: value for name in self.__struct_fields__ if (value := getattr(self, name)) is not UNSET}


_decoder = msgspec.json.Decoder(Written)
_encoder = msgspec.json.Encoder()


def written(document: bytes) -> Written | None:
    """The scenario in a JSON text, or None where anything about it is unusual."""
    keys = keys_written(document)
    if keys == NOT_PLAIN:
        return None
    try:
        found = _decoder.decode(document)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    # Of a key that is given twice the decoder keeps one, so what it has found has fewer keys when it is written again.
    return found if keys_written(_encoder.encode(found)) == keys else None


def keys_written(text: bytes) -> int:
    """How many keys stand in a JSON text, or NOT_PLAIN where that is not plain to see.

    With no backslash in it a quote always begins or ends a string. So a quote right before a colon ends a key, or begins a text
    with a colon: such a text is counted as often as it stands there, before and after decoding.
    """
    if b"\\" in text:
        return NOT_PLAIN
    letters = np.frombuffer(text, dtype=np.uint8)
    before, colons = letters[:-1], letters[1:] == ord(":")
    return NOT_PLAIN if (colons & (before <= ord(" "))).any() else int(np.count_nonzero(colons & (before == ord('"'))))


class GivenTwice(Exception):
    """A key stands twice in one object."""


def _once(items: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(items)
    if len(found) != len(items):
        raise GivenTwice
    return found


def plain(row: WrittenJob) -> Any:
    """A job as a plain decoder would have it. What was left raw was not looked into before."""
    return json.loads(_encoder.encode(row), object_pairs_hook=_once)


def kind_key(row: WrittenJob) -> tuple[Any, ...]:
    """Jobs that are equal in this are of one kind."""
    topology, labels, needs, throughput = row.topology, row.node_labels, row.needs, row.throughput
    return (
        bytes(row.roles),
        row.class_,
        row.priority,
        row.preemptible,
        row.sharing,
        row.tolerates_suspect,
        row.preemption_delay_s,
        row.grace_s,
        topology if topology is UNSET else bytes(topology),
        labels if labels is UNSET else bytes(labels),
        needs if needs is UNSET else bytes(needs),
        throughput if throughput is UNSET else bytes(throughput),
    )
