"""Amounts as people write them: `1,024` or `0.5`."""

import re

_GROUPED = re.compile(r"-?\d{1,3}(,\d{3})+(\.\d+)?")


def ungrouped(text: str) -> str:
    """An amount without the commas between its thousands. Any other comma stays, so that nobody takes `0,5` for 5."""
    return text.replace(",", "") if _GROUPED.fullmatch(text) else text
