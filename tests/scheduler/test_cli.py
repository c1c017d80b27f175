"""The plain commands as a person runs them: a process of its own, without Django."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.servers import PROJECT

from .engine.scenes import job, node, quota, scene

SCENE = scene([node("n0")], [quota("q")], [job("one", submitted=0, work_s=60, estimate_s=60)])
START = "import sys; from gpufleet.cli import main; status = main(); assert 'django' not in sys.modules; sys.exit(status)"


def run(*words: str, given: Any = None) -> subprocess.CompletedProcess[str]:
    text = None if given is None else json.dumps(given)
    return subprocess.run([sys.executable, "-c", START, *words], input=text, capture_output=True, text=True, cwd=PROJECT, timeout=60)


def test_plan_reads_standard_input() -> None:
    done = run("plan", "-", given=SCENE)

    assert (done.returncode, done.stderr) == (0, "")
    assert [decision["action"] for decision in json.loads(done.stdout)["decisions"]] == ["start"]


def test_simulate_plays_a_scenario() -> None:
    done = run("simulate", "-", "--json", "--per-job", "--until", "1h", given=SCENE)

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["per_job"] == [{"job": "one", "submitted": 0.0, "started": 0.0, "ended": 60.0, "evictions": 0}]


def test_simulate_tells_people_and_lists_its_policies() -> None:
    assert "1 of 1 jobs completed" in run("simulate", "-", given=SCENE).stdout
    listed = [line.split()[0] for line in run("simulate", "--policies").stdout.splitlines()]
    assert listed == sorted(listed) and {"fifo", "tree", "max-min", "makespan-blind"} <= set(listed)


def test_bench_engine_measures_a_case() -> None:
    done = run("bench", "engine", "--json", "--case", "reclaim-100", "--runs", "1")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cases"][0]["case"] == "reclaim-100"


@pytest.mark.parametrize("words", [("plan", "-"), ("simulate", "-")])
def test_a_bad_scenario_exits_2_with_its_faults(words: tuple[str, ...]) -> None:
    done = run(*words, given={**SCENE, "jbos": []})

    assert done.returncode == 2
    assert done.stderr.startswith("$.jbos: unknown key")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("simulate", "-", "--seed", "-1"), "-1 is not a whole number from 0 on"),
        (("simulate", "-", "--seed", "x"), "x is not a whole number from 0 on"),
        (("simulate", "-", "--until", "a week"), "not a length"),
        (("bench", "engine", "--seed", "-1"), "-1 is not a whole number from 0 on"),
        (("plan", "-", "--jsonl", "--explain"), "--explain tells one plan"),
    ],
)
def test_what_can_not_be_meant_is_said_in_a_line(words: tuple[str, ...], says: str) -> None:
    done = run(*words, given=SCENE)

    assert (done.returncode, done.stdout) == (2, "")
    assert says in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_simulate_tells_people_of_each_job_and_that_none_completed() -> None:
    told = run("simulate", "-", "--until", "30s", "--per-job", given=SCENE).stdout

    assert "no job completed" in told
    assert told.splitlines()[-1].split() == ["one", "0.0", "0.0", "-", "0"]


def test_a_reader_who_has_seen_enough_sees_no_traceback() -> None:
    many = scene([node("n0")], [quota("q")], [job(f"j{place:05d}", submitted=0) for place in range(3000)], settings={"forecast": "none"})
    with subprocess.Popen([sys.executable, "-c", START, "plan", "-"], stdin=-1, stdout=-1, stderr=-1, text=True, cwd=PROJECT) as started:
        assert started.stdin is not None
        assert started.stdout is not None
        assert started.stderr is not None
        started.stdout.close()
        started.stdin.write(json.dumps(many))
        started.stdin.close()
        told = started.stderr.read()

    assert (started.returncode, told) == (141, "")


def test_a_file_that_is_not_there_exits_2() -> None:
    assert run("plan", "nowhere.json").returncode == 2
