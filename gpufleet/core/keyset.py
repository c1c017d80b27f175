"""Paging by the last row seen: as quick on the thousandth page as on the first, and no row is skipped or shown twice when others come and go.

A page is asked for by a signed token that holds the sort values of the row it lies behind (or before). Ties end in the primary key; rows without a
value come last, in either direction.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from functools import reduce
from typing import Any

from django.core import signing
from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import F, Q, QuerySet
from django.db.models.expressions import Combinable

_SIGNER = signing.Signer(salt="gpufleet.keyset")


class BadToken(ValueError):
    """The token was cut short, tampered with, or belongs to a list in another order."""


@dataclass(frozen=True, slots=True)
class Key:
    """One part of an order: a path such as `node__name`, or an expression with an output field."""

    expression: str | Combinable
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Slice:
    """One page of rows. `first` counts from 1; the tokens are empty where there is nothing more."""

    rows: list[Any]
    first: int
    after: str
    before: str

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


@dataclass(frozen=True, slots=True)
class _Term:
    name: str
    descending: bool
    nullable: bool

    def order(self) -> Any:
        # Without a word about NULLs the database can walk an index, so nothing is said where there are none.
        nulls = {"nulls_last": True} if self.nullable else {}
        return F(self.name).desc(**nulls) if self.descending else F(self.name).asc(**nulls)

    def reversed_order(self) -> Any:
        nulls = {"nulls_first": True} if self.nullable else {}
        return F(self.name).asc(**nulls) if self.descending else F(self.name).desc(**nulls)

    def beyond(self, value: Any, *, backwards: bool) -> Q:
        """Rows that stand strictly behind (or, walking backwards, before) the value."""
        if value is None:
            return Q(**{f"{self.name}__isnull": False}) if backwards else Q(pk__in=[])
        condition = Q(**{f"{self.name}__{'lt' if self.descending != backwards else 'gt'}": value})
        return condition | Q(**{f"{self.name}__isnull": True}) if self.nullable and not backwards else condition

    def same(self, value: Any) -> Q:
        return Q(**{f"{self.name}__isnull": True}) if value is None else Q(**{self.name: value})


def keyset_page(queryset: QuerySet[Any, Any], *, order: Sequence[Key], size: int, after: str = "", before: str = "") -> Slice:
    """The page of at most `size` rows behind `after` or before `before`; the first page where neither is given. One query."""
    ordered, terms = _ordered(queryset, order)
    name = _fingerprint(order)
    backwards = bool(before)
    position = 1
    if after or before:
        position, values = _opened(before or after, name, ordered, terms)
        ordered = ordered.filter(_bound(terms, values, backwards=backwards))
    if backwards:
        ordered = ordered.order_by(*(term.reversed_order() for term in terms))
    found = list(ordered[: size + 1])
    more, rows = len(found) > size, found[:size]
    if backwards:
        rows.reverse()
        # Rows may have gone since the token was made; the count is for orientation and never falls below the first.
        first = max(1, position - len(rows)) if more else 1
        return Slice(
            rows, first, _sealed(first + len(rows), name, rows[-1], terms) if rows else "", _sealed(first, name, rows[0], terms) if more else ""
        )
    following = _sealed(position + len(rows), name, rows[-1], terms) if more else ""
    return Slice(rows, position, following, _sealed(position, name, rows[0], terms) if after and rows else "")


def _ordered(queryset: QuerySet[Any, Any], order: Sequence[Key]) -> tuple[QuerySet[Any, Any], list[_Term]]:
    terms, columns = [], {}
    for number, key in enumerate([*order, Key("pk")]):
        name = f"order_{number}"
        columns[name] = F(key.expression) if isinstance(key.expression, str) else key.expression
        # The tie-breaker runs along with the last key, so that one index serves both directions.
        descending = order[-1].descending if number == len(order) and order else key.descending
        terms.append(_Term(name, descending, _nullable(queryset, key.expression)))
    annotated = queryset.annotate(**columns)
    return annotated.order_by(*(term.order() for term in terms)), terms


def _nullable(queryset: QuerySet[Any, Any], expression: str | Combinable) -> bool:
    """Whether a path can be NULL, or end at a row that is not there. Expressions and annotations are taken to be so."""
    if not isinstance(expression, str):
        return True
    options = queryset.model._meta
    for part in expression.split("__"):
        if part == "pk":
            return False
        try:
            field = options.get_field(part)
        except FieldDoesNotExist:
            return True
        if getattr(field, "null", True):
            return True
        if field.related_model is not None and not isinstance(field.related_model, str):
            options = field.related_model._meta
    return False


def _bound(terms: Sequence[_Term], values: Sequence[Any], *, backwards: bool) -> Q:
    alternatives, same = [], Q()
    for term, value in zip(terms, values, strict=True):
        alternatives.append(same & term.beyond(value, backwards=backwards))
        same &= term.same(value)
    behind = reduce(lambda left, right: left | right, alternatives)
    head, value = terms[0], values[0]
    if value is None or len(terms) == 1:
        return behind
    # Implied by the rest, but stated as one range it lets the database begin at the right place of an index.
    return (head.beyond(value, backwards=backwards) | head.same(value)) & behind if head.nullable else _from(head, value, backwards) & behind


def _from(head: _Term, value: Any, backwards: bool) -> Q:
    return Q(**{f"{head.name}__{'lte' if head.descending != backwards else 'gte'}": value})


def _fingerprint(order: Sequence[Key]) -> str:
    return ",".join(("-" if key.descending else "") + str(key.expression) for key in order)


def _value(row: Any, name: str) -> Any:
    return row[name] if isinstance(row, Mapping) else getattr(row, name)


def _plain(value: Any) -> Any:
    if isinstance(value, datetime | date):
        return value.isoformat()
    return str(value) if isinstance(value, Decimal) else value


def _sealed(position: int, name: str, row: Any, terms: Sequence[_Term]) -> str:
    return _SIGNER.sign_object([position, name, *(_plain(_value(row, term.name)) for term in terms)], compress=True)


def _opened(token: str, name: str, queryset: QuerySet[Any, Any], terms: Sequence[_Term]) -> tuple[int, list[Any]]:
    try:
        position, made_for, *plain = _SIGNER.unsign_object(token)
    except (signing.BadSignature, ValueError) as fault:
        raise BadToken("the place in the list can't be read") from fault
    if made_for != name or len(plain) != len(terms):
        raise BadToken("the place belongs to a list in another order")
    try:
        fields = [queryset.query.annotations[term.name].output_field for term in terms]
        return int(position), [None if value is None else field.to_python(value) for field, value in zip(fields, plain, strict=True)]
    except ValidationError as fault:
        raise BadToken("the place in the list can't be read") from fault
