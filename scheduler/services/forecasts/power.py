"""What a power cap comes to before it is written: the engine plans the present state twice, with it and without."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from quotas.permissions import Access
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.models import PowerCap
from scheduler.selectors.power import Drawn, power_now
from scheduler.services.forecasts.differences import Effect, differences
from scheduler.services.forecasts.previews import JobEffect, effects_named
from scheduler.services.windows.previews import snapshot_now
from scheduler.snapshots.power import CAPS, RATED, Cap, written_out

DELAYED = "delayed"


@dataclass(frozen=True, slots=True)
class CapPreview:
    """`jobs` are those that the reader may see; `more` of them are not named, and `unseen` counts effects on others. Waits are by power alone."""

    drawn: Drawn | None  # of the pool with the cap
    waits: int
    freed: int  # that wait for power now, and would no longer
    jobs: tuple[JobEffect, ...]
    more: int
    unseen: int
    counts: Mapping[str, int]


def cap_preview(*, access: Access, cap: PowerCap | None, instead_of: PowerCap | None, now: datetime) -> CapPreview:
    """With `cap` in place of another one, or beside the others; None: without that other one. Nothing is written."""
    snapshot, _ = snapshot_now(now)
    scenario = snapshot.scenario
    gone = None if instead_of is None else _as_told(instead_of)
    others = [one for row in CAPS(now) if (one := Cap(*row)) != gone]
    caps = [*others, *([] if cap is None else [_as_told(cap)])]
    horizon = scenario.settings.window_horizon_ms
    then = written_out(caps, dict(RATED()), snapshot.fleet.capacity_milli, now=now, horizon_ms=horizon)
    changed = replace(scenario, power=then)
    plan, planned = make_plan(scenario), make_plan(changed)
    effects: list[Effect] = [*differences(plan.decisions, planned.decisions, waiting=planned.waiting)]
    before, after = _by_power(plan), _by_power(planned)
    told = {effect.job for effect in effects}
    effects += [Effect(job, "waits", detail) for job, detail in after.items() if job not in before and job not in told]
    named, unseen, more, counts = effects_named(access, effects)
    pool = (cap or instead_of).pool if cap or instead_of else ""  # type: ignore[union-attr]
    return CapPreview(power_now(changed).get(pool), len(after.keys() - before), len(before.keys() - after), named, more, unseen, counts)


def _as_told(cap: PowerCap) -> Cap:
    return Cap(cap.pool, cap.watts, cap.zone, cap.starts_at, cap.ends_at, cap.rule)


def _by_power(plan: Plan) -> dict[str, str]:
    """The jobs that wait for power, and what they are told."""
    return {one.job: found.detail for one in plan.waiting for found in one.reasons if found.code == "power"}
