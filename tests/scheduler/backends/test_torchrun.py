"""Real torchrun on real back-ends: a gang that torch's own elastic agents hold together is grown, shrunk and repaired while it trains.

PyTorch is no dependency of the tests: `TEST_TORCHRUN` is how a shell starts one that the jobs' user can run.
"""

import os
import signal
import textwrap
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.models import Attempt, Health, Job, JobState, Node, Placement, SlurmCluster
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from scheduler.services.loop.runs import Stop, attempts_stop
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends import test_local_end_to_end, test_slurm_end_to_end
from tests.scheduler.backends.elastic import Gang
from tests.scheduler.loop.worlds import submit
from tests.servers import wait_until
from tests.slurm import Slurm

TORCHRUN = os.environ.get("TEST_TORCHRUN", "")
pytestmark = [pytest.mark.django_db, pytest.mark.skipif(not TORCHRUN, reason="TEST_TORCHRUN names no torchrun")]
# Data-parallel training by hand: gradients are averaged over all ranks each step, rank 0 saves each tenth step, or at once when a rank was sent USR1.
TRAIN = """
    import hashlib, json, os, pathlib, signal, time
    from datetime import timedelta
    import torch
    import torch.distributed as dist

    folder = pathlib.Path(os.environ["GPUFLEET_CHECKPOINT_DIR"])
    me = f"{os.environ['GPUFLEET_ROLE']}-{int(os.environ['NODE_RANK']):03}"
    asked = []
    signal.signal(signal.SIGUSR1, lambda *_: asked.append(1))
    torch.manual_seed(0)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, world = dist.get_rank(), dist.get_world_size()
    model = torch.nn.Linear(8, 1)
    steps = [int(path.parent.name[5:]) for path in folder.glob("step-*/0.json")]
    agreed = torch.tensor([max(steps, default=int(os.environ["GPUFLEET_RESUME_STEP"]))])
    dist.broadcast(agreed, 0)
    step = int(agreed)
    saved = folder / f"step-{step}"
    if step and not saved.exists():
        saved = pathlib.Path(os.environ["GPUFLEET_RESUME_FROM"])
    if step:
        model.load_state_dict(torch.load(saved / "model.pt"))
    members = [None] * world
    dist.all_gather_object(members, (me, os.getppid()))
    print(f"{me} is rank {rank} of {world} from step {step}", flush=True)
    if rank == 0:
        with (folder / "history").open("a") as history:
            history.write(json.dumps({"members": dict(members), "from": step, "ranks": [name for name, _ in members]}) + "\\n")

    def save():
        target = folder / f"step-{step}"
        target.mkdir(exist_ok=True)
        torch.save(model.state_dict(), target / "model.pt")
        body = (target / "model.pt").read_bytes()
        files = [{"shard": 0, "file": "model.pt", "bytes": len(body), "sha256": hashlib.sha256(body).hexdigest()}]
        (target / ".0").write_text(json.dumps({"shards": 1, "files": files}))
        (target / ".0").rename(target / "0.json")

    over = False
    while not over:
        step += 1
        batch = torch.randn(16, 8)
        loss = ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()
        model.zero_grad()
        loss.backward()
        words = torch.tensor([float(bool(asked)), float((folder / "finish").exists())])
        dist.all_reduce(words)
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.data -= 0.05 * parameter.grad / world
        if rank == 0 and (step % 10 == 0 or words[0]):
            save()
        if words[0]:
            asked.clear()
        over = bool(words[1])
        time.sleep(0.02)
    print(f"done at a loss of {loss.item():.4f}", flush=True)
"""
# The first worker holds the list of the others; on one machine every address is that of each, so it is told who that is.
LAUNCH = (
    "export GLOO_SOCKET_IFNAME=lo; exec {torchrun} --nnodes=2:3 --nproc-per-node=1 --max-restarts=1000 --rdzv-backend=c10d"
    ' --rdzv-id=$TORCHELASTIC_RUN_ID --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT --rdzv-conf=is_host=$([ "$NODE_RANK" = 0 ] && echo 1 || echo 0)'
    " --local-addr=127.0.0.1 {train}"
)
Lose = Callable[[Node, int], None]


@pytest.fixture
def launch(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("train")
    for place in (folder, folder.parent, folder.parent.parent):
        place.chmod(place.stat().st_mode | 0o055)
    train = folder / "train.py"
    train.write_text(textwrap.dedent(TRAIN))
    return {"shell": LAUNCH.format(torchrun=TORCHRUN, train=train), "in_place": True}


@pytest.fixture
def on_this_machine(tmp_path: Path, settings: Any, launch: dict[str, Any]) -> Iterator[tuple[Gang, Lose]]:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("here", backend="local")
    for name in ("a", "b", "c", "d"):
        builders.node(name, of=cluster, gpus=1, spare=name == "d")
    console = test_local_end_to_end.Console(tmp_path, cluster.pk)
    folder = tmp_path / "checkpoints"

    def lose(node: Node, _: int) -> None:
        Node.objects.filter(pk=node.pk).update(health=Health.DOWN)

    yield Gang(console, lambda job: folder / job.public_id / "1", least=2, most=3, gpus=1, guaranteed=3, launch=launch, patience=180), lose
    console.end()


@pytest.fixture
def on_slurm(slurm: Slurm, settings: Any, launch: dict[str, Any]) -> Iterator[tuple[Gang, Lose]]:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("hpc", backend="slurm")
    for name in slurm.names:
        builders.node(name, of=cluster, gpus=8)
    console = test_slurm_end_to_end.Console(slurm, cluster.pk)
    values = {name: getattr(console.settings, name) for name in ("conf", "user", "folder", "tag")}
    SlurmCluster.objects.create(cluster_id=console.cluster, changed_at=now(), **values)
    Node.objects.filter(name=slurm.names[-1]).update(spare=True)
    top = Path(console.settings.folder) / f"gpufleet-{console.settings.tag}" / "checkpoints"
    gone = []

    def lose(node: Node, process: int) -> None:
        gone.append(node.name)
        slurm.end(f"slurmd.{node.name}", signal.SIGKILL)
        slurm.sh("scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=gone")
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
        wait_until(lambda: slurm_nodes_reconcile(now=now()), seconds=30, what="the loss of its node to be known")

    yield Gang(console, lambda job: top / job.public_id / "1", least=2, most=3, gpus=8, guaranteed=24, launch=launch, patience=180), lose
    for name in gone:
        slurm.start_node(name)
        slurm.sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
    console.client.cancel([job.id for job in console.client.jobs() if console.settings.tag in job.comment and not job.ended])


@pytest.mark.parametrize("where", ["on_this_machine", pytest.param("on_slurm", marks=pytest.mark.slurm)])
def test_torch_s_agents_train_on_while_workers_come_and_go(where: str, request: pytest.FixtureRequest) -> None:
    gang, lose = request.getfixturevalue(where)
    first = gang.until(3, what="all to train")
    gang.saved(0)

    last = max(first)
    os.kill(first[last], signal.SIGKILL)
    repaired = gang.until(3, lost=first[last], what="another to join for the agent that was killed")
    assert {**repaired, last: first[last]} == first, "the agents of the others live"

    before = gang.steps()[-1]
    urgent = submit(gang.owner, gpus=gang.job.spec["roles"][0]["gpus"], at=now(), name="urgent", launch={"command": ["sleep", "600"]})
    shrunk = gang.until(2, what="it to shrink for a guarantee")
    assert shrunk.items() <= repaired.items()
    assert gang.history()[-1]["from"] > before, "it saved before it shrank"
    gang.console.until(urgent, JobState.RUNNING)
    gang.saved(gang.steps()[-1])

    other = max(shrunk)
    worker = int(other.rpartition("-")[2])
    lose(Node.objects.filter(placements__job=gang.job, placements__worker=worker, placements__until__isnull=True).distinct().get(), shrunk[other])
    moved = gang.until(2, lost=shrunk[other], what="a spare to join")
    assert {**moved, other: shrunk[other]} == shrunk
    assert Placement.objects.filter(job=gang.job, worker=worker, until__isnull=True, node__spare=True).exists()
    attempts_stop(stops=[Stop(urgent.pk, JobState.CANCELLED, "cancelled", "Enough.", grace_seconds=1)], now=now())
    grown = gang.until(3, what="it to grow again")
    assert moved.items() <= grown.items()
    gang.saved(gang.steps()[-1])
    assert gang.finish().outcome == "completed"


@pytest.mark.parametrize("where", ["on_this_machine", pytest.param("on_slurm", marks=pytest.mark.slurm)])
def test_with_the_first_worker_the_rendezvous_is_lost_and_it_restarts_from_what_was_saved(where: str, request: pytest.FixtureRequest) -> None:
    gang, lose = request.getfixturevalue(where)
    first = gang.until(3, what="all to train")
    gang.saved(0)

    node = Node.objects.filter(placements__job=gang.job, placements__worker=0, placements__until__isnull=True).distinct().get()
    os.kill(first["worker-000"], signal.SIGKILL)
    lose(node, first["worker-000"])

    def second() -> Attempt | None:
        gang.console.tick()
        return Attempt.objects.filter(job=gang.job, number=2, resumed_from__isnull=False).first()

    attempt = gang.wait(second, what="a second attempt that resumes")
    gang.folder = gang.folder.parent / "2"
    gang.until(2, what="it to train again, by its minimum")
    assert gang.history()[0]["from"] == attempt.resumed_from.step
    assert Job.objects.get(pk=gang.job.pk).state == JobState.RUNNING
    assert not fleet_faults()
