"""What the demo's people hold by the calendar, and what their budgets are."""

from collections.abc import Mapping
from datetime import datetime, time, timedelta
from zoneinfo import ZoneInfo

from gpufleet.core.models import User
from gpufleet.core.recurrence import moment_of
from gpufleet.demo.fleet import H100, L40S
from quotas.models import AtStop, Budget, BudgetPeriod, BudgetUnit, QuotaNode, QuotaShare
from quotas.permissions import access_for_user
from quotas.selectors.budgets import period_at, used_between
from quotas.selectors.rates import price_book
from quotas.services.budgets import budget_create
from quotas.services.changes import Wanted, change_apply, change_draft, change_propose
from scheduler.models import Gpu
from scheduler.power.ratings import rated_watts
from scheduler.services.power import cap_set
from scheduler.services.windows.reservations import reservation_request

BERLIN = ZoneInfo("Europe/Berlin")
WEEKDAYS = "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR"
# Team, name, unit, and how much of it is used by now, in percent.
BUDGETS = (
    ("veridia/research/language", "Language, month", BudgetUnit.GPU_HOURS, 86),
    ("veridia/platform/simulation", "Simulation, month", BudgetUnit.GPU_HOURS, 104),
    ("veridia/products", "Products, quarter", BudgetUnit.MONEY, 37),
)


def reservations_seed(*, people: Mapping[str, User], now: datetime) -> None:
    """A serving floor on weekdays, an approved reservation next Tuesday, and a request that waits for approval."""
    today = now.astimezone(BERLIN).date()
    tuesday = today + timedelta(days=(1 - today.weekday()) % 7 or 7)
    later = today + timedelta(days=3)

    def at(day: object, hour: int) -> datetime:
        return moment_of(datetime.combine(day, time(hour)), BERLIN)  # type: ignore[arg-type]

    admin = access_for_user(people["quentin"], via="system")
    floor = {"name": "Serving day", "job_class": "inference", "gpu_type": L40S, "gpus": 24, "rule": WEEKDAYS, "purpose": "Chat and search by day"}
    floor |= {"starts_at": at(today - timedelta(days=today.weekday()), 8), "ends_at": at(today - timedelta(days=today.weekday()), 20)}
    reservation_request(access=admin, given=floor | {"zone": "Europe/Berlin"}, now=now)
    release = {"name": "Release training", "quota": "veridia/research/language/atlas", "gpu_type": H100, "gpus": 32, "decay_s": 1800}
    release |= {"starts_at": at(tuesday, 9), "ends_at": at(tuesday, 12), "purpose": "Final run of Atlas 3", "zone": "Europe/Berlin"}
    reservation_request(access=admin, given=release, now=now)
    asked = {"name": "Benchmark evening", "quota": "veridia/research/language/instruct", "gpu_type": H100, "nodes": 2, "zone": "Europe/Berlin"}
    asked |= {"starts_at": at(later, 18), "ends_at": at(later, 22), "purpose": "Compare with the last release"}
    reservation_request(access=access_for_user(people["tessa"], via="system"), given=asked, now=now)


def power_seed(*, people: Mapping[str, User], now: datetime) -> None:
    """The training pool may not draw all that it could in the evening, when power is dear."""
    today = now.astimezone(BERLIN).date()
    gpus = Gpu.objects.filter(node__pool__name="training", node__spare=False, gpu_type_id=H100).count()
    watts = rated_watts(H100, None) * gpus * 98 // 100 // 1000 * 1000
    start, end = (moment_of(datetime.combine(today, time(hour)), BERLIN) for hour in (17, 20))
    given = {"pool": "training", "watts": watts, "zone": "Europe/Berlin", "starts_at": start, "ends_at": end, "rule": WEEKDAYS}
    cap_set(access=access_for_user(people["oona"], via="system"), given=given | {"note": "Evening peak of the site"}, now=now)


def changes_seed(*, people: Mapping[str, User], now: datetime) -> None:
    """One change that was applied, and one that waits for a second person."""
    admin = access_for_user(people["quentin"], via="system")
    title = {"op": "update", "node": _node("veridia/platform").public_id, "set": {"reclaim_min_runtime_s": 600}}
    wanted = Wanted([title], "Platform keeps borrowed GPUs for 10 minutes", "Short jobs were reclaimed before their first checkpoint.")
    done = change_draft(access=admin, wanted=wanted, now=now - timedelta(days=2))
    change_apply(access=admin, change=done, revision=done.revision, capacity={}, now=now - timedelta(days=2))
    QuotaNode.objects.filter(pk=_node("veridia/research").pk).update(needs_approval=True)
    giver, taker = (_node(f"veridia/research/language/{name}") for name in ("atlas", "instruct"))
    held = {node.pk: QuotaShare.objects.get(node=node, gpu_type=H100).guaranteed_milli or 0 for node in (giver, taker)}
    moved = held[giver.pk] // 4 // 1000 * 1000
    edits = [_guarantee(giver, held[giver.pk] - moved), _guarantee(taker, held[taker.pk] + moved)]
    wanted = Wanted(edits, "Move H100s from Atlas to Instruct", "Instruct is behind its release; Atlas waits for data until the new year.")
    asked = change_draft(access=admin, wanted=wanted, now=now - timedelta(hours=3))
    change_propose(access=admin, change=asked, revision=asked.revision, now=now - timedelta(hours=3))


def _node(path: str) -> QuotaNode:
    return QuotaNode.objects.get(path=path)


def _guarantee(node: QuotaNode, milli: int) -> dict[str, object]:
    return {"op": "update", "node": node.public_id, "set": {"shares": {H100: {"guaranteed_milli": milli}}}}


def budgets_seed(*, people: Mapping[str, User], now: datetime) -> None:
    """One near its warning's end, one used up, one with room. What is used is what the ledger has, and the amount follows from it."""
    access, prices = access_for_user(people["quentin"], via="system"), price_book()
    for path, name, unit, percent in BUDGETS:
        period = BudgetPeriod.QUARTER if unit == BudgetUnit.MONEY else BudgetPeriod.MONTH
        meant = Budget(quota=_node(path), unit=unit, period=period, zone="Europe/Berlin")
        used = used_between(meant, period_at(meant, now).start, now, prices).of(unit)
        amount = max(1000, 100 * used // percent // 1000 * 1000)
        given = {"name": name, "quota": path, "unit": unit, "period": period, "zone": meant.zone, "at_stop": AtStop.NOTHING_NEW}
        budget_create(access=access, given=given | {"amount": amount}, now=now)
