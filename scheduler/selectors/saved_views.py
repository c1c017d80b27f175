"""Saved views: one's own, and those that others share."""

from collections.abc import Iterable

from django.core.exceptions import PermissionDenied, ValidationError
from django.db.models import Case, IntegerField, Q, QuerySet, When
from django.db.models.functions import Lower
from django.http import Http404

from gpufleet.core.keyset import BadToken, Key, Slice, keyset_page
from quotas.permissions import Access, Can, at_or_below, is_within
from scheduler.models import SavedView

MOST_SHOWN = 100


def _shared(access: Access) -> Q:
    """With a subtree of which the reader sees something: the node, one below it, or one above it."""
    above = {step for path in access.paths(Can.SEE) for step in _steps(path)}
    return Q(shared_with__isnull=False, shared_with__archived_at__isnull=True) & (
        access.visible(Can.SEE, "shared_with__path") | Q(shared_with__path__in=above)
    )


def _steps(path: str) -> Iterable[str]:
    steps = path.split("/")
    return ("/".join(steps[:depth]) for depth in range(1, len(steps)))


def _own(access: Access) -> Q:
    """A token for a part of the tree has those that are shared there, and learns nothing of the others."""
    own = Q(owner=access.actor.user)
    within = at_or_below(access.within, "shared_with__path")
    return own & within if access.within else own


def _visible(access: Access) -> QuerySet[SavedView]:
    return SavedView.objects.filter(_own(access) | _shared(access)).select_related("owner", "shared_with")


def views_visible(access: Access, listed: str) -> list[SavedView]:
    """Those of a list: one's own by name, then those that are shared, as many as a page has. One query."""
    return views_page(access, listed).rows


def views_page(access: Access, listed: str, *, size: int = MOST_SHOWN, after: str = "") -> Slice:
    """Those of a list: one's own by name, then those that are shared, from the place `after` on."""
    access.must_somewhere(Can.SEE)
    others = Case(When(owner=access.actor.user, then=0), default=1, output_field=IntegerField())
    order = [Key(others), Key(Lower("name"))]
    try:
        return keyset_page(_visible(access).filter(list=listed), order=order, size=size, after=after)
    except BadToken as fault:
        raise ValidationError({"after": [f"{fault}."]}) from fault


def view_for(access: Access, public_id: str) -> SavedView:
    access.must_somewhere(Can.SEE)
    found = _visible(access).filter(public_id=public_id).first()
    if found is None:
        raise Http404(f"There is no view {public_id}.")
    return found


def view_default(access: Access, listed: str) -> SavedView | None:
    """The one with which a list opens."""
    return SavedView.objects.filter(owner=access.actor.user, list=listed, is_default=True).first()


def is_mine(access: Access, view: SavedView) -> bool:
    return access.actor.user is not None and view.owner_id == access.actor.user.pk


def may_share_with(access: Access, path: str) -> bool:
    """Those who work there put something in front of each other."""
    return access.can(Can.SUBMIT, path) or access.can(Can.MANAGE_JOBS, path)


def must_stay_within(access: Access, path: str | None) -> None:
    """What a token for a part of the tree writes of its owner's views is of that part."""
    if access.within and (path is None or not is_within(path, access.within)):
        raise PermissionDenied(f"This token is for {access.within} alone: a view that is not shared there is none of its.")


def must_show(access: Access, view: SavedView) -> None:
    """What a team is shown is said by those who work there, also where it is one's own view."""
    if view.shared_with is not None and not may_share_with(access, view.shared_with.path):
        where = view.shared_with.path
        raise PermissionDenied(f"It is shared with {where}, where you may neither submit nor manage jobs: share it no more, then change it.")


def may_unshare(access: Access, view: SavedView) -> bool:
    """Who manages jobs of a team decides what its people are shown, also where it is somebody else's."""
    return view.shared_with is not None and access.can(Can.MANAGE_JOBS, view.shared_with.path)


def must_own(access: Access, view: SavedView) -> None:
    if not is_mine(access, view):
        raise PermissionDenied("It is somebody else's. Save it under a name of your own to change it.")
