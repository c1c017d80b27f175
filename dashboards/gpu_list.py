"""The list of GPUs as people see it: the inventory's own, with what telemetry says of each now."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from django.db.models import Q

from dashboards.readings import HOT_C, GpuNow, Reading, gpus_hot, gpus_read, gpus_throttling
from gpufleet.core.tables import Choice, Column
from gpufleet.core.times import now
from quotas.permissions import Access
from scheduler.hardware.lists import GPUS as INVENTORY
from scheduler.models import Gpu, Health
from scheduler.selectors.gpus import GpuRow, gpu_rows

# As often as the pages of one node and one GPU.
AGAIN_MS = 30_000


@dataclass(frozen=True, slots=True)
class GpuLine:
    """A GPU of the list with its newest readings."""

    row: GpuRow
    now: GpuNow

    @property
    def reading(self) -> Reading:
        return self.now.reading

    def __getattr__(self, name: str) -> Any:
        return getattr(self.row, name)


def gpus_now(access: Access, gpus: Sequence[Gpu]) -> list[GpuLine]:
    """Three queries, however many GPUs."""
    read = gpus_read([gpu.pk for gpu in gpus], now=now())
    return [GpuLine(row, read[row.gpu.pk]) for row in gpu_rows(access, gpus)]


def in_condition(chosen: Sequence[str]) -> Q:
    """GPUs that throttle or are hot now."""
    moment = now()
    known = {"throttling": gpus_throttling, "hot": gpus_hot}
    return Q(pk__in=sorted({key for name in chosen for key in known[name](now=moment)}))


def conditions() -> list[dict[str, Any]]:
    """The tabs of the list: what a person on call looks for first."""
    throttling = len(gpus_throttling(now=now()))
    sick = Gpu.objects.filter(removed_at__isnull=True, node__removed_at__isnull=True).exclude(health=Health.HEALTHY).count()
    away = "&".join(f"health={health}" for health in Health.values if health != Health.HEALTHY)
    return [
        {"label": "All", "query": "", "count": None},
        {"label": "Throttling", "query": "condition=throttling", "count": throttling},
        {"label": "Not healthy", "query": away, "count": sick},
    ]


_NONE = """<span class="nothing" title="No reading">–</span>"""
_UTILIZATION = f"{{% if row.reading.sm is None %}}{_NONE}{{% else %}}{{{{ row.reading.sm }}}}%{{% endif %}}"
_MEMORY = f"{{% if row.reading.memory is None %}}{_NONE}{{% else %}}{{{{ row.reading.memory }}}}%{{% endif %}}"


def _measure(key: str, label: str, unit: str, hint: str) -> Column:
    cell = f"{{% if row.reading.{key} is None %}}{_NONE}{{% else %}}{{{{ row.reading.{key} }}}}{unit}{{% endif %}}"
    return Column(key, label, f"reading.{key}", numeric=True, cell=cell, hint=hint, optional=True, measured=True)


def _figure(key: str, label: str, unit: str = "", hint: str = "") -> Column:
    cell = f"{{% if row.now.figures.{key} is None %}}{_NONE}{{% else %}}{{{{ row.now.figures.{key} }}}}{unit}{{% endif %}}"
    return Column(key, label, lambda row: row.now.figures.get(key), numeric=True, cell=cell, hint=hint, optional=True, measured=True)


_HEAT = (
    f"{{% if row.reading.celsius is None %}}{_NONE}{{% elif row.reading.is_hot %}}<strong>{{{{ row.reading.celsius }}}} °C</strong>"
    "{% else %}{{ row.reading.celsius }} °C{% endif %}"
)
_HEALTH = (
    """{% status row.gpu.health %}{% if row.now.throttles %} <span class="badge tone-warn" title="Clocks held down">Throttling</span>{% endif %}"""
)
READING = (
    Column("sm", "Utilization", "reading.sm", numeric=True, cell=_UTILIZATION, hint="SM activity, newest reading", measured=True),
    Column("memory_used", "Memory used", "reading.memory", numeric=True, cell=_MEMORY, measured=True),
    Column("celsius", "Temperature", "reading.celsius", numeric=True, cell=_HEAT, measured=True),
)
_READ = (
    *READING,
    _measure("tensor", "Tensor activity", "%", "Tensor cores, newest reading"),
    _measure("dram", "DRAM activity", "%", "Memory bandwidth used, newest reading"),
    _measure("watts", "Power", " W", "Newest reading"),
    Column("throttles", "Throttling", "now.throttles", on_page=False),
    _figure("processes", "Processes", hint="Compute processes now, by NVML"),
    _figure("sm_clock", "SM clock", " MHz"),
    _figure("sm_occupancy", "SM occupancy", "%"),
    _figure("pcie_mib", "PCIe", " MiB/s", hint="Traffic now, both ways"),
    _figure("nvlink_mib", "NVLink", " MiB/s", hint="Traffic now, both ways"),
)
_CHANGED: dict[str, dict[str, Any]] = {
    "health": {"cell": _HEALTH},
    "since": {"optional": True},
    "cluster": {"optional": True},
    "memory": {"optional": True},
}


def _columns() -> tuple[Column, ...]:
    columns: list[Column] = []
    for column in INVENTORY.columns:
        columns.append(replace(column, **_CHANGED.get(column.key, {})))
        if column.key == "health":
            columns += _READ
    return tuple(columns)


GPUS = replace(
    INVENTORY,
    columns=_columns(),
    filters=(
        *INVENTORY.filters,
        Choice("condition", "Condition", (("throttling", "Throttling"), ("hot", f"{HOT_C} °C or more")), apply=in_condition),
    ),
    example="condition:throttling gpu:h100 use:free",
    again_ms=AGAIN_MS,
)
