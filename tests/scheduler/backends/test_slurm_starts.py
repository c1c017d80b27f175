"""Starts on a real Slurm: told together, with answers that were lost, doubles and another leader beside."""

import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, RunState
from scheduler.backends.slurm.errors import SlurmSilent
from scheduler.models import SlurmRun
from tests.scheduler.backends.scenes import start_order
from tests.scheduler.backends.slurm_site import seat, shell
from tests.servers import wait_until

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]


def test_a_submission_whose_answer_was_lost_is_found_again_and_never_doubled(site, monkeypatch):
    """The console dies between Slurm's taking the job and writing its number down."""
    lost = []
    submit = site.client.submit

    def submit_then_die(arguments, script):
        lost.append(submit(arguments, script))
        raise SlurmSilent("the answer was lost")

    monkeypatch.setattr(site.client, "submit", submit_then_die)
    with pytest.raises(SlurmSilent):
        site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    monkeypatch.undo()
    site.restart()

    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)

    assert [job.id for job in site.client.jobs() if site.settings.tag in job.comment] == lost


def test_of_starts_that_are_told_together_each_begins_once_whatever_befalls_another(site, monkeypatch):
    """One can never run, and of one the answer is lost: those are told, the others run, and being told again doubles none."""
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in range(1, 6)]
    orders[1] = replace(orders[1], launch={})
    submit = site.client.submit

    def submit_and_lose_one(arguments, script):
        number = submit(arguments, script)
        if "--job-name=gpufleet-j-4.1" in arguments:
            raise SlurmSilent("the answer was lost")
        return number

    def tell() -> list[str]:
        faults = []
        with site.backend.together():
            site.backend.announce(orders, now=now())
            for order in orders:
                try:
                    site.backend.start(order, now=now())
                except BackendError as fault:
                    faults.append(f"{order.key} {type(fault).__name__}")
        return faults

    monkeypatch.setattr(site.client, "submit", submit_and_lose_one)
    first = tell()
    monkeypatch.undo()
    site.restart()
    again = tell()

    assert "j-4.1 SlurmSilent" in first
    assert "j-2.1" in " ".join(first)
    assert again == ["j-2.1 BackendRefused"]
    for key in ("j-1.1", "j-3.1", "j-4.1", "j-5.1"):
        site.until(RunState.RUNNING, key)
    assert sorted(job.comment.split()[2] for job in site.client.jobs() if site.settings.tag in job.comment and not job.ended) == [
        "j-1.1", "j-3.1", "j-4.1", "j-5.1",
    ]  # fmt: skip


def test_what_is_submitted_may_run_while_the_rest_is_submitted_and_a_failed_release_is_made_good(site, monkeypatch):
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in (1, 2, 3)]
    submitted: list[int] = []
    releases: list[Sequence[int]] = []
    began, submit, release = threading.Event(), site.client.submit, site.client.release

    def submitting(arguments: Sequence[str], script: str) -> int:
        if len(submitted) == 2:
            assert began.wait(60), "the first one is released only when all are submitted"
        submitted.append(submit(arguments, script))
        return submitted[-1]

    def releasing(ids: Sequence[int]) -> None:
        releases.append(ids)
        began.set()
        if len(releases) == 1:
            raise BackendError("not now")
        release(ids)

    monkeypatch.setattr("scheduler.backends.slurm.orders.STARTS_A_STEP", 1)
    monkeypatch.setattr(site.client, "submit", submitting)
    monkeypatch.setattr(site.client, "release", releasing)
    with site.backend.together():
        site.backend.announce(orders, now=now())
        for order in orders:
            site.backend.start(order, now=now())

    assert releases == [submitted[:1], submitted[:2], submitted[2:]], "what failed is released with the next"
    for order in orders:
        site.until(RunState.RUNNING, order.key)


def test_what_another_leader_wrote_while_starts_were_submitted_together_stays(site, monkeypatch):
    """Of three, one was stopped meanwhile, and one was submitted by the other leader too."""
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("sleep 300")) for number in (1, 2, 3)]
    submit = site.client.submit
    theirs = {}

    def other_leader(pool, runs):
        """All are submitted, and nothing of it is written down yet."""
        faults = submit_all(pool, runs)
        stopped, doubled = (SlurmRun.objects.get(attempt_key=key) for key in ("j-1.1", "j-2.1"))
        stopped.sequence, stopped.state["stopping"], stopped.state["term_at"] = 7, now().isoformat(), now().isoformat()
        (mine,) = (job for job in site.client.jobs() if "j-2.1" in job.comment and site.settings.tag in job.comment)
        arguments = ["--hold", f"--comment={mine.comment}", "--job-name=gpufleet-j-2.1", "--nodes=1", "--output=/dev/null", "--chdir=/"]
        arguments += site.as_account()
        doubled.state["parts"][0]["id"] = theirs["j-2.1"] = submit(arguments, "#!/bin/sh\nsleep 300\n")
        stopped.save()
        doubled.save()
        return faults

    submit_all = site.backend._submit_all
    monkeypatch.setattr(site.backend, "_submit_all", other_leader)
    with site.backend.together():
        site.backend.announce(orders, now=now())
        for order in orders:
            site.backend.start(order, now=now())

    kept = {row.attempt_key: row for row in SlurmRun.objects.all()}
    assert (kept["j-1.1"].sequence, bool(kept["j-1.1"].state["stopping"])) == (7, True)
    assert kept["j-2.1"].state["parts"][0]["id"] == theirs["j-2.1"]
    site.client.release([theirs["j-2.1"]])  # by the other leader
    site.until(RunState.RUNNING, "j-2.1")
    site.until(RunState.RUNNING, "j-3.1")
    site.until(RunState.ENDED, "j-1.1")
    states = {job.id: (job.comment.split()[2], job.state) for job in site.client.jobs() if site.settings.tag in job.comment}
    assert states.pop(theirs["j-2.1"]) == ("j-2.1", "RUNNING")
    assert sorted(states.values()) == [("j-1.1", "CANCELLED"), ("j-2.1", "CANCELLED"), ("j-3.1", "RUNNING")]


def test_one_start_that_fails_in_a_way_nobody_thought_of_is_told_alone_and_silence_costs_one_wait(site, monkeypatch):
    orders = [replace(start_order(f"j-{number}.1"), workers=(seat(0, "gpu001", 1),), launch=shell("true")) for number in (1, 2, 3)]
    orders[1] = replace(orders[1], launch={"shell": "true", "env": 7})
    with site.backend.together():
        site.backend.announce(orders, now=now())
        assert [order.key for order in orders if order.key in site.backend._held.announced] == ["j-1.1", "j-3.1"]

    asked = []

    def silent(*_arguments):
        asked.append(1)
        raise SlurmSilent("nobody answers")

    site.restart()
    monkeypatch.setattr(site.client, "nodes", silent)
    with site.backend.together():
        later = [replace(order, key=f"j-9.{number}", launch=shell("true")) for number, order in enumerate(orders)]
        site.backend.announce(later, now=now())
        for order in later:
            with pytest.raises(BackendError, match="nobody answers"):
                site.backend.start(order, now=now())
    assert asked == [1]


def test_ranks_of_two_runs_that_begin_on_one_node_meet_at_different_ports(site):
    """Their names make the same port, and the console was started anew between them."""
    spans = range(10_240, 20_000)
    seen: dict[int, str] = {}
    for number in range(1, 10_000):
        key = f"j-{number}.1"
        if (first := seen.setdefault(zlib.crc32(key.encode()) % len(spans), key)) != key:
            break
    gang, says = [seat(0, "gpu001", 1), seat(1, "gpu002", 1)], shell("echo $MASTER_PORT; sleep 300")
    site.start(first, on=gang, launch=says)
    site.restart()
    site.backend.observe(now=now())
    site.start(key, on=gang, launch=says)
    site.start("j-20000.1", on=gang, launch=says)

    ports = {run: wait_until(lambda run=run: site.seen(run) and said(site, run), what=f"{run} to say its port") for run in (first, key, "j-20000.1")}

    assert len(set(ports.values())) == 3
    assert {site.log(1, run).strip() for run in (first,)} == {ports[first]}


def said(site, key: str) -> str:
    try:
        return site.log(0, key).strip() and site.log(1, key).strip()
    except BackendError:
        return ""


def test_a_double_that_came_late_is_cancelled_unstarted(site):
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 300"))
    site.until(RunState.RUNNING)
    (mine,) = (job for job in site.client.jobs() if site.settings.tag in job.comment)
    arguments = ["--hold", f"--comment={mine.comment}", "--nodes=1", "--output=/dev/null", "--chdir=/", *site.as_account()]
    late = site.client.submit(arguments, "#!/bin/sh\nsleep 300\n")

    site.backend.observe(now=now())

    states = {job.id: job.state for job in site.client.jobs()}
    assert states[late] == "CANCELLED"
    assert states[mine.id] == "RUNNING"
