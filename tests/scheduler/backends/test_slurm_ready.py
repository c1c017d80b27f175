"""Workers on a real Slurm are asked on their nodes whether they can serve, and the console reads what they answered."""

import os
import pwd
import re
import shlex
import signal
import textwrap
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from gpufleet.core.times import now
from scheduler.backends.base import RunState, SeenWorker
from scheduler.backends.slurm import answers
from scheduler.backends.slurm.asking import SILENT, SILENT_FOR, Answer, answer_of
from scheduler.models import SlurmRun
from tests.scheduler.backends.slurm_site import Site, seat, shell
from tests.scheduler.backends.test_local_ready import SERVES
from tests.servers import required, wait_until
from tests.slurm import Slurm, missing

pytestmark = [pytest.mark.django_db, pytest.mark.slurm]
LISTENS = """
    import os, socket, time
    server = socket.create_server(("127.0.0.1", int(os.environ["GPUFLEET_READY_PORT"])))
    print("port", os.environ["GPUFLEET_READY_PORT"], flush=True)
    time.sleep(600)
"""
USER = pwd.getpwnam("nobody") if os.getuid() == 0 else pwd.getpwuid(os.getuid())


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "READ_EACH", 0.0)


def program(body: str) -> str:
    return f"exec /usr/bin/python3 -c {shlex.quote(textwrap.dedent(body))}"


def probed(text: str, probe: dict[str, Any], **more: Any) -> dict[str, Any]:
    return shell(text, ready=probe | {"period_s": 1, "timeout_s": 1}, **more)


def told(site: Site, index: int = 0) -> SeenWorker:
    return site.seen().workers[index]


def becomes(site: Site, *, ready: bool, why: str = "", index: int = 0) -> SeenWorker:
    def is_so() -> SeenWorker | None:
        one = told(site, index)
        return one if (one.ready, re.sub("[0-9]{5}", "N", one.ready_why)) == (ready, why) else None

    return wait_until(is_so, seconds=40, what=f"worker {index} to be ready={ready} ({why})")


def probers(site: Site) -> dict[int, Path]:
    """Processes that ask workers of the site, by worker."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        name = next((word.decode() for word in words if word.startswith(f"{site.settings.folder}/gpufleet-{site.settings.tag}/".encode())), "")
        if words[4:5] == [b"gpufleet"] and (asked := re.search(r"/ready-worker-([0-9]+)\.[0-9]+$", name)) and words[5] == name.encode():
            found[int(asked[1])] = entry
    return found


def environment(process: Path) -> Mapping[str, str]:
    return dict(word.split("=", 1) for word in (process / "environ").read_text().split("\0") if "=" in word)


def test_a_worker_is_ready_while_it_answers_and_not_any_more_after_so_many_failures(site: Site) -> None:
    probe = {"http": {"path": "/health?deep=1"}, "failures": 10}
    site.start(on=[seat(0, "gpu001", 2)], launch=probed(program(SERVES), probe))
    site.until(RunState.RUNNING)
    answer = Path(SlurmRun.objects.get().state["checkpoints"]) / "answer"
    assert becomes(site, ready=False, why="Port N answered 503.").ready_since == site.seen().started_at
    assert "GET /health?deep=1 HTTP/1.1" in site.log()

    answer.write_text("302")  # what it refers to is not asked
    since = becomes(site, ready=True).ready_since
    started = site.seen().started_at
    assert since is not None and started is not None and since >= started
    answer.write_text("500")
    assert becomes(site, ready=True, why="Port N answered 500.").ready_since == since  # once is not enough
    becomes(site, ready=False, why="Port N answered 500.")

    (asks,) = probers(site).values()
    assert asks.stat().st_uid == USER.pw_uid
    answer.write_text("leave")
    run = site.until(RunState.ENDED)
    assert (run.exit_code, run.workers[0].ready) == (0, None)
    wait_until(lambda: not probers(site), seconds=10, what="its prober to end with it")


def test_each_worker_of_a_gang_is_asked_in_its_own_step_at_a_port_of_its_own(site: Site) -> None:
    """Two of a node, and one on another, of which one does not listen."""
    text = f'test "$RANK" != 1 || exec sleep 600; {program(LISTENS)}'
    site.start(on=[seat(0, "gpu001", 1), seat(1, "gpu001", 1), seat(2, "gpu002", 1)], launch=probed(text, {"tcp": {}}))
    becomes(site, ready=True, index=0)
    becomes(site, ready=True, index=2)
    becomes(site, ready=False, index=1, why="Port N: Connection refused.")
    told_ports = {site.log(index) for index in (0, 2)}
    assert len(told_ports) == 2 and all(re.fullmatch("port 2[0-9]{4}|port 3[0-9]{4}", one.strip()) for one in told_ports)
    own = {index: environment(process) for index, process in probers(site).items()}
    assert {index: (one["SLURMD_NODENAME"], "SLURM_STEP_ID" in one, one["RANK"]) for index, one in own.items()} == {
        0: ("gpu001", True, "0"),
        1: ("gpu001", True, "1"),
        2: ("gpu002", False, "2"),  # alone in its job, it is the batch step itself
    }
    assert len({one["GPUFLEET_READY_PORT"] for one in own.values()}) == 3
    site.backend.stop(key="j-1.1", sequence=2, force=True, now=now())
    site.until(RunState.ENDED)
    wait_until(lambda: not probers(site), seconds=10, what="the probers to end")


def test_the_tasks_of_a_worker_share_its_port_and_its_first_is_asked(site: Site) -> None:
    text = f'echo "rank $RANK: $GPUFLEET_READY_PORT"; test "$LOCAL_RANK" = 0 || exec sleep 600; {program(LISTENS)}'
    site.start(on=[seat(0, "gpu001", 2)], launch=probed(text, {"tcp": {}}, per="gpu"))
    becomes(site, ready=True)
    ports = wait_until(lambda: len(found := re.findall("rank [01]: ([0-9]+)", site.log())) == 2 and found, what="both ranks to begin")
    assert len(set(ports)) == 1
    assert [environment(one)["RANK"] for one in probers(site).values()] == ["0"]


def test_a_command_is_asked_as_the_worker_is_and_what_does_not_answer_is_ended(site: Site) -> None:
    place = site.slurm.dir / "shared" / f"asked-{site.settings.tag}"
    place.mkdir()
    place.chmod(0o777)
    ask = f'echo "$WHO:$(pwd):$RANK:$(id -u):$SLURM_JOB_ID" > {place}/seen; test ! -e {place}/slow || sleep 611; test -e {place}/fine'
    launch = probed("sleep 600", {"command": ["/bin/sh", "-c", ask], "failures": 1}, env={"WHO": "me", "BASH_ENV": "/nowhere"}, workdir="/usr")
    site.start(on=[seat(0, "gpu001", 1)], launch=launch)
    becomes(site, ready=False, why="The command ended with exit code 1.")
    (part,) = SlurmRun.objects.get().state["parts"]
    assert (place / "seen").read_text() == f"me:/usr:0:{USER.pw_uid}:{part['id']}\n"
    (place / "fine").touch()
    becomes(site, ready=True)
    (place / "slow").touch()
    becomes(site, ready=False, why="No answer within 1 s.")
    (place / "slow").unlink()  # the next question would fall asleep as well
    wait_until(lambda: not asleep(611), seconds=10, what="what it started to be ended")
    becomes(site, ready=True)


def asleep(seconds: int) -> list[Path]:
    def words(entry: Path) -> bytes:
        try:
            return entry.read_bytes()
        except OSError:
            return b""

    return [entry for entry in Path("/proc").glob("[0-9]*/cmdline") if words(entry) == f"sleep\0{seconds}\0".encode()]


def test_a_command_that_does_not_exist_is_told_and_the_worker_goes_on(site: Site) -> None:
    site.start(on=[seat(0, "gpu001", 1)], launch=probed("sleep 600", {"command": ["/nowhere/check"]}))
    becomes(site, ready=False, why="It could not be asked: No such file or directory.")
    assert site.seen().state == RunState.RUNNING


def test_a_worker_that_is_asked_has_no_child_file_or_signal_of_the_prober_and_its_own_code_counts(site: Site) -> None:
    body = """
        import os, signal, sys, time
        time.sleep(1.5)
        try:
            os.waitpid(-1, os.WNOHANG)
            print("a child")
        except ChildProcessError:
            print("no child")
        print("open", sorted(set(os.listdir("/proc/self/fd")) - {"3"}), flush=True)
        sys.exit(7)
    """
    site.start(on=[seat(0, "gpu001", 1)], launch=probed(program(body), {"tcp": {}}))
    run = site.until(RunState.ENDED)
    assert (run.exit_code, site.log()) == (7, "no child\nopen ['0', '1', '2']\n")


def test_answers_outlive_the_console_and_slurms_controller(site: Site) -> None:
    flag = Path(site.settings.folder) / f"fine-{site.settings.tag}"
    flag.touch()
    site.start(on=[seat(0, "gpu001", 1)], launch=probed("sleep 600", {"command": ["test", "-e", str(flag)], "failures": 1}))
    since = becomes(site, ready=True).ready_since
    site.slurm.saved("j-1.1")
    site.restart()
    assert (told(site).ready, told(site).ready_since) == (True, since)

    site.slurm.end("slurmctld", signal.SIGKILL)
    flag.unlink()  # the node asks on
    site.slurm.start_controller()
    site.restart()
    becomes(site, ready=False, why="The command ended with exit code 1.")
    flag.touch()
    becomes(site, ready=True)


def test_a_worker_whose_prober_says_nothing_any_more_is_not_ready_also_for_a_console_that_comes_back(site: Site) -> None:
    site.start(on=[seat(0, "gpu001", 1)], launch=probed("sleep 600", {"command": ["true"]}))
    becomes(site, ready=True)
    (asks,) = probers(site).values()
    os.kill(int(asks.name), signal.SIGKILL)
    site.seen()
    just_before, after = timedelta(seconds=SILENT_FOR - 10), timedelta(seconds=SILENT_FOR + 1)
    assert site.seen(later=just_before).workers[0].ready
    one = site.seen(later=after).workers[0]
    assert (one.ready, one.ready_why) == (False, SILENT)
    site.restart()
    again = site.seen(later=after).workers[0]
    assert (again.ready, again.ready_since) == (False, one.ready_since), "what it said last is no news"


def test_it_says_now_and_then_that_it_still_asks(site: Site) -> None:
    site.start(on=[seat(0, "gpu001", 1)], launch=probed("sleep 600", {"command": ["true"]}))
    becomes(site, ready=True)
    file = next(Path(SlurmRun.objects.get().state["folder"]).glob("ready-worker-0.*"))
    before = file.read_bytes()
    after = wait_until(lambda: (text := file.read_bytes()) != before and text, seconds=60, what="a beat")
    assert (len(after), after.split()[:2], after.split()[3:]) == (80, before.split()[:2], before.split()[3:])


def test_what_a_job_leaves_in_place_of_an_answer_is_never_followed_or_believed(site: Site) -> None:
    site.start(on=[seat(0, "gpu001", 1)], launch=probed("sleep 600", {"command": ["true"]}))
    becomes(site, ready=True)
    (asks,) = probers(site).values()
    os.kill(int(asks.name), signal.SIGKILL)
    folder = Path(SlurmRun.objects.get().state["folder"])
    file = next(folder.glob("ready-worker-0.*"))
    for put in (lambda: file.symlink_to("/etc/passwd"), lambda: os.mkfifo(file), lambda: file.mkdir(), lambda: file.write_bytes(b"1 " * 9_000_000)):
        if file.is_dir():
            file.rmdir()
        else:
            file.unlink()
        put()
        site.restart()
        one = told(site)
        assert one.ready is False and one.ready_why == "It has not been asked yet."


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("1 0 5 ok\n", Answer(True, None, "")),
        ("0 0 5 -" + " " * 71 + "\n", Answer(False, None, "It has not been asked yet.")),
        ("0 0 5 answered 80 503\n", Answer(False, None, "Port 80 answered 503.")),
        ("0 0 5 answered 80\n", None),
        ("0 0 5 ok 3\n", None),
        ("0 0 5 <b>\n", None),
        ("0 0 5 ready\n", None),
        ("1 99999999999 5 ok\n", Answer(True, None, "")),
        ("1 0 5 ok", None),
        ("", None),
    ],
)
def test_of_a_line_only_words_that_a_prober_has_are_read(line: str, answer: Answer | None) -> None:
    found = answer_of(line)
    assert found == answer or (found is not None and found.since is not None and found.since.year > 3000)


FREEZER = Path("/sys/fs/cgroup/freezer")  # of cgroups v1, as `proctrack/cgroup` uses it on one machine without systemd


@pytest.fixture
def fenced() -> Iterator[Site]:
    if package := missing():
        required("slurm", f"Slurm is not installed (Debian package {package}).")
    if not (os.access(FREEZER, os.W_OK) and (FREEZER / "tasks").exists()):
        pytest.skip("This machine has no cgroups v1 that a Slurm of the tests could use.")
    server = Slurm(nodes=1, gpus=2, tracking="cgroup")
    try:
        yield Site(server)
    finally:
        server.stop()
        for folder in sorted(FREEZER.glob("slurm_gpu001/**/"), reverse=True):
            folder.rmdir()


def test_the_prober_and_what_it_starts_are_in_the_cgroup_of_the_worker_s_step_and_end_with_it(fenced: Site) -> None:
    launch = shell("sleep 600", ready={"command": ["sleep", "617"], "timeout_s": 300})
    for key, in_place, step in (("j-1.1", False, "step_batch"), ("j-2.1", True, "step_0")):
        fenced.start(key, on=[seat(0, "gpu001", 1)], launch=launch | {"in_place": in_place}, spec={}, serves=in_place)
        asked = wait_until(lambda: asleep(617), seconds=30, what="the worker to be asked")
        groups = {(FREEZER / where).name for one in (*probers(fenced).values(), asked[0].parent) for where in [_freezer_of(one)]}
        assert groups == {step}
        fenced.client.cancel([part["id"] for part in SlurmRun.objects.get(attempt_key=key).state["parts"]])
        wait_until(lambda: fenced.slurm.idle() == {"gpu001"}, seconds=30, what="the node to be idle")
        wait_until(lambda: not asleep(617) and not probers(fenced), seconds=10, what="both to be gone")


def _freezer_of(process: Path) -> str:
    return next(line.split(":", 2)[2].lstrip("/") for line in (process / "cgroup").read_text().splitlines() if line.split(":")[1] == "freezer")


def test_without_a_probe_nothing_is_told(site: Site) -> None:
    site.start(on=[seat(0, "gpu001", 1)], launch=shell("sleep 600"))
    site.until(RunState.RUNNING)
    assert (told(site).ready, told(site).ready_since, told(site).ready_why) == (None, None, "")
    assert not list(Path(SlurmRun.objects.get().state["folder"]).glob("ready-*"))
