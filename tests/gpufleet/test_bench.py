"""The arithmetic of benches, and the command's own words. What they measure is not a test's business."""

from pathlib import Path

import pytest

from dashboards.benchmarks import CASES as MEASURED
from gpufleet import bench
from gpufleet.bench import api, chargeback, loop, slurm
from gpufleet.bench.console import heard_at
from gpufleet.bench.console import main as console_main
from gpufleet.bench.telemetry import CASES
from gpufleet.bench.telemetry_drift import told
from gpufleet.bench.telemetry_pages import live_steps
from scheduler.benchmarks.loop import REPLAY_QUOTAS


def test_percentiles_are_values_that_were_measured():
    values = [float(number) for number in range(1, 101)]

    assert bench.percentile(values, 0.95) == 95.0
    assert bench.percentile(values, 1.0) == 100.0
    assert bench.percentile([7.0], 0.95) == 7.0


def test_one_bad_run_of_three_does_not_decide():
    case = bench.timing("overview-sqlite", [[0.010, 0.020, 0.030], [0.011, 0.021, 0.031], [9.0, 9.0, 9.0]], requests=3)

    assert case == {"case": "overview-sqlite", "median_ms": 21.0, "p95_ms": 31.0, "runs": 3, "requests": 3}


def test_a_change_is_heard_with_the_first_version_that_holds_it():
    heard = [(4, 10.0), (7, 11.0), (9, 12.0)]

    assert heard_at(heard, 5) == 11.0
    assert heard_at(heard, 10) == float("inf")


def test_a_step_that_the_page_shows_with_the_next_one_alone_is_missed():
    told = live_steps([0.0, 4.0, 8.0], [0.3, 4.2, 8.4])
    assert (told["median_ms"], told["p95_ms"], told["steps"], told["missed"]) == (300, 400, 3, 0)
    assert live_steps([0.0, 4.0, 8.0], [0.3, 8.4])["missed"] == 1
    assert live_steps([0.0, 4.0], [0.3])["missed"] == 1


def test_each_case_of_telemetry_that_can_be_measured_is_asked_for():
    assert CASES == MEASURED


def test_a_kind_or_a_case_that_there_is_not_is_said(capsys):
    assert bench.main(["nothing"]) == 2
    assert "console" in capsys.readouterr().err
    for main in (console_main, loop.main, api.main, chargeback.main, slurm.main):
        assert main(["--case", "nothing"]) == 2
        assert "no case that begins with nothing" in capsys.readouterr().err


def test_a_round_that_grows_and_a_sum_that_is_off_are_told():
    alike = {"late": 0.0, "mib": 100, "sm": 200}
    rows = [{"seconds": 1 + 0.1 * number, "cpu": 0.5 + 0.01 * number, "read": 8 if number else 7, **alike} for number in range(9)]
    rows[1]["late"] = 0.04

    found = told(rows, gpus=8, computed=[2.0] * 8 + [None])
    assert (found["drift_ms"], found["cpu_drift_ms"], found["short_rounds"], found["rounds"]) == (600.0, 60.0, 1, 9)
    assert (found["core"], found["cpu_p95_ms"], found["late_ms_max"], found["late_ms_last"]) == (None, 580, 40, 0)
    assert found["off_promql_percent_max"] == 0.0
    assert told(rows, gpus=8, computed=[1.6] * 9)["off_promql_percent_max"] == 25.0


def test_the_replay_is_the_published_one():
    due = loop.arrivals()

    assert len(due) == 15_000
    assert sum(float(job["work_s"]) * job["gpus"] * job.get("workers", 1) for _, job in due) / 600 == pytest.approx(66.0, abs=1.0)
    assert [moment for moment, _ in due] == sorted(moment for moment, _ in due)
    assert len(loop.arrivals(0.1)) == 1_500
    assert {job["quota"] for _, job in due} == set(loop.QUEUES) == set(REPLAY_QUOTAS)


def test_figures_of_starts_are_of_processes_and_a_job_that_never_ran_is_told(tmp_path):
    (tmp_path / "a").write_text("1.0\n3.0\n")
    wishes = [slurm.Wish(name, 0.0, workers=2, gpus=8) for name in ("a", "b")]
    lives = [slurm.life_of(wish, 100.0, Path(tmp_path / wish.name), 100.0) for wish in wishes]

    found = slurm.figures("mix", lives, gpus=64)

    assert (found["jobs"], found["not_run"], found["wait_p50_s"], found["seconds"]) == (2, 1, 1.0, 3.0)
    assert found["utilization_percent"] == round(100 * 2 * 16 / (64 * 3), 1)
    assert slurm.slowest([0.0, 1.0, 12.0], 0.0, 20.0) == 0.1
    assert sum(wish.workers > 1 for wish in slurm.mixed(100)) > 5


def test_slurm_lies_in_memory_where_there_is_room_for_it(tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "MEMORY", tmp_path)
    monkeypatch.setattr(slurm, "ROOM_BYTES", 1)
    assert slurm.in_memory() == tmp_path
    monkeypatch.setattr(slurm, "ROOM_BYTES", 2**62)
    assert slurm.in_memory() is None
    monkeypatch.setattr(slurm, "MEMORY", tmp_path / "none")
    assert slurm.in_memory() is None


@pytest.mark.parametrize("as_json", [True, False])
def test_every_figure_is_shown(capsys, as_json):
    bench.show([{"case": "a", "median_ms": 1.5}], as_json=as_json)

    shown = capsys.readouterr().out
    assert "a" in shown
    assert "1.5" in shown
