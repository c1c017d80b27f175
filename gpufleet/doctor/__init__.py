"""What is wrong with an installation, in words for whoever runs it.

A check is a function that yields findings; it has a name and belongs to a group. A check that can't even run is a finding too.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from typing import Any

from gpufleet.core.findings import Finding, some

__all__ = ["Finding", "Report", "examine", "examine_cluster", "some"]

Check = Callable[[], Iterator[Finding]]
GROUPS = ("settings", "database", "records", "clockwork", "machine")


@dataclass
class Report:
    checked: list[str] = field(default_factory=list)
    findings: list[tuple[str, Finding]] = field(default_factory=list)

    @property
    def healthy(self) -> bool:
        return all(finding.note for _, finding in self.findings)

    def as_json(self) -> dict[str, Any]:
        findings = [{"check": check, **asdict(finding)} for check, finding in self.findings]
        return {"healthy": self.healthy, "checked": self.checked, "findings": findings}


def examine(groups: Sequence[str] = GROUPS) -> Report:
    """Run the checks of these groups. The contents of a database that can't be read are not looked at."""
    report = Report()
    for group in groups:
        if group == "records" and any(check.startswith("database") and not finding.note for check, finding in report.findings):
            continue
        checks: dict[str, Check] = import_module(f"gpufleet.doctor.{group}").CHECKS
        for name, check in checks.items():
            full_name = f"{group}: {name}"
            report.checked.append(full_name)
            report.findings += [(full_name, finding) for finding in _run(check)]
    return report


def examine_cluster(name: str) -> Report:
    """One cluster that runs on Slurm or Kubernetes."""
    checks: dict[str, Check] = import_module("gpufleet.doctor.cluster").checks_of(name)
    report = Report()
    for check, look in checks.items():
        report.checked.append(f"cluster: {check}")
        report.findings += [(f"cluster: {check}", finding) for finding in _run(look)]
    return report


def _run(check: Check) -> list[Finding]:
    found: list[Finding] = []
    try:
        found.extend(check())
    except Exception as error:  # a check that breaks must not hide what the others find
        found.append(
            Finding(
                f"This check could not be carried out: {type(error).__name__}: {error}",
                "What it looks at is in a state that gpufleet does not expect, or can't be reached.",
                "Repair what the other findings name first, and run the doctor again.",
            )
        )
    return found
