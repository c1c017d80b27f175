"""The editor and Home of a team show nodes by the newest forecast. The editor plans the fleet itself where there is none; Home never does."""

from datetime import timedelta

import pytest

from dashboards.home.parts import team_home
from gpufleet.core.audit import SYSTEM
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
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


def test_home_of_a_team_tells_what_waits_for_each_type_and_plans_nothing_for_it(monkeypatch):
    builders.node("n1", gpus=4)
    team, loop = leaf("team", 4), Loop()
    loop.now = now()
    submit(team, gpus=4, at=loop.now)
    loop.tick()
    submit(team, gpus=3, at=loop.now)
    loop.tick()
    access = Access(SYSTEM, (Grant("", frozenset({Can.SEE, Can.SUBMIT})),))

    def told():
        (row,) = team_home(access, now=loop.now).teams
        return [(cell.gpu_type, cell.used, waiting) for cell, waiting in row.cells]

    monkeypatch.setattr(standing, "make_plan", None)
    assert told() == [(H100, 4000, 0)]
    forecast_run(holder="one", now=loop.now, force=True)
    assert told() == [(H100, 4000, 3000)]
