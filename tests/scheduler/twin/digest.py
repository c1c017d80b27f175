"""What the engine plans in thousands of drawn scenarios, as one line each: a change that should decide nothing anew is held against it.

python -m tests.scheduler.twin.digest BEFORE            before the change
python -m tests.scheduler.twin.digest AFTER BEFORE      after it: tells which plans differ, and ends with status 1 if one does
Both with `--without next_wake`, or another part of a plan: of the rest.
"""

import json
import sys
from argparse import ArgumentParser
from collections.abc import Collection, Iterator
from functools import partial
from hashlib import sha256
from multiprocessing import Pool
from pathlib import Path

from .focused import ABOUT
from .planner import course_of, plan_of
from .strategies import SIZES, scenario_random

EACH = {"tiny": 1500, "small": 2500, "medium": 230}  # seeds of each size; as many of each subject as make the rest
ABOUT_EACH = 250

One = tuple[str, int]


def drawn() -> Iterator[One]:
    yield from ((size, seed) for size, count in EACH.items() for seed in range(count))
    yield from ((about, seed) for about in ABOUT for seed in range(ABOUT_EACH))


def line(one: One, without: Collection[str] = ()) -> str:
    kind, seed = one
    scenario = scenario_random(seed, kind) if kind in SIZES else ABOUT[kind](seed)
    try:
        plan = {key: told for key, told in plan_of(scenario).items() if key not in without}
        told = json.dumps([plan, course_of(scenario)], sort_keys=True)
    except Exception as fault:  # it is told like a plan: a change may mend it or bring it
        told = f"{type(fault).__name__}: {fault}"
    return f"{kind} {seed} {sha256(told.encode()).hexdigest()}"


def main(after: str, before: str | None, without: Collection[str]) -> int:
    with Pool() as pool:
        lines = pool.map(partial(line, without=without), drawn(), chunksize=20)
    Path(after).write_text("\n".join(lines) + "\n")
    if before is None:
        return 0
    differ = [one for one, other in zip(lines, Path(before).read_text().splitlines(), strict=True) if one != other]
    print("\n".join([*(one.rpartition(" ")[0] for one in differ[:20]), f"{len(differ)} of {len(lines)} plans differ"]))
    return 1 if differ else 0


if __name__ == "__main__":
    asked = ArgumentParser()
    asked.add_argument("after")
    asked.add_argument("before", nargs="?")
    asked.add_argument("--without", action="append", default=[])
    sys.exit(main(**vars(asked.parse_args())))
