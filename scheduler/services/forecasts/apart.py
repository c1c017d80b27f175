"""One play of the last days as a program of its own: `python -m scheduler.services.forecasts.apart`.

It reads a scenario, whose jobs are specimens, rows of [specimen, submitted, milliseconds of work, estimate, limit, quota], and the windows of the
calendar, a line each. It writes a line for each hour that was played. So a console can follow it beside its loop, and end it.
"""

import argparse
import gc
import json
import os
import sys
import time

from scheduler.scenarios.reading import load
from scheduler.services.forecasts.programs import NICENESS
from scheduler.simulation.calendar import Promised
from scheduler.simulation.policies import POLICIES
from scheduler.simulation.span import played


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hours", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="no further plan is made after so long")
    parser.add_argument("--step", type=int, help="milliseconds from one plan to the next")
    parser.add_argument("--policy", choices=POLICIES, default="tree")
    asked = parser.parse_args()
    begun = time.monotonic()
    os.nice(NICENESS)
    scenario = load(sys.stdin.buffer.readline())
    rows = json.loads(sys.stdin.buffer.readline())
    calendar = [Promised(*row) for row in json.loads(sys.stdin.buffer.readline())]
    gc.freeze()
    policy, _ = POLICIES[asked.policy]
    for told in played(scenario, rows, asked.hours, lambda: time.monotonic() - begun < asked.seconds, calendar, policy, asked.step):
        print(json.dumps(told), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
