"""One Slurm cluster: does each step of a job's way work, and do both sides say the same of its nodes?"""

from collections.abc import Iterator
from functools import partial

from gpufleet.doctor import Check, Finding, some
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.models import SlurmCluster
from scheduler.services.hardware.slurm import Step, slurm_check
from scheduler.services.hardware.slurm_nodes import differences

DO = "Repair it as docs/operate/slurm.md says, then run the doctor again."


def checks_of(name: str) -> dict[str, Check]:
    row = SlurmCluster.objects.select_related("cluster").filter(cluster__name=name).first()
    if row is None:
        return {"connection": partial(_unknown, name)}
    steps = slurm_check(slurm_settings(row))
    checks: dict[str, Check] = {step.name: partial(_step, step) for step in steps}
    if steps[0].ok:
        checks["health of nodes"] = partial(_nodes, row)
    return checks


def _unknown(name: str) -> Iterator[Finding]:
    known = list(SlurmCluster.objects.order_by("cluster__name").values_list("cluster__name", flat=True))
    yield Finding(
        f"Cluster {name} is not connected to Slurm.",
        f"Connected: {some(known)}." if known else "No cluster is connected to Slurm.",
        "Connect it: gpufleet inventory connect-slurm.",
    )


def _step(step: Step) -> Iterator[Finding]:
    if not step.ok:
        yield Finding(f"{step.name}: {step.seen}", "Jobs for this cluster do not start until this works.", DO)


def _nodes(row: SlurmCluster) -> Iterator[Finding]:
    found = differences(row, SlurmClient(slurm_settings(row)).nodes())
    if found:
        told = [f"{one.node.name} ({one.node.health} here, {'+'.join(one.there.states).lower()} in Slurm)" for one in found]
        yield Finding(
            f"Slurm and the inventory differ on {some(told)}.",
            "They agree within 15 s when the worker runs and the console may change nodes in Slurm.",
            "Check that the console's user is an operator of Slurm (sacctmgr, or SlurmUser).",
        )
