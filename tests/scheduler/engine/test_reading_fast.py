"""The short ways of reading a scenario, against the careful ones that say what is wrong: they must come to the same."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.model.values import QUEUED, Checkpoint, Placed, Scenario, maker
from scheduler.scenarios import reading as reader
from scheduler.scenarios.checkers import instant
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.jobs import JobReader
from scheduler.scenarios.reading import load, parse
from scheduler.scenarios.spelling import spelt
from scheduler.scenarios.written import carefully
from tests.scheduler.twin.strategies import scenario_random

JUNK: list[Any] = [None, True, -1, 0, 1, 1.0, 0.5, 1e300, 10**30, "", "x" * 300, "\u0000", [], [[]], {}, {"a": 1}, [None], [True], "n1", float("nan")]


def careful(document: str | bytes) -> Scenario:
    """As it is read where the decoder with types finds anything unusual."""
    return parse(carefully(document))


def outcome(read: Callable[[str | bytes], Scenario], document: str | bytes) -> Any:
    """The scenario, or its faults."""
    try:
        return spelt(read(document))
    except ScenarioError as error:
        return error.faults


@settings(max_examples=200, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(JUNK), st.booleans(), st.booleans())
def test_a_scenario_is_read_alike_in_the_short_and_in_the_careful_way(seed: int, pick: int, junk: Any, whole: bool, lean: bool):
    document = scenario_random(seed, "tiny") if lean else spelt(parse(scenario_random(seed, "tiny")))
    places = list(_places(document))
    if not whole:
        holder, key = places[pick % len(places)]
        holder[key] = copy.deepcopy(junk)
    text = json.dumps(document, ensure_ascii=pick % 2 == 0)

    assert outcome(load, text) == outcome(careful, text)
    assert outcome(load, text.encode()) == outcome(careful, text)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(JUNK))
def test_a_job_with_something_wrong_is_told_alike_among_others(seed: int, pick: int, junk: Any):
    document = json.loads(json.dumps(spelt(parse(scenario_random(seed, "tiny")))))
    places = [place for job in document["jobs"] for place in _places(job)]
    if not places:
        return
    holder, key = places[pick % len(places)]
    holder[key] = copy.deepcopy(junk)
    text = json.dumps(document)
    assert outcome(load, text) == outcome(careful, text)


def _places(value: Any) -> Any:
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield value, key
        if isinstance(item, dict | list):
            yield from _places(item)


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from(["name", "gpus", "path", "health", "island"]), st.sampled_from(JUNK))
def test_a_faulty_node_is_told_alike_among_others_and_alone(seed: int, pick: int, key: str, junk: Any):
    document = json.loads(json.dumps(spelt(parse(scenario_random(seed, "tiny")))))
    document |= {"jobs": [], "reservations": []}
    nodes = document["nodes"]
    node = nodes[pick % len(nodes)]
    node[key] = copy.deepcopy(junk)
    alone = {**document, "nodes": [node]}

    here, there = _faults(document), _faults(alone)

    at = f"$.nodes[{nodes.index(node)}]"
    of_node = {(path.replace(at, "$.nodes[0]"), words) for path, words in here if path.startswith(at)}
    assert {one for one in there if one[0].startswith("$.nodes[0]")} <= of_node


def _faults(document: Any) -> set[tuple[str, str]]:
    try:
        parse(document)
    except ScenarioError as error:
        return {(fault.path, fault.message) for fault in error.faults}
    return set()


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.integers(0, 10**6), st.sampled_from([(", ", ": "), (",", ":"), (" , ", " : "), (",", "\n:")]), st.booleans())
def test_a_key_given_twice_is_a_fault_wherever_it_stands(seed: int, pick: int, separators: tuple[str, str], known: bool):
    document = spelt(parse(scenario_random(seed, "tiny")))
    if known and document["jobs"]:  # the same raw text once more: what was looked into already is not looked into again
        document["jobs"].append({**document["jobs"][0], "name": "another", "workers": [], "state": "queued"})
    text = json.dumps(document, separators=separators)
    ends = [place for place, letter in enumerate(text) if letter == "}" and text[place - 1] != "{"]
    end = ends[pick % len(ends)]
    begin, depth = end, 1
    while depth:
        begin -= 1
        depth += (text[begin] == "}") - (text[begin] == "{")
    first = text[begin + 1 : text.index(":", begin)].rstrip()
    faults = outcome(load, f"{text[:end]}{separators[0]}{first}{separators[1]}null{text[end:]}")
    assert [str(fault) for fault in faults] == [f"$: key {first.strip()[1:-1]!r} is given twice in one object"]


def test_keys_given_twice_are_not_made_up_for_by_other_marks():
    """A text that begins with a colon and a space before a colon would each shift the count by one."""
    for document in ('{"now": 1, "now" : 2}', '{"now": ":", "now" : 2}', '{"now": ":", "jobs" : 2, "jobs": 1}', '{"\\u006eow": 1, "now": 2}'):
        assert "is given twice" in str(outcome(load, document)[0])


@given(st.datetimes(), st.integers(0, 999_999))
def test_whole_seconds_and_parts_of_seconds_are_read_alike(moment: Any, micro: int):
    whole, part = moment.replace(microsecond=0), moment.replace(microsecond=micro)
    assert instant(f"{part.isoformat()}Z") == instant(f"{whole.isoformat()}Z") + micro // 1000


@pytest.mark.parametrize("seed", range(5))
def test_what_is_sound_is_read_in_the_short_way(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Else the comparisons above would compare a thing with itself."""
    text = json.dumps(spelt(parse(scenario_random(seed, "medium"))))
    monkeypatch.delattr(reader, "carefully")
    monkeypatch.delattr(JobReader, "read")

    assert load(text).jobs


@pytest.mark.parametrize("usual", [QUEUED, Placed(0, 1, "n1", 3), Checkpoint(None, 5, 1, 2)])
def test_values_made_by_the_thousand_are_as_their_class_makes_them(usual: Any):
    made = maker(type(usual))(*[getattr(usual, field.name) for field in fields(usual)])

    assert type(made) is type(usual)
    assert made == usual == pickle.loads(pickle.dumps(made)) == replace(made)
    assert hash(made) == hash(usual)
    for field in fields(usual):
        with pytest.raises(FrozenInstanceError):
            setattr(made, field.name, None)
