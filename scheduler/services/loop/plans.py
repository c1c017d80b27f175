"""Plans as they were made: kept with the scenario they were made from, so that any of them can be made again."""

import gzip
import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from gpufleet.core.bulk import row_made
from gpufleet.core.prepared import PreparedUpdate
from scheduler.engine.cycle import make_plan
from scheduler.engine.model.plan import Plan
from scheduler.engine.model.values import Scenario
from scheduler.models import PlanRecord
from scheduler.scenarios.reading import load
from scheduler.services.loop.lease import Lease
from scheduler.snapshots.spelling import Speller

# A scenario of a large fleet is a tenth of a megabyte packed, and a plan may be made several times a second.
SCENARIOS_KEPT = timedelta(hours=3)
# A plan that decides nothing leaves a record, and its scenario, only so often.
QUIET = timedelta(seconds=10)
QUIET_SCENARIO = timedelta(seconds=60)
FORGOTTEN_A_CALL = 500
FINISH = PreparedUpdate(
    lambda key, phases, dropped, wake: (PlanRecord.objects.filter(pk=key), {"phases": phases, "dropped": dropped, "next_wake_at": wake})
)
FINISH_WITH_SCENARIO = PreparedUpdate(
    lambda key, phases, dropped, wake, scenario: (
        PlanRecord.objects.filter(pk=key),
        {"phases": phases, "dropped": dropped, "next_wake_at": wake, "scenario": scenario},
    )
)


class NotKept(Exception):
    """The scenario of this plan is not kept any more, or never was."""


def plan_record(*, lease: Lease, plan: Plan | None, now: datetime, phases: Mapping[str, int], fault: str = "") -> PlanRecord:
    """A row for a plan that is about to be written down, or for one that must not be."""
    return row_made(
        PlanRecord(
            at=now,
            epoch=lease.epoch,
            wanted=lease.wanted,
            phases=dict(phases),
            decisions=[decision.as_json() for decision in plan.decisions] if plan is not None else [],
            waiting=len(plan.waiting) if plan is not None else 0,
            metrics=plan.metrics if plan is not None else {},
            fault=fault,
        )
    )


def plan_record_finish(*, record: PlanRecord) -> None:
    """Write what became of the plan into its row: phases, what was dropped, when to look again, and the scenario where there is one."""
    told = (record.pk, json.dumps(record.phases), json.dumps(record.dropped), record.next_wake_at)
    if record.scenario is None:
        FINISH(*told)
    else:
        FINISH_WITH_SCENARIO(*told, record.scenario)


class Packer:
    """Scenarios as they are kept, one after the other. A part that was in the last one is not packed again."""

    def __init__(self) -> None:
        self._speller = Speller()
        self._packed: dict[bytes, bytes] = {}

    def pack(self, scenario: Scenario) -> bytes:
        known = self._packed
        # Members of one gzip file: together they unpack to the whole.
        self._packed = {part: known.get(part) or gzip.compress(part, compresslevel=1, mtime=0) for part in self._speller.blocks(scenario)}
        return b"".join(self._packed.values())


def plan_export(*, record: PlanRecord) -> bytes:
    """The scenario of a plan as plain-file JSON: `gpufleet plan` makes the same plan of it."""
    if record.scenario is None:
        raise NotKept("The scenario of this plan is not kept any more.")
    return gzip.decompress(bytes(record.scenario))


def plan_replay(*, record: PlanRecord) -> dict[str, Any]:
    """The plan made again from its kept scenario, as JSON; and whether its decisions are those that were recorded."""
    plan = make_plan(load(plan_export(record=record))).as_json()
    same = json.dumps(plan["decisions"], sort_keys=True) == json.dumps(record.decisions, sort_keys=True)
    return {"plan": plan, "identical": same}


def plans_forget(*, now: datetime) -> int:
    """Drop scenarios past their time. The records stay for a week (`gpufleet.retention`)."""
    old = PlanRecord.objects.filter(at__lt=now - SCENARIOS_KEPT, scenario__isnull=False)
    keys = list(old.order_by("at", "id").values_list("id", flat=True)[:FORGOTTEN_A_CALL])
    return PlanRecord.objects.filter(pk__in=keys).update(scenario=None) if keys else 0
