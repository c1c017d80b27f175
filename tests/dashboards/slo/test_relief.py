"""A service in a breach because of co-tenants: who is evicted for it, when, what is told before and after, and when nobody is."""

import gzip
import json
import re
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any
from unittest import mock

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from dashboards.prometheus.models import PrometheusServer
from dashboards.slo.models import BreachCause, ServiceBreach, ServiceLevel
from dashboards.slo.round import services_round
from dashboards.slo.services import service_level_remove, service_level_set
from gpufleet.core.audit import Actor
from quotas.models import QuotaNode, QuotaShare, ReliefChoice
from quotas.permissions import Access, Can, Grant
from scheduler.engine.cycle import make_plan
from scheduler.engine.relief import yielding
from scheduler.loop.policy import ReliefRule, relief_rule
from scheduler.models import HOLDING, Cluster, Job, JobState, PlanRecord, Relief, Relieved
from scheduler.scenarios.reading import parse
from scheduler.selectors.discretion import Discretion
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.loop import relief, tick
from scheduler.services.loop.lease import TICK, lease_pause, lease_take, lease_want
from scheduler.services.loop.usage import timeline_follow
from tests import builders
from tests.dashboards.prometheus_worlds import LOCAL
from tests.dashboards.slo.test_round import Answers
from tests.scheduler.loop.test_whole_way import Fleet
from tests.scheduler.loop.worlds import H100, leaf, state, submit

pytestmark = pytest.mark.django_db
ROUND = timedelta(seconds=15)
MINUTE = timedelta(minutes=1)
ROOT = Access(Actor(None, "Root", "system"), (Grant("", frozenset(Can)),))
VALUES = {"title": "p99 latency", "latency": "chat:latency", "objective_ms": 300, "rate": "", "wanted": ""}


@pytest.fixture
def answers() -> Iterator[Answers]:
    found = Answers()
    PrometheusServer.objects.create(public_id="ps-1", name="main", url=f"http://127.0.0.1:{found.port}", for_services=True)
    yield found
    found.stop()


class World(Fleet):
    """Two nodes. A service stands on the first, and jobs come beside it; each step is a round over services, then a tick."""

    def __init__(self, answers: Answers, **rules: Any) -> None:
        builders.cluster()
        self.first = builders.node("n-a", gpus=8)
        super().__init__()
        self.answers = answers
        self.team = leaf("team", 16)
        QuotaNode.objects.filter(pk=self.team.pk).update(preempt_min_runtime_s=0)
        QuotaShare.objects.create(node=QuotaNode.objects.get(parent__isnull=True), gpu_type=H100, guaranteed_milli=16_000)
        self.rule(relief=ReliefChoice.EVICT, relief_after_s=120, relief_every_s=180, relief_apart_s=300, **rules)
        self.service = submit(self.team, gpus=2, name="chat", job_class="inference", spec={"work_s": 100_000})
        self.until(lambda: state(self.service) == JobState.RUNNING)
        self.level = ServiceLevel.objects.create(job=self.service, **VALUES)
        self.says(420)

    def rule(self, **rules: Any) -> None:
        top = QuotaNode.objects.get(parent__isnull=True)
        top.policy = rules
        top.save()
        self.memory.forget()
        lease_want()

    def says(self, latency_ms: float | None) -> None:
        self.answers.by_service["chat"] = {} if latency_ms is None else {"latency": latency_ms / 1000}

    def train(self, name: str = "train", gpus: int = 2, **fields: Any) -> Job:
        """A job beside the service: there is no other node yet."""
        spec = {"work_s": 100_000, "grace_s": 20, "checkpoint": {"interval_s": 600}} | fields.pop("spec", {})
        job = submit(fields.pop("of", self.team), gpus=gpus, name=name, at=self.now, spec=spec, **fields)
        self.until(lambda: state(job) == JobState.RUNNING)
        return job

    def room(self) -> None:
        node = builders.node("n-b", gpus=8)
        timeline_follow(gpus=node.gpus.values_list("pk", flat=True), at=self.now)
        lease_want()

    def step(self, *, times: int = 1, read: bool = True) -> None:
        for _ in range(times):
            self.after(seconds=15)
            if read:
                services_round(now=self.now, rules=LOCAL)
            self.tick()

    def lasts(self, minutes: float, **how: Any) -> None:
        self.step(times=int(minutes * 4), **how)

    @property
    def relief(self) -> Relief:
        return Relief.objects.get()

    def nodes(self, job: Job) -> set[str]:
        return set(job.placements.filter(until__isnull=True).values_list("node__name", flat=True))


def evicted() -> list[str]:
    return [one.job.name for one in Relieved.objects.order_by("pk").select_related("job")]


def breached(world: World) -> datetime:
    """Three rounds over the objective open the breach."""
    world.step(times=3)
    breach = ServiceBreach.objects.get(until__isnull=True)
    assert breach.cause == BreachCause.CO_TENANT, breach.said
    return breach.since


def test_the_whole_way_of_a_relief(answers: Answers) -> None:
    world = World(answers)
    old = world.train("old")
    world.lasts(2, read=False)
    young = world.train("young")
    since = breached(world)
    told = world.relief
    assert (told.since, told.beside, told.how) == (since, sorted([old.public_id, young.public_id]), "came")
    assert (told.next_job, told.next_at, told.refused) == (young.public_id, since + 2 * MINUTE, {}), "told before it happens: it loses the least"

    world.room()
    world.lasts(1.75)
    assert evicted() == []
    world.lasts(0.25)
    assert evicted() == ["young"]

    event = young.events.get(to_state=JobState.CHECKPOINTING)
    said = f"Evicted for {world.service.public_id}, a service: latency 420 ms over 300 ms for 2 min, co-tenant new on its nodes."
    assert event.cause == said
    assert (event.detail["code"], event.detail["action"], event.detail["for"]) == ("relief", "evict", world.service.public_id)
    record = PlanRecord.objects.get(pk=event.detail["plan"])
    assert [(one["action"], one["job"], one["why"]["code"]) for one in record.decisions] == [("evict", young.public_id, "relief")]
    assert (Relieved.objects.get().plan, Relieved.objects.get().until) == (record.pk, None)
    young.refresh_from_db()
    assert (young.evictions, young.attempts.get(ended_at__isnull=True).stop_to) == (1, JobState.PREEMPTED), "it is queued again, not ended"

    world.until(lambda: state(young) == JobState.RUNNING, step=15)
    assert world.nodes(young) == {"n-b"}, "not beside the service, where it stood"


def test_to_another_team_it_says_no_more_than_that_there_is_a_service(answers: Answers) -> None:
    world = World(answers)
    ServiceLevel.objects.update(title="p99 of the secret model")
    job = world.train()
    breached(world)
    world.lasts(2.75)
    assert evicted() == ["train"]
    event = job.events.get(to_state=JobState.CHECKPOINTING)
    discretion = Discretion(Access(Actor(None, "Stranger", "system"), ()), [event.cause])
    assert discretion.text(event.cause).startswith("Evicted for another job, a service: latency 420 ms over 300 ms for 2 min")
    world.tick(force=True)
    said = json.dumps([*PlanRecord.objects.values_list("decisions", flat=True), job.outlook.reasons, [event.cause, event.detail]])
    assert "colocation" in said
    assert "secret" not in said


def test_one_at_a_time_and_not_beside_it_again_until_the_cool_down_is_over(answers: Answers) -> None:
    world = World(answers)
    first, second = world.train("first"), world.train("second")
    breached(world)
    world.lasts(2)
    assert evicted() == ["second"]

    world.lasts(1)
    assert state(second) == JobState.PREEMPTED
    world.tick(force=True)
    (reason,) = [one for one in second.outlook.reasons if one["code"] == "colocation"]
    assert reason["detail"] == f"beside service {world.service.public_id} on north/n-a, the service's latency was 420 ms of 300 ms allowed"
    assert world.relief.next_job == first.public_id
    assert world.relief.next_at == Relieved.objects.get().at + 3 * MINUTE

    world.lasts(1.75)
    assert evicted() == ["second"]
    world.lasts(0.25)
    assert evicted() == ["second", "first"]

    world.says(100)
    world.step(times=3)
    assert not ServiceBreach.objects.filter(until__isnull=True).exists()
    assert (world.relief.since, world.relief.next_job) == (None, "")
    assert set(Relieved.objects.values_list("until", flat=True)) == {world.now + 5 * MINUTE}
    world.lasts(4.75, read=False)
    assert {state(first), state(second)} == {JobState.PREEMPTED}
    world.lasts(0.25, read=False)
    assert {state(first), state(second)} <= {*HOLDING}, "the time of the cool-down wakes the scheduler"
    assert world.nodes(first) == {"n-a"}


def test_a_job_that_comes_while_the_breach_lasts_is_a_cause_too(answers: Answers) -> None:
    world = World(answers)
    world.train("first")
    breached(world)
    world.lasts(2)
    late = world.train("late")
    world.step()

    assert evicted() == ["first"]
    assert (world.relief.beside, world.relief.next_job) == ([late.public_id], late.public_id)
    said = f"{late.public_id} came to its node within 30 minutes before or while it was slow."
    assert ServiceBreach.objects.get(until__isnull=True).said == said
    world.lasts(3)
    assert evicted() == ["first", "late"]


def test_without_the_rule_nobody_is_evicted(answers: Answers) -> None:
    world = World(answers)
    world.train()
    world.rule()
    breached(world)
    world.lasts(3)

    assert evicted() == []
    assert not Relief.objects.exists()
    with CaptureQueriesContext(connection) as asked:
        world.tick(force=True)
    assert not [one for one in asked if "reliev" in one["sql"]], "and a tick asks for nothing of it"


def test_the_rule_that_is_taken_back_lets_everybody_stay_and_come(answers: Answers) -> None:
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(2)
    assert evicted() == ["train"]
    world.rule()
    world.lasts(1)

    assert state(job) in HOLDING
    assert (world.relief.since, world.relief.next_job) == (None, "")


@pytest.mark.parametrize("why", ["stale", "missing", "met", "paused", "silent", "ended"])
def test_nobody_is_evicted_by_what_is_not_known(answers: Answers, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(1.5)
    if why == "stale":
        world.after(minutes=2).tick(force=True)
    elif why == "missing":
        world.says(None)
        world.lasts(1)
    elif why == "met":
        world.says(100)
        world.lasts(0.25)
        world.after(seconds=30).tick(force=True)
    elif why == "paused":
        lease_pause(by="boss", reason="cables", now=world.now)
        world.lasts(1)
    elif why == "silent":
        Cluster.objects.update(silent_since=world.now)
        monkeypatch.setattr(relief, "FRESH", 10 * MINUTE)
        world.lasts(1)
        assert world.relief.refused == {job.public_id: "silent"}
    else:
        job_stop(job=world.service, to=JobState.CANCELLED, outcome="cancelled", cause="Enough.", now=world.now)
        world.lasts(1)

    assert evicted() == []
    assert state(job) == JobState.RUNNING


def test_a_breach_is_judged_anew_by_another_service_level(answers: Answers) -> None:
    world = World(answers)
    world.train()
    breached(world)
    world.lasts(1.5)
    service_level_set(access=ROOT, job=world.service, values=VALUES | {"objective_ms": 350}, now=world.now)
    assert (world.relief.since, world.relief.next_at) == (None, None)
    world.lasts(2.25)
    assert evicted() == [], "three rounds open another breach, which is two minutes old then"
    world.lasts(0.5)
    assert evicted() == ["train"]

    service_level_remove(access=ROOT, job=world.service, now=world.now)
    assert Relieved.objects.get().until == world.now + 5 * MINUTE


def test_a_level_that_changes_between_look_and_write_keeps_the_job(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(1.75)
    look = tick.relief_look

    def looked(**how: Any) -> Any:
        found = look(**how)
        if found.decisions:
            service_level_set(access=ROOT, job=world.service, values=VALUES | {"objective_ms": 310}, now=world.now)
        return found

    monkeypatch.setattr(tick, "relief_look", looked)
    world.step()
    assert (evicted(), state(job)) == ([], JobState.RUNNING)
    assert (world.relief.since, world.relief.next_job) == (None, "")


def test_what_a_round_reads_between_look_and_write_stays(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    world.train()
    look = tick.relief_look

    def looked(**how: Any) -> Any:
        found = look(**how)
        if found.found:
            report = relief.Report(world.service.pk, "p99 latency", 420, 300, ("j-99",))
            relief.reliefs_report(reports=[report], now=world.now)
        return found

    monkeypatch.setattr(tick, "relief_look", looked)
    breached(world)
    assert (world.relief.beside, world.relief.next_job, world.relief.refused) == (["j-99"], "", {})


def test_the_engine_is_asked_only_for_what_is_due_or_was_not_told(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    world.train()
    asked = []
    monkeypatch.setattr(relief, "yielding", lambda *given: asked.append(world.now) or yielding(*given))
    breached(world)
    told = world.relief.next_job, world.relief.next_at
    world.lasts(1.5)
    world.tick(force=True)
    assert len(asked) == 1
    assert (world.relief.next_job, world.relief.next_at) == told

    late = world.train("late")
    world.step()
    assert len(asked) == 2, "another one came"
    assert world.relief.next_job == late.public_id
    world.after(minutes=5).tick(force=True)
    assert len(asked) == 2, "by an old reading nobody goes"
    world.step()
    assert (len(asked), evicted()) == (3, ["late"])


def test_many_services_are_reported_in_as_many_queries_as_one(answers: Answers) -> None:
    world = World(answers)
    jobs = [world.service, *(submit(world.team, gpus=1, name=f"more-{number}") for number in range(5))]

    def asked(count: int, latency: float) -> int:
        reports = [relief.Report(job.pk, "p99 latency", latency, 300, ("j-99",)) for job in jobs[:count]]
        with CaptureQueriesContext(connection) as queries:
            relief.reliefs_report(reports=reports, over=[jobs[-1].pk], now=world.now)
        return len(queries)

    asked(1, 400)
    assert asked(5, 400) == asked(1, 400) + 1, "new rows are one statement"
    assert asked(5, 410) == asked(1, 410)
    assert Relief.objects.filter(latency_ms=410, beside=["j-99"]).count() == 5


def test_two_workers_at_once_evict_once(answers: Answers) -> None:
    world = World(answers)
    world.train("one")
    world.train("two")
    breached(world)
    world.lasts(1.75)
    world.after(seconds=15)
    services_round(now=world.now, rules=LOCAL)
    lease_take(name=TICK, holder="other", now=world.now)
    world.tick()
    assert evicted() == [], "another one leads"

    other = World.__new__(World)
    other.__dict__ |= world.__dict__ | {"holder": "other", "memory": tick.Memory()}
    other.after(seconds=1).tick(force=True)
    other.after(seconds=1).tick(force=True)
    world.now = other.now
    world.tick(force=True)
    assert len(evicted()) == 1


@pytest.mark.parametrize("where", ["relief_look", "relief_confirm", "relief_write", "plan_apply", "lease_done"])
def test_a_fault_leaves_nothing_half_done(answers: Answers, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(1.75)
    world.after(seconds=15)
    services_round(now=world.now, rules=LOCAL)
    target, name = (relief, "yielding") if where == "relief_look" else (tick, where)
    before = getattr(target, name)

    def fails(*given: Any, **how: Any) -> Any:
        before(*given, **how)
        raise RuntimeError("injected")

    monkeypatch.setattr(target, name, fails)
    if where == "relief_look":
        world.tick()  # the fleet is scheduled all the same
    else:
        with pytest.raises(RuntimeError, match="injected"):
            world.tick()
    assert (evicted(), state(job), world.relief.evicted_at) == ([], JobState.RUNNING, None)
    assert not job.events.filter(detail__code="relief").exists()

    monkeypatch.undo()
    world.after(seconds=5).tick(force=True)
    assert (evicted(), state(job)) == (["train"], JobState.CHECKPOINTING)
    assert job.events.filter(detail__code="relief").count() == 1


def test_a_job_that_is_gone_by_then_is_not_evicted(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(1.75)
    plan_apply = tick.plan_apply

    def applied(**how: Any) -> Any:
        Job.objects.filter(pk=job.pk).update(revision=job.revision + 100)
        return plan_apply(**how)

    monkeypatch.setattr(tick, "plan_apply", applied)
    world.step()
    assert (evicted(), state(job)) == ([], JobState.RUNNING)
    assert world.relief.evicted_at is None


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"preemptible": "no"}, "not_preemptible"),
        ({"job_class": "inference", "preemptible": "yes"}, "serving"),
        ({"spec": {"checkpoint": None}}, "no_checkpoint"),
    ],
)
def test_who_may_not_be_evicted_stays_and_the_page_of_the_service_can_say_why(answers: Answers, fields: dict[str, Any], code: str) -> None:
    world = World(answers)
    job = world.train(**fields)
    breached(world)
    world.lasts(3)

    assert evicted() == []
    assert world.relief.refused == {job.public_id: code}


def test_a_minimum_run_time_is_waited_for(answers: Answers) -> None:
    world = World(answers)
    QuotaNode.objects.filter(pk=world.team.pk).update(preempt_min_runtime_s=360)
    job = world.train()
    running = job.attempts.get().running_at
    breached(world)

    assert running is not None
    assert world.relief.next_at is not None
    assert abs(world.relief.next_at - running - 6 * MINUTE) < MINUTE
    world.lasts(3)
    assert evicted() == []
    world.lasts(3)
    assert evicted() == ["train"]


def test_missing_capacity_evicts_nobody(answers: Answers) -> None:
    world = World(answers)
    world.train()
    ServiceLevel.objects.update(wanted="chat:wanted")
    answers.by_service["chat"] = {"latency": 0.42, "wanted": 3}
    world.step(times=3)

    assert ServiceBreach.objects.get().cause == BreachCause.CAPACITY
    world.lasts(3)
    assert evicted() == []
    assert not Relief.objects.filter(since__isnull=False).exists()


def test_the_page_and_the_api_tell_what_comes_before_it_happens(answers: Answers, client: Client) -> None:
    world = World(answers)
    job = world.train()
    client.force_login(builders.person(is_superuser=True))
    breached(world)
    due = world.relief.next_at
    assert due is not None

    def shown() -> str:
        return " ".join(re.sub(r"<[^>]*>", "", client.get(f"/jobs/{world.service.public_id}/").content.decode()).split())

    def told() -> Any:
        return client.get(f"/api/v1/jobs/{world.service.public_id}/service-level").json()

    with mock.patch("django.utils.timezone.now", lambda: world.now):
        assert f"If the breach lasts, {job.public_id} is evicted at {due:%Y-%m-%d %H:%M} UTC" in shown()
        assert told()["relief"] == {"state": "next", "job": job.public_id, "at": f"{due:%Y-%m-%dT%H:%M:%SZ}", "stays": []}
        world.lasts(2)
        assert "Job evicted for it" in shown()
        assert "the breach is over" in shown()
    (done,) = told()["relieved"]
    assert (done["job"], done["latency_ms"], done["objective_ms"], done["until"]) == (job.public_id, 420, 300, None)

    page = client.get(f"/jobs/{job.public_id}/").content.decode()
    assert f"Evicted for {world.service.public_id}, a service: latency 420 ms over 300 ms" in page
    assert "<code>relief</code>" in page


def test_the_rule_is_off_unless_the_fleet_says_otherwise() -> None:
    assert relief_rule({}) is relief_rule({"relief": "none", "relief_after_s": 60}) is None
    assert relief_rule({"relief": "evict"}) == ReliefRule(10 * MINUTE, 15 * MINUTE, 60 * MINUTE)
    assert relief_rule({"relief": "evict", "relief_every_s": 60, "relief_apart_s": 0}) == ReliefRule(10 * MINUTE, MINUTE, timedelta(0))


def test_the_scenario_of_the_plan_makes_the_rest_of_the_plan_again(answers: Answers) -> None:
    """The eviction stands beside the plan of the engine, and what is kept of it says so."""
    world = World(answers)
    job = world.train()
    breached(world)
    world.lasts(2)
    (record,) = PlanRecord.objects.filter(pk__in=Relieved.objects.values("plan"))
    assert record.scenario is not None
    again = make_plan(parse(json.loads(gzip.decompress(bytes(record.scenario)))))
    assert [one for one in again.decisions if one.job == job.public_id] == []


@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite locks no rows")
@pytest.mark.django_db(transaction=True)
def test_a_round_and_a_tick_lock_in_one_order(answers: Answers) -> None:
    """A tick that has locked the service's job goes on to its row of relief, though a round that writes of that job has begun."""
    world = World(answers)
    world.train()
    breached(world)
    told: list[str] = []

    def report() -> None:
        try:
            world.after(minutes=2)
            services_round(now=world.now, rules=LOCAL)
            told.append("done")
        except Exception as fault:
            told.append(repr(fault))
        finally:
            connection.close()

    thread = threading.Thread(target=report)
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=world.service.pk)
        thread.start()
        thread.join(3)  # as far as it comes
        Relief.objects.select_for_update().get()
    thread.join(30)
    assert told == ["done"]
