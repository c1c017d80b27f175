"""Keeping views of lists: saved, renamed, shared, made the one that the list opens with, removed."""

from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied, ValidationError
from django.db import IntegrityError, transaction
from django.db.models import F
from django.http import Http404

from gpufleet.core.audit import audit_record
from gpufleet.core.ids import public_id
from gpufleet.core.models import User
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from scheduler.jobs.view_queries import Viewed, query_read
from scheduler.models import SavedView
from scheduler.selectors.notices import must_write_own
from scheduler.selectors.saved_views import is_mine, may_share_with, may_unshare, must_own, must_show, must_stay_within
from scheduler.services.jobs.revisions import row_locked

MOST_VIEWS = 50
NAME_LENGTH = 80
TAKEN = {"name": ["You have a view of that name already."]}


def view_save(*, access: Access, viewed: Viewed, name: str, query: str, shared_with: str = "", is_default: bool = False, now: datetime) -> SavedView:
    """A new view of a list. `shared_with` is the path of a node, or nothing: then it is the person's alone."""
    user = access.actor.user
    if user is None or not access.can_somewhere(Can.SEE):
        raise PermissionDenied
    must_write_own(access)
    facts = _checked(access, viewed, name=name, query=query, shared_with=shared_with)
    _within(access, facts["shared_with"], is_default or None)
    with transaction.atomic():
        _person_locked(user.pk)
        if SavedView.objects.filter(owner=user, list=viewed.table.name).count() >= MOST_VIEWS:
            raise ValidationError({"name": [f"You have {MOST_VIEWS} views of this list, which is as many as there may be. Remove one first."]})
        if is_default:
            _no_default(user.pk, viewed.table.name)
        view = SavedView(public_id=public_id("v"), owner=user, list=viewed.table.name, is_default=is_default, changed_at=now, **facts)
        _write(view, None)
        _note(access, "view.save", view, None)
    return view


def view_change(
    *,
    access: Access,
    view: SavedView,
    viewed: Viewed,
    name: str | None = None,
    query: str | None = None,
    shared_with: str | None = None,
    is_default: bool | None = None,
    seen: int | None = None,
    now: datetime,
) -> SavedView:
    """What is not named stays. An empty `shared_with` makes it its owner's alone. `seen` is the revision on which alone it is to be done,
    `viewed` the list of which it is a view."""
    must_write_own(access)
    must_own(access, view)
    if view.shared_with is not None and shared_with == view.shared_with.path:
        shared_with = None  # where it is shared already it may stay, also with who may no longer share anything there
    given = {"name": name, "query": query, "shared_with": shared_with}
    facts = _checked(access, viewed, **{key: value for key, value in given.items() if value is not None})
    facts |= {} if is_default is None else {"is_default": is_default}
    with transaction.atomic():
        _person_locked(view.owner_id)
        view = _locked(view, seen)
        _within(access, view.shared_with, is_default)
        before = _facts(view)
        for key, value in facts.items():
            setattr(view, key, value)
        if {"name", "query"} & facts.keys() and (view.name, view.query) != (before["name"], before["query"]):
            must_show(access, view)
        view.changed_at = now
        view.revision += 1
        if is_default:
            _no_default(view.owner_id, view.list)
        _write(view, [*facts, "changed_at", "revision"])
        _note(access, "view.change", view, before)
    return view


def view_remove(*, access: Access, view: SavedView, seen: int | None = None) -> bool:
    """One's own goes. Somebody else's is taken away from the team that it is shared with, by those who manage its jobs, and stays its owner's."""
    must_write_own(access)
    with transaction.atomic():
        view = _locked(view, seen)
        if is_mine(access, view):
            _within(access, view.shared_with, None)
            _note(access, "view.remove", view, _facts(view), gone=True)
            view.delete()
            return True
        if not may_unshare(access, view):
            must_own(access, view)
        before = _facts(view)
        node, view.shared_with = view.shared_with, None
        view.revision += 1
        view.save(update_fields=["shared_with", "revision"])
        _note(access, "view.unshare", view, before, node=node)
    return False


def _within(access: Access, node: QuotaNode | None, is_default: bool | None) -> None:
    must_stay_within(access, node.path if node else None)
    if access.within and is_default is not None:
        raise PermissionDenied(f"This token is for {access.within} alone, and with what the list opens is its owner's choice.")


def _checked(access: Access, viewed: Viewed, **given: str) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    faults: dict[str, list[str]] = {}
    if "name" in given:
        facts["name"] = " ".join(given["name"].split())
        if not facts["name"] or len(facts["name"]) > NAME_LENGTH or not facts["name"].isprintable():
            faults["name"] = [f"A name has 1 to {NAME_LENGTH} printable characters."]
    if "query" in given:
        try:
            facts["query"] = query_read(given["query"], viewed)
        except ValidationError as fault:
            faults |= fault.message_dict
    if "shared_with" in given:
        path = given["shared_with"].strip().strip("/")
        facts["shared_with"] = None
        if path:
            may = path.isprintable() and may_share_with(access, path)
            facts["shared_with"] = QuotaNode.objects.filter(path=path, archived_at__isnull=True).first() if may else None
            if facts["shared_with"] is None:
                faults["shared_with"] = ["Name a node of the tree where you may submit or manage jobs."]
    if faults:
        raise ValidationError(faults)
    return facts


def _person_locked(owner: int) -> None:
    """So that two at once neither both find room nor both become the default. Before the view itself, always."""
    User.objects.select_for_update(no_key=True).get(pk=owner)


def _locked(view: SavedView, seen: int | None) -> SavedView:
    gone = Http404(f"There is no view {view.public_id} any more.")
    return row_locked(SavedView.objects.select_related("owner", "shared_with"), view.pk, name=view.name, revision=seen, gone=gone)


def _no_default(owner: int, listed: str) -> None:
    SavedView.objects.filter(owner=owner, list=listed, is_default=True).update(is_default=False, revision=F("revision") + 1)


def _write(view: SavedView, columns: list[str] | None) -> None:
    try:
        with transaction.atomic():
            view.save(force_insert=columns is None, update_fields=columns)
    except IntegrityError as fault:
        raise ValidationError(TAKEN) from fault


def _facts(view: SavedView) -> dict[str, Any]:
    shared = view.shared_with.path if view.shared_with else None
    return {"list": view.list, "name": view.name, "query": view.query, "shared_with": shared, "is_default": view.is_default}


def _note(access: Access, action: str, view: SavedView, before: dict[str, Any] | None, *, node: QuotaNode | None = None, gone: bool = False) -> None:
    after = None if gone else _facts(view)
    quota = node or view.shared_with
    audit_record(actor=access.actor, action=action, kind="saved_view", object_id=view.public_id, quota=quota, before=before, after=after)
