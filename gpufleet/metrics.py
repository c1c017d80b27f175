"""/metrics in the form that Prometheus reads, for those who see the whole fleet: a service token in the scrape's header, or a session.

Figures of the scheduler come from the database, not from counters of one process, so every web process gives the same answer.
"""

from collections.abc import Iterator, Sequence
from datetime import datetime

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe
from ninja.errors import AuthenticationError, Throttled
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from dashboards.alerts.figures import COSTS, FIGURES, figures_now
from dashboards.alerts.selectors import alerts_firing
from dashboards.figures import figures_by_type
from dashboards.selectors import fleet_read
from gpufleet import __version__
from gpufleet.api import TOKEN
from gpufleet.core.times import now
from gpufleet.navigation import access_of
from gpufleet.problems import answer, problem
from quotas.permissions import Can
from scheduler.loop.measures import Counted
from scheduler.selectors.loop import leadership, orders_open
from scheduler.selectors.measures import Series, jobs_by_state, last_plan_at, measured, queue_figures
from scheduler.selectors.spreads import Spread

# About the process that answers; the same as every Prometheus client gives.
_PROCESS = CollectorRegistry()
ProcessCollector(registry=_PROCESS)
PlatformCollector(registry=_PROCESS)
GCCollector(registry=_PROCESS)


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    try:
        known = TOKEN(request) or request.user.is_authenticated
    except (AuthenticationError, Throttled) as fault:
        return answer(request, fault)
    if not known:
        return problem(request, 401, "Scrape with a service token of somebody with a role on the whole fleet: “Authorization: Bearer …”.")
    access = access_of(request)
    if not access.can_everywhere(Can.SEE):
        return answer(request, PermissionDenied("The figures are about the whole fleet, so they need a role on all of it."))
    registry = CollectorRegistry()
    registry.register(Fleet(now(), sees_costs=access.can_everywhere(Can.SEE_COSTS)))
    return HttpResponse(generate_latest(registry) + generate_latest(_PROCESS), content_type=CONTENT_TYPE_LATEST)


class Fleet(Collector):
    """Everything at one moment; what concerns costs for those alone who see them."""

    def __init__(self, moment: datetime, *, sees_costs: bool) -> None:
        self.now = moment
        self.sees_costs = sees_costs

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield gauge("gpufleet_build_info", "The version that answers.", ((("version", __version__),), 1))
        yield from self._scheduler()
        yield from map(family_of, measured())
        yield from self._queue()
        yield from self._backends()
        yield from self._gpus()
        yield from self._watched()

    def _scheduler(self) -> Iterator[Metric]:
        lead = leadership(self.now)
        lease = lead.lease
        states = ("deciding", "watching", "paused", "overdue", "never")
        yield gauge("gpufleet_scheduler_state", "1 for the state it is in.", *(((("state", name),), float(lead.state == name)) for name in states))
        yield gauge("gpufleet_scheduler_unseen_events", "Events that no plan has seen yet.", ((), lead.unseen))
        if lease is not None:
            yield gauge("gpufleet_scheduler_lease_holder_info", "Holder of the lease.", ((("holder", lease.holder),), 1))
            yield gauge("gpufleet_scheduler_lease_epoch", "How often the lease was taken.", ((), lease.epoch))
        last = last_plan_at()
        if last is not None:
            yield gauge("gpufleet_plan_last_timestamp_seconds", "When the last recorded plan was made.", ((), last.timestamp()))

    def _queue(self) -> Iterator[Metric]:
        yield gauge("gpufleet_jobs", "Jobs by state.", *(((("state", state),), count) for state, count in jobs_by_state().items()))
        queue = queue_figures(self.now)
        labels = [(("class", row.job_class),) for row in queue]
        yield gauge("gpufleet_jobs_waiting", "Jobs that wait, by class.", *zip(labels, (row.waiting for row in queue), strict=True))
        asked = (row.asked_milli / 1000 for row in queue)
        yield gauge("gpufleet_jobs_waiting_gpus", "GPUs that waiting jobs ask for.", *zip(labels, asked, strict=True))
        yield spreads(
            "gpufleet_job_waiting_seconds", "How long those that wait have waited.", list(zip(labels, (row.waited for row in queue), strict=True))
        )

    def _backends(self) -> Iterator[Metric]:
        due, failing, oldest = [], [], []
        for row in orders_open(self.now):
            label = (("cluster", row.cluster.name), ("backend", row.cluster.backend))
            due.append((label, row.due))
            failing.append((label, row.failing))
            oldest.append((label, (self.now - row.oldest).total_seconds() if row.oldest else 0.0))
        yield gauge("gpufleet_backend_orders_due", "Orders that are due and not carried out.", *due)
        yield gauge("gpufleet_backend_orders_failing", "Orders whose last try failed.", *failing)
        yield gauge("gpufleet_backend_oldest_order_seconds", "How long the oldest order waits; 0: there is none.", *oldest)

    def _gpus(self) -> Iterator[Metric]:
        found = []
        for name, figures in figures_by_type(fleet_read(now=self.now)).items():
            for state, milli in (("held", figures.held), ("free", figures.free), ("out_of_service", figures.away)):
                found.append(((("type", name), ("state", state)), milli / 1000))
        yield gauge("gpufleet_gpus", "GPUs by type and use.", *found)

    def _watched(self) -> Iterator[Metric]:
        """What alert rules watch, by the same reading."""
        hidden = () if self.sees_costs else COSTS
        figures = figures_now(now=self.now, wanted=FIGURES.keys() - hidden)
        rows = [((("figure", key), ("of", of)), value) for key, values in sorted(figures.items()) for of, value in sorted(values.items())]
        yield gauge("gpufleet_figure", "Figures that alert rules watch, in their units; `of` is empty for the whole fleet.", *rows)
        counts = alerts_firing(hidden)
        firing: list[tuple[Labels, float]] = [((("rule", rule), ("severity", severity)), count) for rule, severity, count in counts]
        yield gauge("gpufleet_alerts_firing", "Alerts that fire, by rule.", *firing)


Labels = tuple[tuple[str, str], ...]


def gauge(name: str, text: str, *samples: tuple[Labels, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text)
    for labels, value in samples:
        family.add_sample(name, dict(labels), value)
    return family


def family_of(series: Series) -> Metric:
    measure = series.measure
    if isinstance(measure, Counted):
        counter = CounterMetricFamily(measure.name, measure.text, labels=measure.labels)
        for labels, count in series.counts.items():
            counter.add_metric(labels, count)
        return counter
    histogram = HistogramMetricFamily(measure.name, measure.text, labels=measure.labels)
    for labels, told in series.histograms.items():
        histogram.add_metric(labels, [(floatToGoString(bound), count) for bound, count in told.buckets], told.seconds)
    return histogram


def spreads(name: str, text: str, samples: Sequence[tuple[Labels, Spread]]) -> GaugeMetricFamily:
    """A gauge for each quantile that was measured. What was not measured has no sample."""
    family = GaugeMetricFamily(name, text)
    for labels, taken in samples:
        if taken.count:
            for quantile, value in (("0.5", taken.median), ("0.95", taken.p95), ("1", taken.longest)):
                family.add_sample(name, {**dict(labels), "quantile": quantile}, value)
    return family
