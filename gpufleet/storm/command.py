"""`gpufleet storm`: makes a database of its own, lets the storm pass over it, and says what it was like. Nothing of an installation is touched."""

import argparse
import gc
import json
import logging
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from gpufleet.storm.world import Report

DAYS = 2


def main(argv: Sequence[str]) -> int:
    """Let simulated days of bad weather pass over the whole control plane, and say what it was like. Nothing of an installation is touched.

    0: nothing was found. 1: something was, and its story is told. 2: the storm was too calm to prove anything. 143: ended by somebody.
    """
    arguments = _arguments(argv)
    signal.signal(signal.SIGTERM, _ended)
    folder = Path(tempfile.mkdtemp(prefix="gpufleet-storm-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None))  # noqa: S108
    try:
        _prepare(folder, arguments.usage_weight, arguments.empty)
        if arguments.seeds == 1:
            return _pass(arguments.seed, arguments)
        found = [_in_a_process(seed, arguments) for seed in range(arguments.seed, arguments.seed + arguments.seeds)]
        return max(found, key=(0, 2, 1).index)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpufleet storm", description=main.__doc__)
    parser.add_argument("--seed", type=int, default=1, help="what the storm is drawn from; the same seed is the same storm")
    parser.add_argument("--seeds", type=int, default=1, help="so many storms, from --seed on, each in a process of its own")
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--days", type=int, help=f"simulated days of bad weather ({DAYS}); up to two days of calm follow")
    length.add_argument(
        "--hours", type=int, default=0, choices=range(1, 24), metavar="N", help="a short storm, with a day's edits, windows and budgets"
    )
    parser.add_argument("--usage-weight", type=float, default=0.0, help="how much past usage counts, with a half-life of six hours")
    parser.add_argument("--parts", type=float, default=0.0, help="how many of the small jobs ask for an instance or a share of a GPU, of 1")
    parser.add_argument("--gap-every", type=int, choices=range(1, 101), metavar="N", help="look at the utilization gap each so many steps")
    parser.add_argument("--empty", type=Path, metavar="FILE", help="begin from a copy of this SQLite database without rows, and make none")
    parser.add_argument("--story", action="store_true", help="tell everything as it happens")
    parser.add_argument("--json", action="store_true", help="the counts as one JSON object")
    return parser.parse_args(argv)


def _in_a_process(seed: int, arguments: argparse.Namespace) -> int:
    """From the same empty database each time, so that no storm knows of another."""
    from django.db import connection

    database = Path(connection.settings_dict["NAME"])
    empty = database.with_suffix(".empty")
    if not empty.exists():
        connection.close()  # all of it is in the one file then
        shutil.copy(database, empty)
    for left in database.parent.glob(database.name + "*"):
        left.unlink()
    shutil.copy(empty, database)
    process = multiprocessing.get_context("fork").Process(target=lambda: sys.exit(_pass(seed, arguments)))
    process.start()
    try:
        process.join()
    finally:
        # Only where we are ended ourselves it is still at it.
        process.terminate()
        process.join()
    return process.exitcode if process.exitcode in (0, 2) else 1


def _ended(number: int, _: object) -> NoReturn:
    """Whoever is ended still tidies up, and is not kept from it by being told twice."""
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(128 + number)


def _pass(seed: int, arguments: argparse.Namespace) -> int:
    from gpufleet.storm.safety import Unsafe
    from gpufleet.storm.world import GAP_EVERY, World

    began, processor = time.perf_counter(), time.process_time()
    try:
        days = 1 if arguments.hours else DAYS if arguments.days is None else arguments.days
        tell = _say if arguments.story else None
        report = World(
            seed=seed, days=days, hours=arguments.hours, parts=arguments.parts, gap_every=arguments.gap_every or GAP_EVERY, tell=tell
        ).run()
    except Unsafe as fault:
        print(fault)
        return 1
    count, unit = (arguments.hours, "hour") if arguments.hours else (days, "day")
    length = f"{count} {unit}{'' if count == 1 else 's'}"
    show(report, length, time.perf_counter() - began, time.process_time() - processor, print, as_json=arguments.json)
    return 2 if report.thin_days else 0


def _prepare(folder: Path, usage_weight: float, empty: Path | None = None) -> None:
    """The product's own settings over an empty folder, whatever installation this machine has."""
    for name in [name for name in os.environ if name.startswith("GPUFLEET_")]:
        del os.environ[name]
    os.environ["GPUFLEET_DATA_DIR"] = str(folder)
    os.environ["GPUFLEET_LOG_LEVEL"] = "error"
    # The usual half-life is longer than a storm.
    os.environ["GPUFLEET_USAGE_WEIGHT"], os.environ["GPUFLEET_USAGE_HALF_LIFE_S"] = str(usage_weight), "21600"
    os.environ["DJANGO_SETTINGS_MODULE"] = "gpufleet.settings"  # a test that starts us has other ones in its environment
    import django
    from django.conf import settings

    # Nobody else uses this database, and it ends with us: it needs neither locks nor durability.
    pragmas = "journal_mode=MEMORY", "synchronous=OFF", "locking_mode=EXCLUSIVE", "cache_size=-65536", "temp_store=MEMORY"
    settings.DATABASES["default"]["OPTIONS"]["init_command"] = ";".join(f"PRAGMA {pragma}" for pragma in pragmas)
    django.setup()
    # The storm decides itself when somebody looks, so calls for a tick need not even be written.
    from gpufleet.celery import app

    app.send_task = lambda *arguments, **named: None

    # What the storm does to the back-ends and the database is logged as the trouble it would be; here it is the point.
    logging.disable(logging.CRITICAL)
    from django.core.management import call_command

    if empty is not None:
        shutil.copy(empty, settings.DATABASES["default"]["NAME"])
    call_command("migrate", verbosity=0)  # of a copy nothing is left to do
    import gpufleet.storm.world  # noqa: F401

    # All that was imported stays; looking through it again and again takes a tenth of the time.
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


def _say(line: str) -> None:
    print(line, flush=True)


def show(report: "Report", length: str, seconds: float, processor: float, say: Callable[[str], None], *, as_json: bool) -> None:
    if as_json:
        say(json.dumps({**asdict(report), "digest": f"{report.digest:016x}", "wall_s": round(seconds, 1), "processor_s": round(processor, 1)}))
        return
    took = f"{seconds:.1f} s ({processor:.1f} s of the processor)"
    say(f"seed {report.seed}: {length} in {took}, nothing unsafe and nothing stuck; story {report.digest:016x}")
    say(f"  {report.jobs} submissions ({report.completed} completed by the end), {report.evictions} evictions, {report.ticks} ticks")
    faults = ", ".join(f"{kind} {times}" for kind, times in report.faults.items())
    say(f"  {sum(report.faults.values())} faults of {report.kinds} kinds on {report.nodes} nodes, {report.struck} struck: {faults}")
    for day in report.thin_days:
        say(f"  too calm to prove anything: {day}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
