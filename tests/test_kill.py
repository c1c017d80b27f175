"""kill -9 of the whole console while people write and the demo moves: every write that was answered with success is there afterwards."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.servers import Manage, Program, free_port, wait_until

pytestmark = pytest.mark.soak
PASSWORD = "gpufleet-demo"


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


def tree_of(pid: int) -> list[int]:
    """A process and all that descend from it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [process for child in (task / "children").read_text().split() for process in tree_of(int(child))]
    return found


def start(manage: Manage, port: int) -> Program:
    program = manage.start("manage.py", "up", "--port", str(port), "--demo", "small", name="up")
    program.wait_for(lambda: "answers at" in program.output(), seconds=120, what="the console to answer")
    return program


def test_a_console_that_is_killed_loses_no_write_that_it_confirmed(tmp_path):
    manage, port = Manage(tmp_path / "data"), free_port()
    confirmed: list[str] = []
    program = start(manage, port)
    for number, seconds in enumerate((2.5, 4.1, 6.3)):
        writer = Writer(f"http://127.0.0.1:{port}", number)
        writer.sign_in()
        writer.start()
        died_at = time.monotonic() + seconds
        wait_until(lambda until=died_at: time.monotonic() > until, seconds=seconds + 5)
        for pid in tree_of(program.pid):
            os.kill(pid, signal.SIGKILL)
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
    assert program.stop() == 0
