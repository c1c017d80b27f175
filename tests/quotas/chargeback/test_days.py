"""The chart of costs by day: which days it has, that they add up to the report, and that each reader sees the own subtree."""

from datetime import timedelta

import pytest
from django.urls import reverse

from quotas.chargeback.days import day_range, day_ranges, days_chart, report_chart
from quotas.chargeback.periods import Period
from quotas.chargeback.report import days_seen, report
from quotas.models import ChargeMonth
from tests.personas import Personas
from tests.quotas.chargeback.test_months import NOVEMBER, OCTOBER
from tests.quotas.chargeback.test_periods import NOW, SEPTEMBER, world

__all__ = ["world"]
pytestmark = pytest.mark.django_db


def chart(personas: Personas, name: str, period: Period, key: str):
    return days_chart(personas.access(name), period, day_range(key, day_ranges(period, NOW)), NOW)


def cost(made) -> float:
    return sum(value for row in made.rows for value in row[1:])


@pytest.mark.parametrize("name", ["finance", "team_lead"])
@pytest.mark.parametrize(("key", "count"), [("7d", 7), ("30d", 30), ("90d", 90)])
def test_a_range_has_a_bar_for_each_day_up_to_the_end_of_the_period_or_today(world, django_assert_max_num_queries, name, key, count):
    access = world.access(name)
    for first, last in ((OCTOBER, NOVEMBER - timedelta(days=1)), (NOVEMBER, NOW.date())):
        ranges = day_ranges(Period.of(first), NOW)
        with django_assert_max_num_queries(2):
            made = days_chart(access, Period.of(first), day_range(key, ranges), NOW)
        days = Period(last - timedelta(days=count - 1), last)

        assert [row[0] for row in made.rows] == [f"{day:%d %b}" for day in days.days]
        assert cost(made) == pytest.approx(sum(sum(costs.values()) for _, costs in days_seen(access, days)) / 10**9)
    assert cost(chart(world, name, Period.of(OCTOBER), key)) > 0


def test_a_lead_sees_the_costs_of_the_team_alone(world):
    assert 0 < cost(chart(world, "team_lead", Period.of(OCTOBER), "30d")) < cost(chart(world, "finance", Period.of(OCTOBER), "30d"))


def test_all_of_the_period_is_what_the_report_shows(world):
    access = world.access("finance")
    for period in (Period.of(OCTOBER), Period(SEPTEMBER, NOW.date())):
        whole, of_report = chart(world, "finance", period, "all"), report_chart(report(access, period, now=NOW))

        assert (whole.label, whole.columns, whole.rows) == (of_report.label, of_report.columns, of_report.rows)


def test_what_is_offered_and_what_it_is_called():
    month, other = day_ranges(Period.of(OCTOBER), NOW), day_ranges(Period(SEPTEMBER, OCTOBER), NOW)

    assert [one.label for one in month] == ["7d", "30d", "90d", "Month"]
    assert [one.title for one in month] == ["Its last 7 days", "Its last 30 days", "Its last 90 days", "October 2026"]
    assert (other[-1].label, other[-1].title) == ("All", "Whole period")
    assert day_ranges(Period.of(NOVEMBER), NOW)[0].title == "Last 7 days"
    assert day_range("5y", month) == month[-1]


def test_days_of_another_currency_are_left_out(world):
    ChargeMonth.objects.filter(first=NOVEMBER).update(currency="EUR")

    made = chart(world, "finance", Period.of(NOVEMBER), "30d")

    assert made.unit == "EUR"
    assert len(made.rows) == 30
    assert cost(made) == pytest.approx(cost(chart(world, "finance", Period.of(NOVEMBER), "all")))
    assert cost(made) > 0


@pytest.mark.parametrize(("page", "query"), [("costs", {"month": "2026-10"}), ("home_month", {})])
def test_the_pages_show_the_range_that_is_chosen(world, page, query, monkeypatch):
    for views in ("quotas.views.costs", "dashboards.home.views"):
        monkeypatch.setattr(f"{views}.now", lambda: NOW)
    client = world.client("finance")

    plain, chosen = (client.get(reverse(page), query | more).content.decode() for more in ({}, {"range": "7d"}))

    assert 'value="7d" checked' not in plain
    assert 'value="7d" checked' in chosen
    assert f'data-source="{reverse("costs")}?chart=1' in chosen
    if page == "costs":
        assert '<input type="hidden" name="month" value="2026-10">' in chosen
    told = client.get(reverse("costs"), {"chart": "1", "range": "7d", "month": "2026-10"})
    assert told["Cache-Control"] == "no-store"
    assert told.json()["label"] == "Cost by day"
    lines = client.get(reverse("costs"), {"chart": "1", "range": "7d", "month": "2026-10", "format": "csv"}).getvalue().decode().splitlines()
    assert [line.partition(",")[0] for line in lines] == ["Day", *(f"{day} Oct" for day in range(25, 32))]
