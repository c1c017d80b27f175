"""The only place where the twin's tests meet the engine: a scenario as JSON in, a plan as JSON out."""

import json
from functools import lru_cache
from typing import Any

from scheduler.engine.cycle import make_course, make_plan
from scheduler.engine.state.state import Kept
from scheduler.scenarios.reading import ScenarioError, load

Json = dict[str, Any]


def plan_of(scenario: Json) -> Json:
    """The engine's plan. Goes through text both ways, as a file would."""
    return json.loads(json.dumps(make_plan(load(json.dumps(scenario))).as_json()))


def course_of(scenario: Json) -> list[Json]:
    """What the engine decides where nobody has to be told why."""
    return json.loads(json.dumps([decision.as_json() for decision in make_course(load(json.dumps(scenario)), Kept()).decisions]))


def planned(scenario: Json) -> Json:
    """The engine's plan, made once: every law of a scenario looks at the same. That it is the same again is what `deterministic` says."""
    return json.loads(_planned(json.dumps(scenario)))


@lru_cache(512)
def _planned(scenario: str) -> str:
    return json.dumps(plan_of(json.loads(scenario)))


def faults_of(text: str) -> list[tuple[str, str]]:
    """(path, words) of every fault in a document; none where it can be planned."""
    try:
        load(text)
    except ScenarioError as error:
        return [(fault.path, fault.message) for fault in error.faults]
    return []
