"""Submitting over HTTP, once however often it is asked for; and what workers write."""

import threading
from datetime import timedelta

import pytest
from django.db import connection, connections
from django.test import Client
from django.test.utils import CaptureQueriesContext

from gpufleet.core.live.feed import feed_revision
from gpufleet.core.models import AuditEntry, Change
from scheduler.backends.registry import backend_for
from scheduler.models import Job, JobEvent, JobState, SubmissionKey
from scheduler.services.loop.tick import tick_run
from tests.builders import NOON, cluster, job, node

pytestmark = pytest.mark.django_db
WISH = {"name": "train", "quota": "acme/research/nlp", "gpus": 1}


@pytest.fixture
def post(personas):
    node(gpus=2)

    def call(body, status, *, who="submitter", key="", query=""):
        headers = {"Idempotency-Key": key} if key else {}
        answer = personas.client(who).post(f"/api/v1/jobs{query}", body, content_type="application/json", headers=headers)
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


def test_a_submitted_job_waits_and_is_its_callers(post, personas):
    told = post(WISH | {"labels": {"run": "7"}, "launch": {"command": ["true"]}}, 201)

    made = Job.objects.get(public_id=told["jobs"][0]["id"])
    assert (made.state, made.owner, made.labels) == (JobState.QUEUED, personas.users["submitter"], {"run": "7"})
    assert told["count"] == 1 and told["gpus_milli"] == 1000
    assert made.launch["command"] == ["true"]


def test_every_fault_is_told_at_its_path_and_nothing_is_written(post):
    told = post({"name": "", "quota": "acme/research/nlp", "gpus": 1, "colour": "red", "launch": {"command": []}}, 422)

    assert {error["path"] for error in told["errors"]} >= {"name", "colour", "launch.command"}
    assert post(WISH | {"quota": "acme/product/search"}, 422)["errors"][0]["path"] == "quota"
    assert post(WISH | {"gpu_types": ["Z9"]}, 422)["errors"][0]["path"] == "gpu_types"
    assert post([1, 2], 400)["detail"] == "The body is to be a JSON object, and is a list."
    assert post('{"name": tr', 400)["detail"] == "The body is not valid JSON: line 1, column 10: Expecting value."
    assert not Job.objects.exists()


def test_a_dry_run_says_what_it_would_submit(post):
    told = post(WISH | {"workers": 2, "array": {"size": 5}}, 200, query="?dry_run=true", key="k")

    assert (told["count"], told["gpus_milli"], told["jobs"], told["dry_run"]) == (5, 10_000, [], True)
    assert post(WISH | {"quota": "nowhere"}, 422, query="?dry_run=true")["errors"][0]["path"] == "quota"
    assert not Job.objects.exists()
    assert not SubmissionKey.objects.exists()


def test_the_same_key_gives_the_same_jobs(post):
    first = post(WISH | {"array": {"size": 3}}, 201, key="once")
    again = post(WISH | {"array": {"size": 3}}, 200, key="once")

    assert again["jobs"] == first["jobs"]
    assert again["repeated"] is True
    assert Job.objects.count() == 3
    assert "used for something else" in post(WISH | {"name": "other"}, 409, key="once")["detail"]
    post(WISH, 201, key="once", who="team_lead")  # a key is its caller's own
    post(WISH, 422, key="x" * 101)


def test_a_key_whose_submission_was_refused_may_be_used_again(post):
    post(WISH | {"quota": "nowhere"}, 422, key="k")

    post(WISH, 201, key="k")


def test_a_batch_has_a_verdict_for_each(personas, post):
    def batch(*wishes, status=200):
        body = {"jobs": [{"key": key, "description": description} for key, description in wishes]}
        answer = personas.client("submitter").post("/api/v1/submissions", body, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json().get("verdicts")

    first = batch(("a", WISH), ("b", WISH | {"quota": "nowhere"}), ("", WISH | {"array": {"size": 2}}), ("c", WISH | {"gpus": -1}))
    assert [len(verdict["jobs"]) for verdict in first] == [1, 0, 2, 0]
    assert [[fault["path"] for fault in verdict["errors"]] for verdict in first] == [[], ["quota"], [], ["gpus"]]
    assert Job.objects.count() == 3

    again = batch(("a", WISH), ("b", WISH), ("d", WISH), ("c", WISH | {"gpus": -1}))
    assert [verdict["repeated"] for verdict in again] == [True, False, False, False]
    assert again[0]["jobs"] == first[0]["jobs"]
    assert len(again[1]["jobs"]) == 1, "a key whose description was refused may be used again"
    assert batch(("a", WISH | {"name": "x"}))[0]["errors"][0]["path"] == "key"
    assert Job.objects.count() == 5
    twice = batch(("z", WISH), ("z", WISH))
    assert [len(verdict["jobs"]) for verdict in twice] == [1, 0]
    assert twice[1]["errors"][0]["path"] == "key"
    assert Job.objects.count() == 6
    batch(status=422)


@pytest.fixture
def batch(personas):
    node(gpus=2)

    def call(*wishes, query="", who="submitter"):
        answer = personas.client(who).post(f"/api/v1/submissions{query}", {"jobs": list(wishes)}, content_type="application/json")
        assert answer.status_code == 200, answer.content
        return answer.json()["verdicts"]

    return call


SPOILERS = [
    ("text", "description"),
    (None, "description"),
    ([WISH], "description"),
    (WISH | {"name": "a\0b"}, "name"),
    (WISH | {"launch": {"simulated": {"deep": "a\0b"}}}, "launch.simulated.deep"),
    (WISH | {"launch": {"simulated": {"a\0b": 1}}}, "launch.simulated"),
    (WISH | {"launch": {"simulated": {"half": "\ud800"}}}, "launch.simulated.half"),
    (WISH | {"launch": {"simulated": {"huge": 10**30}}}, "launch.simulated.huge"),
    (WISH | {"needs": {"x": float("inf")}}, "needs.x"),
    (WISH | {"after": [{"job": "j-999999"}, 7]}, "after[1]"),
    (WISH | {"after": "j-1"}, "after"),
    (WISH | {"array": {"size": 9_999}}, "array"),
    (WISH | {"deadline": "9999-12-31T23:59:59-12:00"}, "deadline"),
    (WISH | {"not_before": "0001-01-01T00:00:00+12:00"}, "not_before"),
]


@pytest.mark.parametrize(("spoiler", "path"), SPOILERS, ids=[path for _, path in SPOILERS])
def test_one_that_is_no_job_at_all_keeps_none_of_the_others_back(batch, spoiler, path):
    found = batch(
        {"description": WISH | {"array": {"size": 2}}},
        {"key": "k", "description": spoiler},
        {"key": "x" * 101, "description": WISH},
        {"description": WISH},
    )

    assert [len(verdict["jobs"]) for verdict in found] == [2, 0, 0, 1]
    assert path in {error["path"] for error in found[1]["errors"]}
    assert found[2]["errors"][0]["path"] == "key"
    assert Job.objects.count() == 3
    assert not SubmissionKey.objects.exists(), "what was refused may be sent again by its key"


def test_what_can_not_be_written_down_is_told_at_its_path_in_a_single_submission_too(post):
    for spoiler, path in SPOILERS[3:10]:
        told = post(spoiler, 422, key="k")
        assert path in {error["path"] for error in told["errors"]}


def test_a_dry_run_of_many_counts_and_names_faults_and_writes_nothing(batch):
    found = batch({"key": "a", "description": WISH | {"workers": 2, "array": {"size": 5}}}, {"description": {"gpus": "x"}}, query="?dry_run=true")

    assert [(verdict["count"], verdict["gpus_milli"], verdict["jobs"]) for verdict in found] == [(5, 10_000, []), (0, 0, [])]
    assert {error["path"] for error in found[1]["errors"]} >= {"name", "quota", "gpus"}
    assert not Job.objects.exists() and not SubmissionKey.objects.exists()


def test_a_job_of_a_batch_costs_no_query_of_its_own(personas, batch):
    first = batch({"description": WISH})[0]["jobs"][0]["id"]

    def queries(count, turn):
        wishes = [{"key": f"{turn}-{number}", "description": WISH | {"after": [{"job": first}], "array": {"size": 1}}} for number in range(count)]
        with CaptureQueriesContext(connection) as fresh:
            batch(*wishes)
        with CaptureQueriesContext(connection) as again:
            assert all(verdict["repeated"] for verdict in batch(*wishes))
        return len(fresh), len(again)

    queries(1, "warm")
    few, many = queries(5, "few"), queries(90, "many")

    assert few[0] <= 30 and few[1] <= 15
    assert many[0] <= few[0] + 5, "SQLite takes long lists of rows in a few parts"
    assert many[1] == few[1]
    assert AuditEntry.objects.filter(action="job.create").count() == 1 + 1 + 5 + 90


@pytest.mark.django_db(transaction=True)
def test_requests_with_one_key_at_the_same_time_make_one_job(personas):
    node(gpus=1)
    secret = personas.token("submitter", "submit")
    statuses, go = [], threading.Barrier(4)

    def ask():
        go.wait()
        answer = Client().post(
            "/api/v1/jobs", WISH, content_type="application/json", headers={"Authorization": f"Bearer {secret}", "Idempotency-Key": "one"}
        )
        statuses.append((answer.status_code, answer.json()["jobs"][0]["id"]))
        connections.close_all()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert sorted(status for status, _ in statuses) == [200, 200, 200, 201]
    assert len({name for _, name in statuses}) == 1
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("key", ["", "one"])
def test_a_submission_is_told_to_pages_and_calls_the_scheduler_once_it_is_there(personas, monkeypatch, key):
    """On PostgreSQL all of it is sent ahead, and what decides of the calls is read after the commit."""
    node(gpus=1)
    before = feed_revision()
    calls = []
    monkeypatch.setattr("gpufleet.core.live.feed.feed_hint", lambda rev: calls.append((rev, Job.objects.count())))
    monkeypatch.setattr("scheduler.services.loop.lease.tick_call", lambda: calls.append(("tick", Job.objects.count())))
    bearer = {"Authorization": f"Bearer {personas.token('submitter', 'submit')}"}
    told = []
    for number in range(2):
        headers = bearer | ({"Idempotency-Key": f"{key}-{number}"} if key else {})
        answer = Client().post("/api/v1/jobs", WISH | {"name": f"x{number}"}, content_type="application/json", headers=headers)
        told.append(answer.json()["jobs"][0]["id"])

    jobs = list(Job.objects.order_by("id"))
    assert [job.public_id for job in jobs] == told
    changes = [(change.rev, change.topic, change.rows) for change in Change.objects.filter(rev__gt=before).order_by("rev")]
    wanted = [(topic, [{"id": key}]) for job in jobs for topic, key in (("jobs", job.pk), ("overview", 1))]
    assert changes == [(before + place, *one) for place, one in enumerate(wanted, 1)]
    assert calls == [(before + 2, 1), ("tick", 1), (before + 4, 2)], "who finds a wish open has no need to call"
    assert feed_revision() == before + 4
    assert list(JobEvent.objects.order_by("id").values_list("job", "to_state")) == [(job.pk, "queued") for job in jobs]


@pytest.mark.django_db(transaction=True)
def test_batches_that_share_keys_at_the_same_time_make_each_job_once(personas):
    """In opposite orders, as two programs that both try again would send them."""
    node(gpus=1)
    secret = personas.token("submitter", "submit")
    answers, go = [], threading.Barrier(3)
    wishes = [{"key": f"k{number}", "description": WISH | {"name": f"job {number}"}} for number in range(20)]

    def ask(mine):
        go.wait()
        answer = Client().post("/api/v1/submissions", {"jobs": mine}, content_type="application/json", headers={"Authorization": f"Bearer {secret}"})
        answers.append((answer.status_code, {job["name"]: job["id"] for verdict in answer.json()["verdicts"] for job in verdict["jobs"]}))
        connections.close_all()

    threads = [threading.Thread(target=ask, args=(mine,)) for mine in (wishes[:15], wishes[::-1], wishes[5:])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert [status for status, _ in answers] == [200] * 3
    assert Job.objects.count() == 20
    assert {(name, key) for _, told in answers for name, key in told.items()} == set(Job.objects.values_list("name", "public_id"))


def test_what_workers_write_is_read_in_parts_and_from_the_end(post, personas):
    home = cluster()
    name = post(WISH | {"work_s": 30, "launch": {"simulated": {}}}, 201)["jobs"][0]["id"]
    backends = {home.pk: backend_for(home)}
    for second in range(0, 12, 2):
        tick_run(holder="test", now=NOON + timedelta(days=400, seconds=second), backends=backends)
    client = personas.client("submitter")

    def read(**query):
        answer = client.get(f"/api/v1/jobs/{name}/logs", query)
        assert answer.status_code == 200, answer.content
        return answer.json()

    whole = read()
    assert whole["text"] and whole["attempt"] == 1 and whole["role"] == "worker"
    pieces, offset = "", 0
    while part := read(offset=offset, limit=7)["text"]:
        pieces += part
        offset += len(part.encode())
    assert pieces == whole["text"]
    assert read(offset=-10)["text"] == whole["text"].encode()[-10:].decode(errors="ignore")
    page = client.get(f"/jobs/{name}/log/").content.decode()
    assert whole["text"].splitlines()[0].split()[-1] in page
    file = client.get(f"/jobs/{name}/log/?format=text")
    assert b"".join(file.streaming_content).decode() == whole["text"]
    assert "data-log=" in client.get(f"/jobs/{name}/").content.decode()
    assert personas.client("viewer").get(f"/jobs/{name}/log/").status_code == 403
    assert "data-log=" not in personas.client("viewer").get(f"/jobs/{name}/").content.decode()
    for asked, said in {
        "index=7": f"Attempt 1 of {name} had no worker 7; it had worker 0.",
        "role=driver": f"Attempt 1 of {name} had no driver 0; it had worker 0.",
        "attempt=9": f"{name} had no attempt 9.",
    }.items():
        for path in ("logs", "logs/stream"):
            answer = client.get(f"/api/v1/jobs/{name}/{path}?{asked}")
            assert (answer.status_code, answer.json()["detail"]) == (404, said)
    assert personas.client("viewer").get(f"/api/v1/jobs/{name}/logs").status_code == 403


def test_a_job_without_a_run_has_no_log_and_says_so(personas):
    waiting = job(on=personas.nodes["acme/research/nlp"])

    told = personas.client("team_lead").get(f"/api/v1/jobs/{waiting.public_id}/logs").json()

    assert told["note"] == "It has not been started yet."
    assert told["ended"] is False
