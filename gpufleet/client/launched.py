"""What `gpufleet show` says of what a job starts, and of on whose account it stands."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from gpufleet.client.words import gpus_told, lasting, plain

HIDDEN = "visible to the owner and managers of the team's jobs"
KINDS = ("guaranteed", "reserved", "borrowed")


def launch_facts(launch: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Names of secrets, never more: the console has no values."""
    if launch is None:
        return [("Starts", HIDDEN)]
    facts = [("Image", plain(launch.get("image") or "")), ("Command", plain(shlex.join(launch.get("command") or ())))]
    facts += [("Script", plain(line)) for line in (launch.get("shell") or "").splitlines()]
    facts += [("Per", "a process for each GPU")] if launch.get("per") == "gpu" else []
    facts += [("Folder", plain(launch.get("workdir") or ""))]
    facts += [("Port", str(launch["port"]))] if launch.get("port") else []
    facts += [("Ready", plain(ready_told(launch["ready"])))] if launch.get("ready") else []
    facts += [("Resized", "in place")] if launch.get("in_place") else []
    facts += [("Idle end", f"after {lasting(launch['idle_end_s'])}")] if launch.get("idle_end_s") else []
    facts += [("Variable", plain(f"{name}={value}")) for name, value in (launch.get("env") or {}).items()]
    return facts + [("Secret", plain(f"{variable} is {name}")) for variable, name in (launch.get("secrets") or {}).items()]


def ready_told(ready: Mapping[str, Any]) -> str:
    """How its workers are asked whether they can serve."""
    if ready.get("command") is not None:
        return f"when {shlex.join(ready['command'])} exits with 0"
    way = "http" if ready.get("http") is not None else "tcp"
    asked = ready.get(way) or {}
    port = f"port {asked['port']}" if asked.get("port") else "the port in GPUFLEET_READY_PORT"
    return f"when GET {asked.get('path', '/')} on {port} answers" if way == "http" else f"when {port} accepts connections"


def seats_told(workers: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where each worker sits, in one line: its GPUs on a node stand beside each other."""
    lines = []
    for (role, index, node, leaving), seats in groupby(workers, lambda one: (one["role"], one["index"], one["node"], one["leaving"])):
        parts, whole = [], []
        for seat in seats:
            if seat["mig"]:
                parts.append(str(seat["mig"]))
            elif seat["gpu"] is not None:
                whole.append(str(seat["gpu"]))
        if whole:
            parts.insert(0, f"GPU{'s' if len(whole) > 1 else ''} {', '.join(whole)}")
        lines.append(f"{plain(role)} {index}: {plain(node)} {plain(', '.join(parts) or 'no GPU')}{' (leaving)' if leaving else ''}")
    return lines


def standing_facts(usage: Mapping[str, Any]) -> list[tuple[str, str]]:
    standing = usage["standing"]
    facts = []
    if usage["micros_per_hour"] is not None:
        facts.append(("Costs", f"{usage['micros_per_hour'] / 1_000_000:,.2f} {plain(usage['currency'])} an hour"))
    if standing is None:
        return facts
    parts = [f"{gpus_told(standing[f'{kind}_milli'])} {kind}" for kind in KINDS if standing[f"{kind}_milli"]]
    return [*facts, ("Stands as", f"{', '.join(parts)}. {plain(standing['takers_text'])}")]
