"""openb: nodes, parts of GPUs and milli-cores; a pod that never ran is counted, a row that cannot be read is named."""

import json

import pytest

from gpufleet.cli import main

from .conftest import Tracing

NODES = "sn,cpu_milli,memory_mib,gpu,model\na,8000,65536,2,G2\nb,4000,65536,1,T4\nc,16000,65536,0,\n"
HEADER = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
PODS = (
    HEADER
    + """p1,1500,2048,1,460,,LS,Running,100,400,110
p2,2500,1024,1,540,T4,BE,Succeeded,130,190,130
p3,12000,1024,0,0,,BE,Succeeded,110,120,110
p4,1000,1024,2,1000,G2|T4,LS,Failed,105,1105,105
p5,1000,1024,1,1000,,LS,Pending,150,300,
p6,0,1024,0,0,,LS,Running,150,300,151
p7,1000,1024,1,1000,,LS,Running,150,300,301
p8,1000,1024,1,1000,,LS,Running,150,,160
"""
)


def test_a_pod_asks_for_what_it_had_and_runs_as_long(tracing: Tracing) -> None:
    files = tracing.file("nodes.csv", NODES), tracing.file("pods.csv", PODS)
    scenario, said = tracing.scenario("openb", *reversed(files))

    assert [(node["name"], node["gpu_type"], node["gpus"], node["cpus"]) for node in scenario["nodes"]] == [
        ("a", "G2", 2, 8.0),
        ("b", "T4", 1, 4.0),
        ("c", "none", 0, 16.0),
    ]
    first, last, *_ = scenario["jobs"]
    assert first == {
        "name": "p1",
        "quota": "openb",
        "roles": [{"name": "worker", "cpus": 1.5, "gpu_share": 0.46, "host_memory_gb": 2.0}],
        "sharing": "mps",
        "preemptible": False,
        "work_s": 290.0,
        "submitted": 0,
    }
    assert (last["name"], last["submitted"], last["work_s"]) == ("p4", 5, 1000)
    assert last["roles"][0] == {"name": "worker", "cpus": 1.0, "gpu_types": ["G2", "T4"], "gpus": 2, "host_memory_gb": 1.0}
    assert {job["name"]: job["preemptible"] for job in scenario["jobs"]} == {"p1": False, "p2": True, "p3": True, "p4": False}
    assert said.splitlines() == [
        "4 of 4 jobs, 1 queues, 3 nodes with 3 GPUs",
        "  1 left out: never started, so the run time is unknown",
        "  1 left out: asks for neither GPUs nor CPUs",
        "  1 left out: ends before it starts",
        "  1 left out: no end, so the run time is unknown",
    ]
    played = tracing.played()
    # The T4 has no room beside p1 but for a part of it; CPUs alone are on the node that has no GPU.
    assert {name: (row["started"], row["ended"]) for name, row in played.items()} == {
        "p1": (0, 290),
        "p4": (5, 1005),
        "p3": (10, 20),
        "p2": (30, 90),
    }


def test_the_first_jobs_are_those_submitted_first_and_nodes_may_be_named(tracing: Tracing) -> None:
    scenario, said = tracing.scenario(
        "openb", tracing.file("pods.csv", PODS), "--nodes", "2x8:G2", "--nodes", "1x4:T4", "--cpus", "16", "--limit", "2"
    )

    assert [job["name"] for job in scenario["jobs"]] == ["p1", "p4"]
    assert [(node["gpu_type"], node["gpus"], node["cpus"]) for node in scenario["nodes"]] == [("G2", 8, 16), ("G2", 8, 16), ("T4", 4, 16)]
    assert said.startswith("2 of 4 jobs, 1 queues, 3 nodes with 20 GPUs\n")


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("p9,x,1,1,1000,,LS,Running,0,1,0", "line 3: cpu_milli is 'x'; a whole number from 0 is expected"),
        ("p9,1.5,1,1,1000,,LS,Running,0,1,0", "line 3: cpu_milli is '1.5'; a whole number from 0 is expected"),
        ("p9,1,1,-1,1000,,LS,Running,0,1,0", "line 3: num_gpu is '-1'; a whole number from 0 is expected"),
        ("p9,1,1,1,1500,,LS,Running,0,1,0", "line 3: gpu_milli is 1500 with 1 GPUs; 1000 is a whole GPU, and less is of one GPU alone"),
        ("p9,1,1,2,500,,LS,Running,0,1,0", "line 3: gpu_milli is 500 with 2 GPUs; 1000 is a whole GPU, and less is of one GPU alone"),
        ("p9,1,1,1,1000,,LS,Running,0,nan,0", "line 3: deletion_time is 'nan'; a number from 0 is expected"),
        ("p9,1,1,1,1000,,LS,Running,,1,0", "line 3: creation_time is ''; a number from 0 is expected"),
        ("p9,1,1,1", "line 3: has 4 values; the header names 11 columns"),
        ("p1,1,1,1,1000,,LS,Running,0,1,0", "line 3: name p1 is given twice"),
        (",1,1,1,1000,,LS,Running,0,1,0", "line 3: name is empty"),
    ],
)
def test_a_row_that_cannot_be_read_is_named_with_its_line(tracing: Tracing, row: str, said: str) -> None:
    pods = tracing.file("pods.csv", f"{HEADER}p1,1,1,1,1000,,LS,Running,0,1,0\n{row}\n")

    assert tracing.refused("openb", pods, "--nodes", "1x8") == f"{pods}, {said}\n"


def test_files_that_are_not_of_the_trace_are_refused(tracing: Tracing) -> None:
    nodes, pods = tracing.file("nodes.csv", NODES), tracing.file("pods.csv", PODS)
    (tracing.folder / "bytes").write_bytes(b"\xff\xfe")

    assert "it has no column creation_time" in tracing.refused(
        "openb", nodes, tracing.file("old.csv", "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n")
    )
    assert "No list of pods" in tracing.refused("openb", nodes)
    assert "either those of a list" in tracing.refused("openb", pods)
    assert "either those of a list" in tracing.refused("openb", pods, nodes, "--nodes", "1x8")
    assert "is not UTF-8 text" in tracing.refused("openb", str(tracing.folder / "bytes"))
    assert "No such file" in tracing.refused("openb", str(tracing.folder / "none"))
    assert "No row can be played" in tracing.refused("openb", nodes, tracing.file("empty.csv", HEADER))


@pytest.mark.parametrize("odd", [("--nodes", "8"), ("--nodes", "0x8"), ("--nodes", "1x65"), ("--limit", "0"), ("--cpus", "4")])
def test_odd_options_are_refused(tracing: Tracing, odd: tuple[str, str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["gpufleet", "trace", "openb", tracing.file("pods.csv", PODS), *odd])
    assert stopped.value.code == 2


def test_a_scenario_goes_to_standard_output_alone(tracing: Tracing) -> None:
    assert main(["gpufleet", "trace", "openb", tracing.file("pods.csv", PODS), "--nodes", "1x8"]) == 0
    assert [job["name"] for job in json.loads(tracing.capsys.readouterr().out)["jobs"]] == ["p1", "p4", "p3", "p2"]
