"""The limits on submissions of a node, and what is used of them, as its page says it."""

from django.conf import settings

from quotas.models import QuotaNode
from scheduler.jobs.submission_rates import BURST_MINUTES
from scheduler.selectors.submission_limits import Limit, SubmissionUse


def submissions_told(node: QuotaNode, use: SubmissionUse) -> list[tuple[str, str]]:
    """Titles and texts."""
    rate = f"{use.rate.most:,} jobs a minute{_of(use.rate, node)}; room for {use.room:,} now" if use.rate else "no limit of the node"
    if settings.SUBMITS_PER_MINUTE:
        rate += f"; each person {settings.SUBMITS_PER_MINUTE:,} a minute"
    waiting = f"{use.waiting:,}"
    if use.waiting_limit is not None:
        waiting += f"; limit {use.waiting_limit.most:,}{_of(use.waiting_limit, node)}"
    elif use.each_waiting:
        waiting += f"; limit {use.each_waiting:,} for each queue"
    return [
        ("Rate", rate),
        (f"Last {BURST_MINUTES} minutes", f"{use.submitted:,} submitted"),
        ("Most by", ", ".join(f"{one.name} {one.jobs:,}" for one in use.busiest) or "nobody"),
        ("Waiting", waiting),
    ]


def _of(limit: Limit, node: QuotaNode) -> str:
    """Where it is stated, if that is above."""
    return "" if limit.node == node.pk else f", of {limit.path}"
