"""Templates in words: a version as one text, and what changed between two of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from scheduler.jobs.template_rules import Template
from scheduler.jobs.yaml_text import write_yaml
from scheduler.models import JobTemplateVersion


@dataclass(frozen=True, slots=True)
class DiffLine:
    """`kind`: same, gone or new."""

    kind: str
    text: str

    @property
    def sign(self) -> str:
        return {"same": " ", "gone": "−", "new": "+"}[self.kind]


def version_text(version: JobTemplateVersion | Template) -> str:
    """All that a version says, as YAML."""
    head: dict[str, Any] = {"title": version.title} | ({"about": version.about} if version.about else {})
    parts = [write_yaml(head), "", "# What it says", write_yaml(version.body).rstrip() or "{}"]
    if version.locked:
        parts += ["", "# Locked", *(f"- {path}" for path in version.locked)]
    if version.limits:
        parts += ["", "# Bounds", write_yaml({path: dict(limit) for path, limit in sorted(version.limits.items())}).rstrip()]
    return "\n".join(part.rstrip("\n") for part in parts) + "\n"


def diff_lines(before: str, after: str) -> list[DiffLine]:
    """Line by line, with all that stayed: bodies are short, and what is around a change says what it is about."""
    was, now = before.splitlines(), after.splitlines()
    found: list[DiffLine] = []
    for kind, from_, to, begin, end in SequenceMatcher(a=was, b=now, autojunk=False).get_opcodes():
        if kind == "equal":
            found += (DiffLine("same", line) for line in was[from_:to])
            continue
        found += (DiffLine("gone", line) for line in was[from_:to])
        found += (DiffLine("new", line) for line in now[begin:end])
    return found


@dataclass(frozen=True, slots=True)
class TemplateView:
    """A template's page: the version that is looked at, and what it changed against another one."""

    template: Template
    text: str
    versions: Sequence[JobTemplateVersion]
    against: int | None
    diff: tuple[DiffLine, ...]

    @property
    def is_newest(self) -> bool:
        return not self.versions or self.versions[0].number == self.template.version

    @property
    def exact(self) -> str:
        return f"{self.template.ref}@{self.template.version}" if self.template.quota else self.template.ref

    @property
    def has_changed(self) -> bool:
        return any(line.kind != "same" for line in self.diff)


def template_view(template: Template, versions: Sequence[JobTemplateVersion], against: int | None) -> TemplateView:
    """`against`: the number of the version that it is held against; without one, or with one that is not there, the one before it."""
    by_number = {version.number: version for version in versions}
    other = by_number.get(against or 0) or by_number.get(template.version - 1)
    if other is None or other.number == template.version:
        return TemplateView(template, version_text(template), versions, None, ())
    lines = diff_lines(version_text(other), version_text(template))
    return TemplateView(template, version_text(template), versions, other.number, tuple(lines))
