"""From when on limits let a waiting job in, against a slow, obvious count of every minute; and what waiting jobs are told of it."""

import random
from typing import Any

import pytest

from scheduler.engine.ahead.lookahead import FOREVER
from scheduler.engine.tell.openings import Allowance

from .scenes import at, job, node, plan_of, quota, running, scene

LAST = 80


def opens_slowly(counted: list[int], room: int, since: int, length: int) -> int | None:
    for start in range(since, LAST + 1):
        if all(level <= room for level in counted[start : min(LAST + 1, start + length)]):
            return start
    return None


def test_a_limit_opens_when_a_count_of_every_minute_says_so() -> None:
    found = 0
    for seed in range(200):
        rng = random.Random(seed)
        allowance, counted = Allowance(), [0] * (LAST + 1)
        for _ in range(rng.randint(1, 25)):
            milli, start, length = rng.randint(1, 4), rng.randint(0, 20), rng.choice([0, 1, 3, 10, FOREVER])
            allowance.count(milli, start, start + length)
            for minute in range(start, min(LAST + 1, start + length)):
                counted[minute] += milli
            room, since, stay = rng.randint(0, 12), rng.choice([0, 0, rng.randint(0, 30)]), rng.choice([1, 4, 15, FOREVER])
            expected = opens_slowly(counted, room, since, stay)
            assert allowance.opens(room, since, stay) == expected, f"seed {seed}"
            found += bool(expected)
    assert found > 200


def told(held: list[dict[str, Any]], waiting: list[dict[str, Any]], limit: int) -> dict[str, str]:
    """When everyone is expected to start, as hours and minutes."""
    plan = plan_of(scene([node("n0")], [quota("q", 4, limit=limit), quota("p", 4)], [*held, *waiting]))
    return {one["job"]: one["predicted_start"] and one["predicted_start"][11:16] for one in plan["waiting"]}


@pytest.mark.parametrize(("limit", "first", "expected"), [(4, 1, "11:00"), (3, 1, "11:00"), (4, 4, None)])
def test_who_comes_second_under_a_full_limit_is_not_expected_now(limit: int, first: int, expected: str | None) -> None:
    """What leaves lets the first one in; the second stands beside him then, or after him."""
    held = running("held", [at("n0", *range(4))], estimate_s=7200, started=0)
    waiting = [job("first", gpus=first, submitted=-90), job("second", submitted=-80)]

    assert told([held], waiting, limit) == {"first": "11:00", "second": expected}


def test_who_has_room_beside_a_larger_one_waits_only_as_long_as_it_takes_nothing_from_him() -> None:
    """Five may count. The large one has to wait for the four; one more has room beside them and beside him, two only until he comes."""
    held = [running("four", [at("n0", *range(4))], limit_s=7200, started=0), running("other", [at("n0", *range(4, 8))], "p", limit_s=1800, started=0)]
    large = job("large", gpus=4, submitted=-90, limit_s=3600)
    for asks, minute in (({"gpus": 1}, "09:30"), ({"gpus": 2}, "12:00")):
        small = job("small", submitted=-80, **asks)
        assert told(held, [large, small], 5) == {"large": "11:00", "small": minute}


def test_a_deadline_that_a_full_limit_spoils_is_told() -> None:
    held = running("held", [at("n0", *range(4))], estimate_s=7200, started=0)
    waiting = [job("first", submitted=-90), job("second", submitted=-80, deadline=3600, estimate_s=60)]
    plan = plan_of(scene([node("n0")], [quota("q", 4, limit=4)], [held, *waiting]))

    (codes,) = [{each["code"] for each in one["reasons"]} for one in plan["waiting"] if one["job"] == "second"]
    assert codes == {"limit", "deadline"}
