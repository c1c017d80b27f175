"""The same laws on Slurm: a job reaches nothing of the console's, of another job's or of Slurm's own words, whatever it is called and runs.

All jobs of a cluster are processes of one user there: what one user may do to itself Slurm does not keep apart, and neither does gpufleet.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendRefused, RunState
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient
from tests.attacks.bodies import MANIFESTS, links_to
from tests.scheduler.backends.slurm_site import ROLES, Site, seat, shell, site, slurm  # noqa: F401 - fixtures
from tests.scheduler.backends.test_local_apart import SYSTEM_PYTHON
from tests.servers import wait_until

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.slurm,
    pytest.mark.soak,
    pytest.mark.skipif(os.getuid() != 0, reason="only a console that runs as root has jobs of another user on Slurm"),
]


@pytest.fixture
def marked(site: Site) -> Iterator[tuple[Path, str]]:  # noqa: F811
    """A file that comes to be where a shell executes the text that goes with it."""
    mark = site.slurm.dir / "shared" / "owned"
    mark.parent.chmod(0o777)
    yield mark, f"$(touch {mark}) `touch {mark}` '; touch {mark}; ' \" \n#SBATCH --comment=owned\ntouch {mark}\n\u2028\x1f|\u202e"
    assert not mark.exists()


def test_its_words_reach_no_shell_alone_or_in_a_gang(site: Site, marked: tuple[Path, str]) -> None:  # noqa: F811
    """Of a gang arguments and variables go through the script's own function and `srun`; of one process they do not."""
    _, hostile = marked
    (folder := site.slurm.dir / "shared" / f"at {hostile.splitlines()[0][:60].replace('/', '_')}").mkdir(exist_ok=True)
    launch = {"command": ["/usr/bin/printf", "%s", hostile], "env": {"HOSTILE": hostile, "IFS": hostile, "BASH_ENV": hostile}, "workdir": str(folder)}
    for key, seats in (("j-1.1", 1), ("j-2.1", 2)):
        on = [seat(index, f"gpu00{index + 1}", 1) for index in range(seats)]
        site.start(key, on=on, launch=launch, spec=ROLES, owner=hostile, resume_from=hostile)
        run = site.until(RunState.ENDED, key)

        assert run.exit_code == 0, run.why
        told = [site.backend.logs(key=key, role="worker", index=index, offset=0, limit=1 << 16).data for index in range(seats)]
        assert told == [hostile.encode()] * seats, key
    assert all("owned" not in line for line in site.mine())


@pytest.mark.parametrize("name", ["partition", "account"])
def test_what_a_cluster_is_told_to_use_is_one_word_to_slurm(site: Site, marked: tuple[Path, str], name: str) -> None:  # noqa: F811
    hostile = f"main --wrap=true {marked[1]}"
    site.backend = SlurmBackend(site.cluster.pk, replace(site.settings, **{name: hostile}), client=site.client)
    if name == "partition":
        with pytest.raises(BackendRefused, match="Invalid partition"):
            site.start(on=[seat(0, "gpu001", 1)], launch=shell("true"))
    else:  # without slurmdbd any account will do
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("true"))
        assert site.until(RunState.ENDED).exit_code == 0


def test_a_reason_of_a_drain_is_one_value_to_slurm(site: Site, marked: tuple[Path, str]) -> None:  # noqa: F811
    SlurmClient(site.settings).node_update("gpu004", "DRAIN", f"x State=RESUME NodeName=gpu003 {marked[1]}")
    try:
        told = {node.name: node for node in site.client.nodes()}
        assert "DRAIN" in told["gpu004"].states
        assert "DRAIN" not in told["gpu003"].states
        assert told["gpu004"].reason.startswith("x State=RESUME NodeName=gpu003 $(touch")
    finally:
        site.client.node_update("gpu004", "RESUME")


def test_a_job_that_says_that_it_is_another_ends_alone(site: Site) -> None:  # noqa: F811
    """Its user may rename it and write its comment: those of another run."""
    site.start("j-1.1", on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING, "j-1.1")
    (mine,) = (job for job in site.client.jobs() if site.settings.tag in job.comment)
    says = f'scontrol update "JobId=$SLURM_JOB_ID" "Comment={mine.comment}" && scontrol update "JobId=$SLURM_JOB_ID" "Name={mine.name}"'
    path = f"export PATH={os.environ['PATH']} SLURM_CONF={site.settings.conf}"
    site.start(
        "j-2.1", on=[seat(0, "gpu002", 1)], launch=shell(f"{path}; {says} && touch renamed; sleep 300", workdir=str(site.slurm.dir / "shared"))
    )
    (site.slurm.dir / "shared").chmod(0o777)
    wait_until((site.slurm.dir / "shared" / "renamed").exists, what="it to call itself another")

    def others() -> list[int]:
        site.backend.observe(now=now())
        return [job.id for job in site.client.jobs() if job.comment == mine.comment and not job.ended and job.id != mine.id]

    wait_until(lambda: others() == [], seconds=30, what="it to be ended")
    assert site.seen("j-1.1").state == RunState.RUNNING
    assert site.seen("j-2.1").state == RunState.ENDED


def test_its_links_make_it_nobody_s_owner(site: Site, tmp_path: Path) -> None:  # noqa: F811
    target = tmp_path / "of-root"
    target.mkdir(mode=0o700)
    program = {"command": [SYSTEM_PYTHON, "-c", links_to(target)]}
    site.start("j-1.1", on=[seat(0, "gpu001", 1)], launch=program)
    site.until(RunState.ENDED, "j-1.1")
    site.start("j-1.2", on=[seat(0, "gpu001", 1)], launch=program)
    site.until(RunState.ENDED, "j-1.2")

    assert {"refused ../2", "refused ../../planted", "stays"} <= set(site.log(key="j-1.1").splitlines())
    assert (target.stat().st_uid, list(target.iterdir())) == (0, [])


def test_its_manifests_stop_nobody(site: Site) -> None:  # noqa: F811
    site.start("j-1.1", on=[seat(0, "gpu001", 1)], launch={"command": [SYSTEM_PYTHON, "-u", "-c", MANIFESTS]})
    site.start("j-2.1", on=[seat(0, "gpu002", 1)], launch=shell("echo honest"))

    assert site.until(RunState.ENDED, "j-2.1").exit_code == 0
    assert site.until(RunState.ENDED, "j-1.1").exit_code == 0
    assert "written" in site.log(key="j-1.1")
