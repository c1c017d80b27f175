"""Draw scenarios that no test has seen and hold the engine's plans against every law:

    python -m tests.scheduler.twin.hunt [--size tiny|small|medium] [--about growth|windows|…] [--first SEED] [--count N] [LAW …]

Prints each law that is broken with its seed, and ends with status 1 if one was. Not a test, as long as the engine has known faults that a fresh seed
may meet: a suite that fails by chance tells nothing about a change.
"""

import argparse
import secrets
import sys
from functools import partial

from .colocated import colocated_random
from .focused import ABOUT
from .laws import LAWS
from .powered import powered_random
from .strategies import scenario_random


def main() -> int:
    parser = argparse.ArgumentParser(description="Hold the engine's plans of fresh scenarios against the twin's laws.")
    parser.add_argument("laws", nargs="*", metavar="LAW", help=", ".join(sorted(LAWS)))
    parser.add_argument("--size", choices=("tiny", "small", "medium"), default="small")
    parser.add_argument("--about", choices=sorted({*ABOUT, "power", "colocation"}), default=None, help="scenarios about one thing")
    parser.add_argument("--first", type=int, default=None, help="the first seed; drawn unless stated")
    parser.add_argument("--count", type=int, default=500)
    options = parser.parse_args()
    unknown = [law for law in options.laws if law not in LAWS]
    if unknown:
        parser.error(f"there is no law {unknown[0]}; there are {', '.join(sorted(LAWS))}")
    first = secrets.randbelow(2**40) if options.first is None else options.first
    about = {**ABOUT, "power": powered_random, "colocation": colocated_random}
    made = partial(scenario_random, size=options.size) if options.about is None else about[options.about]
    broken = 0
    for seed in range(first, first + options.count):
        for name in options.laws or sorted(LAWS):
            try:
                faults = LAWS[name](made(seed))
            except Exception as fault:  # a crash of the engine is a find like any other, and the hunt goes on
                faults = [f"{type(fault).__name__}: {fault}"]
            if faults:
                broken += 1
                print(f"{name}, seed {seed} {options.about or options.size}: {faults[0]}", flush=True)
    print(f"{options.count} scenarios from seed {first}, {broken} laws broken")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
