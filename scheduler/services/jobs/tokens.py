"""The token with which the ranks of an attempt report. It is made from the attempt's key, so that an order that is told twice tells the same one.

The database keeps only its digest, and none once the attempt is over.
"""

import hashlib
import hmac

from django.conf import settings


def attempt_token(key: str) -> str:
    return hmac.new(settings.SECRET_KEY.encode(), f"attempt:{key}".encode(), hashlib.sha256).hexdigest()


def token_digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
