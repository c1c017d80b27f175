"""Submitting once, however often it is asked for: a caller names its submission, and a second request by that name gets the first one's jobs."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from gpufleet.core.faults import Conflict
from quotas.permissions import Access, Can
from scheduler.models import Job, SubmissionKey
from scheduler.services.submission import submission_create, submissions_create

KEY_LENGTH = 100
_PLACE = re.compile(r"\[(\d+)\]\.?")


@dataclass(frozen=True, slots=True)
class Submitted:
    jobs: list[Job]
    repeated: bool = False


def submission_once(*, access: Access, description: Mapping[str, Any], key: str, now: datetime) -> Submitted:
    """Submit a description under a key, in one transaction with it: a key whose submission was refused may be used again."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SUBMIT):
        raise PermissionDenied("It needs a role that may submit, and a token with the scope submit.")
    if not key:
        return Submitted(submission_create(access=access, description=description, now=now, actor=access.actor))
    if len(key) > KEY_LENGTH or not key.isprintable():
        raise ValidationError({"Idempotency-Key": f"At most {KEY_LENGTH} printable characters."})
    digest = _digest(description)
    with transaction.atomic():
        # A second request at the same time waits here for the first one's end, and then finds its row.
        row, fresh = SubmissionKey.objects.get_or_create(user=user, key=key, defaults={"digest": digest, "at": now})
        if not fresh:
            return _again(row, digest, access)
        jobs = submission_create(access=access, description=description, now=now, actor=access.actor)
        SubmissionKey.objects.filter(pk=row.pk).update(jobs=[job.public_id for job in jobs])
    return Submitted(jobs)


def _again(row: SubmissionKey, digest: str, access: Access) -> Submitted:
    if row.digest != digest:
        raise Conflict(f"The key {row.key} was used for another description. Take a fresh one.")
    found = Job.objects.filter(access.visible(Can.SEE, "quota__path"), public_id__in=row.jobs)
    return Submitted(list(found.order_by("id")), repeated=True)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one of many descriptions: its jobs, or its faults by path."""

    jobs: tuple[Job, ...] = ()
    faults: Mapping[str, Sequence[str]] | None = None
    repeated: bool = False


def submissions_each(*, access: Access, wishes: Sequence[tuple[str, Mapping[str, Any]]], now: datetime) -> list[Verdict]:
    """Submit many descriptions, each under its own key (or none) and with its own verdict: one that is refused keeps none of the others back."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SUBMIT):
        raise PermissionDenied("It needs a role that may submit, and a token with the scope submit.")
    keys = [key for key, _ in wishes if key]
    if len(set(keys)) != len(keys):
        raise ValidationError({"jobs": "A key is named twice."})
    verdicts: dict[int, Verdict] = {}
    with transaction.atomic():
        fresh = [SubmissionKey(user=user, key=key, digest=_digest(wish), at=now) for key, wish in wishes if key]
        # In the order of keys, so that two batches that share some wait for each other in one order.
        SubmissionKey.objects.bulk_create(sorted(fresh, key=lambda row: row.key), ignore_conflicts=True)
        known = {row.key: row for row in SubmissionKey.objects.select_for_update().filter(user=user, key__in=keys)}
        open_places = []
        for place, (key, wish) in enumerate(wishes):
            row = known.get(key)
            if row is None or (not row.jobs and row.digest == _digest(wish)):
                open_places.append(place)
            elif row.digest != _digest(wish):
                verdicts[place] = Verdict(faults={"key": [f"The key {key} was used for another description. Take a fresh one."]})
            else:
                again = _again(row, row.digest, access)
                verdicts[place] = Verdict(tuple(again.jobs), repeated=True)
        made = _made(access, [(place, wishes[place][1]) for place in open_places], now)
        refused = [wishes[place][0] for place, verdict in made.items() if verdict.faults]
        SubmissionKey.objects.filter(user=user, key__in=[key for key in refused if key], jobs=[]).delete()
        used = [known[wishes[place][0]] for place, verdict in made.items() if verdict.jobs and wishes[place][0]]
        for row, verdict in zip(used, (made[place] for place in made if made[place].jobs and wishes[place][0]), strict=True):
            row.jobs = [job.public_id for job in verdict.jobs]
        SubmissionKey.objects.bulk_update(used, ["jobs"], batch_size=100)
    return [verdicts.get(place) or made[place] for place in range(len(wishes))]


def _made(access: Access, wishes: Sequence[tuple[int, Mapping[str, Any]]], now: datetime) -> dict[int, Verdict]:
    """Those that hold are submitted together, those that do not are left out with their faults."""
    verdicts: dict[int, Verdict] = {}
    good = list(wishes)
    while good:
        try:
            jobs = submissions_create(access=access, descriptions=[wish for _, wish in good], now=now, actor=access.actor)
        except ValidationError as fault:
            wrong = _by_place(fault, len(good))
            verdicts |= {good[index][0]: Verdict(faults=faults) for index, faults in wrong.items()}
            good = [one for index, one in enumerate(good) if index not in wrong]
            continue
        counts = [_count(wish) for _, wish in good]
        rows = iter(jobs)
        for (place, _), count in zip(good, counts, strict=True):
            verdicts[place] = Verdict(tuple(next(rows) for _ in range(count)))
        break
    return verdicts


def _count(wish: Mapping[str, Any]) -> int:
    array = wish.get("array")
    if not array:
        return 1
    return int(array["size"]) if array.get("size") is not None else len(array["values"])


def _by_place(fault: ValidationError, count: int) -> dict[int, dict[str, list[str]]]:
    """Faults by the description that they are about. What is about none of them is about all."""
    found: dict[int, dict[str, list[str]]] = {}
    for path, messages in fault.message_dict.items():
        named = _PLACE.match(path) if count > 1 else None
        if named:
            found.setdefault(int(named[1]), {})[path[named.end() :] or "description"] = messages
        else:
            for index in range(count):
                found.setdefault(index, {})[path] = messages
    return found


def _digest(description: Mapping[str, Any]) -> str:
    return hashlib.sha256(orjson.dumps(description, option=orjson.OPT_SORT_KEYS)).hexdigest()
