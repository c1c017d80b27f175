"""Fills an empty database with the demo fleet, its company and its past, in one transaction."""

import random
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.db import transaction

from gpufleet.core.audit import SYSTEM, audit_record
from gpufleet.core.ids import public_ids
from gpufleet.core.models import Installation, Progress, User
from gpufleet.demo import fleet, organisation
from gpufleet.demo.ailing import ailing_seed
from gpufleet.demo.charged import charged_seed, months_seed
from gpufleet.demo.energy import energy_seed
from gpufleet.demo.links import links_seed
from gpufleet.demo.loading import DRIVER, hardware_now
from gpufleet.demo.past.history import history_write, past_begin
from gpufleet.demo.planned import budgets_seed, changes_seed, power_seed, reservations_seed
from gpufleet.demo.recurring import schedules_seed
from gpufleet.demo.speeds import speeds_seed
from gpufleet.demo.sweeping import sweep_seed
from gpufleet.demo.templates import phases_seed, templates_seed
from gpufleet.demo.wasting import wasting_seed
from quotas.models import CardState, NodeKind, QuotaNode, QuotaShare, RateCard, RateClass, RateLine, Role, RoleBinding
from quotas.permissions import access_for_user
from scheduler.models import Cluster, Domain, Gpu, GpuMode, GpuType, InventoryEvent, MigInstance, Nic, Node, Pool, TopologyLevel

BATCH = 500


class DatabaseNotEmpty(Exception):
    """There is already something in the database; the demo never mixes with real rows."""


@dataclass(frozen=True, slots=True)
class Seeded:
    nodes: int
    gpus: int
    people: int
    jobs: int


def demo_seed(*, size: str, seed: int, now: datetime, hours: float | None = None) -> Seeded:
    """Write the whole demo or nothing. The same size, seed and moment give the same rows. `hours`: another length of the past; 0 for none at all."""
    plan = fleet.PLANS[size]
    with transaction.atomic():
        if Cluster.objects.exists() or QuotaNode.objects.exists() or User.objects.exists():
            raise DatabaseNotEmpty("The database already holds clusters, quotas or people. The demo is only put into an empty one.")
        rng = random.Random(f"{seed} hardware")  # noqa: S311 - nothing here is a secret
        nodes = _hardware(plan, rng=rng, now=now)
        tree = _tree(nodes, now=now)
        people = _people(tree, now=now)
        _cards(now=now)
        by_name = {person.username: person for person in people}
        templates_seed(people=by_name, now=now)
        hardware = hardware_now(plan=plan)
        span = plan.history_hours if hours is None else hours
        jobs = history_write(hardware=hardware, seed=seed, now=now, hours=span, pace=timedelta(seconds=plan.pace_seconds))
        phases_seed(now=now)
        sweep_seed()
        wasting_seed(seed=seed, now=now)
        ailing_seed(seed=seed, now=now)
        links_seed(hardware, seed=seed, now=now)
        schedules_seed(people=by_name, now=now)
        speeds_seed(people=by_name, now=now)
        reservations_seed(people=by_name, now=now)
        power_seed(people=by_name, now=now)
        energy_seed(people=by_name, now=now)
        changes_seed(people=by_name, now=now)
        members = {path: [username for username, _ in team] for path, team in organisation.MEMBERS.items()}
        cluster = Cluster.objects.order_by("id").values_list("name", flat=True)[0]
        charged_seed(people=members, cluster=cluster, seed=seed, until=past_begin(now, span), now=now)
        budgets_seed(people=by_name, now=now)
        months_seed(access=access_for_user(by_name["fay"], via="system"), now=now)
        Progress.objects.create(name=DRIVER, reached_at=now)
        Installation.objects.update_or_create(id=1, defaults={"installed_at": now, "demo": size, "demo_seed": seed})
        audit_record(actor=SYSTEM, action="demo.seed", kind="installation", object_id="1", after={"demo": size, "seed": seed})
    return Seeded(nodes=len(nodes), gpus=len(nodes) * fleet.GPUS_PER_NODE, people=len(people), jobs=jobs)


def _hardware(plan: fleet.Plan, *, rng: random.Random, now: datetime) -> list[Node]:
    bought = now - timedelta(days=210)
    types = {name: GpuType(name=name, board=facts.board, memory_mib=facts.memory_mib, hbm_gbps=facts.hbm_gbps) for name, facts in fleet.TYPES.items()}
    GpuType.objects.bulk_create(types.values())
    planned = list(fleet.planned_nodes(plan))
    names = list(dict.fromkeys(node.cluster for node in planned))
    clusters = {
        name: Cluster(public_id=public_id, name=name, title=fleet.CLUSTER_TITLES[name], created_at=bought)
        for name, public_id in zip(names, public_ids("c", len(names)), strict=True)
    }
    Cluster.objects.bulk_create(clusters.values())
    places = list(dict.fromkeys((node.cluster, node.pool) for node in planned))
    pools = {
        place: Pool(public_id=public_id, cluster=clusters[place[0]], name=place[1])
        for place, public_id in zip(places, public_ids("p", len(places)), strict=True)
    }
    Pool.objects.bulk_create(pools.values())
    leaves = _domains(planned, clusters)
    nodes = []
    for number, (spot, public_id) in enumerate(zip(planned, public_ids("n", len(planned)), strict=True)):
        facts = fleet.TYPES[spot.gpu_type]
        nodes.append(
            Node(
                public_id=public_id,
                cluster=clusters[spot.cluster],
                pool=pools[spot.cluster, spot.pool],
                domain=leaves[spot.cluster, spot.spine, spot.leaf],
                name=spot.name,
                gpu_type=types[spot.gpu_type],
                island=spot.island,
                cpus=facts.cpus,
                host_memory_mib=facts.host_memory_mib,
                pcie_gbps=63 if facts.pcie_generation == 5 else 31,
                nvme_gbps=13,
                labels={"rack": f"{spot.cluster[0]}{spot.spine.removeprefix('spine-')}-{spot.leaf.removeprefix('leaf-')}"},
                spare=spot.spare,
                health_since=bought + timedelta(minutes=7 * number),
                heartbeat_at=now,
                created_at=bought + timedelta(minutes=7 * number),
            )
        )
    Node.objects.bulk_create(nodes, batch_size=BATCH)
    gpus = _gpus(planned, nodes, types, rng=rng)
    _slices(planned, gpus, rng=rng)
    _ports(planned, nodes)
    InventoryEvent.objects.bulk_create(
        [
            InventoryEvent(
                at=node.created_at, node=node, cluster=node.cluster, kind="added", after={"name": node.name}, cause="import", actor_name="gpufleet"
            )
            for node in nodes
        ],
        batch_size=BATCH,
    )
    return nodes


def _domains(planned: Iterable[fleet.PlannedNode], clusters: dict[str, Cluster]) -> dict[tuple[str, str, str], Domain]:
    """Spines and leaves of every cluster. A leaf is a rail group: GPU i of its nodes hangs on its rail switch i."""
    spine_level, leaf_level = {}, {}
    for name, cluster in clusters.items():
        spine_level[name] = TopologyLevel(cluster=cluster, depth=0, name="spine", bandwidth_gbps=1_600, oversubscription_centi=200)
        leaf_level[name] = TopologyLevel(cluster=cluster, depth=1, name="leaf", bandwidth_gbps=3_200, is_rail_level=True)
    TopologyLevel.objects.bulk_create([*spine_level.values(), *leaf_level.values()])
    places = list(dict.fromkeys((node.cluster, node.spine, node.leaf) for node in planned))
    roots = list(dict.fromkeys(place[:2] for place in places))
    spines = {
        root: Domain(public_id=public_id, cluster=clusters[root[0]], level=spine_level[root[0]], name=root[1], path=root[1])
        for root, public_id in zip(roots, public_ids("d", len(roots)), strict=True)
    }
    Domain.objects.bulk_create(spines.values())
    leaves = {
        place: Domain(
            public_id=public_id,
            cluster=clusters[place[0]],
            level=leaf_level[place[0]],
            parent=spines[place[:2]],
            name=place[2],
            path=f"{place[1]}/{place[2]}",
        )
        for place, public_id in zip(places, public_ids("d", len(places)), strict=True)
    }
    Domain.objects.bulk_create(leaves.values(), batch_size=BATCH)
    return leaves


def _gpus(planned: list[fleet.PlannedNode], nodes: list[Node], types: dict[str, GpuType], *, rng: random.Random) -> list[Gpu]:
    numbers = iter(public_ids("g", len(nodes) * fleet.GPUS_PER_NODE))
    gpus = [
        Gpu(
            public_id=next(numbers),
            node=node,
            index=index,
            gpu_type=types[spot.gpu_type],
            uuid=fleet.gpu_uuid(rng),
            memory_mib=fleet.TYPES[spot.gpu_type].memory_mib,
            mode=GpuMode.MIG if spot.sliced else GpuMode.WHOLE,
            # These cards have no NVLink switch: two neighbours share a bridge.
            island=f"pair-{index // 2}" if spot.gpu_type == fleet.L40S else "",
            numa_node=index * 2 // fleet.GPUS_PER_NODE,
            pcie_generation=fleet.TYPES[spot.gpu_type].pcie_generation,
            pcie_width=16,
            health_since=node.health_since,
            created_at=node.created_at,
        )
        for spot, node in zip(planned, nodes, strict=True)
        for index in range(fleet.GPUS_PER_NODE)
    ]
    return Gpu.objects.bulk_create(gpus, batch_size=BATCH)


def _slices(planned: list[fleet.PlannedNode], gpus: list[Gpu], *, rng: random.Random) -> None:
    cut = [(spot, gpu) for spot, group in zip(planned, _per_node(gpus), strict=True) if spot.sliced for gpu in group]
    wanted = [(gpu, instance) for number, (_, gpu) in enumerate(cut) for instance in fleet.LAYOUTS[number % len(fleet.LAYOUTS)]]
    profiles = {profile.name: profile for profile in fleet.SLICED_BOARD.profiles}
    MigInstance.objects.bulk_create(
        [
            MigInstance(
                public_id=public_id,
                gpu=gpu,
                profile=instance.profile,
                start=instance.start,
                size=profiles[instance.profile].memory,
                uuid=fleet.gpu_uuid(rng, "MIG"),
                created_at=gpu.created_at,
            )
            for (gpu, instance), public_id in zip(wanted, public_ids("m", len(wanted)), strict=True)
        ],
        batch_size=BATCH,
    )


def _per_node(gpus: list[Gpu]) -> list[list[Gpu]]:
    return [gpus[first : first + fleet.GPUS_PER_NODE] for first in range(0, len(gpus), fleet.GPUS_PER_NODE)]


def _ports(planned: list[fleet.PlannedNode], nodes: list[Node]) -> None:
    facts = [fleet.TYPES[spot.gpu_type] for spot in planned]
    wanted = [(node, number, kind) for node, kind in zip(nodes, facts, strict=True) for number in range(kind.nics)]
    Nic.objects.bulk_create(
        [
            Nic(
                public_id=public_id,
                node=node,
                name=f"mlx5_{number}",
                rail=number if kind.nics == fleet.GPUS_PER_NODE else None,
                speed_gbps=kind.nic_gbps,
            )
            for (node, number, kind), public_id in zip(wanted, public_ids("nic", len(wanted)), strict=True)
        ],
        batch_size=BATCH,
    )


def _tree(nodes: list[Node], *, now: datetime) -> dict[str, QuotaNode]:
    """The tree with guarantees that add up: a child never gets more than its part of the parent's whole GPUs."""
    founded = now - timedelta(days=400)
    capacity = {name: sum(fleet.GPUS_PER_NODE for node in nodes if node.gpu_type_id == name and not node.spare) for name in fleet.TYPES}
    tree: dict[str, QuotaNode] = {}
    shares: list[QuotaShare] = []
    numbers = iter(public_ids("q", 1 + sum(1 + sum(1 + len(team.projects) for team in part.teams) for part in organisation.DEPARTMENTS)))

    def add(parent: QuotaNode | None, name: str, kind: str, title: str, **more: object) -> QuotaNode:
        path = f"{parent.path}/{name}" if parent else name
        node = QuotaNode(
            public_id=next(numbers),
            parent=parent,
            name=name,
            path=path,
            depth=parent.depth + 1 if parent else 0,
            kind=kind,
            title=title,
            created_at=founded,
            **more,
        )
        node.save(force_insert=True)
        tree[path] = node
        return node

    def share(node: QuotaNode, guaranteed: dict[str, int], limits: dict[str, int | None]) -> None:
        shares.extend(
            QuotaShare(
                node=node,
                gpu_type=gpu_type,
                guaranteed_milli=gpus * 1000,
                limit_milli=None if (limit := limits[gpu_type]) is None else limit * 1000,
            )
            for gpu_type, gpus in guaranteed.items()
        )

    unlimited: dict[str, int | None] = dict.fromkeys(fleet.TYPES)
    org = add(None, organisation.ORG, NodeKind.ORG, organisation.ORG_TITLE)
    org_gpus = {name: gpus * 95 // 100 for name, gpus in capacity.items()}
    share(org, org_gpus, unlimited)
    for part in organisation.DEPARTMENTS:
        department = add(org, part.name, NodeKind.DEPARTMENT, part.title, cost_centre=part.cost_centre, weight=part.weight)
        part_gpus = {name: org_gpus[name] * part.parts[name] // 100 for name in org_gpus}
        share(department, part_gpus, unlimited)
        for number, group in enumerate(part.teams, 1):
            team = add(department, group.name, NodeKind.TEAM, group.title, weight=group.weight, cost_centre=f"{part.cost_centre}-{number}0")
            team_gpus = {name: part_gpus[name] * group.parts[name] // 100 for name in part_gpus}
            limits: dict[str, int | None] = {name: max(gpus * group.limit // 100, 8) for name, gpus in team_gpus.items()}
            share(team, team_gpus, limits)
            for name, title, percent in group.projects:
                project = add(team, name, NodeKind.PROJECT, title, cost_centre=f"{part.cost_centre}-{number}0")
                share(project, {key: gpus * percent // 100 for key, gpus in team_gpus.items()}, unlimited)
    QuotaShare.objects.bulk_create(shares, batch_size=BATCH)
    return tree


def _people(tree: dict[str, QuotaNode], *, now: datetime) -> list[User]:
    """The company's people. Only the guides can sign in, with the one password that the sign-in page of a demo shows."""
    wanted = organisation.people()
    known, nobody = make_password(organisation.PASSWORD), make_password(None)
    users = User.objects.bulk_create(
        [
            User(
                public_id=public_id,
                username=person.username,
                display_name=person.name,
                first_name=person.name.split(" ", 1)[0],
                last_name=person.name.split(" ", 1)[1],
                email=f"{person.username}@{organisation.MAIL_DOMAIN}",
                password=known if person.signs_in else nobody,
                is_superuser=person.role == Role.SUPERUSER,
                date_joined=now - timedelta(days=380 - 5 * number),
            )
            for number, (person, public_id) in enumerate(zip(wanted, public_ids("u", len(wanted)), strict=True))
        ]
    )
    RoleBinding.objects.bulk_create(
        [
            RoleBinding(user=user, role=person.role, node=tree[person.path], granted_at=user.date_joined, granted_by=users[0])
            for person, user in zip(wanted, users, strict=True)
        ]
    )
    return users


def _cards(*, now: datetime) -> None:
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    began = [today - timedelta(days=days) for days, _, _ in organisation.CARDS]
    for (_, name, prices), since, until, public in zip(organisation.CARDS, began, [*began[1:], None], public_ids("rc", len(began)), strict=True):
        card = RateCard.objects.create(
            public_id=public,
            name=name,
            currency=settings.CURRENCY,
            valid_from=since,
            valid_to=until,
            state=CardState.ACTIVE,
            author_name="Fay Nakamura",
            created_at=since,
            approved_name="Quentin Mercier",
            approved_at=since,
        )
        for share_class, discount in (("", 0), (RateClass.BORROWED, organisation.BORROWED_DISCOUNT)):
            RateLine.objects.bulk_create(
                RateLine(card=card, gpu_type=kind, share_class=share_class, list_micros=listed, contracted_micros=agreed, discount_ppm=discount)
                for kind, (listed, agreed) in prices.items()
            )
