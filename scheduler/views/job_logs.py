"""What a job's workers wrote, on a page of its own: its end or a place in it, lines that were looked for, and either as a file."""

from collections.abc import AsyncIterator, Iterator
from itertools import chain
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import BadRequest
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, HttpResponseBase, QueryDict, StreamingHttpResponse
from django.shortcuts import render
from django.utils.text import slugify
from django.views.decorators.http import require_safe

from gpufleet.web import Can, access_of, requires
from scheduler.models import Job
from scheduler.presenters.logs import hit_lines
from scheduler.selectors.jobs import job_attempts, job_for, must_steer
from scheduler.selectors.log_search import LONGEST_WANTED, lines_found, log_search
from scheduler.selectors.logs import MOST_BYTES, job_log, job_writers, log_source

LOG_TAIL = 64 * 1024
# Of one rank more is looked at: others of its worker wrote most of it.
RANK_TAIL = 3 * LOG_TAIL
# Of a place that is looked at, so much in front of it.
LOG_BEFORE = 8 * 1024


@require_safe
@requires(Can.SEE)
def job_log_page(request: HttpRequest, public_id: str) -> HttpResponseBase:
    """The end of what one worker wrote; with `q` the lines that hold it. `?format=text` is all of it as a file, `?format=found` those lines."""
    access = access_of(request)
    job = job_for(access, public_id)
    must_steer(access, job)
    asked = request.GET
    which = _which(job, asked)
    wanted = _wanted(asked)
    if asked.get("format") == "text":
        return _file(request, job, which, _all_parts(job, **which), "")
    if asked.get("format") == "found":
        if not wanted:
            raise BadRequest("q says nothing to look for.")
        return _file(request, job, which, (part.encode() for part in lines_found(job, wanted=wanted, **which)), "-found")
    at = _number(asked.get("at", ""))
    tail = LOG_TAIL if which["rank"] is None else RANK_TAIL
    log = job_log(job, offset=-tail if at is None else max(0, at - LOG_BEFORE), limit=tail, **which)
    offset, line = _number(asked.get("offset", "")) or 0, _number(asked.get("line", "")) or 1
    found = log_search(job, wanted=wanted, offset=offset, line=line, **which) if wanted else None
    attempts = job_attempts(job)
    shown = next((one for one in attempts if one.number == log.attempt), None)
    writers = job_writers(job, shown) if shown else []
    context = {
        "job": job,
        "log": log,
        "at": at,
        "attempts": attempts,
        "tail": tail,
        "writers": writers,
        "ranks": next((writer.ranks for writer in writers if (writer.role, writer.index) == (log.role, log.index)), range(0)),
        "wanted": wanted,
        "found": found,
        "hits": hit_lines(found.hits) if found else (),
    }
    return render(request, "scheduler/job_log.html", context)


def _which(job: Job, asked: QueryDict) -> dict[str, Any]:
    """A rank that is not of the worker that is named with it is left over from another one, and not meant."""
    attempt, index, rank = (_number(asked.get(name, ""), digits=6) for name in ("attempt", "index", "rank"))
    role = asked.get("role", "")[:40]
    found: dict[str, Any] = {"attempt": attempt, "role": role, "index": index or 0, "rank": rank}
    if rank is not None and (role or index is not None):
        log = log_source(job, attempt=attempt, role=role, index=index or 0)
        run = next((one for one in job_attempts(job) if one.number == log.attempt), None)
        writers = job_writers(job, run) if run else []
        found["rank"] = rank if any(rank in one.ranks for one in writers if (one.role, one.index) == (log.role, log.index)) else None
    return found


def _number(text: str, *, digits: int = 15) -> int | None:
    """What an address says wrongly is taken as not said."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= digits else None


def _wanted(asked: QueryDict) -> str:
    """One line of text; more than the API takes is cut."""
    return " ".join(asked.get("q", "").splitlines()).strip()[:LONGEST_WANTED]


def _file(request: HttpRequest, job: Job, which: dict[str, Any], parts: Iterator[bytes], kind: str) -> StreamingHttpResponse:
    """Part by part, whatever serves it: a plain iterator would be read to its end where the server is asynchronous."""
    writer = f"{which['role'] or 'worker'}-{which['index']}" if which["rank"] is None else f"rank-{which['rank']}"
    name = slugify(f"{job.public_id}-{writer}{kind}")
    headers = {"Content-Disposition": f'attachment; filename="{name}.log"'}
    first = next(parts, b"")  # what can't be told is refused, which it can't be once an answer has begun

    def following() -> bytes | None:
        return next(parts, None)

    async def later() -> AsyncIterator[bytes]:
        yield first
        while (part := await sync_to_async(following)()) is not None:
            yield part

    body = later() if isinstance(request, ASGIRequest) else chain([first], parts)
    return StreamingHttpResponse(body, content_type="text/plain; charset=utf-8", headers=headers)


def _all_parts(job: Job, **which: Any) -> Iterator[bytes]:
    offset = 0
    while True:
        part = job_log(job, offset=offset, limit=MOST_BYTES, **which)
        yield (part.text or (f"{part.note}\n" if part.note and not offset else "")).encode()
        if part.next_offset <= offset:
            return
        offset = part.next_offset
