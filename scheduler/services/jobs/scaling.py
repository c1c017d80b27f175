"""How many replicas of a service are wanted: set by those who may steer it, and followed until as many have their place.

A service is a job of the class inference with a role of `min` below `max`; its description says how many are wanted (`desired`), which the engine
keeps to: growing step by step, each replica admitted by itself, and giving back the highest.
"""

import copy
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.db import transaction
from django.db.models import Count, Exists, F, OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from gpufleet.core.audit import Actor
from gpufleet.core.bulk import objects_update
from gpufleet.core.faults import NO_TEXT, Conflict
from gpufleet.core.live.news import News
from gpufleet.core.prepared import Prepared
from gpufleet.core.templatetags.shell import plural
from quotas.permissions import Access
from scheduler.jobs.stored import is_elastic, least_of, most_of, name_of, replicas_fault, role_named, roles_of, wanted_of
from scheduler.models import ENDED, HOLDING, Job, Placement, ReplicaRule, Scaling, ScalingEnd, WorkerState
from scheduler.selectors.jobs import must_steer
from scheduler.selectors.scaling import LAPSE, is_service, standing_of
from scheduler.services.jobs.revisions import unchanged_or_stale
from scheduler.services.jobs.steering import reason_given
from scheduler.services.loop.lease import lease_want
from scheduler.services.loop.steps import Steps, jobs_locked

MOST = 1000
# Seconds for which a metric has to want fewer replicas before there are fewer, unless somebody says otherwise.
COOLDOWN, LONGEST_COOLDOWN = 300, 86_400
_HELD = Placement.objects.filter(job=OuterRef("job"), role=OuterRef("role"), until__isnull=True).order_by()


def _counted(workers: Any) -> Coalesce:
    return Coalesce(Subquery(workers.values("job").annotate(count=Count("worker", distinct=True)).values("count")), 0)


def _scaled(rows: QuerySet[Scaling]) -> QuerySet[Scaling, int]:
    """Those that have come to what was wanted, or whose job has ended."""
    return (
        rows.filter(over_at__isnull=True)
        .annotate(stand=_counted(_HELD.filter(leaving_since__isnull=True)), held=_counted(_HELD))
        .filter(
            Q(after__gt=F("stood"), stand__gte=F("after"))
            | Q(after__lte=F("stood"), held__lte=F("after"))
            | Exists(Job.objects.filter(pk=OuterRef("job"), ended_at__isnull=False))
        )
        .order_by("id")
        .values_list("id", flat=True)
    )


# Asked in every tick, and nearly always there is none.
SCALED: Prepared[int] = Prepared(lambda: _scaled(Scaling.objects.all())[:MOST])


def must_scale(job: Job) -> None:
    """Only a service that goes on, or will, has replicas to be set."""
    if not is_service(job):
        raise Conflict(f"{job.public_id} is not a service: a job of the class inference with a range of workers.")
    if job.state in ENDED:
        raise Conflict(f"{job.public_id} has ended.")


def service_role(job: Job, role: str = "") -> Mapping[str, Any]:
    """The role whose replicas are set; a fault at `role` where that does not say which."""
    must_scale(job)
    elastic = [one for one in roles_of(job.spec) if is_elastic(one)]
    names = [name_of(one) for one in elastic]
    if "\0" in role:
        raise ValidationError({"role": NO_TEXT})
    if role and role not in names:
        raise ValidationError({"role": f"Choose one of {', '.join(names)}."})
    if not role and len(names) > 1:
        raise ValidationError({"role": f"State one of {', '.join(names)}."})
    return elastic[names.index(role) if role else 0]


def job_scale(*, access: Access, job: Job, replicas: int | None, role: str = "", reason: str = "", now: datetime, revision: int | None = None) -> Job:
    """Say how many replicas are wanted; None, as an Undo may: as many as find room. What is wanted already changes nothing."""
    must_steer(access, job)
    cause, news = reason_given(reason, ""), News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        chosen = service_role(fresh, role) if replicas is None else _checked(fresh, role, replicas)
        if ReplicaRule.objects.filter(job=fresh, role=name_of(chosen)).exists():
            raise Conflict(f"{fresh.public_id} follows its metric. Stop that first to set its replicas by hand.")
        if scaling := scale_take(steps, fresh, name_of(chosen), replicas, actor=access.actor, reason=cause):
            scalings_begin([scaling])
            steps.write(news)
            news.publish()
            lease_want()
    return fresh


def job_as_scaled(*, access: Access, job: Job, replicas: int, role: str = "", reason: str = "") -> Job:
    """The job as `job_scale` would make it. Nothing is written; a fault is told as it tells it."""
    must_steer(access, job)
    reason_given(reason, "")
    chosen = _checked(job, role, replicas)
    scaled = copy.copy(job)
    scaled.spec = _with_desired(job.spec, name_of(chosen), replicas)
    return scaled


def _checked(job: Job, role: str, replicas: int) -> Mapping[str, Any]:
    chosen = service_role(job, role)
    if fault := replicas_fault(replicas, least=least_of(chosen), most=most_of(chosen), step=int(chosen.get("step", 1))):
        raise ValidationError({"replicas": fault})
    return chosen


def _with_desired(spec: Mapping[str, Any], role: str, replicas: int | None) -> dict[str, Any]:
    roles = [dict(one) for one in roles_of(spec)]
    for one in roles:
        if name_of(one) == role:
            one.pop("desired", None)
            one |= {} if replicas is None else {"desired": replicas}
    return {**spec, "roles": roles}


def scale_take(steps: Steps, job: Job, role: str, replicas: int | None, *, actor: Actor, reason: str, by_metric: bool = False) -> Scaling | None:
    """What is to be begun, in the caller's transaction, who has locked the job. None: as many are wanted already."""
    chosen = role_named(job.spec, role)
    before = wanted_of(chosen)
    if chosen.get("desired") == replicas:
        return None
    after = most_of(chosen) if replicas is None else replicas
    said = f"{before} → {plural(after, 'replica')} wanted"
    cause = f"{said}. {reason}" if reason else f"{said}."
    steps.note(job, cause, detail={"replicas": after, "before": before, "role": role, "by_metric": by_metric})
    steps.record(job, "job.scale", {role: chosen.get("desired")}, {role: replicas}, reason or said)
    job.spec = _with_desired(job.spec, role, replicas)
    return Scaling(job=job, role=role, at=steps.now, before=before, after=after, by_metric=by_metric, actor_name=actor.name, reason=reason)


def scalings_begin(scalings: Sequence[Scaling]) -> None:
    """Write them down, of as many roles, with the descriptions of their jobs. They take the place of what is still awaited there."""
    if not scalings:
        return
    jobs = {one.job_id: one.job for one in scalings}
    objects_update(list(jobs.values()), ("spec",))
    roles = {(one.job_id, one.role): one.at for one in scalings}
    awaited = _awaited(jobs)
    _overtaken([one for one in awaited if (one.job_id, one.role) in roles], scalings[0].at)
    stands: Mapping[int, Mapping[str, int]] = standing_of(jobs)
    for one in scalings:
        one.stood = stands[one.job_id][one.role]
        if one.job.state not in HOLDING:
            one.over_at, one.end = one.at, ScalingEnd.NOT_RUNNING
        elif one.after == one.stood:
            one.over_at, one.end = one.at, ScalingEnd.PLACED if one.after > one.before else ScalingEnd.RELEASED
    Scaling.objects.bulk_create(scalings)


def _awaited(jobs: Iterable[int]) -> list[Scaling]:
    """Held until the end of the transaction: the timers end what has come to its end meanwhile, and nothing is overtaken then."""
    rows = Scaling.objects.select_for_update(of=("self",)).filter(job__among=sorted(jobs), over_at__isnull=True)
    return list(rows.select_related("job").order_by("pk"))


def _overtaken(awaited: Sequence[Scaling], at: datetime) -> None:
    """They wait no longer. One that had come to what was wanted, which no tick has written down yet, has come to it all the same."""
    scaled = set(_scaled(Scaling.objects.filter(pk__among=[one.pk for one in awaited]))) if awaited else ()
    for one in awaited:
        one.over_at, one.end = (_over(one, at) if one.pk in scaled else None) or (at, ScalingEnd.OVERTAKEN)
    objects_update(awaited, ("over_at", "end"))


def ranges_take(steps: Steps, job: Job, before: Mapping[str, Any], *, actor: Actor, reason: str) -> None:
    """The job has other ranges than `before`: what they leave wanted takes the place of what is awaited. In the caller's transaction."""
    others = []
    for role in roles_of(job.spec):
        name, wanted = name_of(role), role.get("desired")
        before_role = role_named(before, name)
        if wanted is None:
            _overtaken([one for one in _awaited([job.pk]) if one.role == name], steps.now)
        elif wanted != before_role.get("desired"):
            was = wanted_of(before_role)
            others.append(Scaling(job=job, role=name, at=steps.now, before=was, after=wanted, actor_name=actor.name, reason=reason))
    scalings_begin(others)
    rule = ReplicaRule.objects.filter(job=job).first()
    if rule is not None and not any(is_elastic(role) for role in roles_of(job.spec) if name_of(role) == rule.role):
        _rule_end(steps, job, "Its role has no range any more.")


# Following a metric


def replicas_follow_set(
    *,
    access: Access,
    job: Job,
    follows: bool,
    role: str = "",
    cooldown_seconds: int = COOLDOWN,
    reason: str = "",
    now: datetime,
    revision: int | None = None,
) -> Job:
    """Have a service follow its metric from now on, or stop that; what is wanted stays as it is until the metric says otherwise."""
    must_steer(access, job)
    cause, news = reason_given(reason, ""), News()
    with transaction.atomic():
        steps = Steps(now=now, actor=access.actor)
        fresh = jobs_locked([job.pk])[job.pk]
        unchanged_or_stale(fresh, revision)
        must_scale(fresh)
        if follows:
            name = name_of(service_role(fresh, role))
            if not 0 <= cooldown_seconds <= LONGEST_COOLDOWN:
                raise ValidationError({"cooldown_s": f"From 0 to {LONGEST_COOLDOWN:,} seconds."})
            rule = ReplicaRule.objects.filter(job=fresh).first()
            if rule is not None and (rule.role, rule.cooldown_seconds) == (name, cooldown_seconds):
                return fresh
            before = _rule_facts(rule)
            rule = rule or ReplicaRule(job=fresh, since=steps.now)
            rule.role, rule.cooldown_seconds, rule.actor_name = name, cooldown_seconds, access.actor.name
            rule.low_since = rule.low_most = None
            rule.save()
            said = "It follows its metric from now on."
            steps.note(fresh, f"{said} {cause}".strip(), detail={"follows": True})
            steps.record(fresh, "job.follow_metric", before, _rule_facts(rule), cause or said)
        elif not _rule_end(steps, fresh, cause):
            return fresh
        steps.write(news)
        news.publish()
    return fresh


def replicas_unfollow(*, job: Job, actor: Actor, reason: str, now: datetime) -> None:
    """Its metric is no longer stated. In the caller's transaction."""
    steps, news = Steps(now=now, actor=actor), News()
    if _rule_end(steps, jobs_locked([job.pk])[job.pk], reason):
        steps.write(news)
        news.publish()


def _rule_facts(rule: ReplicaRule | None) -> dict[str, Any] | None:
    return None if rule is None else {"role": rule.role, "cooldown_s": rule.cooldown_seconds}


def _rule_end(steps: Steps, job: Job, reason: str) -> bool:
    rule = ReplicaRule.objects.filter(job=job).first()
    if rule is None:
        return False
    before = _rule_facts(rule)
    rule.delete()
    said = "It no longer follows its metric."
    steps.note(job, f"{said} {reason}".strip(), detail={"follows": False})
    steps.record(job, "job.follow_metric", before, None, reason or said)
    return True


def replicas_follow(*, figures: Mapping[int, int], now: datetime) -> int:
    """Give services that follow their metric what it says, by the figures that were read just now. Returns how many are given another number.

    More at once; fewer when it has said fewer for the whole cool-down, and then the most of what it has said in that time.
    """
    if not figures:
        return 0
    changed: list[Scaling] = []
    with transaction.atomic():
        steps = Steps(now=now)
        jobs = jobs_locked(figures)
        rules = list(ReplicaRule.objects.filter(job__among=sorted(jobs)).order_by("pk"))
        for rule in rules:
            job = jobs[rule.job_id]
            replicas = None if job.state in ENDED else _followed(rule, job, figures[rule.job_id], steps.now)
            if replicas is None:
                continue
            said = f"Follows its metric, which says {figures[rule.job_id]:,}."
            if scaling := scale_take(steps, job, rule.role, replicas, actor=steps.actor, reason=said, by_metric=True):
                changed.append(scaling)
        objects_update(rules, ("read_at", "figure", "low_since", "low_most"))
        scalings_begin(changed)
        if changed:
            news = News()
            steps.write(news)
            news.publish()
            lease_want()
    return len(changed)


def _followed(rule: ReplicaRule, job: Job, figure: int, now: datetime) -> int | None:
    """What is to be wanted from now on; None: what is wanted stays."""
    if rule.read_at is None or now - rule.read_at > LAPSE:
        rule.low_since = rule.low_most = None  # nobody knows what it said meanwhile
    rule.read_at, rule.figure = now, figure
    role = next((one for one in roles_of(job.spec) if name_of(one) == rule.role and is_elastic(one)), None)
    if role is None:
        return None
    wanted, target = wanted_of(role), _nearest(role, figure)
    if target >= wanted:
        rule.low_since = rule.low_most = None
        return target if target > wanted else None
    if rule.low_since is None or _nearest(role, rule.low_most or 0) >= wanted:  # of another range it was fewer
        rule.low_since, rule.low_most = now, figure
    rule.low_most = max(rule.low_most or 0, figure)
    if now - rule.low_since < timedelta(seconds=rule.cooldown_seconds):
        return None
    target = _nearest(role, rule.low_most)
    rule.low_since = rule.low_most = None
    return target


def _nearest(role: Mapping[str, Any], figure: int) -> int:
    """What a figure comes to within the range of the role; of a step that is begun, all."""
    least, step = least_of(role), int(role.get("step", 1))
    return min(most_of(role), least - (least - max(least, figure)) // step * step)


def scalings_settle(*, now: datetime) -> int:
    """Scalings that have come to what was wanted, each with the moment at which it did. Returns how many."""
    with transaction.atomic():
        rows = list(
            Scaling.objects.select_for_update(of=("self",)).filter(pk__among=SCALED(), over_at__isnull=True).select_related("job").order_by("pk")
        )
        news, settled = News(), 0
        for one in rows:
            if not (over := _over(one, now)):
                continue
            one.over_at, one.end = over
            one.ready_at = _ready_at(one) if one.end == ScalingEnd.PLACED else None
            one.save(update_fields=["over_at", "end", "ready_at"])
            news.add("jobs", one.job_id)
            settled += 1
        news.publish()
    return settled


def _over(one: Scaling, now: datetime) -> tuple[datetime, str] | None:
    """When and how it has come to its end; None: a replica that had its place was lost just now."""
    if one.job.ended_at is not None:
        return max(one.at, one.job.ended_at), ScalingEnd.ENDED
    if one.after <= one.stood:
        return max(one.at, now), ScalingEnd.RELEASED
    held = Placement.objects.filter(job=one.job_id, role=one.role, until__isnull=True, leaving_since__isnull=True)
    since = dict(held.order_by("-since").values_list("worker", "since"))
    return (max(one.at, sorted(since.values())[one.after - 1]), ScalingEnd.PLACED) if len(since) >= one.after else None


def scalings_ready(*, jobs: Iterable[int]) -> None:
    """Replicas of these can serve that could not before: of their newest scale-ups it is kept when as many could. In the caller's transaction."""
    newest: dict[tuple[int, str], Scaling] = {}
    for one in Scaling.objects.select_for_update(of=("self",)).filter(job__among=sorted(jobs)).order_by("at", "pk"):
        newest[one.job_id, one.role] = one
    found = []
    for one in newest.values():
        if one.end == ScalingEnd.PLACED and one.ready_at is None and (at := _ready_at(one)) is not None:
            one.ready_at = at
            found.append(one)
    objects_update(found, ("ready_at",))


def _ready_at(one: Scaling) -> datetime | None:
    """When as many replicas as are wanted since could serve; None: they can't yet, or are not asked."""
    held = Placement.objects.filter(job=one.job_id, role=one.role, until__isnull=True, leaving_since__isnull=True)
    since = dict(held.order_by("-since").values_list("worker", "since"))
    states = WorkerState.objects.filter(attempt__job=one.job_id, attempt__ended_at__isnull=True, role=one.role, first_at__isnull=False)
    ready = sorted(row.first_at for row in states if row.first_at is not None and row.worker in since and row.first_at >= since[row.worker])
    return max(one.at, ready[one.after - 1]) if len(ready) >= one.after else None
