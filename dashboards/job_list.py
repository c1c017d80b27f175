"""The list of jobs as people see it: what each does, with its utilization, run time and cost."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from dashboards.readings import jobs_utilization
from gpufleet.core.tables import Column
from gpufleet.core.times import now
from quotas.permissions import Access, Can
from quotas.selectors.rates import price_book
from quotas.selectors.spending import attempts_cost
from scheduler.jobs.lists import JOBS as PLAIN
from scheduler.models import Job
from scheduler.presenters.jobs import JobLine, job_lines
from scheduler.selectors.jobs import job_rows


@dataclass(frozen=True, slots=True)
class JobNow:
    """A row of the list with what the job uses."""

    row: JobLine
    utilization: int | None
    run_seconds: int | None
    cost: int | None  # micro-units
    course: Sequence[float | None] = ()  # of its utilization in percent, where a page shows it

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def jobs_now(access: Access, jobs: Sequence[Job]) -> list[JobNow]:
    """Jobs with what lists show beside them, in a fixed number of queries."""
    moment = now()
    found = job_rows(access, list(jobs), with_gpus=True)
    rows = job_lines(found, moment)
    used = jobs_utilization({row.job.pk: row.gpus for row in found}, now=moment)
    priced = [row.attempt.pk for row in rows if row.attempt and access.can(Can.SEE_COSTS, row.job.quota.path)]
    costs = attempts_cost(priced, rates=price_book(), now=moment) if priced else {}
    return [JobNow(row, used.get(row.job.pk), row.run_seconds(moment), costs.get(row.attempt.pk) if row.attempt else None) for row in rows]


_NOTHING = """<span class="nothing" title="No reading">–</span>"""
_USED = (
    Column(
        "sm",
        "Utilization",
        "utilization",
        numeric=True,
        cell=f"{{% if row.utilization is None %}}{_NOTHING}{{% else %}}{{{{ row.utilization }}}}%{{% endif %}}",
    ),
    Column(
        "ran",
        "Run time",
        "run_seconds",
        numeric=True,
        cell="{% if row.run_seconds is None %}" + _NOTHING + "{% else %}{{ row.run_seconds|duration }}{% endif %}",
        hint="Of its last run",
    ),
    Column(
        "cost",
        "Cost",
        lambda row: None if row.cost is None else row.cost / 1_000_000,
        numeric=True,
        cell="{% if row.cost is None %}" + _NOTHING + "{% else %}{{ row.cost|money:0 }}{% endif %}",
        hint="Of its last run",
    ),
)
_CHANGED: dict[str, dict[str, Any]] = {"now": {"label": "Status"}, "owner": {"optional": True}, "class": {"optional": True}}


def _columns() -> tuple[Column, ...]:
    columns: list[Column] = []
    for column in PLAIN.columns:
        columns.append(replace(column, **_CHANGED.get(column.key, {})))
        if column.key == "gpus":
            columns += _USED
    return tuple(columns)


JOBS = replace(PLAIN, columns=_columns())
# For those who may see no prices.
JOBS_UNPRICED = JOBS.without("cost")
