"""What beat asks of the dashboards. Rounds of one task are apart: one that fails keeps no other from its turn."""

from datetime import datetime
from functools import partial

from celery import shared_task

from dashboards.alerts.round import alerts_turn
from dashboards.charged import charge_uses_turn
from dashboards.fingerprints.apart import neighbours_turn
from dashboards.fingerprints.store import fingerprints_turn
from dashboards.fragmentation.demand import demand_turn
from dashboards.fragmentation.rule import rule_turn
from dashboards.fragmentation.store import fragmentation_turn
from dashboards.fragmentation.telling import defragmentations_tell
from dashboards.gap.store import gap_turn
from dashboards.health.round import health_turn
from dashboards.health.stragglers import stragglers_turn
from dashboards.idle.ending import idle_ends
from dashboards.idle.episodes import idle_turn
from dashboards.idle.winning import won_back_follow
from dashboards.prometheus.collect import prometheus_turn
from dashboards.slo.round import services_turn
from dashboards.telemetry.local import local_collect
from dashboards.telemetry.rollups import telemetry_rollup
from gpufleet.core.apart import all_done
from gpufleet.core.times import now
from scheduler.services.loop.measuring import measures_write


@shared_task
def telemetry_rollup_write() -> None:
    moment = now()
    all_done(
        partial(telemetry_rollup, now=moment),
        partial(gap_turn, now=moment),
        partial(charge_uses_turn, now=moment),
        partial(_fragmentation, moment),
        partial(defragmentations_tell, now=moment),
    )


def _fragmentation(moment: datetime) -> None:
    if fragmentation_turn(now=moment):
        demand_turn(now=moment)
        rule_turn(now=moment)


@shared_task
def telemetry_prometheus_collect() -> None:
    prometheus_turn(now=now())
    measures_write()


@shared_task
def services_look() -> None:
    services_turn(now=now())


@shared_task
def telemetry_local_collect() -> None:
    local_collect(now=now())


@shared_task
def idle_look() -> None:
    moment = now()
    all_done(partial(idle_turn, now=moment), partial(idle_ends, now=moment), partial(won_back_follow, now=moment))


@shared_task
def health_look() -> None:
    """Health rules first: a straggler's cause is often what one of them has found."""
    moment = now()
    all_done(partial(health_turn, now=moment), partial(stragglers_turn, now=moment))


@shared_task
def alerts_look() -> None:
    alerts_turn(now=now())


@shared_task
def fingerprints_learn() -> None:
    fingerprints_turn(now=now())
    neighbours_turn(now=now())
