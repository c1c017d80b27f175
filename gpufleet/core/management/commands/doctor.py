"""`gpufleet doctor`: what is wrong with this installation, what it means and what to do."""

import argparse
import json
from typing import Any

from django.core.management.base import BaseCommand

from gpufleet.doctor import GROUPS, Report, examine, examine_cluster


class Command(BaseCommand):
    help = "Look at the whole installation and say what is wrong with it. Ends with status 1 when something is."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--json", action="store_true", help="print one JSON object")
        parser.add_argument("--only", choices=GROUPS, action="append", help="look at one group only (may be repeated)")
        parser.add_argument("--cluster", help="look at one cluster on Slurm or Kubernetes: each step of a job's way, and the health of its nodes")
        parser.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")

    def handle(self, *, only: list[str] | None, **options: Any) -> None:
        report = examine_cluster(options["cluster"]) if options["cluster"] else examine(only or GROUPS)
        self.stdout.write(json.dumps(report.as_json(), indent=2, ensure_ascii=False) if options["json"] else self._in_words(report))
        if not report.healthy:
            raise SystemExit(1)

    def _in_words(self, report: Report) -> str:
        lines: list[str] = []
        for check, finding in report.findings:
            mark = "note" if finding.note else "FOUND"
            lines += [f"{mark}  {check}: {finding.what}", f"       {finding.means}"]
            lines += [] if finding.note else [f"       What to do: {finding.do}"]
        wrong = sum(not finding.note for _, finding in report.findings)
        lines.append(f"{len(report.checked)} checks, {wrong or 'no'} finding{'' if wrong == 1 else 's'}.")
        return "\n".join(lines)
