"""What can be done with a thing that is named after a verb: "drain dgx-3" offers the page that shows what draining it does. A verb alone is about the
thing at hand.

Each leads to a page that shows first and asks then; nothing is changed by choosing it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.urls import reverse

from dashboards.idle.selectors import episodes_listed
from dashboards.idle.steps import may_act
from quotas.models import QuotaNode
from quotas.permissions import Access, Can
from quotas.selectors.search import quotas_search
from quotas.services.nodes import may_decide
from scheduler.hardware.lifecycle import steps_from
from scheduler.models import ENDED, Job, Node
from scheduler.presenters.node_changes import PREVIEWED
from scheduler.selectors.jobs import may_steer
from scheduler.selectors.search import jobs_search, nodes_search


@dataclass(frozen=True, slots=True)
class Command:
    verb: str
    thing: str
    note: str
    icon: str
    url: str


def commands_named(access: Access, query: str, limit: int, at: str = "") -> list[Command]:
    """Commands whose verb begins with the first word, for what the rest names. A verb alone is for the thing whose id is `at`; where that cannot be
    drained, it leads to the list from which nodes are."""
    verb, _, name = query.strip().partition(" ")
    name = name.strip()
    if len(verb) < 2 or len(name) == 1:
        return []
    found: list[Command] = []
    if name or at:
        for kind in _KINDS:
            if any(_begins(known, verb) for known in kind.verbs):
                things = kind.search(access, name or at, limit=limit, by_id=not name)
                found += [one for one in kind.offers(access, things) if _begins(one.verb, verb)]
    if not found and not name and _begins("Drain", verb) and access.can_everywhere(Can.OPERATE):
        found = [Command("Drain", "node…", "chosen in the list", "drain", reverse("nodes"))]
    return found[:limit]


def _begins(verb: str, typed: str) -> bool:
    return any(word.startswith(typed.lower()) for word in verb.lower().split())


def _of_nodes(access: Access, nodes: Iterable[Node]) -> Iterator[Command]:
    if not access.can_everywhere(Can.OPERATE):
        return
    for node in nodes:
        for step in steps_from(node.health):
            if step.to in PREVIEWED:
                url = f"{reverse('node_health', args=[node.public_id])}?to={step.to}"
                yield Command(step.verb, node.name, node.public_id, "drain", url)


def _of_jobs(access: Access, jobs: Iterable[Job]) -> Iterator[Command]:
    for job in jobs:
        note = f"{job.public_id} · {job.quota.path}"
        if may_steer(access, job):
            if job.state not in ENDED:
                yield Command("Cancel", job.name, note, "close", reverse("job_cancel", args=[job.public_id]))
                yield Command("Change", job.name, note, "pencil", reverse("job_change", args=[job.public_id]))
            yield Command("Log of", job.name, note, "job", reverse("job_log", args=[job.public_id]))
        if access.can_somewhere(Can.SUBMIT):
            yield Command("Clone", job.name, note, "copy", f"{reverse('job_new')}?clone={job.public_id}")


def _of_quotas(access: Access, nodes: Iterable[QuotaNode]) -> Iterator[Command]:
    for node in nodes:
        if access.can(Can.EDIT_QUOTA, node.path):
            yield Command("Edit", node.label, node.path, "pencil", reverse("quota-edit", args=[node.public_id]))
            if may_decide(access, node):
                yield Command("Move", node.label, node.path, "tree", reverse("quota-move", args=[node.public_id]))
        yield Command("Fairness of", node.label, node.path, "tree", reverse("fairness", args=[node.public_id]))


def _of_idle(access: Access, jobs: Iterable[Job]) -> Iterator[Command]:
    open_now = episodes_listed(access).filter(ended_at=None, job__in=[job.pk for job in jobs])
    for episode in open_now.order_by("started_at", "pk"):
        if may_act(access, episode):
            note = f"{episode.job.public_id} · {episode.quota.path}"
            yield Command("Notify owner of", episode.job.name, note, "bell", reverse("idle_notify", args=[episode.public_id]))
            yield Command("Reclaim GPUs of", episode.job.name, note, "eject", reverse("idle_reclaim", args=[episode.public_id]))


class Kind(NamedTuple):
    verbs: tuple[str, ...]
    search: Callable[..., Sequence[Any]]
    offers: Callable[[Access, Sequence[Any]], Iterable[Command]]


_KINDS = (
    Kind(("Drain", "Mark down"), nodes_search, _of_nodes),
    Kind(("Cancel", "Change", "Clone", "Log of"), jobs_search, _of_jobs),
    Kind(("Notify owner of", "Reclaim GPUs of"), jobs_search, _of_idle),
    Kind(("Edit", "Move", "Fairness of"), quotas_search, _of_quotas),
)
