"""Where messages may go, and that one goes to the address that was checked and to no other."""

import contextlib
import hashlib
import hmac
import ipaddress
import itertools
import socket
import threading
from datetime import UTC, datetime

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from scheduler.notify import outgoing
from scheduler.notify.outgoing import Refused, Rules, addresses_of, inert, is_allowed, post, signature, target_of
from tests.receiver import LOOPBACK

OPEN = Rules(http=True)
HOME = Rules((ipaddress.ip_network(LOOPBACK),), http=True)
PRIVATE_V4 = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
]
PRIVATE_V6 = [
    ipaddress.ip_network(text)
    for text in ("::/96", "100::/64", "2001::/32", "2001:db8::/32", "2002::/16", "64:ff9b:1::/48", "fc00::/7", "fe80::/10", "fec0::/10", "ff00::/8")
]


@st.composite
def within(draw, networks):
    network = draw(st.sampled_from(networks))
    return network[draw(st.integers(0, network.num_addresses - 1))]


def forms_of(address):
    """One IPv4 address as people and attackers write it: dotted, one number, hexadecimal, octal, short; and inside of IPv6 addresses."""
    number = int(address)
    parts = address.packed
    yield str(address)
    yield str(number)
    yield hex(number)
    yield f"0{number:o}"
    yield ".".join(hex(part) for part in parts)
    yield ".".join(f"0{part:o}" for part in parts)
    yield f"{parts[0]}.{number & 0xFFFFFF}"
    yield f"{parts[0]}.{parts[1]}.{number & 0xFFFF}"
    yield f"[::ffff:{address}]"
    yield f"[{ipaddress.IPv6Address(0xFFFF_0000_0000 | number)}]"
    yield f"[{ipaddress.IPv6Address((0x2002 << 112) | (number << 80))}]"
    yield f"[{ipaddress.IPv6Address((0x64_FF9B << 96) | number)}]"
    yield f"[{ipaddress.IPv6Address(number)}]"


@given(within(PRIVATE_V4))
def test_no_form_of_a_private_address_is_reached(address):
    for host in forms_of(address):
        with pytest.raises(Refused):
            addresses_of(target_of(f"http://{host}:8080/x", OPEN), OPEN)


@given(within(PRIVATE_V6))
def test_no_special_address_of_ipv6_is_reached(address):
    with pytest.raises(Refused):
        target_of(f"https://[{address}]/x", Rules())


@given(st.ip_addresses(v=4))
def test_an_address_inside_of_another_is_judged_as_itself(address):
    mapped = ipaddress.IPv6Address(0xFFFF_0000_0000 | int(address))
    nat64 = ipaddress.IPv6Address((0x64_FF9B << 96) | int(address))

    assert is_allowed(mapped) == is_allowed(nat64) == is_allowed(address)
    assert is_allowed(mapped, [ipaddress.ip_network(f"{address}/32")])
    assert not is_allowed(ipaddress.IPv6Address((0x2002 << 112) | (int(address) << 80))), "6to4 goes through strangers' relays"


def test_public_addresses_are_reached():
    for host in ("8.8.8.8", "93.184.215.14", "[2606:4700::6810:84e5]"):
        assert addresses_of(target_of(f"https://{host}/", Rules()), Rules())


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://example.org/", "Only https://"),
        ("ftp://example.org/", "begins with https://"),
        ("https:///x", "begins with https://"),
        ("https://user:word@example.org/", "user and password"),
        ("https://example.org/#part", "behind #"),
        ("https://example.org/\nHost: other", "character"),
        ("https://example.org\\@other/", "character"),
        ("https://exa mple.org/", "character"),
        ("https://example.org:0/", "port 0"),
        ("https://example.org:99999/", "not a web address"),
        ("https://[::1/", "not a web address"),
        ("https://example.org/ä", "plain letters"),
        ("https://localhost\u200b/", "character"),
        ("https://127.0.0.1/", "not a public address"),
        ("https://[::1]/", "not a public address"),
        ("https://[::ffff:10.0.0.1]/", "not a public address"),
        ("https://169.254.169.254/latest/meta-data", "not a public address"),
        ("https://example.org/" + "x" * 500, "500"),
    ],
)
def test_what_is_wrong_with_an_address_is_said(url, said):
    with pytest.raises(Refused, match=said):
        target_of(url, Rules())


def test_a_name_with_one_private_address_among_public_ones_is_refused(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("93.184.215.14", "10.0.0.7")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)

    with pytest.raises(Refused, match=r"10\.0\.0\.7"):
        addresses_of(target_of("https://example.org/", Rules()), Rules())


def test_the_connection_goes_to_the_address_that_was_checked(receiver, monkeypatch):
    """A name that answers otherwise the second time (DNS rebinding) is not asked a second time."""
    asked = []

    def lookup(host, port, **_):
        asked.append(host)
        ip = "127.0.0.1" if len(asked) == 1 else "127.0.0.2"
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, port))]

    connected = []
    monkeypatch.setattr(outgoing.socket, "getaddrinfo", lambda host, port, *rest, **more: lookup(host, port))
    monkeypatch.setattr(outgoing.socket, "create_connection", lambda where, *rest, **more: connected.append(where) or straight(where))

    def straight(where):
        made = socket.socket()
        made.connect(where)
        return made

    done = post(f"http://hooks.example.org:{receiver.port}/x", b"{}", {}, HOME)

    assert done.taken, done
    assert asked == ["hooks.example.org"]
    assert connected == [("127.0.0.1", receiver.port)]
    assert receiver.calls[0][0]["Host"] == f"hooks.example.org:{receiver.port}"


def test_loopback_is_refused_unless_it_is_allowed(receiver):
    assert "not a public address" in post(receiver.url, b"{}", {}, OPEN).fault
    assert receiver.calls == []
    assert post(receiver.url, b"{}", {}, HOME).taken


def test_a_redirect_is_not_followed(receiver):
    receiver.status, receiver.headers = 302, {"Location": receiver.url}

    done = post(receiver.url, b"{}", {}, HOME)

    assert (done.status, "redirect" in done.fault, len(receiver.calls)) == (302, True, 1)


def test_no_proxy_of_the_environment_is_used(receiver, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")

    assert post(receiver.url, b"{}", {}, HOME).taken


def test_of_a_long_answer_only_the_beginning_is_read_and_kept(receiver):
    receiver.answer = b"<script>alert(1)</script>\x00\x1b[31m\r\n" + b"x" * 5_000_000

    done = post(receiver.url, b"{}", {}, HOME)

    assert done.taken
    assert done.excerpt.startswith("<script>alert(1)</script>[31m")
    assert len(done.excerpt) <= 500


@pytest.fixture
def dripping():
    """Takes connections and answers one byte after the other, each in time, for as long as anybody listens."""
    over = threading.Event()
    served = socket.create_server(("127.0.0.1", 0))

    def serve():
        with contextlib.suppress(OSError):
            while True:
                taken, _ = served.accept()
                with taken, contextlib.suppress(OSError):
                    for byte in itertools.chain(b"HTTP/1.1 200 OK\r\nX: ", itertools.repeat(ord("a"))):
                        taken.sendall(bytes([byte]))
                        if over.wait(0.02):
                            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield served.getsockname()[1]
    over.set()
    served.close()


def test_who_sends_his_answer_drop_by_drop_is_cut_off(dripping, monkeypatch):
    """Each byte in time, the whole never: the bound is on all of it."""
    monkeypatch.setattr(outgoing, "WHOLE_SECONDS", 0.3)

    done = post(f"http://127.0.0.1:{dripping}/", b"{}", {}, HOME)

    assert "within 0.3 s" in done.fault
    assert done.duration_ms < 5000


def test_a_connection_that_is_made_at_the_last_moment_is_cut_off_as_well(dripping, monkeypatch):
    """The end came while there was no socket yet that could be cut."""
    monkeypatch.setattr(outgoing, "WHOLE_SECONDS", 0.3)
    connect = socket.create_connection

    def late(where, *rest, **more):
        threading.Event().wait(0.5)
        return connect(where, *rest, **more)

    monkeypatch.setattr(outgoing.socket, "create_connection", late)

    done = post(f"http://127.0.0.1:{dripping}/", b"{}", {}, HOME)

    assert "within 0.3 s" in done.fault
    assert done.duration_ms < 5000


def test_a_name_service_that_says_nothing_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(outgoing, "LOOK_UP_SECONDS", 0.2)
    released = threading.Event()
    monkeypatch.setattr(outgoing.socket, "getaddrinfo", lambda *_, **__: released.wait(30))
    try:
        done = post("http://hooks.example.org/", b"{}", {}, OPEN)
    finally:
        released.set()

    assert done.fault == "The host hooks.example.org was not found within 0.2 s."


def test_only_so_many_addresses_of_a_host_are_tried_and_none_after_the_end(monkeypatch):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{number}", 80)) for number in range(1, 40)]
    tried = []
    monkeypatch.setattr(outgoing.socket, "getaddrinfo", lambda *_, **__: found)

    def refuse(where, *_):
        tried.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(outgoing.socket, "create_connection", refuse)
    assert "could not be reached" in post("http://hooks.example.org/", b"{}", {}, HOME).fault
    assert len(tried) == outgoing.MOST_ADDRESSES
    monkeypatch.setattr(outgoing, "WHOLE_SECONDS", 0)
    assert "no whole answer" in post("http://hooks.example.org/", b"{}", {}, HOME).fault
    assert len(tried) == outgoing.MOST_ADDRESSES


def test_nobody_there_is_an_outcome():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        done = post(f"http://127.0.0.1:{taken.getsockname()[1]}/", b"{}", {}, HOME)

    assert done.status is None
    assert "could not be reached" in done.fault


@given(st.binary(max_size=600))
@example("a\u07b2b\u00a0c\u2028d\u202ee".encode())  # unassigned, spaces of other kinds, a mark that turns text round
def test_what_strangers_answer_is_inert(answer):
    text = inert(answer)

    assert len(text) <= 500
    assert text.isprintable()


def test_the_signature_is_what_the_manual_says():
    at = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)

    said = signature("whs_secret", b'{"a":1}', at)

    expected = hmac.new(b"whs_secret", b'1795176000.{"a":1}', hashlib.sha256).hexdigest()
    assert said == f"t=1795176000,v1={expected}"
