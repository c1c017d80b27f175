"""CSV downloads: streamed, UTF-8, with a header, and harmless to the spreadsheet that opens them."""

import csv
import io
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

from gpufleet.core.times import written

CHUNK = 2_000
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")

# Given a place in the list ('' for its beginning), the next rows and the place behind them ('' at the end).
Chunks = Callable[[str], tuple[Sequence[Any], str]]


def harmless(value: Any) -> Any:
    """The value as a CSV cell. A text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return written(value)
    if isinstance(value, int | float):
        return value
    text = str(value)
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def answer(
    request: HttpRequest, filename: str, header: Sequence[str], chunks: Chunks, cells: Callable[[Any], Sequence[Any]]
) -> StreamingHttpResponse:
    def encoded(place: str | None) -> tuple[bytes, str]:
        """The file's next piece. The header comes with the first rows, so that a failing query fails before anything is sent."""
        rows, following = chunks(place or "")
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        if place is None:
            writer.writerow([harmless(label) for label in header])
        writer.writerows([harmless(cell) for cell in cells(row)] for row in rows)
        return text.getvalue().encode(), following

    first, following = encoded(None)

    def pieces() -> Iterator[bytes]:
        yield first
        place = following
        while place:
            piece, place = encoded(place)
            yield piece

    async def pieces_later() -> AsyncIterator[bytes]:
        yield first
        place = following
        while place:
            piece, place = await sync_to_async(encoded)(place)
            yield piece

    # A plain iterator would be read to its end before the first byte is sent where the server is asynchronous.
    body = pieces_later() if isinstance(request, ASGIRequest) else pieces()
    return StreamingHttpResponse(
        body, content_type="text/csv; charset=utf-8; header=present", headers={"Content-Disposition": f'attachment; filename="{filename}"'}
    )
