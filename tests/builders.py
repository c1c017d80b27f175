"""Rows for tests. Everything has a default, so that what a test mentions is what it is about."""

import gzip
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from gpufleet.core.ids import public_id, public_ids
from gpufleet.core.models import User
from quotas.models import CardState, NodeKind, QuotaNode, RateCard, RateLine, Role, RoleBinding
from scheduler.models import (
    ENDED,
    HOLDING,
    Attempt,
    Cluster,
    Delivery,
    DeliveryState,
    Domain,
    Gpu,
    GpuMode,
    GpuType,
    Job,
    JobClass,
    JobState,
    MigInstance,
    Nic,
    Node,
    Outlook,
    Placement,
    PlanRecord,
    Pool,
    TopologyLevel,
    Webhook,
)
from scheduler.services.forecasts.outlooks import codes_of
from scheduler.services.jobs.marks import marks_write, types_sat_on
from scheduler.services.notify.webhooks import fingerprint_of, secret_of

NOON = datetime(2026, 11, 20, 12, 0, tzinfo=UTC)
_numbers = itertools.count(1)


def person(username: str = "", **fields: Any) -> User:
    username = username or f"person-{next(_numbers)}"
    return User.objects.create(**({"username": username, "email": f"{username}@example.org"} | fields))


def quota(name: str = "acme", *, parent: QuotaNode | None = None, **fields: Any) -> QuotaNode:
    """A node of the tree; one of the same name below the same parent is handed out again."""
    path = f"{parent.path}/{name}" if parent else name
    depth = parent.depth + 1 if parent else 0
    kinds = [NodeKind.ORG, NodeKind.DEPARTMENT, NodeKind.TEAM, NodeKind.PROJECT]
    defaults = {"parent": parent, "name": name, "depth": depth, "kind": kinds[min(depth, 3)]} | fields
    found = QuotaNode.objects.filter(path=path).first()
    return found or QuotaNode.objects.create(public_id=public_id("q"), path=path, **defaults)


def role(user: User, name: str = Role.VIEWER, node: QuotaNode | None = None) -> RoleBinding:
    return RoleBinding.objects.create(user=user, role=name, node=node or quota())


def gpu_type(name: str = "H100-SXM-80GB", *, board: str = "H100-80", memory_mib: int = 81_559, **fields: Any) -> GpuType:
    return GpuType.objects.get_or_create(name=name, defaults={"board": board, "memory_mib": memory_mib} | fields)[0]


def cluster(name: str = "north", *, levels: Sequence[str] = (), **fields: Any) -> Cluster:
    """A cluster by name, with topology levels from wide to narrow where they are given."""
    made, fresh = Cluster.objects.get_or_create(name=name, defaults={"public_id": public_id("c")} | fields)
    if fresh:
        TopologyLevel.objects.bulk_create(TopologyLevel(cluster=made, depth=depth, name=level) for depth, level in enumerate(levels))
    return made


def pool(name: str = "main", *, of: Cluster | None = None) -> Pool:
    return Pool.objects.get_or_create(cluster=of or cluster(), name=name, defaults={"public_id": public_id("p")})[0]


def domain(path: str, *, of: Cluster | None = None) -> Domain:
    """The domain at a path such as `spine-1/leaf-2`, with those above it. The cluster must have as many levels."""
    owner = of or cluster(levels=("spine", "leaf"))
    levels = list(TopologyLevel.objects.filter(cluster=owner).order_by("depth"))
    parent = None
    names = path.split("/")
    for depth, name in enumerate(names):
        found = Domain.objects.filter(cluster=owner, path="/".join(names[: depth + 1])).first()
        parent = found or Domain.objects.create(
            public_id=public_id("d"), cluster=owner, level=levels[depth], parent=parent, name=name, path="/".join(names[: depth + 1])
        )
    assert parent is not None
    return parent


def node(name: str = "", *, of: Cluster | None = None, gpus: int = 0, at: str = "", type_name: str = "H100-SXM-80GB", **fields: Any) -> Node:
    """A node with `gpus` whole GPUs. `at` is the path of its topology domain."""
    number = next(_numbers)
    owner = of or cluster()
    defaults: dict[str, Any] = {"name": name or f"node-{number:04}", "cluster": owner, "cpus": 192, "host_memory_mib": 2_097_152}
    if gpus:
        defaults["gpu_type"] = gpu_type(type_name)
    if at:
        defaults["domain"] = domain(at, of=owner)
    made = Node.objects.create(public_id=public_id("n"), **(defaults | fields))
    kind = made.gpu_type
    if gpus and kind:
        Gpu.objects.bulk_create(
            Gpu(public_id=public, node=made, index=index, gpu_type=kind, memory_mib=kind.memory_mib, uuid=f"GPU-test-{number}-{index}")
            for index, public in enumerate(public_ids("g", gpus))
        )
    return made


def gpu(of: Node | None = None, **fields: Any) -> Gpu:
    """The first GPU of a node, changed where fields are given."""
    found = (of or node(gpus=1)).gpus.select_related("node", "gpu_type").order_by("index").first()
    assert found is not None, "the node has no GPU"
    for key, value in fields.items():
        setattr(found, key, value)
    found.save()
    return found


def mig_gpu(of: Node | None = None, layout: Iterable[tuple[str, int, int]] = (("3g.40gb", 0, 4), ("3g.40gb", 4, 4))) -> Gpu:
    """A GPU in MIG mode. The layout names each instance's profile, first memory slice and count of slices."""
    made = gpu(of, mode=GpuMode.MIG)
    MigInstance.objects.bulk_create(
        MigInstance(public_id=public_id("m"), gpu=made, profile=profile, start=start, size=size) for profile, start, size in layout
    )
    return made


def nic(of: Node, name: str = "mlx5_0", **fields: Any) -> Nic:
    return Nic.objects.create(**({"public_id": public_id("i"), "node": of, "name": name, "rail": 0, "speed_gbps": 400} | fields))


def spec_of(said: Mapping[str, Any] | None = None, *, workers: int = 1, gpus: int = 0) -> dict[str, Any]:
    """As a submission keeps it (`scheduler.jobs.stored`). What `said` leaves out of its roles is there; without any there is one."""
    spec = dict(said or {})
    types = {"gpu_types": spec.pop("gpu_types")} if "gpu_types" in spec else {}
    given = spec.get("roles") or [{"min": workers, "gpus": gpus}]
    return spec | {"roles": [{"name": "worker", "min": 1} | types | role for role in given]}


def job(name: str = "train", *, state: str = JobState.QUEUED, on: QuotaNode | None = None, **fields: Any) -> Job:
    defaults: dict[str, Any] = {"name": name, "quota": on or quota(), "job_class": JobClass.BATCH, "state": state, "submitted_at": NOON}
    if state in ENDED:
        defaults["ended_at"] = NOON
    milli = fields.get("gpus_milli", 0)
    plain = {"gpus": milli // 1000} if milli % 1000 == 0 else {"gpu_share": milli / 1000}
    defaults["spec"] = spec_of({"roles": [plain]} | fields.pop("spec", {}))
    made = Job.objects.create(public_id=public_id("j"), **(defaults | fields))
    marks_write([made])
    return made


def attempt(of: Job, **fields: Any) -> Attempt:
    """The job's next attempt: open as long as the job holds something."""
    defaults: dict[str, Any] = {"job": of, "number": of.attempts.count() + 1, "started_at": NOON}
    if of.state not in HOLDING:
        defaults["ended_at"] = NOON
    return Attempt.objects.create(**(defaults | fields))


def placement(of: Job | None = None, on: Gpu | None = None, **fields: Any) -> Placement:
    """A worker of a running job on a GPU; open unless `until` is given."""
    owner = of or job(state=JobState.RUNNING)
    device = on or gpu()
    run = owner.attempts.filter(ended_at__isnull=True).first() or attempt(owner)
    defaults: dict[str, Any] = {"attempt": run, "job": owner, "node": device.node, "gpu": device, "since": NOON}
    made = Placement.objects.create(**(defaults | fields))
    types_sat_on([made.attempt_id])
    return made


def outlook(of: Job, *details: str, code: str = "capacity", **fields: Any) -> Outlook:
    """What the last plan told a waiting job: a reason for each sentence."""
    given: dict[str, Any] = {"job": of, "at": NOON, "reasons": [{"code": code, "detail": detail} for detail in details]} | fields
    return Outlook.objects.create(**({"codes": codes_of(given["reasons"])} | given))


def plan(**fields: Any) -> PlanRecord:
    """A plan that was made at noon and decided nothing; its scenario is kept."""
    packed = gzip.compress(b'{"format": "gpufleet-scenario/1"}')
    return PlanRecord.objects.create(**({"at": NOON, "epoch": 1, "phases": {"snapshot": 8, "plan": 120.5}, "scenario": packed} | fields))


def webhook(on: QuotaNode | None = None, **fields: Any) -> Webhook:
    """Told of everything that fails below a node."""
    made = Webhook(
        **(
            {"public_id": public_id("w"), "name": "Chat", "url": "https://hooks.example.org/x", "kinds": ["job.failed"], "author_name": "Test"}
            | {"node": on or quota(), "salt": "salt", "created_at": NOON}
            | fields
        )
    )
    made.fingerprint = fingerprint_of(secret_of(made))
    made.save()
    return made


def delivery(to: Webhook, **fields: Any) -> Delivery:
    """Delivered at noon."""
    defaults: dict[str, Any] = {"public_id": f"dl-{next(_numbers)}", "event": "e-1", "kind": "job.failed", "body": '{"kind": "job.failed"}'}
    defaults |= {"state": DeliveryState.DELIVERED, "made_at": NOON, "due_at": NOON, "done_at": NOON, "attempts": 1, "status": 200, "duration_ms": 12}
    return Delivery.objects.create(hook=to, **(defaults | fields))


def rate(gpu_type: str, *, since: datetime, micros: int) -> None:
    """What a GPU hour costs from a moment on. Cards are made anew from all that was said so (their notes), each until the next begins."""
    said = {(kind, card.valid_from): price for card in RateCard.objects.all() for kind, price in json.loads(card.note)} | {(gpu_type, since): micros}
    RateCard.objects.all().delete()
    moments = sorted({at for _, at in said})
    for at, until in zip(moments, [*moments[1:], None], strict=True):
        own = [(kind, price) for (kind, moment), price in said.items() if moment == at]
        facts = {"public_id": public_id("rc"), "name": "Rates", "currency": "USD", "author_name": "Test", "note": json.dumps(own)}
        card = RateCard.objects.create(valid_from=at, valid_to=until, state=CardState.ACTIVE, **facts)
        prices = {kind: price for (kind, moment), price in sorted(said.items(), key=lambda one: one[0][1]) if moment <= at}
        RateLine.objects.bulk_create(RateLine(card=card, gpu_type=kind, list_micros=price, contracted_micros=price) for kind, price in prices.items())
