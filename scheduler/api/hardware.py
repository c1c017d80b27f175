"""Clusters, nodes and GPUs over HTTP: read by everyone with a role, acted upon by operators."""

from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Annotated, Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import Query, Router

from dashboards.fragmentation.defragmenting import opening_told, split_opening
from dashboards.gpu_list import GPUS
from dashboards.readings import NOT_READ, Reading, network_now, readings_now
from dashboards.weak import DRIVER_UTILIZATION, SM_ACTIVITY
from gpufleet.core.etags import IF_MATCH, revision_wanted, stamped
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from gpufleet.web import Access, Can, access_of
from scheduler.api.hardware_schemas import (
    BoardsOut,
    BoundariesIn,
    BoundariesOut,
    ClusterOut,
    ClustersOut,
    DrainIn,
    DrainOut,
    DrainQuery,
    GeometryIn,
    GeometryOut,
    GeometryQuery,
    GiveUpIn,
    GiveUpOut,
    GpuOut,
    GpusOut,
    HealthCallOffQuery,
    HealthIn,
    HealthOut,
    HostOut,
    HostsOut,
    MomentsOut,
    NodeHealthIn,
    NodeHealthOut,
    OutsideOut,
    PlannedHealthsOut,
    RemovalIn,
    RemovalOut,
    SpareIn,
    SpareOut,
)
from scheduler.api.lists import answered, listed, moments, parameters_of
from scheduler.engine.model.mig import BOARDS, Instance
from scheduler.hardware.boundaries import boundaries_of
from scheduler.hardware.draining import Outcome, outcome_of
from scheduler.hardware.lists import CLUSTERS, NODES
from scheduler.models import Cluster, DrainWay, Gpu, Health, Node, PlannedHealth, SplitState
from scheduler.presenters.node_changes import health_preview
from scheduler.selectors.clusters import Branch, cluster_for, cluster_tree, clusters_listed
from scheduler.selectors.gpus import GpuRow, gpu_for, gpu_history, gpu_rows, gpu_split, gpus_listed
from scheduler.selectors.holders import Holder, gpu_holders, node_holders
from scheduler.selectors.nodes import (
    Guest,
    NodeRow,
    health_plans,
    hourly_micros,
    node_for,
    node_gpus,
    node_guests,
    node_history,
    node_rows,
    nodes_listed,
    plan_of,
)
from scheduler.selectors.outside import outside_jobs, outside_usage
from scheduler.services.hardware.draining import drain_checked, nodes_drain
from scheduler.services.hardware.geometry import geometry_of, geometry_revision, gpu_geometry_cancel, gpu_geometry_change, split_jobs, split_plan
from scheduler.services.hardware.giving_up import Left, cluster_give_up, held_unseen, jobs_left, why_not
from scheduler.services.hardware.hardware import gpu_health_change, health_checked, node_boundaries_state, node_health_change, node_spare_set
from scheduler.services.hardware.planned_health import drain_plan_checked, health_plan, health_plan_checked, health_plans_call_off
from scheduler.services.hardware.removing import cluster_leaves, cluster_remove, why_not_removed

router = Router(tags=["Hardware"])
OutsideQuery = Annotated[int, Query(ge=1, le=400, description="How many days back `usage` counts.")]


@router.get("/clusters", response=ClustersOut, url_name="clusters", openapi_extra=parameters_of(CLUSTERS), summary="Clusters")
def clusters(request: HttpRequest) -> HttpResponse:
    return listed(request, CLUSTERS, clusters_listed(access_of(request)), _cluster_row)


@router.get("/clusters/{name}", response=ClusterOut, url_name="cluster", summary="A cluster with its topology")
def cluster(request: HttpRequest, name: str) -> HttpResponse:
    """The tree of any depth, each branch with its bandwidth, its nodes and sums of what is free and taken."""
    tree = cluster_tree(cluster_for(access_of(request), name))
    levels = [
        {
            "name": level.name,
            "bandwidth_gbps": level.bandwidth_gbps,
            "oversubscription": level.oversubscription_centi / 100,
            "rails": level.is_rail_level,
        }
        for level in tree.levels
    ]
    return answered(
        _cluster_facts(tree.cluster)
        | {"levels": levels, "pools": [pool.name for pool in tree.pools], "topology": [_branch(branch) for branch in tree.branches]}
        | {"unplaced": [leaf.public_id for leaf in tree.unplaced], "nodes": tree.sums.nodes, "gpus": tree.sums.gpus, "free_gpus": tree.sums.free}
        | {"allocated_milli": tree.sums.taken_milli, "outside_gpus": tree.sums.outside, "removed_at": tree.cluster.removed_at}
    )


@router.get("/clusters/{name}/outside-jobs", response=OutsideOut, url_name="outside_jobs", summary="Jobs of a cluster that are not gpufleet's")
def cluster_outside(request: HttpRequest, name: str, days: OutsideQuery = 30) -> HttpResponse:
    """For operators. gpufleet never touches these jobs; what they hold is allocated, and no quota is charged for it."""
    access, end = access_of(request), now()
    found = cluster_for(access, name)
    start = end - timedelta(days=days)
    jobs = [
        {"number": row.number, "name": row.name, "person": row.person, "partition": row.partition}
        | {"gpus": row.gpus, "nodes": row.nodes, "since": row.since}
        for row in outside_jobs(access, found)
    ]
    usage = [
        {"person": one.person, "jobs": one.jobs, "gpu_hours": round(one.gpu_hours, 4)} for one in outside_usage(access, found, start=start, end=end)
    ]
    return answered({"items": jobs, "start": start, "end": end, "usage": usage})


@router.post("/clusters/{name}/give-up", response=GiveUpOut, url_name="cluster_give_up", summary="Give up the jobs of a cluster that is gone")
def cluster_give_up_write(request: HttpRequest, name: str, body: GiveUpIn, asked: Query[DrainQuery]) -> HttpResponse:
    """For a cluster that is gone for good: its jobs fail or are queued again, and their GPUs are free. 409 while it answers. It cannot be undone.
    Should the cluster come back, what still runs of them is ended. With `?dry_run=true` nothing is written."""
    access, moment = access_of(request), now()
    access.must_everywhere(Can.OPERATE)
    row = cluster_for(access, name)
    if fault := why_not(row):
        raise Conflict(fault)
    left = jobs_left(access=access, cluster=row, now=moment)
    unseen = held_unseen(access=access, cluster=row, left=left, now=moment)
    if not asked.dry_run:
        cluster_give_up(access=access, cluster=row, after=body.jobs, reason=body.reason, confirm=body.confirm, now=moment)
    return answered(
        {
            "silent_since": row.silent_since,
            "jobs": [_given_up(one, body.jobs) for one in left if one.guest.named],
            "others": sum(not one.guest.named for one in left),
            "requeued": sum(one.waits_again(body.jobs) for one in left),
            "uncharged_milli_seconds": unseen.milli_seconds,
            "uncharged_micros": unseen.micros,
        }
    )


@router.post("/clusters/{name}/remove", response=RemovalOut, url_name="cluster_remove", summary="Remove a cluster from the fleet")
def cluster_remove_write(request: HttpRequest, name: str, body: RemovalIn, asked: Query[DrainQuery]) -> HttpResponse:
    """Its nodes and GPUs are no capacity any more; its jobs, logs, history and costs stay readable. 409 while jobs run there or were promised its
    GPUs. A cluster of that name that is added again is the same one. With `?dry_run=true` nothing is written."""
    access = access_of(request)
    access.must_everywhere(Can.OPERATE)
    row = cluster_for(access, name)
    if fault := why_not_removed(row):
        raise Conflict(fault)
    if asked.dry_run:
        return answered(asdict(cluster_leaves(row)))
    return answered(asdict(cluster_remove(access=access, cluster=row, reason=body.reason, confirm=body.confirm, now=now())))


@router.get("/nodes", response=HostsOut, url_name="nodes", openapi_extra=parameters_of(NODES), summary="Nodes")
def nodes(request: HttpRequest) -> HttpResponse:
    return listed(request, NODES, nodes_listed(access_of(request)), _node_row, node_rows)


@router.post("/nodes/drain", response=DrainOut, url_name="nodes_drain", summary="Drain nodes")
def nodes_drain_write(request: HttpRequest, body: DrainIn, asked: Query[DrainQuery]) -> HttpResponse:
    """All of the nodes or none. They take no new jobs; those that run finish, or are moved or stopped at once or at a stated time. A node that drains
    already is given the new way and time. With `begins` they drain from then on; what was planned for them before is given up. With
    `?dry_run=true` nothing is written."""
    access, moment = access_of(request), now()
    access.must_everywhere(Can.OPERATE)
    if body.begins is not None:
        drain_plan_checked(begins_at=body.begins, way=body.jobs, at=body.at, now=moment)
    else:
        drain_checked(way=body.jobs, at=body.at, now=moment)
    at = body.at.astimezone(UTC) if body.at is not None else None
    leave = at or (body.begins.astimezone(UTC) if body.begins is not None else None)
    nodes = [node_for(access, name) for name in dict.fromkeys(body.nodes)]
    guests = node_guests(access, *nodes, now=moment)
    done = None
    if not asked.dry_run and body.begins is not None:
        health_plan(access=access, nodes=nodes, to=Health.DRAINING, begins_at=body.begins, way=body.jobs, at=at, reason=body.reason, now=moment)
    elif not asked.dry_run:
        done = nodes_drain(access=access, nodes=nodes, way=body.jobs, at=at, reason=body.reason, now=moment)
    return answered(
        {
            "nodes": [{"id": one.public_id, "name": one.name, "health": one.health} for one in (done.nodes if done else nodes)],
            "jobs": [_guest(one, outcome_of(one.run, body.jobs, leave, moment)) for one in guests if one.named],
            "others": sum(not one.named for one in guests),
            "asked": done.asked if done else 0,
            "told": done.told if done else 0,
        }
    )


@router.get("/nodes/planned-health", response=PlannedHealthsOut, url_name="planned_healths", summary="Planned changes of nodes")
def planned_health(request: HttpRequest) -> HttpResponse:
    found, more = health_plans(access_of(request))
    of = [{"node": plan.node.public_id, "node_name": plan.node.name, "cluster": plan.node.cluster.name, "made_at": plan.made_at} for plan in found]
    return answered({"items": [_plan_facts(plan) | node for plan, node in zip(found, of, strict=True)], "more": more})


@router.delete("/nodes/{public_id}/planned-health", response=HostOut, url_name="planned_health", summary="Call a planned change of a node off")
def planned_health_delete(request: HttpRequest, public_id: str, asked: Query[HealthCallOffQuery]) -> HttpResponse:
    """Its health stays as it is. 404 where nothing is planned, or not the `plan` that is named."""
    access = access_of(request)
    found = node_for(access, public_id)
    access.must_everywhere(Can.OPERATE)
    plan = plan_of(found)
    if plan is None or asked.plan not in ("", plan.public_id):
        raise Http404(f"No change of {found.name} is planned." if plan is None else f"Another change of {found.name} is planned: {plan.public_id}.")
    health_plans_call_off(access=access, plans=[plan.public_id], reason=asked.reason or "Called off.", now=now())
    return answered(_node_detail(node_for(access, public_id), node_holders(access, found.pk)))


@router.get("/nodes/{public_id}", response=HostOut, url_name="node", summary="A node with its GPUs, ports and jobs")
def node(request: HttpRequest, public_id: str) -> HttpResponse:
    """Who holds a GPU is named where the caller may see; elsewhere `job` is null and `held` still true."""
    access = access_of(request)
    found = node_for(access, public_id)
    return answered(_node_detail(found, node_holders(access, found.pk)))


@router.get("/nodes/{public_id}/history", response=MomentsOut, url_name="node_history", summary="What happened to a node and its GPUs")
def node_events(request: HttpRequest, public_id: str) -> HttpResponse:
    return moments(node_history(node_for(access_of(request), public_id)))


@router.post("/nodes/{public_id}/health", response=NodeHealthOut, url_name="node_health", summary="Take a node to another health")
def node_health(request: HttpRequest, public_id: str, body: NodeHealthIn, asked: Query[DrainQuery]) -> HttpResponse:
    """With `begins` it is planned, in place of what was planned for the node before: the answer then has its present health. A planned drain lets
    running jobs finish; `POST /nodes/drain` moves or stops them. With `?dry_run=true` nothing is written: the answer has the present health, and
    `told` says what it would do."""
    access, moment = access_of(request), now()
    found = node_for(access, public_id)
    step: dict[str, Any] = {"to": body.to, "reason": body.reason, "seen": body.seen}
    if asked.dry_run:
        access.must_everywhere(Can.OPERATE)
        if body.begins is not None:
            health_plan_checked(node=found, begins_at=body.begins, now=moment, **step)
        else:
            health_checked(node=found, **step)
        return answered(_health(found) | {"planned": None, "told": _health_told(access, found, body, moment)})
    if body.begins is not None:
        (plan,) = health_plan(access=access, nodes=[found], begins_at=body.begins, now=moment, **step)
        return answered(_health(plan.node) | {"planned": _plan_facts(plan), "told": []})
    return answered(_health(node_health_change(access=access, node=found, now=moment, **step)) | {"planned": None, "told": []})


def _health_told(access: Access, node: Node, body: NodeHealthIn, moment: datetime) -> list[str]:
    gpus, plan = node_gpus(node), plan_of(node)
    found: dict[str, Any] = {"gpus": len(gpus), "hourly": hourly_micros(access, gpus, now=moment), "plans": [plan] if plan is not None else []}
    begins = body.begins.astimezone(UTC) if body.begins is not None else None
    return list(health_preview(node.name, node.health, body.to, node_guests(access, node, now=moment), begins=begins, **found).sentences)


@router.post("/nodes/{public_id}/spare", response=SpareOut, url_name="node_spare", summary="Keep a node as a spare, or give it back")
def node_spare(request: HttpRequest, public_id: str, body: SpareIn) -> HttpResponse:
    access = access_of(request)
    changed = node_spare_set(access=access, node=node_for(access, public_id), spare=body.spare, reason=body.reason, now=now())
    return answered({"id": changed.public_id, "spare": changed.spare})


@router.put("/nodes/{public_id}/boundaries", response=BoundariesOut, url_name="node_boundaries", summary="State what a node enforces between jobs")
def node_boundaries(request: HttpRequest, public_id: str, body: BoundariesIn) -> HttpResponse:
    """All that an operator vouches for; what is left out is stated no more. What the back-end or Slurm vouches for stays."""
    access = access_of(request)
    found = node_for(access, public_id)
    changed = node_boundaries_state(access=access, node=found, boundaries=body.boundaries, reason=body.reason, now=now())
    return answered({"id": changed.public_id, "boundaries": _boundaries(changed)})


@router.get("/gpus", response=GpusOut, url_name="gpus", openapi_extra=parameters_of(GPUS), summary="GPUs")
def gpus(request: HttpRequest) -> HttpResponse:
    access = access_of(request)
    read = cache(partial(readings_now, now=now()))
    return listed(request, GPUS, gpus_listed(access), lambda row: _gpu_row(row, read()), partial(gpu_rows, access))


@router.get("/gpus/{public_id}", response=GpuOut, url_name="gpu", summary="A GPU with its instances and jobs")
def gpu(request: HttpRequest, public_id: str) -> HttpResponse:
    """Its `ETag` stands for how it is split: sent as `If-Match` with a new geometry, it is done only if that has not changed (412 otherwise)."""
    access = access_of(request)
    found = gpu_for(access, public_id)
    read = {} if found.removed_at or found.node.removed_at else readings_now(now=now())
    row = _gpu_row(GpuRow(found, gpu_holders(access, [found.pk]).get(found.pk, [])), read)
    return _stamped(answered(row | {"instances": _instances(found), "repartition": _repartition(found)}), found)


@router.get("/gpus/{public_id}/history", response=MomentsOut, url_name="gpu_history", summary="What happened to a GPU")
def gpu_events(request: HttpRequest, public_id: str) -> HttpResponse:
    return moments(gpu_history(gpu_for(access_of(request), public_id)))


@router.post("/gpus/{public_id}/health", response=HealthOut, url_name="gpu_health", summary="Take a GPU to another health")
def gpu_health(request: HttpRequest, public_id: str, body: HealthIn) -> HttpResponse:
    access = access_of(request)
    changed = gpu_health_change(access=access, gpu=gpu_for(access, public_id), to=body.to, reason=body.reason, seen=body.seen, now=now())
    return answered(_health(changed))


@router.put(
    "/gpus/{public_id}/geometry", response=GeometryOut, url_name="gpu_geometry", openapi_extra=IF_MATCH, summary="Split a GPU, or make it whole"
)
def gpu_geometry(request: HttpRequest, public_id: str, body: GeometryIn, asked: Query[GeometryQuery]) -> HttpResponse:
    """The whole layout as it should be. The GPU takes no new jobs, those in instances that go may end, and then its back-end is told: the inventory
    changes once that has confirmed it, and `repartition` says how far it is. Instances that stay keep what runs in them. With `?dry_run=true` nothing
    is written. With `If-Match` only if it is split as it was read."""
    access = access_of(request)
    layout = None if body.mode == "whole" else [Instance(part.start, part.profile) for part in body.instances]
    seen = None if body.seen is None else [Instance(part.start, part.profile) for part in body.seen]
    revision, found = revision_wanted(request), gpu_for(access, public_id)
    if asked.dry_run:
        access.must_everywhere(Can.OPERATE)
        plan = split_plan(gpu=found, layout=layout)
        wanted = [{"profile": one.profile, "start": one.start} for one in plan.wanted]
        told: dict[str, Any] = {
            "state": "preview",
            "mode": plan.mode.value,
            "instances": wanted,
            "since": None,
            "by": access.actor.name,
            "fault": "",
            "reason": body.reason,
        }
        opens = split_opening(access=access, gpu=found, split=plan, now=now())
        told |= {"jobs_ahead": len(plan.jobs), "opening": opening_told(opens, waits=plan.waits)}
        return _stamped(answered(_geometry(found, told)), found)
    gpu_geometry_change(access=access, gpu=found, layout=layout, seen=seen, revision=revision, reason=body.reason, now=now())
    changed = gpu_for(access, public_id)
    return _stamped(answered(_geometry(changed, _repartition(changed))), changed)


@router.delete("/gpus/{public_id}/geometry", response=GeometryOut, url_name="gpu_geometry_cancel", summary="Cancel a repartition")
def gpu_geometry_delete(request: HttpRequest, public_id: str) -> HttpResponse:
    """One that still waits for jobs to end: the GPU goes back to work as it is split now."""
    access = access_of(request)
    gpu_geometry_cancel(access=access, gpu=gpu_for(access, public_id), now=now())
    changed = gpu_for(access, public_id)
    return _stamped(answered(_geometry(changed, _repartition(changed))), changed)


@router.get("/mig/boards", response=BoardsOut, url_name="mig_boards", summary="What each board can be split into")
def mig_boards(request: HttpRequest) -> HttpResponse:
    access_of(request).must_somewhere(Can.SEE)
    items = [
        {
            "name": board.name,
            "memory_slices": board.memory_slices,
            "compute_slices": board.compute_slices,
            "sms": board.sms,
            "profiles": [
                {
                    "name": profile.name,
                    "compute": profile.compute,
                    "memory": profile.memory,
                    "starts": profile.starts,
                    "most": profile.most,
                    "usable_mib": profile.usable_mib,
                    "charge_milli": board.charge_milli(profile),
                    "sms": profile.sms,
                    "inferred": profile.inferred,
                }
                for profile in board.profiles
            ],
        }
        for board in BOARDS.values()
    ]
    return answered({"items": items})


def _cluster_facts(row: Cluster) -> dict[str, Any]:
    return {"id": row.public_id, "name": row.name, "title": row.title, "backend": row.backend}


def _cluster_row(row: Any) -> dict[str, Any]:
    return _cluster_facts(row) | {
        "nodes": row.node_count,
        "nodes_out_of_service": row.nodes_out,
        "gpus": row.gpu_count,
        "allocated_milli": row.taken_milli,
    }


def _branch(branch: Branch) -> dict[str, Any]:
    return {
        "name": branch.name,
        "path": branch.path,
        "level": branch.level,
        "bandwidth_gbps": branch.bandwidth_gbps,
        "oversubscription": branch.oversubscription_centi / 100,
        "rails": branch.rails if branch.is_rail_level else None,
        "nodes": branch.sums.nodes,
        "nodes_out_of_service": branch.sums.nodes_out,
        "gpus": branch.sums.gpus,
        "free_gpus": branch.sums.free,
        "allocated_milli": branch.sums.taken_milli,
        "node_ids": [leaf.public_id for leaf in branch.leaves],
        "domains": [_branch(inner) for inner in branch.branches],
    }


def _guest(one: Guest, outcome: Outcome) -> dict[str, Any]:
    facts = {"id": one.job.public_id, "name": one.job.name, "quota": one.job.quota.path, "gpus_milli": one.milli, "ends_at": one.ends_at}
    return facts | {"fate": outcome.fate, "leaves_at": outcome.at, "lost_seconds": outcome.lost_seconds}


def _given_up(one: Left, after: str) -> dict[str, Any]:
    job = one.guest.job
    facts = {"id": job.public_id, "name": job.name, "quota": job.quota.path, "gpus_milli": one.guest.milli}
    return facts | {"fits": one.fits, "requeued": one.waits_again(after)}


def _boundaries(row: Node) -> dict[str, str]:
    return {name: voucher.value for name, voucher in boundaries_of(row.labels, row.cluster.backend).items()}


def _node_facts(row: Node) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "name": row.name,
        "cluster": row.cluster.name,
        "pool": row.pool.name if row.pool else None,
        "path": row.domain.path if row.domain else None,
        "gpu_type": row.gpu_type_id,
        "island": row.island or None,
        "spare": row.spare,
        "health": row.health,
        "health_since": row.health_since,
        "health_reason": row.health_reason,
        "drain": {"jobs": row.drain_way or DrainWay.FINISH, "at": row.drain_at} if row.health == Health.DRAINING else None,
        "heartbeat_at": row.heartbeat_at,
        "cpus": row.cpus,
        "host_memory_mib": row.host_memory_mib,
        "labels": row.labels,
        "boundaries": _boundaries(row),
    }


def _node_row(row: NodeRow) -> dict[str, Any]:
    return _node_facts(row.node) | {"gpus": row.gpus, "sick_gpus": row.sick_gpus, "allocated_milli": row.taken_milli}


def _node_detail(found: Node, holders: list[Holder]) -> dict[str, Any]:
    held: dict[int | None, list[Holder]] = {}
    for holder in holders:
        held.setdefault(holder.gpu_id, []).append(holder)
    slow = network_now(found, now=now()).slow
    nics = [
        {name: getattr(nic, name) for name in ("name", "rail", "speed_gbps", "health")} | {"id": nic.public_id, "slow_gbps": slow.get(nic.name)}
        for nic in found.nics.order_by("name")
    ]
    gpus = [
        _gpu_facts(gpu) | {"instances": _instances(gpu), "held_by": [_holder(holder) for holder in held.get(gpu.pk, [])]} for gpu in node_gpus(found)
    ]
    more = {name: getattr(found, name) for name in ("pcie_gbps", "pcie_lost", "nvme_gbps", "removed_at")} | {"planned_health": _planned(found)}
    return _node_facts(found) | more | {"nics": nics, "gpus": gpus}


def _planned(node: Node) -> dict[str, Any] | None:
    plan = plan_of(node)
    return _plan_facts(plan) if plan is not None else None


def _health(row: Node | Gpu) -> dict[str, Any]:
    return {"id": row.public_id, "health": row.health, "since": row.health_since, "reason": row.health_reason}


def _plan_facts(plan: PlannedHealth) -> dict[str, Any]:
    drain = {"jobs": plan.way or None, "at": plan.at}
    return {"id": plan.public_id, "to": plan.to, "begins": plan.begins_at, **drain, "reason": plan.reason, "author": plan.author_name}


def _gpu_facts(row: Gpu) -> dict[str, Any]:
    return {
        "id": row.public_id,
        "index": row.index,
        "uuid": row.uuid or None,
        "type": row.gpu_type_id,
        "memory_mib": row.memory_mib,
        "mode": row.mode,
        "health": row.health,
        "health_since": row.health_since,
        "island": row.island or None,
        "numa_node": row.numa_node,
        "pcie_generation": row.pcie_generation,
        "pcie_width": row.pcie_width,
    }


def _gpu_row(row: GpuRow, read: Mapping[int, Reading]) -> dict[str, Any]:
    place = {"node": row.gpu.node.public_id, "node_name": row.gpu.node.name, "cluster": row.gpu.node.cluster.name}
    return (
        _gpu_facts(row.gpu)
        | place
        | {
            "allocated_milli": row.taken_milli,
            "held_by": [_holder(holder) for holder in row.holders],
            "reading": _reading(read.get(row.gpu.pk, NOT_READ)),
        }
    )


def _reading(one: Reading) -> dict[str, Any] | None:
    if one == NOT_READ:
        return None
    return {
        "at": one.at,
        "utilization_percent": one.sm,
        "signal": DRIVER_UTILIZATION if one.is_weak else SM_ACTIVITY,
        "tensor_percent": one.tensor,
        "dram_percent": one.dram,
        "memory_percent": one.memory,
        "power_watts": one.watts,
        "temperature_c": one.celsius,
    }


def _geometry(row: Gpu, repartition: dict[str, Any] | None) -> dict[str, Any]:
    return {"id": row.public_id, "mode": row.mode, "instances": _instances(row), "repartition": repartition}


def _repartition(row: Gpu) -> dict[str, Any] | None:
    split = gpu_split(row)
    if split is None:
        return None
    waiting = split.state == SplitState.DRAINING
    return {
        "state": split.state,
        "mode": split.mode,
        "instances": [{"profile": profile, "start": start} for profile, start in split.instances],
        "since": split.asked_at,
        "by": split.asked_by_name,
        "reason": split.reason,
        "jobs_ahead": len(split_jobs(split)) if waiting else 0,
        "fault": split.fault or (split.order.fault if split.order is not None else ""),
        "opening": [],
    }


def _stamped(answer: HttpResponse, found: Gpu) -> HttpResponse:
    return stamped(answer, geometry_revision(found.mode, geometry_of(found.instances)))  # type: ignore[attr-defined]


def _instances(row: Any) -> list[dict[str, Any]]:
    return [
        {"id": part.public_id, "profile": part.profile, "start": part.start, "size": part.size, "uuid": part.uuid or None} for part in row.instances
    ]


def _holder(holder: Holder) -> dict[str, Any]:
    job = {"id": holder.job_id, "name": holder.job_name, "quota": holder.quota} if holder.named else None
    return {"gpu_milli": holder.gpu_milli, "since": holder.since, "job": job, "outside": bool(holder.outside)}
