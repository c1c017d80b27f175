"""The search of the console over HTTP."""

from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.taken import Storable
from gpufleet.search import LISTED, LONGEST_QUERY, find
from gpufleet.web import access_of

router = Router(tags=["Me"])


class WholeSearch(Storable, Schema):
    q: str = Field("", max_length=LONGEST_QUERY, description="Words, or an id; fewer than two characters find nothing.")


class FoundOut(Schema):
    id: str = Field(description="As its operations name it; of a cluster its name.", examples=["j-417"])
    name: str = Field(examples=["train-llm"])
    note: str = Field(description="What the console says beside it.", examples=["j-417 · running · 8 GPUs · acme/research/nlp"])
    link: str = Field(description="Its page, as a path of the console.", examples=["/jobs/j-417/"])


class FoundOfOneKind(Schema):
    kind: str = Field(json_schema_extra={"enum": ["nodes", "gpus", "jobs", "schedules", "quotas", "people", "clusters"]}, examples=["jobs"])
    items: list[FoundOut]
    more: bool = Field(description="More are found than are listed; each kind has a list of its own to search.", examples=[False])


class SearchOut(Schema):
    items: list[FoundOfOneKind] = Field(description="By kind; a kind of which nothing is found is left out.")


@router.get("/search", response=SearchOut, url_name="search", summary="Search everything that has a page")
def search_all(request: HttpRequest, query: Query[WholeSearch]) -> SearchOut:
    """What the caller may see and the words name: up to 25 of each kind."""
    groups = [group for group in find(access_of(request), query.q, LISTED) if all(found.id for found in group.items)]
    return SearchOut(
        items=[
            FoundOfOneKind(
                kind=group.label.lower(),
                items=[FoundOut(id=one.id, name=one.label, note=one.note, link=one.url) for one in group.items],
                more=group.more,
            )
            for group in groups
        ]
    )
