"""The lists of schedules and of their runs, stated once for pages, files and the API."""

from collections.abc import Sequence

from django.db.models import Q

from gpufleet.core.tables import Choice, Column, Moment, Table, Text
from scheduler.jobs.lists import within
from scheduler.models import RunOutcome

STATES = (("active", "Active"), ("paused", "Paused"), ("ended", "Ended"))
_CONDITIONS = {
    "active": Q(paused_at__isnull=True, next_due__isnull=False),
    "paused": Q(paused_at__isnull=False),
    "ended": Q(paused_at__isnull=True, next_due__isnull=True),
}


def of_states(states: Sequence[str]) -> Q:
    found = Q(pk__in=[])
    for state in states:
        found |= _CONDITIONS[state]
    return found


SCHEDULES = Table(
    name="schedules",
    noun="schedule",
    columns=(
        Column(
            "name",
            "Schedule",
            "name",
            sort="name",
            cell="""<a href="{% url 'schedule' row.public_id %}">{{ row.name }}</a> <span class="under">{{ row.public_id }}</span>""",
        ),
        Column("id", "Id", "public_id", on_page=False),
        Column("state", "State", "state", cell="{% status row.state %}"),
        Column("cron", "When", "cron", cell="scheduler/_schedule_when.html"),
        Column("zone", "Time zone", "zone", on_page=False),
        Column("next_due", "Next due", "next_due", sort="next_due", cell="{% if row.paused_at %}–{% else %}{{ row.next_due|moment }}{% endif %}"),
        Column("last_due", "Last due", "last_due", sort="last_due", most_first=True, cell="{{ row.last_due|moment }}"),
        Column("team", "Team", "quota.path", sort="quota__path", cell="{{ row.quota.path|team }}"),
        Column("owner", "Owner", "owner.username", sort="owner__username", cell="{{ row.owner.username|default:'–' }}"),
        Column("overlap", "Overlap", "overlap", on_page=False),
        Column("catch_up", "Catching up", "catch_up", on_page=False),
    ),
    filters=(
        Choice("state", "State", STATES, apply=of_states),
        Text("team", "Team", apply=within),
        Text("owner", "Owner", "owner__username", lookup="iexact"),
    ),
    search=("name", "public_id"),
    default_sort="name",
    empty="No schedules yet. A schedule submits a job every night, every hour or on the first of the month.",
    empty_href="/schedules/new/",
    empty_action="New schedule",
    row_key="public_id",
    row_field="public_id",
)

RUNS = Table(
    name="runs",
    noun="run",
    columns=(
        Column("due", "Due", "due_at", sort="due_at", most_first=True, cell="{{ row.due_at|moment:'absolute' }}"),
        Column("outcome", "What came of it", "outcome", sort="outcome", cell="{% status row.outcome row.get_outcome_display %}"),
        Column("jobs", "Jobs", lambda row: " ".join(row.jobs), cell="scheduler/_run_jobs.html"),
        Column("count", "Number of jobs", "job_count", numeric=True, on_page=False),
        Column("note", "Why", "note", cell="scheduler/_run_note.html"),
        Column("first_due", "First of them due", "first_due", on_page=False),
        Column("times", "Times", "times", numeric=True, on_page=False),
        Column("by", "By hand by", "by", on_page=False),
        Column("at", "Dealt with", "at", sort="at", most_first=True, cell="{{ row.at|moment }}"),
    ),
    filters=(
        Choice("outcome", "What came of it", RunOutcome.choices),
        Moment("from", "Due from", "due_at"),
        Moment("to", "Due to", "due_at", until=True),
    ),
    default_sort="-due",
    empty="It has not been due yet. Run now submits it at once.",
    row_key="pk",
)
