"""The hub over a real database and a real channel layer."""

import asyncio
import time

import orjson
import pytest
import redis
from asgiref.sync import sync_to_async
from channels.layers import channel_layers
from django.test import override_settings
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.live import hub as hubs
from gpufleet.core.live.feed import feed_hint, feed_publish, feed_revision
from gpufleet.core.live.hub import Hub, Listener, hub_of_this_process
from gpufleet.core.live.reader import feed_news
from gpufleet.core.live.topics import topic_register
from gpufleet.core.models import Change
from gpufleet.core.models import Sequence as Counter
from tests.core.live.conftest import Page, counter_raise, counters_snapshot
from tests.servers import free_port

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("counters")]


@pytest.fixture(params=["local", "redis"])
def layer(request):
    if request.param == "local":
        yield
        return
    server = request.getfixturevalue("redis_server")
    with override_settings(
        CHANNEL_LAYERS={"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [server.url()]}}}
    ):
        yield
    channel_layers.backends.clear()


async def waiting(listener: Listener) -> list[dict]:
    messages = []
    while not listener.outbox.empty():
        messages.append(orjson.loads(listener.outbox.get_nowait()))
    return messages


async def next_delta(listener: Listener) -> dict:
    async with asyncio.timeout(20):
        while True:
            message = orjson.loads(await listener.outbox.get())
            if "v" in message:
                return message


async def test_a_change_reaches_the_page_as_a_change(layer, worker):
    page = await Page(Hub()).open()
    await asyncio.sleep(0.3)  # the Redis subscription has no event to wait for

    await worker(counter_raise, 1, 2)
    await page.settle(await sync_to_async(feed_revision)())

    assert page.rows == {"row1": 1, "row2": 1}
    assert page.snapshots == 1
    page.hub.detach(page.listener)


async def test_a_lost_hint_loses_no_change(worker, monkeypatch):
    monkeypatch.setattr("gpufleet.core.live.feed.feed_hint", lambda rev: None)
    page = await Page(Hub()).open()

    await worker(counter_raise, 1)
    await page.settle(1)

    assert page.rows == {"row1": 1}
    page.hub.detach(page.listener)


async def test_without_the_channel_layer_the_hub_looks_for_itself(worker):
    nowhere = {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [f"redis://127.0.0.1:{free_port()}"]}}
    with override_settings(CHANNEL_LAYERS={"default": nowhere}):
        page = await Page(Hub()).open()

        await worker(counter_raise, 1)
        await page.settle(1)

        assert page.rows == {"row1": 1}
        page.hub.detach(page.listener)
    channel_layers.backends.clear()


async def test_many_changes_in_a_window_are_one_message(worker):
    topic_register("slow", "see", lambda ids: sorted(ids), counters_snapshot, window_seconds=0.5)
    hub, listener = Hub(), Listener()
    await hub.attach(listener)
    hub.join(listener, "slow", 0)
    started = time.monotonic()

    async def read() -> list[dict]:
        messages = [await next_delta(listener)]
        while messages[-1]["v"] < 20:
            messages.append(await next_delta(listener))
        return messages

    reading = asyncio.create_task(read())  # beside the writes: a page that reads nothing for long loses its backlog
    for pk in range(20):
        await worker(counter_raise, pk, pk + 1, topic="slow")
    messages = await reading

    assert len(messages) <= 2 + (time.monotonic() - started) / 0.5
    assert sorted(set().union(*(message["rows"] for message in messages))) == list(range(21))
    assert [message["from"] for message in messages[1:]] == [message["v"] for message in messages[:-1]]
    hub.detach(listener)


async def test_it_is_loaded_once_for_all_sockets(worker):
    loads = []
    topic_register("counted", "see", lambda ids: loads.append(ids) or list(ids), counters_snapshot)
    hub = Hub()
    listeners = [Listener() for _ in range(50)]
    for listener in listeners:
        await hub.attach(listener)
        hub.join(listener, "counted", 0)

    await worker(counter_raise, 7, topic="counted")
    for listener in listeners:
        assert (await next_delta(listener))["rows"] == [7]

    assert loads == [(7,)]
    for listener in listeners:
        hub.detach(listener)


async def test_history_is_never_replayed(worker):
    for pk in range(5):
        await worker(counter_raise, pk)
    page = await Page(Hub()).open()
    await worker(counter_raise, 9)
    await page.settle(6)

    assert page.applied == 1
    assert page.snapshots == 1
    page.hub.detach(page.listener)


async def test_a_page_that_is_behind_when_it_joins_is_told(worker):
    await worker(counter_raise, 1)
    hub, listener = Hub(), Listener()
    await hub.attach(listener)

    hub.join(listener, "counters", 0)
    hub.join(listener, "counters", 1)

    assert [message for message in await waiting(listener) if "beat" not in message] == [
        {"topic": "counters", "resync": True},
        {"topic": "counters", "joined": 1},
    ]
    hub.detach(listener)


async def test_a_change_of_another_topic_makes_no_page_stale(worker):
    await worker(counter_raise, 1)
    page = await Page(Hub()).open()
    await worker(counter_raise, 1, topic="elsewhere")
    await worker(counter_raise, 2)
    await page.settle(3)

    assert (page.snapshots, page.applied) == (1, 1)
    page.hub.detach(page.listener)


async def test_a_topic_that_follows_others_is_sent_with_them(worker):
    hub, listener = Hub(), Listener()
    await hub.attach(listener)
    hub.join(listener, "sums", 0)

    await worker(counter_raise, 1, 2)

    assert await next_delta(listener) == {"topic": "sums", "from": 0, "v": 1, "rows": {"sum": 2}}
    hub.detach(listener)


async def test_a_slow_page_loses_its_backlog_and_takes_a_snapshot(worker):
    page = await Page(Hub(), backlog=2).open()
    await page.read()
    for number in range(6):
        await worker(counter_raise, 1)
        async with asyncio.timeout(10):
            while page.hub.position("counters") <= number:  # sent, so that the next one is a message of its own
                await asyncio.sleep(0.01)

    await page.settle(6)

    assert page.rows == {"row1": 6}
    assert page.snapshots >= 2
    page.hub.detach(page.listener)


async def test_a_hidden_page_is_sent_nothing_and_catches_up(worker, monkeypatch):
    monkeypatch.setattr(hubs, "BEAT_SECONDS", 0.05)
    page = await Page(Hub()).open()
    page.hub.hide(page.listener)
    await worker(counter_raise, 1)
    await asyncio.sleep(0.3)  # several beats
    assert page.listener.outbox.empty()

    page.hub.join(page.listener, "counters", page.mine)
    await page.settle(1)

    assert page.rows == {"row1": 1}
    page.hub.detach(page.listener)


async def test_beats_carry_the_time_of_the_server(monkeypatch):
    monkeypatch.setattr(hubs, "BEAT_SECONDS", 0.05)
    hub, listener = Hub(), Listener()
    await hub.attach(listener)

    async with asyncio.timeout(20):
        first = orjson.loads(await listener.outbox.get())
        second = orjson.loads(await listener.outbox.get())

    assert 0 < second["beat"] - first["beat"] < 5000
    hub.detach(listener)


async def test_what_was_rolled_back_is_never_sent(worker):
    page = await Page(Hub()).open()
    await worker(counter_raise, 1, fail=True)
    await worker(counter_raise, 2)
    await page.settle(1)

    assert page.rows == {"row2": 1}
    page.hub.detach(page.listener)


async def test_a_loader_that_breaks_sends_its_pages_to_the_snapshot_and_hurts_no_other_topic(worker):
    def broken(ids):
        raise ZeroDivisionError("in an app")

    topic_register("broken", "see", broken, counters_snapshot)
    page = await Page(Hub()).open()
    page.hub.join(page.listener, "broken", 0)
    await page.read()

    await worker(counter_raise, 1, topic="broken")
    async with asyncio.timeout(10):
        while "beat" in (message := orjson.loads(await page.listener.outbox.get())):
            continue
    await worker(counter_raise, 1)
    await page.settle(2)

    assert message == {"topic": "broken", "resync": True}
    assert page.rows == {"row1": 2}
    page.hub.detach(page.listener)


async def test_a_hub_that_slept_past_the_kept_changes_starts_its_pages_over(worker):
    page = await Page(Hub()).open()
    await page.read()

    def long_sleep():
        """While this process was stopped: changes came, and were pruned."""
        for _ in range(3):
            counter_raise(1)
        Change.objects.filter(rev__lte=2).delete()

    page.hub._revision = 0
    await worker(long_sleep)
    await page.settle(3)

    assert page.rows == {"row1": 3}
    page.hub.detach(page.listener)


async def test_the_hub_ends_with_its_last_socket_and_the_next_one_gets_a_new_hub():
    first, listener = hub_of_this_process(), Listener()
    assert hub_of_this_process() is first
    await first.attach(listener)

    first.detach(listener)
    second = hub_of_this_process()
    await second.attach(listener)

    assert second is not first
    second.detach(listener)


def test_each_event_loop_of_a_process_has_its_own_hub():
    async def one_page() -> Hub:
        page = await Page(hub_of_this_process()).open()
        await sync_to_async(counter_raise, thread_sensitive=False)(1)
        await page.settle(await sync_to_async(feed_revision)())
        page.hub.detach(page.listener)
        return page.hub

    assert asyncio.run(one_page()) is not asyncio.run(one_page())


ACTIONS = st.one_of(
    st.tuples(st.just("write"), st.lists(st.integers(1, 5), min_size=1, max_size=3, unique=True), st.booleans()),
    st.sampled_from([("read",), ("hide",), ("join",), ("lose",), ("reconnect",), ("wait",), ("elsewhere",)]),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(actions=st.lists(ACTIONS, max_size=14))
def test_whatever_is_lost_paused_or_late_the_page_ends_as_the_snapshot(worker, actions):
    Counter.objects.filter(name__startswith="row").delete()

    async def play() -> None:
        page = await Page(Hub(), backlog=2).open()
        for action in actions:
            match action:
                case ("write", ids, fail):
                    await worker(counter_raise, *ids, fail=fail)
                case ("elsewhere",):
                    await worker(feed_publish, changes={"elsewhere": [{"id": 1}]})
                case ("read",):
                    await page.read()
                case ("wait",):
                    await asyncio.sleep(0.03)  # longer than the topic's window
                case ("hide",):
                    page.hub.hide(page.listener)
                case ("join",):
                    page.hub.join(page.listener, "counters", page.mine)
                case ("lose",):
                    # What a broken connection does: what was under way is gone, and the page joins again.
                    page.listener.clear()
                    page.hub.join(page.listener, "counters", page.mine)
                case ("reconnect",):
                    # To another process, whose hub stands elsewhere.
                    page.hub.detach(page.listener)
                    page.hub, page.listener = Hub(), Listener(2)
                    await page.hub.attach(page.listener)
                    page.hub.join(page.listener, "counters", page.mine)
        page.hub.join(page.listener, "counters", page.mine)
        await worker(counter_raise, 6)
        await page.settle(await sync_to_async(feed_revision)())
        truth = await sync_to_async(counters_snapshot)(None, {})
        assert page.rows == truth["rows"]
        page.hub.detach(page.listener)

    asyncio.run(play())


def test_a_change_that_is_gone_is_noticed_wherever_it_stood():
    """After the clock was set back a later change may be the older one, and go first."""
    for pk in range(4):
        counter_raise(pk)

    assert feed_news(since=1).complete
    Change.objects.filter(rev=3).delete()

    assert not feed_news(since=1).complete
    assert feed_news(since=3).complete


@pytest.mark.redis
def test_a_hint_goes_out_from_a_process_without_a_loop(redis_server):
    """As from a worker of Celery: whoever waits on Redis hears of it, and the transaction's end is not the place to find out that nobody could."""
    layers = {"default": {"BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer", "CONFIG": {"hosts": [redis_server.url()]}}}
    with override_settings(CHANNEL_LAYERS=layers), redis.Redis.from_url(redis_server.url()) as client, client.pubsub() as heard:
        heard.psubscribe("*")
        assert heard.get_message(timeout=5)["type"] == "psubscribe"
        feed_hint(41)
        assert heard.get_message(timeout=5)["type"] == "pmessage"
    channel_layers.backends.clear()
