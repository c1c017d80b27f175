"""`gpufleet bench api`: submissions by the hundred, and lists over a hundred thousand jobs, on PostgreSQL with Redis.

Everything is measured from outside, over HTTP, against a console of its own in a temporary folder. `cpu_ms` is what its programs computed of it,
which says more than the clock does on a machine that has other work.
"""

import argparse
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psycopg
import requests

from gpufleet.bench import percentile, show, timing
from gpufleet.bench.browsers import Browser, family_cpu_seconds
from gpufleet.bench.loop import PROXIED, Installation
from gpufleet.throwaway import Missing, Postgres, Program, Redis

CASES = ("batches", "singles", "list", "page")
SECONDS = 30.0
CLIENTS = 4
BATCH = 100
REPEATED_EVERY = 10
JOBS = 100_000
WARM_UP, REQUESTS = 10, 60
WARM_UP_SECONDS = 5.0
TEAM = "org/group-0"
LISTS = {
    "list-500": "/api/v1/jobs?size=500",
    "list-500-waiting": "/api/v1/jobs?size=500&phase=waiting",
    "list-500-team-ended": f"/api/v1/jobs?size=500&phase=ended&team={TEAM}",
    "list-500-owner": "/api/v1/jobs?size=500&owner=person-7",
    "list-500-words": "/api/v1/jobs?size=500&q=serve",
    "list-500-far": "/api/v1/jobs?size=500&sort=submitted&from=2020-01-01",
}
PAGES = {
    "page": "/jobs/",
    "page-waiting": "/jobs/?phase=waiting",
    "page-team-failed": f"/jobs/?state=failed&team={TEAM}",
    "page-owner-class": "/jobs/?owner=person-7&class=inference",
    "page-words": "/jobs/?q=serve+embed",
    "page-rare-words": "/jobs/?q=sweep-eval-999",
    "page-label": "/jobs/?label=project=p-7",
    "page-rare-label": "/jobs/?label=paper",
    "page-type": "/jobs/?type=H100-SXM-80GB",
    "page-rare-type": "/jobs/?type=H200-SXM-141GB",
    "page-blocker": "/jobs/?blocker=capacity",
    "page-rare-blocker": "/jobs/?blocker=topology",
    "page-cost-centre": "/jobs/?cost_centre=CC-7",
}


class Sender(threading.Thread):
    """One client that submits as fast as it is answered, until told to stop; every tenth request is sent twice."""

    def __init__(self, place: Installation, token: str, name: str, batch: int, stop: threading.Event) -> None:
        super().__init__(name=name)
        self.session = place.session(token)
        self.origin, self.batch, self.stop = place.origin, batch, stop
        self.jobs: dict[str, str] = {}  # what was submitted, by its own name
        self.took: list[float] = []
        self.errors: list[str] = []
        self.changed = 0  # answers to a repeated request that named other jobs

    def run(self) -> None:
        number = 0
        while not self.stop.is_set():
            try:
                first = self.send(number)
                if number % REPEATED_EVERY == 0 and self.send(number) != first:
                    self.changed += 1
                self.jobs |= first
            except (requests.RequestException, RuntimeError) as fault:
                self.errors.append(str(fault)[:300])
            number += 1

    def send(self, number: int) -> dict[str, str]:
        began = time.perf_counter()
        found = self.send_batch(number) if self.batch > 1 else self.send_one(number)
        self.took.append(time.perf_counter() - began)
        return found

    def send_one(self, number: int) -> dict[str, str]:
        wish = self.wish(f"{self.name}-{number}")
        answer = self.session.post(f"{self.origin}/api/v1/jobs", json=wish, headers={"Idempotency-Key": wish["name"]}, timeout=60)
        answer.raise_for_status()
        return {job["name"]: job["id"] for job in answer.json()["jobs"]}

    def send_batch(self, number: int) -> dict[str, str]:
        wishes = [self.wish(f"{self.name}-{number}-{place}") for place in range(self.batch)]
        body = {"jobs": [{"key": wish["name"], "description": wish} for wish in wishes]}
        answer = self.session.post(f"{self.origin}/api/v1/submissions", json=body, timeout=120)
        answer.raise_for_status()
        verdicts = answer.json()["verdicts"]
        if refused := [verdict["errors"] for verdict in verdicts if verdict["errors"]]:
            raise RuntimeError(f"refused: {refused[0]}")
        return {job["name"]: job["id"] for verdict in verdicts for job in verdict["jobs"]}

    @staticmethod
    def wish(name: str) -> dict[str, Any]:
        return {
            "name": name,
            "quota": f"org/team-{hash(name) % 10}",
            "gpus": 4,
            "labels": {"run": name},
            "work_s": 3600,
            "launch": {"command": ["python", "train.py"], "env": {"LR": "3e-4"}},
        }


def measure_submissions(place: Installation, servers: dict[str, Program], case: str, *, batch: int, seconds: float) -> dict[str, Any]:
    """Several clients submit for half a minute while the scheduler plans; then the database is asked what it has of it."""
    world = place.ask("m['idle_world']()", seconds=600)
    with place.up() as programs:
        computing = {program.log.stem: program.pid for program in programs} | {name: program.pid for name, program in servers.items()}
        warm_up(place, world["tokens"][0])
        stop = threading.Event()
        senders = [Sender(place, world["tokens"][0], f"client-{number}", batch, stop) for number in range(CLIENTS)]
        before = {name: family_cpu_seconds(pid) for name, pid in computing.items()}
        began, ours = time.perf_counter(), time.process_time()
        for sender in senders:
            sender.start()
        stop.wait(seconds)
        stop.set()
        for sender in senders:
            sender.join()
        elapsed = time.perf_counter() - began
        cpu = {name: family_cpu_seconds(pid) - before[name] for name, pid in computing.items()} | {"clients": time.process_time() - ours}
    told = {name: key for sender in senders for name, key in sender.jobs.items()}
    with psycopg.connect(place.settings["GPUFLEET_DATABASE_URL"]) as connection:
        there = connection.execute("SELECT name, public_id FROM job WHERE name LIKE 'client-%'").fetchall()
    return {
        **timing(case, [[took for sender in senders for took in sender.took]]),
        "jobs": len(told),
        "jobs_per_s": round(len(told) / elapsed, 1),
        "seconds": round(elapsed, 1),
        "errors": sum(len(sender.errors) for sender in senders),
        "first_error": next((fault for sender in senders for fault in sender.errors), None),
        "answers_changed": sum(sender.changed for sender in senders),
        "lost": len(set(told.items()) - set(there)),
        "doubled": len(there) - len({name for name, _ in there}),
        "cpu_ms_per_job": {name: round(1000 * value / max(1, len(told)), 2) for name, value in cpu.items()},
    }


def warm_up(place: Installation, token: str) -> None:
    """Let every web process load what it needs: some requests of each of several clients, whose jobs are not counted."""
    stop = threading.Event()
    threads = [Sender(place, token, f"warm-{number}", 1, stop) for number in range(CLIENTS)]
    for thread in threads:
        thread.start()
    stop.wait(WARM_UP_SECONDS)
    stop.set()
    for thread in threads:
        thread.join()


def measure_lists(place: Installation, wanted: Callable[[str], bool], jobs: int) -> Iterator[dict[str, Any]]:
    """Lists of the API and the page of jobs, over a database that months of work have filled."""
    began = time.perf_counter()
    world = place.ask(f"m['many_jobs']({jobs})", seconds=1800, module="lists")
    filled = round(time.perf_counter() - began, 1)
    cases = {name: path for name, path in {**LISTS, **PAGES}.items() if wanted(name)}
    asked = place.ask(f"m['queries']({list(cases.values())!r}, {world['tokens'][0]!r})", seconds=600, module="lists")
    with place.web() as program:
        browser = Browser(place.origin)
        browser.session.headers.update(PROXIED)
        api = place.session(world["tokens"][0])
        browser.session.cookies.set("sessionid", place.ask("m['signed_in']()", module="lists"))
        for case, path in cases.items():
            browser.session.headers.update({"Authorization": str(api.headers["Authorization"])} if path.startswith("/api/") else {})
            if not path.startswith("/api/"):
                browser.session.headers.pop("Authorization", None)
            yield {**measured(browser, program, case, path), "jobs": world["jobs"], "filled_s": filled, **asked[path]}


def measured(browser: Browser, program: Program, case: str, path: str) -> dict[str, Any]:
    for _ in range(WARM_UP):
        browser.seconds_for(path)
    before = family_cpu_seconds(program.pid)
    took = [browser.seconds_for(path) for _ in range(REQUESTS)]
    cpu = family_cpu_seconds(program.pid) - before
    more = {"requests": REQUESTS, "kilobytes": round(browser.last_size / 1000, 1), "web_cpu_ms": round(1000 * cpu / REQUESTS, 1)}
    return timing(case, [took], p99_ms=round(percentile(took, 0.99) * 1000, 1), **more)


def run(wanted: Callable[[str], bool], *, seconds: float, jobs: int) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    servers: list[Postgres | Redis] = []
    limits = {"GPUFLEET_API_REQUESTS_PER_MINUTE": "1000000"}
    try:
        postgres, redis = Postgres(), Redis()
        servers += [postgres, redis]
        for case, batch in (("batches", BATCH), ("singles", 1)):
            if wanted(case):
                place = Installation(folder / case, postgres, redis, **limits)
                programs = {"postgres": postgres.program, "redis": redis.program}
                yield measure_submissions(place, programs, case, batch=batch, seconds=seconds)
        if any(wanted(case) for case in {**LISTS, **PAGES}):
            yield from measure_lists(Installation(folder / "lists", postgres, redis, **limits), wanted, jobs)
    except Missing as missing:
        print(f"left out: {missing}", file=sys.stderr)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench api", description="Measure submissions and lists of jobs on PostgreSQL.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"measure this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of submitting (default: 30)")
    parser.add_argument("--jobs", type=int, default=JOBS, help="in the database while lists are measured (default: 100,000)")
    given = parser.parse_args(arguments)
    known = ("batches", "singles", *LISTS, *PAGES)

    def wanted(case: str) -> bool:
        return not given.case or any(case.startswith(name) for name in given.case)

    if not any(wanted(case) for case in known):
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    cases = []
    for case in run(wanted, seconds=given.seconds, jobs=given.jobs):
        cases.append(case)
        if not given.json:
            show([case], as_json=False)
            sys.stdout.flush()
    if given.json:
        show(cases, as_json=True)
    return 0
