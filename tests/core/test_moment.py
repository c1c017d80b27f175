"""Reads of one moment, while somebody else writes."""

from threading import Thread
from typing import Any

import pytest
from django.db import DatabaseError, connection, connections, transaction

from gpufleet.core.models import Progress
from gpufleet.core.moment import one_moment
from gpufleet.core.prepared import PreparedUpdate
from gpufleet.core.times import now

only_sqlite = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="about SQLite")


def write(name: str) -> None:
    try:
        with transaction.atomic():
            Progress.objects.create(name=name, reached_at=now())
    finally:
        connections.close_all()


@pytest.mark.django_db(transaction=True)
def test_what_is_written_meanwhile_is_not_seen():
    writer = Thread(target=write, args=("meanwhile",))
    with one_moment():
        before = Progress.objects.count()
        writer.start()
        writer.join(10)
        assert not writer.is_alive(), "the writer was kept waiting"
        assert Progress.objects.count() == before

    assert Progress.objects.count() == before + 1


@pytest.mark.django_db(transaction=True)
def test_a_reader_does_not_wait_for_a_writer():
    seen: list[int] = []

    def read() -> None:
        try:
            with one_moment():
                seen.append(Progress.objects.count())
        finally:
            connections.close_all()

    reader = Thread(target=read)
    with transaction.atomic():
        Progress.objects.create(name="not yet committed", reached_at=now())
        reader.start()
        reader.join(10)
        assert seen == [0]


@pytest.mark.django_db(transaction=True)
def test_nothing_can_be_written_in_it_and_everything_after_it():
    with pytest.raises(DatabaseError), one_moment():
        Progress.objects.create(name="in a moment", reached_at=now())

    Progress.objects.create(name="after it", reached_at=now())
    assert list(Progress.objects.values_list("name", flat=True)) == ["after it"]


@only_sqlite
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "statement",
    [
        "  delete from progress",
        "CREATE TABLE made (id integer)",
        "PRAGMA user_version = 7",
        "WITH named AS (SELECT 'sly' AS name) INSERT INTO progress (name, reached_at) SELECT name, '2026-03-01' FROM named",
    ],
)
def test_a_statement_that_writes_is_refused_however_it_begins(statement: str) -> None:
    Progress.objects.create(name="before", reached_at=now())

    with pytest.raises(DatabaseError, match="while only reading"), one_moment(), connection.cursor() as cursor:
        cursor.execute(statement)

    assert not connection.in_atomic_block
    assert list(Progress.objects.values_list("name", flat=True)) == ["before"]


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_many_rows_at_once_are_refused_as_well() -> None:
    with pytest.raises(DatabaseError, match="while only reading"), one_moment(), connection.cursor() as cursor:
        cursor.executemany("INSERT INTO progress (name, reached_at) VALUES (%s, '2026-03-01')", [("one",), ("two",)])

    assert not Progress.objects.exists()


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_a_prepared_statement_that_writes_is_refused_as_well() -> None:
    change = PreparedUpdate(lambda name: (Progress.objects.all(), {"name": name}))
    Progress.objects.create(name="before", reached_at=now())

    with pytest.raises(DatabaseError, match="while only reading"), one_moment():
        change("after")

    assert list(Progress.objects.values_list("name", flat=True)) == ["before"]


@only_sqlite
@pytest.mark.django_db(transaction=True)
def test_it_does_not_have_the_statements_made_anew_that_sqlite_has_kept() -> None:
    """Which every change of a pragma does."""
    said: list[str] = []
    with one_moment():
        assert not Progress.objects.exists()
    connection.connection.set_trace_callback(said.append)
    try:
        with one_moment():
            assert not Progress.objects.exists()
    finally:
        connection.connection.set_trace_callback(None)

    assert [line.split()[0] for line in said] == ["BEGIN", "SELECT", "COMMIT"]


@pytest.mark.django_db(transaction=True)
def test_a_failed_reader_leaves_nothing_open():
    with pytest.raises(ZeroDivisionError), one_moment():
        Progress.objects.count()
        raise ZeroDivisionError

    with transaction.atomic():
        Progress.objects.create(name="after a failure", reached_at=now())
    assert Progress.objects.filter(name="after a failure").exists()


@pytest.mark.django_db
def test_inside_a_transaction_its_own_writes_are_seen():
    before = Progress.objects.count()
    with transaction.atomic():
        Progress.objects.create(name="own", reached_at=now())
        with one_moment():
            assert Progress.objects.count() == before + 1


@pytest.mark.django_db(transaction=True)
def test_who_is_struck_down_in_it_leaves_a_connection_that_can_write():
    def struck(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if seen or sql.startswith("SELECT"):
            seen.append(sql)
            raise KeyboardInterrupt
        return execute(sql, params, many, context)

    seen: list[str] = []
    with pytest.raises(KeyboardInterrupt), connection.execute_wrapper(struck), one_moment():
        Progress.objects.count()

    Progress.objects.create(name="after it", reached_at=now())
