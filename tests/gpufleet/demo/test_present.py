"""The running demo: the scheduler places, the simulated back-end runs, and the demo plays people, machines and sensors. It stays a sound fleet."""

from collections import Counter
from datetime import timedelta

import numpy as np
import pytest
from django.db import connection, transaction
from django.test import Client

from dashboards.health.defaults import default_rules
from dashboards.health.models import HealthFinding, HealthFrame, HealthRule
from dashboards.health.round import health_round
from dashboards.models import TelemetryFrame
from gpufleet.core.models import Installation, Progress, User
from gpufleet.core.times import millis
from gpufleet.demo import present
from gpufleet.demo.present import demo_advance
from gpufleet.demo.seed import demo_seed
from gpufleet.demo.trouble import DRAIN_PATIENCE
from scheduler.backends.registry import Backends, backends_all
from scheduler.models import (
    HOLDING,
    Attempt,
    Checkpoint,
    Cluster,
    Gpu,
    Health,
    InventoryEvent,
    Job,
    JobEvent,
    JobState,
    Node,
    Order,
    Outlook,
    Placement,
    SimulatedRun,
)
from scheduler.services.forecasts.forecasting import forecast_run
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.loop.tick import Memory, tick_run
from scheduler.simulation.futures import waits_foreseen
from tests.builders import NOON
from tests.gpufleet.demo.fleets import WITHOUT_FLEET, on_fleet
from tests.gpufleet.demo.test_seed import rows_of_everything
from tests.invariants import fleet_faults
from tests.scheduler.test_jobs import Blown, Fuse

STEP = timedelta(seconds=2)
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fleet")]
KEYS_COME_BACK = pytest.mark.skipif(connection.vendor != "sqlite", reason="rows are compared with their keys, which PostgreSQL never hands out again")


@pytest.fixture(autouse=True)
def fresh_process() -> None:
    """Nothing is remembered from an earlier fleet."""
    present._memory = None


class Console:
    """Beat, by hand: the demo's step every two seconds, the scheduler's tick every second."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        present._memory, self.memory = None, Memory()
        self.backends = Backends({key: backends_all()[key] for key in Cluster.objects.values_list("pk", flat=True)})

    def steps(self, count: int, *, after: timedelta = timedelta(0)) -> None:
        for number in range(1, count + 1):
            moment = NOON + after + number * STEP
            assert demo_advance(now=moment)
            for early in (STEP / 2, timedelta(0)):
                found = tick_run(holder="test", now=moment - early, backends=self.backends, memory=self.memory)
                assert not found.fault


@pytest.fixture
def console(fleet: None, db: None) -> Console:
    return Console()


def seeded(seed: int, *, hours: float = 0.1, size: str = "small") -> Console:
    """For those who need a fleet of their own; the others say `on_fleet`."""
    demo_seed(size=size, seed=seed, now=NOON, hours=hours)
    return Console()


@pytest.mark.parametrize("fleet", [(2, 0.2), pytest.param((3, 0.2), marks=pytest.mark.soak)], indirect=True, ids=str)
def test_something_happens_within_twenty_seconds(console: Console) -> None:
    console.steps(10)

    assert JobEvent.objects.filter(at__gt=NOON).exists()
    assert {frame.at for frame in TelemetryFrame.objects.all()} == {NOON + 10 * STEP}


@on_fleet(5, hours=0.3)
def test_the_runs_of_the_past_go_on_as_runs_of_the_back_end(console: Console) -> None:
    open_keys = {f"{attempt.job.public_id}.{attempt.number}" for attempt in Attempt.objects.filter(ended_at__isnull=True).select_related("job")}
    assert set(SimulatedRun.objects.values_list("attempt_key", flat=True)) == open_keys
    held = set(Placement.objects.filter(until__isnull=True).values_list("pk", flat=True))
    running = set(Job.objects.filter(state=JobState.RUNNING).values_list("pk", flat=True))
    console.steps(1)

    still = set(Placement.objects.filter(until__isnull=True).values_list("pk", flat=True))
    assert len(held & still) > 0.95 * len(held)
    assert Job.objects.filter(pk__in=running, state=JobState.QUEUED).count() == 0
    assert Checkpoint.objects.filter(verified_at__isnull=False).count() > 10
    assert not fleet_faults()


@on_fleet(2, hours=0.2)
def test_nobody_but_the_scheduler_places(console: Console) -> None:
    before = Placement.objects.count()
    for number in range(1, 31):
        assert demo_advance(now=NOON + number * STEP)
    assert Job.objects.filter(state=JobState.QUEUED).count() >= 5
    assert Placement.objects.count() == before
    assert not Order.objects.filter(done_at__isnull=True).exists()

    console.steps(15, after=timedelta(minutes=1))
    assert Placement.objects.count() > before
    assert not Order.objects.filter(done_at__isnull=True, due_at__lt=NOON + timedelta(seconds=80)).exists()


@on_fleet(5, hours=0.3)
def test_every_step_leaves_a_sound_fleet(console: Console) -> None:
    for number in range(10):
        # Now and then the clock jumps: a busy machine, or a laptop that slept.
        console.steps(3, after=number * timedelta(minutes=9))
        assert not fleet_faults()
    ends = Counter(JobEvent.objects.filter(at__gt=NOON).values_list("to_state", flat=True))
    assert ends["completed"] > 10
    assert ends["running"] > 10


@on_fleet(6, hours=0.3)
def test_readings_are_those_of_what_runs(console: Console) -> None:
    console.steps(3)
    busy = {}
    for frame in TelemetryFrame.objects.all():
        busy |= dict(zip(np.frombuffer(frame.gpu_ids, "<u4").tolist(), frame.sm_active, strict=True))
    holding = Placement.objects.filter(until__isnull=True)
    held, saving = (set(holding.filter(job__state=state).values_list("gpu_id", flat=True)) for state in (JobState.RUNNING, JobState.CHECKPOINTING))
    testing = set(Gpu.objects.exclude(node__health=Health.HEALTHY).values_list("pk", flat=True))

    assert sum(busy[gpu] for gpu in held) / len(held) > 15
    assert all(busy[gpu] <= 10 for gpu in saving - held), "what saves its work copies memory and hardly computes"
    assert all(busy[gpu] <= 1 for gpu in busy.keys() - held - saving - testing)


def but_numbers_of_plans(rows: dict[str, list[tuple[object, ...]]]) -> dict[str, list[tuple[object, ...]]]:
    """A process plans anew when it begins, so the plans after that have higher numbers."""
    return rows | {"JobEvent": [tuple(but_its_number(value) for value in row) for row in rows["JobEvent"]]}


def but_its_number(facts: object) -> object:
    return {key: value for key, value in facts.items() if key != "plan"} if isinstance(facts, dict) else facts


@KEYS_COME_BACK
@WITHOUT_FLEET
def test_the_same_seed_and_clock_give_the_same_rows_also_where_another_process_goes_on() -> None:
    runs = []
    for ways in ([False], [False, True]):
        with transaction.atomic():
            demo_seed(size="small", seed=9, now=NOON, hours=0.1)
            for restarts in ways:
                with transaction.atomic():
                    console = Console()
                    for number in range(5):
                        console.steps(2, after=2 * number * STEP)
                        if restarts:
                            console.restart()
                    runs.append(rows_of_everything())
                    transaction.set_rollback(True)
            transaction.set_rollback(True)
    assert len(runs[0]["Job"]) > 100
    assert runs[0] == runs[1]
    assert but_numbers_of_plans(runs[0]) == but_numbers_of_plans(runs[2])


@on_fleet(2, hours=0.2)
def test_a_doubled_or_late_beat_does_nothing(console: Console) -> None:
    console.steps(2)
    before = rows_of_everything()

    assert not demo_advance(now=NOON + 2 * STEP)
    assert not demo_advance(now=NOON + STEP)
    assert rows_of_everything() == before


@on_fleet(2, hours=0.2)
def test_a_clock_that_is_set_back_stops_nothing(console: Console) -> None:
    console.steps(3)

    for number in range(1, 16):
        assert demo_advance(now=NOON - timedelta(hours=3) + number * STEP)
    reached = Progress.objects.get(name="demo").reached_at

    assert NOON + 3 * STEP < reached < NOON + timedelta(minutes=1), "what was written does not run backwards, nor ahead"
    assert {frame.at for frame in TelemetryFrame.objects.all()} == {reached}
    assert not fleet_faults()
    assert demo_advance(now=NOON + timedelta(minutes=2))
    assert Progress.objects.get(name="demo").reached_at == NOON + timedelta(minutes=2)


@WITHOUT_FLEET
def test_a_console_without_a_demo_is_left_alone() -> None:
    assert not demo_advance(now=NOON)
    Installation.objects.create(demo="none")
    assert not demo_advance(now=NOON)


@on_fleet(6, hours=0.3)
@pytest.mark.parametrize("then_every", [7, pytest.param(2, marks=pytest.mark.soak)])
def test_a_step_that_dies_at_any_statement_leaves_nothing_half(then_every: int, console: Console) -> None:
    console.steps(3)
    # Long enough for several things to happen at once, and machines that have something coming.
    Progress.objects.update(reached_at=NOON - timedelta(minutes=5))
    with transaction.atomic():
        assert demo_advance(now=NOON + timedelta(seconds=20))
        after = rows_of_everything()
        transaction.set_rollback(True)
    nth = 0
    while True:
        # Every statement of the first ones, which are of every kind, then some of the others.
        nth += 1 if nth < 30 else then_every
        present._memory = None
        try:
            with transaction.atomic(), connection.execute_wrapper(Fuse(nth)):
                demo_advance(now=NOON + timedelta(seconds=20))
                transaction.set_rollback(True)
        except Blown:
            assert not fleet_faults()
            continue
        break
    assert nth > 40
    present._memory = None
    assert demo_advance(now=NOON + timedelta(seconds=20))
    assert rows_of_everything() == after
    assert not fleet_faults()


@on_fleet(6, hours=0.3)
def test_after_hours_of_sleep_there_is_no_storm(console: Console) -> None:
    console.steps(20)
    usual = JobEvent.objects.filter(at__gt=NOON, to_state=JobState.QUEUED, from_state="").count()
    console.steps(20, after=timedelta(hours=9))

    after = JobEvent.objects.filter(at__gt=NOON + timedelta(hours=1), to_state=JobState.QUEUED, from_state="").count()
    assert after < 3 * usual + 40
    assert not fleet_faults()


@on_fleet(6, hours=0.3)
def test_an_operator_and_the_owner_of_a_job_may_act_between_the_steps(console: Console) -> None:
    console.steps(3)
    running = Job.objects.filter(state=JobState.RUNNING, attempts__ended_at__isnull=True).first()
    waiting = Job.objects.filter(state=JobState.QUEUED).first()
    assert running is not None
    assert waiting is not None
    for job in (running, waiting):
        job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Stop.", now=NOON + 3 * STEP)
    drained = Node.objects.filter(spare=False, health=Health.HEALTHY).first()
    assert drained is not None
    Node.objects.filter(pk=drained.pk).update(health=Health.DRAINING, health_since=NOON)
    InventoryEvent.objects.create(at=NOON, node=drained, kind="health", actor_name="Oona")
    console.steps(20, after=3 * STEP)

    assert not fleet_faults()
    assert set(Job.objects.filter(pk__in=(running.pk, waiting.pk)).values_list("state", flat=True)) == {JobState.CANCELLED}
    assert not Placement.objects.filter(node=drained, since__gt=NOON + 4 * STEP).exists()


@on_fleet(6, hours=0.3)
def test_a_machine_that_goes_dark_takes_its_work_with_it_and_the_work_comes_back(console: Console) -> None:
    console.steps(2)
    step = present.Step(present._memory, before=NOON + 2 * STEP, now=NOON + 3 * STEP)  # type: ignore[arg-type]
    gang = Placement.objects.filter(until__isnull=True, worker=1, job__state=JobState.RUNNING, mig__isnull=True).latest("pk")
    machine = step.memory.hardware.machines[gang.node_id]
    step.rng.random = lambda: 0.0  # type: ignore[method-assign]
    step._fall_ill([machine])
    assert Node.objects.get(pk=machine.key).health == Health.DOWN
    console.steps(40, after=2 * STEP)

    assert not Placement.objects.filter(node=machine.key, until__isnull=True).exists()
    events = JobEvent.objects.filter(job=gang.job_id, at__gt=NOON + 2 * STEP).order_by("id").values_list("to_state", flat=True)
    assert events[0] == JobState.DEGRADED
    assert not fleet_faults()


@on_fleet(1, hours=1)
@pytest.mark.usefixtures("console")
def test_the_machine_in_trouble_is_drained_and_comes_back() -> None:
    stages = list(InventoryEvent.objects.filter(kind="health", at__lt=NOON).order_by("at").values_list("after__health", flat=True))
    assert {"repairing", "burn_in", "healthy"} <= set(stages)
    assert Node.objects.exclude(health=Health.HEALTHY).count() <= 2


@on_fleet(5, hours=0.3)
def test_rules_note_a_slow_port_retransmissions_and_a_full_pcie_link_from_the_start(console: Console) -> None:
    """The page of incidents has something to show of each, and nothing is taken out of service for it."""
    HealthRule.objects.all().delete()  # those of the migration are there, unless a test that empties tables ran before
    HealthRule.objects.bulk_create(HealthRule(public_id=f"hr-{number}", **values) for number, values in enumerate(default_rules()))
    console.steps(25)
    health_round(now=NOON + 25 * STEP)

    noted = {finding.rule.signal: finding for finding in HealthFinding.objects.select_related("rule", "node", "gpu")}
    assert {"nic_lost", "retransmits", "pcie_saturated"} <= noted.keys()
    assert {noted[key].rule.action for key in ("nic_lost", "retransmits", "pcie_saturated")} == {"note"}
    person = User.objects.get(username="oona")
    browser = Client()
    browser.force_login(person)
    page = browser.get("/incidents/").content.decode()
    for said in ("75% of speed lost", "340 of 10,000", "PCIe saturated"):
        assert said in page
    slow = {node: ports for found in HealthFrame.objects.values_list("slow_nics", flat=True) for node, ports in found.items()}
    assert slow[str(noted["nic_lost"].node_id)] == {"mlx5_0": noted["nic_lost"].node.nics.get(name="mlx5_0").speed_gbps / 4}


@on_fleet(1, hours=1)
@pytest.mark.usefixtures("console")
def test_a_drain_says_until_when_jobs_may_finish_and_none_is_preempted_sooner() -> None:
    """The page said that running jobs finish, and one was preempted after six minutes."""
    drains = InventoryEvent.objects.filter(kind="health", after__health=Health.DRAINING, at__lt=NOON)

    assert drains
    for drain in drains:
        until = drain.at + timedelta(milliseconds=DRAIN_PATIENCE)
        assert f"Jobs still running at {until:%H:%M} UTC are preempted." in drain.cause
        moved = JobEvent.objects.filter(cause__contains=f"{drain.node.name} is being drained", at__gte=drain.at, at__lt=until)
        assert not moved


@pytest.mark.soak
@WITHOUT_FLEET
def test_an_hour_of_the_large_fleet() -> None:
    console = seeded(1, hours=0.5, size="large")
    busy = Job.objects.filter(state__in=HOLDING).count()
    for minute in range(6):
        console.steps(10, after=timedelta(minutes=10 * minute))
        assert not fleet_faults()
    assert Job.objects.filter(state__in=HOLDING).count() > 0.6 * busy
    assert millis(JobEvent.objects.latest("at").at) > millis(NOON + timedelta(minutes=50))


@on_fleet(1, hours=1)
def test_whoever_waits_is_told_when_he_may_start(monkeypatch: pytest.MonkeyPatch, console: Console) -> None:
    monkeypatch.setitem(waits_foreseen.__kwdefaults__, "futures", 2)  # of sixteen: how good they are is told elsewhere
    console.steps(12)
    soon = NOON + 26 * STEP

    assert forecast_run(holder="test", now=soon)

    told = Outlook.objects.filter(job__state=JobState.QUEUED)
    foreseen = [outlook for outlook in told if outlook.predicted_start is not None]
    assert Placement.objects.filter(until__isnull=True, gpu_milli__lt=1000).exists(), "futures have to play who shares a GPU as well"
    assert len(foreseen) > max(3, told.count() / 2)
    for outlook in foreseen:
        assert soon <= outlook.earliest_start <= outlook.predicted_start <= outlook.latest_start


@pytest.mark.soak
@WITHOUT_FLEET
@pytest.mark.parametrize("hour", [3, 15])
def test_at_any_hour_somebody_waits_for_one_reason_or_another(hour: int) -> None:
    now = NOON.replace(hour=hour)
    demo_seed(size="small", seed=1, now=now, hours=4)
    console = Console()
    for number in range(60):  # ten minutes of a machine that is busy: each beat comes ten seconds after the one before
        console.steps(1, after=now - NOON + 5 * number * STEP)

    codes = {reason["code"] for outlook in Outlook.objects.filter(job__state=JobState.QUEUED) for reason in outlook.reasons}
    assert Job.objects.filter(state=JobState.QUEUED).count() >= 4
    assert {"limit", "capacity"} <= codes
