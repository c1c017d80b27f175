"""What the sensors of the demo's GPUs say: the figures of `scheduler.simulation.telemetry`, spread over the GPUs that the work holds."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dashboards.telemetry.frames import NO_POWER, Columns
from gpufleet.demo.fleet import A100, H100, L40S
from gpufleet.demo.hardware import Hardware, Machine
from scheduler.models import Health
from scheduler.simulation.progress import Life, Phase
from scheduler.simulation.telemetry import Floats, Loads, Whole, busy, chance, filled, load_of

IDLE_WATTS = {H100: 78, A100: 58, L40S: 36}
MOST_WATTS = {H100: 700, A100: 400, L40S: 350}
THROTTLED = 0.55


@dataclass(frozen=True, slots=True)
class Held:
    """Which GPU serves which row of the work, and how much of it."""

    loads: Loads
    gpu: Whole
    row: Whole
    milli: Whole

    @classmethod
    def of(cls, loads: Loads, seats: Iterable[tuple[int, int, int]]) -> "Held":
        """From (GPU, row, milli-GPU) of each seat."""
        rows = list(seats)
        gpu, row, milli = (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else (np.zeros(0, np.int64),) * 3
        return cls(loads, gpu, row, milli)


def held_by_lives(lives: Sequence[Life], gpus: Mapping[tuple[str, int], int], *, moment: int) -> Held:
    """What runs of the simulated back-end hold. `gpus` knows a GPU by its node's name and its index."""
    alive = [life for life in lives if life.phase != Phase.ENDED]
    seats = (
        (gpus[member.node, index], row, member.milli)
        for row, life in enumerate(alive)
        for member in life.present
        for index in member.gpus
        if (member.node, index) in gpus
    )
    return Held.of(Loads.of([load_of(life, moment) for life in alive]), seats)


@dataclass(frozen=True, slots=True)
class Layout:
    """The GPUs of one cluster in the order of its frames, and what stays the same about them."""

    cluster: int
    gpus: NDArray[np.uint32]
    machines: tuple[int, ...]
    row: Whole  # of every GPU: where its machine is in `machines`
    dead: NDArray[np.bool_]
    idle_watts: Floats
    most_watts: Floats


def layouts_of(hardware: Hardware) -> list[Layout]:
    by_cluster: dict[int, list[Machine]] = {}
    for machine in sorted(hardware.machines.values(), key=lambda machine: (machine.name, machine.key)):
        by_cluster.setdefault(machine.cluster, []).append(machine)
    return [_layout(cluster, machines) for cluster, machines in sorted(by_cluster.items())]


def _layout(cluster: int, machines: list[Machine]) -> Layout:
    sizes = [len(machine.gpus) for machine in machines]
    return Layout(
        cluster=cluster,
        gpus=np.array([gpu for machine in machines for gpu in machine.gpus], np.uint32),
        machines=tuple(machine.key for machine in machines),
        row=np.repeat(np.arange(len(machines)), sizes),
        dead=np.array([gpu not in machine.usable for machine in machines for gpu in machine.gpus], np.bool_),
        idle_watts=np.repeat([float(IDLE_WATTS.get(machine.gpu_type, 40)) for machine in machines], sizes),
        most_watts=np.repeat([float(MOST_WATTS.get(machine.gpu_type, 350)) for machine in machines], sizes),
    )


def readings(held: Held, hardware: Hardware, layouts: list[Layout], *, moment: int) -> dict[int, Columns]:
    """What the sensors of every cluster would say now."""
    loads, gpu_of, row_of = held.loads, held.gpu, held.row
    milli_of = held.milli
    load, full = (busy(loads, moment=moment), filled(loads)) if len(loads.number) else (np.zeros(1), np.zeros(1))
    size = int(max((layout.gpus.max(initial=0) for layout in layouts), default=0)) + 1
    part = milli_of / 1000.0
    # Ranks of one job differ a little from each other, and from one reading to the next.
    wobble = 1 + 0.10 * (chance(gpu_of, 6, moment // 2000) - 0.5) if len(gpu_of) else np.zeros(0)
    found = Sensors(*(np.zeros(size) for _ in range(4)))
    computing = np.clip(load[row_of] * wobble, 0, 1) * part
    np.add.at(found.active, gpu_of, computing)
    np.add.at(found.memory, gpu_of, full[row_of] * part)
    if len(loads.number):
        # A job spends its own part of the time on matrices, and on moving data.
        np.add.at(found.tensor, gpu_of, computing * (0.25 + 0.5 * chance(loads.number, 8, 0))[row_of])
        np.add.at(found.dram, gpu_of, computing * (0.3 + 0.4 * chance(loads.number, 9, 0))[row_of])
    return {layout.cluster: _columns(hardware, layout, found, moment) for layout in layouts}


@dataclass(frozen=True, slots=True)
class Sensors:
    """What the work does to each GPU, as parts of one, by the GPU's key."""

    active: Floats
    memory: Floats
    tensor: Floats
    dram: Floats


def _columns(hardware: Hardware, layout: Layout, found: Sensors, moment: int) -> Columns:
    health = [hardware.machines[key].health for key in layout.machines]
    hot = np.array([state in (Health.SUSPECT, Health.DRAINING) for state in health], np.bool_)[layout.row]
    testing = np.array([state == Health.BURN_IN for state in health], np.bool_)[layout.row]
    silent = np.array([state in (Health.DOWN, Health.REPAIRING) for state in health], np.bool_)[layout.row] | layout.dead
    jitter = chance(layout.gpus, 7, moment // 2000)
    slow = np.where(hot, THROTTLED, 1.0)
    sm = np.where(testing, 0.93 + 0.05 * jitter, found.active[layout.gpus] * slow)
    tensor = np.where(testing, 0.8 + 0.1 * jitter, found.tensor[layout.gpus] * slow)
    dram = np.where(testing, 0.7 + 0.1 * jitter, found.dram[layout.gpus] * slow)
    held = found.memory[layout.gpus]
    watts = layout.idle_watts + (layout.most_watts - layout.idle_watts) * np.clip(
        sm * 0.92 + np.where(held > 0, 0.04, 0.0) + 0.03 * (jitter - 0.5), 0, 1
    )
    degrees = 29 + 40 * sm + 4 * jitter + np.where(hot, 22, 0)
    return Columns(
        gpus=layout.gpus,
        sm_active=_bytes(100 * sm, silent),
        memory_used=_bytes(100 * np.maximum(held, np.where(testing, 0.85, 0.01)), silent),
        power_watts=np.where(silent, NO_POWER, np.round(watts)).astype(np.uint16),
        temperature_c=_bytes(degrees, silent),
        tensor_active=_bytes(100 * tensor, silent),
        dram_active=_bytes(100 * dram, silent),
    )


def _bytes(values: Floats, silent: NDArray[np.bool_]) -> NDArray[np.uint8]:
    return np.where(silent, 255, np.clip(np.round(values), 0, 254)).astype(np.uint8)
