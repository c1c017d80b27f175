"""Keys of rows that are inserted with them (`gpufleet.core.bulk` inserts)."""

from django.core.management.color import no_style
from django.db import connection, models


def next_key(model: type[models.Model]) -> int:
    """The key from which rows with stated keys may be inserted, in a transaction that nobody else writes the table in."""
    return (model._default_manager.aggregate(most=models.Max("pk"))["most"] or 0) + 1


def keys_stated(*tables: type[models.Model]) -> None:
    """After rows with stated keys: let the database count on from them."""
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), tables):
            cursor.execute(statement)
