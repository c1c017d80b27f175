from datetime import UTC, datetime, timedelta

import pytest

from gpufleet.client import words
from tests.spelled import DURATIONS, RELATIVE

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


@pytest.mark.parametrize(("seconds", "said"), RELATIVE)
def test_relative_times_are_spelt_as_on_the_pages(seconds, said):
    assert words.ago((NOON - timedelta(seconds=seconds)).isoformat(), NOON) == said


@pytest.mark.parametrize(("seconds", "said"), DURATIONS)
def test_durations_are_spelt_as_on_the_pages(seconds, said):
    assert words.lasting(seconds) == said
