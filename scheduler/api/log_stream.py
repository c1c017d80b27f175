"""A worker's log as Server-Sent Events: what is there, then what is added, to its end."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any

import orjson
from channels.db import DatabaseSyncToAsync
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse
from ninja import Field, Header, Query, Router, Schema
from ninja.errors import Throttled

from gpufleet.core.faults import Missing
from gpufleet.web import access_of
from scheduler.api.logs import RANK
from scheduler.models import Job
from scheduler.selectors.jobs import job_for, must_steer
from scheduler.selectors.logs import MOST_BYTES, LogState, job_log

router = Router(tags=["Jobs"])

# Who reads on comes back by itself, is asked anew who he is, and never holds up a web server that is to stop for longer.
STREAM_SECONDS = 30.0
AGAIN_MS = 500
# Asked often while it writes, seldom while it does not.
SOON_SECONDS, SELDOM_SECONDS = 0.25, 2.0
PART_BYTES = 64 * 1024
# Of one process, and of each caller: each asks the database and a back-end a few times a second.
MOST_STREAMS = 100
MOST_STREAMS_EACH = 20
BUSY_SECONDS = 5
_readers = ThreadPoolExecutor(max_workers=4, thread_name_prefix="log-stream")


class Places:
    """How many streams are open, of all and of each caller, so that nobody takes them from everybody else."""

    def __init__(self, most: int = MOST_STREAMS, each: int = MOST_STREAMS_EACH) -> None:
        self.most, self.each = most, each
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, caller: str) -> Callable[[], None] | None:
        """What gives the place back; None where there is none."""
        with self._lock:
            if self._taken.total() >= self.most or self._taken[caller] >= self.each:
                return None
            self._taken[caller] += 1
        return partial(self._give_back, caller)

    def _give_back(self, caller: str) -> None:
        with self._lock:
            self._taken[caller] -= 1
            if not self._taken[caller]:
                del self._taken[caller]


_places = Places()


class Followed:
    """One reader's place in one log. `step` looks once; it is read again only when what it told has been taken."""

    def __init__(self, job: Job, *, attempt: int | None, role: str, index: int, offset: int, rank: int | None = None) -> None:
        self.job, self.attempt, self.role, self.index, self.offset, self.rank = job, attempt, role, index, offset, rank
        self.note = ""
        self.ended = False
        self.told_where = rank is None

    def step(self) -> tuple[bytes, bool]:
        """The events that are to be sent now, and whether there may be more at once."""
        if self.attempt is None:
            self.job.refresh_from_db(fields=["ended_at"])
        part = job_log(self.job, attempt=self.attempt, role=self.role, index=self.index, rank=self.rank, offset=self.offset, limit=PART_BYTES)
        told = b""
        if part.attempt:
            self.attempt, self.role = part.attempt, part.role
        # Of one rank, a part that others wrote has no text and is passed over.
        moved = part.state == LogState.TEXT and part.next_offset != part.offset
        if moved:
            self.offset = part.next_offset
        if part.text or part.note != self.note or (moved and not self.told_where):
            told, self.told_where = self._event("", asdict(part)), self.told_where or moved
        elif moved:
            told = self._place() + b"\n"
        self.note = part.note
        if part.ended:
            self.ended = True
            told += self._event("end", {"attempt": part.attempt, "next_offset": max(0, self.offset)})
        return told, moved

    def _event(self, kind: str, value: dict[str, Any]) -> bytes:
        # As JSON in one line, whatever a job writes stays data: an event ends where a line is empty.
        name = f"event: {kind}\n".encode() if kind else b""
        return name + self._place() + b"data: " + orjson.dumps(value) + b"\n\n"

    def _place(self) -> bytes:
        """Alone it is an event without data: whoever comes back goes on from there."""
        return f"id: {self.attempt}:{self.offset}\n".encode() if self.attempt and self.offset >= 0 else b""


class Stream:
    """The body of an answer. It holds one of the process's streams until it is closed."""

    def __init__(self, followed: Followed, first: bytes, give_back: Callable[[], None]) -> None:
        self.followed, self.first = followed, first
        self._give_back: Callable[[], None] | None = give_back

    def close(self) -> None:
        give_back, self._give_back = self._give_back, None
        if give_back is not None:
            give_back()

    # Whose reader went while the answer was made is never closed.
    __del__ = close

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self.first
        step = DatabaseSyncToAsync(self.followed.step, thread_sensitive=False, executor=_readers)
        loop = asyncio.get_running_loop()
        until, wait = loop.time() + STREAM_SECONDS, SOON_SECONDS
        while not self.followed.ended and loop.time() < until:
            try:
                told, more = await step()
            except Missing:  # no such worker in the attempt that has begun meanwhile: whoever asks again is told so
                return
            # A comment now and then: who has gone is only noticed when something is sent.
            yield told or b":\n\n"
            wait = SOON_SECONDS if more else min(SELDOM_SECONDS, 2 * wait)
            if not more and not self.followed.ended:
                await asyncio.sleep(wait)


class PresentStream(Stream):
    """The same where no loop follows it: what is there now, and no more. Its reader comes back by himself."""

    def __iter__(self) -> Iterator[bytes]:
        yield self.first
        more = True
        while more and not self.followed.ended:
            told, more = self.followed.step()
            yield told


class StreamQuery(Schema):
    attempt: int | None = Field(None, ge=1, le=2**31 - 1, description="Default: the latest; of a job that waits, the one that comes.")
    role: str = Field("", max_length=40, description="Default: that of the first worker.")
    index: int = Field(0, ge=0, le=2**31 - 1, description="Which worker of the role.")
    rank: int | None = Field(None, ge=0, le=2**31 - 1, description=RANK)
    offset: int = Field(0, ge=-MOST_BYTES, le=2**53, description="In bytes; a negative one counts from the end.")


_LAST = "The id of the last event that was read: what lies behind it follows."
LastEventId = Annotated[str, Header("", alias="Last-Event-ID", description=_LAST, pattern="^([1-9][0-9]{0,8}:[0-9]{1,15})?$")]
EVENTS: dict[str, Any] = {
    "responses": {
        200: {
            "description": "Events: parts of the log as `GET …/logs` has them, then `end`",
            "content": {
                "text/event-stream": {
                    "schema": {"type": "string"},
                    "example": 'id: 1:6\ndata: {"attempt":1,"role":"worker","index":0,"rank":null,"text":"step 1","offset":0,"next_offset":6,'
                    '"ended":false,"state":"text","note":""}\n\n',
                }
            },
        }
    }
}


@router.get("/jobs/{public_id}/logs/stream", url_name="job_log_stream", openapi_extra=EVENTS, summary="Follow what a worker of a job writes")
def job_output_stream(
    request: HttpRequest,
    public_id: str,
    asked: Query[StreamQuery],
    last: LastEventId,
) -> StreamingHttpResponse:
    """Server-Sent Events. Each holds a part of the log in `data`, as `GET …/logs` answers it; the event `end` says that nothing will be added.

    An answer lasts half a minute: ask again with the last event's id as `Last-Event-ID`, as browsers do by themselves, and nothing is lost or told
    twice. Text goes only to those who may steer the job. With `rank`, what other ranks of its worker write moves the id on by events without data.
    """
    access = access_of(request)
    found = job_for(access, public_id)
    must_steer(access, found)
    attempt, offset = asked.attempt, asked.offset
    if last:
        attempt, offset = (int(part) for part in last.split(":"))
    followed = Followed(found, attempt=attempt, role=asked.role, index=asked.index, offset=offset, rank=asked.rank)
    told, _ = followed.step()  # what can't be told is refused, which it can't be once an answer has begun
    give_back = _places.take(f"{access.actor.via} {access.actor.user and access.actor.user.pk}")
    if give_back is None:
        raise Throttled(wait=BUSY_SECONDS)
    kind = Stream if isinstance(request, ASGIRequest) else PresentStream
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    body = kind(followed, f"retry: {AGAIN_MS}\n\n".encode() + told, give_back)
    return StreamingHttpResponse(body, content_type="text/event-stream", headers=headers)
