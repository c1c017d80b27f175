"""Fleets that several tests look at or go on from: each is made once."""

from collections.abc import Iterator

import pytest
from django.db import transaction

from gpufleet.demo.seed import demo_seed
from tests.builders import NOON


@pytest.fixture(scope="module")
def fleet(founded: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """The small demo of a seed with so many hours of past (`on_fleet`), as it was at noon whatever the test before has done to it.

    In a module that uses it every test says which it needs, also who needs none: the last one stays until another is asked for."""
    if request.param is None:
        yield
        return
    seed, hours = request.param
    with transaction.atomic():
        demo_seed(size="small", seed=seed, now=NOON, hours=hours)
        yield
        transaction.set_rollback(True)
