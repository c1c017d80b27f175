"""What each template comes to if somebody submits it as it is: when it starts, and what an hour of it costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.money import MILLIS_PER_HOUR, cost_micros
from gpufleet.core.times import MILLISECOND
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from scheduler.jobs.template_rules import Template
from scheduler.selectors.jobs import quota_last_used
from scheduler.services.forecasts.fitting import GROUNDS, Fit, fit_checked
from scheduler.services.jobs.submission import Checked, submissions_judge


@dataclass(frozen=True, slots=True)
class PresetFit:
    """`starts_in_ms`: nothing where it starts now or no start is predicted. `hour_micros`: only for those who may see costs."""

    verdict: str
    starts_in_ms: int | None
    hour_micros: int | None


class _FleetIsRead(Exception):
    """Nothing can be tried yet."""


def preset_fits(*, access: Access, templates: Sequence[Template], now: datetime) -> dict[str, PresetFit] | None:
    """By the templates' names, without those that need more than they say; None while the fleet is being read."""
    if not GROUNDS.at_hand(now):
        return None
    described = [{**one.body, "template": one.ref, "quota": quota_last_used(access, one.quota)} for one in templates]
    judged = submissions_judge(access=access, descriptions=described, now=now)
    rates = rates_now(now=now)
    found = {}
    try:
        for template, raw, checked in zip(templates, described, judged, strict=True):
            if isinstance(checked, Checked):
                fit = _fit(access, template, checked, raw, now)
                rate = rates.get(fit.gpu_type) if access.can(Can.SEE_COSTS, checked.quota.path) else None
                hour = None if rate is None else cost_micros(gpu_milli=fit.all_milli, millis=MILLIS_PER_HOUR, micros_per_gpu_hour=rate)
                ahead = None if fit.at is None or fit.at <= now else (fit.at - now) // MILLISECOND
                found[template.ref] = PresetFit(fit.verdict, ahead, hour)
    except _FleetIsRead:
        return None
    return found


def _fit(access: Access, template: Template, checked: Checked, raw: dict[str, object], now: datetime) -> Fit:
    """Tried once for each reading of the fleet, and kept with it."""

    def find() -> Fit:
        fit = fit_checked(access=access, checked=checked, raw=template.completed(raw), now=now, changes=False)
        if fit is None:
            raise _FleetIsRead
        return fit

    return GROUNDS.remembered(("preset", template.key, template.version, checked.quota.path, access.actor.name), find)
