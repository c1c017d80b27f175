"""What another health of nodes does to the jobs on them, told before it is done."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpufleet.core.previews import Effect, JobEffect, Preview
from gpufleet.core.templatetags.shell import duration, money, plural
from scheduler.hardware.draining import Fate, Outcome, outcome_of
from scheduler.models import DrainWay, Gpu, Health, Node, PlannedHealth
from scheduler.selectors.nodes import Guest
from scheduler.services.hardware.geometry import SplitPlan
from scheduler.services.jobs.prices import Repeated

# What the palette offers by name: the steps that touch what runs.
PREVIEWED = (Health.DRAINING, Health.DOWN)
LOST_TOLD_SECONDS = 60
LEAST_HOURS = 0.1
NOBODY_NOTIFIED = "No owner is notified."
NOTHING = Repeated()


@dataclass(frozen=True, slots=True)
class Way:
    """How a drain is chosen: what becomes of running jobs, when, and when it begins. `at` None: as it begins. `begins` None: at once."""

    jobs: str = DrainWay.FINISH
    at: datetime | None = None
    begins: datetime | None = None

    @property
    def leave_at(self) -> datetime | None:
        """When jobs leave; None: at once."""
        return self.at or self.begins


def drain_preview(
    nodes: Sequence[Node],
    way: Way,
    guests: Sequence[Guest],
    *,
    gpus: int,
    hourly: int | None = None,
    repeated: Repeated = NOTHING,
    plans: Sequence[PlannedHealth] = (),
    placeless: Collection[str] | None = None,
    now: datetime,
) -> Preview:
    """The preview of draining nodes in a way. `hourly`: what their GPUs cost in an hour, in micro-units, where the reader may know it.
    `repeated`: the work since their last checkpoints that jobs which leave do again. `plans`: what is planned for them.
    `placeless`: those that leave at once and find no place elsewhere; None: nobody knows."""
    found = [(guest, outcome_of(guest.run, way.jobs, way.leave_at, now)) for guest in guests]
    found.sort(key=lambda one: one[1].at is None)  # those that leave come first
    effects = [(_effect(guest, outcome, now, waits=guest.job.public_id in (placeless or ())), _end(guest)) for guest, outcome in found]
    moved = sum(outcome.fate == Fate.MOVED for _, outcome in found)
    sentences = _drain_sentences(nodes, way, [outcome for _, outcome in found], gpus)
    sentences += [*_places_said(moved, placeless), *_costs_said(gpus, hourly), *_work_said(repeated)]
    sentences += _plans_said(plans, Health.DRAINING, way.begins)
    return guests_preview(sentences, ("What happens", "Expected end"), [guest for guest, _ in found], effects)


def moved_at_once(way: Way, guests: Sequence[Guest], now: datetime) -> list[str]:
    """The jobs that a drain moves at once, by their public ids."""
    if way.leave_at is not None and way.leave_at > now:
        return []
    found = [guest for guest in guests if not guest.leaving]
    return [guest.job.public_id for guest in found if outcome_of(guest.run, way.jobs, way.leave_at, now).fate == Fate.MOVED]


def seconds_lost(way: Way, guests: Sequence[Guest], now: datetime) -> dict[int, int]:
    """The seconds of work that a drain has jobs do again, by their keys."""
    found = {guest.job.pk: outcome_of(guest.run, way.jobs, way.leave_at, now).lost_seconds for guest in guests if not guest.leaving}
    return {key: seconds for key, seconds in found.items() if seconds}


def _plans_said(plans: Sequence[PlannedHealth], to: str, begins: datetime | None) -> list[str]:
    """A plan gives way to another plan, and the plan of a drain to a drain at once."""
    found = []
    for plan in plans:
        name, drains = plan.node.name, plan.to == Health.DRAINING
        what = f"the drain of {name}" if drains else f"the change of {name} to {Health(plan.to).label.lower()}"
        if begins is not None or to == plan.to == Health.DRAINING:
            found.append(f"It takes the place of {what} that is planned for {moment_told(plan.begins_at)}.")
        else:
            found.append(f"{what[:1].upper()}{what[1:]} stays planned for {moment_told(plan.begins_at)}.")
    return found


def health_preview(
    where: str,
    was: str,
    to: str,
    guests: Sequence[Guest],
    *,
    gpus: int,
    hourly: int | None = None,
    begins: datetime | None = None,
    plans: Sequence[PlannedHealth] = (),
) -> Preview:
    """The preview of another health of a node or of one GPU, other than the drain of a node. `begins` None: at once. `plans`: what is planned for
    the node."""
    count = len(guests)
    named, here = plural(gpus, "GPU"), f"{plural(count, 'job')} {'runs' if count == 1 else 'run'} here"
    one = gpus == 1
    told, effect = "No job runs here." if not count else f"{here} and {'goes' if count == 1 else 'go'} on.", "Runs on"
    if to == Health.DOWN:
        first = f"{named} of {where} {'is' if one else 'are'} out of service {'from then on' if begins else 'at once'}."
        if count:
            told, effect = f"{plural(count, 'job')} {'loses its' if count == 1 else 'lose their'} workers here.", "Loses its workers here"
    elif to == Health.DRAINING:
        first = f"{named} of {where} {'takes' if one else 'take'} no new jobs. Running jobs finish."
    elif to == Health.SUSPECT:
        first = f"New gangs avoid {named} of {where}; other jobs may use {'it' if one else 'them'}."
    elif to == Health.HEALTHY:
        first = f"{named} of {where} {'takes' if one else 'take'} {'jobs' if was == Health.SUSPECT else 'jobs again'}."
    else:
        first = f"{named} of {where} {'takes' if one else 'take'} no jobs."
        told = f"{here}. It must be empty {'by then' if begins else 'first'}." if count else told
    sentences = [first, told, *(_costs_said(gpus, hourly) if to in PREVIEWED else [])]
    if begins is not None:
        sentences.insert(0, f"It begins at {moment_told(begins)} and is checked again then. This is what it would do now.")
    if count:
        sentences.append(f"Their owners are notified{' when it begins' if begins else ''}." if to == Health.DOWN else NOBODY_NOTIFIED)
    sentences += _plans_said(plans, to, begins)
    return guests_preview(sentences, ("What happens",), guests, [(Effect(effect),)] * count)


def split_preview(gpu: Gpu, plan: SplitPlan, guests: Sequence[Guest], opening: Sequence[str] = ()) -> Preview:
    """The preview of a repartition. `guests` are the jobs that have to end first; none of them is interrupted. `opening` says what it opens."""
    cluster, count = gpu.node.cluster, len(guests)
    sentences = [
        f"The GPU takes no new jobs. {plural(count, 'job')} must end first and {'is' if count == 1 else 'are'} not interrupted."
        if count
        else "Nothing to wait for.",
        f"The {cluster.backend} back-end of {cluster.name} removes {plural(len(plan.leaving), 'instance')},"
        f" creates {len(plan.coming)} and keeps {len(plan.staying)}.",
        "The inventory changes when the back-end confirms. Then the GPU takes jobs again.",
        *opening,
        *([NOBODY_NOTIFIED] if count else []),
        "It counts toward the limit of repartitions per hour.",
    ]
    return guests_preview(sentences, ("What happens", "Expected end"), guests, [(Effect("Ends first"), _end(guest)) for guest in guests])


def _places_said(moved: int, placeless: Collection[str] | None) -> list[str]:
    if placeless is None or not moved:
        return []
    if not placeless:
        return ["It finds a place elsewhere at once." if moved == 1 else "All of them find places elsewhere at once."]
    count = len(placeless)
    verbs = ("finds", "waits") if count == 1 else ("find", "wait")
    return [f"{plural(count, 'job')} {verbs[0]} no place elsewhere now and {verbs[1]} in the queue."]


def _costs_said(gpus: int, hourly: int | None) -> list[str]:
    they = "it costs" if gpus == 1 else "they cost"
    return [f"Out of service {they} {money(hourly)} an hour at the guaranteed rate."] if hourly else []


def _work_said(repeated: Repeated) -> list[str]:
    hours = repeated.milli_seconds / 3_600_000
    cost = f", worth {money(repeated.micros)} at the guaranteed rate" if repeated.micros else ""
    return [f"{hours:,.1f} GPU-hours of work are repeated{cost}."] if hours >= LEAST_HOURS else []


def guests_preview(sentences: Sequence[str], ways: tuple[str, ...], guests: Sequence[Guest], effects: Sequence[tuple[Effect, ...]]) -> Preview:
    hidden = [guest for guest in guests if not guest.named]
    jobs = [
        JobEffect(one.job.public_id, one.job.name, one.job.quota.path, one.job.owner.username if one.job.owner else "", one.milli, told)
        for one, told in zip(guests, effects, strict=True)
        if one.named
    ]
    return Preview(sentences=sentences, ways=ways, jobs=jobs, unseen=len(hidden), unseen_milli=sum(guest.milli for guest in hidden))


def _drain_sentences(nodes: Sequence[Node], way: Way, outcomes: Sequence[Outcome], gpus: int) -> list[str]:
    where = nodes[0].name if len(nodes) == 1 else plural(len(nodes), "node")
    begins = f"From {moment_told(way.begins)} on, " if way.begins is not None else ""
    found = [f"{begins}{plural(gpus, 'GPU')} of {where} {'takes' if gpus == 1 else 'take'} no new jobs."]
    if begins:
        found.append("Until then jobs start there as usual.")
    count = len(outcomes)
    if not count and begins:
        return [*found, "No job runs here now."]
    if not count:
        return [*found, f"No job runs here: the {'node' if len(nodes) == 1 else 'nodes'} can be marked drained at once."]
    found.append(f"{plural(count, 'job')} {'runs' if count == 1 else 'run'} here now.")
    if way.jobs == DrainWay.FINISH:
        return [*found, "Running jobs finish here.", NOBODY_NOTIFIED]
    when = f"at {moment_told(way.leave_at)}" if way.leave_at is not None else "now"
    ends, moved, stopped, stays = (sum(one.fate == fate for one in outcomes) for fate in Fate)
    if ends:
        found.append(f"{plural(ends, 'job')} {'is' if ends == 1 else 'are'} expected to end before.")
    if moved:
        found.append(
            f"{plural(moved, 'job')} {'is asked to save its work and is' if moved == 1 else 'are asked to save their work and are'} moved {when}."
        )
    if stopped:
        found.append(f"{plural(stopped, 'job')} that may not be preempted {'stops' if stopped == 1 else 'stop'} {when} all the same.")
    if stays:
        found.append(f"{plural(stays, 'job')} may not be preempted and {'finishes' if stays == 1 else 'finish'} here in any case.")
    if way.begins is not None and count > stays:
        found.append("Their owners are notified when it begins.")
    elif way.at is not None and count > stays:
        found.append("Their owners are notified now, and again when jobs leave.")
    elif moved or stopped:
        found.append("Their owners are notified.")
    else:
        found.append(NOBODY_NOTIFIED)
    return found


def moment_told(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


def _end(guest: Guest) -> Effect:
    if guest.ends_at is None:
        return Effect("Not known")
    return Effect("At the latest" if guest.by_limit else "", guest.ends_at)


def _effect(guest: Guest, outcome: Outcome, now: datetime, *, waits: bool = False) -> Effect:
    if guest.leaving:
        return Effect("Leaves already")
    if outcome.fate == Fate.ENDS:
        return Effect("Ends before")
    if outcome.fate == Fate.STAYS:
        return Effect("Finishes here")
    verb = "Moves" if outcome.fate == Fate.MOVED else "Stops"
    if outcome.at is None or outcome.at <= now:
        lost = work_lost(outcome.lost_seconds)
        return Effect("Leaves now", note=f"{lost}, then waits" if lost else "then waits") if waits else Effect(f"{verb} now", note=lost)
    return Effect(verb, outcome.at, work_lost(outcome.lost_seconds))


def work_lost(seconds: int) -> str:
    """What a job repeats that leaves its GPUs; nothing where that is little."""
    return f"loses {duration(seconds)} of work" if seconds >= LOST_TOLD_SECONDS else ""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a drain is. `left` of `count` jobs have gone since it began."""

    left: int
    count: int
    way: str
    at: datetime | None
    is_due: bool
    preview: Preview

    @property
    def remaining(self) -> int:
        return self.count - self.left


def drain_progress(node: Node, guests: Sequence[Guest], *, left: int, now: datetime) -> Progress:
    way = Way(node.drain_way or DrainWay.FINISH, node.drain_at)
    is_due = node.drain_at is not None and node.drain_at <= now
    return Progress(left, left + len(guests), way.jobs, way.at, is_due, drain_preview([node], way, guests, gpus=0, now=now))
