"""Points of a sweep as a program of its own: `python -m scheduler.services.forecasts.swept`.

It reads a line of JSON, `{"warm_up": …, "until": …, "step": …, "parent": …, "points": [[policy, axis, value, seed], …]}`, and a scenario. It writes a
line for each point, `{"point": 0, "result": {…}}`, once it has played it. A console follows it beside its loop and ends it; it ends itself soon after
its parent did.
"""

import gc
import json
import os
import sys
from functools import partial

from scheduler.scenarios.reading import load
from scheduler.services.forecasts.programs import NICENESS
from scheduler.sweeps.measuring import measured
from scheduler.sweeps.points import Interval, Point
from scheduler.sweeps.running import fault_told, stop_without


def main() -> int:
    os.nice(NICENESS)
    asked = json.loads(sys.stdin.buffer.readline())
    scenario = load(sys.stdin.buffer.read())
    gc.freeze()
    interval, on = Interval(asked["warm_up"], asked["until"]), partial(stop_without, asked["parent"])
    for number, row in enumerate(asked["points"]):
        try:
            result = measured(scenario, Point(*row), interval, on, step=asked["step"])
        except Exception as fault:
            result = fault_told(fault)
        print(json.dumps({"point": number, "result": result}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
