"""Statements as PDF: the month, or another period, over all teams, then a section for each team with its plot; or the section of one team alone."""

import io
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from django.db.models import QuerySet, Sum

from quotas.chargeback.lettering import lettered
from quotas.chargeback.periods import Period
from quotas.chargeback.pricing import HOUR, cents, half_even
from quotas.chargeback.report import Report, Row, above, bars_of, lines_seen, rows_shown
from quotas.models import ChargeLine, NodeKind, QuotaNode
from quotas.permissions import Access

JOBS = 10
LONGEST = 48
WIDTH = 174  # mm between the margins of a page
_AMOUNTS = ("milli_millis", "list_nanos", "contracted_nanos", "effective_nanos")
CLASSES = (("guaranteed", "Guaranteed", "#2563a8"), ("reserved", "Reserved", "#8a94a3"), ("borrowed", "Borrowed", "#7a4fb5"))


@dataclass
class Sheet:
    """What a team's section says. The sums are those of its lines, so sections add up to the period."""

    path: str
    total: Row
    title: str = ""  # of the node
    days: Mapping[date, Mapping[str, int]] = field(default_factory=dict)
    projects: Sequence[Row] = ()
    kinds: Sequence[Row] = ()
    jobs: Sequence[Row] = ()
    more_jobs: Row | None = None
    corrections: int = 0


def sheets(access: Access, period: Period) -> list[Sheet]:
    """Of each team with lines, by path. Nodes that belong to no team have one of their own."""
    place, lines = above(NodeKind.TEAM), lines_seen(access, period)
    projects = _sums(lines, place, "quota_path")
    kinds = _sums(lines, place, "gpu_type", "share_class")
    jobs = _sums(lines, place, "job")
    days: dict[str, dict[date, dict[str, int]]] = defaultdict(lambda: defaultdict(lambda: defaultdict(int)))
    corrections: dict[str, int] = defaultdict(int)
    costs = lines.order_by().values_list("quota_path", "day", "share_class", "corrects").annotate(Sum("effective_nanos"))
    for path, day, share_class, corrects, cost in costs:
        if corrects is None:
            days[place(path)][day][share_class] += int(cost)
        else:
            corrections[place(path)] += int(cost)
    found, titles = [], dict(QuotaNode.objects.filter(path__in=projects).values_list("path", "title"))
    for path in sorted(projects):
        largest = _rows(jobs[path])
        more = _added(f"{len(largest) - JOBS} more jobs", largest[JOBS:]) if len(largest) > JOBS else None
        total = _added("Total", _rows(projects[path]))
        found.append(
            Sheet(path, total, titles.get(path, ""), days[path], _rows(projects[path]), _rows(kinds[path]), largest[:JOBS], more, corrections[path])
        )
    return found


def _sums(lines: QuerySet[ChargeLine], place: Any, *columns: str) -> dict[str, dict[str, list[int]]]:
    """By team, then by what the columns say."""
    found: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(lambda: [0, 0, 0, 0]))
    rows = lines.order_by().values_list("quota_path", *(one for one in columns if one != "quota_path"))
    for row in rows.annotate(*(Sum(name) for name in _AMOUNTS)):
        path, said, amounts = row[0], row[1:-4] or row[:1], row[-4:]
        sums = found[place(path)][" ".join(map(str, said))]
        for number, amount in enumerate(amounts):
            sums[number] += int(amount or 0)
    return found


def _rows(sums: Mapping[str, Sequence[int]]) -> list[Row]:
    """The most expensive first."""
    made = [_row(key, amounts) for key, amounts in sums.items()]
    return sorted(made, key=lambda row: (-row.effective_nanos, row.key))


def _added(key: str, rows: Sequence[Row]) -> Row:
    return _row(key, [sum(getattr(row, name) for row in rows) for name in _AMOUNTS])


def _row(key: str, amounts: Sequence[int]) -> Row:
    use, listed, contracted, effective = amounts
    return Row(key, use, list_nanos=listed, contracted_nanos=contracted, effective_nanos=effective)


def pdf_pieces(access: Access, whole: Report, company: str, now: datetime) -> Iterator[bytes]:
    yield _Statement(whole, company, now).written(sheets(access, whole.period))


class _Statement:
    def __init__(self, whole: Report, company: str, now: datetime) -> None:
        from reportlab.lib import colors
        from reportlab.lib.pagesizes import A4
        from reportlab.lib.styles import getSampleStyleSheet
        from reportlab.lib.units import mm
        from reportlab.platypus import CondPageBreak, Flowable, KeepTogether, PageBreak, Paragraph, SimpleDocTemplate, Spacer, Table, TableStyle

        class Mark(Flowable):
            """An entry of the outline."""

            def __init__(self, text: str, place: str) -> None:
                super().__init__()
                self.text, self.place = text, place

            def draw(self) -> None:
                self.canv.bookmarkPage(self.place)
                self.canv.addOutlineEntry(self.text, self.place, 0)

        self.whole, self.company, self.now, self.currency = whole, company, now, whole.currency
        self.colors, self.mm, self.size, self.styles = colors, mm, A4, getSampleStyleSheet()
        self.Mark, self.PageBreak, self.Paragraph, self.Spacer = Mark, PageBreak, Paragraph, Spacer
        self.Document, self.Table, self.TableStyle = SimpleDocTemplate, Table, TableStyle
        self.KeepTogether, self.CondPageBreak = KeepTogether, CondPageBreak
        self.title = f"GPU costs, {whole.period.title}"

    def written(self, found: Sequence[Sheet]) -> bytes:
        whole = self.whole
        file, margin = io.BytesIO(), 18 * self.mm
        margins = dict.fromkeys(("leftMargin", "rightMargin", "topMargin", "bottomMargin"), margin)
        document = self.Document(file, pagesize=self.size, title=self.title, author=self.company, **margins)
        parts: list[Any] = []
        teams = rows_shown([_added(sheet.path, [sheet.total]) for sheet in found], _total_of(whole))
        if len(found) != 1:
            days = dict(whole.days)
            parts += [self.Mark("All teams", "all"), *self._head("All teams"), self._totals(_total_of(whole)), *self._plot(days)]
            parts += self._table("By team", teams, _total_of(whole))
        for number, (sheet, shown) in enumerate(zip(found, teams, strict=True)):
            parts += [self.PageBreak()] if parts else []
            parts += [self.Mark(sheet.path, f"team-{number}"), *self._section(sheet, shown)]
        document.build(parts, onFirstPage=self._foot, onLaterPages=self._foot)
        return file.getvalue()

    def _foot(self, canvas: Any, document: Any) -> None:
        canvas.saveState()
        font, said = lettered(f"{self.company} · {self.title} · amounts are sums of exact lines, rounded so that rows add up to totals")
        canvas.setFont(font, 7.5)
        canvas.setFillColor(self.colors.HexColor("#5b6573"))
        canvas.drawString(document.leftMargin, 10 * self.mm, said)
        canvas.drawRightString(self.size[0] - document.rightMargin, 10 * self.mm, f"Page {document.page}")
        canvas.restoreState()

    def _head(self, name: str, title: str = "") -> list[Any]:
        said = f"{self.company}. {self.whole.standing} Written {self.now.astimezone(UTC):%Y-%m-%d %H:%M} UTC."
        return [
            self.Paragraph(_xml(self.title), self.styles["Normal"]),
            self.Paragraph(_xml(name, bold=True), self.styles["Heading1"]),
            *([self.Paragraph(_xml(title), self.styles["Heading3"])] if title else []),
            self.Paragraph(_xml(said), self.styles["Normal"]),
            self.Spacer(1, 4 * self.mm),
        ]

    def _section(self, sheet: Sheet, shown: Row) -> list[Any]:
        """`shown`: its total as the table of all teams has it."""
        parts = [*self._head(sheet.path, sheet.title), self._totals(shown)]
        if sheet.corrections:
            said = f"Corrections of earlier months in it: {_money(sheet.corrections)} {self.currency}."
            parts += [self.Spacer(1, 2 * self.mm), self.Paragraph(said, self.styles["Normal"])]
        parts += self._plot(sheet.days)
        jobs = [*sheet.jobs, *([sheet.more_jobs] if sheet.more_jobs else [])]
        projects = sheet.projects if len(sheet.projects) > 1 else ()
        for heading, rows in (("By project", projects), ("By GPU type and class", sheet.kinds), ("Largest jobs", jobs)):
            parts += self._table(heading, rows_shown(rows, sheet.total, shown), shown) if rows else []
        return parts

    def _totals(self, row: Row) -> Any:
        table = self.Table([["GPU-hours", "List", "Contracted", f"Cost ({self.currency})"], list(_said(row))], hAlign="LEFT")
        table.setStyle(
            self.TableStyle(
                [
                    ("FONTSIZE", (0, 0), (-1, 0), 8),
                    ("TEXTCOLOR", (0, 0), (-1, 0), self.colors.HexColor("#5b6573")),
                    ("FONTSIZE", (0, 1), (-1, 1), 12),
                    ("FONTNAME", (-1, 1), (-1, 1), "Helvetica-Bold"),
                    ("ALIGN", (0, 0), (-1, -1), "RIGHT"),
                    ("RIGHTPADDING", (0, 0), (-1, -1), 14),
                ]
            )
        )
        return table

    def _table(self, heading: str, rows: Sequence[Row], total: Row) -> list[Any]:
        mm = self.mm
        names = [lettered(_short(row.label)) for row in rows]
        body = [["", "GPU-hours", "List", "Contracted", "Cost"]]
        body += [[name, *_said(row)] for (_, name), row in zip(names, rows, strict=True)] + [["Total", *_said(total)]]
        table = self.Table(body, colWidths=[78 * mm, *[24 * mm] * 4], repeatRows=1, hAlign="LEFT")
        grey = self.colors.HexColor("#9aa4b2")
        table.setStyle(
            self.TableStyle(
                [
                    ("FONTSIZE", (0, 0), (-1, -1), 8.5),
                    *(("FONTNAME", (0, number), (0, number), font) for number, (font, _) in enumerate(names, 1) if font != "Helvetica"),
                    ("FONTNAME", (0, 0), (-1, 0), "Helvetica-Bold"),
                    ("FONTNAME", (0, -1), (-1, -1), "Helvetica-Bold"),
                    ("LINEBELOW", (0, 0), (-1, 0), 0.5, grey),
                    ("LINEABOVE", (0, -1), (-1, -1), 0.5, grey),
                    ("ALIGN", (1, 0), (-1, -1), "RIGHT"),
                    ("LEFTPADDING", (0, 0), (0, -1), 0),
                    ("BOTTOMPADDING", (0, 0), (-1, -1), 2),
                    ("TOPPADDING", (0, 0), (-1, -1), 2),
                ]
            )
        )
        return [self.CondPageBreak(40 * mm), self.Paragraph(heading, self.styles["Heading3"]), table, self.Spacer(1, 3 * mm)]

    def _plot(self, costs: Mapping[date, Mapping[str, int]]) -> list[Any]:
        """The cost of each day by class, stacked; of a long period, of each month."""
        from reportlab.graphics.charts.barcharts import VerticalBarChart
        from reportlab.graphics.shapes import Drawing, Rect, String

        if not costs:
            return []
        step, costs = bars_of(self.whole.period, costs.items())
        steps = self.whole.period.months if step == "month" else self.whole.period.days
        shown = [one for one in CLASSES if any(of_day.get(one[0]) for of_day in costs.values())] or [CLASSES[0]]
        width, height = WIDTH * self.mm, 130
        drawing, chart = Drawing(width, height), VerticalBarChart()
        chart.x, chart.y, chart.width, chart.height = 46, 16, width - 50, height - 40
        chart.data = [[costs.get(one, {}).get(key, 0) / 10**9 for one in steps] for key, _, _ in shown]
        chart.categoryAxis.style = "stacked"
        chart.categoryAxis.categoryNames = [f"{one:%b}" if step == "month" else str(one.day) for one in steps]
        chart.categoryAxis.labels.fontSize = chart.valueAxis.labels.fontSize = 7
        chart.categoryAxis.visibleTicks = False
        highest = max(sum(of_day.values()) for of_day in costs.values()) / 10**9
        chart.valueAxis.valueMin = 0
        chart.valueAxis.labelTextFormat = (lambda amount: f"{amount:,.0f}") if highest >= 10 else (lambda amount: f"{amount:,.2f}")
        chart.valueAxis.visibleGrid, chart.valueAxis.gridStrokeColor = True, self.colors.HexColor("#d5dae1")
        chart.valueAxis.strokeColor = None
        chart.barSpacing, chart.groupSpacing = 0, 2
        for number, (_, label, colour) in enumerate(shown):
            chart.bars[number].fillColor = self.colors.HexColor(colour)
            chart.bars[number].strokeColor = None
            drawing.add(Rect(46 + 80 * number, height - 12, 7, 7, fillColor=self.colors.HexColor(colour), strokeColor=None))
            drawing.add(String(57 + 80 * number, height - 12, label, fontSize=8))
        drawing.add(chart)
        heading = self.Paragraph(f"Cost by {step} ({self.currency})", self.styles["Heading3"])
        return [self.KeepTogether([self.Spacer(1, 3 * self.mm), heading, drawing, self.Spacer(1, 3 * self.mm)])]


def _total_of(report: Report) -> Row:
    return _added("Total", [report.total])


def _xml(text: str, *, bold: bool = False) -> str:
    font, said = lettered(text, bold=bold)
    return f'<font name="{font}">{said.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")}</font>'


def _short(text: str) -> str:
    return text if len(text) <= LONGEST else f"…{text[1 - LONGEST :]}"


def _money(nanos: int) -> str:
    return f"{Decimal(cents(nanos)) / 100:,.2f}"


def _said(row: Row) -> tuple[str, ...]:
    hours = f"{Decimal(half_even(row.milli_millis * 10, HOUR)) / 10:,.1f}"
    return (hours, *(_money(amount) for amount in (row.list_nanos, row.contracted_nanos, row.effective_nanos)))
