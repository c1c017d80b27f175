"""`gpufleet bench loop`: the scheduler's loop with 500 nodes, 1,000 running and 5,000 waiting jobs, on SQLite and on PostgreSQL with Redis.

Ticks are measured inside a process of their own; submissions, live pages, the idle console and the replay from outside, over HTTP, against whole
consoles. Every case makes its own world in a temporary folder, so that nothing of this machine's installation is touched.
"""

import argparse
import contextlib
import json
import shutil
import signal
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
from gpufleet.bench.browsers import Browser, ListPage, family_cpu_seconds, processor_use
from gpufleet.throwaway import Manage, Missing, Postgres, Program, Redis, free_port, wait_until

CASES = (
    "tick-sqlite",
    "tick-postgres",
    "drains-sqlite",
    "drains-postgres",
    "submit-sqlite",
    "submit-postgres",
    "live",
    "idle",
    "replay",
    "replay-protected",
)
RUNS, TICKS = 3, 25
DRAINS = (0, 100, 400)
SUBMITS, PREEMPTIONS, WATCHED = 60, 15, 30
GRACE_S = 5
IDLE_SECONDS = 60
PROXIED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
# As compose.yaml starts them, with fewer processes, as the machine is smaller.
CELERY = {
    "worker": ["worker", "--queues", "default", "--concurrency", "2", "--hostname", "worker@%h"],
    "scheduler": ["worker", "--queues", "scheduler", "--pool", "threads", "--concurrency", "2", "--hostname", "scheduler@%h"],
    "beat": ["beat", "--pidfile", ""],
}
# The replay: for each of 30 queues (count, GPUs, every so many seconds, running so long, priority).
SHAPES = {"small": (350, 1, 0.1, 0.2, 50), "medium": (100, 5, 0.5, 0.5, 100), "large": (50, 20, 1.2, 1.0, 200)}
QUEUES = [f"org/group-{number % 5}/queue-{number}" for number in range(30)]
REPLAY_LIMIT_S = 900
# As shipped. A shorter one protects nobody on a busy machine, where a job of a second is on the books until a tick has seen its end.
PROTECTED_S = 300
UNLIMITED = {"GPUFLEET_SUBMITS_PER_MINUTE": "0", "GPUFLEET_WAITING_LIMIT": "0"}


class Installation:
    """A console over a temporary folder: on SQLite in one process, or as production on PostgreSQL and Redis in several."""

    def __init__(self, folder: Path, postgres: Postgres | None = None, redis: Redis | None = None, **settings: str) -> None:
        self.settings = {"GPUFLEET_LOG_LEVEL": "error", "GPUFLEET_STARTS_PER_S": "10000", **UNLIMITED, **settings}
        self.is_production = postgres is not None and redis is not None
        self.folder = folder
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        if postgres is not None and redis is not None:
            redis.empty()
            self.settings |= {
                "GPUFLEET_PROFILE": "production",
                "GPUFLEET_SECRET_KEY": "only-for-measuring-" * 4,
                "GPUFLEET_DATABASE_URL": postgres.create_database(),
                "GPUFLEET_REDIS_URL": redis.url(),
                "GPUFLEET_TRUSTED_PROXIES": "1",
                "GPUFLEET_PUBLIC_URL": "https://127.0.0.1",
                "GPUFLEET_ALLOWED_HOSTS": "127.0.0.1",
            }
        self.manage = Manage(folder, **self.settings)
        self.manage.run("migrate", "--verbosity", "0", seconds=600)

    def ask(self, call: str, *, seconds: float = 900, module: str = "loop") -> Any:
        """The answer of a function of `scheduler.benchmarks.loop`, or of another module there."""
        code = f"from scheduler.benchmarks.{module} import MEASURES as m; {call}"
        done = self.manage.run("shell", "--verbosity", "0", "-c", code, seconds=seconds)
        return json.loads(done.stdout.strip().splitlines()[-1])

    @contextlib.contextmanager
    def up(self) -> Iterator[list[Program]]:
        """The running console: its programs, the one that answers first."""
        programs: list[Program] = []
        try:
            if self.is_production:
                programs.append(self._web_started())
                for name, words in CELERY.items():
                    programs.append(self.manage.start("-m", "celery", "--app", "gpufleet.celery", *words, "--loglevel", "WARNING", name=name))
            else:
                programs.append(self.manage.start("manage.py", "up", "--port", str(self.port), "--demo", "none", name="up"))
            browser = Browser(self.origin)
            programs[0].wait_for(browser.is_answered, seconds=120, what="the console to answer")
            yield programs
        finally:
            for program in reversed(programs):
                program.stop(signal.SIGTERM)

    @contextlib.contextmanager
    def web(self) -> Iterator[Program]:
        """The web server alone: what a page costs when nothing else happens."""
        program = self._web_started()
        try:
            program.wait_for(Browser(self.origin).is_answered, seconds=60, what="the web server to answer")
            yield program
        finally:
            program.stop(signal.SIGTERM)

    def _web_started(self) -> Program:
        options = ["--port", str(self.port), "--workers", "2", "--lifespan", "off", "--no-access-log", "--ws-per-message-deflate", "false"]
        return self.manage.start("-m", "uvicorn", "gpufleet.asgi:application", *options, name="web")

    def session(self, token: str) -> requests.Session:
        session = requests.Session()
        session.trust_env = False
        session.headers.update({"Authorization": f"Bearer {token}", **(PROXIED if self.is_production else {})})
        return session

    def submit(self, session: requests.Session, description: dict[str, Any]) -> tuple[str, float, float]:
        """The id of a submitted job, when it was asked for, and how long the answer took."""
        began = time.time()
        answer = session.post(f"{self.origin}/api/v1/jobs", json=description, timeout=60)
        took = time.time() - began
        answer.raise_for_status()
        return answer.json()["jobs"][0]["id"], began, took


def inference(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"replica-{number}",
        "quota": f"org/team-{number % 10}",
        "class": "inference",
        "gpus": 1,
        "work_s": 3,
        "grace_s": GRACE_S,
        "launch": {"simulated": {"load_s": 1}},
        **fields,
    }


def measure_ticks(place: Installation, case: str) -> dict[str, Any]:
    place.ask("m['steady']()", seconds=1800)
    told = place.ask(f"m['ticks']({RUNS}, {TICKS})", seconds=1800)
    cpu = [value for run in told["cpu_runs"] for value in run]
    more = {"ticks": TICKS, "decided": told["decided"], "cpu_p95_ms": round(percentile(cpu, 0.95) * 1000, 1), "phases_median_ms": told["phases"]}
    return timing(case, told["runs"], **more)


def measure_drains(place: Installation, case: str) -> Iterator[dict[str, Any]]:
    """What a tick computes while more and more nodes drain with a deadline, and when all their jobs have to leave at once."""
    place.ask("m['steady']()", seconds=1800)
    told = place.ask(f"m['drains']({DRAINS}, {TICKS})", seconds=1800)
    for count, computed in told["computed"].items():
        yield timing(f"{case}-{count}", [computed], draining=int(count))
    yield {"case": f"{case}-due", "cpu_ms": round(1000 * told["due_s"], 1), "jobs_asked_to_leave": told["leaving"]}


def measure_submits(place: Installation, case: str) -> Iterator[dict[str, Any]]:
    """Onto capacity that is free, and onto a full fleet where somebody must give way."""
    world = place.ask("m['steady']()", seconds=1800)
    with place.up():
        session = place.session(world["tokens"][0])
        settle(place, session)
        asked: dict[str, float] = {}
        answers = []
        for number in range(SUBMITS):
            name, began, took = place.submit(session, inference(number, gpu_types=["A100-SXM-80GB"]))
            asked[name] = began
            answers.append(took)
            time.sleep(0.25)
        time.sleep(5)
        told = place.ask(f"m['told']({list(asked)!r})")
        sent = [told[name]["sent"] - began for name, began in asked.items() if told[name]["sent"]]
        yield {
            **timing(case, [sent or [float("inf")]], jobs=len(asked), not_started=len(asked) - len(sent)),
            "p99_ms": round(percentile(sent, 0.99) * 1000, 1) if sent else None,
            "answer_p99_ms": round(percentile(answers, 0.99) * 1000, 1),
        }
        asked = {}
        for number in range(PREEMPTIONS):
            # As large as those that run, so that each needs a victim of its own.
            name, began, _ = place.submit(session, inference(number, gpus=4, gpu_types=["H100-SXM-80GB"], priority=90, work_s=600))
            asked[name] = began
            time.sleep(1)
        time.sleep(GRACE_S + 8)
        told = place.ask(f"m['told']({list(asked)!r})")
        signalled = [min(told[name]["victims"]) - began for name, began in asked.items() if told[name]["victims"]]
        running = [told[name]["running"] - began for name, began in asked.items() if told[name]["running"]]
        yield {
            **timing(f"{case}-full", [signalled or [float("inf")]], jobs=len(asked), without_victim=len(asked) - len(signalled)),
            "p99_ms": round(percentile(signalled, 0.99) * 1000, 1) if signalled else None,
            "running_after_p99_s": round(percentile(running, 0.99), 2) if running else None,
            "grace_s": GRACE_S,
            "not_running": len(asked) - len(running),
        }


def settle(place: Installation, session: requests.Session) -> None:
    """Let the first plan of a fresh process, which remembers nothing yet, go by."""

    def has_seen_everything() -> bool:
        state = session.get(f"{place.origin}/api/v1/scheduler", timeout=60).json()
        return bool(state["epoch"] > first + 2 and state["unseen"] == 0)

    first = session.get(f"{place.origin}/api/v1/scheduler", timeout=60).json()["epoch"]
    wait_until(has_seen_everything, seconds=180, what="the first plans")


def measure_live(place: Installation) -> dict[str, Any]:
    """From a decision's commit to a page that shows the job's new state: a message over the socket, and the rows that it makes a page ask for."""
    world = place.ask("m['steady']()", seconds=1800)
    with place.up():
        browser = Browser(place.origin)
        browser.sign_in("root")
        session = place.session(world["tokens"][0])
        settle(place, session)
        page = ListPage(browser)
        stop = threading.Event()
        watcher = threading.Thread(target=page.follow, args=(stop,))
        watcher.start()
        time.sleep(1)
        names = []
        for number in range(WATCHED):
            name, _, _ = place.submit(session, inference(number, gpu_types=["A100-SXM-80GB"], work_s=20))
            names.append(name)
            time.sleep(1)
        time.sleep(5)
        stop.set()
        watcher.join()
        told = place.ask(f"m['told']({names!r})")
    ways = [page.way_of(name, told[name]["committed"]) for name in names if name in page.shown and told[name]["committed"]]
    spent = {part: [way[part] for way in ways] for part in ListPage.PARTS} if ways else {}
    parts = {part: {"median": round(percentile(spent[part], 0.5) * 1000), "p95": round(percentile(spent[part], 0.95) * 1000)} for part in spent}
    waits = [sum(way.values()) for way in ways]
    return timing("live", [waits or [float("inf")]], jobs=len(names), never_shown=len(names) - len(waits), parts_ms=parts)


def measure_idle(place: Installation) -> dict[str, Any]:
    """What the whole program costs when nothing happens: 500 nodes, no jobs."""
    world = place.ask("m['idle_world']()", seconds=600)
    with place.up() as programs:
        settle(place, place.session(world["tokens"][0]))
        with contextlib.ExitStack() as stack:
            used = [stack.enter_context(processor_use(program.pid)) for program in programs]
            time.sleep(IDLE_SECONDS)
    return {"case": "idle", "cpu_percent": round(sum(one["percent"] for one in used), 2), "seconds": IDLE_SECONDS, "runs": 1}


def arrivals(part: float = 1.0) -> list[tuple[float, dict[str, Any]]]:
    """The jobs of the replay with the second at which each is due, in order: all, or the first part of each size and queue."""
    found = []
    for size, (count, gpus, every, length, priority) in SHAPES.items():
        for queue, path in enumerate(QUEUES):
            for number in range(round(part * count)):
                shape = {"gpus": 1, "workers": gpus} if gpus > 8 else {"gpus": gpus}
                description = {
                    "name": f"{size}-{queue}-{number}",
                    "quota": path,
                    "priority": priority,
                    "work_s": length,
                    "grace_s": 0,
                    "launch": {"simulated": {"load_s": 0}},
                    **shape,
                }
                found.append((number * every, description))
    return sorted(found, key=lambda one: (one[0], one[1]["name"]))


def measure_replay(place: Installation, postgres: Postgres, case: str, *, part: float = 1.0) -> dict[str, Any]:
    """The public admission test through API, database and loop in real time: what is due is submitted in batches, and lateness is told."""
    world = place.ask("m['replay_world']()", seconds=600)
    due = arrivals(part)
    with place.up() as programs:
        session = place.session(world["tokens"][0])
        time.sleep(5)
        computing = {program.log.stem: program.pid for program in programs} | {"postgres": postgres.program.pid}
        before = {name: family_cpu_seconds(pid) for name, pid in computing.items()}
        began, place_in, late = time.time(), 0, 0.0
        while place_in < len(due):
            elapsed = time.time() - began
            batch = [one for one in due[place_in : place_in + 500] if one[0] <= elapsed]
            if not batch:
                time.sleep(0.02)
                continue
            late = max(late, elapsed - batch[0][0])
            body = {"jobs": [{"key": description["name"], "description": description} for _, description in batch]}
            answer = session.post(f"{place.origin}/api/v1/submissions", json=body, timeout=300)
            answer.raise_for_status()
            refused = [verdict for verdict in answer.json()["verdicts"] if verdict["errors"]]
            if refused:
                raise RuntimeError(f"{len(refused)} submissions were refused: {refused[0]['errors']}")
            place_in += len(batch)
        submitted = time.time() - began
        limit = time.time() + REPLAY_LIMIT_S
        # Asked of the database itself: a console that is asked has that much less time for the jobs.
        with psycopg.connect(place.settings["GPUFLEET_DATABASE_URL"], autocommit=True) as connection:
            while time.time() < limit and connection.execute("SELECT count(*) FROM job WHERE ended_at IS NULL").fetchone() != (0,):
                time.sleep(1)
        computed = {name: round(family_cpu_seconds(pid) - before[name], 1) for name, pid in computing.items()}
        figures = place.ask("m['replay_figures']()")
    return {
        "case": case,
        "submitted_s": round(submitted, 1),
        "late_s": round(late, 1),
        "runs": 1,
        "cpu_s": computed,
        "cpu_ms_per_job": round(1000 * sum(computed.values()) / len(due), 1),
        **figures,
    }


def measure_replays(folder: Path, postgres: Postgres, redis: Redis, wanted: Callable[[str], bool], *, part: float) -> Iterator[dict[str, Any]]:
    """The replay with nobody protected, and with a minimum run time: how many evictions that spares."""
    evictions = None
    for case, seconds in (("replay", 0), ("replay-protected", PROTECTED_S)):
        if wanted(case):
            place = Installation(folder / case, postgres, redis, GPUFLEET_MIN_RUNTIME_S=str(seconds))
            found = {"min_runtime_s": seconds, **measure_replay(place, postgres, case, part=part)}
            if evictions is not None:
                found["evictions_unprotected"] = evictions
            evictions = found["evictions"]
            yield found


def run(wanted: Callable[[str], bool], *, part: float) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    servers: list[Postgres | Redis] = []
    try:
        if wanted("tick-sqlite"):
            yield measure_ticks(Installation(folder / "tick-sqlite"), "tick-sqlite")
        if wanted("drains-sqlite"):
            yield from measure_drains(Installation(folder / "drains-sqlite"), "drains-sqlite")
        if wanted("submit-sqlite"):
            yield from measure_submits(Installation(folder / "submit-sqlite"), "submit-sqlite")
        if wanted("live"):
            yield measure_live(Installation(folder / "live"))
        if wanted("idle"):
            yield measure_idle(Installation(folder / "idle"))
        if any(wanted(case) for case in ("tick-postgres", "drains-postgres", "submit-postgres", "replay", "replay-protected")):
            postgres, redis = Postgres(), Redis()
            servers += [postgres, redis]
            if wanted("tick-postgres"):
                yield measure_ticks(Installation(folder / "tick-postgres", postgres, redis), "tick-postgres")
            if wanted("drains-postgres"):
                yield from measure_drains(Installation(folder / "drains-postgres", postgres, redis), "drains-postgres")
            if wanted("submit-postgres"):
                yield from measure_submits(Installation(folder / "submit-postgres", postgres, redis), "submit-postgres")
            yield from measure_replays(folder, postgres, redis, wanted, part=part)
    except Missing as missing:
        print(f"left out: {missing}", file=sys.stderr)
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gpufleet bench loop", description="Measure the scheduler's loop with 500 nodes, 1,000 running and 5,000 waiting jobs."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"measure this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
    parser.add_argument("--part", type=float, default=1.0, help="of the replay's jobs (default: 1, all 15,000)")
    given = parser.parse_args(arguments)

    def wanted(case: str) -> bool:
        return not given.case or any(case.startswith(name) for name in given.case)

    if not any(wanted(case) for case in CASES):
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    cases = []
    for case in run(wanted, part=given.part):
        cases.append(case)
        if not given.json:
            show([case], as_json=False)
            sys.stdout.flush()
    if given.json:
        show(cases, as_json=True)
    return 0
