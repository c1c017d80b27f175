"""People's accounts for programs. Where a link to set a password is made, it is in that one answer and nowhere else."""

from datetime import datetime
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.list_parameters import parameters_of
from gpufleet.core.models import User
from gpufleet.core.taken import SAID, Storable, Taken
from gpufleet.navigation import access_of
from quotas.api.lists import listed
from quotas.api.roles import RoleOut, role_out
from quotas.links import password_link
from quotas.lists import PEOPLE
from quotas.permissions import Access, Can
from quotas.selectors.people import people_list, person_for, roles_of
from quotas.services.people import (
    USERNAME,
    person_activate,
    person_create,
    person_deactivate,
    person_reset_password,
    person_revision,
    person_set_clock,
    person_update,
)

router = Router(tags=["People"])


# What the services refuse is told here and judged there, so that no rule is written twice.
EMAIL: dict[str, Any] = {"anyOf": [{"format": "email"}, {"maxLength": 0}]}


class PersonOut(Schema):
    id: str
    username: str
    name: str
    email: str
    active: bool


class PeopleOut(Schema):
    items: list[PersonOut]
    next: str = Field(description="Send it as `after` to get the next page; empty at the end.")


class PersonWhole(PersonOut):
    has_password: bool = Field(description="False: signs in by single sign-on, or not yet.")
    last_login: datetime | None
    roles: list[RoleOut] = Field(description="Those in subtrees where the caller manages people.")


class PersonIn(Storable, Schema):
    display_name: str = Field(json_schema_extra=SAID | {"maxLength": 120})
    email: str = Field("", json_schema_extra=EMAIL)


class PersonNew(PersonIn, Taken):
    username: str = Field(json_schema_extra={"pattern": f"^\\s*{USERNAME.pattern.replace('a-z', 'a-zA-Z')}\\s*$"})


class PersonLink(PersonOut):
    password_link: str = Field(description="Shown this once. Hand it to the person: it sets a password, works once, and for three days.")


class Reason(Taken):
    reason: str = Field("", max_length=500)


class ClockIn(Taken):
    utc: bool


def _facts(person: User) -> dict[str, Any]:
    return {"id": person.public_id, "username": person.username, "name": str(person), "email": person.email, "active": person.is_active}


def _whole(access: Access, person: User) -> PersonWhole:
    roles = [role_out(binding) for binding in roles_of(access, person).select_related("user")]
    return PersonWhole(**_facts(person), has_password=person.has_usable_password(), last_login=person.last_login, roles=roles)


def _with_link(request: HttpRequest, response: HttpResponse, person: User) -> PersonLink:
    response["Cache-Control"] = "no-store"
    return PersonLink(**_facts(person), password_link=password_link(request, person))


def _may_write(request: HttpRequest) -> Access:
    """Accounts belong to the whole installation, so this is asked before anything is looked up."""
    access = access_of(request)
    access.must_everywhere(Can.MANAGE_PEOPLE)
    return access


@router.get("/people", response=PeopleOut, openapi_extra=parameters_of(PEOPLE), summary="People")
def person_list(request: HttpRequest) -> PeopleOut:
    people: QuerySet[User, User] = people_list(access_of(request))
    page = listed(PEOPLE, request, people)
    return PeopleOut(items=[PersonOut(**_facts(row)) for row in page.slice.rows], next=page.slice.after or "")


@router.post("/people", response={201: PersonLink}, summary="Make an account")
def person_new(request: HttpRequest, response: HttpResponse, payload: PersonNew) -> Status[PersonLink]:
    """Nobody can sign in to it yet: the answer holds the link for its person."""
    made = person_create(access=_may_write(request), **payload.model_dump())
    return Status(201, _with_link(request, response, made))


@router.get("/people/{public_id}", response=PersonWhole, summary="One person with their roles")
def person_get(request: HttpRequest, response: HttpResponse, public_id: str) -> PersonWhole:
    """Its `ETag` stands for the account: sent as `If-Match` with a change, it is done only if nothing has changed since (412 otherwise)."""
    access = access_of(request)
    access.must_somewhere(Can.MANAGE_PEOPLE)
    person = person_for(access, public_id)
    stamped(response, person_revision(person))
    return _whole(access, person)


@router.put("/people/{public_id}", response=PersonWhole, openapi_extra=IF_MATCH, summary="Change a person")
def person_change(request: HttpRequest, response: HttpResponse, public_id: str, payload: PersonIn) -> PersonWhole:
    """With `If-Match` only if nothing has changed."""
    access = _may_write(request)
    person = person_for(access, public_id)
    person_update(access=access, person=person, revision=revision_wanted(request), **payload.model_dump())
    stamped(response, person_revision(person))
    return _whole(access, person)


@router.post("/people/{public_id}/deactivate", response=PersonWhole, summary="Shut a person out")
def person_end(request: HttpRequest, public_id: str, payload: Reason) -> PersonWhole:
    """With their next request, tokens included. Their roles stay for the day when they are activated again."""
    access = _may_write(request)
    person = person_for(access, public_id)
    person_deactivate(access=access, person=person, reason=payload.reason)
    return _whole(access, person)


@router.post("/people/{public_id}/activate", response=PersonWhole, summary="Let a person in again")
def person_return(request: HttpRequest, public_id: str, payload: Reason) -> PersonWhole:
    access = _may_write(request)
    person = person_for(access, public_id)
    person_activate(access=access, person=person, reason=payload.reason)
    return _whole(access, person)


@router.post("/people/{public_id}/reset", response=PersonLink, summary="Reset a password")
def person_reset(request: HttpRequest, response: HttpResponse, public_id: str, payload: Reason) -> PersonLink:
    """The present password becomes useless and all sessions end. The answer holds the link for a new one."""
    access = _may_write(request)
    person = person_for(access, public_id)
    person_reset_password(access=access, person=person, reason=payload.reason)
    return _with_link(request, response, person)


@router.put("/me/clock", response={204: None}, tags=["Me"], summary="Choose how pages show times to me")
def clock_choose(request: HttpRequest, payload: ClockIn) -> Status[None]:
    """A choice of the signed-in person; no token makes it for them."""
    access = access_of(request)
    if access.actor.user is None or access.actor.via != "session":
        raise PermissionDenied("This is for the person in the browser.")
    person_set_clock(access=access, person=access.actor.user, clock_utc=payload.utc)
    return Status(204, None)
