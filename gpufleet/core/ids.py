"""Public ids: a prefix that says what it is and a number that is never used twice, as in `j-1042`."""

from django.db import DEFAULT_DB_ALIAS, connections

from gpufleet.core.prepared import prepared_cursor


def public_numbers(count: int) -> range:
    """Take the next `count` numbers of the one sequence. Numbers of a transaction that is rolled back are handed out again, never a committed one."""
    with prepared_cursor(connections[DEFAULT_DB_ALIAS]) as cursor:
        cursor.execute(
            "INSERT INTO sequence (name, last) VALUES ('public', %s)"
            " ON CONFLICT (name) DO UPDATE SET last = sequence.last + excluded.last RETURNING last",
            [count],
        )
        (last,) = cursor.fetchone()
    return range(last - count + 1, last + 1)


def public_id(prefix: str) -> str:
    return f"{prefix}-{public_numbers(1)[0]}"


def public_ids(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in public_numbers(count)]
