"""From plain data to a checked scenario: every fault at once, each at its JSON path.

Nothing is silently ignored: an unknown key, a key given twice, a placement over another and a layout that can't exist are
faults. Jobs share one `Kind` where they ask for the same, which makes reading thousands of them cheap.
"""

import json
import marshal
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any

from ..model.mig import Instance, board_of, layout_faults
from ..model.unfrozen import maker
from ..model.values import (
    ANY_TYPE,
    CLASSES,
    FOR_NONE,
    PASSES,
    PLACEMENTS,
    UNSTATED_CPU_MILLI,
    UNSTATED_MEMORY_MIB,
    ByClass,
    Demand,
    Fairness,
    MigInstance,
    Node,
    Scenario,
    Settings,
    Topology,
)
from .checkers import (
    MISSING,
    Bad,
    Fault,
    Faults,
    ScenarioError,
    exact_thousandths,
    flag,
    instant,
    instant_after,
    number,
    one_of,
    optional,
    scaled,
    short,
    table_of,
    text,
    texts,
    whole,
)
from .jobs import JobReader
from .quotas import read_quotas, read_windows
from .written import GivenTwice, written

FORMAT = "gpufleet-scenario/1"
MOST_GPUS = 64
TOP_KEYS = frozenset(
    {"format", "now", "settings", "topology", "nodes", "quotas", "reservations", "demand", "jobs"},
)
seconds = scaled(1000)


def load(document: str | bytes) -> Scenario:
    """Read a scenario from JSON text."""
    found = written(document.encode("utf-8", "surrogatepass") if isinstance(document, str) else document)
    if found is not None:
        with suppress(ScenarioError, GivenTwice):  # the careful way says what is wrong
            return _scenario(found.plain(), found.jobs)
    try:
        raw, repeated = _decoded(document)  # NaN and infinity are refused at their path
    except json.JSONDecodeError as error:
        raise ScenarioError([Fault("$", f"is not JSON: {error.msg} at line {error.lineno}, column {error.colno}")]) from None
    except UnicodeDecodeError:
        raise ScenarioError([Fault("$", "is not UTF-8 text")]) from None
    except RecursionError:
        raise ScenarioError([Fault("$", "is nested too deeply")]) from None
    except ValueError as error:
        raise ScenarioError([Fault("$", f"is not JSON: {error}")]) from None
    if repeated:
        raise ScenarioError([Fault("$", f"key {short(key)} is given twice in one object") for key in sorted(set(repeated))])
    return parse(raw)


def _decoded(document: str | bytes) -> tuple[Any, list[str]]:
    """Plain data, and the keys that are given twice in one object, which a plain decoder would not show."""
    repeated: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            seen: set[str] = set()
            for key, _ in items:
                if key in seen:
                    repeated.append(key)
                seen.add(key)
        return result

    if isinstance(document, bytes):
        document = document.decode(json.detect_encoding(document), "surrogatepass")
    return json.loads(document, object_pairs_hook=pairs), repeated


def parse(raw: Any) -> Scenario:
    """Check plain data and make a scenario of it; raises `ScenarioError` with every fault found."""
    if not isinstance(raw, dict):
        raise ScenarioError([Fault("$", "must be an object with the key format")])
    return _scenario(raw, raw.get("jobs", []))


def _scenario(raw: dict[str, Any], rows: Any) -> Scenario:
    """The jobs apart from the rest: as plain data, or as they were decoded with their types."""
    faults = Faults()
    for key in raw:
        if key not in TOP_KEYS:
            faults.unknown((), key, TOP_KEYS)
    if raw.get("format") != FORMAT:
        faults.add(("format",), f"must be {FORMAT}")
    try:
        now = instant(raw.get("now"))
    except Bad as bad:
        faults.add(("now",), str(bad))
        now = 0
    settings = read_settings(raw.get("settings", {}), faults)
    topology = read_topology(raw.get("topology", {}), faults)
    nodes = read_nodes(faults.rows(raw.get("nodes", []), ("nodes",)), topology, faults, now)
    quotas = read_quotas(faults.rows(raw.get("quotas", []), ("quotas",)), now, faults)
    periods = faults.rows(raw.get("reservations", []), ("reservations",))
    told_all = not faults.within("nodes")  # a type that only a faulty node has is no fault of who asks for it
    windows = read_windows(periods, now, named(raw.get("quotas")), topology, nodes if told_all else None, faults)
    demand = read_demand(faults.rows(raw.get("demand", []), ("demand",)), topology, faults)
    reader = JobReader(now, topology, nodes, quotas, faults, named(raw.get("nodes")), named(raw.get("quotas")))
    jobs = reader.read(faults.rows(rows, ("jobs",)))
    faults.raise_if_any()
    return Scenario(now, settings, topology, nodes, quotas, windows, demand, jobs)


def named(rows: Any) -> frozenset[str]:
    """The names in a list, also of rows that are faulty: what refers to these is no fault of its own."""
    if not isinstance(rows, list):
        return frozenset()
    return frozenset(row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str))


def _passes(value: Any) -> tuple[str, ...]:
    if value is None:
        return PASSES
    named = texts(value)
    for place, name in enumerate(named):
        if name not in PASSES:
            raise Bad(f"{short(name)} is not a pass; allowed are {', '.join(PASSES)}", place)
    return tuple(name for name in PASSES if name in named)


def _by_class(factor: int) -> Any:
    check = optional(scaled(factor))

    def checked(value: Any) -> ByClass:
        if type(value) is not dict:
            raise Bad("must be an object with a value per class")
        for key in value:
            if key not in CLASSES:
                raise Bad(f"{short(key)} is not a class; allowed are {', '.join(sorted(CLASSES))}", str(key))
        return ByClass(**dict(table_of(check)(value)))

    return checked


def _factor(value: Any) -> int:
    factor: int = scaled(1_000_000, most=1000)(value)
    if not factor:
        raise Bad("must be above 0")
    return factor


def _fairness(value: Any, faults: Faults) -> Fairness:
    table = {
        "half_life_s": (seconds, 604_800_000),
        "usage_weight": (scaled(1_000_000, most=1000), 0),
        "step_s": (optional(seconds), None),
    }
    fields = faults.fields(value, table, ("settings", "fairness"))
    if fields is None:
        return Fairness()
    return Fairness(fields["half_life_s"], fields["usage_weight"], fields["step_s"])


_SETTINGS = {
    "placement": (one_of(*PLACEMENTS), "pack"),
    "passes": (_passes, PASSES),
    "preemption": (flag, True),
    "consolidation": (flag, True),
    "backfill": (flag, True),
    "max_moves": (optional(whole(0, 100_000)), 4),
    "preempt_min_runtime_s": (seconds, 0),
    "reclaim_min_runtime_s": (seconds, 0),
    "stale_grace_s": (seconds, 60_000),
    "hysteresis_s": (seconds, 0),
    "backfill_depth": (whole(0, 100_000), 8),
    "backfill_notice_s": (seconds, 120_000),
    "overrun": (_factor, 1_000_000),
    "window_horizon_s": (seconds, 1_209_600_000),
    "repartition_per_hour": (whole(0, 100_000), 6),
    "max_wait_s": (_by_class(1000), FOR_NONE),
    "worth": (_by_class(1000), FOR_NONE),
    "fairness": (lambda stated: stated, {}),
    "sharing_trust": (one_of("job", "quota", "any"), "quota"),
    "forecast": (one_of("all", "head", "none"), "all"),
}


SETTING_KEYS = tuple(_SETTINGS)


def read_settings(raw: Any, faults: Faults) -> Settings:
    fields = faults.fields(raw, _SETTINGS, ("settings",))
    fairness = _fairness(raw.get("fairness", {}) if isinstance(raw, dict) else {}, faults)
    if fields is None:
        return Settings()
    left_out = {name for name, key in (("preempt", "preemption"), ("consolidate", "consolidation"), ("backfill", "backfill")) if not fields[key]}
    return Settings(
        placement=fields["placement"],
        passes=tuple(name for name in fields["passes"] if name not in left_out),
        max_moves=fields["max_moves"],
        preempt_min_runtime_ms=fields["preempt_min_runtime_s"],
        reclaim_min_runtime_ms=fields["reclaim_min_runtime_s"],
        stale_grace_ms=fields["stale_grace_s"],
        hysteresis_ms=fields["hysteresis_s"],
        backfill_depth=fields["backfill_depth"],
        backfill_notice_ms=fields["backfill_notice_s"],
        overrun_millionths=fields["overrun"],
        window_horizon_ms=fields["window_horizon_s"],
        repartition_per_hour=fields["repartition_per_hour"],
        max_wait_ms=fields["max_wait_s"],
        worth_gpu_ms=fields["worth"],
        fairness=fairness,
        sharing_trust=fields["sharing_trust"],
        forecast=fields["forecast"],
    )


def read_topology(raw: Any, faults: Faults) -> Topology:
    amounts = table_of(scaled(1_000_000, least=0, most=1_000_000))
    table = {
        "levels": (texts, ()),
        "rails": (optional(text), None),
        "bandwidth_gbps": (amounts, ()),
        "oversubscription": (amounts, ()),
    }
    fields = faults.fields(raw, table, ("topology",))
    if fields is None:
        return Topology()
    levels = fields["levels"]
    for place, level in enumerate(levels):
        if level in ("cluster", "node"):
            faults.add(("topology", "levels", place), f"{level} is implied and must not be named")
        if level in levels[:place]:
            faults.add(("topology", "levels", place), f"{short(level)} is named twice")
    known = ("cluster", *levels, "node")
    if fields["rails"] is not None and fields["rails"] not in known:
        faults.add(("topology", "rails"), f"{short(fields['rails'])} is not a level; levels are {', '.join(known)}")
    for key in ("bandwidth_gbps", "oversubscription"):
        for level, _ in fields[key]:
            if level not in known:
                faults.add(("topology", key, level), f"is not a level; levels are {', '.join(known)}")
    return Topology(levels, fields["rails"], fields["bandwidth_gbps"], fields["oversubscription"])


_gigabytes = scaled(1024, most=1_000_000_000)


def _gpu_list(value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise Bad("must be a list of GPU numbers")
    check = whole(0, MOST_GPUS - 1)
    numbers = tuple(check(item) for item in value)
    if len(set(numbers)) != len(numbers):
        raise Bad("names a GPU twice")
    return numbers


def _islands(value: Any) -> tuple[int, ...]:
    if type(value) is not list:
        raise Bad("must be a list of lists of GPU numbers")
    masks = tuple(sum(1 << gpu for gpu in _gpu_list(item)) for item in value)
    joined = 0
    for mask in masks:
        if not mask or joined & mask:
            raise Bad("islands must not be empty and must not share a GPU")
        joined |= mask
    return tuple(sorted(masks, key=lambda mask: mask & -mask))


def _raw_list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise Bad("must be a list")
    return value


_made_node = maker(Node)
_labels = table_of(text)
_attributes = table_of(scaled(1_000_000, most=1_000_000))
_NODE = {
    "name": (text, MISSING),
    "gpu_type": (text, MISSING),
    "gpus": (whole(0, MOST_GPUS), MISSING),
    "gpu_memory_gb": (_gigabytes, 0),
    "path": (table_of(text), ()),
    "cluster": (text, "default"),
    "quota_type": (optional(text), None),
    "island": (optional(text), None),
    "islands": (optional(_islands), None),
    "health": (one_of("healthy", "suspect", "draining", "down"), "healthy"),
    "unhealthy_gpus": (_gpu_list, ()),
    "spare": (flag, False),
    "cpus": (exact_thousandths(1_000_000), 0),
    "host_memory_gb": (_gigabytes, 0),
    "labels": (_labels, ()),
    "attributes": (_attributes, ()),
    "mig": (_raw_list, ()),
    "repartitioned": (_raw_list, ()),
}
_OWN_OF_NODE = {name: _NODE[name] for name in ("name", "path", "island")}


def read_nodes(rows: list[Any], topology: Topology, faults: Faults, now: int = 0) -> tuple[Node, ...]:
    nodes: list[Node] = []
    names: set[str] = set()
    islands: dict[str, tuple[str, ...]] = {}
    alike: dict[bytes, dict[str, Any]] = {}
    for place, raw in enumerate(rows):
        path = ("nodes", place)
        fields = _node_fields(raw, path, alike, faults)
        if fields is None:
            continue
        if fields["name"] in names:
            faults.add((*path, "name"), f"{short(fields['name'])} is the name of another node")
        names.add(fields["name"])
        fields["repartitioned"] = _past_times(fields["repartitioned"], now, (*path, "repartitioned"), faults)
        node = _node(fields, raw, path, topology, faults)
        if node is None:
            continue
        other = islands.setdefault(node.island, node.path)
        if other != node.path:
            faults.add((*path, "island"), f"island {short(node.island)} reaches over {'/'.join(other)} and {'/'.join(node.path)}")
        nodes.append(node)
    nodes.sort(key=attrgetter("path", "island", "name"))
    return tuple(nodes)


def _node_fields(raw: Any, path: tuple[str | int, ...], alike: dict[bytes, dict[str, Any]], faults: Faults) -> dict[str, Any] | None:
    """The checked fields; what is the same in many nodes is checked once."""
    if type(raw) is not dict or not _OWN_OF_NODE.keys() <= raw.keys():
        return faults.fields(raw, _NODE, path)
    try:
        key = marshal.dumps([(name, value) for name, value in raw.items() if name not in _OWN_OF_NODE], 2)
    except ValueError:  # nested too deeply
        return faults.fields(raw, _NODE, path)
    shared = alike.get(key)
    if shared is None:
        fields = faults.fields(raw, _NODE, path)
        if fields is not None:
            alike[key] = {name: value for name, value in fields.items() if name not in _OWN_OF_NODE}
        return fields
    own = faults.fields({name: raw[name] for name in _OWN_OF_NODE}, _OWN_OF_NODE, path)
    return None if own is None else own | shared


def _node(fields: dict[str, Any], raw: dict[str, Any], path: tuple[str | int, ...], topology: Topology, faults: Faults) -> Node | None:
    before = len(faults.found)
    gpus = fields["gpus"]
    given = dict(fields["path"])
    for level in topology.levels:
        if level not in given:
            faults.add((*path, "path"), f"does not say the node's {level}")
    for level in given:
        if level not in topology.levels:
            faults.add((*path, "path", level), f"is not a level; levels are {', '.join(topology.levels) or 'none'}")
    everything = (1 << gpus) - 1
    unhealthy = sum(1 << gpu for gpu in fields["unhealthy_gpus"])
    if unhealthy & ~everything:
        faults.add((*path, "unhealthy_gpus"), f"names a GPU beyond the node's {gpus}")
    parts = fields["islands"] or ()
    if sum(parts) & ~everything:
        faults.add((*path, "islands"), f"names a GPU beyond the node's {gpus}")
    if parts and fields["island"] not in (None, fields["name"]):
        faults.add((*path, "islands"), "a node is either part of a larger island or has islands of its own")
    mig, split = _read_mig(fields["mig"], fields["gpu_type"], gpus, (*path, "mig"), faults)
    if len(faults.found) > before:
        return None
    return _made_node(
        name=fields["name"],
        gpu_type=fields["gpu_type"],
        quota_type=fields["quota_type"] or fields["gpu_type"],
        gpus=gpus,
        gpu_memory_mib=fields["gpu_memory_gb"],
        path=(fields["cluster"], *(given[level] for level in topology.levels)),
        island=fields["island"] or fields["name"],
        islands=parts,
        health=fields["health"],
        unhealthy=unhealthy,
        spare=fields["spare"],
        # What is not stated does not bind.
        cpu_milli=fields["cpus"] if "cpus" in raw else UNSTATED_CPU_MILLI,
        host_memory_mib=fields["host_memory_gb"] if "host_memory_gb" in raw else UNSTATED_MEMORY_MIB,
        labels=fields["labels"],
        attributes=fields["attributes"],
        mig=mig,
        split=split,
        repartitioned=fields["repartitioned"],
    )


def _past_times(rows: Sequence[Any], now: int, path: tuple[str | int, ...], faults: Faults) -> tuple[int, ...]:
    """Instants that have come, in order."""
    check, found = instant_after(now), []
    for place, raw in enumerate(rows):
        try:
            at = check(raw)
            if at > now:
                raise Bad("must not lie ahead of now")
            found.append(at)
        except Bad as bad:
            faults.add((*path, place), str(bad))
    return tuple(sorted(found))


def _read_mig(rows: list[Any], gpu_type: str, gpus: int, path: tuple[str | int, ...], faults: Faults) -> tuple[tuple[MigInstance, ...], int]:
    found: list[MigInstance] = []
    split = 0
    board = board_of(gpu_type)
    if rows and board is None:
        faults.add(path, f"{gpu_type} can't be split by MIG")
        return (), 0
    for place, raw in enumerate(rows):
        fields = faults.fields(raw, {"gpu": (whole(0, MOST_GPUS - 1), MISSING), "instances": (_raw_list, MISSING)}, (*path, place))
        if fields is None:
            continue
        gpu = fields["gpu"]
        if gpu >= gpus:
            faults.add((*path, place, "gpu"), f"the node has {gpus} GPUs, counted from 0")
        if split >> gpu & 1:
            faults.add((*path, place, "gpu"), f"GPU {gpu} is described twice")
        split |= 1 << gpu
        instances = []
        for index, item in enumerate(fields["instances"]):
            table = {"profile": (text, MISSING), "start": (whole(0, 7), MISSING)}
            values = faults.fields(item, table, (*path, place, "instances", index))
            if values is not None:
                instances.append(Instance(values["start"], values["profile"]))
        if board is not None:
            for message in layout_faults(board, instances):
                faults.add((*path, place, "instances"), message)
        found.extend(MigInstance(gpu, instance.start, instance.profile) for instance in instances)
    return tuple(sorted(found, key=lambda one: (one.gpu, one.start))), split


def read_demand(rows: list[Any], topology: Topology, faults: Faults) -> tuple[Demand, ...]:
    def part(value: Any) -> int:
        if not 0 <= number(value) <= 1_000_000:
            raise Bad("must be between 0 and 1000000")
        return round(value * 1_000_000)

    table = {
        "share": (part, MISSING),
        "gpus": (optional(whole(0, MOST_GPUS)), None),
        "gpu_share": (optional(scaled(1000, most=1)), None),
        "workers": (whole(1, 100_000), 1),
        "required": (optional(text), None),
        "cpus": (exact_thousandths(1_000_000), 0),
        "gpu_types": (optional(texts), None),
    }
    found: list[Demand] = []
    for place, raw in enumerate(rows):
        fields = faults.fields(raw, table, ("demand", place))
        if fields is None:
            continue
        if fields["required"] is not None and fields["required"] not in topology.all_levels:
            faults.add(("demand", place, "required"), f"is not a level; levels are {', '.join(topology.all_levels)}")
        gpus, share_milli = fields["gpus"], fields["gpu_share"]
        if (gpus is None) == (share_milli is None):
            faults.add(("demand", place), "must ask for exactly one of gpus, gpu_share")
            continue
        if share_milli is not None and not 0 < share_milli <= 1000:
            faults.add(("demand", place, "gpu_share"), "must be above 0")
        types = tuple(sorted(set(fields["gpu_types"] or ())))
        found.append(Demand(fields["share"], gpus or 0, fields["workers"], fields["required"], share_milli, fields["cpus"], types))
    rest = attrgetter("share", "cpu_milli", "gpu_types")
    return tuple(sorted(found, key=lambda one: (one.gpus, one.workers, one.required or "", one.share_milli or 0, *rest(one))))


__all__ = ["ANY_TYPE", "FORMAT", "SETTING_KEYS", "Fault", "ScenarioError", "load", "parse"]
