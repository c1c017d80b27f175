"""What is asked for in an address and is not known is refused: a misspelt `dry_run` would be left out otherwise, and submit."""

import difflib
from collections.abc import Callable, Iterator
from functools import cache, wraps
from typing import Any

from asgiref.sync import iscoroutinefunction
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from ninja import NinjaAPI
from ninja.operation import Operation

View = Callable[..., Any]
Which = tuple[str, str]


def known_parameters_only(api: NinjaAPI) -> Callable[[View], View]:
    """A decorator for all operations of an API; it looks once the caller is known to be one."""

    @cache
    def known() -> dict[Which, frozenset[str]]:
        views = [view for bound in api._get_bound_routers() for view in bound.path_operations.values()]
        return {_which(one.view_func): frozenset(_names(one)) for view in views for one in view.operations}

    def check(request: HttpRequest, operation: Which) -> None:
        names = known()[operation] if request.GET else frozenset()
        faults = {name: [_told(name, names)] for name in request.GET if name not in names}
        if faults:
            raise ValidationError(faults)

    def decorator(view: View) -> View:
        name = _which(view)
        if iscoroutinefunction(view):

            @wraps(view)
            async def later(request: HttpRequest, *args: Any, **named: Any) -> Any:
                check(request, name)
                return await view(request, *args, **named)

            return later

        @wraps(view)
        def plain(request: HttpRequest, *args: Any, **named: Any) -> Any:
            check(request, name)
            return view(request, *args, **named)

        return plain

    return decorator


def _which(view: View) -> Which:
    """An operation by its function: those of two modules may have one name."""
    return view.__module__, view.__name__


def _names(operation: Operation) -> Iterator[str]:
    for model in operation.models:
        if model.__ninja_param_source__ == "query":
            yield from getattr(model, "__ninja_flatten_map__", model.model_fields)
    for row in (operation.openapi_extra or {}).get("parameters", ()):
        if row["in"] == "query":
            yield row["name"]


def _told(name: str, names: frozenset[str]) -> str:
    meant = difflib.get_close_matches(name, names, 1, 0.7)
    there = f"there are {', '.join(sorted(names))}" if names else "there is none"
    return f"Unknown parameter; {f'{meant[0]} was perhaps meant' if meant else there}."
