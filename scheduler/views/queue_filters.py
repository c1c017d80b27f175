"""The filters of the queue, for its page and for actions on all jobs that match."""

from datetime import datetime

from django.http import QueryDict

from gpufleet.core.faults import Conflict
from gpufleet.core.tables import Page
from gpufleet.web import Access
from scheduler.jobs.lists import QUEUE
from scheduler.models import Job
from scheduler.selectors.jobs import jobs_listed, jobs_named
from scheduler.selectors.queue import turns_matching, turns_visible
from scheduler.services.forecasts.grounds import GROUNDS

SHOWN = 50
OF_THE_PAGE = ("page", "job")
BEING_READ = "The order is being computed. Try again in a moment."


def queue_matching(access: Access, parameters: QueryDict, most: int, moment: datetime) -> tuple[list[Job], bool, list[str]]:
    """The first jobs of the queue that match, in its order; whether there are more; and what of the address can't be read."""
    page = queue_asked(access, parameters)
    queue = GROUNDS.queue(moment)
    if queue is None:
        raise Conflict(BEING_READ)
    turns = turns_visible(access, queue.turns)
    if page.is_filtered:
        turns = list(turns_matching(turns, page.queryset))
    found = jobs_named(access, [turn.job.name for turn in turns[:most]])
    return [found[turn.job.name] for turn in turns[:most] if turn.job.name in found], len(turns) > most, page.problems


def queue_asked(access: Access, parameters: QueryDict) -> Page:
    """The filters of an address, before anything is read."""
    parameters = parameters.copy()
    for name in OF_THE_PAGE:
        parameters.pop(name, None)
    return QUEUE.page_asked(parameters, jobs_listed(access), size=SHOWN)
