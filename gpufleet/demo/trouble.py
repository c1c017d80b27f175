"""The one machine of the demo that is always in some trouble, and the patience of people: the same in its past and in its present."""

from datetime import UTC, datetime

from scheduler.models import Health

# How long a machine stays in each state, in minutes, and what comes next.
SICKNESS: dict[str, tuple[int, str, str]] = {
    Health.SUSPECT: (26, Health.DRAINING, "Still throttling after 26 min; no new jobs."),
    Health.DRAINED: (4, Health.REPAIRING, "Ticket opened: fan tray and thermal paste."),
    Health.DOWN: (5, Health.REPAIRING, "No answer for 5 min; power cycled by hand."),
    Health.REPAIRING: (8, Health.BURN_IN, "Repaired; burn-in runs."),
    Health.BURN_IN: (6, Health.HEALTHY, "Burn-in passed."),
}
DRAIN_PATIENCE = 6 * 60_000
LONG_WAIT = 100 * 60_000
GIVING_UP = 40 * 60_000
BETWEEN_FAULTS = 4 * 60_000
SILENT = "No heartbeat for 30 s."


def reason_of(health: str, reason: str, moment: int) -> str:
    """Why a machine is in its next state, as of `moment`. A drain says until when the jobs there may finish."""
    if health != Health.DRAINING:
        return reason
    until = datetime.fromtimestamp((moment + DRAIN_PATIENCE) / 1000, UTC)
    return f"{reason} Jobs still running at {until:%H:%M} UTC are preempted."


def overheated(gpu: int) -> str:
    return f"Thermal throttling: GPU {gpu} at 91 °C runs at 55% of its clock."
