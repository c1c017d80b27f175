"""Giving and taking roles. Nobody gives, or takes away, a role that can do more than they can on that node themselves."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import transaction

from gpufleet.core.audit import Actor, audit_record
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.models import User
from quotas.models import QuotaNode, Role, RoleBinding
from quotas.permissions import ROLE_CAPABILITIES, Access, Can
from quotas.selectors.people import given_by_rule
from quotas.services.nodes import lock_tree

SIGN_ON = "sign-on"


def may_hand_out(access: Access, role: str, path: str) -> bool:
    """Whether this access may give or take this role on the node at `path`."""
    held = access.capabilities_at(path)
    return Can.MANAGE_PEOPLE in held and ROLE_CAPABILITIES[role] <= held


def roles_to_hand_out(access: Access, path: str) -> list[Role]:
    return [role for role in Role if may_hand_out(access, role, path)]


def role_grant(
    *, access: Access, node: QuotaNode, role: str, user: User | None = None, group: str = "", reason: str = "", now: datetime
) -> RoleBinding:
    """Give a role to a person, or make the rule that members of a sign-on group get it when they next sign in."""
    group = group.strip()
    faults: dict[str, str] = {}
    if (user is None) == (not group):
        faults["user"] = "Name a person or a group of the sign-on provider, one of the two."
    if role not in Role.values:
        faults["role"] = "Choose one of " + ", ".join(Role.values) + "."
    if len(group) > 200:
        faults["group"] = "A group's name can have 200 characters."
    if user is not None and not user.is_active:
        faults["user"] = "This person is deactivated."
    if node.archived_at is not None:
        faults["node"] = "This node is archived."
    if faults:
        raise ValidationError(faults)
    must_hand_out(access, role, node)
    with transaction.atomic():
        lock_tree()
        found = RoleBinding.objects.filter(user=user, group=group, role=role, node=node).first()
        if found is not None and not found.from_sign_on:
            raise ValidationError({"role": "They already have this role here."})
        binding = found or RoleBinding(user=user, group=group, role=role, node=node)
        # A role that sign-on gave becomes one that stays when it is granted by hand.
        binding.from_sign_on, binding.granted_at, binding.granted_by = False, now, access.actor.user
        binding.save()
        _record(access.actor, "role.grant", binding, after=_facts(binding), reason=reason)
    return binding


def role_revoke(*, access: Access, binding: RoleBinding, reason: str = "") -> None:
    """Take a role away. With a group's rule go the roles that it gave at sign-on."""
    must_hand_out(access, binding.role, binding.node)
    with transaction.atomic():
        lock_tree()
        going = [*(given_by_rule(binding) if binding.group else []), binding]
        _must_leave_a_superuser(going)
        for gone in going:
            _record(access.actor, "role.revoke", gone, before=_facts(gone), reason=reason)
            gone.delete()


def roles_follow_groups(*, user: User, groups: Iterable[str], actor: Actor, now: datetime) -> None:
    """At sign-in: give what the rules give to these groups, and take away what earlier groups gave. Roles given by hand stay."""
    wanted: dict[tuple[str, int], RoleBinding] = {}
    for rule in RoleBinding.objects.filter(group__in=set(groups), user=None, node__archived_at__isnull=True).select_related("node").order_by("pk"):
        wanted.setdefault((rule.role, rule.node_id), rule)
    with transaction.atomic():
        # Somebody who signs in twice at once is given each role once.
        lock_tree()
        for held in RoleBinding.objects.filter(user=user).select_related("node"):
            rule_or_none = wanted.pop((held.role, held.node_id), None)
            if rule_or_none is None and held.from_sign_on:
                _record(actor, "role.revoke", held, before=_facts(held), reason="The sign-on provider no longer names a group that gives it.")
                held.delete()
        for rule in wanted.values():
            binding = RoleBinding.objects.create(user=user, role=rule.role, node=rule.node, from_sign_on=True, granted_at=now)
            _record(actor, "role.grant", binding, after=_facts(binding), reason=f"Member of “{rule.group}”.")


def must_hand_out(access: Access, role: str, node: QuotaNode) -> None:
    """Raise `PermissionDenied` unless this access may give or take this role on the node."""
    if not may_hand_out(access, role, node.path):
        raise PermissionDenied(
            f"This requires the right to manage people on {node.path}, and you cannot grant a role with more rights than your own."
        )


def _must_leave_a_superuser(going: list[RoleBinding]) -> None:
    people = RoleBinding.objects.filter(role=Role.SUPERUSER, node__parent__isnull=True, node__archived_at__isnull=True, user__is_active=True)
    keys = [binding.pk for binding in going]
    if not people.filter(pk__in=keys).exists():
        return
    if not people.exclude(pk__in=keys).exists() and not User.objects.filter(is_superuser=True, is_active=True).exists():
        raise ValidationError("This is the last superuser; make another one first.")


def _facts(binding: RoleBinding) -> dict[str, Any]:
    holder = {"person": binding.user.username} if binding.user else {"group": binding.group}
    return {**holder, "role": binding.role, "node": binding.node.path, "from_sign_on": binding.from_sign_on}


def _record(actor: Actor, action: str, binding: RoleBinding, **sides: Any) -> None:
    holder = binding.user.public_id if binding.user else f"group:{binding.group}"[:120]
    audit_record(actor=actor, action=action, kind="role", object_id=holder, quota=binding.node, **sides)
    if binding.user:
        # Open pages ask again at once what they may follow.
        feed_publish(changes={"roles": [{"id": binding.user.pk}]})
