"""Philly: jobs of a JSON log with their attempts, on machines of a list or on those that the log names."""

import json
from typing import Any

import pytest

from .conftest import Tracing


def attempt(start: str | None, end: str | None, **machines: int) -> dict[str, Any]:
    day = "2017-10-07 "
    detail = [{"ip": ip, "gpus": [f"gpu{number}" for number in range(gpus)]} for ip, gpus in machines.items()]
    return {"start_time": start and day + start, "end_time": end and day + end, "detail": detail}


def job(name: str, at: str, *attempts: dict[str, Any], vc: str = "ee9e8c") -> dict[str, Any]:
    return {"status": "Pass", "vc": vc, "jobid": name, "attempts": attempts, "submitted_time": f"2017-10-07 {at}", "user": "ce2f4c"}


JOBS = [
    job("big", "01:00:10", attempt("01:10:00", "01:20:00", m1=8, m2=8), attempt("01:30:00", "01:30:30", m1=8, m3=8), vc="b"),
    job("first", "01:00:00", attempt("01:00:00", "01:05:00", m1=2, m2=1)),
    job("no attempt", "02:00:00"),
    job("on", "02:00:00", attempt("02:00:00", None, m1=1)),
    job("unclear", "02:00:00", attempt(None, "02:30:00", m1=1)),
    job("back", "02:00:00", attempt("02:30:00", "02:00:00", m1=1)),
    job("nothing", "02:00:00", attempt("02:00:00", "02:30:00")),
    job("short", "01:00:20", attempt("01:00:20", "01:00:20", m4=2)),
]


def test_attempts_together_are_the_work_and_what_exceeds_a_machine_is_a_gang(tracing: Tracing) -> None:
    scenario, said = tracing.scenario("philly", tracing.file("cluster_job_log", json.dumps(JOBS)))

    assert scenario["now"] == "2017-10-07T01:00:00Z"
    assert [(node["name"], node["gpus"]) for node in scenario["nodes"]] == [("m1", 8), ("m2", 8), ("m3", 8), ("m4", 2)]
    assert [quota["name"] for quota in scenario["quotas"]] == ["b", "ee9e8c"]
    first, big, short = scenario["jobs"]
    assert first == {"name": "first", "quota": "ee9e8c", "roles": [{"name": "worker", "gpus": 3}], "work_s": 300, "submitted": 0}
    assert (big["submitted"], big["work_s"], big["roles"]) == (10, 630, [{"name": "worker", "min": 2, "max": 2, "gpus": 8}])
    assert short["work_s"] == 1
    assert said.splitlines()[0] == "3 of 3 jobs, 2 queues, 4 nodes with 26 GPUs"
    assert sorted(said.splitlines()[1:]) == [
        "  1 left out: asks for neither GPUs nor CPUs",
        "  1 left out: ends before it starts",
        "  1 left out: no end, so the run time is unknown",
        "  2 left out: never started, so the run time is unknown",
    ]
    played = tracing.played()
    assert {name: (row["started"], row["ended"]) for name, row in played.items()} == {"first": (0, 300), "big": (10, 640), "short": (20, 21)}


def test_machines_are_those_of_the_list_or_of_the_command(tracing: Tracing) -> None:
    log = tracing.file("cluster_job_log", json.dumps(JOBS))
    machines = tracing.file("cluster_machine_list", "machineId, number of GPUs, single GPU mem\nm1,2, 12GB\nm2,8,24GB\n")

    listed, _ = tracing.scenario("philly", machines, log)
    assert [(node["gpu_type"], node["quota_type"], node["gpus"]) for node in listed["nodes"]] == [("GPU-12GB", "GPU", 2), ("GPU-24GB", "GPU", 8)]
    quoted = tracing.file("quoted", '"machineId","number of GPUs","single GPU mem"\n"m1","2","12GB"\n')
    assert [node["gpus"] for node in tracing.scenario("philly", quoted, log)[0]["nodes"]] == [2]
    named, _ = tracing.scenario("philly", machines, log, "--nodes", "4x4:V100")
    assert [node["gpu_type"] for node in named["nodes"]] == ["V100"] * 4
    assert named["jobs"][1]["roles"] == [{"name": "worker", "min": 4, "max": 4, "gpus": 4}]


@pytest.mark.parametrize(
    ("second", "said"),
    [
        ('{"vc": "a"}', "line 2: jobid is missing"),
        ('{"jobid": 7, "vc": "a"}', "line 2: jobid is '7'; text is expected"),
        ("[]", "line 2: a job is an object"),
        (json.dumps(JOBS[0] | {"submitted_time": "soon"}), "line 2: submitted_time is 'soon'; a time such as 2020-06-09 18:41:01 is expected"),
        (json.dumps(JOBS[0] | {"submitted_time": None}), "line 2: submitted_time is empty"),
        (json.dumps(JOBS[0] | {"attempts": 3}), "line 2: attempts is '3'; a list is expected"),
        (json.dumps(JOBS[0] | {"attempts": [{}]}), "line 2: detail is missing"),
        (json.dumps(JOBS[1]), "line 2: jobid first is given twice"),
        ("{", "line 3: Expecting property name enclosed in double quotes"),
        ("{}{}", "line 2: jobid is missing"),
        ("[" * 100_000, "line 2: it is nested too deeply"),
        ('{"jobid": ' + "7" * 5000 + "}", "line 2: a number has too many digits"),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_with_its_line(tracing: Tracing, second: str, said: str) -> None:
    log = tracing.file("log", f"[{json.dumps(JOBS[1])},\n{second}\n]")

    assert tracing.refused("philly", log).startswith(f"{log}, {said}")


@pytest.mark.parametrize("text", ["", "{}", "{}\n"])
def test_what_is_no_log_is_told(tracing: Tracing, text: str) -> None:
    assert "is not a cluster_job_log" in tracing.refused("philly", tracing.file("log", text))


def test_a_log_that_was_cut_off_is_told(tracing: Tracing) -> None:
    assert "line 2: a comma or ] is expected" in tracing.refused("philly", tracing.file("log", f"[{json.dumps(JOBS[1])}\n"))
    assert "No row can be played" in tracing.refused("philly", tracing.file("log", "[ ]"))
