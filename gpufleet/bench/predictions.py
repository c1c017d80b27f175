"""`gpufleet bench predictions`: how many starts lie inside the range that was told when the job was submitted, over simulated weeks.

The weeks come from seeds (`scheduler.benchmarks.predictions`), what is foreseen and its range from the same modules as the console's, which here
learn from the week as it passes. Nothing is measured in time: the same seed gives the same figures on every machine.
"""

import argparse
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gpufleet.bench import show
from scheduler.benchmarks.predictions import WORLDS, Told, played
from scheduler.loop.foresight import Foresight, Outcome, Ranged, ruled, score
from scheduler.simulation.futures import Waits

FIXED, FRESH = 1, 3  # the seed that is always played, and how many are drawn besides
LEARNT_EVERY = 10  # starts and submissions, from one look at the history to the next
AT_ONCE = Ranged(0, 0, 0, 0)
LEAST_NODES = 5  # one for each team


def ranged(story: Sequence[Told]) -> tuple[list[Ranged], list[Ranged]]:
    """What was told with what is learnt on the way, and what would have been told without: of all that were told a start and have started."""
    events = [(one.at, 1, place) for place, one in enumerate(story)]
    events += [(one.started, 0, place) for place, one in enumerate(story) if one.started is not None]
    history: list[Outcome] = []
    lately: list[Waits] = []
    foresight = Foresight()
    told: dict[int, Ranged] = {}
    found: list[Ranged] = []
    by_rule: list[Ranged] = []
    for number, (at, is_submission, place) in enumerate(sorted(events)):
        if number % LEARNT_EVERY == 0:
            foresight = Foresight(history, lately)
        one = story[place]
        if is_submission:
            lately.append(one.waits)
            sure = foresight.foreseen(one.waits)
            told[place] = Ranged(sure.earliest, sure.at, sure.latest, 0)
            continue
        done = told[place]._replace(waited=at - one.at)
        found.append(done)
        rule = ruled(one.waits)
        by_rule.append(Ranged(rule.earliest, rule.at, rule.latest, at - one.at))
        history.append(Outcome(one.waits, at - one.at, done.earliest <= done.waited <= done.latest, one.at))
    return found, by_rule


def figures(starts: Sequence[Ranged], before: str = "") -> dict[str, Any]:
    found = score(starts)
    if found is None:
        return {}
    return {
        f"{before}inside": round(found.inside, 3),
        f"{before}width_median_s": found.width_seconds,
        f"{before}wait_median_s": found.wait_seconds,
        f"{before}width_by_wait": round(found.width / found.wait, 2) if found.wait else None,
        f"{before}error_median_s": found.error_seconds,
    }


def measure(name: str, seed: int, nodes: int | None = None) -> dict[str, Any]:
    fleet = WORLDS[name]
    story, world = played(seed, replace(fleet, nodes=nodes or fleet.nodes))
    found, by_rule = ranged(story)
    everyone = [*found, *[AT_ONCE] * (world["jobs"] - len(story))]
    told = {"told_to_wait": len(story), **figures(found), **figures(everyone, "all_"), **figures(by_rule, "rule_")}
    return {"case": f"{name}-{seed}", "seed": seed, **world, **told}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench predictions", description="Hold foreseen starts against starts, over simulated weeks.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--world", choices=list(WORLDS), default="limited", help="limited: teams have limits; open: they have none")
    seeds = f"of a week; may be repeated (default: {FIXED} and {FRESH} that are drawn and printed)"
    parser.add_argument("--seed", type=int, action="append", help=seeds)
    parser.add_argument("--nodes", type=int, help="nodes of 8 GPUs each (default: 16); a fleet of 32 takes some ten times as long")
    given = parser.parse_args(arguments)
    if given.nodes is not None and given.nodes < LEAST_NODES:
        parser.error(f"argument --nodes: at least {LEAST_NODES}")
    cases = []
    for seed in given.seed or [FIXED, *random.SystemRandom().sample(range(1000, 1_000_000), FRESH)]:
        cases.append(measure(given.world, seed, given.nodes))
        if not given.json:
            show(cases[-1:], as_json=False)
            sys.stdout.flush()
    if given.json:
        show(cases, as_json=True)
    return 0
