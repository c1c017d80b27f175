"""Search over everything that has a page: the results page, and the answers of the command palette."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_safe

from gpufleet.core.models import User
from gpufleet.core.templatetags.shell import gpus_told, look_of
from gpufleet.verbs import Command, commands_named
from gpufleet.web import access_of, requires
from quotas.models import QuotaNode
from quotas.permissions import Access
from quotas.selectors.search import people_search, quotas_search
from scheduler.models import Cluster, Gpu, Node, Schedule
from scheduler.selectors.search import clusters_search, gpus_search, jobs_search, nodes_search, schedules_search

LONGEST_QUERY = 100
SUGGESTED = 5
LISTED = 25


@dataclass(frozen=True, slots=True)
class Found:
    label: str
    note: str
    icon: str
    url: str
    id: str = ""  # as the API names it; a command has none


@dataclass(frozen=True, slots=True)
class Group:
    """What was found of one kind. `more`: there is more than is listed."""

    label: str
    items: list[Found]
    more: bool


def _of_node(node: Node) -> Found:
    state = "" if node.health == "healthy" else f" · {look_of(node.health).word}"
    return Found(
        node.name, f"{node.public_id} · {node.gpu_type_id or 'no GPUs'}{state}", "node", reverse("node", args=[node.public_id]), node.public_id
    )


def _of_gpu(gpu: Gpu) -> Found:
    return Found(
        f"{gpu.node.name} GPU {gpu.index}", f"{gpu.public_id} · {gpu.gpu_type_id}", "chip", reverse("gpu", args=[gpu.public_id]), gpu.public_id
    )


def _of_cluster(cluster: Cluster) -> Found:
    return Found(cluster.label, cluster.public_id, "cluster", reverse("cluster", args=[cluster.name]), cluster.name)


def _of_job(job: Any) -> Found:
    note = f"{job.public_id} · {look_of(job.state).word} · {gpus_told(job.gpus_now)} · {job.quota.path}"
    return Found(job.name, note, "job", reverse("job", args=[job.public_id]), job.public_id)


def _of_schedule(schedule: Schedule) -> Found:
    note = f"{schedule.public_id} · {look_of(schedule.state).word} · {schedule.cron} {schedule.zone} · {schedule.quota.path}"
    return Found(schedule.name, note, "refresh", reverse("schedule", args=[schedule.public_id]), schedule.public_id)


def _of_quota(node: QuotaNode) -> Found:
    return Found(node.label, f"{node.public_id} · {node.path}", "tree", reverse("quota", args=[node.public_id]), node.public_id)


def _of_person(person: User) -> Found:
    return Found(str(person), person.username, "person", reverse("person", args=[person.public_id]), person.public_id)


def _of_command(command: Command) -> Found:
    return Found(f"{command.verb} {command.thing}", command.note, command.icon, command.url)


def _group(label: str, found: Iterable[Found], limit: int) -> Group:
    items = list(found)
    return Group(label, items[:limit], len(items) > limit)


def find(access: Access, query: str, limit: int, at: str = "") -> list[Group]:
    """What the reader may see and the query names, by kind; `at` is the id of what the reader has at hand.

    One more than `limit` is asked for, to know whether there is more."""
    text, wanted = query.strip()[:LONGEST_QUERY], limit + 1
    if len(text) < 2:
        return []
    groups = (
        _group("Commands", map(_of_command, commands_named(access, text, wanted, at[:LONGEST_QUERY])), limit),
        _group("Nodes", map(_of_node, nodes_search(access, text, limit=wanted)), limit),
        _group("GPUs", map(_of_gpu, gpus_search(access, text, limit=wanted)), limit),
        _group("Jobs", map(_of_job, jobs_search(access, text, limit=wanted)), limit),
        _group("Schedules", map(_of_schedule, schedules_search(access, text, limit=wanted)), limit),
        _group("Quotas", map(_of_quota, quotas_search(access, text, limit=wanted)), limit),
        _group("People", map(_of_person, people_search(access, text, limit=wanted)), limit),
        _group("Clusters", map(_of_cluster, clusters_search(access, text, limit=wanted)), limit),
    )
    return [group for group in groups if group.items]


@require_safe
@requires()
def search_page(request: HttpRequest) -> HttpResponse:
    query = request.GET.get("q", "").strip()[:LONGEST_QUERY]
    groups = find(access_of(request), query, LISTED)
    return render(request, "search.html", {"query": query, "groups": groups, "count": sum(len(group.items) for group in groups)})


@require_safe
@requires()
def search_suggest(request: HttpRequest) -> JsonResponse:
    """The same answers, fewer, for the script that completes what is typed. `at` is the id of the row that has the focus."""
    groups = find(access_of(request), request.GET.get("q", ""), SUGGESTED, request.GET.get("at", ""))
    answer = JsonResponse({"groups": [asdict(group) for group in groups]})
    answer["Cache-Control"] = "private, no-store"
    return answer
