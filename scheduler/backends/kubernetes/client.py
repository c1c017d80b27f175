"""Kubernetes over HTTP: the few calls that are needed, each with a time limit. No redirect is followed and no proxy is used, as with slurmrestd.

It stands on urllib3: the official client and lightkube take a second to import and bring all of the API as code, where five kinds of object are read.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import orjson
import urllib3
from urllib3.exceptions import HTTPError, ProtocolError, SSLError

from scheduler.backends.base import BackendError
from scheduler.backends.kubernetes.config import Endpoint
from scheduler.backends.kubernetes.errors import KubernetesDenied, KubernetesFailed, KubernetesSilent

SECONDS = 5.0  # for one answer
PAGE = 500
CONNECTIONS = 32  # kept open at most
MERGE = "application/merge-patch+json"
# A server sends a bookmark each minute; so long it may say nothing before the watch counts as broken.
WATCH_SILENT = 90.0
WATCH_FOR = 300


class KubernetesClient:
    """One API server. Threads may share it."""

    def __init__(self, endpoint: Endpoint, *, seconds: float = SECONDS) -> None:
        self.endpoint, self.seconds = endpoint, seconds
        parts = urlsplit(endpoint.url)
        self._prefix = parts.path.rstrip("/")
        host = str(parts.hostname)
        options: dict[str, Any] = {"maxsize": CONNECTIONS, "block": False}
        self._pool: urllib3.HTTPConnectionPool
        if endpoint.tls is None:
            self._pool = urllib3.HTTPConnectionPool(host, parts.port or 80, **options)
        else:
            name: dict[str, Any] = {"server_hostname": endpoint.server_name} if endpoint.server_name else {}
            self._pool = urllib3.HTTPSConnectionPool(host, parts.port or 443, ssl_context=endpoint.tls, **name, **options)

    def get(self, path: str, query: Mapping[str, object] | None = None, *, seconds: float | None = None) -> dict[str, Any]:
        return self._answer("GET", path, query, seconds=seconds)

    def create(self, path: str, body: Mapping[str, Any], query: Mapping[str, object] | None = None) -> dict[str, Any]:
        return self._answer("POST", path, query, body=body)

    def patch(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._answer("PATCH", path, None, body=body, form=MERGE)

    def delete(self, path: str, *, grace: int | None = None, uid: str = "") -> bool:
        """False: there is nothing of that name, or not that one."""
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        if uid:
            body["preconditions"] = {"uid": uid}
        try:
            self._answer("DELETE", path, None, body=body)
        except KubernetesFailed as fault:
            if fault.is_missing or (uid and fault.code == 409):
                return False
            raise
        return True

    def every(self, path: str, query: Mapping[str, object] | None = None) -> tuple[list[dict[str, Any]], str]:
        """All objects of a list, page by page, and the version that a watch goes on from. A list that changed too much in between is begun anew."""
        for _ in range(3):
            found: list[dict[str, Any]] = []
            more, version = "", ""
            try:
                while True:
                    page = self.get(path, {**(query or {}), "limit": PAGE, **({"continue": more} if more else {})})
                    found += [one for one in page.get("items") or () if isinstance(one, dict)]
                    meta = page.get("metadata") or {}
                    version = version or str(meta.get("resourceVersion") or "")
                    more = str(meta.get("continue") or "")
                    if not more:
                        return found, version
            except KubernetesFailed as fault:
                if not fault.is_expired:
                    raise
        raise BackendError(f"Kubernetes could not list {path}: it changed too fast.")

    def watch(self, path: str, query: Mapping[str, object], version: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Events from a version on, until the server ends the watch. Raises `KubernetesFailed` (`is_expired`) where that version is too old."""
        asked = {**query, "watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": WATCH_FOR, "resourceVersion": version}
        answer = self._sent("GET", path, asked, seconds=WATCH_SILENT, stream=True)
        with closing(answer):
            rest = b""
            try:
                for chunk in answer.stream(65_536, decode_content=True):
                    lines = (rest + chunk).split(b"\n")
                    rest = lines.pop()
                    for line in filter(None, lines):
                        event = _read(line)
                        told = event.get("object")
                        if event.get("type") == "ERROR":
                            raise _failed(int((told or {}).get("code") or 500), told or {}, path)
                        if isinstance(told, dict):
                            yield str(event.get("type")), told
            except (HTTPError, OSError, HTTPException) as fault:
                raise KubernetesSilent(f"The watch of {self.endpoint.url} broke: {fault}") from fault

    def text(self, path: str, query: Mapping[str, object]) -> bytes:
        answer = self._sent("GET", path, query, seconds=self.seconds)
        return bytes(answer.data)

    def allowed(self, asked: Sequence[Mapping[str, str]]) -> list[bool]:
        """Which of these the console may do: each a verb, a resource and so on, as `SelfSubjectAccessReview` names them."""
        found = []
        for one in asked:
            body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": dict(one)}}
            answer = self.create("/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
            found.append(bool((answer.get("status") or {}).get("allowed")))
        return found

    def close(self) -> None:
        self._pool.close()

    def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        *,
        body: Mapping[str, Any] | None = None,
        form: str = "application/json",
        seconds: float | None = None,
    ) -> dict[str, Any]:
        return _read(self._sent(method, path, query, body=body, form=form, seconds=seconds or self.seconds).data)

    def _sent(
        self,
        method: str,
        path: str,
        query: Mapping[str, object] | None,
        *,
        seconds: float,
        body: Mapping[str, Any] | None = None,
        form: str = "application/json",
        stream: bool = False,
    ) -> urllib3.BaseHTTPResponse:
        for again in (True, False):
            answer = self._once(method, path, query, seconds=seconds, body=body, form=form, stream=stream)
            if answer.status == 401 and again:
                answer.drain_conn()
                self.endpoint.account.renew()
                continue
            break
        if 200 <= answer.status < 300:
            return answer
        try:
            said = _read(answer.data)
        except (BackendError, HTTPError, OSError, HTTPException):
            said = {}
        raise _failed(answer.status, said, path)

    def _once(
        self, method: str, path: str, query: Mapping[str, object] | None, *, seconds: float, body: Mapping[str, Any] | None, form: str, stream: bool
    ) -> urllib3.BaseHTTPResponse:
        where = f"{self._prefix}{path}{f'?{urlencode(query)}' if query else ''}"
        headers = {"Accept": "application/json, */*", "User-Agent": "gpufleet", **self.endpoint.account.headers()}
        if body is not None:
            headers["Content-Type"] = form
        timeout = urllib3.Timeout(connect=min(seconds, self.seconds), read=seconds)
        for again in (True, False):
            try:
                return self._pool.urlopen(
                    method,
                    where,
                    body=None if body is None else orjson.dumps(body),
                    headers=headers,
                    retries=False,
                    redirect=False,
                    timeout=timeout,
                    preload_content=not stream,
                )
            except SSLError as fault:
                raise KubernetesDenied(f"The certificate of {self.endpoint.url} is not accepted: {fault}") from fault
            except ProtocolError as fault:
                # A connection that the server had closed just then. What was sent twice finds its own first one (`AlreadyExists`).
                if not again:
                    raise KubernetesSilent(f"Kubernetes does not answer at {self.endpoint.url}: {fault}") from fault
            except (HTTPError, OSError, HTTPException) as fault:
                raise KubernetesSilent(f"Kubernetes does not answer at {self.endpoint.url}: {_short(fault)}") from fault
        raise AssertionError


def named(namespace: str, kind: str, name: str = "", part: str = "") -> str:
    """The path of a list of the core API, of one of its objects, or of a part of that."""
    return "/".join(["/api/v1/namespaces", quote(namespace, safe=""), kind, *(quote(word, safe="") for word in (name, part) if word)])


def _read(data: bytes) -> dict[str, Any]:
    try:
        found = orjson.loads(data) if data else {}
    except ValueError as fault:
        raise BackendError("What answers in place of Kubernetes sends no JSON.") from fault
    return found if isinstance(found, dict) else {}


def _failed(code: int, said: Mapping[str, Any], path: str) -> BackendError:
    words = str(said.get("message") or "")[:500]
    if code == 401:
        return KubernetesDenied("Kubernetes does not accept the console's credentials (401).")
    if code == 403:
        return KubernetesDenied(f"Kubernetes refuses: {words or path}")
    if code in (502, 503, 504):
        return KubernetesSilent(f"Kubernetes is overloaded or not ready ({code}): {words or path}")
    return KubernetesFailed(f"Kubernetes answered {code} to {path}: {words or 'no reason given'}", code, str(said.get("reason") or ""))


def _short(fault: BaseException) -> str:
    text = str(fault)
    return text.rpartition("): ")[2] or text
