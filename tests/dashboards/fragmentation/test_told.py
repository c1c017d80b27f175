"""People and webhooks are told of a defragmentation: planned, begun, over or called off; and owners of what it moves."""

from datetime import timedelta

import pytest

from dashboards.fragmentation.telling import defragmentations_tell
from dashboards.models import ActivityEntry
from quotas.models import Role
from scheduler.models import Defragmentation, Delivery, Job, Notice, NoticeChoices
from scheduler.services.defragmenting import defragmentation_rule, defragmentation_start, defragmentation_stop
from scheduler.services.notify.outbox import outbox_turn
from tests import builders
from tests.builders import NOON
from tests.personas import Personas, person

pytestmark = pytest.mark.django_db
MINUTE = timedelta(minutes=1)


@pytest.fixture
def team(personas: Personas) -> Personas:
    """A second operator, and one of another part of the tree alone."""
    personas.users["other"] = person("other", role=Role.OPERATOR, node=personas.nodes["acme"])
    personas.users["local"] = person("local", role=Role.OPERATOR, node=personas.nodes["acme/research"])
    return personas


def start(team: Personas, **fields: object) -> Defragmentation:
    given = {"moves": 2, "reason": "the gang waits", "now": NOON} | fields
    return defragmentation_start(access=team.access("operator"), **given)  # type: ignore[arg-type]


def told() -> list[tuple[str, str]]:
    """Everything that was told since the last time, by person."""
    found = sorted((notice.user.username, notice.title) for notice in Notice.objects.filter(kind="moved").select_related("user"))
    Notice.objects.all().delete()
    return found


def test_operators_are_told_as_a_scheduled_one_is_planned_begins_and_is_over_each_once(team: Personas) -> None:
    """Not of what they did themselves."""
    hook = builders.webhook(team.nodes["acme"], kinds=["defrag.begun"])
    found = start(team, starts_at=NOON + timedelta(hours=2))
    for _ in range(2):
        defragmentations_tell(now=NOON)
    planned = "Defragmentation planned for 2026-11-20 14:00 UTC"
    assert told() == [("other", planned), ("superuser", planned)]

    defragmentations_tell(now=NOON + timedelta(hours=1))
    assert told() == []
    for _ in range(2):
        defragmentations_tell(now=NOON + timedelta(hours=2))
    begun = "A defragmentation has begun"
    assert told() == [("operator", begun), ("other", begun), ("superuser", begun)]

    Defragmentation.objects.filter(pk=found.pk).update(
        state="ended", ended_at=NOON + timedelta(hours=3), ended_because="Its time is over.", moves_done=1
    )
    for _ in range(2):
        defragmentations_tell(now=NOON + timedelta(hours=3))
    ended = "A defragmentation has ended"
    assert told() == [("operator", ended), ("other", ended), ("superuser", ended)]
    lines = list(ActivityEntry.objects.order_by("pk").values_list("kind", "title", "text", "by"))
    assert [line[:2] for line in lines] == [("defrag.planned", planned), ("defrag.begun", begun), ("defrag.ended", ended)]
    assert lines[1][2] == "Up to 2 running jobs may be moved until 15:00 UTC. Operator: the gang waits"
    assert lines[2][2] == "Its time is over. 1 of 2 moves was made."
    assert [line[3] for line in lines] == ["Operator", "gpufleet", "gpufleet"], "nobody begins or ends what goes by the clock"
    assert Delivery.objects.get().hook == hook
    page = team.client("viewer").get("/activity/").content.decode()
    assert "A defragmentation has begun" in page


def test_one_that_is_called_off_is_told_to_its_author(team: Personas) -> None:
    found = start(team, starts_at=NOON + timedelta(hours=2))
    defragmentations_tell(now=NOON)
    told()

    defragmentation_stop(access=team.access("other"), found=found, now=NOON + MINUTE)
    defragmentations_tell(now=NOON + MINUTE)

    off = "The defragmentation of 2026-11-20 14:00 UTC is called off"
    assert told() == [("operator", off), ("superuser", off)]
    line = ActivityEntry.objects.latest("pk")
    assert (line.text, line.by) == ("Stopped by Other. No move was made.", "Other")


def test_what_is_planned_and_called_off_between_two_looks_is_told_once(team: Personas) -> None:
    found = start(team, starts_at=NOON + timedelta(hours=2))
    defragmentation_stop(access=team.access("operator"), found=found, now=NOON)

    defragmentations_tell(now=NOON)

    assert told() == [(name, "The defragmentation of 2026-11-20 14:00 UTC is called off") for name in ("other", "superuser")]


def test_one_that_begins_by_rule_is_told_to_all_operators(team: Personas) -> None:
    assert defragmentation_rule(moves=3, reason="60% of what is free is of no use to the queue.", now=NOON)

    defragmentations_tell(now=NOON)

    assert [name for name, _ in told()] == ["operator", "other", "superuser"]
    assert ActivityEntry.objects.get().text == (
        "Up to 3 running jobs may be moved until 13:00 UTC. By rule: 60% of what is free is of no use to the queue."
    )


@pytest.mark.parametrize("chosen", [None, {"failed": ["console"]}])
def test_owners_of_moved_jobs_are_told_of_the_move(chosen, kept_out) -> None:
    """Also where choices were saved before there was such a kind."""
    personas, loop = kept_out
    if chosen:
        NoticeChoices.objects.create(user=personas.users["submitter"], ways=chosen)
    owner = personas.users["submitter"]
    for placed in loop_jobs():
        type(placed).objects.filter(pk=placed.pk).update(owner=owner)
    defragmentation_start(access=personas.access("operator"), moves=2, reason="the gang waits", now=loop.now)
    loop.after(seconds=1).tick()
    moved = [job for job in loop_jobs() if job.state != "running"]
    assert len(moved) == 2
    for job in moved:
        loop.over(job, exit_code=143)

    outbox_turn(now=loop.now)

    notices = Notice.objects.filter(user=owner, kind="moved").order_by("title")
    assert [notice.title for notice in notices] == sorted(f"{job.name} is moved to other GPUs" for job in moved)
    assert {notice.job for notice in notices} == {job.public_id for job in moved}


def loop_jobs() -> list[Job]:
    return list(Job.objects.filter(name__startswith="small-").order_by("pk"))
