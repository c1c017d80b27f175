"""Connecting a cluster to Slurm: each step is tried first, and what was found is imported by the usual preview."""

import os
import pwd
import secrets
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.core.exceptions import ValidationError
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.ids import public_id
from quotas.permissions import Access, Can
from scheduler.backends.base import BackendError
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import Settings, SlurmClient, SlurmNode
from scheduler.hardware.slurm import KnownType, document_of, types_of
from scheduler.models import Cluster, Gpu, GpuMode, GpuType, MigInstance, Node, SlurmCluster

KEPT = ("conf", "partition", "account", "user", "folder", "rest_url", "node_logs")


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that must work, and what was seen."""

    name: str
    ok: bool
    seen: str


def slurm_check(settings: Settings) -> list[Step]:
    """Try each step of the way of a job to Slurm, up to a submission that is held and cancelled."""
    client = SlurmClient(settings)
    steps = [_step("controller", client.ping)]
    if not steps[0].ok:
        return steps
    steps.append(_step("nodes", lambda: _nodes(client)))
    steps.append(_step("partition", lambda: _partition(client, settings)))
    steps.append(_step("user", lambda: _user(settings)))
    steps.append(_step("folder", lambda: _folder(settings)))
    steps.append(_step("submission", lambda: _submission(client, settings)))
    return steps


def _step(name: str, look: Callable[[], str]) -> Step:
    try:
        return Step(name, True, look())
    except (BackendError, OSError, ValueError) as fault:
        return Step(name, False, str(fault))


def _nodes(client: SlurmClient) -> str:
    nodes = client.nodes()
    if not nodes:
        raise ValueError("Slurm has no nodes.")
    return f"{len(nodes)} nodes: {', '.join(node.name for node in nodes[:4])}{', …' if len(nodes) > 4 else ''}"


def _partition(client: SlurmClient, settings: Settings) -> str:
    found = client.partitions()
    if settings.partition and settings.partition not in found:
        raise ValueError(f"There is no partition {settings.partition}; Slurm has {', '.join(found)}.")
    return settings.partition or f"the default of {', '.join(found)}"


def _user(settings: Settings) -> str:
    if not settings.user and os.getuid() == 0:
        raise ValueError("The console runs as root: name the user that jobs run as.")
    try:
        found = pwd.getpwnam(settings.user) if settings.user else pwd.getpwuid(os.getuid())
    except KeyError:
        raise ValueError(f"There is no user {settings.user} on the console's machine.") from None
    if found.pw_uid == 0:
        raise ValueError("Jobs on Slurm never run as root.")
    if os.getuid() not in (0, found.pw_uid):
        raise ValueError(f"Only a console that runs as root can submit jobs of {settings.user}.")
    return found.pw_name


def _folder(settings: Settings) -> str:
    if not settings.folder.startswith("/"):
        raise ValueError("The shared folder is an absolute path, the same on the console and on every node.")
    with tempfile.TemporaryFile(dir=settings.folder):
        return settings.folder


def _submission(client: SlurmClient, settings: Settings) -> str:
    arguments = ["--hold", "--no-requeue", "--job-name=gpufleet-check", "--comment=gpufleet check", "--nodes=1", "--output=/dev/null", "--chdir=/"]
    arguments += [f"--{name}={value}" for name in ("partition", "account") if (value := getattr(settings, name))]
    if os.getuid() == 0 and settings.user:
        account = pwd.getpwnam(settings.user)
        arguments += [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"]
    number = client.submit(arguments, "#!/bin/sh\ntrue\n")
    client.cancel([number])
    return f"job {number} was taken, held and cancelled"


def slurm_connect(*, access: Access, cluster: str, settings: Settings, now: datetime) -> SlurmCluster:
    """Keep how a cluster's Slurm is reached. The cluster is made where there is none of that name."""
    access.must_everywhere(Can.OPERATE)
    faults = {step.name: step.seen for step in slurm_check(settings) if not step.ok}
    if settings.rest_url and not settings.rest_url.startswith(("http://", "https://")):
        faults["rest_url"] = "The address of slurmrestd begins with http:// or https://."
    if settings.node_logs and not settings.node_logs.startswith("/"):
        faults["node_logs"] = "The folder of the nodes for logs is an absolute path."
    if faults:
        raise ValidationError(faults)
    with transaction.atomic():
        row, made = Cluster.objects.get_or_create(name=cluster, defaults={"public_id": public_id("c"), "backend": "slurm"})
        if row.backend != "slurm":
            raise ValidationError({"cluster": f"Cluster {cluster} runs on the back-end {row.backend}."})
        before = SlurmCluster.objects.filter(cluster=row).first()
        values = {name: getattr(settings, name) for name in KEPT} | {"changed_at": now}
        kept, _ = SlurmCluster.objects.update_or_create(cluster=row, defaults=values, create_defaults=values | {"tag": secrets.token_hex(4)})
        audit_record(
            actor=access.actor,
            action="slurm.connect",
            kind="cluster",
            object_id=row.public_id,
            before={} if before is None else {name: getattr(before, name) for name in KEPT},
            after={name: getattr(kept, name) for name in KEPT} | ({"cluster": cluster} if made else {}),
        )
    return kept


def slurm_users() -> tuple[str, ...]:
    """The users that a cluster connected in the browser may run jobs as; empty is the console's own."""
    own = () if os.getuid() == 0 else ("",)
    return (*own, *settings.SLURM_USERS)


@dataclass(frozen=True, slots=True)
class GresTypes:
    """The types of GRES of a cluster's nodes, and the inventory's own types."""

    found: tuple[str, ...]
    known: tuple[str, ...]
    given: frozenset[str] = frozenset()  # those whose nodes were imported before

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(name for name in self.found if name not in self.known and name not in self.given)


def slurm_types(*, access: Access, cluster: str) -> GresTypes:
    """What GPUs a connected cluster says it has. Raises BackendError where it does not answer."""
    access.must_everywhere(Can.OPERATE)
    row = slurm_row(cluster)
    nodes = SlurmClient(slurm_settings(row)).nodes()
    found = {gres for node in nodes for gres in types_of(node.gres)}
    names = tuple(GpuType.objects.order_by("name").values_list("name", flat=True))
    return GresTypes(tuple(sorted(found)), names, frozenset(types_given(row, nodes)))


def slurm_row(cluster: str) -> SlurmCluster:
    row = SlurmCluster.objects.select_related("cluster").filter(cluster__name=cluster).first()
    if row is None:
        raise ValidationError({"cluster": f"Cluster {cluster} is not connected to Slurm."})
    return row


def slurm_document(*, cluster: str, types: Mapping[str, KnownType]) -> str:
    """A connected cluster as an import file."""
    row = slurm_row(cluster)
    known = {name: KnownType(name, board=board) for name, board in GpuType.objects.values_list("name", "board")}
    client = SlurmClient(slurm_settings(row))
    wanted = {gres: known.get(one.name, one) for gres, one in types.items()}
    nodes, topology = client.nodes(), client.topology()
    given = {gres: known[name] for gres, name in types_given(row, nodes).items()}
    labels = dict(Node.objects.filter(cluster=row.cluster, removed_at__isnull=True).values_list("name", "labels"))
    kinds = {**known, **given, **wanted}
    return document_of(nodes, topology, cluster=cluster, types=kinds, new_cluster=False, split=_split(row.cluster_id), labels=labels)


def types_given(row: SlurmCluster, nodes: Sequence[SlurmNode]) -> dict[str, str]:
    """The type of the inventory for each type of GRES, as the nodes that were imported have it. One that they have differently is not told."""
    have = dict(Node.objects.filter(cluster=row.cluster, removed_at__isnull=True, gpu_type__isnull=False).values_list("name", "gpu_type_id"))
    found: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if node.name in have and len(types := types_of(node.gres)) == 1:
            found[types.pop()].add(have[node.name])
    return {gres: names.pop() for gres, names in found.items() if len(names) == 1}


def _split(cluster: int) -> dict[str, tuple[int, Counter[str]]]:
    """Of nodes of the inventory with MIG instances: whole GPUs, and instances by profile."""
    instances: dict[str, Counter[str]] = defaultdict(Counter)
    there = {"gpu__node__cluster": cluster, "gpu__node__removed_at__isnull": True, "gpu__removed_at__isnull": True, "removed_at__isnull": True}
    for node, profile in MigInstance.objects.filter(**there).values_list("gpu__node__name", "profile"):
        instances[node][profile] += 1
    whole = Counter(
        Gpu.objects.filter(node__cluster=cluster, node__name__in=list(instances), node__removed_at__isnull=True, removed_at__isnull=True)
        .exclude(mode=GpuMode.MIG)
        .values_list("node__name", flat=True)
    )
    return {node: (whole[node], found) for node, found in instances.items()}
