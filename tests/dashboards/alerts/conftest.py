"""The fleet of the tests of alerts."""

import pytest

from tests import builders
from tests.personas import Personas


@pytest.fixture
def pool(personas: Personas):
    return [builders.node(gpus=1, pool=builders.pool()) for _ in range(4)]
