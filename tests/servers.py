"""Real servers for tests: PostgreSQL, Redis and the programs of gpufleet itself, each on its own port in its own folder.

A missing program skips the tests that need it and says which Debian package has it. CI names what must be there in `CI_REQUIRE`
(`postgres,redis,chromium,slurm,prometheus,libreoffice`): then the same test fails.

As a program it runs a command with servers around it, the whole suite on PostgreSQL for example:

    python -m tests.servers postgres redis -- python -m pytest tests/quotas
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from gpufleet.throwaway import PROJECT, Manage, Missing, Postgres, Program, Redis, accepts, free_port, wait_until

__all__ = ["PROJECT", "Manage", "Missing", "Postgres", "Prepared", "Program", "Redis", "accepts", "free_port", "required", "wait_until"]
DATABASE = "gpufleet.sqlite3"


def required(program: str, reason: str) -> None:
    """Skip the test, or fail it where CI_REQUIRE names the program."""
    if program in os.environ.get("CI_REQUIRE", "").split(","):
        pytest.fail(f"{reason} CI_REQUIRE names {program}, so this is a failure.", pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL server for this test run; `postgres.create_database()` gives the URL of an empty database."""
    try:
        server = Postgres()
    except Missing as error:
        required("postgres", str(error))
        raise
    yield server
    server.stop()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[Redis]:
    """A Redis server for this test run."""
    try:
        server = Redis()
    except Missing as error:
        required("redis", str(error))
        raise
    yield server
    server.stop()


class Prepared:
    """Data folders with a database that was made once for a test run, by whichever of its processes needed it first: the others copy the file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def migrated(self, data: Path, **settings: str) -> Manage:
        """An installation with all its tables and nothing in them."""
        self._copied("migrated", data, self._migrate)
        return Manage(data, **settings)

    def demo(self, data: Path, **settings: str) -> Manage:
        """An installation that holds the small demo as it is now, with the jobs of its last six hours."""
        self._copied("demo", data, self._seed)
        return Manage(data, **settings)

    def file(self, path: Path) -> None:
        """The database of `migrated`, as a file of that name."""
        self._copied("migrated", path.parent, self._migrate, path.name)

    def migrated_in(self, server: Postgres) -> str:
        """The URL of a new database of a PostgreSQL server, with all its tables and nothing in them."""
        url, kept = server.create_database(), self.folder / "migrated.sql"
        with self._alone("postgres"):
            if not kept.exists():
                Manage(self.folder / "postgres", GPUFLEET_DATABASE_URL=url).run("migrate", "--verbosity", "0")
                kept.write_text(server.dump(url))
                return url
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(kept.read_bytes())
        return url

    def _migrate(self, data: Path) -> None:
        Manage(data).run("migrate", "--verbosity", "0")

    def _seed(self, data: Path) -> None:
        self.migrated(data).run("seed_demo", "small", "--hours", "6", seconds=300)

    def _copied(self, name: str, data: Path, make: Callable[[Path], None], called: str = DATABASE) -> None:
        kept = self.folder / name
        with self._alone(name):
            if not (kept / DATABASE).exists():
                make(self.folder / f"{name}-unfinished")
                (self.folder / f"{name}-unfinished").rename(kept)
        data.mkdir(mode=0o700, parents=True, exist_ok=True)  # as the program makes it
        shutil.copy(kept / DATABASE, data / called)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        with (self.folder / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """`prepared.migrated(folder)` is a `Manage` over a database that need not be migrated again; `prepared.demo(folder)` holds the demo."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "prepared"
    folder.mkdir(exist_ok=True)
    return Prepared(folder)


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres, prepared: Prepared) -> Callable[[], str]:
    """`migrated_postgres()` gives the URL of a new PostgreSQL database with all its tables and nothing in them: a copy of one that was migrated."""
    kept: list[str] = []

    def give() -> str:
        if not kept:
            kept.append(prepared.migrated_in(postgres).rsplit("/", 1)[1])
        return postgres.create_database(like=kept[0])

    return give


def main(arguments: Sequence[str]) -> int:
    split = arguments.index("--")
    servers: list[Postgres | Redis] = []
    env = dict(os.environ)
    try:
        for name in arguments[:split]:
            server = {"postgres": Postgres, "redis": Redis}[name]()
            servers.append(server)
            if isinstance(server, Postgres):
                env["TEST_DATABASE_URL"] = server.create_database()
        return subprocess.run(arguments[split + 1 :], env=env).returncode
    finally:
        for server in servers:
            server.stop()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
