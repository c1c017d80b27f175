"""Folders of runs on Slurm that are over long since: deleted with what is remembered of them, and never through a link."""

import shutil
import threading
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends import old_checkpoints
from scheduler.backends.slurm import orders
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.values import Settings
from scheduler.models import SlurmRun
from tests import builders
from tests.servers import wait_until

pytestmark = pytest.mark.django_db


@pytest.fixture
def backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SlurmBackend:
    monkeypatch.setattr(orders, "KEPT", 1)
    former = str(tmp_path / "former")
    return SlurmBackend(builders.cluster("hpc", backend="slurm").pk, Settings(folder=str(tmp_path / "shared"), tag="ab12", former=(former,)))


def over(backend: SlurmBackend, key: str, folder: Path | None = None) -> Path:
    """A run whose end was written down, each later than those before."""
    place = folder or backend._top / "runs" / key
    place.mkdir(parents=True)
    (place / "worker-0.log").write_text("said\n")
    (place / "deeper").mkdir()
    (place / "deeper/file").write_text("made\n")
    SlurmRun.objects.create(
        cluster_id=backend.cluster,
        attempt_key=key,
        state={"at": now().isoformat(), "folder": str(place)},
        forgotten_at=now() + timedelta(seconds=SlurmRun.objects.count()),
    )
    return place


def left() -> list[str]:
    return list(SlurmRun.objects.order_by("pk").values_list("attempt_key", flat=True))


def test_the_oldest_go_with_their_folders_and_nothing_behind_a_link(backend: SlurmBackend, tmp_path: Path) -> None:
    old, newest = over(backend, "j-1.1"), over(backend, "j-2.1")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "mine").touch()
    (old / "link").symlink_to(elsewhere)
    (old / "deeper/link").symlink_to(elsewhere)

    assert backend.tidy() == 1

    assert left() == ["j-2.1"]
    assert not old.exists()
    assert (newest / "worker-0.log").exists()
    assert (elsewhere / "mine").exists()
    assert backend.tidy() == 0


def test_what_is_not_the_folder_of_such_a_run_stays(backend: SlurmBackend, tmp_path: Path) -> None:
    """Of a run that never began there is none; and a folder of before that is gone was given up."""
    strange = over(backend, "j-1.1", tmp_path / "strange")
    another = over(backend, "j-2.1", backend._top / "runs" / "j-9.1")
    SlurmRun.objects.create(cluster_id=backend.cluster, attempt_key="j-3.1", state={"parts": []}, forgotten_at=now() + timedelta(seconds=2))
    former = over(backend, "j-4.1", tmp_path / "former/gpufleet-ab12/runs/j-4.1")
    over(backend, "j-5.1", tmp_path / "former/gpufleet-ab12/runs/j-5.1")
    shutil.rmtree(tmp_path / "former")
    over(backend, "j-6.1")

    assert backend.tidy() == 5

    assert left() == ["j-6.1"]
    assert strange.exists()
    assert another.exists()
    assert not former.exists()


def test_a_link_in_the_place_of_a_folder_keeps_its_own_row_only(backend: SlurmBackend, tmp_path: Path) -> None:
    first, second = over(backend, "j-1.1"), over(backend, "j-2.1")
    over(backend, "j-3.1")
    first.rename(tmp_path / "moved")
    first.symlink_to(tmp_path / "moved")

    assert backend.tidy() == 1

    assert left() == ["j-1.1", "j-3.1"]
    assert (tmp_path / "moved/worker-0.log").exists()
    assert not second.exists()


def test_a_folder_that_hangs_keeps_rows_and_nobody_waiting(backend: SlurmBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    old = over(backend, "j-1.1")
    over(backend, "j-2.1")
    answers, real = threading.Event(), shutil.rmtree

    def hangs(*place: Any, **more: Any) -> None:
        answers.wait(60)
        real(*place, **more)

    monkeypatch.setattr(old_checkpoints, "PATIENCE", 0.2)
    monkeypatch.setattr(old_checkpoints.shutil, "rmtree", hangs)
    try:
        for _ in range(2):
            began = monotonic()
            assert backend.tidy() == 0
            assert monotonic() - began < 5
        assert left() == ["j-1.1", "j-2.1"]
    finally:
        answers.set()
    wait_until(lambda: not old.exists(), what="the call to come back")
    wait_until(lambda: not any(call.thread.is_alive() for call in backend._deleter._late.values()), what="its thread to end")
    assert backend.tidy() == 1
