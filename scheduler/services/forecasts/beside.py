"""Futures that are played in a process of their own: in the one process of an embedded console, each page would wait for its turn meanwhile.

The child reads what to play and writes what came of it. It has none of the console's settings, ends by itself where the console is killed, and is
ended where the console stops.
"""

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Collection
from threading import RLock
from typing import Any

from django.dispatch import receiver

from gpufleet.core.stopping import stopping
from scheduler.engine.model.values import Scenario
from scheduler.services.forecasts.programs import NICENESS, program
from scheduler.simulation.futures import Past, Stage, Waits, waits_foreseen

log = logging.getLogger(__name__)
LONGEST = 300.0  # seconds
_children: set[subprocess.Popen[bytes]] = set()
_starting = RLock()  # whoever ends the children finds also the one that is just being started


class GivenUp(Exception):
    """The child was ended before it was done."""


def waits_foreseen_beside(scenario: Scenario, past: Past, asked: Collection[str], *, seed: int) -> dict[str, Waits]:
    """None of them where that takes too long: then starts are told by the forecast, as of what is too much to play."""
    told = pickle.dumps((scenario, past, set(asked), seed))
    with _starting:
        started = subprocess.Popen(**program(__name__), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True)
        _children.add(started)
    with started as child:
        try:
            answer, _ = child.communicate(told, timeout=LONGEST)
        except subprocess.TimeoutExpired:
            log.warning("Futures were not played within %d s. Starts are told by estimates.", LONGEST)
            return {}
        finally:
            _children.discard(child)
            child.kill()
    if child.returncode < 0:
        raise GivenUp(f"Futures were not played to their end: signal {-child.returncode} ended their process.")
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, __name__)
    found: dict[str, Waits] = pickle.loads(answer)  # noqa: S301 - by our own child
    return found


@receiver(stopping)
def end_children(**_: Any) -> None:
    """A console that stops waits for the threads of its worker, and these for their children."""
    with _starting:
        for child in tuple(_children):
            child.kill()


def main() -> None:
    os.nice(NICENESS)
    scenario, past, asked, seed = pickle.load(sys.stdin.buffer)  # noqa: S301 - from our own parent
    pickle.dump(waits_foreseen(Stage(scenario, past), asked, seed=seed), sys.stdout.buffer)


if __name__ == "__main__":
    main()
