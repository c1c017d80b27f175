"""A month or another period as files: CSV, XLSX and FOCUS. All are made of the same lines, inside the subtrees whose costs the reader may see. PDF:
`statements`.

Lines are read and written in pieces, so a period of any size needs the same memory. What a spreadsheet would run as a formula stays text.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from django.db.models import Count, QuerySet

from gpufleet.core.csvfile import harmless
from quotas.chargeback.months import Span
from quotas.chargeback.periods import Period
from quotas.chargeback.pricing import HOUR, cents, half_even
from quotas.chargeback.report import Report, lines_seen
from quotas.models import ChargeLine, ChargeMode, ChargeMonth
from quotas.permissions import Access

CHUNK = 2000
WHOLE_DAY = 10_000  # lines that are read at once
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
SUB_ACCOUNT = "Quota"


def plain(amount: int, scale: int) -> str:
    """A whole number of parts as a plain decimal: no exponent, no zeros at the end. `scale` is a power of ten."""
    whole, part = divmod(abs(amount), scale)
    text = f"{whole}.{str(scale + part)[1:].rstrip('0')}" if part else str(whole)
    return f"-{text}" if amount < 0 else text


def nanos(amount: int) -> str:
    return plain(amount, 10**9)


def gpu_hours(milli_millis: int) -> str:
    """GPU-hours to twelve decimals, half to even."""
    return plain(half_even(milli_millis * PICO, HOUR), PICO)


class Line(NamedTuple):
    """A line as the database gives it: making a model of each took longer than writing it."""

    day: date
    quota_id: int
    quota_public_id: str
    quota_now: str  # the path of its team today
    quota_path: str
    cost_centre: str
    job: str
    owner: str
    labels: Mapping[str, Any]
    cluster: str
    gpu_type: str
    share_class: str
    preemptible: bool
    tier: str
    pool: str
    card: str
    list_micros: int | None
    contracted_micros: int | None
    discount_ppm: int | None
    milli_millis: int
    list_nanos: int
    contracted_nanos: int
    effective_nanos: int
    corrects: date | None


_COLUMNS_OF = {"quota_public_id": "quota__public_id", "quota_now": "quota__path", "corrects": "corrects__first"}


# Is called with how many lines were read so far.
Told = Callable[[int], None]


def period_lines(access: Access, period: Period, told: Told | None = None) -> Iterator[Line]:
    """Month by month, then day by day: no cursor stays open between two days, so whoever writes may commit meanwhile."""
    columns = [_COLUMNS_OF.get(name, name) for name in Line._fields]
    lines, count = lines_seen(access, period), 0
    for month, day, number in list(lines.order_by("month__first", "day").values_list("month__first", "day").annotate(Count("pk"))):
        of_day = lines.filter(month__first=month, day=day).order_by("pk")
        for piece in [of_day] if number <= WHOLE_DAY else _parted(of_day):
            rows = list(piece.values_list(*columns))
            yield from map(Line._make, rows)
            count += len(rows)
            if told is not None:
                told(count)


def _parted(lines: QuerySet[ChargeLine]) -> Iterator[QuerySet[ChargeLine]]:
    """A day of a very large fleet, so many lines at once."""
    keys = list(lines.values_list("pk", flat=True))
    for piece in (keys[at : at + WHOLE_DAY] for at in range(0, len(keys), WHOLE_DAY)):
        yield lines.filter(pk__range=(piece[0], piece[-1]))


def cells(line: Line, currency: str, users: bool) -> list[Any]:
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
        f"{line.corrects:%Y-%m}" if line.corrects else "",
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


def csv_pieces(access: Access, period: Period, currency: str, *, users: bool, told: Told | None = None) -> Iterator[bytes]:
    def rows() -> Iterator[Sequence[str]]:
        yield COLUMNS
        for line in period_lines(access, period, told):
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
    *(
        "BillingAccountType",
        "ChargeFrequency",
        "ConsumedQuantity",
        "ConsumedUnit",
        "ContractedUnitPrice",
        "InvoiceId",
        "ListUnitPrice",
        "PricingCategory",
    ),
    *("ResourceId", "ResourceName", "ResourceType", "ServiceSubcategory", "SkuId", "SkuMeter", "SkuPriceDetails", "SkuPriceId"),
    *("SubAccountId", "SubAccountName", "SubAccountType", "Tags"),
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


def invoice_id(month: ChargeMonth, quota: str) -> str:
    return f"{month}-{quota}"


def moment(day: date, more: int = 0) -> str:
    return f"{day + timedelta(days=more)}T00:00:00Z"


Cells = list[str]


class _Rows:
    """Rows of one export, their cells in the order of its columns; empty for null. What many lines have in common is put together once."""

    def __init__(self, books: Books) -> None:
        self.books, self.billed = books, books.billed
        month, span, company = books.month, Span(books.month.first), books.company
        self.columns = focus_columns(books.version)
        self.places = {name: place for place, name in enumerate(self.columns)}
        self.common: dict[str, str | None] = {
            "BillingAccountId": company[0],
            "BillingAccountName": company[1],
            "BillingAccountType": "Organization",
            "BillingCurrency": month.currency,
            "BillingPeriodStart": moment(span.first),
            "BillingPeriodEnd": moment(span.next),
            "InvoiceIssuerName": company[1],
            "ServiceCategory": "AI and Machine Learning",
            "ServiceSubcategory": "AI Platforms",
            "ServiceName": "GPU fleet",
        }
        self.common |= _parties(books)
        self._changing = [self.places[name] for name in _OF_LINE]
        self._of_kind: dict[tuple[Any, ...], Cells] = {}
        self._of_day: dict[date, tuple[str, str]] = {}
        self._invoices: dict[str, str] = {}
        self._tags: dict[tuple[str, str], str] = {}

    def _cells(self, said: Mapping[str, str | None]) -> Cells:
        return [said.get(name) or "" for name in self.columns]

    def _kind(self, line: Line) -> Cells:
        """What depends on the kind of use and its price alone."""
        key = (line.gpu_type, line.share_class, line.tier, line.pool, line.card, line.list_micros, line.contracted_micros)
        if key not in self._of_kind:
            priced = line.list_micros is not None
            meter = " ".join(filter(None, (line.gpu_type, line.share_class, line.tier, line.pool)))
            details = {"InstanceType": line.gpu_type} | ({"x_MigProfile": line.tier.removeprefix("mig:")} if line.tier.startswith("mig:") else {})
            said = self.common | {
                "ListUnitPrice": None if line.list_micros is None else plain(line.list_micros, 10**6),
                "ContractedUnitPrice": None if line.contracted_micros is None else plain(line.contracted_micros, 10**6),
                "ChargeCategory": "Usage",
                "ChargeFrequency": "Usage-Based",
                "ConsumedUnit": "GPU-Hours",
                "PricingCategory": "Standard" if priced else None,
                "PricingUnit": "GPU-Hours" if priced else None,
                "ResourceType": "Job",
                "SkuId": line.gpu_type,
                "SkuMeter": "GPU time",
                "SkuPriceId": f"{line.card} {meter}" if priced else None,
                "SkuPriceDetails": json.dumps(details) if priced else None,
                "SubAccountType": SUB_ACCOUNT,
                "x_Pool": line.pool or None,
                "x_RateCardId": line.card or None,
                "x_ShareClass": line.share_class,
                "x_SharingTier": line.tier,
            }
            self._of_kind[key] = self._cells(said)
        return self._of_kind[key]

    def _day(self, day: date) -> tuple[str, str]:
        if day not in self._of_day:
            self._of_day[day] = moment(day), moment(day, 1)
        return self._of_day[day]

    def _invoice(self, quota: str) -> str:
        if quota not in self._invoices:
            self._invoices[quota] = invoice_id(self.books.month, quota)
        return self._invoices[quota]

    def _tags_of(self, line: Line) -> str:
        if not line.labels and not line.cost_centre:
            return ""
        key = line.cost_centre, repr(line.labels)
        if key in self._tags:
            return self._tags[key]
        if len(self._tags) > MOST_TAGS:
            self._tags.clear()
        tags = {name: str(value) for name, value in line.labels.items()} | ({"cost_center": line.cost_centre} if line.cost_centre else {})
        self._tags[key] = json.dumps(tags, sort_keys=True, ensure_ascii=False)
        return self._tags[key]

    def usage(self, line: Line) -> Cells:
        """One line. Costs are unit price times quantity as both are written; what was billed and what is effective is the amount of the line."""
        correction, row = line.corrects is not None, self._kind(line).copy()
        exact = half_even(line.milli_millis * PICO, HOUR)
        quantity, effective = plain(exact, PICO), nanos(line.effective_nanos)
        start, end = self._day(line.day)
        costs = [
            nanos(amount) if micros is None or correction else plain(exact * micros, 10**18)
            for micros, amount in ((line.list_micros, line.list_nanos), (line.contracted_micros, line.contracted_nanos))
        ]
        said = (
            effective if self.billed else "0",
            "Correction" if correction else "",
            f"{line.share_class.capitalize()} use of {line.gpu_type} by {line.job}",
            start,
            end,
            quantity,
            costs[1],
            effective,
            self._invoice(line.quota_public_id) if self.billed else "",
            costs[0],
            quantity if line.list_micros is not None else "",
            line.job,
            line.job,
            line.quota_public_id,
            line.quota_path,
            self._tags_of(line),
            line.cluster,
            f"{line.corrects:%Y-%m}" if line.corrects else "",
            line.cost_centre,
            line.owner if self.books.users else "",
        )
        for place, cell in zip(self._changing, said, strict=True):
            row[place] = cell
        return row

    def rounding(self, quota: tuple[str, str], amount: int) -> Cells:
        """What is between the lines of an invoice and its amount in cents, so that its rows add up to what was invoiced."""
        span, cost = Span(self.books.month.first), nanos(amount)
        return self._cells(
            self.common
            | {
                "BilledCost": cost,
                "ChargeCategory": "Adjustment",
                "ChargeDescription": "Rounding of the invoice to the cent",
                "ChargeFrequency": "One-Time",
                "ChargePeriodStart": moment(span.first),
                "ChargePeriodEnd": moment(span.next),
                "ContractedCost": cost,
                "EffectiveCost": cost,
                "InvoiceId": self._invoice(quota[0]),
                "ListCost": cost,
                "SubAccountId": quota[0],
                "SubAccountName": quota[1],
                "SubAccountType": SUB_ACCOUNT,
            }
        )


# What differs from line to line, in the order in which `_Rows.usage` has it.
_OF_LINE = (
    *("BilledCost", "ChargeClass", "ChargeDescription", "ChargePeriodStart", "ChargePeriodEnd", "ConsumedQuantity", "ContractedCost"),
    *("EffectiveCost", "InvoiceId", "ListCost", "PricingQuantity", "ResourceId", "ResourceName", "SubAccountId", "SubAccountName", "Tags"),
    *("x_Cluster", "x_CorrectsBillingPeriod", "x_CostCenter", "x_UserName"),
)
MOST_TAGS = 50_000


def _parties(books: Books) -> dict[str, str | None]:
    first, second = _PARTIES[books.version]
    return {first: PROVIDER, second: books.company[1]}


def focus_rows(access: Access, books: Books, told: Told | None = None) -> Iterator[Cells]:
    made = _Rows(books)
    sums: dict[int, int] = {}
    quotas: dict[int, tuple[str, str]] = {}
    for line in period_lines(access, Period.of(books.month.first), told):
        sums[line.quota_id] = sums.get(line.quota_id, 0) + line.effective_nanos
        quotas.setdefault(line.quota_id, (line.quota_public_id, line.quota_now))
        yield made.usage(line)
    if books.billed:
        for key in sorted(sums):
            gap = cents(sums[key]) * 10_000_000 - sums[key]
            if gap:
                yield made.rounding(quotas[key], gap)


def focus_pieces(access: Access, months: Sequence[Books], told: Told | None = None) -> Iterator[bytes]:
    """Of one month or of several, each with its own billing period and invoices."""

    def rows() -> Iterator[Sequence[str]]:
        yield focus_columns(months[0].version)
        before = count = 0

        def on(lines: int) -> None:
            nonlocal count
            count = before + lines
            if told is not None:
                told(count)

        for books in months:
            before = count
            yield from focus_rows(access, books, on)

    return _written(rows())


# Spreadsheet


def xlsx_pieces(
    access: Access, period: Period, currency: str, reports: Mapping[str, Report], *, users: bool, told: Told | None = None
) -> Iterator[bytes]:
    """A sheet for each view and one with all lines. Texts are written as texts: none of them becomes a formula or a link."""
    import xlsxwriter

    with TemporaryDirectory(prefix="gpufleet-") as folder:
        path = Path(folder) / "month.xlsx"
        book = xlsxwriter.Workbook(
            str(path),
            {"constant_memory": True, "tmpdir": folder, "strings_to_formulas": False, "strings_to_urls": False, "strings_to_numbers": False},
        )
        whole = next(iter(reports.values()))
        book.set_properties({"title": f"GPU costs, {period.title}", "comments": whole.standing})
        printed = f"&L{_printed(f'GPU costs, {period.title}')}&R{_printed(whole.standing)}"
        styles = {
            "head": book.add_format({"bold": True, "bottom": 1}),
            "number": book.add_format({"bold": True, "bottom": 1, "align": "right"}),
            "total": book.add_format({"bold": True, "top": 1}),
            "total money": book.add_format({"bold": True, "top": 1, "num_format": "#,##0.00"}),
            "total hours": book.add_format({"bold": True, "top": 1, "num_format": "#,##0.000"}),
            "money": book.add_format({"num_format": "#,##0.00"}),
            "price": book.add_format({"num_format": "#,##0.00####"}),
            "hours": book.add_format({"num_format": "#,##0.000"}),
            "day": book.add_format({"num_format": "yyyy-mm-dd"}),
        }
        for name, report in reports.items():
            _summary(_sheet(book, name, printed), name, report, currency, styles)
        _lines_sheet(_sheet(book, "Lines", printed), period_lines(access, period, told), currency, users, styles)
        book.close()
        with path.open("rb") as file:
            while piece := file.read(1 << 16):
                yield piece


def _printed(text: str) -> str:
    """A text in the head of a printed sheet, where & begins a code."""
    return text.replace("&", "&&")


def _sheet(book: Any, name: str, printed: str) -> Any:
    """On paper as wide as one page, with the names of its columns on each."""
    sheet = book.add_worksheet(name[:31])
    sheet.freeze_panes(1, 1)
    sheet.set_landscape()
    sheet.set_paper(9)  # A4
    sheet.fit_to_pages(1, 0)
    sheet.repeat_rows(0)
    sheet.set_header(printed)
    sheet.set_footer("&R&P / &N")
    return sheet


def _summary(sheet: Any, name: str, report: Report, currency: str, styles: Mapping[str, Any]) -> None:
    sheet.set_column(0, 0, 40)
    sheet.set_column(1, 5, 21)
    sheet.write_string(0, 0, name, styles["head"])
    for place, text in enumerate(("GPU-hours", "Borrowed GPU-hours", f"List ({currency})", f"Contracted ({currency})", f"Cost ({currency})"), 1):
        sheet.write_string(0, place, text, styles["number"])
    for number, row in enumerate([*report.rows, report.total], 1):
        total = "total " if number == len(report.rows) + 1 else ""
        sheet.write_string(number, 0, "Total" if total else row.label, styles["total"] if total else None)
        for place, used in enumerate((row.milli_millis, row.borrowed), 1):
            sheet.write_number(number, place, used / HOUR, styles[f"{total}hours"])
        for place, amount in enumerate((row.list_nanos, row.contracted_nanos, row.effective_nanos), 3):
            sheet.write_number(number, place, amount / 10**9, styles[f"{total}money"])


def _lines_sheet(sheet: Any, lines: Iterator[Line], currency: str, users: bool, styles: Mapping[str, Any]) -> None:
    sheet.set_column(0, len(COLUMNS) - 1, 14)
    sheet.set_column(COLUMNS.index("team"), COLUMNS.index("team"), 32)
    for place, text in enumerate(COLUMNS):
        sheet.write_string(0, place, text, styles["number" if place in _NUMBERS else "head"])
    forms = dict.fromkeys(("list_cost", "contracted_cost", "cost"), "money") | {"gpu_hours": "hours"}
    for number, line in enumerate(lines, 1):
        for place, cell in enumerate(cells(line, currency, users)):
            if place == 0:
                sheet.write_datetime(number, 0, datetime(line.day.year, line.day.month, line.day.day), styles["day"])  # noqa: DTZ001 (a date)
            elif place in _NUMBERS:
                if cell is not None:
                    sheet.write_number(number, place, float(Decimal(cell)), styles[forms.get(COLUMNS[place], "price")])
            elif cell:
                sheet.write_string(number, place, str(cell))
