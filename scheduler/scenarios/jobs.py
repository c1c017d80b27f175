"""The jobs of a scenario: the largest list, so the one where reading must be cheap.

What is alike in many jobs is read once and shared as a `Kind`. Jobs that were decoded from text are read column by column, which stops
at the first fault; plain data is read job by job, which names every fault. Both go by the same tables.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import Any

from scheduler.engine.model.values import QUEUED, STATES, Checkpoint, Job, Kind, Quota, new_job

from .checkers import FLAG, SECONDS, TEXT, moment, one_of, text, whole
from .faults import Bad, kind_of, rows, short
from .fields import Codec, Field, Table, optional, record, with_defaults_of
from .kinds import kind_codec, kind_fields
from .places import Places
from .written import UNSET, Raw, alike, astuple, plain, row_type


def job_tables(now: int, quota: Codec = TEXT) -> tuple[Table, Table]:
    """The fields that each job has of its own, and those that say where it stands."""
    time, length = moment(now), optional(SECONDS)
    at = optional(time)
    own = {
        "name": Field("name", TEXT),
        "quota": Field("quota", quota),
        "submitted": Field("submitted", time, now),
        "estimate_s": Field("estimate_ms", length, None),
        "limit_s": Field("limit_ms", length, None),
        "deadline": Field("deadline", at, None),
        "not_before": Field("not_before", at, None),
        "waits_since": Field("waits_since", at, None, seldom=True),
        "work_s": Field("work_ms", length, None),
        "checkpoint": Field("checkpoint", remembered(optional(checkpoint_codec(time))), None),
    }
    standing = with_defaults_of(
        QUEUED,
        {
            "state": ("state", one_of(*STATES)),
            "since": ("since", at),
            "started": ("started", at),
            "until": ("until", at),
            "backfilled": ("backfilled", FLAG),
            "degraded_since": ("degraded_since", at),
            "last_evicted": ("last_evicted", at),
            "last_moved": ("last_moved", at),
            "evictions": ("evictions", whole(0, 1_000_000)),
            "reclaimed": ("reclaimed", at),
        },
    )
    standing |= {"workers": Field("stands", Codec(rows), ()), "leaving": Field("leaves", Codec(rows), ())}
    return Table(own, beside=(*standing, *kind_fields(()))), Table(standing)


def checkpoint_fields(time: Codec) -> dict[str, Field]:
    return {
        "interval_s": Field("interval_ms", optional(SECONDS), None),
        "last": Field("last", optional(time), None),
        "save_s": Field("save_ms", SECONDS, 0),
        "restore_s": Field("restore_ms", SECONDS, 0),
    }


def checkpoint_codec(time: Codec) -> Codec:
    return record(checkpoint_fields(time), Checkpoint)


def remembered(codec: Codec) -> Codec:
    """What is written alike is read once."""
    known: dict[bytes | None, Any] = {}

    def read(value: Any) -> Any:
        key = alike(value)
        found = known.get(key)
        if found is None:
            found = known[key] = codec.read(plain(value))
        return found

    return Codec(read, codec.write)


SHARED, OWN, STANDING = map(tuple, (kind_fields(()), *(table.fields for table in job_tables(0))))
_OWN, _STANDING, _CHECKPOINT = len(SHARED), len(SHARED) + len(OWN), OWN.index("checkpoint")
STANDS_NOWHERE = (UNSET,) * len(STANDING)
_AS_TEXT = dict.fromkeys(("roles", "topology", "node_labels", "needs", "throughput"), Raw)
Row = row_type((*SHARED, *OWN, *STANDING), _AS_TEXT | {"checkpoint": row_type(checkpoint_fields(moment(0))) | None})


class JobReader:
    def __init__(self, now: int, levels: Sequence[str], quotas: Sequence[Quota], named_quotas: Collection[str], places: Places) -> None:
        self.inner = {quota.parent for quota in quotas if quota.parent is not None}
        self.leaves = set(named_quotas) - self.inner
        self.own, self.standing = job_tables(now, Codec(self.leaf))
        self.kind = kind_reader(levels)
        self.places = places

    def read_all(self, rows: Sequence[Any]) -> list[Job]:
        """Jobs that were decoded as rows. Of what is wrong in them it is only said that something is."""
        kinds, parts, told = [], [], {}
        for place, stated in enumerate(map(astuple, rows)):
            kinds.append(self.kind(stated[:_OWN]))
            parts.append(stated[_OWN:_STANDING])
            if stated[_STANDING:] != STANDS_NOWHERE:
                told[place] = stated[_STANDING:]
        own = self.own.columns(parts)
        movable = [stated[_CHECKPOINT] is UNSET or checkpoint is not None for stated, checkpoint in zip(parts, own["checkpoint"], strict=True)]
        runs = [QUEUED] * len(rows)
        stands = self.standing.columns(told.values())
        for place, values in zip(told, zip(*stands.values(), strict=True), strict=True):
            runs[place] = self.places.run(dict(zip(stands, values, strict=True)), kinds[place], own["name"][place])
        if len({*own["name"]}) < len(rows):
            raise Bad("a name is given twice")
        values_of = own | {"kind": kinds, "run": runs, "movable": movable}
        return [*map(new_job, *(values_of[field.name] for field in fields(Job)))]

    def read(self, raw: Any) -> Job:
        """A job in plain data, or all that is wrong in it."""
        if type(raw) is not dict:
            raise Bad(f"must be an object, not {kind_of(raw)}")
        bad = Bad()
        kind: Any = bad.take(self.kind, [raw.get(key, UNSET) for key in SHARED])
        own: Any = bad.take(self.own.read, {key: value for key, value in raw.items() if key not in SHARED and key not in STANDING})
        told = {key: raw[key] for key in STANDING if key in raw}
        stands = bad.take(self.standing.read, told)
        run: Any = bad.take(lambda stands: self.places.run(stands, kind, raw.get("name")), stands) if told and kind and stands else QUEUED
        bad.raise_if_any()
        return new_job(kind=kind, run=run, movable="checkpoint" not in raw or own["checkpoint"] is not None, **own)

    def leaf(self, value: Any) -> str:
        if type(value) is str and value in self.leaves:
            return value
        why = "has quotas below it; jobs belong to its leaves" if text(value) in self.inner else "is not a quota of this scenario"
        raise Bad(f"{short(value)} {why}")


def kind_reader(levels: Sequence[str]) -> Callable[[Sequence[Any]], Kind]:
    """Of what jobs state for the keys that they share."""
    shared = kind_codec(levels)

    def read(stated: Sequence[Any]) -> Kind:
        kind: Kind = shared.read({key: plain(value) for key, value in zip(SHARED, stated, strict=True) if value is not UNSET})
        return kind

    return remembered(Codec(read)).read
