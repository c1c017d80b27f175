"""The fleets that `gpufleet bench loop` measures on, put into a database through the services that fill a real one.

Runs inside a console's own process (`manage.py shell`): what it prints is one line of JSON.
"""

import json
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.db import connection

from gpufleet.core.ids import public_id, public_ids
from gpufleet.core.models import Change, User
from gpufleet.core.times import now
from quotas.models import NodeKind, QuotaNode, QuotaShare
from quotas.permissions import access_for_user
from quotas.services.tokens import token_create
from scheduler.backends.registry import backends_all
from scheduler.models import (
    HOLDING,
    Attempt,
    Cluster,
    Domain,
    DrainWay,
    Gpu,
    GpuType,
    Job,
    JobEvent,
    JobState,
    Node,
    Order,
    OrderKind,
    PlanRecord,
    TopologyLevel,
)
from scheduler.services.hardware.draining import MOST_NODES, nodes_drain
from scheduler.services.jobs.jobs import job_stop
from scheduler.services.jobs.submission import submission_create, submissions_create
from scheduler.services.loop.tick import Memory, collect_meanwhile, collect_seldom, tick_run

FULL, FREE = "H100-SXM-80GB", "A100-SXM-80GB"
TEAMS = 10
NODES, FREE_NODES, GPUS = 500, 20, 8
RUNNING, QUEUED = 1_000, 5_000
LONG_S = 30 * 86_400
CHUNK = 500


def say(value: Any) -> None:
    print(json.dumps(value), flush=True)


def team_of(number: int) -> str:
    return f"org/team-{number % TEAMS}"


def hardware(*, nodes: int, free_nodes: int) -> None:
    """`nodes` with 8 GPUs below leaves of sixteen, the last `free_nodes` of them of a type that the queue does not accept."""
    cluster = Cluster.objects.create(public_id=public_id("c"), name="bench", backend="simulated")
    spine, leaf = (TopologyLevel.objects.create(cluster=cluster, depth=depth, name=name) for depth, name in enumerate(("spine", "leaf")))
    types = {name: GpuType.objects.create(name=name, board="", memory_mib=81_559) for name in (FULL, FREE)}
    places: list[Domain] = []
    for number in range(-(-nodes // 16)):
        above = Domain.objects.get_or_create(
            cluster=cluster, path=f"s{number // 8}", defaults={"public_id": public_id("d"), "level": spine, "name": f"s{number // 8}"}
        )[0]
        places.append(
            Domain.objects.create(
                public_id=public_id("d"), cluster=cluster, level=leaf, parent=above, name=f"l{number}", path=f"{above.path}/l{number}"
            )
        )
    made = Node.objects.bulk_create(
        Node(
            public_id=name,
            cluster=cluster,
            domain=places[number // 16],
            name=f"n{number:04}",
            gpu_type=types[FREE if number >= nodes - free_nodes else FULL],
            cpus=192,
            host_memory_mib=2_097_152,
        )
        for number, name in enumerate(public_ids("n", nodes))
    )
    names = iter(public_ids("g", nodes * GPUS))
    Gpu.objects.bulk_create(
        (Gpu(public_id=next(names), node=node, index=index, gpu_type=node.gpu_type, memory_mib=81_559) for node in made for index in range(GPUS)),
        batch_size=1000,
    )


def tree(paths: Sequence[str], guaranteed: int, limit: int | None = None, free: int = 0) -> None:
    """The quotas of `paths` and what lies above them; each leaf is promised so many GPUs of the full type."""
    known: dict[str, QuotaNode] = {}
    for path in paths:
        parent: QuotaNode | None = None
        steps = path.split("/")
        for depth in range(len(steps)):
            here = "/".join(steps[: depth + 1])
            kind = (NodeKind.ORG, NodeKind.DEPARTMENT, NodeKind.TEAM)[min(depth, 2)]
            fields = {"parent": parent, "name": steps[depth], "path": here, "depth": depth, "kind": kind}
            known[here] = known.get(here) or QuotaNode.objects.create(public_id=public_id("q"), **fields)
            parent = known[here]
    for path, node in known.items():
        below = sum(leaf == path or leaf.startswith(f"{path}/") for leaf in paths)
        for gpu_type, number in ((FULL, guaranteed), (FREE, free)):
            QuotaShare.objects.create(
                node=node,
                gpu_type=gpu_type,
                guaranteed_milli=1000 * number * below,
                limit_milli=None if limit is None or path not in paths else 1000 * limit,
            )


def person(tokens: int = 1) -> list[str]:
    """The superuser `root`, and the secrets of tokens that may read, submit and operate."""
    root = User.objects.create_superuser("root", "root@example.org", "gpufleet-demo")
    moment = now()
    return [
        token_create(
            access=access_for_user(root),
            owner=root,
            name=f"bench {number}",
            scopes=["read", "submit", "operate"],
            node=None,
            expires_at=moment + timedelta(days=1),
            now=moment,
        ).secret
        for number in range(tokens)
    ]


def wish(number: int, **fields: Any) -> dict[str, Any]:
    return {
        "name": f"bench-{number}",
        "quota": team_of(number),
        "gpus": 4,
        "gpu_types": [FULL],
        "work_s": LONG_S,
        "grace_s": 5,
        "checkpoint": {"interval_s": 600, "save_s": 1, "restore_s": 1},
        **fields,
    }


def steady(tokens: int = 1) -> None:
    """500 nodes, 1,000 jobs that run within their teams' guarantees and fill the full type, 5,000 that wait for it; the free type is nearly idle."""
    hardware(nodes=NODES, free_nodes=FREE_NODES)
    full = (NODES - FREE_NODES) * GPUS
    tree([team_of(number) for number in range(TEAMS)], full // TEAMS, free=FREE_NODES * GPUS // TEAMS)
    secrets = person(tokens)
    access = access_for_user(User.objects.get(username="root"))
    moment = now() - timedelta(hours=2)
    filling = full // 4
    wishes = [wish(number) for number in range(filling)]
    wishes += [wish(number, gpus=1, gpu_types=[FREE]) for number in range(RUNNING - filling)]
    submit_all(access, wishes, moment)
    memory, begin = Memory(), moment
    while Job.objects.filter(state=JobState.RUNNING).count() < RUNNING and moment < begin + timedelta(hours=1):
        moment += timedelta(seconds=10)
        tick_run(holder="bench", now=moment, backends=backends_all(), memory=memory)
    submit_all(access, [wish(number) for number in range(QUEUED)], moment)
    for _ in range(2):
        moment += timedelta(seconds=10)
        tick_run(holder="bench", now=moment, backends=backends_all(), memory=memory)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    counts = {state: Job.objects.filter(state=state).count() for state in (JobState.RUNNING, JobState.QUEUED)}
    say({"tokens": secrets, "running": counts[JobState.RUNNING], "queued": counts[JobState.QUEUED]})


def submit_all(access: Any, wishes: Sequence[dict[str, Any]], moment: datetime) -> None:
    for first in range(0, len(wishes), CHUNK):
        submissions_create(access=access, descriptions=wishes[first : first + CHUNK], now=moment, actor=access.actor)


def busy_tick(memory: Memory, moment: datetime, number: int) -> tuple[Any, float, float]:
    """A tick a second after a job was submitted and another cancelled, so that it has something to decide; its seconds, and those of CPU."""
    access = access_for_user(User.objects.get(username="root"))
    before = moment - timedelta(seconds=1)
    victim = Job.objects.filter(state=JobState.RUNNING, gpus_milli=4000).order_by("id")[0]
    collect_meanwhile()  # as between any two ticks
    submission_create(access=access, description=wish(number), now=before, actor=access.actor)
    job_stop(job=victim, to=JobState.CANCELLED, outcome="cancelled", cause="Bench.", now=before, actor=access.actor, grace_seconds=0)
    began, cpu = time.perf_counter(), time.process_time()
    result = tick_run(holder="bench", now=moment, backends=backends_all(), memory=memory)
    return result, time.perf_counter() - began, time.process_time() - cpu


def drains(counts: Sequence[int], of: int, warm_up: int = 5) -> None:
    """CPU seconds of ticks while so many nodes drain with a deadline ahead, and of the one in which all their jobs have to leave."""
    collect_seldom()
    access = access_for_user(User.objects.get(username="root"))
    memory, moment, until = Memory(), now(), now() + timedelta(hours=12)
    nodes = list(Node.objects.filter(gpu_type=FULL).order_by("-id")[: max(counts)])
    found: dict[str, list[float]] = {}
    number, drained = 0, 0
    for count in counts:
        while drained < count:
            some = nodes[drained : min(count, drained + MOST_NODES)]
            nodes_drain(access=access, nodes=some, way=DrainWay.MOVE, at=until, reason="Bench.", now=moment)
            drained += len(some)
        computed = []
        for _ in range(of + warm_up):
            number, moment = number + 1, moment + timedelta(seconds=3)
            computed.append(busy_tick(memory, moment, number)[2])
        found[str(count)] = computed[warm_up:]
    _, _, due = busy_tick(memory, until + timedelta(seconds=1), number + 1)
    leaving = Attempt.objects.filter(stop_to=JobState.PREEMPTED, job__state__in=HOLDING).count()
    say({"computed": found, "due_s": due, "leaving": leaving})


def ticks(runs: int, of: int, warm_up: int = 5) -> None:
    """Seconds of whole ticks, each after a job was submitted and a running one was cancelled, so that each has something to decide."""
    collect_seldom()
    memory, moment, taken, computed = Memory(), now(), [], []
    phases: dict[str, list[int]] = {}
    decided = 0
    for number in range(runs * of + warm_up):
        moment += timedelta(seconds=3)
        result, seconds, cpu = busy_tick(memory, moment, number)
        computed.append(cpu)
        taken.append(seconds)
        decided += result.decided
        for name, milliseconds in result.phases.items():
            phases.setdefault(name, []).append(milliseconds)

    def cut(values: list[float]) -> list[list[float]]:
        return [values[warm_up + place * of : warm_up + (place + 1) * of] for place in range(runs)]

    say(
        {
            "runs": cut(taken),
            "cpu_runs": cut(computed),
            "decided": decided,
            "phases": {name: sorted(values[warm_up:])[len(values[warm_up:]) // 2] for name, values in phases.items()},
        }
    )


def told(names: Sequence[str]) -> None:
    """What became of jobs, as seconds since 1970: committed, start sent, running, ended; and of those they put out."""
    commits = committed()
    found = {}
    for name in names:
        job = Job.objects.filter(public_id=name).first()
        if job is None:
            continue
        attempt = Attempt.objects.filter(job=job).order_by("number").first()
        sent = Order.objects.filter(attempt=attempt, kind=OrderKind.START, done_at__isnull=False).order_by("done_at").first() if attempt else None
        found[name] = {
            "state": job.state,
            "committed": commits.get(name),
            "sent": sent.done_at.timestamp() if sent and sent.done_at else None,
            "running": attempt.running_at.timestamp() if attempt and attempt.running_at else None,
            "ended": job.ended_at.timestamp() if job.ended_at else None,
            "victims": victims(name),
        }
    say(found)


def committed() -> dict[str, float]:
    """When the decision about each job was written down for the live pages, in the last moment before its commit: as far as changes are kept."""
    moments = {row["id"]: at.timestamp() for at, rows in Change.objects.filter(topic="plans").values_list("at", "rows") for row in rows}
    plans = PlanRecord.objects.filter(pk__in=list(moments)).order_by("-at", "-id").values_list("pk", "decisions")
    found: dict[str, float] = {}
    for plan, decisions in plans:
        for decision in decisions:
            if decision.get("job"):
                found.setdefault(decision["job"], moments[plan])
    return found


def victims(name: str) -> list[float]:
    """When those who gave way for a job were told to."""
    put_out = []
    for decisions in PlanRecord.objects.order_by("-at", "-id").values_list("decisions", flat=True)[:500]:
        put_out += [decision["job"] for decision in decisions if decision.get("action") == "evict" and (decision.get("why") or {}).get("for") == name]
    signals = Order.objects.filter(attempt__job__public_id__in=put_out, kind=OrderKind.SIGNAL, done_at__isnull=False)
    return [at.timestamp() for at in signals.values_list("done_at", flat=True) if at is not None]


QUEUES, GROUPS = 30, 5
REPLAY_QUOTAS = tuple(f"org/group-{number % GROUPS}/queue-{number}" for number in range(QUEUES))


def replay_world() -> None:
    """Thirty queues in five groups with 20 GPUs each, which may borrow up to 100 more; the fleet has what they are promised."""
    hardware(nodes=QUEUES * 20 // GPUS, free_nodes=0)
    tree(REPLAY_QUOTAS, 20, limit=120)
    say({"tokens": person(4)})


def replay_progress() -> None:
    states = {state: Job.objects.filter(state=state).count() for state in JobState.values}
    say({"ended": Job.objects.filter(ended_at__isnull=False).count(), "states": {name: count for name, count in states.items() if count}})


def replay_figures() -> None:
    """From the first submission to the last end, the mean time to admission by size, and evictions."""
    rows = Job.objects.values_list("id", "name", "submitted_at", "ended_at", "evictions")
    firsts = dict(Attempt.objects.filter(number=1).values_list("job_id", "started_at"))
    waits: dict[str, list[float]] = {}
    for key, name, submitted, _, _ in rows:
        if key in firsts:
            waits.setdefault(name.partition("-")[0], []).append((firsts[key] - submitted).total_seconds())
    ends = [ended for *_, ended, _ in rows if ended is not None]
    begin = min((submitted for _, _, submitted, _, _ in rows), default=now())
    plans = list(PlanRecord.objects.values_list("phases", flat=True))
    totals: dict[str, float] = {}
    for phases in plans:
        for name, value in phases.items():
            totals[name] = totals.get(name, 0) + value / 1000
    say(
        {
            "jobs": len(rows),
            "ended": len(ends),
            "seconds": (max(ends) - begin).total_seconds() if ends else None,
            "admission_s": {name: sum(values) / len(values) for name, values in waits.items()},
            "evictions": sum(row[4] for row in rows),
            "failed": JobEvent.objects.filter(to_state=JobState.FAILED).count(),
            "plans": len(plans),
            "phase_seconds": {name: round(value, 1) for name, value in totals.items()},
            "holding": Job.objects.filter(state__in=HOLDING).count(),
        }
    )


def idle_world() -> None:
    hardware(nodes=NODES, free_nodes=0)
    tree([team_of(number) for number in range(TEAMS)], NODES * GPUS // TEAMS)
    say({"tokens": person()})


MEASURES: dict[str, Callable[..., None]] = {
    "steady": steady,
    "ticks": ticks,
    "drains": drains,
    "told": told,
    "idle_world": idle_world,
    "replay_world": replay_world,
    "replay_progress": replay_progress,
    "replay_figures": replay_figures,
}
