"""What a Slurm does that refuses an order, or does not answer it, stands in the way of that order alone. No Slurm is needed: a stand-in answers."""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpufleet.core.times import now
from scheduler.backends import patience
from scheduler.backends.base import BackendError, BackendRefused, FolderSilent, RunState, WorkerSeat
from scheduler.backends.slurm import looking, shared, site
from scheduler.backends.slurm.backend import SlurmBackend
from scheduler.backends.slurm.client import SlurmClient
from scheduler.backends.slurm.errors import SlurmDenied, SlurmFailed, SlurmSilent
from scheduler.backends.slurm.runs import Run, state_of
from scheduler.backends.slurm.values import Partition, Settings, SlurmJob, SlurmNode
from scheduler.models import SlurmRun
from tests import builders
from tests.scheduler.backends.scenes import start_order
from tests.servers import wait_until

pytestmark = pytest.mark.django_db
POLICY = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"


class StandIn(SlurmClient):
    """A Slurm that does what `answer` says of each command. All jobs of a run are on one node each."""

    def __init__(self) -> None:
        super().__init__(Settings(folder="/none", tag="cafe"))
        self.commands: list[str] = []
        self.answer: Callable[[str], str] = lambda command: ""
        self.known: dict[int, SlurmJob] = {}

    def run(self, *command: str, **_: Any) -> str:
        self.commands.append(" ".join(command))
        return self.answer(self.commands[-1])

    def said(self, word: str) -> list[str]:
        return [command for command in self.commands if word in command]

    def refuses(self, words: str, *jobs: int) -> None:
        """Each command that names one of these."""

        def answer(command: str) -> str:
            lines = [f"{words} for job {job}" for job in jobs if str(job) in command.replace("=", " ").replace(",", " ").split()]
            if lines:
                raise SlurmFailed(f"scontrol: {' '.join(lines)}", lines)
            return ""

        self.answer = answer

    def hangs(self) -> None:
        def answer(command: str) -> str:
            raise SlurmSilent("Slurm did not answer.")

        self.answer = answer

    def jobs(self) -> list[SlurmJob]:
        return list(self.known.values())

    def partitions(self) -> dict[str, Partition]:
        self.run("sinfo partitions")
        return {"main": Partition("up", None, is_default=True)}

    def with_known_gpus(self, *_: Any, **__: Any) -> list[SlurmJob]:
        return []

    def nodes(self) -> list[Any]:
        return []

    def booted_at(self) -> None:
        return None

    def has(self, key: str, number: int, one: int, state: str = "RUNNING", **fields: Any) -> None:
        values = {"gpus": {}, "exit_code": None, "held": False, "reason": "", "started_at": None, "ended_at": None} | fields
        self.known[one] = SlurmJob(one, state, f"gpufleet cafe {key} {number} 1 x", "", (f"gpu{number}",), **values)


@pytest.fixture
def slurm() -> StandIn:
    return StandIn()


@pytest.fixture
def backend(slurm: StandIn) -> SlurmBackend:
    return SlurmBackend(builders.cluster("hpc", backend="slurm").pk, slurm.settings, client=slurm)


def begun(backend: SlurmBackend, slurm: StandIn, key: str, ids: Sequence[int], **state: Any) -> None:
    parts = []
    for number, one in enumerate(ids):
        held = {"role": "worker", "index": number, "node": f"gpu{number}", "gpus": [0]}
        parts.append({"number": number, "id": one, "nodes": [f"gpu{number}"], "seats": [held], "in_place": False})
        slurm.has(key, number, one, started_at=now())
    run = Run(key, 1, (now() - timedelta(minutes=5)).isoformat(), parts, **state)
    SlurmRun.objects.create(cluster_id=backend.cluster, attempt_key=key, sequence=1, state=state_of(run))


def limit(backend: SlurmBackend, key: str = "j-1.1", seconds: int = 600) -> None:
    backend.limit(key=key, sequence=2, seconds=seconds, now=now())


class TestLimits:
    def test_one_that_slurm_says_no_to_is_not_told_again_and_keeps_no_other_part_from_it(self, backend, slurm):
        begun(backend, slurm, "j-1.1", [11, 12, 13])
        slurm.known[11] = SlurmJob(**_fields(slurm.known[11]) | {"started_at": now() - timedelta(hours=5)})  # it is to have its grace
        slurm.refuses(POLICY, 11)

        with pytest.raises(BackendRefused, match=r"Slurm did not take the new time limit: .*accounting/QOS policy.* for job 11"):
            limit(backend)

        assert SlurmRun.objects.get().sequence == 2
        assert [command.split()[2] for command in slurm.said("TimeLimit")] == ["JobId=11", "JobId=12,13"]

    @pytest.mark.parametrize("fault", [SlurmSilent("Slurm did not answer."), SlurmDenied("munge encode failed")])
    def test_one_that_slurm_did_not_hear_is_told_again(self, backend, slurm, fault):
        begun(backend, slurm, "j-1.1", [11])

        def answer(command: str) -> str:
            if "TimeLimit" in command:
                raise fault
            return ""

        slurm.answer = answer
        with pytest.raises(type(fault)):
            limit(backend)

        assert SlurmRun.objects.get().sequence == 1

    def test_a_part_that_has_ended_meanwhile_has_none(self, backend, slurm):
        begun(backend, slurm, "j-1.1", [11, 12])
        slurm.refuses("Job has already finished", 12)

        limit(backend)

        assert len(slurm.said("TimeLimit")) == 1

    def test_many_wait_once_for_a_controller_that_does_not_answer(self, backend, slurm):
        for index in (1, 2, 3):
            begun(backend, slurm, f"j-{index}.1", [index])
        limit(backend)
        slurm.commands.clear()
        slurm.hangs()
        with backend.together():
            for key in ("j-2.1", "j-3.1"):
                with pytest.raises(SlurmSilent):
                    limit(backend, key)

        assert len(slurm.commands) == 1

    def test_the_partition_is_asked_for_once_by_a_block_that_has_no_answer(self, backend, slurm):
        slurm.hangs()
        with backend.together():
            for _ in range(2):
                with pytest.raises(SlurmSilent):
                    backend._too_long(60)

        assert len(slurm.commands) == 1


def _fields(job: SlurmJob) -> dict[str, Any]:
    return {name: getattr(job, name) for name in SlurmJob.__dataclass_fields__}


class TestReleases:
    def test_one_that_cannot_be_released_keeps_no_other_held(self, slurm):
        slurm.refuses("Access/permission denied", 11)

        with pytest.raises(SlurmFailed, match="for job 11"):
            slurm.release([11, 12, 13])

        assert [command.split()[-1] for command in slurm.said("release")] == ["11,12,13", "11", "12", "13"]

    def test_a_controller_that_accepts_nobody_is_asked_once(self, slurm):
        def answer(command: str) -> str:
            raise SlurmDenied("munge encode failed")

        slurm.answer = answer
        with pytest.raises(SlurmDenied):
            slurm.release([11, 12, 13])

        assert len(slurm.commands) == 1

    def test_one_that_cannot_be_released_again_is_tried_every_ten_seconds(self, backend, slurm, monkeypatch):
        begun(backend, slurm, "j-1.1", [11])
        slurm.has("j-1.1", 0, 11, "PENDING", held=True)
        monkeypatch.setattr(looking, "to_go_on", lambda cluster, keys: set(keys))
        clock = [100.0]
        monkeypatch.setattr(looking, "monotonic", lambda: clock[0])
        slurm.refuses("Access/permission denied", 11)

        backend.observe(now=now())
        tried = len(slurm.said("release"))
        backend.observe(now=now())
        assert len(slurm.said("release")) == tried > 0
        clock[0] += 10
        backend.observe(now=now())
        assert len(slurm.said("release")) == 2 * tried


class TestGangs:
    """Three workers, one of which has failed."""

    @pytest.fixture
    def gang(self, backend, slurm):
        begun(backend, slurm, "j-1.1", [11, 12, 13])
        slurm.has("j-1.1", 0, 11, "FAILED", exit_code=5, started_at=now(), ended_at=now())

    def cancels(self, slurm: StandIn) -> list[str]:
        return slurm.said("scancel")

    @pytest.mark.usefixtures("gang")
    def test_that_lost_a_member_is_cancelled_again_until_it_has_ended(self, backend, slurm, monkeypatch):
        clock = [100.0]
        monkeypatch.setattr(site, "monotonic", lambda: clock[0])
        slurm.hangs()
        with pytest.raises(SlurmSilent):
            backend.observe(now=now())
        slurm.answer = lambda command: ""
        slurm.commands.clear()

        backend.observe(now=now())
        backend.observe(now=now())
        assert self.cancels(slurm) == ["scancel --name=gpufleet-j-1.1 12 13"], "once, with the time to end that Slurm gives"
        clock[0] += 10
        backend.observe(now=now())
        assert len(self.cancels(slurm)) == 2

    @pytest.mark.usefixtures("gang")
    def test_that_a_killed_scheduler_had_only_noted_is_cancelled(self, backend, slurm, monkeypatch):
        with monkeypatch.context() as killed:
            killed.setattr(backend, "_cancel", lambda *_: None)
            backend.observe(now=now())

        SlurmBackend(backend.cluster, slurm.settings, client=slurm).observe(now=now())

        assert self.cancels(slurm) == ["scancel --name=gpufleet-j-1.1 12 13"]

    def test_that_was_asked_to_leave_is_not_cancelled(self, backend, slurm):
        begun(backend, slurm, "j-1.1", [11, 12], stopping=now().isoformat())

        backend.observe(now=now())

        assert self.cancels(slurm) == []


def test_a_cancel_that_slurm_did_not_hear_is_sent_again_by_the_next_look(backend, slurm):
    begun(backend, slurm, "j-1.1", [11], killed=True)
    slurm.hangs()
    with pytest.raises(BackendError):
        backend.observe(now=now())
    slurm.answer = lambda command: ""
    slurm.commands.clear()

    backend.observe(now=now())

    assert slurm.said("scancel") == ["scancel --name=gpufleet-j-1.1 11"]


def test_a_cancel_that_slurm_refuses_is_not_sent_by_each_look(backend, slurm):
    begun(backend, slurm, "j-1.1", [11], killed=True)
    slurm.refuses("Access/permission denied", 11)

    for _ in range(3):
        backend.observe(now=now())

    assert len(slurm.said("scancel")) == 1


def test_what_a_newer_version_has_kept_of_a_run_is_passed_over(backend, slurm):
    begun(backend, slurm, "j-1.1", [11])
    row = SlurmRun.objects.get()
    row.state["new_word"] = 5
    row.save()

    assert [run.key for run in backend.observe(now=now())] == ["j-1.1"]


class TestFolders:
    """A call there never comes back, as where a server is gone."""

    @pytest.fixture
    def hangs(self, monkeypatch) -> Iterator[Callable[[Path], None]]:
        monkeypatch.setattr(shared, "WAIT", 0.2)
        over = threading.Event()

        def hang(top: Path) -> None:
            with pytest.raises(FolderSilent):
                shared.asked(top, over.wait)

        yield hang
        over.set()

    @pytest.fixture
    def backend(self, slurm, tmp_path) -> SlurmBackend:
        user = "nobody" if os.getuid() == 0 else ""
        settings = replace(slurm.settings, user=user, folder=str(tmp_path / "new"), former=(str(tmp_path / "old"),))
        return SlurmBackend(builders.cluster("hpc", backend="slurm").pk, settings, client=slurm)

    def test_one_that_was_mounted_anew_is_found_by_looks_and_probes(self, backend, hangs, monkeypatch):
        clock = [1000.0]
        monkeypatch.setattr(patience, "monotonic", lambda: clock[0])
        for ask in (lambda: backend.observe(now=now()), backend.probe):
            hangs(backend._top)
            with pytest.raises(FolderSilent):
                ask()
            clock[0] += patience.AGAIN_AFTER
            ask()
            ask()

    def test_a_former_one_hides_no_run_and_what_lies_there_is_as_if_it_could_not_be_read(self, backend, slurm, hangs):
        old = backend._top_in(backend.settings.former[0])
        begun(backend, slurm, "j-1.1", [11], folder=str(backend._top / "runs/j-1.1"))
        for one, key in ((12, "j-2.1"), (13, "j-3.1")):
            begun(backend, slurm, key, [one], folder=str(old / "runs" / key))
        ended = {"started_at": now() - timedelta(minutes=2), "ended_at": now() - timedelta(minutes=1)}
        slurm.has("j-2.1", 0, 12, "COMPLETED", exit_code=0, **ended)
        slurm.has("j-3.1", 0, 13, "FAILED", exit_code=3, **ended)
        hangs(old)

        backend.probe()
        runs = backend.observe(now=now())

        assert [(run.key, run.state, run.exit_code) for run in runs] == [
            ("j-1.1", RunState.RUNNING, None),
            ("j-2.1", RunState.ENDED, 0),
            ("j-3.1", RunState.ENDED, 3),
        ]

    def test_a_log_there_is_not_waited_for(self, backend, slurm, hangs):
        folder = backend._top / "runs/j-1.1"
        folder.mkdir(parents=True)
        (folder / "worker-0.log").write_text("up\n")
        begun(backend, slurm, "j-1.1", [11], folder=str(folder))
        asked = {"key": "j-1.1", "role": "worker", "index": 0, "offset": 0, "limit": 99}
        assert backend.logs(**asked).text == "up\n"
        hangs(backend._top)

        with pytest.raises(FolderSilent):
            backend.logs(**asked)

    def test_one_that_is_used_again_is_no_former_one(self, backend, slurm, hangs):
        settings = replace(backend.settings, folder=backend.settings.former[0], former=(backend.settings.folder,))
        again = SlurmBackend(backend.cluster, settings, client=slurm)
        hangs(again._top)

        with pytest.raises(FolderSilent):
            again.observe(now=now())

    def test_a_run_is_ended_by_force_in_a_block_whose_starts_wait_for_it(self, backend, slurm, hangs, monkeypatch):
        begun(backend, slurm, "j-1.1", [11])
        hangs(backend._top)
        monkeypatch.setattr(slurm, "nodes", lambda: [SlurmNode("gpu1", "", ("IDLE",), "", 8, 1000, "gpu:8")])
        starts = [replace(start_order(key), workers=(WorkerSeat("worker", 0, "gpu1", (0,)),)) for key in ("j-2.1", "j-3.1")]

        with backend.together():
            backend.announce(starts, now=now())
            for start in starts:
                with pytest.raises(FolderSilent):
                    backend.start(start, now=now())
            backend.stop(key="j-1.1", sequence=2, force=True, now=now())

        assert slurm.said("scancel") == ["scancel --name=gpufleet-j-1.1 11"]


class TestAccounts:
    """Jobs that the controller has forgotten: after MinJobAge, or as it lost its state."""

    @pytest.fixture
    def forgotten(self, backend, slurm, tmp_path) -> list[str]:
        """Of four runs the first three, and what slurmdbd has of them."""
        (tmp_path / "worker-0.0.exit").write_text("3 1800000000\n")
        for number in range(1, 5):
            begun(backend, slurm, f"j-{number}.1", [10 + number], folder=str(tmp_path))
        for number in (11, 12, 13):
            del slurm.known[number]
        slurm.keeps_accounts = True
        lines = [
            "11|gpufleet-j-9.9|COMPLETED|0:0|1800000000|1800000050|0|gpu0",  # another had its number before
            "11|gpufleet-j-1.1|FAILED|3:0|1800000100|1800000200|0|gpu0",
            "12|gpufleet-j-2.1|TIMEOUT|0:15|1800000100|1800000300|0|gpu0",
            "13|gpufleet-j-3.1|RUNNING|0:0|1800000100|Unknown|0|gpu0",
        ]
        slurm.answer = lambda command: "\n".join(lines) + "\n" if command.startswith("sacct") else ""
        return lines

    def told(self, backend: SlurmBackend) -> dict[str, tuple[Any, ...]]:
        return {run.key: (run.state, run.exit_code, run.limit_over) for run in backend.observe(now=now())}

    def test_are_asked_of_its_accounts_all_at_once_and_not_in_each_look(self, backend, slurm, forgotten):
        for _ in range(2):
            assert self.told(backend) == {
                "j-1.1": (RunState.ENDED, 3, False),
                "j-2.1": (RunState.ENDED, 143, True),
                "j-3.1": (RunState.ENDED, 3, False),  # its script has left that
                "j-4.1": (RunState.RUNNING, None, False),
            }
        runs = {run.key: run for run in backend.observe(now=now())}
        assert [runs["j-1.1"].started_at.timestamp(), runs["j-1.1"].ended_at.timestamp()] == [1_800_000_100, 1_800_000_200]
        assert runs["j-2.1"].end_is_told
        (asked,) = slurm.said("sacct")
        assert "--jobs=11,12,13 --name=gpufleet-j-1.1,gpufleet-j-2.1,gpufleet-j-3.1" in asked

    def test_where_nobody_cancelled_them_may_still_run(self, backend, slurm, forgotten, tmp_path):
        """A controller that starts without its state says in its accounts of all that it forgot that they were cancelled."""
        (tmp_path / "worker-0.0.exit").unlink()
        forgotten[1:] = [f"1{n}|gpufleet-j-{n}.1|CANCELLED{by}|0:0|1800000100|1800000200|0|gpu0" for n, by in ((1, ""), (2, " by 0"), (3, ""))]

        assert {key: state for key, (state, *_) in self.told(backend).items()} == {
            "j-1.1": RunState.STARTING, "j-2.1": RunState.ENDED, "j-3.1": RunState.STARTING, "j-4.1": RunState.RUNNING,
        }  # fmt: skip

    def test_are_as_before_where_there_are_no_accounts_or_they_do_not_answer(self, backend, slurm, forgotten):
        def silent(command: str) -> str:
            raise SlurmSilent("slurmdbd did not answer.")

        slurm.answer = silent
        assert self.told(backend)["j-2.1"] == (RunState.ENDED, 3, False)
        slurm.keeps_accounts, slurm.commands = False, []
        assert self.told(backend)["j-2.1"] == (RunState.ENDED, 3, False)
        assert slurm.said("sacct") == []


class TestLooks:
    def test_what_numbers_were_given_before_is_read_once_however_many_were_killed(self, backend, slurm, tmp_path):
        (tmp_path / "worker-0.0.exit").write_text("137 1800000000\n")
        for number in (11, 12, 13):
            begun(backend, slurm, f"j-{number}.1", [number], folder=str(tmp_path))
            slurm.has(f"j-{number}.1", 0, number, "FAILED", exit_code=137, started_at=now(), ended_at=now())
        SlurmRun.objects.create(cluster_id=backend.cluster, attempt_key="j-1.1", state={"parts": [{"id": 12}]}, forgotten_at=now())

        with CaptureQueriesContext(connection) as asked:
            runs = {run.key: run.node_lost for run in backend.observe(now=now())}

        assert runs == {"j-11.1": False, "j-12.1": True, "j-13.1": False}
        assert len([one for one in asked.captured_queries if 'FROM "slurm_run"' in one["sql"]]) == 2, "what is looked at, and all there have been"

    def test_nodes_that_cannot_be_read_are_asked_for_once_for_a_part_that_waits(self, backend, slurm, monkeypatch):
        asked: list[int] = []

        def fails() -> list[SlurmNode]:
            asked.append(1)
            raise SlurmDenied("sinfo: authentication error")

        begun(backend, slurm, "j-1.1", [11])
        row = SlurmRun.objects.get()
        row.state["parts"][0]["nodes"] = ["gpu0", "gpu1", "gpu2"]
        row.save()
        slurm.has("j-1.1", 0, 11, "PENDING", reason="Resources")
        monkeypatch.setattr(slurm, "nodes", fails)

        (run,) = backend.observe(now=now())

        assert (run.state, len(asked)) == (RunState.STARTING, 1)

    def test_jobs_that_nothing_accounts_for_are_looked_up_at_once(self, backend, slurm):
        """Some of them were forgotten here and are still ending, others are of a console that was set back."""
        for number in (11, 12, 13, 14):
            slurm.has(f"j-{number}.1", 0, number, uid=os.getuid())
        for number in (11, 12):
            SlurmRun.objects.create(cluster_id=backend.cluster, attempt_key=f"j-{number}.1", forgotten_at=now())

        with CaptureQueriesContext(connection) as asked:
            runs = backend.observe(now=now())

        assert [run.key for run in runs] == ["j-13.1", "j-14.1"]
        assert slurm.said("scancel") == ["scancel 11 12"]
        assert len([one for one in asked.captured_queries if 'FROM "slurm_run"' in one["sql"]]) == 2


def test_a_late_answer_that_is_a_fault_is_not_that_of_the_next_probe(backend, slurm, monkeypatch):
    monkeypatch.setattr(site, "PROBE_SECONDS", 0.1)
    over, faults = threading.Event(), [SlurmSilent("Slurm did not answer.")]

    def ping() -> None:
        over.wait(60)
        if faults:
            raise faults.pop()

    monkeypatch.setattr(slurm, "ping", ping)
    with pytest.raises(BackendError):
        backend.probe()
    over.set()
    wait_until(lambda: not backend._probing.is_late, what="the answer")

    backend.probe()
