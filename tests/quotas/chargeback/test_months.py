"""Months: estimates that may be refreshed at will, closed ones that nobody changes, and corrections that follow."""

import re
from datetime import UTC, date, datetime, timedelta

import pytest
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError, connection, transaction
from django.db.models import Sum
from hypothesis import given
from hypothesis import strategies as st

from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from quotas.chargeback.cards import card_activate, card_draft
from quotas.chargeback.months import Span, chain_faults, costs_turn, idle_write, month_at, month_close, month_refresh
from quotas.chargeback.periods import Period
from quotas.chargeback.pricing import CENT, HOUR, cents, half_even
from quotas.chargeback.report import BY, Row, line_for, pieces_of, report, rows_shown
from quotas.chargeback.sums import sums_faults, sums_write
from quotas.models import ChargeIdle, ChargeLine, ChargeMonth, RateCard
from quotas.templatetags.costs import hours, money
from scheduler.models import CapacityEntry
from tests import builders
from tests.personas import Personas
from tests.quotas.chargeback.worlds import A100, H100, used

pytestmark = pytest.mark.django_db
OCTOBER, NOVEMBER = date(2026, 10, 1), date(2026, 11, 1)
START = datetime(2026, 10, 1, tzinfo=UTC)
LATER = datetime(2026, 11, 3, 12, tzinfo=UTC)


def price(personas: Personas, micros: int = 2_000_000, replaces: RateCard | None = None, now: datetime = START, more: str = "") -> RateCard:
    lines = [{"gpu_type": name, "list_micros": 4_000_000, "contracted_micros": micros} for name in (H100, A100, more) if name]
    given = {"name": "Rates", "valid_from": START - timedelta(days=90), "lines": lines}
    access = personas.access("finance")
    return card_activate(access=access, card=card_draft(access=access, given=given, replaces=replaces, now=now), now=now)


@pytest.fixture
def world(personas: Personas) -> Personas:
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    used(nlp, START - timedelta(hours=1), 30, milli=8000, job="j-1", owner="ada", labels={"run": "a"}, cost_centre="CC-1")
    used(nlp, START + timedelta(days=3), 5, job="j-2", share_class="borrowed", preemptible="yes")
    used(search, START + timedelta(days=30, hours=20), 8, milli=4000, job="j-3", gpu_type=A100, cost_centre="CC-2")
    return personas


def total(first: date) -> tuple[int, int]:
    sums = ChargeLine.objects.filter(month__first=first).aggregate(used=Sum("milli_millis"), cost=Sum("effective_nanos"))
    return int(sums["used"] or 0), int(sums["cost"] or 0)


def close(personas: Personas, first: date = OCTOBER, mode: str = "chargeback") -> ChargeMonth:
    return month_close(access=personas.access("finance"), first=first, mode=mode, now=LATER if first == OCTOBER else LATER + timedelta(days=40))


def test_a_month_is_rated_the_same_however_often_and_whenever_it_is_refreshed(world) -> None:
    for day in range(0, 33, 4):
        assert sums_faults(month_refresh(first=OCTOBER, now=START + timedelta(days=day, hours=day))) == []
    often = list(ChargeLine.objects.order_by("day", "job").values_list("day", "job", "milli_millis", "effective_nanos"))
    ChargeLine.objects.all().delete()
    ChargeMonth.objects.all().delete()
    month_refresh(first=OCTOBER, now=LATER)

    assert list(ChargeLine.objects.order_by("day", "job").values_list("day", "job", "milli_millis", "effective_nanos")) == often
    assert total(OCTOBER) == ((29 * 8 + 5 + 4 * 4) * 3_600_000_000, (29 * 8 + 5 + 4 * 4) * 2 * 10**9)


def test_every_partition_of_a_report_adds_up_to_the_ledger(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    month_refresh(first=NOVEMBER, now=LATER)
    access = world.access("finance")

    for by in [*BY, "label:run"]:
        found = report(access, Period.of(OCTOBER), by=by, now=LATER)
        assert sum(row.effective_nanos for row in found.rows) == found.total.effective_nanos == total(OCTOBER)[1]
        assert sum(row.milli_millis for row in found.rows) == total(OCTOBER)[0]
    assert [row.key for row in report(access, Period.of(OCTOBER), by="department", now=LATER).rows] == ["acme/research", "acme/product"]
    assert report(access, Period.of(NOVEMBER), now=LATER).total.before_nanos == total(OCTOBER)[1]
    days = report(access, Period.of(NOVEMBER), by="day", now=LATER)
    assert ([row.key for row in days.rows], days.total.before_nanos) == (["2026-11-01"], total(OCTOBER)[1])
    cut = report(access, Period.of(OCTOBER), by="job", most=1, now=LATER)
    assert ([row.key for row in cut.rows], cut.more, cut.total.effective_nanos) == (["j-1"], 2, total(OCTOBER)[1])


def test_a_lead_sees_the_own_subtree_alone(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)

    found = report(world.access("team_lead"), Period.of(OCTOBER), now=LATER)
    assert [row.key for row in found.rows] == ["acme/research/nlp"]
    with pytest.raises(PermissionDenied):
        report(world.access("viewer"), Period.of(OCTOBER), now=LATER)
    page = world.client("team_lead").get("/cost/?month=2026-10").content.decode()
    assert "nlp" in page.split("<main")[1]
    assert re.findall(r'<option value="label:(\w+)"', page) == ["run"], "the labels that jobs have are offered"
    assert "acme/product" not in page and "product/" not in page


@given(
    st.lists(st.integers(-(10**9), 10**12), max_size=8),
    st.integers(-(10**8), 10**12),
)
def test_rows_add_up_to_the_total_as_it_is_shown(parts, rest) -> None:
    rows = [Row(f"{place}", effective_nanos=part, milli_millis=abs(part), measured=abs(part) // 2) for place, part in enumerate(parts)]
    total = Row("", effective_nanos=sum(parts) + rest, milli_millis=sum(map(abs, parts)))

    shown = rows_shown(rows, total)

    assert all(row.effective_nanos % CENT == 0 for row in shown)
    assert all(abs(row.effective_nanos - own.effective_nanos) < CENT for row, own in zip(shown, rows, strict=True))
    assert abs(CENT * cents(total.effective_nanos) - rest - sum(row.effective_nanos for row in shown)) < CENT
    assert sum(row.milli_millis for row in shown) == HOUR // 10 * half_even(total.milli_millis, HOUR // 10)
    assert [row.measured_percent for row in shown] == [row.measured_percent for row in rows]


def test_rows_on_pages_add_up_to_the_cent(world) -> None:
    """Three times 66 and two thirds cents were 0.67 each of 2.00."""
    thirds = Span(NOVEMBER).next
    for place, path in enumerate(("acme/research/nlp", "acme/research/vision", "acme/product/search")):
        used(world.nodes[path], datetime(2026, 12, 1, place, tzinfo=UTC), 1 / 3, job=f"j-{place}")
    month_refresh(first=thirds, now=datetime(2026, 12, 2, tzinfo=UTC))
    finance = world.client("finance")

    for by in ("team", "project", "job"):
        page = finance.get(f"/cost/?month=2026-12&by={by}").content.decode()
        assert sorted(re.findall(r'data-said="Cost \(USD\)" class="num">([\d.]+)<', page)) == ["0.66", "0.67", "0.67"]
        assert sorted(re.findall(r'data-said="GPU-hours" class="num">([\d.]+)<', page)) == ["0.3", "0.3", "0.4"]
        assert '<span class="value">2.00</span>' in page and '<span class="value">1.0</span>' in page
    file = b"".join(finance.get("/cost/file/?month=2026-12&by=team&format=summary").streaming_content).decode()
    assert file.count(",0.666666667,0.666666667,") == 3 and "Total," in file, "files are exact"


def test_idle_cost_is_distributed_to_the_last_nano_unit(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    idle_write(first=OCTOBER, found={(H100, "unwanted", OCTOBER): 7_777_777_777, (A100, "window", OCTOBER): 1_000_000_001}, now=LATER)
    access = world.access("finance")

    for rule in ("use", "even", "guarantee", "apart"):
        found = report(access, Period.of(OCTOBER), rule=rule, now=LATER)
        assert sum(row.idle_nanos for row in found.rows) + found.idle_left == found.idle_total > 0
    assert report(access, Period.of(OCTOBER), rule="use", now=LATER).idle_left == 0


def test_a_month_is_closed_with_all_its_idle_time(world) -> None:
    """Also what came after it was written last."""
    gpu = builders.gpu(builders.node(gpus=1))
    CapacityEntry.objects.create(gpu=gpu, since=START, until=START + timedelta(days=2), unwanted_milli=1000)
    month_refresh(first=OCTOBER, now=LATER)
    idle_write(first=OCTOBER, found={(H100, "unwanted", OCTOBER): 1}, now=LATER)

    asked = world.client("finance").get("/cost/2026-10/close/").content.decode()
    total = report(world.access("finance"), Period.of(OCTOBER), by="team", now=LATER).total
    assert f"<dd>{money(total.effective_nanos)} USD</dd>" in asked, "what will be fixed is told before"
    assert f"<dd>{hours(total.milli_millis)} GPU-hours of" in asked
    assert world.client("finance").post("/cost/2026-10/close/", {"mode": "showback"}).status_code == 302

    assert list(ChargeIdle.objects.values_list("cause", "milli_millis")) == [("unwanted", 2 * 1000 * 86_400_000)]
    assert chain_faults() == []


def test_a_month_that_cannot_be_closed_says_so_before_anything_is_filled_in(world, monkeypatch) -> None:
    monkeypatch.setattr("quotas.views.costs.now", lambda: LATER)
    used(world.nodes["acme/research/vision"], START - timedelta(days=9), 5, job="j-4")
    for first in (date(2026, 9, 1), OCTOBER, date(2026, 11, 1)):
        month_refresh(first=first, now=LATER)
    client = world.client("finance")

    def seen(month: str) -> str:
        page = client.get(f"/cost/{month}/close/")
        assert page.status_code == 200
        return re.sub(r"\s+", " ", page.content.decode().partition("<main")[2])

    assert "2026-09 is open: close it first." in seen("2026-10") and "2026-11 is not over" in seen("2026-11")
    month_close(access=world.access("finance"), first=date(2026, 9, 1), mode="chargeback", now=LATER)
    assert "2026-09 is closed already." in seen("2026-09") and "Close month" not in seen("2026-09")
    assert '<option value="chargeback" selected>' in seen("2026-10"), "as the month before"


def test_teams_that_a_month_charges_are_counted_before_it_is_closed(world) -> None:
    """A team that used GPUs in the month before alone is in the report, to compare."""
    used(world.nodes["acme/research/vision"], START - timedelta(days=9), 5, job="j-4")
    for first in (date(2026, 9, 1), OCTOBER):
        month_refresh(first=first, now=LATER)
    month_close(access=world.access("finance"), first=date(2026, 9, 1), mode="showback", now=LATER)

    asked = world.client("finance").get("/cost/2026-10/close/").content.decode()

    assert len(report(world.access("finance"), Period.of(OCTOBER), by="team", now=LATER).rows) == 3
    assert f"{hours(total(OCTOBER)[0])} GPU-hours of 2 teams</dd>" in asked


def test_a_line_leads_to_the_rows_of_the_ledger(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)

    for line in ChargeLine.objects.all():
        assert sum(piece.milli_millis for piece in pieces_of(line_for(world.access("finance"), line.pk))) == line.milli_millis
    line = ChargeLine.objects.filter(job="j-1").first()
    page = world.client("finance").get(f"/cost/lines/{line.pk}/").content.decode()
    assert "worker 0, attempt 1" in page


def test_each_row_leads_to_its_lines_and_these_to_their_entries_of_the_ledger(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    finance = world.client("finance")

    for by, key, jobs in (("cost_centre", "CC-1", {"j-1"}), ("tier", "whole", {"j-1", "j-2", "j-3"}), ("cost_centre", "", {"j-2"})):
        report_page = finance.get(f"/cost/?month=2026-10&by={by}").content.decode()
        assert f'href="/cost/lines/?month=2026-10&amp;by={by}&amp;key={key}"' in report_page
        lines = finance.get(f"/cost/lines/?month=2026-10&by={by}&key={key}").content.decode()
        assert set(re.findall(r">(j-\d)</a>", lines)) == jobs
        ledger = re.search(r'href="(/quotas/ledger/[^"]+)">Ledger<', lines)
        assert ledger is not None
        entries = finance.get(ledger[1].replace("&amp;", "&")).content.decode()
        assert set(re.findall(r">(j-\d)</a>", entries)) == (jobs if key else {"j-1", "j-2", "j-3"}), "no filter stands for none"


def test_an_address_of_lines_without_a_row_leads_to_the_report(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    finance = world.client("finance")

    assert finance.get("/cost/lines/?month=2026-10&by=cost_centre")["Location"] == "/cost/?month=2026-10&by=cost_centre"
    page = finance.get("/cost/lines/?month=2026-10&by=cost_centre&key=CC-9").content.decode()
    assert "No lines in this period." in page and 'class="btn" href="/cost/?month=2026-10&amp;by=cost_centre">Costs</a>' in page
    assert finance.get("/cost/lines/").status_code == 302


def test_a_month_that_runs_and_one_that_is_closed_cannot_be_closed(world) -> None:
    with pytest.raises(Conflict, match="not over"):
        close(world, date(2027, 1, 1))
    close(world)
    with pytest.raises(Conflict, match="closed already"):
        close(world)
    with pytest.raises(PermissionDenied):
        month_close(access=world.access("quota_admin"), first=NOVEMBER, mode="showback", now=LATER + timedelta(days=40))


def test_nobody_changes_a_closed_month(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    idle_write(first=OCTOBER, found={(H100, "unwanted", OCTOBER): 7_777_777_777}, now=LATER)
    month = close(world)
    line = month.lines.first()
    tries = [
        lambda: ChargeLine.objects.filter(pk=line.pk).update(effective_nanos=1),
        lambda: line.delete(),
        lambda: ChargeLine.objects.create(**{name: getattr(line, name) for name in _columns(line)}),
        lambda: ChargeMonth.objects.filter(pk=month.pk).update(closed_at=None, digest=""),
        lambda: ChargeMonth.objects.filter(pk=month.pk).delete(),
        lambda: _raw("UPDATE charge_line SET effective_nanos = 0 WHERE id = %s", line.pk),
        lambda: _raw("DELETE FROM charge_line WHERE id = %s", line.pk),
        lambda: _raw("UPDATE charge_month SET digest = 'x' WHERE id = %s", month.pk),
        lambda: _raw("UPDATE charge_sum SET effective_nanos = 0 WHERE month_id = %s", month.pk),
        lambda: _raw("DELETE FROM charge_sum WHERE month_id = %s", month.pk),
        lambda: sums_write(month),
        lambda: _raw("UPDATE charge_idle_day SET effective_nanos = 0 WHERE month_id = %s", month.pk),
        lambda: _raw("DELETE FROM charge_idle_day WHERE month_id = %s", month.pk),
    ]
    for change in tries:
        with pytest.raises(DatabaseError), transaction.atomic():
            change()
    before = total(OCTOBER)
    month_refresh(first=OCTOBER, now=LATER + timedelta(days=1))
    assert total(OCTOBER) == before
    assert chain_faults() == []


def _columns(line: ChargeLine) -> list[str]:
    return [field.attname for field in line._meta.concrete_fields if not field.primary_key]


def _raw(text: str, *values: object) -> None:
    with connection.cursor() as cursor:
        cursor.execute(text, values)


def test_the_chain_shows_what_was_changed_behind_the_triggers(world) -> None:
    first, second = close(world), close(world, NOVEMBER)
    assert second.previous_digest == first.digest
    for name in _triggers():
        _raw(f"DROP TRIGGER {name}" + (f" ON {'charge_month' if 'month' in name else name.rpartition('_')[0]}" if _postgres() else ""))
    _raw("UPDATE charge_line SET owner = 'eve' WHERE month_id = %s", first.pk)

    assert chain_faults() == [
        "2026-10 is not what was closed: its lines give another hash.",
        "2026-10 has sums by owner that are not those of its lines.",
    ]


def _postgres() -> bool:
    return connection.vendor == "postgresql"


def _triggers() -> list[str]:
    if _postgres():
        return ["charge_line_kept"]
    return ["charge_line_update_old", "charge_line_update_new"]


def test_a_new_price_in_a_closed_month_becomes_a_correction_of_the_next(world) -> None:
    closed = close(world)
    card = RateCard.objects.get(state="active")
    price(world, 1_000_000, replaces=card, now=LATER + timedelta(minutes=1))

    for _ in range(2):
        month_refresh(first=NOVEMBER, now=LATER + timedelta(hours=1))
    found = ChargeLine.objects.filter(month__first=NOVEMBER, corrects=closed)
    assert int(found.aggregate(Sum("milli_millis"))["milli_millis__sum"]) == 0
    assert int(found.aggregate(Sum("effective_nanos"))["effective_nanos__sum"]) == -closed.effective_nanos // 2
    assert {line.day.replace(day=1) for line in found} == {OCTOBER}
    assert ChargeMonth.objects.get(first=OCTOBER).digest == closed.digest
    assert chain_faults() == []
    assert sums_faults(ChargeMonth.objects.get(first=NOVEMBER)) == [], "with the corrections"


def test_a_version_corrects_nothing_of_what_costs_the_same(world) -> None:
    """It names another card there; lines of -5 and +5 hours at one price tell nobody anything."""
    closed = close(world)
    micros = {H100: 2_000_000, A100: 2_100_000}
    lines = [{"gpu_type": name, "list_micros": 4_000_000, "contracted_micros": amount} for name, amount in micros.items()]
    access = world.access("finance")
    draft = card_draft(access=access, given={"lines": lines}, replaces=RateCard.objects.get(state="active"), now=LATER)
    card_activate(access=access, card=draft, now=LATER + timedelta(minutes=1))

    for _ in range(2):
        month_refresh(first=NOVEMBER, now=LATER + timedelta(hours=1))

    found = ChargeLine.objects.filter(month__first=NOVEMBER, corrects=closed).order_by("milli_millis")
    used_there = 16 * HOUR
    assert list(found.values_list("job", "gpu_type", "milli_millis", "effective_nanos")) == [
        ("j-3", A100, -used_there, -32 * 10**9),
        ("j-3", A100, used_there, 336 * 10**8),
    ]
    assert chain_faults() == []


def test_a_new_price_rates_open_months_again(world) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    before = total(OCTOBER)
    price(world, 1_000_000, replaces=RateCard.objects.get(state="active"), now=LATER)
    costs_turn(now=LATER)

    assert total(OCTOBER) == (before[0], before[1] // 2)


def test_finance_exports_last_month_by_cost_center_in_two_clicks_from_home(world) -> None:
    month = Span(month_at(now())).before
    used(world.nodes["acme/research/nlp"], Span(month).start + timedelta(days=2), 3, milli=2000, cost_centre="CC-7")
    month_refresh(first=month, now=now())
    browser = world.client("finance")

    first = re.search(r'href="(/cost/)"', browser.get("/", follow=True).content.decode())
    assert first is not None
    second = re.search(r'href="([^"]+)">Last month by cost centre<', browser.get(first[1]).content.decode())
    assert second is not None
    answer = browser.get(second[1].replace("&amp;", "&"))
    assert f"{month:%Y-%m}" in answer["Content-Disposition"]
    assert b"CC-7,6,0," in b"".join(answer.streaming_content)
