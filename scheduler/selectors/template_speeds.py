"""How fast jobs of templates run on each GPU type, as stated and as measured, for those who may see the templates and the runs."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count, F, Max, Min, Q, Sum, Window
from django.db.models.functions import RowNumber

from quotas.permissions import Access, Can
from scheduler.jobs.template_rules import Template
from scheduler.jobs.template_speeds import Measured, Ran, adopted, anchored, disagreeing, measured_speeds
from scheduler.models import Attempt, GpuType, JobClass, Placement, TemplateSpeeds
from scheduler.selectors.templates import may_edit_templates

LOOKED_BACK = timedelta(days=90)
MOST_RUNS = 1000  # the newest of each template
SHORTEST = timedelta(minutes=1)  # of shorter runs most is start and end


def stated_newest(keys: Collection[str]) -> dict[str, TemplateSpeeds]:
    """What is stated of each template, by its key."""
    found: dict[str, TemplateSpeeds] = {}
    for row in TemplateSpeeds.objects.filter(template__in=keys).order_by("template", "-number"):
        found.setdefault(row.template, row)
    return found


def speeds_given(template: Template) -> TemplateSpeeds | None:
    """What a job that begins with it and states no speeds is given; nothing where nothing is stated, or by the template's own description."""
    if template.body.get("throughput") is not None:
        return None
    row = TemplateSpeeds.objects.filter(template=template.key).order_by("-number").first()
    return row if row is not None and row.speeds else None


def stated_all(template: Template) -> list[TemplateSpeeds]:
    """All that was ever stated, the newest first."""
    return list(TemplateSpeeds.objects.filter(template=template.key).order_by("-number"))


def may_state_speeds(access: Access, template: Template) -> bool:
    """Who writes a template states its speeds; those of a shipped one concern everybody."""
    if template.quota:
        return may_edit_templates(access, template.quota)
    return access.can_everywhere(Can.MANAGE_JOBS) or access.can_everywhere(Can.EDIT_QUOTA)


@dataclass(frozen=True, slots=True)
class SpeedsOf:
    """One template's row of the matrix. `measured` is scaled to what is stated: on the type `anchor` they are equal."""

    template: Template
    stated: Mapping[str, float]
    row: TemplateSpeeds | None = None
    by_description: bool = False
    measured: Mapping[str, Measured] = field(default_factory=dict)
    anchor: str = ""
    differing: frozenset[str] = frozenset()
    alone: str = ""  # the type of all its runs that count, if it is one
    counted: int = 0  # completed runs that count, compared or not
    adoptable: Mapping[str, float] = field(default_factory=dict)
    adopted_runs: Mapping[str, int] = field(default_factory=dict)
    may_edit: bool = False

    @property
    def number(self) -> int:
        return self.row.number if self.row else 0

    @property
    def compared(self) -> int:
        return sum(one.runs for one in self.measured.values())

    def is_zero(self, gpu_type: str) -> bool:
        return self.stated.get(gpu_type) == 0


def speeds_of(access: Access, templates: Sequence[Template], *, now: datetime) -> list[SpeedsOf]:
    """The matrix, a row for each template. Three queries."""
    keys = [one.key for one in templates]
    stated, runs = stated_newest(keys), _runs(access, keys, now)
    return [_row(access, one, stated.get(one.key), runs.get(one.key, [])) for one in templates]


def _row(access: Access, template: Template, row: TemplateSpeeds | None, runs: Sequence[Ran]) -> SpeedsOf:
    own = template.body.get("throughput")
    own = own if isinstance(own, Mapping) else None
    stated = own if own is not None else row.speeds if row is not None else {}
    measured = measured_speeds(runs)
    beside, anchor = anchored(stated, measured)
    speeds, rests = adopted(stated, measured)
    types = {run.gpu_type for run in runs}
    return SpeedsOf(
        template=template,
        stated=stated,
        row=row,
        by_description=own is not None,
        measured=beside,
        anchor=anchor,
        differing=frozenset(disagreeing(stated, measured)),
        alone=min(types) if len(types) == 1 else "",
        counted=len(runs),
        adoptable=speeds if own is None else {},
        adopted_runs=rests if own is None else {},
        may_edit=may_state_speeds(access, template),
    )


def speed_types() -> list[str]:
    """GPU types of the fleet: the columns of the matrix."""
    return list(GpuType.objects.filter(gpus__removed_at__isnull=True).order_by("name").values_list("name", flat=True).distinct())


def _runs(access: Access, keys: Collection[str], now: datetime) -> dict[str, list[Ran]]:
    """Runs that say how fast a type is: whole ones, of batch jobs, that completed at the first try and kept whole GPUs of one type to the end.

    How long others ran says when somebody or something ended them. Those that the reader may not see are left out.
    """
    completed = Attempt.objects.filter(
        access.visible(Can.SEE, "job__quota__path"),
        Q(exit_code=0) | Q(exit_code__isnull=True),
        outcome="completed",
        number=1,
        resumed_from__isnull=True,
        job__template__in=keys,
        job__job_class=JobClass.BATCH,
        ended_at__gt=now - LOOKED_BACK,
        running_at__lte=F("ended_at") - SHORTEST,
    ).annotate(place=Window(RowNumber(), partition_by=F("job__template"), order_by=F("id").desc()))
    columns = ("id", "job__template", "job__template_version", "job__estimate_seconds", "job__spec__work_s", "running_at", "ended_at")
    rows = list(completed.filter(place__lte=MOST_RUNS).order_by("-id").values_list(*columns))
    stood = _stood([row[0] for row in rows])
    found: dict[str, list[Ran]] = defaultdict(list)
    for key, template, version, estimate, work, since, until in rows:
        place = stood.get(key)
        if place is None or place.since > since or place.until < until:
            continue
        how, units = ("work", float(work)) if work else ("estimate", float(estimate)) if estimate else ("alike", 1.0)
        found[template].append(Ran(place.gpu_type, (version, place.gpus, how), (until - since).total_seconds() / units))
    return found


@dataclass(frozen=True, slots=True)
class _Stood:
    gpu_type: str
    gpus: int
    since: datetime
    until: datetime


def _stood(attempts: Sequence[int]) -> dict[int, _Stood]:
    """Where each of them stood, if on whole GPUs of one type: from when on with all of them, and until when."""
    rows: Any = (
        Placement.objects.filter(attempt_id__among=attempts, gpu__isnull=False, until__isnull=False)
        .order_by()
        .values("attempt_id", "gpu__gpu_type")
        .annotate(milli=Sum("gpu_milli"), least=Min("gpu_milli"), parts=Count("mig"), first=Max("since"), last=Min("until"))
    )
    found: dict[int, _Stood] = {}
    mixed = set()
    for row in rows:
        if row["attempt_id"] in found or row["parts"] or row["least"] < 1000:
            mixed.add(row["attempt_id"])
        found[row["attempt_id"]] = _Stood(row["gpu__gpu_type"], row["milli"] // 1000, row["first"], row["last"])
    return {key: one for key, one in found.items() if key not in mixed}
