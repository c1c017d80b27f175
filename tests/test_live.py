"""Who may open a socket or take a snapshot, what each may send, and how a socket ends. Through the whole ASGI application."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.sessions.models import Session
from django.db import OperationalError
from django.utils import timezone

from gpufleet.asgi import application
from gpufleet.core.live import consumer as consumers
from gpufleet.core.live import topics as registry
from gpufleet.core.live.feed import feed_hint, feed_publish
from gpufleet.core.live.topics import topic_register
from gpufleet.layers import LocalChannelLayer
from quotas.models import QuotaNode, RoleBinding
from quotas.services.roles import role_revoke
from tests.personas import Personas
from tests.sockets import PATIENCE, Socket

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def topics() -> Iterator[None]:
    """Two topics of our own beside those of the apps."""
    kept = dict(registry._topics)
    topic_register("plain", "see", list, lambda access, query: {"rows": [1, 2, 3]}, window_seconds=0.01)
    topic_register("money", "see_costs", list, lambda access, query: {"rows": ["secret"]}, window_seconds=0.01)
    yield
    registry._topics.clear()
    registry._topics.update(kept)


@pytest.fixture
def socket_of(personas: Personas) -> Callable[..., Socket]:
    def make(name: str, *, origin: str = "http://localhost") -> Socket:
        cookie = personas.client(name).cookies.get(settings.SESSION_COOKIE_NAME)
        headers = [(b"host", b"localhost"), (b"origin", origin.encode())]
        if cookie:
            headers.append((b"cookie", f"{settings.SESSION_COOKIE_NAME}={cookie.value}".encode()))
        return Socket(application, "/ws/live/", headers=headers)

    return make


async def told(socket: Socket, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """The first message that is `wanted`; heartbeats and others are passed over."""
    async with asyncio.timeout(PATIENCE):
        while True:
            message = await socket.receive_json_from()
            if wanted(message):
                return message


async def closed_with(socket: Socket) -> int:
    async with asyncio.timeout(PATIENCE):
        while True:
            output = await socket.receive_output()
            if output["type"] == "websocket.close":
                return output["code"]


@pytest.mark.parametrize(("name", "code"), [("anonymous", 4401), ("stranger", 4403)])
async def test_who_may_see_nothing_is_told_why_the_socket_closes(socket_of, name, code):
    socket = await sync_to_async(socket_of)(name)

    assert (await socket.connect())[0]
    assert await closed_with(socket) == code


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "http://localhost:8081", "https://localhost", "null", "http://localhost.evil.example", ""]
)
async def test_a_foreign_site_gets_no_socket_and_neither_does_another_port_or_scheme(socket_of, origin):
    socket = await sync_to_async(socket_of)("operator", origin=origin)

    assert not (await socket.connect())[0]


@pytest.mark.parametrize(
    ("name", "topic", "may"), [("viewer", "plain", True), ("viewer", "money", False), ("finance", "money", True), ("operator", "money", False)]
)
async def test_a_topic_is_open_to_those_who_hold_its_capability(socket_of, name, topic, may):
    socket = await sync_to_async(socket_of)(name)
    await socket.connect()

    await socket.send_json_to({"subscribe": topic, "since": 0})
    answer = await told(socket, lambda message: message.get("topic") == topic)

    assert ("joined" in answer) is may
    assert ("refused" in answer) is not may
    await socket.disconnect()


async def test_what_is_written_is_pushed_until_the_page_leaves_the_topic(socket_of):
    socket = await sync_to_async(socket_of)("viewer")
    await socket.connect()
    await socket.send_json_to({"subscribe": "plain", "since": 0})
    await told(socket, lambda message: "joined" in message)

    await sync_to_async(feed_publish)(changes={"plain": [{"id": 7}]})
    delta = await told(socket, lambda message: "rows" in message)
    await socket.send_json_to({"unsubscribe": "plain"})
    await socket.send_json_to({"subscribe": "no-such-topic", "since": 0})
    await told(socket, lambda message: "refused" in message)
    await sync_to_async(feed_publish)(changes={"plain": [{"id": 8}]})

    assert delta == {"topic": "plain", "from": 0, "v": 1, "rows": [7]}
    assert await socket.receives_only_beats(0.5)
    await socket.disconnect()


@pytest.mark.parametrize("text", ["{", "[]", '"subscribe"', '{"subscribe": 1}', '{"subscribe": "plain", "since": "0"}', "null", '{"run": "this"}'])
async def test_what_can_not_be_read_ends_the_socket(socket_of, text):
    socket = await sync_to_async(socket_of)("viewer")
    await socket.connect()

    await socket.send_to(text_data=text)

    assert await closed_with(socket) == 1007


async def test_a_message_that_is_too_long_ends_the_socket(socket_of):
    socket = await sync_to_async(socket_of)("viewer")
    await socket.connect()

    await socket.send_to(text_data='{"subscribe": "' + "x" * consumers.MESSAGE_LIMIT + '"}')

    assert await closed_with(socket) == 1009


async def test_losing_a_role_closes_the_topic_at_once(socket_of, personas):
    socket = await sync_to_async(socket_of)("finance")
    await socket.connect()
    await socket.send_json_to({"subscribe": "money", "since": 0})
    await told(socket, lambda message: "joined" in message)

    def demote() -> None:
        RoleBinding.objects.filter(user=personas.users["finance"]).update(role="viewer")
        feed_publish(changes={"roles": [{"id": personas.users["finance"].pk}]})

    await sync_to_async(demote)()
    refused = await told(socket, lambda message: "refused" in message)
    await sync_to_async(feed_publish)(changes={"money": [{"id": 1}]})

    assert refused["topic"] == "money"
    assert await socket.receives_only_beats(0.5)
    await socket.disconnect()


async def test_losing_the_last_role_ends_the_socket(socket_of, personas):
    socket = await sync_to_async(socket_of)("viewer")
    await socket.connect()

    def expel() -> None:
        role_revoke(access=personas.access("superuser"), binding=RoleBinding.objects.get(user=personas.users["viewer"]))

    # The subscription's answer says that the hub runs.
    await socket.send_json_to({"subscribe": "plain", "since": 0})
    await told(socket, lambda message: "joined" in message)
    await sync_to_async(expel)()

    assert await closed_with(socket) == 4403


@pytest.mark.parametrize(
    "end",
    [
        lambda user: Session.objects.all().delete(),
        lambda user: Session.objects.update(expire_date=timezone.now()),
        lambda user: type(user).objects.filter(pk=user.pk).update(is_active=False),
        lambda user: type(user).objects.filter(pk=user.pk).update(password="another"),
    ],
    ids=["signed out", "expired", "switched off", "new password"],
)
async def test_a_session_that_ends_takes_its_socket_along(socket_of, personas, end, monkeypatch):
    monkeypatch.setattr(consumers, "ACCESS_SECONDS", 0.05)
    socket = await sync_to_async(socket_of)("viewer")
    await socket.connect()

    await sync_to_async(end)(personas.users["viewer"])

    assert await closed_with(socket) == 4401


async def test_a_socket_that_can_not_be_checked_is_not_left_open(personas, monkeypatch):
    """Failing to ask who looks must never mean that nobody asks again."""
    monkeypatch.setattr(consumers, "ACCESS_SECONDS", 0.05)
    viewer, asked = await sync_to_async(personas.access)("viewer"), []

    async def viewer_of(scope: Any) -> Any:
        asked.append(scope)
        if len(asked) > 1:
            raise OperationalError("the server closed the connection")
        return viewer

    socket = Socket(consumers.LiveConsumer.as_asgi(viewer_of=viewer_of), "/ws/live/")
    await socket.connect()

    assert await closed_with(socket) == consumers.TRY_AGAIN


def test_a_write_is_done_also_where_nobody_can_be_told(personas, monkeypatch):
    asked = []

    def away(layer: Any, group: str, message: Any) -> None:
        asked.append(group)
        raise ConnectionError("no channel layer")

    monkeypatch.setattr(LocalChannelLayer, "group_send", away)
    monkeypatch.setattr(LocalChannelLayer, "is_listened_to", True)
    node = personas.nodes["acme/research"]

    sent = {"name": "science", "title": "Science", "cost_centre": "", "kind": "team", "weight": 1, "priority": 100}
    answer = personas.client("superuser").post(f"/quotas/{node.public_id}/new/", sent)

    assert answer.status_code == 302
    assert QuotaNode.objects.get(path="acme/research/science").title == "Science"
    assert asked


@pytest.mark.parametrize(("name", "status"), [("viewer", 200), ("stranger", 403), ("anonymous", 302)])
def test_the_snapshot_asks_the_same_question(personas, name, status):
    assert personas.client(name).get("/live/plain/snapshot").status_code == status


def test_a_snapshot_names_its_revision(personas):
    feed_publish(changes={"plain": [{"id": 1}], "money": [{"id": 1}]})

    response = personas.client("viewer").get("/live/plain/snapshot")

    assert response.json() == {"topic": "plain", "version": 2, "rows": [1, 2, 3]}
    assert response["Cache-Control"] == "no-store"
    assert personas.client("viewer").get("/live/money/snapshot").status_code == 403
    assert personas.client("viewer").get("/live/nothing/snapshot").status_code == 404
    assert personas.client("anonymous").get("/live/plain/snapshot", headers={"Accept": "application/json"}).status_code == 401


def test_a_large_snapshot_is_packed_for_those_who_take_it(personas):
    topic_register("large", "see", list, lambda access, query: {"rows": list(range(20_000))})

    plain = personas.client("viewer").get("/live/large/snapshot")
    packed = personas.client("viewer").get("/live/large/snapshot", headers={"Accept-Encoding": "gzip"})

    assert packed["Content-Encoding"] == "gzip"
    assert len(packed.content) < len(plain.content) / 2


def test_a_process_in_which_nobody_listens_tells_nobody(personas, monkeypatch):
    told = []
    monkeypatch.setattr(LocalChannelLayer, "group_send", lambda layer, group, message: told.append(group))
    monkeypatch.setattr(LocalChannelLayer, "is_listened_to", False)
    feed_hint(1)

    assert told == []


def test_a_sender_does_not_wait_for_a_loop_that_has_stopped():
    """As one in the worker of a console that stops: its web server is gone, and nobody closes its loop."""
    layer, home = LocalChannelLayer(), asyncio.new_event_loop()
    home.run_until_complete(layer.new_channel())

    asyncio.run(asyncio.wait_for(layer.group_send("live", {"type": "hint"}), 20))

    home.close()
