"""A Slurm of four nodes with a back-end on it, for the tests of one subject each."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState, SeenRun, WorkerSeat
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.looking import FORGOTTEN_FOR
from scheduler.backends.slurm.values import Settings
from tests import builders
from tests.scheduler.backends.scenes import start_order
from tests.servers import accepts, free_port, required, wait_until
from tests.slurm import PATH, Slurm, missing


@pytest.fixture(scope="module")
def slurm() -> Iterator[Slurm]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    server = Slurm(nodes=4, gpus=8)
    yield server
    server.stop()


class Site:
    def __init__(self, slurm: Slurm, **client: Any) -> None:
        shared = slurm.dir / "shared"
        shared.mkdir(exist_ok=True)
        user = "nobody" if os.getuid() == 0 else ""
        self.slurm = slurm
        self.cluster = builders.cluster("hpc", backend="slurm")
        self.settings = Settings(conf=str(slurm.conf), user=user, folder=str(shared), tag=os.urandom(4).hex())
        self.client = SlurmClient(self.settings)
        self.restart()

    def restart(self) -> None:
        """A console that remembers nothing but its database."""
        self.backend = SlurmBackend(self.cluster.pk, self.settings, client=self.client)

    def start(self, key: str = "j-1.1", *, on: Sequence[WorkerSeat], **fields: Any) -> None:
        self.backend.start(replace(start_order(key), workers=tuple(on), **fields), now=now())

    def seen(self, key: str = "j-1.1", later: timedelta = timedelta()) -> SeenRun:
        return next(run for run in self.backend.observe(now=now() + later) if run.key == key)

    def missed(self) -> SeenRun:
        """The run when Slurm has not known it for long enough."""
        assert self.seen().state == RunState.STARTING, "it may still run on its node"
        return self.seen(later=FORGOTTEN_FOR)

    def until(self, state: RunState, key: str = "j-1.1") -> SeenRun:
        return wait_until(lambda: (run := self.seen(key)).state == state and run, seconds=60, what=f"{key} to be {state}: {self.mine()}")

    def log(self, index: int = 0, key: str = "j-1.1") -> str:
        return self.backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 16).text

    def as_account(self) -> list[str]:
        """For `sbatch`: as the user that the jobs of the site run as."""
        account = pwd.getpwnam(self.settings.user) if self.settings.user else None
        return [] if account is None else [f"--uid={account.pw_uid}", f"--gid={account.pw_gid}"]

    def mine(self) -> list[str]:
        return [f"{job.id} {job.state} {job.comment} {job.reason}" for job in self.client.jobs() if self.settings.tag in job.comment]

    def clear(self) -> None:
        self.client.cancel([job.id for job in self.client.jobs() if self.settings.tag in job.comment and not job.ended])
        wait_until(lambda: len(self.slurm.idle()) == len(self.slurm.names), seconds=30, what="all nodes to be idle")


@pytest.fixture
def site(slurm) -> Iterator[Site]:
    site = Site(slurm)
    yield site
    site.clear()


def seat(index: int, node: str, gpus: int) -> WorkerSeat:
    return WorkerSeat("worker", index, node, tuple(range(gpus)))


def shell(text: str, **more: Any) -> dict[str, Any]:
    return {"shell": text, **more}


STAYS = "trap '' TERM; sleep 300"  # until it is killed, so that it leaves no exit code


UNKNOWN = 4_000_000  # a number that no job has


ROLES = {"roles": [{"name": "worker", "min": 1, "gpus": 4, "cpus": 1.5}]}


@contextmanager
def slurmrestd(slurm: Slurm, versions: str) -> Iterator[str]:
    """Its address. `versions`: plug-ins of its interface."""
    if shutil.which("slurmrestd", path=PATH) is None or not slurm.has_jwt():
        required("slurm", "slurmrestd with JWT is not installed (Debian packages slurmrestd and slurm-wlm-jwt-plugin).")
    address = f"127.0.0.1:{free_port()}"
    env = {**slurm.env, "SLURM_JWT": "daemon", "SLURMRESTD_SECURITY": "disable_user_check"}
    command = ["slurmrestd", "-s", versions, "-a", "rest_auth/jwt", address]
    with (slurm.dir / "log/slurmrestd.log").open("wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        wait_until(lambda: accepts(int(address.rpartition(":")[2])), what="slurmrestd to listen")
        yield f"http://{address}"
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture
def rest(slurm) -> Iterator[str]:
    with slurmrestd(slurm, "openapi/v0.0.38") as address:
        yield address


@pytest.fixture
def other_rest(slurm) -> Iterator[str]:
    """One without the version that is read, as that of each Slurm since 24.05 is."""
    with slurmrestd(slurm, "openapi/v0.0.36,openapi/v0.0.37") as address:
        yield address
