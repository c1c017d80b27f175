"""The command line against a console that answers over HTTP: what it prints, and how it ends."""

import io
import json
import os
import stat
import sys
from datetime import timedelta

import pytest

from gpufleet.cli import main
from gpufleet.client.commands import used_of
from gpufleet.client.words import coloured
from gpufleet.core.times import now
from scheduler.models import JobEvent, JobState, Promise, Wait
from tests.builders import NOON, attempt, gpu, job, node, outlook, placement
from tests.dashboards.worlds import gpus_of, readings

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


def test_a_list_says_what_each_job_waits_for(run, ours):
    waiting = job("big", on=ours, gpus_milli=64_000)
    outlook(waiting, "needs 64 GPUs; 24 are free", "more")
    job("over", on=ours, state=JobState.FAILED)

    status, out, _ = run("ls")

    assert status == 0
    assert out.splitlines()[0].split() == ["JOB", "NAME", "STATE", "SINCE", "GPUS", "CLASS", "TEAM", "NOW"]
    assert waiting.public_id in out and "64" in out and "Needs 64 GPUs; 24 are free. (+1 more)" in out
    assert "over" not in out
    assert "over" in run("ls", "--all")[1]
    assert [row["name"] for row in json.loads(run("ls", "--state", "failed", "--json")[1])["items"]] == ["over"]


def test_a_long_list_is_walked_to_its_end_and_no_further(run, ours, monkeypatch):
    from gpufleet.client.calls import Console

    for number in range(7):
        job(f"train-{number}", on=ours)
    asked = []
    once = Console._once
    monkeypatch.setattr(Console, "_once", lambda self, *words: asked.append(words[1]) or once(self, *words))

    assert len(json.loads(run("ls", "--json", "-n", "5")[1])["items"]) == 5
    assert asked == ["/jobs"]
    assert len(json.loads(run("ls", "--json")[1])["items"]) == 7


def test_mine_are_those_of_the_tokens_owner(run, ours, personas):
    job("mine", on=ours, owner=personas.users["submitter"])
    job("theirs", on=ours)

    out = run("ls", "--mine", who="submitter")[1]

    assert "mine" in out
    assert "theirs" not in out


def test_a_job_is_shown_with_its_attempts(run, ours):
    running = job("gang", on=ours, state=JobState.RUNNING)
    attempt(running, ended_at=NOON, outcome="failed", cause="Exit code 1.", exit_code=1)
    placement(running, node("alpha", gpus=1).gpus.get(), attempt=attempt(running))

    out = run("show", running.public_id)[1]

    assert "Attempt 1: failed" in out and "exit code 1" in out
    assert "worker 0: alpha GPU 0" in out
    assert json.loads(run("show", running.public_id, "--json")[1])["id"] == running.public_id


def test_a_worker_is_a_line_however_many_gpus_it_has(run, ours):
    running = job("gang", on=ours, state=JobState.RUNNING, array="a-7", array_index=2)
    here = attempt(running)
    for name in ("alpha", "beta"):
        for device in node(name, gpus=3).gpus.order_by("index"):
            placement(running, device, attempt=here, worker=int(name == "beta"))

    out = run("show", running.public_id)[1]

    assert "  worker 0: alpha GPUs 0, 1, 2\n  worker 1: beta GPUs 0, 1, 2\n" in out
    assert "Array       a-7, element 2" in out


def test_show_says_what_a_job_used_and_how_busy_it_is(run, ours):
    running = job("gang", on=ours, state=JobState.RUNNING)
    of = node("alpha", gpus=2)
    for worker, device in enumerate(gpus_of(of)):
        placement(running, device, worker=worker)
    readings(dict(zip(gpus_of(of), (60, 20), strict=True)), at=now())

    used = next(line for line in run("show", running.public_id)[1].splitlines() if "Used" in line)

    assert used.split("Used")[1].strip() == "0.00 GPU-hours, 0.8 of 2 GPUs busy now (40%)"
    assert "Used" not in run("show", job("waits", on=ours).public_id)[1]


def test_what_a_job_used_is_told_in_money_to_those_who_see_it():
    usage = {"gpu_hours": 1234.5, "cost_micros": 2_469_000_000, "currency": "EUR", "now": None, "mean_percent": 41, "attempt": 3}

    assert used_of(usage) == "1,234.50 GPU-hours, 2,469.00 EUR, 41% busy in the mean of attempt 3"
    assert used_of(usage | {"cost_micros": None, "mean_percent": None}) == "1,234.50 GPU-hours"


def test_a_job_is_shown_with_when_it_was_put_out_and_what_that_cost(run, ours):
    other, mine = job("eval", on=ours, state=JobState.RUNNING), job("gang", on=ours, state=JobState.PREEMPTED)
    asked = NOON + timedelta(hours=2)
    stopped = {"outcome": "preempted", "stop_to": "preempted", "stop_outcome": "preempted", "stop_cause": "Room.", "stop_asked_at": asked}
    left = attempt(mine, running_at=NOON, ended_at=asked + timedelta(minutes=2), **stopped)
    detail = {"action": "evict", "code": "reclaim", "for": other.public_id}
    JobEvent.objects.create(job=mine, attempt=left, at=asked, from_state="running", to_state="checkpointing", detail=detail)

    out = run("show", mine.public_id)[1]

    assert f"2026-11-20 14:00:00 UTC: Evicted for {other.public_id} (reclaim). Lost: 0 GPU-hours, 2 h 2 min of work: this" in out
    assert "It waits still." in out
    assert "\N{REPLACEMENT CHARACTER}" not in out


def test_show_says_where_the_time_went(run, ours):
    waiting = job("big", on=ours, submitted_at=now() - timedelta(hours=3), state_since=now() - timedelta(hours=3))
    Wait.objects.create(job=waiting, kind="gpus", since=NOON, quota_ms=5_400_000)

    assert "waited 1 h 30 min for quota, waited 1 h 30 min for GPUs\n" in run("show", waiting.public_id)[1]


def test_what_should_have_started_earlier_comes_at_any_moment(run, ours):
    outlook(job("late", on=ours), "needs 8 GPUs; 5 are free", predicted_start=NOON)
    outlook(job("early", on=ours), "needs 8 GPUs; 5 are free", predicted_start=now() + timedelta(hours=3))

    late, early = (next(line for line in run("ls")[1].splitlines() if name in line) for name in ("late", "early"))

    assert "· late by " in late
    assert early.endswith(("· starts in 3 h", "· starts in 2 h 59 min"))


def test_a_promise_is_not_told_as_a_start(run, ours):
    waiting = job("big", on=ours)
    Promise.objects.create(job=waiting, after=[waiting.public_id], until=now() + timedelta(minutes=3))

    assert run("ls")[1].rstrip().endswith(("· expires in 3 min", "· expires in 2 min"))


def test_why_tells_every_reason(run, ours):
    waiting = job("big", on=ours)
    outlook(waiting, "needs 8 GPUs; 5 are free", "second reason", predicted_start=NOON, would_start_if={"change": "topology.required", "to": "spine"})

    out = run("why", waiting.public_id)[1]

    assert "capacity: needs 8 GPUs; 5 are free" in out
    assert "second reason" in out
    assert "Predicted start: 2026-11-20 12:00:00 UTC (late by " in out
    assert "topology.required: spine" in out


def test_why_tells_who_holds_what_a_limit_allows(run, ours):
    holding = job("serving", on=ours, state=JobState.RUNNING)
    placement(holding, gpu(), attempt=attempt(holding))
    waiting = job("big", on=ours)
    facts = {"quota": ours.path, "used": 1, "limit": 1, "needed": 1, "type": "H100-SXM-80GB"}
    outlook(waiting, reasons=[{"code": "limit", "detail": "uses 1 of its limit of 1", **facts}])

    out = run("why", waiting.public_id)[1]

    assert f"held by serving {holding.public_id}: 1 GPU, no known end" in out
    assert "no estimate when" in out


def test_how_commands_end(run, ours, monkeypatch):
    assert run("show", "j-999999")[0] == 4
    assert run("ls", "--state", "nonsense")[0] == 5
    assert run("ls", who="stranger")[0] == 3
    assert run("ls", "--nonsense")[0] == 2
    monkeypatch.setenv("GPUFLEET_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("gpufleet.client.calls.AGAIN_AFTER", (0, 0, 0))
    status, _, err = run("ls")
    assert status == 6
    assert "does not answer" in err
    monkeypatch.setenv("GPUFLEET_URL", "ftp://example.org")
    assert run("ls")[0] == 2


def test_usage_of_several_lines_is_told_line_by_line(run):
    status, out, err = run("submit", "--nonsense")

    lines = err.splitlines()
    assert (status, out) == (2, "")
    assert lines[0] == "Unrecognized arguments: --nonsense."
    assert lines[1].startswith("  usage: gpufleet submit ")
    assert len(lines) > 3 and err.isascii()


@pytest.mark.parametrize(("terminal", "other"), [("stdout", "stderr"), ("stderr", "stdout")])
def test_a_state_is_coloured_for_the_stream_that_it_is_written_to(monkeypatch, terminal, other):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(f"sys.{terminal}.isatty", lambda: True)
    monkeypatch.setattr(f"sys.{other}.isatty", lambda: False)

    assert coloured("failed", getattr(sys, terminal)) == "\x1b[31mfailed\x1b[0m"
    assert coloured("failed", getattr(sys, other)) == "failed"
    assert coloured("failed") == coloured("failed", sys.stdout)


def test_text_of_others_cannot_command_the_terminal(run, ours):
    job("evil\x1b[2Jname", on=ours)

    out = run("ls")[1]

    assert "\x1b" not in out
    assert "evil" in out


def test_a_sign_in_is_kept_for_its_own_console_only(run, ours, monkeypatch, tmp_path, personas, live_server, capsys):
    monkeypatch.setattr(
        "sys.stdin", type("Pipe", (), {"isatty": lambda self: False, "readline": lambda self: personas.token("viewer", "read") + "\n"})()
    )
    assert main(["gpufleet", "login", live_server.url]) == 0
    kept = tmp_path / "config" / "client.json"
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    monkeypatch.delenv("GPUFLEET_TOKEN", raising=False)
    monkeypatch.delenv("GPUFLEET_URL")
    assert main(["gpufleet", "ls"]) == 0

    monkeypatch.setenv("GPUFLEET_URL", "http://127.0.0.1:9")
    assert main(["gpufleet", "ls"]) == 3
    assert "No token for http://127.0.0.1:9" in capsys.readouterr().err


def test_a_token_that_is_wrong_is_not_kept(run, monkeypatch, tmp_path, live_server, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("gf_12345678_wrong\n"))

    assert main(["gpufleet", "login", live_server.url]) == 3
    assert not (tmp_path / "config" / "client.json").exists()
    assert "not known here" in capsys.readouterr().err
