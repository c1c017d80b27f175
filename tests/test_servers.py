"""The servers that tests run against: real, private, and gone afterwards."""

import os
import signal
import sys
from pathlib import Path

import psycopg
import pytest
import redis

from gpufleet.throwaway import kill_tree, tree_of
from tests.servers import Program, Redis, required, wait_until


@pytest.mark.postgres
def test_postgres_gives_a_new_empty_database_each_time(postgres):
    first, second = postgres.create_database(), postgres.create_database()
    with psycopg.connect(first) as connection:
        connection.execute("CREATE TABLE mine (id int)")
    with psycopg.connect(second) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = 'mine'").fetchone() == (0,)


@pytest.mark.redis
def test_redis_answers_and_a_second_one_is_another(redis_server):
    other = Redis()
    try:
        redis.Redis.from_url(redis_server.url()).set("mine", 1)
        assert redis.Redis.from_url(other.url()).get("mine") is None
    finally:
        other.stop()
    assert not other.folder.exists()


def test_a_program_dies_with_whoever_started_it(tmp_path):
    """A test run that is killed must not leave servers behind."""
    starter = Program(["sh", "-c", f"setpriv --pdeathsig=KILL -- sleep 600 & echo $! > {tmp_path}/pid; wait"], log=tmp_path / "log")
    pid = int(wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip()))
    # What is to happen is settled by setpriv, before it becomes the other program.
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", what="the child to be bound to its parent")
    starter.kill()

    def gone() -> bool:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] == "Z"

    wait_until(gone, what="the child to die")


def test_a_process_whose_threads_come_and_go_is_found(tmp_path):
    """One that ends while it is looked at hid the process: a console was to be killed, and went on."""
    churn = "import threading\nprint('up', flush=True)\nwhile True:\n    threading.Thread(target=int).start()"
    program = Program([sys.executable, "-c", churn], log=tmp_path / "log")
    program.wait_for(lambda: "up" in program.output(), what="its threads")

    assert all(program.pid in tree_of(program.pid) for _ in range(3000))

    kill_tree(program.pid)
    assert program.process.wait(10) == -signal.SIGKILL


def test_stopping_returns_the_exit_status(tmp_path):
    program = Program(["sh", "-c", "trap 'exit 7' TERM; echo up; while :; do sleep 0.05; done"], log=tmp_path / "log")
    program.wait_for(lambda: "up" in program.output(), what="it to start")

    assert program.stop(signal.SIGTERM) == 7


def test_a_missing_program_skips_unless_it_is_required(monkeypatch):
    monkeypatch.setenv("CI_REQUIRE", "")
    with pytest.raises(pytest.skip.Exception, match="Debian package: postgresql"):
        required("postgres", "PostgreSQL is not installed (Debian package: postgresql).")
    monkeypatch.setenv("CI_REQUIRE", "redis,postgres")
    with pytest.raises(pytest.fail.Exception, match="CI_REQUIRE"):
        required("postgres", "PostgreSQL is not installed (Debian package: postgresql).")
