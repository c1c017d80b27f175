"""The lists of alerts and of what happened, stated once for pages, files and the API."""

from collections.abc import Sequence

from django.db.models import Q

from dashboards.alerts.figures import FIGURES
from dashboards.alerts.models import Severity
from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from scheduler.notify.happenings import LABELS, FleetEvent

KINDS = (
    ("alert", "Alerts"),
    ("incident", "Incidents"),
    ("straggler", "Stragglers"),
    ("idle", "Idle GPUs"),
    ("defrag", "Defragmentations"),
    ("quota", "Quota changes"),
    ("reserve", "Reservations"),
    ("budget", "Budgets"),
)


def of_kinds(kinds: Sequence[str]) -> Q:
    found = Q(pk__in=[])
    for kind in kinds:
        found |= Q(kind__startswith=f"{kind}.")
    return found


ALERTS = Table(
    name="alerts",
    noun="alert",
    columns=(
        Column(
            "rule",
            "Alert",
            "alert.rule.name",
            sort="rule__name",
            cell="""<a href="{% url 'alert' row.alert.public_id %}">{{ row.alert.rule.name }}</a>""",
        ),
        Column("id", "Id", "alert.public_id", on_page=False),
        Column(
            "subject",
            "Of",
            "alert.subject",
            sort="subject",
            cell="{{ row.alert.subject|default:'the fleet' }}{% if row.what %} <span class=\"under\">{{ row.what }}</span>{% endif %}",
        ),
        Column("state", "State", "state", cell="{% status row.state %}"),
        Column("severity", "Severity", "alert.rule.severity", cell="{% status row.alert.rule.severity %}"),
        Column("value", "Now", "value_told"),
        Column("limit", "Limit", "limit_told"),
        Column("since", "Since", "alert.since", sort="since", most_first=True, cell="{{ row.alert.since|moment }}"),
        Column("resolved", "Over", "alert.resolved_at", sort="resolved_at", most_first=True, cell="{{ row.alert.resolved_at|moment }}"),
        Column("by", "Acknowledged by", "alert.acknowledged_by", cell="{{ row.alert.acknowledged_by|default:'–' }}"),
    ),
    filters=(
        Flag("open", "State", Q(resolved_at__isnull=True), "Open", "Over"),
        Choice("severity", "Severity", Severity.choices, "rule__severity"),
        Choice("figure", "Figure", [(key, figure.label) for key, figure in FIGURES.items()], "rule__figure"),
        Moment("from", "From", "since"),
    ),
    search=("rule__name", "subject", "public_id"),
    default_sort="-since",
    empty="No alerts have fired. An alert fires when a figure stays beyond the limit of its rule.",
    empty_next=("/activity/alerts/rules/", "Rules"),
)
ACTIVITY = Table(
    name="activity",
    noun="entry",
    plural="entries",
    columns=(
        Column("at", "When", "at", sort="at", most_first=True, cell="{{ row.at|moment }}"),
        Column("what", "What happened", "title", cell="dashboards/_activity_title.html"),
        Column("text", "Details", "text"),
        Column("kind", "Kind", lambda row: LABELS.get(row.kind, row.kind), cell="<code>{{ row.kind }}</code>"),
        Column("team", "Team", "path", cell="{% if row.path %}{{ row.path|team }}{% else %}–{% endif %}"),
        Column("by", "By", "by"),
    ),
    filters=(
        Choice("kind", "Kind", KINDS, apply=of_kinds),
        Choice("event", "Event", [(kind.value, LABELS[kind]) for kind in FleetEvent], "kind"),
        Text("team", "Team", "path"),
        Moment("from", "From", "at"),
        Moment("until", "Until", "at", until=True),
    ),
    search=("title", "text"),
    default_sort="-at",
    empty="No activity yet. Alerts, incidents, idle GPUs and decisions are listed here.",
    empty_next=("/activity/alerts/rules/", "Alert rules"),
    rarely=("event", "until"),
)
