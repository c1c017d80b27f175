"""Frozen values made by the thousand: their own constructor sets field by field past the freeze, which takes four times as long."""

from collections.abc import Callable
from dataclasses import MISSING, field, fields, make_dataclass
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def maker(kind: Callable[P, T]) -> Callable[P, T]:
    """Makes values of a frozen class with slots: what is given to it is what the class is given.

    What it makes is of a twin with the same slots that is not frozen, and of the class itself from the moment it is whole.
    """

    def freeze(value: Any) -> None:
        value.__class__ = kind

    made = cast(Any, kind)
    bare = [(one.name, Any) if one.default is MISSING else (one.name, Any, field(default=one.default)) for one in fields(made)]
    return cast(Callable[P, T], make_dataclass(made.__name__, bare, slots=True, namespace={"__post_init__": freeze}))
