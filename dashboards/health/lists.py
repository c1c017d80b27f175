"""The list of incidents, stated once for page, file and API."""

from django.db.models import Q

from dashboards.health.models import HealthRule
from gpufleet.core.tables import Choice, Column, Flag, Moment, Table, Text
from scheduler.hardware.lists import cluster_choices, pool_choices, type_choices


def rule_choices() -> list[tuple[str, str]]:
    return list(HealthRule.objects.order_by("name").values_list("public_id", "name"))


INCIDENTS = Table(
    name="incidents",
    noun="incident",
    columns=(
        Column(
            "node",
            "Node",
            "incident.node.name",
            sort="node__name",
            cell="""<a class="nowrap" href="{% url 'incident' row.incident.public_id %}">{{ row.incident.node.name }}</a>""",
        ),
        Column("id", "Id", "incident.public_id", on_page=False),
        Column("state", "State", "state", cell="{% status row.state %}"),
        Column("title", "What happened", "incident.title"),
        Column("opened", "Since", "incident.opened_at", sort="opened_at", most_first=True, cell="{{ row.incident.opened_at|moment }}"),
        Column("took", "Took", "took", cell="{{ row.took|duration }}"),
        Column("jobs", "Jobs hurt", "incident.jobs", sort="jobs", numeric=True, most_first=True),
        Column(
            "hours",
            "GPU-hours lost",
            lambda row: row.hours_milli / 1000,
            sort="out_milli_millis",
            numeric=True,
            most_first=True,
            hint="Out of service, and work that was not saved",
            cell="{{ row.hours_told }}",
        ),
        Column(
            "cost",
            "Cost",
            lambda row: None if row.cost_micros is None else row.cost_micros / 1_000_000,
            numeric=True,
            cell="{{ row.cost_micros|money:0 }}",
        ),
        Column("cluster", "Cluster", "incident.node.cluster.name", sort="node__cluster__name"),
        Column("pool", "Pool", "incident.node.pool.name", cell="{{ row.incident.node.pool.name|default:'–' }}"),
    ),
    filters=(
        Flag("open", "State", Q(closed_at__isnull=True), "Open", "Closed"),
        Choice("cluster", "Cluster", cluster_choices, "node__cluster__name"),
        Choice("pool", "Pool", pool_choices, "node__pool__name"),
        Choice("type", "GPU type", type_choices, "node__gpu_type"),
        Choice("rule", "Rule", rule_choices, "rule__public_id"),
        Text("node", "Node", "node__name"),
        Moment("from", "From", "opened_at"),
        Moment("until", "Until", "opened_at", until=True),
    ),
    search=("node__name", "title", "public_id"),
    default_sort="-opened",
    empty="No incident yet. One opens when a node is not healthy, by rule or by hand.",
    empty_next=("/incidents/rules/", "Rules"),
    rarely=("type", "rule", "until"),
)
# For those who may see no prices.
INCIDENTS_UNPRICED = INCIDENTS.without("cost")
