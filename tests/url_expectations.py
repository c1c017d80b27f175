"""Who gets in where: one line for each address and method. `tests/test_url_matrix.py` fails when an address has none.

    Expect("GET", "nodes/<slug:public_id>/", SEES, at=lambda w: {"public_id": w.node.public_id})

The route is written as the URL configuration has it. `who` gets in; of the rest, those in `hidden` are told 404 (the row lies outside their
subtrees), nobody signed in is sent to sign in (the API: 401), and everybody else gets 403. A write states a body that is good (`data`; the API's
is sent as JSON): it must leave an entry in the audit log, unless `silent` says why it writes nothing.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

from dashboards.models import Alert, AlertRule, HealthRule, IdleEpisode, IdleExemption, IdlePolicy, Incident, Silence
from dashboards.prometheus.models import PrometheusServer
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.chargeback.cards import card_draft
from quotas.chargeback.months import Span, month_at
from quotas.models import Budget, ChargeLine, ChargeMonth, QuotaChange, RateCard, Reservation, RoleBinding, ServiceToken
from quotas.services.budgets import budget_create, exception_grant
from quotas.services.changes import Wanted, change_apply, change_draft, change_propose
from scheduler.models import (
    Cluster,
    Delivery,
    Gpu,
    InventoryImport,
    Job,
    JobBatch,
    JobState,
    Lease,
    Node,
    PlanRecord,
    SavedView,
    Schedule,
    SlurmCluster,
    Webhook,
)
from scheduler.services.hardware.imports import import_preview
from scheduler.services.jobs.bulk import asked_checked, jobs_steer
from scheduler.services.jobs.templates import template_save
from scheduler.services.schedules.schedules import schedule_create
from scheduler.services.windows.reservations import reservation_request
from tests import builders
from tests.personas import PEOPLE, Personas

SIGNED_IN = frozenset(PEOPLE) - {"anonymous"}
ANYONE = frozenset(PEOPLE)
NOBODY: frozenset[str] = frozenset()
SUPER = frozenset({"superuser"})
SEES = SIGNED_IN - {"stranger"}
OPERATES = SUPER | {"operator"}
EDITS = SUPER | {"quota_admin"}
MANAGES = SUPER | {"quota_admin", "team_lead"}
AUDITS = SUPER | {"operator", "quota_admin", "finance"}
SUBMITS = SUPER | {"submitter", "team_lead"}
HOOKS = SUPER | {"operator", "quota_admin", "team_lead"}
TEMPLATES = SUPER | {"operator", "quota_admin", "team_lead"}
STEERS = SUPER | {"submitter", "team_lead", "operator"}  # the submitter's own job
POLICIES = SUPER | {"operator", "quota_admin"}
IDLE = SUPER | {"operator", "team_lead"}
ASKS = SUPER | {"team_lead", "quota_admin", "operator"}
COSTS = SUPER | {"team_lead", "quota_admin", "finance"}
PRICES = SUPER | {"finance"}
FLEET = SUPER | {"operator", "finance"}  # a role on the root: they see every subtree

TOKEN_SCOPES = ("read", "submit", "operate", "admin")


@dataclass
class World:
    """What the addresses name. `team` is acme/research/nlp, where viewer, submitter and team lead live; `other` is out of their sight."""

    personas: Personas

    @cached_property
    def team(self) -> Any:
        return self.personas.nodes["acme/research/nlp"]

    @cached_property
    def other(self) -> Any:
        return self.personas.nodes["acme/product/search"]

    @cached_property
    def archived(self) -> Any:
        return builders.quota("old", parent=self.personas.nodes["acme/research"], archived_at=builders.NOON)

    @cached_property
    def empty(self) -> Any:
        return builders.quota("empty", parent=self.personas.nodes["acme/research"])

    @cached_property
    def stranger(self) -> Any:
        return self.personas.users["stranger"]

    @cached_property
    def binding(self) -> RoleBinding:
        return RoleBinding.objects.get(user=self.personas.users["viewer"])

    @cached_property
    def token(self) -> ServiceToken:
        self.personas.token("viewer", "read")
        return ServiceToken.objects.get(owner=self.personas.users["viewer"])

    @cached_property
    def entry(self) -> AuditEntry:
        return AuditEntry.objects.create(actor_name="test", via="system", action="t", object_kind="t", object_id="1", quota_path="acme/research")

    @cached_property
    def node(self) -> Node:
        return builders.node(gpus=1)

    @cached_property
    def slurm(self) -> Cluster:
        """Connected to a Slurm that this machine does not have."""
        found = builders.cluster("hpc", backend="slurm")
        SlurmCluster.objects.create(cluster=found, tag="test", folder="/none", changed_at=builders.NOON)
        return found

    @cached_property
    def gpu(self) -> Gpu:
        return self.node.gpus.get()

    @cached_property
    def job(self) -> Job:
        """The submitter's own, waiting."""
        return builders.job(on=self.team, owner=self.personas.users["submitter"])

    @cached_property
    def running_job(self) -> Job:
        found = builders.job(on=self.team, owner=self.personas.users["submitter"], state=JobState.RUNNING)
        builders.placement(found, self.gpu)
        return found

    @cached_property
    def draft_job(self) -> Job:
        return builders.job(on=self.team, owner=self.personas.users["submitter"], state=JobState.DRAFT)

    @cached_property
    def held_job(self) -> Job:
        return builders.job(on=self.team, owner=self.personas.users["submitter"], held_at=builders.NOON)

    def pause(self) -> dict[str, Any]:
        Lease.objects.get_or_create(name="tick", defaults={"paused_at": builders.NOON, "paused_by": "Test", "paused_reason": "Test"})
        return {}

    @cached_property
    def others_job(self) -> Job:
        return builders.job(on=self.other)

    @cached_property
    def array(self) -> str:
        """Two jobs of the submitter."""
        for place in range(2):
            builders.job(f"sweep[{place}]", on=self.team, owner=self.personas.users["submitter"], array="a-1", array_index=place)
        return "a-1"

    @cached_property
    def others_array(self) -> str:
        builders.job("other[0]", on=self.other, array="a-2", array_index=0)
        return "a-2"

    @cached_property
    def view(self) -> SavedView:
        """The superuser's, shared with the team."""
        owner = self.personas.users["superuser"]
        return SavedView.objects.create(public_id="v-1", owner=owner, name="Waits", query="phase=waiting", shared_with=self.team)

    @cached_property
    def schedule(self) -> Schedule:
        """The submitter's, each hour."""
        given = {"name": "nightly", "cron": "0 * * * *", "description": {"quota": self.team.path, "gpus": 1, "launch": {"command": ["true"]}}}
        builders.gpu_type()
        made = schedule_create(access=self.personas.access("submitter"), given=given, now=now())
        made.runs.create(due_at=builders.NOON, outcome="missed", note="Nobody looked.", faults={"gpus": ["None."]}, by="Test")
        return made

    @cached_property
    def paused_schedule(self) -> Schedule:
        Schedule.objects.filter(pk=self.schedule.pk).update(paused_at=builders.NOON, paused_by="Test", paused_reason="Test")
        return self.schedule

    def _reserved(self, who: str, **given: Any) -> Reservation:
        assert self.node.pk
        asked = _reservation_json(self) | given
        asked |= {name: datetime.fromisoformat(asked[name]) for name in ("starts_at", "ends_at")}
        return reservation_request(access=self.personas.access(who), given=asked, now=now())

    @cached_property
    def reservation(self) -> Reservation:
        """The team lead's, pending."""
        return self._reserved("team_lead")

    @cached_property
    def lasting_reservation(self) -> Reservation:
        """The superuser's, on a window that lasts now."""
        moment = now()
        times = {"starts_at": (moment - timedelta(hours=1)).isoformat(), "ends_at": (moment + timedelta(hours=1)).isoformat()}
        return self._reserved("superuser", **times)

    @cached_property
    def budget(self) -> Budget:
        return budget_create(access=self.personas.access("superuser"), given=_budget_json(self), now=now())

    @cached_property
    def charge_line(self) -> ChargeLine:
        """Of the month that runs."""
        return self._charge_line(month_at(now()))

    @cached_property
    def past_month(self) -> ChargeMonth:
        return self._charge_line(Span(month_at(now())).before).month

    def _charge_line(self, first: date) -> ChargeLine:
        month = ChargeMonth.objects.create(first=first, currency="USD")
        facts = {"job": "j-1", "quota": self.team, "quota_path": self.team.path, "cluster": "north", "gpu_type": "H100-SXM-80GB"}
        amounts = {"milli_millis": 1000, "list_nanos": 0, "contracted_nanos": 0, "effective_nanos": 0}
        return ChargeLine.objects.create(month=month, day=first, share_class="guaranteed", preemptible=True, tier="whole", **facts, **amounts)

    @cached_property
    def rate_card(self) -> RateCard:
        """A draft."""
        lines = [{"gpu_type": "H100-SXM-80GB", "list_micros": 3_000_000}]
        given = {"name": "Rates", "valid_from": builders.NOON, "lines": lines}
        return card_draft(access=self.personas.access("superuser"), given=given, now=now())

    @cached_property
    def tree_change(self) -> QuotaChange:
        """The superuser's draft about the team."""
        return self._draft()

    def _draft(self) -> QuotaChange:
        """A new one each time: a change is proposed or applied only once."""
        return change_draft(access=self.personas.access("superuser"), wanted=Wanted(_change_json(self)["edits"]), now=now())

    @cached_property
    def proposed_change(self) -> QuotaChange:
        access, change = self.personas.access("superuser"), self._draft()
        return change_propose(access=access, change=change, revision=change.revision, now=now())

    @cached_property
    def applied_change(self) -> QuotaChange:
        access, change = self.personas.access("superuser"), self._draft()
        return change_apply(access=access, change=change, revision=change.revision, capacity={}, now=now())

    @cached_property
    def excepted_budget(self) -> Budget:
        moment = now()
        exception_grant(
            access=self.personas.access("superuser"), budget=self.budget, extra=1000, until=moment + timedelta(days=1), reason="Test", now=moment
        )
        return self.budget

    @cached_property
    def episode(self) -> IdleEpisode:
        """GPUs of the submitter's running job stay idle."""
        moment, job = now(), self.running_job
        facts = {"public_id": "e-1", "gpu_type": "H100-SXM-80GB", "waste": "empty", "held_milli": 1000, "idle_milli": 1000, "activity_centi": 0}
        times = {"started_at": moment - timedelta(hours=1), "seen_at": moment, "stage_at": moment}
        run = job.attempts.get()
        return IdleEpisode.objects.create(job=job, attempt=run, quota=job.quota, owner=job.owner, gpus=[self.gpu.pk], **facts, **times)

    @cached_property
    def health_rule(self) -> HealthRule:
        facts = {"name": "Hot", "signal": "thermal", "threshold": 60, "window_minutes": 5, "clear_below": 20, "clear_minutes": 10}
        return HealthRule.objects.create(public_id="hr-x", action="note", **facts)

    @cached_property
    def source(self) -> PrometheusServer:
        return PrometheusServer.objects.create(public_id="ps-x", name="Main", url="https://192.0.2.1")

    @cached_property
    def incident(self) -> Incident:
        return Incident.objects.create(public_id="in-1", node=self.node, opened_at=builders.NOON, title="Test")

    @cached_property
    def alert(self) -> Alert:
        rule = AlertRule.objects.create(public_id="ar-x", name="Gap", figure="gap_percent", threshold=45, clear_at=40)
        times = {"since": builders.NOON, "fired_at": builders.NOON}
        return Alert.objects.create(public_id="al-1", rule=rule, state="firing", value=50, worst=50, **times)

    @cached_property
    def silence(self) -> Silence:
        return Silence.objects.create(public_id="si-1", reason="Test", until=now() + timedelta(days=1), by="Test")

    @cached_property
    def exemption(self) -> IdleExemption:
        until = now() + timedelta(days=1)
        return IdleExemption.objects.create(public_id="x-1", node=self.team, reason="Test", until=until, by="Test")

    @cached_property
    def idle_policy(self) -> IdlePolicy:
        return IdlePolicy.objects.create(node=self.team, classes=["batch"], notify_minutes=5)

    @cached_property
    def batch(self) -> JobBatch:
        """What the superuser did to many jobs."""
        asked = asked_checked(action="hold", jobs=[(self.job.public_id, None), (self.others_job.public_id, None), ("j-999999", None)])
        return jobs_steer(access=self.personas.access("superuser"), asked=asked, reason="Test", now=builders.NOON).batch

    @cached_property
    def plan(self) -> PlanRecord:
        return builders.plan()

    @cached_property
    def template(self) -> str:
        access = self.personas.access("superuser")
        template_save(access=access, node=self.team, name="shared", title="Shared", body={"gpus": 1}, now=builders.NOON)
        return f"{self.team.path}:shared"

    @cached_property
    def webhook(self) -> Webhook:
        return builders.webhook(self.team)

    @cached_property
    def others_webhook(self) -> Webhook:
        return builders.webhook(self.other)

    @cached_property
    def delivery(self) -> Delivery:
        return builders.delivery(self.webhook)

    @property
    def delivered(self) -> dict[str, Any]:
        return {"public_id": self.webhook.public_id, "delivery_id": self.delivery.public_id}

    @cached_property
    def upload(self) -> InventoryImport:
        access = self.personas.access("superuser")
        preview = import_preview(access=access, text=HARDWARE, form="yaml", source="test", remove_missing=False, now=builders.NOON)
        assert preview.upload is not None
        return preview.upload


@dataclass(frozen=True)
class Expect:
    method: str
    route: str
    who: frozenset[str]
    at: Callable[[World], dict[str, Any]] = field(default=lambda world: {})
    hidden: frozenset[str] = NOBODY
    data: Callable[[World], dict[str, Any]] = field(default=lambda world: {})
    silent: str = ""
    lands: tuple[int, ...] = (200,)  # what a GET answers to those who get in
    tokens: frozenset[str] = NOBODY  # API: scopes of a superuser's token that get in
    case: str = ""

    @property
    def is_api(self) -> bool:
        return self.route.startswith("api/")

    def __str__(self) -> str:
        return f"{self.method} {self.route}{' ' + self.case if self.case else ''}"


def _team(world: World) -> dict[str, Any]:
    return {"public_id": world.team.public_id}


def _node_form(world: World) -> dict[str, Any]:
    return {"kind": "project", "weight": 1, "priority": 100, "revision": 1, "name": "fresh", "reason": "Test"}


def _job_form(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "train", "quota": world.team.path, "gpus": "1", "_from": "form"}


def _view_form(world: World) -> dict[str, Any]:
    return {"name": "Other", "shared_with": world.team.path}


def _hook_json(world: World) -> dict[str, Any]:
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
SOURCE = {"name": "Other", "url": "https://prometheus.example.com", "enabled": "on"}
HEALTH_RULE = {name: str(value) for name, value in HEALTH_RULE_JSON.items()}
ALERT_RULE_JSON = {"name": "Gaps", "figure": "gap_percent", "threshold": 45, "clear_at": 40, "for_minutes": 5, "severity": "warning"}
ALERT_RULE = {name: str(value) for name, value in ALERT_RULE_JSON.items()}


def _idle_form() -> dict[str, Any]:
    return {"enabled": "on", "threshold_percent": "5", "window_minutes": "20", "classes": ["batch"], "zone": "UTC", "reason": "Test"}


def _exemption_json(world: World) -> dict[str, Any]:
    return {"until": (now() + timedelta(days=2)).strftime("%Y-%m-%dT%H:%M:%SZ"), "reason": "Test"}


def _reservation_json(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0) + timedelta(days=2)
    assert world.node.pk, "there is a GPU to reserve"
    times = {"starts_at": start.isoformat(), "ends_at": (start + timedelta(hours=2)).isoformat()}
    return {"name": "Morning", "quota": world.team.path, "gpu_type": world.gpu.gpu_type_id, "gpus": 1} | times


def _reservation_form(world: World) -> dict[str, Any]:
    start = now().replace(microsecond=0, tzinfo=None) + timedelta(days=2)
    times = {"start": start.isoformat(timespec="minutes"), "end": (start + timedelta(hours=2)).isoformat(timespec="minutes"), "zone": "UTC"}
    assert world.node.pk, "there is a GPU to reserve"
    amount = {"gpu_type": world.gpu.gpu_type_id, "amount": 1, "shape": "gpus"}
    return {"name": "Morning", "owner": world.team.path, "notice_min": 10, "lead_min": 15, "idle": "held", "do": "write"} | times | amount


def _budget_json(world: World) -> dict[str, Any]:
    return {"name": "Month", "quota": world.team.path, "unit": "gpu_hours", "amount": 1000, "period": "month"}


def _budget_form(world: World) -> dict[str, Any]:
    return _budget_json(world) | {"zone": "UTC", "warn_percent": 80, "stop_percent": 100, "at_stop": "nothing_new"}


def _card_json(world: World) -> dict[str, Any]:
    prices = [{"gpu_type": "H100-SXM-80GB", "list_micros": 3_000_000}]
    return {"name": "Rates", "valid_from": "2026-10-01T00:00:00Z", "prices": prices}


def _card_form(world: World) -> dict[str, Any]:
    lines = {"line-TOTAL_FORMS": 1, "line-INITIAL_FORMS": 0, "line-0-gpu_type": "H100-SXM-80GB", "line-0-listed": "3.10"}
    return {"name": "Rates", "valid_from": "2026-10-01T00:00"} | lines


def _change_json(world: World) -> dict[str, Any]:
    return {"edits": [{"op": "update", "node": world.team.public_id, "set": {"weight": 3}}], "reason": "Test"}


def _tree_file(world: World) -> dict[str, Any]:
    return {"format": "yaml", "text": f"nodes: [{{path: {world.team.path}, kind: team, weight: 3}}]", "reason": "Test"}


def _exception_json(world: World) -> dict[str, Any]:
    return {"extra": 500, "until": (now() + timedelta(days=3)).isoformat(), "reason": "Test"}


def _schedule_json(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "nightly", "cron": "0 2 * * *", "description": {"quota": world.team.path, "gpus": 1}}


def _schedule_form(world: World) -> dict[str, Any]:
    chosen = {"zone": "Europe/Berlin", "overlap": "skip", "catch_up": "last", "description": f"quota: {world.team.path}\ngpus: 1\n"}
    return _schedule_json(world) | chosen


FIELDS: dict[str, Callable[[World], dict[str, Any]]] = {
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
    "draft job": lambda w: {"public_id": w.draft_job.public_id},
    "held job": lambda w: {"public_id": w.held_job.public_id},
    "others' job": lambda w: {"public_id": w.others_job.public_id},
    "webhook": lambda w: {"public_id": w.webhook.public_id},
    "others' webhook": lambda w: {"public_id": w.others_webhook.public_id},
    "schedule": lambda w: {"public_id": w.schedule.public_id},
    "reservation": lambda w: {"public_id": w.reservation.public_id},
    "lasting reservation": lambda w: {"public_id": w.lasting_reservation.public_id},
    "budget": lambda w: {"public_id": w.budget.public_id},
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

PAGES = [
    # the tree
    Expect("GET", "quotas/", SEES),
    Expect("GET", "quotas/new/", SUPER),
    Expect("POST", "quotas/new/", SUPER, data=_node_form, silent="There is a top already, so it is refused."),
    Expect("GET", "quotas/<str:public_id>/", SEES, _team),
    Expect("GET", "quotas/<str:public_id>/", FLEET, lambda w: {"public_id": w.other.public_id}, hidden=SEES - FLEET, case="of another team"),
    Expect("GET", "quotas/<str:public_id>/edit/", EDITS, _team),
    Expect("POST", "quotas/<str:public_id>/edit/", EDITS, _team, data=lambda w: _node_form(w) | {"kind": "team", "title": "New"}),
    Expect("GET", "quotas/<str:public_id>/new/", EDITS, _team),
    Expect("POST", "quotas/<str:public_id>/new/", EDITS, _team, data=_node_form),
    Expect(
        "POST",
        "quotas/<str:public_id>/new/",
        SUPER,
        lambda w: {"public_id": w.other.public_id},
        hidden=frozenset({"quota_admin"}),
        data=_node_form,
        case="of another department",
    ),
    Expect("GET", "quotas/<str:public_id>/move/", EDITS, _team),
    Expect(
        "POST",
        "quotas/<str:public_id>/move/",
        EDITS,
        _team,
        data=lambda w: {"name": "language", "parent": w.team.parent.public_id, "revision": 1},
    ),
    Expect("GET", "quotas/<str:public_id>/archive/", EDITS, _team),
    Expect("POST", "quotas/<str:public_id>/archive/", EDITS, lambda w: {"public_id": w.empty.public_id}, data=lambda w: {"revision": 1}),
    Expect("POST", "quotas/<str:public_id>/restore/", EDITS, lambda w: {"public_id": w.archived.public_id}, data=lambda w: {"revision": 1}),
    Expect("POST", "quotas/<str:public_id>/roles/", MANAGES, _team, data=lambda w: {"holder": "stranger", "role": "viewer"}),
    Expect("GET", "quotas/<str:public_id>/roles/<int:pk>/end/", MANAGES, lambda w: _team(w) | {"pk": w.binding.pk}),
    Expect("POST", "quotas/<str:public_id>/roles/<int:pk>/end/", MANAGES, lambda w: _team(w) | {"pk": w.binding.pk}),
    Expect("GET", "quotas/changes/", SEES),
    Expect("GET", "quotas/changes/<slug:public_id>/", SEES, FIELDS["change"]),
    Expect("GET", "quotas/past/", SEES),
    Expect("GET", "quotas/export/", SEES),
    Expect("GET", "quotas/import/", EDITS),
    Expect("POST", "quotas/import/", EDITS, data=_tree_file),
    Expect("GET", "quotas/editor/", EDITS),
    Expect("POST", "quotas/editor/", EDITS, data=lambda w: {"edits": json.dumps({"edits": _change_json(w)["edits"], "seen": {}})}),
    Expect("POST", "quotas/changes/<slug:public_id>/step/", EDITS, FIELDS["change"], data=lambda w: {"step": "apply"}),
    Expect(
        "POST",
        "quotas/changes/<slug:public_id>/step/",
        frozenset({"quota_admin"}),
        FIELDS["proposed change"],
        data=lambda w: {"step": "approve"},
        case="that waits for a second person",
    ),
    # reservations and budgets
    Expect("GET", "reservations/", SEES),
    Expect("GET", "reservations/timeline/", SEES),
    Expect("GET", "reservations/floors/", SEES),
    Expect("GET", "reservations/list/", SEES),
    Expect("GET", "reservations/new/", ASKS),
    Expect("POST", "reservations/new/", ASKS, data=_reservation_form),
    Expect("GET", "reservations/<slug:public_id>/", SEES, FIELDS["reservation"]),
    Expect("GET", "reservations/<slug:public_id>/edit/", ASKS, FIELDS["reservation"]),
    Expect("POST", "reservations/<slug:public_id>/edit/", ASKS, FIELDS["reservation"], data=_reservation_form),
    Expect("POST", "reservations/<slug:public_id>/decide/", EDITS, FIELDS["reservation"], data=lambda w: {"to": "approved"}),
    Expect("POST", "reservations/<slug:public_id>/end/", ASKS, FIELDS["lasting reservation"]),
    Expect("GET", "reservations/<slug:public_id>/cancel/", ASKS, FIELDS["reservation"]),
    Expect("POST", "reservations/<slug:public_id>/cancel/", ASKS, FIELDS["reservation"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "cost/", COSTS),
    Expect("GET", "cost/lines/", COSTS),
    Expect("GET", "cost/lines/<int:pk>/", COSTS, lambda w: {"pk": w.charge_line.pk}),
    Expect("GET", "cost/file/", COSTS, lambda w: w.charge_line and {}),
    Expect("GET", "cost/<str:month>/close/", PRICES, lambda w: {"month": f"{w.charge_line.month}"}),
    Expect("POST", "cost/<str:month>/close/", PRICES, lambda w: {"month": f"{w.past_month}"}, data=lambda w: {"mode": "showback"}),
    Expect("GET", "cost/rates/", COSTS),
    Expect("GET", "cost/rates/new/", PRICES),
    Expect("POST", "cost/rates/new/", PRICES, data=_card_form),
    Expect("GET", "cost/rates/<slug:public_id>/", COSTS, FIELDS["rate card"]),
    Expect("GET", "cost/rates/<slug:public_id>/edit/", PRICES, FIELDS["rate card"]),
    Expect("POST", "cost/rates/<slug:public_id>/edit/", PRICES, FIELDS["rate card"], data=_card_form),
    Expect("POST", "cost/rates/<slug:public_id>/activate/", PRICES, FIELDS["rate card"]),
    Expect("POST", "cost/rates/<slug:public_id>/discard/", PRICES, FIELDS["rate card"]),
    Expect("GET", "budgets/", SEES),
    Expect("GET", "budgets/new/", EDITS),
    Expect("POST", "budgets/new/", EDITS, data=_budget_form),
    Expect("GET", "budgets/<slug:public_id>/", SEES, FIELDS["budget"]),
    Expect("GET", "budgets/<slug:public_id>/edit/", EDITS, FIELDS["budget"]),
    Expect("POST", "budgets/<slug:public_id>/edit/", EDITS, FIELDS["budget"], data=_budget_form),
    Expect("POST", "budgets/<slug:public_id>/exception/", EDITS, FIELDS["budget"], data=_exception_json),
    Expect("GET", "budgets/<slug:public_id>/remove/", EDITS, FIELDS["budget"]),
    Expect("POST", "budgets/<slug:public_id>/remove/", EDITS, FIELDS["budget"], data=lambda w: {"reason": "Test"}),
    # people
    Expect("GET", "people/", MANAGES),
    Expect("GET", "people/new/", SUPER),
    Expect("POST", "people/new/", SUPER, data=lambda w: {"username": "new", "display_name": "New"}),
    Expect("GET", "people/<str:public_id>/", MANAGES, FIELDS["stranger"]),
    Expect("GET", "people/<str:public_id>/edit/", SUPER, FIELDS["stranger"]),
    Expect("POST", "people/<str:public_id>/edit/", SUPER, FIELDS["stranger"], data=lambda w: {"display_name": "Other"}),
    Expect("GET", "people/<str:public_id>/active/", SUPER, FIELDS["stranger"]),
    Expect("POST", "people/<str:public_id>/active/", SUPER, FIELDS["stranger"]),
    Expect("GET", "people/<str:public_id>/reset/", SUPER, FIELDS["stranger"]),
    Expect("POST", "people/<str:public_id>/reset/", SUPER, FIELDS["stranger"]),
    # one's own
    Expect("GET", "profile/", SIGNED_IN),
    Expect("GET", "tokens/", SIGNED_IN),
    Expect("GET", "tokens/new/", SEES),
    Expect("POST", "tokens/new/", SEES, data=lambda w: {"name": "t", "scopes": ["read"], "lifetime": "7"}),
    Expect("GET", "tokens/<str:public_id>/revoke/", SUPER | {"viewer"}, lambda w: {"public_id": w.token.public_id}, hidden=SIGNED_IN),
    Expect("POST", "tokens/<str:public_id>/revoke/", SUPER | {"viewer"}, lambda w: {"public_id": w.token.public_id}, hidden=SIGNED_IN),
    # audit
    Expect("GET", "audit/", AUDITS),
    Expect("GET", "audit/<int:pk>/", AUDITS, lambda w: {"pk": w.entry.pk}),
    # signing in and out
    Expect("GET", "accounts/login/", ANYONE, lands=(200, 302)),
    Expect("POST", "accounts/login/", ANYONE, data=lambda w: {"login": "viewer", "password": "wrong"}, silent="The superuser is in already."),
    Expect("GET", "accounts/logout/", ANYONE, lands=(200, 302)),
    Expect("POST", "accounts/logout/", ANYONE),
    Expect("GET", "accounts/password/change/", SIGNED_IN),
    Expect("POST", "accounts/password/change/", SIGNED_IN, silent="The old password is missing."),
    Expect("GET", "accounts/password/first/<uidb64>/<token>/", ANYONE, lambda w: {"uidb64": "MQ", "token": "x-y"}),
    Expect("POST", "accounts/password/first/<uidb64>/<token>/", ANYONE, lambda w: {"uidb64": "MQ", "token": "x-y"}, silent="The link is no good."),
    # the shell
    Expect("GET", "search/", SIGNED_IN),
    Expect("GET", "search/suggest", SIGNED_IN),
    Expect("POST", "clock", SIGNED_IN, data=lambda w: {"utc": "1"}),
    Expect("POST", "columns", SIGNED_IN, data=lambda w: {"table": "nodes", "column": "health"}, silent="The browser keeps it."),
    Expect("GET", "healthz", ANYONE),
    Expect("GET", "metrics", FLEET),
    Expect("GET", "live/<slug:topic>/snapshot", SEES, lambda w: {"topic": "test-topic"}),
    # overview and map
    Expect("GET", "", SEES),
    Expect("GET", "overview/", SEES),
    Expect("GET", "overview/history", SEES),
    Expect("GET", "home/team/", SUBMITS),
    Expect("GET", "home/on-call/", OPERATES),
    Expect("GET", "home/month/", COSTS),
    Expect("GET", "fleet/", SEES),
    # jobs and the scheduler
    Expect("GET", "jobs/", SEES),
    Expect("GET", "jobs/new/", SUBMITS),
    Expect("POST", "jobs/new/", SUBMITS, data=_job_form),
    Expect("POST", "jobs/new/look", SUBMITS, data=_job_form, silent="It only asks."),
    Expect("POST", "jobs/new/draft", SUBMITS, data=_job_form, silent="A draft starts nothing and is its owner's alone."),
    Expect("POST", "jobs/new/draft/<slug:public_id>/delete/", SUBMITS, lambda w: {"public_id": "d-1"}, silent="The same."),
    Expect("GET", "templates/", SEES),
    Expect("GET", "templates/at/<path:ref>", SEES, lambda w: {"ref": w.template}),
    Expect("GET", "templates/edit/", TEMPLATES),
    Expect("POST", "templates/edit/", TEMPLATES, data=lambda w: {"node": w.team.path, "name": "own", "title": "Own", "body": "gpus: 1", "seen": "0"}),
    Expect("POST", "templates/archive/", TEMPLATES, data=lambda w: {"ref": w.template}, hidden=NOBODY),
    Expect("GET", "jobs/<slug:public_id>/", SEES, FIELDS["job"]),
    Expect("GET", "jobs/<slug:public_id>/", FLEET, FIELDS["others' job"], hidden=SEES - FLEET, case="of another team"),
    Expect("GET", "jobs/<slug:public_id>/course", SEES, FIELDS["job"]),
    Expect("GET", "jobs/<slug:public_id>/course", FLEET, FIELDS["others' job"], hidden=SEES - FLEET, case="of another team"),
    Expect("GET", "jobs/<slug:public_id>/sooner/", STEERS, FIELDS["job"]),
    Expect("GET", "jobs/<slug:public_id>/log/", STEERS, FIELDS["job"]),
    Expect("GET", "jobs/<slug:public_id>/cancel/", STEERS, FIELDS["job"]),
    Expect("POST", "jobs/<slug:public_id>/cancel/", STEERS, FIELDS["job"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "jobs/<slug:public_id>/edit/", STEERS, FIELDS["job"]),
    Expect("POST", "jobs/<slug:public_id>/edit/", STEERS, FIELDS["job"], data=lambda w: {"revision": w.job.revision, "priority": "60"}),
    Expect("GET", "jobs/<slug:public_id>/restart/", STEERS, FIELDS["job"]),
    Expect("POST", "jobs/<slug:public_id>/restart/", STEERS, FIELDS["running job"], data=lambda w: {"revision": w.running_job.revision}),
    Expect("POST", "jobs/<slug:public_id>/checkpoint/", STEERS, FIELDS["running job"], data=lambda w: {"reason": "Test"}),
    Expect("POST", "jobs/<slug:public_id>/enqueue/", STEERS, FIELDS["draft job"]),
    Expect("POST", "jobs/<slug:public_id>/hold/", STEERS, FIELDS["job"], data=lambda w: {"reason": "Test"}),
    Expect("POST", "jobs/<slug:public_id>/release/", STEERS, FIELDS["held job"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "jobs/queue/", SEES),
    Expect("GET", "jobs/suggest/", SEES),
    Expect("GET", "jobs/views/", SEES),
    Expect("POST", "jobs/views/new/", SEES, data=lambda w: {"name": "Mine", "query": "phase=waiting"}),
    Expect("POST", "jobs/views/<slug:public_id>/", SUPER, lambda w: {"public_id": w.view.public_id}, data=_view_form),
    Expect("POST", "jobs/views/<slug:public_id>/remove/", SUPER | {"team_lead", "operator"}, lambda w: {"public_id": w.view.public_id}),
    Expect("POST", "jobs/bulk/", STEERS, data=lambda w: {"action": "hold", "row": w.job.public_id}, silent="A preview changes nothing."),
    Expect("POST", "jobs/bulk/do/", STEERS, data=lambda w: {"action": "hold", "job": f"{w.job.public_id}:1", "reason": "Test"}),
    Expect("GET", "jobs/batches/<slug:public_id>/", SUPER, lambda w: {"public_id": w.batch.public_id}, hidden=SEES),
    Expect("GET", "jobs/arrays/<slug:public_id>/", SEES, FIELDS["array"]),
    Expect("GET", "jobs/arrays/<slug:public_id>/", FLEET, FIELDS["others' array"], hidden=SEES - FLEET, case="of another team"),
    Expect("GET", "jobs/arrays/<slug:public_id>/steer/", STEERS, FIELDS["array"]),
    Expect("POST", "jobs/arrays/<slug:public_id>/steer/", STEERS, FIELDS["array"], data=lambda w: {"action": "hold", "reason": "Test"}),
    Expect("GET", "schedules/", SEES),
    Expect("GET", "schedules/new/", SUBMITS),
    Expect("POST", "schedules/new/", SUBMITS, data=_schedule_form),
    Expect("GET", "schedules/<slug:public_id>/", SEES, FIELDS["schedule"]),
    Expect("GET", "schedules/<slug:public_id>/edit/", STEERS, FIELDS["schedule"]),
    Expect("POST", "schedules/<slug:public_id>/edit/", SUPER | {"submitter", "team_lead", "operator"}, FIELDS["schedule"], data=_schedule_form),
    Expect("POST", "schedules/<slug:public_id>/switch/", STEERS, FIELDS["schedule"], data=lambda w: {"to": "paused"}),
    Expect("POST", "schedules/<slug:public_id>/run/", STEERS, FIELDS["schedule"]),
    Expect("POST", "schedules/<slug:public_id>/take/", STEERS, FIELDS["schedule"]),
    Expect("GET", "schedules/<slug:public_id>/remove/", STEERS, FIELDS["schedule"]),
    Expect("POST", "schedules/<slug:public_id>/remove/", STEERS, FIELDS["schedule"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "scheduler/", FLEET),
    Expect("POST", "scheduler/pause/", OPERATES, data=lambda w: {"reason": "Test"}),
    Expect("POST", "scheduler/resume/", OPERATES, lambda w: w.pause(), data=lambda w: {"reason": "Test"}),
    Expect("GET", "scheduler/scenario", FLEET),
    Expect("GET", "scheduler/plans/<int:pk>/", FLEET, lambda w: {"pk": w.plan.pk}),
    Expect("GET", "scheduler/plans/<int:pk>/scenario", FLEET, lambda w: {"pk": w.plan.pk}),
    # what one is told
    Expect("POST", "jobs/<slug:public_id>/follow/", SEES, FIELDS["job"], data=lambda w: {"to": "yes"}),
    Expect("GET", "notifications/", SIGNED_IN),
    Expect("GET", "notifications/unread", SIGNED_IN),
    Expect("POST", "notifications/read/", SIGNED_IN, data=lambda w: {"all": "1"}, silent="What one has read changes nothing for anybody."),
    Expect("GET", "notifications/settings/", SIGNED_IN),
    Expect("POST", "notifications/settings/", SIGNED_IN, data=lambda w: {"ways-failed": "console", "zone": "UTC", "quiet_rule": "hold"}),
    Expect("POST", "notifications/test/", SIGNED_IN),
    Expect("POST", "notifications/webhook/", SIGNED_IN, data=lambda w: {"url": "https://hooks.example.org/x"}),
    # idle GPUs
    Expect("GET", "idle/", SEES),
    Expect("GET", "idle/policies/", SEES),
    Expect("GET", "idle/policies/<slug:public_id>/", POLICIES, _team),
    Expect("POST", "idle/policies/<slug:public_id>/", POLICIES, _team, data=lambda w: _idle_form()),
    Expect("GET", "idle/policies/<slug:public_id>/remove/", POLICIES, _team),
    Expect("POST", "idle/policies/<slug:public_id>/remove/", POLICIES, lambda w: {"public_id": w.idle_policy.node.public_id}),
    Expect("GET", "idle/exemptions/new/", POLICIES),
    Expect("POST", "idle/exemptions/new/", POLICIES, data=lambda w: _exemption_json(w) | {"node": w.team.public_id}),
    Expect("POST", "idle/exemptions/<slug:public_id>/end/", POLICIES, FIELDS["exemption"]),
    Expect("GET", "idle/<slug:public_id>/", SEES, FIELDS["episode"]),
    Expect("GET", "idle/<slug:public_id>/notify/", IDLE, FIELDS["episode"]),
    Expect("POST", "idle/<slug:public_id>/notify/", IDLE, FIELDS["episode"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "idle/<slug:public_id>/reclaim/", IDLE, FIELDS["episode"]),
    Expect("POST", "idle/<slug:public_id>/reclaim/", IDLE, FIELDS["episode"], data=lambda w: {"reason": "Test"}),
    Expect("GET", "idle/<slug:public_id>/snooze/", STEERS, FIELDS["episode"]),
    Expect("POST", "idle/<slug:public_id>/snooze/", STEERS, FIELDS["episode"], data=lambda w: {"reason": "Test", "hours": "2"}),
    Expect("GET", "telemetry/", OPERATES),
    Expect("GET", "telemetry/new/", OPERATES),
    Expect("POST", "telemetry/new/", OPERATES, data=lambda w: SOURCE),
    Expect("GET", "telemetry/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.source.public_id}),
    Expect("POST", "telemetry/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.source.public_id}, data=lambda w: SOURCE),
    Expect("POST", "telemetry/<slug:public_id>/test/", OPERATES, lambda w: {"public_id": w.source.public_id}),
    Expect("GET", "telemetry/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.source.public_id}),
    Expect("POST", "telemetry/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.source.public_id}),
    Expect("GET", "fragmentation/", SEES),
    Expect("GET", "fragmentation/history", SEES),
    Expect("GET", "gap/", SEES),
    Expect("GET", "gap/history", SEES),
    # incidents and health rules
    Expect("GET", "incidents/", SEES),
    Expect("GET", "incidents/rules/", SEES),
    Expect("GET", "incidents/rules/new/", OPERATES),
    Expect("POST", "incidents/rules/new/", OPERATES, data=lambda w: HEALTH_RULE),
    Expect("GET", "incidents/rules/limits/", OPERATES),
    Expect("POST", "incidents/rules/limits/", OPERATES, data=lambda w: {"most_percent": "10", "patience_minutes": "5", "burn_in_minutes": "5"}),
    Expect("GET", "incidents/rules/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.health_rule.public_id}),
    Expect("POST", "incidents/rules/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.health_rule.public_id}, data=lambda w: HEALTH_RULE),
    Expect("GET", "incidents/rules/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.health_rule.public_id}),
    Expect("POST", "incidents/rules/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.health_rule.public_id}),
    Expect("GET", "incidents/<slug:public_id>/", SEES, lambda w: {"public_id": w.incident.public_id}),
    # activity and alerts
    Expect("GET", "activity/", SEES),
    Expect("GET", "activity/alerts/", SEES),
    Expect("GET", "activity/alerts/rules/", SEES),
    Expect("GET", "activity/alerts/rules/new/", OPERATES),
    Expect("POST", "activity/alerts/rules/new/", OPERATES, data=lambda w: ALERT_RULE),
    Expect("GET", "activity/alerts/rules/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.alert.rule.public_id}),
    Expect("POST", "activity/alerts/rules/<slug:public_id>/", OPERATES, lambda w: {"public_id": w.alert.rule.public_id}, data=lambda w: ALERT_RULE),
    Expect("POST", "activity/alerts/rules/<slug:public_id>/test/", OPERATES, lambda w: {"public_id": w.alert.rule.public_id}),
    Expect("GET", "activity/alerts/rules/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.alert.rule.public_id}),
    Expect("POST", "activity/alerts/rules/<slug:public_id>/remove/", OPERATES, lambda w: {"public_id": w.alert.rule.public_id}),
    Expect("GET", "activity/alerts/silences/new/", OPERATES),
    Expect("POST", "activity/alerts/silences/new/", OPERATES, data=lambda w: _exemption_json(w)),
    Expect("POST", "activity/alerts/silences/<slug:public_id>/end/", OPERATES, lambda w: {"public_id": w.silence.public_id}),
    Expect("GET", "activity/alerts/<slug:public_id>/", SEES, lambda w: {"public_id": w.alert.public_id}),
    Expect("POST", "activity/alerts/<slug:public_id>/acknowledge/", OPERATES, lambda w: {"public_id": w.alert.public_id}),
    # webhooks
    Expect("GET", "webhooks/", HOOKS),
    Expect("GET", "webhooks/new/", HOOKS),
    Expect("POST", "webhooks/new/", HOOKS, data=lambda w: _hook_json(w) | {"node": w.team.public_id}),
    Expect("GET", "webhooks/<slug:public_id>/", HOOKS, FIELDS["webhook"]),
    Expect("GET", "webhooks/<slug:public_id>/", FLEET - {"finance"}, FIELDS["others' webhook"], hidden=HOOKS - FLEET, case="of another team"),
    Expect("GET", "webhooks/<slug:public_id>/edit/", HOOKS, FIELDS["webhook"]),
    Expect("POST", "webhooks/<slug:public_id>/edit/", HOOKS, FIELDS["webhook"], data=lambda w: _hook_json(w) | {"revision": 1}),
    Expect("POST", "webhooks/<slug:public_id>/switch/", HOOKS, FIELDS["webhook"], data=lambda w: {"to": "paused"}),
    Expect("GET", "webhooks/<slug:public_id>/secret/", HOOKS, FIELDS["webhook"]),
    Expect("POST", "webhooks/<slug:public_id>/secret/", HOOKS, FIELDS["webhook"]),
    Expect("GET", "webhooks/<slug:public_id>/remove/", HOOKS, FIELDS["webhook"]),
    Expect("POST", "webhooks/<slug:public_id>/remove/", HOOKS, FIELDS["webhook"]),
    Expect("POST", "webhooks/<slug:public_id>/test/", HOOKS, FIELDS["webhook"]),
    Expect("GET", "webhooks/<slug:public_id>/<slug:delivery>/", HOOKS, lambda w: FIELDS["webhook"](w) | {"delivery": w.delivery.public_id}),
    Expect("POST", "webhooks/<slug:public_id>/<slug:delivery>/again/", HOOKS, lambda w: FIELDS["webhook"](w) | {"delivery": w.delivery.public_id}),
    # hardware
    Expect("GET", "clusters/", SEES),
    Expect("GET", "clusters/<slug:name>/", SEES, lambda w: {"name": w.node.cluster.name}),
    Expect("GET", "nodes/", SEES),
    Expect("GET", "nodes/<slug:public_id>/", SEES, FIELDS["hardware node"]),
    Expect("GET", "nodes/<slug:public_id>/health/", OPERATES, FIELDS["hardware node"]),
    Expect("GET", "nodes/<slug:public_id>/course", SEES, FIELDS["hardware node"]),
    Expect("POST", "nodes/<slug:public_id>/health/", OPERATES, FIELDS["hardware node"], data=lambda w: {"to": "draining", "reason": "Test"}),
    Expect("POST", "nodes/<slug:public_id>/spare/", OPERATES, FIELDS["hardware node"], data=lambda w: {"spare": "yes", "reason": "Test"}),
    Expect("GET", "gpus/", SEES),
    Expect("GET", "gpus/catalogue/", SEES),
    Expect("GET", "gpus/<slug:public_id>/", SEES, FIELDS["gpu"]),
    Expect("GET", "gpus/<slug:public_id>/course", SEES, FIELDS["gpu"]),
    Expect("POST", "gpus/<slug:public_id>/health/", OPERATES, FIELDS["gpu"], data=lambda w: {"to": "suspect", "reason": "Test"}),
    Expect("GET", "gpus/<slug:public_id>/geometry/", OPERATES, FIELDS["gpu"]),
    Expect("POST", "gpus/<slug:public_id>/geometry/", OPERATES, FIELDS["gpu"], data=lambda w: SPLIT_FORM),
    Expect("GET", "inventory/import/", OPERATES),
    Expect("POST", "inventory/import/", OPERATES, data=lambda w: {"text": HARDWARE}, silent="A preview changes nothing."),
    Expect("GET", "inventory/import/<slug:public_id>/", OPERATES, FIELDS["upload"]),
    Expect("POST", "inventory/import/<slug:public_id>/", OPERATES, FIELDS["upload"]),
    Expect("GET", "inventory/slurm/", OPERATES),
    Expect("POST", "inventory/slurm/", OPERATES, data=lambda w: {"cluster": "hpc", "folder": "/none"}, silent="A test changes nothing."),
    Expect("GET", "inventory/slurm/<slug:name>/", OPERATES, lambda w: {"name": w.slurm.name}),
    Expect("POST", "inventory/slurm/<slug:name>/", OPERATES, lambda w: {"name": w.slurm.name}, silent="A look at Slurm changes nothing."),
    Expect("GET", "inventory/discover/", OPERATES),
    Expect("POST", "inventory/discover/", OPERATES, silent="A look at the machine changes nothing."),
]

ALL_SCOPES = frozenset(TOKEN_SCOPES)
OPERATING = frozenset({"operate"})
WRITING = ALL_SCOPES - {"read"}
HOOKING = frozenset({"operate", "admin"})
STEERING = frozenset({"submit", "operate"})
SPLIT_FORM = {"mode": "mig", "layout": "3g.40gb@0", "reason": "Test", "step": "apply"}
SPLIT = {"mode": "mig", "instances": [{"profile": "3g.40gb", "start": 0}], "reason": "Test"}
ADMIN = frozenset({"admin"})
ASKING = frozenset({"submit", "operate", "admin"})


def _reason(world: World) -> dict[str, Any]:
    return {"reason": "Test"}


def _node_json(world: World) -> dict[str, Any]:
    return {"kind": "project", "name": "fresh", "shares": {}}


def _move_json(world: World) -> dict[str, Any]:
    return {"name": "language", "parent": world.team.parent.public_id, "revision": 1}


def _job_json(world: World) -> dict[str, Any]:
    builders.gpu_type()
    return {"name": "train", "quota": world.team.path, "gpus": 1}


def _template_json(world: World) -> dict[str, Any]:
    return {"quota": world.team.path, "name": "own", "title": "Own", "body": {"gpus": 1}}


def _token_json(world: World) -> dict[str, Any]:
    return {"name": "made by a program", "scopes": ["admin"], "expires_at": (now() + timedelta(hours=1)).isoformat()}


API = [
    Expect("GET", "api/v1/me", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/openapi.json", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/docs", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/clusters", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/clusters/<name>", SEES, lambda w: {"name": w.node.cluster.name}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/nodes", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/nodes/<public_id>", SEES, FIELDS["hardware node"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/nodes/<public_id>/history", SEES, FIELDS["hardware node"], tokens=ALL_SCOPES),
    Expect(
        "POST",
        "api/v1/nodes/<public_id>/health",
        OPERATES,
        FIELDS["hardware node"],
        data=lambda w: {"to": "down", "reason": "Test"},
        tokens=OPERATING,
    ),
    Expect(
        "POST",
        "api/v1/nodes/<public_id>/spare",
        OPERATES,
        FIELDS["hardware node"],
        data=lambda w: {"spare": True, "reason": "Test"},
        tokens=OPERATING,
    ),
    Expect("GET", "api/v1/gpus", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/gpus/<public_id>", SEES, FIELDS["gpu"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/gpus/<public_id>/history", SEES, FIELDS["gpu"], tokens=ALL_SCOPES),
    Expect("POST", "api/v1/gpus/<public_id>/health", OPERATES, FIELDS["gpu"], data=lambda w: {"to": "down", "reason": "Test"}, tokens=OPERATING),
    Expect("PUT", "api/v1/gpus/<public_id>/geometry", OPERATES, FIELDS["gpu"], data=lambda w: SPLIT, tokens=OPERATING),
    Expect("DELETE", "api/v1/gpus/<public_id>/geometry", OPERATES, FIELDS["gpu"], tokens=OPERATING, silent="Nothing is being repartitioned."),
    Expect("GET", "api/v1/mig/boards", SEES, tokens=ALL_SCOPES),
    Expect(
        "POST",
        "api/v1/inventory/imports",
        OPERATES,
        data=lambda w: {"format": "yaml", "text": HARDWARE},
        silent="A preview changes nothing.",
        tokens=OPERATING,
    ),
    Expect("GET", "api/v1/inventory/imports/<public_id>", OPERATES, FIELDS["upload"], tokens=OPERATING),
    Expect(
        "POST",
        "api/v1/checkpoints",
        NOBODY,
        data=lambda w: {"step": 1, "shard": 0, "shards": 1, "location": "/c/1"},
        silent="Only ranks of a running attempt get in, with its token.",
    ),
    Expect(
        "POST",
        "api/v1/steps",
        NOBODY,
        data=lambda w: {"ranks": 2, "seconds": {"0": 1.2}},
        silent="Only ranks of a running attempt get in, with its token.",
    ),
    Expect("POST", "api/v1/inventory/imports/<public_id>/apply", OPERATES, FIELDS["upload"], tokens=OPERATING),
    Expect(
        "POST",
        "api/v1/inventory/discovery",
        OPERATES,
        data=lambda w: {"cluster": "local"},
        silent="A look at the machine changes nothing.",
        tokens=OPERATING,
    ),
    Expect("GET", "api/v1/jobs", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/jobs", SUBMITS, data=_job_json, tokens=frozenset({"submit"})),
    Expect("GET", "api/v1/templates", SEES, tokens=ALL_SCOPES),
    Expect("PUT", "api/v1/templates", TEMPLATES, data=_template_json, tokens=STEERING | frozenset({"admin"})),
    Expect("POST", "api/v1/templates/archive", TEMPLATES, data=lambda w: {"ref": w.template}, tokens=STEERING | frozenset({"admin"})),
    Expect("GET", "api/v1/templates/{path:ref}", SEES, lambda w: {"ref": w.template}, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/fit", SUBMITS, data=_job_json, tokens=frozenset({"submit"}), silent="It only asks."),
    Expect("POST", "api/v1/submissions", SUBMITS, data=lambda w: {"jobs": [{"description": _job_json(w)}]}, tokens=frozenset({"submit"})),
    Expect("GET", "api/v1/reservations", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/reservations", ASKS, data=_reservation_json, tokens=ASKING),
    Expect("POST", "api/v1/reservations/preview", ASKS, data=_reservation_json, tokens=ASKING, silent="It only asks."),
    Expect("GET", "api/v1/reservations/{public_id}", SEES, FIELDS["reservation"], tokens=ALL_SCOPES),
    Expect("PATCH", "api/v1/reservations/{public_id}", ASKS, FIELDS["reservation"], data=lambda w: {"name": "Evening"}, tokens=ASKING),
    Expect("POST", "api/v1/reservations/{public_id}/approve", EDITS, FIELDS["reservation"], data=lambda w: {"reason": "Test"}, tokens=ADMIN),
    Expect("POST", "api/v1/reservations/{public_id}/deny", EDITS, FIELDS["reservation"], data=lambda w: {"reason": "Test"}, tokens=ADMIN),
    Expect("POST", "api/v1/reservations/{public_id}/cancel", ASKS, FIELDS["reservation"], data=lambda w: {"reason": "Test"}, tokens=ASKING),
    Expect(
        "POST", "api/v1/reservations/{public_id}/end-window", ASKS, FIELDS["lasting reservation"], data=lambda w: {"reason": "Test"}, tokens=ASKING
    ),
    Expect("GET", "api/v1/windows", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/floors", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/quota-changes", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/quota-changes", EDITS, data=_change_json, tokens=ADMIN),
    Expect(
        "POST",
        "api/v1/quota-changes/preview",
        EDITS,
        data=lambda w: {"edits": _change_json(w)["edits"]},
        tokens=ADMIN,
        silent="It only asks.",
    ),
    Expect("GET", "api/v1/quota-changes/{public_id}", SEES, FIELDS["change"], tokens=ALL_SCOPES),
    Expect("PUT", "api/v1/quota-changes/{public_id}", SUPER, FIELDS["change"], data=_change_json, tokens=ADMIN),
    Expect("GET", "api/v1/quota-changes/{public_id}/preview", SEES, FIELDS["change"], tokens=ALL_SCOPES),
    Expect("POST", "api/v1/quota-changes/{public_id}/steps", EDITS, FIELDS["change"], data=lambda w: {"step": "apply"}, tokens=ADMIN),
    Expect(
        "POST",
        "api/v1/quota-changes/{public_id}/steps",
        EDITS,
        FIELDS["applied change"],
        data=lambda w: {"step": "revert"},
        tokens=ADMIN,
        case="that is applied",
    ),
    Expect("GET", "api/v1/quota-file", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/quota-file", EDITS, data=_tree_file, tokens=ADMIN),
    Expect("GET", "api/v1/quota-tree", SEES, data=lambda w: {"at": "2026-01-01T00:00:00Z"}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/budgets", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/budgets", EDITS, data=_budget_json, tokens=ADMIN),
    Expect("GET", "api/v1/budgets/{public_id}", SEES, FIELDS["budget"], tokens=ALL_SCOPES),
    Expect("PATCH", "api/v1/budgets/{public_id}", EDITS, FIELDS["budget"], data=lambda w: {"amount": 2000}, tokens=ADMIN),
    Expect("DELETE", "api/v1/budgets/{public_id}", EDITS, FIELDS["budget"], tokens=ADMIN),
    Expect("POST", "api/v1/budgets/{public_id}/exception", EDITS, FIELDS["budget"], data=_exception_json, tokens=ADMIN),
    Expect("DELETE", "api/v1/budgets/{public_id}/exception", EDITS, FIELDS["excepted budget"], tokens=ADMIN),
    Expect("GET", "api/v1/costs/{month}", COSTS, lambda w: {"month": f"{w.charge_line.month}"}, tokens=frozenset({"read"})),
    Expect("GET", "api/v1/costs/{month}/file", COSTS, lambda w: {"month": f"{w.charge_line.month}"}, tokens=frozenset({"read"})),
    Expect(
        "POST",
        "api/v1/costs/{month}/close",
        PRICES,
        lambda w: {"month": f"{w.past_month}"},
        data=lambda w: {"mode": "showback"},
        tokens=ADMIN,
    ),
    Expect("GET", "api/v1/rate-cards", COSTS, tokens=frozenset({"read", "admin"})),
    Expect("POST", "api/v1/rate-cards", PRICES, data=_card_json, tokens=ADMIN),
    Expect("GET", "api/v1/rate-cards/{public_id}", COSTS, FIELDS["rate card"], tokens=frozenset({"read", "admin"})),
    Expect("POST", "api/v1/rate-cards/{public_id}/activate", PRICES, FIELDS["rate card"], tokens=ADMIN),
    Expect("DELETE", "api/v1/rate-cards/{public_id}", PRICES, FIELDS["rate card"], tokens=ADMIN),
    Expect("GET", "api/v1/schedules", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/schedules", SUBMITS, data=_schedule_json, tokens=frozenset({"submit"})),
    Expect("GET", "api/v1/schedules/{public_id}", SEES, FIELDS["schedule"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/schedules/{public_id}/runs", SEES, FIELDS["schedule"], tokens=ALL_SCOPES),
    Expect("PATCH", "api/v1/schedules/{public_id}", STEERS, FIELDS["schedule"], data=lambda w: {"cron": "5 * * * *"}, tokens=STEERING),
    Expect("DELETE", "api/v1/schedules/{public_id}", STEERS, FIELDS["schedule"], tokens=STEERING),
    Expect("POST", "api/v1/schedules/{public_id}/pause", STEERS, FIELDS["schedule"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/schedules/{public_id}/resume", STEERS, FIELDS["paused schedule"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/schedules/{public_id}/run", STEERS, FIELDS["schedule"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("GET", "api/v1/jobs/queue", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/views", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/jobs/views", SEES, data=lambda w: {"name": "Mine", "parameters": {"phase": "waiting"}}, tokens=WRITING),
    Expect("PATCH", "api/v1/jobs/views/{public_id}", SUPER, lambda w: {"public_id": w.view.public_id}, data=_view_form, tokens=STEERING),
    Expect("DELETE", "api/v1/jobs/views/{public_id}", SUPER | {"team_lead", "operator"}, lambda w: {"public_id": w.view.public_id}, tokens=WRITING),
    Expect("POST", "api/v1/jobs/bulk", STEERS, data=lambda w: {"action": "hold", "jobs": [{"id": w.job.public_id}]}, tokens=STEERING),
    Expect("GET", "api/v1/arrays/{public_id}", SEES, FIELDS["array"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/arrays/{public_id}", FLEET, FIELDS["others' array"], hidden=SEES - FLEET, case="of another team", tokens=ALL_SCOPES),
    Expect("POST", "api/v1/arrays/{public_id}/bulk", STEERS, FIELDS["array"], data=lambda w: {"action": "hold"}, tokens=STEERING),
    Expect("GET", "api/v1/jobs/batches/{public_id}", SUPER, lambda w: {"public_id": w.batch.public_id}, hidden=SIGNED_IN, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/{public_id}/logs", STEERS, FIELDS["job"], tokens=STEERING),
    Expect("GET", "api/v1/jobs/{public_id}/logs/search", STEERS, FIELDS["job"], data=lambda w: {"q": "x"}, tokens=STEERING),
    Expect("GET", "api/v1/jobs/{public_id}/logs/stream", STEERS, FIELDS["job"], tokens=STEERING),
    Expect("GET", "api/v1/jobs/{public_id}", SEES, FIELDS["job"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/{public_id}", FLEET, FIELDS["others' job"], hidden=SEES - FLEET, tokens=ALL_SCOPES, case="of another team"),
    Expect("GET", "api/v1/jobs/{public_id}/why", SEES, FIELDS["job"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/{public_id}/sooner", STEERS, FIELDS["job"], tokens=STEERING),
    Expect("GET", "api/v1/jobs/{public_id}/usage", SEES, FIELDS["job"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/{public_id}/events", SEES, FIELDS["job"], tokens=ALL_SCOPES),
    Expect("GET", "api/v1/jobs/{public_id}/evictions", SEES, FIELDS["job"], tokens=ALL_SCOPES),
    Expect("POST", "api/v1/jobs/{public_id}/cancel", STEERS, FIELDS["job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/enqueue", STEERS, FIELDS["draft job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/hold", STEERS, FIELDS["job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/release", STEERS, FIELDS["held job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("PATCH", "api/v1/jobs/{public_id}", STEERS, FIELDS["job"], data=lambda w: {"priority": 60}, tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/checkpoint", STEERS, FIELDS["running job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/restart", STEERS, FIELDS["running job"], data=lambda w: {"reason": "Test"}, tokens=STEERING),
    Expect("GET", "api/v1/jobs/{public_id}/description", STEERS, FIELDS["job"], tokens=STEERING),
    Expect("POST", "api/v1/jobs/{public_id}/clone", SUBMITS, FIELDS["job"], data=lambda w: {"changes": {}}, tokens=frozenset({"submit"})),
    Expect("GET", "api/v1/me/notices", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/me/notices/read", SIGNED_IN, data=lambda w: {}, tokens=WRITING, silent="What one has read changes nothing for anybody."),
    Expect("GET", "api/v1/me/notices/choices", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("PUT", "api/v1/me/notices/choices", SIGNED_IN, data=lambda w: {"ways": {"failed": ["console"]}}, tokens=WRITING),
    Expect("PUT", "api/v1/me/notices/webhook", SIGNED_IN, data=lambda w: {"url": "https://hooks.example.org/x"}, tokens=frozenset()),
    Expect("DELETE", "api/v1/me/notices/webhook", SIGNED_IN, tokens=frozenset(), silent="There is none."),
    Expect("POST", "api/v1/me/notices/test", SIGNED_IN, tokens=WRITING),
    Expect("GET", "api/v1/me/notices/log", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("PUT", "api/v1/jobs/{public_id}/follow", SEES, FIELDS["job"], tokens=WRITING),
    Expect("DELETE", "api/v1/jobs/{public_id}/follow", SEES, FIELDS["job"], tokens=WRITING, silent="It is not followed."),
    Expect("GET", "api/v1/idle", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/idle/summary", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/idle/policies", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/idle/policies/{quota_id}", SEES, lambda w: {"quota_id": w.team.public_id}, tokens=ALL_SCOPES),
    Expect(
        "PUT",
        "api/v1/idle/policies/{quota_id}",
        POLICIES,
        lambda w: {"quota_id": w.team.public_id},
        data=lambda w: {"notify_minutes": 10, "reason": "Test"},
        tokens=HOOKING,
    ),
    Expect("DELETE", "api/v1/idle/policies/{quota_id}", POLICIES, lambda w: {"quota_id": w.idle_policy.node.public_id}, tokens=HOOKING),
    Expect("GET", "api/v1/idle/exemptions", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/idle/exemptions", POLICIES, data=lambda w: {"quota": w.team.path, "days": 7, "reason": "Test"}, tokens=HOOKING),
    Expect("DELETE", "api/v1/idle/exemptions/{exemption_id}", POLICIES, lambda w: {"exemption_id": w.exemption.public_id}, tokens=HOOKING),
    Expect("GET", "api/v1/idle/{episode_id}", SEES, lambda w: {"episode_id": w.episode.public_id}, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/idle/{episode_id}/notify", IDLE, lambda w: {"episode_id": w.episode.public_id}, data=_reason, tokens=STEERING),
    Expect("POST", "api/v1/idle/{episode_id}/reclaim", IDLE, lambda w: {"episode_id": w.episode.public_id}, data=_reason, tokens=STEERING),
    Expect(
        "POST",
        "api/v1/idle/{episode_id}/snooze",
        STEERS,
        lambda w: {"episode_id": w.episode.public_id},
        data=lambda w: {"reason": "Test", "hours": 2},
        tokens=STEERING,
    ),
    Expect("GET", "api/v1/health", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/incidents", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/incidents/{incident_id}", SEES, lambda w: {"incident_id": w.incident.public_id}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/health/rules", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/health/rules", OPERATES, data=lambda w: HEALTH_RULE_JSON, tokens=OPERATING),
    Expect("POST", "api/v1/health/rules/dry-run", OPERATES, data=lambda w: HEALTH_RULE_JSON, tokens=OPERATING, silent="A dry run changes nothing."),
    Expect("GET", "api/v1/health/rules/{rule_id}", SEES, lambda w: {"rule_id": w.health_rule.public_id}, tokens=ALL_SCOPES),
    Expect(
        "PATCH",
        "api/v1/health/rules/{rule_id}",
        OPERATES,
        lambda w: {"rule_id": w.health_rule.public_id},
        data=lambda w: {"threshold": 90},
        tokens=OPERATING,
    ),
    Expect("DELETE", "api/v1/health/rules/{rule_id}", OPERATES, lambda w: {"rule_id": w.health_rule.public_id}, tokens=OPERATING),
    Expect("GET", "api/v1/health/rules/{rule_id}/dry-run", SEES, lambda w: {"rule_id": w.health_rule.public_id}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/health/limits", SEES, tokens=ALL_SCOPES),
    Expect("PATCH", "api/v1/health/limits", OPERATES, data=lambda w: {"most_percent": 20}, tokens=OPERATING),
    Expect("GET", "api/v1/activity", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/alerts", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/alerts/rules", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/alerts/rules", OPERATES, data=lambda w: ALERT_RULE_JSON, tokens=OPERATING),
    Expect("GET", "api/v1/alerts/rules/{rule_id}", SEES, lambda w: {"rule_id": w.alert.rule.public_id}, tokens=ALL_SCOPES),
    Expect(
        "PATCH",
        "api/v1/alerts/rules/{rule_id}",
        OPERATES,
        lambda w: {"rule_id": w.alert.rule.public_id},
        data=lambda w: {"for_minutes": 9},
        tokens=OPERATING,
    ),
    Expect("DELETE", "api/v1/alerts/rules/{rule_id}", OPERATES, lambda w: {"rule_id": w.alert.rule.public_id}, tokens=OPERATING),
    Expect("POST", "api/v1/alerts/rules/{rule_id}/test", OPERATES, lambda w: {"rule_id": w.alert.rule.public_id}, tokens=OPERATING),
    Expect("GET", "api/v1/alerts/silences", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/alerts/silences", OPERATES, data=lambda w: {"minutes": 60, "reason": "Test"}, tokens=OPERATING),
    Expect("DELETE", "api/v1/alerts/silences/{silence_id}", OPERATES, lambda w: {"silence_id": w.silence.public_id}, tokens=OPERATING),
    Expect("GET", "api/v1/alerts/{alert_id}", SEES, lambda w: {"alert_id": w.alert.public_id}, tokens=ALL_SCOPES),
    Expect(
        "POST",
        "api/v1/alerts/{alert_id}/acknowledge",
        OPERATES,
        lambda w: {"alert_id": w.alert.public_id},
        data=lambda w: {"note": "Test"},
        tokens=OPERATING,
    ),
    Expect("GET", "api/v1/webhooks", HOOKS, tokens=HOOKING),
    Expect("POST", "api/v1/webhooks", HOOKS, data=_hook_json, tokens=HOOKING),
    Expect("GET", "api/v1/webhooks/{public_id}", HOOKS, FIELDS["webhook"], tokens=HOOKING),
    Expect(
        "GET", "api/v1/webhooks/{public_id}", SUPER | {"operator"}, FIELDS["others' webhook"], HOOKS - FLEET, tokens=HOOKING, case="of another team"
    ),
    Expect("PATCH", "api/v1/webhooks/{public_id}", HOOKS, FIELDS["webhook"], data=lambda w: {"state": "paused"}, tokens=HOOKING),
    Expect("DELETE", "api/v1/webhooks/{public_id}", HOOKS, FIELDS["webhook"], tokens=HOOKING),
    Expect("POST", "api/v1/webhooks/{public_id}/secret", HOOKS, FIELDS["webhook"], data=lambda w: {"reason": "Test"}, tokens=HOOKING),
    Expect("POST", "api/v1/webhooks/{public_id}/test", HOOKS, FIELDS["webhook"], tokens=HOOKING),
    Expect("GET", "api/v1/webhooks/{public_id}/deliveries", HOOKS, FIELDS["webhook"], tokens=HOOKING),
    Expect("GET", "api/v1/webhooks/{public_id}/deliveries/{delivery_id}", HOOKS, lambda w: w.delivered, tokens=HOOKING),
    Expect("POST", "api/v1/webhooks/{public_id}/deliveries/{delivery_id}/redeliver", HOOKS, lambda w: w.delivered, tokens=HOOKING),
    Expect("POST", "api/v1/scheduler/pause", OPERATES, data=lambda w: {"reason": "Test"}, tokens=OPERATING),
    Expect("POST", "api/v1/scheduler/resume", OPERATES, lambda w: w.pause(), data=lambda w: {"reason": "Test"}, tokens=OPERATING),
    Expect("GET", "api/v1/scheduler", FLEET, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/scheduler/scenario", FLEET, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/scheduler/plans", FLEET, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/scheduler/plans/{pk}", FLEET, lambda w: {"pk": w.plan.pk}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/scheduler/plans/{pk}/scenario", FLEET, lambda w: {"pk": w.plan.pk}, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/summary", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/history", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/telemetry/sources", OPERATES, tokens=OPERATING),
    Expect("GET", "api/v1/fleet/fragmentation", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/fragmentation/history", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/gap", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/gap/history", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/fleet/map", SEES, tokens=ALL_SCOPES),
    Expect("GET", "api/v1/quotas", SEES, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/quotas", EDITS, data=lambda w: _node_json(w) | {"parent": w.team.public_id}, tokens=ADMIN),
    Expect("GET", "api/v1/quotas/{public_id}", SEES, _team, tokens=ALL_SCOPES),
    Expect("PUT", "api/v1/quotas/{public_id}", EDITS, _team, data=lambda w: _node_json(w) | {"kind": "team", "revision": 1}, tokens=ADMIN),
    Expect("POST", "api/v1/quotas/{public_id}/move", EDITS, _team, data=_move_json, tokens=ADMIN),
    Expect("POST", "api/v1/quotas/{public_id}/archive", EDITS, FIELDS["empty"], data=lambda w: {"revision": 1}, tokens=ADMIN),
    Expect("POST", "api/v1/quotas/{public_id}/restore", EDITS, FIELDS["archived"], data=lambda w: {"revision": 1}, tokens=ADMIN),
    Expect("GET", "api/v1/quotas/{public_id}/roles", SEES, _team, tokens=ALL_SCOPES),
    # A token hands out no role that can do more than the token itself.
    Expect("POST", "api/v1/quotas/{public_id}/roles", MANAGES, _team, data=lambda w: {"role": "viewer", "username": "stranger"}, tokens=ADMIN),
    Expect("DELETE", "api/v1/roles/{role_id}", MANAGES, lambda w: {"role_id": w.binding.pk}, tokens=ADMIN),
    Expect("GET", "api/v1/group-rules", MANAGES, tokens=ADMIN),
    Expect("GET", "api/v1/people", MANAGES, tokens=ADMIN),
    Expect("POST", "api/v1/people", SUPER, data=lambda w: {"username": "new", "display_name": "New"}, tokens=ADMIN),
    Expect("GET", "api/v1/people/{public_id}", MANAGES, FIELDS["stranger"], tokens=ADMIN),
    Expect("PUT", "api/v1/people/{public_id}", SUPER, FIELDS["stranger"], data=lambda w: {"display_name": "Other"}, tokens=ADMIN),
    Expect("POST", "api/v1/people/{public_id}/deactivate", SUPER, FIELDS["stranger"], tokens=ADMIN),
    Expect("POST", "api/v1/people/{public_id}/activate", SUPER, FIELDS["stranger"], tokens=ADMIN),
    Expect("POST", "api/v1/people/{public_id}/reset", SUPER, FIELDS["stranger"], tokens=ADMIN),
    Expect("PUT", "api/v1/me/clock", SIGNED_IN, data=lambda w: {"utc": True}),
    Expect("GET", "api/v1/tokens", SIGNED_IN, tokens=ALL_SCOPES),
    Expect("POST", "api/v1/tokens", SEES, data=_token_json, tokens=ADMIN),
    Expect("DELETE", "api/v1/tokens/{public_id}", SUPER | {"viewer"}, FIELDS["token"], hidden=SIGNED_IN, tokens=ADMIN),
    Expect("GET", "api/v1/audit", AUDITS, tokens=frozenset({"read"})),
    Expect("GET", "api/v1/audit/{entry_id}", AUDITS, lambda w: {"entry_id": w.entry.pk}, tokens=frozenset({"read"})),
]

# Addresses that exist for allauth's sake, or only while single sign-on is configured: 404 for all.
NOT_THERE = (
    "api/v1/",
    "accounts/oidc/<slug:provider_id>/login/",
    "accounts/oidc/<slug:provider_id>/login/callback/",
    "accounts/signup/",
    "accounts/inactive/",
    "accounts/password/set/",
    "accounts/password/reset/",
    "accounts/reauthenticate/",
    "accounts/email/",
    "accounts/3rdparty/",
    "accounts/3rdparty/signup/",
    "accounts/3rdparty/login/cancelled/",
    "accounts/3rdparty/login/error/",
)

EXPECTED = [*PAGES, *API]

# The websocket of all live pages: who stays connected. The rest is told why it closes; each topic asks again for its own capability.
SOCKETS = {"ws/live/": SEES}
