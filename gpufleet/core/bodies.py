"""How much a request may send. Django under ASGI keeps a whole body on the disk before anybody is asked who they are."""

import json
import uuid
from typing import Any

TOO_LARGE = 413
TITLE = "The request is too large"
MORE = "This is more than gpufleet takes in one request."


class BodyLimit:
    """The application behind a limit: a request that announces more is turned away unread, one that sends more is not read to its end."""

    def __init__(self, app: Any, most: int) -> None:
        self.app = app
        self.most = most

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if _announced(scope) > self.most:
            await _refuse(scope, send)
            return
        read = 0
        answered = False

        async def counted() -> Any:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            # To the application it looks as if the caller had gone, so it stops without an answer.
            return message if read <= self.most else {"type": "http.disconnect"}

        async def noted(message: Any) -> None:
            nonlocal answered
            answered = True
            await send(message)

        await self.app(scope, counted, noted)
        if read > self.most and not answered:
            await _refuse(scope, send)


def _announced(scope: Any) -> int:
    text = dict(scope["headers"]).get(b"content-length", b"")
    return int(text) if text.isdigit() else 0


async def _refuse(scope: Any, send: Any) -> None:
    kind, body = b"text/plain; charset=utf-8", f"{MORE}\n".encode()
    headers = [(b"connection", b"close")]
    if scope["path"].startswith("/api/"):
        # Nothing of Django has run, so it is made here what gpufleet.problems makes of every other fault.
        request_id = uuid.uuid4().hex
        problem = {"type": "about:blank", "title": TITLE, "status": TOO_LARGE, "detail": MORE, "request_id": request_id}
        kind, body = b"application/problem+json", json.dumps(problem).encode()
        headers.append((b"x-request-id", request_id.encode()))
    await send({"type": "http.response.start", "status": TOO_LARGE, "headers": [(b"content-type", kind), *headers]})
    await send({"type": "http.response.body", "body": body})
