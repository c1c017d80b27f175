"""`gpufleet bench simulate` on a small trace of the form of openb."""

import json
import random
from pathlib import Path

import pytest

from gpufleet.cli import main
from scheduler.benchmarks import cases
from scheduler.benchmarks.openb import LISTS, NODES, inflated
from scheduler.benchmarks.replay import huge
from scheduler.scenarios.reading import parse
from scheduler.traces.openb import Pod

NODE_LINES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,65536,2,G2\nb,4000,65536,2,T4\n"
JOB_LINES = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p1,1500,1024,1,500,
p2,2500,1024,1,500,T4
p3,1000,1024,1,1000,
p4,500,1024,0,0,
p5,1000,1024,2,1000,G2|T4
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / NODES).write_text(NODE_LINES)
    for name in LISTS.values():
        (tmp_path / name).write_text(JOB_LINES)
    return tmp_path


def run(*arguments: str) -> int:
    return main(["gpufleet", "bench", "simulate", *arguments])


def test_a_replay_tells_its_speed_and_how_much_is_allocated(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--case", "openb", "--case", "gpuspec33", "--seed", "1", "--seed", "2", "--traces", str(folder), "--json") == 0

    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [(case["case"], case["seed"]) for case in cases] == [("openb", 1), ("openb", 2), ("gpuspec33", 1), ("gpuspec33", 2)]
    for case in cases:
        assert len(case["events_per_s_by_tenth"]) == 10
        assert 3 <= case["started"] <= case["arrivals"]
        assert 50 <= case["allocated_percent"]["100"] <= 100
    assert run("--case", "openb", "--traces", str(folder)) == 0
    assert "jobs started   allocated" in capsys.readouterr().out


def test_a_fleet_that_is_not_filled_by_its_first_jobs_tells_its_speed_and_memory() -> None:
    told = huge(parse(cases.huge(1, count=300, nodes=64)), 200)

    assert (told["jobs"], told["arrivals"]) == (300, 200)
    assert told["events"] >= 200 and len(told["events_per_s_by_tenth"]) == 10 and min(told["events_per_s_by_tenth"]) > 0
    assert huge(parse(cases.huge(1, count=300, nodes=64)), 3)["running"] == 3
    assert 0 < told["running"] <= 200 and told["peak_mib"] > 0


def test_a_list_is_filled_up_to_what_is_asked_for() -> None:
    pods = [Pod("a", 1000, 0, 1, 500), Pod("b", 1000, 0, 0, 0)]
    arrived = inflated(pods, 2000, random.Random(1))
    assert sum(pod.milli for pod in arrived) == 2000
    assert arrived[:2] in (pods, pods[::-1])


def test_a_trace_that_is_missing_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, said in (
        (("--case", "openb"), "--traces is required for openb and gpuspec33"),
        (("--case", "openb", "--traces", str(folder / "none")), f"{folder / 'none' / NODES} cannot be read: No such file or directory."),
    ):
        with pytest.raises(SystemExit) as stopped:
            run(*arguments)
        assert stopped.value.code == 2
        assert said in capsys.readouterr().err
    (folder / NODES).write_text("a,b\n1,2\n")
    with pytest.raises(SystemExit):
        run("--case", "openb", "--traces", str(folder))
    assert "is not a list of the openb trace: it has no column cpu_milli" in capsys.readouterr().err
