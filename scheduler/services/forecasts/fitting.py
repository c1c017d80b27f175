"""Whether, when and where a job would start, asked before it is submitted (UI-3): tried on the fleet that the process keeps (`grounds`)."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from django.core.exceptions import ValidationError

from gpufleet.core.money import cost_micros
from gpufleet.core.times import MILLISECOND, millis
from quotas.lineup import GUARANTEED, RESERVED, Worker
from quotas.permissions import Access, Can
from quotas.selectors.rates import rates_now
from quotas.services.ledger import ledger_class_if
from scheduler.backends.registry import clusters_without_images
from scheduler.engine.model.mig import Board, Profile, board_of
from scheduler.engine.model.plan import Decision, Stand
from scheduler.engine.model.values import QUEUED, Job
from scheduler.engine.state.grid import type_rank
from scheduler.engine.trial import Level, Trial
from scheduler.jobs.schema import JobDescription
from scheduler.jobs.speeds import MILLION, is_cut, seconds_at, slowest_on, speed_on
from scheduler.jobs.stored import Spec, roles_of, sharing_of, takes_gpus, types_of, wanted_of
from scheduler.loop.foresight import estimated, ruled
from scheduler.selectors.energy import Tariffs, sees_prices
from scheduler.selectors.loop import pause_now
from scheduler.services.forecasts.budgeting import budgets_said
from scheduler.services.forecasts.grounds import GROUNDS, PAUSED, Side
from scheduler.services.forecasts.proposals import Change, changes_found, moment_of
from scheduler.services.jobs.deferring import Deferral
from scheduler.services.jobs.submission import Checked, deferral_of, submissions_check


@dataclass(frozen=True, slots=True)
class OnType:
    """How a job would run on one of the types that it accepts. `cut`: its limit ends it before its work is done."""

    gpu_type: str
    speed: float
    run_seconds: int | None
    cut: bool
    cost_micros: int | None
    chosen: bool  # what the rest of the fit speaks of


@dataclass(frozen=True, slots=True)
class Fit:
    """What would become of a job.

    `verdict`: now, soon (when others have left), later, held (until somebody or something lets it go), never, or unknown.
    """

    verdict: str
    at: datetime | None
    earliest: datetime | None
    latest: datetime | None
    as_of: datetime
    reasons: tuple[dict[str, Any], ...]
    stands: tuple[Stand, ...]
    nodes: tuple[tuple[str, int], ...]
    after: tuple[str, ...]
    others: tuple[Decision, ...]
    backfilled: bool
    quota: str
    gpu_type: str
    gpus_milli: int
    count: int
    levels: tuple[Level, ...]
    guaranteed: bool  # beside what runs now
    claimants: tuple[str, ...]
    preemptible: str
    run_seconds: int | None
    cost_micros: int | None  # of one job, for those who may see costs
    limit_cost_micros: int | None
    hourly_micros: int | None
    changes: tuple[Change, ...]
    waits_for: tuple[str, ...]  # what holds it whatever the fleet has
    budgets: tuple[str, ...]  # those that it would bring near their end, or beyond it
    on_types: tuple[OnType, ...]  # as they are tried; empty where it states no speeds and the fastest would go first
    type_choice: str  # its own, or the fleet's
    zero_types: tuple[str, ...]  # which it would accept and never stands on: its speed there is 0
    states_speeds: bool
    speeds_of: str  # the template that gave it these speeds, as it states none; and their number
    speeds_number: int
    without_images: tuple[str, ...]  # of a job with an image: the clusters whose back-ends run none, where it never stands
    wanted_milli: int  # whole GPUs that an elastic job wants; it may start on fewer
    sharing: str  # exclusive, mig, mps or timeslice
    instances: tuple[tuple[Board, Profile], ...]  # those that its roles name, as this GPU type has them
    deferral: Deferral | None  # of a job that may be deferred: to which hour it would be
    sees_energy: bool  # whether the reader may see what energy costs

    @property
    def all_milli(self) -> int:
        """What all jobs of an array hold if all run at once."""
        return self.count * self.gpus_milli

    @property
    def all_cost_micros(self) -> int | None:
        return None if self.cost_micros is None else self.count * self.cost_micros


@dataclass(frozen=True, slots=True)
class Start:
    """When a job would start, and what all its jobs hold then."""

    verdict: str  # as of a `Fit`
    at: datetime | None
    gpu_type: str
    all_milli: int


def fit_of(*, access: Access, description: Mapping[str, Any], now: datetime, changes: bool = True) -> Fit | None:
    """What would become of a job that holds all rules; None while the fleet is still being read.

    A `ValidationError` names every fault, as a submission does.
    """
    (checked,) = submissions_check(access=access, descriptions=[description], now=now)
    return fit_checked(access=access, checked=checked, raw=description, now=now, changes=changes)


def fit_checked(*, access: Access, checked: Checked, raw: Mapping[str, Any], now: datetime, changes: bool = True) -> Fit | None:
    tried = _tried(checked, now)
    if tried is None:
        return None
    found, as_of = tried
    said = checked.description
    at = moment_of(found, as_of, now)
    paused = [PAUSED] if pause_now() else []
    range_ = None if at is None else _range(checked, found, at, now)
    if range_ is not None:
        at = range_[1]
    deferral, gates = _gates(checked, now)
    start = max([at, *gates]) if at is not None else None
    standing = GROUNDS.types_of((*(stand.node for stand in found.stands), *(node for node, _ in found.nodes))) or {found.quota_type}
    run = seconds_at(slowest_on(said.spec, standing), said.estimate_s, said.limit_s)
    rates = rates_now(now=now) if access.can(Can.SEE_COSTS, checked.quota.path) else {}
    costs = rates.get(found.quota_type)
    count = checked.count
    price = rates_now(now=now).get(found.quota_type)
    charged = _cost(found.milli, run, price)
    budgets = budgets_said(
        access,
        checked.quota.path,
        gpu_type=found.quota_type,
        gpus_milli=count * (found.milli or checked.gpus_milli),
        seconds=run,
        cost_micros=None if charged is None else count * charged,
        now=now,
    )
    held = (*_held(said, now), *budgets.holds, *paused)
    better: tuple[Change, ...] = ()
    is_deferred = deferral is not None and deferral.to is not None and start is not None and not found.never
    if changes and not held and not is_deferred and (at is None or at > now or not _is_at_once(found)):
        better = changes_found(access, checked, raw, found, lambda _, other, dated: _tried(other, now, dated=dated), now)
    fit = Fit(
        verdict=_verdict(found, held, start, now),
        at=start,
        earliest=None if range_ is None else max([range_[0], now, *gates]),
        latest=None if range_ is None else max([range_[2], now, *gates]),
        as_of=as_of,
        reasons=tuple(reason.as_json() for reason in found.reasons),
        stands=found.stands,
        nodes=found.nodes,
        after=found.after,
        others=found.others,
        backfilled=found.backfilled,
        quota=checked.quota.path,
        gpu_type=found.quota_type,
        gpus_milli=found.milli or checked.gpus_milli,
        count=count,
        levels=found.levels,
        guaranteed=found.guaranteed or _goes_before_others(checked, found, now),
        claimants=found.claimants,
        preemptible=said.preemptible_column,
        run_seconds=run,
        cost_micros=_cost(found.milli, run, costs),
        limit_cost_micros=_cost(found.milli, said.limit_s, costs),
        hourly_micros=_cost(found.milli, 3600, costs),
        changes=better,
        waits_for=held,
        budgets=budgets.notes,
        on_types=_on_types(said, found, standing, rates),
        type_choice=type_choice_of(said),
        zero_types=_zero_types(said),
        states_speeds=bool(said.throughput),
        speeds_of=checked.template.ref if checked.template and checked.speeds else "",
        speeds_number=checked.speeds or 0,
        without_images=clusters_without_images() if said.launch.image is not None else (),
        wanted_milli=sum(1000 * (role.get("gpus") or 0) * wanted_of(role) for role in roles_of(said.spec)),
        sharing=sharing_of(said.spec),
        instances=_instances(said.spec, found.quota_type),
        deferral=deferral,
        sees_energy=sees_prices(access, checked.quota.path),
    )
    # Where it would stand, and whom it would put out, is known of a start at once, and this one starts in some hours.
    return replace(fit, stands=(), nodes=(), after=(), others=(), reasons=(), backfilled=False) if is_deferred else fit


def start_checked(*, checked: Checked, holds: tuple[str, ...], now: datetime) -> Start | None:
    """The start alone, by estimates and how these came out before: no futures are played, which may take many seconds. `holds`: what keeps it back
    beside what it says itself. None while the fleet is still being read."""
    tried = _tried(checked, now)
    if tried is None:
        return None
    found, as_of = tried
    at = moment_of(found, as_of, now)
    if at is not None and not _is_at_once(found):
        at = now + MILLISECOND * GROUNDS.foreseen_by_estimates((at - now) // MILLISECOND).at
    _, gates = _gates(checked, now)
    start = max([at, *gates]) if at is not None else None
    verdict = _verdict(found, (*_held(checked.description, now), *holds), start, now)
    return Start(verdict, start, found.quota_type, checked.count * (found.milli or checked.gpus_milli))


def _gates(checked: Checked, now: datetime) -> tuple[Deferral | None, list[datetime]]:
    """To which hour it would be deferred, and all moments before which it does not start."""
    said = checked.description
    held_back = said.draft or said.hold or bool(said.after)  # then its hour is chosen later
    deferral = None if held_back else deferral_of(checked, Tariffs(now), now)
    return deferral, [gate for gate in (said.not_before, deferral.to if deferral else None) if gate is not None]


def _instances(spec: Spec, gpu_type: str) -> tuple[tuple[Board, Profile], ...]:
    board = board_of(gpu_type)
    if board is None or "PCIE" in gpu_type.upper():  # what is known of multiprocessors was read off SXM modules
        return ()
    named = dict.fromkeys(role["mig"] for role in roles_of(spec) if role.get("mig"))
    return tuple((board, profile) for name in named if (profile := board.profile(name)) is not None)


def _goes_before_others(checked: Checked, found: Trial, now: datetime) -> bool:
    """Whether it is within the guarantee although more than that is used: what is lower or easier to put out stands behind it then, and borrows.

    It is the line in which it stands once it runs, so that its page says the same.
    """
    said = checked.description
    if not found.levels or all(not level.guaranteed for level in found.levels):
        return False
    would = Worker(
        key=(0, "", -1, found.quota_type),
        surplus=False,
        path=checked.quota.path,
        gpu_milli=found.milli,
        preemptible=said.preemptible_column,
        job_class=said.job_class,
        priority=said.priority,
        began=millis(now) + 1,  # behind all that runs
        job="",
    )
    leave = {one.job for one in found.others if one.action == "evict" and one.job is not None} | set(found.after)
    return ledger_class_if(worker=would, without=leave, at=now) in (GUARANTEED, RESERVED)


def _on_types(said: JobDescription, found: Trial, standing: Collection[str], rates: Mapping[str, int]) -> tuple[OnType, ...]:
    """What it would be on each type of the fleet that it accepts: for those who choose between sooner, faster and cheaper."""
    settings = GROUNDS.settings
    choice, prices = type_choice_of(said), dict(settings.gpu_prices)
    if not said.throughput and choice == "fastest":
        return ()
    roles = [role for role in roles_of(said.spec) if takes_gpus(role)]
    # A part that is stated by its memory is charged otherwise on GPUs of another size.
    alike = not any(role.get("gpu_memory_gb") for role in roles)
    named = types_of(said.spec)
    rows = []
    for name in _types_accepted(said):
        if not (speed := speed_on(said.spec, name)):
            continue
        run = seconds_at(speed, said.estimate_s, said.limit_s)
        cost = _cost(found.milli, run, rates.get(name)) if alike or name == found.quota_type else None
        rows.append(OnType(name, speed, run, is_cut(speed, said.estimate_s, said.limit_s), cost, name in standing))

    def place_of(row: OnType) -> tuple[Any, str]:
        at = named.index(row.gpu_type) if named else 0
        return type_rank(choice, prices, row.gpu_type, round(MILLION * row.speed) or 1, at), row.gpu_type

    return tuple(sorted(rows, key=place_of)) if said.throughput or len(rows) > 1 else ()


def type_choice_of(said: JobDescription) -> str:
    """Its own, or the fleet's as it was read last."""
    return said.type_choice or GROUNDS.settings.type_choice


def _types_accepted(said: JobDescription) -> list[str]:
    """Types of the fleet that all its roles accept, whatever its speed there."""
    roles = [role for role in roles_of(said.spec) if takes_gpus(role)]
    return [name for name in sorted(GROUNDS.types_of(None)) if all(name in (role.get("gpu_types") or (name,)) for role in roles)]


def _zero_types(said: JobDescription) -> tuple[str, ...]:
    return tuple(name for name in _types_accepted(said) if not speed_on(said.spec, name)) if said.throughput else ()


def _tried(checked: Checked, now: datetime, *, dated: bool = True) -> tuple[Trial, datetime] | None:
    return GROUNDS.trial(lambda side: job_of(checked, side), now, dated=dated)


def job_of(checked: Checked, side: Side) -> Job:
    """The job as the engine has it, of a kind that the ground knows and keeps."""
    said = checked.description
    asks = side.snapshots.kinds.asks(said.spec, said.job_class, said.priority, said.preemptible_column)
    if isinstance(asks, str):
        raise ValidationError({"description": [asks]})
    side.kinds += 1
    assert side.ground is not None
    scenario = side.ground.scenario
    return Job(
        name=side.ground.name,
        quota=checked.quota.path,
        kind=side.snapshots.of_template(asks.kind, checked.template.key if checked.template else ""),
        submitted=scenario.now,
        estimate_ms=None if said.estimate_s is None else 1000 * said.estimate_s,
        limit_ms=None if said.limit_s is None else 1000 * said.limit_s,
        deadline=None if said.deadline is None else millis(said.deadline),
        not_before=None,
        checkpoint=asks.saving,
        movable=asks.movable,
        work_ms=None,
        run=QUEUED,
    )


def _held(said: JobDescription, now: datetime) -> tuple[str, ...]:
    """What keeps it back whatever the fleet has."""
    held = []
    if said.draft:
        held.append("It is a draft: it is not in the queue.")
    if said.hold:
        held.append("It is held until it is released.")
    if said.after:
        held.append(f"It waits for {', '.join(one.job for one in said.after[:4])}{' and more' if len(said.after) > 4 else ''}.")
    return tuple(held)


def _verdict(found: Trial, held: tuple[str, ...], start: datetime | None, now: datetime) -> str:
    if found.never:
        return "never"
    if held:
        return "held"
    if start is None:
        return "unknown"
    if start <= now and _is_at_once(found):
        return "now"
    return "soon" if found.stands and not found.reasons and start - now < timedelta(hours=1) else "later"


def _is_at_once(found: Trial) -> bool:
    """Whether it starts by the very plan, now or when others have left. A date that has come since the fleet was read is no start."""
    return bool(found.stands) or not found.reasons


def _range(checked: Checked, found: Trial, at: datetime, now: datetime) -> tuple[datetime, datetime, datetime]:
    """The earliest, the expected and the latest start. Who starts now, or once others have left after their grace, is told no history."""
    wait = (at - now) // MILLISECOND
    sure = ruled(estimated(wait)) if _is_at_once(found) else GROUNDS.foreseen(lambda side: job_of(checked, side), wait)
    return now + MILLISECOND * sure.earliest, now + MILLISECOND * sure.at, now + MILLISECOND * sure.latest


def _cost(milli: int, seconds: int | None, rate: int | None) -> int | None:
    return None if seconds is None or rate is None else cost_micros(gpu_milli=milli, millis=1000 * seconds, micros_per_gpu_hour=rate)
