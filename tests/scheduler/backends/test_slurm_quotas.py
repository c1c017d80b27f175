"""Accounts and QOS of Slurm as a draft of a change of quotas: from what a slurmdbd printed, and from a real one where it is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from django.urls import reverse

from gpufleet.core.times import now
from gpufleet.throwaway import free_port
from quotas.drafts import Tree, edits_between
from quotas.models import QuotaChange, QuotaNode
from quotas.services.changes import change_apply
from quotas.services.writing import tree_read
from scheduler.backends.slurm.values import Settings
from scheduler.hardware.slurm_accounts import Account, Site, proposed, site_of
from scheduler.services.hardware.slurm_checks import slurm_check
from tests import builders
from tests.scheduler.backends.test_slurm_end_to_end import connect, inventory
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = pytest.mark.django_db
# As slurmdbd 22.05.8 printed them.
ASSOCIATIONS = """\
root|||1||||||||
root||root|1||||||||
research|root||1||||||||
nlp.lab|research||70|gres/gpu:h100=8|||||||01:00:00
nlp.lab||bob|parent||||||||01:00:00
vision|research||30|gres/gpu=16|interactive||||||
vision||alice|1||interactive||||||
"""
QOS = """\
normal|0||||||1.000000
interactive|100|gres/gpu=4|||||1.000000
"""


def told(tree: Tree) -> dict[str, tuple[object, ...]]:
    return {
        tree.paths[key]: (
            str(state.values.kind),
            state.values.weight,
            {kind: share.limit_milli for kind, share in state.values.shares.items()},
            state.values.default_class,
        )
        for key, state in tree.states.items()
    }


def test_accounts_become_nodes_and_what_has_no_place_is_named():
    builders.quota("acme")
    tree = tree_read()
    acme = next(iter(tree.states))

    found = proposed(tree, site_of(ASSOCIATIONS, QOS), under=acme, types={"h100": "H100-SXM-80GB"}, types_of_cluster=["H100-SXM-80GB"])

    assert told(found.after) == {
        "acme": told(tree)["acme"],
        "acme/research": ("department", 1, {}, ""),
        "acme/research/nlp-lab": ("team", 70, {"H100-SXM-80GB": 8000}, ""),
        "acme/research/vision": ("team", 30, {"H100-SXM-80GB": 16000}, "interactive"),
    }
    assert found.left_out == [
        "time limits of jobs (state them in a template): nlp.lab",
        "limits, priorities and preemption of QOS: interactive",
        "2 people: give them roles on nodes",
    ]
    # The same again on a tree that has it: nothing to change, although guarantees and the like were set meanwhile.
    again = proposed(found.after, site_of(ASSOCIATIONS, QOS), under=acme, types={"h100": "H100-SXM-80GB"}, types_of_cluster=["H100-SXM-80GB"])
    assert edits_between(found.after, again.after) == []


def test_what_would_be_guessed_is_left_out():
    accounts = (
        Account("A", "", share="parent", gpus=(("", 4),)),
        Account("a", ""),
        Account("b", "gone"),
        Account("***", ""),
        Account("c", "", gpus=(("mi300", 4),)),
    )

    builders.quota("acme")
    tree = tree_read()

    found = proposed(tree, Site(accounts, 0, ()), under=next(iter(tree.states)), types={}, types_of_cluster=["H100", "H200"])

    assert set(told(found.after)) == {"acme", "acme/a", "acme/c"}
    assert [shares for _, _, shares, _ in told(found.after).values()] == [{}, {}, {}]
    assert found.left_out == [
        "***: no name that a node can have",
        "A: fairshare of its parent, its weight stays 1",
        "A: its limit of 4 GPUs of all types together",
        "c: its limit of 4 GPUs of the type mi300",
        "b: its parent gone is left out",
        "a: another account is the node a",
    ]


def test_lines_of_another_form_are_told():
    with pytest.raises(ValueError, match="line 1 has 2 fields, not 12"):
        site_of("root|x\n", "")


class Accounted(Slurm):
    """With slurmdbd over a MariaDB of its own."""

    def __init__(self) -> None:
        self.data = Path(tempfile.mkdtemp(prefix="gf-"))
        self.data.chmod(0o755)
        self.ports = free_port(), free_port()
        sql = ["--no-defaults", f"--datadir={self.data}/sql", *(["--user=root"] if os.getuid() == 0 else [])]
        made = ["mariadb-install-db", *sql, "--auth-root-authentication-method=normal", "--skip-test-db"]
        subprocess.run(made, check=True, capture_output=True, timeout=120)
        address = [f"--socket={self.data}/sock", f"--port={self.ports[0]}", "--bind-address=127.0.0.1", f"--log-error={self.data}/log"]
        self.sql = subprocess.Popen(
            ["mariadbd", *sql, *address, "--innodb-buffer-pool-size=64M", "--innodb-flush-log-at-trx-commit=0"], env=self._path()
        )
        wait_until(lambda: self._sql("select 1"), seconds=60, what="MariaDB")
        self._sql("create database slurm_acct_db; create user slurm@127.0.0.1 identified by 'x'; grant all on slurm_acct_db.* to slurm@127.0.0.1")
        super().__init__(nodes=1, gpus=8, leaf=1)

    @staticmethod
    def _path() -> dict[str, str]:
        return {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}

    def _sql(self, text: str) -> bool:
        done = subprocess.run(["mariadb", "-uroot", "-S", f"{self.data}/sock", "-e", text], capture_output=True, timeout=30, check=False)
        return done.returncode == 0

    def start_controller(self, *flags: str) -> None:
        conf, munge = self.dir / "etc/slurmdbd.conf", f"{self.dir}/run/munge.sock"
        user = subprocess.check_output(["id", "-un"], text=True).strip()
        conf.write_text(
            f"AuthType=auth/munge\nAuthInfo=socket={munge}\nDbdHost=localhost\nDbdPort={self.ports[1]}\nSlurmUser={user}\n"
            f"LogFile={self.dir}/log/slurmdbd.log\nPidFile={self.dir}/run/slurmdbd.pid\nStorageType=accounting_storage/mysql\n"
            f"StorageHost=127.0.0.1\nStoragePort={self.ports[0]}\nStorageUser=slurm\nStoragePass=x\nStorageLoc=slurm_acct_db\n"
        )
        conf.chmod(0o600)
        text = self.conf.read_text()
        stored = (
            f"AccountingStorageType=accounting_storage/slurmdbd\nAccountingStorageHost=localhost\nAccountingStoragePort={self.ports[1]}\n"
            f"AccountingStoragePass={munge}\nAccountingStorageTRES=gres/gpu,gres/gpu:h100"
        )
        self.conf.write_text(text.replace("AccountingStorageType=accounting_storage/none", stored))
        self.sh("slurmdbd")
        wait_until(lambda: "gpufleet" in self.sh("sacctmgr", "-i", "add", "cluster", "gpufleet", check=False), seconds=90, what="slurmdbd")
        super().start_controller(*flags)

    def stop(self) -> None:
        super().stop()  # slurmdbd is one of those that know its slurm.conf
        self.sql.terminate()
        self.sql.wait(30)
        shutil.rmtree(self.data, ignore_errors=True)


@pytest.fixture
def accounted() -> Iterator[Accounted]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    needed = {"slurmdbd": "slurmdbd", "mariadbd": "mariadb-server"}
    if lacking := [package for program, package in needed.items() if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]:
        required("slurmdbd", f"Slurm's accounting is not installed (Debian packages {', '.join(lacking)}).")
    server = Accounted()
    yield server
    server.stop()


@pytest.mark.soak  # MariaDB and slurmdbd take longer to start than the rest of the module
@pytest.mark.slurm
def test_accounts_of_a_real_slurmdbd_are_drafted_once_and_applied(accounted, personas):
    for words in (
        "account physics",
        "account optics parent=physics Fairshare=30 GrpTRES=gres/gpu=16",
        "account nlp parent=physics Fairshare=70 GrpTRES=gres/gpu:h100=4 MaxJobs=9",
        "user nobody account=optics",
    ):
        accounted.sh("sacctmgr", "-i", "add", *words.split(), seconds=60)
    shared = accounted.dir / "shared"
    shared.mkdir()
    site = Settings(conf=str(accounted.conf), user="nobody", folder=str(shared))
    said = {name: next(step for step in slurm_check(replace(site, account=name)) if step.name == "account") for name in ("optics", "nlp", "none")}
    assert {name: step.told for name, step in said.items()} == {
        "optics": "optics",
        "nlp": "nobody is not in the account nlp.",
        "none": "There is no account none; Slurm has nlp, optics, physics, root.",
    }
    connect(accounted, shared)
    inventory("slurm", "--cluster", "hpc", "--gpu-type", "h100=H100-SXM-80GB:81559", "--apply")

    shown = inventory("slurm-accounts", "--cluster", "hpc")
    assert "create acme/physics/nlp: kind team, weight 70, limit 4 of H100-SXM-80GB" in shown
    assert "left out limits of the number of jobs: nlp" in shown
    assert not QuotaChange.objects.exists()
    admin = personas.client("superuser")
    for _ in range(2):
        page = admin.post(reverse("slurm_accounts", args=["hpc"]), {"under": "acme"}, follow=True)
    change = QuotaChange.objects.get()
    assert "Left out: limits of the number of jobs: nlp; 1 person: give them roles on nodes." in page.content.decode()
    assert page.redirect_chain[-1][0] == reverse("quota-change", args=[change.public_id])

    change_apply(access=personas.access("superuser"), change=change, revision=change.revision, capacity={}, now=now())
    assert dict(QuotaNode.objects.get(path="acme/physics/nlp").shares.values_list("gpu_type", "limit_milli")) == {"H100-SXM-80GB": 4000}
    assert "Nothing to change." in inventory("slurm-accounts", "--cluster", "hpc", "--propose")
    assert QuotaChange.objects.count() == 1
    accounted.sh("sacctmgr", "-i", "modify", "account", "nlp", "set", "GrpTRES=gres/gpu:h100=6")
    assert "H100-SXM-80GB" in inventory("slurm-accounts", "--cluster", "hpc", "--propose")
    assert QuotaChange.objects.count() == 2
