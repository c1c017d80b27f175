"""One way to Redis for a process: connections that are kept, for what is asked or told many times a second and outside of any event loop."""

from functools import cache

import redis
from django.conf import settings
from redis.backoff import NoBackoff
from redis.retry import Retry

# What goes this way is help and not truth, so a Redis that is away may cost a request little.
SECONDS = 1.0


def kept_redis() -> "redis.Redis | None":
    """Redis, for any thread; None where there is none, as in the one-process console."""
    return _client(settings.REDIS_URL) if settings.REDIS_URL else None


@cache
def _client(url: str) -> "redis.Redis":
    # Once more, as a connection that was kept may have been closed since.
    return redis.Redis.from_url(url, socket_timeout=SECONDS, socket_connect_timeout=SECONDS, retry=Retry(NoBackoff(), 1))
