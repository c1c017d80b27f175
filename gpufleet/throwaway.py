"""Programs that live as long as whoever started them: servers for benchmarks and tests, on their own ports and in their own folders.

Nothing here is for production: PostgreSQL runs without durability and Redis keeps nothing.
"""

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psycopg
import redis
from psycopg import sql

PROJECT = Path(__file__).resolve().parent.parent
_ports_given: set[int] = set()


class Missing(Exception):
    """A server program that is not installed."""


def free_port() -> int:
    """A port that nobody listens on, below the range from which the kernel gives ports to outgoing connections."""
    for port in range(20_000 + (os.getpid() * 97) % 8_000, 32_000):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            if port not in _ports_given:
                _ports_given.add(port)
                return port
    raise RuntimeError("no free port")


def wait_until(check: Callable[[], Any], *, seconds: float = 30, what: str = "") -> Any:
    """The first true answer of `check`; a failure with `what` when none comes in time."""
    deadline = time.monotonic() + seconds
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what or check}")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """A child process with its output in a file. It dies with us, also when we are killed."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        user: pwd.struct_passwd | None = None,
        cwd: Path | None = None,
    ) -> None:
        drop = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"] if user else []
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                ["setpriv", "--pdeathsig=KILL", *drop, "--", *command],
                stdout=output,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=dict(env) if env is not None else None,
                cwd=cwd or (PROJECT if user is None else log.parent),
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_for(self, check: Callable[[], Any], *, seconds: float = 90, what: str) -> Any:
        """Like `wait_until`, but a process that ends says so at once."""

        def alive_and() -> Any:
            if self.process.poll() is not None:
                raise AssertionError(f"{self.process.args!r} ended with {self.process.returncode} before {what}:\n{self.output()[-4000:]}")
            return check()

        try:
            return wait_until(alive_and, seconds=seconds, what=what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.output()[-4000:]}") from None

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.process.kill()
        self.process.wait()

    def stop(self, sent: signal.Signals = signal.SIGTERM, *, seconds: float = 15) -> int:
        """Ask it to end and return its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(sent)
            try:
                self.process.wait(seconds)
            except subprocess.TimeoutExpired:
                self.kill()
        return self.process.returncode


def _folder(owner: pwd.struct_passwd | None = None) -> Path:
    """A short path, as the path of a Unix socket may have 108 bytes at most."""
    folder = Path(tempfile.mkdtemp(prefix="gf-"))
    if owner:
        os.chown(folder, owner.pw_uid, owner.pw_gid)
    return folder


def tree_of(pid: int) -> list[int]:
    """A process and all that descend from it; of one that has ended, nothing."""
    below: list[int] = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
    for task in tasks:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended; the process goes on
            below += [int(child) for child in (task / "children").read_text().split()]
    return [pid, *(process for child in below for process in tree_of(child))]


def kill_tree(pid: int) -> None:
    """All of them at once, as a machine that loses power does."""
    for process in tree_of(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


class Postgres:
    """One PostgreSQL server without durability. Databases are cheap: take a new one for each test that commits.

    A durable one keeps through a kill what it has committed.
    """

    def __init__(self, *, durable: bool = False) -> None:
        programs = max(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]), default=None)
        found = str(programs) if programs else shutil.which("initdb")
        if found is None:
            raise Missing("PostgreSQL is not installed (Debian package: postgresql).")
        self.binaries = binaries = Path(found).parent
        user = _unprivileged("postgres", "nobody")
        self.folder = _folder(user)
        self.port = free_port()
        run = Program(
            [f"{binaries}/initdb", "-D", f"{self.folder}/data", "-U", "gpufleet", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"],
            log=self.folder / "initdb.log",
            user=user,
        )
        if run.process.wait(60):
            raise RuntimeError(run.output())
        options = ["max_connections=200", "listen_addresses=127.0.0.1"]
        options += [] if durable else ["fsync=off", "synchronous_commit=off", "full_page_writes=off"]
        options += [f"port={self.port}", f"unix_socket_directories={self.folder}", "log_min_messages=warning"]
        self._command = [f"{binaries}/postgres", "-D", f"{self.folder}/data", *(part for option in options for part in ("-c", option))]
        self._user = user
        self.start_again()

    def start_again(self) -> None:
        self.program = Program(self._command, log=self.folder / "postgres.log", user=self._user)
        self.program.wait_for(self._answers, what="PostgreSQL to answer")

    def kill(self) -> None:
        """The server with all its sessions, without a word."""
        kill_tree(self.program.pid)
        self.program.process.wait()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True

    def url(self, database: str) -> str:
        return f"postgresql://gpufleet@127.0.0.1:{self.port}/{database}"

    def create_database(self, like: str = "template1") -> str:
        """The URL of a new database: an empty one, or a copy of the database `like`, which nobody uses meanwhile."""
        name = f"t{uuid.uuid4().hex[:12]}"
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(like)))
        return self.url(name)

    def schema(self, url: str) -> str:
        """The structure of a database, as pg_dump writes it."""
        return self._dumped("--schema-only", url)

    def dump(self, url: str) -> str:
        """Statements that make the structure and the rows of a database."""
        return self._dumped("--inserts", url)

    def _dumped(self, *arguments: str) -> str:
        done = subprocess.run([f"{self.binaries}/pg_dump", "--no-owner", *arguments], capture_output=True, text=True, check=True)
        return "".join(line for line in done.stdout.splitlines(keepends=True) if not line.startswith(("\\restrict", "\\unrestrict")))

    def stop(self) -> None:
        self.program.stop(signal.SIGINT)
        shutil.rmtree(self.folder, ignore_errors=True)

    close = stop


class Redis:
    """One Redis server that keeps nothing."""

    def __init__(self) -> None:
        found = shutil.which("redis-server")
        if found is None:
            raise Missing("Redis is not installed (Debian package: redis-server).")
        self.folder = _folder()
        self.port = free_port()
        arguments = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", "", "--appendonly", "no"]
        self._command = [found, *arguments]
        self.start_again()

    def start_again(self) -> None:
        self.program = Program(self._command, log=self.folder / "redis.log")
        self.program.wait_for(lambda: accepts(self.port), what="Redis to answer")

    def kill(self) -> None:
        self.program.kill()

    def url(self, number: int = 0) -> str:
        return f"redis://127.0.0.1:{self.port}/{number}"

    def empty(self) -> None:
        with redis.Redis.from_url(self.url()) as client:
            client.flushall()

    def stop(self) -> None:
        self.program.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


def _unprivileged(*names: str) -> pwd.struct_passwd | None:
    """Whom to become when we are root, as PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    return next(known[name] for name in names if name in known)


class Manage:
    """Runs `gpufleet` commands as an operator does: another process, its own environment, nothing shared with the test's database."""

    def __init__(self, data: Path, **settings: str) -> None:
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("GPUFLEET_", "DJANGO_", "TEST_", "PYTEST_"))}
        self.data = data
        self.env = {**inherited, "GPUFLEET_DATA_DIR": str(data), "PYTHONPATH": str(PROJECT), "PYTHONUNBUFFERED": "1", **settings}

    def run(self, *arguments: str, check: bool = True, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, str(PROJECT / "manage.py"), *arguments], env=self.env, capture_output=True, text=True, timeout=seconds, cwd=PROJECT
        )
        if check and done.returncode:
            raise AssertionError(f"gpufleet {' '.join(arguments)} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
        return done

    def start(self, *command: str, name: str) -> Program:
        """A long-running Python program, `start("-m", "uvicorn", …)` or `start("manage.py", "up")`, its log in the data folder."""
        self.data.mkdir(parents=True, exist_ok=True)
        return Program([sys.executable, *command], log=self.data / f"{name}.log", env=self.env)
