"""What a job's workers wrote: a part of it, and the lines that hold some text. `log_stream` follows it."""

from dataclasses import asdict
from typing import Literal

from django.http import HttpRequest, HttpResponse
from ninja import Field, Query, Router, Schema

from gpufleet.web import access_of
from scheduler.api.lists import answered
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.log_search import LONGEST_WANTED, MOST_HITS, log_search
from scheduler.selectors.logs import MOST_BYTES, job_log

router = Router(tags=["Jobs"])
State = Literal["text", "not_started", "held_nothing", "empty", "gone", "unreachable"]
RANK = "RANK of a process of the gang, in place of `role` and `index`; only its lines. Default: all of the worker."
LINES_OF = "Whose lines these are; null: all of the worker's."


class LogOut(Schema):
    """`next_offset` is where the following part begins; `ended`: nothing will be added. `note` says why there is no text, and `state`, in a word."""

    attempt: int
    role: str
    index: int
    rank: int | None = Field(description=LINES_OF)
    text: str
    offset: int = Field(description="Where the text begins: after the requested offset where older text is no longer kept.")
    next_offset: int
    ended: bool
    state: State
    note: str


class Which(Schema):
    attempt: int | None = Field(None, ge=1, le=2**31 - 1, description="Default: the latest.")
    role: str = Field("", max_length=40, description="Default: the first that has such a worker.")
    index: int = Field(0, ge=0, le=2**31 - 1, description="Which worker of the role.")
    rank: int | None = Field(None, ge=0, le=2**31 - 1, description=RANK)


class LogQuery(Which):
    offset: int = Field(0, ge=-MOST_BYTES, le=2**53, description="In bytes; a negative one counts from the end.")
    limit: int = Field(65_536, ge=1, le=MOST_BYTES, description="How many bytes at most.")


@router.get("/jobs/{public_id}/logs", response=LogOut, url_name="job_logs", summary="What a worker of a job has written")
def job_output(request: HttpRequest, public_id: str, asked: Query[LogQuery]) -> HttpResponse:
    """Text goes only to those who may steer the job. Ask again from `next_offset` to follow it.

    Offsets are those of the worker's log: with `rank` a part may have no text where the next one has some.
    """
    access = access_of(request)
    found = job_for(access, public_id)
    must_steer(access, found)
    return answered(asdict(job_log(found, **asked.dict())))


class HitOut(Schema):
    """A line that holds it: what was found stands in `text` at `start`, and is so long. Of a long line `text` is a part."""

    line: int
    offset: int = Field(description="Where the line begins, for `GET …/logs`.")
    text: str
    start: int
    length: int
    before: list[str]
    after: list[str]


class LogFoundOut(Schema):
    """`done`: all that is there has been looked at; if not, go on with `next_offset` and `next_line`. `ended`: and nothing will be added."""

    attempt: int
    role: str
    index: int
    rank: int | None = Field(description=LINES_OF)
    hits: list[HitOut]
    next_offset: int
    next_line: int
    begins_at: int = Field(description="Older text is no longer kept. Lines are counted from here, those of the rank where one is named.")
    size: int = Field(description="Where the log ends now.")
    done: bool
    ended: bool
    state: State
    note: str


class SearchQuery(Which):
    q: str = Field(
        min_length=1, max_length=LONGEST_WANTED, pattern=r"^[^\r\n]+$", description="Text that a line contains, ignoring case. Not a pattern."
    )
    offset: int = Field(0, ge=0, le=2**53, description="The `next_offset` of the answer before.")
    line: int = Field(1, ge=1, le=2**53, description="The `next_line` of the answer before.")
    limit: int = Field(100, ge=1, le=MOST_HITS, description="So many lines at most.")


@router.get(
    "/jobs/{public_id}/logs/search", response=LogFoundOut, url_name="job_log_search", summary="Find lines in what a worker of a job has written"
)
def job_output_search(request: HttpRequest, public_id: str, asked: Query[SearchQuery]) -> HttpResponse:
    """An answer looks at 4 MiB at most, and says where the next one goes on. Text goes only to those who may steer the job."""
    access = access_of(request)
    found = job_for(access, public_id)
    must_steer(access, found)
    said = asked.dict()
    return answered(asdict(log_search(found, wanted=said.pop("q"), **said)))
