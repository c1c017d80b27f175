"""Files of a month: the same figures in all of them, FOCUS by its rules, and nothing that a spreadsheet would run."""

import base64
import csv
import io
import json
import re
import shutil
import subprocess
import sys
import zipfile
import zlib
from collections import defaultdict
from datetime import timedelta
from decimal import Decimal
from xml.etree import ElementTree

import pytest
from django.http import Http404

from gpufleet.core.models import AuditEntry
from quotas.chargeback.exports import COLUMNS, focus_columns
from quotas.chargeback.files import file_name, file_of
from quotas.chargeback.months import month_close, month_refresh
from quotas.chargeback.periods import Period
from quotas.chargeback.pricing import cents
from quotas.chargeback.report import report
from quotas.models import ChargeLine, ChargeMonth, QuotaNode, RateCard
from tests.personas import Personas
from tests.quotas.chargeback.test_months import LATER, NOVEMBER, OCTOBER, START, price
from tests.quotas.chargeback.worlds import A100, used
from tests.servers import required

pytestmark = pytest.mark.django_db
FORMULA = '=HYPERLINK("http://evil.example","click")'
VERSIONS = ("focus-1.2", "focus-1.4")


@pytest.fixture
def month(personas: Personas) -> Personas:
    nlp, search = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    price(personas)
    used(nlp, START + timedelta(minutes=7), 1.2345, milli=333, job="j-1", owner="ada", labels={"run": FORMULA}, cost_centre="=1+1", tier="share")
    used(nlp, START + timedelta(days=3), 50, job="j-2", share_class="borrowed", preemptible="yes", milli=8000)
    used(search, START + timedelta(days=9), 8.1, milli=4000, job="j-3", gpu_type=A100, cost_centre="CC-2", owner="bob", pool="north/fast")
    used(search, START + timedelta(days=10), 3, milli=1000, job="j-4", gpu_type="T4", tier="mig:1g.10gb")
    return personas


def closed(personas: Personas, mode: str = "chargeback") -> None:
    month_close(access=personas.access("finance"), first=OCTOBER, mode=mode, now=LATER)


def content(personas: Personas, kind: str, name: str = "finance", first=OCTOBER, **more) -> bytes:
    return b"".join(file_of(personas.access(name), Period.of(first), kind, now=LATER, **more).pieces)


def rows(personas: Personas, kind: str, **more) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content(personas, kind, **more).decode())))


def sheet(data: bytes, number: int) -> list[dict[str, str | float]]:
    """A sheet of a workbook by its column letters, read without the library that wrote it."""
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"
    with zipfile.ZipFile(io.BytesIO(data)) as book:
        assert not [name for name in book.namelist() if "external" in name.lower()]
        shared = []
        if "xl/sharedStrings.xml" in book.namelist():
            shared = ["".join(one.itertext()) for one in ElementTree.fromstring(book.read("xl/sharedStrings.xml"))]
        tree = ElementTree.fromstring(book.read(f"xl/worksheets/sheet{number}.xml"))
    assert tree.find(f".//{space}f") is None, "there is no formula"
    found = []
    for row in tree.iter(f"{space}row"):
        cells = {}
        for cell in row:
            letter, kind, value = re.sub(r"\d", "", cell.get("r")), cell.get("t"), cell.find(f"{space}v")
            if kind == "inlineStr":
                cells[letter] = "".join(cell.itertext())
            elif value is not None:
                cells[letter] = shared[int(value.text)] if kind == "s" else float(value.text)
        found.append(cells)
    return found


def test_all_files_say_the_same(month) -> None:
    closed(month)
    access = month.access("finance")
    exact = sum(ChargeLine.objects.values_list("effective_nanos", flat=True))
    whole = Decimal(exact) / 10**9

    assert report(access, Period.of(OCTOBER), now=LATER).total.effective_nanos == exact
    assert sum(Decimal(row["cost"]) for row in rows(month, "csv")) == whole
    for by in ("team", "cost_centre", "owner", "day"):
        summary = rows(month, "summary", by=by)
        assert summary[-1]["Cost"] == f"{whole.normalize():f}"
        assert sum(Decimal(row["Cost"]) for row in summary[:-1]) == whole
        assert ("Last month" in summary[0]) == (by != "day"), "a day was in no month before"
    for version in VERSIONS:
        assert sum(Decimal(row["EffectiveCost"]) for row in rows(month, version) if row["ChargeCategory"] == "Usage") == whole
    book = content(month, "xlsx")
    lines = sheet(book, 6)
    assert round(sum(row["T"] for row in lines[1:]), 6) == round(float(whole), 6)
    for number in range(1, 6):
        assert round(sheet(book, number)[-1]["F"], 6) == round(float(whole), 6)
    answer = month.client("finance").get("/api/v1/costs/2026-10").json()
    assert answer["total"]["effective_nanos"] == exact == sum(row["effective_nanos"] for row in answer["rows"])


def test_over_http_it_is_said_how_many_rows_there_are_beside_the_most_expensive(month) -> None:
    for number in range(501):
        used(month.nodes["acme/research/nlp"], START + timedelta(days=4), 1 + number / 1000, job=f"j-{9000 + number}")
    month_refresh(first=OCTOBER, now=LATER)

    answer = month.client("finance").get("/api/v1/costs/2026-10?by=job").json()

    jobs = set(ChargeLine.objects.values_list("job", flat=True))
    assert (len(answer["rows"]), answer["more"]) == (500, len(jobs) - 500)
    cheapest = min(row["effective_nanos"] for row in answer["rows"])
    left = answer["total"]["effective_nanos"] - sum(row["effective_nanos"] for row in answer["rows"])
    assert 0 < left <= cheapest * answer["more"]


def test_what_looks_like_a_formula_stays_text(month) -> None:
    month_refresh(first=OCTOBER, now=LATER)

    row = next(row for row in rows(month, "csv") if row["job"] == "j-1")
    assert row["cost_center"] == "'=1+1"
    assert any(FORMULA in str(cell).replace('\\"', '"') for line in sheet(content(month, "xlsx"), 6) for cell in line.values())
    assert any("=1+1" in line.values() for line in sheet(content(month, "xlsx"), 6))


def test_days_of_very_many_lines_are_read_in_parts(month, monkeypatch) -> None:
    closed(month)
    whole = content(month, "csv")
    monkeypatch.setattr("quotas.chargeback.exports.WHOLE_DAY", 1)
    assert content(month, "csv") == whole


@pytest.mark.parametrize("version", VERSIONS)
class TestFocus:
    """The thirteen rules of the notes on FOCUS, each as what a reader of the file can check."""

    def test_moments_are_utc_and_periods_end_exclusively(self, month, version) -> None:
        closed(month)
        for row in rows(month, version):
            for name in ("BillingPeriodStart", "BillingPeriodEnd", "ChargePeriodStart", "ChargePeriodEnd"):
                assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", row[name])
            assert row["BillingPeriodStart"] == "2026-10-01T00:00:00Z" <= row["ChargePeriodStart"] < row["ChargePeriodEnd"]
            assert row["ChargePeriodEnd"] <= row["BillingPeriodEnd"] == "2026-11-01T00:00:00Z"

    def test_nothing_is_nothing(self, month, version) -> None:
        month_refresh(first=OCTOBER, now=LATER)
        for row in rows(month, version):
            assert not {"N/A", "null", "None", "-"} & set(row.values())
        bare = next(row for row in rows(month, version) if row["ResourceId"] == "j-4")
        assert (bare["ListUnitPrice"], bare["PricingQuantity"], bare["SkuPriceId"], bare["EffectiveCost"]) == ("", "", "", "0")

    def test_numbers_are_plain_decimals(self, month, version) -> None:
        closed(month)
        numbers = [name for name in focus_columns(version) if re.search(r"(Cost|Quantity|Price)$", name)]
        for row in rows(month, version):
            assert all(re.fullmatch(r"(-?\d+(\.\d+)?)?", row[name]) for name in numbers)

    def test_costs_are_unit_price_times_quantity(self, month, version) -> None:
        month_refresh(first=OCTOBER, now=LATER)
        for row in rows(month, version):
            for name in ("List", "Contracted"):
                if row[f"{name}UnitPrice"]:
                    assert Decimal(row[f"{name}UnitPrice"]) * Decimal(row["PricingQuantity"]) == Decimal(row[f"{name}Cost"])

    def test_categories_classes_and_units_are_those_of_the_standard(self, month, version) -> None:
        closed(month)
        for row in rows(month, version):
            assert row["ChargeCategory"] in ("Usage", "Purchase", "Tax", "Credit", "Adjustment")
            assert row["ChargeClass"] in ("", "Correction")
            assert row["ConsumedUnit"] in ("GPU-Hours", "")
            assert row["PricingUnit"] in ("GPU-Hours", "")

    def test_rows_of_an_invoice_add_up_to_its_amount(self, month, version) -> None:
        closed(month)
        billed: dict[str, Decimal] = defaultdict(Decimal)
        for row in rows(month, version):
            billed[row["InvoiceId"]] += Decimal(row["BilledCost"])
        for row in report(month.access("finance"), Period.of(OCTOBER), by="project", now=LATER).rows:
            node = month.nodes[row.key]
            assert billed.pop(f"2026-10-{node.public_id}") == Decimal(cents(row.effective_nanos)) / 100
        assert billed == {}

    def test_who_bills_nothing_bills_nothing(self, month, version) -> None:
        month_refresh(first=OCTOBER, now=LATER)
        assert {(row["BilledCost"], row["InvoiceId"]) for row in rows(month, version)} == {("0", "")}
        closed(month, "showback")
        assert {(row["BilledCost"], row["InvoiceId"]) for row in rows(month, version)} == {("0", "")}
        assert any(Decimal(row["EffectiveCost"]) for row in rows(month, version))

    def test_what_is_found_later_is_a_correction_in_the_next_period(self, month, version) -> None:
        closed(month)
        before = content(month, version)
        price(month, 1_000_000, replaces=RateCard.objects.get(state="active"), now=LATER + timedelta(minutes=1), more="T4")
        month_refresh(first=NOVEMBER, now=LATER + timedelta(hours=1))

        assert content(month, version) == before, "what was issued stays as it was, to the byte"
        later = rows(month, version, first=NOVEMBER)
        assert later and {row["ChargeClass"] for row in later} == {"Correction"}
        assert {row["BillingPeriodStart"][:7] for row in later} == {"2026-11"}
        assert {row["ChargePeriodStart"][:7] for row in later} == {"2026-10"} == {row["x_CorrectsBillingPeriod"] for row in later}

    def test_own_columns_come_last_and_are_named_as_such(self, month, version) -> None:
        columns = focus_columns(version)
        own = [name for name in columns if name.startswith("x_")]
        assert list(columns[-len(own) :]) == own
        assert all(re.fullmatch(r"x_[A-Z][A-Za-z]+", name) for name in own)
        assert len(set(columns)) == len(columns)

    def test_each_row_is_there_once_and_again_the_same(self, month, version) -> None:
        month_refresh(first=OCTOBER, now=LATER)
        first = content(month, version)
        month_refresh(first=OCTOBER, now=LATER + timedelta(days=1))
        assert sorted(content(month, version).splitlines()) == sorted(first.splitlines())
        keys = [
            tuple(row[name] for name in ("ChargePeriodStart", "ResourceId", "SkuPriceId", "SubAccountId", "Tags")) for row in rows(month, version)
        ]
        assert len(set(keys)) == len(keys)

    def test_names_of_people_are_there_only_when_asked_for(self, month, version) -> None:
        month_refresh(first=OCTOBER, now=LATER)
        assert b"ada" not in content(month, version)
        assert {row["x_UserName"] for row in rows(month, version, users=True)} == {"ada", "bob", ""}

    def test_a_public_validator_finds_no_fault(self, month, version, tmp_path) -> None:
        """Structure and semantics of 1.4; a file of 1.2 is converted to 1.4 first, which reads every column of it, and held to the same."""
        closed(month)
        path, made = tmp_path / "focus.csv", tmp_path / "made"
        path.write_bytes(content(month, version))
        asked = ["validate", str(path)]
        if version == "focus-1.2":
            asked = ["convert", "--cost-and-usage", str(path), "--source-version", "1.2", "--provider-role", "msp", "--out", str(made)]
        found = subprocess.run([sys.executable, "-m", "focus_data_toolkit", *asked], capture_output=True, text=True, check=False)
        assert found.returncode in (0, 3), found.stdout[-3000:] + found.stderr[-2000:]
        if version == "focus-1.2":
            assert "lint [Cost and Usage]: lint OK" in found.stdout, found.stdout
            after = list(csv.DictReader((made / "focus_1_4_cost_and_usage.csv").open()))
            assert sum(Decimal(row["BilledCost"]) for row in after) == sum(Decimal(row["BilledCost"]) for row in rows(month, version))
        else:
            assert found.returncode == 0 and "SEMANTIC_VALID" in found.stdout
            path.write_text(path.read_text().replace(",USD,", ",dollars,"))
            spoilt = subprocess.run([sys.executable, "-m", "focus_data_toolkit", *asked], capture_output=True, text=True, check=False)
            assert spoilt.returncode != 0, "it would have found one"


def pdf_text(data: bytes) -> list[str]:
    """What a statement says, in the order in which it is drawn."""
    streams = re.findall(rb"/ASCII85Decode /FlateDecode \].*?stream\r?\n(.*?)endstream", data, re.DOTALL)
    drawn = b"\n".join(
        zlib.decompress(base64.a85decode(one.strip(), adobe=True))
        if one.strip().startswith(b"<~")
        else zlib.decompress(base64.a85decode(b"<~" + one.strip(), adobe=True))
        for one in streams
    )
    return [re.sub(r"\\(.)", r"\1", said.decode("latin-1")) for said in re.findall(rb"\(((?:\\.|[^\\()])*)\) Tj", drawn)]


def shown(nanos: int) -> str:
    return f"{Decimal(cents(nanos)) / 100:,.2f}"


def test_a_statement_has_a_section_for_each_team_that_adds_up(month) -> None:
    closed(month)
    said = pdf_text(content(month, "pdf"))
    found = report(month.access("finance"), Period.of(OCTOBER), now=LATER)

    assert said.count("GPU costs, October 2026") == 1 + len(found.rows)
    totals = [said[at + 4] for at, text in enumerate(said) if text == "Total"]
    # By team; then of each team by GPU type and class, and its jobs.
    teams = sorted(found.rows, key=lambda row: row.key)
    assert totals == [shown(row.effective_nanos) for row in (found.total, *(row for row in teams for _ in range(2)))]
    alone = pdf_text(content(month, "pdf", team="acme/research/nlp"))
    assert "acme/research/nlp" in alone and not [text for text in alone if "search" in text and "research" not in text]
    assert content(month, "pdf", "team_lead").startswith(b"%PDF-")
    with pytest.raises(Http404):
        content(month, "pdf", "team_lead", team="acme/product/search")


def test_a_statement_writes_names_of_all_alphabets(month, tmp_path) -> None:
    """Read back by poppler: what the embedded font lacks is its code point."""
    QuotaNode.objects.filter(path="acme/research/nlp").update(title="Größe 東京 Ωmega <b>& Ко")
    QuotaNode.objects.filter(path="acme").update(title="Łódź 社")
    closed(month)
    path = tmp_path / "statement.pdf"
    path.write_bytes(content(month, "pdf", team="acme/research/nlp"))
    if shutil.which("pdftotext") is None:
        required("poppler", "pdftotext of poppler-utils is not installed.")
    said = subprocess.run(["pdftotext", "-layout", str(path), "-"], capture_output=True, text=True, check=True).stdout

    assert "Größe [U+6771 U+4EAC] Ωmega <b>& Ко" in said
    assert said.count("Łódź [U+793E]") >= 2, "at the head and at the foot"


def test_a_spreadsheet_program_reads_the_same_totals(month, tmp_path) -> None:
    """LibreOffice opens CSV and Excel and writes what it read as CSV; what looks like a formula is still text."""
    office = shutil.which("soffice") or shutil.which("libreoffice")
    if office is None:
        required("libreoffice", "LibreOffice is not installed (Debian package: libreoffice-calc-nogui).")
    closed(month)
    (tmp_path / "lines.csv").write_bytes(content(month, "csv"))
    (tmp_path / "book.xlsx").write_bytes(content(month, "xlsx"))
    options = "csv:Text - txt - csv (StarCalc):44,34,76,1,,0,false,true,false,false,false,-1"
    home = f"-env:UserInstallation=file://{tmp_path}/home"
    files = [str(tmp_path / name) for name in ("lines.csv", "book.xlsx")]
    asked = [office, home, "--headless", "--convert-to", options, "--outdir", str(tmp_path / "read"), *files]
    found = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=120)
    read = {path.stem: list(csv.DictReader(path.open())) for path in (tmp_path / "read").glob("*.csv")}
    assert {"book-Lines", "book-Team"} <= set(read), found.stdout + found.stderr
    lines = next(rows for name, rows in read.items() if name.startswith("lines"))
    whole = Decimal(sum(ChargeLine.objects.values_list("effective_nanos", flat=True))) / 10**9
    assert sum(Decimal(row["cost"]) for row in lines) == whole
    assert round(sum(Decimal(row["cost"]) for row in read["book-Lines"]), 6) == round(whole, 6)
    assert round(Decimal(read["book-Team"][-1]["Cost (USD)"]), 6) == round(whole, 6)
    assert any("HYPERLINK" in row["labels"] for row in lines) and not any(row["cost_center"] in ("2", "") and row["job"] == "j-1" for row in lines)


def test_a_workbook_on_paper_says_what_it_is_of_and_is_one_page_wide(month) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    space = "{http://schemas.openxmlformats.org/spreadsheetml/2006/main}"

    def said(standing: str) -> None:
        with zipfile.ZipFile(io.BytesIO(content(month, "xlsx"))) as book:
            pages = [ElementTree.fromstring(book.read(name)) for name in book.namelist() if name.startswith("xl/worksheets/")]
            comments = book.read("docProps/core.xml").decode()
        for page in pages:
            assert (page.find(f"{space}pageSetup").get("fitToHeight"), page.find(f"{space}pageSetup").get("orientation")) == ("0", "landscape")
            head = page.find(f"{space}headerFooter/{space}oddHeader").text
            assert head == f"&LGPU costs, October 2026&R{standing}" and standing in comments
        widths = [float(one.get("width")) for one in pages[0].iter(f"{space}col") for _ in range(int(one.get("min")), int(one.get("max")) + 1)]
        heads = sheet(content(month, "xlsx"), 1)[0].values()
        assert all(width > len(text) for width, text in zip(widths, heads, strict=True)), "no heading is cut"

    said("Estimate: the month is open, usage until 2026-11-01 00:00 UTC.")
    closed(month)
    said(f"Charged back. Closed {LATER:%Y-%m-%d}, SHA-256 {ChargeMonth.objects.get(first=OCTOBER).digest[:16]}.")


def test_a_lead_gets_the_own_subtree_and_each_file_is_audited(month) -> None:
    month_refresh(first=OCTOBER, now=LATER)
    answer = month.client("team_lead").get("/cost/file/?month=2026-10&format=csv")
    text = b"".join(answer.streaming_content).decode()

    assert {row["team"] for row in csv.DictReader(io.StringIO(text))} == {"acme/research/nlp"}
    assert AuditEntry.objects.filter(action="export", object_id="/cost/file/").count() == 1
    over_http = month.client("finance").get("/api/v1/costs/2026-10/file?format=focus-1.4")
    assert over_http.status_code == 200
    assert AuditEntry.objects.filter(action="export", object_kind="charge_month").count() == 1
    assert json.loads(month.client("viewer").get("/api/v1/costs/2026-10/file").content)["status"] == 403
    assert next(csv.reader(io.StringIO(text))) == list(COLUMNS)


def test_each_file_of_a_month_has_its_own_name() -> None:
    """Two summaries of a month were both gpufleet-2026-11-summary.csv, and its lines gpufleet-2026-11-csv.csv."""
    month = Period.of(NOVEMBER)
    kinds = [("summary", "department"), ("summary", "label:work load"), ("csv", ""), ("xlsx", ""), ("pdf", ""), ("focus-1.4", "")]

    assert [file_name(month, kind, by=by) for kind, by in kinds] == [
        "gpufleet-2026-11-by-department.csv",
        "gpufleet-2026-11-by-label-work-load.csv",
        "gpufleet-2026-11-lines.csv",
        "gpufleet-2026-11-costs.xlsx",
        "gpufleet-2026-11-statement.pdf",
        "gpufleet-2026-11-focus-1-4.csv",
    ]
    assert file_name(month, "pdf", team="acme/research") == "gpufleet-2026-11-acme-research-statement.pdf"
