"""The log of one rank of a gang: every line of its own once, none of another's, however the log is cut and wherever it is read."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpufleet.core.times import now
from scheduler.api import log_stream
from scheduler.backends.base import LogPart
from scheduler.models import Attempt, Job, JobState, Placement
from scheduler.presenters.logs import writer_choices
from scheduler.selectors import log_ranks
from scheduler.selectors import log_search as searching
from scheduler.selectors.log_ranks import RankPart, rank_part
from scheduler.selectors.logs import LogSource, job_log, job_writers
from tests.builders import attempt, gpu, job, node, placement
from tests.personas import Personas
from tests.scheduler.test_log_search import Kept
from tests.scheduler.test_log_stream import events, text_of

TEAM = "acme/research/nlp"
WORDS = st.sampled_from([b"", b"x", b"3: no number", b"[1] nor this", "zwölf €".encode(), b"a longer line than others are", b" 2: "])
# Of each line the rank that wrote it; None: the back-end's own word.
LINES = st.lists(st.tuples(st.sampled_from([0, 1, 12, None]), WORDS), max_size=25)
OWN = b"gpufleet: said by the back-end"


def numbered(lines: list[tuple[int | None, bytes]], way: str) -> bytes:
    forms = {"local": b"[%d] %s\n", "slurm": b"%d: %s\n", "srun": b"%2d: %s\n"}
    return b"".join(OWN + b"\n" if rank is None else forms[way] % (rank, words) for rank, words in lines)


def of_rank(lines: list[tuple[int | None, bytes]], wanted: int) -> bytes:
    return b"".join((OWN if rank is None else words) + b"\n" for rank, words in lines if rank in (wanted, None))


def read_on(kept: Kept, *, local: int, limit: int, offset: int = 0, over: bool = False) -> tuple[bytes, int]:
    """All from a place on, part by part, as it is there now; and where that ends."""

    def read(begin: int, most: int) -> LogPart:
        return kept.logs(key="", role="", index=0, offset=begin, limit=most)

    text = b""
    while True:
        part = rank_part(read, local=local, offset=offset, limit=limit, over=over)
        if isinstance(part, LogPart) or part.next_offset == part.offset:
            return text, offset
        assert isinstance(part, RankPart)
        assert offset < part.next_offset <= part.offset + max(limit, 4), "it is never read further than was asked for"
        text, offset = text + part.data, part.next_offset


@given(lines=LINES, way=st.sampled_from(["local", "slurm", "srun"]), limit=st.integers(1, 60), local=st.sampled_from([0, 1, 12, 7]))
def test_each_line_comes_once_to_its_rank_however_it_is_cut(lines: list[tuple[int | None, bytes]], way: str, limit: int, local: int) -> None:
    assert read_on(Kept(numbered(lines, way), ended=True), local=local, limit=limit)[0] == of_rank(lines, local)


SOME: list[tuple[int | None, bytes]] = [(1, b"one"), (12, b"x"), (None, b""), (1, "zwölf €".encode()), (0, b"[1] "), (1, b""), (1, b"last")]


@pytest.mark.parametrize("way", ["local", "slurm", "srun"])
def test_what_is_written_while_one_reads_is_neither_lost_nor_mistaken(way: str) -> None:
    """A file may end anywhere for a while, also within the number of a rank."""
    data = numbered(SOME, way)
    for cut in range(len(data)):
        for limit in (1, 3, 7, 100):
            kept = Kept(data[:cut])
            early, offset = read_on(kept, local=1, limit=limit)
            kept.data, kept.ended = data, True
            late, _ = read_on(kept, local=1, limit=limit, offset=offset)
            assert early + late == of_rank(SOME, 1), (cut, limit)


@pytest.mark.parametrize("way", ["local", "slurm", "srun"])
def test_the_parts_before_and_behind_a_place_meet(way: str) -> None:
    """What the page shows when somebody looks at what is before."""
    data = numbered(SOME, way)
    for place in range(1, len(data)):
        before, met = read_on(Kept(data[:place], ended=True), local=1, limit=place)
        assert met == place
        behind, _ = read_on(Kept(data, ended=True), local=1, limit=50, offset=place)
        cut = data[:place].rfind(b"\n") + 1
        if place - cut > 4:  # behind the number
            assert before + behind == of_rank(SOME, 1), place
        assert behind == of_rank(SOME, 1)[-len(behind) :]


def test_the_rest_of_a_line_is_known_by_its_far_beginning_and_else_left_out() -> None:
    long = b"[1] " + b"x" * 150_000 + b"\n[0] y\n[1] z\n"
    assert read_on(Kept(long, ended=True), local=1, limit=1000)[0] == b"x" * 150_000 + b"\nz\n"
    assert read_on(Kept(long, ended=True), local=0, limit=1000)[0] == b"y\n"
    far = Kept(b"[1] " + b"x" * (log_ranks.BACK[-1] + 10) + b"\n[1] z\n", ended=True)
    assert read_on(far, local=1, limit=1000, offset=log_ranks.BACK[-1] + 8)[0] == b"z\n", "nobody knows whose it is"
    assert read_on(Kept(b"[1] given up\n[1] z\n", begins=6, ended=True), local=1, limit=1000)[0] == b"z\n"


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Kept:
    found = Kept()
    monkeypatch.setattr("scheduler.selectors.logs.backend_for", lambda cluster: found)
    return found


def gang(personas: Personas, *, workers: int, gpus: int, per: str = "gpu", roles: tuple[str, ...] = ("worker",)) -> Job:
    launch = {"command": ["python", "train.py"], "per": per}
    found = job("train", on=personas.nodes[TEAM], owner=personas.users["submitter"], state=JobState.RUNNING, launch=launch)
    run = attempt(found)
    for role in roles:
        for index in range(workers):
            for device in node(gpus=gpus).gpus.all():
                placement(found, device, attempt=run, role=role, worker=index)
    return found


@pytest.mark.django_db
class TestOfAGang:
    def test_ranks_are_numbered_as_their_variable_says(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=3, roles=("driver", "worker"))
        writers = job_writers(of, of.attempts.get())
        assert [(one.role, one.index, list(one.ranks)) for one in writers] == [
            ("driver", 0, [0, 1, 2]),
            ("driver", 1, [3, 4, 5]),
            ("worker", 0, [6, 7, 8]),
            ("worker", 1, [9, 10, 11]),
        ]
        alone = gang(personas, workers=3, gpus=2, per="worker")
        assert [list(one.ranks) for one in job_writers(alone, alone.attempts.get())] == [[0], [1], [2]]

    def test_gpus_that_the_back_end_chose_anew_are_no_further_ranks(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=2)
        first = Placement.objects.filter(job=of, worker=0).order_by("pk")[0]
        Placement.objects.filter(pk=first.pk).update(until=now())
        placement(of, gpu(), attempt=of.attempts.get(), worker=0, node=first.node)
        assert [list(one.ranks) for one in job_writers(of, of.attempts.get())] == [[0, 1], [2, 3]]
        Placement.objects.filter(job=of, until__isnull=True).update(until=now())
        assert [list(one.ranks) for one in job_writers(of, of.attempts.get())] == [[0, 1], [2, 3]]

    def test_one_rank_is_chosen_over_the_api_and_all_of_the_worker_is_the_default(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=2)
        kept.data = b"[0] loading\n[1] loading too\n[0] step 1\n[1] step 1\n"
        client, address = personas.client("submitter"), f"/api/v1/jobs/{of.public_id}/logs"
        whole = client.get(address).json()
        assert (whole["text"], whole["rank"]) == (kept.data.decode(), None)
        told = client.get(address, {"rank": "3"}).json()
        assert (told["role"], told["index"], told["rank"], told["text"]) == ("worker", 1, 3, "loading too\nstep 1\n")
        assert told["next_offset"] == len(kept.data)
        absent = client.get(address, {"rank": "4"})
        assert (absent.status_code, "had no rank 4; it had ranks 0 to 3." in absent.json()["detail"]) == (404, True)
        assert client.get(address, {"rank": "-1"}).status_code == 422
        assert personas.client("viewer").get(address, {"rank": "0"}).status_code == 403

    def test_the_rank_of_a_worker_with_one_process_has_all_of_its_log(self, personas: Personas, kept: Kept) -> None:
        """Also where a line of it looks as if it had a number."""
        of = gang(personas, workers=3, gpus=2, per="worker")
        kept.data = b"1: of two\n[7] x\n"
        told = personas.client("submitter").get(f"/api/v1/jobs/{of.public_id}/logs", {"rank": "2"}).json()
        assert (told["index"], told["rank"], told["text"]) == (2, 2, kept.data.decode())

    def test_a_log_without_numbers_stays_readable(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"2026-11-28 03:00:00 minute 1\n"
        assert job_log(of, attempt=None, role="", index=0, rank=1, offset=0, limit=100).text == kept.data.decode()

    def test_no_character_is_cut(self, personas: Personas, kept: Kept) -> None:
        of, text, offset = gang(personas, workers=1, gpus=2), "", 0
        kept.data = "[1] zwölf €€€ Boxkämpfer\n[0] €\n[1] ä\n".encode()
        while (part := job_log(of, attempt=None, role="", index=0, rank=1, offset=offset, limit=5)).next_offset > offset:
            text, offset = text + part.text, part.next_offset
        assert text == "zwölf €€€ Boxkämpfer\nä\n"

    def test_a_job_that_waits_says_so_whatever_rank_is_asked_for(self, personas: Personas, kept: Kept) -> None:
        waiting = job(on=personas.nodes[TEAM], owner=personas.users["submitter"])
        told = personas.client("submitter").get(f"/api/v1/jobs/{waiting.public_id}/logs", {"rank": "7"}).json()
        assert (told["state"], told["rank"]) == ("not_started", 7)

    def test_a_part_that_is_all_of_others_is_passed_over_and_no_end(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"[0] noise\n" * 100 + b"[1] here\n"
        part = job_log(of, attempt=None, role="", index=0, rank=1, offset=0, limit=500)
        assert (part.text, part.next_offset, part.ended, part.state) == ("", 500, False, "text")
        Attempt.objects.filter(job=of).update(ended_at=now())
        assert not job_log(of, attempt=None, role="", index=0, rank=1, offset=0, limit=500).ended
        last = job_log(of, attempt=None, role="", index=0, rank=1, offset=1009, limit=500)
        assert (last.text, last.ended) == ("", True)


@pytest.mark.django_db
class TestFollowing:
    def ask(self, personas: Personas, of: Job, query: str, last: str = "") -> str:
        headers = {"Last-Event-ID": last} if last else {}
        answer = personas.client("submitter").get(f"/api/v1/jobs/{of.public_id}/logs/stream{query}", headers=headers)
        return b"".join(answer).decode()

    def test_only_its_lines_come_and_each_once(self, personas: Personas, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(log_stream, "PART_BYTES", 11)
        of = gang(personas, workers=1, gpus=2)
        kept.data, kept.ended = b"".join(b"[%d] step %d\n" % (number % 2, number) for number in range(40)), True
        body = self.ask(personas, of, "?rank=1")
        assert text_of(events(body)) == "".join(f"step {number}\n" for number in range(1, 40, 2))
        assert events(body)[-1][0] == "end"

    def test_who_comes_back_is_not_read_again_what_others_wrote(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"[1] first\n" + b"[0] noise\n" * 30_000
        body = self.ask(personas, of, "?rank=1")
        ids = [line[4:] for line in body.splitlines() if line.startswith("id: ")]
        assert ids[-1] == f"1:{len(kept.data)}", "an event without data moves the place on"
        assert text_of(events(body)) == "first\n"
        kept.data += b"[1] last\n"
        assert text_of(events(self.ask(personas, of, "?rank=1", last=ids[-1]))) == "last\n"

    def test_where_it_begins_is_told_also_without_a_line(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"[1] first\n" + b"[0] noise\n" * 100
        ((_, _, said),) = events(self.ask(personas, of, "?rank=1&offset=-500"))
        assert (said["text"], said["offset"], said["rank"]) == ("", 510, 1)


@pytest.mark.django_db
class TestSearch:
    @given(lines=LINES, slices=st.integers(40, 90), limit=st.integers(1, 4), ended=st.booleans())
    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_its_lines_are_found_once_and_counted_alone(
        self, lines: list[tuple[int | None, bytes]], slices: int, limit: int, ended: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = Kept(numbered(lines, "local"), ended=ended)
        source = LogSource(
            1, "worker", 0, False, lambda offset, most: kept.logs(key="", role="", index=0, offset=offset, limit=most), rank=1, local=1
        )
        monkeypatch.setattr(searching, "MOST_BYTES", slices)
        monkeypatch.setattr(searching, "NEAR_LINES", 3)
        monkeypatch.setattr(searching, "log_source", lambda *_, **__: source)
        own = of_rank(lines, 1).decode().split("\n")[:-1]
        found: list[tuple[int, str]] = []
        offset, line, done = 0, 1, False
        while not done:
            answer = searching.log_search(Job(), wanted="n", attempt=None, role="", index=0, rank=1, offset=offset, line=line, limit=limit)
            for hit in answer.hits:
                assert list(hit.before) == own[max(0, hit.line - 1 - len(hit.before)) : hit.line - 1]
                assert list(hit.after) == own[hit.line : hit.line + len(hit.after)]
                assert kept.data[: hit.offset][-1:] in (b"", b"\n")
            found += [(hit.line, hit.text) for hit in answer.hits]
            offset, line, done = answer.next_offset, answer.next_line, answer.done
        assert found == [(number, text) for number, text in enumerate(own, 1) if "n" in text]

    def test_a_line_longer_than_a_slice_is_its_own_rank_s_and_no_other_s(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        long = b"x" * 2 * searching.MOST_BYTES
        kept.data = b"[0] a\n[1] needle " + long + b"needle\n[1] needle two\n[0] needle three " + long + b"needle\n[1] needle four\n"
        client, address = personas.client("submitter"), f"/api/v1/jobs/{of.public_id}/logs/search"
        found: list[tuple[int, str]] = []
        asked: dict[str, str] = {"q": "needle", "offset": "0", "line": "1"}
        while not (told := client.get(address, {**asked, "rank": "1", "limit": "1"}).json())["done"]:
            found += [(hit["line"], hit["text"][:12].strip()) for hit in told["hits"]]
            asked |= {"offset": told["next_offset"], "line": told["next_line"]}
        found += [(hit["line"], hit["text"][:12].strip()) for hit in told["hits"]]
        assert found == [(1, "needle xxxxx"), (2, "needle two"), (3, "needle four")]

    def test_what_comes_behind_such_a_line_is_found_as_ever(self, personas: Personas, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        of = gang(personas, workers=1, gpus=2)
        monkeypatch.setattr(searching, "MOST_BYTES", 30)
        kept.data = b"[0] " + b"x" * 100 + b"\n" + b"".join(b"[1] needle %02d\n" % number for number in range(40))
        answer = searching.log_search(of, wanted="needle", attempt=None, role="", index=0, rank=1, offset=0, line=1)
        assert [hit.line for hit in answer.hits] == list(range(1, 41))

    def test_lines_around_it_are_its_neighbours_or_not_told(self, personas: Personas, kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
        of, noise = gang(personas, workers=1, gpus=2), b"[0] noise.\n"
        monkeypatch.setattr(searching, "MOST_BYTES", 1000)
        kept.data = noise * 80 + b"[1] first\n[1] second\n" + noise * 9 + b"[1] third\n" + noise * 70 + b"[1] needle\n" + noise * 3
        (hit,) = searching.log_search(of, wanted="needle", attempt=None, role="", index=0, rank=1, offset=0, line=1).hits
        assert (hit.line, hit.before) == (4, ()), "too far off"
        (near,) = searching.log_search(of, wanted="third", attempt=None, role="", index=0, rank=1, offset=0, line=1).hits
        assert (near.line, near.before) == (3, ("first", "second"))

    def test_a_number_of_a_rank_is_no_text_of_it(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"[0] a\n[1] b\n[1] a 1\n[0] 1\n"
        told = personas.client("submitter").get(f"/api/v1/jobs/{of.public_id}/logs/search", {"q": "1", "rank": "1"}).json()
        assert [(hit["line"], hit["text"], hit["start"], hit["before"], hit["after"]) for hit in told["hits"]] == [(2, "a 1", 2, ["b"], [])]
        assert (told["rank"], told["next_line"], told["size"]) == (1, 3, len(kept.data))


@pytest.mark.django_db
class TestPages:
    def test_the_page_of_the_job_offers_each_rank(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=2)
        page = personas.client("submitter").get(f"/jobs/{of.public_id}/").content.decode()
        assert '<option value="worker|0|">worker 0, all ranks</option><option value="worker|0|0">worker 0, rank 0</option>' in page
        assert '<option value="worker|1|3">worker 1, rank 3</option></select>' in page

    def test_choices_say_no_more_than_is_needed(self, personas: Personas, kept: Kept) -> None:
        plain = gang(personas, workers=2, gpus=1)
        assert [one.label for one in writer_choices(job_writers(plain, plain.attempts.get()))] == ["worker 0", "worker 1"]
        roles = gang(personas, workers=1, gpus=1, roles=("driver", "worker"))
        assert [one.label for one in writer_choices(job_writers(roles, roles.attempts.get()))] == ["driver 0", "worker 0, rank 1"]

    def test_its_own_page_and_file_have_the_chosen_rank(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=2)
        kept.data = b"[0] <b>zero</b>\n[1] one needle\n"
        client, address = personas.client("submitter"), f"/jobs/{of.public_id}/log/"
        page = client.get(address, {"rank": "3"}).content.decode()
        assert "Attempt 1, worker 1, rank 3" in page
        assert ">one needle\n</pre>" in page
        assert '<option value="">All</option><option>2</option><option selected>3</option>' in page
        assert "&amp;rank=3&amp;format=text" in page
        found = client.get(address, {"rank": "3", "q": "needle"}).content.decode()
        assert "one <mark>needle</mark>" in found
        assert "zero" not in found
        answer = client.get(address, {"rank": "3", "format": "text"})
        assert b"".join(answer) == b"one needle\n"
        assert answer["Content-Disposition"].endswith('-rank-3.log"')
        whole = client.get(address).content.decode()
        assert "[0] &lt;b&gt;zero&lt;/b&gt;\n[1] one needle" in whole

    def test_a_rank_that_was_left_from_another_worker_is_not_meant(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=2, gpus=2)
        kept.data = b"[0] zero\n[1] one\n"
        client, address = personas.client("submitter"), f"/jobs/{of.public_id}/log/"
        page = client.get(address, {"attempt": "1", "role": "worker", "index": "0", "rank": "3"}).content.decode()
        assert ">[0] zero\n[1] one\n</pre>" in page
        kept_choice = client.get(address, {"attempt": "1", "role": "worker", "index": "1", "rank": "3"}).content.decode()
        assert ">one\n</pre>" in kept_choice

    def test_a_file_goes_on_behind_a_stretch_of_others(self, personas: Personas, kept: Kept) -> None:
        of = gang(personas, workers=1, gpus=2)
        kept.data = b"[1] first\n" + b"[0] noise\n" * 60_000 + b"[1] last\n"
        answer = personas.client("submitter").get(f"/jobs/{of.public_id}/log/", {"rank": "1", "format": "text"})
        assert b"".join(answer) == b"first\nlast\n"
