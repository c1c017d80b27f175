"""Submitting once, however often it is asked for: a caller names its submission, and a second request by that name gets the first one's jobs."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import DEFAULT_DB_ALIAS, connection, connections, transaction

from gpufleet.core.faults import Conflict, TooMany
from gpufleet.core.models import User
from gpufleet.core.prepared import PreparedUpdate, prepared_cursor, sent_ahead
from gpufleet.core.times import MomentField
from quotas.permissions import Access, Can
from scheduler.jobs.reading import Faults
from scheduler.jobs.storable import unstorable
from scheduler.models import Job, SubmissionKey
from scheduler.services.jobs.admission import refusals_counted, refusals_write, submissions_admit_each
from scheduler.services.jobs.submission import Checked, submission_create, submissions_judge, submissions_write

KEY_LENGTH = 100
KEY_USED = PreparedUpdate(lambda key, jobs: (SubmissionKey.objects.filter(pk=key), {"jobs": jobs}))


@dataclass(frozen=True, slots=True)
class Submitted:
    jobs: list[Job]
    repeated: bool = False


def submission_once(*, access: Access, description: Mapping[str, Any], key: str, now: datetime) -> Submitted:
    """Submit a description under a key, in one transaction with it: a key whose submission was refused may be used again."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SUBMIT):
        raise PermissionDenied("It needs a role that may submit, and a token with the scope submit.")
    if wrong := _key_faults(key, 0, 0):
        raise ValidationError({"Idempotency-Key": wrong})
    if not key or unstorable(description):
        return Submitted(submission_create(access=access, description=description, now=now, actor=access.actor))
    with refusals_counted(), transaction.atomic():
        taken = key_take(user=user, key=key, said=description, now=now)
        if isinstance(taken, SubmissionKey):
            return Submitted(list(_repeated({0: taken}, access)[0].jobs), repeated=True)
        used = partial(_key_used_for, taken)
        jobs = submission_create(access=access, description=description, now=now, actor=access.actor, also=used)
    return Submitted(jobs)


def key_take(*, user: User, key: str, said: Any, now: datetime) -> int | SubmissionKey:
    """In the caller's transaction: a key that is the caller's now, or the row of one under which the same was done before."""
    if wrong := _key_faults(key, 0, 0):
        raise ValidationError({"Idempotency-Key": wrong})
    digest = _digest(said)
    taken = _key_insert(user.pk, key, digest, now)
    if taken is not None:
        return taken
    row = SubmissionKey.objects.get(user=user, key=key)
    if row.digest != digest:
        raise Conflict(_taken(row))
    return row


def key_used(taken: int, jobs: Sequence[str]) -> None:
    """Under a key that was taken these were submitted."""
    KEY_USED(taken, json.dumps(list(jobs)))


def _key_used_for(taken: int, jobs: Sequence[Job]) -> None:
    key_used(taken, [job.public_id for job in jobs])


def _key_insert(user: int, key: str, digest: str, now: datetime) -> int | None:
    """The row of a key that nobody has used yet; None: it has been. A second request at the same time waits here for the first one's end."""
    with prepared_cursor(connections[DEFAULT_DB_ALIAS]) as cursor:
        with sent_ahead():  # with the beginning of the transaction, on one way there and back
            cursor.execute(
                "INSERT INTO submission_key (user_id, key, digest, jobs, at) VALUES (%s, %s, %s, '[]', %s)"
                " ON CONFLICT (user_id, key) DO NOTHING RETURNING id",
                [user, key, digest, MomentField().get_db_prep_value(now, connection)],
            )
        row = cursor.fetchone()
    return row[0] if row else None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one of many descriptions: its jobs, or its faults by path."""

    jobs: tuple[Job, ...] = ()
    faults: Mapping[str, Sequence[str]] | None = None
    repeated: bool = False
    fault: ValidationError | None = None  # of one that holds, and for which there is no room

    @property
    def wait_seconds(self) -> int:
        """After which the same may be tried again; 0: it makes no difference."""
        return self.fault.wait_seconds if isinstance(self.fault, TooMany) else 0


def submissions_each(*, access: Access, wishes: Sequence[tuple[str, Any]], now: datetime) -> list[Verdict]:
    """Submit many descriptions, each under its own key (or none) and with its own verdict: one that is refused keeps none of the others back."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SUBMIT):
        raise PermissionDenied("It needs a role that may submit, and a token with the scope submit.")
    verdicts: dict[int, Verdict] = {}
    digests: dict[int, str] = {}
    named: dict[str, int] = {}
    for place, (key, wish) in enumerate(wishes):
        if wrong := _key_faults(key, named.setdefault(key, place) if key else place, place):
            verdicts[place] = Verdict(faults={"key": [wrong]})
        elif key and not unstorable(wish):  # which is refused, and leaves no key behind
            digests[place] = _digest(wish)
    with transaction.atomic():
        # In the order of keys, so that two batches that share some wait for each other in one order.
        fresh = sorted((SubmissionKey(user=user, key=wishes[place][0], digest=digest, at=now) for place, digest in digests.items()), key=_key_of)
        SubmissionKey.objects.bulk_create(fresh, ignore_conflicts=True)
        rows = {row.key: row for row in SubmissionKey.objects.select_for_update().filter(user=user, key__among=[row.key for row in fresh])}
        used = {place: rows[wishes[place][0]] for place in digests}
        verdicts |= _repeated({place: row for place, row in used.items() if row.digest == digests[place] and row.jobs}, access)
        for place, row in used.items():
            if row.digest != digests[place]:
                verdicts[place] = Verdict(faults={"key": [_taken(row)]})
        open_places = [place for place in range(len(wishes)) if place not in verdicts]
        made = _made(access, [(place, wishes[place][1]) for place in open_places], now)
        refused = [used[place].pk for place, verdict in made.items() if verdict.faults and place in used]
        SubmissionKey.objects.filter(pk__among=refused).delete()
        kept = [used[place] for place, verdict in made.items() if verdict.jobs and place in used]
        for row, verdict in zip(kept, (verdict for place, verdict in made.items() if verdict.jobs and place in used), strict=True):
            row.jobs = [job.public_id for job in verdict.jobs]
        SubmissionKey.objects.bulk_update(kept, ["jobs"], batch_size=100)
    if any(isinstance(verdict.fault, TooMany) for verdict in made.values()):
        refusals_write()
    return [verdicts.get(place) or made[place] for place in range(len(wishes))]


def _key_of(row: SubmissionKey) -> str:
    return row.key


def _key_faults(key: str, first: int, place: int) -> str:
    if len(key) > KEY_LENGTH or not key.isprintable():
        return f"At most {KEY_LENGTH} printable characters."
    return f"It is the key of jobs[{first}], too." if first != place else ""


def _taken(row: SubmissionKey) -> str:
    return f"The key {row.key} was used for something else. Take a fresh one."


def _repeated(rows: Mapping[int, SubmissionKey], access: Access) -> dict[int, Verdict]:
    """Verdicts of wishes that were submitted before, by place: the same jobs again, as far as they may be seen now."""
    named = [name for row in rows.values() for name in row.jobs]
    found = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id__among=named).defer("spec", "launch")
    jobs = {job.public_id: job for job in found}
    return {place: Verdict(tuple(jobs[name] for name in row.jobs if name in jobs), repeated=True) for place, row in rows.items()}


def _made(access: Access, wishes: Sequence[tuple[int, Any]], now: datetime) -> dict[int, Verdict]:
    """Those that hold are submitted together, those that do not are left out with their faults."""
    judged = submissions_judge(access=access, descriptions=[wish for _, wish in wishes], now=now)
    good = [one for one in judged if isinstance(one, Checked)]
    full = submissions_admit_each(wishes=[one.wish for one in good], user=access.actor.user, now=now)
    admitted = [one for one, fault in zip(good, full, strict=True) if fault is None]
    jobs = iter(submissions_write(checked=admitted, access=access, now=now, actor=access.actor, is_admitted=True))
    verdicts, faults = {}, iter(full)
    for (place, _), one in zip(wishes, judged, strict=True):
        if not isinstance(one, Checked):
            verdicts[place] = Verdict(faults=one)
        elif (fault := next(faults)) is not None:
            verdicts[place] = Verdict(faults=fault.message_dict, fault=fault)
        else:
            verdicts[place] = Verdict(tuple(next(jobs) for _ in range(one.count)))
    return verdicts


def submissions_dry(*, access: Access, wishes: Sequence[Any], now: datetime) -> list[Checked | Faults]:
    """What submitting each of them would come to; nothing is written."""
    access.must_somewhere(Can.SUBMIT)
    return submissions_judge(access=access, descriptions=wishes, now=now)


def _digest(said: Any) -> str:
    return hashlib.sha256(orjson.dumps(said, option=orjson.OPT_SORT_KEYS)).hexdigest()
