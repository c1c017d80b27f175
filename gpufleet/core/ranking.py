"""What a search puts first, and how names with numbers are ordered."""

import re

from django.db.models import Case, IntegerField, Value, When


def by_closeness(column: str, text: str) -> Case:
    """Orders rows so that the one with exactly this name comes first, then those that begin with it, then the rest."""
    return Case(
        When(**{f"{column}__iexact": text}, then=Value(0)),
        When(**{f"{column}__istartswith": text}, then=Value(1)),
        default=Value(2),
        output_field=IntegerField(),
    )


def natural(name: str) -> list[tuple[int, int, str]]:
    """A key by which spine-2 stands before spine-10."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", name) if part]
