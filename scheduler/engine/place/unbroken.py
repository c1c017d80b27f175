"""Blocks that somebody may soon want, and how little of them is broken: the last word between places that are equally tight.

A block is room for a gang in one domain of a level. Where nodes have equally much room, that one is taken which leaves most of it:
first for the gangs that wait, then for the usual demand. In a domain that no longer holds the gang there is nothing left to break.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..model.values import Demand
from ..state.fleet import View
from ..state.grid import Grid, Ints, ints

MOST = 4  # kinds of blocks that are looked at, of those that wait and of the usual ones


class Block(NamedTuple):
    """So many workers of so many GPUs inside one domain of a level, on nodes that may serve them."""

    gpus: int
    workers: int
    level: int
    nodes: Ints  # 1 where a worker may stand
    weight: int


def largest(blocks: Iterable[Block]) -> tuple[Block, ...]:
    """Those of which most GPUs are asked for."""
    return tuple(sorted(blocks, key=lambda one: (-one.weight * one.workers * one.gpus, one.level, one.gpus, one.workers, one.nodes.tobytes()))[:MOST])


class Blocks:
    def __init__(self, grid: Grid, waiting: Sequence[Block], usual: Sequence[Block]) -> None:
        """Of either kind only the largest ones."""
        self.grid, self.kinds = grid, (waiting, usual)
        self._costs: dict[tuple[int, int], tuple[Ints, Ints] | None] = {}
        self._view: tuple[View, int] | None = None

    def __bool__(self) -> bool:
        return any(self.kinds)

    def least_broken(self, view: View, gpus: int, nodes: Sequence[int], *, anew: bool = True) -> Sequence[int]:
        """Nodes with equally many idle GPUs, given in path order: those first of which a worker of so many GPUs breaks least. What it costs is worked
        out once for a gang (`anew` with its first worker), as it stood before."""
        if anew and self._view != (view, view.version):
            self._costs.clear()
            self._view = (view, view.version)
        key = (view.count[nodes[0]], gpus)
        if key not in self._costs:
            waiting, usual = (self._broken(view, blocks, *key) for blocks in self.kinds)
            self._costs[key] = (waiting, usual) if waiting.any() or usual.any() else None  # None: nothing differs
        if (costs := self._costs[key]) is None:
            return nodes
        places = ints(nodes)
        ranked: list[int] = places[np.lexsort((places, costs[1][places], costs[0][places]))].tolist()
        return ranked

    def _broken(self, view: View, blocks: Sequence[Block], count: int, gpus: int) -> Ints:
        """GPUs of gangs, by node, that find no room any more once a worker stands there."""
        total: Ints = np.zeros(self.grid.size, dtype=np.int64)
        for block in blocks:
            less = count // block.gpus - (count - gpus) // block.gpus
            if less:
                level = self.grid.levels[block.level]
                room = level.sums(view.count_np // block.gpus * block.nodes)
                lost = np.where(room >= block.workers, np.where(room - less < block.workers, room, less), 0) * block.gpus
                total += np.repeat(lost, level.sizes) * block.nodes * block.weight
        return total


def usual_blocks(grid: Grid, demand: Iterable[Demand]) -> list[Block]:
    found = []
    for part in demand:
        level = 0 if part.required is None else grid.level_index[part.required]
        if breakable(grid, part.gpus, part.workers, level):
            nodes = grid.startable[False] * ints([not part.gpu_types or node.gpu_type in part.gpu_types for node in grid.nodes])
            found.append(Block(part.gpus, part.workers, level, nodes, part.share))
    return found


def breakable(grid: Grid, gpus: int, workers: int, level: int) -> bool:
    """Whether it can matter which of several equal nodes is taken: for several workers in one of several domains wider than a node."""
    return gpus > 0 and workers > 1 and 0 <= level < len(grid.levels) - 1 and len(grid.levels[level]) > 1
