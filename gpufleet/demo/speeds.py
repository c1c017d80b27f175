"""How fast the jobs of templates are on each GPU type, as somebody in the demo has measured it."""

from collections.abc import Mapping
from datetime import datetime, timedelta

from gpufleet.core.models import User
from gpufleet.demo.fleet import A100, H100, L40S
from quotas.permissions import access_for_user
from scheduler.jobs.template_rules import SHIPPED_BY_REF
from scheduler.services.jobs.template_speeds import speeds_state

SPEEDS = {
    "elastic-training": {H100: 1, A100: 0.42, L40S: 0},
    "fine-tune": {H100: 1, A100: 0.48, L40S: 0.21},
}


def speeds_seed(*, people: Mapping[str, User], now: datetime) -> None:
    admin = access_for_user(people["root"], via="system")
    for ref, speeds in SPEEDS.items():
        reason = "Steps a second of the last release on one node of each type."
        speeds_state(access=admin, template=SHIPPED_BY_REF[ref], speeds=speeds, reason=reason, now=now - timedelta(days=12))
