"""Reading the jobs of a scenario: the largest list, so the one where reading must be cheap.

Everything that is alike in many jobs is read once and shared as a `Kind`; the raw values, marshalled, are the key.
"""

import marshal
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

from ..model.mig import board_of
from ..model.values import (
    CLASS_RANK,
    CLASSES,
    QUEUED,
    STATES,
    Checkpoint,
    Job,
    Kind,
    Node,
    Placed,
    Placing,
    Preemptible,
    Quota,
    Role,
    Run,
    Topology,
    has_lapsed,
    new_checkpoint,
    new_job,
    new_placed,
    new_run,
)
from .checkers import (
    MISSING,
    Bad,
    Check,
    Faults,
    exact_thousandths,
    flag,
    instant_after,
    kind_of,
    one_of,
    optional,
    scaled,
    short,
    table_of,
    text,
    texts,
    whole,
)
from .gangs import check_groups, check_sharing, check_types
from .places import Occupancy
from .written import UNSET, Moment, UnsetType, WrittenCheckpoint, WrittenJob, WrittenWorker, kind_key, plain

MOST_WORKERS = 100_000
Path = tuple[str | int, ...]

_seconds = scaled(1000)
_gigabytes = scaled(1024, most=1_000_000_000)


def _preemptible(value: Any) -> Preemptible:
    if value is True:
        return Preemptible.ALWAYS
    if value is False:
        return Preemptible.NEVER
    if value == "when_borrowed":
        return Preemptible.WHEN_BORROWED
    raise Bad("must be true, false or when_borrowed")


def _raw(value: Any) -> Any:
    return value


_SHARED: dict[str, tuple[Check, Any]] = {
    "class": (one_of(*CLASSES), "batch"),
    "priority": (whole(-1_000_000, 1_000_000), 0),
    "preemptible": (_preemptible, None),
    "roles": (_raw, MISSING),
    "topology": (_raw, None),
    "sharing": (one_of("exclusive", "mig", "mps", "timeslice"), None),
    "node_labels": (table_of(text), ()),
    "needs": (table_of(scaled(1_000_000, most=1_000_000)), ()),
    "tolerates_suspect": (flag, False),
    "preemption_delay_s": (_seconds, 0),
    "grace_s": (_seconds, 0),
    "throughput": (table_of(scaled(1_000_000, most=1000)), ()),
}
_SHARED_KEYS = tuple(_SHARED)
_ROLE: dict[str, tuple[Check, Any]] = {
    "name": (text, "worker"),
    "min": (whole(0, MOST_WORKERS), 1),
    "max": (optional(whole(1, MOST_WORKERS)), None),
    "step": (whole(1, MOST_WORKERS), 1),
    "desired": (optional(whole(0, MOST_WORKERS)), None),
    "gpus": (optional(_raw), None),
    "mig": (optional(text), None),
    "gpu_memory_gb": (optional(_gigabytes), None),
    "gpu_share": (optional(scaled(1000, most=1)), None),
    "devices": (whole(1, 64), 1),
    "gpu_types": (optional(texts), None),
    "cpus": (exact_thousandths(1_000_000), 0),
    "host_memory_gb": (_gigabytes, 0),
    "topology": (_raw, None),
}
_RUN_KEYS = frozenset(
    {
        "state",
        "since",
        "started",
        "until",
        "workers",
        "leaving",
        "backfilled",
        "degraded_since",
        "last_evicted",
        "last_moved",
        "evictions",
        "reclaimed",
    }
)
_OWN_KEYS = _RUN_KEYS | {"name", "quota", "submitted", "estimate_s", "limit_s", "deadline", "not_before", "checkpoint", "work_s"}
_ALL_KEYS = _OWN_KEYS | frozenset(_SHARED_KEYS)
_WORKER_KEYS = frozenset({"role", "index", "node", "gpus", "gpu_share", "gpu_memory_gb", "mig"})


HOLDING = frozenset({"reserved", "starting", "running"})
NOTHING_TOLD = (UNSET,) * len(_RUN_KEYS)


class Doubtful(Exception):
    """Something is not as in most jobs; whether it is wrong the careful way decides."""


class JobReader:
    def __init__(
        self,
        now: int,
        topology: Topology,
        nodes: Sequence[Node],
        quotas: Sequence[Quota],
        faults: Faults,
        named_nodes: frozenset[str],
        named_quotas: frozenset[str],
    ) -> None:
        self.now = now
        self.levels = topology.all_levels
        self.nodes = {node.name: node for node in nodes}
        self.quotas = named_quotas
        self.faulty_nodes = named_nodes - self.nodes.keys()
        self.inner = {quota.parent for quota in quotas if quota.parent is not None}
        self.faults = faults
        self.kinds: dict[bytes, Kind] = {}
        self.leaves = named_quotas - self.inner
        self.written_kinds: dict[tuple[Any, ...], Kind] = {}
        self.without_last: dict[tuple[Any, Any, Any], Checkpoint] = {}
        self.held = Occupancy(faults, "is also held by")
        self.going = Occupancy(faults, "is also being left by")
        time = instant_after(now)
        self.instant: Callable[[Any], int] = time
        self.run_table: dict[str, tuple[Check, Any]] = {
            "state": (one_of(*STATES), "queued"),
            "since": (optional(time), None),
            "started": (optional(time), None),
            "until": (optional(time), None),
            "workers": (_raw, ()),
            "leaving": (_raw, ()),
            "backfilled": (flag, False),
            "degraded_since": (optional(time), None),
            "last_evicted": (optional(time), None),
            "last_moved": (optional(time), None),
            "evictions": (whole(0, 1_000_000), 0),
            "reclaimed": (optional(time), None),
        }
        self.checkpoint_table: dict[str, tuple[Check, Any]] = {
            "interval_s": (optional(_seconds), None),
            "last": (optional(time), None),
            "save_s": (_seconds, 0),
            "restore_s": (_seconds, 0),
        }

    def read(self, rows: Sequence[Any]) -> tuple[Job, ...]:
        """Jobs as plain data, or as `written` decoded them."""
        jobs: list[Job] = []
        names: set[str] = set()
        for place, row in enumerate(rows):
            path = ("jobs", place)
            job = self.swift(row, path) if type(row) is WrittenJob else self.job(row, path)
            if job is None:
                continue
            if job.name in names:
                self.faults.add((*path, "name"), f"{short(job.name)} is the name of another job")
            names.add(job.name)
            jobs.append(job)
        jobs.sort(key=attrgetter("submitted", "name"))
        return tuple(jobs)

    # Most jobs are written as others are, and sound

    def swift(self, row: WrittenJob, path: Path) -> Job | None:
        """A job in which nothing is doubtful, read in the shortest way; with any other one the careful way is taken."""
        try:
            key = kind_key(row)
            kind = self.written_kinds.get(key)
            if kind is None:
                kind = self.kind(plain(row), path)
                if kind is None:
                    return None
                self.written_kinds[key] = kind
            name, quota = row.name, row.quota
            if not 0 < len(name) <= 200 or not name.isprintable() or quota not in self.leaves:
                raise Doubtful
            submitted, estimate, limit = row.submitted, row.estimate_s, row.limit_s
            deadline, not_before, work = row.deadline, row.not_before, row.work_s
            moment = self.instant
            return new_job(
                name,
                quota,
                kind,
                self.now if submitted is UNSET else moment(submitted),
                None if estimate is None or estimate is UNSET else _seconds(estimate),
                None if limit is None or limit is UNSET else _seconds(limit),
                None if deadline is None or deadline is UNSET else moment(deadline),
                None if not_before is None or not_before is UNSET else moment(not_before),
                None if row.checkpoint is None or row.checkpoint is UNSET else self.swift_checkpoint(row.checkpoint),
                row.checkpoint is not None,
                None if work is None or work is UNSET else _seconds(work),
                self.swift_run(row, kind, name),
            )
        except (Bad, Doubtful):
            return self.job(plain(row), path)

    def swift_checkpoint(self, row: WrittenCheckpoint) -> Checkpoint:
        lengths = (row.interval_s, row.save_s, row.restore_s)
        known = self.without_last.get(lengths)
        if known is None:
            interval = None if row.interval_s is None or row.interval_s is UNSET else _seconds(row.interval_s)
            save, restore = (0 if length is UNSET else _seconds(length) for length in lengths[1:])
            known = self.without_last[lengths] = Checkpoint(interval, None, save, restore)
        last = row.last
        return known if last is None or last is UNSET else new_checkpoint(known.interval_ms, self.instant(last), known.save_ms, known.restore_ms)

    def swift_run(self, row: WrittenJob, kind: Kind, name: str) -> Run:
        """Where a job stands. Nothing is noted as held before all of it is known to be sound."""
        told = (
            *(row.state, row.since, row.started, row.until, row.workers, row.leaving),
            *(row.backfilled, row.degraded_since, row.last_evicted, row.last_moved, row.evictions, row.reclaimed),
        )
        if told == NOTHING_TOLD:
            return QUEUED
        state = "queued" if row.state is UNSET else row.state
        holds = state in HOLDING and kind.sharing == "exclusive"
        if row.leaving or not (holds or (state == "queued" and not row.workers)):
            raise Doubtful
        evictions = 0 if row.evictions is UNSET else row.evictions
        if not 0 <= evictions <= 1_000_000:
            raise Doubtful
        started = since = self.moment_of(row.since)
        if row.started != row.since:
            started = self.moment_of(row.started)
        times = (since, started, self.moment_of(row.until))
        later = (self.moment_of(row.degraded_since), self.moment_of(row.last_evicted), self.moment_of(row.last_moved))
        reclaimed = self.moment_of(row.reclaimed)
        if has_lapsed(state, times[2], self.now):
            raise Doubtful
        workers = self.swift_workers(row.workers, kind, name) if holds else ()
        return new_run(state, *times, workers, (), row.backfilled is True, *later, evictions, reclaimed)

    def moment_of(self, value: Moment) -> int | None:
        return None if value is None or value is UNSET else self.instant(value)

    def swift_workers(self, rows: list[WrittenWorker] | UnsetType, kind: Kind, name: str) -> tuple[Placed, ...]:
        if not rows or len(kind.roles) != 1:
            raise Doubtful
        role = kind.roles[0]
        most, gpus, role_name = role.most, role.gpus, role.name
        placed: list[Placed] = []
        masks: dict[str, int] = {}
        before = -1
        for row in rows:
            index = 0 if row.index is UNSET else row.index
            node = self.nodes.get(row.node)
            numbers = row.gpus
            if row.in_part or (row.role is not UNSET and row.role != role_name) or not before < index < most:
                raise Doubtful
            if node is None or node.name in self.faulty_nodes or len(numbers) != gpus:
                raise Doubtful
            before = index
            mask = 0
            for gpu in numbers:
                if not 0 <= gpu < node.gpus:
                    raise Doubtful
                mask |= 1 << gpu
            held = masks.get(node.name)
            if held is None:
                held = self.held.masks.get(node.name, 0) | node.split
            if mask.bit_count() != gpus or mask & held:
                raise Doubtful
            masks[node.name] = held | mask
            placed.append(new_placed(0, index, node.name, mask, None, ()))
        for worker in placed:
            self.held.hold(worker.node, worker.gpus, name)
        return tuple(placed)

    def job(self, raw: Any, path: Path) -> Job | None:
        faults = self.faults
        if type(raw) is not dict:
            faults.add(path, f"must be an object, not {kind_of(raw)}")
            return None
        before = len(faults.found)
        for key in raw.keys() - _ALL_KEYS:
            faults.unknown(path, key, _ALL_KEYS)
        kind = self.kind(raw, path)
        get = raw.get
        name = self.value(raw, "name", text, path)
        quota = self.value(raw, "quota", text, path)
        if quota is not None and (quota not in self.quotas or quota in self.inner):
            why = "has quotas below it; jobs belong to its leaves" if quota in self.inner else "is not a quota of this scenario"
            faults.add((*path, "quota"), f"{short(quota)} {why}")
        submitted = self.value(raw, "submitted", self.instant, path, self.now)
        estimate = self.value(raw, "estimate_s", _seconds, path) if get("estimate_s") is not None else None
        limit = self.value(raw, "limit_s", _seconds, path) if get("limit_s") is not None else None
        deadline = self.value(raw, "deadline", self.instant, path) if get("deadline") is not None else None
        not_before = self.value(raw, "not_before", self.instant, path) if get("not_before") is not None else None
        work = self.value(raw, "work_s", _seconds, path) if get("work_s") is not None else None
        checkpoint = self.read_checkpoint(raw["checkpoint"], path) if get("checkpoint") is not None else None
        movable = "checkpoint" not in raw or raw["checkpoint"] is not None
        run: Run | None = QUEUED
        if not _RUN_KEYS.isdisjoint(raw):
            run = self.run(raw, kind, path)
        if len(faults.found) > before or kind is None or name is None or quota is None or run is None:
            return None
        return Job(name, quota, kind, submitted, estimate, limit, deadline, not_before, checkpoint, movable, work, run)

    def value(self, raw: dict[str, Any], key: str, check: Check, path: Path, default: Any = MISSING) -> Any:
        try:
            value = raw[key]
        except KeyError:
            if default is MISSING:
                self.faults.add((*path, key), "is missing")
                return None
            return default
        try:
            return check(value)
        except Bad as bad:
            self.faults.add((*path, key), str(bad))
            return None

    def read_checkpoint(self, raw: Any, path: Path) -> Checkpoint | None:
        fields = self.faults.fields(raw, self.checkpoint_table, (*path, "checkpoint"))
        if fields is None:
            return None
        return Checkpoint(fields["interval_s"], fields["last"], fields["save_s"], fields["restore_s"])

    # What many jobs share

    def kind(self, raw: dict[str, Any], path: Path) -> Kind | None:
        get = raw.get
        try:
            key = marshal.dumps([get(name, ...) for name in _SHARED_KEYS], 2)
        except ValueError:
            key = b""
        known = self.kinds.get(key)
        if known is not None:
            return known
        kind = self.new_kind({name: raw[name] for name in _SHARED_KEYS if name in raw}, path)
        if kind is not None:
            self.kinds[key] = kind
        return kind

    def new_kind(self, raw: dict[str, Any], path: Path) -> Kind | None:
        faults = self.faults
        fields = faults.fields(raw, _SHARED, path)
        if fields is None:
            return None
        before = len(faults.found)
        placing = self.placing(fields["topology"], (*path, "topology")) or Placing()
        roles: list[Role] = []
        rows = faults.rows(fields["roles"], (*path, "roles"))
        for place, item in enumerate(rows):
            role = self.role(item, (*path, "roles", place), placing.tp_group)
            if role is None:
                continue
            check_groups(role, placing, path, place, faults)
            if any(other.name == role.name for other in roles):
                faults.add((*path, "roles", place, "name"), f"{short(role.name)} is the name of another role of this job")
            roles.append(role)
        if not fields["roles"]:
            faults.add((*path, "roles"), "must name at least one role")
        rank = CLASS_RANK[fields["class"]]
        sharing = check_sharing(fields["sharing"], roles, rank, placing, path, faults, told_all=len(roles) == len(rows))
        if not any(role.least for role in roles) and len(faults.found) == before:
            faults.add((*path, "roles"), "at least one role must need a worker (min)")
        check_types(roles, path, faults)
        if len(faults.found) > before:
            return None
        preemptible = fields["preemptible"]
        if preemptible is None:
            preemptible = Preemptible.WHEN_BORROWED if fields["class"] == "inference" else Preemptible.ALWAYS
        return Kind(
            class_rank=rank,
            priority=fields["priority"],
            preemptible=preemptible,
            roles=tuple(roles),
            placing=placing,
            sharing=sharing,
            labels=fields["node_labels"],
            needs=fields["needs"],
            tolerates_suspect=fields["tolerates_suspect"],
            preemption_delay_ms=fields["preemption_delay_s"],
            grace_ms=fields["grace_s"],
            throughput=fields["throughput"],
        )

    def placing(self, raw: Any, path: Path, group: int = 1) -> Placing | None:
        """Where workers stand together; what states no TP group of its own has `group`."""
        if raw is None:
            return None
        level = optional(one_of(*self.levels))
        table: dict[str, tuple[Check, Any]] = {
            "required": (level, None),
            "preferred": (level, None),
            "tp_group": (optional(whole(1, 100_000)), None),
            "span_clusters": (flag, False),
        }
        fields = self.faults.fields(raw, table, path)
        if fields is None:
            return None
        required, preferred = fields["required"], fields["preferred"]
        if required is not None and preferred is not None and self.levels.index(preferred) < self.levels.index(required):
            self.faults.add((*path, "preferred"), f"{preferred} is wider than the required {required}")
        if required is not None and fields["span_clusters"]:
            self.faults.add((*path, "span_clusters"), "a required level lies inside one cluster")
        return Placing(required, preferred, fields["tp_group"] or group, fields["span_clusters"])

    def role(self, raw: Any, path: Path, group: int) -> Role | None:
        faults = self.faults
        fields = faults.fields(raw, _ROLE, path)
        if fields is None:
            return None
        before = len(faults.found)
        least, most, step = fields["min"], fields["max"], fields["step"]
        most = max(least, 1) if most is None else most
        if most < least:
            faults.add((*path, "max"), f"must be at least min, {least}")
        elif (most - least) % step:
            faults.add((*path, "max"), f"must be min + a multiple of step ({least} + k * {step})")
        stated = [key for key in ("gpus", "mig", "gpu_memory_gb", "gpu_share") if fields[key] is not None]
        if len(stated) != 1:
            faults.add(path, "must ask for exactly one of gpus, mig, gpu_memory_gb, gpu_share")
        gpus = self.gpus(fields["gpus"], (*path, "gpus")) if fields["gpus"] is not None else 0
        for key in ("gpu_memory_gb", "gpu_share"):
            if fields[key] is not None and fields[key] < 1:
                faults.add((*path, key), "must be above 0")
        if fields["devices"] != 1 and "gpus" in stated:
            faults.add((*path, "devices"), "counts parts; whole GPUs are counted by gpus")
        placing = self.placing(fields["topology"], (*path, "topology"), group)
        if len(faults.found) > before:
            return None
        return Role(
            name=fields["name"],
            least=least,
            most=most,
            step=step,
            desired=fields["desired"],
            gpus=gpus,
            mig=fields["mig"],
            memory_mib=fields["gpu_memory_gb"],
            share_milli=fields["gpu_share"],
            devices=fields["devices"],
            gpu_types=tuple(sorted(set(fields["gpu_types"]), key=fields["gpu_types"].index)) if fields["gpu_types"] else (),
            cpu_milli=fields["cpus"],
            host_memory_mib=fields["host_memory_gb"],
            placing=placing,
        )

    def gpus(self, value: Any, path: Path) -> int:
        try:
            return int(whole(0, 64)(value))
        except Bad as bad:
            if type(value) is float and 0 < value < 1:
                self.faults.add(path, "must be a whole number; a part of a GPU is asked for by gpu_share")
            else:
                self.faults.add(path, str(bad))
            return 0

    # Where a job stands

    def run(self, raw: dict[str, Any], kind: Kind | None, path: Path) -> Run | None:
        faults = self.faults
        before = len(faults.found)
        fields = faults.fields({key: raw[key] for key in raw if key in _RUN_KEYS}, self.run_table, path)
        if fields is None or kind is None:
            return None
        state = fields["state"]
        name = raw["name"] if type(raw.get("name")) is str else "?"
        leaving = self.workers(fields["leaving"], kind, (*path, "leaving"), self.going, name)
        lapsed = has_lapsed(state, fields["until"], self.now)
        # What was promised until a moment that has come may be somebody else's by now.
        occupancy = self.going if state == "stopping" else Occupancy(faults, "is also held by") if lapsed else self.held
        workers = self.workers(fields["workers"], kind, (*path, "workers"), occupancy, name, promised=state == "reserved" or lapsed or bool(leaving))
        if state == "queued" and (workers or leaving):
            faults.add((*path, "workers"), "a queued job has none")
        if state in ("reserved", "starting", "running") and not fields["workers"]:
            faults.add((*path, "workers"), f"a {state} job has some")
        if len(faults.found) > before:
            return None
        run = Run(
            state,
            fields["since"],
            fields["started"],
            fields["until"],
            workers,
            leaving,
            fields["backfilled"],
            fields["degraded_since"],
            fields["last_evicted"],
            fields["last_moved"],
            fields["evictions"],
            fields["reclaimed"],
        )
        return run.given_up() if lapsed else run

    def workers(self, raw: Any, kind: Kind, path: Path, occupancy: Occupancy, name: str, *, promised: bool = False) -> tuple[Placed, ...]:
        if raw == ():
            return ()
        placed = []
        seen: set[tuple[int, int]] = set()
        roles = {role.name: index for index, role in enumerate(kind.roles)}
        for place, item in enumerate(self.faults.rows(raw, path)):
            if type(item) is dict and type(item.get("node")) is str and item["node"] in self.faulty_nodes:
                continue  # its fault was reported where it is
            try:
                worker = self.worker(item, kind, roles)
            except Bad as bad:
                self.faults.add((*path, place), str(bad))
                continue
            if (worker.role, worker.index) in seen:
                self.faults.add((*path, place, "index"), f"worker {worker.index} of this role is named twice")
            seen.add((worker.role, worker.index))
            occupancy.take(self.nodes[worker.node], worker, kind, name, (*path, place), promised=promised)
            placed.append(worker)
        placed.sort(key=lambda worker: (worker.role, worker.index))
        return tuple(placed)

    def worker(self, raw: Any, kind: Kind, roles: dict[str, int]) -> Placed:
        if type(raw) is not dict:
            raise Bad("must be an object")
        unknown = raw.keys() - _WORKER_KEYS
        if unknown:
            raise Bad(f"unknown key {short(sorted(map(str, unknown))[0])}; allowed are {', '.join(sorted(_WORKER_KEYS))}")
        role_name = raw.get("role", kind.roles[0].name)
        if type(role_name) is not str or role_name not in roles:
            raise Bad(f"role {short(role_name)} is not one of the job's: {', '.join(sorted(roles))}")
        role = kind.roles[roles[role_name]]
        index = raw.get("index", 0)
        if type(index) is not int or not 0 <= index < role.most:
            raise Bad(f"index must be between 0 and {role.most - 1}, not {short(index)}")
        node = self.nodes.get(raw["node"]) if type(raw.get("node")) is str else None
        if node is None:
            raise Bad(f"node {short(raw.get('node'))} is not in this scenario")
        mask = self.mask(raw.get("gpus"), node)
        if role.parted:
            return self.part(raw, role, roles[role_name], index, node, mask, kind)
        if "gpu_share" in raw or "mig" in raw or "gpu_memory_gb" in raw:
            raise Bad("holds a part, but its role asks for whole GPUs")
        if mask.bit_count() != role.gpus:
            raise Bad(f"holds {mask.bit_count()} GPUs; its role asks for {role.gpus}")
        return Placed(roles[role_name], index, node.name, mask)

    def mask(self, raw: Any, node: Node) -> int:
        if type(raw) is not list:
            raise Bad("gpus must be a list of GPU numbers")
        mask = 0
        for gpu in raw:
            if type(gpu) is not int or not 0 <= gpu < node.gpus:
                raise Bad(f"GPU {short(gpu)} is not one of the node's {node.gpus}, counted from 0")
            if mask >> gpu & 1:
                raise Bad(f"GPU {gpu} is named twice")
            mask |= 1 << gpu
        return mask

    def part(self, raw: dict[str, Any], role: Role, place: int, index: int, node: Node, mask: int, kind: Kind) -> Placed:
        if mask.bit_count() != role.devices:
            raise Bad(f"holds parts of {mask.bit_count()} GPUs; its role asks for {role.devices}")
        if kind.sharing == "mig":
            return Placed(place, index, node.name, mask, mig=self.mig_part(raw.get("mig"), role, node, raw["gpus"]))
        if "mig" in raw:
            raise Bad(f"holds a MIG instance, but its job shares by {kind.sharing}")
        if role.share_milli is not None:
            share = scaled(1000, most=1)(raw.get("gpu_share", role.share_milli / 1000))
            if share != role.share_milli:
                raise Bad(f"gpu_share must be the role's, {role.share_milli / 1000}")
            return Placed(place, index, node.name, mask, share_milli=share)
        assert role.memory_mib is not None
        share = max(1, 1000 * role.memory_mib // node.gpu_memory_mib) if node.gpu_memory_mib else 1000
        return Placed(place, index, node.name, mask, share_milli=share)

    def mig_part(self, raw: Any, role: Role, node: Node, gpus: list[int]) -> tuple[tuple[int, str, int], ...]:
        board = board_of(node.gpu_type)
        if board is None:
            raise Bad(f"{node.gpu_type} can't be split by MIG")
        items = raw if type(raw) is list else [raw]
        if len(items) != len(gpus):
            raise Bad("mig must hold one {profile, start} per GPU")
        found = []
        for gpu, item in zip(gpus, items, strict=True):
            if type(item) is not dict or set(item) != {"profile", "start"}:
                raise Bad("mig must be {profile, start}")
            profile = board.profile(item["profile"]) if type(item["profile"]) is str else None
            if profile is None or type(item["start"]) is not int or item["start"] not in profile.starts:
                raise Bad(f"{board.name} has no instance {short(item)}")
            if role.mig is not None and role.mig != profile.name:
                raise Bad(f"holds {profile.name}; its role asks for {role.mig}")
            if role.memory_mib is not None and profile.usable_mib < role.memory_mib:
                raise Bad(f"{profile.name} has {profile.usable_mib} MiB; its role asks for {role.memory_mib}")
            found.append((gpu, profile.name, item["start"]))
        return tuple(found)
