"""What another health of a node does to the jobs on it, told before it is done."""

from collections.abc import Sequence

from gpufleet.core.previews import Effect, JobEffect, Preview
from gpufleet.core.templatetags.shell import plural
from scheduler.models import Health, Node
from scheduler.selectors.nodes import Guest

# What is told before it is done; other steps touch no running job.
PREVIEWED = (Health.DRAINING, Health.DOWN)
FINISH, MOVE = "finish", "move"
WAYS = {Health.DRAINING: ("If jobs finish", "If jobs are moved"), Health.DOWN: ("Effect",)}


def health_preview(node: Node, to: str, guests: Sequence[Guest], *, gpus: int) -> Preview:
    """The preview of draining a node, or of marking it down."""
    told = [guest for guest in guests if guest.named]
    hidden = [guest for guest in guests if not guest.named]
    effects = _drained if to == Health.DRAINING else _lost
    return Preview(
        sentences=_sentences(node, to, guests, gpus),
        ways=WAYS[Health(to)],
        jobs=[
            JobEffect(one.job.public_id, one.job.name, one.job.quota.path, one.job.owner.username if one.job.owner else "", one.milli, effects(one))
            for one in told
        ],
        unseen=len(hidden),
        unseen_milli=sum(guest.milli for guest in hidden),
    )


def _sentences(node: Node, to: str, guests: Sequence[Guest], gpus: int) -> list[str]:
    count = len(guests)
    if to == Health.DOWN:
        lose = f"{plural(count, 'job')} {'loses its' if count == 1 else 'lose their'} workers here." if guests else "No job runs here."
        return [f"{plural(gpus, 'GPU')} of {node.name} {'is' if gpus == 1 else 'are'} out of service at once.", lose]
    found = [f"{plural(gpus, 'GPU')} of {node.name} {'takes' if gpus == 1 else 'take'} no new jobs."]
    if not guests:
        return [*found, "No job runs here: the node can be marked drained at once."]
    found.append(f"{plural(count, 'job')} {'runs' if count == 1 else 'run'} here now.")
    stay = sum(not guest.movable for guest in guests)
    moved = count - stay
    if moved:
        found.append(f"If jobs are moved, {moved} {'saves its work and waits' if moved == 1 else 'save their work and wait'} to resume elsewhere.")
    if stay:
        found.append(f"{plural(stay, 'job')} may not be preempted and {'finishes' if stay == 1 else 'finish'} here in any case.")
    return [*found, "Owners of jobs that are moved are notified."] if moved else found


def _drained(guest: Guest) -> tuple[Effect, ...]:
    finishes = _finishes(guest)
    return (finishes, Effect("Saves and is requeued") if guest.movable else finishes)


def _finishes(guest: Guest) -> Effect:
    if guest.ends_at is None:
        return Effect("No known end")
    return Effect("Ends at the latest" if guest.by_limit else "Finishes", guest.ends_at)


def _lost(guest: Guest) -> tuple[Effect, ...]:
    return (Effect("Loses its workers here"),)
