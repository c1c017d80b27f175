"""Fragmentation kept: a snapshot a minute, sums of them a quarter of an hour and an hour."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.db import transaction

from dashboards.fragmentation.measure import CAUSES, Against, KeptOut, Pile, Scattered, Shape, Why
from dashboards.fragmentation.models import FragmentationRollup
from dashboards.fragmentation.snapshot import Fragments
from dashboards.telemetry.frames import minute_of
from dashboards.telemetry.spans import HOUR, slots_due, steps_between
from gpufleet.core.live.feed import feed_publish

MINUTE = 60
FIGURES = 1 + 2 * (2 + len(CAUSES))  # free; then against the queue and the usual demand: jobs, each cause, short
OLD_CAUSES = 4  # of rows from before reservations and MIG geometry were told apart; they are the first ones still
MOST_KEPT_OUT = 50
_fragments = Fragments()


def fragmentation_turn(*, now: datetime) -> bool:
    """Keep this minute's fragmentation, unless that has been done, and sum up what is over."""
    minute = minute_of(now)
    if FragmentationRollup.objects.filter(span=MINUTE, at=minute).exists():
        return False
    found = _fragments.take(now=now)
    if not found.piles:
        return False
    with transaction.atomic():
        fragmentation_write({minute: found})
        feed_publish(changes={"fragmentation": [{"id": 1}]})
    fragmentation_sum(now=now)
    return True


def fragmentation_write(snapshots: Mapping[datetime, Scattered]) -> None:
    """A row a minute; one that is there stays."""
    rows = [FragmentationRollup(span=MINUTE, at=at, minutes=1, figures=_document(found)) for at, found in snapshots.items()]
    FragmentationRollup.objects.bulk_create(rows, ignore_conflicts=True, batch_size=200)


def fragmentation_sum(*, now: datetime) -> int:
    """Sum up every quarter and hour of the last two days that is over and not there yet."""
    made = []
    for span, at in slots_due(FragmentationRollup.objects.all(), now=now):
        rows = FragmentationRollup.objects.filter(span=MINUTE, at__gte=at, at__lt=at + timedelta(seconds=span)).order_by("at")
        count, figures = _added(rows.values_list("minutes", "figures"))
        made.append(FragmentationRollup(span=span, at=at, minutes=count, figures=figures))
    FragmentationRollup.objects.bulk_create(made, ignore_conflicts=True, batch_size=200)
    return len(made)


def _document(found: Scattered) -> dict[str, Any]:
    return {
        "piles": [[pile.gpu_type, pile.pool, _numbers(pile)] for pile in found.piles],
        "largest": {kind: dict(levels) for kind, levels in found.largest.items()},
        "idle": [[[count, nodes] for count, nodes in sorted(pile.idle.items())] for pile in found.piles],
        "kept_out": [
            [one.gpu_type, [*one.shape[:2], sorted(one.shape.types), *one.shape[3:]], one.jobs, one.why.value, one.free, one.room]
            for one in found.kept_out[:MOST_KEPT_OUT]
        ],
    }


def _numbers(pile: Pile) -> list[int]:
    found = [pile.free_milli]
    for against in (pile.waiting, pile.usual):
        found += [against.jobs, *(against.useless[why] for why in CAUSES), against.short]
    return found


def _even(numbers: Sequence[int]) -> Sequence[int]:
    """The figures of a pile with every cause of today: those that an older row does not tell apart are 0 there."""
    if len(numbers) == FIGURES:
        return numbers
    more, own = [0] * (len(CAUSES) - OLD_CAUSES), 1 + OLD_CAUSES
    free, *rest = numbers
    waiting, usual = rest[: own + 1], rest[own + 1 :]
    return [free, *waiting[:own], *more, waiting[own], *usual[:own], *more, usual[own]]


def _added(rows: Iterable[tuple[int, Mapping[str, Any]]]) -> tuple[int, dict[str, Any]]:
    count = 0
    piles: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0] * FIGURES)
    largest: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for minutes, figures in rows:
        count += minutes
        for gpu_type, pool, numbers in figures["piles"]:
            known = piles[gpu_type, pool]
            for place, number in enumerate(_even(numbers)):
                known[place] += number
        for gpu_type, levels in figures["largest"].items():
            for level, gpus in levels.items():
                largest[gpu_type][level] += gpus
    return count, {
        "piles": [[*key, numbers] for key, numbers in sorted(piles.items())],
        "largest": {key: dict(levels) for key, levels in largest.items()},
    }


# ---- Read ----


def fragmentation_newest() -> tuple[datetime, Scattered] | None:
    """The newest snapshot, and its moment."""
    row = FragmentationRollup.objects.filter(span=MINUTE).order_by("-at").first()
    return None if row is None else (row.at, _read(row.figures))


def fragmentation_shares(start: datetime, end: datetime) -> list[tuple[datetime, int, int]]:
    """What is free, and what of it is of no use to the queue, minute by minute, in milli-GPU."""
    rows = FragmentationRollup.objects.filter(span=MINUTE, at__gt=start, at__lte=end).order_by("at").values_list("at", "figures")
    read = [(at, _read(figures).piles) for at, figures in rows]
    return [(at, sum(pile.free_milli for pile in piles), sum(pile.waiting.milli for pile in piles)) for at, piles in read]


def _read(figures: Mapping[str, Any]) -> Scattered:
    piles = [
        Pile(
            gpu_type,
            pool,
            numbers[0],
            _against(numbers[1 : 3 + len(CAUSES)]),
            _against(numbers[3 + len(CAUSES) :]),
            dict(idle),
        )
        for (gpu_type, pool, told), idle in zip(figures["piles"], figures["idle"], strict=True)
        if (numbers := _even(told))
    ]
    kept_out = [
        KeptOut(gpu_type, Shape(workers, gpus, frozenset(types), level, *rest[:4]), jobs, Why(why), free, room)
        for gpu_type, (workers, gpus, types, level, *rest), jobs, why, free, room in figures["kept_out"]
    ]
    return Scattered(piles, figures["largest"], kept_out)


def _against(numbers: Sequence[int]) -> Against:
    jobs, *causes, short = numbers
    return Against(jobs, dict(zip(CAUSES, causes, strict=True)), short)


def largest_course(start: datetime, end: datetime) -> tuple[Mapping[str, int], list[tuple[datetime, Mapping[str, float]]]]:
    """The most GPUs that one gang could start with, by GPU type: in the newest snapshot, and on average of each hour. Two queries."""
    read = FragmentationRollup.objects.values_list("at", "minutes", "figures__largest")
    newest = read.filter(span=MINUTE).order_by("-at").first()
    hours = read.filter(span=HOUR, at__gte=start, at__lt=end).order_by("at")
    course: list[tuple[datetime, Mapping[str, float]]] = [
        (at, {kind: max(levels.values(), default=0) / minutes for kind, levels in largest.items()}) for at, minutes, largest in hours
    ]
    return ({} if newest is None else {kind: max(levels.values(), default=0) for kind, levels in newest[2].items()}), course


class Step(NamedTuple):
    """One step of a course, in milli-GPU on average: free, useless to the queue by cause, and useless to the usual demand. None: no snapshot."""

    at: datetime
    free: float | None
    waiting: Mapping[Why, float] | None
    usual: float | None


def fragmentation_course(start: datetime, end: datetime, *, step: timedelta, span: int, gpu_type: str = "", pool: str | None = None) -> list[Step]:
    """Over equal steps, from rows of a grain that is no coarser than a step."""
    steps = steps_between(start, end, step)
    totals, counts = [[0] * FIGURES for _ in range(steps)], [0] * steps
    for at, minutes, figures in FragmentationRollup.objects.filter(span=span, at__gte=start, at__lt=end).values_list("at", "minutes", "figures"):
        place = (at - start) // step
        counts[place] += minutes
        for kind, where, numbers in figures["piles"]:
            if (not gpu_type or kind == gpu_type) and (pool is None or where == pool):
                totals[place] = [known + number for known, number in zip(totals[place], _even(numbers), strict=True)]
    found = []
    for number in range(steps):
        at, count, sums = start + number * step, counts[number], totals[number]
        if not count:
            found.append(Step(at, None, None, None))
            continue
        causes = {why: sums[2 + place] / count for place, why in enumerate(CAUSES)}
        found.append(Step(at, sums[0] / count, causes, sum(sums[4 + len(CAUSES) : 4 + 2 * len(CAUSES)]) / count))
    return found
