"""A gang that re-forms by itself, as torchrun's elastic launch does, and a loop that grows, shrinks and repairs it: for each real back-end."""

import json
import os
import signal
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from gpufleet.core.times import now
from quotas.models import LedgerEntry
from scheduler.models import Attempt, Checkpoint, Job, JobState, Node, Order, OrderKind, Placement
from scheduler.services.loop.runs import Stop, attempts_stop
from tests.invariants import fleet_faults
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import wait_until

# Of the system: jobs of another user cannot enter the folder of the tests' own.
PYTHON = next((path for path in ("/usr/bin/python3", "/usr/local/bin/python3") if Path(path).exists()), sys.executable)
# Members meet in the folder of checkpoints: who lives holds the lock of a file of its own. The first of them leads: it says who takes the next step,
# waits for them, and saves each tenth step, or at once when it was sent USR1. When one comes or goes, all go back to what was saved last.
TRAIN = """
    import fcntl, json, os, pathlib, signal, sys, time
    me, least = f"{os.environ['GPUFLEET_ROLE']}-{int(os.environ['NODE_RANK']):03}", int(sys.argv[1])
    folder = pathlib.Path(os.environ["GPUFLEET_CHECKPOINT_DIR"])
    (folder / "members").mkdir(exist_ok=True)
    mine = (folder / "members" / me).open("a+")
    fcntl.flock(mine, fcntl.LOCK_EX)
    mine.truncate(0)
    mine.write(str(os.getpid()))
    mine.flush()
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))

    def write(path, document):
        fresh = path.with_name(f".{path.name}.{me}")
        fresh.write_text(json.dumps(document))
        fresh.rename(path)

    def read(name):
        try:
            return json.loads((folder / name).read_text())
        except FileNotFoundError:
            return {}

    def lives(path):
        if path.name == me:
            return True
        with path.open("a+") as other:
            try:
                fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: two who look at once are not taken for its owner
            except BlockingIOError:
                return True
        return False

    def living():
        return {path.name: int(path.read_text() or 0) for path in sorted((folder / "members").iterdir()) if lives(path)}

    def saved():
        steps = [int(path.parent.name[5:]) for path in folder.glob("step-*/0.json")]
        return max(steps, default=int(os.environ["GPUFLEET_RESUME_STEP"]))

    def save(step):
        target = folder / f"step-{step}"
        target.mkdir(exist_ok=True)
        (target / "shard").write_text("x" * 10)
        write(target / "0.json", {"shards": 1, "files": [{"shard": 0, "file": "shard", "bytes": 10}]})

    print(f"{me} is {os.getpid()}, begins at {os.environ['GPUFLEET_RESUME_STEP']}", flush=True)
    told, last = 0, 0
    while not (gang := read("gang")).get("over"):
        if gang.get("generation", 0) != told and me in gang["members"]:
            told, last = gang["generation"], gang["from"]
            print(f"{told}: {' '.join(gang['members'])} from {last}", flush=True)
        if me in gang.get("members", {}) and gang["step"] > last:
            time.sleep(0.01)
            last = gang["step"]
            write(folder / f"ack-{me}", [told, last])
        there = living()
        if min(there) != me or len(there) < least:
            time.sleep(0.01)
        elif there != gang.get("members"):
            step = saved()
            gang = {"generation": gang.get("generation", 0) + 1, "members": there, "from": step, "step": step + 1}
            with (folder / "history").open("a") as history:
                history.write(json.dumps(gang) + "\\n")
            write(folder / "gang", gang)
        elif all(read(f"ack-{name}") == [gang["generation"], gang["step"]] for name in there):
            if gang["step"] % 10 == 0 or asked:
                asked.clear()
                save(gang["step"])
            write(folder / "gang", {**gang, "step": gang["step"] + 1, "over": (folder / "finish").exists()})
        else:
            time.sleep(0.01)
    print("done", flush=True)
"""


class Gang:
    """An elastic job under a console's loop. `folder` is where its attempts save their work."""

    def __init__(
        self,
        console: Any,
        folder: Callable[[Job], Path],
        *,
        least: int,
        most: int,
        gpus: int,
        guaranteed: int,
        launch: dict[str, Any] | None = None,
        patience: float = 60,
    ) -> None:
        self.console, self.patience = console, patience
        role = {"name": "worker", "min": least, "max": most, "gpus": gpus}
        spec = {"roles": [role], "grace_s": 20, "checkpoint": {"interval_s": 60, "save_s": 1, "restore_s": 1}}
        launch = launch or {"command": [PYTHON, "-c", textwrap.dedent(TRAIN), str(least)], "in_place": True}
        self.owner = leaf("owner", guaranteed)
        self.job = submit(leaf("borrower"), gpus=gpus, workers=least, at=now(), spec=spec, name="train", launch=launch)
        self.folder = folder(self.job)

    def history(self) -> list[dict[str, Any]]:
        try:
            return [json.loads(line) for line in (self.folder / "history").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def until(self, workers: int, *, lost: int = 0, what: str) -> dict[str, int]:
        """Wait for so many that train together and are what the job holds; `lost` is a process that is not among them any more."""

        def there() -> dict[str, int] | None:
            self.console.tick()
            job = Job.objects.get(pk=self.job.pk)
            held = set(Placement.objects.filter(job=job, until__isnull=True, joining=False).values_list("worker", flat=True))
            history = self.history()
            members: dict[str, int] = history[-1]["members"] if history else {}
            whole = job.state == JobState.RUNNING and {f"worker-{index:03}" for index in held} == set(members)
            return members if whole and len(members) == workers and lost not in members.values() else None

        found: dict[str, int] = self.wait(there, what=what)
        return found

    def wait(self, check: Callable[[], Any], *, what: str) -> Any:
        try:
            return wait_until(check, seconds=self.patience, what=what)
        except AssertionError as fault:
            raise AssertionError(f"{fault}: {self.story()}") from None

    def story(self) -> str:
        return f"{self.history()[-3:]} {list(self.job.events.order_by('-id').values_list('cause', flat=True)[:4])}"

    def saved(self, step: int) -> None:
        """Wait until it has saved a step after that one."""
        wait_until(lambda: self.console.tick() or any(one > step for one in self.steps()), seconds=self.patience, what=f"it to save after {step}")

    def steps(self) -> list[int]:
        return sorted(int(path.parent.name[5:]) for path in self.folder.glob("step-*/0.json"))

    def finish(self) -> Attempt:
        """It ends, and what it did is told: one attempt, each generation from what was saved last, and a ledger of what each worker held."""
        (self.folder / "finish").touch()
        self.console.until(self.job, JobState.COMPLETED)
        attempt = Attempt.objects.get(job=self.job)
        history = self.history()
        assert all(later["from"] >= earlier["from"] for earlier, later in pairwise(history))
        assert all(one["from"] in {0, *self.steps()} for one in history)
        assert Checkpoint.objects.filter(attempt=attempt, verified_at__isnull=False).exists()
        kinds = set(Order.objects.filter(attempt=attempt).values_list("kind", flat=True))
        assert kinds == {OrderKind.START, OrderKind.RESIZE}
        assert not Order.objects.filter(done_at__isnull=True).exists()
        held = Placement.objects.filter(job=self.job, gpu__isnull=False).values_list("worker", "gpu_milli", "since", "until")
        charged = LedgerEntry.objects.filter(job=self.job.public_id).values_list("worker", "gpu_milli", "since", "until")
        assert gpu_time(charged) == gpu_time(held), "charged for what each worker held, and for nothing in between"
        assert not fleet_faults()
        return attempt


def gpu_time(rows: Iterable[tuple[int, int, datetime, datetime | None]]) -> dict[int, list[tuple[datetime, int]]]:
    """By worker: the moments at which it holds more or less, and how much that is."""
    found: dict[int, Counter[datetime]] = defaultdict(Counter)
    for worker, milli, since, until in rows:
        assert until is not None, "it is over"
        found[worker][since] += milli
        found[worker][until] -= milli
    return {worker: sorted((at, step) for at, step in steps.items() if step) for worker, steps in found.items()}


def grown_shrunk_and_repaired(gang: Gang, *, most: int, lose: Callable[[Node, int], object], saves: bool = True) -> Attempt:
    """Whose worker is killed, who shrinks for a team's guarantee, whose node goes down, and who goes on all the while in one attempt.

    `saves`: its back-end can tell those who stay to save their work.
    """
    first = gang.until(most, what="all to train")
    gang.saved(0)

    last = max(first)
    os.kill(first[last], signal.SIGKILL)
    repaired = gang.until(most, lost=first[last], what="another to join for the one that was killed")
    assert {**repaired, last: first[last]} == first

    before = gang.steps()[-1]
    urgent = submit(gang.owner, gpus=gang.job.spec["roles"][0]["gpus"], at=now(), name="urgent", launch={"command": ["sleep", "600"]})
    shrunk = gang.until(most - 1, what="it to shrink for a guarantee")
    assert shrunk.items() <= repaired.items()
    assert not saves or gang.history()[-1]["from"] > before, "it saved before it shrank"
    gang.console.until(urgent, JobState.RUNNING)

    gang.saved(gang.steps()[-1])
    least = min(shrunk)
    worker = int(least.rpartition("-")[2])
    node = Node.objects.filter(placements__job=gang.job, placements__worker=worker, placements__until__isnull=True).distinct().get()
    lose(node, shrunk[least])
    moved = gang.until(most - 1, lost=shrunk[least], what="a spare to join")
    assert {**moved, least: shrunk[least]} == shrunk
    assert Placement.objects.filter(job=gang.job, worker=worker, until__isnull=True, node__spare=True).exists()
    attempts_stop(stops=[Stop(urgent.pk, JobState.CANCELLED, "cancelled", "Enough.", grace_seconds=1)], now=now())
    grown = gang.until(most, what="it to grow again")
    assert moved.items() <= grown.items()
    gang.saved(gang.steps()[-1])
    return gang.finish()
