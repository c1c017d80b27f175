"""Replicas of a service on a real Slurm start anew each within its own Slurm job, one once the other can serve."""

import shlex
import signal
import textwrap
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from quotas.permissions import Access
from scheduler.backends.base import BackendError, BackendRefused, NotFound, RunState, StartOrder
from scheduler.backends.slurm import answers
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.models import Job, JobState, Placement, Replacement, ReplacementStep, SlurmRun
from scheduler.selectors.readiness import readiness_of
from scheduler.services.jobs.replacing import job_replace
from tests.invariants import fleet_faults
from tests.personas import Personas
from tests.scheduler.backends.scenes import start_order
from tests.scheduler.backends.slurm_site import Site, seat
from tests.scheduler.backends.test_slurm_end_to_end import Console, console  # noqa: F401 - a fixture
from tests.scheduler.loop.worlds import attempt_of, leaf, submit
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
SERVES = """
    import os, signal, socket, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN if os.environ.get("STUBBORN") else lambda *_: sys.exit(1))
    print("up with", os.environ.get("TOKEN"), "rank", os.environ["RANK"], "job", os.environ["SLURM_JOB_ID"], flush=True)
    if os.environ.get("BAD"):
        sys.exit(7)
    server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
    while True:
        time.sleep(0.05)
"""
SHELL = f"exec /usr/bin/python3 -c {shlex.quote(textwrap.dedent(SERVES))}"
SEATS = (seat(0, "gpu001", 2), seat(1, "gpu002", 2))
READY = {"tcp": {}, "period_s": 1}


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "READ_EACH", 0.0)


@pytest.fixture
def service(site: Site) -> Iterator[Site]:
    """With secrets."""
    site.backend = SlurmBackend(site.cluster.pk, site.settings, client=site.client, secrets=lambda name, _team: f"the {name}")
    yield site


def told(*, grace: int = 30, **launch: Any) -> StartOrder:
    facts = {"shell": SHELL, "in_place": True, "ready": READY} | launch
    return replace(start_order("j-1.1"), workers=SEATS, launch=facts, spec={}, grace_seconds=grace, serves=True)


def up(site: Site, one: StartOrder) -> list[int]:
    site.backend.start(one, now=now())
    wait_until(lambda: [worker.ready for worker in site.seen().workers] == [True, True], seconds=40, what="both to be ready")
    return [part["id"] for part in parts()]


def said(site: Site, index: int) -> list[str]:
    """Slurm itself writes to the log of a step that it is told to end."""
    return [line for line in site.log(index).splitlines() if not line.startswith("slurmstepd")]


def parts() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = SlurmRun.objects.get().state["parts"]
    return found


def replaced(site: Site, sequence: int, *workers: int, by: StartOrder) -> bool:
    """Told as the loop tells it; whether it need not be told again."""
    try:
        site.backend.replace(key="j-1.1", sequence=sequence, workers=[("worker", index) for index in workers], now=now(), order=by)
    except BackendError as fault:
        if isinstance(fault, BackendRefused | NotFound):
            raise
        assert "has not ended yet" in str(fault), fault
        return False
    return True


def again(site: Site, sequence: int, *workers: int, by: StartOrder) -> None:
    def done() -> bool:
        run = site.seen()
        assert run.why == "" and run.workers[0].state == RunState.RUNNING and run.state == RunState.RUNNING
        return replaced(site, sequence, *workers, by=by)

    wait_until(done, seconds=40, what="it to begin anew")


def test_one_starts_anew_in_its_own_job_with_what_is_to_be_known_now_and_the_other_goes_on(service: Site) -> None:
    numbers = up(service, told())
    anew = told(secrets={"TOKEN": "wandb"})
    again(service, 2, 1, by=anew)
    assert replaced(service, 2, 1, by=anew), "told once more it changes nothing"
    wait_until(lambda: service.seen().workers[1].ready, seconds=40, what="the new one to be ready")
    run = service.seen()
    assert ([worker.began for worker in run.workers], run.sequence, run.state) == ([0, 2], 2, RunState.RUNNING)
    assert said(service, 0) == [f"up with None rank 0 job {numbers[0]}"]
    assert said(service, 1) == [f"up with {token} rank 1 job {numbers[1]}" for token in (None, "the wandb")], "its GPUs stay its own"
    folder = Path(SlurmRun.objects.get().state["folder"])
    assert not list(folder.glob("*again-*")), "its secrets are left nowhere"
    replaced(service, 1, 0, by=anew)  # late
    assert service.log(0).count("up with") == 1

    service.backend.stop(key="j-1.1", sequence=3, force=False, now=now())
    assert service.until(RunState.ENDED).state == RunState.ENDED


@pytest.mark.parametrize("step", ["_leave", "_signal_the_old", "_settled"])
def test_a_console_that_dies_at_any_step_goes_on_where_it_was(service: Site, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    numbers = up(service, told())

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SlurmBackend, step, dies)
        with pytest.raises(KeyboardInterrupt):
            replaced(service, 2, 1, by=told())
    service.restart()
    again(service, 2, 1, by=told())
    wait_until(lambda: service.seen().workers[1].ready, seconds=40, what="it to be ready")
    assert said(service, 1) == [f"up with None rank 1 job {numbers[1]}"] * 2
    assert service.log(0).count("up with") == 1


def test_one_that_does_not_leave_is_killed_after_its_grace(service: Site) -> None:
    up(service, told(grace=2, env={"STUBBORN": "1"}))
    again(service, 2, 1, by=told())
    assert service.log(1).count("up with") >= 1 and service.log(0).count("up with") == 1
    wait_until(lambda: service.seen().workers[1].ready, seconds=40, what="the new one to be ready")


def test_one_that_fails_before_it_could_serve_is_lost_and_the_others_serve_on(service: Site) -> None:
    up(service, told())
    bad = told(env={"BAD": "1"})
    again(service, 2, 1, by=bad)
    wait_until(lambda: service.seen().workers[1].state == RunState.ENDED, seconds=40, what="it to fail")
    run = service.seen()
    assert (run.why, run.workers[0].state, run.workers[0].ready) == ("", RunState.RUNNING, True)
    # It is put in its place anew as one that was lost, until it has failed for the third time.
    for sequence in (3, 4):
        service.backend.resize(key="j-1.1", sequence=sequence, add=[SEATS[1]], leave=[], now=now(), order=bad)
        wait_until(lambda: service.log(1).count("up with") == sequence, seconds=40, what="it to try again")  # noqa: B023 - asked at once
        wait_until(lambda: service.seen().workers[-1].state == RunState.ENDED, seconds=40, what="it to fail again")
    assert service.until(RunState.ENDED).exit_code == 7


def test_a_stop_meanwhile_starts_nothing_anew(service: Site) -> None:
    up(service, told(env={"STUBBORN": "1"}))
    assert not replaced(service, 2, 1, by=told())
    service.backend.stop(key="j-1.1", sequence=3, force=False, now=now())
    folder = Path(SlurmRun.objects.get().state["folder"])
    assert not list(folder.glob("again-*"))
    service.backend.stop(key="j-1.1", sequence=4, force=True, now=now())
    service.until(RunState.ENDED)
    assert service.log(1).count("up with") == 1
    assert replaced(service, 3, 1, by=told()), "there is nothing left to do"


def test_a_service_shrinks_and_grows_and_its_newest_replica_is_replaced_as_any_other(service: Site) -> None:
    up(service, told())
    service.backend.resize(key="j-1.1", sequence=2, add=[], leave=[("worker", 1)], now=now(), order=None)
    wait_until(lambda: [worker.seat.index for worker in service.seen().workers] == [0], seconds=40, what="worker 1 to have left")
    assert (service.seen().why, service.seen().workers[0].ready) == ("", True)
    service.backend.resize(key="j-1.1", sequence=3, add=[SEATS[1]], leave=[], now=now(), order=told())
    wait_until(lambda: [worker.ready for worker in service.seen().workers] == [True, True], seconds=40, what="both to be ready again")
    again(service, 4, 1, by=told())
    wait_until(lambda: service.seen().workers[1].ready, seconds=40, what="the new one to be ready")
    assert len({line.rpartition(" ")[2] for line in said(service, 1)}) == 2, "of two Slurm jobs"
    assert len(said(service, 1)) == 3


def test_all_tasks_of_a_replica_start_anew_together(service: Site) -> None:
    text = f'test "$LOCAL_RANK" = 0 || exec sleep 600; {SHELL}'
    up(service, told(per="gpu", shell=text))
    again(service, 2, 1, by=told(per="gpu", shell=text))
    wait_until(lambda: service.seen().workers[1].ready, seconds=40, what="the new one to be ready")
    assert len([line for line in said(service, 1) if line.startswith("0: up with None rank 2")]) == 2


def test_what_cannot_be_replaced_is_refused(service: Site) -> None:
    with pytest.raises(NotFound):
        replaced(service, 2, 1, by=told())
    plain = told(in_place=False)
    service.backend.start(plain, now=now())
    with pytest.raises(BackendRefused, match=r"launch\.in_place"):
        replaced(service, 2, 1, by=plain)
    service.backend.stop(key="j-1.1", sequence=3, force=True, now=now())


def test_a_secret_that_is_not_there_is_refused_before_any_replica_is_asked_to_leave(site: Site) -> None:
    up(site, told())
    with pytest.raises(BackendRefused, match="no secret"):
        replaced(site, 2, 1, by=told(secrets={"TOKEN": "wandb"}))
    assert site.seen().workers[1].ready and not any(part.get("again") for part in parts())


def test_a_link_in_the_way_is_not_written_through(service: Site, tmp_path: Path) -> None:
    up(service, told())
    folder, elsewhere = Path(SlurmRun.objects.get().state["folder"]), tmp_path / "elsewhere"
    elsewhere.write_text("kept")
    (folder / f"again-worker-1.{parts()[1]['number']}").symlink_to(elsewhere)
    again(service, 2, 1, by=told())
    assert elsewhere.read_text() == "kept"


def test_replicas_are_replaced_one_at_a_time_each_once_the_one_before_can_serve(
    console: Console,  # noqa: F811
    personas: Personas,
) -> None:
    """Across a restart of the console and of Slurm's controller in between."""
    role = {"name": "server", "min": 1, "max": 3, "gpus": 2, "cpus": 1, "desired": 3}
    launch = {"shell": SHELL, "in_place": True, "ready": READY}
    job = submit(leaf("team", 32), gpus=2, at=now(), job_class="inference", preemptible="when_borrowed", spec={"roles": [role]}, launch=launch)
    console.until(job, JobState.RUNNING)

    def ready() -> int:
        told = readiness_of(Job.objects.get(pk=job.pk), attempt_of(job))
        assert told is not None
        return told.ready

    def all_ready() -> bool:
        console.tick()
        return ready() == 3

    wait_until(all_ready, seconds=60, what="three replicas to be ready")
    before = {part["id"] for part in parts()}
    seats = set(Placement.objects.values_list("pk", flat=True))
    access: Access = personas.access("superuser")
    job_replace(access=access, job=Job.objects.get(pk=job.pk), now=now(), reason="New weights.")
    least, restarted = 3, False

    def over() -> bool:
        nonlocal least, restarted
        console.tick()
        least = min(least, ready())
        assert ReplacementStep.objects.filter(began_at__isnull=False, over_at__isnull=True).count() <= 1
        if not restarted and ReplacementStep.objects.filter(over_at__isnull=False).exists():
            console.slurm.end("slurmctld", signal.SIGTERM)
            console.slurm.start_controller()
            console.restart()
            restarted = True
        return not Replacement.objects.filter(over_at__isnull=True).exists()

    wait_until(over, seconds=150, what="all replicas to be replaced")
    row = Replacement.objects.get()
    assert (row.end, row.why, restarted) == ("done", "", True)
    assert [step.end for step in ReplacementStep.objects.order_by("worker")] == ["ready"] * 3
    assert least == 2 and ready() == 3
    assert {part["id"] for part in parts()} == before and set(Placement.objects.values_list("pk", flat=True)) == seats
    assert not fleet_faults()
