"""Browsers without a screen: one that signs in and asks for pages, and a hundred that follow the fleet map."""

import asyncio
import os
import re
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import requests
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Origin

DEMO_PASSWORD = "gpufleet-demo"  # noqa: S105 (everybody knows it: it is printed at the start of a demo)
MAP_TOPICS = ("gpus", "nodes", "telemetry")
# Longer than any topic gathers changes, so that what is still under way is not taken for lost.
SETTLE_SECONDS = 6.0


class Browser:
    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.session = requests.Session()
        self.session.trust_env = False
        self.last_size = 0

    def is_answered(self) -> bool:
        try:
            return self.session.get(f"{self.origin}/healthz", timeout=5).status_code == 200
        except (requests.ConnectionError, requests.Timeout):
            return False

    def sign_in(self, username: str) -> None:
        page = self.session.get(f"{self.origin}/accounts/login/", timeout=30)
        token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text)
        data = {"csrfmiddlewaretoken": token[1] if token else "", "login": username, "password": DEMO_PASSWORD}
        answer = self.session.post(f"{self.origin}/accounts/login/?next=/healthz", data=data, timeout=30)
        if not answer.url.endswith("/healthz"):
            raise RuntimeError(f"{username} could not sign in: status {answer.status_code}")

    def seconds_for(self, path: str) -> float:
        """From sending the request to the last byte, over a connection that is already open."""
        began = time.perf_counter()
        answer = self.session.get(self.origin + path, timeout=30)
        took = time.perf_counter() - began
        answer.raise_for_status()
        self.last_size = int(answer.headers.get("Content-Length", len(answer.content)))
        return took

    @property
    def cookies(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.session.cookies.items())

    def connect(self) -> connect:
        url = self.origin.replace("http", "ws", 1) + "/ws/live/"
        # As in a browser, the socket is read while the page is busy, so that the server's pings are answered; and nobody pings from here.
        options: dict[str, Any] = {"compression": None, "proxy": None, "max_size": None, "max_queue": None, "ping_interval": None}
        return connect(url, additional_headers={"Cookie": self.cookies}, origin=Origin(self.origin), **options)

    def version_of(self, topic: str) -> int:
        return int(orjson.loads(self.session.get(f"{self.origin}/live/{topic}/snapshot", timeout=60).content)["version"])

    def moments_of(self, topic: str, *, seconds: float, until: Callable[[], bool]) -> list[tuple[int, float]]:
        """Follow a topic for some time; each version with the moment at which it came."""

        async def follow() -> list[tuple[int, float]]:
            heard: list[tuple[int, float]] = []
            deadline = time.monotonic() + seconds
            over_at = deadline
            async with self.connect() as socket:
                await socket.send(orjson.dumps({"subscribe": topic, "since": self.version_of(topic)}).decode())
                while time.monotonic() < min(deadline, over_at):
                    if until() and over_at == deadline:
                        over_at = time.monotonic() + SETTLE_SECONDS
                    try:
                        message = orjson.loads(await asyncio.wait_for(socket.recv(), 0.2))
                    except TimeoutError:
                        continue
                    if message.get("topic") == topic and "v" in message:
                        heard.append((message["v"], time.time()))
            return heard

        return asyncio.run(follow())


@dataclass
class Follower:
    """One page that shows the fleet map and does what live.js does: apply what follows on, take a snapshot where something is missing."""

    versions: dict[str, int] = field(default_factory=dict)
    # The newest change that it was sent. A snapshot's version says how new it is, and not that its topic changed.
    told: dict[str, int] = field(default_factory=dict)
    received: int = 0
    messages: int = 0
    gaps: int = 0
    snapshots: int = 0

    async def follow(self, browser: Browser, ready: asyncio.Event, stop: asyncio.Event) -> None:
        async with browser.connect() as socket:
            for topic in MAP_TOPICS:
                self.versions[topic] = await asyncio.to_thread(browser.version_of, topic)
                await self._subscribe(socket, topic)
            ready.set()
            while not stop.is_set():
                try:
                    text = await asyncio.wait_for(socket.recv(), 0.5)
                except TimeoutError:
                    continue
                except ConnectionClosed:
                    return
                self.received += len(text)
                self.messages += 1
                await self._take(socket, browser, orjson.loads(text))

    async def _subscribe(self, socket: ClientConnection, topic: str) -> None:
        await socket.send(orjson.dumps({"subscribe": topic, "since": self.versions[topic]}).decode())

    async def _take(self, socket: ClientConnection, browser: Browser, message: dict[str, Any]) -> None:
        topic = str(message.get("topic", ""))
        mine = self.versions.get(topic, 0)
        if "v" in message:
            self.told[topic] = max(message["v"], self.told.get(topic, 0))
        if "v" in message and message["from"] <= mine:
            self.versions[topic] = max(mine, message["v"])
            return
        if "v" in message or message.get("resync"):
            self.gaps += 1
            for missed in [topic] if topic else MAP_TOPICS:
                self.versions[missed] = await asyncio.to_thread(browser.version_of, missed)
                self.snapshots += 1
                await self._subscribe(socket, missed)


class Allowance:
    """So many at once, and then one each so often (static/js/parts.js)."""

    def __init__(self, most: int, seconds: float) -> None:
        self.most, self.seconds = most, seconds
        self.credit, self.at = float(most), time.time()

    def next(self) -> float:
        moment = time.time()
        self.credit = min(self.most, self.credit + (moment - self.at) / self.seconds)
        self.at = moment
        return moment if self.credit >= 1 else moment + (1 - self.credit) * self.seconds

    def take(self) -> None:
        self.credit -= 1


@dataclass
class Question:
    """What the page of jobs asks for: some rows and the order, or all of itself."""

    allowed: Allowance
    most_open: int
    at: float = float("inf")
    asked_at: float = 0.0
    open: set[asyncio.Task[None]] = field(default_factory=set)
    timer: asyncio.TimerHandle | None = None


class ListPage:
    """One page that shows the list of jobs and does what static/js/parts.js does, but for the drawing: it notes when each job has left the queue."""

    PARTS = ("told", "asked", "answered")
    GAP, LATER, MOST_ROWS, STRANGERS = 0.15, 3.0, 50, 40

    def __init__(self, browser: Browser) -> None:
        self.browser = browser
        # By job: when its row was asked for and when the answer came that showed it out of the queue; and all that the page was told, and when.
        self.shown: dict[str, tuple[float, float]] = {}
        self.heard: list[tuple[float, set[str]]] = []
        self._keys: set[str] = set()
        self._wanted: dict[str, None] = {}
        self._strangers: dict[str, None] = {}
        self._some = Question(Allowance(8, 0.25), most_open=3)
        self._whole = Question(Allowance(4, 1.0), most_open=1)

    def follow(self, stop: threading.Event) -> None:
        asyncio.run(self._follow(stop))

    def way_of(self, job: str, committed: float) -> dict[str, float]:
        """Seconds from a commit until the page was told, from there until it asked for what it then showed, and until that was there."""
        asked, answered = self.shown[job]
        # A whole list may bring what the page was not told of yet.
        told = min(next((at for at, keys in self.heard if at >= committed and job in keys), asked), max(asked, committed))
        asked = max(asked, told)
        return dict(zip(self.PARTS, (max(0.0, told - committed), asked - told, max(0.0, answered - asked)), strict=True))

    async def _follow(self, stop: threading.Event) -> None:
        async with self.browser.connect() as socket:
            await socket.send(orjson.dumps({"subscribe": "jobs", "since": self.browser.version_of("jobs")}).decode())
            self._ask(self._whole, time.time())
            while not stop.is_set():
                with suppress(TimeoutError):
                    message = orjson.loads(await asyncio.wait_for(socket.recv(), 0.2))
                    if message.get("topic") == "jobs" and "v" in message:
                        self._hear([key for key, _ in message["rows"]])
        for question in (self._some, self._whole):
            question.at = float("inf")
            await asyncio.gather(*question.open)

    def _hear(self, keys: list[str]) -> None:
        self.heard.append((time.time(), set(keys)))
        known = [key for key in keys if key in self._keys]
        if len(self._wanted) + len(known) > self.MOST_ROWS:
            self._ask(self._whole, self._whole.allowed.next())
            return
        self._wanted |= dict.fromkeys(known)
        strangers = self._strangers | dict.fromkeys(key for key in keys if key not in self._keys)
        self._strangers = dict.fromkeys(list(strangers)[-self.STRANGERS :])
        self._ask(self._some, time.time() if known else self._some.allowed.next())
        self._ask(self._whole, time.time() + self.LATER)

    def _ask(self, question: Question, at: float) -> None:
        question.at = min(question.at, at)
        self._plan()

    def _plan(self) -> None:
        for question in (self._some, self._whole):
            if question.timer is not None:
                question.timer.cancel()
            if question.at < float("inf") and len(question.open) < question.most_open:
                wait = max(question.at, question.asked_at + self.GAP) - time.time()
                question.timer = asyncio.get_running_loop().call_later(max(0.0, wait), self._go, question)

    def _go(self, question: Question) -> None:
        question.at, question.asked_at = float("inf"), time.time()
        address = f"{self.browser.origin}/jobs/"
        if question is self._whole or not self._wanted:
            question.allowed.take()
        if question is self._some:
            address += f"?rows={','.join(self._wanted | self._strangers)}"
            self._wanted, self._strangers = {}, {}
        task = asyncio.create_task(self._answer(question, address))
        question.open.add(task)

    async def _answer(self, question: Question, address: str) -> None:
        asked = time.time()
        html = (await asyncio.to_thread(self.browser.session.get, address, timeout=30)).text
        answered = time.time()
        rows = {row.partition('"')[0]: row for row in html.split('data-key="')[1:]}
        for key, row in rows.items():
            if 'data-status="queued"' not in row and 'data-status="reserved"' not in row:
                self.shown.setdefault(key, (asked, answered))
        order = re.search(r'data-order="([^"]*)"', html)
        keys = set(order[1].split(",")) if order else set(rows)
        unknown = keys - self._keys - rows.keys()
        if unknown:
            self._wanted |= dict.fromkeys(unknown)
            self._some.at = time.time()
        else:
            self._keys = keys
        task = asyncio.current_task()
        assert task is not None
        question.open.discard(task)
        self._plan()


def cpu_seconds(pid: int) -> float:
    """What a process has computed, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def family_cpu_seconds(pid: int) -> float:
    """What a process and all that it has started have computed, also those that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(family_cpu_seconds(int(child)) for child in children)


@contextmanager
def processor_use(pid: int) -> Iterator[dict[str, float]]:
    used: dict[str, float] = {}
    before, began = cpu_seconds(pid), time.monotonic()
    yield used
    used["seconds"] = time.monotonic() - began
    used["percent"] = 100 * (cpu_seconds(pid) - before) / used["seconds"]


def watch_map(browser: Browser, pid: int, *, clients: int, seconds: float) -> dict[str, Any]:
    """Let many pages follow the fleet map while the demo moves, and see what each got and what the server paid."""

    async def watch() -> dict[str, Any]:
        followers = [Follower() for _ in range(clients)]
        stop = asyncio.Event()
        ready = [asyncio.Event() for _ in followers]
        # A page that fails ends all of them with what it failed of: nobody waits for it.
        async with asyncio.TaskGroup() as pages:
            for one, event in zip(followers, ready, strict=True):
                pages.create_task(one.follow(browser, event, stop))
            await asyncio.gather(*(event.wait() for event in ready))
            for one in followers:
                one.received = one.messages = 0
            with processor_use(pid) as used:
                await asyncio.sleep(seconds)
            rates = [one.received / used["seconds"] / 1000 for one in followers]
            messages = statistics.median(one.messages for one in followers)
            newest = {topic: max(one.told.get(topic, 0) for one in followers) for topic in MAP_TOPICS}
            await asyncio.sleep(SETTLE_SECONDS)
            stop.set()
        behind = sum(any(one.versions[topic] < newest[topic] for topic in MAP_TOPICS) for one in followers)
        return {
            "clients": clients,
            "seconds": round(used["seconds"], 1),
            "server_cpu_percent": round(used["percent"], 1),
            "kilobytes_per_second_per_client": round(max(rates), 2),
            "messages_per_client": messages,
            "gaps": sum(one.gaps for one in followers),
            "snapshots_taken_again": sum(one.snapshots for one in followers),
            "clients_left_behind": behind,
            "runs": 1,
        }

    return asyncio.run(watch())
