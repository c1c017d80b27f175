"""The whole way of a job on this machine: submitted, started as real processes, put out for a higher class, saved, resumed and completed."""

import sys
import textwrap
from collections.abc import Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import NotFound
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from scheduler.backends.registry import Backends
from scheduler.models import HOLDING, Attempt, Checkpoint, Health, Job, JobState, Node, Order, Placement
from scheduler.selectors.logs import job_log
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.elastic import Gang, grown_shrunk_and_repaired
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import wait_until

pytestmark = pytest.mark.django_db

# Two ranks that count together: each step they meet at rank 0, and on USR1 each saves its shard of the step and leaves with a word. Once they have
# been put out they count on without a pause.
TRAIN = """
    import json, os, signal, socket, sys, time
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    place = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    folder, resume = os.environ["GPUFLEET_CHECKPOINT_DIR"], os.environ["GPUFLEET_RESUME_FROM"]
    step, last, asked = 0, int(sys.argv[1]), []
    if resume:
        step = json.load(open(f"{resume}/shard-{rank}"))["step"]
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
    if rank == 0:
        listener = socket.create_server(place)
        peer = listener.accept()[0]
    else:
        while True:
            try:
                peer = socket.create_connection(place)
                break
            except ConnectionRefusedError:
                time.sleep(0.05)
    print(f"rank {rank} of {world} begins at step {step} on {os.environ['CUDA_VISIBLE_DEVICES']}", flush=True)

    def save():
        target = f"{folder}/step-{step}"
        os.makedirs(target, exist_ok=True)
        text = json.dumps({"step": step})
        open(f"{target}/shard-{rank}", "w").write(text)
        files = [{"shard": rank, "file": f"shard-{rank}", "bytes": len(text)}]
        open(f"{target}/.{rank}", "w").write(json.dumps({"shards": world, "files": files}))
        os.rename(f"{target}/.{rank}", f"{target}/{rank}.json")
        print(f"saved step {step}", flush=True)

    while step < last:
        # Rank 0 says whether this step ends with a checkpoint, so that both save the same one.
        if rank == 0:
            word = b"s" if asked else b"g"
            peer.sendall(word)
        else:
            word = peer.recv(1)
        if not resume:
            time.sleep(0.02)
        step += 1
        if word == b"s":
            save()
            signal.pause()
    print("done", flush=True)
"""


# However long it takes to be seen, it has not ended before that.
ENDS_WHEN_TOLD = """
    import os, sys, time
    while not os.path.exists(sys.argv[1]):
        time.sleep(0.02)
    raise SystemExit(7)
"""


class Console:
    """The loop over the local back-end, by the real clock."""

    def __init__(self, folder: Path, cluster: int) -> None:
        self.folder, self.cluster = folder, cluster
        self.restart()

    def restart(self) -> None:
        """Nothing that the old one remembered is left."""
        self.local = LocalBackend(self.folder, Rules(same_user=True))
        self.backends, self.memory = Backends({self.cluster: self.local}), Memory()

    def tick(self) -> None:
        tick_run(holder="test", now=now(), backends=self.backends, memory=self.memory)

    def until(self, job: Job, *states: str) -> None:
        def there() -> bool:
            self.tick()
            return Job.objects.get(pk=job.pk).state in states

        wait_until(there, seconds=30, what=f"{job.name} is {' or '.join(states)}")

    def end(self) -> None:
        for run in self.local.observe(now=now()):
            self.local.stop(key=run.key, sequence=1 << 20, force=True, now=now())

    def log(self, job: Job, attempt: int, rank: int) -> str:
        try:
            return self.local.logs(key=f"{job.public_id}.{attempt}", role="worker", index=rank, offset=0, limit=1 << 20).text
        except NotFound:
            return ""


@pytest.fixture
def console(tmp_path: Path, settings: Any) -> Iterator[Console]:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("here", backend="local")
    builders.node("machine", of=cluster, gpus=2)
    console = Console(tmp_path, cluster.pk)
    yield console
    console.end()


def command(body: str, *arguments: str) -> dict[str, Any]:
    return {"command": [sys.executable, "-c", textwrap.dedent(body), *arguments]}


def train(steps: int) -> Job:
    spec = {"grace_s": 20, "checkpoint": {"interval_s": 600, "save_s": 1, "restore_s": 1}}
    job = submit(leaf("team", 2), gpus=1, workers=2, at=now(), spec=spec, name="train")
    Job.objects.filter(pk=job.pk).update(launch=command(TRAIN, str(steps)))
    return job


def test_two_ranks_run_are_put_out_save_their_work_resume_and_complete(console: Console) -> None:
    job = train(steps=400)
    console.until(job, JobState.RUNNING)
    wait_until(lambda: all("begins at step 0" in console.log(job, 1, rank) for rank in (0, 1)), seconds=20, what="both ranks met")
    seen = [console.log(job, 1, rank).split(" on ")[1].strip() for rank in (0, 1)]
    held = Placement.objects.filter(job=job, until__isnull=True).order_by("worker").values_list("gpu__uuid", flat=True)
    assert seen == list(held)

    urgent = submit(leaf("team", 2), gpus=2, at=now(), name="urgent", job_class="interactive")
    Job.objects.filter(pk=urgent.pk).update(launch=command("import time; print('urgent'); time.sleep(1)"))
    console.until(job, JobState.CHECKPOINTING)
    assert set(Placement.objects.filter(until__isnull=True).values_list("job", flat=True)) == {job.pk}, "held until it has left"
    console.until(urgent, JobState.COMPLETED)
    first = Attempt.objects.get(job=job, number=1)
    assert first.outcome == "preempted"
    assert first.cause.startswith(f"{urgent.public_id} has a higher class")
    saved = Checkpoint.objects.get(job=job, verified_at__isnull=False)
    assert 0 < saved.step < 400
    assert f"saved step {saved.step}" in console.log(job, 1, 0)
    assert first.ended_at is not None
    assert first.stop_asked_at is not None
    assert first.ended_at - first.stop_asked_at < timedelta(seconds=15), "it went when it had saved, not when its grace was over"

    console.until(job, JobState.RUNNING, JobState.COMPLETED)
    console.until(job, JobState.COMPLETED)

    assert f"begins at step {saved.step}" in console.log(job, 2, 0)
    assert "done" in console.log(job, 2, 1)
    assert list(Attempt.objects.filter(job=job).order_by("number").values_list("outcome", flat=True)) == ["preempted", "completed"]
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert not Order.objects.filter(done_at__isnull=True).exists()
    assert not fleet_faults()


# Two processes of one worker, each of which says a word when it is told to.
SPEAKS = """
    import os, sys, time
    rank = os.environ["RANK"]
    print(f"rank {rank} begins", flush=True)
    for word in ("one", "two"):
        while not os.path.exists(f"{sys.argv[1]}/{word}"):
            time.sleep(0.02)
        print(f"rank {rank} says {word}", flush=True)
"""


def test_each_rank_of_a_gang_is_followed_alone_and_is_there_when_all_is_over(console: Console, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda _: console.local)
    job = submit(leaf("team", 2), gpus=2, at=now(), name="gang")
    Job.objects.filter(pk=job.pk).update(launch=command(SPEAKS, str(tmp_path)) | {"per": "gpu"})
    job.refresh_from_db()
    console.until(job, JobState.RUNNING)
    offset = 0

    def goes_on(words: str) -> bool:
        nonlocal offset
        part = job_log(job, attempt=None, role="", index=0, rank=1, offset=offset, limit=4096)
        offset = part.next_offset
        return part.text == words

    wait_until(lambda: goes_on("rank 1 begins\n"), seconds=20, what="rank 1 to begin")
    for word in ("one", "two"):
        (tmp_path / word).touch()
        wait_until(partial(goes_on, f"rank 1 says {word}\n"), seconds=20, what=f"rank 1 to say {word}")
    console.until(job, JobState.COMPLETED)

    for rank in (0, 1):
        log = job_log(job, attempt=None, role="", index=0, rank=rank, offset=0, limit=4096)
        assert (log.text, log.ended) == (f"rank {rank} begins\nrank {rank} says one\nrank {rank} says two\n", True)
    assert len(job_log(job, attempt=None, role="", index=0, offset=0, limit=4096).text.splitlines()) == 6


def test_a_console_that_comes_back_finds_what_ran_on_and_what_ended_meanwhile(console: Console, tmp_path: Path) -> None:
    over = tmp_path / "over"
    long, short = (submit(leaf("team", 2), at=now(), name=name) for name in ("long", "short"))
    Job.objects.filter(pk=long.pk).update(launch=command("import time; time.sleep(600)"))
    Job.objects.filter(pk=short.pk).update(launch=command(ENDS_WHEN_TOLD, str(over)))
    for job in (long, short):
        console.until(job, JobState.RUNNING)
    held = list(Placement.objects.filter(job=long, until__isnull=True).values_list("pk", flat=True))
    console.restart()
    over.touch()
    console.until(short, JobState.FAILED)

    assert Attempt.objects.get(job=short).exit_code == 7
    assert Job.objects.get(pk=long.pk).state in HOLDING
    assert list(Placement.objects.filter(job=long, until__isnull=True).values_list("pk", flat=True)) == held
    assert Attempt.objects.filter(job=long).count() == 1
    assert not fleet_faults()


def test_a_gang_is_grown_shrunk_and_repaired_in_place_while_its_healthy_workers_train_on(tmp_path: Path, settings: Any) -> None:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("here", backend="local")
    for name in ("a", "b", "c", "d"):
        builders.node(name, of=cluster, gpus=1, spare=name == "d")
    console = Console(tmp_path, cluster.pk)
    gang = Gang(console, lambda job: tmp_path / "checkpoints" / job.public_id / "1", least=2, most=3, gpus=1, guaranteed=3)

    try:
        attempt = grown_shrunk_and_repaired(gang, most=3, lose=lambda node, _: Node.objects.filter(pk=node.pk).update(health=Health.DOWN))
        assert attempt.outcome == "completed"
    finally:
        console.end()


def test_a_worker_whose_node_is_down_leaves_though_its_gang_goes_on_without_it(tmp_path: Path, settings: Any) -> None:
    """Were it to stay, the next job on its GPU would share it once the node is up again."""
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("here", backend="local")
    for name in ("a", "b", "c"):
        builders.node(name, of=cluster, gpus=1)
    console = Console(tmp_path, cluster.pk)
    gang = Gang(console, lambda job: tmp_path / "checkpoints" / job.public_id / "1", least=2, most=3, gpus=1, guaranteed=3)

    try:
        first = gang.until(3, what="all to train")
        gang.saved(0)
        gone = max(first)
        node = Node.objects.filter(placements__job=gang.job, placements__worker=2, placements__until__isnull=True).distinct()
        Node.objects.filter(pk=node.get().pk).update(health=Health.DOWN)
        left = {name: process for name, process in first.items() if name != gone}

        def has_left() -> bool:
            console.tick()
            return gang.history()[-1]["members"] == left and not Path(f"/proc/{first[gone]}").exists()

        wait_until(has_left, seconds=60, what="it to leave, and the others to train on")
        assert gang.finish().outcome == "completed"
    finally:
        console.end()
