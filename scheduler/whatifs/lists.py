"""The lists of what-ifs, of traces and of sweeps, stated once for the page, the file and the API."""

from gpufleet.core.tables import Choice, Column, Moment, Table
from scheduler.models import ReplayState, TraceState
from scheduler.whatifs.traces import FORMATS

WHAT_IFS = Table(
    name="what-ifs",
    noun="what-if",
    columns=(
        Column(
            "title",
            "What-if",
            "public_id",
            cell="""<a href="{% url 'what-if' row.public_id %}">{{ row.title }}</a> <span class="soft nowrap">{{ row.public_id }}</span>""",
        ),
        Column("state", "State", "outcome", cell="{% status row.outcome %}"),
        Column("replays", "Replays", "replays"),
        Column("who", "By", "asked_by", cell="{{ row.asked_by|default:'–' }}"),
        Column("asked", "Started", "asked_at", sort=("asked_at", "id"), most_first=True, cell="{{ row.asked_at|moment }}"),
    ),
    default_sort="-asked",
    search=("public_id",),
    filters=(Choice("state", "State", ReplayState.choices), Moment("from", "From", "asked_at"), Moment("to", "To", "asked_at", until=True)),
    libraries=("shell",),
    empty="No what-ifs yet. One replays the last days or a trace under other quotas, another policy or another fleet.",
    empty_href="/what-if/new/",
    empty_action="New what-if",
    row_key="public_id",
    row_field="public_id",
)

TRACES = Table(
    name="traces",
    noun="trace",
    columns=(
        Column(
            "title",
            "Trace",
            "title",
            sort=("title", "id"),
            cell="""<a href="{% url 'trace' row.public_id %}">{{ row.title }}</a> <span class="soft nowrap">{{ row.public_id }}</span>""",
        ),
        Column("kind", "Format", "kind", cell="{% if row.days %}own past{% else %}{{ row.kind }}{% endif %}"),
        Column("state", "State", "outcome", cell="{% status row.outcome %}"),
        Column("jobs", "Jobs", "jobs", sort=("jobs", "id"), numeric=True, most_first=True, cell="""{{ row.jobs|floatformat:"0g" }}"""),
        Column("gpus", "GPUs", "gpus", sort=("gpus", "id"), numeric=True, most_first=True, cell="""{{ row.gpus|floatformat:"0g" }}"""),
        Column("hours", "Hours", "hours", sort=("hours", "id"), numeric=True, most_first=True, cell="""{{ row.hours|floatformat:"0g" }}"""),
        Column("who", "By", "created_by", cell="{{ row.created_by|default:'–' }}"),
        Column("created", "Added", "created_at", sort=("created_at", "id"), most_first=True, cell="{{ row.created_at|moment }}"),
    ),
    default_sort="-created",
    search=("public_id", "title"),
    filters=(Choice("kind", "Format", tuple(FORMATS.items())), Choice("state", "State", TraceState.choices)),
    libraries=("shell",),
    empty="No traces yet. Add one to replay it under another policy or fleet.",
    empty_href="/what-if/traces/new/",
    empty_action="Add a trace",
    row_key="public_id",
    row_field="public_id",
)

SWEEPS = Table(
    name="sweeps",
    noun="sweep",
    columns=(
        Column(
            "title",
            "Sweep",
            "public_id",
            cell="""<a href="{% url 'sweep' row.public_id %}">{{ row.trace_title }}</a> <span class="soft nowrap">{{ row.public_id }}</span>""",
        ),
        Column("state", "State", "outcome", cell="{% status row.outcome %}"),
        Column("axis", "Axis", "get_axis_display"),
        Column("values", "Values", "values_told"),
        Column("points", "Simulated", "played", numeric=True, cell="{{ row.played }} of {{ row.points }}"),
        Column("who", "By", "asked_by", cell="{{ row.asked_by|default:'–' }}"),
        Column("asked", "Started", "asked_at", sort=("asked_at", "id"), most_first=True, cell="{{ row.asked_at|moment }}"),
    ),
    default_sort="-asked",
    search=("public_id", "trace_title"),
    filters=(Choice("state", "State", ReplayState.choices), Moment("from", "From", "asked_at"), Moment("to", "To", "asked_at", until=True)),
    libraries=("shell",),
    empty="No sweeps yet. One simulates a trace at several arrival rates or fleet sizes, and finds how much the fleet can take.",
    empty_href="/what-if/sweeps/new/",
    empty_action="New sweep",
    row_key="public_id",
    row_field="public_id",
)
