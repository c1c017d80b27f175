"""The order of the parts of Home, kept per person: for each page two columns of parts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.models import User
from quotas.permissions import Access

Columns = tuple[tuple[str, ...], ...]
Way = Literal["up", "down", "across"]
# The parts of each page as they stand for everybody who has arranged nothing; their templates are in dashboards/home/parts.
USUAL: Mapping[str, Columns] = {
    "overview": (("chart", "types", "waits", "holders"), ("sick", "idle", "queue")),
    "home_team": (("waiting", "running", "failed"), ("quota", "budgets", "idle")),
    "home_on_call": (("nodes", "waits"), ("alerts", "idle")),
    "home_month": (("departments", "days"), ("budgets", "causes")),
}
NAMES = {
    "alerts": "Alerts",
    "budgets": "Budgets",
    "causes": "Idle cost by cause",
    "chart": "Allocation and utilization",
    "days": "Cost by day",
    "departments": "By department",
    "failed": "Failed jobs",
    "holders": "Idle by team",
    "idle": "Idle allocations",
    "nodes": "Nodes",
    "queue": "Queue",
    "quota": "Quota",
    "running": "Running jobs",
    "sick": "Needs attention",
    "types": "By GPU type",
    "waiting": "Waiting jobs",
    "waits": "Longest waits",
}


@dataclass(frozen=True, slots=True)
class Move:
    """One way a part can go, and whether it can from where it is."""

    way: Way
    name: str
    is_possible: bool


@dataclass(frozen=True, slots=True)
class Placed:
    """One part in its place."""

    key: str
    name: str
    template: str
    moves: tuple[Move, ...]


def columns_of(user: User | None, page: str) -> Columns:
    """The person's own order. What it does not name stands at the end of its usual column; what there is no more is left out."""
    kept = (user.home_order if user else {}).get(page)
    if not kept:
        return USUAL[page]
    known = {key for column in USUAL[page] for key in column}
    own = [[key for key in column if key in known] for column in kept]
    placed = {key for column in own for key in column}
    return tuple((*mine, *(key for key in usual if key not in placed)) for mine, usual in zip(own, USUAL[page], strict=True))


def placed(page: str, columns: Columns) -> list[list[Placed]]:
    return [
        [Placed(key, NAMES[key], f"dashboards/home/parts/{page}_{key}.html", _moves(number, place, len(column))) for place, key in enumerate(column)]
        for number, column in enumerate(columns)
    ]


def _moves(column: int, place: int, count: int) -> tuple[Move, ...]:
    across = "Left" if column else "Right"
    return (Move("up", "Up", place > 0), Move("down", "Down", place < count - 1), Move("across", across, True))


def moved(columns: Columns, part: str, way: str) -> Columns:
    """The columns after one move; as they were where it leads nowhere. Across, a part goes to the end of the other column."""
    number = next((number for number, column in enumerate(columns) if part in column), None)
    if number is None:
        raise ValidationError({"part": f"There is no part {part!r} on this page."})
    mine, other = list(columns[number]), list(columns[1 - number])
    place = mine.index(part)
    if way == "across":
        other.append(mine.pop(place))
    elif way in ("up", "down"):
        to = place - 1 if way == "up" else place + 1
        if 0 <= to < len(mine):
            mine[place], mine[to] = mine[to], mine[place]
    else:
        raise ValidationError({"move": "Move up, down or across."})
    both = (tuple(mine), tuple(other))
    return both if number == 0 else both[::-1]


def home_arrange(*, access: Access, page: str, columns: Sequence[Sequence[str]] | None) -> None:
    """One's own order of a page of Home; None: the usual one. Each part of the page stands in it once."""
    if page not in USUAL:
        raise ValidationError({"page": "There is no such page of Home."})
    if columns is not None and (len(columns) != 2 or sorted(key for column in columns for key in column) != sorted(sum(USUAL[page], ()))):
        raise ValidationError({"columns": "Name each part of the page once, in two columns."})
    assert access.actor.user is not None
    with transaction.atomic():
        person = User.objects.select_for_update(no_key=True).get(pk=access.actor.user.pk)
        before: dict[str, Any] = dict(person.home_order)
        after = {key: kept for key, kept in before.items() if key != page}
        if columns is not None:
            after[page] = [list(column) for column in columns]
        person.home_order = after
        person.save(update_fields=["home_order"])
        access.actor.user.home_order = after
        audit_record(
            actor=access.actor,
            action="person.update",
            kind="person",
            object_id=person.public_id,
            before={"home_order": before},
            after={"home_order": after},
        )
