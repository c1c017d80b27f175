"""`gpufleet trace`: a trace of another fleet in, a scenario out. Without Django."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import orjson

from scheduler.cli import BAD_INPUT, whole
from scheduler.scenarios.faults import ScenarioError
from scheduler.scenarios.reading import load
from scheduler.traces.rows import File, Imported, Shape, TraceFault, shape_of

TRACES = ("gavel", "helios", "openb", "philly")  # each a module of scheduler.traces


def main(arguments: Sequence[str]) -> int:
    """Write a trace of another fleet, or with `own` this fleet's past, as a scenario to simulate.

    What cannot be played is counted on standard error; a row that cannot be read ends it with its file and line.
    """
    parser = argparse.ArgumentParser(prog="gpufleet trace", description=main.__doc__, epilog="gpufleet trace own --help: the fleet's own past.")
    parser.add_argument("kind", choices=TRACES, metavar="KIND", help=f"{', '.join(TRACES)}, or own")
    parser.add_argument("files", nargs="+", metavar="FILE", help="the files of the trace, in any order")
    parser.add_argument(
        "--nodes", action="append", type=_shape, default=[], metavar="COUNTxGPUS[:TYPE]", help="nodes of one size, as 6x4:v100; may be repeated"
    )
    parser.add_argument("--cpus", type=whole(1), metavar="N", help="CPUs of each node of --nodes (without it, CPUs are not scarce)")
    parser.add_argument("--limit", type=whole(1), metavar="N", help="only the first N jobs")
    parser.add_argument("--out", default="-", metavar="FILE", help="where to write the scenario (default -: standard output)")
    options = parser.parse_args(arguments)
    if options.cpus is not None and not options.nodes:
        parser.error("--cpus is of the nodes of --nodes")
    try:
        files = [File(name, _trace_text(name)) for name in options.files]
        shapes = [shape._replace(cpus=options.cpus) for shape in options.nodes]
        found: Imported = import_module(f"scheduler.traces.{options.kind}").imported(files, shapes)
        if not found.jobs:
            raise TraceFault("No row can be played." + "".join(f"\n  {count} left out: {why}" for why, count in found.left_out.most_common()))
    except TraceFault as fault:
        print(fault, file=sys.stderr)
        return BAD_INPUT
    return write_scenario(orjson.dumps(found.scenario(options.limit)), options.out, len(found.jobs), found.left_out.most_common())


def write_scenario(document: bytes, out: str, jobs: int | None, left_out: Sequence[tuple[str, int]]) -> int:
    """Only what `gpufleet simulate` reads is written. What it is, and what is left out of it, is said on standard error."""
    try:
        scenario = load(document)
    except ScenarioError as error:
        for fault in error.faults:
            print(fault, file=sys.stderr)
        return BAD_INPUT
    if out == "-":
        sys.stdout.buffer.write(document + b"\n")
        sys.stdout.buffer.flush()
    else:
        try:
            Path(out).write_bytes(document + b"\n")
        except OSError as error:
            print(f"{out}: {error.strerror}", file=sys.stderr)
            return BAD_INPUT
    gpus, played = sum(node.gpus for node in scenario.nodes), len(scenario.jobs)
    head = f"{played} jobs" if jobs is None else f"{played} of {jobs} jobs"
    lines = [f"{head}, {len(scenario.quotas)} queues, {len(scenario.nodes)} nodes with {gpus} GPUs"]
    lines += [f"  {count} left out: {why}" for why, count in left_out]
    print("\n".join(lines), file=sys.stderr)
    return 0


def _trace_text(name: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceFault(f"{name}: {error.strerror if isinstance(error, OSError) else 'is not UTF-8 text'}") from None


def _shape(text: str) -> Shape:
    try:
        return shape_of(text)
    except ValueError as fault:
        raise argparse.ArgumentTypeError(str(fault)) from None
