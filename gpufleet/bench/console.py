"""`gpufleet bench console`: what the console costs with 4,000 GPUs, measured from outside over HTTP and websockets.

Every case starts its own console over a temporary folder and a fresh large demo, so that nothing of this machine's installation is touched.
"""

import argparse
import contextlib
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpufleet.bench import show, timing
from gpufleet.bench.browsers import Browser, watch_map
from gpufleet.throwaway import Manage, Missing, Postgres, Program, free_port

PAGES = {"overview": "/", "fleet-map": "/fleet/", "node-list": "/nodes/", "fleet-snapshot": "/live/gpus/snapshot"}
WARM_UP, REQUESTS, RUNS = 20, 200, 3
CLIENTS = 100
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
        """The web server alone: what a page costs when nothing else happens."""
        options = ["--port", str(self.port), "--lifespan", "off", "--no-access-log", "--ws-per-message-deflate", "false"]
        program = self.manage.start("-m", "uvicorn", "gpufleet.asgi:application", *options, name="web")
        browser = Browser(self.origin)
        try:
            program.wait_for(browser.is_answered, seconds=60, what="the web server to answer")
            yield program
        finally:
            program.stop(signal.SIGTERM)


def measure_pages(console: Console, database: str, wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    pages = {f"{name}-{database}": path for name, path in PAGES.items() if wanted(f"{name}-{database}")}
    if not pages:
        return
    console.seed("large")
    with console.web():
        browser = Browser(console.origin)
        browser.sign_in("root")
        for case, path in pages.items():
            for _ in range(WARM_UP):
                browser.seconds_for(path)
            runs = [[browser.seconds_for(path) for _ in range(REQUESTS)] for _ in range(RUNS)]
            yield timing(case, runs, requests=REQUESTS, kilobytes=round(browser.last_size / 1000, 1))


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


def heard_at(heard: Sequence[tuple[int, float]], revision: int) -> float:
    """When a browser that follows first knew of a revision."""
    return next((moment for version, moment in heard if version >= revision), float("inf"))


def run(wanted: Callable[[str], bool], *, long: bool) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    try:
        yield from measure_start(Console(folder / "start"), wanted)
        yield from measure_pages(Console(folder / "sqlite"), "sqlite", wanted)
        if any(wanted(f"{name}-postgresql") for name in PAGES):
            try:
                server = Postgres()
            except Missing as missing:
                print(f"left out: {missing}", file=sys.stderr)
            else:
                with contextlib.closing(server):
                    yield from measure_pages(Console(folder / "postgresql", server.create_database()), "postgresql", wanted)
        yield from measure_live(Console(folder / "live"), wanted, long=long)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench console", description="Measure the console with a fleet of 4,000 GPUs.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help="measure this case only (may be repeated; a beginning is enough)")
    parser.add_argument("--long", action="store_true", help="watch the fleet map for five minutes instead of half a minute")
    given = parser.parse_args(arguments)

    def wanted(case: str) -> bool:
        return not given.case or any(case.startswith(name) for name in given.case)

    cases = list(run(wanted, long=given.long))
    if not cases:
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    show(cases, as_json=given.json)
    return 0
