"""The only place where the twin's tests meet the engine: a scenario as JSON in, a plan as JSON out."""

import json
from typing import Any

from scheduler.engine.cycle import make_plan
from scheduler.engine.scenario import ScenarioError, load

Json = dict[str, Any]


def plan_of(scenario: Json) -> Json:
    """The engine's plan. Goes through text both ways, as a file would."""
    return json.loads(json.dumps(make_plan(load(json.dumps(scenario))).as_json()))


def faults_of(text: str) -> list[tuple[str, str]]:
    """(path, words) of every fault in a document; none where it can be planned."""
    try:
        load(text)
    except ScenarioError as error:
        return [(fault.path, fault.message) for fault in error.faults]
    return []
