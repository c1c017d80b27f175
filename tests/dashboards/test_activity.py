"""A GPU's day of SM activity."""

from datetime import timedelta

import pytest

from dashboards.activity import STEPS, Activity, gpu_activity
from dashboards.models import NO_READING, NodeSample
from tests.builders import NOON, node

pytestmark = pytest.mark.django_db


def sample(of, minutes_ago, *percents):
    NodeSample.objects.create(
        node=of, at=NOON - timedelta(minutes=minutes_ago), sm_active=bytes(percents), memory_used=bytes(len(percents)), allocated=bytes(len(percents))
    )


def test_the_day_of_one_gpu_is_its_byte_of_each_sample():
    of = node(gpus=2)
    sample(of, 2, 10, 80)
    sample(of, 7, 10, NO_READING)
    sample(of, 24 * 60 - 2, 10, 20)
    sample(of, 24 * 60 + 2, 10, 99)
    sample(node(gpus=2), 2, 1, 1)
    found = gpu_activity(of.gpus.get(index=1), now=NOON)
    assert len(found.percents) == STEPS
    assert (found.percents[-1], found.percents[-2], found.percents[0]) == (80, None, 20)
    assert (found.mean, found.readings, found.unread) == (50, [20, 80], (STEPS - 2) * 5)


def test_gaps_break_the_drawing_and_no_reading_is_not_zero():
    found = Activity((50, 100, None, 0))
    assert found.path == "M0 100V50H1V0H2V100H0ZM3 100V100H4V100H3Z"
    nothing = gpu_activity(node(gpus=1).gpus.get(), now=NOON)
    assert (nothing.mean, nothing.path) == (None, "")
