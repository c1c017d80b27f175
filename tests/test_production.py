"""The production profile as the manual starts it: PostgreSQL, Redis, two web processes, a worker, the scheduler's worker and beat."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import psycopg
import pytest
import yaml
from celery import Celery
from psycopg import sql
from websockets.sync.client import ClientConnection, connect

from tests.servers import PROJECT, Manage, Program, Redis, free_port, wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.xdist_group("production")]
PASSWORD = "gpufleet-demo"
# What the TLS proxy adds to a request.
PROXIED = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7"}
BEHIND = {"GPUFLEET_TRUSTED_PROXIES": "1", "GPUFLEET_PUBLIC_URL": "https://127.0.0.1", "GPUFLEET_ALLOWED_HOSTS": "127.0.0.1"}
COMPOSE = yaml.safe_load((PROJECT / "compose.yaml").read_text())["services"]
WEB = json.loads(re.findall(r"^CMD (.*)$", (PROJECT / "Containerfile").read_text(), re.MULTILINE)[0])
# One that is killed while uvicorn waits for its answer is replaced once the time for that is over: a minute in the image.
ANSWERS_WITHIN_S = 20
WEB[WEB.index("--timeout-worker-healthcheck") + 1] = str(ANSWERS_WITHIN_S)
PUBLISH = """
from django.db import transaction
from gpufleet.core.live.feed import feed_publish
from scheduler.models import Gpu
with transaction.atomic():
    print(feed_publish(changes={"gpus": [{"id": Gpu.objects.order_by("pk").values_list("pk", flat=True)[0]}]}))
"""

# Its sessions at the database. The worker's name is given by who starts it.
OF_WORKER = "FROM pg_stat_activity WHERE application_name = 'worker'"


def children(pid: int) -> set[int]:
    """The child processes that run a copy of the program, and not multiprocessing's helper."""
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if _runs_python_code(int(child))}


def _runs_python_code(pid: int) -> bool:
    try:
        return b"resource_tracker" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return False


class Production:
    """All processes of one installation, started by the commands of Containerfile and compose.yaml."""

    def __init__(self, folder: Path, database: str, redis: Redis) -> None:
        self.redis = redis
        urls = {"GPUFLEET_DATABASE_URL": database, "GPUFLEET_REDIS_URL": redis.url(3)}
        self.manage = Manage(folder, GPUFLEET_PROFILE="production", GPUFLEET_SECRET_KEY="only-for-tests-" * 5, **urls, **BEHIND)
        self.port = free_port()
        self.origin = f"http://127.0.0.1:{self.port}"
        self.programs: dict[str, Program] = {}

    def seed(self) -> None:
        self.manage.run("seed_demo", "small", "--hours", "1", seconds=300)

    def start(self) -> None:
        for name in ("web", "worker", "scheduler", "beat"):
            self.start_again(name)
        self.programs["web"].wait_for(self.answers, what="the web processes to answer")

    def start_again(self, name: str) -> None:
        """`second scheduler`: one more of them."""
        here = {"4": "2", "0.0.0.0": "127.0.0.1", "8000": str(self.port)}
        command = [here.get(word, word) for word in (WEB if name == "web" else COMPOSE[name.rpartition(" ")[2]]["command"])]
        assert command[0] in ("celery", "uvicorn")
        self.manage.env["PGAPPNAME"] = name
        self.programs[name] = self.manage.start("-m", *command, name=name.replace(" ", "-"))

    def answers(self) -> bool:
        try:
            return httpx.get(f"{self.origin}/healthz", timeout=5, trust_env=False).status_code == 200
        except httpx.TransportError:
            return False

    def findings(self) -> list[str]:
        told = json.loads(self.manage.run("doctor", "--json", check=False).stdout)
        return [finding["what"] for finding in told["findings"] if not finding["note"]]

    def stop(self) -> None:
        with ThreadPoolExecutor() as at_once:
            list(at_once.map(Program.stop, self.programs.values()))


@pytest.fixture(scope="module")
def seeded(tmp_path_factory, postgres, migrated_postgres, redis_server) -> Callable[[], str]:
    """`seeded()` gives the URL of a new database with the demo in it: a copy of one that was seeded."""
    first = migrated_postgres()
    Production(tmp_path_factory.mktemp("seeded"), first, redis_server).seed()
    return lambda: postgres.create_database(like=first.rpartition("/")[2])


@pytest.fixture(scope="module")
def production(tmp_path_factory, seeded, redis_server) -> Iterator[Production]:
    running = Production(tmp_path_factory.mktemp("production"), seeded(), redis_server)
    try:
        running.start()
        yield running
    finally:
        running.stop()


class Person:
    """Somebody's browser behind the TLS proxy, as far as cookies go."""

    def __init__(self, origin: str) -> None:
        self.http = httpx.Client(base_url=origin, headers=PROXIED, timeout=20, trust_env=False)
        self.cookies: dict[str, str] = {}
        self.flags: dict[str, str] = {}

    def ask(self, method: str, path: str, **options: object) -> httpx.Response:
        """One request. The cookies are for https only, which the client behind the proxy does not speak, so they are sent by hand."""
        headers = {"Cookie": self.header(), "Referer": "https://127.0.0.1" + path, "Origin": "https://127.0.0.1"}
        answer = self.http.request(method, path, headers=headers, **options)  # type: ignore[arg-type]
        for line in answer.headers.get_list("set-cookie"):
            name, value = line.split(";")[0].split("=", 1)
            self.cookies[name], self.flags[name] = value.strip('"'), line
        return answer

    def header(self) -> str:
        return "; ".join(f"{name}={value}" for name, value in self.cookies.items())

    def sign_in(self, username: str) -> httpx.Response:
        page = self.ask("GET", "/accounts/login/")
        (token,) = set(re.findall(r'name="csrfmiddlewaretoken" value="([^"]+)"', page.text))
        return self.ask("POST", "/accounts/login/", data={"csrfmiddlewaretoken": token, "login": username, "password": PASSWORD})

    def socket(self) -> ClientConnection:
        url = str(self.http.base_url).replace("http", "ws").rstrip("/") + "/ws/live/"
        return connect(url, additional_headers={**PROXIED, "Cookie": self.header()}, origin="https://127.0.0.1", proxy=None)


@pytest.fixture
def oona(production) -> Person:
    person = Person(production.origin)
    assert person.sign_in("oona").status_code == 302
    return person


def next_about(socket: ClientConnection, topic: str, *, revision: int = 0, seconds: float = 10) -> dict:
    """The next message that carries changes of a topic up to a revision or beyond. The demo writes too, so there may be earlier ones."""

    def told() -> dict | None:
        message = json.loads(socket.recv(timeout=seconds))
        return message if message.get("topic") == topic and message.get("v", -1) >= revision else None

    return wait_until(told, seconds=seconds)


def subscribe(socket: ClientConnection, topic: str) -> None:
    socket.send(json.dumps({"subscribe": topic, "since": 0}))
    wait_until(lambda: json.loads(socket.recv(timeout=10)).get("topic") == topic, what=f"the answer to the subscription of {topic}")


def test_people_sign_in_with_cookies_that_only_https_carries(oona):
    assert "Secure" in oona.flags["sessionid"]
    assert "HttpOnly" in oona.flags["sessionid"]
    page = oona.ask("GET", "/")
    assert page.status_code == 200
    assert "max-age=31536000" in page.headers["strict-transport-security"]


def test_plain_http_is_led_to_https(production):
    answer = httpx.get(f"{production.origin}/", headers={"X-Forwarded-Proto": "http"}, trust_env=False)

    assert answer.status_code == 301
    assert answer.headers["location"].startswith("https://")


def test_a_write_of_another_process_reaches_an_open_page(production, oona):
    with oona.socket() as socket:
        subscribe(socket, "gpus")
        revision = int(production.manage.run("shell", "--verbosity", "0", "-c", PUBLISH).stdout)

        assert next_about(socket, "gpus", revision=revision)["from"] < revision


def test_a_page_of_another_site_gets_no_socket(production, oona):
    url = f"{production.origin.replace('http', 'ws')}/ws/live/"

    with pytest.raises(Exception, match="403"), connect(url, additional_headers={"Cookie": oona.header()}, origin="https://evil.example", proxy=None):
        pass


@pytest.mark.parametrize("path", ["/quotas/?q=%00", "/search/?q=a%00", "/overview/history?type=%00", "/nodes/?q=%00", "/live/gpus/snapshot?x=%00"])
def test_a_character_that_the_database_has_not_is_no_fault_of_ours(oona, path):
    assert oona.ask("GET", path).status_code in (200, 400)


def test_a_value_that_the_database_has_not_is_refused_by_the_api(production):
    quentin = Person(production.origin)
    quentin.sign_in("quentin")
    token = re.findall(r'name="csrf-token" content="([^"]+)"', quentin.ask("GET", "/").text)[0]
    (top, *_) = quentin.ask("GET", "/api/v1/quotas").json()
    quentin.http.headers["X-CSRFToken"] = token

    answer = quentin.ask("POST", "/api/v1/quotas", json={"parent": top["id"], "name": "nul", "kind": "team", "title": "a\0b"})

    assert answer.status_code == 422


def test_the_doctor_finds_nothing(production):
    wait_until(lambda: production.findings() == [], seconds=60, what="a clean bill of health")


def counted(url: str) -> dict[str, tuple[int, object]]:
    """Rows of each table, and where the counter of its ids stands."""
    with psycopg.connect(url) as connection:
        tables = [name for (name,) in connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")]
        rows = {name: connection.execute(sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(name))).fetchone() for name in tables}
        counters = dict(connection.execute("SELECT sequencename, last_value FROM pg_sequences").fetchall())
    return {name: (count[0] if count else 0, counters.get(f"{name}_id_seq")) for name, count in rows.items()}


@pytest.mark.parametrize("after", ["rows and tables were lost", "the server was lost"])
def test_a_dump_as_the_manual_makes_it_brings_everything_back(tmp_path, postgres, seeded, redis_server, after):
    dump, restore = re.findall(r"```sh\n((?:pg_dump|psql).*?)```", (PROJECT / "docs/operate/production.md").read_text(), re.DOTALL)
    lost = Production(tmp_path / "data", seeded(), redis_server)
    url = lost.manage.env["GPUFLEET_DATABASE_URL"]
    before = counted(url)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    (bin_folder / "gpufleet").write_text(f'#!/bin/sh\nexec {sys.executable} {PROJECT}/manage.py "$@"\n')
    (bin_folder / "gpufleet").chmod(0o755)

    def run(code: str, url: str) -> subprocess.CompletedProcess[str]:
        env = {**lost.manage.env, "PATH": f"{bin_folder}:{postgres.binaries}:{os.environ['PATH']}", "GPUFLEET_DATABASE_URL": url}
        return subprocess.run(["sh", "-e", "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)

    assert run(dump, url).returncode == 0
    if after == "the server was lost":
        url = postgres.create_database()
    else:
        with psycopg.connect(url) as connection:
            connection.execute("DELETE FROM job_event")
            connection.execute("DROP TABLE ledger_entry CASCADE")
    told = run(restore.replace("gpufleet doctor", "gpufleet doctor --only database --only records"), url)

    assert told.returncode == 0, told.stdout + told.stderr
    assert counted(url) == before
    assert before["job"][0] > 50
    assert before["ledger_entry"][0] > 50


def test_a_web_process_that_is_killed_is_replaced(production):
    web = production.programs["web"]
    before = wait_until(lambda: len(children(web.pid)) == 2 and children(web.pid), what="two web processes")

    os.kill(min(before), signal.SIGKILL)

    wait_until(lambda: len(children(web.pid)) == 2 and children(web.pid) != before, seconds=30 + ANSWERS_WITHIN_S, what="a new web process")
    wait_until(production.answers, what="an answer")


def test_killed_workers_lose_nothing_and_new_ones_go_on(production):
    for name in ("worker", "scheduler"):
        program = production.programs[name]
        for pid in [*children(program.pid), program.pid]:
            os.kill(pid, signal.SIGKILL)
        program.process.wait(10)
    before = datetime.now(UTC)

    for name in ("worker", "scheduler"):
        production.start_again(name)

    with psycopg.connect(production.manage.env["GPUFLEET_DATABASE_URL"], autocommit=True) as looking:
        ask = "SELECT count(*) FROM progress WHERE name LIKE 'heartbeat%%' AND reached_at > %s"
        wait_until(lambda: looking.execute(ask, [before]).fetchone() == (2,), seconds=90, what="both queues to be worked on")
    wait_until(lambda: production.findings() == [], seconds=60, what="a clean bill of health")


def test_a_worker_writes_a_large_export_and_one_whose_worker_is_killed_says_so(production):
    """Over the real broker: what it has written so far, the link, and what becomes of a file that nobody goes on with."""
    fay, oona = Person(production.origin), Person(production.origin)
    fay.sign_in("fay")
    oona.sign_in("oona")
    fay.http.headers["X-CSRFToken"] = re.findall(r'name="csrf-token" content="([^"]+)"', fay.ask("GET", "/").text)[0]
    looking = psycopg.connect(production.manage.env["GPUFLEET_DATABASE_URL"], autocommit=True)
    worker = production.programs["worker"]

    def told(name: str) -> dict:
        return fay.ask("GET", f"/api/v1/cost-exports/{name.rpartition('/')[2]}").json()

    def signal_worker(number: signal.Signals) -> None:
        for pid in [*children(worker.pid), worker.pid]:
            os.kill(pid, number)

    def stands_still() -> bool:
        """Whether the worker is stopped, and in no transaction: rows that it has locked would stay so for everybody."""
        signal_worker(signal.SIGSTOP)
        wait_until(lambda: looking.execute(f"SELECT count(*) {OF_WORKER} AND state = 'active'").fetchone() == (0,), what="its last statement to end")
        if looking.execute(f"SELECT count(*) {OF_WORKER} AND xact_start IS NOT NULL").fetchone() == (0,):
            return True
        signal_worker(signal.SIGCONT)
        return False

    @contextmanager
    def writing() -> Iterator[str]:
        """An export that is being written: its lines are locked meanwhile, so that no machine is too fast to be seen at it."""
        wait_until(stands_still, seconds=60, what="a moment between two transactions of the worker")
        try:
            last = datetime.now(UTC).replace(day=1) - timedelta(days=1)  # on its first day a month has too few lines
            answer = fay.ask("POST", f"/api/v1/costs/{last:%Y-%m}/exports", json={"format": "xlsx"})
            assert answer.status_code == 202, answer.text
            with looking.transaction():
                looking.execute("LOCK TABLE charge_line")
                signal_worker(signal.SIGCONT)
                wait_until(lambda: told(answer.json()["id"])["state"] == "writing", what="a worker to take it up")
                yield answer.headers["Location"]
        finally:
            with suppress(ProcessLookupError, FileNotFoundError):
                signal_worker(signal.SIGCONT)

    with looking:
        with writing() as first:
            assert told(first)["lines"] == 0
        done = wait_until(lambda: (now := told(first))["state"] == "done" and now, seconds=120, what="the export to be written")
        assert done["lines"] == done["of_lines"] > 1000
        file = fay.ask("GET", done["file"])
        assert (file.status_code, len(file.content), file.content[:2]) == (200, done["size"], b"PK")
        assert oona.ask("GET", done["file"]).status_code in (403, 404)
        looking.execute("UPDATE cost_export SET expires_at = now() WHERE public_id = %s", [first.rpartition("/")[2]])
        assert "has expired" in fay.ask("GET", done["file"]).text

        with writing() as second:
            signal_worker(signal.SIGKILL)
            worker.process.wait(10)
        production.start_again("worker")
        assert told(second)["state"] == "writing"
        looking.execute("UPDATE cost_export SET seen_at = now() - interval '11 minutes' WHERE public_id = %s", [second.rpartition("/")[2]])
        with Celery(broker=production.redis.url(3)) as calls:
            calls.send_task("scheduler.tasks.costs", queue="default", ignore_result=True)
        lost = wait_until(lambda: (now := told(second))["state"] == "failed" and now, seconds=90, what="the lost export to be told")
        assert "10 minutes" in lost["fault"] and lost["file"] is None
        worker = production.programs["worker"]
        with writing() as third:
            pass
        wait_until(lambda: told(third)["state"] == "done", seconds=120, what="another export")


def test_an_emptied_redis_costs_no_session_and_no_update(production, oona):
    production.redis.empty()

    assert oona.ask("GET", "/").status_code == 200
    with oona.socket() as socket:
        subscribe(socket, "gpus")
        production.manage.run("shell", "--verbosity", "0", "-c", PUBLISH)
        assert next_about(socket, "gpus")["topic"] == "gpus"


def test_a_call_wakes_a_scheduler_that_waits_for_what_is_due(tmp_path, migrated_postgres, redis_server):
    """It sleeps inside a task until the next thing is due. The worker of compose.yaml has to hear a call meanwhile."""
    alone = Production(tmp_path, migrated_postgres(), redis_server)
    alone.manage.env["GPUFLEET_REDIS_URL"] = redis_server.url(5)
    calls = Celery(broker=redis_server.url(5))
    with psycopg.connect(alone.manage.env["GPUFLEET_DATABASE_URL"], autocommit=True) as connection:

        def looked() -> int:
            return connection.execute("SELECT coalesce(max(epoch), 0) FROM scheduler_lease WHERE expires_at <= now()").fetchone()[0]

        def seconds_of_a_call() -> float:
            """How long a call takes to be heard, on this machine as busy as it is."""
            before, began = looked(), time.monotonic()
            calls.send_task("scheduler.tasks.tick", queue="scheduler", ignore_result=True)
            wait_until(lambda: looked() > before, seconds=90, what="a look")
            return time.monotonic() - began

        try:
            alone.start_again("scheduler")
            seconds_of_a_call()
            taken, idle = [], []
            for _ in range(5):
                connection.execute("UPDATE scheduler_lease SET next_wake_at = now() + interval '0.8 s'")
                seconds_of_a_call()  # since then it waits
                taken.append(seconds_of_a_call())
                connection.execute("UPDATE scheduler_lease SET next_wake_at = NULL")
                seconds_of_a_call()
                idle.append(seconds_of_a_call())  # nothing is waited for
        finally:
            calls.close()
            alone.stop()
    assert statistics.median(taken) < statistics.median(idle) + 0.3, (taken, idle)
