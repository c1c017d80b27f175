"""The fleet of the tests of health rules."""

import pytest

from dashboards.health.models import HealthRule
from tests import builders
from tests.builders import NOON
from tests.dashboards.worlds import gpus_of
from tests.personas import Personas


@pytest.fixture
def fleet(personas: Personas):
    """Ten nodes of one pool, and no other rules than the test makes."""
    HealthRule.objects.all().delete()
    pool = builders.pool()
    nodes = [builders.node(gpus=2, pool=pool, heartbeat_at=NOON) for _ in range(10)]
    return nodes, [gpu for node in nodes for gpu in gpus_of(node)]
