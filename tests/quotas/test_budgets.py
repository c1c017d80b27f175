"""Budgets: periods by a zone's clock, usage counted once, thresholds, exceptions, and what a budget that is used up does."""

import re
from datetime import UTC, datetime, timedelta

import pytest
from django.core.exceptions import PermissionDenied, ValidationError
from django.test import Client
from django.urls import reverse

from dashboards.models import ActivityEntry
from gpufleet.core.models import AuditEntry, User
from quotas.budgets import burn_chart, burn_range, burn_ranges
from quotas.chargeback.months import month_at, month_refresh
from quotas.models import Budget, BudgetDay
from quotas.permissions import access_for_user
from quotas.selectors.budgets import period_at, standings, stops_now
from quotas.selectors.rates import price_book
from quotas.services.budgets import budget_change, budget_count, budget_create, budgets_turn, exception_end, exception_grant
from scheduler.models import Job, JobState, Notice, Outlook
from scheduler.services.budgets import budget_act, budgets_step
from scheduler.services.forecasts.outlooks import told_undue
from tests import builders
from tests.builders import NOON
from tests.quotas.chargeback.worlds import used
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import H100, leaf, state, submit

pytestmark = pytest.mark.django_db
GIVEN = {"name": "Month", "unit": "gpu_hours", "amount": 10_000, "period": "month"}


def root() -> User:
    return User.objects.get_or_create(username="root", is_superuser=True)[0]


def budget(path: str = "acme/team", now: datetime = NOON, **given: object) -> Budget:
    return budget_create(access=access_for_user(root()), given=GIVEN | {"quota": path} | given, now=now)


@pytest.mark.parametrize(
    ("period", "zone", "start", "end"),
    [
        ("month", "UTC", datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC)),
        ("quarter", "Europe/Berlin", datetime(2026, 9, 30, 22, tzinfo=UTC), datetime(2026, 12, 31, 23, tzinfo=UTC)),
        ("year", "America/New_York", datetime(2026, 1, 1, 5, tzinfo=UTC), datetime(2027, 1, 1, 5, tzinfo=UTC)),
    ],
)
def test_periods_begin_by_the_clock_of_their_zone(period: str, zone: str, start: datetime, end: datetime) -> None:
    found = period_at(Budget(period=period, zone=zone), NOON)

    assert (found.start, found.end) == (start, end)


def busy(hours: float, *, gpus: int = 8, amount: int = 10_000, **given: object) -> tuple[Fleet, Budget]:
    """A team that has run on GPUs for some hours under a budget."""
    builders.node(gpus=8)
    team = leaf("team", 8)
    fleet = Fleet()
    submit(team, gpus=gpus, spec={"work_s": 200_000, "grace_s": 20}, launch={"simulated": {"load_s": 0}})
    for _ in range(2):
        fleet.tick()  # the second sees that it is up
    found = budget(amount=amount, **given)
    fleet.after(hours=hours).tick()
    return fleet, found


def standing(found: Budget, now: datetime) -> object:
    return standings([Budget.objects.select_related("quota").get(pk=found.pk)], price_book(), now)[0]


def test_pages_of_budgets_and_costs_say_until_when_usage_is_counted(personas, monkeypatch):
    """Costs are rated every five minutes, budgets count up to now: they differ by the minutes between."""
    for page in ("costs", "budgets"):
        monkeypatch.setattr(f"quotas.views.{page}.now", lambda: NOON)
    nlp = personas.nodes["acme/research/nlp"]
    budget = Budget.objects.create(public_id="b-9", quota=nlp, name="Year", unit="gpu_hours", amount=1_000_000, period="month")
    used(nlp, NOON - timedelta(minutes=20), None, owner="ada")
    month_refresh(first=month_at(NOON), now=NOON - timedelta(minutes=4))
    budgets_turn(now=NOON - timedelta(minutes=2))
    finance = personas.client("finance")

    def until(page):
        return re.findall(r"[Uu]sage until <time datetime=\"([^\"]+)\"", finance.get(page).content.decode())

    (rated,), (counted,), (of_one,) = until("/cost/"), until("/budgets/"), until(f"/budgets/{budget.public_id}/")
    assert rated < counted <= of_one
    budget.refresh_from_db()
    told = f'title="Year, usage until {budget.counted_to:%Y-%m-%d %H:%M} UTC"'
    assert told in finance.get("/cost/?by=team").content.decode()


def test_usage_is_counted_once_however_often_it_is_counted() -> None:
    fleet, found = busy(0.5)
    for _ in range(3):
        budgets_turn(now=fleet.now)
    fleet.after(hours=0.5).tick()
    budgets_turn(now=fleet.now)

    assert standing(found, fleet.now).used == 8000  # 8 GPUs for an hour, in thousandths of a GPU-hour
    fresh = budget(name="Anew")
    assert standing(fresh, fleet.now).used == 8000


def test_money_follows_the_rates_of_their_time() -> None:
    builders.rate(H100, since=NOON - timedelta(days=1), micros=2_000_000)
    builders.rate(H100, since=NOON + timedelta(hours=1), micros=4_000_000)
    fleet, found = busy(2, unit="money", amount=1_000_000_000)

    assert standing(found, fleet.now).used == 8 * 2_000_000 + 8 * 4_000_000


def test_it_warns_once_then_stops_and_jobs_wait_with_the_reason() -> None:
    fleet, found = busy(1.01)
    lead = builders.person("lead", email="")
    builders.role(lead, "team_lead", found.quota)
    assert budgets_step(now=fleet.now) == 1
    assert budgets_step(now=fleet.now) == 0
    fleet.after(hours=0.3).tick()
    budgets_step(now=fleet.now)
    waits = submit(found.quota, gpus=1, at=fleet.now, name="late")
    fleet.after(seconds=5).tick()

    assert [stop.path for stop in stops_now()] == ["acme/team"]
    assert state(waits) == JobState.QUEUED
    told = told_undue(now=fleet.now)[waits.pk]
    assert [one["code"] for one in told.reasons] == ["budget"]
    assert Outlook.objects.get(job=waits).reasons == told.reasons, "the next plan says so, before any forecast"
    assert [notice.title.partition(":")[0] for notice in Notice.objects.filter(user=lead).order_by("id")] == [
        "Budget near its limit",
        "Budget used up",
    ]


@pytest.mark.django_db(transaction=True)
def test_a_process_that_ends_between_count_and_notice_leaves_it_to_the_next() -> None:
    fleet, found = busy(1.01)
    lead = builders.person("lead", email="")
    builders.role(lead, "team_lead", found.quota)
    (turned,) = budgets_turn(now=fleet.now)  # and its process ends
    assert not Notice.objects.exists()

    assert budgets_step(now=fleet.now) == 1
    assert [notice.user for notice in Notice.objects.all()] == [lead]
    # One that had counted it, too, and comes to it later.
    budget_act(turned=turned, now=fleet.now)
    assert (Notice.objects.count(), budgets_step(now=fleet.now)) == (1, 0)


@pytest.mark.parametrize(("untold", "amount", "told"), [("warned", 1_000_000, []), ("stopped", 1_000_000, []), ("resumed", 1, ["stopped"])])
def test_what_is_no_longer_so_is_not_told_later(untold: str, amount: int, told: list[str]) -> None:
    fleet, found = busy(1)
    Budget.objects.filter(pk=found.pk).update(untold=untold, amount=amount)
    assert [one.what for one in budgets_turn(now=fleet.now)] == told


@pytest.mark.parametrize("way", ["a lower amount", "the end of its exception", "a new budget"])
def test_what_brings_it_to_its_stop_is_acted_on_at_once(way: str) -> None:
    """Nobody was told, and nothing wound down, where it was people who changed the budget rather than jobs that used it up."""
    fleet, found = busy(0.5, at_stop="wind_down")
    lead = builders.person("lead", email="")
    builders.role(lead, "team_lead", found.quota)
    access = access_for_user(root())
    if way == "a lower amount":
        budget_change(access=access, budget=found, given={"amount": 1000}, now=fleet.now)
    elif way == "a new budget":
        budget(name="Lower", amount=1000, at_stop="wind_down", now=fleet.now)
    else:
        exception_grant(access=access, budget=found, extra=None, until=fleet.now + timedelta(hours=9), reason="Release", now=fleet.now)
        budget_change(access=access, budget=found, given={"amount": 1000}, now=fleet.now)
        assert [job.state for job in Job.objects.all()] == [JobState.RUNNING], "its exception holds"
        exception_end(access=access, budget=found, now=fleet.now)

    assert Notice.objects.filter(user=lead, kind="budget", title__startswith="Budget used up").count() == 1
    assert [job.state for job in Job.objects.all()] == [JobState.CHECKPOINTING]


def test_the_audit_log_has_its_amounts_with_their_unit() -> None:
    fleet, found = busy(0.5)
    admin = builders.person("admin")
    builders.role(admin, "quota_admin", found.quota.parent)
    budget_change(access=access_for_user(admin), budget=found, given={"amount": 1001}, now=fleet.now)

    told = {entry.action: entry.after for entry in AuditEntry.objects.filter(object_kind="budget")}
    assert told["budget.change"] == {"amount": "1.001 GPU-hours"}
    assert told["budget.stopped"]["amount"] == "1.001 GPU-hours"
    assert told["budget.stopped"]["used"].endswith(" GPU-hours")


def test_who_changes_a_budget_is_not_told_what_it_brings_about() -> None:
    """The others are, and Activity names the person."""
    fleet, found = busy(0.5)
    lead, admin = builders.person("lead"), builders.person("admin")
    builders.role(lead, "team_lead", found.quota)
    builders.role(admin, "quota_admin", found.quota.parent)
    budget_change(access=access_for_user(admin), budget=found, given={"amount": 1000}, now=fleet.now)

    assert [notice.user.username for notice in Notice.objects.filter(kind="budget")] == ["lead"]
    assert [(line.kind, line.by) for line in ActivityEntry.objects.all()] == [("budget.stopped", access_for_user(admin).actor.name)]


def test_an_exception_opens_it_until_it_expires() -> None:
    fleet, found = busy(1.4)
    budgets_step(now=fleet.now)
    access = access_for_user(root())
    assert stops_now()
    exception_grant(access=access, budget=found, extra=5_000, until=fleet.now + timedelta(hours=1), reason="Release", now=fleet.now)
    assert not stops_now()
    fleet.after(hours=1.2).tick()
    budgets_step(now=fleet.now)
    assert stops_now(), "it has expired"
    exception_grant(access=access, budget=found, extra=None, until=fleet.now + timedelta(hours=9), reason="Release", now=fleet.now)
    assert not stops_now()
    exception_end(access=access, budget=found, now=fleet.now)
    assert stops_now()


def test_wind_down_saves_the_work_of_running_jobs_and_nothing_starts_again() -> None:
    fleet, found = busy(1.4, at_stop="wind_down")
    running = found.quota.jobs.get()
    budgets_step(now=fleet.now)
    assert state(running) == JobState.CHECKPOINTING
    fleet.after(minutes=2).tick()
    fleet.after(minutes=2).tick()

    assert state(running) == JobState.PREEMPTED


def test_a_stop_that_was_counted_and_not_acted_on_winds_down_with_the_next_step() -> None:
    """The process ended in between: the budget was stopped, and its jobs ran on for the rest of the period."""
    fleet, found = busy(1.4, at_stop="wind_down")
    assert budget_count(key=found.pk, now=fleet.now) is not None
    assert state(found.quota.jobs.get()) == JobState.RUNNING

    budgets_step(now=fleet.now)

    assert state(found.quota.jobs.get()) == JobState.CHECKPOINTING


def test_a_new_period_begins_anew_and_a_larger_amount_opens_it() -> None:
    fleet, found = busy(1.4)
    budgets_step(now=fleet.now)
    assert stops_now()
    budget_change(access=access_for_user(root()), budget=found, given={"amount": 20_000}, now=fleet.now)
    assert not stops_now()
    budget_change(access=access_for_user(root()), budget=found, given={"amount": 10_000}, now=fleet.now)
    assert stops_now()
    december = datetime(2026, 12, 1, 0, 5, tzinfo=UTC)
    budget_count(key=found.pk, now=december)
    assert not stops_now()
    assert not BudgetDay.objects.filter(budget=found, day__lt=datetime(2026, 11, 1).date()).exists()


def test_the_forecast_goes_on_at_the_pace_of_the_last_week() -> None:
    fleet, found = busy(24)
    now = fleet.now
    seen = standing(found, now)

    left = (seen.period.end - now) / timedelta(days=1)
    passed = timedelta(days=7) / timedelta(days=1)
    assert seen.used == 8 * 24 * 1000
    assert abs(seen.forecast - (seen.used + seen.used / passed * left)) < 0.02 * seen.forecast


def test_the_chart_goes_from_what_was_used_to_the_forecast_beside_an_even_pace() -> None:
    fleet, found = busy(24)
    exception_grant(access=access_for_user(root()), budget=found, extra=None, until=fleet.now + timedelta(days=1), reason="Deadline.", now=fleet.now)
    seen = standing(found, fleet.now)
    whole = burn_range("all", burn_ranges(seen, fleet.now))
    chart = burn_chart(seen, whole, fleet.now)
    rows = {row[0]: row[1:] for row in chart.rows}

    assert [column.name for column in chart.columns] == ["Time", "Used", "Forecast", "Even pace", "Budget"]
    assert chart.unit == "GPU-hours"
    assert rows[seen.period.start] == (0, None, 0, 10)
    assert rows[fleet.now][:2] == (192, 192)
    assert rows[seen.period.end] == (None, round(seen.forecast / 1000, 2), 10, 10)
    assert [row[0] for row in chart.rows] == sorted(rows)
    used = [row[1] for row in chart.rows if row[1] is not None]
    assert used == sorted(used)
    assert [mark.text for mark in chart.marks] == ["Exception by root: Deadline."]


def test_the_chart_offers_ranges_that_are_shorter_than_what_has_passed(client: Client) -> None:
    _, found = busy(1)
    seen = standing(found, NOON)
    assert [one.key for one in burn_ranges(seen, datetime(2026, 11, 20, tzinfo=UTC))] == ["7d", "all"]
    week = burn_chart(seen, burn_range("7d", burn_ranges(seen, datetime(2026, 11, 20, tzinfo=UTC))), datetime(2026, 11, 20, tzinfo=UTC))
    assert len(week.rows) == 8
    assert [column.name for column in week.columns] == ["Time", "Used", "Even pace", "Budget"]

    client.force_login(root())
    address = reverse("budget", args=[found.public_id])
    assert 'data-source="' in client.get(address).content.decode()
    csv = client.get(address, {"chart": "1", "format": "csv"})
    assert b"".join(csv).decode().startswith("Time,Used (GPU-hours),")


def test_bad_values_are_told_all_at_once_and_only_admins_above_set_one() -> None:
    leaf("team", 8)
    with pytest.raises(ValidationError) as faults:
        budget(amount=0, unit="apples", period="week", zone="Mars", warn_percent=0, stop_percent=5000, name="")
    assert set(faults.value.message_dict) >= {"amount", "unit", "period", "zone", "warn_percent", "stop_percent", "name"}
    lead = builders.person("lead")
    builders.role(lead, "team_lead", builders.quota("team", parent=builders.quota()))
    with pytest.raises(PermissionDenied):
        budget_create(access=access_for_user(lead), given=GIVEN | {"quota": "acme/team"}, now=NOON)
    assert not Outlook.objects.exists()
