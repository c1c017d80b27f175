"""Local workers are asked whether they can serve: by whom, of which machine, and what is told of their answers."""

import json
import os
import textwrap
from pathlib import Path
from typing import Any

import pytest

from scheduler.backends.base import RunState, SeenWorker
from scheduler.backends.local import LocalBackend
from scheduler.backends.local_accounts import Rules
from tests.scheduler.backends.local_machine import ended, log, look, now, order, running
from tests.servers import wait_until

# Serves what the file `answer` in its folder of checkpoints says: a status, or nothing at all.
SERVES = """
    import os, pathlib, socket, sys
    place = pathlib.Path(os.environ["GPUFLEET_CHECKPOINT_DIR"])
    server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
    print("listens", flush=True)
    while True:
        there = server.accept()[0]
        asked = there.recv(4096)
        print(asked.split(b"\\r\\n")[0].decode(), flush=True)
        said = (place / "answer").read_text() if (place / "answer").exists() else "503"
        if said == "leave":
            sys.exit(0)
        there.sendall(f"HTTP/1.1 {said} Whatever\\r\\nLocation: http://127.0.0.1:1/\\r\\n\\r\\n".encode())
        there.close()
"""
STAYS = "import time; print('up', flush=True); time.sleep(600)"


def probed(probe: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"ready": probe | {"period_s": 1, "timeout_s": 1}, **more}


def told(backend: LocalBackend, index: int = 0) -> SeenWorker:
    return look(backend).workers[index]


def becomes(backend: LocalBackend, *, ready: bool, why: str = "", index: int = 0) -> None:
    wait_until(
        lambda: (told(backend, index).ready, told(backend, index).ready_why) == (ready, why), seconds=20, what=f"worker {index}: {ready}, {why!r}"
    )


def test_a_worker_is_ready_while_it_answers_and_not_any_more_after_so_many_failures(backend: LocalBackend) -> None:
    backend.start(order(SERVES, launch=probed({"http": {"path": "/health?deep=1"}, "failures": 2})), now=now())
    running(backend, "listens")
    answer = backend.folder / "checkpoints/j-1/1/answer"
    becomes(backend, ready=False, why=f"Port {_port(backend)} answered 503.")
    assert "GET /health?deep=1 HTTP/1.1" in log(backend)
    started = look(backend).started_at
    assert told(backend).ready_since == started, "until it was ready it has not been since its start"

    answer.write_text("302")  # what it refers to is not asked
    becomes(backend, ready=True)
    since = told(backend).ready_since
    assert started is not None and since is not None and since > started
    answer.write_text("500")
    becomes(backend, ready=True, why=f"Port {_port(backend)} answered 500.")  # once is not enough
    assert told(backend).ready_since == since
    becomes(backend, ready=False, why=f"Port {_port(backend)} answered 500.")

    answer.write_text("leave")
    assert ended(backend).exit_code == 0
    assert look(backend).workers[0].ready is None


def _port(backend: LocalBackend) -> str:
    return next(
        word.partition(b"=")[2].decode()
        for path in backend.folder.glob("runs/j-1.1/*/state.json")
        for word in Path(f"/proc/{_pid(path)}/environ").read_bytes().split(b"\0")
        if word.startswith(b"GPUFLEET_READY_PORT=")
    )


def _pid(state: Path) -> int:
    return int(json.loads(state.read_text())["processes"][0]["pid"])


def test_replicas_on_one_machine_have_a_port_each_and_are_ready_each_by_itself(backend: LocalBackend) -> None:
    body = """
        import os, socket, time
        if os.environ["RANK"] == "1":
            server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
        print("up", flush=True)
        time.sleep(600)
    """
    backend.start(order(body, workers=2, launch=probed({"tcp": {}})), now=now())
    becomes(backend, ready=True, index=1)
    wait_until(lambda: "refused" in told(backend, 0).ready_why, seconds=20, what="the port of the other to refuse")
    assert told(backend, 0).ready is False


def test_a_command_is_asked_as_the_worker_is_and_what_does_not_answer_is_ended(backend: LocalBackend, tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    ask = f'echo "$WHO:$(pwd):$TOKEN:$RANK" > {seen}; test ! -e {tmp_path}/slow || exec sleep 600; test -e {tmp_path}/fine'
    launch = probed({"command": ["/bin/sh", "-c", ask]}, env={"WHO": "me"}, secrets={"TOKEN": "wandb"}, workdir="/usr")
    backend.start(order(STAYS, launch=launch), now=now())
    becomes(backend, ready=False, why="The command ended with exit code 1.")
    assert seen.read_text() == "me:/usr:s3cr3t-value:0\n"
    (tmp_path / "fine").touch()
    becomes(backend, ready=True)
    (tmp_path / "slow").touch()
    becomes(backend, ready=False, why="No answer within 1 s.")
    assert "s3cr3t" not in (backend.folder / "runs/j-1.1/worker-0/state.json").read_text()

    backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    ended(backend)
    assert not [entry for entry in Path("/proc").glob("[0-9]*/environ") if b"WHO=me\0" in _environ(entry)]


def _environ(entry: Path) -> bytes:
    try:
        return entry.read_bytes()
    except OSError:
        return b""


def test_a_command_that_does_not_exist_is_told_and_the_worker_goes_on(backend: LocalBackend) -> None:
    backend.start(order(STAYS, launch=probed({"command": ["/nowhere/check"]})), now=now())
    becomes(backend, ready=False, why="It could not be asked: No such file or directory.")
    assert look(backend).state == RunState.RUNNING


def test_what_speaks_no_http_is_not_ready(backend: LocalBackend) -> None:
    body = """
        import os, socket
        server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
        while True:
            there = server.accept()[0]
            there.recv(100)
            there.sendall(b"SSH-2.0 nobody\\r\\n")
            there.close()
    """
    backend.start(order(body, launch=probed({"http": {}})), now=now())
    wait_until(lambda: "does not speak HTTP" in told(backend).ready_why, seconds=20, what="that to be told")
    assert told(backend).ready is False


def test_without_a_probe_nothing_is_told(backend: LocalBackend) -> None:
    backend.start(order(STAYS), now=now())
    running(backend, "up")
    assert (told(backend).ready, told(backend).ready_since, told(backend).ready_why) == (None, None, "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can start processes as another user")
def test_the_probe_of_another_user_s_job_has_no_more_rights_than_the_job(folder: Path, shared: Path) -> None:
    private = folder / "private"
    private.write_text("key")
    private.chmod(0o600)
    backend = LocalBackend(folder, Rules(user="nobody", checkpoints=shared))
    body = textwrap.dedent(STAYS)
    probe = probed({"command": ["/bin/sh", "-c", f'test "$(id -u)" != 0 && test ! -r {private}']}, workdir="/")
    backend.start(order(launch={"command": ["/usr/bin/python3", "-c", body]} | probe), now=now())
    becomes(backend, ready=True)
    backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    ended(backend)
