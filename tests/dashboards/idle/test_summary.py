"""The last seven days of idle GPUs: of each episode the part that lies in them."""

from datetime import timedelta

import pytest

from dashboards.idle.models import IdleEpisode
from dashboards.idle.selectors import idle_summary
from gpufleet.core.models import User
from tests import builders
from tests.builders import NOON
from tests.personas import Personas

pytestmark = pytest.mark.django_db
DAY = timedelta(days=1)


def idle(owner: str, *, gpus: int, begun: timedelta, seen: timedelta = timedelta(0), ended: bool = False) -> IdleEpisode:
    """An episode that began and was last seen so long ago, all of it wasted."""
    team = builders.quota("nlp", parent=builders.quota("research", parent=builders.quota()))
    job = builders.job(state="running", on=team, owner=builders.person(owner), gpus_milli=1000 * gpus)
    return IdleEpisode.objects.create(
        public_id=f"e-{owner}",
        job=job,
        attempt=builders.attempt(job),
        quota=team,
        owner=job.owner,
        gpu_type="H100-SXM-80GB",
        waste="empty",
        held_milli=1000 * gpus,
        idle_milli=1000 * gpus,
        activity_centi=0,
        started_at=NOON - begun,
        seen_at=NOON - seen,
        ended_at=NOON - seen if ended else None,
        stage_at=NOON - begun,
        wasted_milli_millis=1000 * gpus * ((begun - seen) // timedelta(milliseconds=1)),
    )


def test_one_that_began_before_the_week_counts_with_its_part_of_it(personas: Personas):
    idle("ada", gpus=64, begun=8 * DAY)
    idle("bob", gpus=1, begun=DAY)
    idle("cleo", gpus=2, begun=9 * DAY, seen=6 * DAY, ended=True)
    idle("dora", gpus=8, begun=20 * DAY, seen=7 * DAY, ended=True)
    idle("emil", gpus=8, begun=20 * DAY, seen=8 * DAY)  # open, but not read for eight days

    told = idle_summary(personas.access("superuser"), now=NOON)

    assert [(one.owner, one.episodes, one.hours_milli) for one in told.worst] == [
        ("ada", 1, 64 * 168_000),
        ("cleo", 1, 2 * 24_000),
        ("bob", 1, 24_000),
    ]
    assert told.week_hours_milli == 64 * 168_000 + 2 * 24_000 + 24_000


def test_who_wasted_most_leads_to_the_episodes(personas: Personas):
    """Of two people with one name each has their own."""
    for name, gpus in (("ada", 64), ("bob", 4)):
        idle(name, gpus=gpus, begun=DAY)
    User.objects.filter(username__in=("ada", "bob")).update(display_name="Ada L.")

    told = idle_summary(personas.access("superuser"), now=NOON)

    assert [(one.owner, one.hours_milli) for one in told.worst] == [("Ada L.", 64 * 24_000), ("Ada L.", 4 * 24_000)]
    page = personas.client("superuser").get(f"/idle/{told.worst[1].rows}").content.decode()
    assert "e-bob" in page and "e-ada" not in page


def test_what_was_not_read_of_it_is_not_added(personas: Personas):
    one = idle("ada", gpus=4, begun=14 * DAY)
    IdleEpisode.objects.filter(pk=one.pk).update(wasted_milli_millis=one.wasted_milli_millis // 4)

    assert idle_summary(personas.access("superuser"), now=NOON).week_hours_milli == 4 * 168_000 // 4


def test_the_summary_takes_three_queries(personas: Personas, django_assert_num_queries):
    idle("ada", gpus=64, begun=8 * DAY)
    idle("bob", gpus=1, begun=DAY)
    access = personas.access("superuser")
    idle_summary(access, now=NOON)

    with django_assert_num_queries(3):
        idle_summary(access, now=NOON)


def test_the_list_from_a_day_on_has_what_was_idle_then(personas: Personas):
    idle("ada", gpus=64, begun=8 * DAY)
    idle("cleo", gpus=2, begun=9 * DAY, seen=6 * DAY, ended=True)
    idle("dora", gpus=8, begun=20 * DAY, seen=9 * DAY, ended=True)
    client = personas.client("superuser")

    listed = client.get("/api/v1/idle", {"from": (NOON - 7 * DAY).date().isoformat()}).json()["items"]

    assert sorted(one["id"] for one in listed) == ["e-ada", "e-cleo"]
