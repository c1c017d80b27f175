"""What was told of each job in the plan before, as long as nothing that it was told from has changed.

The reasons of a waiting job come from the books of its leaf, of all above it and of what stands beside that path, and from the room
on the fleet for its shape. Where all of these are as they were, so are the reasons. Everything else (a note of this plan, a date, a
delay that runs out, whoever was changed in it) is told anew.
"""

from collections.abc import Iterable, Sequence
from itertools import compress
from operator import ne

from .cluster import Work
from .fleet import View
from .plan import Share, Waiting
from .reasons import Reason
from .tree import Tree
from .values import Settings

Books = tuple[list[int], list[int], list[int], list[int]]


class Telling:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.turn = -1  # of which plan it is
        self.entries: list[Waiting | None] = []  # one per job, in their order
        self.rooms: dict[tuple[int, int], Reason | None] = {}  # by shape and quota type
        self.shares: list[Share] = []
        self.own: dict[Work, None] = {}  # of whom the last plan told something that came from itself alone
        self._books: list[Books] | None = None
        self._room: tuple[list[int], list[int], list[int]] = ([], [], [])

    def changed_places(self, tree: Tree) -> list[int] | None:
        """Nodes of the tree whose numbers are not those of the plan before; None: there are none to compare. These count from now on."""
        books: list[Books] = [(list(each.used), list(each.fixed), list(each.fair), list(each.counts_on)) for each in tree.divisions]
        before, self._books = self._books, books
        if before is None or len(before) != len(books):
            return None
        changed: set[int] = set()
        for old, new in zip(before, books, strict=True):
            for one, other in zip(old, new, strict=True):
                if one != other:
                    changed.update(compress(range(len(other)), map(ne, one, other)))
        return sorted(changed)

    def same_room(self, view: View) -> bool:
        """Whether the fleet is as it was when the plan before was told. This one counts from now on."""
        if self._room == (view.free, view.cpus, view.memory):
            return True
        self._room = (list(view.free), list(view.cpus), list(view.memory))
        return False

    def follow(self, first: int, last: int, before: Sequence[Work], now: Sequence[Work]) -> None:
        """Jobs came and went between the first so many and the last so many."""
        end = len(self.entries) - last
        known = {id(work): entry for work, entry in zip(before, self.entries[first:end], strict=True)}
        self.entries[first:end] = [known.get(id(work)) for work in now]

    def forget(self, works: Iterable[Work]) -> None:
        for work in works:
            self.own.pop(work, None)

    def told(self) -> tuple[Waiting, ...]:
        return tuple(filter(None, self.entries))
