"""How the web server's loop hands a request to Django: once, to a thread, with all that begins and ends it."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asgiref.sync import sync_to_async
from django.core.exceptions import RequestAborted
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.core.signals import request_started
from django.db import close_old_connections
from django.http import FileResponse, HttpResponseBase
from django.urls import set_script_prefix

# More than there are connections to the database, so that who waits for other things keeps nobody from them.
THREADS = 40


class PagesHandler(ASGIHandler):
    """Django's handler, with the middleware running where the views run, in threads that are kept.

    Django's own begins a thread for each request, which makes all its objects of the database anew, and changes to it and back for each middleware,
    for the beginning and for the end: that took longer than what most requests do. Views here are functions, as the ORM is. What is streamed is
    streamed by the loop as ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._answered = sync_to_async(self._answer, thread_sensitive=False, executor=ThreadPoolExecutor(THREADS, thread_name_prefix="page"))

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)

    async def handle(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            body = await self.read_body(receive)
        except RequestAborted:
            return
        try:
            response = await self._answered(scope, body)
            if response.streaming:
                await self._stream(response, receive, send)
            else:
                await self.send_response(response, send)
        finally:
            body.close()

    def _answer(self, scope: Any, body: Any) -> Any:
        """In a thread: the whole request. What is streamed is ended when it has been."""
        set_script_prefix(get_script_prefix(scope))
        request_started.send(sender=type(self), scope=scope)
        request, fault = self.create_request(scope, body)
        response: Any = fault if request is None else self.get_response(request)
        response._handler_class = type(self)
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if response.streaming:
            close_old_connections()  # those of this thread: the stream asks by its own
        else:
            response.close()
        return response

    async def _stream(self, response: HttpResponseBase, receive: Any, send: Any) -> None:
        """Until it ends or the caller has gone."""
        sending = asyncio.create_task(self.send_response(response, send))
        listening = asyncio.create_task(self.listen_for_disconnect(receive))
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
        finally:
            for task in (sending, listening):
                task.cancel()
            await asyncio.gather(sending, listening, return_exceptions=True)
            await sync_to_async(response.close)()
