"""Helios: one row a job, virtual clusters as queues that are guaranteed what they had."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.scenarios.reading import parse
from scheduler.traces import helios
from scheduler.traces.rows import File, Shape, gang

from .conftest import Tracing

HEADER = "job_id,user,vc,gpu_num,cpu_num,node_num,state,submit_time,start_time,end_time,duration,queue\n"
DAY = "2020-06-09 "
LOG = HEADER + "".join(
    f"{name},u1,{vc},{asked},{state},{DAY}{submitted},{start and DAY + start},{end and DAY + end},0,0\n"
    for name, vc, asked, state, submitted, start, end in (
        ("2", "vcB", "16,64,2", "COMPLETED", "18:00:10", "18:00:10", "18:10:10"),
        ("1", "vcA", "1,4,1", "FAILED", "18:00:00", "18:30:00", "18:30:05"),
        ("3", "vcA", "0,8,2", "CANCELLED", "18:00:20", "18:00:20", "18:00:50"),
        ("4", "vcA", "0,0,1", "COMPLETED", "18:00:20", "18:00:20", "18:00:50"),
        ("5", "vcA", "1,1,1", "CANCELLED", "18:00:20", "", "18:00:50"),
        ("6", "vcA", "1,1,1", "COMPLETED", "18:00:20", "18:00:50", "18:00:20"),
        ("7", "vcC", "12,1,5", "TIMEOUT", "18:00:20", "18:00:20", "18:00:20"),
    )
)
SIZES = "date,vcA,vcB,total\n2020-06-01,8,8,16\n2020-06-02,8,20,28\n2020-06-03,28,0,28\n"


def test_virtual_clusters_are_queues_with_what_they_had(tracing: Tracing) -> None:
    scenario, said = tracing.scenario("helios", tracing.file("cluster_log.csv", LOG), tracing.file("cluster_gpu_number.csv", SIZES))

    assert scenario["now"] == "2020-06-09T18:00:00Z"
    assert [node["gpus"] for node in scenario["nodes"]] == [8, 8, 8, 4]
    assert {quota["name"]: quota["guaranteed"] for quota in scenario["quotas"]} == {"vcA": 8, "vcB": 20, "vcC": 0}
    assert [(job["name"], job["quota"], job["submitted"], job["work_s"], job["roles"]) for job in scenario["jobs"]] == [
        ("1", "vcA", 0, 5, [{"name": "worker", "gpus": 1, "cpus": 4}]),
        ("2", "vcB", 10, 600, [{"name": "worker", "min": 2, "max": 2, "gpus": 8, "cpus": 32}]),
        ("3", "vcA", 20, 30, [{"name": "worker", "min": 2, "max": 2, "gpus": 0, "cpus": 4}]),
        ("7", "vcC", 20, 1, [{"name": "worker", "min": 2, "max": 2, "gpus": 6, "cpus": 0.5}]),
    ]
    assert said.splitlines()[0] == "4 of 4 jobs, 3 queues, 4 nodes with 28 GPUs"
    assert sorted(said.splitlines()[1:]) == [
        "  1 left out: asks for neither GPUs nor CPUs",
        "  1 left out: ends before it starts",
        "  1 left out: never started, so the run time is unknown",
    ]
    played = tracing.played()
    assert {name: row["ended"] for name, row in played.items() if name != "7"} == {"1": 5, "2": 610, "3": 50}
    assert played["7"]["ended"] >= 611, "two times six GPUs are free in one place only when the gang has left"


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,u,v,1,1,1,X,yesterday,,,0,0", "line 2: submit_time is 'yesterday'; a time such as 2020-06-09 18:41:01 is expected"),
        ("1,u,v,1,1,1,X,,,,0,0", "line 2: submit_time is empty"),
        ("1,u,v,1,1,1,X,9999-12-31T23:59:59-01:00,,,0,0", "line 2: submit_time is '9999-12-31T23:59:59-01:00'; a time such as"),
        ("1,u,v,1.5,1,1,X,2020-06-09 18:41:01,,,0,0", "line 2: gpu_num is '1.5'; a whole number from 0 is expected"),
        ("1,u,,1,1,1,X,2020-06-09 18:41:01,,,0,0", "line 2: vc is empty"),
        ("1,u,v", "line 2: has 3 values; the header names 12 columns"),
        ("1,u,v,1,1,1,X,0001-01-01 00:00:00,,,0,0", "line 2: submit_time is '0001-01-01 00:00:00'"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_its_line(tracing: Tracing, row: str, said: str) -> None:
    log = tracing.file("cluster_log.csv", f"{HEADER}{row}\n")

    assert tracing.refused("helios", log, "--nodes", "1x8").startswith(f"{log}, {said}")


def test_nodes_are_required(tracing: Tracing) -> None:
    log = tracing.file("cluster_log.csv", LOG)

    assert "Nodes are those of --nodes" in tracing.refused("helios", log)
    assert "No cluster_log.csv" in tracing.refused("helios", tracing.file("sizes.csv", SIZES))


@given(st.integers(1, 5000), st.integers(1, 64))
def test_a_gang_has_all_gpus_in_workers_that_fit(gpus: int, largest: int) -> None:
    workers, each = gang(gpus, largest)

    assert workers * each == gpus and each <= largest
    assert workers == min(count for count in range(1, gpus + 1) if not gpus % count and gpus // count <= largest)


ROW = st.tuples(st.sampled_from("ab"), *(st.integers(0, most) for most in (40, 64, 5)), st.integers(0, 3600), st.integers(-60, 3600))


@given(st.lists(ROW, min_size=1, max_size=30))
def test_every_row_is_played_or_counted(rows: list[tuple[str, int, int, int, int, int]]) -> None:
    text = HEADER
    for number, (vc, gpus, cpus, nodes, at, length) in enumerate(rows):
        start = 7200 + at
        hours = [f"2020-06-09 {second // 3600:02}:{second // 60 % 60:02}:{second % 60:02}" for second in (at, start, start + length)]
        text += f"{number},u,{vc},{gpus},{cpus},{nodes},COMPLETED,{','.join(hours)},0,0\n"
    found = helios.imported([File("log", text)], [Shape(3, 8)])
    scenario = parse(found.scenario())

    assert len(found.jobs) + sum(found.left_out.values()) == len(rows)
    asked = Counter({str(number): gpus for number, (_, gpus, *_) in enumerate(rows)})
    assert {job.name: sum(role.least * role.gpus for role in job.kind.roles) for job in scenario.jobs} == {
        job.name: asked[job.name] for job in scenario.jobs
    }
    assert all(job.submitted >= scenario.now for job in scenario.jobs)
