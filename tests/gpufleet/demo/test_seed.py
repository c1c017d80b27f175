"""The demo goes into an empty database once, whole, and the same every time."""

from collections import defaultdict
from datetime import UTC, datetime, timedelta

import pytest
from django.core.management import CommandError, call_command
from django.db.models import Sum

from dashboards.fingerprints.models import RunLearned
from dashboards.models import FleetSample, NodeSample, TelemetryFrame
from dashboards.presenters import overview_shared
from gpufleet.core.models import Installation, User
from gpufleet.demo.seed import DatabaseNotEmpty, demo_seed
from quotas.models import Budget, ChargeMonth, ChargeSum, LedgerEntry, QuotaShare
from quotas.selectors.budgets import standings, used_between
from quotas.selectors.rates import price_book
from scheduler.engine.model.mig import BOARDS, Instance, valid_layout
from scheduler.models import Attempt, Checkpoint, Gpu, InventoryEvent, Job, JobEvent, MigInstance, Node, Order, Placement, SimulatedRun
from scheduler.services.schedules.schedules import schedules_turn
from tests.gpufleet.demo.fleets import WITHOUT_FLEET, on_fleet
from tests.invariants import fleet_faults

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("fleet")]


@on_fleet(1, hours=0)
def test_the_small_hardware_is_what_the_size_promises() -> None:
    _as_promised("small", 64)


@WITHOUT_FLEET
def test_the_large_hardware_is_what_the_size_promises() -> None:
    demo_seed(size="large", seed=1, now=NOON, hours=0)

    _as_promised("large", 500)


def _as_promised(size: str, nodes: int) -> None:
    assert (Node.objects.count(), Gpu.objects.count()) == (nodes, nodes * 8)
    assert len(set(Gpu.objects.values_list("gpu_type", flat=True))) == 3
    assert Node.objects.filter(spare=True).exists()
    assert Installation.objects.get().demo == size


@on_fleet(1, hours=0)
def test_every_split_gpu_has_a_layout_that_the_vendor_allows() -> None:
    layouts = defaultdict(list)
    for instance in MigInstance.objects.all():
        layouts[instance.gpu_id].append(Instance(instance.start, instance.profile))
    assert set(layouts) == set(Gpu.objects.filter(mode="mig").values_list("pk", flat=True))
    assert all(valid_layout(BOARDS["A100-80"], layout) for layout in layouts.values())


@on_fleet(1, hours=0)
def test_guarantees_add_up_on_every_level() -> None:
    below: dict[tuple[int, str], int] = defaultdict(int)
    for share in QuotaShare.objects.select_related("node"):
        if share.node.parent_id:
            below[share.node.parent_id, share.gpu_type] += share.guaranteed_milli or 0
    for share in QuotaShare.objects.all():
        assert below[share.node_id, share.gpu_type] <= (share.guaranteed_milli or 0)


@on_fleet(1, hours=0)
def test_guides_sign_in_with_the_demo_password_and_nobody_else_does() -> None:
    able = {user.username for user in User.objects.all() if user.has_usable_password()}
    assert able == {"root", "oona", "quentin", "fay", "tessa", "sam", "vic"}
    assert User.objects.get(username="tessa").check_password("gpufleet-demo")


@WITHOUT_FLEET
def test_a_database_with_anything_in_it_is_left_alone() -> None:
    User.objects.create(username="somebody")

    with pytest.raises(DatabaseNotEmpty):
        demo_seed(size="small", seed=1, now=NOON, hours=0)
    with pytest.raises(CommandError, match="only put into an empty one"):
        call_command("seed_demo", "small")
    assert not Node.objects.exists()


@on_fleet(1, hours=0.3)
def test_who_looks_first_at_noon_finds_something_to_do() -> None:
    _something_to_do(NOON)


@WITHOUT_FLEET
@pytest.mark.parametrize(("seed", "hour"), [(3, 3), *(pytest.param(*one, marks=pytest.mark.soak) for one in ((2, 12), (4, 21)))])
def test_who_looks_first_finds_something_to_do(seed: int, hour: int) -> None:
    now = NOON.replace(hour=hour)
    demo_seed(size="small", seed=seed, now=now, hours=0.3)

    _something_to_do(now)


def _something_to_do(now: datetime) -> None:
    shown = overview_shared(now=now)

    assert any(health in ("suspect", "draining") and reason and jobs for _, _, health, reason, _, _, jobs, _ in shown["sick"])
    assert sum(idle for _, _, idle, *_ in shown["holders"]) > 8_000
    assert sum(jobs for _, jobs, *_ in shown["queue"]) >= 5


@on_fleet(1, hours=0.3)
def test_months_of_costs_budgets_and_the_past_day_tell_of_one_fleet() -> None:
    """Who compares the pages finds the same figures: a budget has what the ledger has, and months computed about as the past day did."""
    for budget in Budget.objects.all():
        (standing,) = standings([budget], price_book(), NOON)
        counted = used_between(budget, standing.period.start, NOON, price_book())
        assert standing.used == pytest.approx(counted.of(budget.unit), rel=1e-6), budget.name
        assert standing.percent == {"Language, month": 86, "Simulation, month": 104, "Products, quarter": 37}[budget.name]
    for month in ChargeMonth.objects.all():
        computed = month.uses.aggregate(computing=Sum("computing"), measured=Sum("measured"))
        assert 0.2 < computed["computing"] / computed["measured"] < 0.45, month
        held = dict(
            LedgerEntry.objects.filter(since__date__gte=month.first, since__date__lt=month.first.replace(day=28))
            .values_list("share_class")
            .annotate(Sum("gpu_milli"))
        )
        assert 0.2 < held["borrowed"] / sum(held.values()) < 0.5, month


def rows_of_everything() -> dict[str, list[tuple[object, ...]]]:
    models = (
        *(Node, Gpu, MigInstance, Job, Attempt, Placement, JobEvent, InventoryEvent, FleetSample, NodeSample, TelemetryFrame),
        *(Checkpoint, Order, SimulatedRun),
    )
    return {model.__name__: list(model.objects.order_by("pk").values_list()) for model in models}


@WITHOUT_FLEET
def test_the_past_is_what_a_real_fleet_could_have_lived() -> None:
    demo_seed(size="small", seed=3, now=NOON, hours=0.5)

    assert not fleet_faults()
    samples = list(FleetSample.objects.all())
    allocated, active, capacity = (sum(getattr(sample, name) for sample in samples) for name in ("allocated_milli", "active_milli", "capacity_milli"))
    assert 0.6 < allocated / capacity < 0.95
    assert 0.12 < active / capacity < 0.45
    assert Job.objects.filter(state="queued").exists()
    # Of runs of templates all is learned that a first round of the task would find due.
    assert RunLearned.objects.filter(looked_at__isnull=False).exists() and not RunLearned.objects.filter(due_at__lte=NOON).exists()
    # The weeks before it were as busy, and telemetry knows of each month what its jobs computed.
    whole = ChargeSum.objects.filter(by="day", key__lt=f"{NOON:%Y-%m-%d}").values("key").annotate(used=Sum("milli_millis"), measured=Sum("measured"))
    days = [(day["used"] / (Gpu.objects.count() * 1000 * 86_400_000), day["measured"] / day["used"]) for day in whole]
    assert len(days) > 60
    assert all(0.5 < used < 0.95 and 0.9 < measured <= 1 for used, measured in days[1:-1]), days


@on_fleet(1, hours=0)
def test_what_recurs_is_submitted_when_it_is_due() -> None:
    assert schedules_turn(now=NOON + timedelta(minutes=20)) == 1
    job = Job.objects.get(schedule__isnull=False)
    assert (job.name, job.owner and job.owner.username, job.due_at) == ("evaluate-latest", "sam", NOON + timedelta(minutes=20))


@on_fleet(1, hours=0)
def test_a_tariff_and_jobs_that_wait_for_a_better_hour_are_there() -> None:
    deferred = {job.name: job for job in Job.objects.filter(deferred_to__gt=NOON)}
    assert {name: job.deferral["by"] for name, job in deferred.items()} == {"distil-nightly": "price", "embed-archive": "carbon"}
    assert deferred["distil-nightly"].deferred_to == datetime(2026, 11, 20, 21, 0, tzinfo=UTC)  # 22:00 in Berlin
    assert all(job.deferral["saved"] > 0 for job in deferred.values())
