"""`gpufleet why` as somebody reads it whose job waits."""

import json
from datetime import timedelta

import pytest

from gpufleet.core.times import now
from quotas.models import QuotaShare
from scheduler.models import Job, Prediction
from scheduler.services.forecasts import grounds
from tests import builders
from tests.builders import NOON, job, outlook
from tests.scheduler.loop.worlds import H100, Loop, submit

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


@pytest.fixture
def waiting(personas, ours):
    """It waits for two nodes, of which one and a half are held for two hours."""
    for path in ("acme", "acme/research", ours.path):
        QuotaShare.objects.create(node=personas.nodes[path], gpu_type=H100, guaranteed_milli=16_000)
    for name in ("n1", "n2"):
        builders.node(name, gpus=8)
    loop = Loop()
    loop.now = now()
    running = submit(ours, gpus=4, workers=3, at=loop.now, limit_seconds=7200, name="long")
    loop.tick()
    loop.up(running)
    made = submit(ours, gpus=4, workers=2, at=loop.now, owner=personas.users["submitter"], name="mine")
    loop.after(seconds=1).tick()
    grounds.GROUNDS.forget()
    return Job.objects.get(pk=made.pk)


def test_it_says_who_holds_it_what_would_help_and_what_starts_it_sooner(run, waiting):
    running = Job.objects.get(name="long")

    out = run("why", waiting.public_id, who="submitter", scopes=("read", "submit"))[1]

    assert f"would help: 4 {H100} GPUs more must come free where it may run." in out
    assert f"held by long {running.public_id}: 12 GPUs, until about" in out
    assert "enough is given back in 2 h by estimates" in out
    assert "By estimates it would start sooner (as it is, in 2 h):\n  With 1 worker: now\n" in out
    assert "sooner" not in run("why", waiting.public_id, who="viewer")[1], "who may not change it is told nothing of changes"


def test_programs_have_what_would_start_it_sooner_beside_the_rest(run, waiting):
    told = json.loads(run("why", waiting.public_id, "--json", who="submitter", scopes=("read", "submit"))[1])

    assert [change["path"] for change in told["sooner"]["changes"]] == ["workers"]
    assert json.loads(run("why", waiting.public_id, "--json", who="viewer")[1])["sooner"] is None


def test_while_the_fleet_is_read_the_reasons_are_told_all_the_same(run, waiting, monkeypatch):
    monkeypatch.setattr(grounds.Grounds, "_beside", lambda *_: None)
    monkeypatch.setattr(grounds, "PATIENCE_SECONDS", 0.01)
    monkeypatch.setattr("gpufleet.client.waiting.PATIENCE_SECONDS", 0.0)

    out = run("why", waiting.public_id, who="submitter", scopes=("read", "submit"))[1]

    assert "capacity:" in out and "sooner" not in out


def test_what_it_was_told_first_and_how_good_such_words_were(run, ours):
    before = job("before", on=ours, state="completed")
    told_at = now() - timedelta(days=1)
    due = told_at + timedelta(hours=2)
    Prediction.objects.create(
        job=before, at=told_at, started_at=due + timedelta(minutes=40), foreseen=due, earliest=told_at, expected=due, latest=due
    )
    mine = job("mine", on=ours)
    outlook(mine, "needs 8 GPUs")
    hours = {"earliest": NOON + timedelta(hours=1), "expected": NOON + timedelta(hours=2), "latest": NOON + timedelta(hours=4)}
    Prediction.objects.create(job=mine, at=NOON, foreseen=NOON, **hours)

    out = run("why", mine.public_id)[1]

    assert "First prediction: 2026-11-20 14:00:00 UTC, between 2026-11-20 13:00:00 UTC and 2026-11-20 16:00:00 UTC." in out
    assert "Of the last 1 start foreseen so, 0% lay inside their range; half of them came within 40 min of the prediction." in out


def test_nothing_is_expected_in_the_past_and_moments_are_for_people(run, ours):
    started, over = job("begun", on=ours), job("over", on=ours)
    range_begins = {"predicted_start": now() + timedelta(minutes=2), "earliest_start": NOON}
    outlook(started, "needs 8 GPUs; another job leaves first, by 2026-11-20T12:44:53.165Z", latest_start=now() + timedelta(hours=1), **range_begins)
    outlook(over, "needs 8 GPUs", predicted_start=NOON, earliest_start=NOON, latest_start=NOON + timedelta(hours=1))

    out = run("why", started.public_id)[1]

    assert "by 2026-11-20 12:44 UTC\n" in out
    assert ", between now and " in out
    assert "between" not in run("why", over.public_id)[1]
