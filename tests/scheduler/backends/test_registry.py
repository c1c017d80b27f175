"""Which back-end a cluster has, what may run on this machine, and which secrets a job may name."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.models import Installation
from quotas.permissions import access_for_user
from scheduler.backends.base import BackendRefused
from scheduler.backends.local import LocalBackend
from scheduler.backends.registry import Backends, UnknownBackend, backend_for, backends_all, local_rules, why_not_local
from scheduler.backends.secrets import secret_value
from scheduler.backends.simulated import SimulatedBackend
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.models import SlurmCluster
from scheduler.services.jobs.submission import Checked, submissions_judge
from tests import builders
from tests.builders import NOON
from tests.scheduler.backends.scenes import start_order


@pytest.fixture
def local(settings: Any) -> Any:
    def choose(**changes: object) -> None:
        settings.LOCAL = {**settings.LOCAL, "LOCAL": True, **changes}

    choose()
    return choose


@pytest.mark.django_db
def test_each_cluster_has_the_back_end_that_it_names() -> None:
    north, here = builders.cluster("north"), builders.cluster("here", backend="local")
    strange = builders.cluster("strange", backend="abacus")

    assert isinstance(backend_for(north), SimulatedBackend)
    assert isinstance(backend_for(here), LocalBackend)
    assert backend_for(north) is backends_all()[north.pk]
    with pytest.raises(UnknownBackend, match="abacus"):
        backend_for(strange)
    assert strange.pk not in backends_all()
    north.backend = "local"
    assert isinstance(backend_for(north), LocalBackend), "an import may name another one"


@pytest.mark.django_db
def test_a_slurm_that_is_reached_otherwise_is_so_without_a_restart() -> None:
    hpc = builders.cluster("hpc", backend="slurm")
    row = SlurmCluster.objects.create(cluster=hpc, partition="gpu", folder="/shared", tag="0", changed_at=NOON)
    before = backends_all()[hpc.pk]
    assert backends_all()[hpc.pk] is before
    SlurmCluster.objects.filter(pk=row.pk).update(imported_at=NOON)
    assert backends_all()[hpc.pk] is before, "what it remembers is kept"

    SlurmCluster.objects.filter(pk=row.pk).update(partition="a100", changed_at=NOON + timedelta(minutes=1))

    after = backends_all()[hpc.pk]
    assert isinstance(after, SlurmBackend)
    assert (after is before, after.settings.partition) == (False, "a100")
    assert backends_all()[hpc.pk] is after


def test_all_runs_are_looked_at_at_the_start_now_and_then_and_when_the_clock_was_set_back() -> None:
    backends = Backends({})
    assert backends.full_look_due(1, NOON)
    backends.looked(1, NOON)
    due = [backends.full_look_due(1, NOON + timedelta(seconds=seconds)) for seconds in (1, 29, 30, -29, -3600)]
    assert due == [False, False, True, False, True]


@pytest.mark.django_db
def test_local_jobs_are_off_until_switched_on_and_never_in_a_demo(settings: Any) -> None:
    assert "GPUFLEET_LOCAL" in why_not_local()
    settings.LOCAL = {**settings.LOCAL, "LOCAL": True}
    assert why_not_local() == ""
    Installation.objects.create(demo="small")
    assert "demo" in why_not_local()


@pytest.mark.django_db
def test_the_console_s_own_user_is_for_one_person_on_one_machine(settings: Any, local: Any) -> None:
    local(LOCAL_SAME_USER=True)
    settings.ALLOWED_HOSTS = ["localhost", "127.0.0.1"]
    assert why_not_local() == ""
    settings.ALLOWED_HOSTS = ["localhost", "gpus.example.org"]
    assert "GPUFLEET_ALLOWED_HOSTS" in why_not_local()
    settings.ALLOWED_HOSTS = ["localhost"]
    for _ in range(2):
        builders.person()
    assert "several" in why_not_local()
    with pytest.raises(BackendRefused, match="several"):
        LocalBackend(Path("/nowhere"), local_rules()).start(start_order(launch={"command": ["true"]}), now=NOON)


def test_a_secret_is_that_of_a_node_and_what_lies_below(tmp_path: Path, local: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"top": "nobody's", "lab/hub": "the lab's\n", "lab/vision/hub": "vision's", "lab/vision/key": "a\nb\n", "other/key": "x"}
    for place, text in kept.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    (tmp_path.parent / "outside").write_text("no")
    local(SECRETS_DIR=str(tmp_path), SECRETS_ENV=("lab/vision:WANDB",))
    monkeypatch.setenv("WANDB", "from the environment")
    monkeypatch.setenv("GPUFLEET_SECRET_KEY", "the console's")

    def value(name: str, team: str) -> str | None:
        return secret_value(name, team=team)

    assert value("hub", "lab/language") == "the lab's"
    assert value("hub", "lab/vision/exp") == "vision's", "the nearest one"
    assert value("key", "lab/vision/exp") == "a\nb"
    assert value("WANDB", "lab/vision") == "from the environment"
    assert [value(*one) for one in (("key", "lab"), ("key", "lab/visionary"), ("WANDB", "lab"), ("top", "lab"), ("hub", "other"))] == [None] * 5
    assert [value(name, "lab/vision") for name in ("GPUFLEET_SECRET_KEY", "../outside", "", ".", "nothing")] == [None] * 5
    assert [value("hub", team) for team in ("", "../lab", "lab/..", "/lab", "lab//vision")] == [None] * 5


@pytest.mark.django_db
def test_a_submission_names_only_secrets_of_its_own_queue(tmp_path: Path, local: Any) -> None:
    mine, other = (builders.quota(name, parent=builders.quota()) for name in ("vision", "language"))
    place = tmp_path / other.path
    place.mkdir(parents=True)
    (place / "key").write_text("theirs")
    access = access_for_user(builders.person(is_superuser=True))
    wanted = {"name": "j", "gpus": 1, "launch": {"command": ["true"], "secrets": {"KEY": "key"}}}
    asked = [{**wanted, "quota": mine.path}, {**wanted, "quota": other.path}]

    def told() -> list[Any]:
        judged = submissions_judge(access=access, descriptions=asked, now=NOON)
        return [None if isinstance(one, Checked) else one for one in judged]

    local(SECRETS_DIR="")
    assert told() == [None, None], "a console that keeps no secrets knows none of another one's"
    local(SECRETS_DIR=str(tmp_path))
    assert told() == [{"launch.secrets": [f"{mine.path} has no secret key."]}, None]
