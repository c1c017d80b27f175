"""Incidents, health rules and stragglers over HTTP; and where ranks report their step times."""

from datetime import datetime
from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status

from dashboards.health.lists import INCIDENTS
from dashboards.health.models import HealthRule, HealthSettings
from dashboards.health.round import rule_of, settings_row
from dashboards.health.selectors import (
    IncidentRow,
    findings_open,
    health_summary,
    incident_for,
    incident_jobs,
    incident_rows,
    incidents_listed,
    rule_for,
    rules_listed,
    stragglers_open,
)
from dashboards.health.services import SETTINGS, dry_run, rule_asked, rule_change, rule_create, rule_facts, rule_remove, settings_save
from dashboards.health.state import SIGNALS
from dashboards.health.steps import MOST_RANKS, steps_report
from dashboards.telemetry.peaks import Precision
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from scheduler.api.checkpoints import attempt_asking
from scheduler.api.lists import answered, listed, parameters_of

router = Router(tags=["Health"])
SIGNAL: dict[str, Any] = {"enum": list(SIGNALS)}
ACTION: dict[str, Any] = {"enum": ["note", "suspect", "drain", "down"]}
GROUP: dict[str, Any] = {"enum": ["", "app", "watch", "reset", "support"]}


class IncidentOut(Schema):
    """One time that a node was not healthy. `cost_micros` is null for callers who may not see the fleet's costs."""

    id: str
    node: str
    node_id: str = Field(description="Id of the node.", examples=["n-17"])
    cluster: str
    health: str = Field(description="The node's health now.", examples=["draining"])
    title: str = Field(description="What happened first.", examples=["Thermal throttling: 240 s in 5 min on GPU 3"])
    rule: str | None = Field(description="Name of the rule that opened it; null where a person did.", examples=["Thermal throttling"])
    by_rule: bool = Field(description="Whether rules take the node through its life cycle.", examples=[True])
    opened_at: datetime = Field(description="When it began.", examples=["2026-03-02T09:41:20Z"])
    closed_at: datetime | None = Field(description="When the node was healthy again; null while it is not.", examples=[None])
    jobs_hurt: int = Field(description="How many jobs lost GPUs by it.", examples=[2])
    out_gpu_hours_milli: int = Field(description="GPU-hours out of service, in thousandths.", examples=[6400])
    lost_gpu_hours_milli: int = Field(description="GPU-hours of work that was not saved, in thousandths.", examples=[900])
    cost_micros: int | None = Field(description="What both cost, in millionths of the currency.", examples=[None])


class IncidentsOut(Schema):
    items: list[IncidentOut]
    next: str | None
    previous: str | None


class IncidentStepOut(Schema):
    at: datetime
    text: str = Field(description="What happened.", examples=["Drained. It waits for repair."])
    health: str | None = Field(description="The node's health from then on; null where the step did not change it.", examples=["drained"])
    by: str


class HurtOut(Schema):
    job: str | None
    outcome: str = Field(description="How its run ended; degraded: it goes on without its workers of the node.", examples=["preempted"])
    gpu_milli: int
    lost_gpu_hours_milli: int = Field(description="GPU-hours of work that was not saved, in thousandths.", examples=[0])


class IncidentDetailOut(IncidentOut):
    steps: list[IncidentStepOut] = Field(description="What happened, the oldest first.")
    jobs: list[HurtOut] = Field(description="Jobs that lost GPUs of the node by the incident.")


class FindingOut(Schema):
    node: str
    gpu: str | None = Field(description="Id of the GPU; null where it is the node's.", examples=["g-130"])
    rule: str = Field(description="Name of the rule that holds.", examples=["Thermal throttling"])
    action: str = Field(description="What the rule asks for: note, suspect, drain or down.", examples=["suspect"])
    text: str = Field(description="In words.", examples=["Thermal throttling: 240 s in 5 min"])
    since: datetime
    incident: str | None = Field(description="Id of the incident that it belongs to.", examples=["in-12"])


class StragglerOut(Schema):
    id: str
    job: str | None
    rank: int = Field(description="The slow rank.", examples=[17])
    ranks: int = Field(description="How many ranks the gang has.", examples=[64])
    node: str
    gpu: str = Field(description="Id of its GPU.", examples=["g-130"])
    percent: int = Field(description="How far it is off the median of its gang.", examples=[15])
    measure: str = Field(description="step: reported step times; sm: SM activity; nvlink: NVLink traffic.", examples=["step"])
    cause: str = Field(description="The likely cause.", examples=["Thermal throttling: 240 s in 5 min."])
    since: datetime
    replacement: str | None = Field(description="A healthy node of the same type on which nothing runs; null: none.", examples=["alpha-n040"])


class HealthNowOut(Schema):
    """What is wrong now, and thirty days of incidents."""

    open_incidents: int = Field(description="Incidents that are open.", examples=[1])
    incidents: int = Field(description="Incidents of thirty days.", examples=[14])
    node_days_between: float | None = Field(
        description="Mean time between incidents of one node, in days; null where there was none.", examples=[137.0]
    )
    repair_seconds: int | None = Field(description="Mean time that an incident took.", examples=[5400])
    gpu_hours_milli: int = Field(description="GPU-hours out of service or not saved, in thousandths.", examples=[91000])
    findings: list[FindingOut] = Field(description="Rules that hold now.")
    stragglers: list[StragglerOut] = Field(description="Ranks that slow their gangs down now.")


class RuleFields(Schema):
    name: str
    signal: str = Field(description="The signal that it watches.", examples=["thermal"])
    group: str = Field(description="Of XIDs: app, watch, reset or support; empty: all.", examples=[""])
    threshold: int = Field(description="It holds at this figure or above.", examples=[60])
    window_minutes: int = Field(description="Over which the figure adds up.", examples=[5])
    clear_below: int = Field(description="It is over when the figure stays below this.", examples=[20])
    clear_minutes: int = Field(description="For so long.", examples=[10])
    action: str = Field(description="note, suspect, drain or down.", examples=["suspect"])
    enabled: bool = Field(description="Whether it is looked at.", examples=[True])


class HealthRuleOut(RuleFields):
    id: str
    unit: str = Field(description="Unit of its figures.", examples=["s"])
    revision: int
    changed_at: datetime


class HealthRulesOut(Schema):
    items: list[HealthRuleOut]


class HealthRuleIn(Taken):
    name: str = Field(max_length=80, json_schema_extra=SAID)
    signal: str = Field(max_length=20, description="The signal that it watches.", json_schema_extra=SIGNAL)
    group: str = Field("", max_length=20, description="Of XIDs: their kind.", json_schema_extra=GROUP)
    threshold: int = Field(ge=1, le=2**53, description="It holds at this figure or above.")
    window_minutes: int = Field(ge=1, le=10_080, description="Over which the figure adds up.")
    clear_below: int = Field(ge=1, le=2**53, description="It is over when the figure stays below this; at most the threshold.")
    clear_minutes: int = Field(ge=1, le=10_080, description="For so long.")
    action: str = Field(max_length=8, description="What it does to the node.", json_schema_extra=ACTION)
    enabled: bool = Field(True, description="Whether it is looked at.")
    reason: str = Field("", max_length=300)


class HealthRuleChange(Taken):
    """What is not named stays."""

    name: str | None = Field(None, max_length=80)
    signal: str | None = Field(None, max_length=20, description="The signal that it watches.")
    group: str | None = Field(None, max_length=20, description="Of XIDs: their kind.")
    threshold: int | None = Field(None, ge=1, le=2**53, description="It holds at this figure or above.")
    window_minutes: int | None = Field(None, ge=1, le=10_080, description="Over which the figure adds up.")
    clear_below: int | None = Field(None, ge=1, le=2**53, description="It is over when the figure stays below this.")
    clear_minutes: int | None = Field(None, ge=1, le=10_080, description="For so long.")
    action: str | None = Field(None, max_length=8, description="What it does to the node.")
    enabled: bool | None = Field(None, description="Whether it is looked at.")
    reason: str = Field("", max_length=300)


class RuleHeldOut(Schema):
    device: str = Field(description="Name of the node, and index of the GPU.", examples=["alpha-n017/3"])
    since: datetime
    until: datetime | None = Field(description="When it would have been over; null: not yet.", examples=["2026-03-02T10:02:11Z"])
    value: int = Field(description="The highest figure.", examples=[300])


class DryRunOut(Schema):
    """What a rule would have found in thirty days."""

    since: datetime = Field(description="From when on there are figures to try it on.", examples=["2026-02-01T09:41:00Z"])
    note: str = Field(description="What the figures cannot say of such a rule; empty where they can.", examples=[""])
    devices: int = Field(description="On how many devices it would have held.", examples=[3])
    held: list[RuleHeldOut] = Field(description="Each time that it would have held, the oldest first.")


class LimitsOut(Schema):
    acts: bool = Field(description="Whether rules act by themselves.", examples=[True])
    most_percent: int = Field(description="At most so many percent of a pool's nodes are out of service by rule.", examples=[10])
    patience_minutes: int = Field(description="How long work on a draining node may go on.", examples=[30])
    repair_minutes: int | None = Field(description="Burn-in begins after so long in repair; null: when a person says so.", examples=[None])
    burn_in_minutes: int = Field(description="How long the test job runs; 0: none.", examples=[10])
    burn_in_command: list[str] = Field(description="What the test job runs; empty: a person decides.", examples=[["dcgmi", "diag", "-r", "3"]])
    revision: int


class LimitsIn(Taken):
    """What is not named stays."""

    acts: bool | None = Field(None, description="Whether rules act by themselves.")
    most_percent: int | None = Field(None, ge=1, le=50, description="Of a pool's nodes.")
    patience_minutes: int | None = Field(None, ge=0, le=10_080, description="How long work on a draining node may go on.")
    repair_minutes: int | None = Field(None, ge=0, le=43_200, description="Null: when a person says so.")
    burn_in_minutes: int | None = Field(None, ge=0, le=1440, description="0: no test job.")
    burn_in_command: list[str] | None = Field(None, max_length=50, description="What the test job runs; empty: a person decides.")
    reason: str = Field("", max_length=300)


@router.get("/health", response=HealthNowOut, url_name="health", summary="What is wrong with the hardware now")
def health_now(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    told = health_summary(access, now=now())
    findings = [
        {
            "node": one.finding.node.name,
            "gpu": one.finding.gpu.public_id if one.finding.gpu else None,
            "rule": one.finding.rule.name,
            "action": one.finding.rule.action,
            "text": one.text,
            "since": one.finding.since,
            "incident": one.finding.incident.public_id if one.finding.incident else None,
        }
        for one in findings_open(access)
    ]
    stragglers = [
        {
            "id": one.straggler.public_id,
            "job": one.job.public_id if one.job else None,
            "node": one.straggler.node.name,
            "gpu": one.straggler.gpu.public_id,
            "replacement": one.replacement.name if one.replacement else None,
            **{name: getattr(one.straggler, name) for name in ("rank", "ranks", "percent", "measure", "cause", "since")},
        }
        for one in stragglers_open(access)
    ]
    return answered(
        {
            "open_incidents": told.open,
            "incidents": told.month,
            "node_days_between": told.node_days_between,
            "repair_seconds": int(told.repair.total_seconds()) if told.repair else None,
            "gpu_hours_milli": told.hours_milli,
            "findings": findings,
            "stragglers": stragglers,
        }
    )


@router.get("/incidents", response=IncidentsOut, url_name="incidents", openapi_extra=parameters_of(INCIDENTS), summary="Incidents")
def incident_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    return listed(request, INCIDENTS, incidents_listed(access), _incident, partial(incident_rows, access, now=now()))


@router.get("/incidents/{incident_id}", response=IncidentDetailOut, url_name="incident", summary="An incident with its steps and the jobs hurt")
def incident_get(request: HttpRequest, incident_id: str) -> HttpResponse:
    """`job` is null where the caller may not see it."""
    access, moment = access_of(request), now()
    incident = incident_for(access, incident_id)
    steps = [{"at": step.at, "text": step.text, "health": step.health or None, "by": step.by} for step in incident.steps.order_by("at", "id")]
    jobs = [
        {
            "job": one.job.public_id if one.job else None,
            "outcome": one.outcome,
            "gpu_milli": one.gpus_milli,
            "lost_gpu_hours_milli": one.lost_hours_milli,
        }
        for one in incident_jobs(access, incident, now=moment)
    ]
    return answered(_incident(incident_rows(access, [incident], now=moment)[0]) | {"steps": steps, "jobs": jobs})


@router.get("/health/rules", response=HealthRulesOut, url_name="health_rules", summary="Health rules")
def health_rule_list(request: HttpRequest) -> HttpResponse:
    return answered({"items": [_rule(rule) for rule in rules_listed(access_of(request))]})


@router.post("/health/rules", response={201: HealthRuleOut}, url_name="health_rules", summary="A new health rule")
def health_rule_create(request: HttpRequest, body: HealthRuleIn) -> HttpResponse:
    values = body.dict(exclude={"reason"})
    made = rule_create(access=access_of(request), values=values, reason=body.reason, now=now())
    answer = stamped(answered(_rule(made)), made.revision)
    answer.status_code = 201
    return answer


@router.post("/health/rules/dry-run", response=DryRunOut, url_name="health_rule_try", summary="Try a health rule against thirty days")
def health_rule_try(request: HttpRequest, body: HealthRuleIn) -> HttpResponse:
    """Nothing is saved, and nothing is done to any node."""
    access_of(request).must_everywhere(Can.OPERATE)
    return _dry(dry_run(rule_asked(body.dict(exclude={"reason"}), reason=body.reason), now=now()))


@router.get("/health/rules/{rule_id}", response=HealthRuleOut, url_name="health_rule", summary="A health rule")
def health_rule_get(request: HttpRequest, rule_id: str) -> HttpResponse:
    rule = rule_for(access_of(request), rule_id)
    return stamped(answered(_rule(rule)), rule.revision)


@router.patch("/health/rules/{rule_id}", response=HealthRuleOut, url_name="health_rule", openapi_extra=IF_MATCH, summary="Change a health rule")
def health_rule_change(request: HttpRequest, rule_id: str, body: HealthRuleChange) -> HttpResponse:
    """With `If-Match` only if nothing has changed."""
    access = access_of(request)
    rule, values = rule_for(access, rule_id), body.dict(exclude={"reason"}, exclude_none=True)
    changed = rule_change(access=access, rule=rule, values=values, reason=body.reason, revision=revision_wanted(request), now=now())
    return stamped(answered(_rule(changed)), changed.revision)


@router.delete("/health/rules/{rule_id}", response={204: None}, url_name="health_rule", summary="Remove a health rule")
def health_rule_delete(request: HttpRequest, rule_id: str) -> Status[None]:
    access = access_of(request)
    rule_remove(access=access, rule=rule_for(access, rule_id), now=now())
    return Status(204, None)


@router.get("/health/rules/{rule_id}/dry-run", response=DryRunOut, url_name="health_rule_past", summary="What a health rule found in thirty days")
def health_rule_past(request: HttpRequest, rule_id: str) -> HttpResponse:
    """As it is now, over what was stored."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return _dry(dry_run(rule_of(rule_for(access, rule_id)), now=now()))


@router.get("/health/limits", response=LimitsOut, url_name="health_limits", summary="How far health rules may go")
def health_limits(request: HttpRequest) -> HttpResponse:
    access_of(request).must_somewhere(Can.SEE)
    return _limits(settings_row())


@router.patch("/health/limits", response=LimitsOut, url_name="health_limits", openapi_extra=IF_MATCH, summary="Change how far health rules may go")
def health_limits_change(request: HttpRequest, body: LimitsIn) -> HttpResponse:
    sent = body.dict(exclude={"reason"}, exclude_unset=True)
    values = {name: value for name, value in sent.items() if value is not None or name == "repair_minutes"}
    return _limits(settings_save(access=access_of(request), values=values, reason=body.reason, revision=revision_wanted(request)))


def _incident(row: IncidentRow) -> dict[str, Any]:
    one = row.incident
    return {
        "id": one.public_id,
        "node": one.node.name,
        "node_id": one.node.public_id,
        "cluster": one.node.cluster.name,
        "health": one.node.health,
        "title": one.title,
        "rule": one.rule.name if one.rule else None,
        "by_rule": one.by_rule,
        "opened_at": one.opened_at,
        "closed_at": one.closed_at,
        "jobs_hurt": one.jobs,
        "out_gpu_hours_milli": round(one.out_milli_millis / 3_600_000),
        "lost_gpu_hours_milli": round(one.lost_milli_millis / 3_600_000),
        "cost_micros": row.cost_micros,
    }


def _rule(rule: HealthRule) -> dict[str, Any]:
    own = {"id": rule.public_id, "unit": SIGNALS[rule.signal].unit, "revision": rule.revision, "changed_at": rule.changed_at}
    return rule_facts(rule) | own


def _dry(tried: Any) -> HttpResponse:
    held = [{"device": name, "since": one.since, "until": one.until, "value": one.value} for name, one in tried.held]
    return answered({"since": tried.start, "note": tried.note, "devices": tried.devices, "held": held})


def _limits(row: HealthSettings) -> HttpResponse:
    return stamped(answered({name: getattr(row, name) for name in (*SETTINGS, "revision")}), row.revision)


class StepTimesIn(Taken):
    """How long the last step took, by rank."""

    ranks: int = Field(ge=1, le=MOST_RANKS, description="How many ranks the gang has.")
    seconds: dict[int, float] = Field(description="Seconds that the step took, by rank: of one rank, or of several.")
    flops: float | None = Field(
        default=None,
        strict=True,
        gt=0,
        le=1e27,
        description="Floating-point operations of one step of the whole job, over all ranks; MFU is told from them. Null: as told before.",
        examples=[6.1e17],
    )
    precision: Precision = Field(default="bf16", description="In which most of these operations are.")


@router.post("/steps", auth=None, response={204: None}, url_name="steps-report", summary="Report step times")
def step_times_report(request: HttpRequest, body: StepTimesIn) -> Status[None]:
    """Called by the ranks of a running attempt, with the token that they were given as GPUFLEET_TOKEN. Stragglers and MFU are told by them."""
    attempt = attempt_asking(request)
    steps_report(attempt=attempt.pk, ranks=body.ranks, seconds=body.seconds, at=now(), flops=body.flops, precision=body.precision)
    return Status(204, None)
