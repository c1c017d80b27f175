"""What a cancellation of a reservation does is told before it is done: by the names of jobs, in GPUs and in money."""

from datetime import timedelta

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from scheduler.models import JobState
from scheduler.presenters.tree_changes import cancellation_told
from scheduler.services.windows.previews import cancellation_preview
from scheduler.services.windows.reservations import reservation_cancel, reservation_request
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, Loop, leaf, state, submit

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)


def test_it_names_who_becomes_a_borrower_and_who_starts() -> None:
    builders.node(gpus=8)
    builders.rate(H100, since=NOON - HOUR, micros=2_000_000)
    research, other = leaf("research"), leaf("other")
    root = access_for_user(User.objects.create(username="root", is_superuser=True))
    times = {"starts_at": NOON - HOUR, "ends_at": NOON + 3 * HOUR}
    asked = {"name": "Review", "quota": research.path, "gpu_type": H100, "gpus": 8, **times}
    held = reservation_request(access=root, given=asked, now=NOON - 2 * HOUR)
    loop = Loop()
    mine = submit(research, gpus=4)
    loop.tick()
    loop.up(mine)
    theirs = submit(other, gpus=4)
    loop.after(hours=1).tick()
    assert (state(mine), state(theirs)) == (JobState.RUNNING, JobState.QUEUED), "the window keeps the rest for its owner"

    found = cancellation_preview(access=root, reservation=held, now=loop.now)

    told = cancellation_told(found)
    assert [(one.public_id, one.effects[0].text) for one in told.jobs] == [
        (mine.public_id, "Becomes a borrower"),
        (theirs.public_id, "Starts"),
    ]
    assert list(told.sentences) == [
        "The window that lasts ends now, and no window follows.",
        f"8 GPUs of {H100} are no longer reserved for {research.path}.",
        "The rest of this window is worth $32.00 at the guaranteed rate.",
        "Becomes a borrower: 1 job.",
        "Starts: 1 job.",
        "No owner is notified.",
    ]
    stranger = access_for_user(User.objects.create(username="stranger"))
    hidden = cancellation_preview(access=stranger, reservation=held, now=loop.now)
    assert (hidden.jobs, hidden.unseen, hidden.cost_micros) == ((), 2, None)
    # And so it comes about.
    reservation_cancel(access=root, reservation=held, now=loop.now)
    loop.tick()
    assert state(theirs) == JobState.STARTING
    assert cancellation_told(cancellation_preview(access=root, reservation=held, now=loop.now)).jobs == ()


def test_a_reason_is_written_whole_or_refused(personas) -> None:
    builders.node(gpus=8)
    start = now() + timedelta(days=2)
    asked = {"name": "Review", "quota": "acme/research", "gpu_type": H100, "gpus": 4, "starts_at": start, "ends_at": start + HOUR}
    held = reservation_request(access=personas.access("superuser"), given=asked, now=now())
    client, address = personas.client("superuser"), reverse("reservation_cancel", args=[held.public_id])

    long = client.post(address, {"revision": held.revision, "reason": "x" * 281})
    held.refresh_from_db()
    assert (long.status_code, held.state) == (422, "approved")
    assert "at most 280 characters" in long.content.decode()
    client.post(address, {"revision": held.revision, "reason": "x" * 280})

    assert AuditEntry.objects.get(action="reservation.cancel").reason == "x" * 280
