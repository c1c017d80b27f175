"""What the workers of a local job start, and what they find in their environment. `Job.launch` says it:

command   list of arguments, or
shell     one string for /bin/sh, where the job asks for a shell in so many words
per       "worker" (one process a worker, the default) or "gpu" (one for each of its GPUs)
env       variables by name
secrets   variables by name of a secret that the operator keeps
workdir   where to start; an absolute path
"""

import contextlib
import random
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scheduler.backends.base import BackendError, BackendRefused, StartOrder, WorkerSeat
from scheduler.backends.local_accounts import LOCAL_PATH, Account
from scheduler.jobs.stored import READY_FAILURES, READY_PERIOD, READY_TIMEOUT, READY_WAYS, role_named

# A cgroup takes no less than a millisecond of processor time in each of its periods of 100.
LEAST_CPU_MICROS = 1000
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# Where ranks meet: below the ports that the kernel gives to outgoing connections, of which one may begin before rank 0 listens.
PORTS = range(10_240, 20_000)


@dataclass(frozen=True, slots=True)
class Program:
    """What the workers of a run start."""

    argv: list[str]
    secrets: dict[str, str]
    account: Account
    cwd: str
    env: dict[str, str]


def argv_of(launch: Mapping[str, Any]) -> list[str]:
    if launch.get("image"):
        raise BackendRefused("The local back-end starts processes of this machine and runs no images; the job names one.")
    shell, command = launch.get("shell"), launch.get("command")
    if shell:
        return ["/bin/sh", "-c", str(shell)]
    if not isinstance(command, list) or not command or not all(isinstance(part, str) and "\0" not in part for part in command):
        raise BackendRefused("The job says no command: launch.command is a list of arguments.")
    return list(command)


def secrets_of(order: StartOrder, secret: Callable[[str, str], str | None]) -> dict[str, str]:
    found = {}
    for variable, name in (order.launch.get("secrets") or {}).items():
        value = secret(str(name), order.team)
        if not NAME.fullmatch(variable):
            raise BackendRefused(f"{variable!r} is not a name of a variable.")
        if value is None:
            raise BackendRefused(f"There is no secret {str(name)!r} for {order.team or 'this job'}.")
        if "\0" in value:
            raise BackendRefused(f"The secret {str(name)!r} holds a character that no variable can hold.")
        found[variable] = value
    return found


def workdir_of(launch: Mapping[str, Any], account: Account) -> str:
    wanted = str(launch.get("workdir") or "")
    if wanted and not wanted.startswith("/"):
        raise BackendRefused(f"The working directory {wanted} is not an absolute path.")
    return wanted or (account.home if account.alone or Path(account.home).is_dir() else "/")


def re_formed(launch: Mapping[str, Any]) -> dict[str, str]:
    """What a gang that re-forms by itself needs. PyTorch's elastic agents share a store whose address those who join later are never told, so that
    none of a re-formed gang comes up (seen with 2.14); a job's own value goes first."""
    return {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if launch.get("in_place") else {}


def environment_of(launch: Mapping[str, Any], account: Account) -> dict[str, str]:
    given = {**re_formed(launch), **{str(name): str(value) for name, value in (launch.get("env") or {}).items()}}
    for name in given:
        if not NAME.fullmatch(name):
            raise BackendRefused(f"{name!r} is not a name of a variable.")
        if "\0" in given[name]:
            raise BackendRefused(f"The variable {name} holds a character that no variable can hold.")
    return {"PATH": LOCAL_PATH, "HOME": account.home, "USER": account.name, "LOGNAME": account.name, "LANG": "C.UTF-8", **given}


def about_of(order: StartOrder, seat: WorkerSeat, checkpoints: Path, report_url: str) -> dict[str, str]:
    found = {
        "GPUFLEET_JOB": order.job,
        "GPUFLEET_ATTEMPT": str(order.attempt),
        "GPUFLEET_ROLE": seat.role,
        "GPUFLEET_TOKEN": order.token,
        "GPUFLEET_CHECKPOINT_DIR": str(checkpoints),
        "GPUFLEET_RESUME_FROM": order.resume_from,
        "GPUFLEET_RESUME_STEP": str(order.resume_step),
        "GPUFLEET_GRACE_SECONDS": str(order.grace_seconds),
    }
    found |= order.service
    if report_url:
        found["GPUFLEET_REPORT_URL"] = report_url
    return found


def probe_of(launch: Mapping[str, Any], port: int) -> dict[str, Any] | None:
    """What the supervisor of a worker asks it; `port` is the worker's own, where none is stated."""
    stated = launch.get("ready")
    if not stated:
        return None
    way = next((one for one in READY_WAYS if stated.get(one) is not None), "")
    asked = stated.get(way)
    if way == "command":
        if not isinstance(asked, list) or not asked or not all(isinstance(part, str) and "\0" not in part for part in asked):
            raise BackendRefused("launch.ready.command is no list of arguments.")
    elif isinstance(asked, Mapping):
        asked = {"port": asked.get("port") or port} | ({"path": asked.get("path") or "/"} if way == "http" else {})
    else:
        raise BackendRefused("launch.ready states none of http, tcp and command.")
    limits = {"period_s": READY_PERIOD, "timeout_s": READY_TIMEOUT, "failures": READY_FAILURES}
    return {way: asked} | {name: stated.get(name, default) for name, default in limits.items()}


def limits_of(order: StartOrder, seat: WorkerSeat, cgroup: Path | None, pin: dict[str, str] | None = None) -> dict[str, Any] | None:
    """The cgroup of a worker that says how much of the host it needs, or that is pinned."""
    if cgroup is None:
        return None
    role = role_named(order.spec, seat.role)
    files = {}
    if role.get("host_memory_gb"):
        files["memory.max"] = str(int(role["host_memory_gb"] * 1024**3))
    if role.get("cpus"):
        files["cpu.max"] = f"{max(LEAST_CPU_MICROS, round(role['cpus'] * 100_000))} 100000"
    folder = str(cgroup / f"{order.key}.{seat.role}-{seat.index}")
    return {"folder": folder, "files": files, "pin": pin} if files or pin else None


def ranks_of(order: StartOrder, port: int) -> dict[tuple[str, int], list[dict[str, str]]]:
    """The variables of every rank, as torchrun sets them: workers are nodes to it, and a worker's processes share its GPUs."""
    per_gpu = order.launch.get("per", "worker") == "gpu"
    seats = sorted(order.workers, key=lambda seat: (seat.role, seat.index))
    counts = [max(1, len(seat.mig_uuids or seat.gpus)) if per_gpu else 1 for seat in seats]
    world, first = sum(counts), 0
    found = {}
    for place, (seat, count) in enumerate(zip(seats, counts, strict=True)):
        found[seat.role, seat.index] = [
            {
                "RANK": str(first + local),
                "LOCAL_RANK": str(local),
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(count),
                "GROUP_RANK": str(place),
                "NODE_RANK": str(place),
                "GROUP_WORLD_SIZE": str(len(seats)),
                "ROLE_RANK": str(first + local),
                "ROLE_WORLD_SIZE": str(world),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
                "TORCHELASTIC_RUN_ID": order.key,
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": visible_devices(seat),
            }
            for local in range(count)
        ]
        first += count
    return found


def visible_devices(seat: WorkerSeat) -> str:
    """By UUID, which names the same device whatever order the driver counts in. None at all for a worker without GPUs."""
    if seat.mig_uuids:
        return ",".join(seat.mig_uuids)
    if len(seat.gpu_uuids) == len(seat.gpus):
        return ",".join(seat.gpu_uuids)
    return ",".join(str(index) for index in seat.gpus)


def free_port() -> int:
    """One that nobody listens on now. Whoever takes it in between makes the rendezvous fail, which is told like every failure."""
    for port in random.SystemRandom().sample(PORTS, 100):
        with socket.socket() as asked, contextlib.suppress(OSError):
            asked.bind(("127.0.0.1", port))
            return port
    raise BackendError("No port is free for the ranks to meet at.")
