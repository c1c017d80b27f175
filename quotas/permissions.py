"""The one place that says who may do what. Views, API, websockets and selectors all ask an `Access`.

A role is given on a node of the quota tree and holds for its subtree. What concerns the fleet as a whole (nodes, imports, drains) needs the
capability on the root.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from django.core.exceptions import PermissionDenied
from django.db.models import Q, QuerySet

from gpufleet.core.audit import Actor
from gpufleet.core.models import User
from gpufleet.core.prepared import Prepared
from quotas.models import QuotaNode, Role, RoleBinding


class Can(StrEnum):
    SEE = "see"
    SUBMIT = "submit"
    MANAGE_JOBS = "manage_jobs"
    MANAGE_PEOPLE = "manage_people"
    EDIT_QUOTA = "edit_quota"
    OPERATE = "operate"
    SEE_COSTS = "see_costs"
    MANAGE_COSTS = "manage_costs"
    SEE_AUDIT = "see_audit"
    ADMINISTER = "administer"


ROLE_CAPABILITIES: dict[str, frozenset[Can]] = {
    Role.VIEWER: frozenset({Can.SEE}),
    Role.SUBMITTER: frozenset({Can.SEE, Can.SUBMIT}),
    Role.TEAM_LEAD: frozenset({Can.SEE, Can.SUBMIT, Can.MANAGE_JOBS, Can.MANAGE_PEOPLE, Can.SEE_COSTS}),
    Role.QUOTA_ADMIN: frozenset({Can.SEE, Can.EDIT_QUOTA, Can.MANAGE_PEOPLE, Can.SEE_COSTS, Can.SEE_AUDIT}),
    Role.OPERATOR: frozenset({Can.SEE, Can.OPERATE, Can.MANAGE_JOBS, Can.SEE_AUDIT}),
    Role.FINANCE: frozenset({Can.SEE, Can.SEE_COSTS, Can.MANAGE_COSTS, Can.SEE_AUDIT}),
    Role.SUPERUSER: frozenset(Can),
}


class Scope(StrEnum):
    """What a token may be made for. Each scope lets some of its owner's capabilities through; it never adds one."""

    READ = "read"
    SUBMIT = "submit"
    OPERATE = "operate"
    ADMIN = "admin"


SCOPE_CAPABILITIES: dict[str, frozenset[Can]] = {
    Scope.READ: frozenset({Can.SEE, Can.SEE_COSTS, Can.SEE_AUDIT}),
    Scope.SUBMIT: frozenset({Can.SEE, Can.SUBMIT, Can.MANAGE_JOBS}),
    Scope.OPERATE: frozenset({Can.SEE, Can.OPERATE, Can.MANAGE_JOBS}),
    Scope.ADMIN: frozenset({Can.SEE, Can.EDIT_QUOTA, Can.MANAGE_PEOPLE, Can.MANAGE_COSTS, Can.ADMINISTER}),
}


@dataclass(frozen=True, slots=True)
class Grant:
    """Capabilities on one subtree. The empty path stands for everything, also for trees that do not exist yet."""

    path: str
    capabilities: frozenset[Can]


@dataclass(frozen=True, slots=True)
class Access:
    """All that one signed-in person or token may do."""

    actor: Actor
    grants: tuple[Grant, ...]
    within: str = ""  # the subtree that a token was cut down to
    owner: "Access | None" = None  # of a token: what its owner may do with all of his roles

    def can(self, capability: Can, path: str) -> bool:
        """Whether the capability holds on the node at `path`."""
        return any(capability in grant.capabilities and is_within(path, grant.path) for grant in self.grants)

    def can_somewhere(self, capability: Can) -> bool:
        return any(capability in grant.capabilities for grant in self.grants)

    def can_everywhere(self, capability: Can) -> bool:
        """Whether it holds on the whole fleet: on the root of the tree."""
        return any(capability in grant.capabilities and "/" not in grant.path for grant in self.grants)

    def capabilities_at(self, path: str) -> frozenset[Can]:
        """All that holds on the node at `path`; on the empty path, what holds everywhere."""
        return frozenset[Can]().union(*(grant.capabilities for grant in self.grants if is_within(path, grant.path)))

    def must(self, capability: Can, path: str) -> None:
        """Raise `PermissionDenied` unless the capability holds on the node at `path`."""
        if not self.can(capability, path):
            raise self.refusal(capability, path=path)

    def must_somewhere(self, capability: Can) -> None:
        if not self.can_somewhere(capability):
            raise self.refusal(capability)

    def must_everywhere(self, capability: Can) -> None:
        if not self.can_everywhere(capability):
            raise PermissionDenied(self._cut(lambda access: [capability] if access.can_everywhere(capability) else []))

    def refusal(self, *capabilities: Can, path: str | None = None, otherwise: str = "") -> PermissionDenied:
        """To be raised where one of these is needed, at `path` or anywhere. Who asks with a token of his that lacks a scope is told which one."""

        def held(access: Access) -> list[Can]:
            return [one for one in capabilities if (access.can_somewhere(one) if path is None else access.can(one, path))]

        return PermissionDenied(self._cut(held) or otherwise)

    def _cut(self, held: Callable[["Access"], list[Can]]) -> str:
        """What keeps a token from what its owner may do; nothing where he may not either."""
        owners = held(self.owner) if self.owner else []
        if not owners:
            return ""
        if self.within and any(self.can_somewhere(one) for one in owners):
            return f"This token is for {self.within} alone."
        scopes = [scope for scope, through in SCOPE_CAPABILITIES.items() if through.intersection(owners)]
        return f"You may do this, but this token may not: it needs the scope {' or '.join(scopes)}."

    def paths(self, capability: Can) -> tuple[str, ...]:
        """The topmost subtrees on which the capability holds, in order."""
        held = sorted({grant.path for grant in self.grants if capability in grant.capabilities})
        return tuple(path for path in held if not any(other != path and is_within(path, other) for other in held))

    def narrowed(self, capabilities: Iterable[Can], path: str, actor: Actor) -> "Access":
        """This access cut down to some capabilities and one subtree, as a token's is."""
        kept = frozenset(capabilities)
        narrow = []
        for grant in self.grants:
            inner = path if is_within(path, grant.path) else grant.path if is_within(grant.path, path) else None
            if inner is not None:
                narrow.append(Grant(inner, grant.capabilities & kept))
        return Access(actor, tuple(narrow), path, self)

    def visible(self, capability: Can, column: str = "path") -> Q:
        """A filter for rows whose quota path (in `column`) lies where the capability holds."""
        condition = Q(pk__in=[])
        for path in self.paths(capability):
            if not path:
                return ~Q(pk__in=[])  # every row; an empty condition would be lost beside others
            condition |= at_or_below(path, column)
        return condition


def at_or_below(path: str, column: str = "path") -> Q:
    """A filter for rows whose quota path (in `column`) is that path, or lies below it."""
    return Q(**{column: path}) | Q(**{f"{column}__startswith": f"{path}/"})


def is_within(path: str, ancestor: str) -> bool:
    """Whether `path` is `ancestor` or lies below it. Everything lies below the empty path."""
    return not ancestor or path == ancestor or path.startswith(ancestor + "/")


BINDINGS: Prepared[tuple[str, str]] = Prepared(
    lambda user: (
        RoleBinding.objects.filter(user_id=user, node__archived_at__isnull=True).order_by("node__path", "role").values_list("node__path", "role")
    )
)


def access_for_user(user: User, *, via: str = "session", request_id: str = "") -> Access:
    """What a person may do, in one query. An inactive or anonymous person may do nothing."""
    return _access(user, lambda: BINDINGS(user.pk), via, request_id)


def accesses_for_users(users: Iterable[User], *, via: str = "session") -> dict[int, Access]:
    """What each of several people may do, by their keys, in one query for all."""
    people = {user.pk: user for user in users}
    held: dict[int, list[tuple[str, str]]] = {key: [] for key in people}
    asked = [key for key, user in people.items() if user.is_active and not user.is_superuser]
    rows = RoleBinding.objects.filter(user__among=asked, node__archived_at__isnull=True).order_by("node__path", "role")
    for key, path, role in rows.values_list("user_id", "node__path", "role"):
        held[key].append((path, role))
    return {key: _access(user, lambda key=key: held[key], via, "") for key, user in people.items()}  # type: ignore[misc]


def _access(user: User, bindings: Callable[[], Iterable[tuple[str, str]]], via: str, request_id: str) -> Access:
    actor = Actor(user=user if user.is_authenticated else None, name=str(user), via=via, request_id=request_id)
    if not user.is_authenticated or not user.is_active:
        return Access(actor, ())
    if user.is_superuser:
        return Access(actor, (Grant("", ROLE_CAPABILITIES[Role.SUPERUSER]),))
    return Access(actor, tuple(Grant(path, ROLE_CAPABILITIES[role]) for path, role in bindings()))


def exceeds(theirs: Access, mine: Access) -> bool:
    """Whether `theirs` holds anywhere a capability that `mine` does not hold there."""
    return any(not grant.capabilities <= mine.capabilities_at(grant.path) for grant in theirs.grants)


def nodes_visible(access: Access, capability: Can = Can.SEE) -> QuerySet[QuotaNode]:
    return QuotaNode.objects.filter(access.visible(capability), archived_at__isnull=True)
