"""`gpufleet bench slurm`: jobs through a whole console to a real Slurm of simulated nodes, and the same jobs by plain `sbatch`, side by side.

Controller, nodes' daemons and processes are real; only the GPUs are not. A job writes down itself when its process began and ended, so both ways
are measured alike: from when it was due to be asked for (over HTTP, or by `sbatch`) to the process. Everything lies in temporary folders.
"""

import argparse
import grp
import os
import pwd
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import requests

from gpufleet.bench import percentile, show
from gpufleet.bench.browsers import family_cpu_seconds
from gpufleet.bench.loop import Installation, settle
from gpufleet.throwaway import Missing, Postgres, Redis
from gpufleet.throwaway_slurm import Slurm, missing

CASES = ("starts", "mix")
NODES, GPUS = 64, 8
RATE, SECONDS = 50.0, 60.0
MIX_JOBS = 300
WINDOW_S = 10.0
SUBMITTERS = 4
LIMIT_S = 900
CAUSES = 3  # that are told of attempts that did not complete
BATCH_S = 0.25  # between requests: the API takes only so many a minute of one caller
TEAM = "org/team"
MEMORY, ROOM_BYTES = Path("/dev/shm"), 2**30  # noqa: S108 - a folder of its own is made there
# Shares of the mix by (workers, GPUs of each): singles, parts of a node, and gangs.
SHAPES = {(1, 1): 55, (1, 2): 10, (1, 4): 10, (1, 8): 15, (2, 8): 5, (4, 8): 3, (8, 8): 2}
# What a job runs: its first process says when it began and ended, in seconds since the machine was started. `date` would cost its node a millisecond.
SAY = "read now _ < /proc/uptime; echo $now"
COMMAND = f'if [ "${{RANK:-0}}" = 0 ]; then {SAY}; fi; sleep RUN; if [ "${{RANK:-0}}" = 0 ]; then {SAY}; fi'
AT_ONCE = f"{SAY} $now"  # one that is over at once


@dataclass(frozen=True, slots=True)
class Wish:
    name: str
    due_s: float
    workers: int = 1
    gpus: int = 1
    run_s: float = 0.0

    @property
    def command(self) -> str:
        return COMMAND.replace("RUN", f"{self.run_s:g}") if self.run_s else AT_ONCE

    @property
    def description(self) -> dict[str, Any]:
        shape = {"workers": self.workers} if self.workers > 1 else {}
        fields = {"name": self.name, "quota": TEAM, "gpus": self.gpus, "work_s": max(1, round(self.run_s)), "grace_s": 1}
        return {**fields, **shape, "limit_s": 120, "launch": {"shell": self.command}}


def steady(rate: float, seconds: float) -> list[Wish]:
    """Fair weather: one GPU each, over at once, at an even pace."""
    return [Wish(f"start-{number}", number / rate) for number in range(round(rate * seconds))]


def mixed(count: int) -> list[Wish]:
    """Single GPUs up to gangs of eight nodes, of 2 to 10 s, all asked for at once."""
    rng = random.Random(22)  # noqa: S311
    shapes = rng.choices(list(SHAPES), list(SHAPES.values()), k=count)
    return [Wish(f"mix-{number}", 0.0, workers, gpus, round(rng.uniform(2, 10), 1)) for number, (workers, gpus) in enumerate(shapes)]


@dataclass(frozen=True, slots=True)
class Life:
    """Of one job: when it was due to be asked for, and when its first process began and ended."""

    wish: Wish
    asked: float
    began: float | None
    ended: float | None


def figures(case: str, lives: Sequence[Life], *, gpus: int, **more: Any) -> dict[str, Any]:
    """Starts a second, waits, and the part of the GPUs that was used between the first job and the last end."""
    ran = [life for life in lives if life.began is not None]
    begins = sorted(life.began for life in ran if life.began is not None)
    waits = [life.began - life.asked for life in ran if life.began is not None]
    ends = [life.ended for life in ran if life.ended is not None]
    first, whole = min(life.asked for life in lives), (max(ends) if ends else 0) - min(life.asked for life in lives)
    used = sum(life.wish.workers * life.wish.gpus * (life.ended - life.began) for life in ran if life.began and life.ended)
    found: dict[str, Any] = {"case": case, "jobs": len(lives), "not_run": len(lives) - len(ends), "runs": 1}
    if not waits or not ends:
        return {**found, **more}
    span = max(begins) - first
    return {
        **found,
        "starts_per_s": round(len(begins) / span, 1),
        "worst_10_s_per_s": slowest(begins, first, max(life.asked for life in lives)),
        "seconds": round(whole, 1),
        "wait_p50_s": round(percentile(waits, 0.5), 2),
        "wait_p95_s": round(percentile(waits, 0.95), 2),
        "wait_p99_s": round(percentile(waits, 0.99), 2),
        "utilization_percent": round(100 * used / (gpus * whole), 1),
        **more,
    }


def slowest(begins: Sequence[float], first: float, last: float) -> float | None:
    """Starts a second of the slowest ten seconds while jobs were asked for; nothing where that was less."""
    edges = [first + WINDOW_S * number for number in range(int((last - first + 0.5) // WINDOW_S))]
    counts = [sum(edge <= begun < edge + WINDOW_S for begun in begins) for edge in edges]
    return min(counts) / WINDOW_S if counts else None


def booted_at() -> float:
    """When jobs began to count seconds."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


def life_of(wish: Wish, asked: float, log: Path, booted: float) -> Life:
    try:
        began, *ended = [booted + float(word) for word in log.read_text().split()]
    except (OSError, ValueError):
        return Life(wish, asked, None, None)
    return Life(wish, asked, began, ended[0] if ended else None)


def in_memory() -> Path | None:
    """A folder in memory in which programs may run: a controller writes two files a job and waits until they are on the disk."""
    try:
        has = os.statvfs(MEMORY)
    except OSError:
        return None
    is_fit = os.access(MEMORY, os.W_OK) and not has.f_flag & os.ST_NOEXEC and has.f_bavail * has.f_frsize >= ROOM_BYTES
    return MEMORY if is_fit else None


class Site:
    """A Slurm of simulated nodes with a folder that its jobs write to."""

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        self.slurm = Slurm(nodes=nodes, gpus=GPUS, leaf=8, tracking="pgid", place=in_memory(), more="MinJobAge=10\n")
        self.user = "nobody" if os.getuid() == 0 else ""
        self.folder, self.plain = self.slurm.dir / "shared", self.slurm.dir / "plain"
        for folder in (self.folder, self.plain):
            folder.mkdir()
            if self.user:
                os.chown(folder, *pwd.getpwnam(self.user)[2:4])
        os.chown(self.folder, os.getuid(), os.getgid())

    @property
    def load(self) -> float:
        return round(os.getloadavg()[0], 1)

    @property
    def controller(self) -> int:
        return int((self.slurm.dir / "run/slurmctld.pid").read_text())

    def connect(self, place: Installation) -> None:
        user = ["--user", self.user] if self.user else []
        place.manage.run("inventory", "connect-slurm", "--cluster", "hpc", "--conf", str(self.slurm.conf), "--folder", str(self.folder), *user)
        place.manage.run("inventory", "slurm", "--cluster", "hpc", "--gpu-type", "h100=H100-SXM-80GB:81559", "--apply")

    def submit(self, wish: Wish) -> None:
        """By plain `sbatch`, with what the console asks for too."""
        gang = ["--ntasks-per-node=1"] if wish.workers > 1 else []
        group = grp.getgrgid(pwd.getpwnam(self.user).pw_gid).gr_name if self.user else ""
        user = [f"--uid={self.user}", f"--gid={group}"] if self.user else []
        run = f"srun sh -c {_quoted(wish.command.replace('RANK', 'SLURM_PROCID'))}" if wish.workers > 1 else wish.command
        subprocess.run(
            [
                "sbatch", "--parsable", f"--nodes={wish.workers}", *gang, f"--gres=gpu:{wish.gpus}", "--cpus-per-task=1", "--time=0:02:00",
                "--no-requeue", "--chdir=/", f"--output={self.plain}/{wish.name}.log", f"--job-name={wish.name}", *user,
            ],
            input=f"#!/bin/bash\n{run}\n",
            env=self.slurm.env, capture_output=True, text=True, timeout=60, check=True,
        )  # fmt: skip

    def quiet(self) -> bool:
        return not self.slurm.sh("squeue", "-h", "-o", "%i")

    def wait_for_quiet(self, seconds: float) -> None:
        limit = time.time() + seconds
        while time.time() < limit and not self.quiet():
            time.sleep(0.5)


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@contextmanager
def computing(pids: Mapping[str, int]) -> Iterator[dict[str, float]]:
    """Processor seconds of programs with all that they have started, and of the whole machine: what is left of that are nodes and their jobs."""
    used: dict[str, float] = {}
    before, machine = {name: family_cpu_seconds(pid) for name, pid in pids.items()}, machine_cpu_seconds()
    yield used
    used |= {name: round(family_cpu_seconds(pid) - before[name], 1) for name, pid in pids.items()}
    used["machine"] = round(machine_cpu_seconds() - machine, 1)


def machine_cpu_seconds() -> float:
    """All that was computed on this machine, by whomever."""
    user, nice, system, _, _, *more = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:])
    return (user + nice + system + sum(more[:2])) / os.sysconf("SC_CLK_TCK")


def by_console(site: Site, place: Installation, servers: Mapping[str, int], wishes: Sequence[Wish], case: str) -> dict[str, Any]:
    site.connect(place)
    secrets = place.ask("m['world']()", module="slurm")["tokens"]
    with place.up() as programs:
        session = place.session(secrets[0])
        settle(place, session)
        with computing({**{program.log.stem: program.pid for program in programs}, **servers, "slurmctld": site.controller}) as cpu:
            began = time.time()
            ask_for(wishes, session, place.origin)
            limit = time.time() + LIMIT_S
            with psycopg.connect(place.settings["GPUFLEET_DATABASE_URL"], autocommit=True) as connection:
                while time.time() < limit and connection.execute("SELECT count(*) FROM job WHERE ended_at IS NULL").fetchone() != (0,):
                    time.sleep(1)
        load = site.load
    told = place.ask("m['attempts']()", module="slurm")
    keys = {row["name"]: row["key"] for row in told}
    (top,) = site.folder.glob("gpufleet-*")
    logs, booted = top / "runs", booted_at()
    lives = [life_of(wish, began + wish.due_s, logs / keys.get(wish.name, "none") / "worker-0.log", booted) for wish in wishes]
    outcomes = dict(Counter(row["outcome"] for row in told))
    causes = [row["cause"] for row in told if row["outcome"] != "completed"][:CAUSES]
    more = {"causes": causes} if causes else {}
    return figures(case, lives, gpus=site.nodes * GPUS, outcomes=outcomes, **more, cpu_s=cpu, load=load)


def ask_for(wishes: Sequence[Wish], session: requests.Session, origin: str) -> None:
    """Each batch of jobs that is due is submitted with one request, as the API's clients do."""
    began, sent = time.time(), 0
    while sent < len(wishes):
        batch = [wish for wish in wishes[sent:][:500] if wish.due_s <= time.time() - began]
        if not batch:
            time.sleep(0.02)
            continue
        body: Any = {"jobs": [{"key": wish.name, "description": wish.description} for wish in batch]}
        answer = session.post(f"{origin}/api/v1/submissions", json=body, timeout=300)
        answer.raise_for_status()
        refused = [verdict["errors"] for verdict in answer.json()["verdicts"] if verdict["errors"]]
        if refused:
            raise RuntimeError(f"{len(refused)} submissions were refused: {refused[0]}")
        sent += len(batch)
        time.sleep(BATCH_S)


def by_sbatch(site: Site, wishes: Sequence[Wish], case: str) -> dict[str, Any]:
    """The same jobs at the same pace, by several who submit at once; Slurm's own backfill decides."""
    began = time.time()

    def submit(wish: Wish) -> None:
        time.sleep(max(0.0, began + wish.due_s - time.time()))
        site.submit(wish)

    with ThreadPoolExecutor(SUBMITTERS) as pool, computing({"slurmctld": site.controller}) as cpu:
        list(pool.map(submit, wishes))
        site.wait_for_quiet(LIMIT_S)
    booted = booted_at()
    lives = [life_of(wish, began + wish.due_s, site.plain / f"{wish.name}.log", booted) for wish in wishes]
    return figures(case, lives, gpus=site.nodes * GPUS, cpu_s=cpu, load=site.load)


def run(wanted: Callable[[str], bool], *, nodes: int, rate: float, seconds: float, jobs: int) -> Iterator[dict[str, Any]]:
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-bench-"))
    servers: list[Postgres | Redis] = []
    try:
        postgres, redis = Postgres(), Redis()
        servers += [postgres, redis]
        for case, wishes in (("starts", steady(rate, seconds)), ("mix", mixed(jobs))):
            if not wanted(case):
                continue
            site = Site(nodes)
            try:
                place = Installation(folder / case, postgres, redis)
                yield by_console(site, place, {"postgres": postgres.program.pid, "redis": redis.program.pid}, wishes, case)
                site.wait_for_quiet(60)
                yield by_sbatch(site, wishes, f"{case}-sbatch")
            finally:
                site.slurm.stop()
    finally:
        for server in servers:
            server.stop()
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="gpufleet bench slurm", description="Measure starts through gpufleet on a real Slurm of simulated nodes, and the same by plain sbatch."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--case", action="append", help=f"measure this case only (may be repeated; a beginning is enough): {', '.join(CASES)}")
    parser.add_argument("--nodes", type=int, default=NODES, help=f"simulated nodes of {GPUS} GPUs (default: {NODES})")
    parser.add_argument("--rate", type=float, default=RATE, help=f"jobs a second of the case starts (default: {RATE:g})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"how long the case starts submits (default: {SECONDS:g})")
    parser.add_argument("--jobs", type=int, default=MIX_JOBS, help=f"jobs of the case mix (default: {MIX_JOBS})")
    given = parser.parse_args(arguments)

    def wanted(case: str) -> bool:
        return not given.case or any(case.startswith(name) for name in given.case)

    if not any(wanted(case) for case in CASES):
        print(f"There is no case that begins with {' or '.join(given.case)}.", file=sys.stderr)
        return 2
    if package := missing():
        print(f"Slurm is not installed (Debian package {package}).", file=sys.stderr)
        return 2
    cases = []
    try:
        for case in run(wanted, nodes=given.nodes, rate=given.rate, seconds=given.seconds, jobs=given.jobs):
            cases.append(case)
            if not given.json:
                show([case], as_json=False)
                sys.stdout.flush()
    except Missing as fault:
        print(fault, file=sys.stderr)
        return 2
    if given.json:
        show(cases, as_json=True)
    return 0
