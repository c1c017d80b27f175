"""Health rules: what each finds in five-minute sums, now or in the past. No clock and no database: sums in, findings out."""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from dashboards.health.state import BUCKET, SIGNALS, Signal
from dashboards.health.xids import xid_of

ORDER = ("note", "suspect", "drain", "down")


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule as values; `key` is its row's."""

    key: int
    name: str
    signal: str
    group: str
    threshold: int
    window: timedelta
    clear_below: int
    clear_after: timedelta
    action: str


@dataclass(frozen=True, slots=True)
class Sum:
    """One stored figure."""

    at: datetime
    device: int
    signal: str
    code: int
    value: int


@dataclass(frozen=True, slots=True)
class Hit:
    """A rule that holds for a device: the figure, and the code that stands out where there is one."""

    rule: Rule
    device: int
    value: int
    code: int = 0


@dataclass(frozen=True, slots=True)
class Judged:
    """What rules say at one moment: where they hold, and where they are surely below their limits."""

    hits: Mapping[tuple[int, int], Hit]
    calm: frozenset[tuple[int, int]]


class Sums:
    """Sums by signal and device, ready to be asked about any window."""

    def __init__(self, rows: Iterable[Sum]) -> None:
        self._of: dict[str, dict[int, list[Sum]]] = defaultdict(lambda: defaultdict(list))
        for row in rows:
            self._of[row.signal][row.device].append(row)

    def devices(self, signal: str) -> list[int]:
        return sorted(self._of[signal])

    def over(self, rule: Rule, device: int, now: datetime, span: timedelta) -> tuple[int, int]:
        """The figure of a window that ends now, and the code with the most of it."""
        start = now - span - BUCKET
        rows = [row for row in self._of[rule.signal][device] if start < row.at <= now]
        if rule.group:
            rows = [row for row in rows if xid_of(row.code).group == rule.group]
        if not rows:
            return 0, 0
        if SIGNALS[rule.signal].kind in ("level", "age"):
            return max(row.value for row in rows), 0
        codes: dict[int, int] = defaultdict(int)
        for row in rows:
            codes[row.code] += row.value
        return sum(codes.values()), max(codes, key=lambda code: (codes[code], -code))


def judged(rules: Sequence[Rule], sums: Sums, ages: Mapping[int, int], open_ones: Iterable[tuple[int, int]], now: datetime) -> Judged:
    """`ages` are seconds since the heartbeat by device; `open_ones` are (rule, device) of findings that hold."""
    by_key = {rule.key: rule for rule in rules}
    hits: dict[tuple[int, int], Hit] = {}
    for rule in rules:
        if rule.signal == "heartbeat":
            hits |= {(rule.key, device): Hit(rule, device, age) for device, age in ages.items() if age >= rule.threshold}
            continue
        for device in sums.devices(rule.signal):
            value, code = sums.over(rule, device, now, rule.window)
            if value >= rule.threshold:
                hits[rule.key, device] = Hit(rule, device, value, code)
    calm = set()
    for key, device in open_ones:
        if key not in by_key or (key, device) in hits:
            continue
        rule = by_key[key]
        value = ages.get(device, 0) if rule.signal == "heartbeat" else sums.over(rule, device, now, rule.clear_after)[0]
        if value < rule.clear_below:
            calm.add((key, device))
    return Judged(hits, frozenset(calm))


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a rule would have done in the past: each time that it would have held, by device."""

    device: int
    since: datetime
    until: datetime | None
    value: int


def replay(rule: Rule, rows: Iterable[Sum], *, start: datetime, end: datetime) -> list[Replayed]:
    """A dry run over stored sums, in steps of five minutes. The age of a heartbeat is of the moment, whatever window its rule has."""
    of_moment = SIGNALS[rule.signal].kind == "age"
    window, clear_after = (timedelta(0), timedelta(0)) if of_moment else (rule.window, rule.clear_after)
    by_device: dict[int, list[Sum]] = defaultdict(list)
    for row in rows:
        if row.signal == rule.signal and (not rule.group or xid_of(row.code).group == rule.group):
            by_device[row.device].append(row)
    found: list[Replayed] = []
    for device, its in by_device.items():
        its.sort(key=lambda row: row.at)
        held, calm = _Sliding(rule, its, window), _Sliding(rule, its, clear_after)
        since: datetime | None = None
        most = 0
        for moment in _steps(its, rule, start, end):
            value, low = held.until(moment), calm.until(moment)
            if since is None and value >= rule.threshold:
                since, most = moment, value
            elif since is not None:
                most = max(most, value)
                if value < rule.threshold and low < rule.clear_below:
                    found.append(Replayed(device, since, moment, most))
                    since = None
        if since is not None:
            found.append(Replayed(device, since, None, most))
    return sorted(found, key=lambda one: (one.since, one.device))


class _Sliding:
    """The figure of a window as its end moves on. Each row comes in once and goes out once."""

    def __init__(self, rule: Rule, rows: Sequence[Sum], span: timedelta) -> None:
        self._rows, self._span = rows, span + BUCKET
        self._highest = SIGNALS[rule.signal].kind in ("level", "age")
        self._next = self._total = 0
        self._inside: deque[Sum] = deque()  # of a level without those that a later one exceeds: the first is the highest

    def until(self, now: datetime) -> int:
        """The figure of the window that ends now; `now` never goes back."""
        while self._next < len(self._rows) and self._rows[self._next].at <= now:
            row = self._rows[self._next]
            while self._highest and self._inside and self._inside[-1].value <= row.value:
                self._inside.pop()
            self._inside.append(row)
            self._total += row.value
            self._next += 1
        while self._inside and self._inside[0].at <= now - self._span:
            self._total -= self._inside.popleft().value
        if not self._inside:
            return 0
        return self._inside[0].value if self._highest else self._total


def _steps(rows: Sequence[Sum], rule: Rule, start: datetime, end: datetime) -> Iterator[datetime]:
    """Only around figures that were kept does anything change. `rows` in their order, at whole five minutes."""
    span = max(rule.window, rule.clear_after) + 2 * BUCKET
    step: datetime | None = None
    for row in rows:
        step = row.at if step is None else max(step, row.at)
        while step <= min(row.at + span, end):
            if step >= start:
                yield step
            step += BUCKET


def said(hit: Hit) -> str:
    """In words: `Thermal throttling: 240 s in 5 min`."""
    signal = SIGNALS[hit.rule.signal]
    if hit.rule.signal == "xid":
        return f"XID {hit.code} ({xid_of(hit.code).meaning}): {hit.value} in {_span(hit.rule.window)}"
    if hit.rule.signal == "heartbeat":
        return f"No heartbeat for {hit.value} s"
    # The sums that a window meets are of whole five minutes, and the oldest of them began before it.
    value = min(hit.value, int(hit.rule.window.total_seconds())) if signal.kind == "flag" else hit.value
    return f"{signal.label}: {figure_told(signal, value)} in {_span(hit.rule.window)}"


def ruled(name: str, text: str) -> str:
    """`Rule Too hot: Temperature: up to 96 °C in 5 min.` A rule that is named for its signal names it once."""
    return f"Rule {text}." if text.startswith(f"{name}: ") else f"Rule {name}: {text}."


def figure_told(signal: Signal, value: int) -> str:
    """`240 s`, `up to 75% of speed lost`."""
    figure = f"{value:,}{signal.unit}" if signal.unit.startswith("%") else f"{value:,} {signal.unit}".strip()
    return f"up to {figure}" if signal.kind == "level" else figure


def _span(span: timedelta) -> str:
    minutes = int(span / timedelta(minutes=1))
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
