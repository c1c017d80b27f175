"""The lists of jobs, of the queue and of plans, stated once for pages, files and the API."""

from collections.abc import Sequence

from django.db.models import Q

from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text, Words
from quotas.permissions import at_or_below
from scheduler.jobs.filters import BLOCKERS, blocked_by, charged_to, labelled, made_from, of_array, of_type
from scheduler.models import JobClass, JobState
from scheduler.selectors.jobs import PHASES, WAITING, phase_condition

PHASE_CHOICES = (("waiting", "Waiting"), ("holding", "On GPUs"), ("ended", "Ended"))
assert tuple(key for key, _ in PHASE_CHOICES) == tuple(PHASES)


def within(path: str) -> Q:
    """A quota and all below it, by path; by a name alone, each quota of that name."""
    path = path.strip("/")
    found = at_or_below(path, "quota__path")
    return found if "/" in path else found | Q(quota__path__endswith=f"/{path}") | Q(quota__path__contains=f"/{path}/")


def of_states(states: Sequence[str]) -> Q:
    return Q(state__in=states)


JOBS = Table(
    name="jobs",
    noun="job",
    columns=(
        Column(
            "name",
            "Job",
            "job.name",
            sort="name",
            cell="""<a href="{% url 'job' row.job.public_id %}">{{ row.job.name }}</a> <span class="under">{{ row.job.public_id }}</span>""",
        ),
        Column("id", "Id", "job.public_id", on_page=False),
        Column(
            "state",
            "State",
            "job.state",
            sort=("state", "state_since"),
            cell="""{% status row.state %} <span class="under">{{ row.job.state_since|moment }}</span>""",
        ),
        Column("now", "Status", lambda row: row.line.text, cell="scheduler/_job_line.html"),
        Column(
            "gpus",
            "GPUs",
            lambda row: row.gpus_milli / 1000,
            sort="gpus_milli",
            numeric=True,
            most_first=True,
            hint="That a running job holds; sorted by the fewest that it needs",
            cell="""{% if row.gpus_milli == 1000 %}<span class="one">1</span>{% else %}{{ row.gpus_milli|gpus }}{% endif %}""",
        ),
        Column(
            "class",
            "Class",
            "job.job_class",
            sort=("job_class", "priority"),
            hint="With the priority inside its team",
            cell="""<span class="nowrap">{{ row.job.get_job_class_display }} <span class="soft">{{ row.job.priority }}</span></span>""",
        ),
        Column("priority", "Priority", "job.priority", sort="priority", optional=True),
        Column("team", "Team", "job.quota.path", sort="quota__path", cell="""{{ row.job.quota.path|team }}"""),
        Column("owner", "Owner", "job.owner.username", sort="owner__username", cell="{{ row.job.owner.username|default:'–' }}"),
        Column("since", "In this state", "job.state_since", sort="state_since", most_first=True, on_page=False),
        Column("submitted", "Submitted", "job.submitted_at", sort="submitted_at", most_first=True, cell="{{ row.job.submitted_at|moment }}"),
        Column("evictions", "Evictions", "job.evictions", optional=True),
        Column("cost_centre", "Cost centre", "job.cost_centre", optional=True),
        Column("ended", "Ended", "job.ended_at", on_page=False),
    ),
    filters=(
        Choice("phase", "Jobs", PHASE_CHOICES, apply=phase_condition),
        Choice("state", "State", JobState.choices, apply=of_states),
        Choice("class", "Class", JobClass.choices, "job_class"),
        Choice("blocker", "Waits because", tuple(BLOCKERS.items()), apply=blocked_by),
        Text("team", "Team", apply=within, suggests=True),
        Text("owner", "Owner", "owner__username", lookup="iexact", suggests=True),
        Text("type", "GPU type", apply=of_type, suggests=True),
        Words("label", "Labels", labelled, hint="key or key=value", suggests=True),
        Text("cost_centre", "Cost centre", apply=charged_to, suggests=True),
        Text("template", "Template", apply=made_from, hint="org/nlp:serve or …@3", suggests=True),
        Text("array", "Array", apply=of_array, suggests=True),
        Text("schedule", "Schedule", "schedule", lookup="exact"),
        Flag("held", "Hold", Q(held_at__isnull=False), "Held back", "Not held"),
        Moment("from", "Submitted from", "submitted_at"),
        Moment("to", "Submitted to", "submitted_at", until=True),
    ),
    search=("name", "public_id"),
    default_sort="-submitted",
    empty="No job has been submitted yet. Send one with gpufleet submit, or with POST /api/v1/jobs.",
    empty_href="/jobs/new/",
    empty_action="Submit a job",
    row_key="job.public_id",
    row_field="public_id",
    styled=True,
    choose="bulk",
    suggest_url="jobs_suggest",
    example="team:vision state:waiting gpu:h100",
    rarely=("cost_centre", "template", "array", "schedule", "held", "from", "to"),
)

# Its order is the scheduler's and not of the database; the columns are those of its file.
QUEUE = Table(
    name="queue",
    noun="job",
    columns=(
        Column("turn", "Turn", "turn.number", sort="pk"),
        Column("turn_of_team", "Turn of its team", "turn.of_leaf", on_page=False),
        Column("id", "Id", "job.public_id", on_page=False),
        Column("name", "Job", "job.name", on_page=False),
        Column("state", "State", "job.state", on_page=False),
        Column("why", "Why there", on_page=False),
        Column("waits_for", "Waits for", "told_wait", on_page=False),
        Column("predicted_start", "Predicted start", "foreseen.at", on_page=False),
        Column("gpus", "GPUs", lambda row: row.job.gpus_milli / 1000, on_page=False),
        Column("class", "Class", "job.job_class", on_page=False),
        Column("priority", "Priority", "job.priority", on_page=False),
        Column("team", "Team", "job.quota.path", on_page=False),
        Column("owner", "Owner", "job.owner.username", on_page=False),
        Column("submitted", "Submitted", "job.submitted_at", on_page=False),
    ),
    filters=tuple(
        Choice("state", "State", tuple((str(state), str(state.label)) for state in WAITING), apply=of_states) if item.key == "state" else item
        for item in JOBS.filters
        if item.key not in ("phase", "held")
    ),
    search=JOBS.search,
    default_sort="turn",
    suggest_url=JOBS.suggest_url,
    example="team:vision blocker:limit gpu:h100",
    rarely=JOBS.rarely,
)

PLANS = Table(
    name="plans",
    noun="plan",
    columns=(
        Column(
            "at",
            "When",
            "plan.at",
            sort="at",
            most_first=True,
            cell="""<a href="{% url 'plan' row.plan.pk %}">{{ row.plan.at|moment:'absolute' }}</a>""",
        ),
        Column("id", "Number", "plan.pk", on_page=False),
        Column("decided", "Decisions", "plan.decided", sort="decided", numeric=True, most_first=True),
        Column(
            "dropped",
            "Not done",
            "plan.refused",
            sort="refused",
            numeric=True,
            most_first=True,
            hint="Rows had changed, or others leave first",
        ),
        Column("waiting", "Waiting", "plan.waiting", sort="waiting", numeric=True, most_first=True),
        Column(
            "outcome",
            "Outcome",
            "outcome",
            cell="{% status row.outcome row.word %}{% if row.plan.fault %} <span class=soft>{{ row.plan.fault|truncatechars:120 }}</span>{% endif %}",
        ),
        Column("took", "Took", "total_ms", numeric=True, cell="{{ row.total_ms|floatformat:0 }}\N{NO-BREAK SPACE}ms"),
        Column("phases", "Mostly", "phases_text", cell="""<span class="soft nowrap">{{ row.phases_text }}</span>"""),
        Column("epoch", "Epoch", "plan.epoch", sort="epoch", numeric=True, most_first=True),
        Column("next", "Next wake", "plan.next_wake_at", cell="{{ row.plan.next_wake_at|moment }}"),
    ),
    filters=(
        Flag("decided", "Decisions", Q(decided__gt=0), "Some", "None"),
        Flag("fault", "Faults", ~Q(fault=""), "Nothing written", "Written"),
        Moment("from", "From", "at"),
        Moment("to", "To", "at", until=True),
    ),
    default_sort="-at",
    empty="No plan has been made yet. The first comes with the first job.",
    empty_next=("/jobs/", "Jobs"),
    row_key="plan.pk",
)
