"""`gpufleet bench console`: what the console costs with 4,000 GPUs, measured from outside over HTTP and websockets.

Every case starts its own console over a temporary folder and a fresh large demo, so that nothing of this machine's installation is touched.
"""

import argparse
import contextlib
import itertools
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpufleet.bench import percentile, show, timing
from gpufleet.bench.browsers import Browser, family_cpu_seconds, watch_map
from gpufleet.bench.loop import PROXIED, Installation, settle
from gpufleet.throwaway import Manage, Missing, Postgres, Program, Redis, free_port

PAGES = {"overview": "/", "fleet-map": "/fleet/", "node-list": "/nodes/", "fleet-snapshot": "/live/gpus/snapshot"}
# What people open first, with all that a browser asks for to show it: each is asked of processes that have answered nothing yet.
COLD_PAGES, COLD_RUNS = {"overview": ("overview",), "fleet-map": ("fleet-map", "fleet-snapshot")}, 5
WARM_UP, REQUESTS, RUNS = 20, 200, 3
CLIENTS = 100
FITS, FIT_CASES = 100, ("fit-cold", "fit-quiet", "fit-loop")
# On a busy machine answers take seconds: what was measured until then is told, with how often it was asked.
FIT_SECONDS = 120
READ_SECONDS = 180
WRITES = 15
# Prints when each change was committed; the browser in this process says when it heard of it. One machine, one clock.
WRITER = f"""
import time
from django.db import transaction
from gpufleet.core.live.feed import feed_publish
from scheduler.models import Gpu
keys = list(Gpu.objects.order_by("pk").values_list("pk", flat=True)[:{WRITES}])
for key in keys:
    with transaction.atomic():
        revision = feed_publish(changes={{"gpus": [{{"id": key}}]}})
    print(revision, time.time(), flush=True)
    time.sleep(1.0)
"""


class Console:
    """A console over a temporary folder, as `gpufleet up` or as the production profile's web server runs it."""

    def __init__(self, folder: Path, database_url: str = "") -> None:
        self.manage = Manage(folder, GPUFLEET_LOG_LEVEL="warning", **({"GPUFLEET_DATABASE_URL": database_url} if database_url else {}))
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"

    def seed(self, size: str) -> None:
        self.manage.run("migrate", "--verbosity", "0", seconds=600)
        self.manage.run("seed_demo", size, seconds=600)

    @contextlib.contextmanager
    def up(self) -> Iterator[tuple[Program, float]]:
        """The running console, and how many seconds it took to answer."""
        began = time.perf_counter()
        program = self.manage.start("manage.py", "up", "--port", str(self.port), name="up")
        try:
            program.wait_for(lambda: "answers at" in program.output(), seconds=120, what="the console to answer")
            yield program, time.perf_counter() - began
        finally:
            program.stop(signal.SIGTERM)

    @contextlib.contextmanager
    def web(self) -> Iterator[Program]:
        """The web server alone: what a page costs when nothing else happens. It has answered nothing yet."""
        options = ["--port", str(self.port), "--lifespan", "off", "--no-access-log", "--ws-per-message-deflate", "false"]
        program = self.manage.start("-m", "uvicorn", "gpufleet.asgi:application", *options, name="web")
        try:
            program.wait_for(self._listens, seconds=60, what="the web server to listen")
            yield program
        finally:
            program.stop(signal.SIGTERM)

    def _listens(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
            return True
        return False


def measure_pages(console: Console, database: str, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    pages = {case: paths for case, paths in cases_of(database).items() if wanted(case)}
    cold = [case for case in pages if case.startswith("cold-")]
    if not pages:
        return
    console.seed("large")
    browser = Browser(console.origin)
    with console.web():
        browser.sign_in("root")
        for case, (path, *_) in pages.items():
            if case in cold:
                continue
            for _ in range(WARM_UP):
                browser.seconds_for(path)
            runs = [[browser.seconds_for(path) for _ in range(REQUESTS)] for _ in range(RUNS)]
            yield timing(case, runs, requests=REQUESTS, kilobytes=round(browser.last_size / 1000, 1))
    for case in cold:
        took = []
        for _ in range(COLD_RUNS):
            with console.web():
                took.append(sum(map(browser.seconds_for, pages[case])))
        yield timing(case, [took], max_ms=round(max(took) * 1000, 1))


def cases_of(database: str) -> dict[str, tuple[str, ...]]:
    """Each case with the addresses that it asks for."""
    warm = {f"{name}-{database}": (path,) for name, path in PAGES.items()}
    return warm | {f"cold-{name}-{database}": tuple(PAGES[one] for one in needed) for name, needed in COLD_PAGES.items()}


def measure_start(console: Console, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """From the command to the answer, with the demo already there."""
    if wanted("second-start"):
        console.seed("small")
        seconds = []
        for _ in range(RUNS):
            with console.up() as (_, took):
                seconds.append(took)
        yield timing("second-start", [[took] for took in seconds])


def measure_live(console: Console, wanted: Callable[[str], bool], *, long: bool) -> Iterator[dict[str, Any]]:
    if not (wanted("live-update") or wanted("map-100-clients")):
        return
    console.seed("large")
    with console.up() as (program, _):
        browser = Browser(console.origin)
        browser.sign_in("root")
        if wanted("live-update"):
            writer = console.manage.start("manage.py", "shell", "--verbosity", "0", "-c", WRITER, name="writer")
            heard = browser.moments_of("gpus", seconds=WRITES + 15, until=lambda: writer.process.poll() is not None)
            written = dict(line.split() for line in writer.output().splitlines())
            waits = [heard_at(heard, int(revision)) - float(moment) for revision, moment in written.items()]
            yield timing("live-update", [waits], writes=len(waits))
        if wanted("map-100-clients"):
            yield {"case": "map-100-clients", **watch_map(browser, program.pid, clients=CLIENTS, seconds=300 if long else 30)}


class Panel(Browser):
    """The page on which one submits, as it asks after every pause in typing."""

    def __init__(self, place: Installation) -> None:
        super().__init__(place.origin)
        self.session.headers.update({**PROXIED, "Referer": f"https://127.0.0.1:{place.port}/"})
        self.session.cookies.set("sessionid", place.ask("m['signed_in']()", module="fitting"))
        self.draw = random.Random(11)  # noqa: S311 (the same jobs every time)
        self.verdicts: dict[str, int] = {}

    def begin(self) -> None:
        page = self.session.get(f"{self.origin}/jobs/new/", timeout=60)
        found = re.search(r'name="csrf-token" content="([^"]+)"', page.text)
        self.session.headers["X-CSRFToken"] = found[1] if found else ""
        self.session.cookies.set("csrftoken", page.cookies["csrftoken"])

    def ask(self) -> float:
        """Seconds of one answer about a job of any shape."""
        workers, gpus = self.draw.choice(((1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8), (8, 8), (16, 8)))
        hours = self.draw.randrange(1, 12)
        typed = {
            "name": "mine",
            "quota": f"org/team-{self.draw.randrange(10)}",
            "priority": self.draw.choice((0, 10, 50)),  # behind nearly all who wait, among them, or before them
            "gpus": gpus,
            "workers": workers,
            "limit_s": f"{hours}h",
            "_from": "form",
        }
        began = time.perf_counter()
        answer = self.session.post(f"{self.origin}/jobs/new/look", data=typed, timeout=120)
        took = time.perf_counter() - began
        answer.raise_for_status()
        told = answer.json()
        if told["faults"] or told["others"]:
            raise RuntimeError(f"refused: {told['faults'] or told['others']}")
        shown = re.search(r'data-verdict="(\w+)"', told["fit"])
        verdict = shown[1] if shown else "reading"
        self.verdicts[verdict] = self.verdicts.get(verdict, 0) + 1
        return took


def measure_fits(place: Installation, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The panel of the submission page, with 5,000 waiting jobs: while a fresh process reads them, which no plan has seen; beside the loop; alone."""
    world = place.ask("m['crowded']()", seconds=1800, module="fitting")
    if wanted("fit-cold"):
        with place.web() as program:
            yield measure_cold_fit(place, Panel(place), program, world)
    token = world["tokens"][0]
    with place.up() as programs:
        settle(place, place.session(token))
        if wanted("fit-loop"):
            panel = Panel(place)
            with churning(place, token):
                yield measure_warm_fit("fit-loop", panel, programs[0], world)
    if wanted("fit-quiet"):
        with place.web() as program:
            yield measure_warm_fit("fit-quiet", Panel(place), program, world)


def measure_cold_fit(place: Installation, panel: Panel, program: Program, world: dict[str, Any]) -> dict[str, Any]:
    """Answers, and those to another request beside them, until both web processes have read the fleet."""
    panel.begin()
    other = place.session(world["tokens"][0])
    took: list[float] = []
    beside: list[float] = []
    stop = threading.Event()

    def ask_others() -> None:
        while not stop.wait(0.05):
            began = time.perf_counter()
            other.get(f"{place.origin}/api/v1/jobs?size=20", timeout=120).raise_for_status()
            beside.append(time.perf_counter() - began)

    thread = threading.Thread(target=ask_others)
    thread.start()
    began, read, before = time.perf_counter(), 0.0, family_cpu_seconds(program.pid)
    answered = 0
    try:
        while answered < 10 and time.perf_counter() - began < READ_SECONDS:
            reading = panel.verdicts.get("reading", 0)
            took.append(panel.ask())
            answered = 0 if panel.verdicts.get("reading", 0) > reading else answered + 1
            read = time.perf_counter() - began if answered <= 1 else read
            stop.wait(0.1)
    finally:
        stop.set()
        thread.join()
    cpu = family_cpu_seconds(program.pid) - before
    more = {
        "other_p95_ms": round(percentile(beside, 0.95) * 1000, 1),
        "read_s": round(read, 1),
        "web_cpu_s": round(cpu, 1),
        "verdicts": panel.verdicts,
    }
    return timing("fit-cold", [took], max_ms=round(max(took) * 1000, 1), **more)


def measure_warm_fit(case: str, panel: Panel, program: Program, world: dict[str, Any]) -> dict[str, Any]:
    panel.begin()
    limit = time.monotonic() + FIT_SECONDS
    while sum(panel.verdicts.values()) - panel.verdicts.get("reading", 0) < WARM_UP and time.monotonic() < limit:
        panel.ask()
        time.sleep(0.25)
    panel.verdicts.clear()
    before, limit = family_cpu_seconds(program.pid), time.monotonic() + FIT_SECONDS
    took: list[float] = []
    while len(took) < FITS and time.monotonic() < limit:
        took.append(panel.ask())
    cpu = family_cpu_seconds(program.pid) - before
    more = {"requests": len(took), "web_cpu_ms": round(1000 * cpu / len(took), 1), "queued": world["queued"], "running": world["running"]}
    return timing(case, [took], p99_ms=round(percentile(took, 0.99) * 1000, 1), verdicts=panel.verdicts, **more)


@contextlib.contextmanager
def churning(place: Installation, token: str) -> Iterator[None]:
    """Two jobs a second are submitted, so that the loop goes on planning."""
    stop = threading.Event()
    session = place.session(token)

    def submit() -> None:
        for number in itertools.count():
            if stop.wait(0.5):
                return
            place.submit(session, {"name": f"churn-{number}", "quota": f"org/team-{number % 10}", "gpus": 1, "estimate_s": 3600, "work_s": 600})

    thread = threading.Thread(target=submit)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def heard_at(heard: Sequence[tuple[int, float]], revision: int) -> float:
    """When a browser that follows first knew of a revision."""
    return next((moment for version, moment in heard if version >= revision), float("inf"))


def run(wanted: Callable[[str], bool], *, long: bool) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        yield from measure_start(Console(folder / "start"), wanted)
        yield from measure_pages(Console(folder / "sqlite"), "sqlite", wanted)
        if any(map(wanted, cases_of("postgresql"))):
            try:
                server = Postgres()
            except Missing as missing:
                print(f"left out: {missing}", file=sys.stderr)
            else:
                with contextlib.closing(server):
                    yield from measure_pages(Console(folder / "postgresql", server.create_database()), "postgresql", wanted)
        yield from measure_live(Console(folder / "live"), wanted, long=long)
        if any(wanted(case) for case in FIT_CASES):
            yield from run_fits(folder / "fit", wanted)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_fits(folder: Path, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as servers:
        try:
            postgres = servers.enter_context(contextlib.closing(Postgres()))
            redis = Redis()
            servers.callback(redis.stop)
        except Missing as missing:
            print(f"left out: {missing}", file=sys.stderr)
            return
        yield from measure_fits(Installation(folder, postgres, redis, GPUFLEET_API_REQUESTS_PER_MINUTE="1000000"), wanted)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench console", description="Measure the console with a fleet of 4,000 GPUs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help="measure this case only (may be repeated; a beginning is enough)")
    parser.add_argument("--long", action="store_true", help="watch the fleet map for five minutes instead of half a minute")
    given = parser.parse_args(arguments)

    def wanted(case: str) -> bool:
        return not given.case or any(case.startswith(name) for name in given.case)

    cases = []
    for case in run(wanted, long=given.long):
        cases.append(case)
        if not given.json:
            show([case], as_json=False)
            sys.stdout.flush()
    if not cases:
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    if given.json:
        show(cases, as_json=True)
    return 0
