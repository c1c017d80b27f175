"""What the addresses name."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import cached_property
from typing import Any

from dashboards.models import Alert, AlertRule, HealthRule, IdleEpisode, IdleExemption, IdlePolicy, Incident, Silence
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.models import ServiceLevel
from gpufleet.core.models import AuditEntry, User
from gpufleet.core.times import now
from quotas.chargeback.cards import card_draft
from quotas.chargeback.months import Span, month_at
from quotas.chargeback.periods import Period
from quotas.models import Budget, ChargeLine, ChargeMonth, CostExport, CostMail, QuotaChange, RateCard, Reservation, RoleBinding, ServiceToken
from quotas.services.budgets import budget_create, exception_grant
from quotas.services.changes import Wanted, change_apply, change_draft, change_propose
from quotas.services.cost_exports import export_ask, export_write
from scheduler.models import (
    Cluster,
    Defragmentation,
    Delivery,
    EnergyForecast,
    EnergyRate,
    Gpu,
    InventoryImport,
    Job,
    JobBatch,
    JobState,
    KubernetesCluster,
    Lease,
    Node,
    PlanRecord,
    PowerCap,
    QuotaReplay,
    Replacement,
    SavedView,
    Schedule,
    SlurmCluster,
    Sweep,
    Trace,
    Webhook,
)
from scheduler.services.defragmenting import defragmentation_start
from scheduler.services.energy import forecast_put, rate_set
from scheduler.services.forecasts.traces import trace_add
from scheduler.services.hardware.imports import import_preview
from scheduler.services.jobs.bulk import asked_checked, jobs_steer
from scheduler.services.jobs.templates import template_save
from scheduler.services.power import cap_set
from scheduler.services.schedules.schedules import schedule_create
from scheduler.services.windows.reservations import reservation_cancel, reservation_request
from scheduler.traces.rows import File
from tests import builders, traces
from tests.personas import Personas
from tests.url_expectations.bodies import HARDWARE, budget_json, change_json, reservation_json


@dataclass
class World:
    """What the addresses name. `team` is acme/research/nlp, where viewer, submitter and team lead live; `other` is out of their sight."""

    personas: Personas

    @cached_property
    def team(self) -> Any:
        return self.personas.nodes["acme/research/nlp"]

    @cached_property
    def pool(self) -> dict[str, str]:
        found = builders.pool()
        return {"name": found.cluster.name, "pool": found.name}

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
        return builders.node(gpus=3)

    @cached_property
    def host(self) -> Node:
        """A node of which only an operator can say what it enforces."""
        return builders.node("host", of=builders.cluster("console", backend="local"), gpus=1)

    @cached_property
    def slurm(self) -> Cluster:
        """Connected to a Slurm that this machine does not have."""
        found = builders.cluster("hpc", backend="slurm")
        SlurmCluster.objects.create(cluster=found, tag="test", folder="/none", changed_at=builders.NOON)
        return found

    @cached_property
    def kubernetes(self) -> Cluster:
        """Connected to a Kubernetes of which this machine has no context."""
        found = builders.cluster("k8s", backend="kubernetes")
        KubernetesCluster.objects.create(cluster=found, tag="test", context="none", namespace="gpufleet", changed_at=builders.NOON)
        return found

    @cached_property
    def gpu(self) -> Gpu:
        return self.node.gpus.get(index=0)

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
    def service(self) -> Job:
        """An inference job with a range of replicas and a service level."""
        spec = {"roles": [{"name": "server", "min": 1, "max": 4, "gpus": 1}]}
        found = builders.job(on=self.team, owner=self.personas.users["submitter"], state=JobState.RUNNING, job_class="inference", spec=spec)
        ServiceLevel.objects.create(job=found, title="p99 latency", latency="max(p99)", objective_ms=250)
        return found

    @cached_property
    def placed_service(self) -> Job:
        """One with a replica in its place."""
        return self._service_on(1)

    def _service_on(self, gpu: int) -> Job:
        spec = {"roles": [{"name": "server", "min": 1, "max": 4, "gpus": 1}]}
        found = builders.job(on=self.team, owner=self.personas.users["submitter"], state=JobState.RUNNING, job_class="inference", spec=spec)
        builders.placement(found, self.node.gpus.get(index=gpu), role="server")
        return found

    @cached_property
    def replaced_service(self) -> Job:
        """One whose replica is being replaced."""
        found = self._service_on(2)
        Replacement.objects.create(job=found, attempt=found.attempts.get(), role="server", within_seconds=600, actor_name="Ada")
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
    def defragmentation(self) -> Defragmentation:
        return defragmentation_start(access=self.personas.access("operator"), moves=4, reason="Test", now=now())

    @cached_property
    def trace(self) -> Trace:
        files = [File("few.json", traces.document())]
        return trace_add(access=self.personas.access("superuser"), title="Few", kind="scenario", files=files, now=now())

    @cached_property
    def sweep(self) -> Sweep:
        """The superuser's, which goes on."""
        return self._sweep("sw-1")

    @cached_property
    def ended_sweep(self) -> Sweep:
        """With a result."""
        return self._sweep("sw-2", state="done", played=1, results=[["stated", 0.5, 0, traces.POINT]], terms=traces.TERMS)

    def _sweep(self, name: str, **facts: Any) -> Sweep:
        asked = {"values": [0.5, 1.0], "policies": ["stated"], "seeds": 1, "hours": None, "minutes": 1, "exact": False}
        of = {"trace": self.trace, "trace_title": "Few", "axis": "load", "asked": asked, "asked_by": self.personas.users["superuser"]}
        return Sweep.objects.create(public_id=name, **of, **facts)

    @cached_property
    def what_if(self) -> QuotaReplay:
        """The superuser's, which goes on."""
        asked = {"days": 7, "policy": {"placement": "spread"}, "told": ["Placement: spread instead of pack"]}
        return QuotaReplay.objects.create(public_id="wi-1", asked=asked, asked_by=self.personas.users["superuser"], asked_at=now(), seen_at=now())

    @cached_property
    def ended_what_if(self) -> QuotaReplay:
        """With a result."""
        waits = {"all": {"jobs": 3, "p50": 1000, "p95": 60_000, "counts": [2, 1, 0, 0, 0, 0, 0, 0, 0]}}
        side = {"capacity": 8000, "held": 0, "preemptions": 0, "moves": 0, "lost": 0, "came": 3, "finished": 3, "over_limit": 0, "waiting": 0}
        side |= {"waits": waits, "course": {"held": [1000, 2000], "waiting": [0, 500]}}
        figures = {"from": 1_790_000_000_000, "step": 0, "before": side, "after": side}
        rows = [[self.team.pk, 3, 3, 3, 60_000, 60_000, 1000, 1000]]
        facts = {"state": "done", "hours": 2, "ended_at": now(), "figures": figures, "rows": rows}
        return QuotaReplay.objects.create(public_id="wi-2", asked={"days": 1, "hours": 2}, asked_by=self.personas.users["superuser"], **facts)

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
        asked = reservation_json(self) | given
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
    def cancelled_reservation(self) -> Reservation:
        """The superuser's, who may put it back."""
        return reservation_cancel(access=self.personas.access("superuser"), reservation=self._reserved("superuser"), now=now())

    @cached_property
    def power_cap(self) -> PowerCap:
        return cap_set(access=self.personas.access("superuser"), given={"watts": 12_000}, now=now())

    @cached_property
    def energy_rate(self) -> EnergyRate:
        return rate_set(access=self.personas.access("superuser"), given={"price_micros": 240_000}, now=now())

    @cached_property
    def energy_forecast(self) -> EnergyForecast:
        steps = [{"start": now(), "grams": 320}]
        return forecast_put(access=self.personas.access("superuser"), pool="", steps=steps, now=now())

    @cached_property
    def deferred_job(self) -> Job:
        job = self.job
        Job.objects.filter(pk=job.pk).update(defer="price", deferred_to=now() + timedelta(hours=3))
        return job

    @cached_property
    def budget(self) -> Budget:
        return budget_create(access=self.personas.access("superuser"), given=budget_json(self), now=now())

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
    def cost_export(self) -> CostExport:
        """The superuser's, written."""
        access, first = self.personas.access("superuser"), self.charge_line.month.first
        made = export_ask(access=access, period=Period.of(first), kind="summary", now=now(), begin=lambda key: None)
        export_write(key=made.pk, clock=now)
        made.refresh_from_db()
        return made

    @cached_property
    def cost_mail(self) -> CostMail:
        made = CostMail.objects.create(public_id="cm-x", node=self.team, author_name="Finance", created_at=now())
        made.people.set(User.objects.filter(username="finance"))
        return made

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
        return change_draft(access=self.personas.access("superuser"), wanted=Wanted(change_json(self)["edits"]), now=now())

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
        times = {"started_at": moment - timedelta(hours=1), "seen_at": moment, "stage_at": moment, "idle_millis": 3_600_000}
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
