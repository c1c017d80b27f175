"""Idle episodes and their policies over HTTP."""

from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.exceptions import ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from ninja import Field, Router, Schema, Status

from dashboards.idle.lists import EPISODES
from dashboards.idle.models import IdleExemption, IdlePolicy
from dashboards.idle.policies import (
    Rules,
    exemption_create,
    exemption_end,
    exemption_for,
    exemptions_seen,
    policies_read,
    policy_remove,
    policy_save,
    rules_of,
)
from dashboards.idle.selectors import IdleRow, episode_for, episode_gpus, episode_steps, episodes_listed, idle_rows, idle_summary
from dashboards.idle.steps import episode_notify, episode_reclaim, episode_snooze
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.taken import SAID, Taken
from gpufleet.core.times import now
from gpufleet.web import Can, access_of
from quotas.models import QuotaNode
from quotas.permissions import nodes_visible
from scheduler.api.lists import answered, listed, parameters_of
from scheduler.selectors.jobs import job_for

router = Router(tags=["Idle GPUs"])


class IdleOut(Schema):
    """An allocation that stays idle. `cost_micros` is null where the caller may not see costs, or no rate is known."""

    id: str
    job: str
    job_name: str = Field(description="Name of the job.", examples=["notebook"])
    quota: str
    owner: str | None
    gpu_type: str
    waste: str = Field(description="empty: no process uses the GPUs; low: SM activity below the threshold.", examples=["empty"])
    stage: str = Field(description="open, notified, warned, warned_again, reclaiming or reclaimed.", examples=["warned"])
    stage_at: datetime = Field(description="When it reached this stage.")
    held_milli: int
    idle_milli: int
    activity_percent: float = Field(description="Mean SM activity of the idle GPUs over the window.", examples=[0.4])
    started_at: datetime
    idle_minutes: int = Field(description="Minutes that readings show it idle. Steps of the policy go by them.", examples=[60])
    ended_at: datetime | None
    end_reason: str = Field(description="Why it ended; empty while it goes on.", examples=[""])
    fault: str = Field(description="Why the last round could not go on with it; empty where it could.", examples=[""])
    snoozed_until: datetime | None = Field(description="No policy acts before then; null where it was not snoozed.", examples=[None])
    wasted_gpu_hours_milli: int = Field(description="GPU-hours wasted so far, in thousandths.", examples=[14200])
    won_gpu_hours_milli: int = Field(description="GPU-hours that other jobs used of the reclaimed GPUs within a day, in thousandths.", examples=[0])
    cost_micros: int | None = Field(description="What the wasted hours cost, in millionths of the currency.", examples=[35500000])


class IdlesOut(Schema):
    items: list[IdleOut]
    next: str | None
    previous: str | None


class IdleStepOut(Schema):
    at: datetime
    kind: str = Field(description="What was done: opened, notified, warned, reclaiming, snoozed or ended.", examples=["warned"])
    text: str = Field(description="In words.", examples=["8 GPUs idle since 2026-03-02 09:41 UTC. Use them or release them."])
    by: str


class IdleDetailOut(IdleOut):
    gpus: list[str] = Field(description="Ids of the idle GPUs.", examples=[["g-130"]])
    steps: list[IdleStepOut] = Field(description="What was done about it, the oldest first.")


class HoarderOut(Schema):
    owner: str
    quota: str
    episodes: int = Field(description="How many episodes were idle in the last seven days.", examples=[3])
    wasted_gpu_hours_milli: int = Field(description="GPU-hours wasted by them in the last seven days, in thousandths.", examples=[41800])
    cost_micros: int | None = Field(
        description="What these hours cost, in millionths of the currency; null where the caller may not see costs.", examples=[None]
    )


class IdleSummaryOut(Schema):
    """What is idle now, and the last seven days."""

    episodes: int = Field(description="How many allocations are idle now.", examples=[4])
    idle_milli: int
    cost_per_hour_micros: int | None = Field(description="What the idle GPUs cost an hour; null where the caller may not see costs.", examples=[None])
    week_gpu_hours_milli: int = Field(description="GPU-hours wasted in seven days, in thousandths.", examples=[98000])
    won_gpu_hours_milli: int = Field(description="GPU-hours won back by reclaims in seven days, in thousandths.", examples=[12000])
    reclaims: int = Field(description="How many reclaims there were in seven days.", examples=[2])
    worst: list[HoarderOut] = Field(description="Owners with the most waste, the most first.")


class NotifyIn(Taken):
    reason: str = Field("", max_length=300, description="Added to the notice.")


class ReclaimIn(Taken):
    reason: str = Field(max_length=300, json_schema_extra=SAID)
    hold: bool = Field(False, description="Hold the job afterwards, until someone releases it.")


class SnoozeIn(Taken):
    hours: int = Field(ge=1, le=24, description="How long no policy acts on it.")
    reason: str = Field(max_length=300, json_schema_extra=SAID)


class PolicyFields(Schema):
    enabled: bool = Field(description="Whether allocations below the node are watched.", examples=[True])
    threshold_percent: int = Field(description="SM activity below which a GPU is idle.", examples=[5])
    window_minutes: int = Field(description="Nearly all of these minutes must be idle.", examples=[20])
    classes: list[str] = Field(description="Job classes that are watched.", examples=[["batch", "interactive"]])
    notify_minutes: int | None = Field(description="Notify after so many idle minutes; null: never.", examples=[30])
    warn_minutes: int | None = Field(description="Warn after so many idle minutes; null: never.", examples=[60])
    warn_again_minutes: int | None = Field(description="Warn again after so many idle minutes; null: never.", examples=[90])
    reclaim_minutes: int | None = Field(description="Reclaim after so many idle minutes; null: never.", examples=[None])
    reclaim_share_percent: int = Field(description="Reclaim only while at least this share of the job's GPUs is idle.", examples=[50])
    hold_after: bool = Field(description="Whether a reclaimed job is held until someone releases it.", examples=[False])
    weekdays: list[int] = Field(description="Days on which steps are taken, 0 is Monday; empty: all.", examples=[[0, 1, 2, 3, 4]])
    hours_from: int | None = Field(description="Steps are taken from this minute of the day on; null: all day.", examples=[480])
    hours_until: int | None = Field(description="Until this minute of the day; null: all day.", examples=[1080])
    zone: str = Field(description="Time zone of the hours.", examples=["Europe/Berlin"])


class PolicyOut(PolicyFields):
    """The policy that holds for a node. `stated_by` names the node that states it; null: it is built in."""

    quota: str
    stated_by: str | None = Field(description="Path of the node that states it; null where it is built in.", examples=["acme/research"])
    revision: int


class PoliciesOut(Schema):
    items: list[PolicyOut]


class PolicyIn(Taken):
    """What is not named stays."""

    enabled: bool | None = Field(None, description="Whether allocations below the node are watched.")
    threshold_percent: int | None = Field(None, ge=1, le=50, description="SM activity below which a GPU is idle.")
    window_minutes: int | None = Field(None, ge=5, le=1440, description="Nearly all of these minutes must be idle.")
    classes: list[str] | None = Field(
        None,
        max_length=3,
        description="Job classes that are watched.",
        json_schema_extra={"items": {"type": "string", "enum": ["inference", "interactive", "batch"]}, "minItems": 1},
    )
    notify_minutes: int | None = Field(None, ge=0, le=10_080, description="Null: never.")
    warn_minutes: int | None = Field(None, ge=0, le=10_080, description="Null: never.")
    warn_again_minutes: int | None = Field(None, ge=0, le=10_080, description="Null: never.")
    reclaim_minutes: int | None = Field(None, ge=0, le=10_080, description="Null: never.")
    reclaim_share_percent: int | None = Field(None, ge=1, le=100, description="Reclaim only while at least this share of the job's GPUs is idle.")
    hold_after: bool | None = Field(None, description="Hold a reclaimed job until someone releases it.")
    weekdays: list[int] | None = Field(None, max_length=7, description="0 is Monday; empty: all days.")
    hours_from: int | None = Field(None, ge=0, lt=1440, description="Minute of the day.")
    hours_until: int | None = Field(None, ge=0, lt=1440, description="Minute of the day.")
    zone: str | None = Field(None, max_length=60, description="Such as Europe/Berlin.")
    reason: str = Field(max_length=300, json_schema_extra=SAID)


class ExemptionOut(Schema):
    id: str
    quota: str | None = Field(description="Path of the node that is exempt with all below it; null where it is a job.", examples=["acme/research"])
    job: str | None
    until: datetime = Field(description="Until when it holds.", examples=["2026-06-01T00:00:00Z"])
    reason: str
    by: str
    created_at: datetime


class ExemptionsOut(Schema):
    items: list[ExemptionOut]


class ExemptionIn(Taken):
    """Either `quota` or `job`."""

    quota: str | None = Field(None, max_length=500, description="Path of a node: all below it is exempt.")
    job: str | None = Field(None, max_length=24, description="Id of a job.")
    days: int = Field(ge=1, le=180, description="How long it holds, in days.")
    reason: str = Field(max_length=300, json_schema_extra=SAID)


@router.get("/idle", response=IdlesOut, url_name="idle", openapi_extra=parameters_of(EPISODES), summary="Idle episodes")
def idle_episodes(request: HttpRequest) -> HttpResponse:
    """Those of the caller's subtrees, open and ended."""
    access = access_of(request)
    return listed(request, EPISODES, episodes_listed(access), _facts, partial(idle_rows, access, now=now()))


@router.get("/idle/summary", response=IdleSummaryOut, url_name="idle_summary", summary="Idle GPUs now, and in seven days")
def idle_totals(request: HttpRequest) -> HttpResponse:
    told = idle_summary(access_of(request), now=now())
    return answered(
        {
            "episodes": told.episodes,
            "idle_milli": told.gpus_milli,
            "cost_per_hour_micros": told.cost_per_hour_micros,
            "week_gpu_hours_milli": told.week_hours_milli,
            "won_gpu_hours_milli": told.won_hours_milli,
            "reclaims": told.reclaims,
            "worst": [
                {
                    "owner": one.owner,
                    "quota": one.quota,
                    "episodes": one.episodes,
                    "wasted_gpu_hours_milli": one.hours_milli,
                    "cost_micros": one.cost_micros,
                }
                for one in told.worst
            ],
        }
    )


@router.get("/idle/policies", response=PoliciesOut, url_name="idle_policies", summary="Idle policies that nodes state")
def idle_policy_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    rows = (
        IdlePolicy.objects.filter(access.visible(Can.SEE, "node__path"), node__archived_at__isnull=True).select_related("node").order_by("node__path")
    )
    return answered({"items": [_policy(row.node, row.node.path, rules_of(row), row.revision) for row in rows]})


@router.get("/idle/policies/{quota_id}", response=PolicyOut, url_name="idle_policy", summary="The idle policy that holds for a node")
def idle_policy(request: HttpRequest, quota_id: str) -> HttpResponse:
    return _policy_answer(_node(request, quota_id))


@router.put("/idle/policies/{quota_id}", response=PolicyOut, url_name="idle_policy", openapi_extra=IF_MATCH, summary="State an idle policy on a node")
def idle_policy_put(request: HttpRequest, quota_id: str, body: PolicyIn) -> HttpResponse:
    """What is not named stays as it is, or as the node above has it."""
    node = _node(request, quota_id)
    values = {name: value for name, value in body.dict(exclude_unset=True).items() if name != "reason"}
    always = {"enabled", "threshold_percent", "window_minutes", "classes", "reclaim_share_percent", "hold_after", "weekdays", "zone"}
    values = {name: value for name, value in values.items() if value is not None or name not in always}
    policy_save(access=access_of(request), node=node, values=values, reason=body.reason, revision=revision_wanted(request), now=now())
    return _policy_answer(node)


@router.delete("/idle/policies/{quota_id}", response={204: None}, url_name="idle_policy", summary="Remove the idle policy of a node")
def idle_policy_delete(request: HttpRequest, quota_id: str) -> Status[None]:
    policy_remove(access=access_of(request), node=_node(request, quota_id), reason="")
    return Status(204, None)


@router.get("/idle/exemptions", response=ExemptionsOut, url_name="idle_exemptions", summary="Exemptions from idle policies")
def idle_exemption_list(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return answered({"items": [_exemption(row) for row in exemptions_seen(access, now())]})


@router.post("/idle/exemptions", response={201: ExemptionOut}, url_name="idle_exemptions", summary="Exempt a job or a node from idle policies")
def idle_exemption_create(request: HttpRequest, body: ExemptionIn) -> HttpResponse:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    if bool(body.quota) == bool(body.job):
        raise ValidationError({"quota": ["Name a node or a job: one of the two."]})
    node = nodes_visible(access).filter(path=body.quota).first() if body.quota else None
    if body.quota and node is None:
        raise ValidationError({"quota": [f"There is no node {body.quota} that you may see."]})
    job = job_for(access, body.job) if body.job else None
    moment = now()
    until = moment + timedelta(days=body.days)
    made = exemption_create(access=access, node=node, job=job, reason=body.reason, until=until, now=moment)
    answer = answered(_exemption(made))
    answer.status_code = 201
    return answer


@router.delete("/idle/exemptions/{exemption_id}", response={204: None}, url_name="idle_exemption", summary="End an exemption")
def idle_exemption_delete(request: HttpRequest, exemption_id: str) -> Status[None]:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    found = exemption_for(access, exemption_id)
    if found is None:
        raise Http404(f"There is no exemption {exemption_id}.")
    exemption_end(access=access, exemption=found, now=now())
    return Status(204, None)


@router.get("/idle/{episode_id}", response=IdleDetailOut, url_name="idle_episode", summary="An idle episode with its trail")
def idle_episode(request: HttpRequest, episode_id: str) -> HttpResponse:
    return _detail(request, episode_id)


@router.post("/idle/{episode_id}/notify", response=IdleDetailOut, url_name="idle_notify", summary="Notify the owner of idle GPUs")
def idle_notify(request: HttpRequest, episode_id: str, body: NotifyIn) -> HttpResponse:
    access = access_of(request)
    episode_notify(access=access, episode=episode_for(access, episode_id), text=body.reason, now=now())
    return _detail(request, episode_id)


@router.post("/idle/{episode_id}/reclaim", response=IdleDetailOut, url_name="idle_reclaim", summary="Reclaim idle GPUs")
def idle_reclaim(request: HttpRequest, episode_id: str, body: ReclaimIn) -> HttpResponse:
    """The job saves its work, leaves, and waits to resume from its checkpoint. 409 where the episode has ended."""
    access = access_of(request)
    episode_reclaim(access=access, episode=episode_for(access, episode_id), reason=body.reason, hold=body.hold, now=now())
    return _detail(request, episode_id)


@router.post("/idle/{episode_id}/snooze", response=IdleDetailOut, url_name="idle_snooze", summary="Snooze an idle episode")
def idle_snooze(request: HttpRequest, episode_id: str, body: SnoozeIn) -> HttpResponse:
    """An owner may snooze an episode twice."""
    access = access_of(request)
    episode_snooze(access=access, episode=episode_for(access, episode_id), hours=body.hours, reason=body.reason, now=now())
    return _detail(request, episode_id)


def _detail(request: HttpRequest, episode_id: str) -> HttpResponse:
    access = access_of(request)
    episode = episode_for(access, episode_id)
    steps = [{"at": step.at, "kind": step.kind, "text": step.text, "by": step.by} for step in episode_steps(episode)]
    row = idle_rows(access, [episode], now=now())[0]
    return answered(_facts(row) | {"gpus": [gpu.public_id for gpu in episode_gpus(episode)], "steps": steps})


def _facts(row: IdleRow) -> dict[str, Any]:
    one = row.episode
    plain = ("gpu_type", "waste", "stage", "stage_at", "held_milli", "idle_milli", "started_at", "ended_at", "end_reason", "fault", "snoozed_until")
    return {
        "id": one.public_id,
        "job": one.job.public_id,
        "job_name": one.job.name,
        "quota": one.quota.path,
        "owner": one.owner.username if one.owner else None,
        **{name: getattr(one, name) for name in plain},
        "activity_percent": one.activity_centi / 100,
        "idle_minutes": one.idle_millis // 60_000,
        "wasted_gpu_hours_milli": row.hours_milli,
        "won_gpu_hours_milli": round(one.won_milli_millis / 3_600_000),
        "cost_micros": row.cost_micros,
    }


def _node(request: HttpRequest, quota_id: str) -> QuotaNode:
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    found = nodes_visible(access).filter(public_id=quota_id).first()
    if found is None:
        raise Http404(f"There is no node {quota_id}.")
    return found


def _policy_answer(node: QuotaNode) -> HttpResponse:
    path, rules = policies_read().for_path(node.path)
    row = IdlePolicy.objects.filter(node=node).first()
    revision = row.revision if row else 0
    return stamped(answered(_policy(node, path, rules, revision)), revision)


def _policy(node: QuotaNode, path: str, rules: Rules, revision: int) -> dict[str, Any]:
    values = {name: getattr(rules, name) for name in PolicyFields.model_fields}
    return {"quota": node.path, "stated_by": path or None, "revision": revision, **values}


def _exemption(row: IdleExemption) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "quota": row.node.path if row.node else None,
        "job": row.job.public_id if row.job else None,
        **{name: getattr(row, name) for name in ("until", "reason", "by", "created_at")},
    }
