"""What is sent, and the parts of addresses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.core.files.uploadedfile import SimpleUploadedFile

from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.models import PlannedHealth, PlannedJobChange
from tests import builders, traces

if TYPE_CHECKING:
    from tests.url_expectations.world import World

SPLIT_FORM = {"mode": "mig", "layout": "3g.40gb@0", "reason": "Test", "step": "apply"}
SPLIT = {"mode": "mig", "instances": [{"profile": "3g.40gb", "start": 0}], "reason": "Test"}


def team(world: World) -> dict[str, Any]:
    return {"public_id": world.team.public_id}


def health_planned(world: World) -> PlannedHealth:
    plan = {"public_id": "hp-1", "to": "draining", "begins_at": now() + timedelta(hours=2), "way": "finish", "reason": "Test", "author_name": "Test"}
    return PlannedHealth.objects.get_or_create(node=world.node, defaults=plan)[0]


def gone(world: World) -> str:
    """The name of a cluster that does not answer."""
    return builders.cluster("alpha", silent_since=builders.NOON).name


def source(world: World) -> dict[str, Any]:
    return {"public_id": world.source.public_id}


def unused(world: World) -> str:
    """The name of a cluster on which nothing runs, as the examples have it."""
    return builders.cluster("alpha").name


def change_planned(world: World) -> PlannedJobChange:
    author = world.personas.users["operator"]
    plan = {"author": author, "action": "hold", "begins_at": now() + timedelta(hours=2), "reason": "Test"}
    found = PlannedJobChange.objects.get_or_create(public_id="pc-1", defaults=plan)[0]
    found.jobs.add(world.job)
    return found


def node_form(world: World) -> dict[str, Any]:
    return {"kind": "project", "weight": 1, "priority": 100, "revision": 1, "name": "fresh", "reason": "Test"}


def job_form(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "train", "quota": world.team.path, "gpus": "1", "_from": "form"}


def view_form(world: World) -> dict[str, Any]:
    return {"name": "Other", "shared_with": world.team.path}


def hook_json(world: World) -> dict[str, Any]:
    return {"quota": world.team.path, "name": "Chat", "url": "https://hooks.example.org/x", "kinds": ["job.failed"]}


HEALTH_RULE_JSON = {
    "name": "Hotter",
    "signal": "thermal",
    "threshold": 60,
    "window_minutes": 5,
    "clear_below": 20,
    "clear_minutes": 10,
    "action": "note",
}
SERVICE_LEVEL = {"title": "p99 latency", "latency": "max(p99_seconds)", "objective_ms": 300}
SOURCE_JSON = {"name": "Other", "url": "https://prometheus.example.com"}
SOURCE = SOURCE_JSON | {"enabled": "on"}
HEALTH_RULE = {name: str(value) for name, value in HEALTH_RULE_JSON.items()}
ALERT_RULE_JSON = {"name": "Gaps", "figure": "gap_percent", "threshold": 45, "clear_at": 40, "for_minutes": 5, "severity": "warning"}
ALERT_RULE = {name: str(value) for name, value in ALERT_RULE_JSON.items()}


def idle_form() -> dict[str, Any]:
    return {
        "enabled": "on",
        "threshold_percent": "5",
        "window_minutes": "20",
        "classes": ["batch"],
        "reclaim_share_percent": "50",
        "zone": "UTC",
        "reason": "Test",
    }


def exemption_json(world: World) -> dict[str, Any]:
    return {"until": (now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ"), "reason": "Test"}


def reservation_json(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0) + timedelta(days=2)
    assert world.node.pk, "there is a GPU to reserve"
    times = {"starts_at": start.isoformat(), "ends_at": (start + timedelta(hours=2)).isoformat()}
    return {"name": "Morning", "quota": world.team.path, "gpu_type": world.gpu.gpu_type_id, "gpus": 1} | times


def reservation_form(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0, tzinfo=None) + timedelta(days=2)
    times = {"start": start.isoformat(timespec="minutes"), "end": (start + timedelta(hours=2)).isoformat(timespec="minutes"), "zone": "UTC"}
    assert world.node.pk, "there is a GPU to reserve"
    amount = {"gpu_type": world.gpu.gpu_type_id, "amount": 1, "shape": "gpus"}
    return {"name": "Morning", "owner": world.team.path, "notice_min": 10, "lead_min": 15, "idle": "held", "do": "write"} | times | amount


def power_form(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0, tzinfo=None)
    return {"pool": "", "kilowatts": "12", "start": start.isoformat(timespec="minutes"), "zone": "UTC", "do": "write"}


def rate_form(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0, tzinfo=None)
    return {"pool": "", "price": "0.24", "start": start.isoformat(timespec="minutes"), "zone": "UTC", "do": "write"}


def forecast_json(world: World) -> dict[str, Any]:
    return {"steps": [{"start": now().isoformat(), "grams": 320}]}


def forecast_sent(world: World) -> dict[str, Any]:
    assert world.energy_forecast.pk, "there is one to remove"
    return {}


def budget_json(world: World) -> dict[str, Any]:
    return {"name": "Month", "quota": world.team.path, "unit": "gpu_hours", "amount": 1000, "period": "month"}


def budget_form(world: World) -> dict[str, Any]:
    return budget_json(world) | {"zone": "UTC", "warn_percent": 80, "stop_percent": 100, "at_stop": "nothing_new"}


def card_json(world: World) -> dict[str, Any]:
    prices = [{"gpu_type": "H100-SXM-80GB", "list_micros": 3_000_000}]
    return {"name": "Rates", "valid_from": "2026-10-01T00:00:00Z", "prices": prices}


def card_form(world: World) -> dict[str, Any]:
    lines = {"line-TOTAL_FORMS": 1, "line-INITIAL_FORMS": 0, "line-0-gpu_type": "H100-SXM-80GB", "line-0-listed": "3.10"}
    return {"name": "Rates", "valid_from": "2026-10-01T00:00"} | lines


def invoice_form(world: World) -> dict[str, Any]:
    return {"amount": "10.00", "reference": "INV-1", "basis": "contracted", "line-TOTAL_FORMS": 0, "line-INITIAL_FORMS": 0}


def days_json(world: World) -> dict[str, Any]:
    first = world.charge_line.month.first
    return {"from": f"{first}", "to": f"{first.replace(day=20)}"}


def cost_mail_json(world: World) -> dict[str, Any]:
    User.objects.filter(username="finance").update(email="finance@example.org")
    return {"team": world.team.path, "people": ["finance"], "day": 3}


def change_json(world: World) -> dict[str, Any]:
    return {"edits": [{"op": "update", "node": world.team.public_id, "set": {"weight": 3}}], "reason": "Test"}


def tree_file(world: World) -> dict[str, Any]:
    return {"format": "yaml", "text": f"nodes: [{{path: {world.team.path}, kind: team, weight: 3}}]", "reason": "Test"}


def exception_json(world: World) -> dict[str, Any]:
    return {"extra": 500, "until": (now() + timedelta(days=3)).isoformat(), "reason": "Test"}


def schedule_json(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "nightly", "cron": "0 2 * * *", "description": {"quota": world.team.path, "gpus": 1}}


def schedule_form(world: World) -> dict[str, Any]:
    chosen = {"zone": "Europe/Berlin", "overlap": "skip", "catch_up": "last", "description": f"quota: {world.team.path}\ngpus: 1\n"}
    return schedule_json(world) | chosen


def what_if_json(world: World) -> dict[str, Any]:
    assert world.node.pk
    return {"days": 1, "policy": {"placement": "spread"}}


TRACE_JSON = {"title": "Few", "kind": "scenario", "files": [{"name": "few.json", "text": traces.document()}]}


def trace_form(world: World) -> dict[str, Any]:
    return {"title": "Few", "kind": "scenario", "files": SimpleUploadedFile("few.json", traces.document().encode())}


def own_trace_json(world: World) -> dict[str, Any]:
    builders.job(on=world.team, submitted_at=now())
    return {"days": 2}


def own_trace_form(world: World) -> dict[str, Any]:
    return {"own-days": str(own_trace_json(world)["days"])}


def sweep_json(world: World) -> dict[str, Any]:
    return {"trace": world.trace.public_id, "values": [0.5, 1]}


def sweep_form(world: World) -> dict[str, Any]:
    chosen = {"axis": "load", "values": "0.5 1", "policies": ["stated"], "seeds": "1", "minutes": "1"}
    return chosen | {"trace": world.trace.public_id}


def what_if_form(world: World) -> dict[str, Any]:
    assert world.node.pk
    return {"days": "1", "placement": "spread"}


FIELDS: dict[str, Callable[[World], dict[str, Any]]] = {
    "trace": lambda w: {"public_id": w.trace.public_id},
    "sweep": lambda w: {"public_id": w.sweep.public_id},
    "ended sweep": lambda w: {"public_id": w.ended_sweep.public_id},
    "what-if": lambda w: {"public_id": w.what_if.public_id},
    "ended what-if": lambda w: {"public_id": w.ended_what_if.public_id},
    "stranger": lambda w: {"public_id": w.stranger.public_id},
    "hardware node": lambda w: {"public_id": w.node.public_id},
    "empty": lambda w: {"public_id": w.empty.public_id},
    "array": lambda w: {"public_id": w.array},
    "others' array": lambda w: {"public_id": w.others_array},
    "archived": lambda w: {"public_id": w.archived.public_id},
    "token": lambda w: {"public_id": w.token.public_id},
    "gpu": lambda w: {"public_id": w.gpu.public_id},
    "job": lambda w: {"public_id": w.job.public_id},
    "running job": lambda w: {"public_id": w.running_job.public_id},
    "service": lambda w: {"public_id": w.service.public_id},
    "placed service": lambda w: {"public_id": w.placed_service.public_id},
    "replaced service": lambda w: {"public_id": w.replaced_service.public_id},
    "draft job": lambda w: {"public_id": w.draft_job.public_id},
    "held job": lambda w: {"public_id": w.held_job.public_id},
    "others' job": lambda w: {"public_id": w.others_job.public_id},
    "webhook": lambda w: {"public_id": w.webhook.public_id},
    "others' webhook": lambda w: {"public_id": w.others_webhook.public_id},
    "schedule": lambda w: {"public_id": w.schedule.public_id},
    "reservation": lambda w: {"public_id": w.reservation.public_id},
    "lasting reservation": lambda w: {"public_id": w.lasting_reservation.public_id},
    "power cap": lambda w: {"public_id": w.power_cap.public_id},
    "energy rate": lambda w: {"public_id": w.energy_rate.public_id},
    "deferred job": lambda w: {"public_id": w.deferred_job.public_id},
    "rated type": lambda w: {"gpu_type": w.gpu.gpu_type_id},
    "budget": lambda w: {"public_id": w.budget.public_id},
    "cost export": lambda w: {"public_id": w.cost_export.public_id},
    "cost mail": lambda w: {"public_id": w.cost_mail.public_id},
    "rate card": lambda w: {"public_id": w.rate_card.public_id},
    "change": lambda w: {"public_id": w.tree_change.public_id},
    "proposed change": lambda w: {"public_id": w.proposed_change.public_id},
    "applied change": lambda w: {"public_id": w.applied_change.public_id},
    "excepted budget": lambda w: {"public_id": w.excepted_budget.public_id},
    "paused schedule": lambda w: {"public_id": w.paused_schedule.public_id},
    "episode": lambda w: {"public_id": w.episode.public_id},
    "exemption": lambda w: {"public_id": w.exemption.public_id},
    "upload": lambda w: {"public_id": w.upload.public_id},
}
HARDWARE = "clusters: [{name: fresh}]"


def reason(world: World) -> dict[str, Any]:
    return {"reason": "Test"}


def node_json(world: World) -> dict[str, Any]:
    return {"kind": "project", "name": "fresh", "shares": {}}


def move_json(world: World) -> dict[str, Any]:
    return {"name": "language", "parent": world.team.parent.public_id, "revision": 1}


def job_json(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "train", "quota": world.team.path, "gpus": 1}


def template_json(world: World) -> dict[str, Any]:
    return {"quota": world.team.path, "name": "own", "title": "Own", "body": {"gpus": 1}}


def speeds_json(world: World) -> dict[str, Any]:
    return {"ref": world.template, "speeds": {builders.gpu_type().name: 1}}


def speeds_form(world: World) -> dict[str, Any]:
    builders.gpu(builders.node(gpus=1))
    return {f"speed.{builders.gpu_type().name}": "1", "seen": "0"}


def token_json(world: World) -> dict[str, Any]:
    return {"name": "made by a program", "scopes": ["admin"], "expires_at": (now() + timedelta(hours=1)).isoformat()}
