"""A caller who says which revision of a row he read writes only on that one."""

from typing import Any, TypeVar

from django.db.models import Model, QuerySet

from gpufleet.core.faults import Stale

Row = TypeVar("Row", bound=Model)


def unchanged_or_stale(row: Any, revision: int | None, name: str = "") -> None:
    """`name` is what people call it; its public id, if nothing."""
    if revision is not None and row.revision != revision:
        raise Stale(f"{name or row.public_id} is at revision {row.revision} by now, not {revision}: reload it and try again.", row.revision)


def row_locked(rows: QuerySet[Row], key: int, *, revision: int | None, gone: Exception, name: str = "") -> Row:
    """The row as it is now, held until the end of the transaction: whoever read it before may have been overtaken, or it may be `gone`."""
    fresh = rows.select_for_update(of=("self",)).filter(pk=key).first()
    if fresh is None:
        raise gone
    unchanged_or_stale(fresh, revision, name)
    return fresh
