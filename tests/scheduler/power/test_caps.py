"""Power caps of the console: what the engine is told of them, who sets them, and what pages and jobs say."""

from datetime import timedelta
from zoneinfo import ZoneInfo

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import millis
from scheduler.engine.model.values import NO_POWER
from scheduler.loop.policy import policy
from scheduler.models import Outlook, PowerCap
from scheduler.power.ratings import maker_watts, rated_watts
from scheduler.selectors.power import power_ahead, power_now, ratings
from scheduler.services.forecasts.power import cap_preview
from scheduler.services.power import cap_change, cap_drawn, cap_remove, cap_set, rating_set
from scheduler.snapshots import Snapshots
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import Loop, leaf, submit

pytestmark = pytest.mark.django_db
H100 = "H100-SXM-80GB"
BERLIN = ZoneInfo("Europe/Berlin")


def take(snapshots=None, now=NOON):
    return (snapshots or Snapshots()).take(settings=policy().engine, now=now, start_timeout=policy().start_timeout)


def operator(personas):
    return personas.access("operator")


def capped(personas, watts=12_000, **given):
    return cap_set(access=operator(personas), given={"pool": "main", "watts": watts} | given, now=NOON)


@pytest.fixture
def fleet():
    pool = builders.pool()
    return [builders.node(f"n{number}", gpus=8, pool=pool) for number in range(3)]


def test_without_a_cap_nothing_more_is_asked(fleet):
    snapshots = Snapshots()
    take(snapshots)
    with CaptureQueriesContext(connection) as asked:
        assert take(snapshots).scenario.power is NO_POWER

    assert not [query for query in asked if 'FROM "power_cap"' in query["sql"] and "EXISTS" not in query["sql"]]


def test_a_cap_that_recurs_is_written_out_by_the_clock_of_its_zone(fleet, personas):
    start = NOON.replace(hour=16)
    capped(personas, zone="Europe/Berlin", starts_at=start, ends_at=start + timedelta(hours=3), rule="FREQ=DAILY")
    snapshots = Snapshots()
    power = take(snapshots).scenario.power

    assert power.gpu_watts == ((H100, 700),)
    assert {one.pool for one in power.caps} == {"main"}
    assert power.caps[0].start == millis(start)
    local = {(NOON + timedelta(milliseconds=one.start - millis(NOON))).astimezone(BERLIN).hour for one in power.caps}
    assert local == {start.astimezone(BERLIN).hour}
    assert power.caps[-1].start > millis(NOON) + policy().engine.window_horizon_ms  # else a job without a limit would seem to fit behind the last
    assert take(snapshots).scenario.power is power


def test_jobs_wait_for_power_and_start_once_the_cap_is_raised(fleet, personas):
    cap = capped(personas, 12_000)
    loop, team = Loop(), leaf("team", 24)
    jobs = [submit(team, gpus=8) for _ in range(3)]
    loop.tick()

    states = [one.state for one in jobs if not one.refresh_from_db()]
    assert states == ["starting", "starting", "queued"]
    told = Outlook.objects.get(job=jobs[2]).reasons
    assert [one["code"] for one in told] == ["power"]
    assert told[0]["detail"] == "the cap of pool main of 12 kW leaves 0.8 kW; it needs 5.6 kW"

    cap_change(access=operator(personas), one=cap, given={"watts": 17_000}, now=NOON)
    loop.after(seconds=5)
    loop.tick()
    jobs[2].refresh_from_db()
    assert jobs[2].state == "starting"


def test_what_is_drawn_is_told_by_pool_and_over_the_day(fleet, personas):
    capped(personas, 12_000, starts_at=NOON, ends_at=NOON + timedelta(hours=3))
    loop, team = Loop(), leaf("team", 24)
    submit(team, gpus=8, limit_seconds=7200)
    loop.tick()
    scenario = take(now=NOON).scenario

    assert power_now(scenario)["main"].drawn == 5600
    assert power_now(scenario)["main"].left == 6400
    course = power_ahead(scenario, "main", NOON, NOON + timedelta(hours=4), timedelta(hours=1))
    assert course.drawn == [5600, 5600, 0, 0, 0]
    assert course.caps == [12_000, 12_000, 12_000, None, None]


def test_a_preview_names_who_would_wait_and_writes_nothing(fleet, personas):
    team = leaf("team", 24)
    job = submit(team, gpus=8)
    cap, faults = cap_drawn({"pool": "main", "watts": 1000}, now=NOON)
    seen = cap_preview(access=personas.access("superuser"), cap=cap, instead_of=None, now=NOON)

    assert faults == {}
    assert seen.waits == 1
    assert [(one.job, one.effect) for one in seen.jobs] == [(job.public_id, "waits")]
    assert not PowerCap.objects.exists()
    hidden = cap_preview(access=personas.access("team_lead"), cap=cap, instead_of=None, now=NOON)
    assert (hidden.jobs, hidden.unseen) == ((), 1)


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"pool": "nowhere"}, "pool"),
        ({"watts": -1}, "watts"),
        ({"watts": None}, "watts"),
        ({"zone": "Mars/Base"}, "zone"),
        ({"starts_at": NOON, "ends_at": NOON}, "ends_at"),
        ({"starts_at": NOON - timedelta(days=2), "ends_at": NOON - timedelta(days=1)}, "ends_at"),
        ({"starts_at": NOON, "rule": "FREQ=DAILY"}, "ends_at"),
        ({"starts_at": NOON, "ends_at": NOON + timedelta(hours=1), "rule": "FREQ=HOURLY"}, "rule"),
        ({"note": "a\x07b"}, "note"),
    ],
)
def test_what_is_wrong_with_a_cap_is_told_at_its_field(fleet, personas, given, field):
    with pytest.raises(ValidationError) as raised:
        capped(personas, **given)

    assert list(raised.value.message_dict) == [field]


@pytest.mark.parametrize("who", ["viewer", "team_lead", "quota_admin", "finance"])
def test_only_operators_set_caps(fleet, personas, who):
    cap = capped(personas)
    access = personas.access(who)
    for write in (
        lambda: cap_set(access=access, given={"watts": 1}, now=NOON),
        lambda: cap_change(access=access, one=cap, given={"watts": 1}, now=NOON),
        lambda: cap_remove(access=access, one=cap, now=NOON),
        lambda: rating_set(access=access, gpu_type=H100, watts=1),
    ):
        with pytest.raises(PermissionDenied):
            write()


def test_each_write_is_in_the_audit_log(fleet, personas):
    cap = capped(personas)
    cap_change(access=operator(personas), one=cap, given={"watts": 9000}, now=NOON)
    rating_set(access=operator(personas), gpu_type=H100, watts=650, reason="Driver limit")
    cap_remove(access=operator(personas), one=cap, reason="Over", now=NOON)

    entries = AuditEntry.objects.filter(action__startswith="power.").order_by("id")
    assert [one.action for one in entries] == ["power.cap", "power.change", "power.rate", "power.remove"]
    assert (entries[1].before["watts"], entries[1].after["watts"]) == (12_000, 9000)
    assert not PowerCap.objects.exists()


def test_rated_watts_are_the_operators_else_the_makers_else_assumed(fleet, personas):
    assert [(one.watts, one.source, one.gpus) for one in ratings(operator(personas))] == [(700, "maker", 24)]
    rating_set(access=operator(personas), gpu_type=H100, watts=650)
    assert [(one.watts, one.source) for one in ratings(operator(personas))] == [(650, "operator")]
    assert (maker_watts("H100-PCIe-80GB"), maker_watts("NVIDIA A100-SXM4-80GB"), maker_watts("L40S-48GB")) == (350, 400, 350)
    assert maker_watts("L400-1") is None
    assert rated_watts("Something", None) == 1000


def test_the_page_shows_caps_to_everyone_and_their_forms_to_operators(fleet, personas):
    cap = capped(personas, 12_000, note="Evening peak")
    seen = personas.client("viewer").get("/power/").content.decode()
    assert "Evening peak" in seen
    assert "12 kW" in seen
    assert "/power/caps/new/" not in seen

    oona = personas.client("operator")
    assert "/power/caps/new/" in oona.get("/power/").content.decode()
    form = {"pool": "main", "kilowatts": "9.5", "start": "2026-11-20T12:00", "zone": "UTC", "revision": cap.revision}
    looked = oona.post(f"/power/caps/{cap.public_id}/", form | {"do": "look"})
    assert "No job is preempted." in looked.content.decode()
    unclear = oona.post("/power/caps/new/", form | {"do": "look", "zone": "Mars/Base", "kilowatts": ""}).content.decode()
    effect = unclear[unclear.index('id="change-preview"') :]
    assert "Time zone: Name a time zone such as" in effect, "the form itself stays as it is while one types"
    assert "required" not in effect, "what is yet to be typed is no fault"
    cap.refresh_from_db()
    assert cap.watts == 12_000
    saved = oona.post(f"/power/caps/{cap.public_id}/", form | {"do": "write"})
    assert saved.status_code == 302, saved.content.decode()
    cap.refresh_from_db()
    assert cap.watts == 9500
    stale = oona.post(f"/power/caps/{cap.public_id}/", form | {"do": "write"})
    assert stale.status_code == 409
