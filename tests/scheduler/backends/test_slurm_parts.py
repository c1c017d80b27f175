"""MIG instances and shares of GPUs on a real Slurm: what is asked for, which of them Slurm gave, and what the nodes verify of it."""

import os
import pwd
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpufleet.cli import main
from gpufleet.core.times import now
from scheduler.backends.base import BackendRefused, StartOrder, WorkerSeat
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.gres import Gres
from scheduler.backends.slurm.printed import indices
from scheduler.backends.slurm.script import parts_of
from scheduler.backends.slurm.values import SlurmNode
from scheduler.engine.model.mig import BOARDS, Instance, valid_layout
from scheduler.hardware.slurm import ASSUMED, KnownType, Split, document_of, packed
from scheduler.models import Attempt, Gpu, GpuMode, Job, JobState, MigInstance, Node, OutsideSeat, Placement, SlurmCluster
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import Console, connect, inventory
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
TYPES = ("--gpu-type", "h100=H100-SXM-80GB:81559")
USER = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
MIG = {"1g.10gb": 7, "3g.40gb": 2}
HBM3 = "nvidia_h100_80gb_hbm3"


def started(**what: Any) -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(leaf=1, **what)
    yield server
    server.stop()


# The driver's program on each node: four GPUs of which two are split, and their instances in the order of Slurm's numbers.
SMI = """\
#!/bin/sh
case "$1" in
  -L) cat {d}/listed.$SLURMD_NODENAME ;;
  --query-gpu=*) printf '0, GPU-0, Disabled, 3\\n1, GPU-1, Disabled, 3\\n2, GPU-2, Enabled, 3\\n3, GPU-3, Enabled, 3\\n' ;;
  --query-compute-apps=*) cat {d}/apps ;;
esac
"""


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="gf-"))  # not pytest's: the prolog reads it for another user's jobs
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def listed(folder: Path, *, without: str = "") -> None:
    devices = [profile for profile, count in MIG.items() if profile != without for _ in range(count)]
    lines = [f"  MIG {profile:15} Device {place:2}: (UUID: MIG-{place})" for place, profile in enumerate(devices)]
    (folder / "listed.gpu001").write_text("\n".join(["GPU 2: NVIDIA H100 80GB HBM3 (UUID: GPU-2)", *lines]) + "\n")
    shutil.copy(folder / "listed.gpu001", folder / "listed.gpu002")
    (folder / "apps").write_text("")


@pytest.fixture(scope="module")
def split(folder) -> Iterator[Slurm]:
    """Nodes that verify what they are to have."""
    smi = folder / "nvidia-smi"
    smi.write_text(SMI.format(d=folder))
    smi.chmod(0o755)
    listed(folder)
    main(["gpufleet", "slurm", "prolog", "--user", USER, "--write", f"{folder}/etc", "--nvidia-smi", str(smi), "--unconfined"])
    more = f"Prolog={folder}/etc/verify\nEpilog={folder}/etc/verify\nPrologFlags=Alloc\nFirstJobId=800000\n"
    yield from started(nodes=2, gpus=2, mig=MIG, shares="mps", more=more)


@pytest.fixture(scope="module")
def sharded() -> Iterator[Slurm]:
    yield from started(nodes=1, gpus=2, shares="shard")


@pytest.fixture(scope="module")
def discovered() -> Iterator[Slurm]:
    yield from started(nodes=1, gpus=2, mig={f"{HBM3}_1g.10gb": 3, f"{HBM3}_7g.80gb": 1})


def site_on(slurm: Slurm, settings: Any, types: tuple[str, ...] = TYPES) -> Console:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    shared = slurm.dir / "shared"
    shared.mkdir(exist_ok=True)
    shared.chmod(0o777)
    connect(slurm, shared)
    inventory("slurm", "--cluster", "hpc", *types, "--apply")
    row = SlurmCluster.objects.get()
    console = Console(slurm, row.cluster_id)
    console.settings = slurm_settings(row)
    console.restart()
    return console


def clear(console: Console) -> None:
    console.client.cancel([job.id for job in console.client.jobs() if not job.ended])
    wait_until(lambda: len(console.slurm.idle()) == len(console.slurm.names), seconds=30, what="all nodes to be idle")


@pytest.fixture
def console(split, settings) -> Iterator[Console]:
    console = site_on(split, settings)
    yield console
    clear(console)


def job_of(role: dict[str, Any], text: str = "sleep 300", *, milli: int = 0, **more: Any) -> Job:
    spec = {"roles": [{"name": "worker", "min": 1, "cpus": 1} | role], **more.pop("spec", {})}
    made = submit(leaf("team", 32), gpus=0, at=now(), spec=spec, launch={"shell": text}, **more)
    Job.objects.filter(pk=made.pk).update(gpus_milli=milli)
    return made


def given(console: Console, job: Job) -> str:
    """What Slurm says that it has."""
    number = next(one.id for one in console.client.jobs() if f" {job.public_id}.1 " in one.comment and not one.ended)
    shown = console.slurm.sh("scontrol", "show", "job", "-d", number)
    found = re.search(r" GRES=(\S+)", shown)
    assert found, shown
    return found[1]


def test_split_gpus_are_imported_as_few_as_can_be_and_left_as_an_operator_knows_them(console):
    node = Node.objects.get(name="gpu001")
    layouts = {gpu.index: sorted(gpu.mig_instances.values_list("start", "profile")) for gpu in node.gpus.all()}

    assert [gpu.mode for gpu in node.gpus.order_by("index")] == [GpuMode.WHOLE, GpuMode.WHOLE, GpuMode.MIG, GpuMode.MIG]
    assert (layouts[0], layouts[1]) == ([], [])
    assert layouts[2] == [(0, "3g.40gb"), (4, "3g.40gb")]
    assert layouts[3] == [(start, "1g.10gb") for start in range(7)]
    assert node.labels == {"h100": "true", "slurm/mps": "true", "slurm/mig-assumed": "true"}
    MigInstance.objects.filter(gpu__node=node, gpu__index=3, start=0).update(start=7)  # an operator says where they are
    told = inventory("slurm", "--cluster", "hpc", *TYPES, "--apply")
    assert "gpu002: Slurm does not tell on which GPUs 7 × 1g.10gb, 2 × 3g.40gb lie." in told, "of the other node nobody has said it"
    assert set(Node.objects.get(pk=node.pk).labels) == {"h100", "slurm/mps"}
    assert MigInstance.objects.filter(gpu__node=node, gpu__index=3, start=7).exists()
    assert "Nothing to change." in inventory("slurm", "--cluster", "hpc", *TYPES, "--apply")


def test_a_job_has_the_instance_that_slurm_gave_it(console):
    """Somebody else holds the first one, of which the console does not know yet; a whole GPU is asked for by its type."""
    slurm = console.slurm
    theirs = ["--gres=gpu:1g.10gb:1", "--chdir=/", "--output=/dev/null", "--wrap=sleep 300"]
    outside, _ = (slurm.sh("sbatch", "--parsable", f"--nodelist={name}", *theirs) for name in slurm.names)
    wait_until(lambda: len(slurm.sh("squeue", "-h", "-t", "RUNNING", "-o", "%i").split()) == 2, what="theirs to run")
    jobs = [job_of({"mig": "1g.10gb"}, name=name, milli=125) for name in ("a", "b")] + [job_of({"gpus": 2}, name="c", milli=2000)]
    for job in jobs:
        console.until(job, JobState.RUNNING)

    told = {job.name: given(console, job) for job in jobs}
    assert told["c"] == "gpu:h100:2(IDX:0-1)"

    def adopted() -> bool:
        console.tick()
        rows = [Placement.objects.get(job=job, until__isnull=True) for job in jobs[:2]]
        # Slurm numbers all of a node through: two whole ones, then seven of 1g, in the order of the inventory.
        return [f"gpu:1g.10gb:1(IDX:{2 + row.mig.start})" for row in rows] == [told["a"], told["b"]]

    wait_until(adopted, what="what Slurm gave to be written down")
    assert not fleet_faults()
    slurm_nodes_reconcile(now=now())
    assert OutsideSeat.objects.get(job__number=outside, gpu__isnull=False).gpu == Gpu.objects.get(node__name="gpu001", index=3)


def test_instances_named_as_the_driver_does_are_imported_asked_for_and_adopted(discovered, settings):
    """As `AutoDetect=nvml` names them. One that fills its GPU lies on it for certain."""
    types = ("--gpu-type", "h100=H100-SXM-80GB:81559", "--gpu-type", f"{HBM3}=H100-SXM-80GB")
    console = site_on(discovered, settings, types)
    try:
        node = Node.objects.get()
        layouts = {gpu.index: sorted(gpu.mig_instances.values_list("start", "profile")) for gpu in node.gpus.filter(mode=GpuMode.MIG)}
        assert layouts == {2: [(0, "7g.80gb")], 3: [(4, "1g.10gb"), (5, "1g.10gb"), (6, "1g.10gb")]}
        assert node.labels == {"h100": "true", "slurm/mig-assumed": "true"}
        seen = console.slurm.dir / "shared"
        ask = f'echo "$CUDA_VISIBLE_DEVICES" > {seen}/devices-$GPUFLEET_JOB; sleep 300'
        jobs = [job_of({"mig": "1g.10gb"}, ask, name=name, milli=125) for name in ("a", "b")] + [
            job_of({"mig": "7g.80gb"}, ask, name="c", milli=1000)
        ]
        for job in jobs:
            console.until(job, JobState.RUNNING)
        assert given(console, jobs[2]) == f"gpu:{HBM3}_7g.80gb:1(IDX:5)"

        def adopted() -> bool:
            console.tick()
            rows = [Placement.objects.get(job=job, until__isnull=True) for job in jobs[:2]]
            return [f"gpu:{HBM3}_1g.10gb:1(IDX:{row.mig.start - 2})" for row in rows] == [given(console, job) for job in jobs[:2]]

        wait_until(adopted, what="what Slurm gave to be written down")
        wait_until(lambda: all((seen / f"devices-{job.public_id}").exists() for job in jobs), what="all of them to begin")
        assert len({(seen / f"devices-{job.public_id}").read_text() for job in jobs}) == 3, "each is shown its own alone"
        assert Placement.objects.get(job=jobs[2], until__isnull=True).mig.gpu.index == 2
        assert not fleet_faults()
    finally:
        clear(console)


def test_an_instance_that_the_driver_does_not_have_is_refused_by_the_node(console, folder):
    listed(folder, without="3g.40gb")
    try:
        job = job_of({"mig": "3g.40gb"}, milli=500)
        lost = wait_until(lambda: console.tick() or Attempt.objects.filter(job=job, outcome="lost").first(), seconds=30, what="it to be refused")
        assert re.fullmatch(r"gpu00. refused it \(mig\): MIG instance 3g\.40gb number . does not exist; the node has 0\.", lost.cause), lost.cause
    finally:
        listed(folder)
        for name in console.slurm.names:
            console.slurm.sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)


@pytest.mark.parametrize(
    ("promise", "env", "code"),
    [
        ("mps=50", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "50"}, ""),
        ("mps=50", {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "100"}, "mps: A limit of 50% is promised, Slurm set 100."),
        ("mps=50", {}, "mps: A limit of 50% is promised, Slurm set none."),
        ("shard=2", {"SLURM_JOB_GPUS": "1,2"}, "devices: A share of one GPU is promised, Slurm gave 2 GPUs."),
        ("shard=2", {"SLURM_JOB_GPUS": "2"}, "mig: Slurm gave a MIG instance; whole GPUs are promised."),
        ("shard=2", {"SLURM_JOB_GPUS": "11"}, "devices: Slurm gave GPUs 11; the node has 11."),
        pytest.param("shard=2", {"SLURM_CONF": "/nowhere"}, "check: sinfo does not tell the GPUs of the node.", marks=pytest.mark.soak),
        ("shard=2", {}, ""),
        ("mps=$(id)", {}, "promise: "),
    ],
)
def test_shares_are_verified(split, folder, promise, env, code):
    node = {"SLURM_CONF": str(split.conf), "SLURMD_NODENAME": "gpu001"}  # both are what slurmd sets
    env = {"SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "1", "SLURM_JOB_CPUS_PER_NODE": "1", "SLURM_JOB_USER": USER} | node | env
    env["SLURM_JOB_COMMENT"] = f"gpufleet ab j-1.1 0 1 v2:gpus=0:cpus=1:{promise}"

    try:
        done = subprocess.run([folder / "etc/verify"], env=env, capture_output=True, text=True, timeout=120, check=False)
    finally:
        split.sh("scontrol", "update", "NodeName=gpu001", "State=RESUME", check=False)  # a node that refuses is drained

    assert (done.returncode, f"start {code}" in done.stderr if code else done.stderr) == ((1, True) if code else (0, "")), done.stderr


def test_shares_by_mps_lie_on_one_gpu_with_their_limit(console):
    place = console.slurm.dir / "shared"
    ask = f'echo "$CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" > {place}/limit-$GPUFLEET_JOB; sleep 300'
    jobs = [job_of({"gpu_share": 0.5}, ask, name=name, milli=500, spec={"sharing": "mps"}) for name in ("a", "b")]
    for job in jobs:
        console.until(job, JobState.RUNNING)
    wait_until(lambda: all((place / f"limit-{job.public_id}").exists() for job in jobs), what="their limits")

    assert {(place / f"limit-{job.public_id}").read_text() for job in jobs} == {"50\n"}
    held = [Placement.objects.get(job=job, until__isnull=True) for job in jobs]
    assert {given(console, job) for job in jobs} == {f"mps:50(IDX:{held[0].gpu.index})"}
    assert held[0].gpu == held[1].gpu
    assert not fleet_faults()


def test_time_slices_are_shards_and_mps_finds_no_place_where_slurm_has_none(sharded, settings):
    console = site_on(sharded, settings)
    try:
        shard = job_of({"gpu_share": 0.3}, name="a", milli=300, job_class="interactive", spec={"sharing": "timeslice"})
        mps = job_of({"gpu_share": 0.3}, name="b", milli=300, spec={"sharing": "mps"})
        console.until(shard, JobState.RUNNING)
        console.tick()

        assert given(console, shard).startswith("shard:2(IDX:"), "0.3 of four are two"
        assert Job.objects.get(pk=mps.pk).state == JobState.QUEUED
        assert not fleet_faults()
    finally:
        clear(console)


def test_a_job_outside_that_holds_shards_takes_their_gpu(sharded, settings):
    console = site_on(sharded, settings)
    theirs = sharded.sh("sbatch", "--parsable", "--gres=shard:1", "--chdir=/", "--output=/dev/null", "--wrap=sleep 300")
    try:
        wait_until(lambda: any(job.running for job in console.client.jobs() if job.id == int(theirs)), what="theirs to run")
        slurm_nodes_reconcile(now=now())
        shown = sharded.sh("scontrol", "show", "job", "-d", theirs)
        (seat,) = OutsideSeat.objects.filter(job__number=theirs, gpu__isnull=False)

        assert indices(shown) == (seat.gpu.index,), shown
    finally:
        clear(console)


@pytest.mark.parametrize(
    ("text", "types", "mps", "shards", "last"),
    [
        ("gpu:h100:2(S:0,1),gpu:1g.10gb:7,shard:h100:8,shard:1g.10gb:6,nic:2", (("h100", 2), ("1g.10gb", 7)), 0, 8, ("1g.10gb", 6)),
        ("gpu:nvidia_h100_80gb_hbm3_3g.40gb:2,mps:100", (("nvidia_h100_80gb_hbm3_3g.40gb", 2),), 100, 0, ("3g.40gb", 1)),
        ("gpu:8", (("", 8),), 0, 0, ("", 7)),
        ("(null)", (), 0, 0, None),
    ],
)
def test_gres_of_a_node_is_read(text, types, mps, shards, last):
    there = Gres.read(text)

    assert (there.types, there.mps, there.shards) == (types, mps, shards)
    assert (there.named(range(99)) or (None,))[-1] == last


@pytest.mark.parametrize("counts", [{"1g.10gb": 7}, {"1g.10gb": 9}, {"1g.10gb": 2, "2g.20gb": 1, "3g.40gb": 1}, {"1g.10gb+me": 2, "4g.40gb": 3}])
def test_instances_are_packed_on_gpus_that_can_hold_them(counts):
    board = BOARDS["H100-80"]
    gpus = packed(board, counts)

    assert all(valid_layout(board, layout) for layout in gpus)
    told = [one.profile for layout in gpus for one in layout]
    assert {profile: told.count(profile) for profile in set(told)} == counts


@pytest.mark.parametrize(
    ("gres", "gpus", "mig", "is_assumed"),
    [
        (f"gpu:{HBM3}:2,gpu:{HBM3}_1g.10gb:14", 4, {2: 7, 3: 7}, True),
        (f"gpu:{HBM3}_7g.80gb:2,gpu:{HBM3}:1", 3, {0: 1, 1: 1}, False),  # each fills its GPU
        (f"gpu:{HBM3}:8", 8, {}, False),
    ],
)
def test_where_instances_lie_is_said_to_be_assumed_where_slurm_leaves_it_open(gres, gpus, mig, is_assumed):
    types = {HBM3: KnownType("H100-SXM-80GB", board="H100-80")}

    def read(names: tuple[str, ...] = ("n1",), **more: Any) -> tuple[Any, tuple[str, ...]]:
        nodes = [SlurmNode(name, "", ("IDLE",), "", 8, 1024, gres) for name in names]
        found = document_of(nodes, "", cluster="hpc", types=types, new_cluster=False, **more)
        return yaml.safe_load(found.text)["nodes"], found.notes

    (row,), notes = read()
    assert (row["gpus"], {one["gpu"]: len(one["instances"]) for one in row.get("mig", ())}) == (gpus, mig)
    assert (row["labels"].get(ASSUMED), bool(notes)) == (("true", True) if is_assumed else (None, False))
    if not is_assumed:
        return
    assert notes == (
        "n1: Slurm does not tell on which GPUs 14 × 1g.10gb lie. They are assumed on as few as can be; an inventory file (mig) corrects that.",
    )
    assert read(tuple("abcdefg"))[1][0].startswith("a, b, c, d, e and 2 more: ")
    # What was assumed is still assumed in the next import, and what an operator has said is not, though it is left as it is.
    places = {one["gpu"]: tuple(Instance(part["start"], part["profile"]) for part in one["instances"]) for one in row["mig"]}
    (again,), notes = read(split={"n1": Split(2, {"1g.10gb": 14}, places)})
    assert "mig" not in again and again["labels"][ASSUMED] == "true" and notes
    elsewhere = {gpu + 1: layout for gpu, layout in places.items()}
    (said,), notes = read(split={"n1": Split(2, {"1g.10gb": 14}, elsewhere)}, labels={"n1": {ASSUMED: "true"}})
    assert "mig" not in said and ASSUMED not in said["labels"] and not notes


def test_what_slurm_can_not_give_is_refused_in_words():
    def asked(seat: WorkerSeat, gres: str) -> str:
        order = StartOrder("k", 1, "j-1", 1, (seat,), {"shell": "true"}, {"roles": [{"name": "worker", "min": 1}], "sharing": "mps"}, "")
        return parts_of(order, lambda _node: gres)[0].gres

    share = WorkerSeat("worker", 0, "n1", (0,), gpu_milli=255)
    assert asked(share, "gpu:2,mps:200") == "mps:26"
    with pytest.raises(BackendRefused, match="no gres/mps on n1"):
        asked(share, "gpu:2")
    with pytest.raises(BackendRefused, match="one GPU, not of several"):
        asked(WorkerSeat("worker", 0, "n1", (0, 1), gpu_milli=500), "gpu:2,mps:200")
    with pytest.raises(BackendRefused, match=r"no GRES for MIG instances of 2g\.20gb"):
        asked(WorkerSeat("worker", 0, "n1", (0,), mig=("2g.20gb",), gpu_milli=250), "gpu:1g.10gb:7")
