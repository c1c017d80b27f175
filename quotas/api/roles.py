"""Roles on nodes of the tree, and the rules that give them to groups, for programs."""

from datetime import datetime

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from ninja import Query, Router, Schema, Status
from pydantic import Field

from gpufleet.core.taken import Taken
from gpufleet.core.times import now
from gpufleet.navigation import access_of
from quotas.api.lists import ReasonQuery
from quotas.models import RoleBinding
from quotas.permissions import Can
from quotas.selectors.nodes import node_for, roles_on
from quotas.selectors.people import binding_for, group_rules, person_named
from quotas.services.roles import role_grant, role_revoke

router = Router(tags=["Roles"])


class RoleIn(Taken):
    role: str
    username: str = Field("", description="A person, or …")
    group: str = Field("", description="… a group of the sign-on provider; one of the two.")
    reason: str = Field("", max_length=500)


class RoleOut(Schema):
    id: int
    role: str
    username: str | None
    group: str
    node: str = Field(description="Path of the node that the role was given on.")
    from_sign_on: bool
    granted_at: datetime


def role_out(binding: RoleBinding) -> RoleOut:
    return RoleOut(
        id=binding.pk,
        role=binding.role,
        username=binding.user.username if binding.user else None,
        group=binding.group,
        node=binding.node.path,
        from_sign_on=binding.from_sign_on,
        granted_at=binding.granted_at,
    )


@router.get("/quotas/{public_id}/roles", response=list[RoleOut], summary="Roles that hold on a node")
def role_list(request: HttpRequest, public_id: str) -> list[RoleOut]:
    """Those given on it and those given above it."""
    access_of(request).must_somewhere(Can.SEE)
    return [role_out(binding) for binding in roles_on(node_for(access_of(request), public_id))]


@router.post("/quotas/{public_id}/roles", response={201: RoleOut}, summary="Give a role")
def role_create(request: HttpRequest, public_id: str, payload: RoleIn) -> Status[RoleOut]:
    access = access_of(request)
    access.must_somewhere(Can.MANAGE_PEOPLE)
    node = node_for(access, public_id, Can.MANAGE_PEOPLE)
    user = person_named(payload.username) if payload.username else None
    if payload.username and user is None:
        raise ValidationError({"username": "No person has this user name."})
    binding = role_grant(access=access, node=node, role=payload.role, user=user, group=payload.group, reason=payload.reason, now=now())
    return Status(201, role_out(binding))


@router.delete("/roles/{role_id}", response={204: None}, summary="Take a role away")
def role_delete(request: HttpRequest, role_id: int, query: Query[ReasonQuery]) -> Status[None]:
    """With a group's rule go the roles that it gave."""
    access = access_of(request)
    access.must_somewhere(Can.MANAGE_PEOPLE)
    role_revoke(access=access, binding=binding_for(access, role_id), reason=query.reason[:500])
    return Status(204, None)


@router.get("/group-rules", response=list[RoleOut], summary="Rules that give roles to groups of the sign-on provider")
def group_rule_list(request: HttpRequest) -> list[RoleOut]:
    """Those in subtrees where the caller manages people. A rule is made and ended like a role."""
    access = access_of(request)
    access.must_somewhere(Can.MANAGE_PEOPLE)
    return [role_out(rule) for rule in group_rules(access)]
