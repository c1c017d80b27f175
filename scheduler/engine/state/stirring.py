"""Which leaves have changed since somebody last looked, so that he looks at no others."""

from .tree import Tree
from .work import Work


class Stirred:
    """One reader of what the tree notes about its changes; what it has not looked at yet goes on with it from plan to plan."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._read = 0
        self._places: set[int] = set(range(len(tree.names)))

    def take(self) -> set[int]:
        """The nodes of the tree about which anything may have changed since this was last asked."""
        self.catch_up()
        places, self._places = self._places, set()
        return places

    def catch_up(self) -> None:
        notes = self.tree.stirred
        for place in notes[self._read :]:
            if place >= 0:
                self._places.add(place)
            else:  # all that stands below a node of the top
                self._places.update(range(-place, self.tree.end[-place]))
        self._read = len(notes)

    def begin(self) -> None:
        """The notes are written anew from here on."""
        self._read = 0


class Sift:
    """What a pass finds worth trying in each queue: looked at again only where something has changed."""

    def __init__(self, tree: Tree) -> None:
        self.stirred = Stirred(tree)
        self.as_of: object = None
        self.found: dict[int, list[Work]] = {}  # by leaf; without those in which nothing was found
