"""A shared folder that does not answer: its cluster is silent, and nobody waits for it."""

import threading
from collections.abc import Iterator
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendSilent, RunState
from scheduler.backends.slurm import outcomes, shared
from scheduler.models import SlurmRun
from tests.scheduler.backends.slurm_site import UNKNOWN, Site, seat, shell
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


class Server:
    """What a call waits for until the test is over, or says that the folder is back."""

    def __init__(self, patch: pytest.MonkeyPatch, module: Any, name: str) -> None:
        self.answers = threading.Event()
        self.real = getattr(module, name)
        patch.setattr(module, name, self._hang)

    def _hang(self, *words: Any, **more: Any) -> Any:
        self.answers.wait(60)
        return self.real(*words, **more)


@pytest.fixture
def patch(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(shared, "WAIT", 0.5)
    yield monkeypatch


def seconds_of_silence(site: Site, *calls: Any) -> list[float]:
    took = []
    for call in calls:
        began = monotonic()
        with pytest.raises(BackendSilent, match=rf"The shared folder {site.settings.folder}/gpufleet-{site.settings.tag} does not answer"):
            call()
        took.append(monotonic() - began)
    return took


def test_a_folder_that_hangs_where_an_end_is_to_be_read_makes_its_cluster_silent(site, patch):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("exit 5"))
    folder = Path(SlurmRun.objects.get().state["folder"])
    wait_until((folder / "worker-0.0.exit").exists, what="it to end")
    row = SlurmRun.objects.get()
    row.state["parts"][0]["id"] = UNKNOWN  # Slurm has forgotten it
    row.save()
    server = Server(patch, outcomes, "opened")
    try:
        first, *others = seconds_of_silence(site, site.seen, site.seen, site.backend.probe)
        assert 0.5 <= first < 3
        assert max(others) < 0.4, "a call is under way, and no other waits"
    finally:
        server.answers.set()

    wait_until(lambda: not shared._patient[folder.parents[1]].is_late, what="the call to come back")
    site.backend.probe()
    assert (site.seen().state, site.seen().exit_code) == (RunState.ENDED, 5)


def test_a_folder_that_hangs_when_jobs_start_is_told_and_costs_one_wait(site, patch):
    server = Server(patch, shared, "folders_made")

    def starts() -> None:
        with site.backend.together():
            site.start("j-3.1", on=[seat(0, "gpu001", 1)], launch=shell("exit 0"))

    try:
        first, *others = seconds_of_silence(site, starts, starts, lambda: site.backend.observe(now=now()))
        assert 0.5 <= first < 3
        assert max(others) < 0.4
        assert not SlurmRun.objects.exists()
        assert site.mine() == []
    finally:
        server.answers.set()

    wait_until(lambda: not shared._patient[site.backend._top].is_late, what="the call to come back")
    starts()
    assert site.until(RunState.ENDED, "j-3.1").exit_code == 0
