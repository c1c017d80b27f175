"""Which file of a month or of another period a reader gets: one door for the page, the API and the command line."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.exceptions import ValidationError
from django.http import Http404

from gpufleet.core.csvfile import harmless
from quotas.chargeback.exports import FORMATS, Books, Told, csv_pieces, focus_pieces, gpu_hours, nanos, xlsx_pieces
from quotas.chargeback.periods import Period
from quotas.chargeback.report import BY, Report, Row, by_checked, months_of, report
from quotas.chargeback.statements import pdf_pieces
from quotas.models import ChargeMonth, QuotaNode
from quotas.permissions import Access, Can, Grant

SUMMARY, DAY = "summary", "day"
TITLES = {
    SUMMARY: "This table, CSV",
    "csv": "All lines, CSV",
    "xlsx": "Excel",
    "pdf": "Statement, PDF",
    "focus-1.4": "FOCUS 1.4",
    "focus-1.2": "FOCUS 1.2",
}
KINDS = (*FORMATS, SUMMARY)


@dataclass(frozen=True, slots=True)
class File:
    name: str
    content_type: str
    pieces: Iterator[bytes]


def months_for(access: Access, period: Period, kind: str, by: str) -> list[ChargeMonth]:
    """The months that a file is of, if it can be written for this reader."""
    access.must_somewhere(Can.SEE_COSTS)
    if kind not in KINDS:
        raise ValidationError({"format": [f"Choose {', '.join(KINDS)}."]})
    by_checked(by)
    if kind.startswith("focus") and period.parts:
        raise ValidationError(
            {"format": ["FOCUS files are of whole months, as their invoices are. Choose the first day of a month to the last of one."]}
        )
    months = months_of(period)
    if not months:
        raise Http404(f"{period.title} has not been rated: there is no usage in it.")
    return months


WHAT = {"csv": "lines", "xlsx": "costs", "pdf": "statement"}  # of kinds that only say again how they end


def file_name(period: Period, kind: str, team: str = "", by: str = "") -> str:
    """A name that says what is in the file, so that two of a month do not have the same one."""
    what = f"by-{by}" if kind == SUMMARY and by else WHAT.get(kind, kind)
    parts = ["gpufleet", str(period), *filter(None, (_in_a_name(team), _in_a_name(what)))]
    return f"{'-'.join(parts)}.{FORMATS.get(kind, FORMATS['csv'])[1]}"


def _in_a_name(text: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in text)


def _narrowed(access: Access, team: str) -> Access:
    if not access.can(Can.SEE_COSTS, team) or not QuotaNode.objects.filter(path=team).exists():
        raise Http404(f"There is no team {team} whose costs you may see.")
    return Access(access.actor, (Grant(team, frozenset({Can.SEE_COSTS})),))


def file_of(
    access: Access, period: Period, kind: str, *, by: str = "team", users: bool = False, team: str = "", now: datetime, told: Told | None = None
) -> File:
    """`users`: with the names of people, which FOCUS counts as personal data. `team`: of this subtree alone. `told` is called while it is written."""
    months = months_for(access, period, kind, by)
    if team:
        access = _narrowed(access, team)
    content_type, _ = FORMATS.get(kind, FORMATS["csv"])
    return File(file_name(period, kind, team, by), content_type, _pieces(access, period, months, kind, by, users, now, told))


def _pieces(
    access: Access, period: Period, months: Sequence[ChargeMonth], kind: str, by: str, users: bool, now: datetime, told: Told | None
) -> Iterator[bytes]:
    def seen(chosen: str) -> Report:
        return report(access, period, by=chosen, most=None, now=now)

    currency = months[0].currency
    if kind == SUMMARY:
        return iter([summary_csv(seen(by), currency)])
    if kind == "csv":
        return csv_pieces(access, period, currency, users=users, told=told)
    if kind == "xlsx":
        views = ("team", "cost_centre", "gpu_type", "share_class", "day", *(("owner",) if users else ()))
        return xlsx_pieces(access, period, currency, {BY[by][0]: seen(by) for by in views}, users=users, told=told)
    company = company_of()
    if kind == "pdf":
        return pdf_pieces(access, seen("team"), company[1], now)
    return focus_pieces(access, [Books(month, company, kind, users) for month in months], told)


def company_of() -> tuple[str, str]:
    """Id and name of the top of the tree, which all of it is charged to."""
    top = QuotaNode.objects.filter(parent__isnull=True).order_by("id").first()
    return (top.public_id, top.title or top.name) if top is not None else ("gpufleet", "gpufleet")


def _heads(found: Report) -> tuple[str, ...]:
    before = () if found.by == DAY else ("Last month" if found.period.month else "Period before",)
    return ("GPU-hours", "Borrowed GPU-hours", "List cost", "Contracted cost", "Cost", *before, "Efficiency", "Currency")


def summary_csv(found: Report, currency: str) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    label = BY[found.by][0] if found.by in BY else found.by
    writer.writerow([harmless(label), *_heads(found)])
    for row in found.rows:
        writer.writerow([harmless(row.key), *_said(row, found.by), currency])
    writer.writerow(["Total", *_said(found.total, found.by), currency])
    return text.getvalue().encode()


def _efficiency(row: Row) -> str:
    return "unknown" if row.efficiency_percent is None else f"{row.efficiency_percent}%"


def _said(row: Row, by: str) -> list[str]:
    hours = [gpu_hours(getattr(row, name)) for name in ("milli_millis", "borrowed")]
    # A day was in no period before.
    amounts = ("list_nanos", "contracted_nanos", "effective_nanos", *(() if by == DAY else ("before_nanos",)))
    return hours + [nanos(getattr(row, name)) for name in amounts] + [_efficiency(row)]
