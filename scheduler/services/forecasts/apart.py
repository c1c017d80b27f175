"""One play of the last days as a program of its own: `python -m scheduler.services.forecasts.apart`.

It reads a scenario, whose jobs are specimens, rows of [specimen, submitted, milliseconds of work, estimate, limit, quota], the windows of the
calendar, and the power caps, a line each. It writes a line for each hour that was played, and twice a second how many plans it made after the first
two and what they took, in milliseconds. So a console can follow it beside its loop, and end it.
"""

import argparse
import gc
import json
import os
import sys
import time
from typing import Any

from scheduler.scenarios.reading import load
from scheduler.services.forecasts.programs import NICENESS
from scheduler.simulation.calendar import Capped, Promised
from scheduler.simulation.policies import POLICIES
from scheduler.simulation.span import played

TOLD_EVERY = 0.5
FIRST = 2  # of what ran at the beginning, and of what waited


class Watch:
    """Asked before each plan whether there is time for it. The first ones, which fill an empty fleet, are not like the others."""

    def __init__(self, seconds: float) -> None:
        self._latest = time.monotonic() + seconds
        self._plans = 0
        self._since = self._told = 0.0

    def __call__(self) -> bool:
        now = time.monotonic()
        self._plans += 1
        if self._plans <= 1 + FIRST:
            self._since = self._told = now
        elif now - self._told >= TOLD_EVERY:
            self._told = now
            self.tell({})
        return now < self._latest

    def tell(self, told: dict[str, Any]) -> None:
        cost = {"plans": max(0, self._plans - 1 - FIRST), "ms": 1000 * (time.monotonic() - self._since)}
        print(json.dumps(told | cost), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="no further plan is made after so long")
    parser.add_argument("--step", type=int, default=0, help="milliseconds from one plan to the next")
    parser.add_argument("--policy", choices=POLICIES, default="tree")
    asked = parser.parse_args()
    watch = Watch(asked.seconds)
    os.nice(NICENESS)
    scenario = load(sys.stdin.buffer.readline())
    rows = json.loads(sys.stdin.buffer.readline())
    calendar = [Promised(*row) for row in json.loads(sys.stdin.buffer.readline())]
    caps = [Capped(*row) for row in json.loads(sys.stdin.buffer.readline())]
    gc.freeze()
    policy, _ = POLICIES[asked.policy]
    for told in played(scenario, rows, asked.hours, watch, calendar, policy, asked.step, caps):
        watch.tell(told)
    return 0


if __name__ == "__main__":
    sys.exit(main())
