"""A topic over real rows, and a page that follows it by the rules that `hub` states."""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

import orjson
import pytest
from channels.db import database_sync_to_async
from django.db import connections, transaction

from gpufleet.core.live import topics
from gpufleet.core.live.feed import feed_publish, feed_revision
from gpufleet.core.live.hub import Hub, Listener
from gpufleet.core.live.topics import topic_register
from gpufleet.core.models import Sequence as Counter

R = TypeVar("R")


def counters_load(ids: Sequence[int]) -> dict[str, int]:
    return dict(Counter.objects.filter(name__in=[f"row{pk}" for pk in ids]).values_list("name", "last"))


def counters_snapshot(viewer: Any, query: Mapping[str, str]) -> dict[str, Any]:
    return {"rows": dict(Counter.objects.filter(name__startswith="row").values_list("name", "last"))}


def sum_load(ids: Sequence[int]) -> dict[str, int]:
    return {"sum": sum(counters_snapshot(None, {})["rows"].values())}


def counter_raise(*ids: int, topic: str = "counters", fail: bool = False) -> None:
    """Write rows and publish them, as a service does. With `fail` it is rolled back, as a service that raised."""
    with transaction.atomic():
        for pk in ids:
            counter, _ = Counter.objects.select_for_update().get_or_create(name=f"row{pk}")
            counter.last += 1
            counter.save()
        feed_publish(changes={topic: [{"id": pk} for pk in ids]})
        transaction.set_rollback(fail)


@pytest.fixture
def counters() -> Iterator[None]:
    """The topic `counters`, and `sums` that follows it; the other topics are out of the way."""
    kept = dict(topics._topics)
    topics._topics.clear()
    topic_register("counters", "see", counters_load, counters_snapshot, window_seconds=0.02)
    topic_register("sums", "see_costs", sum_load, counters_snapshot, follows=["counters"])
    yield
    topics._topics.clear()
    topics._topics.update(kept)


@pytest.fixture
def worker() -> Iterator[Callable[..., Any]]:
    """`await worker(call, …)` runs a service in another thread with its own connection, as a Celery worker of the same process does."""
    pool = ThreadPoolExecutor(max_workers=3)

    async def run(call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        def work() -> R:
            try:
                return call(*arguments, **named)
            finally:
                connections.close_all()

        return await asyncio.get_running_loop().run_in_executor(pool, work)

    yield run
    pool.shutdown()


@dataclass
class Page:
    """What static/js/live.js does, in the fewest words."""

    hub: Hub
    backlog: int = 8
    mine: int = 0
    rows: dict[str, int] = field(default_factory=dict)
    snapshots: int = 0
    applied: int = 0

    def __post_init__(self) -> None:
        self.listener = Listener(self.backlog)

    async def open(self) -> "Page":
        await self.hub.attach(self.listener)
        await self.catch_up()
        self.hub.join(self.listener, "counters", self.mine)
        return self

    async def catch_up(self) -> None:
        def read() -> tuple[int, dict[str, int]]:
            version = feed_revision()
            return version, counters_snapshot(None, {})["rows"]

        self.mine, self.rows = await database_sync_to_async(read, thread_sensitive=False)()
        self.snapshots += 1

    async def take(self, message: dict[str, Any]) -> None:
        if message.get("resync"):
            await self.catch_up()
        elif "v" in message and message["v"] > self.mine:
            if message["from"] > self.mine:
                await self.catch_up()
            else:
                self.rows.update(message["rows"])
                self.mine = message["v"]
                self.applied += 1

    async def read(self) -> None:
        """Take everything that is waiting."""
        while not self.listener.outbox.empty():
            await self.take(orjson.loads(self.listener.outbox.get_nowait()))

    async def settle(self, revision: int) -> None:
        """Read until everything up to `revision` is known here."""
        async with asyncio.timeout(30):
            while self.mine < revision:
                await self.take(orjson.loads(await self.listener.outbox.get()))
