"""Real servers for tests: PostgreSQL, Redis and the programs of gpufleet itself, each on its own port in its own folder.

A missing program skips the tests that need it and says which Debian package has it. CI names what must be there in `CI_REQUIRE`
(`postgres,redis,chromium`): then the same test fails.

As a program it runs a command with servers around it, the whole suite on PostgreSQL for example:

    python -m tests.servers postgres redis -- python -m pytest tests/quotas
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence

import pytest

from gpufleet.throwaway import PROJECT, Manage, Missing, Postgres, Program, Redis, accepts, free_port, wait_until

__all__ = ["PROJECT", "Manage", "Missing", "Postgres", "Program", "Redis", "accepts", "free_port", "required", "wait_until"]


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
