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
    assert run("simulate", "--policies").stdout.split()[0] == "fifo"


def test_bench_engine_measures_a_case() -> None:
    done = run("bench", "engine", "--json", "--case", "reclaim-100", "--runs", "1")

    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["cases"][0]["case"] == "reclaim-100"


@pytest.mark.parametrize("words", [("plan", "-"), ("simulate", "-")])
def test_a_bad_scenario_exits_2_with_its_faults(words: tuple[str, ...]) -> None:
    done = run(*words, given={**SCENE, "jbos": []})

    assert done.returncode == 2
    assert done.stderr.startswith("$.jbos: unknown key")


def test_a_file_that_is_not_there_exits_2() -> None:
    assert run("plan", "nowhere.json").returncode == 2
