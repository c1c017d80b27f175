"""From `gpufleet submit` to real processes on virtual GPUs, over a console of one process, by nothing but its commands."""

import json
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.scheduler.backends.test_local_end_to_end import TRAIN
from tests.servers import PROJECT, Manage, Prepared, Program, free_port, wait_until

LOCAL = {"GPUFLEET_LOCAL": "on", "GPUFLEET_LOCAL_SAME_USER": "1", "GPUFLEET_VIRTUAL_GPUS": "4", "GPUFLEET_MIN_RUNTIME_S": "0"}
PREPARE = """
from datetime import timedelta
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from quotas.rules import NodeValues, Share
from quotas.services.nodes import node_create
from quotas.services.tokens import token_create
boss = User.objects.create_superuser("boss", password="x")
access = access_for_user(boss)
def add(name, kind, parent):
    values = NodeValues(kind, "", "", 1, 100, False, {"virtual": Share(4000, None)})
    return node_create(access=access, parent=parent, name=name, values=values, now=now())
add("team", "team", add("lab", "org", None))
made = token_create(access=access, owner=boss, name="cli", scopes=["read", "submit"], node=None, expires_at=now() + timedelta(days=1), now=now())
print("SECRET", made.secret)
"""
REPORT = """
import json, os, urllib.request
body = {"step": 7, "shard": 0, "shards": 1, "location": "s3://bucket/run/7"}
headers = {"Authorization": "Bearer " + os.environ["GPUFLEET_TOKEN"], "Content-Type": "application/json"}
asked = urllib.request.Request(os.environ["GPUFLEET_REPORT_URL"], data=json.dumps(body).encode(), headers=headers)
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked).read().decode())
"""
# Tells its steps by a file, and goes on until it is told that the file was read.
STEPS = """
import json, os, pathlib, sys, time
place = pathlib.Path(os.environ["GPUFLEET_CHECKPOINT_DIR"])
while not pathlib.Path(sys.argv[1]).exists():
    (place / "new").write_text(json.dumps({"ranks": 2, "seconds": {"0": 1.25, "1": 1.5}, "flops": 3e14}))
    (place / "new").rename(place / "steps.json")
    time.sleep(0.5)
"""


class Person:
    """Somebody with a shell, the program and a token."""

    def __init__(self, manage: Manage, url: str, secret: str, folder: Path) -> None:
        self.database = manage.data / "gpufleet.sqlite3"
        self.env = {**manage.env, "GPUFLEET_URL": url, "GPUFLEET_TOKEN": secret, "GPUFLEET_CLIENT_DIR": str(folder), "NO_PROXY": "*"}

    def says(self, *words: str) -> str:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *words], env=self.env, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def submits(self, name: str, *words: str, command: tuple[str, ...]) -> str:
        told = json.loads(self.says("submit", "--name", name, "--quota", "lab/team", *words, "--json", "--", *command))
        return str(told["jobs"][0]["id"])

    def show(self, job: str) -> dict[str, Any]:
        return dict(json.loads(self.says("show", job, "--json")))

    def until(self, job: str, *states: str, seconds: float = 60) -> None:
        """Asking by command again and again would keep the console from its work."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as looking:
            ask = "SELECT state FROM job WHERE public_id = ?"
            wait_until(lambda: looking.execute(ask, [job]).fetchone()[0] in states, seconds=seconds, what=f"{job} is {' or '.join(states)}")
        assert self.show(job)["state"] in states


@pytest.fixture
def console(prepared: Prepared, tmp_path: Path) -> Iterator[tuple[Manage, Program, Person]]:
    manage, port = prepared.migrated(tmp_path / "data", **LOCAL), free_port()
    manage.run("inventory", "discover", "--apply")
    secret = manage.run("shell", "--verbosity", "0", "-c", PREPARE).stdout.split("SECRET ")[1].strip()
    program = manage.start("manage.py", "up", "--port", str(port), name="up")
    program.wait_for(lambda: "answers at" in program.output(), what="the console to say that it answers")
    yield manage, program, Person(manage, f"http://127.0.0.1:{port}", secret, tmp_path / "client")
    program.stop()


@pytest.mark.soak
def test_two_ranks_are_submitted_put_out_by_a_higher_class_saved_resumed_and_accounted(console: Any) -> None:
    manage, _, person = console
    train = person.submits("train", "--gpus", "1", "--workers", "2", command=(sys.executable, "-c", textwrap.dedent(TRAIN), "400"))
    person.until(train, "running")
    wait_until(lambda: "begins at step 0" in person.says("logs", train), seconds=30, what="its log is there while it runs")

    urgent = person.submits("urgent", "--class", "interactive", "--gpus", "4", command=(sys.executable, "-c", "import time; time.sleep(1)"))
    person.until(urgent, "completed")
    person.until(train, "completed")

    told = person.show(train)
    assert [run["outcome"] for run in told["attempts"]] == ["completed", "preempted"]
    (saved,) = told["checkpoints"]
    assert (saved["state"], saved["shards"]) == ("complete", 2)
    assert f"saved step {saved['step']}" in person.says("logs", train, "--attempt", "1")
    assert f"begins at step {saved['step']}" in person.says("logs", train, "--attempt", "2")

    reporting = person.submits("report", "--gpus", "1", command=(sys.executable, "-c", REPORT))
    person.until(reporting, "completed", "failed")
    assert '"complete": true' in person.says("logs", reporting)
    assert person.show(reporting)["checkpoints"][0]["step"] == 7

    read = manage.data / "read"
    stepping = person.submits("steps", "--gpus", "1", command=(sys.executable, "-c", STEPS, str(read)))
    with closing(sqlite3.connect(f"file:{person.database}?mode=ro", uri=True)) as looking:
        ask = "SELECT s.ranks, s.flops FROM step_look s JOIN attempt a ON a.id = s.attempt_id JOIN job j ON j.id = a.job_id WHERE j.public_id = ?"
        told_by_file = wait_until(lambda: looking.execute(ask, [stepping]).fetchone(), seconds=30, what="its steps are known")
    read.touch()
    person.until(stepping, "completed", "failed")
    assert told_by_file == (2, 3e14)
    # Among them: ledger, timeline and placements at every instant.
    assert "no findings" in manage.run("doctor").stdout


# Serves until a signal ends it. One that ends with 0 says that it has finished.
# As most servers do, it exits with 0 when it is asked to leave.
SERVE = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(0)); print('serves', flush=True); time.sleep(600)"


@pytest.mark.soak
@pytest.mark.parametrize("in_place", [True, False])
def test_a_service_is_given_more_replicas_and_fewer(console: Any, tmp_path: Path, in_place: bool) -> None:
    """In place where its processes stand that; else it is started anew with the new number of workers."""
    _, _, person = console
    role = {"name": "server", "min": 1, "max": 3, "desired": 1, "gpus": 1}
    launch = {"command": [sys.executable, "-c", SERVE], "in_place": in_place}
    wish = {"name": "serve", "quota": "lab/team", "class": "inference", "grace_s": 5, "roles": [role], "launch": launch}
    (tmp_path / "serve.json").write_text(json.dumps(wish))
    job = str(json.loads(person.says("submit", str(tmp_path / "serve.json"), "--json"))["jobs"][0]["id"])
    person.until(job, "running")

    def placed(count: int) -> None:
        ask = "SELECT COUNT(*) FROM placement p JOIN job j ON j.id = p.job_id WHERE j.public_id = ? AND p.until IS NULL"
        with closing(sqlite3.connect(f"file:{person.database}?mode=ro", uri=True)) as looking:
            wait_until(lambda: looking.execute(ask, [job]).fetchone()[0] == count, seconds=90, what=f"{count} replicas have their place")
        person.until(job, "running")

    person.says("scale", job, "3")
    placed(3)
    person.says("scale", job, "1")
    placed(1)

    told, runs = json.loads(person.says("scale", job, "--json")), person.show(job)["attempts"]
    assert [(one["before"], one["after"], one["end"]) for one in told["scalings"]] == [(3, 1, "released"), (1, 3, "placed")]
    assert told["scalings"][1]["within_bound"] and len(runs) == (1 if in_place else 3)
    person.says("cancel", job)
    person.until(job, "cancelled")


# Serves at the port that it is given, once the file that it is told of says so.
ANSWERS = """
import http.server, os, pathlib, sys
print("loads as", os.getpid(), flush=True)
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if pathlib.Path(sys.argv[1]).exists() else 503)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])), Answers).serve_forever()
"""


@pytest.mark.soak
def test_replicas_are_asked_whether_they_can_serve_and_start_anew_one_by_one_though_the_console_is_killed(console: Any, tmp_path: Path) -> None:
    manage, program, person = console
    loaded = tmp_path / "loaded"
    role = {"name": "server", "min": 1, "max": 3, "desired": 3, "gpus": 1}
    ready = {"http": {"path": "/health"}, "period_s": 1}
    launch = {"command": [sys.executable, "-c", ANSWERS, str(loaded)], "in_place": True, "ready": ready}
    wish = {"name": "serve", "quota": "lab/team", "class": "inference", "grace_s": 5, "roles": [role], "launch": launch}
    (tmp_path / "serve.json").write_text(json.dumps(wish))
    job = str(json.loads(person.says("submit", str(tmp_path / "serve.json"), "--json"))["jobs"][0]["id"])
    person.until(job, "running")

    def asked(question: str) -> list[Any]:
        with closing(sqlite3.connect(f"file:{person.database}?mode=ro", uri=True)) as looking:
            return list(looking.execute(question))

    wait_until(
        lambda: asked("SELECT COUNT(*) FROM worker_state WHERE why LIKE '%answered 503.'") == [(3,)], seconds=90, what="three that are not ready"
    )
    assert "server: 3 placed, 0 ready, 3 wanted" in person.says("scale", job)
    loaded.touch()
    wait_until(lambda: asked("SELECT COUNT(*) FROM worker_state WHERE ready") == [(3,)], seconds=30, what="three that are ready")
    first = asked("SELECT role, worker, gpu_id, since FROM placement WHERE until IS NULL ORDER BY worker")

    assert "one at a time" in person.says("replace", job, "--dry-run")
    loaded.unlink()
    person.says("replace", job, "--apply", "--reason", "New weights.")
    wait_until(lambda: asked("SELECT COUNT(*) FROM worker_state WHERE began > 0 AND NOT ready") == [(1,)], seconds=60, what="one to be taken down")
    assert asked("SELECT worker FROM job_replacement_step WHERE began_at IS NOT NULL") == [(0,)], "the next waits until it is ready"
    program.kill()
    loaded.touch()
    again = manage.start("manage.py", "up", "--port", person.env["GPUFLEET_URL"].rpartition(":")[2], name="up again")
    try:
        again.wait_for(lambda: "answers at" in again.output(), what="the console to say that it answers")
        wait_until(lambda: asked("SELECT end FROM job_replacement") == [("done",)], seconds=120, what="all of them to be new")
        assert asked("SELECT role, worker, gpu_id, since FROM placement WHERE until IS NULL ORDER BY worker") == first, "each on its own GPU"
        assert len(person.show(job)["attempts"]) == 1
        for index in range(3):
            assert person.says("logs", job, "--index", str(index)).count("loads as") == 2
        assert "3 of 3" in person.says("replace", job)
        person.says("cancel", job)
        person.until(job, "cancelled")
        assert "no findings" in manage.run("doctor").stdout
    finally:
        again.stop()
