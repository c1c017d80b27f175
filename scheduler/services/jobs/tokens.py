"""The tokens of an attempt: the one with which its ranks report, and the one that its service may ask visitors for. Both are made from the attempt's
key, so that an order that is told twice tells the same ones.

Of the first the database keeps only the digest, and none once the attempt is over; of the second nothing.
"""

import hashlib
import hmac

from django.conf import settings


def attempt_token(key: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), f"attempt:{key}".encode(), hashlib.sha256).hexdigest()


def access_token(key: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), f"access:{key}".encode(), hashlib.sha256).hexdigest()[:40]


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
