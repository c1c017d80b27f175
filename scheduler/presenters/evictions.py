"""How often a job was taken off its GPUs, in words."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.core.templatetags.shell import THIN, duration, gpus_told, plural
from scheduler.models import Job
from scheduler.presenters.jobs import sentence
from scheduler.selectors.discretion import Discretion
from scheduler.selectors.evictions import (
    AGAIN,
    COMPLETED,
    EVICTED,
    GROWN,
    LEAVING,
    MOVED,
    REPAIRED,
    RESTARTED,
    SHRUNK,
    STARTING,
    WAITING,
    WENT_ON,
    Eviction,
    Evictions,
    Loss,
)

WORDS = {
    EVICTED: "Evicted",
    MOVED: "Moved",
    SHRUNK: "Shrunk",
    GROWN: "Moved to grow",
    REPAIRED: "Moved to be repaired",
    RESTARTED: "Restarted by a person",
}
THEN = {
    LEAVING: "It saves its work and leaves.",
    WAITING: "It waits still.",
    STARTING: "It starts up again.",
    COMPLETED: "It completed during its grace period.",
    WENT_ON: "It went on with the rest.",
}


@dataclass(frozen=True, slots=True)
class EvictionLine:
    """One time, as its page tells it. `served` is a job that the reader may see; `another`, that it was one which he may not."""

    eviction: Eviction
    word: str
    served: Job | None
    another: bool
    why: str
    lost: str
    leaving: str  # how long it had, and how long it took
    then: str

    @property
    def text(self) -> str:
        """All of it in a few sentences, for a terminal."""
        whom = f" for {self.served.public_id}" if self.served else " for a job of another team" if self.another else ""
        code = f" ({self.eviction.code})" if self.eviction.code else ""
        lost = f"Lost: {self.lost}." if self.lost else ""
        # A terminal has no thin spaces.
        return " ".join(part for part in (f"{self.word}{whom}{code}.", lost, self.then) if part).replace(THIN, " ")


@dataclass(frozen=True, slots=True)
class EvictionsTold:
    lines: tuple[EvictionLine, ...]
    head: str  # how often, and what all of it cost
    times: str  # how often alone


def evictions_told(found: Evictions, discretion: Discretion) -> EvictionsTold:
    times = ", ".join(f"{WORDS[kind].lower()} {_often(count)}" for kind, count in found.counts.items())
    known, all_known = any(row.loss is not None for row in found.rows), all(row.recorded for row in found.rows)
    lost = f"{hours(found.lost)} lost" if found.lost.milliseconds else "no work lost"
    lost = lost if all_known else f"{lost}, as far as is known" if known else "what was lost is not known"
    return EvictionsTold(tuple(_line(row, discretion) for row in found.rows), f"{times[:1].upper()}{times[1:]}; {lost}" if times else "", times)


def _often(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count) or plural(count, "time")


def evictions_said(found: Evictions) -> Sequence[str]:
    """The sentences for whose names discretion has to know."""
    return [row.cause for row in found.rows]


def hours(loss: Loss) -> str:
    """`5.2 GPU-hours`, and what is less than a tenth as such."""
    told = f"{loss.gpu_hours:,.1f}"
    if told == "0.0":
        return "less than 0.1 GPU-hours" if loss.gpu_milli_ms else "0 GPU-hours"
    return f"{told.removesuffix('.0')} GPU-hour{'' if told == '1.0' else 's'}"


def _line(row: Eviction, discretion: Discretion) -> EvictionLine:
    served = row.served.job if row.served is not None else None
    another = row.served is not None and served is None
    return EvictionLine(row, WORDS[row.kind], served, another, sentence(discretion.text(row.cause)), _lost(row), _leaving(row), _then(row))


def _lost(row: Eviction) -> str:
    if row.then == LEAVING:
        return "not known yet"
    if row.then == COMPLETED:
        return "nothing: it completed"
    if not row.recorded:
        return "not known: what it saved was not written down"
    if row.loss is None:
        return ""
    if not row.ran:
        return "nothing: its workers were not up yet"
    if row.saved_in_time:
        return f"nothing: it saved step {row.saved_step:,} in time"
    since = f" since step {row.saved_step:,}" if row.saved_step is not None else ": this attempt had saved nothing"
    partial = f"; step {row.partial_step:,} was not whole" if row.partial_step is not None else ""
    return f"{hours(row.loss)}, {duration(row.loss.milliseconds / 1000)} of work{since}{partial}"


def _leaving(row: Eviction) -> str:
    if row.gave_back_milli is not None:
        return f"It gave back {gpus_told(row.gave_back_milli)}."
    had = f"It had {duration(row.grace_seconds)} to leave" if row.grace_seconds is not None else ""
    if row.left_seconds is None:
        return f"{had}." if had else ""
    took = f"took {duration(row.left_seconds)}" if had else f"It took {duration(row.left_seconds)} to leave"
    return f"{had} and {took}." if had else f"{took}."


def _then(row: Eviction) -> str:
    if row.then != AGAIN:
        return THEN.get(row.then, "It ended before it ran again.")
    begun = (
        f"It went on from step {row.resumed_step:,}"
        if row.resumed_step is not None
        else "Restarted from the beginning"
        if row.recorded
        else "It ran again"
    )
    return f"{begun} after {duration(row.waited_seconds)}."
