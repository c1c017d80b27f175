"""How the cause of an attempt says that its node went: written and recognised here, so that both stay one wording."""

import re
from collections.abc import Collection

DRAINED = re.compile(r" (?:is|are) drained\b")
DOWN = re.compile(r"(.+) (?:is|are) down: ")


def drained(names: str, why: str) -> str:
    """The beginning of a sentence; `why` follows it."""
    return f"{names} {'are' if ' and ' in names else 'is'} drained {why}"


def is_drain(cause: str) -> bool:
    return DRAINED.search(cause) is not None


def down(names: Collection[str], workers: int) -> str:
    return f"{', '.join(sorted(names))} {'is' if len(names) == 1 else 'are'} down: {workers} {'worker' if workers == 1 else 'workers'} lost."


def nodes_down(cause: str) -> list[str]:
    """Those that a cause names as down; none where it tells of something else."""
    found = DOWN.match(cause)
    return found[1].split(", ") if found else []
