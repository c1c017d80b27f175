"""Every WebSocket, for every kind of person: who keeps it. The expectations are in tests/url_expectations, as those of addresses."""

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings

from gpufleet.asgi import application
from gpufleet.core.live.topics import _topics, topic_register
from quotas.permissions import Can
from tests.personas import PEOPLE, Personas
from tests.sockets import Socket
from tests.url_expectations import SOCKETS


@pytest.mark.django_db(transaction=True)
async def test_who_keeps_a_websocket(personas: Personas):
    topic_register("test-topic", Can.SEE, lambda ids: [], lambda viewer, query: {"rows": []})
    cookies = {name: await sync_to_async(personas.client)(name) for name in PEOPLE}
    found = {}
    for route in SOCKETS:
        for name in PEOPLE:
            session = cookies[name].cookies.get(settings.SESSION_COOKIE_NAME)
            headers = [(b"host", b"localhost"), (b"origin", b"http://localhost")]
            headers += [(b"cookie", f"{settings.SESSION_COOKIE_NAME}={session.value}".encode())] if session else []
            socket = Socket(application, f"/{route}", headers=headers)
            assert (await socket.connect())[0]
            await socket.send_json_to({"subscribe": "test-topic", "since": 0})
            answer = await socket.receive_output()
            found[route, name] = answer.get("code", "in")
            await socket.disconnect()
    _topics.pop("test-topic", None)

    assert found == {(route, name): _socket_wanted(who, name) for route, who in SOCKETS.items() for name in PEOPLE}


def _socket_wanted(who: frozenset[str], name: str) -> object:
    return "in" if name in who else 4401 if name == "anonymous" else 4403
