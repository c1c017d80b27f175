"""Who acts, and the log of what they did. Every service that writes takes an `Actor` and records an entry in the same transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Required, TypedDict, Unpack

from gpufleet.core.bulk import rows_insert
from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now

# What every table keeps of an actor's name.
NAME_LENGTH = 160
COLUMNS = tuple(field.attname for field in AuditEntry._meta.concrete_fields if not field.primary_key)


@dataclass(frozen=True, slots=True)
class Actor:
    """Who does something, and by which door. `user` is None for the system itself. A name has at most `NAME_LENGTH` characters."""

    user: User | None
    name: str
    via: str
    request_id: str = ""


class Subtree(Protocol):
    """A node of the quota tree, as far as the log needs to know it."""

    @property
    def pk(self) -> int: ...

    @property
    def path(self) -> str: ...


SYSTEM = Actor(user=None, name="gpufleet", via="system")


class Facts(TypedDict, total=False):
    """What an entry says.

    `quota` is the node whose subtree it concerns. Its key is kept beside its path, so that the entry stays where it belongs when the node is moved
    or renamed. `quota_path` says another path than the node has now.
    """

    actor: Required[Actor]
    action: Required[str]
    kind: Required[str]
    object_id: Required[str]
    quota: Subtree | None
    quota_path: str | None
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    reason: str


def audit_record(**facts: Unpack[Facts]) -> AuditEntry:
    """Write one entry, as `audit_entry` makes it."""
    entry = audit_entry(**facts)
    entry.save(force_insert=True)
    return entry


def audit_write(*, entries: Sequence[AuditEntry]) -> None:
    """Write many entries of one request in one statement. Nobody needs their keys."""
    rows_insert(AuditEntry, COLUMNS, ([getattr(entry, name) for name in COLUMNS] for entry in entries))


def audit_entry(**facts: Unpack[Facts]) -> AuditEntry:
    """An entry that is yet to be written.

    With both sides given only the fields that differ are kept, and a write that changed nothing still says that it happened.
    """
    actor, quota, quota_path = facts["actor"], facts.get("quota"), facts.get("quota_path")
    before, after = facts.get("before"), facts.get("after")
    if before is not None and after is not None:
        changed = [key for key in {**before, **after} if before.get(key) != after.get(key)]
        before = {key: before.get(key) for key in changed}
        after = {key: after.get(key) for key in changed}
    return AuditEntry(
        at=now(),
        actor=actor.user,
        actor_name=actor.name,
        via=actor.via,
        action=facts["action"],
        object_kind=facts["kind"],
        object_id=facts["object_id"],
        quota_id=quota.pk if quota else None,
        quota_path=quota_path if quota_path is not None else quota.path if quota else "",
        before=before,
        after=after,
        reason=facts.get("reason", ""),
        request_id=actor.request_id,
    )
