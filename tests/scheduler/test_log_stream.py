"""A log as a stream of events: all of it, once, to its end, for those who may read it, however often the connection is new."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from django.db import transaction

from gpufleet.core.times import now
from scheduler.api import log_stream
from scheduler.backends.base import LogPart, NotFound, whole_characters
from scheduler.models import Attempt, Job, JobState
from tests.browser.harness import LiveConsole
from tests.builders import attempt, gpu, job, placement
from tests.personas import Personas
from tests.servers import wait_until

TEAM = "acme/research/nlp"


class Writing:
    """A back-end that has one log, which grows when the test says so."""

    def __init__(self) -> None:
        self.text = ""
        self.ended = False
        self.asked = 0

    def logs(self, *, key: str, role: str, index: int, offset: int, limit: int) -> LogPart:
        self.asked += 1
        if index or role != "worker":
            raise NotFound("nobody")
        kept = self.text.encode()
        begin = max(0, len(kept) + offset) if offset < 0 else offset
        part = whole_characters(kept[begin : begin + limit])
        return LogPart(begin, part, self.ended and begin + len(part) >= len(kept))


@pytest.fixture
def writing(monkeypatch: pytest.MonkeyPatch) -> Writing:
    back_end = Writing()
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: back_end)
    return back_end


def running(personas: Personas) -> Job:
    found = job("train", on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.RUNNING)
    placement(found, gpu(), attempt=attempt(found))
    return found


def events(body: str) -> list[tuple[str, str, Any]]:
    """Kind, id and value of each event, as a browser reads them."""
    found = []
    for block in body.split("\n\n"):
        fields = dict(line.partition(": ")[::2] for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in fields:
            found.append((fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])))
    return found


def text_of(found: list[tuple[str, str, Any]]) -> str:
    return "".join(value["text"] for kind, _, value in found if not kind)


@pytest.mark.django_db
class TestWhatIsThere:
    def ask(self, personas: Personas, who: str, of: Job, query: str = "", last: str = "", status: int = 200) -> list[tuple[str, str, Any]]:
        headers = {"Last-Event-ID": last} if last else {}
        answer = personas.client(who).get(f"/api/v1/jobs/{of.public_id}/logs/stream{query}", headers=headers)
        assert answer.status_code == status, answer.content if not answer.streaming else answer
        return events(b"".join(answer).decode()) if status == 200 else []

    def test_every_byte_comes_once_and_the_end_is_said(self, personas: Personas, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_stream, "PART_BYTES", 7)
        writing.text, writing.ended = "zwölf Boxkämpfer\n\nevent: end\ndata: {}\n\n\x1b[2J", True
        found = self.ask(personas, "submitter", running(personas))

        assert text_of(found) == writing.text
        assert len(found) > 4
        assert [kind for kind, _, _ in found].count("end") == 1
        assert found[-1][0] == "end"
        assert found[-1][2] == {"attempt": 1, "next_offset": len(writing.text.encode())}

    def test_it_goes_on_behind_the_last_event(self, personas: Personas, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_stream, "PART_BYTES", 5)
        writing.text, of = "one\ntwo\nthree\nfour\n", running(personas)
        whole = self.ask(personas, "submitter", of)
        for place, (_, name, _) in enumerate(whole):
            assert text_of(whole[: place + 1]) + text_of(self.ask(personas, "submitter", of, last=name)) == writing.text
            # What the address says is where the first connection began.
            assert text_of(self.ask(personas, "submitter", of, "?offset=-3&attempt=1", last=name)) == text_of(whole[place + 1 :])
        assert "end" not in [kind for kind, _, _ in whole], "it may yet write"

    def test_the_end_of_it_is_enough(self, personas: Personas, writing: Writing) -> None:
        writing.text = "one\ntwo\nthree\n"
        assert text_of(self.ask(personas, "submitter", running(personas), "?offset=-6")) == "three\n"

    def test_why_there_is_nothing_is_said(self, personas: Personas, writing: Writing) -> None:
        waiting = job(on=personas.nodes[TEAM], owner=personas.users["submitter"])
        assert [value["note"] for _, _, value in self.ask(personas, "submitter", waiting)] == ["It has not been started yet."]
        gone = job(on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.CANCELLED, ended_at=now())
        assert [kind for kind, _, _ in self.ask(personas, "submitter", gone)] == ["", "end"]

    def test_it_is_for_those_who_may_steer(self, personas: Personas, writing: Writing) -> None:
        of = running(personas)
        asked = writing.asked
        self.ask(personas, "viewer", of, status=403)
        self.ask(personas, "stranger", of, status=403)
        self.ask(personas, "anonymous", of, status=401)
        theirs = job(on=personas.nodes["acme/product/search"])
        self.ask(personas, "submitter", theirs, status=404)
        assert writing.asked == asked

    @pytest.mark.parametrize("last", ["1", "x:1", "0:5", "1:-1", "1:1:1", f"1:{10**20}"])
    def test_an_id_that_is_none_is_refused(self, personas: Personas, writing: Writing, last: str) -> None:
        address = f"/api/v1/jobs/{running(personas).public_id}/logs/stream"
        answer = personas.client("submitter").get(address, headers={"Last-Event-ID": last})
        assert (answer.status_code, [fault["path"] for fault in answer.json()["errors"]]) == (422, ["Last-Event-ID"])

    def test_a_stream_that_is_over_makes_room(self, personas: Personas, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_stream, "_places", log_stream.Places(most=3, each=2))
        of = running(personas)
        address = f"/api/v1/jobs/{of.public_id}/logs/stream"
        client = personas.client("submitter")
        first, second = client.get(address), client.get(address)
        refused = client.get(address)
        assert refused.status_code == 429
        assert refused["Retry-After"] == "5"
        others = personas.client("operator").get(address)
        assert others.status_code == 200, "one caller leaves room for the others"
        assert personas.client("superuser").get(address).status_code == 429, "all of them together have an end as well"
        assert b"".join(others)
        assert b"".join(first)
        assert client.get(address).status_code == 200
        assert b"".join(second)


@pytest.fixture
def console(transactional_db: None) -> Iterator[LiveConsole]:
    served = LiveConsole()
    served.start()
    yield served
    served.stop()


class Reader(threading.Thread):
    """A real client on a real connection."""

    def __init__(self, address: str, token: str, last: str = "") -> None:
        super().__init__(daemon=True)
        self.address, self.headers = address, {"Authorization": f"Bearer {token}", **({"Last-Event-ID": last} if last else {})}
        self.body, self.over, self.leave = "", False, False
        self.start()

    def run(self) -> None:
        with httpx.stream("GET", self.address, headers=self.headers, timeout=60, trust_env=False) as answer:
            assert answer.headers["content-type"].startswith("text/event-stream")
            for piece in answer.iter_text():
                self.body += piece
                if self.leave:
                    return
        self.over = True

    @property
    def text(self) -> str:
        return text_of(events(self.body[: self.body.rfind("\n\n") + 2]))


def test_many_follow_one_log_while_others_are_answered(console: LiveConsole, personas: Personas, writing: Writing) -> None:
    of, token = running(personas), personas.token("submitter", "submit")
    address = f"{console.origin}/api/v1/jobs/{of.public_id}/logs/stream"
    writing.text = "begins\n"
    readers = [Reader(address, token) for _ in range(12)]
    wait_until(lambda: all(reader.text == "begins\n" for reader in readers), what="everybody to have what is there")

    began = time.monotonic()
    assert httpx.get(f"{console.origin}/api/v1/me", headers=readers[0].headers, trust_env=False, timeout=30).status_code == 200
    assert time.monotonic() - began < 10, "those who follow keep nobody waiting"
    writing.text += "goes on\n"
    wait_until(lambda: all(reader.text == writing.text for reader in readers), what="everybody to have what was added")
    writing.text += "ends\n"
    writing.ended = True
    wait_until(lambda: all(reader.over for reader in readers), what="everybody to be told the end")

    assert {reader.text for reader in readers} == {"begins\ngoes on\nends\n"}
    assert all(events(reader.body)[-1][0] == "end" for reader in readers)


def test_who_comes_back_misses_nothing(console: LiveConsole, personas: Personas, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "STREAM_SECONDS", 0.5)
    of, token = running(personas), personas.token("submitter", "submit")
    address, last, text = f"{console.origin}/api/v1/jobs/{of.public_id}/logs/stream", "", ""
    for number in range(4):
        writing.text += f"line {number}\n"
        writing.ended = number == 3
        reader = Reader(address, token, last)
        wait_until(lambda reader=reader: reader.over, what="an answer to be over")
        text += reader.text
        last = [name for _, name, _ in events(reader.body) if name][-1]
    assert text == writing.text == "line 0\nline 1\nline 2\nline 3\n"


def test_who_has_gone_is_read_for_no_longer(console: LiveConsole, personas: Personas, writing: Writing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_stream, "_places", log_stream.Places(most=1))
    monkeypatch.setattr(log_stream, "SOON_SECONDS", 0.01)
    monkeypatch.setattr(log_stream, "SELDOM_SECONDS", 0.01)
    of, token = running(personas), personas.token("submitter", "submit")
    address = f"{console.origin}/api/v1/jobs/{of.public_id}/logs/stream"
    writing.text = "x\n"
    reader = Reader(address, token)
    wait_until(lambda: reader.text, what="it to be told")
    reader.leave = True

    def free() -> bool:
        give_back = log_stream._places.take("somebody else")
        if give_back is not None:
            give_back()
        return give_back is not None

    wait_until(free, what="its place to be free")
    asked = writing.asked
    for _ in range(3):
        assert httpx.get(f"{console.origin}/api/v1/me", headers=reader.headers, trust_env=False, timeout=30).status_code == 200
    assert writing.asked == asked


def test_a_log_begins_with_the_run(console: LiveConsole, personas: Personas, writing: Writing) -> None:
    of, token = job(on=personas.nodes[TEAM], owner=personas.users["submitter"]), personas.token("submitter", "submit")
    reader = Reader(f"{console.origin}/api/v1/jobs/{of.public_id}/logs/stream", token)
    wait_until(lambda: "It has not been started yet." in reader.body, what="it to wait")
    writing.text, writing.ended = "runs\n", True
    with transaction.atomic():
        of.state = JobState.RUNNING
        of.save(update_fields=["state"])
        placement(of, gpu(), attempt=attempt(of))
    wait_until(lambda: reader.over, what="the end")
    assert reader.text == "runs\n"
    assert Attempt.objects.filter(job=of).count() == 1
