"""Futures that are played in a process of their own: in the one process of an embedded console, each page would wait for its turn meanwhile.

The child reads what to play and writes what came of it. It knows nothing of Django, and ends by itself where the console is killed.
"""

import os
import pickle
import subprocess
import sys
from collections.abc import Collection

from scheduler.engine.model.values import Scenario
from scheduler.services.forecasts.programs import NICENESS, program
from scheduler.simulation.futures import Past, Stage, Waits, waits_foreseen

LONGEST = 300.0  # seconds


def waits_foreseen_beside(scenario: Scenario, past: Past, asked: Collection[str], *, seed: int) -> dict[str, Waits]:
    done = subprocess.run(
        **program(__name__),
        input=pickle.dumps((scenario, past, set(asked), seed)),
        stdout=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for the console, which waits for what is under way
        timeout=LONGEST,
        check=True,
    )
    found: dict[str, Waits] = pickle.loads(done.stdout)  # noqa: S301 - by our own child
    return found


def main() -> None:
    os.nice(NICENESS)
    scenario, past, asked, seed = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    pickle.dump(waits_foreseen(Stage(scenario, past), asked, seed=seed), sys.stdout.buffer)


if __name__ == "__main__":
    main()
