"""Deadlines of drains that are called off: owners who were told of one hear that their job may stay."""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpufleet.core.live.news import News
from gpufleet.core.templatetags.shell import plural
from quotas.permissions import Access
from scheduler.hardware.draining import Fate, outcome_of
from scheduler.models import HOLDING, DrainWay, Health, Node, Placement
from scheduler.notify.happenings import Happened
from scheduler.selectors.nodes import node_guests
from scheduler.services.loop.steps import Steps, jobs_locked, open_attempts


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a node was to be left, and in which way."""

    way: str
    at: datetime


def deadlines_of(nodes: Sequence[Node], now: datetime) -> dict[Deadline, list[Node]]:
    """The nodes with a deadline that is still ahead, by it."""
    found: dict[Deadline, list[Node]] = defaultdict(list)
    for node in nodes:
        if node.health == Health.DRAINING and node.drain_at is not None and node.drain_at > now:
            found[Deadline(node.drain_way, node.drain_at)].append(node)
    return found


def deadlines_call_off(
    *, access: Access, deadlines: Mapping[Deadline, Sequence[Node]], way: str = DrainWay.FINISH, at: datetime | None = None, now: datetime
) -> int:
    """Tell the owners of jobs that had to leave by these deadlines and may stay in the new way. Returns of how many jobs."""
    count = 0
    for old, nodes in deadlines.items():
        guests = [guest for guest in node_guests(access, *nodes, now=now) if not guest.leaving]
        told = [guest for guest in guests if outcome_of(guest.run, old.way, old.at, now).fate != Fate.STAYS]
        stays = {guest.job.pk for guest in told if outcome_of(guest.run, way, at, now).fate == Fate.STAYS}
        stays -= _must_leave_elsewhere(stays, nodes)
        if not stays:
            continue
        names, steps = names_by_job(nodes), Steps(now=now, actor=access.actor)
        jobs = jobs_locked(stays)
        attempts = open_attempts(jobs)
        for key, job in jobs.items():
            if key in attempts and job.state in HOLDING:
                cause = f"The deadline of {names[key]} at {old.at:%Y-%m-%d %H:%M} UTC is called off. The job may finish there."
                steps.note(job, cause, attempt=attempts[key], told=Happened.NODE_DRAINING)
                count += 1
        news = News()
        steps.write(news)
        news.publish()
    return count


def _must_leave_elsewhere(jobs: Collection[int], nodes: Sequence[Node]) -> set[int]:
    """Those of the jobs that have workers on another node with a deadline: it ends all of a gang."""
    there = Placement.objects.filter(job__in=jobs, until__isnull=True, leaving_since__isnull=True).exclude(node__in=nodes)
    due = there.filter(node__health=Health.DRAINING, node__drain_at__isnull=False).exclude(node__drain_way=DrainWay.FINISH)
    return set(due.values_list("job_id", flat=True))


def names_by_job(nodes: Sequence[Node]) -> dict[int, str]:
    """By job, the names of those of the nodes that it is on."""
    found: dict[int, list[str]] = defaultdict(list)
    rows = Placement.objects.filter(node__in=nodes, until__isnull=True).order_by("node__name").values_list("job_id", "node__name").distinct()
    for job, name in rows:
        found[job].append(name)
    return {job: _listed(names) for job, names in found.items()}


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} and {plural(len(names) - 1, 'other node')}"
