"""What is told over Redis from outside of any event loop reaches those who listen in one, and what is counted there is counted once for all."""

import asyncio
from collections.abc import Iterator

import pytest
from channels.layers import channel_layers
from django.test import RequestFactory, override_settings

from gpufleet.core import kept_redis
from gpufleet.core.live.feed import FEED_GROUP, feed_hint
from gpufleet.layers import SharedChannelLayer
from gpufleet.limits import CallerLimit
from tests.servers import Redis, free_port


@pytest.fixture
def shared(redis_server: Redis) -> Iterator[SharedChannelLayer]:
    redis_server.empty()
    layer = SharedChannelLayer(hosts=[redis_server.url()])
    with override_settings(REDIS_URL=redis_server.url()):
        before = channel_layers.set("default", layer)
        yield layer
        channel_layers.set("default", before) if before else channel_layers.backends.pop("default")


def test_a_hint_from_a_thread_reaches_a_loop(shared: SharedChannelLayer) -> None:
    async def listen() -> list[dict[str, object]]:
        channel = await shared.new_channel()
        await shared.group_add(FEED_GROUP, channel)
        await asyncio.to_thread(feed_hint, 41)
        await asyncio.gather(*(asyncio.to_thread(feed_hint, 42 + number) for number in range(3)))
        return [await asyncio.wait_for(shared.receive(channel), 10) for _ in range(4)]

    told = asyncio.run(listen())
    assert told[0] == {"type": "feed.news", "rev": 41}
    assert sorted(message["rev"] for message in told) == [41, 42, 43, 44]  # type: ignore[type-var]


def test_hints_begin_no_loop_and_keep_their_connection(shared: SharedChannelLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: pytest.fail("a loop for one message"))
    client = kept_redis.kept_redis()
    assert client is not None
    feed_hint(1)
    before = client.info("stats")["total_connections_received"]
    for rev in range(20):
        feed_hint(rev)
    assert client.info("stats")["total_connections_received"] == before


def asked(who: str) -> bool:
    request = RequestFactory().get("/api/v1/me")
    request.auth = who  # type: ignore[attr-defined]
    return CallerLimit().allow_request(request)


def test_requests_are_counted_by_caller_for_all_processes(shared: SharedChannelLayer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpufleet.limits.time.time", lambda: 1_800_000_000.0)
    with override_settings(API_REQUESTS_PER_MINUTE=3):
        assert [asked("one") for _ in range(5)] == [True, True, True, False, False]
        assert asked("other")
    client = kept_redis.kept_redis()
    assert client is not None
    (key,) = [key for key in client.keys("gpufleet:api-requests:*") if client.get(key) == b"5"]
    assert 0 < client.ttl(key) <= 120, "what nobody asks for any more goes by itself"


def test_nobody_is_turned_away_because_nobody_counts() -> None:
    with override_settings(REDIS_URL=f"redis://127.0.0.1:{free_port()}/0", API_REQUESTS_PER_MINUTE=1):
        assert [asked("one") for _ in range(3)] == [True, True, True]
