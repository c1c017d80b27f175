"""What it means to give up the jobs of a cluster, told before it is done."""

from collections.abc import Sequence

from gpufleet.core.previews import Effect, Preview
from gpufleet.core.templatetags.shell import gpus_told, money, plural
from scheduler.models import Cluster
from scheduler.presenters.node_changes import guests_preview, moment_told
from scheduler.services.hardware.giving_up import After, Left
from scheduler.services.jobs.prices import Repeated


def give_up_preview(cluster: Cluster, left: Sequence[Left], after: str, *, unseen: Repeated, notified: int, fault: str) -> Preview:
    """`unseen`: held since the cluster does not answer. `notified`: jobs whose owner hears of it."""
    if fault or cluster.silent_since is None:
        return Preview(sentences=(), faults=(fault,))
    since = moment_told(cluster.silent_since)
    if not left:
        return Preview(sentences=[f"{cluster.name} has not answered since {since}. No job runs there."])
    milli, again = sum(one.guest.milli for one in left), sum(one.waits_again(after) for one in left)
    sentences = [
        f"{cluster.name} has not answered since {since}. Its {plural(len(left), 'job')} with {gpus_told(milli)} may have ended since, or still run.",
        f"{plural(again, 'job')} {'is' if again == 1 else 'are'} queued again; {plural(len(left) - again, 'other')} {_end(len(left) - again)}.",
        _not_charged(unseen, since),
        "Should the cluster answer again, what still runs of them there is ended.",
        f"Owners of {plural(notified, 'job')} are notified." if notified else "No owner is notified.",
    ]
    return guests_preview(sentences, ("What happens",), [one.guest for one in left], [(_effect(one, after),) for one in left])


def _end(count: int) -> str:
    return "ends" if count == 1 else "end"


def _not_charged(unseen: Repeated, since: str) -> str:
    cost = f", worth {money(unseen.micros)} at the guaranteed rate" if unseen.micros else ""
    return f"They are charged up to {since}. What they held since is not charged: {unseen.milli_seconds / 3_600_000:,.1f} GPU-hours{cost}."


def _effect(one: Left, after: str) -> Effect:
    if one.stop_to and not one.waits_again(after):
        return Effect("Ends as asked before")
    if one.waits_again(after):
        return Effect("Queued again")
    return Effect("Fails", note="no other cluster has the GPUs that it needs" if after == After.REQUEUE else "")
