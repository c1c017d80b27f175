"""The SQLite backend: writers queue first come, first served, and nobody ever meets "database is locked"."""

import sqlite3
import subprocess
import sys
import threading

import pytest
from django.db import OperationalError, connection, connections, transaction

from gpufleet.core.models import Sequence
from gpufleet.core.sqlite.base import FairLock
from tests.servers import PROJECT, wait_until

only_sqlite = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="about SQLite")


def test_the_lock_goes_to_whoever_waited_longest():
    lock, order, waiting = FairLock(), [], []
    first = object()
    assert lock.acquire(first, timeout=1)

    def wait(number: int) -> None:
        mine = object()
        assert lock.acquire(mine, timeout=10)
        order.append(number)
        lock.release(mine)

    for number in range(8):
        thread = threading.Thread(target=wait, args=(number,))
        thread.start()
        waiting.append(thread)
        wait_until(lambda expected=number + 1: len(lock._queue) == expected, what="the thread to queue")
    lock.release(first)
    for thread in waiting:
        thread.join()

    assert order == list(range(8))


def test_the_lock_is_given_once_however_often_its_owner_asks():
    lock, owner = FairLock(), object()

    assert lock.acquire(owner, timeout=1)
    assert lock.acquire(owner, timeout=1)
    lock.release(owner)

    assert lock.acquire(object(), timeout=0)


def test_whoever_gives_up_stands_in_the_queue_no_longer():
    lock, first, second, third = FairLock(), object(), object(), object()
    lock.acquire(first, timeout=1)

    assert not lock.acquire(second, timeout=0.01)
    lock.release(second)
    lock.release(first)

    assert lock.acquire(third, timeout=0)


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_a_connection_that_is_closed_in_a_transaction_gives_the_turn_back():
    def leave_open() -> None:
        connection.set_autocommit(False)
        Sequence.objects.create(name="left")
        connection.close()

    thread = threading.Thread(target=leave_open)
    thread.start()
    thread.join()

    with transaction.atomic():
        Sequence.objects.create(name="mine")
    assert not Sequence.objects.filter(name="left").exists()


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_never_ends_is_named_after_the_timeout(monkeypatch):
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            held.set()
            done.wait(10)
        connections.close_all()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(10)
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "timeout", 0.05)
    try:
        with pytest.raises(OperationalError, match="has not ended"), transaction.atomic():
            pass
    finally:
        done.set()
        thread.join()


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_six_writers_all_get_their_turn_and_lose_nothing():
    """Each reads, thinks and writes: what a deferred transaction answers with "database is locked"."""
    Sequence.objects.create(name="shared", last=0)
    counts = [0] * 6
    together = threading.Barrier(len(counts), timeout=30)
    errors: list[Exception] = []

    def work(number: int) -> None:
        try:
            connection.ensure_connection()
            together.wait()  # who is started first is not to have been alone
            while sum(counts) < 600:
                with transaction.atomic():
                    row = Sequence.objects.get(name="shared")
                    row.last += 1
                    row.save(update_fields=["last"])
                counts[number] += 1
        except OperationalError as error:
            errors.append(error)
        finally:
            connections.close_all()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert Sequence.objects.get(name="shared").last == sum(counts)
    assert min(counts) > 0
    assert max(counts) <= 1.5 * min(counts), f"one writer was starved: {counts}"


WRITER = """
import django; django.setup()
from django.db import transaction
from gpufleet.core.ids import public_ids
for _ in range(60):
    with transaction.atomic():
        public_ids("x", 1)
"""


def test_two_processes_write_one_file_without_losing_a_number(prepared, tmp_path):
    manage = prepared.migrated(tmp_path, DJANGO_SETTINGS_MODULE="gpufleet.settings")

    writers = [subprocess.Popen([sys.executable, "-c", WRITER], env=manage.env, cwd=PROJECT, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    told = [writer.communicate(timeout=60)[1] for writer in writers]

    assert [writer.returncode for writer in writers] == [0, 0], told
    with sqlite3.connect(tmp_path / "gpufleet.sqlite3") as file:
        assert file.execute("SELECT last FROM sequence WHERE name = 'public'").fetchone() == (120,)
