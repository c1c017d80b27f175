"""A run as it is kept between two looks, and which of Slurm's jobs are its own."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from django.db.models import Exists, OuterRef

from scheduler.backends.base import StartOrder, attempt_key
from scheduler.backends.slurm.script import Part, is_replaced, is_single
from scheduler.backends.slurm.values import SlurmJob, name_of
from scheduler.models import Attempt, Order, OrderKind


@dataclass(slots=True)
class Run:
    """What is kept of a run between two looks."""

    key: str
    sequence: int
    at: str
    parts: list[dict[str, Any]] = field(default_factory=list)  # Part, with the number of its Slurm job once there is one
    single: bool = False  # one process, which is sent signals through the batch step
    saves: bool = False
    grace: int = 30
    port: int = 0  # where its ranks meet
    folder: str = ""
    checkpoints: str = ""
    stopping: str = ""
    term_at: str = ""
    killed: bool = False
    by_itself: bool = False  # it lost a member: what is left of it is cancelled until it has ended
    withdrawn: str = ""  # why it was cancelled before Slurm started it
    reformed: str = ""  # when one was last replaced or asked to leave

    @property
    def never_begun(self) -> bool:
        return not self.parts

    @property
    def in_place(self) -> bool:
        """Whether it is resized in place, and goes on without a worker that was lost: each worker is a Slurm job of its own then."""
        return any(part.get("in_place") for part in self.parts)

    @property
    def ids(self) -> list[int]:
        return [part["id"] for part in self.parts if part.get("id")]

    @property
    def uids(self) -> set[int]:
        """Users that its jobs were submitted as. A run of an older version does not tell."""
        return {part["uid"] for part in self.parts if "uid" in part}


KEPT_OF_A_RUN = frozenset(one.name for one in fields(Run)) - {"key", "sequence"}


@dataclass(frozen=True, slots=True)
class Numbered:
    """Slurm's jobs by number. A controller that was killed may have forgotten its last jobs, and then gives their numbers to others.

    Plugins of a site may write comments of their own: then the job's name says whose it is. Anybody may write either, so the job's user counts.
    """

    jobs: Mapping[int, SlurmJob]
    tag: str
    uid: int | None  # whom the jobs of the cluster run as now
    accounted: Mapping[tuple[str, int], SlurmJob] = field(default_factory=dict)  # that it has forgotten, by name and number

    def of(self, key: str, part: Mapping[str, Any]) -> SlurmJob | None:
        number = part.get("id") or 0
        known = self.jobs.get(number), self.accounted.get((name_of(key), number))
        return next((job for job in known if job is not None and self._is(job, key, part)), None)

    def _is(self, job: SlurmJob, key: str, part: Mapping[str, Any]) -> bool:
        if "uid" in part and job.uid not in (part["uid"], self.uid):
            return False
        return mark_of(job.comment, self.tag) == (key, part["number"]) or (job.name == name_of(key) and not is_marked(job.comment))


def to_go_on(cluster: int, keys: Iterable[str]) -> set[str]:
    """Runs that the scheduler has told to begin, that are open in its books and that it has not asked to leave."""
    wanted = set(keys)
    untold = Order.objects.filter(attempt=OuterRef("pk"), cluster=cluster, kind__in=(OrderKind.START, OrderKind.RESIZE), done_at__isnull=True)
    jobs = {key.rpartition(".")[0] for key in wanted}
    rows = Attempt.objects.filter(~Exists(untold), ended_at__isnull=True, stop_to="", job__public_id__in=jobs)
    return {key for job, number in rows.values_list("job__public_id", "number") if (key := attempt_key(job=job, attempt=number)) in wanted}


def part_set(part: Mapping[str, Any], **values: Any) -> Callable[[Run], None]:
    """A change of what a run keeps of that part, with that number in Slurm. A value of None is no longer kept."""
    number, told = part["number"], part.get("id")

    def change(run: Run) -> None:
        for one in run.parts:
            if one["number"] == number and one.get("id") == told:
                one.update(values)
                for name in [name for name, value in values.items() if value is None]:
                    del one[name]

    return change


def mark_of(comment: str, tag: str) -> tuple[str, int]:
    """The run and the number of its part that a comment names with this console's tag. Anybody can read the tag and write such a comment: it counts
    only of a job that runs as the run's account."""
    words = comment.split(" ")
    if len(words) in (5, 6) and words[:2] == ["gpufleet", tag] and words[3].isdigit():
        return words[2], int(words[3])
    return "", 0


def is_marked(comment: str) -> bool:
    """Also another console's, or another part's: names are the same in each."""
    return comment.startswith("gpufleet ")


def log_name(*, own: bool, seat: str, part: int) -> str:
    """The file that a node makes when it starts the script. `own`: it is the log of its worker."""
    return f"{seat}.log" if own else f"batch-{part}.log"


def state_of(run: Run) -> dict[str, Any]:
    state = {name: getattr(run, name) for name in sorted(KEPT_OF_A_RUN) if name != "by_itself" or run.by_itself}
    # What is to be cancelled is found by each look.
    return state | {"parts": [{name: value for name, value in part.items() if name != "stuck"} for part in run.parts]}


def part_of(order: StartOrder, part: Part, *, uid: int) -> dict[str, Any]:
    """A part as its run keeps it."""
    stated = {name: True for name, key in (("in_place", "in_place"), ("probed", "ready")) if order.launch.get(key)}
    stated |= {"replaced": True} if is_replaced(order) else {}
    return asdict(part) | {"id": None, "uid": uid, "single": is_single(order, part)} | stated


def seat_of(part: Mapping[str, Any]) -> tuple[str, int]:
    """The worker of a part that is a worker."""
    return part["seats"][0]["role"], part["seats"][0]["index"]
