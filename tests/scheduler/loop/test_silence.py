"""A scheduler that hangs is reported by the doctor, /healthz and the pages of those who wait."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client

from gpufleet.core.times import now
from gpufleet.doctor import clockwork, examine
from scheduler import tasks
from scheduler.models import JobState
from scheduler.selectors.loop import leadership
from scheduler.services.loop.lease import TICK, lease_pause, lease_take
from scheduler.services.loop.measuring import tick_finished
from scheduler.services.loop.tick import TickResult
from tests import builders

pytestmark = pytest.mark.django_db


def doctor_says() -> list[str]:
    return [finding.what for check, finding in examine(["clockwork"]).findings if check == "clockwork: ticks finish"]


@pytest.fixture
def reader(client: Client) -> Client:
    client.force_login(builders.person(is_superuser=True))
    return client


@pytest.fixture
def job() -> str:
    return str(builders.job(state=JobState.QUEUED).public_id)


def told(reader: Client, job: str) -> list[str]:
    return [reader.get(path).content.decode() for path in ("/jobs/", "/jobs/queue/", f"/jobs/{job}/", "/scheduler/")]


def test_it_is_told_everywhere_and_only_while_it_hangs(reader: Client, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clockwork, "console_runs", lambda: True)
    lease_take(name=TICK, holder="us", now=now())
    words = "has not finished a tick for"
    for finished in (None, now() - timedelta(seconds=50)):
        if finished is not None:
            tick_finished(now=finished)
        assert (doctor_says(), reader.get("/healthz").json()) == ([], {"status": "ok"})
        assert not [page for page in told(reader, job) if words in page]

    tick_finished(now=now() - timedelta(seconds=75))
    assert [words in one for one in doctor_says()] == [True]
    assert reader.get("/healthz").json()["findings"][0].startswith(f"The scheduler {words} 7")
    assert [words in page for page in told(reader, job)] == [True] * 4
    assert leadership(now()).state == "overdue", "and not that it watches"


def test_a_pause_is_no_silence(reader: Client, job: str) -> None:
    tick_finished(now=now())
    lease_pause(by="boss", reason="cables", now=now())
    assert [("paused" in page.lower(), "has not finished" in page) for page in told(reader, job)] == [(True, False)] * 4


def test_only_a_tick_that_came_to_its_end_counts(monkeypatch: pytest.MonkeyPatch, reader: Client) -> None:
    def fails(**_: Any) -> TickResult:
        raise RecursionError

    monkeypatch.setattr("scheduler.backends.registry.backends_all", dict)
    monkeypatch.setattr(tasks._Written, "at", -100.0)
    tick_finished(now=now() - timedelta(seconds=100))
    monkeypatch.setattr(tasks, "tick_run", fails)
    with pytest.raises(RecursionError):
        tasks._ticks()
    assert reader.get("/healthz").json()["status"] == "degraded"
    monkeypatch.setattr(tasks, "tick_run", lambda **_: TickResult(led=True))
    tasks._ticks()
    assert reader.get("/healthz").json()["status"] == "ok"
