"""`gpufleet logs`: all of it, the lines that hold something, and how it ends where there is none."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpufleet.client.calls import Console
from gpufleet.client.place import place_now
from gpufleet.core.times import now
from scheduler.backends.base import BackendError, LogPart, NotFound
from scheduler.models import Attempt, Job, JobState
from scheduler.selectors import log_search
from tests.builders import attempt, gpu, job, node, placement
from tests.scheduler.test_log_search import Kept

pytestmark = pytest.mark.django_db(transaction=True)
Run = Callable[..., tuple[int, str, str]]
SUBMIT = {"who": "submitter", "scopes": ("submit",)}


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept(b"start\nERROR one\nbetween\nerror two\nfar\naway\nfrom\nError three\nend\n")
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: found)
    return found


@pytest.fixture
def running(personas: Any) -> Job:
    found = job("train", on=personas.nodes["acme/research/nlp"], owner=personas.users["submitter"], state=JobState.RUNNING)
    placement(found, gpu(), attempt=attempt(found))
    return found


def test_lines_that_hold_a_text_are_printed_with_their_numbers(run: Run, running: Job, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_search, "MOST_READ", 20)  # many answers, and each line once

    assert run("logs", running.public_id, "--search", "error", **SUBMIT) == (0, "2:ERROR one\n4:error two\n8:Error three\n", "")
    with_more = "1-start\n2:ERROR one\n3-between\n4:error two\n5-far\n--\n7-from\n8:Error three\n9-end\n"
    assert run("logs", running.public_id, "--grep", "error", "--context", "1", **SUBMIT)[:2] == (0, with_more)
    joined = "1-start\n2:ERROR one\n3-between\n4:error two\n5-far\n6-away\n7-from\n8:Error three\n9-end\n"
    assert run("logs", running.public_id, "--search", "error", "--context", "2", **SUBMIT)[:2] == (0, joined)
    hits = [json.loads(line) for line in run("logs", running.public_id, "--search", "error", "--json", **SUBMIT)[1].splitlines()]
    assert [(hit["line"], hit["text"]) for hit in hits] == [(2, "ERROR one"), (4, "error two"), (8, "Error three")]


def test_what_was_not_found_and_what_was_asked_wrongly_is_said(run: Run, running: Job, kept: Kept) -> None:
    assert run("logs", running.public_id, "--search", "x[", **SUBMIT) == (0, "", "No line holds x[.\n")
    for wrong in (["--search", ""], ["--search", "x", "--tail", "9"], ["--search", "x", "--context", "3"], ["--context", "1"], ["--json"]):
        assert run("logs", running.public_id, *wrong, **SUBMIT)[0] == 2, wrong
    assert run("logs", running.public_id, "--search", "x", who="viewer", scopes=("submit",))[0] == 3


def test_a_search_that_follows_tells_what_is_written_meanwhile(run: Run, running: Job, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    more = iter([b"fine\nerror fo", b"ur\n"])

    def write(_: float) -> None:
        kept.data += next(more, b"")
        kept.ended = kept.data.endswith(b"ur\n")

    monkeypatch.setattr("gpufleet.client.logs.console_meant", lambda: Console(place_now(), pause=write))
    status, out, _ = run("logs", running.public_id, "-f", "--search", "error", **SUBMIT)
    assert (status, out.splitlines()[-1], out.count("error four")) == (0, "11:error four", 1)


def test_a_log_reaches_the_terminal_without_commands_to_it(run: Run, running: Job, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.data = b"\x1b[2J\x1b]0;title\x07 error \rhidden\n"
    monkeypatch.setattr("gpufleet.client.words.is_terminal", lambda *_: True)
    monkeypatch.setenv("NO_COLOR", "1")
    _, out, _ = run("logs", running.public_id, "--search", "error", **SUBMIT)
    assert out == "1:�[2J�]0;title� error hidden\n"
    monkeypatch.delenv("NO_COLOR")
    _, out, _ = run("logs", running.public_id, "--search", "error", **SUBMIT)
    assert out == "1:�[2J�]0;title� \x1b[1;31merror\x1b[0m hidden\n"


@pytest.mark.parametrize("words", [[], ["--search", "x"]])
def test_a_log_that_cannot_be_had_is_no_empty_one(run: Run, running: Job, kept: Kept, words: list[str]) -> None:
    fault: list[Exception] = [BackendError("no route")]

    def broken(**_: Any) -> LogPart:
        raise fault[0]

    kept.logs = broken  # type: ignore[method-assign]
    status, out, err = run("logs", running.public_id, *words, **SUBMIT)
    assert (status, out) == (6, "")
    assert "can't give it now: no route" in err
    fault[0] = NotFound("x")
    assert run("logs", running.public_id, *words, **SUBMIT) == (0, "", "It has written nothing yet.\n")
    Attempt.objects.update(ended_at=now())
    status, _, err = run("logs", running.public_id, *words, **SUBMIT)
    assert status == 4
    assert "no longer kept" in err


def test_one_rank_of_a_gang_is_read_followed_and_searched(run: Run, personas: Any, kept: Kept) -> None:
    of = job("train", on=personas.nodes["acme/research/nlp"], owner=personas.users["submitter"], state=JobState.RUNNING, launch={"per": "gpu"})
    one = attempt(of)
    for device in node(gpus=2).gpus.all():
        placement(of, device, attempt=one)
    kept.data, kept.ended = b"[1] first\n" + b"[0] noise\n" * 20_000 + b"[1] last\n", True

    assert run("logs", of.public_id, "--rank", "1", **SUBMIT) == (0, "first\nlast\n", "")
    assert run("logs", of.public_id, "--rank", "1", "-f", **SUBMIT) == (0, "first\nlast\n", "")
    assert run("logs", of.public_id, "--rank", "1", "--search", "last", **SUBMIT) == (0, "2:last\n", "")
    assert run("logs", of.public_id, "--rank", "1", "--tail", "100", **SUBMIT) == (0, "last\n", "")
    status, out, err = run("logs", of.public_id, "--rank", "2", **SUBMIT)
    assert (status, out, "it had ranks 0 to 1" in err) == (4, "", True)
    assert run("logs", of.public_id, "--rank", "1", "--index", "1", **SUBMIT)[0] == 2
