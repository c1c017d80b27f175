"""The replicas of a service as pages and programs read them: how many there are and are wanted, and how soon the added ones had their place."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F, QuerySet

from scheduler.jobs.stored import is_elastic, least_of, most_of, name_of, roles_of, serves_in_replicas, wanted_of
from scheduler.models import ENDED, Attempt, Job, Placement, ReplicaRule, Scaling, ScalingEnd
from scheduler.selectors.readiness import Readiness, readiness_of

SHOWN = 10
# A metric that was not read for so long says nothing of the time between: the cool-down begins anew with the next reading.
LAPSE = timedelta(seconds=60)


@dataclass(frozen=True, slots=True)
class RoleReplicas:
    """`placed`: how many have their place and do not leave it. `stated`: whether somebody said how many are wanted, or it is as many as find room.
    `follows`: whether its metric says how many. `ready`: how many can serve; None where they are not asked."""

    role: str
    placed: int
    wanted: int
    least: int
    most: int
    step: int
    stated: bool
    follows: bool
    ready: int | None = None

    @property
    def missing(self) -> int:
        return max(0, self.wanted - self.placed)

    @property
    def range_told(self) -> str:
        return f"{self.least} to {self.most}{f' in steps of {self.step}' if self.step > 1 else ''}"


@dataclass(frozen=True, slots=True)
class ScalingTold:
    """One change. `seconds`: of one that added replicas, until the last of them had its place, or so far; None where that was not awaited."""

    scaling: Scaling
    seconds: float | None
    bound: int

    @property
    def ready_seconds(self) -> float | None:
        """Of one that added replicas, until as many could serve; None where that is not known."""
        return None if self.scaling.ready_at is None else max(0.0, (self.scaling.ready_at - self.scaling.at).total_seconds())

    @property
    def grows(self) -> bool:
        return self.scaling.after > self.scaling.stood

    @property
    def is_open(self) -> bool:
        return self.scaling.over_at is None

    @property
    def is_late(self) -> bool:
        return self.seconds is not None and self.seconds > self.bound

    @property
    def end_told(self) -> str:
        return str(ScalingEnd(self.scaling.end).label) if self.scaling.end else "Waits"


@dataclass(frozen=True, slots=True)
class ReplicasTold:
    """As of `now`. `scalings` are the newest, the latest first. `rule`: of a service that follows its metric."""

    now: datetime
    roles: tuple[RoleReplicas, ...]
    scalings: tuple[ScalingTold, ...]
    bound: int
    rule: ReplicaRule | None = None
    readiness: Readiness | None = None

    @property
    def fewer_from(self) -> datetime | None:
        """When it is given fewer, if its metric goes on to be read and to want fewer."""
        rule = self.rule
        if rule is None or rule.low_since is None or rule.read_at is None or self.now - rule.read_at > LAPSE:
            return None
        return rule.low_since + timedelta(seconds=rule.cooldown_seconds)

    @property
    def waiting(self) -> ScalingTold | None:
        """The newest that adds replicas and has not come to its end."""
        return next((one for one in self.scalings if one.is_open and one.grows), None)

    @property
    def last_grown(self) -> ScalingTold | None:
        """The newest whose time is known."""
        return next((one for one in self.scalings if one.seconds is not None and (one.is_open or one.scaling.end == ScalingEnd.PLACED)), None)

    @property
    def missing(self) -> RoleReplicas | None:
        """The first role that lacks any."""
        return next((one for one in self.roles if one.missing), None)


def is_service(job: Job) -> bool:
    """A job of the class inference with a range of workers, of which somebody may want more or fewer."""
    return serves_in_replicas(job.job_class, job.spec)


def bound_seconds() -> int:
    found: int = settings.SCHEDULER["SCALE_UP_BOUND_S"]
    return found


def replicas_told(job: Job, *, now: datetime) -> ReplicasTold:
    """In three queries; in six where its workers are asked whether they can serve."""
    stands: Mapping[str, int] = standing_of([job.pk])[job.pk]
    rule = ReplicaRule.objects.filter(job=job).first()
    attempt = Attempt.objects.filter(job=job, ended_at__isnull=True).first() if job.launch.get("ready") else None
    readiness = readiness_of(job, attempt)
    roles = tuple(
        RoleReplicas(
            role=name,
            placed=stands.get(name, 0),
            wanted=wanted_of(one),
            least=least_of(one),
            most=most_of(one),
            step=int(one.get("step", 1)),
            stated=one.get("desired") is not None,
            follows=rule is not None and rule.role == name,
            ready=None if readiness is None else readiness.ready_of(name),
        )
        for one in roles_of(job.spec)
        if is_elastic(one) and (name := name_of(one))
    )
    rows = Scaling.objects.filter(job=job).order_by("-at", "-pk")[:SHOWN]
    bound = bound_seconds()
    told = tuple(ScalingTold(one, _seconds(one, now), bound) for one in rows)
    return ReplicasTold(now, roles, told, bound, rule, readiness)


def _seconds(one: Scaling, now: datetime) -> float | None:
    if one.after <= one.stood or one.end not in ("", ScalingEnd.PLACED):
        return None
    return max(0.0, ((one.over_at or now) - one.at).total_seconds())


def standing_of(jobs: Collection[int]) -> dict[int, Counter[str]]:
    """By job and role: how many workers have their place and do not leave it."""
    rows = Placement.objects.filter(job__among=sorted(jobs), until__isnull=True, leaving_since__isnull=True)
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for job, role, _ in rows.order_by().values_list("job_id", "role", "worker").distinct():
        found[job][role] += 1
    return found


def scale_ups_late(now: datetime) -> QuerySet[Scaling]:
    """Those that wait for longer than the bound, the longest first; of a job that is held back nobody awaits them."""
    late = Scaling.objects.filter(over_at__isnull=True, after__gt=F("stood"), at__lt=now - timedelta(seconds=bound_seconds()))
    return late.exclude(job__state__in=ENDED).filter(job__held_at__isnull=True).order_by("at", "pk")
