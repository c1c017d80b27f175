"""Reports of any period: parts add up to the whole, months to what they were closed with, and each reader sees the own subtree."""

import csv
import io
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.exceptions import ValidationError
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from quotas.chargeback.files import file_of
from quotas.chargeback.months import chain_faults, idle_write, month_close, month_refresh
from quotas.chargeback.periods import Period, period_read, presets
from quotas.chargeback.pricing import half_even
from quotas.chargeback.report import BY, Report, idle_unknown, lines_of, report
from quotas.chargeback.sums import BOOKS, sums_write
from quotas.models import ChargeIdle, ChargeLine, ChargeMonth, RateCard
from quotas.services.budgets import budget_create
from tests.personas import Personas
from tests.quotas.chargeback.test_exports import pdf_text, shown
from tests.quotas.chargeback.test_months import LATER, NOVEMBER, OCTOBER, START, price
from tests.quotas.chargeback.worlds import A100, H100, used

SEPTEMBER = date(2026, 9, 1)
EARLIEST, LATEST = date(2026, 8, 20), date(2026, 12, 10)
NOW = LATER + timedelta(days=4)
days = st.dates(EARLIEST, LATEST)
periods = st.tuples(days, days).map(lambda pair: Period(*sorted(pair)))


@settings(max_examples=30, deadline=None)
@given(periods)
def test_a_period_is_its_months_and_the_one_before_is_as_long(period: Period) -> None:
    whole, parts = period.whole_months, period.parts
    covered = [day for first in whole for day in Period.of(first).days] + [day for part in parts for day in Period(part.first, part.last).days]
    assert sorted(covered) == period.days and len(parts) <= 2
    assert period.before.last + timedelta(days=1) == period.first
    if parts:
        assert len(period.before.days) == len(period.days)
    else:
        assert len(period.before.months) == len(period.months) and not period.before.parts


def test_what_is_no_period_is_refused_and_common_ones_are_offered() -> None:
    for pair, words in (
        (("2026-10-02", "2026-10-01"), "before the first"),
        (("1.10.2026", "2026-10-01"), "YYYY-MM-DD"),
        (("2026-10-01", ""), "YYYY-MM-DD"),
        (("2001-01-01", "2026-10-01"), "at most 120 months"),
    ):
        with pytest.raises(ValidationError, match=words):
            period_read(*pair)
    assert {label: str(one) for label, one in presets(NOW)} == {
        "This month": "2026-11",
        "Last month": "2026-10",
        "This quarter": "2026-10-01-to-2026-12-31",
        "Year to date": "2026-01-01-to-2026-11-07",
    }
    assert [Period(*pair).title for pair in ((OCTOBER, OCTOBER), (date(2025, 12, 31), OCTOBER), (OCTOBER, NOVEMBER))] == [
        "1 October 2026",
        "31 December 2025 to 1 October 2026",
        "1 October to 1 November 2026",
    ]


@pytest.fixture
def world(personas: Personas) -> Personas:
    """September and October are closed, and November has corrections of both."""
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    for number in range(14):
        node, gpu_type = (nlp, H100) if number % 3 else (search, A100)
        said = {"job": f"j-{number % 5}", "owner": ("ada", "bob")[number % 2], "labels": {"run": "ab"[number % 2]}, "cost_centre": f"CC-{number % 4}"}
        since = START - timedelta(days=29) + timedelta(days=5 * number, hours=7 * number)
        used(node, since, 40 + number / 7, milli=1000 + 333 * number, gpu_type=gpu_type, share_class=("guaranteed", "borrowed")[number % 2], **said)
    finance = personas.access("finance")
    for first in (SEPTEMBER, OCTOBER):
        month_refresh(first=first, now=LATER)
        idle = {(H100, "unwanted", first + timedelta(days=number)): 7_777_777_777 // 30 + number for number in range(30)}
        idle_write(first=first, found=idle, now=LATER)
        month_close(access=finance, first=first, mode="chargeback", now=LATER)
    price(personas, 1_500_000, replaces=RateCard.objects.get(state="active"), now=LATER + timedelta(minutes=1))
    month_refresh(first=NOVEMBER, now=NOW)
    assert ChargeLine.objects.filter(month__first=NOVEMBER, corrects__isnull=False).exists()
    return personas


def test_a_row_tells_the_budget_that_is_used_most_whatever_its_unit_and_period(world: Personas) -> None:
    access = world.access("superuser")
    assert "Budget</th>" not in costs_page(world, "2026-11"), "where nobody has one"
    wish = {"quota": "acme/research/nlp", "zone": "UTC", "at_stop": "nothing_new"}
    for name, unit, period, amount, kind in (
        ("hours", "gpu_hours", "quarter", 1000, ""),
        ("money", "money", "month", 10**12, ""),
        ("of a type", "gpu_hours", "month", 1000, H100),
    ):
        given_ = wish | {"name": name, "unit": unit, "period": period, "amount": amount, "gpu_type": kind}
        budget_create(access=access, given=given_, now=NOW)

    rows = {row.key: row for row in report(access, Period.of(NOVEMBER), by="team", now=NOW).rows}
    assert rows["acme/research/nlp"].budget.startswith("hours, usage until ")
    assert (rows["acme/research/nlp"].budget_percent or 0) > 100
    assert rows["acme/product/search"].budget_percent is None
    assert not report(access, Period.of(OCTOBER), by="team", now=NOW).is_budgeted, "of a month that is over"


def test_a_report_asks_as_often_for_one_budget_as_for_many(world: Personas) -> None:
    access, later = world.access("superuser"), NOW + timedelta(hours=3)
    wish = {"unit": "gpu_hours", "period": "month", "zone": "UTC", "at_stop": "nothing_new", "amount": 1000}

    def queries() -> int:
        with CaptureQueriesContext(connection) as asked:
            assert report(access, Period.of(NOVEMBER), by="team", now=later).is_budgeted
        return len(asked)

    budget_create(access=access, given=wish | {"quota": "acme/research/nlp", "name": "one"}, now=NOW)
    few = queries()
    for path in ("acme", "acme/research", "acme/research/nlp", "acme/product/search"):
        budget_create(access=access, given=wish | {"quota": path, "name": "more"}, now=NOW)
    assert queries() == few


def costs_page(world: Personas, month: str) -> str:
    return world.client("finance").get("/cost/", {"month": month, "by": "team"}).content.decode()


def sums(found: Report) -> dict[str, dict[str, int]]:
    rows = {row.key: {name: getattr(row, name) for name in BOOKS if name != "lines"} for row in found.rows}
    return {key: amounts for key, amounts in rows.items() if any(amounts.values())}


def added(*parts: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for part in parts:
        for key, amounts in part.items():
            before = found.setdefault(key, dict.fromkeys(amounts, 0))
            found[key] = {name: before[name] + amount for name, amount in amounts.items()}
    return {key: amounts for key, amounts in found.items() if any(amounts.values())}


def idle_added(*found: Report) -> dict[tuple[str, str], tuple[int, int]]:
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for one in [idle for part in found for idle in part.idle]:
        used, cost = sums.get((one.gpu_type, one.cause), (0, 0))
        sums[one.gpu_type, one.cause] = used + one.milli_millis, cost + one.effective_nanos
    return sums


@pytest.mark.django_db
def test_parts_of_a_period_add_up_to_it_exactly_by_whatever_it_is(world) -> None:
    finance, lead = world.access("finance"), world.access("team_lead")
    everything = Period(date(2026, 1, 1), date(2026, 12, 31))

    @settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(period=periods, cut=days, by=st.sampled_from([*BY, "label:run"]), access=st.sampled_from([finance, lead]))
    def check(period: Period, cut: date, by: str, access) -> None:
        def told(of: Period) -> dict[str, dict[str, int]]:
            return sums(report(access, of, by=by, now=NOW))

        whole = report(access, period, by=by, now=NOW)
        assert added(sums(whole)) == sums(whole) and sum(row.effective_nanos for row in whole.rows) == whole.total.effective_nanos
        assert whole.total.before_nanos == report(access, period.before, by=by, now=NOW).total.effective_nanos
        assert sum(lines_of(access, period, by, row.key).count() for row in whole.rows) == whole.lines
        if period.first < cut <= period.last:
            halves = Period(period.first, cut - timedelta(days=1)), Period(cut, period.last)
            assert added(*map(told, halves)) == sums(whole)
            assert idle_added(*(report(access, half, by=by, now=NOW) for half in halves)) == idle_added(whole)

    check()
    for by in ("owner", "gpu_type", "day"):
        *months, year = (sums(report(finance, of, by=by, now=NOW)) for of in (*map(Period.of, (SEPTEMBER, OCTOBER, NOVEMBER)), everything))
        assert added(*months) == year
    closed = ChargeMonth.objects.get(first=OCTOBER)
    assert report(finance, Period.of(OCTOBER), now=NOW).total.effective_nanos == closed.effective_nanos
    two = report(finance, Period(SEPTEMBER, Period.of(OCTOBER).last), rule="use", now=NOW)
    assert (two.is_estimate, two.idle_total, two.idle_left) == (False, sum(one.effective_nanos for one in two.idle), 0)
    assert [one.milli_millis for one in two.idle] == [2 * sum(7_777_777_777 // 30 + number for number in range(30))]
    assert idle_unknown(finance, everything) == []


@pytest.mark.django_db
def test_a_month_that_was_closed_with_idle_cost_of_the_whole_alone_says_so_where_it_is_cut(world) -> None:
    """As those that were closed before idle cost was stored by day."""
    december = date(2025, 12, 1)
    month = ChargeMonth.objects.create(first=december, currency="USD")
    ChargeIdle.objects.create(month=month, gpu_type=H100, cause="unwanted", milli_millis=1000, effective_nanos=5)
    finance = world.access("finance")

    assert sum(one.effective_nanos for one in report(finance, Period.of(december), now=NOW).idle) == 5
    assert idle_unknown(finance, Period.of(december)) == []
    cut = Period(date(2025, 12, 3), date(2026, 2, 3))
    assert (report(finance, cut, now=NOW).idle, idle_unknown(finance, cut), idle_unknown(world.access("team_lead"), cut)) == ([], [month], [])
    address = "from=2025-12-03&to=2026-02-03"
    assert "Without the uncharged time of 2025-12" in " ".join(world.client("finance").get(f"/cost/?{address}").content.decode().split())
    assert world.client("finance").get(f"/api/v1/costs?{address}").json()["idle_missing"] == ["2025-12"]


@pytest.mark.django_db
def test_files_of_a_period_have_the_same_figures_and_say_what_is_an_estimate(world) -> None:
    finance, period = world.access("finance"), Period(date(2026, 9, 14), date(2026, 11, 4))
    cost = report(finance, period, now=NOW).total.effective_nanos

    def content(kind: str, of: Period = period) -> bytes:
        return b"".join(file_of(finance, of, kind, now=NOW).pieces)

    def read(data: bytes) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(data.decode())))

    assert round(sum(float(row["cost"]) for row in read(content("csv"))) * 1e9) == cost
    assert {row["Period before"] for row in read(content("summary"))}
    said = pdf_text(content("pdf"))
    assert "GPU costs, 14 September to 4 November 2026" in said and shown(cost) in said
    assert any("months after 2026-10 are open" in text for text in said)
    with pytest.raises(ValidationError, match="whole months"):
        content("focus-1.4")
    months = [Period.of(first) for first in (SEPTEMBER, OCTOBER, NOVEMBER)]
    together = read(content("focus-1.4", Period(months[0].first, months[-1].last)))
    assert together == [row for month in months for row in read(content("focus-1.4", month))]


@pytest.mark.django_db
def test_a_period_is_chosen_on_the_page_and_over_http(world) -> None:
    finance, lead = world.client("finance"), world.client("team_lead")
    page = finance.get("/cost/?from=2026-09-14&to=2026-11-04").content.decode()
    for words in (
        "Costs, 14 September to 4 November 2026",
        "Months up to October 2026 are closed",
        "on 24 July to 13 September 2026",
        "Year to date",
    ):
        assert words in page
    assert "focus-1.4" not in page and 'value="2026-09-14"' in page
    faulty = finance.get("/cost/?from=2026-11-04&to=2026-09-14")
    assert faulty.status_code == 422 and "before the first" in faulty.content.decode() and 'value="2026-09-14"' in faulty.content.decode()
    assert finance.get("/cost/lines/?from=2026-11-04&to=2026-09-14").status_code == 404

    told = finance.get("/api/v1/costs?from=2026-09-14&to=2026-11-04&by=cost_centre").json()
    found = report(world.access("finance"), Period(date(2026, 9, 14), date(2026, 11, 4)), now=NOW)
    assert (told["estimate"], told["before_from"], told["total"]["effective_nanos"]) == (True, "2026-07-24", found.total.effective_nanos)
    assert [(one["month"], one["whole"], one["closed"]) for one in told["months"]] == [
        ("2026-09", False, True),
        ("2026-10", True, True),
        ("2026-11", False, False),
    ]
    assert [row["key"] for row in lead.get("/api/v1/costs?from=2026-09-14&to=2026-11-04").json()["rows"]] == ["acme/research/nlp"]
    assert lead.get("/api/v1/costs?from=2026-09-14").status_code == 422
    file = finance.get("/api/v1/costs/file?from=2026-09-14&to=2026-11-04&format=summary")
    assert 'filename="gpufleet-2026-09-14-to-2026-11-04-by-team.csv"' in file["Content-Disposition"]
    assert AuditEntry.objects.filter(action="export", object_id="2026-09-14-to-2026-11-04").exists()
    asked = {"from": "2026-09-14", "to": "2026-11-04", "format": "xlsx"}
    export = finance.post("/api/v1/cost-exports", asked, content_type="application/json").json()
    assert (export["month"], export["from"], export["to"]) == (None, "2026-09-14", "2026-11-04")


@pytest.mark.django_db
def test_a_period_that_goes_on_is_held_against_the_one_before_at_its_pace(world) -> None:
    """A day of a month against all of another would always be less."""
    finance, first, moment = world.access("finance"), date(2026, 12, 1), datetime(2026, 12, 4, 4, tzinfo=UTC)
    used(world.nodes["acme/research/nlp"], datetime(2026, 11, 1, tzinfo=UTC), 24 * 35, job="j-steady", gpu_type=H100)
    for month in (NOVEMBER, first):
        month_refresh(first=month, now=moment)

    found = report(finance, Period.of(first), now=moment)

    assert found.rated_to == moment
    assert found.ahead_nanos == half_even(found.total.effective_nanos * 31 * 24, 76)
    assert found.change_percent == round(100 * (found.ahead_nanos - found.total.before_nanos) / found.total.before_nanos) > -20
    assert "at this pace" in world.client("finance").get("/cost/?month=2026-12").content.decode()
    over = report(finance, Period.of(OCTOBER), now=NOW)
    assert over.ahead_nanos is None
    assert over.change_percent == round(100 * (over.total.effective_nanos - over.total.before_nanos) / over.total.before_nanos)


@pytest.mark.django_db
def test_a_correction_counts_once_at_the_pace_of_a_month(world) -> None:
    first, moment = date(2026, 12, 1), datetime(2026, 12, 2, tzinfo=UTC)
    used(world.nodes["acme/research/nlp"], datetime(2026, 12, 1, tzinfo=UTC), 24, job="j-late", gpu_type=H100)
    month = month_refresh(first=first, now=moment)
    own = report(world.access("finance"), Period.of(first), now=moment).total.effective_nanos
    line = ChargeLine.objects.filter(month=month).values().first()
    del line["id"]
    credit = {"corrects_id": ChargeMonth.objects.get(first=OCTOBER).pk, "day": OCTOBER, "effective_nanos": -7 * own}
    ChargeLine.objects.create(**line | credit)
    sums_write(month)

    found = report(world.access("finance"), Period.of(first), now=moment)

    assert found.total.effective_nanos == -6 * own
    assert found.ahead_nanos == 31 * own - 7 * own


@pytest.mark.django_db
def test_a_month_without_usage_before_closed_ones_is_no_estimate_and_can_not_be_closed(world) -> None:
    """Its hash would be missing in the one after it."""
    august = date(2026, 8, 1)
    ChargeMonth.objects.create(first=august, currency=ChargeMonth.objects.get(first=OCTOBER).currency, rated_to=datetime(2026, 8, 31, 23, tzinfo=UTC))
    finance = world.access("finance")

    found = report(finance, Period(august, Period.of(OCTOBER).last), now=NOW)

    assert (found.is_estimate, found.ahead_nanos, len(found.open), len(found.closed)) == (False, None, 0, 2)
    assert "/close/" not in world.client("finance").get("/cost/?month=2026-08").content.decode()
    with pytest.raises(Conflict, match="2026-09 is closed already: months are closed in their order"):
        month_close(access=finance, first=august, mode="chargeback", now=LATER)
    assert chain_faults() == []


@pytest.mark.django_db
def test_costs_in_another_currency_are_no_period_before(world) -> None:
    december = date(2026, 12, 1)
    ChargeMonth.objects.create(first=december, currency="EUR")
    finance = world.access("finance")

    for by in ("team", "job"):
        assert report(finance, Period.of(december), by=by, now=NOW).total.before_nanos == 0
        assert report(finance, Period.of(NOVEMBER), by=by, now=NOW).total.before_nanos > 0
    page = world.client("finance").get("/cost/?month=2026-12").content.decode()
    assert "EUR" in page and "USD" not in page.split("<main")[1]


@pytest.mark.django_db
@pytest.mark.parametrize("month", ["9999-12", "0001-01", "1999-12"])
def test_a_month_of_no_calendar_of_ours_is_not_found(world, month: str) -> None:
    assert world.client("finance").get(f"/cost/{month}/close/").status_code == 404
    assert world.client("finance").get(f"/api/v1/costs/{month}").status_code == 404
    assert world.client("finance").get(f"/api/v1/costs/{month}/file").status_code == 404
