"""Sweeps: what is played at a point, how points end, that a sweep goes on where it was cut off, and where the knee is."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from scheduler.scenarios.reading import parse
from scheduler.simulation.policies import POLICIES as SIMULATED
from scheduler.sweeps.measuring import Measured, figures_of, measured
from scheduler.sweeps.points import Interval, Point, arrivals, interval_of, nodes_of, scenario_of
from scheduler.sweeps.policies import POLICIES, type_blind
from scheduler.sweeps.running import folder_of, play
from scheduler.sweeps.telling import ADDED, Knee, Row, Spread, classes_of, knee_of, knee_text, rows_of
from tests.servers import PROJECT

from ..engine.scenes import A100, H100, job, node, quota, scene

HOUR = 3_600_000
START = "import sys; from gpufleet.cli import main; status = main(); assert 'django' not in sys.modules; sys.exit(status)"


def small(jobs: int = 40, gap: int = 600, work_s: int = 3000, **fields: Any) -> dict[str, Any]:
    """Two nodes of two types, and a job of two to four GPUs every ten minutes: about half of what they can do."""
    nodes = [node("h", gpus=4), node("a", gpus=4, gpu_type=A100, gpu_memory_gb=40)]
    each = {"estimate_s": work_s, "throughput": {H100: 1.0, A100: 0.5}}
    made = [job(f"j{i:03d}", gpus=1 + i % 4, submitted=gap * i, work_s=work_s // 2 + 97 * i, **each) for i in range(jobs)]
    return scene(nodes, [quota("q", 8)], made, **fields)


NEVER_ENDS = "100"  # a load at which LONG has more jobs than are played within a test
LONG = ("--until", "4d")


def sweep(scenario: Path, out: Path, *words: str) -> list[str]:
    return [sys.executable, "-c", START, "sweep", str(scenario), "--out", str(out), *words]


def done(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=300)


def results(out: Path) -> dict[str, dict[str, Any]]:
    found = {path.name: json.loads(path.read_bytes()) for path in (out / "points").glob("*.json")}
    for result in found.values():
        result.pop("wall_s", None)
    return found


def point(policy: str = "stated", load: float = 1.0, seed: int = 0) -> Point:
    return Point(policy, "load", load, seed)


def test_a_seed_has_the_same_jobs_in_the_same_order_at_every_load():
    scenario = parse(small())

    slow, fast = (arrivals(scenario, load, 3, 10 * HOUR) for load in (0.5, 2.0))

    assert len(fast) == pytest.approx(4 * len(slow), abs=4)
    assert [one.work_ms for one in fast[: len(slow)]] == [one.work_ms for one in slow]
    assert [one.submitted - scenario.now for one in slow[:3]] == [0, 1_200_000, 2_400_000]
    assert [one.submitted - scenario.now for one in fast[:3]] == [0, 300_000, 600_000]
    assert [one.work_ms for one in slow] != [one.work_ms for one in arrivals(scenario, 0.5, 4, 10 * HOUR)]
    assert fast[-1].submitted <= scenario.now + 10 * HOUR, "nobody comes after the end"


def test_moments_of_a_job_move_with_its_submission():
    said = small(jobs=2)
    for one in said["jobs"]:
        one.update(not_before=one["submitted"] + 60, deadline=one["submitted"] + 9000)

    found = arrivals(parse(said), 1.0, 0, 2 * HOUR)

    assert {(one.not_before - one.submitted, one.deadline - one.submitted) for one in found} == {(60_000, 9_000_000)}
    assert len(found) > 2


def test_a_fleet_of_another_size_keeps_its_types_in_proportion():
    nodes = parse(scene([*(node(f"h{i}") for i in range(4)), *(node(f"a{i}", gpu_type=A100) for i in range(2))], [quota("q")], [])).nodes

    for count, expected in ((3, {H100: 2, A100: 1}), (6, {H100: 4, A100: 2}), (12, {H100: 8, A100: 4})):
        found = nodes_of(nodes, count)
        assert {name: sum(one.gpu_type == name for one in found) for name in expected} == expected
        assert len({one.name for one in found}) == len({one.island for one in found}) == count
    assert set(nodes_of(nodes, 6)) == set(nodes)


def test_every_point_is_measured_in_the_same_interval():
    scenario = parse(small())
    interval = interval_of(scenario, None, None)

    assert interval == Interval(100 * 60_000, 400 * 60_000)  # 40 submissions, ten minutes apart
    for load in (0.5, 1.0, 3.0):
        submitted = measured(scenario, point(load=load), interval)["figures"]["jobs"]["submitted"]
        assert submitted == pytest.approx(20 * load, abs=1)


def test_a_full_fleet_is_allocated_and_a_queue_that_grows_is_saturated():
    scenario, interval = parse(small()), interval_of(parse(small()), None, None)

    calm, full = measured(scenario, point(load=0.2), interval), measured(scenario, point(load=5.0), interval)

    assert (calm["state"], full["state"]) == ("completed", "saturated")
    assert calm["figures"]["allocation"] < 0.5 < 0.8 < full["figures"]["allocation"] <= 1
    for figures in (calm["figures"], full["figures"]):
        by_type = figures["allocation_by_type"]
        assert figures["allocation"] == pytest.approx((by_type[H100] + by_type[A100]) / 2, abs=1e-5), "both have four GPUs"
        assert figures["utilization"] <= figures["allocation"]
    assert full["figures"]["wait_s"]["p95"] >= interval.warm_up / 1000, "jobs that never start count with their wait"
    assert full["figures"]["jobs"]["never_started"] > 0


def test_who_computes_alone_holds_what_it_holds_for_as_long_as_it_computes():
    """Two jobs of an hour on four of eight GPUs, one after the other, and a measurement that cuts both in half."""
    said = scene([node("h")], [quota("q")], [job(f"j{i}", gpus=4, submitted=7200 * i, work_s=3600) for i in range(2)])

    figures = measured(parse(said), point(), Interval(1_800_000, 4 * HOUR))["figures"]  # half an hour to three and a half hours

    assert figures["allocation"] == figures["utilization"] == pytest.approx(4 / 8 * 1.5 / 3, abs=1e-6)
    assert figures["completion_s"]["mean"] == 3600 and figures["jobs"]["submitted"] == 1
    assert figures["finish_time_fairness"] == {"mean": 1, "max": 1} and figures["fragmentation"] == 0


def played(said: dict[str, Any], hours: int) -> Measured:
    """The scenario as it is, measured from its beginning."""
    world = Measured(parse(said), Interval(0, hours * HOUR), works={})
    world.play(world.end)
    return world


def test_work_is_that_of_the_gpu_type_on_which_it_was_done():
    """An hour of work on four GPUs of each type, on one of which it takes two."""
    jobs = [job(f"j{i}", gpus=4, work_s=3600, throughput={H100: 1.0, A100: 0.5}) for i in range(2)]
    said = scene([node("h", gpus=4), node("a", gpus=4, gpu_type=A100)], [quota("q", 8)], jobs)

    figures = figures_of(played(said, 4))

    assert figures["allocation_by_type"] == {H100: 0.25, A100: 0.5}
    assert figures["utilization_by_type"] == {H100: 0.25, A100: 0.25}
    assert (figures["allocation"], figures["utilization"]) == (0.375, 0.25)


def test_lost_work_is_taken_from_where_it_was_done():
    """What has to leave begins anew, on another type than before."""
    low = job("low", gpus=4, work_s=4 * 3600, preemptible=True, throughput={H100: 1.0, A100: 0.5})
    high = job("high", gpus=4, submitted=3600, work_s=3600, priority=900, role={"gpu_types": [H100]})
    world = played(scene([node("h", gpus=4), node("a", gpus=4, gpu_type=A100)], [quota("q", 8)], [low, high]), 3)

    done = world.counts[1]
    assert (done.preemptions + done.moves, done.lost) == (1, 4000 * HOUR), "an hour of four GPUs"
    assert done.useful_by_type == {H100: 4000 * HOUR, A100: 4000 * HOUR}, "what high did, and what low did in two hours at half the speed"
    assert done.useful == 8000 * HOUR


@pytest.mark.parametrize("load", [0.5, 3.0])
@pytest.mark.parametrize("policy", ["stated", "fifo", "type-blind", "spread", "max-min"])
def test_the_work_of_all_types_is_that_of_the_fleet(policy, load):
    scenario = parse(small(jobs=20))

    figures = measured(scenario, point(policy, load), interval_of(scenario, None, None))["figures"]

    by_type = figures["utilization_by_type"]
    assert figures["utilization"] == pytest.approx((by_type[H100] + by_type[A100]) / 2, abs=1e-5), "both have four GPUs"
    assert all(0 <= by_type[name] <= figures["allocation_by_type"][name] + 1e-6 for name in by_type)


def test_idle_gpus_that_nobody_who_waits_can_use_are_fragments():
    """Of four GPUs jobs take three: on both nodes one is left, for hours."""
    said = scene([node("a", gpus=4), node("b", gpus=4)], [quota("q", 8)], [job(f"j{i}", gpus=3, submitted=600 * i, work_s=36_000) for i in range(9)])
    scenario = parse(said)

    assert measured(scenario, point(), Interval(HOUR, 5 * HOUR))["figures"]["fragmentation"] == 0.25
    assert measured(scenario, point("max-min"), Interval(HOUR, 5 * HOUR))["figures"]["fragmentation"] is None, "its plans do not say"
    assert figures_of(played(scene([node("a")], [quota("q", 8)], []), 1))["fragmentation"] is None, "nothing was planned"


def test_queue_times_are_told_by_class():
    said = small(jobs=20)
    for place, one in enumerate(said["jobs"]):
        one["class"] = "interactive" if place % 3 == 0 else "batch"
    scenario = parse(said)
    figures = measured(scenario, point(load=3.0), interval_of(scenario, None, None))["figures"]

    waits = figures["wait_s_by_class"]
    assert waits["inference"] == {"mean": None, "p50": None, "p95": None}
    assert waits["interactive"]["mean"] < figures["wait_s"]["mean"] < waits["batch"]["mean"], "interactive jobs are served first"
    (row,) = rows_of({point(load=3.0): {"state": "completed", "figures": figures}}, [H100, A100])
    assert classes_of([row]) == ["interactive", "batch"] and row.figures["wait_p95:inference"] is None


def test_fairness_is_the_time_that_it_took_over_that_with_an_equal_part():
    """Three jobs of an hour on a node that holds one: they take 1, 2 and 3 hours, in which there are on average 3, 2.5 and 2 of them."""
    jobs = [job(f"j{i}", gpus=8, submitted=0, work_s=3600) for i in range(3)]

    assert figures_of(played(scene([node("a")], [quota("q", 8)], jobs), 4))["finish_time_fairness"] == {"mean": 0.8778, "max": 1.5}


def test_blind_to_types_the_scheduler_sees_no_speed_and_jobs_run_at_theirs():
    said = small(jobs=8)
    said["jobs"][0]["throughput"] = {H100: 1.0, A100: 0}
    scenario = parse(said)

    variant = type_blind(scenario)

    for before, after in zip(scenario.jobs, variant.scenario.jobs, strict=True):
        assert {after.kind.speed(name) for name in (H100, A100)} == ({0, 1_000_000} if before.kind.speed(A100) == 0 else {1_000_000})
        assert variant.kinds[id(after.kind)] is before.kind
    assert {one.kind.roles[0].gpu_types for one in variant.scenario.jobs} == {(H100, A100), (A100, H100)}
    alone = scene([node("a", gpu_type=A100)], [quota("q")], [job(f"j{i}", submitted=9000 * i, work_s=3600, throughput={A100: 0.5}) for i in range(2)])
    figures = measured(parse(alone), point("type-blind"), Interval(0, 4 * HOUR))["figures"]
    assert figures["completion_s"]["mean"] == 7200


def test_the_baseline_fifo_is_that_of_simulations():
    scenario = parse(small())
    variant = POLICIES["fifo"][0](scenario)

    assert variant.policy is SIMULATED["fifo"][0] and variant.scenario is scenario


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_plays(policy):
    scenario = parse(small())

    assert measured(scenario, point(policy), interval_of(scenario, None, None))["state"] in ("completed", "saturated")
    assert scenario_of(scenario, point(policy), Interval(0, HOUR)).settings.forecast == "none"


def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path):
    scenario = tmp_path / "s.json"
    scenario.write_text(json.dumps(small(jobs=60)))
    words = (*LONG, "--policies", "spread", "--seeds", "1", "--workers", "1", "--load")
    process = subprocess.Popen(
        sweep(scenario, tmp_path / "cut", *words, f"0.1,{NEVER_ENDS}"), cwd=PROJECT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("3/"):
            break
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    before = {path.name: path.read_bytes() for path in (tmp_path / "cut/points").glob("*.json")}

    again = done(sweep(scenario, tmp_path / "cut", *words, "0.1,0.2"))
    whole = done(sweep(scenario, tmp_path / "whole", *words, "0.1,0.2"))

    assert len(before) == 3
    assert again.returncode == whole.returncode == 0, again.stderr + whole.stderr
    assert "3 of 6 points are in" in again.stderr
    assert again.stdout == whole.stdout
    assert results(tmp_path / "cut") == results(tmp_path / "whole") and len(results(tmp_path / "cut")) == 6
    assert {name: (tmp_path / "cut/points" / name).read_bytes() for name in before} == before, "what was done is not done again"
    assert (tmp_path / "cut/sweep.html").read_bytes() == (tmp_path / "whole/sweep.html").read_bytes()
    assert not list((tmp_path / "cut/points").glob(".*")), "no half of a file is left"


def test_an_interrupted_sweep_says_how_it_goes_on(tmp_path):
    scenario = tmp_path / "s.json"
    scenario.write_text(json.dumps(small()))
    process = subprocess.Popen(
        sweep(scenario, tmp_path / "out", *LONG, "--load", f"0.1,{NEVER_ENDS}", "--workers", "1"),
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),  # tests that run in the background of a shell ignore it
    )
    assert process.stderr is not None
    assert process.stderr.readline().startswith("1/18 stated-load-0.1-seed-0: ")

    process.send_signal(signal.SIGINT)

    out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "points are in" in said and said.endswith("The same command goes on.\n") and "Traceback" not in said
    assert not list((tmp_path / "out/points").glob(".*"))


def test_what_takes_too_long_times_out_and_is_played_again_when_asked(tmp_path):
    scenario = tmp_path / "s.json"
    scenario.write_text(json.dumps(small(jobs=60)))
    words = (*LONG, "--load", NEVER_ENDS, "--seeds", "1", "--workers", "2")

    late = done(sweep(scenario, tmp_path / "out", *words, "--timeout", "0.2"))
    kept = done(sweep(scenario, tmp_path / "out", *words, "--timeout", "0.1"))
    again = done(sweep(scenario, tmp_path / "out", *words, "--timeout", "0.3", "--retry"))

    assert late.returncode == kept.returncode == again.returncode == 0, late.stderr + kept.stderr + again.stderr
    assert late.stderr.count("timed out: did not end within 0.2 s") == 3
    assert "3 of 3 points are in" in kept.stderr and "did not end" not in kept.stderr
    assert {(one["state"], one["error"]) for one in results(tmp_path / "out").values()} == {("timed out", "did not end within 0.3 s")}


def test_points_of_an_earlier_version_are_read_and_played_again_when_asked(tmp_path):
    (tmp_path / "s.json").write_text(json.dumps(small()))
    command = sweep(tmp_path / "s.json", tmp_path / "out", "--load", "0.5", "--seeds", "1")
    whole = done(command)
    file = tmp_path / "out/points/stated-load-0.5-seed-0.json"
    old, before = json.loads(file.read_bytes()), results(tmp_path / "out")
    for name in ADDED:
        del old["figures"][name]
    file.write_text(json.dumps(old))

    read, again = done(command), done([*command, "--retry"])

    assert read.returncode == again.returncode == 0, read.stderr + again.stderr
    assert "An earlier version played 1 of 3 points: fragmentation, queue times by class" in read.stderr
    fleet, parts = (line.split() for line in read.stdout.splitlines() if line.startswith("stated "))
    assert (fleet.count("-"), parts.count("-")) == (3, 2), "fairness twice, fragmentation, and two types"
    assert fleet[3:7] == next(line.split() for line in whole.stdout.splitlines() if line.startswith("stated "))[3:7]
    assert again.stdout == whole.stdout and "earlier version" not in again.stderr
    assert results(tmp_path / "out") == before


def test_an_error_is_a_result(tmp_path):
    scenario = parse(small())
    interval = interval_of(scenario, None, None)
    folder = folder_of(tmp_path, b"", "load", interval)

    play(folder, scenario, interval, point("nonesuch"))

    result = folder.read(point("nonesuch"))
    assert result is not None
    assert result["state"] == "failed" and result["error"].startswith("KeyError: 'nonesuch'")


def test_a_process_that_is_ended_from_outside_has_failed(tmp_path):
    """Memory that runs out ends a process so."""
    code = """if True:
        import multiprocessing, os, signal, sys, threading
        from pathlib import Path
        from scheduler.scenarios.reading import load
        from scheduler.sweeps.points import Point, interval_of
        from scheduler.sweeps.running import folder_of, run
        scenario = load(Path(sys.argv[1]).read_bytes())
        interval = interval_of(scenario, None, 100 * 86_400_000)
        def end():
            while not (found := multiprocessing.active_children()):
                pass
            os.kill(found[0].pid, signal.SIGKILL)
        threading.Thread(target=end).start()
        folder = folder_of(Path(sys.argv[2]), b"", "load", interval)
        run(folder, scenario, interval, [Point("stated", "load", 5.0, 0)], workers=1, limit_s=100, told=lambda point: print(folder.read(point)))
    """
    (tmp_path / "s.json").write_text(json.dumps(small()))

    found = subprocess.run([sys.executable, "-c", code, str(tmp_path / "s.json"), str(tmp_path / "out")], capture_output=True, text=True, cwd=PROJECT)

    assert "'state': 'failed', 'error': 'its process was ended by signal 9'" in found.stdout, found.stderr


@pytest.mark.parametrize(
    ("words", "change", "said"),
    [
        (("--load", "1,x"), {}, "'x' is not a number"),
        (("--load", "0"), {}, "0 is not a load"),
        (("--nodes", "1.5"), {}, "1.5 is not a whole number from 1 to 100000"),
        (("--load", "1", "--seeds", "0"), {}, "0 is not a whole number from 1 to 1000"),
        (("--load", "1", "--policies", "fair,best"), {}, "there is no policy 'best'; there are stated, fifo, type-blind"),
        (("--load", "1", "--nodes", "2"), {}, "not allowed with argument"),
        ((), {}, "one of the arguments --load --nodes --list-policies is required"),
        (("--load", "1", "--timeout", "0"), {}, "0 is not a length above 0"),
        (("--load", "1", "--until", "1h", "--warm-up", "30m"), {}, "--warm-up: nothing is left to measure"),
        (("--load", "1"), {"jobs": []}, "$.jobs: a sweep needs an arrival rate"),
        (("--load", "1"), {"nodes": []}, "$.nodes: a sweep needs a node"),
        (("--load", "1"), {"jbos": []}, "$.jbos: unknown key"),
    ],
)
def test_what_cannot_be_swept_is_said(tmp_path, words, change, said):
    (tmp_path / "s.json").write_text(json.dumps({**small(), **change}))

    found = done(sweep(tmp_path / "s.json", tmp_path / "out", *words))

    assert (found.returncode, found.stdout) == (2, "")
    assert said in found.stderr and "Traceback" not in found.stderr


def test_a_folder_with_another_sweep_is_refused(tmp_path):
    for name, gap in (("one", 600), ("two", 700)):
        (tmp_path / f"{name}.json").write_text(json.dumps(small(jobs=4, gap=gap)))
    words = ("--load", "1", "--seeds", "1")

    assert done(sweep(tmp_path / "one.json", tmp_path / "out", *words)).returncode == 0
    other = done(sweep(tmp_path / "two.json", tmp_path / "out", *words))

    assert other.returncode == 2 and "holds a sweep of another scenario, interval or axis" in other.stderr


def test_bursts_that_grow_are_no_saturation_where_each_is_served():
    """Every five hours more jobs come at once than before. The queue is longer each time, and empty before the next."""
    bursts = [18_000 * number for number in range(8) for _ in range(8 * (number + 1))]
    scenario = parse(scene([node("h")], [quota("q", 8)], [job(f"j{i:03d}", submitted=at, work_s=1800) for i, at in enumerate(bursts)]))
    interval = Interval(0, 40 * HOUR)
    assert measured(scenario, point(), interval)["state"] == "completed"
    assert measured(scenario, point(load=2.0), interval)["state"] == "saturated"


def row(value: float, wait_h: float | None, *states: str) -> Row:
    counts = tuple((state, states.count(state)) for state in dict.fromkeys(states or ("completed",)))
    return Row("stated", value, counts, {"wait_p95": None if wait_h is None else Spread(wait_h * 3600, 0, 0)})


@pytest.mark.parametrize(
    ("axis", "rows", "knee"),
    [
        ("load", [row(0.6, 1), row(0.8, 2), row(1.0, 3), row(1.2, 3.1)], Knee(1.0, True)),
        ("load", [row(0.6, 0), row(0.8, 0.9)], Knee(0.8, False)),
        ("load", [row(0.6, 0), row(0.8, 0, "completed", "saturated"), row(1.0, 0)], Knee(0.6, True)),
        ("load", [row(0.6, 0, "saturated"), row(0.8, 0)], Knee(None, True)),
        ("nodes", [row(8, 9), row(12, 1), row(16, 0)], Knee(12, True)),
    ],
)
def test_the_knee_is_the_last_value_before_the_bend(axis, rows, knee):
    assert knee_of(rows, axis) == knee


@pytest.mark.parametrize(
    ("axis", "rows", "said"),
    [
        ("load", [row(0.2, None), row(0.6, 0)], "no job was submitted in the measured interval at load 0.2; use a longer --until"),
        ("nodes", [row(8, 0), row(16, None)], "no job was submitted in the measured interval at 16 nodes; use a longer --until"),
        ("load", [row(0.2, None, "timed out"), row(0.6, 0)], "unknown: load 0.2 timed out; use --retry with a longer --timeout"),
        ("load", [row(0.2, 0, "completed", "timed out")], "unknown: load 0.2 timed out (1 of 2); use --retry with a longer --timeout"),
        ("nodes", [row(8, 0), row(16, 0, "completed", "failed")], "unknown: 16 nodes failed (1 of 2)"),
        ("load", [row(0.2, 0, "saturated"), row(0.6, 0)], "past the knee at every load; sweep lower ones"),
    ],
)
def test_without_a_knee_the_reason_is_that_of_the_easiest_value(axis, rows, said):
    assert knee_text("stated", knee_of(rows, axis), axis) == f"stated: {said}"


def test_points_that_did_not_end_are_not_averaged_in():
    figures = {"allocation": 0.5, "utilization": 0.4, "preemptions": 2, "allocation_by_type": {H100: 0.5}}
    ended = {"state": "completed", "figures": {**figures, "wait_s": {"p50": 1, "p95": 2}, "completion_s": {"mean": None}}}

    (found,) = rows_of({point(seed=0): ended, point(seed=1): {"state": "timed out"}}, [H100])

    assert found.figures["allocation"] == Spread(0.5, 0.5, 0.5) and found.figures["completion"] is None
    assert found.state == "timed out (1 of 2)" and not found.is_complete


def test_policies_that_leave_passes_out_leave_out_some_that_there_are():
    scenario = parse(small())
    assert set(scenario.settings.passes) - set(POLICIES["no-backfill"][0](scenario).scenario.settings.passes) == {"backfill"}
    assert set(scenario.settings.passes) - set(POLICIES["no-preemption"][0](scenario).scenario.settings.passes) == {"reclaim", "preempt"}
