"""Search over a whole log: every line once, in slices of bounded work, whatever the log holds."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.times import now
from scheduler.backends.base import BackendError, LogPart, NotFound, whole_characters
from scheduler.models import Attempt, Job, JobState
from scheduler.selectors import log_search as searching
from scheduler.selectors.log_search import Found, LogSource, lines_found, log_search
from scheduler.selectors.logs import LogState, Unread
from tests.builders import attempt, gpu, job, placement
from tests.personas import Personas

TEAM = "acme/research/nlp"


class Kept:
    """A log as a back-end keeps it, perhaps without its beginning. `asked` is how much was read at once at most."""

    def __init__(self, data: bytes = b"", *, begins: int = 0, ended: bool = False) -> None:
        self.data, self.begins, self.ended = data, begins, ended
        self.reads: list[int] = []

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        size = len(self.data)
        begin = max(self.begins, size + offset if offset < 0 else offset)
        part = self.data[begin : begin + limit]
        part = whole_characters(part) if begin + limit < size else part
        self.reads.append(len(part))
        return LogPart(begin, part, self.ended and begin + len(part) >= size)


def source_of(kept: Kept, *, over: bool = False) -> LogSource:
    return LogSource(1, "worker", 0, over, lambda offset, limit: kept.logs(key="", role="", index=0, offset=offset, limit=limit))


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept()
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: found)
    return found


@pytest.fixture
def running(personas: Personas) -> Job:
    found = job("train", on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.RUNNING)
    placement(found, gpu(), attempt=attempt(found))
    return found


def stretches(of: Job, wanted: str, **more: Any) -> list[Found]:
    """Answers one after the other, until all that is there has been looked at."""
    found: list[Found] = []
    offset, line = 0, 1
    while not found or not found[-1].done:
        found.append(log_search(of, wanted=wanted, attempt=None, role="", index=0, offset=offset, line=line, **more))
        assert (found[-1].next_offset, found[-1].next_line) >= (offset, line)
        assert found[-1].done or found[-1].next_offset > offset
        offset, line = found[-1].next_offset, found[-1].next_line
    return found


LINES = st.lists(
    st.binary(max_size=12).map(lambda data: data.replace(b"\n", b"x")) | st.sampled_from([b"Loss", b"a loss \xc3", "Löss".encode()]), max_size=30
)


@given(lines=LINES, slices=st.integers(20, 60), limit=st.integers(1, 5), ended=st.booleans(), closed=st.booleans())
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_line_is_found_once_however_the_log_is_cut(
    lines: list[bytes], slices: int, limit: int, ended: bool, closed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b"\n".join(lines) + (b"\n" if closed and lines else b"")
    monkeypatch.setattr(searching, "MOST_BYTES", slices)
    monkeypatch.setattr(searching, "log_source", lambda *_, **__: source_of(Kept(data, ended=ended)))
    hits = [hit for found in stretches(Job(), "LOSS", limit=limit) for hit in found.hits]

    whole = lines if closed or ended else lines[:-1]
    expected = [(number, line.decode(errors="replace")) for number, line in enumerate(whole, 1) if b"loss" in line.lower()]
    assert [(hit.line, hit.text) for hit in hits] == [(number, text.rstrip("\r")) for number, text in expected]
    for hit in hits:
        assert hit.text[hit.start : hit.start + hit.length].lower() == "loss"
        assert data[hit.offset :].startswith(lines[hit.line - 1])
        assert list(hit.after) == [line.decode(errors="replace").rstrip("\r") for line in lines[hit.line : hit.line + len(hit.after)]]


@pytest.mark.django_db
class TestOfAJob:
    def test_a_line_is_told_with_its_number_its_place_and_what_stands_around_it(self, running: Job, kept: Kept) -> None:
        kept.data = b"zero\none\ntwo\nan ERROR here\nfour\nfive\nsix\n"
        (found,) = stretches(running, "error")

        (hit,) = found.hits
        assert (hit.line, hit.offset, hit.text, hit.start, hit.length) == (4, 13, "an ERROR here", 3, 5)
        assert (hit.before, hit.after) == (("one", "two"), ("four", "five"))
        assert (found.size, found.next_offset, found.next_line, found.begins_at, found.ended) == (len(kept.data), len(kept.data), 8, 0, False)

    def test_a_large_log_is_read_in_bounded_steps_and_never_whole(self, running: Job, kept: Kept) -> None:
        line = b"step 0000 loss 0.1\n"
        kept.data = line * 1_000_000 + b"the needle\n" + line * 10
        first = log_search(running, wanted="needle", attempt=None, role="", index=0, offset=0, line=1)

        assert (first.done, first.hits) == (False, ())
        assert sum(kept.reads) <= searching.MOST_READ + searching.MOST_BYTES
        assert max(kept.reads) <= searching.MOST_BYTES
        assert first.size == len(kept.data)
        (hit,) = [hit for found in stretches(running, "needle") for hit in found.hits]
        assert (hit.line, hit.offset) == (1_000_001, 1_000_000 * len(line))

    def test_an_answer_has_so_many_lines_and_the_next_goes_on_behind_them(self, running: Job, kept: Kept) -> None:
        kept.data = b"".join(b"a %d\n" % number for number in range(450))
        answers = stretches(running, "A ")

        assert [len(found.hits) for found in answers] == [200, 200, 50]
        assert [hit.line for found in answers for hit in found.hits] == list(range(1, 451))

    def test_a_line_longer_than_memory_should_hold_is_searched_in_pieces(self, running: Job, kept: Kept) -> None:
        kept.data = b"x" * (searching.MOST_BYTES - 3) + b"needle" + b"y" * searching.MOST_BYTES * 2 + b"\nneedle\n"
        hits = [hit for found in stretches(running, "needle") for hit in found.hits]

        assert [hit.line for hit in hits] == [1, 2]
        assert hits[0].text[hits[0].start : hits[0].start + hits[0].length] == "needle"
        assert len(hits[0].text) <= searching.SHOWN
        assert max(kept.reads) <= searching.MOST_BYTES

    def test_what_is_no_longer_kept_is_said_and_lines_are_counted_from_there(self, running: Job, kept: Kept) -> None:
        kept.data, kept.begins = b"gone\nfirst\nsecond\n", 5
        (found,) = stretches(running, "second")
        assert (found.begins_at, found.hits[0].line, found.hits[0].offset) == (5, 2, 11)

    def test_it_goes_on_with_what_is_written_meanwhile(self, running: Job, kept: Kept) -> None:
        kept.data = b"error one\nerror tw"
        (found,) = stretches(running, "error")
        assert [hit.text for hit in found.hits] == ["error one"], "the second has no end yet"
        kept.data += b"o\n"
        more = log_search(running, wanted="error", attempt=None, role="", index=0, offset=found.next_offset, line=found.next_line)
        assert [(hit.line, hit.text) for hit in more.hits] == [(2, "error two")]

    def test_what_has_no_end_is_looked_at_once_nothing_can_be_added(self, running: Job, kept: Kept) -> None:
        kept.data = b"one\nerror: no newline"
        Attempt.objects.filter(job=running).update(ended_at=now())
        (found,) = stretches(running, "error")
        assert ([hit.line for hit in found.hits], found.done, found.ended) == ([2], True, True)

    @pytest.mark.parametrize(
        ("fault", "over", "state", "words"),
        [
            (NotFound("x"), False, LogState.EMPTY, "It has written nothing yet."),
            (NotFound("x"), True, LogState.GONE, "The log is no longer kept"),
            (BackendError("no route"), False, LogState.UNREACHABLE, "can't give it now: no route"),
        ],
    )
    def test_why_nothing_is_found_is_said(self, running: Job, kept: Kept, fault: Exception, over: bool, state: LogState, words: str) -> None:
        def broken(**_: Any) -> LogPart:
            raise fault

        kept.logs = broken  # type: ignore[method-assign]
        Attempt.objects.filter(job=running).update(ended_at=now() if over else None)
        (found,) = stretches(running, "error")
        assert (found.state, found.hits, found.ended) == (state, (), over)
        assert words in found.note

    def test_found_lines_are_a_file_in_whole(self, running: Job, kept: Kept) -> None:
        kept.data = b"".join(b"%d %s\n" % (number, b"x" * 600) for number in range(300))
        assert "".join(lines_found(running, wanted="X", attempt=None, role="", index=0)).splitlines() == [
            f"{number + 1}: {number} {'x' * 600}" for number in range(300)
        ]

    def test_over_the_api_for_those_who_may_steer(self, personas: Personas, running: Job, kept: Kept) -> None:
        kept.data = b"<script>alert(1)</script>\x1b[2J\nplain\n"
        address = f"/api/v1/jobs/{running.public_id}/logs/search"
        told = personas.client("submitter").get(address, {"q": "SCRIPT"}).json()

        assert told["hits"] == [
            {"line": 1, "offset": 0, "text": "<script>alert(1)</script>\x1b[2J", "start": 1, "length": 6, "before": [], "after": ["plain"]}
        ]
        assert (told["done"], told["ended"], told["state"], told["next_line"]) == (True, False, "text", 3)
        assert personas.client("viewer").get(address, {"q": "x"}).status_code == 403
        assert personas.client("stranger").get(address, {"q": "x"}).status_code == 403
        for wrong in ({}, {"q": ""}, {"q": "a\nb"}, {"q": "x" * 201}, {"q": "x", "offset": "-1"}, {"q": "x", "limit": "999"}):
            assert personas.client("submitter").get(address, wrong).status_code == 422, wrong
        assert personas.client("submitter").get(address, {"q": "x", "attempt": "9"}).status_code == 404


@pytest.mark.django_db
def test_the_page_and_the_file_have_what_was_found(personas: Personas, running: Job, kept: Kept) -> None:
    kept.data, client = b"<b>one</b>\ntwo\n" + b"x\n" * 300, personas.client("submitter")
    address = f"/jobs/{running.public_id}/log/"

    page = client.get(address, {"q": " <B> "}).content.decode()
    assert "<mark>&lt;b&gt;</mark>one&lt;/b&gt;" in page
    assert "That is all of it." in page
    assert "No line holds “nowhere”." in client.get(address, {"q": "nowhere"}).content.decode()
    some = client.get(address, {"q": "x"}).content.decode()
    assert f"offset={11 + 4 + 2 * 200}&amp;line=203" in some
    answer = client.get(address, {"q": "x", "format": "found"})
    assert b"".join(answer.streaming_content).decode().splitlines() == [f"{number}: x" for number in range(3, 303)]  # type: ignore[attr-defined]
    assert client.get(address, {"format": "found"}).status_code == 400
    assert personas.client("viewer").get(address, {"q": "x"}).status_code == 403


def test_a_back_end_that_fails_half_way_is_said_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(b"error\n" * 100)
    calls = iter([False, False, False, True])

    def read(offset: int, limit: int) -> LogPart | Unread:
        if next(calls):
            return Unread(LogState.UNREACHABLE, "away", False)
        return kept.logs(key="", role="", index=0, offset=offset, limit=limit)

    monkeypatch.setattr(searching, "MOST_BYTES", 60)
    monkeypatch.setattr(searching, "log_source", lambda *_, **__: LogSource(1, "worker", 0, False, read))
    (found,) = stretches(Job(), "error")
    assert (found.state, found.note, found.ended) == (LogState.UNREACHABLE, "away", False)
    assert len(found.hits) == found.next_line - 1 == found.next_offset // 6 > 0
