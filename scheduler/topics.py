"""The topics of jobs, schedules and of the scheduler. Pages are told which rows changed and ask for what they may see of them."""

from collections.abc import Mapping, Sequence
from typing import Any

from gpufleet.core.live.topics import topic_register
from quotas.models import Budget, QuotaChange, QuotaNode, Reservation
from quotas.permissions import Access, Can
from scheduler.models import Job, QuotaReplay, Schedule, Sweep, Trace
from scheduler.selectors.notices import bell_mark, bell_of

# A state is to be seen well within half a second of the decision; pages gather by themselves what comes faster than they can draw.
JOBS_WINDOW_SECONDS = 0.1
PLANS_WINDOW_SECONDS = 1.0
# Pages of machines and of quotas add up what changes with every job: more often nobody could read them.
OBJECTS_WINDOW_SECONDS = 2.0


def jobs_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which jobs changed, and how far they are now. Nothing that only some may see: an id tells nobody whose job it is."""
    rows = Job.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", "revision")
    return [[public_id, revision] for public_id, revision in rows]


def schedules_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which schedules changed, were due or were made; of one that was removed pages learn that something changed."""
    return [[public_id] for public_id in Schedule.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def reservations_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which reservations changed, or came to a window."""
    return [[public_id] for public_id in Reservation.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def budgets_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which budgets changed: how they stand, pages ask for."""
    return [[public_id] for public_id in Budget.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def quotas_load(ids: Sequence[int]) -> list[list[Any]]:
    return [[public_id] for public_id in QuotaNode.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def quota_changes_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which changes of the tree were drafted, decided or applied."""
    return [[public_id] for public_id in QuotaChange.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def what_ifs_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which what-ifs were asked for, go on or have ended."""
    return [[public_id] for public_id in QuotaReplay.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def traces_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which traces of the own past are being written, or are ready."""
    return [[public_id] for public_id in Trace.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def sweeps_load(ids: Sequence[int]) -> list[list[Any]]:
    """Which sweeps were asked for, go on or have ended."""
    return [[public_id] for public_id in Sweep.objects.filter(pk__in=ids).order_by("pk").values_list("public_id", flat=True)]


def nothing_named(ids: Sequence[int]) -> list[list[Any]]:
    """That something changed is all that such pages need: they show many rows added up, and ask for themselves."""
    return []


def plans_load(ids: Sequence[int]) -> list[list[Any]]:
    return [[key] for key in ids]


def bells_load(ids: Sequence[int]) -> list[list[Any]]:
    """Whose bell rang, by a mark that only that person's own page knows."""
    return [[bell_mark(user)] for user in ids]


def bells_snapshot(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    assert access.actor.user is not None
    return {"rows": [], **bell_of(access.actor.user)}


def nothing_more(access: Access, query: Mapping[str, str]) -> dict[str, Any]:
    """Pages of these topics ask for themselves; of a snapshot they only need its revision."""
    return {"rows": []}


def topics_register() -> None:
    topic_register("jobs", Can.SEE, jobs_load, nothing_more, window_seconds=JOBS_WINDOW_SECONDS)
    topic_register("schedules", Can.SEE, schedules_load, nothing_more)
    topic_register("reservations", Can.SEE, reservations_load, nothing_more)
    topic_register("budgets", Can.SEE, budgets_load, nothing_more)
    topic_register("costs", Can.SEE_COSTS, nothing_named, nothing_more, window_seconds=OBJECTS_WINDOW_SECONDS)
    topic_register("cost_exports", Can.SEE_COSTS, nothing_named, nothing_more, window_seconds=PLANS_WINDOW_SECONDS)
    topic_register("bells", Can.SEE, bells_load, bells_snapshot)
    topic_register("hardware", Can.SEE, nothing_named, nothing_more, window_seconds=OBJECTS_WINDOW_SECONDS, follows=("gpus", "nodes"))
    topic_register("holdings", Can.SEE, nothing_named, nothing_more, window_seconds=OBJECTS_WINDOW_SECONDS, follows=("jobs",))
    topic_register("quotas", Can.SEE, quotas_load, nothing_more)
    topic_register("quota_changes", Can.SEE, quota_changes_load, nothing_more)
    topic_register("what_ifs", Can.SEE, what_ifs_load, nothing_more, window_seconds=PLANS_WINDOW_SECONDS)
    topic_register("traces", Can.SEE, traces_load, nothing_more)
    topic_register("sweeps", Can.SEE, sweeps_load, nothing_more, window_seconds=PLANS_WINDOW_SECONDS)
    topic_register("pause", Can.SEE, plans_load, nothing_more)
    topic_register("plans", Can.SEE, plans_load, nothing_more, window_seconds=PLANS_WINDOW_SECONDS)
