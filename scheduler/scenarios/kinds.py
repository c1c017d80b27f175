"""What many jobs of a scenario share: what is asked for, and how."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from scheduler.engine.model.reasons import counted
from scheduler.engine.model.values import CLASS_RANK, TYPE_CHOICES, Kind, Placing, Preemptible, Role

from .checkers import FLAG, GIGABYTES, MILLIONTHS, PROCESSORS, RATIO, SECONDS, SHARE, TEXT, TEXTS, above_zero, chosen, one_of, table_of, whole
from .faults import Bad, short
from .fields import Codec, Field, listed, optional, record

MOST_WORKERS = 100_000
NO_GROUP = 0  # none stated: a role has its job's, and a job single GPUs
RANK = chosen(CLASS_RANK)
PREEMPTIBLE = chosen({True: Preemptible.ALWAYS, False: Preemptible.NEVER, "when_borrowed": Preemptible.WHEN_BORROWED})


def kind_fields(levels: Sequence[str]) -> dict[str, Field]:
    placing = placing_codec(levels)
    return {
        "class": Field("class_rank", RANK, CLASS_RANK["batch"]),
        "priority": Field("priority", whole(-1_000_000, 1_000_000), 0),
        "preemptible": Field("preemptible", PREEMPTIBLE, None),
        "roles": Field("roles", listed(role_codec(placing))),
        "topology": Field("placing", optional(placing), None),
        "sharing": Field("sharing", one_of("exclusive", "mig", "mps", "timeslice"), None),
        "node_labels": Field("labels", table_of(TEXT), ()),
        "needs": Field("needs", table_of(MILLIONTHS), ()),
        "tolerates_suspect": Field("tolerates_suspect", FLAG, False),
        "preemption_delay_s": Field("preemption_delay_ms", SECONDS, 0),
        "grace_s": Field("grace_ms", SECONDS, 0),
        "throughput": Field("throughput", table_of(RATIO), ()),
        "type_choice": Field("type_choice", optional(one_of(*TYPE_CHOICES), ""), "", seldom=True),
        "tenant": Field("tenant", optional(TEXT, ""), "", seldom=True),
    }


def kind_codec(levels: Sequence[str]) -> Codec:
    return record(kind_fields(levels), kind_made)


def placing_codec(levels: Sequence[str]) -> Codec:
    level = optional(one_of(*levels))
    fields = {
        "required": Field("required", level, None),
        "preferred": Field("preferred", level, None),
        "tp_group": Field("tp_group", optional(whole(1, 100_000), NO_GROUP), NO_GROUP),
        "span_clusters": Field("span_clusters", FLAG, False),
    }

    def make(**values: Any) -> Placing:
        bad, placing = Bad(), Placing(**values)
        required, preferred = placing.required, placing.preferred
        if required is not None and preferred is not None and levels.index(preferred) < levels.index(required):
            bad.add(f"{preferred} is wider than the required {required}", "preferred")
        bad.when(required is not None and placing.span_clusters, "a required level lies inside one cluster", "span_clusters")
        bad.raise_if_any()
        return placing

    return record(fields, make)


def role_codec(placing: Codec) -> Codec:
    fields = {
        "name": Field("name", TEXT, "worker"),
        "min": Field("least", whole(0, MOST_WORKERS), 1),
        "max": Field("most", optional(whole(1, MOST_WORKERS)), None),
        "step": Field("step", whole(1, MOST_WORKERS), 1),
        "desired": Field("desired", optional(whole(0, MOST_WORKERS)), None, seldom=True),
        "gpus": Field("gpus", optional(Codec(_gpus)), None, seldom=True, of=lambda role: None if role.parted else role.gpus),
        "mig": Field("mig", optional(TEXT), None, seldom=True),
        "gpu_memory_gb": Field("memory_mib", optional(above_zero(GIGABYTES)), None, seldom=True),
        "gpu_share": Field("share_milli", optional(above_zero(SHARE)), None, seldom=True),
        "devices": Field("devices", whole(1, 64), 1, seldom=True),
        "gpu_types": Field("gpu_types", optional(TEXTS, ()), (), seldom=True),
        "cpus": Field("cpu_milli", PROCESSORS, 0),
        "host_memory_gb": Field("host_memory_mib", GIGABYTES, 0),
        "topology": Field("placing", optional(placing), None, seldom=True),
    }
    return record(fields, _role)


def _gpus(value: Any) -> int:
    if type(value) is float and 0 < value < 1:
        raise Bad("must be a whole number; a part of a GPU is asked for by gpu_share")
    gpus: int = whole(0, 64).read(value)
    return gpus


def _role(**values: Any) -> Role:
    bad = Bad()
    least, most, step = values["least"], values["most"], values["step"]
    most = max(least, 1) if most is None else most
    if most < least:
        bad.add(f"must be at least min, {least}", "max")
    elif (most - least) % step:
        bad.add(f"must be min + a multiple of step ({least} + k * {step})", "max")
    if [values[name] is None for name in ("gpus", "mig", "memory_mib", "share_milli")].count(False) != 1:
        bad.add("must ask for exactly one of gpus, mig, gpu_memory_gb, gpu_share")
    bad.when(values["devices"] != 1 and values["gpus"] is not None, "counts parts; whole GPUs are counted by gpus", "devices")
    bad.raise_if_any()
    return Role(**values | {"most": most, "gpus": values["gpus"] or 0, "gpu_types": tuple(dict.fromkeys(values["gpu_types"]))})


def kind_made(*, roles: tuple[Role, ...], placing: Placing | None, sharing: str | None, **values: Any) -> Kind:
    """What holds of the roles of a job together is judged here."""
    placing = _in_group(placing or Placing(), 1)
    roles = tuple(replace(role, placing=_in_group(role.placing, placing.tp_group)) if role.placing else role for role in roles)
    if sharing is None:
        sharing = "mig" if any(role.mig is not None for role in roles) else "mps" if any(role.parted for role in roles) else "exclusive"
    if values["preemptible"] is None:
        values["preemptible"] = Preemptible.WHEN_BORROWED if values["class_rank"] == CLASS_RANK["inference"] else Preemptible.ALWAYS
    kind = Kind(roles=roles, placing=placing, sharing=sharing, **values)
    bad = Bad()
    bad.when(not roles, "must name at least one role", "roles")
    for place, role in enumerate(roles):
        if role.name in (other.name for other in roles[:place]):
            bad.add(f"{short(role.name)} is the name of another role of this job", "roles", place, "name")
        _check_group(role, place, placing, bad)
    _check_sharing(kind, bad)
    bad.when(not bad.found and not any(role.least for role in roles), "at least one role must need a worker (min)", "roles")
    types = [set(role.gpu_types) for role in roles if role.gpu_types and (role.gpus or role.parted)]
    bad.when(types and not set.intersection(*types), "roles that share no GPU type are not supported: a gang stands in one quota type", "roles")
    bad.raise_if_any()
    return kind


def _in_group(placing: Placing, unstated: int) -> Placing:
    return placing if placing.tp_group != NO_GROUP else replace(placing, tp_group=unstated)


def _check_group(role: Role, place: int, placing: Placing, bad: Bad) -> None:
    """Workers come to whole groups: several of them hold one together, or each holds some."""
    group = (role.placing or placing).tp_group
    if not role.gpus or not group % role.gpus or not role.gpus % group:
        return
    detail = f"workers of {counted(1000 * role.gpus)} hold no whole groups of {group}: it must divide their GPUs, or be a multiple of them"
    if group == placing.tp_group:
        bad.add(f"{detail}; a role may state its own", "topology", "tp_group")
    else:
        bad.add(detail, "roles", place, "topology", "tp_group")


def _check_sharing(kind: Kind, bad: Bad) -> None:
    roles, sharing = kind.roles, kind.sharing
    parted = any(role.parted for role in roles)
    bad.when(parted and sharing == "exclusive", "a part of a GPU needs mig, mps or timeslice", "sharing")
    bad.when(not parted and sharing != "exclusive", f"{sharing} needs a role that asks for a part (mig, gpu_memory_gb or gpu_share)", "sharing")
    bad.when(sharing != "mig" and any(role.mig is not None for role in roles), f"a MIG profile can't be served by {sharing}", "sharing")
    if sharing == "mig" and any(role.share_milli is not None for role in roles):
        bad.add("gpu_share needs mps or timeslice; MIG has profiles (mig) or memory (gpu_memory_gb)", "sharing")
    bad.when(sharing == "timeslice" and kind.class_rank != CLASS_RANK["interactive"], "time slices serve the interactive class only", "sharing")
    if parted and any(placing.tp_group > 1 for placing in (kind.placing, *(role.placing for role in roles)) if placing is not None):
        bad.add("a group that needs NVLink takes whole GPUs", "topology", "tp_group")
