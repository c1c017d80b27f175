"""The list of what-ifs, stated once for the page, the file and the API."""

from gpufleet.core.tables import Choice, Column, Moment, Table
from scheduler.models import ReplayState

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
        Column("days", "Days", "days", numeric=True),
        Column("who", "By", "asked_by", cell="{{ row.asked_by|default:'–' }}"),
        Column("asked", "Started", "asked_at", sort=("asked_at", "id"), most_first=True, cell="{{ row.asked_at|moment }}"),
    ),
    default_sort="-asked",
    search=("public_id",),
    filters=(Choice("state", "State", ReplayState.choices), Moment("from", "From", "asked_at"), Moment("to", "To", "asked_at", until=True)),
    libraries=("shell",),
    empty="No what-ifs yet. One replays the last days under other quotas, another policy or another fleet.",
    empty_href="/what-if/new/",
    empty_action="New what-if",
    row_key="public_id",
    row_field="public_id",
)
