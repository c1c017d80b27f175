"""What there is in Slurm, as values: how a cluster is reached, its jobs, nodes and partitions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

ENDED = frozenset(
    {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED"}
)
RUNNING = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "COMPLETING"})


@dataclass(frozen=True, slots=True)
class Settings:
    """How one cluster is reached and what its jobs run as."""

    conf: str = ""  # path of slurm.conf; empty: the machine's own
    partition: str = ""
    account: str = ""
    user: str = ""  # whom jobs run as; empty: the console's own user
    folder: str = ""  # for scripts, logs and checkpoints, seen by console and nodes alike
    tag: str = ""  # marks this console's jobs
    rest_url: str = ""
    node_logs: str = ""  # folder of the nodes where logs stay until they are asked for; empty: they are written to `folder`
    former: tuple[str, ...] = ()  # shared folders of before, where files of earlier jobs lie


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """One job as Slurm shows it."""

    id: int
    state: str
    comment: str
    user: str
    nodes: tuple[str, ...]
    gpus: Mapping[str, tuple[int, ...]]  # indices by node, as far as Slurm tells
    exit_code: int | None
    held: bool
    reason: str
    started_at: datetime | None
    ended_at: datetime | None
    uid: int | None = None
    name: str = ""
    partition: str = ""
    cpus: int = 0  # on all its nodes
    memory_mib: int = 0
    gpu_count: int = 0

    @property
    def ended(self) -> bool:
        return self.state in ENDED

    @property
    def running(self) -> bool:
        return self.state in RUNNING


@dataclass(frozen=True, slots=True)
class SlurmNode:
    name: str
    address: str
    states: tuple[str, ...]  # IDLE, ALLOCATED, MIXED, DOWN, with DRAIN, NOT_RESPONDING, … behind
    reason: str
    cpus: int
    memory_mib: int
    gres: str
    features: tuple[str, ...] = field(default=())
    version: str = ""  # of slurmd


class Partition(NamedTuple):
    state: str  # up, down, or drained or inactive (drain, inact)
    minutes: int | None  # the longest time limit of its jobs; None: any
    is_default: bool = False


class Config(NamedTuple):
    """How a controller is configured, and what time it had when it said so."""

    stated: Mapping[str, str]
    at: datetime | None


# GPUs by node of jobs that run, each known by number, start, nodes and how many they are: for so long they stay the same.
KnownGpus = dict[tuple[int, datetime | None, tuple[str, ...], int], Mapping[str, tuple[int, ...]]]


def named(key: str) -> str:
    """For `scancel`: only a job of that run, whoever has its number now."""
    return f"--name={name_of(key)}"


def name_of(key: str) -> str:
    return f"gpufleet-{key}"
