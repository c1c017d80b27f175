"""Gavel: speeds by GPU type from its table, gangs where a job exceeds a node, deadlines where it has one."""

import json

import pytest

from .conftest import Tracing

TABLE = json.dumps(
    {
        "v100": {"('A3C', 1)": {"null": 4.0, "('A3C', 1)": [2.0, 2.0]}, "('LM (batch size 5)', 8)": {"null": 10.0}},
        "k80": {"('A3C', 1)": {"null": 1.0}, "('LM (batch size 5)', 8)": {"null": 0.0}},
        "v100_unconsolidated": {"('A3C', 1)": {"null": 3.0}},
    }
)


def line(kind: str = "A3C", steps: str = "4000", gpus: str = "1", slo: str = "-1.000000", at: str = "0.000000") -> str:
    return "\t".join((kind, "python3 main.py", "rl", "--max-steps", "0", steps, gpus, "1", slo, at)) + "\n"


def test_jobs_run_at_the_speed_of_the_gpus_that_they_get(tracing: Tracing) -> None:
    trace = line(at="50.0", slo="1.5") + line("LM (batch size 5)", "3000", "8", at="60.5") + line(at="70")
    files = tracing.file("a.trace", trace), tracing.file("speeds.json", TABLE)
    scenario, said = tracing.scenario("gavel", *files, "--nodes", "2x4:v100", "--nodes", "1x1:k80")

    first, gang, third = scenario["jobs"]
    assert (first["work_s"], first["throughput"], first["submitted"], first["deadline"]) == (1000, {"k80": 0.25, "v100": 1.0}, 0, 1500)
    assert (gang["work_s"], gang["throughput"], gang["submitted"]) == (300, {"k80": 0, "v100": 1}, 10.5)
    assert gang["roles"] == [{"name": "worker", "min": 2, "max": 2, "gpus": 4}]
    assert "deadline" not in gang and "deadline" not in third
    assert said == "3 of 3 jobs, 1 queues, 3 nodes with 9 GPUs\n"
    played = tracing.played()
    assert played["job-000000"]["ended"] == 1000
    assert played["job-000001"]["ended"] >= 1000 + 300, "it needs all eight V100"


def test_the_usual_fleet_has_24_gpus_of_each_type(tracing: Tracing) -> None:
    scenario, said = tracing.scenario("gavel", tracing.file("a.trace", line()), tracing.file("speeds.json", TABLE))

    assert [node["gpu_type"] for node in scenario["nodes"]] == ["v100"] * 6 + ["k80"] * 6
    assert "12 nodes with 48 GPUs" in said
    assert tracing.played()["job-000000"]["ended"] == 1000


def test_what_cannot_be_played_is_counted(tracing: Tracing) -> None:
    trace = line("Unknown") + line(gpus="2") + line(gpus="0") + line(steps="0") + "\n" + line()
    scenario, said = tracing.scenario("gavel", tracing.file("a.trace", trace), tracing.file("speeds.json", TABLE))

    assert len(scenario["jobs"]) == 1
    assert said.splitlines()[1:] == [
        "  2 left out: no speed in the table for this kind of job on so many GPUs",
        "  1 left out: asks for neither GPUs nor CPUs",
        "  1 left out: no steps to do",
    ]


@pytest.mark.parametrize(
    ("trace", "said"),
    [
        ("A3C\tpython3\n", "line 2: has 2 values between tabs; a line of Gavel has 10"),
        (line(steps="many"), "line 2: total_steps is 'many'; a number from 0 is expected"),
        (line(gpus="1.5"), "line 2: scale_factor is '1.5'; a whole number from 0 is expected"),
        (line(at="-1"), "line 2: arrival_time is '-1'"),
    ],
)
def test_a_line_that_cannot_be_read_is_named(tracing: Tracing, trace: str, said: str) -> None:
    assert f"a.trace, {said}" in tracing.refused("gavel", tracing.file("a.trace", line() + trace), tracing.file("speeds.json", TABLE))


def test_a_table_that_is_none_is_told(tracing: Tracing) -> None:
    trace = tracing.file("a.trace", line())

    assert "the JSON file of throughputs" in tracing.refused("gavel", trace)
    assert "speeds.json, line 2: Expecting" in tracing.refused("gavel", trace, tracing.file("speeds.json", "{\n]"))
    for table in ('{"v100": 3}', '{"v100": {"A3C": {"null": 1}}}', '{"v100": {"(\'A3C\', 1)": {}}}', '{"v100": {"(\'A3C\', 1)": 7}}'):
        assert "is not a table of Gavel's throughputs" in tracing.refused("gavel", trace, tracing.file("speeds.json", table))
    for speed in ("7" * 400, "7" * 5000, "NaN", "Infinity", "1e400", "-1"):
        table = f'{{"v100": {{"(\'A3C\', 1)": {{"null": {speed}}}}}}}'
        assert "is not a table of Gavel's throughputs" in tracing.refused("gavel", trace, tracing.file("speeds.json", table)), speed
    assert "names no GPU type" in tracing.refused("gavel", trace, tracing.file("speeds.json", "{}"))
    assert "must name GPU types of the table (v100, k80)" in tracing.refused(
        "gavel", trace, tracing.file("speeds.json", TABLE), "--nodes", "1x8:h100"
    )
