"""Who gets through the door of a view."""

import pytest
from asgiref.sync import async_to_sync, iscoroutinefunction
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from gpufleet.web import Can, requires
from tests.personas import Personas


def _plain(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


async def _later(request: HttpRequest) -> HttpResponse:
    return HttpResponse("in")


def _visit(view, user, **headers):
    request = RequestFactory(headers=headers).get("/somewhere/?page=2")
    request.user = user
    return async_to_sync(view)(request) if iscoroutinefunction(view) else view(request)


@pytest.fixture(params=[_plain, _later], ids=["plain", "async"])
def door(request):
    return lambda *arguments, **keywords: requires(*arguments, **keywords)(request.param)


@pytest.mark.django_db(transaction=True)
def test_a_stranger_is_sent_to_sign_in_and_back(door, personas: Personas):
    answer = _visit(door(Can.SEE), AnonymousUser())

    assert answer.status_code == 302
    assert answer["Location"] == "/accounts/login/?next=/somewhere/%3Fpage%3D2"
    assert _visit(door(Can.SEE), AnonymousUser(), accept="application/json").status_code == 401


@pytest.mark.django_db(transaction=True)
def test_a_right_held_somewhere_opens_the_view_and_one_held_nowhere_does_not(door, personas: Personas):
    assert _visit(door(Can.SEE), personas.users["viewer"]).content == b"in"
    assert _visit(door(), personas.users["stranger"]).content == b"in"
    with pytest.raises(PermissionDenied):
        _visit(door(Can.SEE), personas.users["stranger"])
    with pytest.raises(PermissionDenied):
        _visit(door(Can.OPERATE), personas.users["viewer"])


@pytest.mark.django_db(transaction=True)
def test_the_whole_fleet_needs_the_right_on_the_root(door, personas: Personas):
    assert _visit(door(Can.OPERATE, everywhere=True), personas.users["operator"]).content == b"in"
    with pytest.raises(PermissionDenied):
        _visit(door(Can.EDIT_QUOTA, everywhere=True), personas.users["quota_admin"])
