"""What the row of a job keeps of its description (`Job.spec`), and what is read from it.

It has one form, whoever made the job, with the keys and units of the scenario format: `roles` is there, each role with its `name` and `min` and with
the GPU types that it names; what would be as it is if nothing was said of it is left out. Class, priority and the other columns of a job stand there
alone. Readers here take any row, also one that somebody wrote by hand; the snapshot says what is wrong with it.

`scheduler.jobs.writing` makes a description of it again, and `scheduler.snapshots.jobs` what the engine plans.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

# Whether `Job.launch` names an image: the engine knows that of the spec alone. No key of a description.
IN_IMAGE = "in_image"
# What a role may ask for instead of whole GPUs.
PARTS = ("mig", "gpu_share", "gpu_memory_gb")

# How a worker may be asked whether it can serve (`launch.ready`), and what holds where that says nothing.
READY_WAYS = ("http", "tcp", "command")
READY_PERIOD, READY_TIMEOUT, READY_FAILURES = 5, 2, 3

# The keys of a description that may be changed later, by the column of a job that keeps each.
COLUMNS = {
    "name": "name",
    "priority": "priority",
    "estimate_s": "estimate_seconds",
    "limit_s": "limit_seconds",
    "not_before": "not_before",
    "deadline": "deadline",
    "defer": "defer",
    "retries": "retry_limit",
    "labels": "labels",
    "cost_centre": "cost_centre",
}
# What a description says of preemption, by what `Job.preemptible` keeps.
PREEMPTIBLE: Mapping[str, bool | str] = {"yes": True, "no": False, "when_borrowed": "when_borrowed"}

Spec = Mapping[str, Any]
Role = Mapping[str, Any]


def roles_of(spec: Spec) -> Sequence[Role]:
    return spec.get("roles") or ()


def sharing_of(spec: Spec) -> str:
    """How it shares GPUs, also where its roles alone say it."""
    stated = spec.get("sharing")
    if stated:
        return str(stated)
    parts = {part for role in roles_of(spec) for part in PARTS if role.get(part)}
    return "mig" if "mig" in parts else "mps" if parts else "exclusive"


def role_named(spec: Spec, name: str) -> Role:
    """Empty where the job has no such role."""
    return next((role for role in roles_of(spec) if name_of(role) == name), {})


def name_of(role: Role) -> str:
    return str(role.get("name", "worker"))


def least_of(role: Role) -> int:
    return int(role.get("min", 1))


def most_of(role: Role) -> int:
    return int(role.get("max") or max(least_of(role), 1))


def wanted_of(role: Role) -> int:
    """How many of its workers are wanted now, as the engine reads it: of a service as many as it states, else the most."""
    desired, most = role.get("desired"), most_of(role)
    return most if desired is None else max(least_of(role), min(most, int(desired)))


def is_elastic(role: Role) -> bool:
    return least_of(role) < most_of(role)


def serves_in_replicas(job_class: str, spec: Spec) -> bool:
    """Whether it is a service: its workers are replicas, which come and go by themselves."""
    return job_class == "inference" and any(map(is_elastic, roles_of(spec)))


def replicas_fault(replicas: int, *, least: int, most: int, step: int) -> str:
    """Why a role can't have so many workers; empty: it can."""
    if least >= most:
        return f"It has {least} workers at least and at most; there is nothing to choose."
    if not least <= replicas <= most:
        return f"From {least} to {most}."
    if beyond := (replicas - least) % step:
        return f"From {least} to {most} in steps of {step}: {replicas - beyond} or {replicas - beyond + step}."
    return ""


def takes_gpus(role: Role) -> bool:
    """Whether its workers take GPUs, whole ones or parts, and not processors alone."""
    return bool(role.get("gpus")) or any(role.get(part) for part in PARTS)


def types_of(spec: Spec) -> list[str]:
    """The GPU types that a job names, the preferred first; none: any."""
    return list(dict.fromkeys(name for role in roles_of(spec) for name in role.get("gpu_types") or ()))


def accepts(spec: Spec, gpu_type: str) -> bool:
    """Whether it may stand on GPUs of that type, and can run there."""
    named = types_of(spec)
    return (not named or gpu_type in named) and (spec.get("throughput") or {}).get(gpu_type) != 0


def probe_told(ready: Mapping[str, Any]) -> str:
    """How its workers are asked whether they can serve, in words."""
    way = next((one for one in READY_WAYS if ready.get(one) is not None), "")
    asked = ready.get(way) or {}
    if way == "command":
        said = shlex.join(map(str, asked))
    else:
        port = f"port {asked['port']}" if asked.get("port") else "the port in GPUFLEET_READY_PORT"
        said = f"GET {asked.get('path', '/')} on {port}" if way == "http" else f"A connection to {port}"
    return f"{said}, every {ready.get('period_s', READY_PERIOD)} s"
