"""All the ways to split a board, for people to choose from."""

from collections.abc import Iterable, Iterator
from functools import cache

from scheduler.engine.model.mig import Board, Instance, Layout, room_for, valid_layout


def layouts(board: Board, profiles: Iterable[str] | None = None) -> Iterator[Layout]:
    """Every layout of the board that uses only the given profiles (all where none are named), the empty one first."""
    names = None if profiles is None else set(profiles)
    kinds = [profile for profile in board.profiles if names is None or profile.name in names]
    placements = sorted((start, kind.name) for kind in kinds for start in kind.starts)

    def extend(chosen: Layout, position: int) -> Iterator[Layout]:
        yield chosen
        for index in range(position, len(placements)):
            candidate = (*chosen, Instance(*placements[index]))
            if valid_layout(board, candidate):
                yield from extend(candidate, index + 1)

    yield from extend((), 0)


@cache
def maximal_layouts(board: Board, profiles: tuple[str, ...] | None = None) -> tuple[Layout, ...]:
    """The layouts to which no instance of the given profiles can be added."""
    names = [profile.name for profile in board.profiles if profiles is None or profile.name in profiles]
    return tuple(layout for layout in layouts(board, profiles) if not any(room_for(board, layout, name) for name in names))


def stranded(board: Board, instances: Iterable[Instance]) -> tuple[int, int]:
    """(compute, memory) slices that a layout leaves unused."""
    kinds = [board.known(instance.profile) for instance in instances]
    return board.compute_slices - sum(kind.compute for kind in kinds), board.memory_slices - sum(kind.memory for kind in kinds)
