"""What those who share out the fleet were promised, held against what schedulers do: limits, guarantees, budgets, and windows that are kept."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import connection
from django.db.models import Count, Q

from gpufleet.storm.fleet import TYPE
from quotas.models import Idle, LedgerClock, QuotaShare, Reservation, Shape, Window
from quotas.selectors.budgets import above_of, stopped_above, stops_now
from scheduler.models import Gpu, Health

# What jobs are charged: what they hold and are not leaving, and what they are promised; and how much of it is on GPUs that count as capacity.
CHARGED = """
    SELECT quota.path, job.job_class, job.preemptible, node.id, sum(seat.milli),
        sum(CASE WHEN gpu.health = 'healthy' AND node.health IN ('healthy', 'suspect') THEN seat.milli ELSE 0 END)
    FROM (
        SELECT held.job_id AS job_id, held.gpu_id AS gpu_id, held.gpu_milli AS milli
        FROM placement AS held JOIN attempt ON attempt.id = held.attempt_id
        WHERE held.until IS NULL AND held.gpu_id IS NOT NULL AND attempt.stop_asked_at IS NULL AND held.leaving_since IS NULL
        UNION ALL
        SELECT promise.job_id, promised.gpu_id, promised.gpu_milli
        FROM promise JOIN promised_seat AS promised ON promised.promise_id = promise.id WHERE promised.gpu_id IS NOT NULL
    ) AS seat JOIN job ON job.id = seat.job_id JOIN quota_node AS quota ON quota.id = job.quota_id
    JOIN gpu ON gpu.id = seat.gpu_id JOIN node ON node.id = gpu.node_id
    GROUP BY quota.path, job.job_class, job.preemptible, node.id
"""
# Runs that began since the last look. What runs may go on running where it is moved to: that is nothing new.
BEGUN = """
    SELECT job.public_id, quota.path FROM attempt JOIN job ON job.id = attempt.job_id JOIN quota_node AS quota ON quota.id = job.quota_id
    WHERE attempt.id > %s AND NOT EXISTS (
        SELECT 1 FROM attempt AS left_ WHERE left_.job_id = attempt.job_id AND left_.number = attempt.number - 1 AND left_.outcome = 'moved'
    )
"""
# Jobs that wait for places in which they were promised to start. What moves, grows or is repaired is nothing new.
PROMISED = """
    SELECT job.public_id, quota.path FROM promise JOIN job ON job.id = promise.job_id JOIN quota_node AS quota ON quota.id = job.quota_id
    WHERE promise.kind = 'start'
"""
# The open ends of the ledger are charged to where their jobs are now.
LEDGER_PATHS = """
    SELECT entry.job, entry.quota_path, quota.path, entry.cluster
    FROM ledger_entry AS entry JOIN job ON job.public_id = entry.job JOIN quota_node AS quota ON quota.id = job.quota_id
    WHERE entry.until IS NULL AND entry.quota_path <> quota.path
"""
ANYWHERE = ""
NEAR = timedelta(minutes=11)  # what could still run in the next 5 to 10 minutes does not start in a window; before its end there are no such
SKEW = timedelta(seconds=5)  # the clocks of schedulers are off by less
IN_SERVICE = Gpu.objects.filter(health=Health.HEALTHY, node__health__in=(Health.HEALTHY, Health.SUSPECT))


class Whose(NamedTuple):
    path: str
    job_class: str
    fixed: bool  # not preemptible


class Charged(NamedTuple):
    whose: Whose
    node: int
    milli: int
    serving: int


@dataclass
class Promises:
    """Looked at after each event: `faults` compares what is charged now with what was at the last look."""

    used: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    rows: list[Charged] = field(default_factory=list)
    newest: int = 0
    promised: frozenset[str] = frozenset()

    def faults(self, now: datetime, *, edited: bool) -> Iterator[str]:
        """`edited`: people changed what is promised just now, and no scheduler has planned since."""
        rows = [Charged(Whose(path, cls, preemptible == "no"), *rest) for path, cls, preemptible, *rest in _rows(CHARGED)]
        used, fixed = _by_node(rows), _by_node([row for row in rows if row.whose.fixed])
        grown = _grown(self.rows, rows)
        if grown and not edited:
            windows = _lasting(now)
            yield from self._beyond(used, fixed, rows, [window.reservation for window in windows])
            held = [one.reservation for one in windows if one.reservation.idle == Idle.HELD and (one.ends_at is None or one.ends_at > now + NEAR)]
            if held:
                yield from self._kept(held, [one.reservation for one in _lasting(now, NEAR)], rows, grown)
        self.used, self.fixed, self.rows = used, fixed, rows
        yield from self._started()
        unseen = {name for names in LedgerClock.objects.values_list("unseen", flat=True) for name in names}
        for job, charged, path, cluster in _rows(LEDGER_PATHS):
            if cluster not in unseen:  # of what may have ended meanwhile nothing is written down before its cluster answers
                yield f"{job} is charged to {charged} in the ledger, and is of {path}"

    def _started(self) -> Iterator[str]:
        """Nothing new starts in a team whose budget is used up. Whoever was promised places before that takes them: others gave way for it."""
        promised, begun = dict(_rows(PROMISED)), _rows(BEGUN, self.newest)
        fresh = [(job, path) for job, path in (*begun, *promised.items()) if job not in self.promised]
        if fresh:
            stops = stops_now()
            for job, path in fresh:
                if (stop := stopped_above(path, stops)) is not None:
                    yield f"{job} of {path} was started, and {stop.budget} of {stop.path} is used up"
        [(newest,)] = _rows("SELECT coalesce(max(id), 0) FROM attempt")
        self.newest, self.promised = newest, frozenset(promised)

    def _beyond(self, used: Mapping[str, int], fixed: Mapping[str, int], rows: list[Charged], windows: list[Reservation]) -> Iterator[str]:
        """Whatever stood above a limit when it was lowered may stay; nothing is added to it, but what is charged to the window of a class."""
        more: dict[str, int] = defaultdict(int)
        for one in windows:
            for path in above_of(one.quota.path) if one.quota is not None else [ANYWHERE]:
                more[path] += one.gpus_milli
        for path, guaranteed, limit in QuotaShare.objects.filter(gpu_type=TYPE).values_list("node__path", "guaranteed_milli", "limit_milli"):
            above = more[path] + more[ANYWHERE]
            in_windows = _in_class_windows(path, rows, windows) - _in_class_windows(path, self.rows, windows)
            before, after = self.used.get(path, 0), used.get(path, 0)
            if limit is not None and after > max(limit + above, before + max(0, in_windows)):
                yield f"{path} came from {before} to {after} thousandths; its limit is {limit}, and {above} for windows"
            before, after = self.fixed.get(path, 0), fixed.get(path, 0)
            if guaranteed is not None and after > max(guaranteed + above, before + max(0, in_windows)):
                yield f"{path} came from {before} to {after} thousandths not preemptible; its guarantee is {guaranteed}, and {above} for windows"

    def _kept(self, held: list[Reservation], soon: list[Reservation], rows: list[Charged], grown: Mapping[tuple[Whose, int], int]) -> Iterator[str]:
        """While a window keeps its idle GPUs for its owner, work of others is not added to what it still lacks; of two windows that do not fit beside
        what runs any more, as a node was lost, the owner of either may still fill its own. Where several keep blocks or nodes, the scheduler looks
        for places that suit all of them, which this does not follow."""
        blocks = dict(_rows("SELECT id, coalesce(domain_id, 0) FROM node"))
        places = {Shape.GPUS: dict.fromkeys(blocks, 0), Shape.BLOCK: blocks, Shape.NODES: {node: node for node in blocks}}
        in_service = IN_SERVICE.values_list("node_id").annotate(count=Count("pk"))
        for one in held:
            beside = [other for other in soon if other != one]
            others = {whose for whose, _ in grown if not _may_use(whose, one) and not _within(whose, beside, rows)}
            if not others or (one.shape != Shape.GPUS and any(other.shape != Shape.GPUS for other in beside)):
                continue
            where = places[Shape(one.shape)]
            capacity = dict.fromkeys(where.values(), 0)
            for node, gpus in in_service:
                capacity[where[node]] += 1000 * gpus
            room = _room(one, rows, where, capacity)
            came = _grown(self.rows, rows, where)
            without = {
                place: capacity[place] + sum(more for (whose, at), more in came.items() if at == place and whose in others)
                for place in where.values()
            }
            if room < min(one.gpus_milli, _room(one, rows, where, without)):
                yield f"{min(others).path} got more, and for {one.public_id} of {one.owner_label} {room} of {one.gpus_milli} thousandths are left"


def _lasting(now: datetime, ahead: timedelta = SKEW) -> list[Window]:
    """Those that last, or begin within so much, by the clock of one scheduler or another."""
    windows = Window.objects.filter(Q(ends_at__isnull=True) | Q(ends_at__gt=now - SKEW), starts_at__lte=now + ahead, released_at__isnull=True)
    return list(windows.select_related("reservation__quota").order_by("pk"))


def _in_class_windows(path: str, rows: list[Charged], windows: list[Reservation]) -> int:
    """How much at or below a node of the tree may be charged to windows of a class: what they use is no share of its team."""
    below = [row for row in rows if f"{row.whose.path}/".startswith(f"{path}/")]
    return sum(min(one.gpus_milli, sum(row.milli for row in below if _may_use(row.whose, one))) for one in windows if one.quota is None)


def _room(of: Reservation, rows: list[Charged], places: Mapping[int, int], capacity: Mapping[int, int]) -> int:
    """How much of a window's GPUs could stand where nobody else is: on all of the type, in one block, or on so many nodes. What its owner still holds
    of GPUs that are out of service stands there already."""
    left = dict(capacity)
    for row in rows:
        left[places[row.node]] += row.milli - row.serving if _may_use(row.whose, of) else -row.serving
    most = sorted(left.values(), reverse=True)
    if of.shape != Shape.NODES:
        return most[0]
    assert of.nodes is not None
    return sum(min(room, of.gpus_milli // of.nodes) for room in most[: of.nodes])


def _within(whose: Whose, windows: list[Reservation], rows: list[Charged]) -> bool:
    """Whether all that may use the same of these windows fits into them."""
    mine = [one for one in windows if _may_use(whose, one)]
    return sum(row.milli for row in rows if any(_may_use(row.whose, one) for one in mine)) <= sum(one.gpus_milli for one in mine) if mine else False


def _may_use(whose: Whose, of: Reservation) -> bool:
    return whose.job_class == of.job_class if of.quota is None else f"{whose.path}/".startswith(f"{of.quota.path}/")


def _grown(before: list[Charged], after: list[Charged], places: Mapping[int, int] | None = None) -> dict[tuple[Whose, int], int]:
    """What came to whom: in all, or in each of these places."""
    found: dict[tuple[Whose, int], int] = defaultdict(int)
    for rows, sign in ((after, 1), (before, -1)):
        for row in rows:
            found[row.whose, 0 if places is None else places[row.node]] += sign * row.milli
    return {key: more for key, more in found.items() if more > 0}


def _by_node(rows: list[Charged]) -> Mapping[str, int]:
    found: dict[str, int] = defaultdict(int)
    for row in rows:
        for path in above_of(row.whose.path):
            found[path] += row.milli
    return found


def _rows(question: str, *given: Any) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(question, given)
        found: list[tuple[Any, ...]] = cursor.fetchall()
    return found
