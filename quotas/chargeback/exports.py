"""A month as files: CSV, XLSX, PDF and FOCUS. All are made of the same lines, inside the subtrees whose costs the reader may see.

Lines are read and written in pieces, so a month of any size needs the same memory. What a spreadsheet would run as a formula stays text.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from gpufleet.core.csvfile import harmless
from quotas.chargeback.months import Span
from quotas.chargeback.pricing import HOUR, cents, half_even
from quotas.chargeback.report import Report, lines_seen
from quotas.models import ChargeLine, ChargeMode, ChargeMonth, QuotaNode
from quotas.permissions import Access

CHUNK = 2000
PICO = 10**12
FORMATS = {
    "csv": ("text/csv; charset=utf-8; header=present", "csv"),
    "focus-1.2": ("text/csv; charset=utf-8; header=present", "csv"),
    "focus-1.4": ("text/csv; charset=utf-8; header=present", "csv"),
    "xlsx": ("application/vnd.openxmlformats-officedocument.spreadsheetml.sheet", "xlsx"),
    "pdf": ("application/pdf", "pdf"),
}
COLUMNS = (
    *("day", "team", "cost_center", "job", "owner", "labels", "cluster", "gpu_type", "class", "preemptible", "tier", "pool", "rate_card"),
    *("gpu_hours", "list_price", "contracted_price", "discount_percent", "list_cost", "contracted_cost", "cost", "currency", "corrects"),
)
PROVIDER = "gpufleet"


def plain(amount: int, scale: int) -> str:
    """A whole number of parts as a plain decimal: no exponent, no zeros at the end."""
    sign, whole = ("-" if amount < 0 else ""), abs(amount)
    digits = len(str(scale)) - 1
    text = f"{whole // scale}.{whole % scale:0{digits}}".rstrip("0").rstrip(".")
    return f"{sign}{text}" if text != "0" else "0"


def nanos(amount: int) -> str:
    return plain(amount, 10**9)


def gpu_hours(milli_millis: int) -> str:
    """GPU hours to twelve decimals, half to even."""
    return plain(half_even(milli_millis * PICO, HOUR), PICO)


def month_lines(access: Access, first: date) -> Iterator[ChargeLine]:
    yield from lines_seen(access, first).select_related("corrects", "quota").order_by("day", "id").iterator(CHUNK)


def cells(line: ChargeLine, currency: str, users: bool) -> list[Any]:
    return [
        line.day.isoformat(),
        line.quota_path,
        line.cost_centre,
        line.job,
        line.owner if users else "",
        json.dumps(line.labels, sort_keys=True, ensure_ascii=False) if line.labels else "",
        line.cluster,
        line.gpu_type,
        line.share_class,
        "yes" if line.preemptible else "no",
        line.tier,
        line.pool,
        line.card,
        gpu_hours(line.milli_millis),
        *(None if price is None else plain(price, 10**6) for price in (line.list_micros, line.contracted_micros)),
        None if line.discount_ppm is None else plain(line.discount_ppm, 10_000),
        nanos(line.list_nanos),
        nanos(line.contracted_nanos),
        nanos(line.effective_nanos),
        currency,
        f"{line.corrects.first:%Y-%m}" if line.corrects else "",
    ]


_NUMBERS = range(COLUMNS.index("gpu_hours"), COLUMNS.index("currency"))


def _written(rows: Iterator[Sequence[str]]) -> Iterator[bytes]:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    for number, row in enumerate(rows):
        writer.writerow(row)
        if number % CHUNK == CHUNK - 1:
            yield text.getvalue().encode()
            text.seek(0)
            text.truncate()
    yield text.getvalue().encode()


def csv_pieces(access: Access, first: date, currency: str, *, users: bool) -> Iterator[bytes]:
    def rows() -> Iterator[Sequence[str]]:
        yield COLUMNS
        for line in month_lines(access, first):
            said = cells(line, currency, users)
            # Numbers are ours and stay as they are, negative ones too; texts come from people.
            yield [cell or "" if place in _NUMBERS else harmless(cell) for place, cell in enumerate(said)]

    return _written(rows())


# FOCUS

_MANDATORY = (
    *("BilledCost", "BillingAccountId", "BillingAccountName", "BillingCurrency", "BillingPeriodEnd", "BillingPeriodStart"),
    *("ChargeCategory", "ChargeClass", "ChargeDescription", "ChargePeriodEnd", "ChargePeriodStart"),
    *("ContractedCost", "EffectiveCost", "InvoiceIssuerName", "ListCost", "PricingQuantity", "PricingUnit", "ServiceCategory", "ServiceName"),
)
_PARTIES = {"focus-1.2": ("ProviderName", "PublisherName"), "focus-1.4": ("ServiceProviderName", "HostProviderName")}
_FURTHER = (
    *("ChargeFrequency", "ConsumedQuantity", "ConsumedUnit", "ContractedUnitPrice", "InvoiceId", "ListUnitPrice", "PricingCategory"),
    *("ResourceId", "ResourceName", "ResourceType", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
    *("SubAccountId", "SubAccountName", "Tags"),
)
_OWN = ("x_Cluster", "x_CorrectsBillingPeriod", "x_CostCenter", "x_Pool", "x_RateCardId", "x_ShareClass", "x_SharingTier", "x_UserName")


def focus_columns(version: str) -> tuple[str, ...]:
    return (*sorted((*_MANDATORY, *_PARTIES[version], *_FURTHER)), *_OWN)


@dataclass(frozen=True, slots=True)
class Books:
    """What all rows of an export have in common."""

    month: ChargeMonth
    company: tuple[str, str]
    version: str
    users: bool

    @property
    def billed(self) -> bool:
        """Only a closed month that is charged back has invoices; an estimate and a showback bill nothing."""
        return self.month.closed_at is not None and self.month.mode == ChargeMode.CHARGEBACK


def invoice_id(month: ChargeMonth, quota: QuotaNode) -> str:
    return f"{month}-{quota.public_id}"


def moment(day: date, more: int = 0) -> str:
    return f"{day + timedelta(days=more)}T00:00:00Z"


def focus_row(line: ChargeLine, books: Books) -> dict[str, str | None]:
    """One line. Costs are unit price times quantity as both are written; what was billed and what is effective is the amount of the line."""
    month, span = books.month, Span(books.month.first)
    quantity = half_even(line.milli_millis * PICO, HOUR)
    priced = line.list_micros is not None
    correction = line.corrects is not None
    costs: dict[str, str | None] = {}
    for name, micros, amount in (("List", line.list_micros, line.list_nanos), ("Contracted", line.contracted_micros, line.contracted_nanos)):
        exact = nanos(amount) if micros is None or correction else plain(quantity * micros, 10**18)
        costs |= {f"{name}UnitPrice": None if micros is None else plain(micros, 10**6), f"{name}Cost": exact}
    sku = line.gpu_type
    meter = " ".join(filter(None, (line.gpu_type, line.share_class, line.tier, line.pool)))
    tags = {key: str(value) for key, value in line.labels.items()} | ({"cost_center": line.cost_centre} if line.cost_centre else {})
    details = {"InstanceType": line.gpu_type} | ({"x_MigProfile": line.tier.removeprefix("mig:")} if line.tier.startswith("mig:") else {})
    return (
        costs
        | {
            "BilledCost": nanos(line.effective_nanos) if books.billed else "0",
            "BillingAccountId": books.company[0],
            "BillingAccountName": books.company[1],
            "BillingCurrency": month.currency,
            "BillingPeriodStart": moment(span.first),
            "BillingPeriodEnd": moment(span.next),
            "ChargeCategory": "Usage",
            "ChargeClass": "Correction" if correction else None,
            "ChargeDescription": f"{line.share_class.capitalize()} use of {line.gpu_type} by {line.job}",
            "ChargeFrequency": "Usage-Based",
            "ChargePeriodStart": moment(line.day),
            "ChargePeriodEnd": moment(line.day, 1),
            "ConsumedQuantity": plain(quantity, PICO),
            "ConsumedUnit": "GPU-Hours",
            "EffectiveCost": nanos(line.effective_nanos),
            "InvoiceId": invoice_id(month, line.quota) if books.billed else None,
            "InvoiceIssuerName": books.company[1],
            "PricingCategory": "Standard" if priced else None,
            "PricingQuantity": plain(quantity, PICO) if priced else None,
            "PricingUnit": "GPU-Hours" if priced else None,
            "ResourceId": line.job,
            "ResourceName": line.job,
            "ResourceType": "Job",
            "ServiceCategory": "AI and Machine Learning",
            "ServiceSubcategory": "AI Platforms",
            "ServiceName": "GPU fleet",
            "SkuId": sku,
            "SkuMeter": "GPU time",
            "SkuPriceId": f"{line.card} {meter}" if priced else None,
            "SkuPriceDetails": json.dumps(details) if priced else None,
            "SubAccountId": line.quota.public_id,
            "SubAccountName": line.quota_path,
            "Tags": json.dumps(tags, sort_keys=True, ensure_ascii=False) if tags else None,
            "x_Cluster": line.cluster or None,
            "x_CorrectsBillingPeriod": f"{line.corrects.first:%Y-%m}" if line.corrects else None,
            "x_CostCenter": line.cost_centre or None,
            "x_Pool": line.pool or None,
            "x_RateCardId": line.card or None,
            "x_ShareClass": line.share_class,
            "x_SharingTier": line.tier,
            "x_UserName": (line.owner or None) if books.users else None,
        }
        | _parties(books)
    )


def _parties(books: Books) -> dict[str, str | None]:
    first, second = _PARTIES[books.version]
    return {first: PROVIDER, second: books.company[1]}


def rounding_row(month: ChargeMonth, quota: QuotaNode, amount: int, books: Books) -> dict[str, str | None]:
    """What is between the lines of an invoice and its amount in cents, so that its rows add up to what was invoiced."""
    span = Span(month.first)
    row: dict[str, str | None] = dict.fromkeys(focus_columns(books.version))
    cost = nanos(amount)
    return (
        row
        | {
            "BilledCost": cost,
            "BillingAccountId": books.company[0],
            "BillingAccountName": books.company[1],
            "BillingCurrency": month.currency,
            "BillingPeriodStart": moment(span.first),
            "BillingPeriodEnd": moment(span.next),
            "ChargeCategory": "Adjustment",
            "ChargeDescription": "Rounding of the invoice to the cent",
            "ChargeFrequency": "One-Time",
            "ChargePeriodStart": moment(span.first),
            "ChargePeriodEnd": moment(span.next),
            "ContractedCost": cost,
            "EffectiveCost": cost,
            "InvoiceId": invoice_id(month, quota),
            "InvoiceIssuerName": books.company[1],
            "ListCost": cost,
            "ServiceCategory": "AI and Machine Learning",
            "ServiceSubcategory": "AI Platforms",
            "ServiceName": "GPU fleet",
            "SubAccountId": quota.public_id,
            "SubAccountName": quota.path,
        }
        | _parties(books)
    )


def focus_rows(access: Access, books: Books) -> Iterator[dict[str, str | None]]:
    sums: dict[int, int] = {}
    quotas: dict[int, QuotaNode] = {}
    for line in month_lines(access, books.month.first):
        sums[line.quota_id] = sums.get(line.quota_id, 0) + line.effective_nanos
        quotas.setdefault(line.quota_id, line.quota)
        yield focus_row(line, books)
    if books.billed:
        for key in sorted(sums):
            gap = cents(sums[key]) * 10_000_000 - sums[key]
            if gap:
                yield rounding_row(books.month, quotas[key], gap, books)


def focus_pieces(access: Access, books: Books) -> Iterator[bytes]:
    columns = focus_columns(books.version)

    def rows() -> Iterator[Sequence[str]]:
        yield columns
        for row in focus_rows(access, books):
            yield [row[name] if row[name] is not None else "" for name in columns]  # type: ignore[misc]

    return _written(rows())


# Spreadsheet


def xlsx_pieces(access: Access, first: date, currency: str, reports: Mapping[str, Report], *, users: bool) -> Iterator[bytes]:
    """A sheet for each view and one with all lines. Texts are written as texts: none of them becomes a formula or a link."""
    import xlsxwriter

    with TemporaryDirectory(prefix="gpufleet-") as folder:
        path = Path(folder) / "month.xlsx"
        book = xlsxwriter.Workbook(
            str(path),
            {"constant_memory": True, "tmpdir": folder, "strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False},
        )
        styles = {
            "head": book.add_format({"bold": True, "bottom": 1}),
            "money": book.add_format({"num_format": "#,##0.00"}),
            "price": book.add_format({"num_format": "#,##0.00####"}),
            "hours": book.add_format({"num_format": "#,##0.000"}),
            "day": book.add_format({"num_format": "yyyy-mm-dd"}),
        }
        for name, report in reports.items():
            _summary(book, name, report, currency, styles)
        _lines_sheet(book, access, first, currency, users, styles)
        book.close()
        with path.open("rb") as file:
            while piece := file.read(1 << 16):
                yield piece


def _summary(book: Any, name: str, report: Report, currency: str, styles: Mapping[str, Any]) -> None:
    sheet = book.add_worksheet(name[:31])
    sheet.freeze_panes(1, 1)
    sheet.set_column(0, 0, 40)
    sheet.set_column(1, 6, 16)
    for place, text in enumerate((name, "GPU-hours", "Borrowed GPU-hours", f"List ({currency})", f"Contracted ({currency})", f"Cost ({currency})")):
        sheet.write_string(0, place, text, styles["head"])
    for number, row in enumerate([*report.rows, report.total], 1):
        last = number == len(report.rows) + 1
        sheet.write_string(number, 0, "Total" if last else row.label)
        for place, used in enumerate((row.milli_millis, row.borrowed), 1):
            sheet.write_number(number, place, used / HOUR, styles["hours"])
        for place, amount in enumerate((row.list_nanos, row.contracted_nanos, row.effective_nanos), 3):
            sheet.write_number(number, place, amount / 10**9, styles["money"])


def _lines_sheet(book: Any, access: Access, first: date, currency: str, users: bool, styles: Mapping[str, Any]) -> None:
    sheet = book.add_worksheet("Lines")
    sheet.freeze_panes(1, 1)
    sheet.set_column(0, len(COLUMNS) - 1, 14)
    for place, text in enumerate(COLUMNS):
        sheet.write_string(0, place, text, styles["head"])
    forms = dict.fromkeys(("list_cost", "contracted_cost", "cost"), "money") | {"gpu_hours": "hours"}
    for number, line in enumerate(month_lines(access, first), 1):
        for place, cell in enumerate(cells(line, currency, users)):
            if place == 0:
                sheet.write_datetime(number, 0, datetime(line.day.year, line.day.month, line.day.day), styles["day"])  # noqa: DTZ001 (a date)
            elif place in _NUMBERS:
                if cell is not None:
                    sheet.write_number(number, place, float(Decimal(cell)), styles[forms.get(COLUMNS[place], "price")])
            elif cell:
                sheet.write_string(number, place, str(cell))


# Statement


def pdf_pieces(report_of: Callable[[], Report], by_type: Callable[[], Report], currency: str, company: str, now: datetime) -> Iterator[bytes]:
    """A statement: totals, cost by day, by team and by GPU type."""
    from reportlab.lib import colors
    from reportlab.lib.pagesizes import A4
    from reportlab.lib.styles import getSampleStyleSheet
    from reportlab.lib.units import mm
    from reportlab.platypus import Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

    report, types = report_of(), by_type()
    styles = getSampleStyleSheet()
    file = io.BytesIO()
    title = f"GPU costs {report.span.first:%B %Y}"
    document = SimpleDocTemplate(file, pagesize=A4, title=title, author=company, leftMargin=18 * mm, rightMargin=18 * mm, topMargin=18 * mm)
    state = "Estimate, the month is open" if report.is_estimate else f"Closed, SHA-256 {report.month.digest[:16]}" if report.month else ""
    parts: list[Any] = [
        Paragraph(_xml(title), styles["Title"]),
        Paragraph(_xml(f"{company}. {state}. Written {now.astimezone(UTC):%Y-%m-%d %H:%M} UTC."), styles["Normal"]),
        Spacer(1, 4 * mm),
        _table([("GPU-hours", "List", "Contracted", f"Cost ({currency})"), _sums(report.total)], Table, TableStyle, colors, first=None),
        Spacer(1, 6 * mm),
    ]
    if report.days:
        parts += [Paragraph(f"Cost by day ({currency})", styles["Heading2"]), _plot(report), Spacer(1, 4 * mm)]
    for heading, one in (("By team", report), ("By GPU type", types)):
        rows = [
            ("", "GPU-hours", "List", "Contracted", "Cost"),
            *((_short(row.label), *_sums(row)) for row in one.rows),
            ("Total", *_sums(one.total)),
        ]
        parts += [Paragraph(heading, styles["Heading2"]), _table(rows, Table, TableStyle, colors, first=80 * mm), Spacer(1, 4 * mm)]
    document.build(parts)
    yield file.getvalue()


def _xml(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _short(text: str) -> str:
    return text if len(text) <= 48 else f"…{text[-47:]}"


def _sums(row: Any) -> tuple[str, ...]:
    hours = f"{Decimal(half_even(row.milli_millis * 10, HOUR)) / 10:,.1f}"
    return (hours, *(f"{Decimal(cents(amount)) / 100:,.2f}" for amount in (row.list_nanos, row.contracted_nanos, row.effective_nanos)))


def _table(rows: Sequence[Sequence[str]], kind: Any, style: Any, colors: Any, *, first: Any) -> Any:
    widths = None if first is None else [first, *([None] * (len(rows[0]) - 1))]
    table = kind(list(map(list, rows)), colWidths=widths, repeatRows=1, hAlign="LEFT")
    lines = [
        ("FONTNAME", (0, 0), (-1, 0), "Helvetica-Bold"),
        ("FONTSIZE", (0, 0), (-1, -1), 8.5),
        ("LINEBELOW", (0, 0), (-1, 0), 0.5, colors.grey),
        ("ALIGN", (0 if first is None else 1, 0), (-1, -1), "RIGHT"),
    ]
    if first is not None:
        lines += [("LINEABOVE", (0, -1), (-1, -1), 0.5, colors.grey), ("FONTNAME", (0, -1), (-1, -1), "Helvetica-Bold")]
    table.setStyle(style(lines))
    return table


def _plot(report: Report) -> Any:
    from reportlab.graphics.charts.barcharts import VerticalBarChart
    from reportlab.graphics.shapes import Drawing
    from reportlab.lib import colors

    drawing, bars = Drawing(480, 150), VerticalBarChart()
    bars.x, bars.y, bars.width, bars.height = 45, 20, 425, 120
    bars.data = [[sum(costs.values()) / 10**9 for _, costs in report.days]]
    bars.categoryAxis.categoryNames = [str(day.day) for day, _ in report.days]
    bars.categoryAxis.labels.fontSize = bars.valueAxis.labels.fontSize = 7
    bars.valueAxis.valueMin = 0
    bars.valueAxis.labelTextFormat = "%d"
    bars.bars[0].fillColor = colors.HexColor("#2563a8")
    bars.bars[0].strokeColor = None
    drawing.add(bars)
    return drawing
