"""Times are UTC and whole milliseconds everywhere, so that intervals add up and both databases keep the same value."""

from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import models
from django.utils import timezone

MILLISECOND = timedelta(milliseconds=1)


def whole_millis(moment: datetime) -> datetime:
    rest = moment.microsecond % 1000
    return moment.replace(microsecond=moment.microsecond - rest) if rest else moment


def now() -> datetime:
    """The wall clock, as it may be stored. Only edges call this; services take `now` as an argument."""
    return whole_millis(timezone.now())


def millis(moment: datetime) -> int:
    """Milliseconds since 1970, exact."""
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86_400 + delta.seconds) * 1000 + delta.microseconds // 1000


def written(moment: datetime) -> str:
    """As pages, files and messages write it: in UTC, to the millisecond."""
    return f"{moment.astimezone(UTC).isoformat(timespec='milliseconds').removesuffix('+00:00')}Z"


class MomentField(models.DateTimeField):
    """A point in time, cut to the whole millisecond on its way into the database."""

    def get_prep_value(self, value: Any) -> Any:
        prepared = super().get_prep_value(value)
        return whole_millis(prepared) if isinstance(prepared, datetime) else prepared

    def pre_save(self, model_instance: models.Model, add: bool) -> Any:
        value = super().pre_save(model_instance, add)
        if isinstance(value, datetime):
            value = whole_millis(value)
            setattr(model_instance, self.attname, value)
        return value


class Seconds(models.Func):
    """A stored moment as whole seconds since 1970. Of thousands of rows that is cheaper to read than a datetime each."""

    output_field = models.BigIntegerField()
    template = "FLOOR(EXTRACT(EPOCH FROM %(expressions)s))::bigint"

    def as_sqlite(self, compiler: Any, connection: Any, **rest: Any) -> Any:
        return self.as_sql(compiler, connection, template="CAST(strftime('%%%%s', %(expressions)s) AS INTEGER)", **rest)
