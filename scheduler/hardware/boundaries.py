"""Boundaries between the jobs of a node, and who vouches that it enforces them: what colocation with services stands on.

They are kept as labels of the node: `true` as Slurm's import found them, `verified` as the local back-end tried it on this machine, any other value
as an operator states. The simulated back-end carries out all that it is ordered.
"""

from collections.abc import Mapping
from enum import StrEnum

BOUNDARIES = {"cores": "Processors pinned", "mig": "MIG instances enforced"}
PREFIX = "boundary/"
FOUND, VERIFIED, STATED = "true", "verified", "stated"
CORES = PREFIX + "cores"
TRUE = frozenset({"yes", "true", "up", "1"})  # as Slurm reads them


class Voucher(StrEnum):
    """Who says that a boundary holds."""

    BACKEND = "backend"
    SLURM = "slurm"
    OPERATOR = "operator"


VOUCHED = {("slurm", FOUND): Voucher.SLURM, ("local", VERIFIED): Voucher.BACKEND}
VOUCHERS = {Voucher.BACKEND: "by its back-end", Voucher.SLURM: "by Slurm", Voucher.OPERATOR: "stated by an operator"}


def boundaries_of(labels: Mapping[str, object], backend: str) -> dict[str, Voucher]:
    """The boundaries of a node, each with who vouches for it."""
    found = {}
    for name in BOUNDARIES:
        value = str(labels.get(PREFIX + name, ""))
        if backend == "simulated":
            found[name] = Voucher.BACKEND
        elif value:
            found[name] = VOUCHED.get((backend, value), Voucher.OPERATOR)
    return found


def labels_stated(labels: Mapping[str, object], stated: frozenset[str], backend: str) -> dict[str, object]:
    """The labels with the boundaries that an operator states; what Slurm found or the back-end verified stays."""
    kept = {key: value for key, value in labels.items() if not key.startswith(PREFIX) or (backend, value) in VOUCHED}
    return kept | {PREFIX + name: STATED for name in sorted(stated) if PREFIX + name not in kept}


def labels_verified(labels: Mapping[str, object], *, pins: bool) -> dict[str, object]:
    """The labels of this machine, of which its back-end has just tried whether it pins jobs to their processors. What an operator states of a machine
    that does not stays."""
    if pins:
        return {**labels, CORES: VERIFIED}
    return {key: value for key, value in labels.items() if (key, value) != (CORES, VERIFIED)}


def found_in(stated: Mapping[str, str], *, is_verified: bool) -> list[str]:
    """The labels of boundaries that a Slurm with such a configuration enforces, where the prolog checks each job for it."""
    plugin = stated.get("TaskPlugin", "").lower()
    by_cgroup = "cgroup" in plugin
    confined = {name: by_cgroup and stated.get(name, "").lower() in TRUE for name in ("ConstrainCores", "ConstrainDevices")}
    if not is_verified:
        return []
    cores = [PREFIX + "cores"] if confined["ConstrainCores"] or "affinity" in plugin else []
    return cores + ([PREFIX + "mig"] if confined["ConstrainDevices"] else [])
