"""The form of a reservation: the change beside what becomes of it, which follows what is typed."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.models import Reservation
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100

pytestmark = pytest.mark.django_db
TO_BE_SEEN = "What the reservation does is shown here."


@pytest.fixture
def client(personas):
    builders.node(gpus=8)
    builders.rate(H100, since=NOON, micros=2_500_000)
    return personas.client("superuser")


def _form(start: datetime | None = None, **given: Any) -> dict[str, Any]:
    start = start or now() + timedelta(days=2)
    times = {"start": f"{start:%Y-%m-%dT%H:00}", "end": f"{start + timedelta(hours=2):%Y-%m-%dT%H:00}", "zone": "UTC"}
    what = {"name": "Morning", "owner": "acme/research", "gpu_type": H100, "amount": 4, "shape": "gpus", "idle": "held"}
    return what | times | {"notice_min": 10, "lead_min": 15} | given


def test_what_it_does_is_shown_beside_it_once_it_is_clear(client):
    address = reverse("reservation_new")

    assert TO_BE_SEEN in client.get(address).content.decode()
    missing = client.post(address, _form(amount="", do="look"))
    assert missing.status_code == 200 and TO_BE_SEEN in missing.content.decode(), "what is missing is no fault of a preview"
    shown = client.post(address, _form(do="look")).content.decode()
    assert "It costs $20.00 at the guaranteed rate." in shown and "No owner is notified." in shown
    assert 'id="reservation-capacity" aria-label="Capacity">' in shown
    wrong = client.post(address, _form(amount="many", do="look")).content.decode()
    assert "How many: Enter a whole number." in wrong and "It costs" not in wrong
    full = client.post(address, _form(amount=9, do="look")).content.decode()
    assert "It costs" not in full and "<dt>Healthy</dt><dd>8 GPUs" in full, "why it cannot be made is beside the figures"
    assert client.post(address, _form(amount=9, do="write")).status_code == 422
    assert not Reservation.objects.exists()


def test_its_reason_is_kept_in_the_audit_log(client):
    client.post(reverse("reservation_new"), _form(reason="before the deadline", do="write", seen="yes"))

    made = Reservation.objects.get()
    assert AuditEntry.objects.get(action="reservation.request", object_id=made.public_id).reason == "before the deadline"
    long = client.post(reverse("reservation_new"), _form(reason="x" * 281, do="write", seen="yes"))
    assert long.status_code == 422 and 'id="reason-error"' in long.content.decode()
    form = _form(reason="more of it", amount=6, do="write", seen="yes", revision=made.revision)
    client.post(reverse("reservation_edit", args=[made.public_id]), form)
    assert AuditEntry.objects.get(action="reservation.change", object_id=made.public_id).reason == "more of it"


@pytest.mark.parametrize(
    ("repeats", "rule", "told"),
    [("FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR", "", "Monday to Friday"), ("custom", "FREQ=WEEKLY;BYDAY=SA", "<code>FREQ=WEEKLY;BYDAY=SA</code>")],
)
def test_how_it_repeats_is_told_in_words(client, repeats, rule, told):
    client.post(reverse("reservation_new"), _form(repeats=repeats, rule=rule, do="write", seen="yes"))
    made = Reservation.objects.get()

    assert f"<dd>{told} in UTC</dd>" in client.get(reverse("reservation", args=[made.public_id])).content.decode()
    shown = client.get(reverse("reservations")).content.decode()
    assert ("Monday to Friday" in shown, "FREQ=WEEKLY…" in shown) == (not rule, bool(rule))
