"""Local runs whose workers come and go while the others stay."""

import json
import os
import signal
from collections.abc import Sequence
from dataclasses import replace

from scheduler.backends.base import RunState, StartOrder
from scheduler.backends.local import LocalBackend
from tests.scheduler.backends.local_machine import ended, log, look, now, order, running, script
from tests.servers import wait_until

STAYS = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN if sys.argv[1:] else lambda *_: sys.exit(0))
    print("up as", os.getpid(), "of", os.environ["WORLD_SIZE"], "from", os.environ["GPUFLEET_RESUME_FROM"], flush=True)
    while not os.path.exists(os.path.join(os.environ["GPUFLEET_CHECKPOINT_DIR"], "fail-" + os.environ["RANK"])):
        time.sleep(0.02)
    sys.exit(3)
"""


def in_place(backend: LocalBackend, *arguments: str, workers: int = 2, grace: int = 30) -> StartOrder:
    """A run that states that it can be resized in place, with all its workers up."""
    told = order("", workers=workers, grace_seconds=grace, launch={"command": script(STAYS) + list(arguments), "in_place": True})
    backend.start(told, now=now())
    for index in range(workers):
        running(backend, "up as", index=index)
    return told


def pids(backend: LocalBackend) -> dict[int, int]:
    states = {path.parent.name: json.loads(path.read_text()) for path in backend.folder.glob("runs/j-1.1/*/state.json")}
    return {int(name.rpartition("-")[2]): state["processes"][0]["pid"] for name, state in states.items() if state["state"] == "running"}


def resized(backend: LocalBackend, told: StartOrder, sequence: int, *, to: int, add: Sequence[int] = (), leave: Sequence[int] = ()) -> None:
    whole = replace(told, workers=order("", workers=to).workers, resume_from="/saved")
    joining = [seat for seat in whole.workers if seat.index in add]
    backend.resize(key="j-1.1", sequence=sequence, add=joining, leave=[("worker", index) for index in leave], now=now(), order=whole)


def test_workers_join_and_leave_a_run_whose_others_stay_however_often_it_is_told(backend: LocalBackend) -> None:
    told = in_place(backend)
    first = pids(backend)
    for _ in range(2):
        resized(backend, told, 2, to=3, add=[2])
    running(backend, "of 3 from /saved", index=2)
    grown = pids(backend)
    assert {index: grown[index] for index in first} == first
    resized(backend, told, 3, to=2, leave=[2])
    resized(backend, told, 2, to=3, add=[2])  # late
    wait_until(lambda: look(backend) and pids(backend) == first, seconds=20, what="worker 2 to leave")
    left = look(backend)
    resized(backend, told, 4, to=3, add=[2])
    wait_until(lambda: log(backend, 2).count("up as") == 2, seconds=20, what="it to come back, with its log behind the earlier one's")

    assert (left.state, left.why, [worker.seat.index for worker in left.workers]) == (RunState.RUNNING, "", [0, 1])
    assert look(backend).sequence == 4


def test_a_run_that_grew_while_its_start_was_told_again_begins_each_worker_once(backend: LocalBackend) -> None:
    told = in_place(backend)
    split = replace(order("", workers=3).workers[2], mig=("1g.10gb",), sharing="mps")
    whole = replace(told, workers=(*told.workers, split))
    backend.start(whole, now=now())
    assert sorted(pids(backend)) == [0, 1], "the resize tells of worker 2"
    for sequence in (2, 3):
        backend.resize(key="j-1.1", sequence=sequence, add=[split], leave=[], now=now(), order=whole)

    running(backend, "up as", index=2)
    assert len(pids(backend)) == 3
    assert log(backend, 2).count("up as") == 1


def test_a_worker_that_does_not_leave_is_killed_after_its_grace_and_the_others_are_not(backend: LocalBackend) -> None:
    told = in_place(backend, "stubborn", grace=1)
    first = pids(backend)
    resized(backend, told, 2, to=1, leave=[1])

    wait_until(lambda: look(backend) and 1 not in pids(backend), seconds=20, what="worker 1 to be killed")

    assert pids(backend) == {0: first[0]}
    assert look(backend).state == RunState.RUNNING


def test_a_killed_worker_is_replaced_until_it_is_killed_for_the_third_time_and_one_that_fails_ends_its_gang(backend: LocalBackend) -> None:
    told = in_place(backend)
    for sequence in (2, 3):
        os.kill(pids(backend)[1], signal.SIGKILL)
        wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="the loss to be seen")
        assert (look(backend).why, look(backend).workers[0].state) == ("", RunState.RUNNING)
        resized(backend, told, sequence, to=2, add=[1])
        wait_until(lambda: 1 in pids(backend), seconds=20, what="another to join")
    os.kill(pids(backend)[1], signal.SIGKILL)
    run = ended(backend)
    assert (run.exit_code, run.why) == (137, "Worker 1: ended by SIGKILL.")

    other = replace(told, key="j-2.1", job="j-2")
    backend.start(other, now=now())
    running(backend, "up as", "j-2.1", index=1)
    (backend.folder / "checkpoints/j-2/1/fail-1").touch()
    failed = ended(backend, "j-2.1")
    assert (failed.exit_code, failed.why, failed.node_lost) == (3, "Worker 1: exit code 3.", False)


def test_those_who_cannot_go_on_without_one_that_was_lost_are_not_to_blame(backend: LocalBackend) -> None:
    told = in_place(backend)
    os.kill(pids(backend)[1], signal.SIGKILL)
    wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="the loss to be seen")
    resized(backend, told, 2, to=2, add=[1])
    (backend.folder / "checkpoints/j-1/1/fail-0").touch()

    run = ended(backend)

    assert (run.exit_code, run.why, run.node_lost) == (3, "Worker 0: exit code 3.", True)


def test_those_who_cannot_go_on_without_one_that_had_to_leave_are_not_to_blame(backend: LocalBackend) -> None:
    """As where the first worker of a torchrun leaves with the list of all others: its node is down, or the gang shrinks."""
    told = in_place(backend, grace=2)
    backend.resize(key="j-1.1", sequence=2, add=[], leave=[("worker", 1)], now=now(), order=told)
    wait_until(lambda: len(look(backend).workers) == 1, seconds=20, what="it to leave")
    (backend.folder / "checkpoints/j-1/1/fail-0").touch()

    run = ended(backend)

    assert (run.exit_code, run.why, run.node_lost) == (3, "Worker 0: exit code 3.", True)
