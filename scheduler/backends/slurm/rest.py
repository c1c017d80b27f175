"""What slurmrestd answers, read as values."""

from collections.abc import Mapping
from typing import Any

from scheduler.backends.base import BackendError
from scheduler.backends.slurm.printed import allocated, exit_code_of, hostlist, indices, moment_of, number_of, state_of
from scheduler.backends.slurm.values import ENDED, RUNNING, SlurmJob, SlurmNode


def answered(program: str, found: dict[str, Any]) -> dict[str, Any]:
    """What was asked for. Lists beside an error are empty, and nobody may take them for what there is."""
    if errors := found.get("errors"):
        words = "; ".join(str(one.get("description") or one.get("error") or one) if isinstance(one, dict) else str(one) for one in errors)
        raise BackendError(f"{program}: {words}")
    return found


def job_of(one: Mapping[str, Any]) -> SlurmJob:
    nodes = hostlist(str(one.get("nodes") or ""))
    detail = one.get("gres_detail") or ()
    reason = str(one.get("state_reason") or "")
    state = state_of(one.get("job_state"))
    return SlurmJob(
        id=int(one["job_id"]),
        state=state,
        comment=str(one.get("comment") or ""),
        user=str(one.get("user_name") or one.get("user_id") or ""),
        nodes=nodes,
        gpus={node: indices(str(text)) for node, text in zip(nodes, detail, strict=False)},
        exit_code=exit_code_of(one) if state in ENDED else None,
        held=number_of(one.get("priority")) == 0 and state == "PENDING",
        reason=reason,
        started_at=moment_of(one.get("start_time")) if state in RUNNING or state in ENDED else None,
        ended_at=moment_of(one.get("end_time")) if state in ENDED else None,
        uid=number_of(one.get("user_id")),
        name=str(one.get("name") or ""),
        partition=str(one.get("partition") or ""),
        **allocated(str(one.get("tres_alloc_str") or "")),
    )


def node_of(one: Mapping[str, Any]) -> SlurmNode:
    states = one.get("state") or "UNKNOWN"
    flags = one.get("state_flags") or ()
    words = [*(states if isinstance(states, list) else [states]), *(flags if isinstance(flags, list) else [flags])]
    features = one.get("features") or ()
    return SlurmNode(
        name=str(one.get("name") or ""),
        address=str(one.get("address") or one.get("hostname") or ""),
        states=tuple(str(word).upper() for word in words if word),
        reason=str(one.get("reason") or ""),
        cpus=int(one.get("cpus") or 0),
        memory_mib=int(one.get("real_memory") or 0),
        gres=str(one.get("gres") or ""),
        features=tuple(features if isinstance(features, list) else [part for part in str(features).split(",") if part]),
        version=str(one.get("slurmd_version") or one.get("version") or ""),
    )
