"""A round over all services with objectives: their queries asked, the answers kept, and breaches begun, explained and ended.

It is apart from the round that reads GPUs: a slow query or server holds up no reading of hardware.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db import transaction
from django.db.models import F

from dashboards.slo.causes import Cause, causes_of, ceil_of, replicas_of
from dashboards.slo.judging import Step, judged
from dashboards.slo.models import BreachCause, BreachEnd, ServiceBreach, ServiceLevel, ServiceSample
from dashboards.slo.reading import MS, Read, levels_read
from dashboards.slo.selectors import servers_for_services
from dashboards.slo.telling import breach_begins, breach_ends
from dashboards.telemetry.frames import minute_of
from dashboards.telling import events_tell
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.live.news import News
from gpufleet.core.progress import turn_take
from scheduler.models import ENDED, JobState
from scheduler.notify.outgoing import Rules
from scheduler.services.jobs.scaling import replicas_follow
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.relief import Report, reliefs_report

TURN = "services"
PACE = timedelta(seconds=10)  # beat asks each fifteen seconds
# Those that were not asked for the longest come first; the rest has its turn in the next round.
MOST_A_ROUND = 300
# So long without a reading, and nothing is known of a breach any more.
SILENT = timedelta(minutes=10)
READ = ("looked_at", "read_at", "latency_ms", "requests", "replicas_wanted", "replicas", "faults", "over", "calm")
SAMPLED = ("objective_ms", "latency_ms", "requests", "replicas_wanted", "replicas")
JUDGED = ("worst_ms", "cause", "said", "until", "end")


def services_turn(*, now: datetime) -> int | None:
    """One round. None: another process just did it. Returns how many services were asked for."""
    if not ServiceLevel.objects.exists():
        return 0
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return services_round(now=now)


def services_round(*, now: datetime, rules: Rules | None = None) -> int:
    """The number of queries is the same however many services there are."""
    servers = list(servers_for_services().order_by("pk"))
    going_on = ServiceLevel.objects.exclude(job__state__in=[*ENDED, JobState.DRAFT]).order_by(F("looked_at").asc(nulls_first=True), "pk")
    asked = list(going_on[:MOST_A_ROUND]) if servers else []
    reads = levels_read(asked, servers, rules or Rules.of_settings())
    told = {level.pk: (_state_of(level), read) for level, read in zip(asked, reads, strict=True) if read.asked}
    with transaction.atomic():
        rows = (
            ServiceLevel.objects.select_for_update(of=("self",))
            .filter(pk__among=sorted(told))
            .select_related("job__quota", "job__replica_rule")
            .order_by("pk")
        )
        levels = [level for level in rows if told[level.pk][0] == _state_of(level) and level.job.state not in ENDED]
        replicas = replicas_of([level.job_id for level in levels]) if levels else {}
        for level in levels:
            _take(level, told[level.pk][1], replicas.get(level.job_id, 0), now)
        _keep(levels, now)
        wants_plan = _judge(levels, now)
        objects_update(levels, READ)
        if wants_plan:
            lease_want()
    # What was read in this round, and of services that follow it: never what an earlier one said.
    wanted = {level.job_id: ceil_of(level.replicas_wanted) for level in levels if hasattr(level.job, "replica_rule")}
    replicas_follow(figures={job: figure for job, figure in wanted.items() if figure is not None}, now=now)
    return len(levels)


def _state_of(level: ServiceLevel) -> tuple[object, ...]:
    """Of a service that was changed meanwhile the answers are those of other queries; one that another round took has newer ones."""
    return level.revision, level.looked_at


def _take(level: ServiceLevel, read: Read, replicas: int, now: datetime) -> None:
    if level.read_at is not None and now - level.read_at > SILENT:
        level.over = level.calm = 0  # rounds so long apart are not in a row
    latency = read.values.get("latency")
    level.latency_ms = None if latency is None else round(latency * MS, 3)
    level.requests, level.replicas_wanted = read.values.get("rate"), read.values.get("wanted")
    level.faults, level.replicas, level.looked_at = read.faults, replicas, now
    if level.latency_ms is not None:
        level.read_at = now


def _keep(levels: Sequence[ServiceLevel], now: datetime) -> None:
    """The minute of each: its highest latency, and the newest of the rest."""
    at = minute_of(now)
    there = {row.job_id: row for row in ServiceSample.objects.filter(at=at, job__among=sorted(level.job_id for level in levels))} if levels else {}
    new = []
    for level in sorted(levels, key=lambda level: level.job_id):
        values = [getattr(level, name) for name in SAMPLED]
        if row := there.get(level.job_id):
            latencies = [one for one in (row.latency_ms, level.latency_ms) if one is not None]
            for name, value in zip(SAMPLED, values, strict=True):
                setattr(row, name, value)
            row.latency_ms = max(latencies, default=None)
        else:
            new.append([level.job_id, at, *values])
    objects_update(list(there.values()), SAMPLED)
    rows_insert(ServiceSample, ("job_id", "at", *SAMPLED), new)


def _judge(levels: Sequence[ServiceLevel], now: datetime) -> bool:
    """Begin, go on with and end breaches; what begins or ends is told. Whether a plan has to be made for a service in a breach."""
    by_job = {level.job_id: level for level in levels}
    # Locked, since a service that this round does not ask may be changed or removed meanwhile, which ends its breach.
    stored = ServiceBreach.objects.select_for_update(of=("self",)).filter(until__isnull=True).order_by("pk")
    open_ones = {one.job_id: one for one in stored.select_related("job__quota", "job__service_level")}
    begun: dict[int, ServiceBreach] = {}
    for job, level in by_job.items():
        breach = open_ones.get(job)
        is_open = breach is not None
        level.over, level.calm, step = judged(
            over=level.over, calm=level.calm, latency_ms=level.latency_ms, objective_ms=level.objective_ms, is_open=is_open
        )
        if step == Step.OPENS and level.latency_ms is not None:
            begun[job] = ServiceBreach(job=level.job, since=now, objective_ms=level.objective_ms, worst_ms=level.latency_ms)
        elif breach is not None:
            breach.worst_ms = max(breach.worst_ms, level.latency_ms or 0)
            if step == Step.ENDS:
                breach.until, breach.end = now, BreachEnd.MET
    for breach in open_ones.values():
        _end_if_over(breach, by_job.get(breach.job_id), now)
    going_on = {job: one for job, one in (open_ones | begun).items() if one.until is None and job in by_job}
    found = causes_of({job: by_job[job] for job in going_on}, {job: one.since for job, one in going_on.items()}) if going_on else {}
    for job, cause in found.items():
        _explain(going_on[job], cause)
    objects_update(list(open_ones.values()), JUDGED)
    rows_insert(ServiceBreach, ("job_id", "since", "objective_ms", *JUDGED), [_row(begun[job]) for job in sorted(begun)])
    over = [one for one in open_ones.values() if one.until is not None]
    # Behind all rows that name a job, and before the feed: a tick locks these in that order.
    wants_plan = _relieve(by_job, found, [one.job_id for one in over], now)
    _tell(by_job, begun, over, found, now)
    return wants_plan


def _relieve(levels: Mapping[int, ServiceLevel], causes: Mapping[int, Cause], over: Sequence[int], now: datetime) -> bool:
    """Tell the scheduler what this round says of services in a breach. Without a reading it says nothing."""
    reports = [
        Report(job, level.title, level.latency_ms, level.objective_ms, cause.beside, cause.how)
        for job, cause in causes.items()
        if (level := levels[job]).latency_ms is not None
    ]
    return reliefs_report(reports=reports, over=over, now=now)


def _row(one: ServiceBreach) -> list[object]:
    return [one.job_id, one.since, one.objective_ms, *(getattr(one, name) for name in JUDGED)]


def _explain(breach: ServiceBreach, cause: Cause) -> None:
    """What is missing shows only after a while: a cause that was found later takes the place of none, and none of one that was found."""
    if cause.kind != BreachCause.UNKNOWN or breach.cause == BreachCause.UNKNOWN:
        breach.cause, breach.said = cause.kind, cause.said


def _end_if_over(breach: ServiceBreach, level: ServiceLevel | None, now: datetime) -> None:
    """Also where nobody asks for the service any more."""
    known: ServiceLevel | None = level or getattr(breach.job, "service_level", None)
    if breach.until is not None:
        return
    if breach.job.state in ENDED:
        breach.until, breach.end = max(breach.since, breach.job.state_since), BreachEnd.ENDED
    elif known is None or known.read_at is None or now - known.read_at > SILENT:
        breach.until, breach.end = now, BreachEnd.UNREAD


def _tell(
    levels: Mapping[int, ServiceLevel], begun: Mapping[int, ServiceBreach], over: Sequence[ServiceBreach], causes: Mapping[int, Cause], now: datetime
) -> None:
    events = [breach_begins(levels[job], breach, causes[job]) for job, breach in begun.items()]
    events += [breach_ends(breach) for breach in over]
    events_tell(events, now=now)
    news = News()
    news.add("jobs", *begun, *(breach.job_id for breach in over))
    news.publish()
