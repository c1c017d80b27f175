"""The whole way of a job on Slurm: submitted, placed by the engine, carried out by Slurm, put out for a higher class, resumed and completed."""

import os
import re
import shlex
import signal
import subprocess
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import CommandError, call_command
from django.urls import reverse

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.backends.registry import Backends, slurm_settings
from scheduler.backends.slurm import logs
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.values import Settings
from scheduler.models import HOLDING, Attempt, Checkpoint, Cluster, Gpu, Job, JobState, Node, Placement, SlurmCluster, SlurmRun
from scheduler.selectors.logs import job_log
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from scheduler.services.jobs.submission import submission_create
from scheduler.services.loop.runs import Stop, attempts_stop
from scheduler.services.loop.tick import Memory, tick_run
from tests import builders
from tests.invariants import fleet_faults
from tests.scheduler.backends.elastic import Gang, grown_shrunk_and_repaired
from tests.scheduler.loop.worlds import leaf, submit
from tests.servers import PROJECT, wait_until
from tests.slurm import Slurm

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


class Console:
    """The loop over a real Slurm, by the real clock."""

    def __init__(self, slurm: Slurm, cluster: int) -> None:
        shared = slurm.dir / "shared"
        shared.mkdir(exist_ok=True)
        user = "nobody" if os.getuid() == 0 else ""
        self.slurm, self.cluster = slurm, cluster
        self.settings = Settings(conf=str(slurm.conf), user=user, folder=str(shared), tag=os.urandom(4).hex())
        self.client = SlurmClient(self.settings)
        self.restart()

    def restart(self) -> None:
        self.slurm_backend = SlurmBackend(self.cluster, self.settings, client=self.client)
        self.backends, self.memory = Backends({self.cluster: self.slurm_backend}), Memory()

    def tick(self) -> None:
        tick_run(holder="test", now=now(), backends=self.backends, memory=self.memory)

    def until(self, job: Job, *states: str) -> Job:
        def there() -> Job | None:
            self.tick()
            return Job.objects.filter(pk=job.pk, state__in=states).first()

        return wait_until(there, seconds=60, what=f"{job.name} to be {' or '.join(states)}")

    def alive(self) -> list[str]:
        return sorted(job.comment.split(" ")[2] for job in self.client.jobs() if self.settings.tag in job.comment and not job.ended)


@pytest.fixture
def console(slurm: Slurm, settings: Any) -> Iterator[Console]:
    settings.SCHEDULER = {**settings.SCHEDULER, "MIN_RUNTIME_S": 0, "HYSTERESIS_S": 0}
    cluster = builders.cluster("hpc", backend="slurm")
    for name in slurm.names:
        builders.node(name, of=cluster, gpus=8)
    console = Console(slurm, cluster.pk)
    yield console
    console.client.cancel([job.id for job in console.client.jobs() if console.settings.tag in job.comment and not job.ended])
    wait_until(lambda: len(slurm.idle()) == len(slurm.names), seconds=30, what="all nodes to be idle")


def job_on(text: str, *, workers: int = 1, gpus: int = 8, **more: Any) -> Job:
    spec = {"roles": [{"name": "worker", "min": workers, "gpus": gpus, "cpus": 2}], **more.pop("spec", {})}
    return submit(leaf("team", 32), gpus=gpus, workers=workers, at=now(), spec=spec, launch={"shell": text}, **more)


def test_a_gang_of_four_nodes_runs_and_completes(console):
    job = job_on('test "$WORLD_SIZE" = 4 && test "$(id -g)" != 0', workers=4)

    console.until(job, JobState.COMPLETED)
    console.tick()

    assert Attempt.objects.get(job=job).exit_code == 0
    assert not Placement.objects.filter(until__isnull=True).exists()
    assert console.alive() == []
    assert not fleet_faults()


def test_a_higher_class_preempts_it_and_it_comes_back(console):
    low = job_on("trap 'exit 1' TERM; while :; do sleep 0.1; done", workers=4, spec={"grace_s": 2}, name="low")
    console.until(low, JobState.RUNNING)

    high = job_on("sleep 1", workers=2, job_class="interactive", name="high")
    console.until(high, JobState.COMPLETED)
    console.until(low, JobState.RUNNING)

    assert Attempt.objects.get(job=low, number=1).outcome == "preempted"
    assert Attempt.objects.filter(job=low).count() == 2
    assert not fleet_faults()


@pytest.mark.parametrize("where", ["shared", "on its node"])
def test_each_rank_of_a_gang_is_followed_alone_and_is_there_when_all_is_over(console, monkeypatch, where):
    """Its lines are numbered by the ranks' own shells, or by srun, where another node keeps the log."""
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda _: console.slurm_backend)
    monkeypatch.setattr(logs, "GATHERED_EACH", 0.0)
    if where != "shared":
        local = console.slurm.dir / "rank logs"
        local.mkdir(exist_ok=True)
        local.chmod(0o1777)
        console.settings = console.client.settings = replace(console.settings, node_logs=str(local))
        console.restart()
    text = 'echo "rank $RANK begins"; until [ -e "$GPUFLEET_CHECKPOINT_DIR/go" ]; do sleep 0.1; done; echo "rank $RANK ends"'
    job = job_on(text, workers=2, gpus=2)
    Job.objects.filter(pk=job.pk).update(launch={"shell": text, "per": "gpu"})
    job.refresh_from_db()
    console.until(job, JobState.RUNNING)

    def said(rank: int) -> str:
        return job_log(job, attempt=None, role="", index=0, rank=rank, offset=0, limit=4096).text

    wait_until(lambda: [said(rank) for rank in range(4)] == [f"rank {rank} begins\n" for rank in range(4)], what="all ranks to begin")
    (Path(SlurmRun.objects.get().state["checkpoints"]) / "go").touch()
    console.until(job, JobState.COMPLETED)

    assert [said(rank) for rank in range(4)] == [f"rank {rank} begins\nrank {rank} ends\n" for rank in range(4)]
    whole = [job_log(job, attempt=None, role="", index=index, offset=0, limit=4096).text for index in (0, 1)]
    assert [len(text.splitlines()) for text in whole] == [4, 4]


# Saves when it is asked to, and at once where it has been resumed before; the third attempt has nothing left to do.
SAVES = """
place="$GPUFLEET_CHECKPOINT_DIR/step-$((GPUFLEET_RESUME_STEP + 1))"
save() {
  mkdir -p "$place"
  echo x > "$place/shard-$RANK"
  printf '{"shards": %s, "files": [{"shard": %s, "file": "shard-%s", "bytes": 2}]}' "$WORLD_SIZE" "$RANK" "$RANK" > "$place/.$RANK"
  mv "$place/.$RANK" "$place/$RANK.json"
}
trap save USR1
trap 'exit 1' TERM
touch "$GPUFLEET_CHECKPOINT_DIR/up-$RANK"
test "$GPUFLEET_RESUME_STEP" != 1 || save
until [ "$GPUFLEET_RESUME_STEP" -ge 2 ]; do sleep 0.1; done
"""


def test_a_gang_goes_on_from_its_checkpoints_after_a_preemption_and_without_a_node_that_goes_down(console):
    values = {name: getattr(console.settings, name) for name in ("conf", "user", "folder", "tag")}
    SlurmCluster.objects.create(cluster_id=console.cluster, changed_at=now(), **values)
    low = job_on(SAVES, workers=3, spec={"grace_s": 20, "checkpoint": {"interval_s": 600}}, name="low")
    console.until(low, JobState.RUNNING)
    up = f"gpufleet-{console.settings.tag}/checkpoints/{low.public_id}/1/up-*"
    wait_until(lambda: len(list(Path(console.settings.folder).glob(up))) == 3, what="its ranks to be ready to save")
    high = job_on("sleep 1", workers=2, job_class="interactive", name="high")
    console.until(high, JobState.COMPLETED)
    second = wait_until(
        lambda: console.tick() or Checkpoint.objects.filter(attempt__job=low, attempt__number=2, verified_at__isnull=False, step=2).first(),
        seconds=60,
        what="the second attempt to have saved",
    ).attempt
    gone = Placement.objects.filter(attempt=second, until__isnull=True).order_by("pk").values_list("node__name", flat=True)[0]
    console.slurm.end(f"slurmd.{gone}", signal.SIGKILL)  # alive, it would report for service before anybody looks
    console.slurm.sh("scontrol", "update", f"NodeName={gone}", "State=DOWN", "Reason=gone")
    try:
        wait_until(lambda: slurm_nodes_reconcile(now=now()), seconds=30, what="the loss of its node to be known")
        console.until(low, JobState.COMPLETED)
    finally:
        console.slurm.start_node(gone)
        console.slurm.sh("scontrol", "update", f"NodeName={gone}", "State=RESUME", check=False)

    attempts = Attempt.objects.filter(job=low).order_by("number")
    assert [one.resumed_from.step if one.resumed_from else 0 for one in attempts] == [0, 1, 2]
    first, middle, last = (one.outcome for one in attempts)
    assert (first, last) == ("preempted", "completed")
    assert middle in ("lost", "moved")  # Slurm's word of the job, or the scheduler's of the node, whichever comes first
    assert gone not in Placement.objects.filter(attempt=attempts[2]).values_list("node__name", flat=True)
    assert not fleet_faults()


def test_a_gang_is_grown_shrunk_and_repaired_in_place_while_its_healthy_workers_train_on(console):
    values = {name: getattr(console.settings, name) for name in ("conf", "user", "folder", "tag")}
    SlurmCluster.objects.create(cluster_id=console.cluster, changed_at=now(), **values)
    Node.objects.filter(name=console.slurm.names[-1]).update(spare=True)
    top = Path(console.settings.folder) / f"gpufleet-{console.settings.tag}" / "checkpoints"
    gang = Gang(console, lambda job: top / job.public_id / "1", least=2, most=3, gpus=8, guaranteed=24)
    gone = []

    def lose(node: Node, process: int) -> None:
        """The machine is off: its slurmd is gone, and so is what ran there."""
        gone.append(node.name)
        console.slurm.end(f"slurmd.{node.name}", signal.SIGKILL)
        console.slurm.sh("scontrol", "update", f"NodeName={node.name}", "State=DOWN", "Reason=gone")
        os.kill(process, signal.SIGKILL)
        wait_until(lambda: slurm_nodes_reconcile(now=now()), seconds=30, what="the loss of its node to be known")

    try:
        assert grown_shrunk_and_repaired(gang, most=3, lose=lose).outcome == "completed"
    finally:
        for name in gone:
            console.slurm.start_node(name)
            console.slurm.sh("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)


def test_each_of_an_array_of_200_runs_once_and_one_that_fails_is_told(console):
    ran = console.slurm.dir / "shared" / "ran"
    ran.parent.chmod(0o777)
    ran.unlink(missing_ok=True)
    everything = Access(SYSTEM, (Grant("", frozenset(Can)),))
    shell = f'echo "$GPUFLEET_JOB" >> {ran}; test "$AT" != 7'
    described = {"name": "sweep", "quota": leaf("team", 32).path, "gpus": 1, "limit_s": 600, "launch": {"shell": shell}}
    jobs = submission_create(access=everything, description={**described, "array": {"grid": {"AT": list(range(200))}}}, now=now(), actor=SYSTEM)

    wait_until(lambda: console.tick() or not Job.objects.filter(ended_at__isnull=True).exists(), seconds=300, what="all of them to end")

    assert sorted(ran.read_text().split()) == sorted(job.public_id for job in jobs)
    ends = dict(Job.objects.filter(array=jobs[0].array).values_list("array_index", "state"))
    assert ends == {place: JobState.FAILED if place == 7 else JobState.COMPLETED for place in range(200)}
    assert not Attempt.objects.exclude(number=1).exists()
    assert console.alive() == []
    assert not fleet_faults()


def test_a_job_past_its_limit_is_asked_to_leave_and_ends(console):
    job = job_on("trap 'exit 7' TERM; while :; do sleep 0.1; done", workers=2, spec={"grace_s": 5}, limit_seconds=2)

    console.until(job, JobState.FAILED)

    assert "limit" in Attempt.objects.get(job=job).cause
    wait_until(lambda: console.alive() == [], what="its Slurm jobs to be gone")
    assert not fleet_faults()


def test_a_console_that_was_away_finds_what_runs_and_what_ended(console):
    over = console.slurm.dir / "shared" / "over"
    stays, ends = job_on("sleep 300", gpus=4, name="stays"), job_on(f"until [ -e {over} ]; do sleep 0.1; done; exit 4", gpus=4, name="ends")
    for job in (stays, ends):
        console.until(job, JobState.RUNNING)

    console.restart()
    over.touch()
    console.until(ends, JobState.FAILED)

    assert Attempt.objects.get(job=ends).exit_code == 4
    assert Job.objects.get(pk=stays.pk).state in HOLDING
    assert Attempt.objects.filter(job=stays).count() == 1
    assert not fleet_faults()


def test_a_cancelled_job_is_gone_from_slurm(console):
    job = job_on("sleep 300", workers=2, spec={"grace_s": 1})
    console.until(job, JobState.RUNNING)
    reach = console.slurm_backend.reach(key=f"{job.public_id}.1")
    assert reach.host == "127.0.0.1"
    as_user = ["runuser", "-u", reach.user, "--"] if os.getuid() == 0 else []
    said = console.slurm.sh(*as_user, *reach.shell.replace("--pty bash -i", "--chdir=/ printenv SLURM_JOB_ID").split())
    assert set(said.split()) == {reach.shell.split()[1].partition("=")[2]}

    attempts_stop(stops=[Stop(job.pk, JobState.CANCELLED, "cancelled", "Wrong data.", grace_seconds=1)], now=now())
    console.until(job, JobState.CANCELLED)

    wait_until(lambda: console.alive() == [], what="its Slurm jobs to be gone")
    console.tick()
    assert console.slurm_backend.reach(key=f"{job.public_id}.1") is None
    assert not fleet_faults()


@pytest.fixture
def shared(slurm):
    folder = slurm.dir / "shared"
    folder.mkdir(exist_ok=True)
    return folder


def inventory(*words: object) -> str:
    out = StringIO()
    call_command("inventory", *map(str, words), stdout=out)
    return out.getvalue()


def connect(slurm, shared, **more: str) -> str:
    user = ["--user", "nobody"] if os.getuid() == 0 else []
    options = [word for name, value in more.items() for word in (f"--{name}", value)]
    return inventory("connect-slurm", "--cluster", "hpc", "--conf", slurm.conf, "--folder", shared, *user, *options)


def test_a_cluster_is_connected_and_imported_and_a_second_import_changes_nothing(slurm, shared):
    steps = connect(slurm, shared)
    types = ("--gpu-type", "h100=H100-SXM-80GB:81559")
    first = inventory("slurm", "--cluster", "hpc", *types, "--apply")
    again = inventory("slurm", "--cluster", "hpc", *types, "--apply")

    of_steps = [line for line in steps.splitlines()[:-1] if not line.startswith(" ")]
    assert [line.split(None, 1)[1].split("  ")[0].strip() for line in of_steps if line.startswith("ok")] == [
        "controller", "credentials", "version", "nodes", "nodes answer", "partition", "account", "user", "folder", "clock", "submission",
    ]  # fmt: skip
    assert [line.split()[:2] for line in of_steps if not line.startswith("ok")] == [["warning", "verification"]], "a Slurm without a prolog"
    assert "Applied." in first
    assert "Nothing to change." in again
    assert Gpu.objects.filter(node__cluster__name="hpc").count() == 32
    assert Node.objects.get(name="gpu003").domain.path == "spine/leaf1"
    assert SlurmCluster.objects.get().cluster.backend == "slurm"
    assert AuditEntry.objects.filter(action="slurm.connect").count() == 1


@pytest.mark.parametrize(
    ("wrong", "words"), [({"partition": "none"}, "no partition none"), ({"user": "root"}, "never run as root"), ({"folder": "/none"}, "/none")]
)
def test_a_step_that_fails_is_named_and_nothing_is_kept(slurm, shared, wrong, words, capsys):
    out = StringIO()
    base = {"conf": str(slurm.conf), "folder": str(shared), "user": "nobody" if os.getuid() == 0 else ""}
    options = [word for name, value in (base | wrong).items() for word in (f"--{name}", value)]
    with pytest.raises(CommandError):
        call_command("inventory", "connect-slurm", "--cluster", "hpc", *options, stdout=out)

    assert words in next(line for line in out.getvalue().splitlines() if line.startswith("failed"))
    assert not SlurmCluster.objects.exists()
    assert not Cluster.objects.exists()


def test_a_type_of_gres_that_nobody_named_is_asked_for(slurm, shared):
    connect(slurm, shared)

    with pytest.raises(CommandError, match="--gpu-type h100=NAME"):
        inventory("slurm", "--cluster", "hpc")


SECTION = (PROJECT / "docs/operate/slurm.md").read_text().partition("## Add a cluster")[2].partition("\n## ")[0]
STEP = re.compile(r"^ {7}(gpufleet .*)$", re.MULTILINE)
FOLDER = re.compile(r"`(install -d [^`]*)`")
FIELD = re.compile(r"^ {3}\| ([A-Z][a-z ]+) \| `([^`]+)` \|$", re.MULTILINE)
TYPE = re.compile(r"`(\w+)` is\s+`([\w-]+)` with `(\d+)` MiB")


def by_command(here: dict[str, str], operator: Any) -> None:
    """Each command in its order."""
    steps = STEP.findall(SECTION)
    for step in steps:
        for written, meant in here.items():
            step = step.replace(written, meant)
        inventory(*shlex.split(step)[2:])
    assert [step.split()[2] for step in steps] == ["connect-slurm", "slurm", "slurm"]


def by_page(here: dict[str, str], operator: Any) -> None:
    """Each field with the value that is written beside it, found by its label."""
    page = operator.get(reverse("cluster_add"))
    labels = {field.label: field.html_name for field in page.context["form"]}
    sent = {labels[label]: here.get(value, value) for label, value in FIELD.findall(SECTION)}
    assert sorted(sent) == ["cluster", "folder", "partition", "user"]
    added = operator.post(reverse("cluster_add"), sent | {"keep": "1"})
    assert added.status_code == 302, added.context["form"].errors
    ((gres, name, memory),) = TYPE.findall(SECTION)
    preview = operator.post(added.url, {f"name-{gres}": name, f"memory-{gres}": memory})
    operator.post(preview.url)


@pytest.mark.parametrize("way", [by_page, by_command])
def test_the_page_leads_from_nothing_to_the_first_job(way, slurm, personas, monkeypatch, settings):
    """As it is written, with this machine's folder and user in place of those that it names; then its job."""
    monkeypatch.setenv("SLURM_CONF", str(slurm.conf))
    slurm.sh("scontrol", "create", "PartitionName=gpu", "Nodes=ALL", "State=UP", check=False)
    user = "nobody" if os.getuid() == 0 else ""
    settings.SLURM_USERS = (user,) if user else ()
    here = {"/shared/gpufleet": str(slurm.dir / "site"), "--user gpujobs": f"--user {user}" if user else "", "gpujobs": user}
    (made,) = FOLDER.findall(SECTION)
    subprocess.run(shlex.split(made.replace("/shared/gpufleet", here["/shared/gpufleet"])), check=True, timeout=10)

    way(here, personas.client("operator"))

    leaf("team", 32)
    wish = yaml.safe_load(textwrap.dedent("\n".join(SECTION.partition("submit first.yaml`:")[2].split("\n\n")[1].splitlines())))

    made = personas.client("superuser").post("/api/v1/jobs", wish, content_type="application/json")

    assert made.status_code == 201, made.content
    job = Job.objects.get(name="first")
    row = SlurmCluster.objects.select_related("cluster").get()
    backend = SlurmBackend(row.cluster_id, slurm_settings(row))
    backends, memory = Backends({row.cluster_id: backend}), Memory()

    def over() -> bool:
        tick_run(holder="test", now=now(), backends=backends, memory=memory)
        return Job.objects.get(pk=job.pk).state == JobState.COMPLETED

    wait_until(over, seconds=60, what="the first job to complete")
    nodes = Placement.objects.filter(attempt__job=job).order_by("worker").values_list("worker", "node__name").distinct()
    told = [backend.logs(key=f"{job.public_id}.1", role="worker", index=index, offset=0, limit=1000).text for index, _ in nodes]
    assert told == [f"rank {index} of 2 on {name}\n" for index, name in nodes]
