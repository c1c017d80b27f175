"""How busy the GPUs of running work are: one row of figures a job, drawn from its rhythm, its number and the time. Arrays in, arrays out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.simulation.progress import Life, Phase, Rhythm

Floats = NDArray[np.float64]
Whole = NDArray[np.int64]

DAY = 86_400_000
_PLACE = {rhythm.value: place for place, rhythm in enumerate(Rhythm)}


def day_curve(moment: int) -> float:
    """0 in the small hours, 1 in the afternoon (UTC)."""
    return 0.5 - 0.5 * float(np.cos(2 * np.pi * (moment / DAY - 3 / 24)))


def chance(*parts: object) -> Floats:
    """Numbers in [0, 1) that look random and depend on nothing but the integers given. Broadcasts."""
    mixed: NDArray[np.uint64] = np.zeros(1, np.uint64)
    with np.errstate(over="ignore"):
        for part in parts:
            mixed = (mixed ^ np.asarray(part).astype(np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            mixed *= np.uint64(0xBF58476D1CE4E5B9)
            mixed ^= mixed >> np.uint64(32)
    return (mixed >> np.uint64(11)).astype(np.float64) / float(1 << 53)


@dataclass(frozen=True, slots=True)
class Loads:
    """Work on GPUs as columns, so that a fleet of thousands is drawn with a few array operations."""

    number: Whole
    rhythm: Whole
    low: Floats
    high: Floats
    memory_low: Floats
    memory_high: Floats
    running_since: Whole  # milliseconds; 0: it does not compute
    saving: NDArray[np.bool_]

    @classmethod
    def of(
        cls,
        rows: Sequence[tuple[int, str, tuple[float, float], tuple[float, float], int, bool]],
    ) -> "Loads":
        """From (number, rhythm, busy range, memory range, running since, saving) of each."""
        return cls(
            number=np.array([row[0] for row in rows], np.int64),
            rhythm=np.array([_PLACE[row[1]] for row in rows], np.int64),
            low=np.array([row[2][0] for row in rows], np.float64),
            high=np.array([row[2][1] for row in rows], np.float64),
            memory_low=np.array([row[3][0] for row in rows], np.float64),
            memory_high=np.array([row[3][1] for row in rows], np.float64),
            running_since=np.array([row[4] for row in rows], np.int64),
            saving=np.array([row[5] for row in rows], np.bool_),
        )


def load_of(life: Life, moment: int) -> tuple[int, str, tuple[float, float], tuple[float, float], int, bool]:
    """A run's row. What loads, waits for a lost member or has ended computes nothing."""
    nature = life.nature
    computes = life.phase in (Phase.COMPUTING, Phase.LEAVING) and life.up_at is not None
    saving = life.phase == Phase.LEAVING or (life.saving is not None and life.saving.at > moment)
    return nature.seed, nature.rhythm, nature.busy, nature.memory, (life.up_at or 0) if computes else 0, saving


def busy(loads: Loads, *, moment: int) -> Floats:
    """SM activity of every row, 0 to 1."""
    mine = chance(loads.number, 1)
    top = loads.low + (loads.high - loads.low) * mine
    age = (moment - loads.running_since) / 1000.0
    other = chance(loads.number, 2)
    day = day_curve(moment)
    # A checkpoint every eight to fifteen minutes, and an evaluation now and then, both of which leave the GPUs waiting.
    period = 480 + 420 * other
    steady = np.where(age % period < 22 + 14 * mine, 0.05, top)
    steady = np.where(age % 3100 < 80, 0.35 * top, steady)
    loading = age < 60 + 120 * other
    starved = top * (0.55 + 0.45 * np.sin(2 * np.pi * age / (95 + 160 * other)))
    starved = np.where(age % (900 + 600 * mine) < 75, 0.03, starved)
    serving = top * (0.16 + 0.84 * (0.85 * day + 0.15 * mine)) * (1 + 0.10 * np.sin(2 * np.pi * (moment / 1000.0 / 310 + other)))
    trial = np.where(age % (140 + 100 * other) < 18, 0.08, top)
    burst = np.where(chance(loads.number, 3, (age // 150).astype(np.int64)) < 0.10 + 0.10 * day, top, 0.006)
    idle = top * chance(loads.number, 4, (age // 400).astype(np.int64))
    waves = np.where(age % 240 < 150, top, 0.35 * top)
    drawn = {
        Rhythm.STEADY: np.where(loading, 0.04, steady),
        Rhythm.STARVED: np.where(loading, 0.05, starved),
        Rhythm.SERVING: serving,
        Rhythm.TRIAL: trial,
        Rhythm.BURSTS: burst,
        Rhythm.IDLE: idle,
        Rhythm.WAVES: waves,
    }
    figures = np.choose(loads.rhythm, [drawn[rhythm] for rhythm in Rhythm])
    figures = np.where(loads.saving, 0.04, figures)
    return np.where(loads.running_since > 0, figures, 0.0)


def filled(loads: Loads) -> Floats:
    """Memory in use by every row, 0 to 1. What does not compute yet has loaded a little."""
    whole = loads.memory_low + (loads.memory_high - loads.memory_low) * chance(loads.number, 5)
    return np.where(loads.running_since > 0, whole, 0.08)
