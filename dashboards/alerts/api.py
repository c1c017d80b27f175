"""Alerts, their rules and silences, and the activity of the fleet, over HTTP."""

from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status

from dashboards.alerts.figures import FIGURES
from dashboards.alerts.lists import ACTIVITY, ALERTS
from dashboards.alerts.models import ActivityEntry, AlertRule, Silence
from dashboards.alerts.selectors import (
    AlertRow,
    activity_listed,
    alert_for,
    alert_rows,
    alert_rule_for,
    alert_rules_listed,
    alerts_listed,
    hooks_offered,
    silence_for,
    silences_now,
)
from dashboards.alerts.services import (
    ROLES,
    alert_acknowledge,
    alert_rule_change,
    alert_rule_create,
    alert_rule_facts,
    alert_rule_remove,
    alert_rule_test,
    silence_create,
    silence_end,
)
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import access_of
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.models import Webhook

router = Router(tags=["Alerts"])
ROLE_LIST: dict[str, Any] = {"items": {"type": "string", "enum": list(ROLES)}}


class AlertOut(Schema):
    """One time that a rule held for a subject."""

    id: str
    rule: str = Field(description="Id of the rule.", examples=["ar-3"])
    name: str
    subject: str = Field(
        description="Of what: a GPU type, class, team, pool, node (`north/node-7`) or cluster; empty: the whole fleet.", examples=[""]
    )
    state: str = Field(description="firing, acknowledged, silenced or resolved.", examples=["firing"])
    severity: str = Field(description="info, warning or critical.", examples=["warning"])
    value: float = Field(description="The figure now, or when it ended.", examples=[48.2])
    worst: float = Field(description="The worst figure.", examples=[51.0])
    threshold: float = Field(description="The limit.", examples=[45.0])
    since: datetime
    fired_at: datetime = Field(description="When it fired.", examples=["2026-03-02T09:41:20Z"])
    resolved_at: datetime | None = Field(description="When it was over; null while it is not.", examples=[None])
    acknowledged_at: datetime | None = Field(description="When somebody acknowledged it; null: nobody did.", examples=[None])
    acknowledged_by: str | None = Field(description="The user that acknowledged it.", examples=[None])
    escalated_at: datetime | None = Field(description="When it was escalated; null: it was not.", examples=[None])


class AlertsOut(Schema):
    items: list[AlertOut]
    next: str | None
    previous: str | None


class AcknowledgeIn(Taken):
    note: str = Field("", max_length=300, description="What is done about it.")


class AlertRuleFields(Schema):
    name: str
    figure: str = Field(description="The figure that it watches.", examples=["gap_percent"])
    subject: str = Field(description="Of what; * is each; empty: the whole fleet.", examples=["*"])
    threshold: float = Field(description="The limit.", examples=[45.0])
    clear_at: float = Field(description="It is over when the figure stays on the good side of this.", examples=[40.0])
    floor: float = Field(description="Of a rise of costs: a week that costs less does not count.", examples=[100.0])
    for_minutes: int = Field(description="How long the figure must be beyond the limit, and back within it.", examples=[30])
    severity: str = Field(description="info, warning or critical.", examples=["warning"])
    told: list[str] = Field(description="Roles whose people are told: on the whole fleet, and team leads of the team.", examples=[["operator"]])
    escalate_minutes: int | None = Field(description="Escalated after so long without an acknowledgement; null: never.", examples=[60])
    escalate_to: list[str] = Field(description="Roles whose people are then told too.", examples=[["superuser"]])
    enabled: bool = Field(description="Whether it is looked at.", examples=[True])


class AlertRuleOut(AlertRuleFields):
    id: str
    webhooks: list[str] = Field(description="Ids of webhooks that it tells besides those that chose alerts.", examples=[["w-4"]])
    revision: int
    changed_at: datetime


class AlertRulesOut(Schema):
    items: list[AlertRuleOut]


class AlertRuleIn(Taken):
    name: str = Field(max_length=80, json_schema_extra=SAID)
    figure: str = Field(max_length=24, description="The figure that it watches.", json_schema_extra={"enum": list(FIGURES)})
    subject: str = Field("", max_length=400, description="Of what; * is each; empty: the whole fleet.")
    threshold: float = Field(ge=0, le=1e12, description="The limit.")
    clear_at: float = Field(ge=0, le=1e12, description="At most the limit, for figures of which more is worse.")
    floor: float = Field(0, ge=0, le=1e12, description="Of cost_rise: a week that costs less does not count.")
    for_minutes: int = Field(5, ge=0, le=10_080, description="How long the figure must be beyond the limit.")
    severity: str = Field(
        "warning", max_length=10, description="info, warning or critical.", json_schema_extra={"enum": ["info", "warning", "critical"]}
    )
    told: list[str] = Field(
        default_factory=list, max_length=10, description="Roles whose people are told; `team_lead` with figures by team.", json_schema_extra=ROLE_LIST
    )
    escalate_minutes: int | None = Field(None, ge=1, le=10_080, description="Null: never.")
    escalate_to: list[str] = Field(default_factory=list, max_length=10, description="Roles that are then told too.", json_schema_extra=ROLE_LIST)
    webhooks: list[str] = Field(default_factory=list, max_length=20, description="Ids of webhooks.")
    enabled: bool = Field(True, description="Whether it is looked at.")
    reason: str = Field("", max_length=300)


class AlertRuleChange(Taken):
    """What is not named stays."""

    name: str | None = Field(None, max_length=80)
    figure: str | None = Field(None, max_length=24, description="The figure that it watches.")
    subject: str | None = Field(None, max_length=400, description="Of what; * is each; empty: the whole fleet.")
    threshold: float | None = Field(None, ge=0, le=1e12, description="The limit.")
    clear_at: float | None = Field(None, ge=0, le=1e12, description="Where it is over.")
    floor: float | None = Field(None, ge=0, le=1e12, description="Of cost_rise: a week that costs less does not count.")
    for_minutes: int | None = Field(None, ge=0, le=10_080, description="How long the figure must be beyond the limit.")
    severity: str | None = Field(None, max_length=10, description="info, warning or critical.")
    told: list[str] | None = Field(None, max_length=10, description="Roles whose people are told.")
    escalate_minutes: int | None = Field(None, ge=1, le=10_080, description="Null: never.")
    escalate_to: list[str] | None = Field(None, max_length=10, description="Roles that are then told too.")
    webhooks: list[str] | None = Field(None, max_length=20, description="Ids of webhooks.")
    enabled: bool | None = Field(None, description="Whether it is looked at.")
    reason: str = Field("", max_length=300)


class SilenceOut(Schema):
    id: str
    rule: str | None = Field(description="Id of the rule; null: all.", examples=["ar-3"])
    subject: str = Field(description="Only of this subject; empty: of all.", examples=[""])
    until: datetime = Field(description="Until when nobody is told.", examples=["2026-03-02T14:00:00Z"])
    reason: str
    by: str
    created_at: datetime


class SilencesOut(Schema):
    items: list[SilenceOut]


class SilenceIn(Taken):
    rule: str | None = Field(None, max_length=24, description="Id of a rule; null: all.")
    subject: str = Field("", max_length=400, description="Only of this subject; empty: of all.")
    minutes: int = Field(ge=1, le=43_200, description="How long nobody is told.")
    reason: str = Field(max_length=300, json_schema_extra=SAID)


class ActivityOut(Schema):
    """An alert, an incident, a straggler, a step against idle GPUs. `quota` is null for what concerns the whole fleet."""

    at: datetime
    kind: str = Field(description="What happened, as webhooks choose it.", examples=["incident.opened"])
    title: str = Field(description="In a few words.", examples=["alpha-n017: Thermal throttling"])
    text: str = Field(description="In words.", examples=["An incident is open on alpha-n017 (8 GPUs)."])
    quota: str | None
    job: str | None
    link: str = Field(description="The page that shows it.", examples=["/incidents/in-12/"])
    by: str


class ActivitiesOut(Schema):
    items: list[ActivityOut]
    next: str | None
    previous: str | None


@router.get("/activity", response=ActivitiesOut, url_name="activity", openapi_extra=parameters_of(ACTIVITY), summary="What happened in the fleet")
def activity(request: HttpRequest) -> HttpResponse:
    """What concerns the whole fleet, and the caller's subtrees."""
    return listed(request, ACTIVITY, activity_listed(access_of(request)), _entry)


@router.get("/alerts", response=AlertsOut, url_name="alerts", openapi_extra=parameters_of(ALERTS), summary="Alerts")
def alert_list(request: HttpRequest) -> HttpResponse:
    """Those that fire, and those that are over."""
    return listed(request, ALERTS, alerts_listed(access_of(request)), _alert, alert_rows)


@router.get("/alerts/rules", response=AlertRulesOut, url_name="alert_rules", summary="Alert rules")
def alert_rule_list(request: HttpRequest) -> HttpResponse:
    return answered({"items": [_rule(rule) for rule in alert_rules_listed(access_of(request))]})


@router.post("/alerts/rules", response={201: AlertRuleOut}, url_name="alert_rules", summary="A new alert rule")
def alert_rule_make(request: HttpRequest, body: AlertRuleIn) -> HttpResponse:
    values, access = body.dict(exclude={"reason", "webhooks"}), access_of(request)
    made = alert_rule_create(access=access, values=values, hooks=_hooks(body.webhooks), reason=body.reason, now=now())
    answer = stamped(answered(_rule(made)), made.revision)
    answer.status_code = 201
    return answer


@router.get("/alerts/rules/{rule_id}", response=AlertRuleOut, url_name="alert_rule", summary="An alert rule")
def alert_rule_get(request: HttpRequest, rule_id: str) -> HttpResponse:
    rule = alert_rule_for(access_of(request), rule_id)
    return stamped(answered(_rule(rule)), rule.revision)


@router.patch("/alerts/rules/{rule_id}", response=AlertRuleOut, url_name="alert_rule", openapi_extra=IF_MATCH, summary="Change an alert rule")
def alert_rule_update(request: HttpRequest, rule_id: str, body: AlertRuleChange) -> HttpResponse:
    """With `If-Match` only if nothing has changed."""
    access = access_of(request)
    sent = body.dict(exclude={"reason", "webhooks"}, exclude_unset=True)
    values = {name: value for name, value in sent.items() if value is not None or name == "escalate_minutes"}
    hooks = None if body.webhooks is None else _hooks(body.webhooks)
    facts: dict[str, Any] = {"hooks": hooks, "reason": body.reason, "revision": revision_wanted(request)}
    changed = alert_rule_change(access=access, rule=alert_rule_for(access, rule_id), values=values, now=now(), **facts)
    return stamped(answered(_rule(changed)), changed.revision)


@router.delete("/alerts/rules/{rule_id}", response={204: None}, url_name="alert_rule", summary="Remove an alert rule")
def alert_rule_delete(request: HttpRequest, rule_id: str) -> Status[None]:
    access = access_of(request)
    alert_rule_remove(access=access, rule=alert_rule_for(access, rule_id), now=now())
    return Status(204, None)


@router.post("/alerts/rules/{rule_id}/test", response={204: None}, url_name="alert_rule_test", summary="Send a test to all recipients of a rule")
def alert_rule_try(request: HttpRequest, rule_id: str) -> Status[None]:
    """No alert fires. The deliveries of the webhooks say what became of it."""
    access = access_of(request)
    alert_rule_test(access=access, rule=alert_rule_for(access, rule_id), now=now())
    return Status(204, None)


@router.get("/alerts/silences", response=SilencesOut, url_name="silences", summary="Silences that hold")
def silence_list(request: HttpRequest) -> HttpResponse:
    return answered({"items": [_silence(row) for row in silences_now(access_of(request), now())]})


@router.post("/alerts/silences", response={201: SilenceOut}, url_name="silences", summary="Silence a rule, or all")
def silence_make(request: HttpRequest, body: SilenceIn) -> HttpResponse:
    """Alerts are listed all the same; nobody is told."""
    access = access_of(request)
    rule = alert_rule_for(access, body.rule) if body.rule else None
    moment = now()
    until = moment + timedelta(minutes=body.minutes)
    made = silence_create(access=access, rule=rule, subject=body.subject, until=until, reason=body.reason, now=moment)
    answer = answered(_silence(made))
    answer.status_code = 201
    return answer


@router.delete("/alerts/silences/{silence_id}", response={204: None}, url_name="silence", summary="End a silence")
def silence_delete(request: HttpRequest, silence_id: str) -> Status[None]:
    access = access_of(request)
    silence_end(access=access, silence=silence_for(access, silence_id), now=now())
    return Status(204, None)


@router.get("/alerts/{alert_id}", response=AlertOut, url_name="alert", summary="An alert")
def alert_get(request: HttpRequest, alert_id: str) -> HttpResponse:
    return answered(_alert(AlertRow(alert_for(access_of(request), alert_id))))


@router.post("/alerts/{alert_id}/acknowledge", response=AlertOut, url_name="alert_acknowledge", summary="Acknowledge an alert")
def alert_take(request: HttpRequest, alert_id: str, body: AcknowledgeIn) -> HttpResponse:
    """It is not escalated any more. 409 where it is over, or acknowledged already."""
    access = access_of(request)
    alert_acknowledge(access=access, alert=alert_for(access, alert_id), note=body.note, now=now())
    return answered(_alert(AlertRow(alert_for(access, alert_id))))


def _hooks(names: list[str]) -> list[Webhook]:
    found = list(hooks_offered().filter(public_id__in=names))
    if missing := sorted(set(names) - {hook.public_id for hook in found}):
        raise ValidationError({"webhooks": [f"There is no webhook {missing[0]}."]})
    return found


def _alert(row: AlertRow) -> dict[str, Any]:
    one = row.alert
    plain = ("subject", "value", "worst", "since", "fired_at", "resolved_at", "acknowledged_at", "escalated_at")
    return {
        "id": one.public_id,
        "rule": one.rule.public_id,
        "name": one.rule.name,
        "state": row.state,
        "severity": one.rule.severity,
        "threshold": one.rule.threshold,
        "acknowledged_by": one.acknowledged_by or None,
        **{name: getattr(one, name) for name in plain},
    }


def _rule(rule: AlertRule) -> dict[str, Any]:
    hooks = sorted(hook.public_id for hook in rule.hooks.all() if hook.removed_at is None)
    return alert_rule_facts(rule) | {"id": rule.public_id, "webhooks": hooks, "revision": rule.revision, "changed_at": rule.changed_at}


def _silence(row: Silence) -> dict[str, Any]:
    plain = ("subject", "until", "reason", "by", "created_at")
    return {"id": row.public_id, "rule": row.rule.public_id if row.rule else None, **{name: getattr(row, name) for name in plain}}


def _entry(row: ActivityEntry) -> dict[str, Any]:
    plain = ("at", "kind", "title", "text", "link", "by")
    return {"quota": row.path or None, "job": row.job or None, **{name: getattr(row, name) for name in plain}}
