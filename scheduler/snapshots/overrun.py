"""The factor on estimates as it was last learned."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gpufleet.core.prepared import Prepared
from scheduler.engine.model.values import Settings
from scheduler.loop.policy import AS_STATED, policy, ruled, rules_now
from scheduler.models import LearnedOverrun

ASKED: Prepared[tuple[int]] = Prepared(lambda: LearnedOverrun.objects.values_list("factor_millionths"))


def corrected(settings: Settings, rows: Sequence[tuple[int]]) -> Settings:
    """Estimates count times the learned factor; where none was learned, as the settings say."""
    return replace(settings, overrun_millionths=rows[0][0]) if rows else settings


def settings_by(rules: Mapping[str, Any], rows: Sequence[tuple[int]]) -> Settings:
    return ruled(corrected(policy().engine, rows), rules)


def settings_now() -> Settings:
    """What plans of this moment go by: with the learned factor, under the fleet-wide rules."""
    return settings_by(rules_now(), list(ASKED()))


def overrun_for(lengths: Iterable[tuple[int | None, int | None]]) -> int:
    """By how many millionths plans of this moment multiply estimates. Asked for only if one of these has an estimate and no limit."""
    counts = any(estimate is not None and limit is None for estimate, limit in lengths)
    return settings_now().overrun_millionths if counts else AS_STATED
