"""Bad input: every fault at its path, all at once, never anything but a fault."""

import copy
import io
import json
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.cli import plan as plan_command
from scheduler.engine.cycle import make_plan
from scheduler.scenarios.reading import ScenarioError, load, parse

from .scenes import at, job, leafed, node, quota, running, scene


def sound() -> dict[str, Any]:
    nodes = [*leafed(2), node("m", 2, path={"leaf": "l9"}, mig=[{"gpu": 0, "instances": [{"profile": "3g.40gb", "start": 4}]}])]
    quotas = [quota("org", 8), quota("org/a", 4, parent="org", limit={"H100-SXM-80GB": 8}), quota("org/b", None, parent="org")]
    jobs = [
        running("run", [at("n000", 0, 1)], "org/a", checkpoint={"interval_s": 60}),
        job("wait", "org/b", 2, 3, topology={"required": "leaf", "tp_group": 2}),
        job("part", "org/b", sharing="mig", roles=[{"mig": "1g.10gb"}]),
    ]
    windows = [{"name": "w", "quota": "org/a", "gpus": 4, "start": 60, "end": 600}]
    return scene(nodes, quotas, jobs, reservations=windows, demand=[{"share": 0.5, "gpus": 1}])


def faults_of(document: Any) -> dict[str, str]:
    with pytest.raises(ScenarioError) as caught:
        parse(document)
    return {fault.path: fault.message for fault in caught.value.faults}


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        (lambda s: s["jobs"][1].update(prioritty=3), "$.jobs[1].prioritty", "unknown key"),
        (lambda s: s["jobs"][1].update(quota="org"), "$.jobs[1].quota", "leaves"),
        (lambda s: s["jobs"][1].update(quota="nobody"), "$.jobs[1].quota", "not a quota"),
        (lambda s: s["jobs"][1]["roles"][0].update(gpus=0.5), "$.jobs[1].roles[0].gpus", "gpu_share"),
        (lambda s: s["jobs"][1]["roles"][0].update(min=-1), "$.jobs[1].roles[0].min", "between 0"),
        (lambda s: s["jobs"][1]["roles"][0].update(max=2), "$.jobs[1].roles[0].max", "at least min"),
        (lambda s: s["jobs"][1]["topology"].update(required="rack"), "$.jobs[1].topology.required", "one of cluster, leaf, node"),
        (lambda s: s["jobs"][1].update(submitted="yesterday"), "$.jobs[1].submitted", "2026-11-20T09:00:00Z"),
        (lambda s: s["jobs"][1].update(submitted="2026-11-20T09:00:00+01:00"), "$.jobs[1].submitted", "UTC"),
        (lambda s: s["jobs"][0]["workers"][0].update(node="n9"), "$.jobs[0].workers[0].node", "not in this scenario"),
        (lambda s: s["jobs"].append({**s["jobs"][0], "name": "twin"}), "$.jobs[3].workers[0].gpus", "also held by 'run'"),
        (lambda s: s["jobs"].append(s["jobs"][1]), "$.jobs[3].name", "another job"),
        (lambda s: s["nodes"][2]["mig"][0]["instances"].append({"profile": "2g.20gb", "start": 4}), "$.nodes[2].mig[0].instances", "overlaps"),
        (lambda s: s["nodes"][0].update(gpus=-1), "$.nodes[0].gpus", "between 0"),
        (lambda s: s["nodes"][0].update(gpu_memory_gb=float("nan")), "$.nodes[0].gpu_memory_gb", "finite"),
        (lambda s: s["nodes"][0].update(path={}), "$.nodes[0].path", "leaf"),
        (lambda s: s["quotas"].extend([quota("x", parent="y"), quota("y", parent="x")]), "$.quotas[3].parent", "cycle"),
        (lambda s: s["quotas"][1].update(guaranteed={"H100-SXM-80GB": 1}), "$.quotas[1].guaranteed", "all are maps"),
        (lambda s: s["quotas"][1].update(weight=True), "$.quotas[1].weight", "number"),
        (lambda s: s["quotas"][1].update(weight={"H100-SXM-80GB": 2}), "$.quotas[1].weight", "only where guarantees are maps"),
        (lambda s: s["quotas"][1].update(priority={"H100-SXM-80GB": "high"}), "$.quotas[1].priority['H100-SXM-80GB']", "must be a whole number"),
        (lambda s: s["quotas"][1].update(limit={"H100-SXM-80GB": -1}), "$.quotas[1].limit['H100-SXM-80GB']", "between 0"),
        (lambda s: s["settings"].update(max_wait_s={"batch": -1}), "$.settings.max_wait_s.batch", "between 0"),
        (lambda s: s["settings"].update(worth={"urgent": 1}), "$.settings.worth.urgent", "allowed are batch, inference, interactive"),
        (lambda s: s["settings"].update(fairness={"step": 1}), "$.settings.fairness.step", "unknown key"),
        (lambda s: s["nodes"][0].update(labels={"pool": 3}), "$.nodes[0].labels.pool", "a string"),
        (lambda s: s["nodes"][2].update(gpu_type="H10O"), "$.nodes[2].mig", "can't be split"),
        (lambda s: s["jobs"][1]["roles"][0].update(gpu_types=["H100-SXM-80GB", 5]), "$.jobs[1].roles[0].gpu_types[1]", "a string"),
        (lambda s: s["reservations"][0].update({"class": "batch"}), "$.reservations[0]", "either an owner"),
        (lambda s: s["reservations"][0].update(gpu_type="H200"), "$.reservations[0].gpu_type", "no node belongs to it; a window names a quota type"),
        (lambda s: s["quotas"][1].update(usage=1.5), "$.quotas[1].usage", "between 0 and 1"),
        (lambda s: s["settings"].update(overrun=0), "$.settings.overrun", "must be above 0"),
        (lambda s: s["settings"].update(overrun=1e-9), "$.settings.overrun", "must be above 0"),
        (lambda s: s["settings"].update(forecast=None), "$.settings.forecast", "must be one of all, head, none, not null"),
        (lambda s: s["jobs"][1].update(evictions=True), "$.jobs[1].evictions", "must be a whole number, not true"),
        (lambda s: s["jobs"][1].update({"class": ["batch", None]}), "$.jobs[1].class", 'not ["batch", null]'),
        (lambda s: s["jobs"][1]["topology"].update(tp_group=3), "$.jobs[1].topology.tp_group", "hold no whole groups of 3"),
        (lambda s: s["jobs"][1]["roles"][0].update(topology={"tp_group": 5}), "$.jobs[1].roles[0].topology.tp_group", "hold no whole groups of 5"),
        (lambda s: s["jobs"][2]["roles"][0].update(mig=None, gpu_share=0.0001), "$.jobs[2].roles[0].gpu_share", "above 0"),
        (lambda s: s["jobs"][1]["roles"][0].update(cpus=1.2345), "$.jobs[1].roles[0].cpus", "must have at most three decimals, not 1.2345"),
        (lambda s: s["jobs"][1]["roles"][0].update(cpus=-0.5), "$.jobs[1].roles[0].cpus", "must be between 0 and 1000000, not -0.5"),
        (lambda s: s["nodes"][0].update(cpus="8"), "$.nodes[0].cpus", "must be a number, not a string"),
        (lambda s: s["jobs"][2]["roles"][0].update(gpus=1), "$.jobs[2].roles[0]", "exactly one of"),
        (lambda s: s["settings"].update(passes=["allocate", "magic"]), "$.settings.passes[1]", "must be one of stale, allocate"),
        (lambda s: s.update(now=3), "$.now", "2026-11-20T09:00:00Z"),
        (lambda s: s.update(format="gpufleet-scenario/2"), "$.format", "gpufleet-scenario/1"),
        (lambda s: s.update(extra=1), "$.extra", "unknown key"),
    ],
)
def test_one_fault_is_one_line_at_its_path(change: Any, path: str, message: str) -> None:
    document = sound() | {"settings": {}}
    change(document)
    found = faults_of(document)

    assert list(found) == [path], found
    assert message in found[path]


def test_a_window_of_a_gpu_type_whose_nodes_belong_to_others_is_told_so() -> None:
    nodes = [node("n0", quota_type="pa"), node("n1", quota_type="pb")]
    window = {"name": "w", "quota": "q", "gpus": 8, "gpu_type": "H100-SXM-80GB", "start": -1}
    found = faults_of(scene(nodes, [quota("q")], [], reservations=[window]))

    said = "is a GPU type, and its nodes belong to quota types of their own; a window names a quota type, and there are pa, pb"
    assert found == {"$.reservations[0].gpu_type": said}


def test_all_faults_are_told_at_once() -> None:
    document = sound()
    document["nodes"][0]["gpus"] = -1
    document["quotas"][2]["priority"] = "high"
    document["jobs"][1]["roles"] = []
    document["jobs"][2]["class"] = "urgent"

    assert set(faults_of(document)) == {"$.nodes[0].gpus", "$.quotas[2].priority", "$.jobs[1].roles", "$.jobs[2].class"}


def test_a_sound_scenario_plans() -> None:
    assert make_plan(parse(sound())).as_json()["format"] == "gpufleet-plan/1"


@pytest.mark.parametrize(
    "text",
    ["", "[", "nul", "[1]", '{"format": "gpufleet-scenario/1", "format": "x"}', "[" * 10_000_000, '{"a":' * 200_000, '{"now": NaN}', "\ud800"],
    ids=["empty", "open", "word", "list", "twice", "nested", "nested objects", "NaN", "surrogate"],
)
def test_text_that_is_no_scenario_is_refused(text: str) -> None:
    with pytest.raises(ScenarioError):
        load(text)


@pytest.mark.parametrize("key", ["class", "roles", "needs", "checkpoint", "workers"])
def test_what_is_nested_almost_too_deeply_is_a_fault(key: str) -> None:
    """What can just be decoded may be too deep to be written into a message."""
    before, after = json.dumps(scene([node("n0")], [quota("q")], [{**job("j"), key: "?"}])).split('"?"')
    for depth in range(850, 1000, 2):
        with pytest.raises(ScenarioError):
            load(f"{before}{'[' * depth}{']' * depth}{after}")


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        found.extend(places_in(item, (*path, key)))
    return found


PLACES = places_in(sound() | {"settings": {"fairness": {"step_s": 1}, "worth": {"batch": 1}, "max_moves": 2}})
JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from([10**400, -1, 0, 1e308, "n000", "org", [], {}, [[]], [0, 0], {"": 1}, {"H100-SXM-80GB": -1}, "\x00", "2026-11-20T09:00:00"]),
    st.lists(st.integers(-2, 9), max_size=3),
    st.dictionaries(st.text(max_size=4), st.integers(), max_size=2),
)


@given(st.lists(st.tuples(st.sampled_from(PLACES), JUNK, st.booleans()), min_size=1, max_size=4))
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
def test_junk_anywhere_is_a_fault_or_a_plan_never_anything_else(changes: list[tuple[tuple[Any, ...], Any, bool]]) -> None:
    document = sound() | {"settings": {"fairness": {"step_s": 1}, "worth": {"batch": 1}, "max_moves": 2}}
    for path, junk, remove in changes:
        target: Any = document
        try:
            for key in path[:-1]:
                target = target[key]
            if remove and isinstance(target, dict):
                target.pop(path[-1], None)
            else:
                target[path[-1]] = copy.deepcopy(junk)
        except (KeyError, IndexError, TypeError):
            continue  # an earlier change took the place away
    try:
        scenario = parse(document)
    except ScenarioError as error:
        assert error.faults
        assert all(fault.path.startswith("$") and fault.message for fault in error.faults)
        return
    json.dumps(make_plan(scenario).as_json(), allow_nan=False)


def test_lines_in_lines_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = [json.dumps(sound()), "{}", json.dumps(sound())]
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(lines)))

    assert plan_command(["--jsonl"]) == 2
    first, second, third = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first == third
    assert {fault["path"] for fault in second["faults"]} == {"$.format", "$.now"}


def test_a_bad_file_prints_its_faults_and_exits_2(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.json").write_text('{"format": "gpufleet-scenario/1", "now": "2026-11-20T09:00:00Z", "jobs": {}}')

    assert plan_command([str(tmp_path / "bad.json")]) == 2
    assert capsys.readouterr().err == "$.jobs: must be a list, not an object\n"


def test_explain_says_it_in_words(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.json").write_text(json.dumps(sound()))

    assert plan_command([str(tmp_path / "s.json"), "--explain"]) == 0
    told = capsys.readouterr().out
    assert "split GPU" in told
    assert "wait" in told


def test_a_fault_of_a_node_is_no_fault_of_who_asks_for_its_type() -> None:
    document = sound()
    document["nodes"] = [{**one, "gpus": -1} for one in document["nodes"]]
    document["reservations"][0]["gpu_type"] = "H100-SXM-80GB"

    assert set(faults_of(document)) == {f"$.nodes[{place}].gpus" for place in range(3)}


def test_every_fault_of_fairness_is_told() -> None:
    wrong = {"settings": {"max_moves": -1, "fairness": {"step_s": -1, "usage_weight": "much"}}}

    assert set(faults_of(sound() | wrong)) == {"$.settings.max_moves", "$.settings.fairness.step_s", "$.settings.fairness.usage_weight"}


def chain(depth: int) -> dict[str, Any]:
    """A tree that is one line of quotas, the top first."""
    document = sound()
    document["quotas"] += [quota(f"deep-{level:05d}", parent=f"deep-{level - 1:05d}" if level else None) for level in range(depth)]
    return document


def test_a_tree_that_is_too_deep_is_one_fault_and_costs_no_more_than_it_is_long() -> None:
    parse(chain(64))
    before = len(sound()["quotas"])

    assert faults_of(chain(20_000)) == {f"$.quotas[{before + 64}].parent": "is deeper than 64 levels"}


def test_a_long_cycle_is_shown_in_part() -> None:
    document = chain(5_000)
    document["quotas"][-5_000]["parent"] = "deep-04999"

    (message,) = (text for text in faults_of(document).values() if "cycle" in text)
    assert len(message) < 500
