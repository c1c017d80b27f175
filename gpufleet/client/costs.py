"""`gpufleet chargeback`: costs of a month or another period as a file on standard output, or a month held against an invoice."""

import argparse
import shutil
import sys
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from gpufleet.client import DONE
from gpufleet.client.commands import Arguments, console_meant, ends_well, parser_of, print_json
from gpufleet.client.words import plain, table

FORMATS = ("csv", "xlsx", "pdf", "focus-1.4", "focus-1.2", "summary")
HOUR = 3_600_000_000  # thousandths of a GPU times milliseconds


@ends_well
def chargeback(arguments: Sequence[str]) -> int:
    """Write the costs of a month or another period as a file, or hold a month against a supplier's invoice."""
    parser = parser_of("chargeback", chargeback.__doc__)
    parser.add_argument("--month", metavar="YYYY-MM")
    parser.add_argument("--from", dest="since", metavar="YYYY-MM-DD", help="instead of a month: the first day, with --to")
    parser.add_argument("--to", dest="until", metavar="YYYY-MM-DD", help="the last day, which is in it")
    parser.add_argument("--format", choices=FORMATS, default="csv", help="default: csv")
    parser.add_argument("--by", default="team", help="of a summary: team, cost_centre, owner, job, gpu_type, ... or label:KEY")
    parser.add_argument("--users", action="store_true", help="with the names of people")
    parser.add_argument("--team", default="", metavar="PATH", help="of this subtree alone")
    parser.add_argument("--output", metavar="FILE", help="default: standard output")
    invoice = parser.add_argument_group("an invoice")
    invoice.add_argument("--reconcile", metavar="AMOUNT", help="the amount of the invoice; shows how it differs from the books, and keeps the table")
    invoice.add_argument("--reference", default="", help="the supplier's number of the invoice")
    invoice.add_argument("--currency", default="", help="default: the installation's")
    invoice.add_argument("--fees", metavar="AMOUNT", help="taxes and fees in it")
    invoice.add_argument("--basis", choices=("contracted", "list"), default="contracted", help="the prices it should follow; default: contracted")
    invoice.add_argument("--hours", action="append", metavar="TYPE=HOURS", help="GPU-hours billed of a type; may be repeated")
    invoice.add_argument("--unit-price", action="append", metavar="TYPE=PRICE", help="price of a GPU-hour on the invoice; may be repeated")
    invoice.add_argument("--note", default="", help="kept with the table")
    asked = parser.parse_args(arguments)
    if bool(asked.month) == bool(asked.since and asked.until) or bool(asked.since) != bool(asked.until):
        parser.error("--month, or --from and --to are required")
    if asked.reconcile is not None and not asked.month:
        parser.error("--reconcile goes with --month: an invoice is of a month")
    if asked.reconcile is not None:
        made = console_meant().post(f"/costs/{asked.month}/reconciliations", _invoice(asked, parser))
        return print_json(made) if asked.json else _variance_shown(made)
    if asked.json:
        parser.error("--json goes with --reconcile; a month has --format")
    query = {"format": asked.format, "by": asked.by, "users": "true" if asked.users else "false"} | ({"team": asked.team} if asked.team else {})
    query |= {} if asked.month else {"from": asked.since, "to": asked.until}
    with console_meant().opened(f"/costs/{asked.month}/file" if asked.month else "/costs/file", **query) as answer:
        if asked.output:
            with open(asked.output, "wb") as file:  # noqa: PTH123 (a path that the caller gave)
                shutil.copyfileobj(answer, file)
        else:
            shutil.copyfileobj(answer, sys.stdout.buffer)
    return DONE


def _invoice(asked: argparse.Namespace, parser: Arguments) -> dict[str, Any]:
    def whole(text: str, scale: int, flag: str) -> int:
        try:
            amount = Decimal(text) * scale
        except InvalidOperation:
            amount = Decimal("NaN")
        if not amount.is_finite() or amount != amount.to_integral_value():
            parser.error(f"{flag} is not a number such as 1234.56: {text}")
        return int(amount)

    lines: dict[str, dict[str, Any]] = {}
    for flag, texts, name, scale in (("--hours", asked.hours, "milli_millis", HOUR), ("--unit-price", asked.unit_price, "unit_micros", 10**6)):
        for text in texts or ():
            gpu_type, _, amount = text.partition("=")
            lines.setdefault(gpu_type, {"gpu_type": gpu_type})[name] = whole(amount, scale, flag)
    return {
        "amount_nanos": whole(asked.reconcile, 10**9, "--reconcile"),
        "fees_nanos": whole(asked.fees, 10**9, "--fees") if asked.fees else 0,
        "lines": list(lines.values()),
        **{name: getattr(asked, name) for name in ("reference", "currency", "basis", "note")},
    }


def _variance_shown(made: dict[str, Any]) -> int:
    rows = [(plain(one["label"]), plain(one["part"]), _money(one["nanos"]), plain(one["note"])) for one in made["steps"]]
    rows.append((f"Invoice {plain(made['reference'])}", "", _money(made["amount_nanos"]), made["id"]))
    widest = max(len(row[2]) for row in rows)
    heads = ("FROM THE BOOKS TO THE INVOICE", "OF", made["currency"].rjust(widest), "WHY")
    print("\n".join(table(heads, [(label, part, amount.rjust(widest), note) for label, part, amount, note in rows])))
    return DONE


def _money(nanos: int) -> str:
    return f"{Decimal(nanos) / 10**9:,.2f}"
