"""Reading people, their roles and their tokens."""

from django.db.models import Count, Q, QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404

from gpufleet.core.audit import Actor
from gpufleet.core.models import User
from quotas.models import RoleBinding, ServiceToken
from quotas.permissions import Access, Can, at_or_below

VIA = "token:"  # and the prefix of the token: how an actor acts


def people_list(access: Access) -> QuerySet[User]:
    """Everybody, for those who manage people somewhere: to give a role, one must find its person.

    `role_count` are the roles that the reader manages.
    """
    access.must_somewhere(Can.MANAGE_PEOPLE)
    return User.objects.annotate(role_count=Count("role_bindings", filter=access.visible(Can.MANAGE_PEOPLE, "role_bindings__node__path")))


def person_for(access: Access, public_id: str) -> User:
    if not access.can_somewhere(Can.MANAGE_PEOPLE):
        raise Http404
    return get_object_or_404(User, public_id=public_id)


def person_named(username: str) -> User | None:
    """Who signs in by this name, in any case."""
    return User.objects.filter(username__iexact=username.strip()).first()


def roles_of(access: Access, person: User) -> QuerySet[RoleBinding]:
    """The person's roles, as far as the reader manages people there; one's own are seen whole."""
    roles = RoleBinding.objects.filter(user=person).select_related("node", "granted_by").order_by("node__path", "role")
    return roles if access.actor.user == person else roles.filter(access.visible(Can.MANAGE_PEOPLE, "node__path"))


def group_rules(access: Access) -> QuerySet[RoleBinding]:
    return RoleBinding.objects.filter(access.visible(Can.MANAGE_PEOPLE, "node__path"), user__isnull=True).select_related("node").order_by("group")


def given_by_rule(rule: RoleBinding) -> list[RoleBinding]:
    """What a group's rule gave, unless another group's rule gives the same: then the next sign-in of each person decides."""
    if RoleBinding.objects.filter(user=None, role=rule.role, node=rule.node).exclude(pk=rule.pk).exists():
        return []
    return list(RoleBinding.objects.filter(from_sign_on=True, role=rule.role, node=rule.node).select_related("node", "user"))


def binding_for(access: Access, pk: int) -> RoleBinding:
    return get_object_or_404(RoleBinding.objects.filter(access.visible(Can.SEE, "node__path")).select_related("node", "user"), pk=pk)


def token_list(access: Access) -> QuerySet[ServiceToken]:
    """One's own tokens; administrators see everybody's. A token for a part of the tree sees itself and those within that part."""
    tokens = ServiceToken.objects.select_related("owner", "node")
    if not access.can_everywhere(Can.ADMINISTER):
        tokens = tokens.filter(Q(owner=access.actor.user))
    own = token_of(access.actor)
    if own is not None and own.node is not None:
        tokens = tokens.filter(Q(pk=own.pk) | at_or_below(own.node.path, "node__path"))
    return tokens


def token_of(actor: Actor) -> ServiceToken | None:
    """The token by which the actor acts; None for a person in the browser."""
    if not actor.via.startswith(VIA):
        return None
    return ServiceToken.objects.select_related("node").get(prefix=actor.via.removeprefix(VIA))


def token_for(access: Access, public_id: str) -> ServiceToken:
    return get_object_or_404(token_list(access), public_id=public_id)


def made_with_it(token: ServiceToken) -> list[ServiceToken]:
    """The tokens that were made with this one, and with those."""
    made: list[ServiceToken] = []
    generation = [token]
    while generation:
        generation = list(ServiceToken.objects.filter(made_with__in=generation).order_by("pk"))
        made += generation
    return made
