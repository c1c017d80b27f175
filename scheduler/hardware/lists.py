"""The inventory's lists, stated once for pages, files and the API: clusters, nodes, GPUs."""

from collections.abc import Sequence

from django.db.models import Q

from gpufleet.core.tables import Choice, Column, Flag, Table, Text
from scheduler.models import Cluster, GpuMode, GpuType, Health, Pool
from scheduler.selectors.gpus import gpu_health_counts, gpu_is_taken
from scheduler.selectors.nodes import health_counts, node_is_taken, node_rows

NO_HARDWARE = "No hardware yet. Import it from a file, or discover the GPUs of this machine."

_PLACE = """<a href="{% url 'cluster' row.CLUSTER.name %}">{{ row.CLUSTER.name }}</a>"""


def cluster_choices() -> Sequence[tuple[str, str]]:
    return [(name, name) for name in Cluster.objects.filter(removed_at__isnull=True).order_by("name").values_list("name", flat=True)]


def pool_choices() -> Sequence[tuple[str, str]]:
    return [(name, name) for name in Pool.objects.filter(cluster__removed_at__isnull=True).order_by("name").values_list("name", flat=True).distinct()]


def type_choices() -> Sequence[tuple[str, str]]:
    return [(name, name) for name in GpuType.objects.order_by("name").values_list("name", flat=True)]


CLUSTERS = Table(
    name="clusters",
    noun="cluster",
    styled=True,
    row_key="public_id",
    columns=(
        Column("name", "Cluster", sort="name", cell="""<a href="{% url 'cluster' row.name %}">{{ row.name }}</a>"""),
        Column("title", "Title", cell="{{ row.title|default:'–' }}"),
        Column("nodes", "Nodes", "node_count", sort="node_count", numeric=True, most_first=True, cell="{{ row.node_count|intcomma }}"),
        Column(
            "out",
            "Out of service",
            "nodes_out",
            sort="nodes_out",
            numeric=True,
            most_first=True,
            hint="Nodes that take no new work: draining, down, or away for repair",
            cell="""{% if row.nodes_out %}{{ row.nodes_out }}{% else %}<span class="nothing" title="None">–</span>{% endif %}""",
        ),
        Column("gpus", "GPUs", "gpu_count", sort="gpu_count", numeric=True, most_first=True, cell="{{ row.gpu_count|intcomma }}"),
        Column(
            "allocated",
            "Allocated GPUs",
            lambda row: row.taken_milli / 1000,
            sort="taken_milli",
            numeric=True,
            most_first=True,
            cell="{{ row.taken_milli|gpus_tenths }}",
        ),
        Column("share", "Allocated", "taken_milli", in_file=False, cell="""{% bar row.taken_milli row.capacity_milli "Allocated" "held" %}"""),
        Column("backend", "Backend", sort="backend"),
    ),
    default_sort="name",
    search=("name", "title"),
    libraries=("shell", "humanize"),
    empty=NO_HARDWARE,
    empty_href="/inventory/import/",
    empty_action="Import hardware",
)

NODES = Table(
    name="nodes",
    noun="node",
    styled=True,
    choose="bulk",
    row_key="node.public_id",
    columns=(
        Column(
            "name", "Node", "node.name", sort="name", cell="""<a class="nowrap" href="{% url 'node' row.node.public_id %}">{{ row.node.name }}</a>"""
        ),
        Column("id", "Id", "node.public_id", optional=True),
        Column(
            "health",
            "Health",
            "node.health",
            sort=("health", "name"),
            cell="""{% status row.node.health %}{% if row.node.spare %} {% status "spare" %}{% endif %}""",
        ),
        Column("since", "Since", "node.health_since", sort="health_since", most_first=True, cell="{{ row.node.health_since|moment }}"),
        Column("reason", "Reason", "node.health_reason", optional=True),
        Column("spare", "Spare", "node.spare", on_page=False),
        Column("cluster", "Cluster", "node.cluster.name", sort=("cluster__name", "name"), cell=_PLACE.replace("CLUSTER", "node.cluster")),
        Column("pool", "Pool", "node.pool.name", sort=("pool__name", "name"), cell="{{ row.node.pool.name|default:'–' }}"),
        Column(
            "place",
            "Place",
            "node.domain.path",
            sort=("domain__path", "name"),
            cell="<span class=nowrap>{{ row.node.domain.path|default:'–' }}</span>",
        ),
        Column(
            "type",
            "GPU type",
            "node.gpu_type_id",
            sort=("gpu_type", "name"),
            cell="<span class=nowrap>{{ row.node.gpu_type_id|default_if_none:'–' }}</span>",
        ),
        Column("gpus", "GPUs", "gpus", sort="gpu_count", numeric=True, most_first=True),
        Column(
            "sick",
            "GPU health",
            "sick_gpus",
            hint="Each GPU of the node by its own health; files have how many are not healthy",
            cell="""{% include "scheduler/_gpu_strip.html" %}""",
        ),
        Column(
            "allocated",
            "Allocated",
            lambda row: row.taken_milli / 1000,
            sort="taken_milli",
            numeric=True,
            most_first=True,
            cell="{{ row.taken_milli|gpus_tenths }}",
        ),
        Column("cpus", "CPUs", "node.cpus", sort="cpus", optional=True),
        Column("memory", "Host memory, MiB", "node.host_memory_mib", optional=True),
        Column("heartbeat", "Heartbeat", "node.heartbeat_at", sort="heartbeat_at", most_first=True, cell="{{ row.node.heartbeat_at|moment }}"),
    ),
    filters=(
        Choice("health", "Health", Health.choices, counts=health_counts),
        Choice("cluster", "Cluster", cluster_choices, "cluster__name"),
        Choice("pool", "Pool", pool_choices, "pool__name"),
        Choice("type", "GPU type", type_choices, "gpu_type"),
        Flag("busy", "Use", node_is_taken(), "Something runs", "Nothing runs"),
        Flag("spare", "Spare", Q(spare=True), "Spares", "No spares"),
        Text("place", "Place", "domain__path"),
    ),
    search=("name", "public_id", "domain__path", "health_reason", "island"),
    default_sort="name",
    empty=NO_HARDWARE,
    empty_href="/inventory/import/",
    empty_action="Import hardware",
    presented=node_rows,
)

GPUS = Table(
    name="gpus",
    noun="GPU",
    styled=True,
    row_key="gpu.public_id",
    columns=(
        Column(
            "index",
            "GPU",
            "gpu.index",
            sort=("index", "node__name"),
            cell="""<a class="nowrap" href="{% url 'gpu' row.gpu.public_id %}">GPU {{ row.gpu.index }}</a>""",
        ),
        Column(
            "node",
            "Node",
            "gpu.node.name",
            sort=("node__name", "index"),
            cell="""<a class="nowrap" href="{% url 'node' row.gpu.node.public_id %}">{{ row.gpu.node.name }}</a>""",
        ),
        Column("id", "Id", "gpu.public_id", optional=True),
        Column("uuid", "UUID", "gpu.uuid", optional=True),
        Column(
            "type",
            "GPU type",
            "gpu.gpu_type_id",
            sort=("gpu_type", "node__name", "index"),
            cell="<span class=nowrap>{{ row.gpu.gpu_type_id }}</span>",
        ),
        Column("health", "Health", "gpu.health", sort=("health", "node__name", "index"), cell="{% status row.gpu.health %}"),
        Column("node_health", "Node's health", "gpu.node.health", on_page=False),
        Column("since", "Since", "gpu.health_since", sort="health_since", most_first=True, cell="{{ row.gpu.health_since|moment }}"),
        Column("mode", "Mode", "gpu.mode", sort=("mode", "node__name", "index"), cell="{% status row.gpu.mode %}"),
        Column(
            "memory",
            "Memory",
            "gpu.memory_mib",
            sort="memory_mib",
            numeric=True,
            most_first=True,
            cell="{{ row.gpu.memory_mib|memory }}",
            in_file=False,
        ),
        Column("memory_mib", "Memory, MiB", "gpu.memory_mib", on_page=False),
        Column(
            "cluster",
            "Cluster",
            "gpu.node.cluster.name",
            sort=("node__cluster__name", "node__name", "index"),
            cell=_PLACE.replace("CLUSTER", "gpu.node.cluster"),
        ),
        Column("allocated", "Use", lambda row: row.taken_milli / 1000, cell="{% status row.use %}"),
        Column("held_by", "Held by", "held_by", cell="scheduler/_held_by.html"),
    ),
    filters=(
        Choice("health", "Health", Health.choices, counts=gpu_health_counts),
        Choice("type", "GPU type", type_choices, "gpu_type"),
        Choice("mode", "Mode", GpuMode.choices),
        Choice("cluster", "Cluster", cluster_choices, "node__cluster__name"),
        Choice("pool", "Pool", pool_choices, "node__pool__name"),
        Flag("taken", "Use", gpu_is_taken(), "Allocated", "Free"),
    ),
    search=("node__name", "public_id", "uuid"),
    default_sort="node",
    empty=NO_HARDWARE,
    empty_href="/inventory/import/",
    empty_action="Import hardware",
)
