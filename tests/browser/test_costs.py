"""Costs in a browser: finance exports last month, holds it against an invoice and reads why it differs; a lead sees one team alone."""

import csv
from decimal import Decimal

import pytest
from playwright.sync_api import Locator, expect

pytestmark = pytest.mark.browser


def test_finance_exports_and_reconciles_last_month_and_a_lead_sees_one_team(sites, browser):
    site, clicks = sites("demo"), 0
    fay = site.visit(browser, "fay")
    page = fay.page

    def click(place: Locator) -> None:
        nonlocal clicks
        clicks += 1
        place.click()

    fay.open("/")
    click(page.get_by_role("navigation").get_by_role("link", name="Cost", exact=True))
    with page.expect_download() as download:
        click(page.get_by_role("link", name="Last month by cost centre"))
    assert clicks == 2
    rows = list(csv.DictReader(download.value.path().open()))
    total = Decimal(rows[-1]["Cost"])
    assert len(rows) > 2 and sum(Decimal(row["Cost"]) for row in rows[:-1]) == total > 0

    # The supplier bills each type 2.1 % above its contracted price.
    types = list(csv.DictReader(page.request.get(f"{site.origin}/cost/file/?month=last&by=gpu_type&format=summary").text().splitlines()))[:-1]
    billed = sum(Decimal(row["Contracted cost"]) for row in types) * Decimal("1.021")
    fay.open("/cost/?month=last")
    page.get_by_text("More", exact=True).click()
    page.get_by_role("link", name="Reconcile").click()
    page.get_by_label("Amount").fill(f"{billed:.2f}")
    page.get_by_label("Supplier's reference").fill("INV-1019")
    page.get_by_role("button", name="Reconcile").click()
    table = page.get_by_role("region", name="Variance")
    expect(table).to_contain_text("A unit price +2.10% off the rate card would explain it.")
    for number, row in enumerate(sorted(types, key=lambda row: row["GPU type"]), 1):
        expect(page.get_by_label(f"GPU type, line {number}")).to_have_value(row["GPU type"])
        unit = Decimal(row["Contracted cost"]) / Decimal(row["GPU-hours"]) * Decimal("1.021")
        page.get_by_label(f"Unit price, line {number}").fill(f"{unit:.6f}")
    page.get_by_role("button", name="Reconcile").click()
    expect(table).to_contain_text("on average (+2.10%)")
    left = table.get_by_role("row", name="Not explained").get_by_role("cell").first.inner_text()
    assert abs(Decimal(left)) < 1, "the unit prices explain the difference, but for their sixth decimal"
    assert fay.axe() == [] and fay.watch.faults == []

    tessa = site.visit(browser, "tessa")
    tessa.open("/cost/?month=last")
    region = tessa.page.get_by_role("region", name="Costs by Team")
    expect(region.locator("tbody tr")).to_have_count(1)
    expect(region.locator("tbody tr")).to_contain_text("veridia/research/language")
    expect(tessa.page.get_by_role("link", name="Reconcile")).to_have_count(0)
