"""Connecting a cluster to Slurm: each step is tried first, and what was found is imported by the usual preview."""

import ipaddress
import os
import secrets
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import slug_re
from django.db import transaction

from gpufleet.core.audit import audit_record
from gpufleet.core.findings import some
from gpufleet.core.ids import public_id
from quotas.permissions import Access, Can
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.values import Settings, SlurmNode
from scheduler.engine.model.mig import Instance
from scheduler.hardware.boundaries import found_in
from scheduler.hardware.slurm import Found, KnownType, Split, document_of, types_of
from scheduler.models import Cluster, Gpu, GpuMode, GpuType, MigInstance, Node, SlurmCluster
from scheduler.notify.outgoing import Refused, Rules, target_of
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.imports import Preview, import_preview
from scheduler.services.hardware.slurm_checks import prolog_confines, slurm_check

# slurmrestd stands beside the controller. Who may name it is limited instead: by command, or one that the settings list.
ANYWHERE = Rules((ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")), http=True)
KEPT = ("conf", "partition", "account", "user", "folder", "rest_url", "node_logs")


@dataclass(frozen=True, slots=True)
class Connected:
    """A cluster that is kept, and how each step went."""

    row: SlurmCluster
    steps: list[Step]
    left: str = ""  # its shared folder of before, where that was another one

    @property
    def not_read(self) -> str:
        """Why slurmrestd is not read though it was chosen."""
        return next((step.told for step in self.steps if step.name == "slurmrestd" and step.findings), "")

    @property
    def told(self) -> str:
        """What becomes of files that are there."""
        return f"Logs and checkpoints of earlier jobs stay in {self.left}: keep it mounted, or move them and leave a link." if self.left else ""


def slurm_connect(*, access: Access, cluster: str, settings: Settings, now: datetime) -> Connected:
    """Try each step, then keep how a cluster's Slurm is reached. The cluster is made where there is none of that name.

    Raises ValidationError for what is wrong by itself, and StepsFailed.
    """
    access.must_everywhere(Can.OPERATE)
    must_be_valid(cluster, settings)
    steps = slurm_check(replace(settings, tag=slurm_known(cluster).tag))
    if any(step.hinders for step in steps):
        raise StepsFailed(steps)
    with transaction.atomic():
        row, made = Cluster.objects.get_or_create(name=cluster, defaults={"public_id": public_id("c"), "backend": "slurm"})
        must_be_of(row, "slurm")
        removed_at = Cluster.objects.select_for_update().get(pk=row.pk).removed_at
        Cluster.objects.filter(pk=row.pk).update(removed_at=None)
        before = SlurmCluster.objects.select_for_update().filter(cluster=row).first()
        values = {name: getattr(settings, name) for name in KEPT} | {"changed_at": now, "former_folders": _former(before, settings.folder)}
        kept, _ = SlurmCluster.objects.update_or_create(cluster=row, defaults=values, create_defaults=values | {"tag": secrets.token_hex(4)})
        audit_record(
            actor=access.actor,
            action="slurm.connect",
            kind="cluster",
            object_id=row.public_id,
            before=({} if before is None else {name: getattr(before, name) for name in KEPT})
            | ({} if removed_at is None else {"removed": f"{removed_at:%Y-%m-%d %H:%M:%S}"}),
            after={name: getattr(kept, name) for name in KEPT} | ({"cluster": cluster} if made or removed_at is not None else {}),
        )
    left = before.folder if before is not None and before.folder in kept.former_folders else ""
    return Connected(kept, steps, left)


def _former(before: SlurmCluster | None, folder: str) -> list[str]:
    """Shared folders other than the one from now on, the newest first."""
    found: dict[Path, str] = {}
    for one in [] if before is None else [before.folder, *before.former_folders]:
        found.setdefault(Path(one), one)
    found.pop(Path(folder), None)
    return list(found.values())


def must_be_valid(cluster: str, settings: Settings) -> None:
    """What is seen to be wrong before anything is tried, by its field."""
    faults = _as_kept(cluster, settings)
    if "cluster" not in faults and (row := Cluster.objects.filter(name=cluster).first()):
        must_be_of(row, "slurm")
    if settings.rest_url:
        try:
            target_of(settings.rest_url, ANYWHERE)
        except Refused as refused:
            faults["rest_url"] = [str(refused)]
    if settings.node_logs and not settings.node_logs.startswith("/"):
        faults["node_logs"] = ["The folder of the nodes for logs is an absolute path."]
    if faults:
        raise ValidationError(faults)


def _as_kept(cluster: str, settings: Settings) -> dict[str, list[str]]:
    """What the models cannot hold: a name that is none, a value that is too long."""
    faults: dict[str, list[str]] = {}
    try:
        Cluster(name=cluster).clean_fields(exclude={"public_id"})
    except ValidationError as fault:
        faults["cluster"] = fault.messages
    try:
        SlurmCluster(**{name: getattr(settings, name) for name in KEPT}).clean_fields(exclude={"cluster", "tag"})
    except ValidationError as fault:
        faults |= fault.message_dict
    return faults


def slurm_known(cluster: str) -> Settings:
    """How a cluster is reached so far; nothing is known of one that is new, or of what is no name."""
    row = SlurmCluster.objects.filter(cluster__name=cluster).first() if slug_re.match(cluster) else None
    return Settings() if row is None else slurm_settings(row)


def slurm_is_connected(cluster: str) -> bool:
    """A cluster that was removed is not: it is added again as a new one is, and goes on with its history."""
    return bool(slug_re.match(cluster)) and SlurmCluster.objects.filter(cluster__name=cluster, cluster__removed_at__isnull=True).exists()


@dataclass(frozen=True, slots=True)
class Choices:
    """What a browser may choose of. Anything else is for the command line: whoever runs jobs as a user, or is sent a token, acts as that user."""

    users: tuple[str, ...]  # empty is the console's own
    rest_urls: tuple[str, ...]


def slurm_choices(known: Settings) -> Choices:
    """By the settings, and what the cluster has already."""
    own = () if os.getuid() == 0 else ("",)
    users = dict.fromkeys((*own, *settings.SLURM_USERS, *([known.user] if known.user else [])))
    urls = dict.fromkeys((*settings.SLURM_REST_URLS, *([known.rest_url] if known.rest_url else [])))
    return Choices(tuple(users), tuple(urls))


def slurm_asked(cluster: str, given: Mapping[str, Any]) -> Settings:
    """How a cluster is reached once somebody has changed `given` of it by a browser or a program. Raises ValidationError for what the settings do not
    let them choose."""
    known = slurm_known(cluster)
    choices, chosen = slurm_choices(known), replace(known, **given)
    faults: dict[str, list[str]] = {}
    if not choices.users:
        faults["user"] = ["The console runs as root, and no user is allowed for jobs: set GPUFLEET_SLURM_USERS."]
    elif chosen.user not in choices.users:
        faults["user"] = [f"GPUFLEET_SLURM_USERS allows {some(list(filter(None, choices.users))) or 'the user of the console alone'}."]
    if chosen.rest_url and chosen.rest_url not in choices.rest_urls:
        faults["rest_url"] = [f"GPUFLEET_SLURM_REST_URLS allows {some(choices.rest_urls) or 'none'}."]
    if faults:
        raise ValidationError(faults)
    return chosen


def must_be_local(cluster: str) -> None:
    """A cluster of this name is, or would be, this machine's own. Raises ValidationError."""
    try:
        Cluster(name=cluster).clean_fields(exclude={"public_id"})
    except ValidationError as fault:
        raise ValidationError({"cluster": fault.messages}) from fault
    if row := Cluster.objects.filter(name=cluster).first():
        must_be_of(row, "local")


def must_be_of(row: Cluster, backend: str) -> None:
    if row.backend != backend:
        raise ValidationError({"cluster": f"Cluster {row.name} runs on the back-end {row.backend}."})


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


def slurm_document(*, cluster: str, types: Mapping[str, KnownType]) -> Found:
    """A connected cluster as an import file."""
    row = slurm_row(cluster)
    known = {name: KnownType(name, board=board) for name, board in GpuType.objects.values_list("name", "board")}
    client = SlurmClient(slurm_settings(row))
    wanted = {gres: known.get(one.name, one) for gres, one in types.items()}
    nodes, topology = client.nodes(), client.topology()
    given = {gres: known[name] for gres, name in types_given(row, nodes).items()}
    labels = dict(Node.objects.filter(cluster=row.cluster, removed_at__isnull=True).values_list("name", "labels"))
    kinds = {**known, **given, **wanted}
    split, boundaries = _split(row.cluster_id), _boundaries(row, client)
    return document_of(nodes, topology, cluster=cluster, types=kinds, new_cluster=False, split=split, labels=labels, boundaries=boundaries)


def _boundaries(row: SlurmCluster, client: SlurmClient) -> list[str]:
    """The labels of what Slurm enforces between jobs, where this console's prolog checks it for each of them."""
    stated = client.config().stated
    return found_in(stated, is_verified=prolog_confines(slurm_settings(row), stated.get("Prolog", "")))


def slurm_preview(
    *, access: Access, cluster: str, named: Mapping[str, tuple[str, int | None]], now: datetime, types: GresTypes | None = None
) -> Preview:
    """What an import of a connected cluster would change. `named` has the type of the inventory, and the memory of a new one, for each type of GRES
    that is not known; `types` is what was found before.

    Raises ValidationError for what is missing there, and BackendError where Slurm does not answer.
    """
    types = types or slurm_types(access=access, cluster=cluster)
    faults: dict[str, list[str]] = {}
    for gres in types.unknown:
        name, memory = named.get(gres, ("", None))
        if not name:
            faults[f"types.{gres}"] = ["The type of the inventory is required."]
        elif name not in types.known and memory is None:
            faults[f"types.{gres}.memory_mib"] = [f"{name} is not in the inventory: its memory is required."]
    for gres in sorted(named.keys() - set(types.unknown)):
        faults[f"types.{gres}"] = ["It is known already." if gres in types.found else f"No node of {cluster} has GPUs of this type."]
    if faults:
        raise ValidationError(faults)
    found = slurm_document(cluster=cluster, types={gres: KnownType(*one) for gres, one in named.items()})
    source = f"Slurm of {cluster}"
    return import_preview(access=access, text=found.text, form="yaml", source=source, remove_missing=False, notes=found.notes, now=now)


def types_given(row: SlurmCluster, nodes: Sequence[SlurmNode]) -> dict[str, str]:
    """The type of the inventory for each type of GRES, as the nodes that were imported have it. One that they have differently is not told."""
    have = dict(Node.objects.filter(cluster=row.cluster, removed_at__isnull=True, gpu_type__isnull=False).values_list("name", "gpu_type_id"))
    found: dict[str, set[str]] = defaultdict(set)
    for node in nodes:
        if node.name in have and len(types := types_of(node.gres)) == 1:
            found[types.pop()].add(have[node.name])
    return {gres: names.pop() for gres, names in found.items() if len(names) == 1}


def _split(cluster: int) -> dict[str, Split]:
    """Of nodes of the inventory with MIG instances."""
    instances: dict[str, Counter[str]] = defaultdict(Counter)
    places: dict[str, dict[int, tuple[Instance, ...]]] = defaultdict(dict)
    there = {"gpu__node__cluster": cluster, "gpu__node__removed_at__isnull": True, "gpu__removed_at__isnull": True, "removed_at__isnull": True}
    rows = MigInstance.objects.filter(**there).order_by("gpu__index", "start", "profile")
    for node, gpu, start, profile in rows.values_list("gpu__node__name", "gpu__index", "start", "profile"):
        instances[node][profile] += 1
        places[node][gpu] = (*places[node].get(gpu, ()), Instance(start, profile))
    whole = Counter(
        Gpu.objects.filter(node__cluster=cluster, node__name__in=list(instances), node__removed_at__isnull=True, removed_at__isnull=True)
        .exclude(mode=GpuMode.MIG)
        .values_list("node__name", flat=True)
    )
    return {node: Split(whole[node], found, places[node]) for node, found in instances.items()}
