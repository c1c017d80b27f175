"""From plain data to a checked scenario: every fault at once, each at its JSON path.

Nothing is silently ignored: an unknown key, a key given twice, a placement over another and a layout that can't exist are faults.
"""

from contextlib import suppress
from operator import attrgetter
from typing import Any

from scheduler.engine.model.values import (
    CLASSES,
    COLOCATIONS,
    NO_POWER,
    PASSES,
    PLACEMENTS,
    TYPE_CHOICES,
    Apart,
    ByClass,
    Demand,
    Fairness,
    Scenario,
    Settings,
    Topology,
)

from .checkers import FLAG, MILLIONTHS, PROCESSORS, RATIO, SECONDS, SHARE, TEXT, TEXTS, above_zero, instant, one_of, table_of, whole
from .faults import Bad, Fault, ScenarioError
from .fields import Codec, Field, listed, optional, record, with_defaults_of
from .jobs import JobReader, Row
from .nodes import MOST_GPUS, read_nodes, read_topology
from .places import Places
from .power import power_codec
from .quotas import read_quotas, window_codec
from .written import Unusual, carefully, decoded, decoder

FORMAT = "gpufleet-scenario/1"
TOP_KEYS = ("format", "now", "settings", "topology", "nodes", "quotas", "reservations", "demand", "power", "apart", "jobs")


_decoder = decoder(TOP_KEYS, "jobs", Row)


def load(document: str | bytes) -> Scenario:
    """Read a scenario from JSON text."""
    with suppress(Unusual, Bad, ScenarioError):  # what is wrong is told of the text read carefully, where a value is as it was written
        return _scenario(decoded(document.encode("utf-8", "surrogatepass") if isinstance(document, str) else document, _decoder), swiftly=True)
    return parse(carefully(document))


def parse(raw: Any) -> Scenario:
    """Check plain data and make a scenario of it; raises `ScenarioError` with every fault found."""
    if not isinstance(raw, dict):
        raise ScenarioError([Fault("$", "must be an object with the key format")])
    return _scenario(raw)


def _scenario(raw: dict[str, Any], *, swiftly: bool = False) -> Scenario:
    """`swiftly`: the jobs were decoded as rows; of what is wrong in them only is said that something is."""
    bad = Bad()
    for key in raw:
        bad.when(key not in TOP_KEYS, f"unknown key; allowed are {', '.join(sorted(TOP_KEYS))}", str(key))
    bad.when(raw.get("format") != FORMAT, f"must be {FORMAT}", "format")
    now = bad.take(instant, raw.get("now"), "now") or 0
    settings = bad.take(SETTINGS.read, raw.get("settings", {}), "settings") or Settings()
    topology = read_topology(raw.get("topology", {}), bad)
    sound = len(bad.found)
    nodes = read_nodes(raw.get("nodes", []), topology, now, bad)
    fleet = nodes if len(bad.found) == sound else None
    named_quotas = named(raw.get("quotas"))
    quotas = read_quotas(raw.get("quotas", []), now, named_quotas, bad)
    window = window_codec(now, topology, named_quotas, fleet)
    windows = bad.named(window.read, raw.get("reservations", []), "reservations", "reservation")
    demand = read_demand(raw.get("demand", []), topology, bad)
    power = bad.take(power_codec(now, fleet).read, raw["power"], "power") if "power" in raw else NO_POWER
    apart = bad.take(APART.read, raw["apart"], "apart") if "apart" in raw else ()
    reader = JobReader(now, topology.all_levels, quotas, named_quotas, Places(nodes, named(raw.get("nodes")), now))
    rows = raw.get("jobs", [])
    jobs = reader.read_all(rows) if swiftly else [job for _, job in bad.named(reader.read, rows, "jobs", "job").values()]
    if bad.found:
        raise ScenarioError(bad.faults())
    in_order = sorted((one for _, one in windows.values()), key=attrgetter("start", "name"))
    jobs.sort(key=attrgetter("submitted", "name"))
    return Scenario(now, settings, topology, nodes, quotas, tuple(in_order), demand, tuple(jobs), power or NO_POWER, tuple(sorted(apart or ())))


def named(rows: Any) -> frozenset[str]:
    """The names in a list, also of rows that are faulty: what refers to these is no fault of its own."""
    if not isinstance(rows, list):
        return frozenset()
    return frozenset(row["name"] for row in rows if isinstance(row, dict) and isinstance(row.get("name"), str))


# Settings


BY_CLASS = record({name: Field(name, optional(SECONDS), None) for name in CLASSES}, ByClass)
FAIRNESS = with_defaults_of(
    Fairness(),
    {
        "half_life_s": ("half_life_ms", SECONDS),
        "usage_weight": ("usage_weight_millionths", RATIO),
        "step_s": ("step_ms", optional(SECONDS)),
    },
)
PASS_OF = {"preemption": "preempt", "consolidation": "consolidate", "backfill": "backfill"}  # a switch for a pass
_SETTINGS = {key: Field(key, FLAG, True) for key in PASS_OF} | with_defaults_of(
    Settings(),
    {
        "placement": ("placement", one_of(*PLACEMENTS)),
        "passes": ("passes", Codec(optional(listed(one_of(*PASSES)), PASSES).read, list)),
        "max_moves": ("max_moves", optional(whole(0, 100_000))),
        "preempt_min_runtime_s": ("preempt_min_runtime_ms", SECONDS),
        "reclaim_min_runtime_s": ("reclaim_min_runtime_ms", SECONDS),
        "stale_grace_s": ("stale_grace_ms", SECONDS),
        "hysteresis_s": ("hysteresis_ms", SECONDS),
        "backfill_depth": ("backfill_depth", whole(0, 100_000)),
        "backfill_notice_s": ("backfill_notice_ms", SECONDS),
        "overrun": ("overrun_millionths", above_zero(RATIO)),
        "window_horizon_s": ("window_horizon_ms", SECONDS),
        "repartition_per_hour": ("repartition_per_hour", whole(0, 100_000)),
        "max_wait_s": ("max_wait_ms", BY_CLASS),
        "worth": ("worth_gpu_ms", BY_CLASS),
        "fairness": ("fairness", record(FAIRNESS, Fairness)),
        "sharing_trust": ("sharing_trust", one_of("job", "quota", "any")),
        "forecast": ("forecast", one_of("all", "head", "none")),
    },
)
_SETTINGS["colocation"] = Field("colocation", one_of(*COLOCATIONS), "any", seldom=True)
_SETTINGS["type_choice"] = Field("type_choice", one_of(*TYPE_CHOICES), "fastest", seldom=True)
_SETTINGS["gpu_prices"] = Field("gpu_prices", table_of(MILLIONTHS), (), seldom=True)


def _settings(**values: Any) -> Settings:
    left_out = [PASS_OF[key] for key in PASS_OF if not values.pop(key)]
    return Settings(**values | {"passes": tuple(name for name in PASSES if name in values["passes"] and name not in left_out)})


SETTINGS = record(_SETTINGS, _settings)


# Who may not be neighbours


APART = listed(
    record(
        {
            "service": Field("service", TEXT),
            "other": Field("other", TEXT),
            "where": Field("where", one_of("gpu", "node")),
            "figure": Field("figure", TEXT, "latency"),
            "predicted_ms": Field("predicted_ms", whole()),
            "allowed_ms": Field("allowed_ms", whole()),
            "measured": Field("measured", FLAG, False, seldom=True),
        },
        Apart,
    )
)


# The usual demand


def demand_codec(topology: Topology) -> Codec:
    fields = {
        "share": Field("share", MILLIONTHS),
        "gpus": Field("gpus", optional(whole(0, MOST_GPUS)), None, seldom=True, of=lambda part: part.gpus if part.share_milli is None else None),
        "gpu_share": Field("share_milli", optional(above_zero(SHARE)), None, seldom=True),
        "workers": Field("workers", whole(1, 100_000), 1),
        "required": Field("required", optional(TEXT), None),
        "cpus": Field("cpu_milli", PROCESSORS, 0, seldom=True),
        "gpu_types": Field("gpu_types", optional(TEXTS, ()), (), seldom=True),
    }

    def make(**values: Any) -> Demand:
        if values["required"] is not None and values["required"] not in topology.all_levels:
            raise Bad(f"is not a level; levels are {', '.join(topology.all_levels)}", "required")
        if (values["gpus"] is None) == (values["share_milli"] is None):
            raise Bad("must ask for exactly one of gpus, gpu_share")
        return Demand(**values | {"gpus": values["gpus"] or 0, "gpu_types": tuple(sorted(set(values["gpu_types"])))})

    return record(fields, make)


def read_demand(raw: Any, topology: Topology, bad: Bad) -> tuple[Demand, ...]:
    found = [part for _, part in bad.rows(demand_codec(topology).read, raw, "demand")]

    def order(one: Demand) -> tuple[Any, ...]:
        return (one.gpus, one.workers, one.required or "", one.share_milli or 0, one.share, one.cpu_milli, one.gpu_types)

    return tuple(sorted(found, key=order))
