"""Asking a Prometheus through prometheus-api-client: only where webhooks may lead, to the address that was checked, bounded in time and size."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import requests
import urllib3
from prometheus_api_client import PrometheusConnect
from requests.adapters import HTTPAdapter

from scheduler.notify.outgoing import MOST_ADDRESSES, Address, Refused, Rules, Target, addresses_of, target_of

CONNECT_SECONDS = 3.0
WHOLE_SECONDS = 12.0
MOST_BYTES = 64 << 20
SIGN_IN_REFUSED = (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
PIECE = 1 << 16
# Before what the server itself says, which may repeat parts of the query.
REFUSED = "refused the query: "


class PrometheusFault(Exception):
    """The server can't be asked, or did not answer as a Prometheus does. The message is for a person."""


class QueryFault(PrometheusFault):
    """This query was refused or took too long. The server may answer another one."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long one look at a server may take, how long the server may be silent in it, and how large an answer may be."""

    seconds: float = WHOLE_SECONDS
    silence_seconds: float = WHOLE_SECONDS
    most_bytes: int = MOST_BYTES

    @property
    def size(self) -> str:
        return f"{self.most_bytes >> 20} MiB" if self.most_bytes >> 20 else f"{self.most_bytes >> 10} KiB"


ROUND = Bounds()


class _Pinned(HTTPAdapter):
    """Connects to an address that was checked, whatever the name says meanwhile; the certificate must be that of the name."""

    def __init__(self, target: Target, addresses: Sequence[Address]) -> None:
        self.target = target
        self.address, *self.others = addresses[:MOST_ADDRESSES]
        super().__init__(max_retries=0)

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        if self.target.secure:
            kwargs |= {"server_hostname": self.target.host, "assert_hostname": self.target.host}
        super().init_poolmanager(*args, **kwargs)

    def send(self, request: requests.PreparedRequest, *args: Any, **kwargs: Any) -> requests.Response:
        parts = urlsplit(request.url or "")
        host = f"[{self.address}]" if self.address.version == 6 else str(self.address)
        request.url = urlunsplit(parts._replace(netloc=f"{host}:{self.target.port}"))
        request.headers["Host"] = self.target.named
        return super().send(request, *args, **kwargs)


class _Bounded(requests.Session):
    """No redirects, no proxies or passwords of the environment; an answer is read within a bound of time and size.

    `headers` go with every question. Where they hold a secret, nothing is repeated of a refusal: a server may write into it what it was sent.
    """

    def __init__(self, pinned: _Pinned, headers: Mapping[str, str], bounds: Bounds) -> None:
        super().__init__()
        self.trust_env = False
        self.own = headers
        self.headers.update(headers)
        self.bounds = bounds
        self.deadline = time.monotonic() + bounds.seconds
        self.pinned = pinned

    def get_adapter(self, url: str) -> _Pinned:
        """Always this one: the client mounts adapters of its own, by its address, which would ask the name service again."""
        return self.pinned

    def request(self, *args: Any, **kwargs: Any) -> requests.Response:
        answer = self._answered(*args, **kwargs)
        if answer.is_redirect:
            raise PrometheusFault("It answers with a redirect, which is not followed.")
        if fault := _refusal(answer.status_code, self.own):
            raise (PrometheusFault if answer.status_code in SIGN_IN_REFUSED else QueryFault)(fault)
        pieces, size = [], 0
        # As it comes, not in pieces of a size: a server that sends a byte now and then is noticed.
        while piece := answer.raw.read1(PIECE, decode_content=True):
            pieces.append(piece)
            size += len(piece)
            if size > self.bounds.most_bytes:
                answer.close()
                raise QueryFault(f"Its answer is larger than {self.bounds.size}.")
            if time.monotonic() > self.deadline:
                raise PrometheusFault(f"It did not answer within {self.bounds.seconds:g} s.")
        answer._content = b"".join(pieces)
        if answer.status_code != HTTPStatus.OK:
            raise QueryFault(f"It {REFUSED}{_own_words(answer)}")
        return answer

    def _answered(self, *args: Any, **kwargs: Any) -> requests.Response:
        """By the first address that takes the connection; the next question begins with it."""
        while True:
            left = self.deadline - time.monotonic()
            if left <= 0:
                raise PrometheusFault(f"It did not answer within {self.bounds.seconds:g} s.")
            patience = (min(CONNECT_SECONDS, left), min(self.bounds.silence_seconds, left))
            kwargs |= {"allow_redirects": False, "stream": True, "timeout": patience}
            try:
                return super().request(*args, **kwargs)
            except requests.ConnectionError:
                if not self.pinned.others:
                    raise
                self.pinned.address = self.pinned.others.pop(0)


class Server:
    """One server for one look. `headers` are what signs in."""

    def __init__(self, url: str, rules: Rules, headers: Mapping[str, str] = MappingProxyType({}), bounds: Bounds | None = None) -> None:
        try:
            target = target_of(url, rules)
            pinned = _Pinned(target, addresses_of(target, rules))
        except Refused as fault:
            raise PrometheusFault(str(fault)) from None
        self._bounds = bounds or ROUND
        self._asks = PrometheusConnect(url=url.rstrip("/"), session=_Bounded(pinned, headers, self._bounds), retry=0)

    def ask(self, query: str) -> list[dict[str, Any]]:
        """The series of an instant query."""
        found = self.result(query)
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise PrometheusFault("Its answer is not one of a Prometheus.")
        return found

    def result(self, query: str, **bounds: str) -> Any:
        """The result of an instant query: series, or a moment and a value where it gives a scalar. `bounds` go with the query."""
        try:
            return self._asks.custom_query(query, params=bounds)
        except requests.RequestException as fault:
            raise self._fault_of(fault) from None
        except urllib3.exceptions.HTTPError:
            raise PrometheusFault(f"Its answer broke off, or was not there within {self._bounds.seconds:g} s.") from None
        except (ValueError, KeyError, TypeError):
            raise PrometheusFault("Its answer is not one of a Prometheus.") from None

    def _fault_of(self, fault: requests.RequestException) -> PrometheusFault:
        if isinstance(fault, requests.exceptions.SSLError):
            return PrometheusFault("Its certificate is not valid for this name.")
        if isinstance(fault, requests.Timeout):
            is_slow = isinstance(fault, requests.ReadTimeout) and self._bounds.silence_seconds < self._bounds.seconds
            seconds = self._bounds.silence_seconds if is_slow else self._bounds.seconds
            return (QueryFault if is_slow else PrometheusFault)(f"It did not answer within {seconds:g} s.")
        return PrometheusFault("No connection: nothing answers at this address.")


def _own_words(answer: requests.Response) -> str:
    """What a Prometheus says of a query that it refuses; of another server its status."""
    try:
        told = answer.json()["error"]
    except (ValueError, KeyError, TypeError):
        told = ""
    return told[:200] if isinstance(told, str) and told else f"status {answer.status_code}."


def _refusal(status: int, headers: Mapping[str, str]) -> str:
    """Why a server refuses who asks; empty where that is not it, or where its own words say more."""
    signed = "Authorization" in headers
    if status == HTTPStatus.UNAUTHORIZED:
        if not signed:
            return f"It answered 401: a password or token{'' if headers else ', or a tenant,'} is required."
        return f"It answered 401: the password or token was not accepted{'' if len(headers) > 1 else ', or a tenant is required'}."
    if status == HTTPStatus.FORBIDDEN:
        return f"It answered 403: queries {'with these' if signed else 'without'} credentials are not allowed."
    return f"It refused the query with status {status}." if signed and status != HTTPStatus.OK else ""
