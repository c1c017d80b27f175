"""How many requests a caller may make in a minute."""

import hashlib
import math
import time

from django.conf import settings
from django.core.cache import cache
from django.http import HttpRequest
from ninja.throttling import BaseThrottle

WINDOW_SECONDS = 60


class CallerLimit(BaseThrottle):
    """So many requests of one token or session within a minute of the clock, counted by all processes that share a cache.

    One object serves all threads, so nothing is kept in it between a request's count and the answer to it.
    """

    def allow_request(self, request: HttpRequest) -> bool:
        caller = hashlib.sha256(str(getattr(request, "auth", None) or self.get_ident(request)).encode()).hexdigest()
        key = f"api-requests:{int(time.time() // WINDOW_SECONDS)}:{caller}"
        if cache.add(key, 1, timeout=2 * WINDOW_SECONDS):
            return True
        try:
            return int(cache.incr(key)) <= settings.API_REQUESTS_PER_MINUTE
        except ValueError:  # gone between the two, as when the cache was emptied
            return True

    def wait(self) -> float:
        """Until the next minute begins."""
        return max(1, math.ceil(WINDOW_SECONDS - time.time() % WINDOW_SECONDS))
