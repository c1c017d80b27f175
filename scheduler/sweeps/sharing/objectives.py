"""How much of the time each job is to run on each GPU type, by what is aimed at.

A share X of a job on a type is a part of the time. A job's shares come to 1 at most, and the GPUs of all shares of a type to its capacity. A type
on which a job's speed is 0 is no variable, so that no solver can give it; what comes back is cleaned by the same rules. Where no solver solves it,
each job has the same part of every type on which it runs: the closed form.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from .solving import Chain, Program

SLACK = 1e-9
HALVINGS = 10  # of the worst finish-time ratio, down to a thousandth
REST = 1e-3  # what the sum of all speeds counts beside the least of them


@dataclass(frozen=True, slots=True)
class Ask:
    """One job: its GPUs, its speeds by type, its work left, the time since it came, and how long with equal parts what is done would have taken; in
    seconds.
    """

    name: str
    gpus: float
    speeds: Mapping[str, float]
    work: float = 1.0
    age: float = 0.0
    alone: float = 0.0


Capacity = Mapping[str, float]  # GPUs by type
Shares = dict[str, dict[str, float]]
Objective = Callable[[Sequence[Ask], Capacity, Mapping[str, float], Chain], Shares | None]


def equal(asks: Sequence[Ask], capacity: Capacity) -> Shares:
    """The closed form: of each type the same part for each GPU that is asked for."""
    wanted = sum(ask.gpus for ask in asks)
    found: Shares = {}
    for ask in asks:
        shares = {name: capacity.get(name, 0) / wanted for name, speed in ask.speeds.items() if speed > 0 and capacity.get(name, 0) > 0}
        total = max(1.0, sum(shares.values()))
        found[ask.name] = {name: share / total for name, share in shares.items()}
    return found


def cleaned(shares: Shares, asks: Sequence[Ask], capacity: Capacity) -> Shares:
    """Within all rules whatever a solver said: nothing where the speed is 0, no job above 1, no type above its capacity."""
    found: Shares = {}
    for ask in asks:
        given = {name: min(1.0, share) for name, share in shares.get(ask.name, {}).items() if share > 1e-6 and ask.speeds.get(name, 0) > 0}
        total = max(1.0, sum(given.values()))
        found[ask.name] = {name: share / total for name, share in given.items()}
    for name in {name for given in found.values() for name in given}:
        used = sum(ask.gpus * found[ask.name].get(name, 0) for ask in asks)
        if used > capacity.get(name, 0):
            for given in found.values():
                if name in given:
                    given[name] *= capacity.get(name, 0) / used
    return found


def max_min(asks: Sequence[Ask], capacity: Capacity, prices: Mapping[str, float], chain: Chain) -> Shares | None:
    """The least progress is the most that it can be, each job's beside that with an equal part of every type."""
    return _most(asks, capacity, speeds_at(asks, equal(asks, capacity)), chain)[0]


def makespan(asks: Sequence[Ask], capacity: Capacity, prices: Mapping[str, float], chain: Chain) -> Shares | None:
    """All that is left is done the soonest."""
    longest = max((ask.work for ask in asks), default=1) or 1
    return _most(asks, capacity, {ask.name: max(SLACK, ask.work / longest) for ask in asks}, chain)[0]


def finish_time(asks: Sequence[Ask], capacity: Capacity, prices: Mapping[str, float], chain: Chain) -> Shares | None:
    """The worst ratio of a job's finish, from its submission on, to that with an equal part of every type is the least that it can be (Themis)."""
    speeds = speeds_at(asks, equal(asks, capacity))
    alone = {ask.name: max(SLACK, ask.alone + ask.work / speeds[ask.name]) for ask in asks}
    low, high = 0.0, max((ask.age + ask.work / speeds[ask.name]) / alone[ask.name] for ask in asks)
    best = equal(asks, capacity)
    for _ in range(HALVINGS):
        tried = (low + high) / 2
        left = {ask.name: tried * alone[ask.name] - ask.age for ask in asks}
        if min(left.values()) <= 0:
            low = tried  # somebody has waited longer than that already
            continue
        found, reached = _most(asks, capacity, {ask.name: max(SLACK, ask.work / left[ask.name]) for ask in asks}, chain)
        if found is None:
            return None
        if reached >= 1 - 1e-6:
            best, high = found, tried
        else:
            low = tried
    return best


def cost(asks: Sequence[Ask], capacity: Capacity, prices: Mapping[str, float], chain: Chain) -> Shares | None:
    """As little money as it takes for every job to be as fast as with an equal part of every type."""
    places, columns = _columns(asks, capacity)
    speeds = speeds_at(asks, equal(asks, capacity))
    rows, bounds = _limits(asks, capacity, columns)
    for ask in asks:
        own = places[ask.name]
        rows.append(([*own.values()], [-ask.speeds[name] for name in own]))
        bounds.append(-speeds[ask.name] * (1 - 1e-6))
    gains = [-prices.get(name, 1.0) * ask.gpus for ask, name in columns]
    solved = chain.solve(Program(gains, [1.0] * len(columns), rows, bounds))
    return None if solved is None else _shares(columns, solved.tolist())


OBJECTIVES: dict[str, tuple[Objective, str]] = {
    "max-min": (max_min, "max-min fairness: the least progress, beside an equal part of every type, is the most that it can be"),
    "finish-time": (finish_time, "finish-time fairness: the worst finish beside that with an equal part of every type is the least that it can be"),
    "makespan": (makespan, "all work that is left is done the soonest"),
    "cost": (cost, "the least money at which every job is as fast as with an equal part of every type"),
}


def shares_of(objective: Objective, asks: Sequence[Ask], capacity: Capacity, prices: Mapping[str, float], chain: Chain, *, aware: bool) -> Shares:
    """The shares of those that can run at all. Blind, all types on which a job runs count alike; its time is spread over them by their sizes."""
    able = [replace(ask, speeds=_usable(ask, capacity, aware)) for ask in asks]
    able = [ask for ask in able if ask.speeds and ask.gpus > 0]
    if not able:
        return {}
    found = objective(able, capacity, prices, chain)
    if found is None:
        found = equal(able, capacity)
    elif not aware and objective is not cost:  # whose prices tell types apart
        found = {ask.name: _spread(sum(found.get(ask.name, {}).values()), ask, capacity) for ask in able}
    return cleaned(found, able, capacity)


def _usable(ask: Ask, capacity: Capacity, aware: bool) -> dict[str, float]:
    return {name: speed if aware else 1.0 for name, speed in ask.speeds.items() if speed > 0 and capacity.get(name, 0) >= ask.gpus}


def _spread(total: float, ask: Ask, capacity: Capacity) -> dict[str, float]:
    room = sum(capacity[name] for name in ask.speeds)
    return {name: total * capacity[name] / room for name in ask.speeds}


def speeds_at(asks: Sequence[Ask], shares: Shares) -> dict[str, float]:
    return {ask.name: max(SLACK, sum(ask.speeds[name] * share for name, share in shares[ask.name].items())) for ask in asks}


def _most(asks: Sequence[Ask], capacity: Capacity, needs: Mapping[str, float], chain: Chain) -> tuple[Shares | None, float]:
    """The largest multiple of its need that every job has, and shares by which it does; what is left makes all together faster."""
    places, columns = _columns(asks, capacity)
    rows, bounds = _limits(asks, capacity, columns)
    multiple = len(columns)
    for ask in asks:
        own = places[ask.name]
        rows.append(([multiple, *own.values()], [1.0, *(-ask.speeds[name] / needs[ask.name] for name in own)]))
        bounds.append(0.0)
    fastest = {ask.name: max(ask.speeds.values()) for ask in asks}
    rest = REST / len(asks)
    gains = [*(rest * ask.speeds[name] / fastest[ask.name] for ask, name in columns), 1.0]
    solved = chain.solve(Program(gains, [1.0] * len(columns) + [1e9], rows, bounds))
    return (None, 0.0) if solved is None else (_shares(columns, solved.tolist()), float(solved[multiple]))


def _columns(asks: Sequence[Ask], capacity: Capacity) -> tuple[dict[str, dict[str, int]], list[tuple[Ask, str]]]:
    """A variable for each job and each type on which it runs."""
    columns = [(ask, name) for ask in asks for name, speed in sorted(ask.speeds.items()) if speed > 0 and capacity.get(name, 0) > 0]
    places: dict[str, dict[str, int]] = {ask.name: {} for ask in asks}
    for place, (ask, name) in enumerate(columns):
        places[ask.name][name] = place
    return places, columns


def _limits(asks: Sequence[Ask], capacity: Capacity, columns: Sequence[tuple[Ask, str]]) -> tuple[list[tuple[list[int], list[float]]], list[float]]:
    by_job: dict[str, list[int]] = {ask.name: [] for ask in asks}
    by_type: dict[str, tuple[list[int], list[float]]] = {}
    for place, (ask, name) in enumerate(columns):
        by_job[ask.name].append(place)
        row = by_type.setdefault(name, ([], []))
        row[0].append(place)
        row[1].append(ask.gpus)
    rows = [(places, [1.0] * len(places)) for places in by_job.values()]
    return [*rows, *by_type.values()], [1.0] * len(rows) + [float(capacity[name]) for name in by_type]


def _shares(columns: Sequence[tuple[Ask, str]], solved: Sequence[float]) -> Shares:
    found: Shares = {}
    for place, (ask, name) in enumerate(columns):
        found.setdefault(ask.name, {})[name] = float(solved[place])
    return found
