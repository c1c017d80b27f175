"""Serve the queue with places kept for the first blocked jobs; what comes behind them starts only where it delays none."""

from ..state.planning import Cycle
from .allocate import serve


def run(cycle: Cycle) -> None:
    """Takes the place of a plain allocate: a job behind a blocked one must not run into the place kept for that one."""
    serve(cycle, keep=cycle.settings.backfill_depth > 0, free_start="allocate" in cycle.settings.passes)
