"""Writing the usage ledger. It follows what is held: whoever changes that says afterwards what is held now, in the same transaction.

An entry is never changed apart from its end, which is written once; the database itself refuses anything else. The caller has taken the moment
(`ledger_moment`) before its first write, so entries of several writers line up without gap or overlap.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from types import MappingProxyType
from typing import Any

from django.db import connection, transaction
from django.db.models import Sum

from gpufleet.core.bulk import rows_insert
from gpufleet.core.prepared import Prepared, PreparedUpdate, Question, together
from gpufleet.core.times import millis, whole_millis
from quotas.lineup import (
    GUARANTEED,
    NOTHING,
    STANDINGS,
    Key,
    Promised,
    Weight,
    Worker,
    above,
    all_inside,
    share_classes,
    with_class_windows,
)
from quotas.models import LedgerClock, LedgerEntry, QuotaNode, QuotaShare
from quotas.selectors.windows import IN_FORCE, InForce, of_class


@dataclass(frozen=True, slots=True)
class Held:
    """What one worker holds of one GPU type, and all that an entry says of it besides the tree and its class."""

    attempt: int
    job: str
    attempt_number: int
    role: str
    worker: int
    surplus: bool
    cluster: str
    node: str
    gpu_type: str
    gpu_milli: int
    parts: list[list[Any]]
    tier: str
    pool: str
    phase: str
    quota_id: int
    job_class: str
    priority: int
    preemptible: str
    owner: str
    labels: Mapping[str, Any]
    stated_cost_centre: str
    began_at: datetime

    @property
    def key(self) -> Key:
        return (self.attempt, self.role, self.worker, self.gpu_type)


_FACTS = tuple(Held.__slots__)


@dataclass(frozen=True, slots=True)
class _Entry:
    """All that an entry says, apart from when."""

    worker: Held
    share_class: str
    quota_path: str
    cost_centre: str


_SAID = (*_FACTS, "share_class", "quota_path", "cost_centre")
_LINE = ("attempt", "role", "worker", "gpu_type", "surplus", "quota_path", "gpu_milli", "preemptible", "job_class", "priority", "began_at", "job")
_facts_of = attrgetter(*_FACTS)

# An entry begins and ends at most so long before that is written down. What adds up the ledger and keeps the sum waits longer.
LATE = timedelta(minutes=2)

LOCKED_CLOCK = Prepared[LedgerClock](lambda: LedgerClock.objects.select_for_update().filter(pk=1))
SET_CLOCK = PreparedUpdate(lambda now: (LedgerClock.objects.filter(pk=1), {"at": now}))
OPEN = LedgerEntry.objects.filter(until__isnull=True)
OPEN_ENTRIES: Prepared[tuple[Any, ...]] = Prepared(lambda: OPEN.order_by("id").values_list("id", *_SAID))
OPEN_ENTRIES_OF: Prepared[tuple[Any, ...]] = Prepared(lambda attempts: OPEN.filter(attempt__among=attempts).order_by("id").values_list("id", *_SAID))
CLOSE_ENTRIES = PreparedUpdate(lambda keys, at: (OPEN.filter(pk__among=keys), {"until": at}))
OPEN_LINE: Prepared[tuple[Any, ...]] = Prepared(lambda types: OPEN.filter(gpu_type__among=types).values_list(*_LINE))
OTHERS_HOLD: Prepared[tuple[Any, ...]] = Prepared(
    lambda types, own: (
        OPEN.filter(gpu_type__among=types)
        .exclude(attempt__among=own)
        .order_by()
        .values("quota_path", "gpu_type")
        .annotate(milli=Sum("gpu_milli"))
        .values_list("quota_path", "gpu_type", "milli")
    )
)
PATHS: Prepared[tuple[int, str]] = Prepared(lambda keys: QuotaNode.objects.filter(pk__among=keys).values_list("pk", "path"))
COST_CENTRES: Prepared[tuple[str, str]] = Prepared(lambda paths: QuotaNode.objects.filter(path__among=paths).values_list("path", "cost_centre"))
SHARES: Prepared[tuple[str, str, int | None]] = Prepared(
    lambda paths: QuotaShare.objects.filter(node__path__among=paths).values_list("node__path", "gpu_type", "guaranteed_milli")
)


@dataclass(frozen=True, slots=True)
class Moment:
    at: datetime
    first: bool  # the ledger begins here
    hour_is_due: bool  # a full hour has begun since all classes were decided
    wanted_types: tuple[str, ...]


def ledger_moment(*, now: datetime) -> Moment:
    """The moment of all that this transaction writes about usage: now, or that of the newest entry where a clock is behind.

    It locks the ledger until the end of the transaction, so it comes before any other lock.
    """
    assert connection.in_atomic_block, "the moment holds until the end of its transaction"
    now = whole_millis(now)
    clock = LOCKED_CLOCK.first()
    first = False
    if clock is None:
        fresh = LedgerClock(pk=1, at=now, began_at=now, decided_at=now)
        LedgerClock.objects.bulk_create([fresh], ignore_conflicts=True)
        clock = LedgerClock.objects.select_for_update().get(pk=1)
        first = clock.at == now
    if clock.at < now:
        SET_CLOCK(now)
        clock.at = now
    return Moment(clock.at, first, _hour(clock.at) > clock.decided_at, tuple(clock.wanted_types))


def _hour(moment: datetime) -> datetime:
    return moment.replace(minute=0, second=0, microsecond=0)


def ledger_follow(*, attempts: Collection[int], held: Sequence[Held], at: datetime, since: Mapping[int, datetime] = MappingProxyType({})) -> int:
    """Make the open entries of these attempts say what is held now. Returns how many entries began.

    What did not change goes on. A worker that goes on in another phase keeps its class; where an attempt gains or loses workers, the classes of all
    its workers are decided anew. `since`: attempts that are as they are since a moment before this one.
    """
    entries, paths = together(OPEN_ENTRIES_OF.asking(attempts), PATHS.asking({worker.quota_id for worker in held}))
    open_entries = _by_key(entries)
    wanted = {worker.key: worker for worker in held}
    assert len(wanted) == len(held), "a worker holds one amount of a type"
    before, after = _keys_by_attempt(open_entries), _keys_by_attempt(wanted)
    deciding = {attempt for attempt, keys in after.items() if before.get(attempt) != keys}
    places = _Places.at(dict(paths))
    classes = _classes_beside_others(attempts, held, places, at) if deciding else {}
    fresh, closed = [], {pk: since.get(key[0], at) for key, (pk, _) in open_entries.items() if key not in wanted}
    for key, worker in wanted.items():
        pk, entry = open_entries.get(key, (None, None))
        share_class = classes[key] if entry is None or key[0] in deciding else entry.share_class
        following = _entry(worker, places, share_class)
        if entry != following:
            moment = since.get(key[0], at)
            fresh.append((following, moment))
            closed |= {pk: moment} if pk is not None else {}
    _write(closed, fresh)
    return len(fresh)


def ledger_redecide(*, at: datetime) -> int:
    """Line up all that runs again, by the tree as it is: at each full hour, and when the tree has changed. Returns how many entries were split.

    None of a cluster that does not answer: its run may have ended before now, and an entry ends in itself.
    """
    clock = LedgerClock.objects.filter(pk=1)
    clock.update(decided_at=at)
    unseen = set(clock.values_list("unseen", flat=True)[0])
    entries = _by_key(OPEN_ENTRIES())
    places = _Places.of(entry.worker.quota_id for _, entry in entries.values())
    line = [_worker(entry.worker, places.path[entry.worker.quota_id]) for _, entry in entries.values()]
    shares, rows = together(_shares_asked(line), IN_FORCE.asking(at))
    classes = _classes(line, None, shares, rows)
    fresh, ended = [], []
    for key, (pk, entry) in entries.items():
        following = _entry(entry.worker, places, classes[key])
        if entry != following and entry.worker.cluster not in unseen:
            ended.append(pk)
            fresh.append((following, at))
    _write(dict.fromkeys(ended, at), fresh)
    return len(fresh)


def ledger_unseen(*, clusters: Sequence[str], at: datetime) -> None:
    """These are the clusters that do not answer, by name. What was put off for the others is made good."""
    clock = LedgerClock.objects.filter(pk=1)
    before = set(clock.values_list("unseen", flat=True)[0])
    clock.update(unseen=sorted(clusters))
    if before - set(clusters):
        ledger_redecide(at=at)


def ledger_class_if(*, worker: Worker, without: Collection[str] = (), at: datetime) -> str:
    """The class in which this would stand if it began beside all that runs now, but for some jobs. Nothing is locked, and nothing written."""
    shares, held, rows = together(_shares_asked([worker]), OPEN_LINE.asking({worker.gpu_type}), IN_FORCE.asking(at))
    line = [other for other in _line(held) if other.job not in without]
    return _classes([*line, worker], [worker], shares, rows)[worker.key]


def ledger_classes_if(
    before: Mapping[tuple[str, str], Promised], after: Mapping[tuple[str, str], Promised], renamed: Mapping[str, str]
) -> list[tuple[str, str, str]]:
    """The jobs that run with their classes under two sets of guarantees, where these differ. `renamed` says where nodes are under the second.

    A job of several classes has the one that is taken back first. Nothing is locked, and nothing written.
    """
    types = {at[1] for at in {**before, **after} if renamed or before.get(at) != after.get(at)}
    line = list(_line(OPEN_LINE(types)))
    was = _by_job(line, share_classes(line, before))
    moved = [replace(worker, path=_moved(worker.path, renamed)) for worker in line] if renamed else line
    now = _by_job(moved, share_classes(moved, after))
    return [(job, was[job], now[job]) for job in sorted(was) if was[job] != now[job]]


def ledger_classes_without(*, window: InForce, at: datetime) -> list[tuple[str, str, str]]:
    """The same, with all windows in force, and without one of them."""
    line = list(_line(OPEN_LINE({window.gpu_type})))
    shares, rows = together(_shares_asked(line), IN_FORCE.asking(at))
    stated, windows = list(shares), [InForce(*row) for row in rows]
    if window not in windows:
        return []
    rest = [*windows]
    rest.remove(window)
    was, now = (_by_job(line, _classes(line, None, stated, found)) for found in (windows, rest))
    return [(job, was[job], now[job]) for job in sorted(was) if was[job] != now[job]]


def _moved(path: str, renamed: Mapping[str, str]) -> str:
    return renamed.get(path, path)


def _by_job(line: Iterable[Worker], classes: Mapping[Key, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for worker in line:
        found[worker.job] = max(found.get(worker.job, GUARANTEED), classes[worker.key], key=STANDINGS.index)
    return found


def ledger_held(*, now: datetime) -> datetime | None:
    """Hold the ledger for a change of the tree, before the tree itself is locked. None: nothing was ever used, so there is no ledger."""
    return ledger_moment(now=now).at if LedgerClock.objects.filter(pk=1).exists() else None


def ledger_tree_changed(*, at: datetime | None) -> None:
    """A guarantee, a path or a cost centre is another one now."""
    if at is not None:
        ledger_redecide(at=at)


def ledger_hour(*, now: datetime) -> int:
    """What beat asks for at each full hour; where a writer of usage came first, it has been done."""
    if not LedgerClock.objects.filter(pk=1).exists():
        return 0
    with transaction.atomic():
        moment = ledger_moment(now=now)
        return ledger_redecide(at=moment.at) if moment.hour_is_due else 0


def _by_key(rows: Iterable[tuple[Any, ...]]) -> dict[Key, tuple[int, _Entry]]:
    found = ((pk, _Entry(Held(*said[: len(_FACTS)]), *said[len(_FACTS) :])) for pk, *said in rows)
    return {entry.worker.key: (pk, entry) for pk, entry in found}


def by_moment(ends: Mapping[int, datetime]) -> dict[datetime, list[int]]:
    found: dict[datetime, list[int]] = {}
    for key, moment in ends.items():
        found.setdefault(moment, []).append(key)
    return found


def _keys_by_attempt(keys: Iterable[Key]) -> dict[int, set[Key]]:
    found: dict[int, set[Key]] = {}
    for key in keys:
        found.setdefault(key[0], set()).add(key)
    return found


@dataclass(frozen=True, slots=True)
class _Places:
    """Paths and cost centres of nodes of the tree, by key."""

    path: dict[int, str]
    cost_centre: dict[int, str]

    @classmethod
    def of(cls, keys: Iterable[int]) -> "_Places":
        return cls.at(dict(PATHS(set(keys))))

    @classmethod
    def at(cls, path: dict[int, str]) -> "_Places":
        nodes = {upper for place in path.values() for upper in above(place)}
        centres = dict(COST_CENTRES(nodes))
        nearest = {key: next((centres[upper] for upper in reversed(above(place)) if centres.get(upper)), "") for key, place in path.items()}
        return cls(path, nearest)


def _entry(worker: Held, places: _Places, share_class: str) -> _Entry:
    return _Entry(worker, share_class, places.path[worker.quota_id], worker.stated_cost_centre or places.cost_centre[worker.quota_id])


def _write(ended: Mapping[int, datetime], fresh: Sequence[tuple[_Entry, datetime]]) -> None:
    for until, keys in by_moment(ended).items():
        closed = CLOSE_ENTRIES(keys, until)
        assert closed == len(keys), "an entry was closed by somebody else although the ledger was held"
    rows = ((*_facts_of(entry.worker), entry.share_class, entry.quota_path, entry.cost_centre, since) for entry, since in fresh)
    rows_insert(LedgerEntry, (*_SAID, "since"), rows)


def _worker(worker: Held, path: str) -> Worker:
    return Worker(
        key=worker.key,
        surplus=worker.surplus,
        path=path,
        gpu_milli=worker.gpu_milli,
        preemptible=worker.preemptible,
        job_class=worker.job_class,
        priority=worker.priority,
        began=millis(worker.began_at),
        job=worker.job,
    )


def _classes_beside_others(attempts: Collection[int], held: Sequence[Held], places: _Places, at: datetime) -> dict[Key, str]:
    """The classes of these workers in line with all that runs. The others' columns alone are read, and only where somebody may stand outside: this is
    done whenever something starts."""
    asked = [_worker(worker, places.path[worker.quota_id]) for worker in held]
    own = set(attempts)
    types = {worker.gpu_type for worker in held}
    shares, others, rows = together(_shares_asked(asked), OTHERS_HOLD.asking(types, own), IN_FORCE.asking(at))
    if all_inside(asked, (Weight(*row) for row in others), _promised(shares, ())):
        return {worker.key: GUARANTEED for worker in asked}
    line = [worker for worker in _line(OPEN_LINE(types)) if worker.key[0] not in own]
    return _classes([*line, *asked], asked, shares, rows)


def _classes(
    line: Sequence[Worker], asked: Sequence[Worker] | None, shares: Iterable[tuple[str, str, int | None]], rows: Iterable[tuple[Any, ...]]
) -> dict[Key, str]:
    """The classes of those who are asked about (None: of all), with what is reserved at that moment. Who has taken a window of a class is only known
    when all of that class are lined up."""
    windows = [InForce(*row) for row in rows]
    rooms = of_class(windows)
    if not rooms:
        return share_classes(line, _promised(shares, windows), asked)
    if asked is not None:
        shares = _shares_asked(line).answer()
    classes = with_class_windows(share_classes(line, _promised(shares, windows)), line, rooms)
    return classes if asked is None else {worker.key: classes[worker.key] for worker in asked}


def _line(rows: Iterable[tuple[Any, ...]]) -> Iterator[Worker]:
    for attempt, role, index, gpu_type, surplus, path, milli, preemptible, job_class, priority, began, job in rows:
        yield Worker((attempt, role, index, gpu_type), surplus, path, milli, preemptible, job_class, priority, millis(began), job)


def _shares_asked(workers: Iterable[Worker]) -> Question:
    return SHARES.asking({upper for path in {worker.path for worker in workers} for upper in above(path)})


def _promised(shares: Iterable[tuple[str, str, int | None]], windows: Iterable[InForce]) -> dict[tuple[str, str], Promised]:
    """By node and type: its guarantee, and on top of it the windows. What a window adds counts for its owner and for each node above."""
    found = {(path, gpu_type): Promised(milli) for path, gpu_type, milli in shares}
    for window in windows:
        for path in above(window.path) if window.path is not None else ():
            known = found.get((path, window.gpu_type), NOTHING)
            found[path, window.gpu_type] = Promised(known.guaranteed_milli, known.window_milli + window.milli)
    return found
