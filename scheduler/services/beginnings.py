"""When a change that is planned for later begins."""

from datetime import datetime, timedelta

from django.core.exceptions import ValidationError

FARTHEST = timedelta(days=366)


def begins_checked(*, begins_at: datetime, now: datetime) -> None:
    """A `ValidationError` at `begins` where it does not lie ahead, or lies too far ahead."""
    if begins_at <= now:
        raise ValidationError({"begins": ["The time must be in the future."]})
    if begins_at > now + FARTHEST:
        raise ValidationError({"begins": [f"The time is at most {FARTHEST.days} days ahead."]})
