"""Fingerprints over HTTP: what the pages of templates and jobs say."""

from typing import Any, Literal

from django.http import Http404, HttpRequest
from ninja import Router, Schema
from pydantic import Field

from dashboards.fingerprints.learning import PhaseTold, Typical
from dashboards.fingerprints.phases import COUNTERS
from dashboards.fingerprints.selectors import template_learned
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.selectors.templates import template_named

router = Router(tags=["Templates"])

PhaseName = Literal["load", "compute", "checkpoint", "idle"]


class TypicalOut(Schema):
    """The median of what was seen, with its tenth and ninetieth percentile."""

    median: float = Field(description="Half of it is less.", examples=[12.0])
    low: float = Field(description="A tenth of it is less.", examples=[9.6])
    high: float = Field(description="A tenth of it is more.", examples=[13.6])


class LearnedPhaseOut(Schema):
    """One phase over all runs. Levels are means in percent; null: the counter was not read."""

    phase: PhaseName = Field(description="Load, compute, checkpoint or idle.", examples=["checkpoint"])
    share: float = Field(description="Its part of the time of a run, from 0 to 1, on average over the runs.", examples=[0.044])
    runs: int = Field(description="In how many runs it was seen.", examples=[24])
    times: int = Field(description="How often it was seen.", examples=[310])
    seconds: TypicalOut = Field(description="How long it takes.")
    sm_percent: float | None = Field(description="SM activity.", examples=[43.6])
    memory_percent: float | None = Field(description="Memory used.", examples=[84.0])
    tensor_percent: float | None = Field(description="Tensor activity.", examples=[21.0])
    dram_percent: float | None = Field(description="DRAM activity.", examples=[17.4])


class FingerprintOut(Schema):
    """How jobs of a template use their GPUs, learned from telemetry of the runs that the caller may see."""

    ref: str = Field(description="The template.", examples=["veridia:pretraining"])
    confidence: Literal["not_enough", "low", "good"] = Field(
        description="`not_enough`: fewer than 3 runs, and no phases; `good`: at least 8 runs that are alike.", examples=["good"]
    )
    runs: int = Field(description="Runs that count, of the newest 100 of the last 90 days.", examples=[24])
    minutes: int = Field(description="Minutes read of them.", examples=[4310])
    left_out: int = Field(description="Runs of which fewer than 10 minutes were read.", examples=[2])
    weak: int = Field(description="Runs left out because a GPU of theirs has only the driver's utilization.", examples=[0])
    phases: list[LearnedPhaseOut] = Field(description="Those that were seen in at least 3 runs.")
    checkpoint_minutes: TypicalOut | None = Field(description="From one checkpoint to the next; null where none recur.")
    checkpoint_runs: int = Field(description="Runs whose checkpoints recur.", examples=[20])


@router.get("/fingerprints/{path:ref}", response=FingerprintOut, url_name="fingerprint", summary="How jobs of a template use their GPUs over time")
def fingerprint(request: HttpRequest, ref: str) -> dict[str, Any]:
    """A version behind the name makes no difference: runs of all versions are learned from."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    template = template_named(access, ref.partition("@")[0])
    if template is None:
        raise Http404
    learned = template_learned(access, template, now=now())
    found = learned.fingerprint
    return {
        "ref": template.ref,
        "confidence": found.confidence.value,
        "runs": found.runs,
        "minutes": found.minutes,
        "left_out": found.left_out,
        "weak": learned.weak,
        "phases": [phase_facts(one) for one in found.phases],
        "checkpoint_minutes": typical_facts(found.period),
        "checkpoint_runs": found.period_runs if found.period else 0,
    }


def phase_facts(one: PhaseTold) -> dict[str, Any]:
    levels = {f"{counter}_percent": one.levels.get(counter) for counter in COUNTERS}
    return {"phase": one.phase.value, "share": one.share, "runs": one.runs, "times": one.times, "seconds": typical_facts(one.seconds), **levels}


def typical_facts(one: Typical | None) -> dict[str, float] | None:
    return None if one is None else {"median": one.median, "low": one.low, "high": one.high}
