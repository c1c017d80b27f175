"""Jobs that are deferred to hours of better energy: when they are judged, what they are told, and when they start."""

from datetime import timedelta

import pytest
from django.core.exceptions import ValidationError

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from scheduler.jobs.reading import change_read
from scheduler.jobs.writing import description_of
from scheduler.models import EnergyForecast, EnergyRate, Job, JobEvent, Wait, WaitKind
from scheduler.presenters.jobs import life_of
from scheduler.selectors.energy import Tariffs, deferred_now
from scheduler.services.energy import forecast_put, forecast_remove, rate_change, rate_remove, rate_set
from scheduler.services.forecasts.outlooks import outlook_now
from scheduler.services.jobs.deferring import job_start_now
from scheduler.services.jobs.edits import job_clone, job_edit, job_enqueue
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.steering import job_hold_back, job_release_hold
from scheduler.services.jobs.submission import submission_create
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import Loop, leaf, state

pytestmark = pytest.mark.django_db
HOUR = timedelta(hours=1)
NIGHT = NOON + 10 * HOUR  # 22:00


@pytest.fixture
def fleet():
    pool = builders.pool()
    return [builders.node(f"n{number}", gpus=8, pool=pool) for number in range(2)]


@pytest.fixture
def team(fleet, personas):
    return leaf("team", 16)


def rate(personas, price=240_000, **given):
    return rate_set(access=personas.access("operator"), given={"price_micros": price} | given, now=NOON)


@pytest.fixture
def tariff(fleet, personas):
    """0.24 by day, 0.11 from 22:00 on for eight hours, each day."""
    night = {"starts_at": NIGHT, "ends_at": NIGHT + 8 * HOUR, "rule": "FREQ=DAILY"}
    return rate(personas, starts_at=NOON - HOUR), rate(personas, 110_000, **night)


def described(team, **said):
    usual = {"name": "nightly", "quota": team.path, "gpus": 8, "estimate_s": 7200, "deadline": (NOON + 20 * HOUR).isoformat(), "defer": "price"}
    return {key: value for key, value in (usual | said).items() if value is not None}


def handed_in(personas, team, now=NOON, **said):
    access = personas.access("superuser")
    return submission_create(access=access, description=described(team, **said), now=now, actor=access.actor)[0]


def deferred_to(job):
    job.refresh_from_db()
    return job.deferred_to


def test_a_job_is_deferred_to_the_night_and_starts_then(tariff, team, personas):
    job = handed_in(personas, team)
    assert deferred_to(job) == NIGHT
    figures = job.deferral
    assert (figures["rate_now"], figures["rate"], figures["watt_hours"], figures["saved"]) == (240_000, 110_000, 11_200, 1_456_000)
    assert "Deferred to 2026-11-20 22:00:00 UTC for a lower price of energy." in job.events.values_list("cause", flat=True)
    told = outlook_now(job, None, now=NOON)
    assert [one["code"] for one in told.reasons] == ["deferred"]

    loop = Loop()
    loop.tick()
    assert state(job) == "queued"
    assert loop.after(hours=1).tick(force=True).next_at == NIGHT
    loop.now = NIGHT
    loop.tick()
    assert state(job) == "starting"


def test_the_latest_start_and_the_margin_end_by_the_deadline(tariff, team, personas):
    # 2 h and a quarter of it fit behind 22:00 only if the deadline is at 00:30.
    assert deferred_to(handed_in(personas, team, deadline=(NIGHT + 2.5 * HOUR).isoformat())) == NIGHT
    early = handed_in(personas, team, deadline=(NIGHT + 2 * HOUR).isoformat())
    assert deferred_to(early) == NIGHT - HOUR / 2
    none = handed_in(personas, team, deadline=(NOON + HOUR).isoformat())
    assert (deferred_to(none), none.deferral["why"]) == (None, "no_time")


def test_a_saving_below_the_least_is_no_reason_to_wait(fleet, team, personas, settings):
    rate(personas, 100_000, starts_at=NOON - HOUR)
    rate(personas, 96_000, starts_at=NIGHT, ends_at=NIGHT + 8 * HOUR)
    job = handed_in(personas, team)
    assert (deferred_to(job), job.deferral["why"]) == (None, "no_gain")

    settings.SCHEDULER = settings.SCHEDULER | {"DEFER_LEAST_PERCENT": 4}
    assert deferred_to(handed_in(personas, team)) == NIGHT


def test_without_a_rate_for_now_it_is_not_deferred(fleet, team, personas):
    rate(personas, starts_at=NIGHT)
    job = handed_in(personas, team)

    assert (deferred_to(job), job.deferral["why"]) == (None, "no_rate")
    Loop().tick()
    assert state(job) == "starting"


@pytest.mark.parametrize(
    ("said", "fields"),
    [
        ({"deadline": None}, ["deadline"]),
        ({"deadline": None, "estimate_s": None}, ["deadline", "estimate_s"]),
        ({"class": "interactive"}, ["defer"]),
        ({"class": "inference"}, ["defer"]),
        ({"defer": "wind"}, ["defer"]),
    ],
)
def test_what_a_deferrable_job_lacks_is_told_at_its_field(tariff, team, personas, said, fields):
    with pytest.raises(ValidationError) as raised:
        handed_in(personas, team, **said)

    assert sorted(raised.value.message_dict) == fields


def test_a_change_of_rates_judges_those_anew_whose_hour_has_not_come(tariff, team, personas):
    loop, access = Loop(), personas.access("operator")
    job = handed_in(personas, team)
    loop.tick()
    rate_change(access=access, one=tariff[1], given={"starts_at": NIGHT + 2 * HOUR, "ends_at": NIGHT + 8 * HOUR}, now=loop.now)
    assert deferred_to(job) == NIGHT  # until somebody has looked
    loop.after(seconds=5).tick()
    assert deferred_to(job) == NIGHT + 2 * HOUR

    rate_remove(access=access, one=EnergyRate.objects.get(pk=tariff[1].pk), now=loop.now)
    loop.after(seconds=5).tick()
    assert deferred_to(job) is None
    assert state(job) == "starting"
    causes = list(JobEvent.objects.filter(job=job).order_by("id").values_list("cause", flat=True))
    assert causes[2] == "Deferred to 2026-11-21 00:00:00 UTC for a lower price of energy."
    assert causes[3].startswith("No longer deferred")


def test_once_its_hour_has_come_it_is_not_deferred_again(tariff, team, personas):
    first = handed_in(personas, team, gpus=8, workers=2)
    loop = Loop()
    second = handed_in(personas, team, gpus=8, workers=2)
    loop.now = NIGHT
    loop.tick()
    assert (state(first), state(second)) == ("starting", "queued")

    rate_set(access=personas.access("operator"), given={"price_micros": 1, "starts_at": NIGHT + HOUR, "ends_at": NIGHT + 9 * HOUR}, now=NIGHT)
    job_edit(access=personas.access("superuser"), job=second, change=change_read({"estimate_s": 3600}), now=NIGHT)
    loop.after(seconds=5).tick()
    assert deferred_to(second) == NIGHT
    assert [one["code"] for one in outlook_now(second, getattr(second, "outlook", None), now=loop.now).reasons] != ["deferred"]


def test_a_change_of_its_description_judges_it_anew(tariff, team, personas):
    access = personas.access("superuser")
    job = handed_in(personas, team)
    job_edit(access=access, job=job, change=change_read({"deadline": (NIGHT - HOUR).isoformat()}), now=NOON)
    assert deferred_to(job) is None
    job_edit(access=access, job=job, change=change_read({"deadline": (NOON + 20 * HOUR).isoformat()}), now=NOON)
    assert deferred_to(job) == NIGHT
    with pytest.raises(ValidationError) as raised:
        job_edit(access=access, job=job, change=change_read({"deadline": None}), now=NOON)
    assert list(raised.value.message_dict) == ["deadline"]
    job_edit(access=access, job=job, change=change_read({"defer": None}), now=NOON)
    assert (deferred_to(job), job.defer, job.deferral) == (None, None, None)


def test_a_job_that_has_run_before_is_not_deferred_and_starts(tariff, team, personas):
    access, loop = personas.access("superuser"), Loop()
    failed, preempted = (handed_in(personas, team, defer=None, retries=1) for _ in range(2))
    loop.tick()
    loop.up(failed)
    loop.up(preempted)
    loop.over(failed, exit_code=1)
    job_stop(job=preempted, to="preempted", outcome="preempted", cause="Test", now=loop.now)
    loop.over(preempted, exit_code=143)
    for job in (failed, preempted):
        job.refresh_from_db()
        job_edit(access=access, job=job, change=change_read({"defer": "price"}), now=loop.now)
    assert (state(failed), state(preempted)) == ("queued", "preempted")

    loop.after(minutes=10).tick(force=True)
    assert (state(failed), state(preempted)) == ("starting", "resuming")
    assert (deferred_to(failed), failed.deferral["why"]) == (None, "ran")


def test_start_now_ends_the_deferral_for_good(tariff, team, personas):
    access = personas.access("superuser")
    job = handed_in(personas, team)
    job_start_now(access=access, job=job, reason="Needed today", now=NOON)
    rate(personas, 1, starts_at=NIGHT)
    loop = Loop()
    loop.tick()

    assert state(job) == "starting"
    assert AuditEntry.objects.get(action="job.start_now").reason == "Needed today"
    with pytest.raises(Conflict):
        job_start_now(access=access, job=job, reason="", now=NOON)


def test_what_is_held_or_a_draft_is_judged_once_it_no_longer_is(tariff, team, personas):
    access, loop = personas.access("superuser"), Loop()
    held, draft = handed_in(personas, team, hold=True), handed_in(personas, team, draft=True)
    after = handed_in(personas, team, after=[{"job": held.public_id, "if": "ended"}])
    loop.tick()
    assert [deferred_to(job) for job in (held, draft, after)] == [None, None, None]
    assert outlook_now(after, None, now=NOON).reasons[0]["code"] == "deferred"

    job_release_hold(access=access, job=held, reason="", now=NOON)
    loop.after(seconds=1).tick()
    assert (deferred_to(held), state(held)) == (NIGHT, "queued")
    assert deferred_to(job_enqueue(access=access, job=draft, reason="", now=NOON)) == NIGHT
    job_hold_back(access=access, job=held, reason="", now=NOON)
    Job.objects.filter(pk=held.pk).update(state="cancelled", ended_at=NOON)
    loop.after(seconds=1).tick(force=True)
    assert deferred_to(after) == NIGHT


def test_the_rate_of_a_pool_goes_before_that_of_the_fleet_and_forecasts_before_rates(tariff, team, personas):
    access = personas.access("operator")
    steps = [{"start": NOON, "price_micros": 300_000}, {"start": NOON + 3 * HOUR, "price_micros": 50_000}, {"start": NOON + 6 * HOUR, "grams": 1}]
    forecast_put(access=access, pool="", steps=steps, now=NOON)
    course = Tariffs(NOON).course("price", "main", NOON, NOON + 24 * HOUR)
    assert course.values[:3] == [300_000, 50_000, 240_000]
    job = handed_in(personas, team)
    assert (deferred_to(job), job.deferral["pool"]) == (NOON + 3 * HOUR, "")

    rate(personas, 40_000, pool="main", starts_at=NOON + 5 * HOUR)
    assert Tariffs(NOON).course("price", "main", NOON, NOON + 24 * HOUR).values[-1] == 40_000
    assert deferred_to(handed_in(personas, team)) == NOON + 5 * HOUR
    elsewhere = handed_in(personas, team, node_labels={"pool": "other"})
    assert deferred_to(elsewhere) == NOON + 3 * HOUR
    forecast_remove(access=access, pool="", now=NOON)
    assert not EnergyForecast.objects.exists()


def test_a_forecast_takes_the_place_of_the_one_before_and_ends_as_its_steps_go(fleet, personas):
    access = personas.access("operator")
    forecast_put(access=access, pool="main", steps=[{"start": NOON, "grams": 300}, {"start": NOON + HOUR, "grams": 120}], now=NOON)
    found = forecast_put(access=access, pool="main", steps=[{"start": NOON, "grams": 200}], now=NOON)

    assert (found.ends_at, EnergyForecast.objects.count()) == (NOON + HOUR, 1)
    assert Tariffs(NOON).course("carbon", "main", NOON, NOON + 2 * HOUR).values == [200, None]
    assert [one.action for one in AuditEntry.objects.order_by("id")][-2:] == ["energy.forecast", "energy.forecast"]


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([], "steps"),
        ([{"start": NOON + 15 * timedelta(days=1), "grams": 1}], "steps[0].start"),
        ([{"start": NOON}], "steps[0].price_micros"),
        ([{"start": NOON, "grams": -1}], "steps[0].grams"),
        ([{"start": NOON, "grams": 1}, {"start": NOON, "grams": 2}], "steps[1].start"),
        ([{"start": NOON - 3 * HOUR, "grams": 1}], "steps"),
    ],
)
def test_what_is_wrong_with_a_forecast_is_told_at_its_field(fleet, personas, steps, field):
    with pytest.raises(ValidationError) as raised:
        forecast_put(access=personas.access("operator"), pool="", steps=steps, now=NOON)

    assert list(raised.value.message_dict) == [field]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"pool": "nowhere"}, "pool"),
        ({"price_micros": None}, "price_micros"),
        ({"price_micros": 2 * 10**9}, "price_micros"),
        ({"grams": 10_001}, "grams"),
        ({"starts_at": NOON, "ends_at": NOON}, "ends_at"),
        ({"rule": "FREQ=DAILY"}, "ends_at"),
    ],
)
def test_what_is_wrong_with_a_rate_is_told_at_its_field(fleet, personas, given, field):
    with pytest.raises(ValidationError) as raised:
        rate(personas, **given)

    assert list(raised.value.message_dict) == [field]


def test_what_is_submitted_again_defers_only_with_a_deadline_to_come(tariff, team, personas):
    job = handed_in(personas, team)
    assert description_of(job, NOON)["defer"] == "price"
    assert "defer" not in description_of(job, NOON + 21 * HOUR)
    again = job_clone(access=personas.access("superuser"), job=job, changes={}, key="", now=NOON).jobs[0]
    assert deferred_to(again) == NIGHT


def test_savings_in_money_are_told_to_who_sees_costs(tariff, team, personas):
    handed_in(personas, team)
    seen = deferred_now(personas.access("superuser"), NOON)

    assert (seen.jobs, seen.saved_micros) == (1, 1_456_000)
    assert deferred_now(personas.access("viewer"), NOON).saved_micros is None


def test_the_time_that_it_was_deferred_is_told_apart_from_waiting_for_gpus(tariff, team, personas):
    job = handed_in(personas, team)
    deferred_to(job)

    def told(at):
        return {part.key: part.seconds for part in life_of(job, (), at, None).parts if part.seconds}

    assert told(NOON + HOUR) == {"deferred": 3600}
    assert told(NIGHT + HOUR) == {"deferred": 36_000, "gpus": 3600}
    aside = Wait(job=job, kind=WaitKind.ASIDE, since=NOON, aside_ms=0)
    assert {part.key: part.seconds for part in life_of(job, (), NOON + HOUR, aside).parts if part.seconds} == {"deferred": 3600}, "it counts once"
    job_start_now(access=personas.access("superuser"), job=job, reason="Needed now.", now=NOON + HOUR)
    deferred_to(job)
    assert told(NOON + 3 * HOUR) == {"deferred": 3600, "gpus": 7200}
    assert "Deferred" not in [part.label for part in life_of(handed_in(personas, team, defer=None), (), NIGHT, None).parts]
