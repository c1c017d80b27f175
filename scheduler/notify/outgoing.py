"""HTTP to addresses that people typed in: where it may lead, and one POST to the very address that was checked.

A name is looked up once, every address that it has is held against the rules, and the connection goes to one of those: a name that answers
differently the second time gains nothing. No redirect is followed, no proxy of the environment is used, and time and size are bounded.
"""

import hashlib
import hmac
import http.client
import ipaddress
import queue
import socket
import ssl
import threading
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from gpufleet.core.times import millis

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

URL_LENGTH = 500
CONNECT_SECONDS = 5.0
LOOK_UP_SECONDS = 5.0
CUT_AGAIN_SECONDS = 0.1
MOST_ADDRESSES = 4
WHOLE_SECONDS = 10.0
READ_BYTES = 2048
EXCERPT_LENGTH = 500
FAULT_LENGTH = 300
SIGNATURE_VERSION = "v1"


class Refused(Exception):
    """An address that may not be sent anything. The message says why."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What an installation allows beyond public addresses over https."""

    networks: tuple[Network, ...] = ()
    http: bool = False

    @classmethod
    def of_settings(cls) -> "Rules":
        return cls(settings.WEBHOOKS["NETWORKS"], settings.WEBHOOKS["HTTP"])


@dataclass(frozen=True, slots=True)
class Target:
    """A web address in its parts."""

    secure: bool
    host: str
    port: int
    path: str

    @property
    def named(self) -> str:
        """As the Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == (443 if self.secure else 80) else f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one try went. `fault` is empty where the answer was a good one."""

    status: int | None
    duration_ms: int
    fault: str
    excerpt: str = ""

    @property
    def taken(self) -> bool:
        return not self.fault


def target_of(url: str, rules: Rules) -> Target:
    """The parts of an address that may be sent something, as far as the text tells; `Refused` otherwise."""
    if len(url) > URL_LENGTH:
        raise Refused(f"At most {URL_LENGTH} characters.")
    if any(unicodedata.category(letter).startswith(("C", "Z")) for letter in url) or "\\" in url:
        raise Refused("It holds a character that no address has.")
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise Refused("This is not a web address.") from None
    if parts.scheme not in ("https", "http") or not host:
        raise Refused("Write an address that begins with https:// and names a host.")
    if parts.scheme == "http" and not rules.http:
        raise Refused("Only https:// is allowed here: over http:// anybody on the way could read it (GPUFLEET_WEBHOOK_HTTP).")
    if parts.username is not None or parts.password is not None:
        raise Refused("Remove the user and password: they would be shown with the address. The signature identifies the sender.")
    if parts.fragment:
        raise Refused("Leave out what is behind #: it is never sent.")
    if port == 0:
        raise Refused("There is no port 0.")
    try:
        host = host if _literal(host) else host.encode("idna").decode("ascii")
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        path.encode("ascii")
    except UnicodeError:
        raise Refused("Write it in plain letters: other characters as %C3%A4, or the host as xn--….") from None
    target = Target(parts.scheme == "https", host, port or (443 if parts.scheme == "https" else 80), path)
    literal = _literal(host)
    if literal is not None:
        _must_be_allowed(literal, rules)
    return target


def _literal(host: str) -> Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def addresses_of(target: Target, rules: Rules) -> list[Address]:
    """Every address of the host, all of them allowed; `Refused` where one is not."""
    found = _looked_up(target)
    addresses = list(dict.fromkeys(ipaddress.ip_address(str(sockaddr[0])) for *_, sockaddr in found))
    for address in addresses:
        _must_be_allowed(address, rules)
    if not addresses:
        raise Refused(f"The host {target.host} has no address.")
    return addresses


def _looked_up(target: Target) -> list[Any]:
    """What the name service says, within a bound of our own: the system's may be minutes, and can't be set for one question."""
    said: queue.SimpleQueue[list[Any] | Exception] = queue.SimpleQueue()

    def ask() -> None:
        try:
            said.put(socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM))
        except (OSError, UnicodeError) as error:
            said.put(error)

    threading.Thread(target=ask, daemon=True, name="look-up").start()
    try:
        found = said.get(timeout=LOOK_UP_SECONDS)
    except queue.Empty:
        raise Refused(f"The host {target.host} was not found within {LOOK_UP_SECONDS:g} s.") from None
    if isinstance(found, Exception):
        raise Refused(f"The host {target.host} was not found.") from None
    return found


def _must_be_allowed(address: Address, rules: Rules) -> None:
    if not is_allowed(address, rules.networks):
        raise Refused(f"{address} is not a public address. An operator can allow its network (GPUFLEET_WEBHOOK_NETWORKS).")


def is_allowed(address: Address, networks: Iterable[Network] = ()) -> bool:
    """Whether it is public, or in one of these networks. An IPv6 address that stands for an IPv4 one is that one."""
    meant = _meant(address)
    if any(one in network for one in {address, meant} for network in networks if one.version == network.version):
        return True
    return _is_public(meant) and (meant is address or _is_public_carrier(address))


def _meant(address: Address) -> Address:
    """The IPv4 address inside of an IPv4-mapped, 6to4 or NAT64 one; Teredo's is not looked for, as Teredo is not public."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF) if address in NAT64 else address


NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
# Blocks that some versions of the standard library take for public. Teredo hides an address, the last ones are for documents and tests.
NEVER = tuple(
    ipaddress.ip_network(text)
    for text in ("192.88.99.0/24", "198.18.0.0/15", "240.0.0.0/4", "::/96", "64:ff9b:1::/48", "2001::/23", "3fff::/20", "fec0::/10", "5f00::/16")
)


def _is_public(address: Address) -> bool:
    special = address.is_multicast or address.is_reserved or address.is_unspecified or address.is_loopback or address.is_link_local
    if special or any(address in block for block in NEVER if block.version == address.version):
        return False
    return address.is_global


def _is_public_carrier(address: Address) -> bool:
    """Of addresses that carry another one: NAT64 goes through a translator of one's own network, mapped ones are the other address itself."""
    return isinstance(address, ipaddress.IPv6Address) and (address.ipv4_mapped is not None or address in NAT64)


class _Plain(http.client.HTTPConnection):
    """To an address, not to a name."""

    def __init__(self, address: Address, target: Target, seconds: float) -> None:
        super().__init__(str(address), target.port, timeout=seconds)


class _Secure(http.client.HTTPSConnection):
    """To an address; the certificate must be that of the name."""

    def __init__(self, address: Address, target: Target, seconds: float) -> None:
        self._context_of_target = ssl.create_default_context()
        super().__init__(str(address), target.port, timeout=seconds, context=self._context_of_target)
        self._name = target.host

    def connect(self) -> None:
        plain = socket.create_connection((self.host, self.port), self.timeout)
        try:
            # The handshake comes second, so that what ends a slow one finds the socket.
            self.sock = self._context_of_target.wrap_socket(plain, server_hostname=self._name, do_handshake_on_connect=False)
        except BaseException:
            plain.close()
            raise
        self.sock.do_handshake()


def post(url: str, body: bytes, headers: Mapping[str, str], rules: Rules) -> Outcome:
    """Send it once. Whatever goes wrong is the outcome, never an exception."""
    began = time.monotonic()
    try:
        target = target_of(url, rules)
        status, answer = _exchange(target, addresses_of(target, rules), body, headers, began + WHOLE_SECONDS)
    except Refused as refusal:
        return Outcome(None, _since(began), str(refusal)[:FAULT_LENGTH])
    except (OSError, http.client.HTTPException, ValueError) as error:
        late = time.monotonic() >= began + WHOLE_SECONDS or isinstance(error, TimeoutError)
        fault = f"There was no whole answer within {WHOLE_SECONDS:g} s." if late else f"It could not be reached: {_words_of(error)}"
        return Outcome(None, _since(began), fault[:FAULT_LENGTH])
    return Outcome(status, _since(began), _fault_of(status), inert(answer))


def _exchange(target: Target, addresses: list[Address], body: bytes, headers: Mapping[str, str], end: float) -> tuple[int, bytes]:
    """With the first of the addresses that takes a connection."""
    last: OSError | None = None
    for address in addresses[:MOST_ADDRESSES]:
        left = end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection = (_Secure if target.secure else _Plain)(address, target, min(CONNECT_SECONDS, left))
        with _cut_at(end, connection) as cut:
            try:
                connection.connect()
            except OSError as error:
                last = error
                continue
            connection.request("POST", target.path, body, {"Host": target.named, "Connection": "close", **headers})
            answer = connection.getresponse()
            excerpt = answer.read(READ_BYTES)
            # What was cut in the middle of its heads reads like an answer that ended there.
            if cut.is_set():
                raise TimeoutError
            return answer.status, excerpt
    raise last or OSError("it has no address")


@contextmanager
def _cut_at(end: float, connection: http.client.HTTPConnection) -> Iterator[threading.Event]:
    """The connection's own time-out begins anew with every byte; this end does not move, and holds for a socket that is only just made as well."""
    over, cut = threading.Event(), threading.Event()

    def watch() -> None:
        if not over.wait(max(0.0, end - time.monotonic())):
            cut.set()
            _cut(connection)
            while not over.wait(CUT_AGAIN_SECONDS):
                _cut(connection)

    threading.Thread(target=watch, daemon=True, name="cut").start()
    try:
        yield cut
    finally:
        over.set()
        connection.close()


def _cut(connection: http.client.HTTPConnection) -> None:
    held = connection.sock
    if held is not None:
        try:
            held.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has just ended by itself


def _since(began: float) -> int:
    return round(1000 * (time.monotonic() - began))


def _words_of(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not good: {error.verify_message}."
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return f"{inert(str(text).encode())}."


def _fault_of(status: int) -> str:
    if 200 <= status < 300:
        return ""
    if 300 <= status < 400:
        return f"It answered {status}, a redirect; redirects are not followed."
    return f"It answered {status}."


def inert(answer: bytes) -> str:
    """The beginning of what a stranger wrote, fit to be kept and shown: no control characters, no marks that turn text round."""
    text = answer.decode("utf-8", "replace")
    spaced = (" " if letter.isspace() else letter for letter in text)
    return "".join(letter for letter in spaced if letter.isprintable())[:EXCERPT_LENGTH].strip()


def signature(secret: str, body: bytes, at: datetime) -> str:
    """`t=<seconds>,v1=<hex>`: HMAC-SHA256 over the seconds, a dot and the body. The time is signed too, so that an old message can be told."""
    seconds = str(millis(at) // 1000)
    digest = hmac.new(secret.encode(), seconds.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"t={seconds},{SIGNATURE_VERSION}={digest}"
