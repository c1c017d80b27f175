"""What ails the demo's hardware, as its sensors tell it: a GPU that throttles, memory errors, a link that flaps. The health rules see to the rest.

An ailment follows from the seed and the time alone, so that a console that was killed goes on with the same one. It ends when its node is repaired.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from dashboards.health.incidents import incidents_follow
from dashboards.health.models import HealthBucket
from dashboards.health.state import BUCKET, UNREAD, RawState, Words, device_of_gpu
from dashboards.health.steps import steps_report
from dashboards.models import NO_READING, StepLook
from dashboards.telemetry.frames import Columns
from dashboards.telemetry.peaks import peak_tflops
from gpufleet.core.times import millis
from gpufleet.demo.activity import Layout
from gpufleet.demo.hardware import Hardware, Machine
from scheduler.backends.base import attempt_key
from scheduler.models import Attempt, Gpu, Health, JobClass
from scheduler.simulation.progress import Life, Phase
from scheduler.simulation.telemetry import chance

SLOT = 15 * 60_000
LASTS = 40 * 60_000
KINDS = ("thermal", "thermal", "ecc", "flap", "xid")
THROTTLED = 0.72
PAST_AILMENTS = 40
FLAP_ON, FLAP_EVERY = 2 * 60_000, 14 * 60_000
IN_REPAIR = (Health.DRAINED, Health.REPAIRING, Health.BURN_IN, Health.DOWN)


@dataclass(frozen=True, slots=True)
class Ailment:
    """What one GPU has since `began` (milliseconds)."""

    gpu: int
    node: int
    kind: str
    began: int

    def throttles(self, moment: int) -> bool:
        return self.kind == "thermal"

    def flaps(self, moment: int) -> bool:
        return self.kind == "flap" and (moment - self.began) % FLAP_EVERY < FLAP_ON


def ailments(hardware: Hardware, *, seed: int, moment: int) -> list[Ailment]:
    """What ails the fleet now. One thing begins in each quarter of an hour; nodes that were repaired since are well."""
    machines = sorted((one for one in hardware.machines.values() if not one.spare and not one.sliced and one.gpus), key=lambda one: one.key)
    if not machines:
        return []
    found: dict[int, Ailment] = {}
    for slot in range((moment - LASTS) // SLOT + 1, moment // SLOT + 1):
        rng = random.Random(f"{seed} ails {slot}")  # noqa: S311 - a play, not a secret
        machine, began = rng.choice(machines), slot * SLOT
        one = Ailment(rng.choice(machine.gpus), machine.key, rng.choice(KINDS), began)
        if began <= moment < began + LASTS and not _repaired(machine, began):
            found.setdefault(machine.key, one)
    return [found[key] for key in sorted(found)]


def _repaired(machine: Machine, began: int) -> bool:
    """In repair now, or made healthy again since; a suspect that only was calm for a while is not."""
    return machine.health in IN_REPAIR or (machine.health == Health.HEALTHY and machine.since > began)


def raw_state(layout: Layout, hardware: Hardware, ill: Sequence[Ailment], *, degrees: NDArray[np.uint8], moment: int, before: int) -> RawState:
    """One look at a cluster's devices. Nodes that are down are not seen."""
    keys = layout.gpus.astype(np.int64)
    place = {int(key): number for number, key in enumerate(keys)}
    columns: dict[str, Words] = {
        name: np.zeros(len(keys), np.uint32) for name in ("thermal", "power_brake", "ecc_corrected", "ecc_uncorrected", "row_remaps", "nvlink_errors")
    }
    columns["temperature"] = np.where(degrees == 255, UNREAD, degrees.astype(np.uint32))
    xids: list[tuple[int, int]] = []
    for one in ill:
        row = place.get(one.gpu)
        if row is None:
            continue
        age = moment - one.began
        if one.throttles(moment):
            columns["thermal"][row], columns["temperature"][row] = 1, 93
        elif one.kind == "ecc":
            columns["ecc_corrected"][row] = age // 4_000
        elif one.kind == "flap":
            columns["nvlink_errors"][row] = 40 * (age // FLAP_EVERY) * (FLAP_ON // 5_000) + 40 * min(age % FLAP_EVERY, FLAP_ON) // 5_000
        elif one.kind == "xid" and before < one.began + 60_000 <= moment:
            xids.append((one.gpu, 79))
    seen = [key for key in layout.machines if hardware.machines[key].health not in (Health.DOWN, Health.REPAIRING)]
    return RawState(gpus=keys.tolist(), columns=columns, nodes=seen, node_columns={"nic_errors": np.zeros(len(seen), np.uint32)}, xids=xids)


def slowed(ill: Sequence[Ailment], moment: int) -> Mapping[int, float]:
    """By GPU: how fast those run that do not run as they should."""
    return {one.gpu: THROTTLED for one in ill if one.throttles(moment)}


def slow_down(columns: Columns, slow: Mapping[int, float]) -> None:
    """What a throttled GPU computes, it computes at a lower clock."""
    for gpu, speed in slow.items():
        rows = np.flatnonzero(columns.gpus == gpu)
        for row in rows.tolist():
            for measure in (columns.sm_active, columns.tensor_active, columns.dram_active):
                if measure[row] != NO_READING:
                    measure[row] = round(measure[row] * speed)


def steps_tell(gpus: Mapping[tuple[str, int], int], lives: Sequence[Life], slow: Mapping[int, float], *, now: datetime) -> None:
    """Ranks of gangs that train report how long a step took them. A throttled one takes longer."""
    keys = {life.key: life for life in lives if life.phase == Phase.COMPUTING and len(life.present) > 1}
    runs = Attempt.objects.filter(ended_at__isnull=True, job__job_class=JobClass.BATCH).values_list("pk", "number", "job__public_id")
    told = set(StepLook.objects.filter(flops__isnull=False).values_list("attempt_id", flat=True))
    for attempt, number, job in runs:
        life = keys.get(attempt_key(job=job, attempt=number))
        if life is None:
            continue
        members = sorted(life.present, key=lambda member: (member.role, member.index))
        ranks = [gpus.get((member.node, index), 0) for member in members for index in sorted(member.gpus)]
        noise = chance(np.array(ranks, np.int64), 9, millis(now) // 1000)
        seconds = {rank: float((1.2 + 0.05 * noise[rank]) / slow.get(gpu, 1.0)) for rank, gpu in enumerate(ranks)}
        steps_report(attempt=attempt, ranks=len(ranks), seconds=seconds, at=now, flops=None if attempt in told else _operations(attempt, ranks))


def _operations(attempt: int, ranks: Sequence[int]) -> float | None:
    """Those of a step of 1.2 s at an MFU between 33 and 47 %: models differ in how well they use their GPUs."""
    peak = peak_tflops(Gpu.objects.get(pk=ranks[0]).gpu_type_id, "bf16") if ranks[0] else None
    return (0.33 + attempt % 15 / 100) * 1.2 * len(ranks) * peak * 1e12 if peak else None


def ailing_seed(*, seed: int, now: datetime) -> int:
    """Incidents of the demo's past, and a fortnight of raw state for dry runs. Returns how many sums were stored."""
    while incidents_follow():
        pass
    rng = random.Random(f"{seed} ailed")  # noqa: S311 - a play, not a secret
    gpus = list(Gpu.objects.filter(removed_at__isnull=True).order_by("pk").values_list("pk", "node_id"))
    rows: dict[tuple[datetime, int, str], HealthBucket] = {}
    for _ in range(PAST_AILMENTS):
        gpu, node = rng.choice(gpus)
        signal, least, most = rng.choice((("thermal", 40, 300), ("ecc_corrected", 2, 90), ("nvlink_errors", 20, 400)))
        start = now - timedelta(minutes=rng.randrange(90, 14 * 1440))
        start = start.replace(minute=start.minute - start.minute % 5, second=0, microsecond=0)
        for step in range(rng.randrange(2, 12)):
            at = start + BUCKET * step
            value = rng.randrange(least, most)
            rows[at, gpu, signal] = HealthBucket(at=at, device=device_of_gpu(gpu), node_id=node, gpu_id=gpu, signal=signal, value=value)
    HealthBucket.objects.bulk_create(rows.values(), batch_size=500)
    return len(rows)
