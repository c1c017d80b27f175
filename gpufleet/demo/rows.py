"""Rows that are inserted in bulk (`gpufleet.core.bulk`): their keys and columns."""

from datetime import UTC, datetime

from django.core.management.color import no_style
from django.db import connection, models

LEDGER_COLUMNS = (
    *("attempt", "job", "attempt_number", "role", "worker", "surplus", "cluster", "node", "gpu_type", "gpu_milli", "parts", "tier", "pool", "phase"),
    *("share_class", "quota_id", "quota_path", "job_class", "priority", "preemptible", "owner", "labels", "stated_cost_centre", "cost_centre"),
    *("began_at", "since", "until"),
)


def next_key(model: type[models.Model]) -> int:
    """The key from which rows with stated keys may be inserted, in a transaction that nobody else writes the table in."""
    return (model._default_manager.aggregate(most=models.Max("pk"))["most"] or 0) + 1


def keys_stated(*tables: type[models.Model]) -> None:
    """After rows with stated keys: let the database count on from them."""
    with connection.cursor() as cursor:
        for statement in connection.ops.sequence_reset_sql(no_style(), tables):
            cursor.execute(statement)


def moment_of(at: int) -> datetime:
    return datetime.fromtimestamp(at / 1000, UTC)


def cost_centre_of(centres: dict[str, str], path: str) -> str:
    steps = path.split("/")
    uppers = ("/".join(steps[:depth]) for depth in range(len(steps), 0, -1))
    return next((centres[upper] for upper in uppers if centres.get(upper)), "")
