"""The cache in Redis, which may be away: limits then count in this process, and nobody is kept from signing in."""

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import structlog
from django.core.cache.backends.locmem import LocMemCache
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)
# As in the one-process console: guesses under many names must not push out the count of the one that is aimed at.
MOST_ENTRIES = 50_000


class JsonSerializer:
    """Values as JSON. Django's own serializer unpickles what Redis holds, which runs code of whoever can write there."""

    def dumps(self, value: Any) -> bytes | int:
        if isinstance(value, int) and not isinstance(value, bool):
            return value  # Redis counts up only what is a number to it
        return json.dumps(value).encode()

    def loads(self, data: bytes | str) -> Any:
        return json.loads(data)


def _or_here(name: str) -> Callable[..., Any]:
    """The method of Redis' cache; while Redis is away, that of a cache of this process."""
    of_redis: Callable[..., Any] = getattr(RedisCache, name)

    @wraps(of_redis)
    def method(self: "SharedCache", *arguments: Any, **options: Any) -> Any:
        try:
            return of_redis(self, *arguments, **options)
        except (RedisError, OSError):
            log.warning("cache_is_away", operation=name, exc_info=True)
            return getattr(self.here, name)(*arguments, **options)

    return method


class SharedCache(RedisCache):
    def __init__(self, server: Any, params: dict[str, Any]) -> None:
        super().__init__(server, params)
        self.here = LocMemCache("while-redis-is-away", {"OPTIONS": {"MAX_ENTRIES": MOST_ENTRIES}})

    add, get, set, touch, delete, incr, has_key, clear = map(_or_here, ("add", "get", "set", "touch", "delete", "incr", "has_key", "clear"))
    get_many, set_many, delete_many = map(_or_here, ("get_many", "set_many", "delete_many"))
