"""What production schedules by: the operator's settings as the engine and the loop read them, in this one place."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from gpufleet.core.prepared import Prepared
from quotas.models import QuotaNode
from quotas.selectors.rates import rates_now
from scheduler.engine.model.values import CLASSES, ByClass, Fairness, Settings

# Between the signal and the end by force, for a job that states no `grace_s`.
DEFAULT_GRACE_SECONDS = 30
AS_STATED = 1_000_000
RELIEF_AFTER_SECONDS, RELIEF_EVERY_SECONDS, RELIEF_APART_SECONDS = 600, 900, 3600
TOP = Prepared[tuple[Any]](lambda: QuotaNode.objects.filter(parent__isnull=True).values_list("policy"))


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


def rules_now() -> Mapping[str, Any]:
    """The fleet-wide rules of this moment."""
    return next((rules or {} for (rules,) in TOP()), {})


def ruled(settings: Settings, rules: Mapping[str, Any]) -> Settings:
    """The settings under the fleet-wide rules of the top of the quota tree (`quotas.rules.POLICY`). What it does not state is as configured."""
    if not rules:
        return settings
    fairness = settings.fairness
    fairness = replace(
        fairness,
        half_life_ms=1000 * rules.get("half_life_s", fairness.half_life_ms // 1000),
        usage_weight_millionths=rules.get("usage_weight_millionths", fairness.usage_weight_millionths),
    )
    return replace(
        settings,
        fairness=fairness,
        sharing_trust=rules.get("sharing_trust", settings.sharing_trust),
        colocation=rules.get("colocation", settings.colocation),
        type_choice=rules.get("type_choice", settings.type_choice),
        overrun_millionths=AS_STATED if rules.get("estimates") == "stated" else settings.overrun_millionths,
        max_wait_ms=_by_class(settings.max_wait_ms, rules, "max_wait_{}_s"),
        worth_gpu_ms=_by_class(settings.worth_gpu_ms, rules, "worth_{}_gpu_s"),
    )


def gpu_prices(now: datetime) -> tuple[tuple[str, int], ...]:
    """What a guaranteed hour of each GPU type costs beside the cheapest, in millionths: no amount leaves the rate cards."""
    rates = rates_now(now=now)
    least = min(filter(None, rates.values()), default=1)
    return tuple([(name, 1_000_000 * rate // least) for name, rate in sorted(rates.items())])


def _by_class(usual: ByClass, rules: Mapping[str, Any], key: str) -> ByClass:
    stated = {name: 1000 * rules[key.format(name)] for name in CLASSES if key.format(name) in rules}
    return usual._replace(**stated)


@dataclass(frozen=True, slots=True)
class ReliefRule:
    """When a job beside a service over its objective is evicted: once a breach has gone on for `after`, one each `every`. For `apart` after the
    breach it stays off the nodes of the service."""

    after: timedelta = timedelta(seconds=RELIEF_AFTER_SECONDS)
    every: timedelta = timedelta(seconds=RELIEF_EVERY_SECONDS)
    apart: timedelta = timedelta(seconds=RELIEF_APART_SECONDS)


def relief_rule(rules: Mapping[str, Any]) -> ReliefRule | None:
    """By the fleet-wide rules of the top of the quota tree; None: nobody gives way, which is so unless they say otherwise."""
    if rules.get("relief") != "evict":
        return None
    stated = {name: timedelta(seconds=rules[f"relief_{name}_s"]) for name in ("after", "every", "apart") if f"relief_{name}_s" in rules}
    return ReliefRule(**stated)


def relief_now() -> ReliefRule | None:
    return relief_rule(rules_now())


def colocation_now() -> str:
    """Between which neighbours services and other work need a boundary by the rules of this moment."""
    return ruled(policy().engine, rules_now()).colocation


def fairness_now(settings: Settings) -> Fairness:
    """How past usage counts by the rules of this moment."""
    return ruled(settings, rules_now()).fairness
