"""Parts of a forecast as programs of their own: the one interpreter of a console would make pages and the loop wait for them."""

import os
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
NICENESS = 5  # pages and the loop come first


def program(module: str, *arguments: str) -> dict[str, Any]:
    """How `subprocess` starts one. It finds the engine and nothing of the console's settings."""
    environment = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT)}
    return {"args": [sys.executable, "-m", module, *arguments], "cwd": ROOT, "env": environment}
