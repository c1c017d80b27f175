"""Time shares: never where the speed is 0, within capacity whatever a solver says, who solves them, and how they are played."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.cli import main
from scheduler.scenarios.reading import parse
from scheduler.simulation.workload import works_drawn
from scheduler.simulation.world import World
from scheduler.sweeps.measuring import measured
from scheduler.sweeps.points import Interval, Point
from scheduler.sweeps.policies import SHARED
from scheduler.sweeps.sharing.objectives import OBJECTIVES, Ask, cleaned, equal, shares_of
from scheduler.sweeps.sharing.rounds import BLIND, rounds_of
from scheduler.sweeps.sharing.solving import SOLVERS, Chain, Program, SolverError

from ..engine.scenes import A100, H100, job, node, quota, scene

TYPES = ("A", "B", "C")
HOUR = 3_600_000
CAPACITY = st.fixed_dictionaries({name: st.integers(0, 8) for name in TYPES})
SPEEDS = st.dictionaries(st.sampled_from(TYPES), st.just(0.0) | st.floats(0.01, 1))
ASKS = st.lists(st.tuples(st.integers(1, 4), SPEEDS, st.floats(1, 1e6), st.floats(0, 1e6)), min_size=1, max_size=6).map(
    lambda rows: [Ask(f"j{place}", *row) for place, row in enumerate(rows)]
)


def lying(program: Program, seconds: float) -> np.ndarray:
    """All that can be had of everything, whatever the rows say."""
    return np.full(len(program.gains), 1e3)


def failing(program: Program, seconds: float) -> np.ndarray:
    raise SolverError("time limit reached")


def breaking(program: Program, seconds: float) -> np.ndarray:
    raise MemoryError


CHAINS = {"solved": SOLVERS, "none": (), "failing": (("first", failing), ("second", breaking)), "lying": (("liar", lying),)}


def lawful(shares, asks, capacity):
    by_name = {ask.name: ask for ask in asks}
    for name, given_ in shares.items():
        assert all(0 <= share <= 1 for share in given_.values())
        assert sum(given_.values()) <= 1 + 1e-9
        assert all(by_name[name].speeds.get(kind, 0) > 0 for kind, share in given_.items() if share)
    for kind in TYPES:
        assert sum(by_name[name].gpus * given_.get(kind, 0) for name, given_ in shares.items()) <= capacity[kind] * (1 + 1e-9)


@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("aware", [True, False])
@pytest.mark.parametrize("objective", OBJECTIVES)
@settings(deadline=None, max_examples=30)
@given(asks=ASKS, capacity=CAPACITY)
def test_no_share_is_where_the_speed_is_0_or_beyond_capacity_whoever_solves_it(objective, aware, chain, asks, capacity):
    shares = shares_of(OBJECTIVES[objective][0], asks, capacity, {"A": 3.0, "B": 1.0}, Chain(CHAINS[chain]), aware=aware)

    lawful(shares, asks, capacity)
    able = {ask.name for ask in asks if any(speed > 0 and capacity[kind] >= ask.gpus for kind, speed in ask.speeds.items())}
    assert set(shares) == able
    if chain in ("none", "failing"):
        assert all(sum(shares[name].values()) > 0 for name in able), "the closed form leaves nobody out"


@settings(deadline=None)
@given(
    ASKS, CAPACITY, st.dictionaries(st.sampled_from([f"j{place}" for place in range(6)]), st.dictionaries(st.sampled_from(TYPES), st.floats(0, 50)))
)
def test_whatever_is_cleaned_holds_the_rules(asks, capacity, shares):
    lawful(cleaned(shares, asks, capacity), asks, capacity)
    lawful(equal([ask for ask in asks if any(ask.speeds.values())], capacity), asks, capacity)


def test_a_solver_that_fails_falls_back_to_the_next_and_then_to_the_closed_form_and_says_so():
    asks, capacity = [Ask("a", 1, {"A": 1.0}), Ask("b", 1, {"A": 0.5})], {"A": 1, "B": 0, "C": 0}

    second = Chain((("first", failing), ("second", lambda program, seconds: np.zeros(len(program.gains)))))
    shares_of(OBJECTIVES["max-min"][0], asks, capacity, {}, second, aware=True)
    assert second.told() == {"solved": {"second": 1}, "failed": [{"solver": "first", "reason": "time limit reached", "times": 1}]}

    none = Chain(CHAINS["failing"])
    assert shares_of(OBJECTIVES["max-min"][0], asks, capacity, {}, none, aware=True) == equal(asks, capacity) == {"a": {"A": 0.5}, "b": {"A": 0.5}}
    assert none.told()["solved"] == {"closed form": 1}
    assert [(one["solver"], one["reason"]) for one in none.told()["failed"]] == [("first", "time limit reached"), ("second", "MemoryError")]


def test_a_number_that_is_none_is_no_solution():
    chain = Chain((("nan", lambda program, seconds: np.full(len(program.gains), np.nan)),))

    assert chain.solve(Program([1.0], [1.0], [], [])) is None
    assert chain.told()["failed"] == [{"solver": "nan", "reason": "no numbers", "times": 1}]


class TestSolved:
    """What the objectives come to, by hand."""

    pytestmark = pytest.mark.skipif(__import__("importlib.util").util.find_spec("highspy") is None, reason="highspy is not installed.")

    def shares(self, objective, asks, capacity, prices=None, aware=True):
        chain = Chain()
        found = shares_of(OBJECTIVES[objective][0], asks, capacity, prices or {}, chain, aware=aware)
        assert "closed form" not in chain.solved
        return found

    def test_max_min_gives_each_the_type_on_which_it_gains_most(self):
        """With half of both types the one would have 0.55 and the other 1."""
        found = self.shares("max-min", [Ask("a", 1, {"A": 1.0, "B": 0.1}), Ask("b", 1, {"A": 1.0, "B": 1.0})], {"A": 1, "B": 1})

        assert found == {"a": {"A": pytest.approx(1)}, "b": {"B": pytest.approx(1, rel=1e-5)}}

    def test_makespan_gives_more_to_whom_more_is_left(self):
        found = self.shares("makespan", [Ask("a", 1, {"A": 1.0}, work=300), Ask("b", 1, {"A": 1.0}, work=100)], {"A": 1})

        assert found == {"a": {"A": pytest.approx(0.75, rel=1e-3)}, "b": {"A": pytest.approx(0.25, rel=1e-2)}}

    def test_finish_time_fairness_makes_up_for_time_in_which_a_job_had_nothing(self):
        asks = [Ask("starved", 1, {"A": 1.0}, work=100, age=300), Ask("served", 1, {"A": 1.0}, work=100, age=300, alone=300)]

        found = self.shares("finish-time", asks, {"A": 1})

        ratios = {ask.name: (ask.age + ask.work / found[ask.name]["A"]) / (ask.alone + 200) for ask in asks}
        assert found["starved"]["A"] > 0.7
        assert ratios["starved"] == pytest.approx(ratios["served"], rel=0.05) and max(ratios.values()) < 2.5

    def test_cost_takes_the_cheaper_type_where_it_is_as_fast(self):
        alike = [Ask("a", 1, {"A": 1.0, "B": 1.0})]
        prices = {"A": 3.0, "B": 1.0}

        assert self.shares("cost", alike, {"A": 1, "B": 1}, prices) == {"a": {"B": pytest.approx(1, rel=1e-5)}}
        dear = self.shares("cost", [*alike, Ask("b", 1, {"A": 1.0, "B": 0.1})], {"A": 1, "B": 1}, prices)
        assert dear["a"]["B"] == pytest.approx(1, rel=1e-5) and dear["b"].get("B", 0) == 0 < dear["b"]["A"] < 1

    def test_blind_a_job_has_its_time_on_every_type_by_its_size(self):
        found = self.shares("max-min", [Ask(f"j{place}", 1, {"A": 1.0, "B": 0.1}) for place in range(6)], {"A": 1, "B": 2}, aware=False)

        assert all(given_["B"] == pytest.approx(2 * given_["A"]) for given_ in found.values())


def contended(jobs=12, **fields):
    """Twelve jobs of an hour for two GPUs of two types; two of them never run on the slower one."""
    nodes = [node("h", gpus=1), node("a", gpus=1, gpu_type=A100, gpu_memory_gb=40)]
    saved = {"checkpoint": {"interval_s": 60, "save_s": 0, "restore_s": 0}} | fields
    speeds = [{H100: 1.0, A100: 0.0 if place % 6 == 0 else 0.5} for place in range(jobs)]
    return scene(
        nodes,
        [quota("q")],
        [job(f"j{place:02}", gpus=1, submitted=60 * place, work_s=3600, throughput=speeds[place], **saved) for place in range(jobs)],
    )


@pytest.mark.parametrize("name", SHARED)
def test_every_policy_completes_all_and_nobody_stands_where_his_speed_is_0(name):
    class Watched(World):
        def _form(self, name, ready):
            stand = {self.nodes[worker.node].gpu_type for worker in self.active[name].run.workers}
            assert all(self.active[name].kind.speed(kind) > 0 for kind in stand)
            super()._form(name, ready)

        def _plan(self):
            super()._plan()
            held = [(worker.node, worker.gpus) for job_ in self.active.values() if job_.run.state == "running" for worker in job_.run.workers]
            assert len(held) == len(set(held)), "no GPU is held twice"

    scenario = parse(contended())
    policy = rounds_of(name.removesuffix(BLIND), aware=not name.endswith(BLIND))
    world = Watched(scenario, policy, works_drawn(scenario, 0))
    world.run()

    assert all(life.ended is not None and not life.failed for life in world.lives.values())
    assert sum(life.lost for life in world.lives.values()) == 0
    assert world.totals.moves + world.totals.preemptions > 0, "time is shared"


def test_a_job_without_checkpoints_keeps_its_gpus():
    scenario = parse(contended(checkpoint=None))
    world = World(scenario, rounds_of("max-min", aware=True), works_drawn(scenario, 0))
    world.run()

    assert (world.totals.preemptions, world.totals.moves) == (0, 0)
    assert all(life.ended is not None for life in world.lives.values())


@pytest.mark.parametrize("name", SHARED)
def test_jobs_without_gpus_run_beside_those_that_share(name):
    """Where there were no others, nothing was divided by nothing; and `cost`, which fills no GPU, never let them start."""
    rows = contended(jobs=2)
    rows["nodes"] = [one | {"cpus": 4} for one in rows["nodes"]]
    roles = [{"name": "worker", "gpus": 0, "cpus": 1}]
    rows["jobs"] += [job(f"c{place}", submitted=7200 * place, work_s=600) | {"roles": roles} for place in range(3)]
    scenario = parse(rows)
    world = World(scenario, rounds_of(name.removesuffix(BLIND), aware=not name.endswith(BLIND)), works_drawn(scenario, 0))
    world.run()

    assert all(life.ended is not None for life in world.lives.values())
    assert [world.lives[f"c{place}"].ended for place in range(3)] == [scenario.now + 1000 * (7200 * place + 600) for place in range(3)]


def test_leaving_takes_as_long_as_saving_does():
    scenario = parse(contended(checkpoint={"interval_s": 60, "save_s": 20, "restore_s": 40}, grace_s=60))
    world = World(scenario, rounds_of("max-min", aware=True), works_drawn(scenario, 0))
    world.run()

    assert all(life.ended is not None for life in world.lives.values())
    assert world.totals.preemptions > 0


def test_a_sweep_tells_who_solved_its_allocations():
    result = measured(parse(contended()), Point("makespan", "load", 1.0, 0), Interval(0, HOUR), prices={H100: 2.0})

    assert sum(result["allocations"]["solved"].values()) > 0


def test_what_jobs_held_costs_what_its_types_do():
    alone = scene([node("h", gpus=1)], [quota("q")], [job(f"j{place}", gpus=1, submitted=3600 * place, work_s=3600) for place in range(2)])

    assert measured(parse(alone), Point("makespan", "load", 1.0, 0), Interval(0, 2 * HOUR), prices={H100: 2.5})["figures"]["cost"] == 5.0
    assert "cost" not in measured(parse(alone), Point("makespan", "load", 1.0, 0), Interval(0, 2 * HOUR))["figures"]


def test_a_simulation_tells_who_solved_its_allocations(tmp_path, capsys, monkeypatch):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(contended()))
    monkeypatch.setattr("sys.argv", ["gpufleet", "simulate", str(path), "--policy", "cost", "--price", f"{H100}=2.5"])

    assert main() == 0
    assert "allocations solved: " in capsys.readouterr().out

    monkeypatch.setattr("sys.argv", ["gpufleet", "simulate", str(path), "--policy", "cost", "--price", "h100=2.5"])
    assert main() == 2
    assert "--price: the scenario has no GPU of the type h100" in capsys.readouterr().err, "it would cost 1 otherwise, unsaid"
