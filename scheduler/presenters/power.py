"""Power caps in words and as a chart."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpufleet.core.charts import Chart, Series, over_time
from gpufleet.core.previews import Effect, JobEffect, Preview
from gpufleet.core.templatetags.shell import look_of, plural
from quotas.models.windows import REPEATS
from scheduler.engine.rules.power import kilowatts
from scheduler.models import EnergyRate, PowerCap
from scheduler.power.forms import FLEET
from scheduler.selectors.power import Course, Drawn, next_of
from scheduler.services.forecasts.power import CapPreview

DAY, STEP = timedelta(hours=24), timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class CapLine:
    """A row of the list. `state`: active, coming or past."""

    cap: PowerCap
    pool: str
    amount: str
    state: str
    start: datetime | None  # of the time at which it applies now or next
    end: datetime | None
    repeats: str
    note: str


@dataclass(frozen=True, slots=True)
class PoolLine:
    """What a pool draws now: rated by what jobs hold, and measured where all or some of its GPUs are read."""

    drawn: Drawn
    name: str
    rated: str
    draw: str
    cap: str
    left: str
    measured: str
    percent: int | None
    chart: Chart


def pool_name(pool: str) -> str:
    return pool or FLEET


def told_watts(watts: int) -> str:
    return kilowatts(1000 * watts)


def cap_lines(caps: Sequence[PowerCap], now: datetime) -> list[CapLine]:
    return [CapLine(cap, pool_name(cap.pool), told_watts(cap.watts), *times_told(cap, now), cap.note) for cap in caps]


def times_told(one: PowerCap | EnergyRate, now: datetime) -> tuple[str, datetime | None, datetime | None, str]:
    """Whether it is active, coming or past; when it applies now or next; and how it repeats."""
    span = next_of(one, now)
    state = "past" if span is None else "active" if span[0] <= now else "coming"
    start, end = span or (None, one.ends_at)
    return state, start, end, REPEATS.get(one.rule, one.rule) if one.rule else "Once" if one.ends_at else "Standing"


def pool_line(drawn: Drawn, course: Course, measured: tuple[int, int] | None) -> PoolLine:
    """`measured`: watts, and of how many GPUs."""
    read = ""
    if measured is not None:
        read = told_watts(measured[0]) + (f" ({measured[1]:,} of {plural(drawn.gpus, 'GPU')})" if measured[1] < drawn.gpus else "")
    cap, left = drawn.cap, drawn.left
    return PoolLine(
        drawn,
        pool_name(drawn.pool),
        told_watts(drawn.rated),
        told_watts(drawn.drawn),
        "" if cap is None else told_watts(cap),
        "" if left is None else told_watts(left),
        read,
        round(100 * drawn.drawn / cap) if cap else None,
        _chart(course),
    )


def _chart(course: Course) -> Chart:
    series = [
        Series("Draw of running jobs", [watts / 1000 for watts in course.drawn], "used", kind="area"),
        Series("Cap", [None if cap is None else cap / 1000 for cap in course.caps], "bad"),
    ]
    return over_time(label=f"Draw and cap of {pool_name(course.pool)}, next 24 hours", unit="kW", at=course.at, series=series)


def preview_told(found: CapPreview) -> Preview:
    sentences = []
    if found.drawn is not None:
        amount = f"{told_watts(found.drawn.drawn)} of {told_watts(found.drawn.rated)} rated"
        whose = f"Running jobs of pool {found.drawn.pool} draw" if found.drawn.pool else "Running jobs draw"
        sentences.append(f"{whose} {amount}.")
        if found.drawn.cap is not None and found.drawn.drawn > found.drawn.cap:
            sentences.append("That is above the cap: they keep running, and no other job starts there.")
    if found.waits:
        sentences.append(f"{plural(found.waits, 'more job')} would wait for power.")
    if found.freed:
        sentences.append(f"{plural(found.freed, 'job')} would no longer wait for power.")
    if not found.waits and not found.freed:
        sentences.append("No waiting job is held back by it now.")
    sentences.append("No job is preempted.")
    jobs = [
        JobEffect(one.job, one.name, one.path, one.owner, one.gpus_milli, (Effect(look_of(one.effect).word), Effect(one.detail)))
        for one in found.jobs
    ]
    return Preview(sentences=sentences, ways=("What happens", "Why"), jobs=jobs, more=found.more, unseen=found.unseen)


def by_pool(readings: Mapping[int, int], pools: Mapping[int, str]) -> dict[str, tuple[int, int]]:
    """(watts, GPUs that were read) by pool, "" being all, from the watts by GPU and the pool of each GPU."""
    found: dict[str, tuple[int, int]] = {}
    for gpu, pool in pools.items():
        if gpu in readings:
            for name in {"", pool}:
                watts, count = found.get(name, (0, 0))
                found[name] = watts + readings[gpu], count + 1
    return found
