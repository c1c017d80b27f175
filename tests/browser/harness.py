"""A real browser in front of the real console.

Two ways to serve it. `live_console` runs uvicorn in a thread of the test, over the test's own database: write through services and watch the page.
`sites` runs it as its own process over a prepared database (`empty`, `demo`), once for a test run: for tests that only look.

Playwright's sync interface keeps an event loop in this thread, so the browser lives as long as one module and not longer: async tests of other
modules would find a running loop. For the same reason code under test that leaves async code (on_commit hints) is called through `live_console.do`.
"""

import asyncio
import contextlib
import os
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvicorn
from axe_playwright_python.sync_playwright import Axe
from django.conf import settings
from django.db import connections
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Request, Response, expect, sync_playwright
from playwright.sync_api import Error as PlaywrightError

from gpufleet.core.live.hub import Listener
from gpufleet.core.live.hub import _hubs as hubs
from gpufleet.core.models import User
from tests.servers import Manage, Prepared, Program, accepts, free_port, required

DEMO_PASSWORD = "gpufleet-demo"
# Instead of Playwright's own list. The last three draw the browser's own toolbar, which nobody here sees, as one more page of each window.
UNUSED = (
    "DestroyProfileOnBrowserClose,HttpsUpgrades,HttpsFirstBalancedModeAutoEnable,MediaRouter,PaintHolding,ThirdPartyStoragePartitioning,"
    "OptimizationHints,NetworkTimeServiceQuerying,PreconnectToSearch,PreloadTopChromeWebUI,InitialWebUI,WebUIReloadButton"
)
CHROMIUM_FLAGS = [
    f"--disable-features={UNUSED}",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--no-first-run",
    "--no-pings",
    # Nothing but this machine has a name or an address: a request to a third party can't leave.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
R = TypeVar("R")
# A test says what comes, not how soon: that is measured (`gpufleet bench`), as other tests use the same processor.
PATIENCE_MS = 15_000
expect.set_options(timeout=PATIENCE_MS)
THEMES = ("light", "dark")
TWO_FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
CHANGED_BY_CHROMIUM = ("Execution context was destroyed", "net::ERR_ABORTED")
COUNT_MUTATIONS = """() => {
  window.mutations = 0;
  new MutationObserver((records) => { window.mutations += records.length; })
    .observe(document.body, {subtree: true, childList: true, attributes: true, characterData: true});
}"""
# Tables whose last columns only scrolling sideways would show.
CUT_TABLES = """() => [...document.querySelectorAll(".table-wrap")]
  .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth).map((one) => one.innerText)"""
# Of a long list axe sees twelve rows. The others are out of the page meanwhile: a hundred alike took it ten seconds, and half of that where it had
# only to pass them over.
LATER_ROWS = "tbody tr:nth-child(n+13)"
# What stands around every page, and what tells two of them apart: the tokens of its forms do not. Nothing where the keys or the pointer are in it.
SHELL = "body > header, body > nav"
TELL_SHELL = """(which) => {
  const parts = [...document.querySelectorAll(which)];
  if (!parts.length || parts.some((one) => one.matches(":hover, :focus-within"))) return "";
  return JSON.stringify([document.documentElement.className, document.body.className, innerWidth, getComputedStyle(document.body).colorScheme,
    ...parts.map((one) => one.outerHTML.replace(/<input type="hidden"[^>]*>/g, ""))]);
}"""
RUN_AXE = """async ([exclude, options, rows]) => {
  const later = [...document.querySelectorAll(rows)].filter((one) => !one.matches(":focus-within"));
  const away = later.map((one) => [one, one.parentNode, one.nextSibling]);
  const [left, top] = [scrollX, scrollY];
  for (const [row] of away) row.remove();
  try {
    return (await axe.run({ exclude: exclude.map((one) => [one]) }, options)).violations;
  } finally {
    for (const [row, parent, next] of away.reverse()) parent.insertBefore(row, next);
    scrollTo({ left, top, behavior: "instant" });
  }
}"""
# Shells in which axe has found nothing.
_clean_shells: set[str] = set()
WCAG = {"runOnly": {"type": "tag", "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]}, "resultTypes": ["violations"]}


def chromium_path() -> str | None:
    """The headless shell first: the same engine without a browser's own windows, at a third of the processor time for each page that is opened."""
    return shutil.which("chromium-headless-shell") or shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def playwright_driver() -> Iterator[Playwright]:
    with sync_playwright() as driver:
        yield driver


@pytest.fixture(scope="module")
def browser(playwright_driver: Playwright) -> Iterator[Browser]:
    """Chromium, as Debian packages it."""
    path = chromium_path()
    if path is None:
        required("chromium", "Chromium is not installed (Debian package: chromium-headless-shell).")
    flags = [*CHROMIUM_FLAGS, *(["--no-sandbox"] if os.geteuid() == 0 else [])]
    before = os.environ.get("DJANGO_ALLOW_ASYNC_UNSAFE")
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "true"  # Django sees Playwright's loop in this thread and would refuse the ORM to the test.
    running = playwright_driver.chromium.launch(executable_path=path, args=flags)
    yield running
    running.close()
    if before is None:
        del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


def slow_down(context: BrowserContext, page: Page) -> None:
    """A slower machine, to look for tests that act before a page is ready: `TEST_SLOW_CPU=6` (times), `TEST_SLOW_NET=300` (ms for each request)."""
    rate, latency = (int(os.environ.get(name, "0")) for name in ("TEST_SLOW_CPU", "TEST_SLOW_NET"))
    if not rate and not latency:
        return
    devtools = context.new_cdp_session(page)
    if rate:
        devtools.send("Emulation.setCPUThrottlingRate", {"rate": rate})
    if latency:
        devtools.send("Network.enable")
        devtools.send("Network.emulateNetworkConditions", {"offline": False, "latency": latency, "downloadThroughput": -1, "uploadThroughput": -1})


@dataclass
class Watch:
    """Everything about a page that no page may do: each line says what and where."""

    origin: str
    faults: list[str] = field(default_factory=list)
    allowed_statuses: tuple[int, ...] = ()

    def follow(self, page: Page) -> None:
        page.on("console", lambda message: self._console(message.type, message.text, page.url))
        page.on("pageerror", lambda error: self.faults.append(f"{page.url}: script error: {error}"))
        page.on("request", self._request)
        page.on("response", self._response)
        page.on("requestfailed", self._failed)

    def _console(self, kind: str, text: str, url: str) -> None:
        # Chromium repeats a bad status as a console error; `_response` judges those.
        if kind in {"error", "warning"} and not text.startswith("Failed to load resource"):
            self.faults.append(f"{url}: console {kind}: {text}")

    def _ours(self, url: str) -> bool:
        return url.startswith((self.origin, self.origin.replace("http", "ws", 1), "data:", "blob:", "about:"))

    def _request(self, request: Request) -> None:
        if not self._ours(request.url):
            self.faults.append(f"{request.frame.url}: asks a third party: {request.url}")

    def _response(self, response: Response) -> None:
        if response.status >= 400 and response.status not in self.allowed_statuses:
            self.faults.append(f"{response.frame.url}: {response.status} for {response.url}")

    def _failed(self, request: Request) -> None:
        # A page that is left stops its own requests.
        if request.failure != "net::ERR_ABORTED":
            self.faults.append(f"{request.url}: {request.failure}")


@dataclass
class Visitor:
    """One person's browser window."""

    page: Page
    watch: Watch
    origin: str
    scripts: bool = True

    def open(self, path: str) -> Response | None:
        try:
            return self._open(path)
        except PlaywrightError as error:
            # Chromium now and then loads a page anew by itself as soon as it has shown it (once in some 2,000 pages). A page that does this, a
            # download or an answer without a page does it each time.
            if not any(sign in error.message for sign in CHANGED_BY_CHROMIUM):
                error.add_note(path)
                raise
            self.page.wait_for_load_state("load")
            return self._open(path)

    def _open(self, path: str) -> Response | None:
        response = self.page.goto(self.origin + path, wait_until="load")
        if self.scripts:  # without them no frame ever calls back
            self.page.evaluate(TWO_FRAMES)
        return response

    def see(self, *, theme: str, size: dict[str, int]) -> None:
        """The open page on another screen."""
        self.page.emulate_media(color_scheme=theme)
        self.page.set_viewport_size(size)
        if self.scripts and self.page.url.startswith(self.origin):
            self.page.evaluate(TWO_FRAMES)

    def axe(self) -> list[str]:
        """What axe finds on the open page, a line for each element. A shell that it has seen, to the letter and in these colours, it passes over."""
        if not self.page.evaluate("() => 'axe' in window"):
            self.page.evaluate(Axe().axe_script)
        shell = self.page.evaluate(TELL_SHELL, SHELL)
        known = shell in _clean_shells
        found = self.page.evaluate(RUN_AXE, [[LATER_ROWS, *([SHELL] if known else [])], WCAG, LATER_ROWS])
        if shell and not found:
            _clean_shells.add(shell)
        return [
            f"{self.page.url}: {violation['id']} ({violation['impact']}): {node['target']} {node['html'][:160]}"
            for violation in found
            for node in violation["nodes"]
        ]


class Console:
    """A console that answers at `origin`, and the windows that are open on it."""

    def __init__(self, origin: str) -> None:
        self.origin = origin
        self.signed_in: dict[str, Any] = {}
        self._open: list[BrowserContext] = []

    def visit(self, browser: Browser, username: str | None = None, *, password: str = DEMO_PASSWORD, theme: str = "light", **options: Any) -> Visitor:
        """A new window, signed in as `username` by the sign-in page (once; later windows get the same session)."""
        if username and username not in self.signed_in:
            self.signed_in[username] = self._sign_in(browser, username, password)
        state = self.signed_in[username] if username else None
        context = browser.new_context(storage_state=state, color_scheme=theme, reduced_motion="reduce", **options)
        self._open.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        watch = Watch(self.origin)
        watch.follow(page)
        slow_down(context, page)
        return Visitor(page, watch, self.origin, scripts=options.get("java_script_enabled", True))

    def _sign_in(self, browser: Browser, username: str, password: str) -> Any:
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"{self.origin}/accounts/login/?next=/healthz")
        page.fill("input[name=login]:not([type=hidden])", username)
        page.fill("input[type=password]", password)
        with page.expect_navigation(timeout=PATIENCE_MS):
            page.locator("input[type=password]").press("Enter")
        assert page.url.endswith("/healthz"), f"{username} was not let in: {page.inner_text('body')[:400]}"
        state = context.storage_state()
        context.close()
        return state

    def close_windows(self) -> None:
        for context in self._open:
            with contextlib.suppress(Exception):  # the browser may have crashed; its test has said so
                context.close()
        self._open.clear()


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = threading.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()


class LiveConsole(Console):
    """The ASGI application under uvicorn in a thread, on the database of the test."""

    def __init__(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        super().__init__(f"http://127.0.0.1:{self.socket.getsockname()[1]}")
        config = uvicorn.Config(
            "gpufleet.asgi:application", lifespan="off", log_config=None, ws_per_message_deflate=False, timeout_graceful_shutdown=2
        )
        self.server = Server(config)
        self.thread = threading.Thread(target=self._serve, daemon=True, name="console")
        self.pool = ThreadPoolExecutor(max_workers=1)

    def _sign_in(self, browser: Browser, username: str, password: str) -> Any:
        """Without the page, which takes two seconds: `sites` are entered by it."""
        user, client = User.objects.get(username=username), Client()
        assert user.check_password(password)
        client.force_login(user, backend="allauth.account.auth_backends.AuthenticationBackend")
        cookie = client.cookies[settings.SESSION_COOKIE_NAME]
        rest = {"domain": "127.0.0.1", "path": "/", "expires": -1, "httpOnly": True, "secure": False, "sameSite": "Lax"}
        return {"cookies": [{"name": cookie.key, "value": cookie.value, **rest}], "origins": []}

    def _serve(self) -> None:
        asyncio.run(self.server.serve(sockets=[self.socket]))

    def start(self) -> None:
        self.thread.start()
        assert self.server.ready.wait(120), "uvicorn did not start"

    def do(self, call: Callable[..., R], *arguments: Any, **named: Any) -> R:
        """Call a service as a worker does: in another thread, with its own database connection."""

        def work() -> R:
            try:
                return call(*arguments, **named)
            finally:
                connections.close_all()

        return self.pool.submit(work).result(60)

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(10)
        self.pool.shutdown()
        self.socket.close()


@pytest.fixture
def live_console(transactional_db: None, browser: Browser) -> Iterator[LiveConsole]:
    """The console over this test's database; `live_console.visit(browser, "oona", password=…)` opens a window."""
    console = LiveConsole()
    console.start()
    yield console
    console.close_windows()
    console.stop()


def listeners() -> list[Listener]:
    """The sockets of this process, with what their pages follow. A page says that it is live before it has joined its topic."""
    return [listener for hub in list(hubs.values()) for listener in list(hub.listeners)]


def wait_until_followed(page: Page, topic: str, gone: list[Listener] | None = None) -> None:
    """
    Until the server tells the only open page of this topic. What happens before is no change to that page, but part of what it fetches next.
    After a reload, name the sockets of before as `gone`: the server may hear of their end later than of the new page.
    """

    def followed() -> bool:
        open_now = listeners()
        ended = all(listener not in (gone or []) for listener in open_now)
        return ended and [topic in listener.topics for listener in open_now] == [True]

    wait_for(page, followed)


def wait_for(page: Page, check: Callable[[], Any], seconds: float = PATIENCE_MS / 1000) -> None:
    """Until `check` holds, while the browser's events are taken in."""
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline
        page.wait_for_timeout(20)


class Site(Console):
    """The console as its own process over a prepared SQLite database."""

    def __init__(self, manage: Manage) -> None:
        self.port = free_port()
        super().__init__(f"http://127.0.0.1:{self.port}")
        self.manage = manage
        self.program: Program | None = None

    def start(self) -> None:
        command = ["-m", "uvicorn", "gpufleet.asgi:application", "--port", str(self.port), "--lifespan", "off"]
        self.program = self.manage.start(*command, name="web")
        self.program.wait_for(lambda: accepts(self.port), what="the console to answer")

    def stop(self) -> None:
        if self.program:
            self.program.stop()


MAKE_ROOT = """
from gpufleet.core.models import User
User.objects.create_superuser("root", "root@example.org", %r)
"""


def _installed(prepared: Prepared, folder: Path, state: str) -> Manage:
    if state == "demo":
        return prepared.demo(folder)
    manage = prepared.migrated(folder)
    manage.run("shell", "--verbosity", "0", "-c", MAKE_ROOT % DEMO_PASSWORD)
    return manage


@pytest.fixture(scope="session")
def running_sites() -> Iterator[dict[str, Site]]:
    running: dict[str, Site] = {}
    yield running
    for site in running.values():
        site.stop()


@pytest.fixture
def sites(running_sites: dict[str, Site], prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Site]]:
    """`sites("empty")`: a console that was just set up, with one superuser `root`; `sites("demo")`: the small demo fleet and its people."""

    def give(state: str) -> Site:
        if state not in running_sites:
            running_sites[state] = Site(_installed(prepared, tmp_path_factory.mktemp(f"site-{state}"), state))
            running_sites[state].start()
        return running_sites[state]

    yield give
    # Pages that are left open go on working, at the cost of all that comes after them.
    for site in running_sites.values():
        site.close_windows()
