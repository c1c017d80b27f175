"""What Slurm's programs print, read as values: lists of hosts, jobs, nodes, limits."""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from scheduler.backends.slurm.values import ENDED, RUNNING, SlurmJob, SlurmNode

MEMORY = re.compile(r"([0-9]+(?:\.[0-9]+)?)([KMGTP]?)")
UNITS_MIB = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
INDEX = re.compile(r"\(IDX:([^)]*)\)")
PARTS = re.compile(r"\(([0-9]+/[0-9]+(?:,[0-9]+/[0-9]+)*)\)")
HELD_ON = re.compile(r" Nodes=(\S+) CPU_IDs=\S* Mem=\d+ GRES=(\S*)")
# What `squeue` is asked to print of a job. Its JSON costs fifteen times as much, with all jobs of the last minutes in each.
FIELDS = (
    "jobid", "state", "reason", "prioritylong", "exit_code", "starttime", "endtime", "tres-alloc", "nodelist", "username", "partition",
    "name", "comment", "userid",
)  # fmt: skip
# `sacct`, of one that has ended.
ACCOUNT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "UID", "NodeList")
# And `sinfo` of a node.
NODE_FIELDS = ("nodelist", "nodeaddr", "statecomplete", "cpus", "memory", "gres", "features", "version", "reason")


def hostlist(text: str) -> tuple[str, ...]:
    """`gpu[001-003,7],login` as names, in the order written."""
    found: list[str] = []
    for part in _split(text):
        head, bracket, rest = part.partition("[")
        if not bracket:
            found.append(part)
            continue
        inside, _, tail = rest.partition("]")
        for span in inside.split(","):
            low, dash, high = span.partition("-")
            numbers = range(int(low), int(high) + 1) if dash else (int(low),)
            found += [name for number in numbers for name in hostlist(f"{head}{number:0{len(low)}d}{tail}")]
    return tuple(found)


def _split(text: str) -> Iterator[str]:
    depth, begun = 0, 0
    for place, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            if text[begun:place]:
                yield text[begun:place]
            begun = place + 1
    if text[begun:]:
        yield text[begun:]


def indices(text: str) -> tuple[int, ...]:
    """The GPU indices of `gpu:h100:3(IDX:0-1,5)`, and of `shard:h100:3(0/4,3/4)`, as newer versions write how many parts of each GPU are held."""
    found: set[int] = set()
    for inside in INDEX.findall(text):
        for span in inside.split(","):
            low, dash, high = span.partition("-")
            if low.isdigit() and (not dash or high.isdigit()):
                found.update(range(int(low), int(high or low) + 1))
    for inside in PARTS.findall(text):
        found.update(index for index, part in enumerate(inside.split(",")) if int(part.partition("/")[0]))
    return tuple(sorted(found))


def printed_job(values: Sequence[str]) -> SlurmJob:
    """One job of `squeue`, its values in the order of `FIELDS`."""
    told = dict(zip(FIELDS, values, strict=True))
    state = state_of(told["state"])
    return SlurmJob(
        id=int(told["jobid"]),
        state=state,
        comment="" if told["comment"] == "(null)" else told["comment"],
        user=told["username"],
        nodes=hostlist(told["nodelist"]),
        gpus={},
        exit_code=exit_code_of({"exit_code": _status(told["exit_code"])}) if state in ENDED else None,
        held=told["prioritylong"] == "0" and state == "PENDING",
        reason=told["reason"],
        started_at=moment_of(whole(told["starttime"])) if state in RUNNING or state in ENDED else None,
        ended_at=moment_of(whole(told["endtime"])) if state in ENDED else None,
        uid=int(told["userid"]),
        name=told["name"],
        partition=told["partition"],
        **allocated(told["tres-alloc"] if told["nodelist"] else ""),  # before it has nodes this is what it asks for
    )


def accounted_job(told: Mapping[str, str]) -> SlurmJob:
    state = state_of(told["State"])
    return SlurmJob(
        id=int(told["JobIDRaw"]),
        state=state,
        comment="",
        user="",
        nodes=() if told["NodeList"] == "None assigned" else hostlist(told["NodeList"]),
        gpus={},
        exit_code=exit_code_of({"exit_code": _status(told["ExitCode"])}),
        held=False,
        reason="",
        started_at=moment_of(whole(told["Start"])),
        ended_at=moment_of(whole(told["End"])),
        uid=whole(told["UID"]),
        name=told["JobName"],
    )


def printed_node(values: Sequence[str]) -> SlurmNode:
    """One node of `sinfo`, its values in the order of `NODE_FIELDS`."""
    told = {name: "" if value in ("(null)", "N/A") else value for name, value in zip(NODE_FIELDS, values, strict=True)}
    return SlurmNode(
        name=told["nodelist"].lstrip("\n"),
        address=told["nodeaddr"],
        states=tuple(word for word in told["statecomplete"].upper().split("+") if word),
        reason="" if told["reason"] == "none" else told["reason"],
        cpus=whole(told["cpus"]),
        memory_mib=whole(told["memory"]),
        gres=told["gres"],
        features=tuple(part for part in told["features"].split(",") if part),
        version=told["version"],
    )


def gpus_held(job: SlurmJob, told: str) -> dict[str, tuple[int, ...]]:
    """Of one job as `scontrol` prints it. Between its name and the wishes of its submitter stands nothing that others may choose."""
    _, _, after_name = told.partition(f" JobName={job.name} UserId=")
    held = after_name.partition(" JOB_GRES=")[2].partition(" MinCPUsNode=")[0]
    return {node: indices(gres) for nodes, gres in HELD_ON.findall(held) for node in hostlist(nodes)}


def _status(text: str) -> int:
    """`3:0` and `0:9`, an exit code and a signal, as one number."""
    code, _, signal = text.partition(":")
    return int(code) << 8 | int(signal) if signal else int(code)


def state_of(value: Any) -> str:
    """The first word: newer versions give a list with flags behind."""
    states = value if isinstance(value, list) else [value]
    return str(states[0] if states else "").split(" ")[0].rstrip("+") or "UNKNOWN"


def exit_code_of(one: Mapping[str, Any]) -> int | None:
    value = one.get("exit_code")
    if isinstance(value, dict):
        ended_by = value.get("signal") or {}
        code, signal = number_of(value.get("return_code")), number_of(ended_by.get("id", ended_by.get("signal_id")))
        return 128 + signal if signal else code
    if not isinstance(value, int):
        return None
    return 128 + (value & 0x7F) if value & 0x7F else value >> 8


def moment_of(value: Any) -> datetime | None:
    seconds = number_of(value)
    return datetime.fromtimestamp(seconds, UTC) if seconds else None


def number_of(value: Any) -> int | None:
    """A number as versions before and after 23.02 write it."""
    if isinstance(value, dict):
        return int(value["number"]) if value.get("set") and not value.get("infinite") else None
    return int(value) if isinstance(value, int | float) else None


def allocated(text: str) -> dict[str, int]:
    """What `cpu=64,mem=400G,node=2,billing=64,gres/gpu=8,gres/gpu:h100=8` hands out over all nodes. Parts of GPUs are of at least one on each."""
    stated = dict(part.partition("=")[::2] for part in text.split(","))
    memory = MEMORY.fullmatch(stated.get("mem", ""))
    shared = whole(stated.get("node", "")) if {"gres/shard", "gres/mps"} & stated.keys() else 0
    return {
        "cpus": whole(stated.get("cpu", "")),
        "memory_mib": int(float(memory[1]) * UNITS_MIB[memory[2]]) if memory else 0,
        "gpu_count": whole(stated.get("gres/gpu", "")) + shared,
    }


def limit_minutes(text: str) -> int | None:
    """`2-12:00:00` and `30:00` as Slurm prints time limits; nothing of `infinite`."""
    days, _, rest = text.rpartition("-")
    parts = [int(part) for part in rest.split(":") if part.isdigit()]
    if len(parts) < 2:
        return None
    hours, minutes = parts[-3] if len(parts) > 2 else 0, parts[-2]
    return 1440 * whole(days) + 60 * hours + minutes


def whole(text: str) -> int:
    return int(text) if text.isdigit() else 0
