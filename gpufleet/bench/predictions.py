"""`gpufleet bench predictions`: how many starts lie inside the range that was told when the job was submitted, over simulated weeks.

The weeks come from seeds (`scheduler.benchmarks.predictions`), the ranges from the same module as the console's, which here learns from the week as
it passes. Nothing is measured in time: the same seed gives the same figures on every machine.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from gpufleet.bench import show
from scheduler.benchmarks.predictions import Told, played
from scheduler.foresight import Foresight, Outcome, Ranged, ruled, score

SEEDS = (1, 2, 3, 4)
LEARNT_EVERY = 10  # starts, from one look at the history to the next


def ranged(story: Sequence[Told]) -> tuple[list[Ranged], list[Ranged]]:
    """What was told with what is learnt on the way, and what the rule alone would have told: of all that were told a start and have started."""
    events = [(one.at, 1, place) for place, one in enumerate(story)]
    events += [(one.started, 0, place) for place, one in enumerate(story) if one.started is not None]
    history: list[Outcome] = []
    foresight = Foresight()
    told: dict[int, Ranged] = {}
    found: list[Ranged] = []
    by_rule: list[Ranged] = []
    for at, is_submission, place in sorted(events):
        one = story[place]
        wait = one.start - one.at
        if is_submission:
            sure = foresight.foreseen(wait)
            told[place] = Ranged(sure.earliest, sure.at, sure.latest, 0)
            continue
        done = told[place]._replace(waited=at - one.at)
        found.append(done)
        rule = ruled(wait)
        by_rule.append(Ranged(rule.earliest, rule.at, rule.latest, at - one.at))
        history.append(Outcome(wait, at - one.at, done.earliest <= done.waited <= done.latest))
        if len(history) % LEARNT_EVERY == 0:
            foresight = Foresight(history)
    return found, by_rule


def figures(starts: Sequence[Ranged], before: str = "") -> dict[str, Any]:
    found = score(starts)
    if found is None:
        return {}
    return {
        f"{before}inside": round(found.inside, 3),
        f"{before}width_median_s": found.width_seconds,
        f"{before}error_median_s": found.error_seconds,
        **({} if before else {"wait_median_s": found.wait_seconds, "width_by_wait": round(found.width / found.wait, 2) if found.wait else None}),
    }


def measure(seed: int) -> dict[str, Any]:
    story, world = played(seed)
    found, by_rule = ranged(story)
    return {"case": f"week-{seed}", "seed": seed, **world, "told_to_wait": len(story), **figures(found), **figures(by_rule, "rule_")}


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench predictions", description="Hold foreseen starts against starts, over simulated weeks.")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--seed", type=int, action="append", help=f"of a week; may be repeated (default: {', '.join(map(str, SEEDS))})")
    given = parser.parse_args(arguments)
    cases = []
    for seed in given.seed or SEEDS:
        cases.append(measure(seed))
        if not given.json:
            show(cases[-1:], as_json=False)
            sys.stdout.flush()
    if given.json:
        show(cases, as_json=True)
    return 0
