"""What a what-if says: what was changed, what differs in a sentence or two, the figures side by side, and their charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from gpufleet.core.charts import Chart, Series, bars, over_time
from gpufleet.core.lengths import length_written
from gpufleet.core.templatetags.shell import duration
from scheduler.engine.model.values import CLASSES, Settings
from scheduler.simulation.span import HOUR
from scheduler.whatifs.wanted import ORDERS, RULES, NodesThere, Wanted

SIDES = ("before", "after")
MINUS = "\N{MINUS SIGN}"
# The names of what lies between `span.WAIT_EDGES`.
WAITS = ("Under 1 min", "1–10 min", "10–30 min", "30–60 min", "1–3 h", "3–6 h", "6–12 h", "12–24 h", "Over 1 d")
MOST_TEAMS = 12
CHARTS = ("allocated", "waiting", "waits", "teams")
Figures = Mapping[str, Any]
DIGITS = {"count": 0, "gpu_hours": 1, "ratio": 2}
Kind = Literal["seconds", "percent", "count", "gpu_hours", "ratio"]


def value_told(name: str, value: Any) -> str:
    """A value of a setting as people read it."""
    rule = RULES[name]
    if name == "order":
        return ORDERS[value].lower()
    if rule.is_switch:
        return "on" if value else "off"
    if rule.unit == "s":
        return length_written(value) if value else "none" if name.startswith("max_wait") else "0"
    return f"{value:g}" if isinstance(value, float) else str(value)


def changes_told(wanted: Wanted, settings: Settings, fleet: Sequence[NodesThere]) -> list[str]:
    """Each change beside the tree in a few words, with what is so today."""
    found = []
    for name, value in wanted.policy.items():
        told, today = value_told(name, value), value_told(name, RULES[name].read(settings))
        found.append(f"{RULES[name].title}: {told}{', as today' if told == today else f' instead of {today}'}")
    for kind, count in sorted(wanted.nodes.items()):
        nodes = f"{abs(count):,} {'more' if count > 0 else 'fewer'} {'node' if abs(count) == 1 else 'nodes'}"
        found.append(f"{nodes} with {kind.gpus} {kind.gpu_type} in {kind.cluster}")
    if wanted.return_nodes:
        away = sum(one.away for one in fleet)
        found.append(f"{away:,} {'node' if away == 1 else 'nodes'} returned to service")
    return found


@dataclass(frozen=True, slots=True)
class Measure:
    """A figure before and after; None where there is none, as a median of no job."""

    key: str
    name: str
    kind: Kind
    before: float | None
    after: float | None

    @property
    def told(self) -> tuple[str, str]:
        return self._told(self.before), self._told(self.after)

    @property
    def change(self) -> str:
        """How much more or less, as far as it shows."""
        if self.before is None or self.after is None or self.told[0] == self.told[1]:
            return ""
        by = self.after - self.before
        told = f"{100 * abs(by):.1f} points" if self.kind == "percent" else self._told(abs(by))
        return f"{'+' if by > 0 else MINUS}{told}"

    @property
    def verb(self) -> str:
        """`falls from 2 h to 1 h`."""
        before, after = self.told
        if not self.change or self.before is None or self.after is None:
            return f"stays at {after}"
        return f"{'rises' if self.after > self.before else 'falls'} from {before} to {after}"

    def _told(self, value: float | None) -> str:
        if value is None:
            return "–"
        if self.kind == "seconds":
            return duration(value)
        if self.kind == "percent":
            return f"{100 * value:.1f}%"
        return f"{value:,.{DIGITS[self.kind]}f}"


def measures(figures: Figures, hours: int) -> list[Measure]:
    """Of the whole fleet, in the order of the page."""
    both = [figures[side] for side in SIDES]
    named = [("all", "all jobs"), *((name, name) for name in reversed(CLASSES))]
    classes = [(key, name) for key, name in named if any(key in side["waits"] for side in both)]
    if len(classes) == 2:  # one class is all of them
        classes = classes[:1]
    found = []
    for key, name in classes:
        for part, word in (("p50", "Median queue time"), ("p95", "95th percentile")):
            values = [_seconds(side["waits"].get(key, {}).get(part)) for side in both]
            found.append(Measure(f"wait_{key}_{part}", f"{word}, {name}", "seconds", values[0], values[1]))
    return [
        *found,
        _measure("completion", "Mean completion time", "seconds", [_seconds(side.get("completion")) for side in both]),
        _measure("allocated", "Allocated share of GPUs", "percent", [_part(side["held"], side["capacity"] * hours * HOUR) for side in both]),
        _measure("gpu_hours", "GPU-hours allocated", "gpu_hours", [side["held"] / HOUR / 1000 for side in both]),
        _measure("gpus", "GPUs that serve", "count", [side["capacity"] / 1000 for side in both]),
        _measure("fragmented", "Fragmented share of GPUs", "percent", [_fragmented(side) for side in both]),
        _measure("fairness", "Mean finish-time fairness", "ratio", [side.get("fairness") for side in both]),
        _measure("finished", "Jobs finished", "count", [side["finished"] for side in both]),
        _measure("unfinished", "Jobs unfinished", "count", [side["came"] - side["finished"] - side["over_limit"] for side in both]),
        _measure("waiting", "Jobs waiting at the end", "count", [side["waiting"] for side in both]),
        _measure("preemptions", "Preemptions", "count", [side["preemptions"] for side in both]),
        _measure("moves", "Moves", "count", [side["moves"] for side in both]),
        _measure("lost", "GPU-hours lost to preemption", "gpu_hours", [side["lost"] / HOUR / 1000 for side in both]),
    ]


def _measure(key: str, name: str, kind: Kind, values: Sequence[float | None]) -> Measure:
    return Measure(key, name, kind, values[0], values[1])


def _seconds(milli: int | None) -> float | None:
    return None if milli is None else milli / 1000


def _fragmented(side: Figures) -> float | None:
    """Idle GPUs that jobs that wait cannot use, in the mean of all plans. What-ifs of before do not say."""
    return _part(1000 * side["fragmented"], side["plans"] * side["capacity"]) if "plans" in side else None


def _part(some: int, of: int) -> float | None:
    return some / of if of else None


@dataclass(frozen=True, slots=True)
class TeamWait:
    """The mean queue time of a team in seconds."""

    path: str
    before: float
    after: float

    @property
    def name(self) -> str:
        return self.path.rpartition("/")[2] or "Root"


def summary(found: Sequence[Measure], teams: Sequence[TeamWait], *, base: str = "Today") -> list[str]:
    """What differs, the queue time first."""
    by = {one.key: one for one in found}
    if not any(one.change for one in found) and all(duration(one.before) == duration(one.after) for one in teams):
        return ["Nothing changes: jobs wait and run as today." if base == "Today" else "Nothing changes: jobs wait and run alike."]
    sentences = []
    middle, late = by["wait_all_p50"], by["wait_all_p95"]
    if middle.after is not None:
        sentences.append(f"The median queue time {middle.verb}, the 95th percentile {late.verb}.")
    finished, allocated = by["finished"], by["allocated"]
    more = int((finished.after or 0) - (finished.before or 0))
    jobs = f"{abs(more):,} {'more' if more > 0 else 'fewer'} {'job finishes' if abs(more) == 1 else 'jobs finish'}" if more else "As many jobs finish"
    told = [jobs, f"the allocated share of GPUs {allocated.verb}"]
    if by["completion"].change:
        told.append(f"the mean completion time {by['completion'].verb}")
    if by["preemptions"].change:
        told.append(f"the number of preemptions {by['preemptions'].verb}")
    sentences.append(f"{', '.join(told[:-1])} and {told[-1]}.")
    if text := _teams_told(teams):
        sentences.append(text)
    return sentences


def _teams_told(teams: Sequence[TeamWait]) -> str:
    """Whose jobs wait less and more than those of all others."""
    if len(teams) < 2:
        return ""
    ordered = sorted(teams, key=lambda one: (one.after - one.before, one.path))
    best, worst = ordered[0], ordered[-1]
    told = []
    if best.after < best.before and duration(best.after) != duration(best.before):
        told.append(f"team {best.name} gains most (mean queue time {duration(best.before)} → {duration(best.after)})")
    if worst.after > worst.before and duration(worst.after) != duration(worst.before):
        told.append(f"team {worst.name} loses most ({'' if told else 'mean queue time '}{duration(worst.before)} → {duration(worst.after)})")
    text = "; ".join(told)
    return f"{text[0].upper()}{text[1:]}." if text else ""


# Charts


def chart_of(name: str, figures: Figures, teams: Sequence[TeamWait], *, of_class: str = "all", base: str = "Today") -> Chart:
    """One of `CHARTS`. `base`: what the side is called in which nothing is changed."""
    both = f"{base.lower()} and in the what-if"
    if name == "allocated":
        most = max(figures[side]["capacity"] for side in SIDES) / 1000
        return _course(figures, "held", f"Allocated GPUs over time, {both}", "GPUs", most, base)
    if name == "waiting":
        return _course(figures, "waiting", f"Waiting jobs over time, {both}", "jobs", None, base)
    if name == "waits":
        counts = [figures[side]["waits"].get(of_class, {}).get("counts") or [0] * len(WAITS) for side in SIDES]
        label = f"Jobs by queue time, {'all classes' if of_class == 'all' else of_class}, {both}"
        return bars(label=label, unit="jobs", first="Queue time", names=WAITS, series=_series(counts, base), each_named=True)
    shown = teams[:MOST_TEAMS]
    hours = [[round(getattr(one, side) / 3600, 2) for one in shown] for side in SIDES]
    label = f"Mean queue time by team, {both}"
    names = [one.name for one in shown]
    return bars(label=label, unit="hours", first="Team", names=names, series=_series(hours, base), across=True, each_named=True)


def _series(values: Sequence[Sequence[float]], base: str) -> list[Series]:
    return [Series(base, values[0], "held", "bar"), Series("What-if", values[1], "used", "bar")]


def _course(figures: Figures, key: str, label: str, unit: str, most: float | None, base: str) -> Chart:
    values = [[milli / 1000 for milli in figures[side]["course"][key]] for side in SIDES]
    begin = datetime.fromtimestamp(figures["from"] / 1000, UTC)
    at = [begin + timedelta(hours=hour) for hour in range(len(values[0]))]
    series = [Series(base, values[0], "held", dashed=True), Series("What-if", values[1], "used")]
    return over_time(label=label, unit=unit, at=at, series=series, most=most)
