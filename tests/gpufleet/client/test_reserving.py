"""Reservations and budgets from the command line."""

from datetime import timedelta

import pytest

from gpufleet.core.times import now
from quotas.models import Budget, Reservation, ReservationState
from tests.builders import node

pytestmark = pytest.mark.django_db(transaction=True)
H100 = "H100-SXM-80GB"
TEAM = "acme/research/nlp"
LEAD = {"who": "team_lead", "scopes": ("submit",)}
ADMIN = {"who": "superuser", "scopes": ("admin",)}


def moment(hours: int) -> str:
    return (now().replace(minute=0, second=0, microsecond=0) + timedelta(hours=hours)).isoformat()


def test_a_reservation_is_previewed_requested_approved_shown_and_cancelled(run, personas):
    node(gpus=8)
    words = ("reserve", "add", "--name", "launch", "--team", TEAM, "--type", H100, "--gpus", "4", "--from", moment(24), "--until", moment(27))

    status, out, _ = run(*words, "--dry-run", **LEAD)
    assert status == 0
    assert out.startswith("Healthy 8 GPUs, reserved by others 0")
    assert "Will be met." in out
    assert not Reservation.objects.exists()
    status, out, wrong = run(*words[:-4], "--from", moment(27), "--until", moment(24), "--dry-run", **LEAD)
    assert (status != 0, out) == (True, "")
    assert wrong.startswith("ends_at: ")

    assert "requested" in run(*words, **LEAD)[1]
    name = Reservation.objects.get().public_id
    assert run("reserve", "approve", name, **LEAD)[0] != 0, "a lead only asks"
    assert "approved" in run("reserve", "approve", name, "--reason", "Agreed.", **ADMIN)[1]
    shown = run("reserve", "show", name, **LEAD)[1]
    assert f"4 {H100}" in shown
    assert TEAM in shown
    assert name in run("reserve", "ls", "--state", "approved", "--team", TEAM, **LEAD)[1]
    assert "launch" in run("reserve", "windows", **LEAD)[1]
    assert "Will be met." in run("reserve", "floors", **LEAD)[1]

    assert "cancelled" in run("reserve", "cancel", name, **ADMIN)[1]
    assert Reservation.objects.get().state == ReservationState.CANCELLED
    assert "launch" not in run("reserve", "windows", **LEAD)[1]


def test_a_floor_recurs_by_the_clock_of_its_zone(run, personas):
    node(gpus=8)
    status, _, wrong = run(
        *("reserve", "add", "--name", "ramp", "--class", "inference", "--type", H100, "--gpus", "2", "--from", moment(24), "--until", moment(36)),
        *("--rule", "FREQ=DAILY", "--zone", "Europe/Berlin", "--notice", "20m", "--lead", "1h"),
        **ADMIN,
    )

    assert status == 0, wrong
    made = Reservation.objects.get()
    assert (made.job_class, made.zone, made.notice_s, made.lead_s) == ("inference", "Europe/Berlin", 1200, 3600)
    assert run("reserve", "windows", **ADMIN)[1].count("ramp") >= 6
    assert "inference jobs" in run("reserve", "show", made.public_id, **ADMIN)[1]


def test_a_budget_is_set_changed_excepted_and_removed(run, personas):
    assert run("budget", "add", "--name", "b", "--team", TEAM, "--amount", "much", **ADMIN)[0] != 0
    assert "1,000.0 GPU-h" in run("budget", "add", "--name", "nlp", "--team", TEAM, "--amount", "1000", **ADMIN)[1]
    name = Budget.objects.get().public_id
    assert "2,000.0 GPU-h" in run("budget", "change", name, "--amount", "2,000", "--stop", "0", **ADMIN)[1]
    assert "Stops      never" in run("budget", "show", name, **LEAD)[1]
    assert "Release week" in run("budget", "except", name, "--until", moment(48), "--more", "50", "--reason", "Release week", **ADMIN)[1]
    assert name in run("budget", "ls", **LEAD)[1]
    assert run("budget", "rm", name, **ADMIN)[0] == 0
    assert name not in run("budget", "ls", **ADMIN)[1]
