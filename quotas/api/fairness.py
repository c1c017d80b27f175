"""Fairness of a node of the quota tree for programs: what its page plots and tells."""

from datetime import datetime
from typing import Any, Literal

from django.core.exceptions import ValidationError
from django.http import HttpRequest
from ninja import Query, Router, Schema
from pydantic import Field

from gpufleet.core.ranges import BY_KEY
from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.permissions import Can
from quotas.selectors.nodes import child_list, node_for
from scheduler.loop.policy import fairness_now, policy
from scheduler.presenters.fairness import fairness_course, fairness_rows
from scheduler.selectors.usage import gpu_types_known
from scheduler.selectors.windows import capacity_now
from scheduler.services.forecasts.standing import tree_standing

router = Router(tags=["Quotas"])


class FairnessQuery(Schema):
    type: str = Field(min_length=1, max_length=100, description="The GPU type.")
    range: Literal["1h", "6h", "24h", "7d", "30d"] = Field("7d", description="How far back.")


class FairShareOut(Schema):
    """A node now, in milli-GPU of the type."""

    id: str = Field(examples=["q-9"])
    path: str
    fair_milli: int | None = Field(description="Its fair share; null where the scheduler has divided nothing yet.", examples=[48_000])
    past_usage_milli: int | None = Field(
        description="Its decayed past usage, as a part of the GPUs of the type; null where past usage has no weight.", examples=[51_200]
    )
    allocated_milli: int = Field(description="What it holds with all below it.", examples=[56_000])
    waiting_milli: int = Field(description="What its waiting jobs ask for.", examples=[8000])


class FairnessOut(Schema):
    """GPUs of one type over time as columns of the same length, and the node with what lies directly below it now."""

    type: str = Field(description="The GPU type.", examples=["H100-SXM-80GB"])
    range: str = Field(description="The time range.", examples=["7d"])
    step_seconds: int = Field(description="Length of a step.", examples=[900])
    half_life_seconds: int = Field(description="Past usage counts half after so long.", examples=[604_800])
    usage_weight: float = Field(description="Effect of past usage on shares of idle GPUs; 0: none.", examples=[1.0])
    at: list[datetime] = Field(description="When each step begins.", examples=[["2026-03-02T10:00:00Z"]])
    allocated: list[float | None] = Field(description="GPUs that it held, on average over the step.", examples=[[56.0]])
    past_usage: list[float | None] = Field(description="GPUs of decayed past usage; null where none was summed up.", examples=[[51.2]])
    fair_share: list[float | None] = Field(description="GPUs of its fair share; null where no forecast was made.", examples=[[48.0]])
    now: list[FairShareOut] = Field(description="The node first, then what lies directly below it.")


@router.get("/quotas/{public_id}/fairness", response=FairnessOut, url_name="quota_fairness", summary="Fairness of a node over time and now")
def quota_fairness(request: HttpRequest, public_id: str, asked: Query[FairnessQuery]) -> dict[str, Any]:
    """Allocation, decayed past usage and fair share of the node with all below it, as on its page."""
    access, moment = access_of(request), now()
    access.must_somewhere(Can.SEE)
    node = node_for(access, public_id)
    if asked.type not in gpu_types_known():
        raise ValidationError({"type": [f"There is no GPU type {asked.type}."]})
    chosen, rule = BY_KEY[asked.range], fairness_now(policy().engine)
    capacity, half_life = capacity_now().by_type.get(asked.type, 0), rule.half_life_ms // 1000
    course = fairness_course(node, asked.type, chosen, moment, capacity=capacity, half_life=half_life)
    rows = fairness_rows([node, *child_list(node)], asked.type, tree_standing(moment), capacity)
    return {
        "type": asked.type,
        "range": chosen.key,
        "step_seconds": int(chosen.step.total_seconds()),
        "half_life_seconds": half_life,
        "usage_weight": rule.usage_weight_millionths / 1_000_000,
        "at": course.at,
        "allocated": course.allocated,
        "past_usage": course.decayed,
        "fair_share": course.fair,
        "now": [
            {
                "id": row["node"].public_id,
                "path": row["node"].path,
                "fair_milli": row["fair"],
                "past_usage_milli": row["decayed"] if rule.usage_weight_millionths else None,
                "allocated_milli": row["held"],
                "waiting_milli": row["waiting"],
            }
            for row in rows
        ],
    }
