"""The matrix of templates and GPU types as its pages show it: cells, filters, order."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.http import QueryDict

from gpufleet.core.templatetags.shell import plural
from scheduler.jobs.template_speeds import LEAST_RUNS, Measured
from scheduler.selectors.template_speeds import SpeedsOf

SHOWN = (
    ("", "All templates"),
    ("stated", "Speeds stated"),
    ("measured", "Measured"),
    ("differs", "Stated and measured differ"),
    ("none", "Nothing known"),
)
NAME = "name"


@dataclass(frozen=True, slots=True)
class SpeedCell:
    """What is known of a template on one GPU type. `state`: zero, differs, stated, measured or nothing."""

    gpu_type: str
    stated: str
    measured: str
    detail: str
    state: str
    typed: str = ""


@dataclass(frozen=True, slots=True)
class SpeedRow:
    speeds: SpeedsOf
    cells: tuple[SpeedCell, ...]

    @property
    def source(self) -> str:
        """Whose figures count for its jobs."""
        one = self.speeds
        if one.by_description:
            return "By its description"
        if one.row is None or not one.row.speeds:
            return ""
        how = "Measured, adopted" if one.row.runs else "Stated"
        return f"{how} by {one.row.author_name}, number {one.row.number}"

    @property
    def measured(self) -> str:
        """What was measured, or what is missing."""
        one = self.speeds
        if one.measured:
            return f"{plural(one.compared, 'run')} compared"
        if one.alone:
            return f"{plural(one.counted, 'run')}, all on {one.alone}"
        return f"{plural(one.counted, 'run')}, none alike on two types" if one.counted else "No completed run counts"


def speed_rows(found: Iterable[SpeedsOf], types: Sequence[str]) -> list[SpeedRow]:
    return [SpeedRow(one, tuple(_cell(one, name) for name in types)) for one in found]


def _cell(one: SpeedsOf, name: str) -> SpeedCell:
    stated, measured = one.stated.get(name), one.measured.get(name)
    state = "nothing"
    if name in one.differing:
        state = "differs"
    elif stated is not None:
        state = "zero" if stated == 0 else "stated"
    elif measured is not None:
        state = "measured"
    return SpeedCell(
        name,
        stated="" if stated is None else "never used" if stated == 0 else factor(stated),
        measured="" if measured is None else factor(measured.speed),
        detail="" if measured is None else _detail(measured),
        state=state,
        typed="" if stated is None else f"{stated:g}",
    )


def _detail(measured: Measured) -> str:
    runs = plural(measured.runs, "run")
    spread = f", {factor(measured.low)} to {factor(measured.high)}" if measured.runs > 1 else ""
    return f"{runs}{spread}{'' if measured.is_enough else ', too few'}"


def factor(speed: float) -> str:
    return f"{speed:.3g}×"


@dataclass(frozen=True, slots=True)
class Asked:
    """What the address asks the matrix for."""

    words: str
    show: str
    sort: str

    @property
    def is_narrowed(self) -> bool:
        return bool(self.words or self.show)

    def sorted_by(self, key: str) -> dict[str, Any]:
        """The link of a column's head: once more turns the order round."""
        first = key if key == NAME else f"-{key}"
        other = first.removeprefix("-") if first.startswith("-") else f"-{first}"
        query = QueryDict(mutable=True)
        query.update({name: value for name, value in (("q", self.words), ("show", self.show)) if value})
        query["sort"] = other if self.sort == first else first
        is_sorted = self.sort.removeprefix("-") == key
        return {
            "key": key,
            "href": f"?{query.urlencode()}",
            "sorted": ("descending" if self.sort.startswith("-") else "ascending") if is_sorted else "",
        }


def asked_of(parameters: Mapping[str, str], types: Sequence[str]) -> Asked:
    """An address that names what there is not shows all, by name."""
    sort = parameters.get("sort", NAME)
    show = parameters.get("show", "")
    return Asked(
        parameters.get("q", "").strip()[:100],
        show if show in dict(SHOWN) else "",
        sort if sort.removeprefix("-") in (NAME, *types) else NAME,
    )


def chosen(rows: Sequence[SpeedsOf], asked: Asked) -> list[SpeedsOf]:
    """Those that the address asks for, in its order; without a figure of the type that orders them they come last."""
    words = asked.words.casefold().split()
    found = [one for one in rows if _shows(one, asked.show) and all(word in f"{one.template.title} {one.template.ref}".casefold() for word in words)]
    key, down = asked.sort.removeprefix("-"), asked.sort.startswith("-")
    found.sort(key=lambda one: (one.template.title.casefold(), one.template.ref), reverse=down and key == NAME)
    if key != NAME:
        found.sort(key=lambda one: (_figure(one, key) is None, -(_figure(one, key) or 0) if down else _figure(one, key) or 0))
    return found


def _figure(one: SpeedsOf, gpu_type: str) -> float | None:
    measured = one.measured.get(gpu_type)
    return one.stated.get(gpu_type, measured.speed if measured else None)


def _shows(one: SpeedsOf, show: str) -> bool:
    known = {"stated": bool(one.stated), "measured": bool(one.measured), "differs": bool(one.differing), "none": not one.stated and not one.measured}
    return known.get(show, True)


@dataclass(frozen=True, slots=True)
class Step:
    """One type before and after the change that is looked at."""

    gpu_type: str
    before: str
    after: str
    runs: str

    @property
    def changes(self) -> bool:
        return self.before != self.after


def steps_of(before: Mapping[str, float], after: Mapping[str, float], runs: Mapping[str, int]) -> list[Step]:
    return [
        Step(name, factor_or(before.get(name)), factor_or(after.get(name)), plural(runs[name], "run") if name in runs else "")
        for name in sorted({*before, *after})
    ]


def factor_or(speed: float | None) -> str:
    return "–" if speed is None else "never used" if speed == 0 else f"{speed:g}×"


NEEDS = f"{LEAST_RUNS} completed runs on each of two GPU types"
