"""An attempt that is not kept leaves nothing behind, whatever passes did in it."""

from contextlib import suppress
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.engine.cycle import RUNS
from scheduler.engine.rules.taken_back import TakenBack, TakenInVain
from scheduler.engine.state.cluster import Cluster
from scheduler.engine.state.fleet import View
from scheduler.engine.state.planning import Cycle
from scheduler.engine.state.work import Work
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random

STAYS = {"sequence", "put_out"}  # written anew whenever somebody is given places, or put out


def room(view: View) -> dict[str, Any]:
    free = [(view.free[node], view.count[node], view.cpus[node], view.memory[node]) for node in range(len(view.free))]
    by_count = [0] * len(view.by_count())
    for node, count in enumerate(view.count):
        by_count[count] |= 1 << node
    assert view.by_count() == by_count
    assert view.count_np.tolist() == view.count
    return {"free": free, "idle": view.idle, "splits": dict(view.splits)}


def stand(work: Work) -> dict[str, Any]:
    return {name: getattr(work, name) for name in Work.__slots__ if name not in STAYS}


def state(cluster: Cluster) -> dict[str, Any]:
    used = [(list(one.used), list(one.fixed)) for one in cluster.tree.divisions]  # what is asked for, and shares, follow these
    return {
        "now": room(cluster.fleet.now),
        "soon": room(cluster.fleet.soon),
        "used": used,
        "by type": cluster.tree.used_by_type and [list(each) for each in cluster.tree.used_by_type],
        "jobs": [stand(work) for work in cluster.works],
        "layouts": dict(cluster.geometry),
        "moves": cluster.moves_left,
        "log": len(cluster.fleet.log),
    }


@settings(max_examples=80, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.integers(0, 10**6), st.lists(st.sampled_from([*sorted(RUNS), *["consolidate"] * 9]), min_size=1, max_size=4))
def test_what_is_undone_leaves_nothing_behind(seed: int, passes: list[str]):
    cycle = Cycle(parse(scenario_random(seed)))
    for name in passes:
        before = state(cycle.cluster)
        with cycle.cluster.attempt(), suppress(TakenBack, TakenInVain):
            RUNS[name](cycle)
        cycle.changed()
        assert state(cycle.cluster) == before
        try:
            RUNS[name](cycle)  # what stays is what the next attempt begins with
        except (TakenBack, TakenInVain):
            return
