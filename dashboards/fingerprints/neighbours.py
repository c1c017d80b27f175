"""Beside which templates one goes well, for those who may see the templates and the runs."""

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from django.db.models import F, Window
from django.db.models.functions import RowNumber

from dashboards.fingerprints.contention import Beside, Resource, Sums, Usage, beside, usage_of
from dashboards.fingerprints.learning import LEAST_MINUTES
from dashboards.fingerprints.models import RunLearned
from dashboards.fingerprints.selectors import LOOKED_BACK, percent_of
from quotas.permissions import Access, Can
from scheduler.jobs.template_rules import Template
from scheduler.selectors.templates import templates_visible

MOST_RUNS = 20  # the newest of each template
# Slower by less than so much it goes well beside another, by less than so much it may.
WELL, FAIR = 1.1, 1.3
SCARCE = {Resource.SM: "SM", Resource.DRAM: "DRAM bandwidth", Resource.STORAGE: "Storage", Resource.NONE: "None"}


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A template beside that of the page; `usage` is its own."""

    template: Template
    usage: Usage
    found: Beside

    @property
    def verdict(self) -> str:
        """`well`, `fair` or `poorly` on one GPU by the slower of the two; `no` where their memory does not fit."""
        if self.found.fits is False:
            return "no"
        worst = max(self.found.gpu, self.found.other_gpu)
        return "well" if worst < WELL else "fair" if worst < FAIR else "poorly"

    @property
    def scarce(self) -> str:
        return SCARCE[self.found.scarce]

    @property
    def both_store(self) -> str:
        return percent_of(self.found.both_store)

    @property
    def slower(self) -> str:
        return slower(self.found.gpu)

    @property
    def other_slower(self) -> str:
        return slower(self.found.other_gpu)

    @property
    def node_slower(self) -> str:
        return slower(self.found.node)


def slower(factor: float) -> str:
    return percent_of(factor - 1)


def usages_of(access: Access, keys: Collection[str], *, now: datetime) -> dict[str, Usage]:
    """By template, of those with runs enough that the reader may see. One query."""
    rows = (
        RunLearned.objects.filter(access.visible(Can.SEE, "attempt__job__quota__path"), template__in=keys, since__gt=now - LOOKED_BACK)
        .filter(is_weak=False, read__gte=LEAST_MINUTES)
        .annotate(place=Window(RowNumber(), partition_by=F("template"), order_by=[F("since").desc(), F("pk").desc()]))
        .filter(place__lte=MOST_RUNS)
    )
    runs: dict[str, list[Sums]] = defaultdict(list)
    for key, sums in rows.values_list("template", "sums"):
        runs[key].append(sums)
    return {key: usage for key, sums in runs.items() if (usage := usage_of(sums)) is not None}


def neighbours_of(access: Access, template: Template, *, now: datetime) -> list[Neighbour]:
    """All templates that the reader sees and of which enough is known, itself among them; those beside which it is the least slow come first."""
    templates = {one.key: one for one in templates_visible(access)}
    usages = usages_of(access, [*templates, template.key], now=now)
    own = usages.get(template.key)
    if own is None:
        return []
    found = [Neighbour(templates[key], usage, beside(own, usage)) for key, usage in usages.items() if key in templates]
    order = {"well": 0, "fair": 1, "poorly": 2, "no": 3}
    return sorted(found, key=lambda one: (order[one.verdict], one.found.gpu, one.template.title, one.template.ref))
