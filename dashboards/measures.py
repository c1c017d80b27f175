"""What telemetry stores of GPUs over time, and as which charts pages offer it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Line:
    """A stored measure as a line of a chart. `field` is its name in the API."""

    stored: str
    name: str
    colour: str
    field: str


@dataclass(frozen=True, slots=True)
class Measure:
    """One choice beside the time range: `?measure=power`. Without lines it is what the page shows by itself."""

    key: str
    label: str
    unit: str = ""
    lines: tuple[Line, ...] = ()
    most: int | None = None


SM = Line("sm", "SM activity", "used", "sm_percent")
MEMORY = Line("memory", "Memory used", "series-2", "memory_percent")
TENSOR = Line("tensor", "Tensor activity", "series-3", "tensor_percent")
DRAM = Line("dram", "DRAM activity", "series-1", "dram_percent")
POWER = Line("power", "Power per GPU", "used", "power_watts")
LINES = (SM, MEMORY, TENSOR, DRAM, POWER)

UTILIZATION = Measure("utilization", "SM and memory", "%", (SM, MEMORY), 100)
COMPUTE = Measure("compute", "SM, tensor, DRAM", "%", (SM, TENSOR, DRAM), 100)
WATTS = Measure("power", "Power", "W", (POWER,))
ALLOCATION = Measure("allocation", "Allocated and computing")

HARDWARE_MEASURES = (UTILIZATION, COMPUTE, WATTS)
JOB_MEASURES = (ALLOCATION, *HARDWARE_MEASURES)


def measure_of(query: Mapping[str, str], offered: Sequence[Measure] = HARDWARE_MEASURES) -> Measure:
    """The one that a request asks for; the first where it names none, or one that is not offered."""
    return next((one for one in offered if one.key == query.get("measure", "")), offered[0])
