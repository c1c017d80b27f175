"""How long what failed is left alone: doubling, bounded, and spread out, so that what failed together does not come back together."""

import hashlib
from datetime import timedelta

FIRST_SECONDS = 30.0
LONGEST_SECONDS = 3600.0
MOST_DOUBLINGS = 20
LONGEST_AFTER_LOSS_SECONDS = 300.0  # what loses starts is mended for all jobs at once, and nobody tells them


def retry_delay(*, job_id: int, failures: int, longest: float = LONGEST_SECONDS) -> timedelta:
    """30 s after the first failure, doubling up to `longest`, give or take a fifth."""
    return spread(min(FIRST_SECONDS * 2 ** min(max(0, failures - 1), MOST_DOUBLINGS), longest), f"{job_id}:{failures}")


def spread(seconds: float, key: str) -> timedelta:
    """Give or take a fifth, drawn from a key: chance without a die."""
    drawn = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big") / 2**32
    return timedelta(milliseconds=round(1000 * seconds * (0.8 + 0.4 * drawn)))
