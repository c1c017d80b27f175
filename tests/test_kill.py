"""kill -9 of the whole console while people write and the demo moves: every write that was answered with success is there afterwards, once.

TEST_KILLS=40 python -m pytest -m soak tests/test_kill.py
"""

import json
import os
import random
import re
import threading
import time
from collections import Counter

import httpx
import pytest

from gpufleet.throwaway import kill_tree
from tests.servers import Manage, Prepared, Program, free_port, wait_until

pytestmark = pytest.mark.soak
PASSWORD = "gpufleet-demo"
KILLS = int(os.environ.get("TEST_KILLS", "5"))
PACE_SECONDS = 0.1
TOKEN = """
from datetime import timedelta
from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.models import QuotaNode
from quotas.permissions import access_for_user
from quotas.services.tokens import token_create
person = User.objects.get(username="root")
until = now() + timedelta(days=1)
made = token_create(access=access_for_user(person), owner=person, name="kills", scopes=["read", "submit"], node=None, expires_at=until, now=now())
print("SECRET", made.secret, QuotaNode.objects.filter(children__isnull=True, archived_at__isnull=True).order_by("path")[0].path)
"""
JOBS = """
import json
from scheduler.models import Job
print("JOBS", json.dumps(list(Job.objects.filter(name__startswith="kept-").values_list("name", "public_id"))))
"""


class Submitter(threading.Thread):
    """Somebody's script: it submits one job after the other, each with a key of its own, and tries each again until it is answered with success.

    What is not understood is a fault: anything but a success, a lost connection, or a 503 that says when to come back.
    """

    def __init__(self, origin: str, manage: Manage, **headers: str) -> None:
        super().__init__(daemon=True)
        said = manage.run("shell", "--verbosity", "0", "-c", TOKEN).stdout
        secret, self.quota = next(line.split()[1:] for line in said.splitlines() if line.startswith("SECRET"))
        self.manage = manage
        self.client = httpx.Client(base_url=f"{origin}/api/v1", headers={"Authorization": f"Bearer {secret}", **headers}, timeout=60, trust_env=False)
        self.answered: dict[str, str] = {}
        self.faults: list[str] = []
        self.tries: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.over.wait(PACE_SECONDS):
            number += 1
            name = f"kept-{number}"
            while name not in self.answered and not self.over.is_set():
                self._try(name)

    def _try(self, name: str) -> None:
        body = {"name": name, "quota": self.quota, "gpus": 1, "not_before": "2099-01-01T00:00:00Z", "launch": {"command": ["true"]}}
        try:
            answer = self.client.post("/jobs", json=body, headers={"Idempotency-Key": name})
        except httpx.TransportError:
            self.tries["nobody there"] += 1
            time.sleep(PACE_SECONDS)
            return
        self.tries[str(answer.status_code)] += 1
        if answer.status_code in (200, 201):
            told = answer.json()
            self.answered[name] = str(told["jobs"][0]["id"] if "jobs" in told else told["id"])
            return
        understood = answer.headers.get("Retry-After") and answer.headers["Content-Type"].startswith("application/problem+json")
        if answer.status_code != 503 or not understood:
            self.faults.append(f"{answer.status_code} {answer.text[:300]}")
        time.sleep(PACE_SECONDS)

    def goes_on(self, *, seconds: float = 120) -> None:
        """Wait until another submission has been answered."""
        before = len(self.answered)
        wait_until(lambda: len(self.answered) > before, seconds=seconds, what="another submission to be answered")

    def finish(self) -> None:
        self.over.set()
        self.join(60)

    def check(self) -> str:
        """Nothing that was answered is lost, nothing is there twice, and nothing was answered that no client understands. Returns the figures."""
        said = self.manage.run("shell", "--verbosity", "0", "-c", JOBS).stdout
        kept = json.loads(next(line for line in said.splitlines() if line.startswith("JOBS")).removeprefix("JOBS "))
        doubled = [name for name, times in Counter(name for name, _ in kept).items() if times > 1]
        lost = [name for name, job in self.answered.items() if [name, job] not in kept]
        assert (lost, doubled, self.faults) == ([], [], [])
        return f"{len(self.answered)} submissions acknowledged, 0 lost, 0 doubled; answers {dict(self.tries)}"


class Writer(threading.Thread):
    """Somebody who makes quota nodes one after the other. `answered` are those that the console said are there."""

    def __init__(self, origin: str, round_number: int) -> None:
        super().__init__(daemon=True)
        self.client = httpx.Client(base_url=origin, timeout=30, trust_env=False, follow_redirects=False)
        self.round_number = round_number
        self.answered: list[str] = []
        self.refused: list[str] = []

    def sign_in(self) -> None:
        page = self.client.get("/accounts/login/")
        data = {"csrfmiddlewaretoken": _token(page.text), "login": "root", "password": PASSWORD}
        assert self.client.post("/accounts/login/", data=data).status_code == 302

    def run(self) -> None:
        form = "/quotas/" + re.findall(r'href="/quotas/(q-\d+)/', self.client.get("/quotas/").text)[0] + "/new/"
        token = _token(self.client.get(form).text)
        number = 0
        while True:
            number += 1
            name = f"round-{self.round_number}-{number}"
            data = {"csrfmiddlewaretoken": token, "name": name, "kind": "project", "weight": "1", "priority": "100"}
            try:
                answer = self.client.post(form, data=data)
            except httpx.TransportError:
                return  # the console was killed under us
            (self.answered if answer.status_code == 302 else self.refused).append(name)


def _token(html: str) -> str:
    found = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', html)
    assert found, "a page without a form"
    return found[1]


def start(manage: Manage, port: int) -> Program:
    program = manage.start("manage.py", "up", "--port", str(port), "--demo", "small", name="up")
    program.wait_for(lambda: "answers at" in program.output(), seconds=300, what="the console to answer")
    return program


def test_a_console_that_is_killed_loses_no_write_that_it_confirmed(prepared: Prepared, tmp_path):
    manage, port = prepared.demo(tmp_path / "data"), free_port()
    confirmed: list[str] = []
    program = start(manage, port)
    for number, seconds in enumerate((2.5, 4.1, 6.3)):
        writer = Writer(f"http://127.0.0.1:{port}", number)
        writer.sign_in()
        writer.start()
        died_at = time.monotonic() + seconds
        wait_until(lambda until=died_at: time.monotonic() > until, seconds=seconds + 5)
        kill_tree(program.pid)
        program.process.wait(10)
        writer.join(30)
        assert writer.refused == []
        assert writer.answered, "nothing was written before the kill"
        confirmed += writer.answered

        program = start(manage, port)

        assert "database is locked" not in program.output()
    ask = "from quotas.models import QuotaNode; print(*QuotaNode.objects.values_list('name', flat=True))"
    kept = set(manage.run("shell", "--verbosity", "0", "-c", ask).stdout.split())
    assert [name for name in confirmed if name not in kept] == []
    told = manage.run("doctor", check=False)
    assert told.returncode == 0, told.stdout
    assert program.stop(seconds=60) == 0  # how soon it stops is looked at on a quiet console (test_up.py)


def test_however_often_the_console_is_killed_each_submission_is_there_once(prepared: Prepared, tmp_path):
    manage, port, rng = prepared.demo(tmp_path / "data"), free_port(), random.Random(16)
    program = start(manage, port)
    submitter = Submitter(f"http://127.0.0.1:{port}", manage)
    submitter.start()
    for _ in range(KILLS):
        submitter.goes_on()
        # At any moment: also while it comes up again, which is when it is half.
        time.sleep(rng.random() * 2)
        kill_tree(program.pid)
        program.process.wait(10)
        program = start(manage, port)
    submitter.goes_on()
    submitter.finish()
    print(f"{KILLS} kills of the embedded console: {submitter.check()}")
    told = manage.run("doctor", check=False)
    assert told.returncode == 0, told.stdout
    assert program.stop(seconds=60) == 0  # how soon it stops is looked at on a quiet console (test_up.py)
