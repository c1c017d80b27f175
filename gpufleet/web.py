"""What every view asks first: who is there, and may they?

Not signed in: the sign-in page (JSON callers get 401). Signed in without the right: 403. A row outside the visible subtree: 404, from the selector.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from asgiref.sync import iscoroutinefunction, sync_to_async
from django.contrib.auth.views import redirect_to_login
from django.http import HttpRequest, HttpResponse, HttpResponseBase, JsonResponse

from gpufleet.core.audit import audit_record
from gpufleet.navigation import access_of
from quotas.permissions import Access, Can

View = TypeVar("View", bound=Callable[..., Any])

__all__ = ["Access", "Can", "access_of", "requires"]


def requires(capability: Can | None = None, *, everywhere: bool = False) -> Callable[[View], View]:
    """Let a view be entered only by people who have `capability` somewhere, or on the whole fleet with `everywhere`.

    Without a capability it is open to everyone who is signed in.

    The view still asks `access_of(request)` about the row that it shows or writes. Plain and async views both work.
    """

    def turn_away(request: HttpRequest) -> HttpResponse | None:
        if not request.user.is_authenticated:
            if "application/json" in request.headers.get("Accept", ""):
                return JsonResponse({"title": "Sign in first", "status": 401}, status=401, content_type="application/problem+json")
            return redirect_to_login(request.get_full_path())
        access = access_of(request)
        if capability is not None and everywhere:
            access.must_everywhere(capability)
        elif capability is not None:
            access.must_somewhere(capability)
        return None

    def decorate(view: View) -> View:
        @wraps(view)
        def plain(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            return turn_away(request) or _noted(request, view(request, *args, **kwargs))

        @wraps(view)
        async def later(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            answer = await sync_to_async(turn_away)(request) or await view(request, *args, **kwargs)
            return await sync_to_async(_noted)(request, answer)

        return later if iscoroutinefunction(view) else plain  # type: ignore[return-value]

    return decorate


def _noted(request: HttpRequest, answer: HttpResponseBase) -> HttpResponseBase:
    """A file that leaves the console is worth an entry in the audit, whichever list it came from."""
    if answer.get("Content-Disposition", "").startswith("attachment") and answer.status_code == 200:
        asked = {"query": request.META.get("QUERY_STRING", "")[:500]}
        audit_record(actor=access_of(request).actor, action="export", kind="page", object_id=request.path[:120], after=asked)
    return answer
