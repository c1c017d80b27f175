"""What beat asks of the dashboards."""

from celery import shared_task

from dashboards.alerts.round import alerts_turn
from dashboards.charged import charge_uses_turn
from dashboards.fragmentation.demand import demand_turn
from dashboards.fragmentation.rule import rule_turn
from dashboards.fragmentation.store import fragmentation_turn
from dashboards.gap.store import gap_turn
from dashboards.health.round import health_turn
from dashboards.health.stragglers import stragglers_turn
from dashboards.idle.ending import idle_ends
from dashboards.idle.episodes import idle_turn
from dashboards.idle.winning import won_back_follow
from dashboards.prometheus.collect import prometheus_turn
from dashboards.telemetry.local import local_collect
from dashboards.telemetry.rollups import telemetry_rollup
from gpufleet.core.times import now
from scheduler.services.loop.measuring import measures_write


@shared_task
def telemetry_rollup_write() -> None:
    moment = now()
    telemetry_rollup(now=moment)
    gap_turn(now=moment)
    charge_uses_turn(now=moment)
    if fragmentation_turn(now=moment):
        demand_turn(now=moment)
        rule_turn(now=moment)


@shared_task
def telemetry_prometheus_collect() -> None:
    prometheus_turn(now=now())
    measures_write()


@shared_task
def telemetry_local_collect() -> None:
    local_collect(now=now())


@shared_task
def idle_look() -> None:
    moment = now()
    idle_turn(now=moment)
    idle_ends(now=moment)
    won_back_follow(now=moment)


@shared_task
def health_look() -> None:
    """Health rules first: a straggler's cause is often what one of them has found."""
    moment = now()
    health_turn(now=moment)
    stragglers_turn(now=moment)


@shared_task
def alerts_look() -> None:
    alerts_turn(now=now())
