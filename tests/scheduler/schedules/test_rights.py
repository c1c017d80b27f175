"""Whose rights count, and who may steer."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import PermissionDenied, ValidationError

from gpufleet.core.faults import Conflict, Stale
from gpufleet.core.models import AuditEntry, User
from quotas.models import RoleBinding, ServiceToken
from quotas.services.tokens import token_revoke
from scheduler.models import Job, Notice, Schedule, ScheduleRun
from scheduler.services.schedules.schedules import MOST_REFUSALS, schedule_change, schedule_resume, schedule_run_now, schedules_turn
from tests import builders
from tests.builders import NOON
from tests.scheduler.schedules.making import DAY, HOUR, MINUTE, TEAM, end_all, make, outcomes


def titles_of(who: User) -> list[str]:
    return list(Notice.objects.filter(user=who).order_by("pk").values_list("title", flat=True))


@pytest.mark.parametrize("overlap", ["allow", "skip"])
def test_it_is_paused_when_it_is_due_and_its_owner_may_not_submit_there_any_more(personas, fleet, overlap):
    owner = personas.users["submitter"]
    schedule = make(personas, overlap=overlap)
    schedules_turn(now=NOON + HOUR)
    RoleBinding.objects.filter(user=owner).delete()
    for hours in (2, 3, 4):
        schedules_turn(now=NOON + hours * HOUR)

    assert Job.objects.count() == 1
    assert [row[1] for row in outcomes(schedule)] == ["submitted", "refused"], "even where an earlier run stands in its way"
    said = f"Submitter may not submit to {TEAM} any more."
    assert ScheduleRun.objects.latest("due_at").faults == {"owner": [said]}
    schedule.refresh_from_db()
    assert (schedule.state, schedule.paused_by, schedule.paused_reason) == ("paused", "gpufleet", said)
    assert titles_of(owner) == ["nightly is paused"]
    assert AuditEntry.objects.get(action="schedule.pause").actor is None
    # Given the role again and resumed, it goes on.
    RoleBinding.objects.create(user=owner, role="submitter", node=personas.nodes[TEAM])
    schedule_resume(access=personas.access("team_lead"), schedule=schedule, reason="", now=NOON + 4 * HOUR)
    end_all()
    schedules_turn(now=NOON + 5 * HOUR)
    assert [row[1] for row in outcomes(schedule)] == ["submitted", "refused", "submitted"]


def test_it_is_paused_for_a_role_elsewhere_is_none_here(personas, fleet):
    schedule = make(personas)
    RoleBinding.objects.filter(user=personas.users["submitter"]).update(node=personas.nodes["acme/product"])
    schedules_turn(now=NOON + HOUR)

    schedule.refresh_from_db()
    assert (schedule.state, Job.objects.count()) == ("paused", 0)


def test_an_owner_who_may_submit_and_is_refused_again_and_again_is_told_twice(personas, fleet):
    kind = builders.gpu_type("B200")
    schedule = make(personas, description={"quota": TEAM, "gpus": 1, "gpu_types": ["B200"]})
    kind.delete()
    for hours in range(1, MOST_REFUSALS + 3):
        schedules_turn(now=NOON + hours * HOUR)

    assert [row[1] for row in outcomes(schedule)] == ["refused"] * MOST_REFUSALS
    schedule.refresh_from_db()
    assert schedule.paused_reason.startswith("5 runs in a row were refused. gpu_types: The fleet knows no B200")
    assert titles_of(personas.users["submitter"]) == ["A run of nightly was refused", "nightly is paused"]


def by_token(personas: Any) -> tuple[ServiceToken, dict[str, Any]]:
    """A token that may submit, and what a request sends to act by it."""
    secret = personas.token("submitter", "submit")
    return ServiceToken.objects.latest("pk"), {"headers": {"Authorization": f"Bearer {secret}"}, "content_type": "application/json"}


MADE = {"name": "nightly", "cron": "0 * * * *", "overlap": "allow", "description": {"quota": TEAM, "gpus": 1}}


def test_what_a_token_leaves_behind_is_paused_when_the_token_is_revoked(personas, fleet, client):
    token, sent = by_token(personas)
    assert client.post("/api/v1/schedules", MADE, **sent).status_code == 201
    Schedule.objects.update(next_due=NOON + HOUR)
    own, schedule = make(personas, overlap="allow"), Schedule.objects.get(written_with=token)
    schedules_turn(now=NOON + HOUR)
    page = personas.client("submitter").get(f"/tokens/{token.public_id}/revoke/").content.decode()
    assert "Schedules that it made or changed are paused" in page
    token_revoke(access=personas.access("submitter"), token=token, now=NOON)
    # At once, not first when it is due.
    schedules_turn(now=NOON + HOUR + MINUTE)

    schedule.refresh_from_db()
    assert (schedule.state, schedule.paused_by) == ("paused", "gpufleet")
    assert schedule.paused_reason == f"The token {token.name}, with which it was last written, is revoked. Resume it if it is to go on."
    assert titles_of(personas.users["submitter"]) == ["nightly is paused"]
    schedules_turn(now=NOON + 2 * HOUR)
    assert (len(outcomes(schedule)), len(outcomes(own))) == (1, 2)
    # Whoever resumes it answers for it.
    schedule_resume(access=personas.access("submitter"), schedule=schedule, reason="", now=NOON + 2 * HOUR)
    schedules_turn(now=NOON + 3 * HOUR)
    assert len(outcomes(schedule)) == 2


def test_a_token_that_comes_to_its_end_takes_nothing_along(personas, fleet, client):
    _, sent = by_token(personas)
    client.post("/api/v1/schedules", MADE, **sent)
    Schedule.objects.update(next_due=NOON + HOUR)
    schedule = Schedule.objects.get()
    ServiceToken.objects.update(created_at=NOON - DAY, expires_at=NOON)
    schedules_turn(now=NOON + HOUR)

    assert [row[1] for row in outcomes(schedule)] == ["submitted"]


@pytest.mark.parametrize(
    ("given", "marked"),
    [({"cron": "30 * * * *"}, True), ({"description": {"quota": TEAM, "gpus": 2}}, False), ({"take_over": True}, False)],
)
def test_who_answers_for_it_after_a_change_in_the_browser(personas, fleet, client, given, marked):
    token, sent = by_token(personas)
    schedule = make(personas)
    client.patch(f"/api/v1/schedules/{schedule.public_id}", {"cron": "15 * * * *"}, **sent)
    schedule.refresh_from_db()
    assert schedule.written_with == token

    schedule_change(access=personas.access("submitter"), schedule=schedule, given=given, now=NOON)

    schedule.refresh_from_db()
    assert (schedule.written_with == token) is marked


def test_a_refused_run_names_its_faults_and_one_that_is_submitted_begins_the_count_anew(personas, fleet):
    kind = builders.gpu_type("B200")
    schedule = make(personas, description={"quota": TEAM, "gpus": 1, "gpu_types": ["B200"]})
    kind.delete()
    schedules_turn(now=NOON + HOUR)
    assert "gpu_types" in ScheduleRun.objects.get().faults
    builders.gpu_type("B200")
    schedules_turn(now=NOON + 2 * HOUR)

    schedule.refresh_from_db()
    assert (schedule.refusals, [row[1] for row in outcomes(schedule)]) == (0, ["refused", "submitted"])


def test_an_owner_who_is_switched_off_submits_nothing(personas, fleet):
    schedule = make(personas)
    type(personas.users["submitter"]).objects.filter(username="submitter").update(is_active=False)
    schedules_turn(now=NOON + HOUR)

    schedule.refresh_from_db()
    assert ([row[1] for row in outcomes(schedule)], schedule.state) == (["refused"], "paused")


def test_only_its_owner_changes_what_is_submitted_with_his_rights(personas, fleet):
    schedule, lead = make(personas), personas.access("team_lead")
    other = {"quota": TEAM, "gpus": 2}
    with pytest.raises(PermissionDenied):
        schedule_change(access=lead, schedule=schedule, given={"description": other}, now=NOON)
    with pytest.raises(PermissionDenied):
        schedule_change(access=personas.access("viewer"), schedule=schedule, given={"name": "other"}, now=NOON)
    schedule_change(access=lead, schedule=schedule, given={"cron": "30 * * * *"}, now=NOON)

    taken = schedule_change(access=lead, schedule=schedule, given={"take_over": True, "description": other}, now=NOON)
    assert (taken.owner, taken.description["gpus"]) == (personas.users["team_lead"], 2)
    with pytest.raises(ValidationError, match="You may not submit"):
        schedule_change(access=personas.access("operator"), schedule=schedule, given={"take_over": True}, now=NOON)
    schedules_turn(now=NOON + 30 * MINUTE)
    assert Job.objects.get().owner == personas.users["team_lead"]


def test_a_change_of_what_somebody_else_changed_is_refused(personas, fleet):
    schedule, access = make(personas), personas.access("submitter")
    schedule_change(access=access, schedule=schedule, given={"name": "other"}, revision=1, now=NOON)
    with pytest.raises(Stale):
        schedule_change(access=access, schedule=schedule, given={"name": "third"}, revision=1, now=NOON)


def test_it_is_run_by_hand_as_its_owner_and_by_its_rule_for_overlaps(personas, fleet):
    schedule, lead = make(personas), personas.access("team_lead")
    run = schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + timedelta(seconds=90, milliseconds=300)).run

    job = Job.objects.get()
    assert (run.by, run.due_at, job.owner) == ("Team Lead", NOON + timedelta(seconds=90), personas.users["submitter"])
    assert job.launch["env"]["GPUFLEET_DUE_AT"] == "2026-11-20T12:01:30Z"
    with pytest.raises(Conflict, match="has not ended"):
        schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + 2 * MINUTE)
    end_all()
    with pytest.raises(Conflict, match="this second"):
        schedule_run_now(access=lead, schedule=schedule, reason="", now=NOON + timedelta(seconds=90, milliseconds=900))
    schedules_turn(now=NOON + HOUR)
    assert [row[0] for row in outcomes(schedule)] == ["20 12:01", "20 13:00"]
