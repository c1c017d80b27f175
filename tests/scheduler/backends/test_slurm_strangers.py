"""Other users of a Slurm: what they write into the comments and names of their jobs counts for nothing."""

import os
import pwd
from dataclasses import replace

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.models import OutsideJob, SlurmCluster, SlurmRun
from scheduler.services.hardware.slurm_nodes import slurm_nodes_reconcile
from tests import builders
from tests.scheduler.backends.slurm_site import Site, seat, shell
from tests.servers import wait_until

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slurm,
    pytest.mark.skipif(os.getuid() != 0, reason="only root can submit jobs as another user"),
]


def forged(site: Site, key: str, *more: str, user: str = "daemon") -> int:
    """What any user of a Slurm can submit who has read the comments of others in `squeue`."""
    account = pwd.getpwnam(user)
    words = (
        f"--comment=gpufleet {site.settings.tag} {key} 0 1 x",
        f"--job-name=gpufleet-{key}",
        f"--uid={account.pw_uid}",
        f"--gid={account.pw_gid}",
    )
    return site.client.submit([*words, "--nodes=1", "--output=/dev/null", "--chdir=/", *more], "#!/bin/sh\nsleep 300\n")


def states(site: Site) -> dict[int, str]:
    return {job.id: job.state for job in site.client.jobs()}


def test_a_stranger_with_our_tag_is_no_stray_and_keeps_no_job_from_its_start(site):
    theirs = forged(site, "j-500.1", "--hold")

    assert site.backend.observe(now=now()) == ()
    site.backend.stop(key="j-501.1", sequence=1, force=True, now=now())
    site.start("j-500.1", on=[seat(0, "gpu001", 1)], launch=shell("exit 0"))

    assert site.until(RunState.ENDED, "j-500.1").exit_code == 0
    assert SlurmRun.objects.get(attempt_key="j-500.1").state["parts"][0]["id"] != theirs
    assert states(site)[theirs] == "PENDING"


def test_a_start_whose_answer_was_lost_takes_no_job_of_a_stranger_for_its_own(site, monkeypatch):
    def lost(*_):
        raise SlurmSilent("the answer was lost")

    with monkeypatch.context() as patched, pytest.raises(SlurmSilent):
        patched.setattr(site.client, "submit", lost)
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("exit 3"))
    theirs = forged(site, "j-1.1", "--hold")
    site.seen()
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("exit 3"))

    assert site.until(RunState.ENDED).exit_code == 3
    site.backend.stop(key="j-1.1", sequence=9, force=True, now=now())
    site.seen()
    assert states(site)[theirs] == "PENDING"


def test_a_stop_that_comes_before_its_start_cancels_no_job_of_a_stranger(site):
    theirs = forged(site, "j-7.1", "--hold")

    site.backend.stop(key="j-7.1", sequence=4, force=True, now=now())

    assert states(site)[theirs] == "PENDING"


def test_what_a_stranger_runs_under_our_tag_is_a_job_outside(site):
    row = SlurmCluster.objects.create(cluster=site.cluster, conf=site.settings.conf, user=site.settings.user, folder="/", tag=site.settings.tag)
    assert slurm_settings(row).tag == site.settings.tag
    builders.node("gpu002", of=site.cluster)
    theirs = forged(site, "j-8.1", "--nodelist=gpu002", "--gres=gpu:2")
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    wait_until(lambda: states(site)[theirs] == "RUNNING", what="it to run")

    slurm_nodes_reconcile(now=now())

    assert [job.number for job in OutsideJob.objects.all()] == [theirs]


def test_runs_of_an_account_that_the_cluster_had_before_go_on(site):
    """Also one of an older version, whose row does not tell its account."""
    keys = ["j-1.1", "j-2.1"]
    for key in keys:
        site.start(key, on=[seat(0, "gpu001", 1)], launch=shell("exit 4"), limit_seconds=600)
    older = SlurmRun.objects.get(attempt_key="j-2.1")
    del older.state["parts"][0]["uid"]
    older.save()
    site.settings = replace(site.settings, user="daemon")
    site.restart()

    assert [site.until(RunState.ENDED, key).exit_code for key in keys] == [4, 4]
