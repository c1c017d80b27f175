"""The order of the parts of Home over HTTP: a person's own."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest
from ninja import Router, Schema, Status
from pydantic import Field

from dashboards.home.order import USUAL, columns_of, home_arrange
from gpufleet.core.faults import Missing
from gpufleet.core.taken import Taken
from gpufleet.web import Access, Can, access_of

router = Router(tags=["Me"])
COLUMNS: dict[str, Any] = {"minItems": 2, "maxItems": 2}


class HomePageOut(Schema):
    """One page of Home as it is arranged: two columns of parts."""

    page: str = Field(description="Name of the page.")
    columns: list[list[str]] = Field(description="Its parts by column.")
    usual: bool = Field(description="Whether the parts stand as they do for everybody who has arranged nothing.")


class HomeOut(Schema):
    items: list[HomePageOut] = Field(description="The pages of Home.")


class HomeIn(Taken):
    """Each part of the page once."""

    columns: list[list[str]] = Field(description="Two columns of parts.", json_schema_extra=COLUMNS)


@router.get("/me/home", response=HomeOut, url_name="home_order", summary="How my pages of Home are arranged")
def home_order(request: HttpRequest) -> HomeOut:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return HomeOut(items=[_page(access, page) for page in USUAL])


@router.put("/me/home/{page}", response=HomePageOut, url_name="home_order_page", summary="Arrange a page of Home for me")
def home_order_put(request: HttpRequest, page: str, body: HomeIn) -> HomePageOut:
    """A choice of the signed-in person; no token makes it for them."""
    access = _person(request, page)
    home_arrange(access=access, page=page, columns=body.columns)
    return _page(access_of(request), page)


@router.delete("/me/home/{page}", response={204: None}, url_name="home_order_page", summary="Arrange a page of Home as usual")
def home_order_delete(request: HttpRequest, page: str) -> Status[None]:
    """A choice of the signed-in person; no token makes it for them."""
    home_arrange(access=_person(request, page), page=page, columns=None)
    return Status(204, None)


def _person(request: HttpRequest, page: str) -> Access:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    if access.actor.user is None or access.actor.via != "session":
        raise PermissionDenied("This is for the person in the browser.")
    if page not in USUAL:
        raise Missing(f"There is no page {page} of Home.")
    return access


def _page(access: Access, page: str) -> HomePageOut:
    user = access.actor.user
    columns = columns_of(user, page)
    return HomePageOut(page=page, columns=[list(column) for column in columns], usual=columns == USUAL[page])
