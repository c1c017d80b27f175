"""`gpufleet slurm prolog`: what the nodes of a Slurm cluster check themselves, written out as plain files."""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from scheduler.backends.slurm import on_node

# The settings are hidden: of a folder `prolog.d/*` Slurm executes all that the pattern matches, and drains the node where it cannot.
PROGRAM, SETTINGS = "verify", ".verify.json"
NOT_WRITTEN = 3


def slurm(arguments: Sequence[str]) -> int:
    """Write the program with which the nodes of a Slurm cluster verify jobs before the start and after the end."""
    parser = argparse.ArgumentParser(prog="gpufleet slurm", description=slurm.__doc__)
    actions = parser.add_subparsers(dest="action", required=True)
    prolog = actions.add_parser("prolog", help="prolog and epilog in one program")
    prolog.add_argument("--write", required=True, metavar="FOLDER", type=Path, help="at the same path on every node; only root may write to it")
    prolog.add_argument("--user", required=True, action="append", metavar="NAME", help="of gpufleet's jobs; jobs of others are not touched")
    prolog.add_argument("--tag", action="append", default=[], metavar="TAG", help="of a console, as gpufleet doctor --cluster says; without: any")
    prolog.add_argument(
        "--nvidia-smi", metavar="PATH", default="/usr/bin/nvidia-smi", help="on the nodes; empty: do not ask the driver (default: %(default)s)"
    )
    prolog.add_argument("--scratch", metavar="FOLDER", default="", help="on the nodes; its folder JOB_ID is deleted when the job has ended")
    prolog.add_argument("--unconfined", action="store_true", help="accept that Slurm neither pins processors nor constrains devices")
    asked = parser.parse_args(arguments)
    settings = {"users": asked.user, "tags": asked.tag, "nvidia_smi": asked.nvidia_smi, "scratch": asked.scratch, "confined": not asked.unconfined}
    try:
        asked.write.mkdir(parents=True, exist_ok=True)
        folder = asked.write.resolve()
        _written(folder / SETTINGS, json.dumps(settings, indent=2) + "\n", 0o644)
        _written(folder / PROGRAM, program_text(), 0o755)
    except OSError as fault:
        print(f"{asked.write}: {fault.strerror}.", file=sys.stderr)
        return NOT_WRITTEN
    print(f"Prolog={folder / PROGRAM}\nEpilog={folder / PROGRAM}\nPrologFlags=Alloc")
    print("Add these lines to slurm.conf on all nodes, then run scontrol reconfigure.", file=sys.stderr)
    return 0


def program_text() -> str:
    return Path(on_node.__file__).read_text()


def program_digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def _written(path: Path, text: str, mode: int) -> None:
    """Whole or not at all: Slurm may start it at any moment."""
    beside = path.with_name(f".{path.name}.new")
    beside.write_text(text)
    beside.chmod(mode)
    shutil.move(beside, path)
