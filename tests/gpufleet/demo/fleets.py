"""Which fleet a test goes on from (`fleet`, in conftest.py)."""

import pytest


def on_fleet(seed: int, *, hours: float) -> pytest.MarkDecorator:
    """The small demo of that seed, with so many hours of past."""
    return pytest.mark.parametrize("fleet", [(seed, hours)], indirect=True, ids=str)


WITHOUT_FLEET = pytest.mark.parametrize("fleet", [None], indirect=True, ids=["none"])
