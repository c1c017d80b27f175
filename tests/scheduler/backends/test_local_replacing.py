"""Single workers of a local run are started anew in their place, with what they are to know now; the others go on."""

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler.backends.base import BackendError, BackendRefused, NotFound, RunState, StartOrder
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from tests.scheduler.backends.local_machine import ended, log, look, now, order, script
from tests.servers import wait_until

SERVES = """
    import os, signal, socket, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in sys.argv else lambda *_: sys.exit(1))
    print("up as", os.getpid(), "with", os.environ.get("TOKEN"), flush=True)
    if os.environ.get("BAD"):
        sys.exit(7)
    server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
    while True:
        time.sleep(0.05)
"""


def told(*arguments: str, grace: int = 30, **launch: Any) -> StartOrder:
    facts = {"command": script(SERVES) + list(arguments), "in_place": True, "ready": {"tcp": {}, "period_s": 1}}
    return order("", workers=2, grace_seconds=grace, launch=facts | launch)


def pids(backend: LocalBackend) -> dict[int, int]:
    states = {path.parent.name: json.loads(path.read_text()) for path in backend.folder.glob("runs/j-1.1/*/state.json")}
    return {int(name.rpartition("-")[2]): one["processes"][0]["pid"] for name, one in states.items() if one["state"] == "running"}


def replaced(backend: LocalBackend, sequence: int, *workers: int, by: StartOrder, at: datetime | None = None) -> bool:
    """Told as the loop tells it; whether it need not be told again."""
    try:
        backend.replace(key="j-1.1", sequence=sequence, workers=[("worker", index) for index in workers], now=at or now(), order=by)
    except BackendError as fault:
        if isinstance(fault, BackendRefused | NotFound):
            raise
        assert "has not ended yet" in str(fault)
        return False
    return True


def up(backend: LocalBackend, one: StartOrder) -> dict[int, int]:
    backend.start(one, now=now())
    wait_until(lambda: [worker.ready for worker in look(backend).workers] == [True, True], seconds=20, what="both to be ready")
    return pids(backend)


def test_one_is_started_anew_with_what_is_to_be_known_now_and_the_other_goes_on(backend: LocalBackend) -> None:
    first = up(backend, told())
    anew = told(secrets={"TOKEN": "wandb"})
    seen: list[RunState] = []

    def again() -> bool:
        run = look(backend)
        seen.append(run.state)
        assert run.why == "" and run.workers[0].state == RunState.RUNNING and run.workers[1].state != RunState.ENDED
        return replaced(backend, 2, 1, by=anew)

    wait_until(again, seconds=20, what="worker 1 to be begun anew")
    assert replaced(backend, 2, 1, by=anew), "told once more it changes nothing"
    wait_until(lambda: look(backend).workers[1].ready is True, seconds=20, what="the new one to be ready")
    run = look(backend)
    assert ([worker.began for worker in run.workers], run.sequence, run.state) == ([0, 2], 2, RunState.RUNNING)
    assert pids(backend)[0] == first[0] and pids(backend)[1] != first[1]
    assert "with [secret]" in log(backend, 1) and log(backend, 1).count("up as") == 2
    assert RunState.ENDED not in seen
    replaced(backend, 1, 0, by=anew)  # late
    assert pids(backend)[0] == first[0]


@pytest.mark.parametrize("step", ["told to leave", "gone", "written down"])
def test_a_console_that_dies_at_any_step_goes_on_where_it_was(backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    first = up(backend, told())
    if step != "told to leave":

        def dies(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        assert not replaced(backend, 2, 1, by=told())
        wait_until(lambda: 1 not in pids(backend), seconds=20, what="worker 1 to leave")
        monkeypatch.setattr("scheduler.backends.local.write" if step == "gone" else "scheduler.backends.local.LocalBackend._begin", dies)
        with pytest.raises(KeyboardInterrupt):
            replaced(backend, 2, 1, by=told())
        monkeypatch.undo()
    other = LocalBackend(backend.folder, backend.rules)
    assert (look(other).state, look(other).why) in ((RunState.RUNNING, ""), (RunState.STARTING, ""))
    with monkeypatch.context() as patch:
        if step == "gone":  # of whom nothing is written any more counts as coming up for so long
            patch.setattr("scheduler.backends.local_runs.COME_UP", timedelta(seconds=1))
        wait_until(lambda: replaced(other, 2, 1, by=told()), seconds=20, what="it to be begun by another")
    wait_until(lambda: look(other).workers[1].ready is True, seconds=20, what="it to be ready")
    assert pids(other)[0] == first[0] and log(other, 1).count("up as") == 2


def test_one_that_does_not_leave_is_killed_after_its_grace(backend: LocalBackend) -> None:
    first = up(backend, told("stubborn", grace=1))
    wait_until(lambda: bool(look(backend)) and replaced(backend, 2, 1, by=told()), seconds=20, what="worker 1 to be killed and begun anew")
    assert pids(backend)[0] == first[0]
    assert (look(backend).why, look(backend).state in (RunState.RUNNING, RunState.STARTING)) == ("", True)


def test_one_that_fails_before_it_could_serve_is_lost_and_the_others_serve_on(backend: LocalBackend) -> None:
    first = up(backend, told())
    bad = told(env={"BAD": "1"})
    wait_until(lambda: replaced(backend, 2, 1, by=bad), seconds=20, what="worker 1 to be begun anew")
    wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="it to fail")
    run = look(backend)
    assert (run.why, run.workers[0].state, pids(backend)) == ("", RunState.RUNNING, {0: first[0]})
    # It is put in its place anew as one that was lost, until it has failed for the third time.
    for sequence in (3, 4):
        backend.resize(key="j-1.1", sequence=sequence, add=[bad.workers[1]], leave=[], now=now(), order=bad)
        wait_until(lambda: log(backend, 1).count("up as") == sequence, seconds=20, what="it to try again")  # noqa: B023 - asked at once
        wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="it to fail again")
    assert ended(backend).why == "Worker 1: exit code 7."


def test_one_that_has_served_and_fails_later_ends_its_gang_as_any_other(backend: LocalBackend) -> None:
    up(backend, told())
    wait_until(lambda: replaced(backend, 2, 1, by=told()), seconds=20, what="worker 1 to be begun anew")
    wait_until(lambda: look(backend).workers[1].ready is True, seconds=20, what="it to be ready")
    import os
    import signal

    os.kill(pids(backend)[1], signal.SIGTERM)
    assert ended(backend).why == "Worker 1: exit code 1."


def test_what_cannot_be_replaced_is_refused_and_a_stop_ends_all_of_it(backend: LocalBackend, folder: Any) -> None:
    with pytest.raises(NotFound):
        replaced(backend, 2, 1, by=told())
    plain = replace(told(in_place=False), key="j-2.1", job="j-2")
    backend.start(plain, now=now())
    with pytest.raises(BackendRefused, match="in place"):
        backend.replace(key="j-2.1", sequence=2, workers=[("worker", 0)], now=now(), order=plain)
    backend.stop(key="j-2.1", sequence=3, force=True, now=now())

    up(backend, told("stubborn"))
    assert not replaced(backend, 2, 1, by=told())
    backend.stop(key="j-1.1", sequence=3, force=True, now=now())
    assert ended(backend).exit_code == 137
    assert replaced(backend, 2, 1, by=told()) and pids(backend) == {}


def test_a_secret_that_has_gone_meanwhile_leaves_nobody_waiting_for_ever(folder: Any) -> None:
    kept = {"wandb": "s3cr3t-value"}
    backend = LocalBackend(folder, Rules(same_user=True, secrets=lambda name, _team: kept.get(name)))
    up(backend, told())
    anew = told(secrets={"TOKEN": "wandb"})
    assert not replaced(backend, 2, 1, by=anew)
    kept.clear()
    with pytest.raises(BackendRefused, match="no secret"):
        replaced(backend, 2, 1, by=anew)
    wait_until(lambda: look(backend).workers[1].state == RunState.ENDED, seconds=20, what="worker 1 to be told as lost")
    assert (look(backend).why, look(backend).workers[0].state) == ("", RunState.RUNNING)
