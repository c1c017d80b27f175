"""Work that is done again and again, by one at a time: who may take the next turn, and where the last one ended.

A turn is one transaction, and its first statement locks the row of the work. So a doubled or late call finds that the turn is taken and stops, and a
process that is killed leaves the row where it was.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from gpufleet.core.models import Progress
from gpufleet.core.times import whole_millis

# A last turn that lies further ahead than this was taken by a clock that has been set back since; two machines' clocks don't differ by so much.
SET_BACK = timedelta(seconds=10)


@dataclass(frozen=True, slots=True)
class Turn:
    """From where the last turn ended to where this one does. `moment` is now, or just after `before` where the clock was set back behind it."""

    before: datetime
    moment: datetime


def turn_take(*, name: str, now: datetime, at_least: timedelta) -> Turn | None:
    """Take the turn in the caller's transaction, if the last one is `at_least` that long ago.

    None: it is not time yet, somebody else just did it, or this is the first call ever, which only notes the moment. What is written in turns never
    runs backwards: after the clock was set back each turn goes on from the last until the clock has caught up.
    """
    assert connection.in_atomic_block, "a turn ends with its transaction"
    now = whole_millis(now)
    row = Progress.objects.select_for_update().filter(name=name).first()
    if row is None:
        Progress.objects.bulk_create([Progress(name=name, reached_at=now)], ignore_conflicts=True)
        return None
    moment = row.reached_at + at_least if row.reached_at > now + SET_BACK else now
    if row.reached_at > moment - at_least:
        return None
    Progress.objects.filter(name=name).update(reached_at=moment)
    return Turn(row.reached_at, moment)
