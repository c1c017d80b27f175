"""What was promised is verified on the node, by a real Slurm that runs the prolog and epilog: only NVIDIA's program is stood in for."""

import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from glob import glob
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command

from gpufleet.cli import main
from gpufleet.core.times import now
from scheduler.backends.slurm import on_node
from scheduler.models import Attempt, Health, JobState, Node, SlurmCluster
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from tests.invariants import fleet_faults
from tests.scheduler.backends.test_slurm_end_to_end import console, job_on  # noqa: F401 - a fixture
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
NODES = ("gpu001", "gpu002", "gpu003")
# Whom the console's jobs run as in these tests, and that user's command.
USER = "nobody" if os.getuid() == 0 else pwd.getpwuid(os.getuid()).pw_name
PROLOG = ["gpufleet", "slurm", "prolog", "--user", USER]
SMI = """\
#!/bin/sh
case "$1" in
  --query-gpu=*) cat {d}/gpus.$SLURMD_NODENAME ;;
  --query-compute-apps=*) cat {d}/apps.$SLURMD_NODENAME ;;
esac
"""


class Verified(Slurm):
    """Nodes that verify. `says` is what nvidia-smi shows of their GPUs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.chmod(0o755)
        self.says()
        smi = folder / "nvidia-smi"
        smi.write_text(SMI.format(d=folder))
        smi.chmod(0o755)
        (folder / "scratch").mkdir()
        main([*PROLOG, "--write", f"{folder}/etc", "--nvidia-smi", str(smi), "--scratch", f"{folder}/scratch", "--unconfined"])
        # Numbers that no other Slurm on this machine has: an epilog ends what runs on its node under the number of its job.
        more = f"Prolog={folder}/etc/*\nEpilog={folder}/etc/verify\nPrologFlags=Alloc\nFirstJobId=700000\n"
        super().__init__(nodes=len(NODES), gpus=8, more=more)

    def says(self, *nodes: str, gpus: int = 8, mig: str = "Disabled", mib: int = 3, apps: str = "") -> None:
        for name in nodes or NODES:
            (self.folder / f"gpus.{name}").write_text("".join(f"{index}, GPU-{index}, {mig}, {mib}\n" for index in range(gpus)))
            (self.folder / f"apps.{name}").write_text(apps)

    def resume(self) -> None:
        for name in self.names:  # one that is not drained fails the call
            self.sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    folder = Path(tempfile.mkdtemp(prefix="gf-"))  # not pytest's: jobs run as another user
    server = Verified(folder)
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def verified(slurm, console) -> Iterator[Verified]:  # noqa: F811
    there = console.settings
    SlurmCluster.objects.create(cluster_id=console.cluster, conf=there.conf, user=there.user, folder=there.folder, tag=there.tag)
    yield slurm
    slurm.says()
    slurm.resume()


def test_a_promise_that_holds_runs_and_leaves_nothing(verified, console):  # noqa: F811
    mark = verified.dir / "shared/left"
    mark.parent.chmod(0o777)
    scratch = verified.folder / "scratch"
    scratch.chmod(0o777)
    # It leaves a process in a session of its own and a folder that leads out of the scratch.
    text = f'mkdir "{scratch}/$SLURM_JOB_ID" && ln -s /etc "{scratch}/$SLURM_JOB_ID/out"; setsid sleep 300 >/dev/null 2>&1 & echo $! > {mark}'
    job = job_on(text, gpus=2)

    console.until(job, JobState.COMPLETED)

    pid = int(mark.read_text())
    wait_until(lambda: not verified._alive(pid), what="the process that it left to be ended")
    wait_until(lambda: list(scratch.iterdir()) == [], what="its scratch to be removed")
    assert Path("/etc/passwd").exists()
    wait_until(lambda: verified.idle() == set(verified.names), what="no node to be drained")
    assert not fleet_faults()


def test_a_driver_that_does_not_answer_keeps_no_process_of_a_job(verified, console):  # noqa: F811
    mark, go = verified.dir / "shared/kept", verified.dir / "shared/go"
    mark.parent.chmod(0o777)
    job = job_on(f"setsid sleep 300 >/dev/null 2>&1 & echo $! > {mark}; while [ ! -e {go} ]; do sleep 0.1; done", gpus=2)
    wait_until(lambda: console.tick() or (mark.exists() and mark.read_text()), what="its script to run, behind the prolog")
    for name in NODES:
        (verified.folder / f"gpus.{name}").unlink()
    go.touch()

    console.until(job, JobState.COMPLETED)

    wait_until(lambda: not verified._alive(int(mark.read_text())), what="the process that it left to be ended")
    wait_until(lambda: "end check" in verified.sh("sinfo", "-h", "-R", "-o", "%E"), seconds=30, what="the node to be drained")


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ({"gpus": 0}, "devices", "GPU 0 does not answer."),
        ({"mig": "Enabled"}, "mig", "GPU 0 is split with MIG; whole GPUs are promised."),
        ({"apps": "GPU-0, 4242\n"}, "leftover", "Process 4242 already uses GPU 0."),
    ],
    ids=["devices", "mig", "leftover"],
)
def test_a_promise_that_does_not_hold_is_refused_with_its_reason(verified, console, says, code, words):  # noqa: F811
    verified.says("gpu001", **says)
    job = job_on("sleep 300", gpus=2)

    refused = wait_until(lambda: console.tick() or Attempt.objects.filter(job=job, outcome="lost").first(), seconds=25, what="it to be refused")

    node = Node.objects.get(health=Health.SUSPECT, health_reason=f"Refused a job ({code}): {words}")
    assert refused.cause == f"{node.name} refused it ({code}): {words}"
    verified.says()
    again = console.until(job, JobState.RUNNING)
    assert again.failures == 0
    assert not again.attempts.filter(number__gt=1, placements__node=node).exists(), "it is not placed on that node again"
    # Slurm drains a node whose prolog failed; a resume there ends it on both sides.
    wait_until(lambda: slurm_nodes_reconcile(now=now()) and Node.objects.get(pk=node.pk).health == Health.DRAINING, what="the drain")
    said = StringIO()
    with pytest.raises(SystemExit):
        call_command("doctor", "--cluster", "hpc", stdout=said)
    assert f"{code}: {words}" in said.getvalue()
    verified.sh("scontrol", "update", f"NodeName={node.name}", "State=RESUME")
    wait_until(lambda: slurm_nodes_reconcile(now=now()) and Node.objects.get(pk=node.pk).health == Health.HEALTHY, seconds=30, what="its return")


def test_memory_that_is_left_drains_the_node_after_the_end(verified, console):  # noqa: F811
    marks = verified.folder / "marks"
    marks.mkdir()
    marks.chmod(0o777)  # the job runs as another user
    began, go = marks / "began", marks / "go"
    job = job_on(f"touch {began}; until [ -e {go} ]; do sleep 0.1; done", gpus=2)
    console.until(job, JobState.RUNNING)
    wait_until(began.exists, what="the job's process: Slurm tells RUNNING while the prolog still looks")
    verified.says(mib=40_000)
    go.touch()

    wait_until(
        lambda: "end leftover: GPU 0 holds 40000 MiB" in verified.sh("sinfo", "-h", "-R", "-o", "%E"), seconds=30, what="the node to be drained"
    )


def test_jobs_of_others_are_not_verified(verified):
    verified.says(gpus=0)
    forged = [f"--comment={HEAD} v9:x"] if os.getuid() == 0 else []  # without root the test submits as the user of gpufleet's jobs
    number = verified.sh("sbatch", "--parsable", *forged, "--gres=gpu:2", "--chdir=/", "--output=/dev/null", "--wrap=true")

    wait_until(lambda: "COMPLETED" in verified.sh("squeue", "-h", "-t", "all", "-j", number, "-o", "%T"), seconds=30, what="it to run")


def test_the_doctor_compares_what_is_installed(verified):
    def said() -> str:
        out = StringIO()
        try:
            call_command("doctor", "--cluster", "hpc", stdout=out)
        except SystemExit:
            return out.getvalue()
        return out.getvalue()

    assert "verification on nodes" not in said()
    program = verified.folder / "etc/verify"
    text = program.read_text()
    program.write_text(text.replace(f'VERSION = "{on_node.VERSION}"', 'VERSION = "0"'))
    try:
        assert "verify is of another version of gpufleet" in said()
    finally:
        program.write_text(text)
    settings = program.with_name(".verify.json")
    kept = settings.read_text()
    visible = program.with_name("notes.txt")
    try:
        settings.write_text(kept.replace(USER, "other"))
        visible.write_text("")
        assert f"is not for jobs of {USER} with the tag" in said()
        assert f"cannot execute {visible}" in said()
    finally:
        visible.unlink(missing_ok=True)
        settings.write_text(kept)


HEAD = "gpufleet ab j-1.1 0 1"


@pytest.mark.parametrize(
    ("comment", "code"),
    [
        (f"{HEAD} v1:gpus=1:cpus=9", "cores: 9 processors are promised, Slurm gave 4."),
        (f"{HEAD} v1:gpus=2:cpus=1", "devices: 2 GPUs are promised, Slurm gave 1."),
        (f"{HEAD} v9:gpus=1", "promise: "),
        (f"{HEAD} v1:$(touch${{IFS}}{{mark}})", "promise: "),
        (f"{HEAD} v1:gpus=1:cpus=1", ""),
        (f"{HEAD} $(touch {{mark}})", ""),  # no promise at all
        (HEAD, ""),
    ],
)
def test_promises_are_read_strictly_and_reach_no_shell(tmp_path, comment, code):
    """As Slurm starts it: with its environment and nothing else."""
    main([*PROLOG, "--write", str(tmp_path), "--nvidia-smi", "", "--unconfined"])
    mark = tmp_path / "owned"
    env = {"SLURM_JOB_COMMENT": comment.replace("{mark}", str(mark)), "SLURM_JOB_ID": "7", "SLURM_JOB_GPUS": "0", "SLURM_JOB_CPUS_PER_NODE": "4(x2)"}
    env["SLURM_JOB_USER"] = USER

    done = subprocess.run([tmp_path / "verify"], env=env, capture_output=True, text=True, timeout=30, check=False)

    assert done.returncode == bool(code), done.stderr
    assert (f"gpufleet-verify 7 start {code}" in done.stderr) == bool(code), done.stderr
    assert not mark.exists()


@pytest.mark.parametrize(
    ("slurm_conf", "cgroup_conf", "said"),
    [
        ("TaskPlugin=task/none", "", "cores: TaskPlugin=task/none pins"),
        ("Include more.conf", "ConstrainCores=yes", "devices: ConstrainDevices=yes is not set"),
        ("Include more.conf", "ConstrainCores=yes\nConstrainDevices=yes # both", ""),
        ("Include more.conf", "ConstrainCores=1\nConstrainDevices=TRUE", ""),
    ],
)
def test_a_promise_that_slurm_does_not_enforce_is_refused(tmp_path, slurm_conf, cgroup_conf, said):
    main([*PROLOG, "--write", str(tmp_path), "--nvidia-smi", ""])
    (tmp_path / "slurm.conf").write_text(slurm_conf)
    (tmp_path / "more.conf").write_text("TaskPlugin = task/affinity,task/cgroup")
    (tmp_path / "cgroup.conf").write_text(cgroup_conf)
    env = {"SLURM_JOB_COMMENT": f"{HEAD} v1:gpus=0:cpus=1", "SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "1"}
    env["SLURM_JOB_USER"] = USER
    env["SLURM_CONF"] = str(tmp_path / "slurm.conf")

    done = subprocess.run([tmp_path / "verify"], env=env, capture_output=True, text=True, timeout=30, check=False)

    assert (done.returncode, said in done.stderr) == (bool(said), True), done.stderr


@pytest.mark.parametrize(
    ("user", "tag", "touched"),
    [(USER, "ab", True), ("mallory", "ab", False), (USER, "cd", False)],
    ids=["of gpufleet", "of another user", "of another console"],
)
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_only_jobs_of_gpufleet_are_verified_and_cleaned(tmp_path, user, tag, touched, kind):
    """Whatever a comment says: the prolog runs as root, and any user can write one."""
    scratch, precious = tmp_path / "scratch", tmp_path / "precious"
    scratch.mkdir()
    precious.mkdir()
    (precious / "kept").touch()
    main([*PROLOG, "--tag", "ab", "--write", str(tmp_path / "etc"), "--nvidia-smi", "", "--scratch", str(scratch), "--unconfined"])
    place = scratch / "987654321"
    {"folder": place.mkdir, "file": place.touch, "link": lambda: place.symlink_to(precious)}[kind]()
    env = {"SLURM_JOB_COMMENT": f"gpufleet {tag} j-1.1 0 1 v9:x", "SLURM_JOB_ID": place.name, "SLURM_JOB_USER": user, "SLURMD_NODENAME": ""}

    def verify(**more: str) -> int:
        return subprocess.run([tmp_path / "etc/verify"], env=env | more, capture_output=True, timeout=30, check=False).returncode

    with subprocess.Popen(["/bin/sleep", "60"], env=env) as process:
        try:
            assert verify(SLURM_SCRIPT_CONTEXT="prolog_slurmd") == touched
            assert verify(SLURM_SCRIPT_CONTEXT="epilog_slurmd") == 0
            if touched:
                assert process.wait(10) == -signal.SIGKILL
            assert (process.poll() is not None, not os.path.lexists(place)) == (touched, touched)
        finally:
            process.kill()
    assert (precious / "kept").exists()


def test_a_folder_of_prologs_shows_slurm_nothing_but_the_program(tmp_path):
    main([*PROLOG, "--write", str(tmp_path)])

    assert glob(f"{tmp_path}/*") == [f"{tmp_path}/verify"]


def test_an_mps_daemon_of_the_node_is_found(tmp_path):
    """A process of that name without a job of its own."""
    daemon = tmp_path / "nvidia-cuda-mps-control"
    daemon.symlink_to("/bin/sleep")
    with subprocess.Popen([daemon, "60"], env={"CUDA_VISIBLE_DEVICES": "0,1"}) as process:
        try:
            wait_until(lambda: any(pid == process.pid and name == "nvidia-cuda-mps" for pid, name, _ in on_node.processes()), what="it to run")
            on_node.check_mps([2, 3])
            with pytest.raises(on_node.Refused, match=f"process {process.pid}"):
                on_node.check_mps([1])
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("given", "promise", "busy", "refusal"),
    [
        # GPU 0 is split in two, so that Slurm's numbers are 0 and 1 for its instances, and 2 and 3 for GPUs 1 and 2.
        ("2-3", "gpus=2:cpus=1", "", ""),
        ("2", "gpus=1:cpus=1", "GPU-2", ""),
        ("2", "gpus=1:cpus=1", "GPU-1", "Process 7 already uses GPU 1."),
        ("1,3", "gpus=1:cpus=1:mig=3g.40gb*1", "GPU-2", "Process 7 already uses GPU 2."),
        ("1,3", "gpus=1:cpus=1:mig=3g.40gb*1", "MIG-0", ""),
        ("1,3", "gpus=1:cpus=1:mig=3g.40gb*1", "MIG-1", "Process 7 already uses the MIG instance MIG-1."),
        ("2", "gpus=1:cpus=1:shard=50", "", ""),
        ("4", "gpus=1:cpus=1", "", "Slurm gave GPUs 4; the node has 4."),
    ],
)
def test_whole_gpus_are_found_behind_a_split_one(tmp_path, monkeypatch, given, promise, busy, refusal):
    """Told by the programs as they print it: the driver knows three GPUs, Slurm numbers four."""
    (tmp_path / "gpus.n1").write_text("0, GPU-0, Enabled, 3\n1, GPU-1, Disabled, 3\n2, GPU-2, Disabled, 3\n")
    (tmp_path / "apps.n1").write_text(f"{busy}, 7\n" if busy else "")
    listed = "".join(f"  MIG 3g.40gb     Device  {number}: (UUID: MIG-{number})\n" for number in range(2))
    (tmp_path / "list").write_text(f"GPU 0: NVIDIA H100 (UUID: GPU-0)\n{listed}GPU 1: NVIDIA H100 (UUID: GPU-1)\n")
    (tmp_path / "sinfo").write_text("#!/bin/sh\necho 'gpu:h100_3g.40gb:2(S:0),gpu:h100:2(S:0)'\n")
    (tmp_path / "nvidia-smi").write_text(SMI.format(d=tmp_path).replace("esac", f"  -L) cat {tmp_path}/list ;;\nesac"))
    for name in ("sinfo", "nvidia-smi"):
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(on_node, "PATHS", str(tmp_path))
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    config = {"nvidia_smi": str(tmp_path / "nvidia-smi"), "confined": False}
    env = {"SLURM_JOB_GPUS": given, "SLURMD_NODENAME": "n1", "SLURM_JOB_CPUS_PER_NODE": "1", "SLURM_JOB_ID": "987654321"}

    with pytest.raises(on_node.Refused, match=re.escape(refusal)) if refusal else nullcontext():
        on_node.prolog(config, env, f"v2:{promise}")
    if ":" not in promise.partition("cpus=1")[2] and not refusal:
        (tmp_path / "apps.n1").write_text("GPU-0, 7\n")  # another's instance: none of its business
        on_node.epilog(config, env, f"v2:{promise}")
