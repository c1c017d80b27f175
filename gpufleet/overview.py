"""What `gpufleet` and `gpufleet help` print: the commands of the product in groups, each with the line that it says of itself."""

import ast
import inspect
import shutil
import textwrap
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path

from gpufleet.client.words import plain

# Where the commands that need Django are. They are read, not imported: help must come without a database, and at once.
FOLDER = Path(__file__).parent / "core/management/commands"
GROUPS: dict[str, Sequence[str]] = {
    "Your jobs": (
        *(
            "login",
            "submit",
            "ls",
            "queue",
            "show",
            "why",
            "logs",
            "connect",
            "change",
            "cancel",
            "hold",
            "release",
            "priority",
            "scale",
            "replace",
            "checkpoint",
            "restart",
            "planned",
        ),
        *("enqueue", "schedule", "notices", "completion"),
    ),
    "The fleet": ("fleet", "top", "gap", "fragmentation", "idle", "health", "drain", "mark", "spare", "boundaries", "abandon", "alerts"),
    "Quotas and costs": ("quota", "reserve", "budget", "ledger", "chargeback"),
    "Running a console": ("up", "migrate", "doctor", "person", "inventory", "slurm", "webhooks", "backup", "seed_demo"),
    "Trying and measuring": ("plan", "simulate", "sweep", "trace", "scenario", "bench", "storm"),
}
DJANGOS = "Django's commands (check, shell, dbshell, ...) are those of manage.py and work here as well: gpufleet help --commands names all."


def ours() -> list[str]:
    return [name for names in GROUPS.values() for name in names]


def overview(targets: Mapping[str, str]) -> str:
    """All commands in groups, as wide as the terminal is."""
    columns = max(60, min(shutil.get_terminal_size().columns, 120))
    indent = 4 + max(map(len, ours()))
    lines = ["usage: gpufleet COMMAND [OPTIONS]"]
    for heading, names in GROUPS.items():
        lines += ["", f"{heading}:"]
        for name in names:
            lines += textwrap.wrap(
                f"  {name:<{indent - 2}}{one_line(name, targets)}", columns, subsequent_indent=" " * indent, break_on_hyphens=False
            )
    lines += ["", "gpufleet help COMMAND, or gpufleet COMMAND --help, says all of one.", *textwrap.wrap(DJANGOS, columns, break_on_hyphens=False)]
    return "\n".join(lines)


def one_line(name: str, targets: Mapping[str, str]) -> str:
    """The first sentence of what a command says of itself, where it is defined."""
    if name in targets:
        module, function = targets[name].split(":")
        text = inspect.getdoc(getattr(import_module(module), function)) or ""
    else:
        text = _help_of(FOLDER / f"{name}.py")
    first, stop, _ = " ".join(text.split()).partition(". ")
    return first + stop.strip()


def _help_of(path: Path) -> str:
    """What a command of Django's kind has as its `help`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["help"]:
            return str(ast.literal_eval(node.value))
    raise AssertionError(f"{path.name} does not say what it is for.")


def unknown(word: str, known: Sequence[str]) -> str:
    """What is said of a command that there is not."""
    near = get_close_matches(word, known, n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    return f"Unknown command: {plain(word)}.{hint}\ngpufleet help lists all commands."
