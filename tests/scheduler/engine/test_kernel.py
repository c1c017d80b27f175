"""Figures of the benchmark in units of a fixed calculation."""

import json

import pytest

from scheduler.benchmarks import engine
from scheduler.benchmarks.kernel import in_kernels, kernel_ms


def test_a_figure_is_told_in_kernels_and_as_on_the_usual_machine() -> None:
    told = in_kernels({"median_ms": 140.0, "cpu_ms": 70.0, "p99_ms": None}, before=60.0, after=80.0)

    assert (told["kernel_ms"], told["median_kernels"], told["cpu_kernels"], told["usual_ms"]) == (70.0, 2.0, 1.0, 70.0)
    assert "p99_kernels" not in told


def test_the_kernel_takes_time() -> None:
    assert kernel_ms() > 1


def test_the_benchmark_prints_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    assert engine.main(["--case", "reclaim-100", "--runs", "1", "--json"]) == 0

    case = json.loads(capsys.readouterr().out)["cases"][0]
    assert case["cpu_kernels"] == pytest.approx(case["cpu_ms"] / case["kernel_ms"], rel=0.01)
    assert f"{case['median_kernels']:.3f} kernels" in engine.told(case)
