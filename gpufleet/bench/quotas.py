"""`gpufleet bench quotas`: the editor of a tree of 1,500 projects, and the previews of a change of it."""

import argparse
from collections.abc import Sequence

from gpufleet.bench import timing
from gpufleet.bench.apart import Row, Told, measured_apart

CASES = ("editor", "preview", "week")
MODULE = "from scheduler.benchmarks import quotas as m; "


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="gpufleet bench quotas", description="Measure a quota tree of 1,500 projects over 4,000 GPUs.")
    return measured_apart(parser, arguments, CASES, _measure)


def _measure(told: Told, wanted: list[str], _: argparse.Namespace) -> list[Row]:
    told(f"{MODULE}m.world_fill()")
    found = [row for case in wanted for row in told(f"{MODULE}m.measured({case!r})")]
    return [timing(one.pop("case"), [one.pop("seconds")], **one) for one in found]
