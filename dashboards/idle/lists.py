"""The list of idle episodes, stated once for page, file and API."""

from django.db.models import Q

from dashboards.idle.models import Stage, Waste
from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from scheduler.jobs.lists import within
from scheduler.models import JobClass

EPISODES = Table(
    name="idle",
    noun="idle episode",
    columns=(
        Column(
            "job",
            "Job",
            "episode.job.name",
            sort="job__name",
            cell="dashboards/_idle_job.html",
        ),
        Column("id", "Id", "episode.public_id", on_page=False),
        Column("state", "State", "state", cell="{% status row.state %}"),
        Column("owner", "Owner", "episode.owner.username", sort="owner__username", cell="{{ row.episode.owner|default_if_none:'–' }}"),
        Column("team", "Team", "episode.quota.path", sort="quota__path", cell="{{ row.episode.quota.path|team }}"),
        Column("waste", "Kind", "episode.get_waste_display", sort="waste", on_page=False),
        Column(
            "gpus",
            "Idle GPUs",
            lambda row: row.episode.idle_milli / 1000,
            sort="idle_milli",
            numeric=True,
            most_first=True,
            hint="Idle now, of all that the job holds",
            cell="dashboards/_idle_gpus.html",
        ),
        Column(
            "activity",
            "SM activity",
            lambda row: row.episode.activity_centi / 100,
            sort="activity_centi",
            numeric=True,
            hint="Mean of the idle GPUs over the window",
            cell="{{ row.activity_told }}",
            on_page=False,
        ),
        Column("since", "Idle since", "episode.started_at", sort="started_at", most_first=True, cell="{{ row.episode.started_at|moment }}"),
        Column("ended", "Ended", "episode.ended_at", sort="ended_at", on_page=False),
        Column(
            "wasted",
            "Wasted GPU-hours",
            lambda row: row.hours_milli / 1000,
            sort="wasted_milli_millis",
            numeric=True,
            most_first=True,
            cell="{{ row.hours_told }}",
        ),
        Column(
            "cost",
            "Cost",
            lambda row: None if row.cost_micros is None else row.cost_micros / 1_000_000,
            numeric=True,
            cell="{{ row.cost_micros|money:0 }}",
        ),
        Column("stage", "Step", "episode.get_stage_display", sort="stage"),
        Column("actions", "Actions", "episode.public_id", cell="dashboards/_idle_actions.html", in_file=False),
    ),
    filters=(
        Flag("open", "State", Q(ended_at__isnull=True), "Idle now", "Ended"),
        Choice("stage", "Step", Stage.choices),
        Choice("waste", "Kind", Waste.choices),
        Choice("class", "Class", JobClass.choices, "job__job_class"),
        Text("team", "Team", apply=within),
        Text("owner", "Owner", "owner__username", lookup="iexact"),
        Moment("from", "Idle from", "ended_at", open_ended=True),
        Moment("until", "Until", "started_at", until=True),
    ),
    search=("job__name", "job__public_id", "public_id", "owner__username"),
    default_sort="-wasted",
    empty="No allocation has been idle for long. Episodes appear here when GPUs stay below the threshold of their policy.",
    empty_next=("/idle/policies/", "Policies"),
    rarely=("waste", "class", "until"),
)
# For those who may see no prices.
EPISODES_UNPRICED = EPISODES.without("cost")
