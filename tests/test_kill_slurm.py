"""kill -9 of Slurm's controller and node daemons, and of the console's processes and its database, under load: what was promised still holds.

TEST_KILLS=200 python -m pytest -m soak tests/test_kill_slurm.py
"""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, product
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from scheduler.backends.slurm.outcomes import exit_name
from scheduler.backends.slurm.printed import hostlist, indices
from tests.servers import Missing, Postgres, Prepared, Redis, required, wait_until
from tests.slurm import Slurm, missing
from tests.test_kill_loop import DOUBLE, PARTIAL, Served
from tests.test_production import PROXIED

pytestmark = [pytest.mark.soak, pytest.mark.postgres, pytest.mark.redis, pytest.mark.slurm, pytest.mark.xdist_group("production")]
KILLS = int(os.environ.get("TEST_KILLS", "20"))
NODES = 8
AWAY_S = 60.0
VICTIMS = ("slurmctld", "slurmd", "scheduler", "worker", "web", "postgres")
AT_ONCE = 10  # jobs that wait or run
# The last is a gang of unequal nodes: two jobs of Slurm, which begins each by itself.
UNEQUAL = {"roles": [{"name": "head", "min": 1, "gpus": 4}, {"name": "worker", "min": 2, "gpus": 8}]}
SHAPES = ({"gpus": 1}, {"gpus": 4}, {"gpus": 8, "workers": 2}, {"gpus": 8, "workers": 3}, UNEQUAL)
WITHIN_S = 1.0
# By attempt the seconds for which its first worker is charged, when it ended and when it came up, how and why it ended.
LEDGER = """
    SELECT 'gpufleet-' || job.public_id || '.' || number, coalesce(extract(epoch FROM sum(until - since)), 0)::float,
        coalesce(extract(epoch FROM attempt.ended_at), 0)::float, coalesce(extract(epoch FROM attempt.running_at), 0)::float, outcome, cause
    FROM attempt JOIN job ON job.id = attempt.job_id
    LEFT JOIN ledger_entry ON ledger_entry.attempt = attempt.id AND worker = 0 AND phase <> 'starting'
        AND role = (SELECT min(role) FROM ledger_entry own WHERE own.attempt = attempt.id)
    GROUP BY job.public_id, number, attempt.ended_at, attempt.running_at, outcome, cause
"""
RUNS = "SELECT 'gpufleet-' || attempt_key, state FROM slurm_run"
ACCOUNTS = "JobName,State,ElapsedRaw,JobID,Start,End"
# What is kept of a run that failed. The newest lines of programs of the console are in the folder of the test already.
TABLES = ("job", "attempt", "placement", "ledger_entry", "capacity_entry", "job_event", "backend_order", "slurm_run")
WORLD = "from scheduler.benchmarks.slurm import world; world()"


@dataclass(frozen=True, slots=True)
class Charge:
    """What is said here of an attempt."""

    seconds: float
    ended: float  # 0: it has not
    up: float  # 0: nobody has seen it run
    outcome: str
    cause: str

    @property
    def is_sure(self) -> bool:
        """Of one that was lost only where Slurm itself has seen the end."""
        return self.outcome != "lost" or "node fail" in self.cause


@dataclass(frozen=True, slots=True)
class End:
    """One end that Slurm has written down. A controller that is killed may write one down twice."""

    state: str
    start: float
    end: float

    @property
    def is_whole(self) -> bool:
        return self.state == "COMPLETED" and self.end - self.start >= 1


@dataclass(frozen=True, slots=True)
class Ran:
    """What there is of one attempt beside our books: by job of Slurm its ends, and what its ranks have left in its folder."""

    parts: Mapping[str, Sequence[End]]
    doubles: Sequence[End]  # of that name, and with another number
    left: Sequence[tuple[str, float] | None]  # by rank its exit code, and when its script began
    gone: float  # when the last rank had left; 0: not every one has

    @property
    def is_whole(self) -> bool:
        """Whether each rank has ended by itself, and well."""
        return all(one is not None and one[0] == "0" for one in self.left)

    @property
    def ends(self) -> list[End]:
        return list(chain.from_iterable(self.parts.values()))

    @property
    def completed(self) -> list[End]:
        return [end for end in self.ends if end.is_whole]

    @property
    def took(self) -> set[float]:
        """For how long all of it may have run; nothing where a part is not written down. A busy node tells late that its ranks have left."""
        kept = [(max(end.start for end in one), max(end.end for end in one)) for one in product(*self.parts.values())]
        return {end - start for start, last in kept for end in (last, min(last, self.gone or last))}


class OnSlurm(Served):
    """A console in production whose one cluster is a real Slurm."""

    def __init__(self, folder: Path, database: str, postgres: Postgres, redis: Redis, slurm: Slurm, completed: Path) -> None:
        super().__init__(folder, database, postgres, redis)
        self.slurm, self.completed = slurm, completed
        self.shared = slurm.dir / "shared"
        self.shared.mkdir()
        self.killed: list[tuple[float, str]] = []

    def seed(self) -> None:
        user = ["--user", "nobody"] if os.getuid() == 0 else []
        self.manage.run("inventory", "connect-slurm", "--cluster", "hpc", "--conf", str(self.slurm.conf), "--folder", str(self.shared), *user)
        self.manage.run("inventory", "slurm", "--cluster", "hpc", "--gpu-type", "h100=H100-SXM-80GB:81559", "--apply")
        said = self.manage.run("shell", "--verbosity", "0", "-c", WORLD).stdout
        self.token = json.loads(said.strip().splitlines()[-1])["tokens"][0]

    def strike(self, name: str) -> None:
        self.killed.append((time.time(), name))
        if name == "slurmctld":
            self.slurm.end("slurmctld", signal.SIGKILL)
            self.slurm.start_controller()
        elif name.startswith("slurmd."):
            self.slurm.end(name, signal.SIGKILL)
            self.slurm.start_node(name.removeprefix("slurmd."))
        else:
            super().strike(name)

    def submit(self, name: str, shell: str, **fields: object) -> None:
        body = {"name": name, "quota": "org/team", "grace_s": 1, "launch": {"shell": shell}, **fields}
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": name, **PROXIED}
        answer = httpx.post(f"{self.origin}/api/v1/jobs", json=body, headers=headers, timeout=60, trust_env=False)
        assert answer.status_code == 201, answer.text

    def states(self) -> dict[str, str]:
        return {str(name): str(state) for name, state in self.ask("SELECT name, state FROM job")}

    @property
    def controller_killed(self) -> list[float]:
        return [at for at, name in self.killed if name == "slurmctld"]

    def accounts(self) -> str:
        return self.slurm.sh("sacct", "-c", "-f", self.completed, "-n", "-P", "-o", ACCOUNTS)

    def charged(self) -> dict[str, Charge]:
        return {str(key): Charge(*rest) for key, *rest in self.ask(LEDGER)}  # type: ignore[arg-type]

    def ran(self) -> dict[str, Ran]:
        """By attempt, of those of which Slurm was told."""
        ends: dict[str, dict[str, list[End]]] = defaultdict(lambda: defaultdict(list))
        for line in self.accounts().splitlines():
            name, state, _, number, start, end = line.split("|")
            ends[name][number].append(End(state, _moment(start), _moment(end)))
        found = {}
        for key, run in self.ask(RUNS):
            kept = cast(dict[str, Any], run)
            if parts := kept["parts"]:
                folder, own = Path(kept["folder"]), ends[str(key)]
                files = [folder / exit_name(seat, part) for part in parts for seat in part["seats"]]
                words = [file.read_text().split() if file.exists() else None for file in files]
                left = [None if one is None else (one[0], float(one[1])) for one in words]
                gone = max(file.stat().st_mtime for file in files) if all(left) else 0.0
                told = {str(part["id"]): own.pop(str(part["id"]), []) for part in parts}
                found[str(key)] = Ran(told, list(chain.from_iterable(own.values())), left, gone)
        return found

    @contextlib.contextmanager
    def evidence(self, folder: Path) -> Iterator[None]:
        """Should what is done here fail, keep what all sides say of it: kills, Slurm's logs, jobs and accounts, the files of runs, and our rows."""
        try:
            yield
        except AssertionError as fault:
            folder.mkdir(exist_ok=True)
            with contextlib.suppress(AssertionError, subprocess.SubprocessError):
                (folder / "sacct").write_text(self.accounts())
                (folder / "squeue").write_text(self.slurm.sh("squeue", "-a", "-t", "all", "-o", "%i %j %T %r %S %e %N %k", check=False))
            (folder / "kills").write_text("".join(f"{datetime.fromtimestamp(at, UTC):%H:%M:%S.%f} {name}\n" for at, name in self.killed))
            shutil.copytree(self.slurm.dir / "log", folder / "slurm", dirs_exist_ok=True)
            shutil.copytree(self.shared, folder / "shared", dirs_exist_ok=True)
            self.reconnect()
            for table in TABLES:
                with (folder / f"{table}.csv").open("wb") as file, self.connection.cursor().copy(f"COPY {table} TO STDOUT CSV HEADER") as rows:
                    file.writelines(rows)
            fault.add_note(f"What all sides say of it is in {folder}")
            raise

    def all_ended(self) -> bool:
        """A controller that was killed may give a number again that a node still runs: Slurm drains the node, and its operator returns it."""
        if drained := self.slurm.sh("sinfo", "-h", "-N", "-t", "drain,down", "-o", "%N", check=False).split():
            self.slurm.sh("scontrol", "update", f"NodeName={','.join(drained)}", "State=RESUME", check=False)
        return self.ask("SELECT count(*) FROM job WHERE ended_at IS NULL") == [(0,)]

    def given_twice(self) -> list[str]:
        """GPUs that Slurm itself has given to two jobs at once."""
        held: Counter[tuple[str, int]] = Counter()
        for job in json.loads(self.slurm.sh("squeue", "--json", seconds=30))["jobs"]:
            if job["job_state"] == "RUNNING":
                for node, text in zip(hostlist(job["nodes"]), job["gres_detail"], strict=True):
                    held.update((node, index) for index in indices(text))
        return [f"{node}:{index}" for (node, index), times in held.items() if times > 1]


class Load(threading.Thread):
    """Short jobs and gangs one after the other, each with a key of its own, tried again until it is acknowledged."""

    def __init__(self, site: OnSlurm) -> None:
        super().__init__(daemon=True)
        headers = {"Authorization": f"Bearer {site.token}", **PROXIED}
        self.client = httpx.Client(base_url=f"{site.origin}/api/v1", headers=headers, timeout=60, trust_env=False)
        self.answered: dict[str, str] = {}
        self.faults: list[str] = []
        self.over = threading.Event()

    def run(self) -> None:
        rng = random.Random(23)
        while not self.over.wait(0.3):
            name = f"kept-{len(self.answered)}"
            body = {"name": name, "quota": "org/team", "grace_s": 1, "work_s": 3, **rng.choice(SHAPES)}
            body["launch"] = {"shell": f"sleep {rng.uniform(0.5, 4):.1f}"}
            # Also once it is over: whose answer was lost with the web process is there already, and only another try tells its number.
            while name not in self.answered and not self.faults:
                self._try(name, body)

    def _try(self, name: str, body: dict) -> None:
        try:
            waiting = self.client.get("/jobs", params={"phase": "waiting", "size": 50})
            if waiting.status_code == 200 and len(waiting.json()["items"]) >= AT_ONCE:
                time.sleep(0.5)
                return
            answer = self.client.post("/jobs", json=body, headers={"Idempotency-Key": name})
        except httpx.TransportError:
            time.sleep(0.2)
            return
        if answer.status_code in (200, 201):
            self.answered[name] = str(answer.json()["jobs"][0]["id"])
        else:
            if answer.status_code != 503:
                self.faults.append(f"{answer.status_code} {answer.text[:300]}")
            time.sleep(0.2)


@pytest.fixture
def site(tmp_path: Path, prepared: Prepared) -> Iterator[OnSlurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    try:
        postgres, redis = Postgres(durable=True), Redis()
    except Missing as error:
        required("postgres", str(error))
        raise
    completed = tmp_path / "completed"
    slurm = Slurm(nodes=NODES, gpus=8, more=f"JobCompType=jobcomp/filetxt\nJobCompLoc={completed}\n")
    running = OnSlurm(tmp_path, prepared.migrated_in(postgres), postgres, redis, slurm, completed)
    try:
        running.seed()
        running.start()
        yield running
    finally:
        running.stop()
        slurm.stop()
        redis.stop()
        postgres.stop()


def test_whoever_is_killed_each_job_on_slurm_runs_whole_and_once(site: OnSlurm, tmp_path: Path) -> None:
    with site.evidence(tmp_path / "evidence"):
        strike_and_compare(site)


def test_a_console_that_is_killed_for_a_minute_loses_no_run_and_no_second(site: OnSlurm, tmp_path: Path) -> None:
    """All of it but its database: what runs goes on, ends as it would have, and is charged for as long as Slurm accounts."""
    with site.evidence(tmp_path / "evidence"):
        gate = site.shared / "gate"
        until_open = f"until [ -e {gate} ]; do sleep 0.1; done"
        site.submit("completes", until_open, gpus=2)
        site.submit("fails", f"{until_open}; exit 4", gpus=2, retries=0)
        site.submit("gang", until_open, gpus=8, workers=4)
        site.submit("stays", "sleep 600", gpus=8)
        wait_until(lambda: set(site.states().values()) == {"running"}, seconds=120, what="all four to run")
        site.submit("waits", "true", gpus=8, workers=4)  # for the end of the gang
        wait_until(lambda: site.states().get("waits") == "queued", seconds=30, what="the fifth to wait")

        for name in site.programs:
            site.kill(name)
        back = time.monotonic() + AWAY_S
        gate.touch()
        wait_until(lambda: time.monotonic() >= back, seconds=2 * AWAY_S, what="the minute to be over")
        for name in site.programs:
            site.start_again(name)
        expected = {"completes": "completed", "fails": "failed", "gang": "completed", "stays": "running", "waits": "completed"}
        wait_until(lambda: site.states() == expected, seconds=120, what="all to be as they would have been")

        attempts = site.ask("SELECT name, count(*) FROM attempt JOIN job ON job.id = attempt.job_id GROUP BY name ORDER BY name")
        assert attempts == [(name, 1) for name in sorted(expected)]
        took = {line.split("|")[0]: int(line.split("|")[2]) for line in site.accounts().splitlines()}
        charged = {key: one.seconds for key, one in site.charged().items() if one.ended}
        assert len(charged) == 4
        assert {key: (seconds, took[key]) for key, seconds in charged.items() if abs(seconds - took[key]) > WITHIN_S} == {}
        assert (site.ask(DOUBLE), site.ask(PARTIAL), site.given_twice()) == ([], [], [])


def strike_and_compare(site: OnSlurm) -> None:
    rng = random.Random(29)
    load = Load(site)
    load.start()
    wait_until(lambda: load.faults or site.ask("SELECT 1 FROM job WHERE state = 'running'"), seconds=120, what="a job that runs")
    for number in range(KILLS):
        name = VICTIMS[number % len(VICTIMS)] if 2 * len(VICTIMS) > KILLS else rng.choice(VICTIMS)
        name = f"slurmd.{rng.choice(site.slurm.names)}" if name == "slurmd" else name
        time.sleep(rng.random() * 3)  # at any moment of a job's life
        site.strike(name)
        site.reconnect()
        found = (number, name, site.ask(DOUBLE), site.ask(PARTIAL), site.given_twice())
        assert found == (number, name, [], [], [])
    load.over.set()
    load.join(90)
    assert load.faults == []
    wait_until(site.all_ended, seconds=300, what="all jobs to end")

    rows = site.ask("SELECT name, public_id, state FROM job")
    assert sorted((name, key) for name, key, _ in rows) == sorted(load.answered.items()), "lost or doubled"
    assert {str(state) for *_, state in rows} <= {"completed"}, site.ask("SELECT job_id, number, cause FROM attempt WHERE outcome = 'failed'")
    done = site.ask("SELECT job_id, count(*) FROM attempt WHERE outcome = 'completed' GROUP BY job_id HAVING count(*) <> 1")
    assert done == [], "completed twice"
    compare(site)
    outcomes = Counter(str(outcome) for (outcome,) in site.ask("SELECT outcome FROM attempt"))
    print(f"Kills: {dict(Counter(name.partition('.')[0] for _, name in site.killed))}")
    print(f"{KILLS} kills, {len(rows)} jobs, attempts {dict(outcomes)}: 0 partial gangs, 0 GPUs twice, 0 jobs lost or doubled")
    found: list[str] = []

    def content() -> bool:
        found[:] = site.findings()
        return found == []

    with contextlib.suppress(AssertionError):
        wait_until(content, seconds=120)
    assert found == []


def _moment(text: str) -> float:
    """Slurm's clock is the machine's."""
    return 0.0 if text == "Unknown" else datetime.fromisoformat(text).timestamp()


def compare(site: OnSlurm) -> None:
    """What Slurm has written down, what each rank has left in the folder of its run, and what is charged."""
    charged, ran = site.charged(), site.ran()
    assert {key: one for key, one in ran.items() if any(end.is_whole for end in one.doubles)} == {}, "ran twice in Slurm"
    completed = {key: ran[key] for key, one in charged.items() if one.outcome == "completed"}
    assert {key: one for key, one in completed.items() if not one.is_whole} == {}, "completed, and not each rank has left the code 0"
    # Slurm counts whole seconds. An end that a killed controller had not saved yet it sets anew, later, or never writes down. A start that it had not
    # saved it forgets, and is told to cancel what it would start again.
    both = [key for key, one in charged.items() if one.is_sure and key in ran and ran[key].took]
    apart = {key: min(abs(charged[key].seconds - took) for took in ran[key].took) for key in both}
    last = {key: max(end.end for end in ran[key].ends) for key in both}
    anew = {key for key in apart if any(charged[key].ended - WITHIN_S <= at <= last[key] for at in site.controller_killed)}
    anew |= {key for key in apart if ran[key].took == {0} and any(charged[key].up <= at <= charged[key].ended for at in site.controller_killed)}
    differ = {key: (charged[key], ran[key]) for key, seconds in apart.items() if seconds > WITHIN_S and key not in anew}
    most, key = max((seconds, key) for key, seconds in apart.items() if key not in anew)
    sure = sum(one.is_sure for one in charged.values())
    print(f"{len(apart)} of {sure} attempts held against sacct, {len(anew)} of them ended anew: {most:.1f} s apart at most ({key})")
    assert len(anew) < len(apart) / 4, "nearly nothing is compared"
    assert differ == {}, "the ledger is not what Slurm accounts"
    # A controller that gives a number again takes the end of the one for that of the other: such a job is COMPLETED and has not run.
    lost = {key: one for key, one in ran.items() if one.completed and charged[key].outcome == "lost"}
    for key, one in lost.items():
        print(f"COMPLETED in Slurm and lost here: {key}, {charged[key]}, {one}")
    assert {key: one for key, one in lost.items() if one.is_whole} == {}, "each rank has ended by itself, and the attempt counts as lost"
    unseen = {key: one for key, one in lost.items() if not charged[key].up}
    in_time = {key for key, one in unseen.items() if any(rank and rank[1] < one.completed[0].end for rank in one.left) and len(one.parts) == 1}
    assert {key: ran[key] for key in in_time} == {}, "it ran before Slurm took it for ended, and the ledger knows of no start"
    over = {key: max(end.end for end in one.completed) - charged[key].up - charged[key].seconds for key, one in lost.items() if key not in unseen}
    assert {key: seconds for key, seconds in over.items() if seconds > WITHIN_S} == {}, "Slurm counted seconds that are not in the ledger"
