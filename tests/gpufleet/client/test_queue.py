"""`gpufleet queue` against a console that answers over HTTP."""

import json

import pytest

from gpufleet.client.calls import Console
from gpufleet.client.place import place_now
from gpufleet.core.times import now
from scheduler.models import Job
from scheduler.services.forecasts import grounds
from tests.builders import NOON, job, node, outlook

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queued(personas):
    """Nine jobs that wait for more than there is free, of which four are the viewer's."""
    node("n1", gpus=8)
    ours, others = personas.nodes["acme/research/nlp"], personas.nodes["acme/product/search"]
    spec = {"roles": [{"name": "worker", "min": 1, "gpus": 4}]}
    made = [
        job(f"job-{number}", on=ours if number % 2 else others, priority=number, gpus_milli=4000, spec=spec, submitted_at=NOON) for number in range(9)
    ]
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())
    yield made
    grounds.GROUNDS.forget()


def test_the_queue_is_printed_in_its_order_with_reasons(run, queued):
    status, out, err = run("queue")

    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split()[:3] == ["TURN", "JOB", "NAME"]
    assert len(lines) == 2 + len(json.loads(run("queue", "--json")[1])["items"])
    assert "goes before" in out
    assert "acme/product" not in out
    assert "jobs in the queue, as of " in lines[-1]


def test_filters_keep_those_that_match_at_their_turns(run, queued, personas):
    Job.objects.filter(pk=queued[1].pk).update(owner=personas.users["submitter"])

    whole = {row["id"]: row["turn"] for row in json.loads(run("queue", "--json", who="superuser")[1])["items"]}
    mine = json.loads(run("queue", "--json", "--owner", "submitter", "--class", "batch", "-q", "job", who="superuser")[1])["items"]

    assert [(row["id"], row["turn"]) for row in mine] == [(queued[1].public_id, whole[queued[1].public_id])]
    assert run("queue", "--label", "stage=a b")[1].startswith("No job that you may see matches; 7 jobs in the whole queue")
    status, _, err = run("queue", "--blocker", "nonsense")
    assert status == 5
    assert "can't be “nonsense”" in err


def test_that_none_of_ones_own_waits_is_said_in_words(run, queued, personas):
    Job.objects.filter(quota=personas.nodes["acme/research/nlp"]).delete()
    grounds.GROUNDS.forget()
    grounds.GROUNDS.read(now())

    out = run("queue")[1]

    assert out.startswith("No job that you may see waits here; 3 jobs in the whole queue, as of ")


def test_a_start_that_has_passed_is_late(run, queued):
    outlook(queued[0], "needs 4 GPUs", predicted_start=NOON)

    told = next(line for line in run("queue", who="superuser")[1].splitlines() if "job-0" in line)

    assert "  late by " in told


def test_a_long_queue_is_walked_to_its_end_and_no_further(run, queued, monkeypatch):
    monkeypatch.setattr("gpufleet.client.queue.MOST_OF_A_PAGE", 2)
    whole = json.loads(run("queue", "--json", who="superuser")[1])["items"]

    assert [row["turn"] for row in whole] == [*range(1, len(whole) + 1)]
    assert len(whole) > 4
    assert [row["id"] for row in json.loads(run("queue", "--json", "-n", "3", who="superuser")[1])["items"]] == [row["id"] for row in whole[:3]]
    assert json.loads(run("queue", "--json", "--team", "acme/product", who="superuser")[1])["items"]


def test_while_the_fleet_is_read_it_asks_again(run, queued, monkeypatch):
    readings = []
    grounds.GROUNDS.forget()
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda grounds, at: readings.append(at))
    monkeypatch.setattr(
        "gpufleet.client.queue.console_meant", lambda: Console(place_now(), pause=lambda seconds: grounds.GROUNDS._make_and_tell(readings[0]))
    )
    status, out, _ = run("queue")

    assert status == 0
    assert len(readings) == 1
    assert "TURN" in out
