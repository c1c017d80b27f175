"""Times on SQLite are read and spelt past Django's own ways, and come out the same."""

from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.db.backends.sqlite3.base import DatabaseOperations
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=-7)), ZoneInfo("UTC"), ZoneInfo("Europe/Berlin")])
EARLY, LATE = datetime(1, 1, 2), datetime(9999, 12, 30)


@given(moment=st.one_of(st.datetimes(EARLY, LATE, timezones=ZONES), st.datetimes(EARLY, LATE), st.none()))
def test_a_time_is_spelt_and_read_as_django_does(moment: datetime | None) -> None:
    plain = DatabaseOperations(connection)
    spelt = connection.ops.adapt_datetimefield_value(moment)

    assert spelt == plain.adapt_datetimefield_value(moment)
    assert connection.ops.convert_datetimefield_value(spelt, None, connection) == plain.convert_datetimefield_value(spelt, None, connection)


@pytest.mark.parametrize("text", ["2026-03-01", "2026-03-01 12:00", "2026-03-01T12:00:00Z", "2026-03-01 12:00:00.5+02:00"])
def test_what_somebody_else_wrote_is_read_as_django_does(text: str) -> None:
    plain = DatabaseOperations(connection)

    assert connection.ops.convert_datetimefield_value(text, None, connection) == plain.convert_datetimefield_value(text, None, connection)


@pytest.mark.parametrize("text", ["", "soon", "2026-13-01 12:00:00"])
def test_what_is_no_time_is_not_read_as_one(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a time|must be in"):
        connection.ops.convert_datetimefield_value(text, None, connection)
