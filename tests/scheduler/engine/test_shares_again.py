"""Shares that are divided again only where somebody asks for something else are those of a tree that has never been divided."""

import random

import pytest

from scheduler.engine.state.grid import Grid
from scheduler.engine.state.tree import Tree
from scheduler.scenarios.reading import parse
from tests.scheduler.twin.strategies import scenario_random


@pytest.mark.parametrize("seed", range(60))
def test_what_is_divided_again_is_as_if_divided_for_the_first_time(seed: int) -> None:
    scenario = parse(scenario_random(seed, "medium"))
    grid, chance = Grid(scenario), random.Random(seed)
    again = Tree(scenario, grid.types, grid.capacity, [])
    leaves = [place for place, children in enumerate(again.children) if not children and place]
    steps = []
    for _ in range(12):
        for _ in range(chance.randrange(4)):
            kind, leaf, milli = chance.randrange(len(grid.types)), chance.choice(leaves), 500 * chance.randrange(1, 20)
            steps.append((leaf, kind, milli, chance.random() < 0.5))
            take(again, *steps[-1])
        again.share()

        fresh = Tree(scenario, grid.types, grid.capacity, [])
        for step in steps:
            take(fresh, *step)
        fresh.share()
        assert [division.fair for division in again.divisions] == [division.fair for division in fresh.divisions]
        assert [division.counts_on for division in again.divisions] == [division.counts_on for division in fresh.divisions]


def take(tree: Tree, leaf: int, kind: int, milli: int, used: bool) -> None:
    """Ask for so much, or use it as well."""
    tree.add(tree.divisions[tree.division_of[kind]].requested, leaf, milli)
    if used:
        tree.charge(leaf, kind, milli, fixed=False)


def test_there_are_trees_of_several_divisions_among_them() -> None:
    trees = []
    for seed in range(60):
        scenario = parse(scenario_random(seed, "medium"))
        grid = Grid(scenario)
        trees.append(Tree(scenario, grid.types, grid.capacity, []))
    several = [tree for tree in trees if len(tree.divisions) > 1]
    assert any(all(total is None for total in tree.limit_total) for tree in several)
    assert any(any(total is not None for total in tree.limit_total) for tree in several)
