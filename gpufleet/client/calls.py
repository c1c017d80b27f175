"""Calls to the console's API. What is safe to repeat is repeated when the network or the console stumbles."""

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpufleet import __version__
from gpufleet.client import AWAY, NOT_ALLOWED, NOT_THERE, REFUSED, ClientError
from gpufleet.client.place import Place

TRIES = 4
NO_CONTENT = 204
SECONDS = 30.0
LONGEST_WAIT = 60.0  # what has room only later is refused at once
AGAIN_AFTER = (0.3, 1.0, 3.0)
BUSY = (429, 502, 503, 504)
STATUSES = {401: NOT_ALLOWED, 403: NOT_ALLOWED, 404: NOT_THERE, 405: REFUSED, 409: REFUSED, 412: REFUSED, 413: REFUSED, 422: REFUSED, 429: REFUSED}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect would carry the token to another address."""

    def redirect_request(self, *args: Any, **named: Any) -> None:
        return None


@dataclass
class Console:
    place: Place
    pause: Any = time.sleep

    def __post_init__(self) -> None:
        self._opener = urllib.request.build_opener(_NoRedirect)

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query)

    def post(self, path: str, body: Any = None, *, key: str = "", repeatable: bool = False, **query: Any) -> Any:
        """A write. With an idempotency key, or keys of its own within, it may be repeated: the console does it once and answers the same again."""
        return self._call("POST", path, query, body if body is not None else {}, key, repeatable)

    def put(self, path: str, body: Any) -> Any:
        return self._call("PUT", path, {}, body)

    def patch(self, path: str, body: Any, *, revision: int | None = None) -> Any:
        """With the revision that was read, only if nothing has changed since."""
        return self._call("PATCH", path, {}, body, revision=revision)

    def delete(self, path: str, **query: Any) -> None:
        self._call("DELETE", path, query)

    def events(self, path: str, **query: Any) -> Iterator[tuple[str, Any]]:
        """Kinds and values of a stream of Server-Sent Events, to its event `end`. It goes on where it was when an answer is over."""
        last, idle = "", 0
        while True:
            kind, data, came = "", [], False
            try:
                with self._opened("GET", path, query, headers={"Accept": "text/event-stream", **({"Last-Event-ID": last} if last else {})}) as answer:
                    for line in answer:
                        name, _, value = line.decode().rstrip("\n").partition(": ")
                        if name == "event":
                            kind = value
                        elif name == "id":
                            last = value
                        elif name == "data":
                            data.append(value)
                        elif not name and data:
                            came = True
                            yield kind, json.loads("".join(data))
                            if kind == "end":
                                return
                            kind, data = "", []
            except urllib.error.HTTPError as fault:
                if fault.code not in BUSY or idle >= TRIES:
                    raise _told(fault, self.place) from fault
            except (OSError, http.client.HTTPException) as fault:
                if idle >= TRIES:
                    raise ClientError(AWAY, f"{self.place.url} does not answer: {getattr(fault, 'reason', fault)}.") from fault
            else:
                came = True
            idle = 0 if came else idle + 1
            self.pause(AGAIN_AFTER[min(idle, len(AGAIN_AFTER) - 1)])

    def opened(self, path: str, **query: Any) -> Any:
        """The answer itself, to be read piece by piece: a file."""
        try:
            return self._opened("GET", path, query)
        except urllib.error.HTTPError as fault:
            raise _told(fault, self.place) from fault
        except (OSError, http.client.HTTPException) as fault:
            raise ClientError(AWAY, f"{self.place.url} does not answer: {getattr(fault, 'reason', fault)}.") from fault

    def pages(self, path: str, limit: int, **query: Any) -> Iterator[dict[str, Any]]:
        """The rows of a list, page by page, at most `limit`."""
        after = ""
        while limit > 0:
            page = self.get(path, size=min(limit, 500), after=after, **query)
            yield from page["items"][:limit]
            limit -= len(page["items"])
            after = page["next"] or ""
            if not after:
                return

    def _call(
        self, method: str, path: str, query: Mapping[str, Any], body: Any = None, key: str = "", repeatable: bool = False, revision: int | None = None
    ) -> Any:
        repeatable = repeatable or method == "GET" or bool(key)
        headers = ({"Idempotency-Key": key} if key else {}) | ({"If-Match": f'"{revision}"'} if revision is not None else {})
        for number in range(TRIES):
            last = number == TRIES - 1 or not repeatable
            try:
                return self._once(method, path, query, body, headers)
            except urllib.error.HTTPError as fault:
                wait = float(fault.headers.get("Retry-After") or AGAIN_AFTER[number]) if fault.code == 429 else AGAIN_AFTER[number]
                if fault.code not in BUSY or last or wait > LONGEST_WAIT:
                    raise _told(fault, self.place) from fault
            except (urllib.error.URLError, TimeoutError, ConnectionError) as fault:
                if last:
                    why = getattr(fault, "reason", fault)
                    raise ClientError(AWAY, f"{self.place.url} does not answer: {why}.") from fault
                wait = AGAIN_AFTER[number]
            self.pause(wait)
        raise AssertionError("the last try either answers or raises")

    def _once(self, method: str, path: str, query: Mapping[str, Any], body: Any, headers: Mapping[str, str]) -> Any:
        with self._opened(method, path, query, body, {"Accept": "application/json", **headers}) as answer:
            text = answer.read()
        if answer.status == NO_CONTENT:
            return None
        try:
            return json.loads(text)
        except ValueError as fault:
            raise ClientError(AWAY, f"{self.place.url} does not answer like a gpufleet console.") from fault

    def _opened(self, method: str, path: str, query: Mapping[str, Any], body: Any = None, headers: Mapping[str, str] | None = None) -> Any:
        asked = urllib.parse.urlencode({name: value for name, value in query.items() if value not in (None, "", [], False)}, doseq=True)
        address = f"{self.place.url}/api/v1{path}{'?' + asked if asked else ''}"
        sent = {"Authorization": f"Bearer {self.place.token}", "User-Agent": f"gpufleet/{__version__}", **(headers or {})}
        data = None
        if body is not None:
            data, sent["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(address, data=data, method=method, headers=sent)  # noqa: S310 - http or https, by `clean_url`
        return self._opener.open(request, timeout=SECONDS)


def _told(fault: urllib.error.HTTPError, place: Place) -> ClientError:
    """The console's problem in words."""
    try:
        problem = json.loads(fault.read())
        assert isinstance(problem, dict)
    except (ValueError, AssertionError):
        problem = {}
    title = problem.get("title") or f"{place.url} answered {fault.code}"
    detail = problem.get("detail") or ""
    errors = [(error.get("path"), error.get("message", "")) for error in problem.get("errors") or ()]
    told = tuple(f"{path}: {message}" if path else str(message) for path, message in errors)
    status = STATUSES.get(fault.code, AWAY)
    return ClientError(status, f"{title}. {detail}".strip(), told)
