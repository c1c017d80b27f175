"""A job in one future of a queue. See `playing`."""

Demand = tuple[tuple[int, int], ...]  # (GPUs, workers), the largest workers first
Alike = tuple[tuple[int, ...], Demand]  # who needs the same room: types and demand


class One:
    """A job in one future."""

    __slots__ = (
        *("name", "leaf", "demand", "types", "milli", "order", "stated", "gives_way", "fixed", "saves", "alike"),
        *("takes", "asked", "seats", "since", "ends", "version"),
    )

    def __init__(
        self,
        *,
        name: str,
        leaf: int,
        demand: Demand,
        types: tuple[int, ...],
        milli: int,
        order: tuple[int, int, int],
        stated: int,
        gives_way: bool,
        fixed: bool,
        saves: tuple[int | None, int] = (None, 0),
    ) -> None:
        self.name, self.leaf, self.demand, self.types, self.milli, self.order = name, leaf, demand, types, milli, order
        self.stated, self.gives_way, self.fixed = stated, gives_way, fixed
        self.saves = saves  # how often, None: never by itself; and how long it takes to save and load
        self.alike: Alike = (types, demand)
        self.rest()

    def rest(self) -> None:
        """As before a future begins."""
        self.takes = 0  # milliseconds that it will run once it stands
        self.asked = False  # whether its first start is of interest
        self.seats: list[tuple[int, int]] = []  # (node, GPUs)
        self.since = self.ends = self.version = 0

    def lost(self, now: int) -> int:
        """What would be lost if it was put out."""
        every, costs = self.saves
        gone = now - self.since
        if every is not None:
            gone = gone % every if every else 0
        return (gone + costs) * self.milli
