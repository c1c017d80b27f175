"""A defragmentation in the browser and over HTTP: previewed, applied, stopped, and by whom."""

from datetime import timedelta

import pytest
from django.urls import reverse

from dashboards.fragmentation.rule import rule_turn
from dashboards.fragmentation.snapshot import Fragments
from dashboards.fragmentation.store import fragmentation_write
from gpufleet.core.times import now
from gpufleet.core.undo import undo_of
from scheduler.models import Defragmentation
from scheduler.services.defragmenting import moves_by_rule
from tests import builders

pytestmark = pytest.mark.django_db


def test_it_is_previewed_with_what_it_opens_and_costs_and_applied(kept_out):
    personas, loop = kept_out
    operator = personas.client("operator")

    page = operator.get(reverse("defragment"), {"moves": 2})

    text = page.content.decode()
    assert page.status_code == 200
    assert "2 jobs would save, move and go on elsewhere" in text
    assert "gang with 8 GPUs would start." in text
    assert "The largest gang of H100-SXM-80GB in one node: 3 → 4 GPUs." in text
    assert "small-0" in text and "Done again" in text
    assert not Defragmentation.objects.exists()
    assert "no set of at most 1 move" not in operator.get(reverse("defragment"), {"moves": 16}).content.decode()

    sent = operator.post(reverse("defragment"), {"moves": 2, "reason": "the gang waits"})
    assert sent.status_code == 302
    found = Defragmentation.objects.get()
    assert (found.moves_most, found.asked_by_name) == (2, "Operator")
    again = operator.post(reverse("defragment"), {"moves": 2, "reason": "once more"})
    assert again.status_code == 409
    assert f"A defragmentation is open until {found.ends_at:%Y-%m-%d %H:%M} UTC. Stop it first, or begin later." in again.content.decode()
    loop.now = now() + timedelta(seconds=1)
    loop.tick()
    found.refresh_from_db()
    assert found.moves_done == 2


def test_it_is_scheduled_with_what_it_would_do_now_and_undone(kept_out):
    operator, begins = kept_out[0].client("operator"), (now() + timedelta(hours=5)).replace(second=0, microsecond=0)
    builders.rate("H100-SXM-80GB", since=now() - timedelta(days=1), micros=2_500_000)
    sent, told = {"moves": 2, "starts_at": f"{begins:%Y-%m-%dT%H:%M}", "reason": "tonight"}, f"{begins:%Y-%m-%d %H:%M} UTC"

    shown = operator.post(reverse("defragment"), {**sent, "reason": "", "preview": "1"}).content.decode()

    assert f"It begins at {told} and is planned again then. This is what it would do now." in shown
    assert "gang with 8 GPUs would start." in shown and "Their owners are notified when they move." in shown
    assert ">Schedule defragmentation</button>" in shown and ">Defragment</button>" not in shown
    assert not Defragmentation.objects.exists()
    costly = kept_out[0].client("superuser").get(reverse("defragment"), {"moves": 2}).content.decode()
    assert ">Defragment</button>" in costly and "GPU-hours would be done again, worth $" in costly
    for wrong in ({"starts_at": "2020-01-01T00:00"}, {"moves": "0"}):
        page = operator.post(reverse("defragment"), {**sent, **wrong, "preview": "1"}).content.decode()
        assert "would start." not in page and page.count("The start must be" if "starts_at" in wrong else "The number of moves must be") == 2

    done = operator.post(reverse("defragment"), sent, follow=True)
    (message,) = done.context["messages"]
    assert str(message) == f"Up to 2 jobs more may move from {told} on for an hour."
    undo = undo_of(message)
    operator.post(undo.address, undo.fields)
    assert Defragmentation.objects.get().state == Defragmentation.State.ENDED


def test_with_too_few_moves_it_says_that_none_would_move_and_who_waits_on(kept_out):
    text = kept_out[0].client("operator").get(reverse("defragment"), {"moves": 1}).content.decode()

    assert "No job would move" in text
    assert "gang would keep waiting: no set of at most 1 move makes room." in text


def test_lasting_fragmentation_starts_one_by_rule_within_its_budget(kept_out, settings):
    settings.SCHEDULER = {**settings.SCHEDULER, "DEFRAGMENT_ABOVE_PERCENT": 50, "DEFRAGMENT_AFTER_S": 300, "DEFRAGMENT_MOVES_PER_HOUR": 3}
    start = now()
    fragments = Fragments()
    for minute in range(4):
        fragmentation_write({start + timedelta(minutes=minute): fragments.take(now=start)})
        assert rule_turn(now=start + timedelta(minutes=minute)) is None, "it must have lasted"

    moment = start + timedelta(minutes=4)
    fragmentation_write({moment: fragments.take(now=start)})
    found = rule_turn(now=moment)

    assert found is not None
    assert (found.moves_most, found.by_rule, found.asked_by_name) == (3, True, "gpufleet")
    assert found.reason == "100% of what is free is of no use to the queue, and for 5 min more than 50%."
    assert rule_turn(now=moment) is None, "one is open"
    Defragmentation.objects.update(state="ended", moves_done=3, ended_at=moment)
    assert rule_turn(now=moment) is None, "the budget of the hour is spent"
    settings.SCHEDULER = {**settings.SCHEDULER, "DEFRAGMENT_ABOVE_PERCENT": 0}
    Defragmentation.objects.all().delete()
    assert rule_turn(now=moment) is None, "it is switched off"


def test_the_rule_acts_although_one_is_scheduled_which_is_previewed_anew(kept_out, settings):
    settings.SCHEDULER = {**settings.SCHEDULER, "DEFRAGMENT_ABOVE_PERCENT": 50, "DEFRAGMENT_AFTER_S": 300, "DEFRAGMENT_MOVES_PER_HOUR": 3}
    personas, start = kept_out[0], now() - timedelta(minutes=4)
    operator, begins = personas.client("operator"), (start + timedelta(days=3)).replace(second=0, microsecond=0)
    operator.post(reverse("defragment"), {"moves": 7, "starts_at": f"{begins:%Y-%m-%dT%H:%M}", "reason": "at the weekend"})
    scheduled = Defragmentation.objects.get()
    fragments = Fragments()
    fragmentation_write({start + timedelta(minutes=minute): fragments.take(now=start) for minute in range(5)})

    found = rule_turn(now=start + timedelta(minutes=4))

    assert found is not None and (found.moves_most, found.by_rule) == (3, True)
    page = operator.get(reverse("fragmentation")).content.decode()
    row = page[page.index("at the weekend") - 1500 : page.index("at the weekend") + 500]
    preview = f"{reverse('defragment')}?moves=7&amp;starts_at={begins:%Y-%m-%dT%H:%M}"
    assert ">Scheduled<" in row and preview in row
    shown = operator.get(preview.replace("&amp;", "&")).content.decode()
    assert f"It begins at {begins:%Y-%m-%d %H:%M} UTC and is planned again then." in shown
    states = {one["id"]: one["state"] for one in operator.get("/api/v1/defragmentations").json()["items"]}
    assert states == {scheduled.public_id: "scheduled", found.public_id: "open"}


@pytest.mark.parametrize(("minutes", "counted"), [(58, 3), (61, 3), (117, 3), (119, 0)])
def test_moves_of_a_rule_count_for_an_hour_from_when_they_were_made(minutes, counted):
    """Asked for at 12:00; the last of three moves was made at 12:58."""
    noon = now()
    ends = {"ends_at": noon + timedelta(minutes=60), "ended_at": noon + timedelta(minutes=58), "state": "ended"}
    facts = {"moves_most": 5, "moves_done": 3, "by_rule": True, "reason": "Test", "asked_by_name": "gpufleet"}
    Defragmentation.objects.create(public_id="df-1", starts_at=noon, asked_at=noon, **ends, **facts)

    assert moves_by_rule(since=noon + timedelta(minutes=minutes - 60)) == counted


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"moves": "0", "reason": "x"}, "The number of moves must be between 1 and 1,000."),
        ({"moves": "many", "reason": "x"}, "The number of moves must be a whole number."),
        ({"moves": "2", "reason": ""}, "A reason is required for the record."),
        ({"moves": "2", "reason": "x", "starts_at": "soon"}, "Enter a date and a time, or leave it empty for now."),
    ],
)
def test_bad_values_are_told_on_the_page(personas, given, message):
    answer = personas.client("operator").post(reverse("defragment"), given)

    assert answer.status_code == 422
    assert message in answer.content.decode()
    assert not Defragmentation.objects.exists()


def test_programs_preview_start_list_and_stop_it(kept_out):
    operator = kept_out[0].client("operator")

    plan = operator.get("/api/v1/fleet/defragmentation", {"moves": 2}).json()
    assert sorted(one["job"] for one in plan["moves"]) == sorted({one["job"] for one in plan["moves"]})
    assert (len(plan["moves"]), [one["gpus_milli"] for one in plan["starts"]]) == (2, [8000])

    made = operator.post("/api/v1/defragmentations", {"moves": 2, "reason": "x"}, content_type="application/json")
    assert made.status_code == 201
    key = made.json()["id"]
    assert [one["id"] for one in operator.get("/api/v1/defragmentations").json()["items"]] == [key]
    assert operator.post(f"/api/v1/defragmentations/{key}/stop").json()["state"] == "ended"
    assert operator.post(f"/api/v1/defragmentations/{key}/stop").status_code == 409
    bad = operator.post("/api/v1/defragmentations", {"moves": 0, "reason": " "}, content_type="application/json")
    assert {one["path"] for one in bad.json()["errors"]} >= {"moves"}
