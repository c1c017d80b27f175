"""The list of reservations, stated once for pages, files and the API."""

from gpufleet.core.tables import Choice, Column, Moment, Table, Text
from quotas.models import ReservationState
from scheduler.engine.model.values import CLASSES
from scheduler.jobs.lists import within

RESERVATIONS = Table(
    name="reservations",
    noun="reservation",
    columns=(
        Column(
            "name",
            "Reservation",
            "name",
            sort="name",
            cell="""<a href="{% url 'reservation' row.public_id %}">{{ row.name }}</a> <span class="under">{{ row.public_id }}</span>""",
        ),
        Column("id", "Id", "public_id", on_page=False),
        Column("state", "State", "state", sort="state", cell="{% status row.state row.get_state_display %}"),
        Column("owner", "For", "owner_label", sort="quota__path", cell="{{ row.owner_label|team }}"),
        Column("gpu_type", "GPU type", "gpu_type", sort="gpu_type", cell="<span class=nowrap>{{ row.gpu_type }}</span>"),
        Column("gpus", "GPUs", lambda row: row.gpus_milli / 1000, sort="gpus_milli", numeric=True, cell="{{ row.gpus_milli|gpus }}"),
        Column("starts", "First start", "starts_at", sort="starts_at", most_first=True, cell="{{ row.starts_at|moment:'minute' }}"),
        Column("ends", "First end", "ends_at", cell="{% if row.ends_at %}{{ row.ends_at|moment:'minute' }}{% else %}Standing{% endif %}"),
        Column("rule", "Repeats", "rule", cell="scheduler/_repeats.html"),
        Column("zone", "Time zone", "zone", on_page=False),
        Column("by", "Requested by", "requested_name", sort="requested_name", cell="{{ row.requested_name }}", optional=True),
        Column("at", "Requested", "requested_at", sort="requested_at", most_first=True, cell="{{ row.requested_at|moment }}"),
    ),
    filters=(
        Choice("state", "State", ReservationState.choices),
        Text("team", "Team", apply=within),
        Choice("class", "Floor of class", tuple((name, name.title()) for name in reversed(CLASSES)), "job_class"),
        Text("type", "GPU type", "gpu_type", lookup="iexact"),
        Moment("from", "Starts from", "starts_at"),
        Moment("to", "Starts before", "starts_at", until=True),
    ),
    search=("name", "public_id", "purpose"),
    default_sort="-at",
    libraries=("shell",),
    empty="No reservations yet. A reservation keeps GPUs for a team or a class at stated times.",
    empty_href="/reservations/new/",
    empty_action="New reservation",
    row_key="public_id",
    row_field="public_id",
)
