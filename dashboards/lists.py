"""The fleet map as a list: every cell is a row, with the same words as the cell speaks."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from django.db.models import QuerySet

from dashboards.selectors import OUTSIDE, SEVERAL, SEVERITY, Owner, frames_newest, holds_open, owners_named
from dashboards.weak import DRIVER_UTILIZATION, signal_of
from gpufleet.core.tables import Choice, Column, Table
from gpufleet.core.times import now
from quotas.permissions import Access
from scheduler.hardware.lists import NO_HARDWARE
from scheduler.models import Gpu, GpuType, Health

FREE, ANOTHER_TEAM, SEVERAL_TEAMS, NOT_OURS = "free", "another team", "several teams", "outside gpufleet"


@dataclass(frozen=True, slots=True)
class Cell:
    """One GPU as the map shows it. `sm` is None without a fresh reading."""

    gpu: Gpu
    place: str
    health: str
    owner: str
    held_milli: int
    since: datetime | None
    sm: int | None
    signal: str  # what `sm` is

    @property
    def is_weak(self) -> bool:
        return self.sm is not None and self.signal == DRIVER_UTILIZATION


def cells_listed() -> QuerySet[Gpu]:
    rows = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True)
    return rows.select_related("node", "node__cluster", "node__domain")


def owner_word(owner: int | None, named: dict[int, Owner | None]) -> str:
    """Whom to name for a GPU: the team, as far as this viewer may know it."""
    if owner is None:
        return FREE
    if owner == SEVERAL:
        return SEVERAL_TEAMS
    if owner == OUTSIDE:
        return NOT_OURS
    team = named.get(owner)
    return team.name if team else ANOTHER_TEAM


def cells(access: Access, gpus: list[Gpu]) -> list[Cell]:
    """What the map says of these GPUs, in four queries."""
    moment = now()
    holds = holds_open([gpu.pk for gpu in gpus])
    named = owners_named(access)
    frames = frames_newest()
    weak = {gpu for frame in frames for gpu in frame.weak.tolist()}
    readings: dict[int, int] = {}
    for frame in frames:
        if frame.is_fresh(moment):
            readings.update(zip(frame.ids.tolist(), frame.sm.tolist(), strict=True))
    found = []
    for gpu in gpus:
        node = gpu.node
        percent = readings.get(gpu.pk, 255)
        since = holds.since.get(gpu.pk)
        found.append(
            Cell(
                gpu=gpu,
                place=" / ".join([node.cluster.name, *(node.domain.path.split("/") if node.domain else ())]),
                health=max(gpu.health, node.health, key=lambda health: SEVERITY.index(Health(health))),
                owner=owner_word(holds.owner.get(gpu.pk), named),
                held_milli=holds.milli.get(gpu.pk, 0),
                since=datetime.fromtimestamp(since / 1000, UTC) if since else None,
                sm=percent if percent <= 100 else None,
                signal=signal_of([gpu.pk], weak),
            )
        )
    return found


def _types() -> Sequence[tuple[str, str]]:
    return [(name, name) for name in GpuType.objects.values_list("name", flat=True)]


NODE_CELL = """<a class="nowrap" href="{% url 'node' row.gpu.node.public_id %}">{{ row.gpu.node.name }}</a>"""
GPU_CELL = """<a class="nowrap" href="{% url 'gpu' row.gpu.public_id %}">GPU {{ row.gpu.index }}</a>"""
TYPE_CELL = """<span class="nowrap">{{ row.gpu.gpu_type_id }}</span>"""
WEAK_BADGE = """<span class="badge tone-warn" title="Driver utilization, not SM activity">driver</span>"""
SM_CELL = (
    """{% if row.sm is None %}<span class="nothing" title="No reading">–</span>"""
    f"""{{% else %}}{{{{ row.sm }}}}{{% if row.is_weak %}} {WEAK_BADGE}{{% endif %}}{{% endif %}}"""
)
OWNER_CELL = """{% if row.held_milli %}{{ row.owner }}{% else %}{% status 'free' %}{% endif %}"""

CELLS = Table(
    name="fleet-map",
    noun="GPU",
    columns=(
        Column("node", "Node", "gpu.node.name", sort=("node__name", "index"), cell=NODE_CELL),
        Column("index", "GPU", "gpu.index", cell=GPU_CELL),
        Column("id", "Id", "gpu.public_id", on_page=False),
        Column("type", "Type", "gpu.gpu_type_id", sort=("gpu_type", "node__name", "index"), cell=TYPE_CELL),
        Column("place", "Place", "place", cell="<span class=nowrap>{{ row.place }}</span>"),
        Column("sm", "SM activity, %", "sm", numeric=True, cell=SM_CELL),
        Column("signal", "Signal", lambda row: row.signal if row.sm is not None else "", on_page=False),
        Column("held", "Allocated, GPUs", lambda row: row.held_milli / 1000, numeric=True, cell="{{ row.held_milli|gpus }}"),
        Column("owner", "Team", "owner", cell=OWNER_CELL),
        Column("since", "Held since", "since", cell="{% if row.since %}{{ row.since|moment }}{% else %}–{% endif %}"),
        Column("health", "Health", "health", cell="{% status row.health %}"),
        Column("mode", "Mode", "gpu.mode", on_page=False),
    ),
    default_sort="node",
    filters=(
        Choice("type", "Type", _types, "gpu_type"),
        Choice("health", "GPU's health", Health.choices),
    ),
    search=("node__name", "public_id", "uuid", "node__domain__path", "node__cluster__name"),
    libraries=("shell",),
    empty=NO_HARDWARE,
    empty_href="/inventory/import/",
    empty_action="Import hardware",
)
