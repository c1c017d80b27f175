"""How the web server's loop hands a request to Django: once, to a thread, with all middleware."""

from collections.abc import Callable

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIHandler
from django.http import HttpRequest, HttpResponseBase


class PagesHandler(ASGIHandler):
    """Django's handler, with the middleware running where the views run.

    Django's own runs each middleware on the loop and sends it to a thread before and after the view: twenty changes of thread for a request, which
    took longer than what most of them do. Views here are functions, as the ORM is; what is streamed afterwards is streamed by the loop as ever.
    """

    def load_middleware(self, is_async: bool = False) -> None:
        super().load_middleware(is_async=False)
        chain: Callable[[HttpRequest], HttpResponseBase] = vars(self)["_middleware_chain"]
        self._middleware_chain = sync_to_async(chain, thread_sensitive=True)
