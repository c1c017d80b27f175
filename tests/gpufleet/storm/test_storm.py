"""The whole control plane through bad weather; and that the storm would notice if one of its promises were broken."""

import contextlib
import json
import logging
import os
import random
import re
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction

from gpufleet.core.audit import SYSTEM
from gpufleet.core.models import Sequence
from gpufleet.core.prepared import Prepared
from gpufleet.storm import command
from gpufleet.storm.reaper import Killed, Reaper
from gpufleet.storm.safety import Unsafe
from gpufleet.storm.world import FAULTS_A_DAY, START, World
from scheduler.backends.registry import Backends
from scheduler.engine.state.fleet import Fleet
from scheduler.models import JobClass, JobState, Placement
from scheduler.services.jobs.jobs import job_create, job_hold, job_stop
from scheduler.services.loop import runs
from scheduler.services.loop.applying import _Applying
from scheduler.services.loop.dispatch import orders_dispatch
from scheduler.services.loop.lease import Lease
from scheduler.services.loop.splitting import Splitter
from scheduler.services.loop.steps import Steps
from scheduler.snapshots import jobs, windows
from tests import servers
from tests.servers import PROJECT

# Two windows that did not fit any more when a node was lost: five hours into it a law that forgets them still fails. A seed stays while that is so.
SEEDS_THAT_ONCE_FAILED = (564913810,)
FOUND_WITHIN_SECONDS = 60


Storm = Callable[..., subprocess.CompletedProcess[str]]
Lasted = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def empty(prepared: servers.Prepared, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database that need not be migrated again."""
    empty = tmp_path_factory.mktemp("storm") / "empty.sqlite3"
    prepared.file(empty)
    return empty


@pytest.fixture(scope="module")
def storm(empty: Path) -> Storm:
    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "manage.py", "storm", "--json", "--empty", *map(str, (empty, *arguments))]
        return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, timeout=1500, check=False)

    return run


@pytest.fixture(scope="module")
def lasted(storm: Storm) -> Lasted:
    def run(seed: int, *more: object) -> dict[str, Any]:
        done = storm("--seed", seed, *more)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
        counts: dict[str, Any] = json.loads(done.stdout)
        return counts

    return run


def test_a_stormy_day_settles(lasted: Lasted) -> None:
    counts = lasted(1, "--days", 1)

    assert counts["jobs"] >= 150
    assert counts["evictions"] >= 30
    assert sum(counts["faults"].values()) >= 20
    assert len(counts["faults"]) >= 8
    assert counts["nodes"] >= 16
    assert counts["struck"] > 5


@pytest.mark.parametrize("days", [2, 3])
def test_hours_and_days_are_refused_together(days: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.main(["--hours", "4", "--days", str(days)])
    assert "not allowed with argument" in capsys.readouterr().err


@pytest.mark.django_db(transaction=True, reset_sequences=True)
@pytest.mark.usefixtures("quiet")
def test_a_short_storm_tells_its_hours(capsys: pytest.CaptureFixture[str]) -> None:
    command._pass(1, command._arguments(["--hours", "1"]))

    assert capsys.readouterr().out.startswith("seed 1: 1 hour in ")


def test_a_gang_that_moves_while_a_worker_is_promised_to_it_settles(lasted: Lasted) -> None:
    """One of the others takes the place of that worker: the promise was widened, and the GPU promised twice."""
    lasted(127610392, "--hours", 4)


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS_THAT_ONCE_FAILED)
def test_a_day_that_once_failed_settles(seed: int, lasted: Lasted) -> None:
    lasted(seed, "--days", 1)


def fresh(what: str = "") -> int:
    """The seed is in the story of a failure. `make soak` names what the draw goes out from."""
    return random.Random(what + (os.environ.get("SOAK_SEED") or secrets.token_hex())).randrange(1000, 1_000_000_000)


@pytest.mark.soak
def test_a_fresh_storm_settles(lasted: Lasted) -> None:
    """The parts of the gap are the fleet at every instant of it."""
    lasted(fresh(), "--days", 2, "--gap-every", 1)


@pytest.mark.soak
def test_twenty_fresh_short_storms_of_edits_windows_floors_and_budgets_settle(storm: Storm) -> None:
    """Each has a day's changes of what people are promised in four hours; a minute of a processor in all."""
    first = fresh("short ")
    done = storm("--seed", first, "--seeds", 20, "--hours", 4)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]

    reports = [json.loads(line) for line in done.stdout.splitlines()]
    assert [one["seed"] for one in reports] == list(range(first, first + 20))
    for kind in ("edits", "windows", "floors", "budgets"):
        assert sum(one["policy"][kind] for one in reports) >= 20, kind
    assert sum(sum(one["faults"].values()) for one in reports) >= 60


@pytest.mark.soak
def test_a_fresh_storm_over_gpus_in_parts_settles(lasted: Lasted) -> None:
    lasted(fresh("in parts "), "--days", 2, "--parts", 0.4)


@pytest.mark.soak
def test_the_same_seed_is_the_same_storm_unless_past_usage_counts(lasted: Lasted) -> None:
    first = lasted(3, "--hours", 4)["digest"]

    assert lasted(3, "--hours", 4)["digest"] == first
    assert lasted(3, "--hours", 4, "--usage-weight", 2)["digest"] != first


@pytest.mark.parametrize("seeds", [1, 2])
def test_a_storm_that_is_ended_leaves_nothing_behind(seeds: int, empty: Path) -> None:
    command = [sys.executable, "manage.py", "storm", "--story", "--empty", str(empty), "--seeds", str(seeds)]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline(), "it is under way"
        children = [int(child) for child in Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()]
        at_it = children[0] if seeds > 1 else parent.pid
        [folder] = {Path(found.group()) for file in open_files(at_it) if (found := re.match(r".*/gpufleet-storm-[^/]+", file))}
        assert folder.is_dir()

        parent.terminate()
        parent.communicate(timeout=60)

    assert parent.returncode == 143
    assert not folder.exists()
    assert len(children) == (seeds > 1)
    assert not any(Path(f"/proc/{child}").exists() for child in children)


def open_files(process: int) -> list[str]:
    return [str(file.readlink()) for file in Path(f"/proc/{process}/fd").iterdir()]


@pytest.fixture
def quiet() -> Iterator[None]:
    """What a storm does is logged as the trouble that it would be."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.django_db(transaction=True, reset_sequences=True)
@pytest.mark.usefixtures("quiet")
def test_a_job_that_was_held_back_and_cancelled_is_not_let_go_after_the_storm() -> None:
    world = World(seed=1, days=0)
    facts: dict[str, Any] = {"job_class": JobClass.BATCH, "spec": {"roles": [{"name": "worker", "min": 1, "gpus": 1}]}, "gpus_milli": 1000}
    job = job_create(name="held", quota=world.fleet.teams[0], owner=None, now=START, actor=SYSTEM, **facts)
    job_hold(job=job, now=START)
    job_stop(job=job, to=JobState.CANCELLED, outcome="cancelled", cause="Not wanted any more.", now=START)

    assert world.run().jobs == 1


def found(faults: dict[str, int], *, seed: int = 5, parts: float = 0.0) -> str:
    """What the storm says about the program as it is now. The test fails if that takes too long, or if there is nothing to say. A seed is one that
    meets the bug early."""
    began = time.process_time()  # of this process alone, as other tests run beside it
    with pytest.raises(Unsafe) as unsafe:
        World(seed=seed, days=2, parts=parts, faults=dict(FAULTS_A_DAY) | faults, look_back_every=20).run()
    assert time.process_time() - began <= FOUND_WITHIN_SECONDS
    return str(unsafe.value)


@pytest.mark.django_db(transaction=True, reset_sequences=True)
@pytest.mark.usefixtures("quiet")
class TestPlantedBugs:
    """Each breaks one promise of the loop. A storm that does not notice is not worth its time."""

    def test_a_scheduler_that_ignores_the_fence(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Lease, "still_ours_or_raise", lambda self: None)

        assert "had lost the lease" in found({"two schedulers": 40})

    def test_a_plan_that_is_carried_out_though_its_rows_have_changed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_Applying, "_fault", lambda self, item: "")

        # A job that was cancelled meanwhile is started: no safety of the storm's own is needed, as the state machine knows no such step.
        assert "A job does not go from cancelled to starting." in found({"people in between": 40})

    def test_an_attempt_of_the_engine_that_is_not_undone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(Fleet, "undo", lambda self, mark: None)

        assert "is held twice" in found({}, seed=1)

    def test_a_budget_that_stops_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(jobs, "stops_now", list)

        assert "is used up" in found({})

    def test_a_window_that_lends_what_it_keeps_idle(self, monkeypatch: pytest.MonkeyPatch) -> None:
        promised = windows.promised
        monkeypatch.setattr(windows, "promised", lambda one: promised(one)._replace(held=False))

        assert " got more, and for r-" in found({}, seed=2)

    def test_a_hold_that_is_closed_twice(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ever = Prepared[Placement](lambda attempts: Placement.objects.filter(attempt__among=attempts).order_by("id"))
        monkeypatch.setattr(runs, "OPEN_OF", ever)

        assert "differ" in found({"node lost": 20}, seed=1)

    def test_a_split_that_takes_instances_away_from_their_tenants(self, monkeypatch: pytest.MonkeyPatch) -> None:
        split = Splitter._split
        monkeypatch.setattr(Splitter, "_split", lambda self, gpu, instances, kept: split(self, gpu, instances, {}))

        assert "held 1 times and gone" in found({}, seed=2, parts=0.6)

    def test_a_back_end_that_is_told_before_the_commit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        told: list[Backends] = []
        remember: Callable[..., None] = World.__init__

        def made(self: World, **named: Any) -> None:
            remember(self, **named)
            told.append(self.processes[0].backends)

        write = Steps.write

        def write_and_tell(self: Steps, news: Any) -> None:
            write(self, news)
            orders_dispatch(backends=told[0], now=self.now)

        monkeypatch.setattr(World, "__init__", made)
        monkeypatch.setattr(Steps, "write", write_and_tell)

        assert "no open attempt" in found({"killed after an order": 40})


@pytest.mark.django_db(transaction=True)
class TestReaper:
    def work(self, count: int = 3) -> None:
        for number in range(count):
            with transaction.atomic():
                Sequence.objects.create(name=f"one-{number}")
                Sequence.objects.create(name=f"two-{number}")

    @pytest.mark.parametrize("nth", range(1, 7))
    def test_who_is_killed_leaves_whole_transactions(self, nth: int) -> None:
        reaper = Reaper()
        reaper.kill_after = nth
        with pytest.raises(Killed), reaper.watching():
            self.work()

        assert Sequence.objects.count() == 2 * ((nth - 1) // 2)

    def test_the_dead_do_nothing_more(self) -> None:
        reaper = Reaper()
        reaper.kill_after = 1
        with reaper.watching():
            with contextlib.suppress(Killed):
                self.work()
            with pytest.raises(Killed):
                Sequence.objects.exists()
        assert not Sequence.objects.exists()

    def test_who_has_just_told_an_order_is_killed_so_many_writes_later(self) -> None:
        reaper = Reaper()
        reaper.kill_after_order = 2
        with reaper.watching():
            self.work(1)
            reaper.order_told()
            reaper.step("the order")
            with pytest.raises(Killed):
                self.work()

        assert Sequence.objects.count() == 2

    def test_a_database_that_fails_once_goes_on_afterwards(self) -> None:
        reaper = Reaper()
        reaper.fail_after = 2
        with reaper.watching():
            with pytest.raises(OperationalError):
                self.work()
            self.work(1)
        assert Sequence.objects.count() == 2
        assert not connection.in_atomic_block
