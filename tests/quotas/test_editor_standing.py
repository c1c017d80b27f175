"""The editor shows how nodes stand by the newest forecast, and plans the fleet itself only where there is none."""

from datetime import timedelta

import pytest

from gpufleet.core.times import now
from scheduler.services.forecasts import standing
from scheduler.services.forecasts.forecasting import forecast_run
from scheduler.services.forecasts.standing import tree_standing
from tests import builders
from tests.scheduler.loop.worlds import H100, Loop, leaf, submit

pytestmark = pytest.mark.django_db


def test_it_is_that_of_the_newest_forecast_until_it_is_old(monkeypatch):
    builders.node("n1", gpus=4)
    team, moment = leaf("team", 4), now()
    loop = Loop()
    loop.now = moment
    submit(team, gpus=4, at=moment)
    loop.tick()
    waits = submit(team, gpus=3, at=moment)
    loop.tick()

    forecast_run(holder="one", now=moment, force=True)
    made = standing.make_plan
    monkeypatch.setattr(standing, "make_plan", None)  # a page that plans would fail
    found = tree_standing(moment + timedelta(seconds=100))

    assert (found.as_of, found.waiting[team.path, H100], found.fair[team.path, H100]) == (moment, 3000, 4000)
    monkeypatch.setattr(standing, "make_plan", made)
    waits.delete()
    later = tree_standing(moment + timedelta(minutes=3))
    assert (later.as_of, dict(later.waiting)) == (moment + timedelta(minutes=3), {})
    assert tree_standing(moment + timedelta(minutes=4)) == later, "what a page planned is kept, too"
