"""The queue: everyone's turn and why, and that nobody learns more of others than that they are there."""

import csv
import re
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from gpufleet.core.times import now
from quotas.models import QuotaShare
from scheduler.engine.model.values import Job as EngineJob
from scheduler.engine.tell.turns import OF_JOBS, OF_NODES, Side, Turn
from scheduler.models import Job
from scheduler.presenters.queue import _OF_JOBS, _OF_NODES, ordinal, why_there
from scheduler.services.forecasts import grounds
from scheduler.services.jobs.steering import job_cancel
from tests import builders
from tests.builders import NOON
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db
NLP, VISION, SEARCH = "acme/research/nlp", "acme/research/vision", "acme/product/search"


@pytest.fixture
def busy(personas: Any) -> Any:
    """Sixteen GPUs, all held, and nobody asked for the queue yet."""
    builders.node("n1", gpus=8)
    builders.node("n2", gpus=8)
    for path, share in (("acme", 16), ("acme/research", 8), ("acme/product", 8), (NLP, 4), (VISION, 4), (SEARCH, 8)):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=1000 * share)
    loop = Loop()
    held = [
        submit(personas.nodes[path], gpus=8, name="runs", limit_seconds=7200, preemptible="no" if path == SEARCH else "yes") for path in (NLP, SEARCH)
    ]
    loop.tick()
    for one in held:
        loop.up(one)
    grounds.GROUNDS.forget()
    return personas


def wait(personas: Any, path: str, name: str, minutes: int, **fields: Any) -> Job:
    return submit(personas.nodes[path], name=name, at=NOON + timedelta(minutes=minutes), **({"gpus": 8} | fields))


@pytest.fixture
def queued(busy: Any) -> dict[str, Job]:
    made = {
        "old": wait(busy, NLP, "old", 1),
        "urgent": wait(busy, NLP, "urgent", 3, priority=80),
        "seen": wait(busy, VISION, "seen", 2),
        "theirs": wait(busy, SEARCH, "theirs", 4),
    }
    grounds.GROUNDS.read(now())
    return made


def get(personas: Any, who: str, address: str = "/jobs/queue/") -> str:
    answer = personas.client(who).get(address)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", answer.content.decode())


def order(personas: Any, who: str, **query: Any) -> dict[str, Any]:
    answer = personas.client(who).get("/api/v1/jobs/queue", query)
    assert answer.status_code == 200, answer.content
    told: dict[str, Any] = answer.json()
    return told


def test_who_sees_all_sees_each_at_his_turn_and_why(busy, queued):
    told = order(busy, "operator")

    assert told["waiting"] == told["visible"] == 4
    assert [row["turn"] for row in told["items"]] == [1, 2, 3, 4]
    assert [row["others_before"] for row in told["items"]] == [0, 0, 0, 0]
    found = {row["name"]: row for row in told["items"]}
    assert found["urgent"]["turn"] < found["old"]["turn"]
    assert found["old"]["by"] == "priority"
    assert found["old"]["why"] == f"Behind {queued['urgent'].public_id} of the same team: priority 80 goes before 50."
    assert (found["urgent"]["turn_of_team"], found["old"]["turn_of_team"]) == (1, 2)
    assert told["items"][0]["why"] == "Next in line."
    page = get(busy, "operator")
    assert page.index(queued["urgent"].public_id) < page.index(queued["old"].public_id)
    assert "priority 80 goes before 50" in page
    assert "of other teams" not in page


def test_others_are_counted_and_not_named(busy, queued):
    all_of_them = {row["id"]: row["turn"] for row in order(busy, "superuser")["items"]}
    told = order(busy, "viewer")

    mine = {queued["old"].public_id, queued["urgent"].public_id}
    assert {row["id"]: row["turn"] for row in told["items"]} == {name: turn for name, turn in all_of_them.items() if name in mine}
    assert (told["waiting"], told["visible"]) == (4, 2)
    assert sum(row["others_before"] for row in told["items"]) + told["others_behind"] == 2
    page = get(busy, "viewer")
    for text in (page, str(told)):
        assert not [name for name in (queued["seen"].public_id, queued["theirs"].public_id, SEARCH, VISION) if name in text]
        assert "acme/product" not in text
    assert re.search(r"jobs? of other teams", page)
    assert told["items"][0]["why"] == (
        "Behind another job: another team is not above its fair share, acme/research/nlp is above its own (8 of 4 GPUs)."
    ), "not the figures of others, either"
    assert "acme/research/vision is not above its fair share (0 of 4 GPUs)" in get(busy, "operator")


def test_a_team_is_shown_alone_and_one_that_is_not_mine_is_empty(busy, queued):
    assert {row["name"] for row in order(busy, "operator", team="acme/research")["items"]} == {"old", "urgent", "seen"}
    assert {row["name"] for row in order(busy, "operator", team="acme/res")["items"]} == set()
    assert order(busy, "viewer", team=SEARCH)["items"] == []
    assert "No job in the queue that you may see matches these filters." in get(busy, "viewer", f"/jobs/queue/?team={SEARCH}")


def shown(personas: Any, who: str, address: str) -> list[str]:
    """The jobs of a page by name, in its order."""
    return re.findall(r'<a href="/jobs/j-\d+/">([^<]+)</a> <span class="under">j-', get(personas, who, f"/jobs/queue/{address}"))


@pytest.mark.parametrize(
    ("address", "names"),
    [
        ("", {"urgent", "old", "seen", "theirs"}),
        ("?team=acme/research", {"urgent", "old", "seen"}),
        ("?team=vision", {"seen"}),
        ("?class=inference", {"seen"}),
        ("?type=H100", {"seen"}),
        ("?owner=submitter", {"old"}),
        ("?label=stage%3Dprod", {"old"}),
        ("?blocker=limit", {"urgent"}),
        ("?state=preempted", {"theirs"}),
        ("?q=urg", {"urgent"}),
        ("?q=team:nlp+owner:submitter", {"old"}),
        ("?team=nlp&blocker=capacity", set()),
        ("?held=yes", {"urgent", "old", "seen", "theirs"}),
    ],
)
def test_filters_leave_the_order_and_the_turns(busy, address, names):
    wait(busy, NLP, "old", 1, owner=busy.users["submitter"], labels={"stage": "prod"})
    urgent = wait(busy, NLP, "urgent", 3, priority=80)
    wait(busy, VISION, "seen", 2, job_class="inference", spec={"roles": [{"name": "worker", "min": 1, "gpus": 8, "gpu_types": [H100]}]})
    theirs = wait(busy, SEARCH, "theirs", 4)
    Job.objects.filter(pk=theirs.pk).update(state="preempted")
    builders.outlook(urgent, "No room in the quota.", code="limit")
    grounds.GROUNDS.read(now())
    every = shown(busy, "operator", "")
    assert len(every) == 4

    assert shown(busy, "operator", address) == [name for name in every if name in names]
    rows = csv_rows(busy, "operator", address)
    assert [row["Job"] for row in rows] == [name for name in every if name in names]
    query = parse_qs(address.removeprefix("?"))
    told = {row["name"]: row["turn"] for row in order(busy, "operator", **query)["items"]} if "held" not in query else None
    assert told is None or told == {name: place for place, name in enumerate(every, 1) if name in names}
    assert [int(row["Turn"]) for row in rows] == [place for place, name in enumerate(every, 1) if name in names]


@pytest.mark.parametrize("query", [{"class": "nonsense"}, {"held": "yes"}, {"sort": "gpus"}, {"from": "x"}, {"nonsense": "1"}])
def test_a_program_is_refused_a_filter_that_can_not_be_read(busy, queued, query):
    answer = busy.client("operator").get("/api/v1/jobs/queue", query)

    assert answer.status_code == 422
    assert [fault["path"] for fault in answer.json()["errors"]] == [*query]


def csv_rows(personas: Any, who: str, address: str) -> list[dict[str, str]]:
    answer = personas.client(who).get(f"/jobs/queue/{address}{'&' if '?' in address else '?'}format=csv")
    assert answer["Content-Disposition"] == 'attachment; filename="queue.csv"'
    return list(csv.DictReader(answer.getvalue().decode().splitlines()))


def test_a_filter_that_can_not_be_read_is_named_and_shown_ones_can_be_taken_off(busy, queued):
    page = get(busy, "operator", "/jobs/queue/?class=nonsense&team=acme/research&sort=gpus&page=1")

    assert "Class can&#x27;t be “nonsense”" in page
    assert "The list can&#x27;t be sorted by “gpus”" in page
    assert 'aria-label="Remove filter Team acme/research"' in page
    assert "1 job that is not shown" in page


def test_the_list_alone_is_answered_to_its_own_filters(busy, queued):
    headers = {"HX-Request": "true", "HX-Target": "table-queue"}
    answer = busy.client("operator").get("/jobs/queue/?team=vision&class=&page=1&job=", headers=headers)

    page = answer.content.decode()
    assert page.lstrip().startswith('<div class="table-region" id="table-queue"')
    assert answer["HX-Push-Url"] == "?team=vision"
    assert busy.client("operator").get("/jobs/queue/?team=", headers=headers)["HX-Push-Url"] == "?q="


def test_pages_keep_the_filters(busy):
    for number in range(60):
        wait(busy, (NLP, VISION)[number % 2], f"job-{number}", number)
    grounds.GROUNDS.read(now())

    page = get(busy, "operator", "/jobs/queue/?team=nlp&size=25")

    assert 'rel="next" href="?team=nlp&amp;size=25&amp;page=2"' in page
    assert len(shown(busy, "operator", "?team=nlp&size=25&page=2")) == 5
    assert 'rel="prev" href="?team=nlp&amp;size=25"' in get(busy, "operator", "/jobs/queue/?team=nlp&size=25&page=2")


def chosen(personas: Any, who: str, **fields: Any) -> Any:
    return personas.client(who).post("/jobs/bulk/", {"list": "queue", "action": "hold", "matching": ""} | fields)


def test_rows_are_chosen_by_those_who_may_change_jobs_and_lead_to_the_preview(busy, queued):
    page = get(busy, "team_lead")
    assert f'<input type="checkbox" name="row" value="{queued["old"].public_id}" form="bulk"' in page
    assert 'id="bulk"' in page
    for part in ('name="row"', 'id="bulk"'):
        assert part not in get(busy, "viewer")

    answer = chosen(busy, "team_lead", row=[queued["old"].public_id, queued["urgent"].public_id], matching="?team=nlp&page=2&job=j-1")

    told = re.sub(r"\s+", " ", answer.content.decode())
    assert "Hold 2 jobs?" in told
    assert '<a href="/jobs/queue/?team=nlp">Queue</a>' in told
    assert '<input type="hidden" name="list" value="queue">' in told


def test_all_that_match_are_those_of_the_queue_in_its_order(busy, queued, monkeypatch):
    """Not those that run, nor those that have no turn."""
    held = wait(busy, NLP, "held", 5)
    Job.objects.filter(pk=held.pk).update(held_at=NOON)
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())

    def sent(**fields: Any) -> list[str]:
        return re.findall(r'name="job" value="(j-\d+):', chosen(busy, "superuser", all="1", **fields).content.decode())

    turns = [row["id"] for row in order(busy, "superuser")["items"]]

    assert sent() == turns
    assert sent(matching="?team=acme/research") == [one for one in turns if one != queued["theirs"].public_id]
    assert "can&#x27;t be “x”" in chosen(busy, "superuser", all="1", matching="?class=x").content.decode()
    monkeypatch.setattr("scheduler.views.bulk.MOST", 2)
    assert sent() == turns[:2]


def test_while_the_fleet_is_read_nothing_is_done_to_all_that_match(busy, monkeypatch):
    grounds.GROUNDS.forget()
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: None)
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)

    answer = chosen(busy, "superuser", all="1")
    assert answer.status_code == 409
    assert "Try again in a moment." in answer.content.decode()
    assert busy.client("viewer").get("/jobs/queue/?format=csv").status_code == 503
    headers = {"HX-Request": "true", "HX-Target": "table-queue"}
    assert busy.client("viewer").get("/jobs/queue/?team=nlp", headers=headers)["HX-Redirect"] == "/jobs/queue/?team=nlp"


def test_pages_go_on_where_the_one_before_ended(busy, queued):
    rows, after, sizes = [], "", []
    while True:
        told = order(busy, "operator", size=3, **({"after": after} if after else {}))
        rows += [row["id"] for row in told["items"]]
        sizes.append(len(told["items"]))
        after = told["next"]
        if after is None:
            break

    assert sizes == [3, 1]
    assert rows == [row["id"] for row in order(busy, "operator")["items"]]
    assert order(busy, "viewer", after=99)["items"] == []
    assert busy.client("viewer").get("/api/v1/jobs/queue", {"size": 0}).status_code == 422


def test_a_page_of_many_asks_no_more_than_one_of_few(busy):
    def asked(who: str) -> tuple[int, int]:
        grounds.GROUNDS.forget()
        grounds.GROUNDS.read(now())
        counts = []
        for address in ("/jobs/queue/", "/jobs/queue/?class=batch&blocker=capacity&team=acme&type=H100"):
            busy.client(who).get(address)
            with CaptureQueriesContext(connection) as seen:
                assert busy.client(who).get(address).status_code == 200
            counts.append(len(seen))
        return counts[0], counts[1]

    for path in (NLP, VISION, SEARCH):
        wait(busy, path, "one", 1)
    few = {who: asked(who) for who in ("viewer", "operator")}
    for number in range(60):
        wait(busy, (NLP, VISION, SEARCH)[number % 3], f"job-{number}", number % 7)

    assert {who: asked(who) for who in few} == few


def test_the_page_of_a_job_opens_where_it_stands(busy):
    made = [wait(busy, NLP, f"job-{number}", 1, priority=number) for number in range(70)]
    grounds.GROUNDS.read(now())

    page = get(busy, "viewer", f"/jobs/queue/?job={made[0].public_id}")
    assert f'href="/jobs/{made[0].public_id}/"' in page
    assert f'href="/jobs/{made[69].public_id}/"' not in page
    assert 'rel="prev"' in page
    assert 'class="named"' in page
    assert f'href="/jobs/{made[69].public_id}/"' in get(busy, "viewer", "/jobs/queue/?page=nonsense")
    assert f'href="/jobs/{made[0].public_id}/"' in get(busy, "viewer", "/jobs/queue/?page=99")
    assert "j-99999 was not in the queue" in get(busy, "viewer", "/jobs/queue/?job=j-99999")


def test_who_has_left_since_is_told_so(busy, queued):
    job_cancel(access=busy.access("superuser"), job=queued["old"], reason="test", now=NOON + timedelta(minutes=6))

    row = next(row for row in order(busy, "viewer")["items"] if row["id"] == queued["old"].public_id)
    assert (row["state"], row["waits_for"], row["predicted_start"]) == ("cancelled", "", None)
    assert "Cancelled" in get(busy, "viewer")


def test_a_jobs_page_says_its_turn_where_the_order_is_at_hand_and_works_out_none(busy, queued, monkeypatch):
    address = f"/jobs/{queued['old'].public_id}/"
    before = get(busy, "viewer", address)
    assert "in the queue</a>:" not in before
    assert f"/jobs/queue/?job={queued['old'].public_id}" in before

    turn = next(row for row in order(busy, "viewer")["items"] if row["name"] == "old")
    assert f"{ordinal(turn['turn'])} in the queue</a>: {turn['why']}" in get(busy, "viewer", address)
    monkeypatch.setattr(grounds.Grounds, "_see_to_it", None)
    assert "priority 80 goes before 50" in get(busy, "viewer", address), "nothing is read for it"


def test_while_the_fleet_is_read_one_is_asked_to_come_again(busy, monkeypatch):
    readings: list[Any] = []
    grounds.GROUNDS.forget()
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: readings.append(at))
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)

    answer = busy.client("viewer").get("/api/v1/jobs/queue")
    assert (answer.status_code, answer["Retry-After"], answer.json()["retry_after_s"]) == (202, "1", 1)
    page = busy.client("viewer").get("/jobs/queue/")
    assert page["Refresh"] == "1"
    assert "Computing the order" in page.content.decode()
    assert len(readings) == 1

    grounds.GROUNDS._make_and_tell(readings[0])
    page = busy.client("viewer").get("/jobs/queue/")
    assert "Refresh" not in page
    assert "The queue is empty." in page.content.decode()


def test_the_order_is_worked_out_once_for_each_reading(busy, queued, monkeypatch):
    asked: list[int] = []
    turns = grounds.turns
    monkeypatch.setattr(grounds, "turns", lambda *words: asked.append(1) or turns(*words))
    for _ in range(3):
        order(busy, "viewer")
        order(busy, "operator")

    assert len(asked) == 1


def test_every_fact_has_its_words():
    assert set(_OF_JOBS) == set(OF_JOBS)
    assert set(_OF_NODES) == set(OF_NODES)


@pytest.mark.parametrize(
    ("by", "told"),
    [
        ("fair", "acme/a is not above its fair share (2 of 8 GPUs), acme/b is above its own (9 of 6 GPUs)."),
        ("guarantee", "acme/a stays within its guarantee (3 of 4 GPUs with the job), acme/b would not (10 of 5 GPUs with the job)."),
        ("node_priority", "the priority of acme/a (200) goes before that of acme/b (100)."),
        (
            "share_with",
            "with its next job acme/a takes less of its fair share (38%, 3 of 8 GPUs) than acme/b (99%, 10 of 10.1 GPUs).",
        ),
        ("share", "acme/a uses less of its fair share (25%, 2 of 8 GPUs) than acme/b (89%, 9 of 10.1 GPUs)."),
        ("nothing", "acme/a has a fair share, acme/b has none."),
        ("counted_on", "acme/a and acme/b use the same part of their fair shares, and the share of acme/a is smaller."),
        ("age", "acme/a and acme/b are level, and acme/a is older."),
    ],
)
def test_teams_are_told_apart_in_words(by: str, told: str) -> None:
    kind: Any = None
    one, other = EngineJob("j-1", "acme/a", kind, 0), EngineJob("j-2", "acme/b", kind, 0)
    theirs = Side("acme/a", 2000, 1000, 8000, 4000, 8000, 200)
    ours = Side("acme/b", 9000, 1000, 6000, 5000, 10_125, 100)

    assert why_there(Turn(2, 1, other, one, by, ours, theirs)) == f"Behind j-1: {told}"


def test_numbers_of_turns():
    assert [ordinal(number) for number in (1, 2, 3, 4, 11, 12, 13, 21, 102, 111, 1003)] == [
        "1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th", "1,003rd",
    ]  # fmt: skip
