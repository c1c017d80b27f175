"""Scenarios for `gpufleet plan`: of this moment, and of the plans of the last hours."""

import json
from datetime import timedelta

import pytest

from gpufleet.cli import main
from gpufleet.core.times import now
from scheduler.models import PlanRecord
from scheduler.services.loop.tick import Memory, tick_run
from tests.builders import node, plan
from tests.scheduler.loop.worlds import leaf, submit

pytestmark = pytest.mark.django_db(transaction=True)
OPERATOR = {"who": "operator"}


def planned(capsys, tmp_path, text: str, *flags: str) -> list[dict]:
    """What `gpufleet plan` makes of it."""
    (tmp_path / "scenario").write_text(text)
    assert main(["gpufleet", "plan", *flags, str(tmp_path / "scenario")]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_the_scenario_of_now_says_what_the_next_plan_will_decide(run, capsys, tmp_path):
    node(gpus=4)
    waits = submit(leaf("team", 4), gpus=2, at=now())

    status, out, _ = run("scenario", **OPERATOR)

    assert status == 0
    (told,) = planned(capsys, tmp_path, out)
    assert [(one["action"], one["job"]) for one in told["decisions"]] == [("start", waits.public_id)]
    assert not PlanRecord.objects.exists()
    assert "launch" not in out


def test_every_plan_of_the_last_hours_can_be_made_again(run, capsys, tmp_path):
    node(gpus=4)
    memory, start = Memory(), now() - timedelta(minutes=50)
    for minutes in (0, 20, 40):
        submit(leaf("team", 8), gpus=2, at=start + timedelta(minutes=minutes))
        tick_run(holder="one", now=start + timedelta(minutes=minutes), backends={}, memory=memory)
    plan(at=now(), scenario=None)
    kept = list(PlanRecord.objects.filter(scenario__isnull=False).order_by("id"))

    status, out, _ = run("scenario", "--last", "1h", **OPERATOR)

    assert (status, len(kept)) == (0, 3)
    again = planned(capsys, tmp_path, out, "--jsonl")
    assert [one["decisions"] for one in again] == [record.decisions for record in kept]
    assert [one["metrics"] for one in again] == [record.metrics for record in kept]
    assert [one["decisions"] for one in planned(capsys, tmp_path, run("scenario", str(kept[1].pk), **OPERATOR)[1])] == [kept[1].decisions]
    assert len(run("scenario", "--last", "35m", **OPERATOR)[1].splitlines()) == 2


def test_faults_end_it_as_they_end_every_command(run):
    assert run("scenario", "17", **OPERATOR)[0] == 4
    assert run("scenario", "17", "--last", "3h", **OPERATOR)[0] == 2
    assert run("scenario", who="viewer")[0] == 3
