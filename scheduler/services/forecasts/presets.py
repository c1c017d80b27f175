"""What each template comes to if somebody submits it as it is: when it starts, and what an hour of it costs."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.money import MILLIS_PER_HOUR, cost_micros
from gpufleet.core.times import MILLISECOND
from quotas.permissions import Access, Can
from quotas.selectors.budgets import stopped_above, stops_now
from quotas.selectors.rates import rates_now
from scheduler.jobs.template_rules import Template
from scheduler.selectors.jobs import quota_last_used
from scheduler.selectors.loop import pause_now
from scheduler.services.forecasts.fitting import Start, start_checked
from scheduler.services.forecasts.grounds import GROUNDS, PAUSED
from scheduler.services.jobs.submission import Checked, submissions_judge

# The cards of a page are filled in turns: so long may one answer look for what is not known yet.
PATIENCE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class PresetFit:
    """`starts_in_ms`: nothing where it starts now or no start is predicted. `hour_micros`: only for those who may see costs."""

    verdict: str
    starts_in_ms: int | None
    hour_micros: int | None


@dataclass(frozen=True, slots=True)
class PresetFits:
    """By the templates' names, without those that need more than they say. `more`: others are found if one asks again."""

    found: dict[str, PresetFit]
    more: bool = False


class _FleetIsRead(Exception):
    """Nothing can be tried yet."""


def preset_fits(*, access: Access, templates: Sequence[Template], now: datetime) -> PresetFits:
    """What was found already on the fleet as it was read last, and what is found now within the patience, one at least."""
    if not GROUNDS.at_hand(now):
        return PresetFits({}, more=True)
    quotas = {below: quota_last_used(access, below) for below in {one.quota for one in templates}}
    described = [{**one.body, "template": one.ref, "quota": quotas[one.quota]} for one in templates]
    judged = submissions_judge(access=access, descriptions=described, now=now)
    rates, stops, paused = rates_now(now=now), stops_now(), pause_now() is not None
    found: dict[str, PresetFit] = {}
    until = time.monotonic() + PATIENCE_SECONDS
    try:
        for template, checked in zip(templates, judged, strict=True):
            if not isinstance(checked, Checked):
                continue
            if found and time.monotonic() > until:
                return PresetFits(found, more=True)
            path = checked.quota.path
            stop = stopped_above(path, stops)
            holds = (*([stop.budget] if stop else []), *([PAUSED] if paused else []))
            start = _start(template, checked, holds, now)
            rate = rates.get(start.gpu_type) if access.can(Can.SEE_COSTS, path) else None
            hour = None if rate is None else cost_micros(gpu_milli=start.all_milli, millis=MILLIS_PER_HOUR, micros_per_gpu_hour=rate)
            ahead = None if start.at is None or start.at <= now else (start.at - now) // MILLISECOND
            found[template.ref] = PresetFit(start.verdict, ahead, hour)
    except _FleetIsRead:
        return PresetFits(found, more=True)
    return PresetFits(found)


def _start(template: Template, checked: Checked, holds: tuple[str, ...], now: datetime) -> Start:
    """Tried once for each reading of the fleet, and kept with it."""

    def find() -> Start:
        start = start_checked(checked=checked, holds=holds, now=now)
        if start is None:
            raise _FleetIsRead
        return start

    return GROUNDS.remembered(("preset", template.key, template.version, checked.speeds, checked.quota.path, holds), find)
