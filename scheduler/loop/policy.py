"""What production schedules by: the operator's settings as the engine and the loop read them, in this one place."""

from dataclasses import dataclass, replace
from datetime import timedelta

from django.conf import settings

from scheduler.engine.values import Fairness, Settings

# Between the signal and the end by force, for a job that states no `grace_s`.
DEFAULT_GRACE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Policy:
    """The engine's settings, and how the loop carries its plans out."""

    engine: Settings
    starts_per_second: int
    start_timeout: timedelta
    limit_warning: timedelta


def without_splitting(engine: Settings) -> Settings:
    """For a fleet on which nobody can split GPUs anew."""
    return replace(engine, passes=tuple(name for name in engine.passes if name != "repartition"))


def policy() -> Policy:
    chosen = settings.SCHEDULER
    engine = Settings(
        placement=chosen["PLACEMENT"],
        max_moves=chosen["MAX_MOVES"],
        preempt_min_runtime_ms=1000 * chosen["MIN_RUNTIME_S"],
        reclaim_min_runtime_ms=1000 * chosen["MIN_RUNTIME_S"],
        stale_grace_ms=1000 * chosen["STALE_GRACE_S"],
        hysteresis_ms=1000 * chosen["HYSTERESIS_S"],
        backfill_depth=chosen["BACKFILL_DEPTH"],
        fairness=Fairness(
            half_life_ms=1000 * chosen["USAGE_HALF_LIFE_S"],
            usage_weight_millionths=round(1_000_000 * chosen["USAGE_WEIGHT"]),
            step_ms=1000 * chosen["USAGE_STEP_S"],
        ),
        # A tick says why a job waits; when each will start is worked out beside it (`scheduler.tasks.forecast`).
        forecast="head",
    )
    return Policy(
        engine=engine,
        starts_per_second=chosen["STARTS_PER_S"],
        start_timeout=timedelta(seconds=chosen["START_TIMEOUT_S"]),
        limit_warning=timedelta(seconds=chosen["LIMIT_WARNING_S"]),
    )
