"""Whom a reclaim takes, against a look at every set of what could be taken: small drawn fleets, and the rules of semantics written down once more."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pytest

from scheduler.engine.passes.reclaim import claimant
from scheduler.engine.rules.legality import Reclaim
from scheduler.engine.search import victims
from scheduler.engine.search.evicting import targets
from scheduler.engine.search.units import Unit
from scheduler.engine.search.victims import ANY, Found, Target, search
from scheduler.engine.state.planning import Cycle
from scheduler.scenarios.reading import parse

from .scenes import actions, at, job, node, plan_of, quota, running, scene

Json = dict[str, Any]


def few_jobs(seed: int, *, elastic: bool = False) -> Json:
    """Some nodes, what runs on them in one or two queues, and who asks in a third."""
    chance = random.Random(seed)
    size = chance.choice((4, 4, 8))
    nodes = [node(f"n{number}", size) for number in range(chance.choice((1, 2, 2, 3)))]
    idle = {one["name"]: list(range(size)) for one in nodes}
    queues = chance.choice((["a"], ["a", "b"]))
    jobs = []
    for number in range(chance.randint(2, 8)):
        gpus, places = chance.choice((1, 1, 2, 2, 3, 4)), []
        for _ in range(chance.choice((1, 1, 2, 3) if elastic else (1, 1, 1, 2))):
            where = chance.choice([*idle])
            if len(idle[where]) >= gpus:
                places.append(at(where, *idle[where][:gpus]))
                del idle[where][:gpus]
        if places:
            least = {"least": chance.randint(1, len(places)), "most": len(places)} if elastic else {}
            began, level = chance.choice((-10, -100, -1000)), {"class": chance.choice(("batch", "batch", "interactive"))}
            jobs.append(running(f"r{number}", places, chance.choice(queues), started=began, priority=chance.choice((0, 0, 50)), **level, **least))
    asker = job("asker", "mine", chance.choice((1, 2, 2, 3, 4)), chance.choice((1, 1, 2)))
    total = len(nodes) * size
    quotas = [quota("mine", chance.randint(0, total)), *(quota(name, chance.randint(0, total // 2)) for name in queues)]
    return scene(nodes, quotas, [*jobs, asker])


@dataclass
class Case:
    cycle: Cycle
    rules: Reclaim
    ranked: victims.Ranked
    target: Target

    def found(self) -> Found | None:
        return search(self.cycle.cluster, self.ranked, self.rules, self.target, self.cycle.units())

    def has_room(self, gone: Sequence[Unit]) -> bool:
        soon, freed = self.cycle.fleet.soon, Counter[int]()
        for unit in gone:
            for seat in unit.seats:
                freed[seat.node] += seat.mask.bit_count()
        return sum((count + freed[place]) // self.target.gpus for place, count in enumerate(soon.count)) >= self.target.count

    def may_follow(self, taken: Sequence[Unit], unit: Unit) -> bool:
        """Y is above B; or X with r stays within D_X and Y is above D_Y: Y minus what was taken so far."""
        division = self.rules.division
        left = division.used[unit.leaf] - sum(one.milli for one in taken if one.leaf == unit.leaf)
        mine, promised = division.guaranteed[self.rules.leaf], division.guaranteed[unit.leaf]
        assert mine is not None
        assert promised is not None
        inside = division.used[self.rules.leaf] + self.rules.milli <= mine
        return left > division.counts_on[unit.leaf] or (inside and left > promised)

    def is_legal(self, some: Sequence[Unit]) -> bool:
        """Taken surplus first, then minima, smaller first, so that only the last undershoots."""
        line = sorted(some, key=lambda unit: (not unit.surplus, unit.milli))
        return all(self.may_follow(line[:at], unit) for at, unit in enumerate(line))

    def rank(self, some: Sequence[Unit]) -> tuple[object, ...]:
        """Worst member, then sums, then the younger, then names."""
        of = {unit: rank for rank, unit in self.ranked}
        jobs = [unit.work.job for unit in some]
        sums = sum(unit.milli for unit in some), sum(unit.lost for unit in some)
        return max(of[unit] for unit in some), sums, [-at for at in sorted(one.submitted for one in jobs)], sorted(one.name for one in jobs)

    def by_the_rules(self) -> tuple[str, list[Unit] | None]:
        """In which way units are found, and which."""
        alone = [(rank, unit) for rank, unit in self.ranked if self.may_follow([], unit)]
        enough = [unit for rank, unit in alone if rank == alone[0][0] and self.has_room([unit])]
        if enough:
            return "one", [min(enough, key=lambda unit: unit.milli)]
        taken: list[Unit] = []
        for _, unit in self.ranked:
            if not self.has_room(taken) and self.may_follow(taken, unit):
                taken.append(unit)
        if self.has_room(taken):
            for unit in reversed([*taken]):
                others = [one for one in taken if one is not unit]
                taken = others if self.has_room(others) else taken
            return "in turn", taken
        units = [unit for _, unit in self.ranked]
        every = (some for size in range(1, len(units) + 1) for some in combinations(units, size))
        sets = [some for some in every if self.is_legal(some) and self.has_room(some)]
        return ("every set", [*min(sets, key=self.rank)]) if sets else ("none", None)


def case_of(document: Json) -> Case | None:
    """The search for who asks; None where it may take nothing, or needs nothing."""
    cycle = Cycle(parse(document))
    work = next(work for work in cycle.cluster.works if work.job.name == "asker")
    leaf = claimant(cycle, work, 0)
    if work not in cycle.waiting or leaf is None:
        return None
    rules = Reclaim(cycle, work, 0, leaf, work.missing_milli(0))
    (target,) = targets(cycle, work, 0)
    case = Case(cycle, rules, rules.units(ANY), target)
    return None if not case.ranked or case.has_room([]) else case


def names(units: Sequence[Unit] | None) -> list[str] | None:
    return None if units is None else sorted(unit.work.job.name for unit in units)


@pytest.fixture(scope="module")
def cases() -> list[tuple[int, Case]]:
    """Drawn once: reading a scenario takes a hundred times as long as a search in it."""
    return [(seed, case) for seed in range(1500) if (case := case_of(few_jobs(seed))) is not None]


@pytest.fixture(scope="module")
def elastic_cases() -> list[tuple[int, Case]]:
    return [(seed, case) for seed in range(750) if (case := case_of(few_jobs(seed, elastic=True))) is not None]


def test_victims_are_those_that_the_rules_name_where_every_set_is_looked_at(cases: list[tuple[int, Case]]) -> None:
    for seed, case in cases:
        found, (how, wanted) = case.found(), case.by_the_rules()
        assert names(None if found is None else found.units) == names(wanted), (seed, how)


def test_the_drawn_fleets_find_victims_in_every_way(cases: list[tuple[int, Case]]) -> None:
    ways = Counter(case.by_the_rules()[0] for _, case in cases)
    assert set(ways) == {"one", "in turn", "every set", "none"}
    assert min(ways.values()) > 5, ways


@pytest.mark.parametrize("few", [0, victims.FEW])
def test_whatever_is_found_may_be_taken_and_is_needed(
    monkeypatch: pytest.MonkeyPatch, few: int, cases: list[tuple[int, Case]], elastic_cases: list[tuple[int, Case]]
) -> None:
    """Also where there are too many units to look at every set, and nodes are cleared one after the other."""
    monkeypatch.setattr(victims, "FEW", few)
    for seed, case in [*cases, *elastic_cases]:
        found = case.found()
        if found is not None:
            assert case.is_legal(found.units), seed
            assert case.has_room(found.units), seed
    for seed, case in cases:  # not of elastic ones: a minimum takes its surplus along, and a lower index is kept longer
        found = case.found()
        if found is not None:
            assert not any(case.has_room([one for one in found.units if one is not unit]) for unit in found.units), seed


@pytest.mark.parametrize("few", [0, victims.FEW])
def test_what_may_be_taken_is_not_used_up_by_a_job_whose_place_does_not_help(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """The first in order has a worker on each node; with it gone the queue is at its line, and the node still lacks one GPU."""
    monkeypatch.setattr(victims, "FEW", few)
    spread = running("spread", [at("n0", 0), at("n1", 0)], "theirs", started=-10)
    helps = running("helps", [at("n0", 1, 2)], "theirs", started=-1000, priority=50)
    mine = [running("mine-0", [at("n1", 1, 2, 3)], "mine")]
    scenario = scene([node("n0", 4), node("n1", 4)], [quota("mine", 6), quota("theirs", 2)], [spread, helps, *mine, job("asker", "mine", 3)])
    assert actions(plan_of(scenario)) == {"helps": "evict", "asker": "start"}


def among_eleven(guaranteed: int, held: list[tuple[str, int, int]]) -> dict[str, str]:
    """Jobs of so many GPUs and such a number on n0, in a queue that has nine more of one GPU, where they make no room; two workers of 2 GPUs ask."""
    free, jobs = iter(range(8)), []
    for name, gpus, number in held:
        jobs.append(running(name, [at("n0", *(next(free) for _ in range(gpus)))], "theirs", priority=number))
    stay = [*free]
    jobs += [running("stays", [at("n0", *stay)], "fixed", preemptible=False)] if stay else []
    for number in range(1, 10):
        jobs.append(running(f"single-{number}", [at(f"n{number}", 0)], "theirs", priority=50))
        jobs.append(running(f"fixed-{number}", [at(f"n{number}", 1)], "fixed", preemptible=False))
    nodes = [node("n0"), *(node(f"n{number}", 2) for number in range(1, 10))]
    quotas = [quota("mine", 4, weight=0), quota("theirs", guaranteed, weight=0), quota("fixed", 9 + len(stay), weight=0)]
    done = actions(plan_of(scene(nodes, quotas, [*jobs, job("asker", "mine", 2, 2, priority=90)])))
    assert done.pop("asker", "") == "start"
    return done


def test_of_many_the_search_goes_on_behind_one_that_uses_up_what_may_be_taken() -> None:
    """With `first` gone the queue is at its line, and there is room for one worker; `second` alone makes room for both."""
    assert among_eleven(13, [("first", 3, 0), ("second", 4, 10)]) == {"second": "evict"}


def test_of_many_a_set_is_judged_with_its_largest_job_last() -> None:
    """All three are needed; the queue may lose 2 GPUs and whatever it loses last."""
    assert among_eleven(10, [("large", 2, 0), ("small", 1, 10), ("other", 1, 20)]) == {"large": "evict", "small": "evict", "other": "evict"}


def test_of_many_a_set_is_found_wherever_there_is_one(monkeypatch: pytest.MonkeyPatch, cases: list[tuple[int, Case]]) -> None:
    """Of some thousand draws, with few units treated like many."""
    looked = [(seed, case) for seed, case in cases if case.by_the_rules()[0] == "every set"]
    monkeypatch.setattr(victims, "FEW", 0)

    assert [seed for seed, case in looked if case.found() is None] == []
    assert len(looked) > 20
