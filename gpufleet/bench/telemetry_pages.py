"""Pages over a store of months: 30 days of 4,000 GPUs on PostgreSQL, 90 days of 512 GPUs on SQLite, asked for as browsers ask."""

import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpufleet.bench import percentile, timing
from gpufleet.bench.browsers import Browser, family_cpu_seconds
from gpufleet.bench.console import Console
from gpufleet.core.ranges import RANGES
from gpufleet.throwaway import Manage, Postgres, wait_until

REQUESTS, WARM_UP = 20, 2
PAGES = {"home": "/", "home-fleet": "/overview/", "home-team": "/home/team/", "home-on-call": "/home/on-call/", "home-month": "/home/month/"}
# What charts ask for, for every range that they offer. `{gpu}` and the like are keys of the fleet.
SERVERS = {
    "overview": "/overview/history",
    "gap": "/gap/history",
    "gap-page": "/gap/",
    "fragmentation": "/fragmentation/history",
    "fragmentation-page": "/fragmentation/",
    "gpu": "/gpus/{gpu}/course",
    "node": "/nodes/{node}/course",
    "cluster": "/clusters/{cluster}/course",
    "quota": "/quotas/{quota}/course",
    "job": "/jobs/{job}/course",
    "gpu-page": "/gpus/{gpu}/",
    "node-page": "/nodes/{node}/",
    "quota-page": "/quotas/{quota}/",
    "job-page": "/jobs/{job}/",
}
PLOTS = {"overview": "/overview/?range=30d", "gap": "/gap/?range=30d", "node": "/nodes/{node}/?range=30d"}
FIRST_PLOTS, LIVE_STEPS, PAUSE_SECONDS = 5, 10, 4
CHROMIUM = ["--no-sandbox", "--disable-features=InitialWebUI,WebUIReloadButton,PreloadTopChromeWebUI"]

FILL = """
import json
from dashboards.benchmarks_past import past_fill, size_on_disk
from django.db import connection
from gpufleet.core.times import now
from gpufleet.retention import retention_prune
from scheduler.models import Gpu, Job
from quotas.models import QuotaNode
told = past_fill(days={days})
for _ in range(12):
    retention_prune(now=now())
with connection.cursor() as cursor:
    cursor.execute("VACUUM ANALYZE" if connection.vendor == "postgresql" else "ANALYZE")
gpu = Gpu.objects.select_related("node__cluster").order_by("pk")[100]
team = QuotaNode.objects.filter(kind="team").order_by("pk").first()
job = Job.objects.filter(state="running").order_by("attempts__started_at", "pk").first()
keys = {{"job": job.public_id, "gpu": gpu.public_id, "node": gpu.node.public_id, "cluster": gpu.node.cluster.name, "quota": team.public_id}}
print(json.dumps(told | size_on_disk() | {{"keys": keys}}))
"""
# Readings of the whole fleet change; when each is about to be committed is printed. One machine, one clock. A page may show the change before the
# commit returns: SQLite's also copies its log into the database now and then, which takes as long as the disk does.
WRITER = f"""
import time
from django.db import transaction
from dashboards.models import TelemetryFrame
from gpufleet.core.live.feed import feed_publish
from gpufleet.core.times import now
for number in range({LIVE_STEPS}):
    with transaction.atomic():
        for frame in TelemetryFrame.objects.all():
            sm = bytes([20 + 60 * (number % 2)]) * (len(frame.gpu_ids) // 4)
            TelemetryFrame.objects.filter(pk=frame.pk).update(at=now(), sm_active=sm)
        feed_publish(changes={{"overview": [{{"id": 1}}]}})
        moment = time.time()
    print("AT", moment, flush=True)
    time.sleep({PAUSE_SECONDS})
"""
# Notes when a figure of the page changes; ages that go on by themselves are none.
OBSERVER = """() => {
  window.changed = [];
  new MutationObserver((all) => {
    const elements = all.map((one) => (one.target.nodeType === 1 ? one.target : one.target.parentElement));
    if (elements.some((at) => at?.closest(".headline [data-f]") && !at.closest("time"))) window.changed.push(Date.now() / 1000);
  }).observe(document.body, { subtree: true, childList: true, characterData: true });
}"""


def measured_pages(*, postgres: bool, days: int, size: str, keep: bool, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """Each case as soon as it is done. `Missing` where PostgreSQL is asked for and not installed. `keep`: served until interrupted."""
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    with contextlib.ExitStack() as servers:
        servers.callback(shutil.rmtree, folder, ignore_errors=True)
        server = servers.enter_context(contextlib.closing(Postgres())) if postgres else None
        console = Console(folder, server.create_database() if server else "")
        console.seed(size)
        began = time.perf_counter()
        told = _told(console.manage, FILL.format(days=days))
        keys = told.pop("keys")
        yield {"case": "page-store", **told, "filled_in_s": round(time.perf_counter() - began, 1)}
        with console.web() as program:
            browser = Browser(console.origin)
            browser.sign_in("root")
            for case, path in PAGES.items():
                if wanted(f"page-{case}"):
                    yield _over(f"page-{case}", browser, program.pid, {"": path})
            for case, path in SERVERS.items():
                if wanted(f"page-range-{case}"):
                    yield _over(f"page-range-{case}", browser, program.pid, {one.key: f"{path.format(**keys)}?range={one.key}" for one in RANGES})
            if wanted("page-plot") or wanted("page-live"):
                yield from _in_chromium(console, browser, keys, wanted)
            if keep:
                settings = {name: value for name, value in console.manage.env.items() if name.startswith("GPUFLEET_")}
                yield {"case": "page-kept", "address": console.origin, "user": "root", "keys": keys, **settings}
                with contextlib.suppress(KeyboardInterrupt):
                    program.process.wait()


def live_steps(written: Sequence[float], changed: Sequence[float]) -> dict[str, Any]:
    """How long after each write the page changed. `missed`: writes after which it changed only with the next one, if at all."""
    waits = [min((at - moment for at in changed if at >= moment), default=float("inf")) for moment in written]
    return timing("page-live-step", [waits], steps=len(waits), missed=sum(wait >= PAUSE_SECONDS for wait in waits))


def _told(manage: Manage, code: str) -> dict[str, Any]:
    said = manage.run("shell", "--verbosity", "0", "-c", code, seconds=3600).stdout
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _asked(browser: Browser, path: str) -> list[float]:
    for _ in range(WARM_UP):
        browser.seconds_for(path)
    return [browser.seconds_for(path) for _ in range(REQUESTS)]


def _over(case: str, browser: Browser, server: int, paths: dict[str, str]) -> dict[str, Any]:
    """The figures of the slowest of some addresses; what the web server computed for a request, which other work on the machine changes less."""
    before = family_cpu_seconds(server)
    took = {key: _asked(browser, path) for key, path in paths.items()}
    cpu = (family_cpu_seconds(server) - before) / (len(paths) * (REQUESTS + WARM_UP))
    worst = max(took, key=lambda key: percentile(took[key], 0.95))
    more = {"range_p95_ms": {key: round(1000 * percentile(one, 0.95)) for key, one in took.items()}} if len(paths) > 1 else {}
    return timing(case, [took[worst]], web_cpu_ms=round(1000 * cpu, 1), requests=REQUESTS * len(paths), **more)


def _await_plot(page: Any) -> None:
    try:
        page.wait_for_selector(".plot-container", timeout=60_000)
    except Exception as error:
        error.add_note(f"{page.url} shows: {page.inner_text('main')[:1000]}")
        raise


def _in_chromium(console: Console, browser: Browser, keys: dict[str, str], wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        yield {"case": "page-plot", "left_out": "Playwright is not installed (make setup-tests)."}
        return
    cookies = [{"name": name, "value": value, "url": console.origin} for name, value in browser.session.cookies.items()]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"), args=CHROMIUM)
        for case, path in PLOTS.items():
            if not wanted(f"page-plot-{case}"):
                continue
            took = []
            for _ in range(FIRST_PLOTS):
                with contextlib.closing(chromium.new_context(viewport={"width": 1440, "height": 900})) as context:
                    context.add_cookies(cookies)  # type: ignore[arg-type]
                    page, began = context.new_page(), time.perf_counter()
                    page.goto(console.origin + path.format(**keys), wait_until="commit")
                    _await_plot(page)
                    took.append(time.perf_counter() - began)
            yield timing(f"page-plot-{case}", [took], first_plots=FIRST_PLOTS, max_ms=round(1000 * max(took)))
        if wanted("page-live-step"):
            with contextlib.closing(chromium.new_context()) as context:
                context.add_cookies(cookies)  # type: ignore[arg-type]
                page = context.new_page()
                page.goto(console.origin + "/overview/")
                _await_plot(page)
                page.evaluate(OBSERVER)
                writer = console.manage.start("manage.py", "shell", "--verbosity", "0", "-c", WRITER, name="writer")
                wait_until(lambda: page.evaluate("1") and writer.process.poll() is not None, seconds=60 + 10 * LIVE_STEPS, what="the writer to end")
                changed = page.evaluate("window.changed")
            written = [float(line.split()[1]) for line in writer.output().splitlines() if line.startswith("AT")]
            yield live_steps(written, changed)
        chromium.close()
