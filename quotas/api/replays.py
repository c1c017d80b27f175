"""The last 7 days under a drafted tree over HTTP: ask for it, follow it, cancel it."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router, Schema, Status
from pydantic import Field

from gpufleet.core.times import now
from gpufleet.web import access_of
from quotas.models import QuotaChange
from quotas.permissions import Access, Can
from quotas.selectors.changes import change_for
from scheduler.services.forecasts.what_ifs import TeamWeek, replay_ask, replay_cancel, replay_of, replay_teams
from scheduler.tasks import quota_replay
from scheduler.whatifs.wanted import USUAL_DAYS

router = Router(tags=["Quotas"])


class TeamWeekOut(Schema):
    """Figures of the present tree and of the drafted one. `milli_millis` is thousandths of a GPU times milliseconds."""

    path: str
    jobs: int
    started: list[int]
    mean_wait_seconds: list[float]
    milli_millis: list[int]


class QuotaWeekOut(Schema):
    state: str = Field(description="none, waiting, playing, done, cancelled or failed.")
    asked_at: datetime | None
    ended_at: datetime | None
    hours: int = Field(description="Simulated so far.")
    of_hours: int = Field(description="Hours in all.")
    fault: str
    teams: list[TeamWeekOut]


@router.get("/quota-changes/{public_id}/week", response=QuotaWeekOut, url_name="quota-week", summary="The last 7 days under a change")
def quota_week(request: HttpRequest, public_id: str) -> dict[str, Any]:
    """The newest simulation of a change, as far as it is; teams that the caller may see."""
    access = access_of(request)
    access.must_somewhere(Can.SEE)
    return _told(access, change_for(access, public_id))


@router.post(
    "/quota-changes/{public_id}/week", response={201: QuotaWeekOut}, url_name="quota-week", summary="Simulate the last 7 days under a change"
)
def quota_week_ask(request: HttpRequest, public_id: str) -> Status[dict[str, Any]]:
    """Takes at most a minute; read it until its state is done. Nothing of the tree changes."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    change = change_for(access, public_id)
    replay_ask(access=access, change=change, now=now(), begin=quota_replay.delay)
    return Status(201, _told(access, change))


@router.delete("/quota-changes/{public_id}/week", response={204: None}, url_name="quota-week", summary="Cancel a simulation")
def quota_week_cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    """Where none goes on nothing happens."""
    access = access_of(request)
    access.must_somewhere(Can.EDIT_QUOTA)
    replay_cancel(access=access, change=change_for(access, public_id), now=now())
    return HttpResponse(status=204)


def _told(access: Access, change: QuotaChange) -> dict[str, Any]:
    replay = replay_of(change, now())
    if replay is None:
        return {"state": "none", "asked_at": None, "ended_at": None, "hours": 0, "of_hours": 24 * USUAL_DAYS, "fault": "", "teams": []}
    teams = replay_teams(access, replay) if replay.state == "done" else []
    return {
        "state": replay.state,
        "asked_at": replay.asked_at,
        "ended_at": replay.ended_at,
        "hours": replay.hours,
        "of_hours": replay.of_hours,
        "fault": replay.fault,
        "teams": teams_told(teams),
    }


def teams_told(teams: Sequence[TeamWeek]) -> list[dict[str, Any]]:
    return [
        {"path": one.path, "jobs": one.jobs, "started": one.started, "mean_wait_seconds": one.mean_wait_seconds, "milli_millis": one.held}
        for one in teams
    ]
