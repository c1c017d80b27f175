"""Runs whose phases are known, drawn second by second and read minute by minute, as telemetry would."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dashboards.fingerprints.phases import COUNTERS, Floats


@dataclass(frozen=True)
class Drawn:
    """`saves`: the middle of each checkpoint in seconds."""

    counters: dict[str, Floats]
    load: float
    period: float
    save: float
    saves: tuple[float, ...]


def drawn_run(
    *, minutes: int = 180, load: float = 150, period: float = 720, save: float = 30, level: float = 70, noise: float = 2.0, seed: int = 0
) -> Drawn:
    """It loads, then computes at a level and saves each `period` seconds; percents are those of the whole run, noise is that of minutes."""
    rng = np.random.default_rng(seed)
    at = np.arange(60 * minutes)
    busy = np.full(len(at), level, np.float64)
    saves = []
    begin = load + period
    while begin + save < len(at):
        busy[(at >= begin) & (at < begin + save)] = 4
        saves.append(begin + save / 2)
        begin += period
    busy[at < load] = 4
    sm = busy.reshape(-1, 60).mean(axis=1)
    memory = np.where(np.arange(minutes) < load // 60, 30.0, 85.0)
    rows = (sm, memory, 0.6 * sm, 0.5 * sm)
    noises = (noise, 0.2, noise, noise)
    counters = {name: np.clip(row + rng.normal(0, one, minutes), 0, 100) for name, row, one in zip(COUNTERS, rows, noises, strict=True)}
    return Drawn(counters, load, period, save, tuple(saves))


def blind(counters: dict[str, Floats], names: Sequence[str], minutes: slice = slice(None)) -> dict[str, Floats]:
    """The same without what these counters said in these minutes."""
    found = {name: row.copy() for name, row in counters.items()}
    for name in names:
        found[name][minutes] = np.nan
    return found
