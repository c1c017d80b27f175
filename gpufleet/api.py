"""The HTTP API, version 1. Each app brings its own router; who asks, and how faults look, is the same for all."""

import json
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache, wraps
from json import JSONDecodeError
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.views.decorators.http import require_safe
from ninja import NinjaAPI, Schema
from ninja.errors import AuthenticationError, Throttled
from ninja.openapi.docs import DocsBase
from ninja.operation import Operation
from ninja.parser import Parser
from ninja.security import HttpBearer, SessionAuth
from ninja.throttling import AnonRateThrottle

from dashboards.api import router as dashboards_router
from gpufleet import __version__
from gpufleet.api_examples import with_examples
from gpufleet.api_notes import with_notes
from gpufleet.api_parameters import known_parameters_only
from gpufleet.api_schema import with_problems
from gpufleet.core.models import User
from gpufleet.core.times import now
from gpufleet.limits import CallerLimit
from gpufleet.navigation import access_of
from gpufleet.problems import UnreadableBody, answer, problem, problems_install
from gpufleet.search_api import router as search_router
from quotas.api import router as quotas_router
from quotas.services.tokens import TokenRefused, token_access
from scheduler.api import router as scheduler_router


class TokenAuth(HttpBearer):
    """A service token. A wrong one is refused at once and never falls back to the browser's session."""

    openapi_bearerFormat = "gpufleet service token"

    def authenticate(self, request: HttpRequest, token: str) -> Any:
        try:
            access = token_access(secret=token, now=now(), request_id=getattr(request, "request_id", ""))
        except TokenRefused as refusal:
            # Only failures count, so an address with one broken script does not lock out the others behind it.
            guesses = AnonRateThrottle("20/m")
            if not guesses.allow_request(request):
                raise Throttled(wait=int(guesses.wait() or 60)) from refusal
            raise AuthenticationError(message=str(refusal)) from refusal
        request.access = access  # type: ignore[attr-defined]
        return access.actor.via


class BrowserAuth(SessionAuth):
    """The signed-in person of the console; writes need the CSRF token that its pages carry."""

    def _get_key(self, request: HttpRequest) -> str | None:
        # Without a session there is nobody to protect from forged requests, and 401 says what is missing while 403 would not.
        return super()._get_key(request) if request.user.is_authenticated else None

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return f"u:{request.user.pk}" if request.user.is_authenticated else None


JSON_TYPES = ("", "application/json")
_KINDS = {list: "a list", str: "a string", int: "a number", float: "a number", bool: "true or false", type(None): "null"}


MOST_KEYS = 10_000  # of one object; no field takes as many, and each unknown one was made a fault of its own: 60,000 of them took two seconds


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(pairs) > MOST_KEYS:
        raise UnreadableBody(f"One object of the body has {len(pairs):,} keys; at most {MOST_KEYS:,} are read.")
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        raise UnreadableBody(f"“{twice[:100]}” is stated twice in one object of the body.")
    return found


class ObjectParser(Parser):
    """A body is a JSON object, in which no key is stated twice: of a list or a word no field would be found, and it would pass as one that leaves
    everything out.
    """

    def parse_body(self, request: HttpRequest) -> dict[str, Any]:
        try:
            found = json.loads(request.body, object_pairs_hook=_each_key_once)
        except JSONDecodeError as fault:
            sent = f" It was sent as {request.content_type}; the API takes application/json." if request.content_type not in JSON_TYPES else ""
            raise UnreadableBody(f"The body is not valid JSON: line {fault.lineno}, column {fault.colno}: {fault.msg}.{sent}") from None
        except (UnicodeDecodeError, RecursionError):
            raise UnreadableBody("The body is not valid JSON: it is not UTF-8 text, or too deeply nested.") from None
        if not isinstance(found, dict):
            raise UnreadableBody(f"The body is to be a JSON object, and is {_KINDS.get(type(found), 'something else')}.")
        return found


class ReadableDocs(DocsBase):
    """The operations as a page of the console: readable without scripts, in its own colours, from no other host."""

    def render_page(self, request: HttpRequest, api: NinjaAPI, **kwargs: Any) -> HttpResponse:
        return render(request, "api/docs.html", self._shown(request.build_absolute_uri("/").rstrip("/")))

    @lru_cache(maxsize=4)  # noqa: B019 # The operations do not change while the console runs; to write them down takes a second.
    def _shown(self, base: str) -> dict[str, Any]:
        from gpufleet.api_docs import described

        shown = described(api.get_openapi_schema(), base=base)
        return {**shown, "operations": render_to_string("api/_operations.html", shown)}


def _for_callers(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """The documentation is for those who may call: signed-in people and holders of a token."""

    @require_safe
    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            known = TOKEN(request) or request.user.is_authenticated
        except (AuthenticationError, Throttled) as fault:
            return answer(request, fault)
        return view(request, *args, **kwargs) if known else problem(request, 401, "Sign in to the console, or send a service token.")

    return wrapped


class Api(NinjaAPI):
    def get_openapi_operation_id(self, operation: Operation) -> str:
        """The function's own name: it does not change when a file is split, so generated clients don't either."""
        return operation.view_func.__name__

    def get_openapi_schema(self, *, path_prefix: str | None = None, path_params: dict[str, Any] | None = None) -> Any:
        """With what every operation may answer when it refuses, who may call it, and an example of all that is sent and answered."""
        return self._described(self.get_root_path(path_params or {}) if path_prefix is None else path_prefix)

    @cache  # noqa: B019 # There is one API, and what it describes does not change while it runs; putting it together takes a second.
    def _described(self, prefix: str) -> Any:
        return with_examples(with_notes(with_problems(super().get_openapi_schema(path_prefix=prefix))))


TOKEN = TokenAuth()
api = Api(
    title="gpufleet",
    version=__version__,
    description="Read and steer the fleet from programs. Times are UTC in ISO 8601, GPUs are whole numbers of milli-GPU, money is micro-units.",
    urls_namespace="api",
    docs=ReadableDocs(),
    parser=ObjectParser(),
    docs_decorator=_for_callers,
    auth=[TOKEN, BrowserAuth()],
    throttle=[CallerLimit()],
)
problems_install(api)
api.add_decorator(known_parameters_only(api))


class GrantOut(Schema):
    path: str
    capabilities: list[str]


class MeOut(Schema):
    id: str
    username: str
    name: str
    via: str
    grants: list[GrantOut]


@api.get("/me", response=MeOut, tags=["Me"], url_name="me", summary="Show the signed-in user")
def me(request: HttpRequest) -> MeOut:
    """The person behind the session or the token, and what may be done where. An empty path is the whole fleet."""
    access = access_of(request)
    user = access.actor.user
    assert isinstance(user, User)
    grants = [GrantOut(path=grant.path, capabilities=sorted(grant.capabilities)) for grant in access.grants]
    return MeOut(id=user.public_id, username=user.username, name=str(user), via=access.actor.via, grants=grants)


for router in (search_router, quotas_router, scheduler_router, dashboards_router):
    api.add_router("", router)
