"""How many requests a caller may make in a minute."""

import hashlib
import math
import time

import structlog
from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest
from ninja.throttling import BaseThrottle
from redis.exceptions import RedisError

from gpufleet.core.kept_redis import kept_redis

log = structlog.get_logger(__name__)
WINDOW_SECONDS = 60


def _counted(key: str) -> int:
    """How many requests there were under this key, with this one."""
    client = kept_redis()
    if client is not None:
        try:
            with client.pipeline(transaction=False) as both:  # one way there and back, where a cache would go three times
                both.incr(f"gpufleet:{key}")
                both.expire(f"gpufleet:{key}", 2 * WINDOW_SECONDS)
                return int(both.execute()[0])
        except RedisError:
            # Nobody is turned away because nobody counts.
            log.warning("api_requests_are_not_counted", exc_info=True)
            return 0
    if cache.add(key, 1, timeout=2 * WINDOW_SECONDS):
        return 1
    try:
        return int(cache.incr(key))
    except ValueError:  # gone between the two, as when the cache was emptied
        return 1


class CallerLimit(BaseThrottle):
    """So many requests of one token or session within a minute of the clock, counted by all processes that share a cache.

    One object serves all threads, so nothing is kept in it between a request's count and the answer to it.
    """

    def allow_request(self, request: HttpRequest) -> bool:
        caller = hashlib.sha256(str(getattr(request, "auth", None) or self.get_ident(request)).encode()).hexdigest()
        key = f"api-requests:{int(time.time() // WINDOW_SECONDS)}:{caller}"
        return _counted(key) <= settings.API_REQUESTS_PER_MINUTE

    def wait(self) -> float:
        """Until the next minute begins."""
        return max(1, math.ceil(WINDOW_SECONDS - time.time() % WINDOW_SECONDS))
