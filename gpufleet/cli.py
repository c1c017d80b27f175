"""The `gpufleet` program. Commands that work on plain files start without Django; everything else is `manage.py`."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from gpufleet import __version__
from gpufleet.collector import collect_seldom

# Command name, one word or two -> "module:function". The function takes the arguments after the name and returns an exit status.
# Django takes half a second to set up, so what needs no database must not wait for it.
PLAIN_COMMANDS: dict[str, str] = {
    "plan": "scheduler.cli:plan",
    "simulate": "scheduler.cli:simulate",
    "sweep": "scheduler.sweeps.command:main",
    "trace": "scheduler.trace_command:main",
    "trace own": "gpufleet.own_trace:main",
    "storm": "gpufleet.storm.command:main",
    "bench": "gpufleet.bench:main",
    "bench api": "gpufleet.bench.api:main",
    "bench chargeback": "gpufleet.bench.chargeback:main",
    "bench console": "gpufleet.bench.console:main",
    "bench engine": "scheduler.cli:bench_engine",
    "bench loop": "gpufleet.bench.loop:main",
    "bench predictions": "gpufleet.bench.predictions:main",
    "bench quotas": "gpufleet.bench.quotas:main",
    "bench simulate": "scheduler.cli:bench_simulate",
    "bench slurm": "gpufleet.bench.slurm:main",
    "bench telemetry": "gpufleet.bench.telemetry:main",
    "slurm": "scheduler.backends.slurm.installing:slurm",
    "scenario": "gpufleet.client.commands:scenario",
    "login": "gpufleet.client.commands:login",
    "submit": "gpufleet.client.commands:submit",
    "ls": "gpufleet.client.commands:ls",
    "queue": "gpufleet.client.queue:queue",
    "show": "gpufleet.client.commands:show",
    "why": "gpufleet.client.waiting:why",
    "logs": "gpufleet.client.logs:logs",
    "connect": "gpufleet.client.connecting:connect",
    "enqueue": "gpufleet.client.commands:enqueue",
    "change": "gpufleet.client.commands:change",
    "cancel": "gpufleet.client.commands:cancel",
    "hold": "gpufleet.client.commands:hold",
    "priority": "gpufleet.client.commands:priority",
    "scale": "gpufleet.client.scaling:scale",
    "replace": "gpufleet.client.scaling:replace",
    "release": "gpufleet.client.commands:release",
    "planned": "gpufleet.client.commands:planned",
    "checkpoint": "gpufleet.client.commands:checkpoint",
    "restart": "gpufleet.client.commands:restart",
    "webhooks": "gpufleet.client.telling:webhooks",
    "notices": "gpufleet.client.telling:notices",
    "schedule": "gpufleet.client.schedules:schedule",
    "fragmentation": "gpufleet.client.fragmentation:fragmentation",
    "gap": "gpufleet.client.gap:gap",
    "idle": "gpufleet.client.idle:idle",
    "reserve": "gpufleet.client.reserving:reserve",
    "budget": "gpufleet.client.reserving:budget",
    "ledger": "gpufleet.client.ledger:ledger",
    "chargeback": "gpufleet.client.costs:chargeback",
    "health": "gpufleet.client.watching:health",
    "alerts": "gpufleet.client.watching:alerts",
    "drain": "gpufleet.client.fleet:drain",
    "mark": "gpufleet.client.fleet:mark",
    "abandon": "gpufleet.client.fleet:abandon",
    "fleet": "gpufleet.client.fleet:fleet",
    "spare": "gpufleet.client.fleet:spare",
    "boundaries": "gpufleet.client.fleet:boundaries",
    "quota": "gpufleet.client.fleet:quota",
    "top": "gpufleet.client.fleet:top",
    "completion": "gpufleet.client.completion:completion",
}


# Commands that take --data-dir. Settings are read before Django parses a command's arguments, so the flag becomes a variable here.
DATA_DIR_COMMANDS = ("up", "doctor", "person", "inventory")


PIPE_CLOSED = 141  # as a shell tells of a program that was ended by SIGPIPE


def main(argv: Sequence[str] | None = None) -> int:
    collect_seldom()
    arguments = list(sys.argv if argv is None else argv)
    if arguments[1:] in (["--version"], ["version"]):
        print(f"gpufleet {__version__}")
        return 0
    if arguments[1:] in ([], ["help"], ["--help"], ["-h"]):
        from gpufleet.overview import overview

        try:
            print(overview(PLAIN_COMMANDS), flush=True)
        except BrokenPipeError:  # `| head` has seen enough: nothing more is written to it on the way out either
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    plain = _plain_command([*arguments[2:], "--help"] if arguments[1] == "help" else arguments[1:])
    if plain:
        target, rest = plain
        module, function = target.split(":")
        try:
            status: int = getattr(import_module(module), function)(rest)
            sys.stdout.flush()
        except BrokenPipeError:  # who reads has seen enough, as in `| head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return PIPE_CLOSED
        return status
    if len(arguments) > 1 and arguments[1] in DATA_DIR_COMMANDS:
        _use_data_dir(arguments[2:])
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpufleet.settings")
    from gpufleet.client import ClientError
    from gpufleet.environment import ConfigurationError
    from gpufleet.management import Management

    try:
        Management(arguments).execute()
    except ConfigurationError as error:
        print(error, file=sys.stderr)
        return 2
    except ClientError as fault:
        print(fault, file=sys.stderr)
        return fault.status
    return 0


def _plain_command(words: Sequence[str]) -> tuple[str, list[str]] | None:
    """The function of a command that needs no Django, named by one word or two (`bench engine`), and the arguments after its name."""
    for length in (2, 1):
        target = PLAIN_COMMANDS.get(" ".join(words[:length]))
        if target and len(words) >= length:
            return target, list(words[length:])
    return None


def _use_data_dir(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data-dir", nargs="?")
    folder = parser.parse_known_args(words)[0].data_dir
    if folder:
        os.environ["GPUFLEET_DATA_DIR"] = str(Path(folder).expanduser().absolute())
