"""Jobs and the scheduler over HTTP: what the pages show, for programs."""

from datetime import timedelta

import pytest

from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.models import Checkpoint, Dependency, JobEvent, JobState, LearnedOverrun, Lease, Prediction, Promise
from tests.builders import NOON, attempt, gpu, job, node, outlook, placement, plan, spec_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(personas):
    """Calls as a person: `api("viewer", "get", "/jobs", 200)`."""

    def call(who, method, path, status, body=None, **headers):
        send = getattr(personas.client(who), method)
        more = {"headers": headers} if headers else {}
        path = f"/api/v1{path}"
        answer = send(path, body, content_type="application/json", **more) if body is not None else send(path, **more)
        assert answer.status_code == status, answer.content
        return answer.json()

    return call


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


def test_the_list_has_the_line_of_the_page_and_walks_by_tokens(api, ours):
    for number in range(3):
        outlook(
            job(f"train-{number}", on=ours, submitted_at=NOON + timedelta(minutes=number)), "needs 8 GPUs; 5 are free", "more", predicted_start=NOON
        )

    first = api("viewer", "get", "/jobs?size=2", 200)

    assert [row["name"] for row in first["items"]] == ["train-2", "train-1"]
    assert first["items"][0]["now"] == {"text": "Needs 8 GPUs; 5 are free.", "at": "2026-11-20T12:00:00Z", "before": "starts", "more": 1}
    assert [row["name"] for row in api("viewer", "get", f"/jobs?size=2&after={first['next']}", 200)["items"]] == ["train-0"]
    assert api("viewer", "get", "/jobs?phase=ended", 200)["items"] == []
    assert api("viewer", "get", "/jobs?state=nonsense", 422)["errors"]


def test_a_job_is_told_with_its_attempts_and_places(api, ours):
    running = job("gang", on=ours, state=JobState.RUNNING, launch={"command": ["python", "train.py"]})
    first = attempt(running, ended_at=NOON, outcome="preempted", cause="Gave way.")
    saved = Checkpoint.objects.create(job=running, attempt=first, step=7, verified_at=NOON)
    second = attempt(running, resumed_from=saved)
    placement(running, node("alpha", gpus=2).gpus.get(index=1), worker=3, attempt=second)
    Dependency.objects.create(job=running, on=job("before", on=ours, state=JobState.COMPLETED))

    told = api("viewer", "get", f"/jobs/{running.public_id}", 200)

    assert [(run["number"], run["outcome"], run["resumed_from_step"]) for run in told["attempts"]] == [(2, None, 7), (1, "preempted", None)]
    assert told["attempts"][0]["workers"] == [
        {
            "role": "worker",
            "index": 3,
            "node": "alpha",
            "gpu": 1,
            "gpu_milli": 1000,
            "mig": None,
            "leaving": False,
            "ready": None,
            "ready_since": None,
        }
    ]
    assert told["nodes"] == ["alpha"]
    assert len(told["waits_for"]) == 1
    assert [(row["step"], row["state"]) for row in told["checkpoints"]] == [(7, "complete")]
    assert told["launch"] is None, "what is started may hold secrets, however often people are told not to"
    assert told["may_steer"] is False
    assert api("team_lead", "get", f"/jobs/{running.public_id}", 200)["launch"] == {"command": ["python", "train.py"]}


def test_an_elastic_job_is_told_with_what_it_holds_now(api, personas, ours):
    """Its minimum was told, where pages have what it holds."""
    spec = {"roles": [{"gpus": 2, "min": 1, "max": 4}]}
    grown = job("grown", on=ours, state="running", gpus_milli=2000, spec=spec_of(spec))
    for device in node(gpus=8).gpus.order_by("index")[:6]:
        placement(grown, device)
    waits = job("grows-later", on=ours, gpus_milli=2000, spec=spec_of(spec))

    detail = api("submitter", "get", f"/jobs/{grown.public_id}", 200)
    assert (detail["gpus_milli"], detail["least_milli"], detail["most_milli"]) == (6000, 2000, 8000)
    rows = {row["name"]: (row["gpus_milli"], row["least_milli"]) for row in api("submitter", "get", "/jobs", 200)["items"]}
    assert rows == {"grown": (6000, 2000), "grows-later": (2000, 2000)}
    assert api("submitter", "get", f"/jobs/{waits.public_id}", 200)["gpus_milli"] == 2000
    found = personas.client("submitter").get("/search/suggest?q=grow").json()["groups"][0]["items"]
    assert sorted(one["note"].split(" · ")[2] for one in found) == ["2 GPUs", "6 GPUs"]


def test_why_has_every_reason_with_its_facts_and_no_other_teams_names(api, personas, ours):
    theirs = job("secret", on=personas.nodes["acme/product/search"], state=JobState.RUNNING)
    mine = job("mine", on=ours)
    reasons = [{"code": "topology", "detail": f"{theirs.public_id} holds GPUs there", "held_by": theirs.public_id, "room": 3}]
    outlook(mine, reasons=reasons, would_start_if={"change": "topology.required", "to": "spine"})
    Promise.objects.create(job=mine, until=NOON, after=[theirs.public_id])

    told = api("viewer", "get", f"/jobs/{mine.public_id}/why", 200)

    assert told["reasons"] == [{"code": "topology", "detail": "another job holds GPUs there", "held_by": "another job", "room": 3}]
    assert told["would_start_if"] == {"change": "topology.required", "to": "spine"}
    assert told["promise"] == {"after": ["another job"], "until": "2026-11-20T12:00:00Z"}
    assert api("operator", "get", f"/jobs/{mine.public_id}/why", 200)["reasons"] == reasons


def test_who_holds_what_a_limit_allows_is_told_with_the_reason(api, personas, ours):
    theirs = personas.nodes["acme/product/search"]
    running, secret = (job(name, on=quota, state=JobState.RUNNING, estimate_seconds=3600) for name, quota in (("ours", ours), ("secret", theirs)))
    for holding, minutes in ((running, 10), (secret, 5)):
        placement(holding, gpu(), attempt=attempt(holding, running_at=now() - timedelta(minutes=minutes)))
    mine = job("mine", on=ours)
    limit = {"code": "limit", "detail": "acme uses 2 of its limit of 2", "quota": "acme", "used": 2, "limit": 2, "needed": 2, "type": "H100-SXM-80GB"}
    outlook(mine, reasons=[limit, {"code": "share", "detail": "acme uses 2", "quota": "acme"}])

    told, share = api("viewer", "get", f"/jobs/{mine.public_id}/why", 200)["reasons"]

    first, second = told["holders"]["jobs"]
    assert (first["id"], first["gpus"]) == (running.public_id, 1)
    assert (second["id"], second["name"], second["quota"], second["gpus"]) == ("", "", "", 1)
    assert first["ends_at"] < second["ends_at"] == told["holders"]["enough_at"]
    assert told["holders"]["others"] == 0
    assert "holders" not in share


def test_events_come_the_latest_first_and_only_so_many(api, ours):
    mine = job("mine", on=ours)
    for minute in range(5):
        JobEvent.objects.create(job=mine, at=NOON + timedelta(minutes=minute), to_state="queued", cause=f"cause {minute}")

    assert [event["cause"] for event in api("viewer", "get", f"/jobs/{mine.public_id}/events?limit=2", 200)["items"]] == ["cause 4", "cause 3"]
    api("viewer", "get", f"/jobs/{mine.public_id}/events?limit=0", 422)


def test_events_are_walked_by_pages_and_asked_from_a_moment_on(api, ours):
    mine = job("mine", on=ours)
    for number in range(5):  # two at each moment: a page may end between them
        JobEvent.objects.create(job=mine, at=NOON + timedelta(minutes=number // 2), to_state="queued", cause=f"cause {number}")
    address, told, after = f"/jobs/{mine.public_id}/events?limit=2", [], ""
    while after is not None:
        page = api("viewer", "get", f"{address}&after={after}", 200)
        told += [event["cause"] for event in page["items"]]
        after = page["next"]

    assert told == [f"cause {number}" for number in (4, 3, 2, 1, 0)]
    late = api("viewer", "get", f"{address}&since=2026-11-20T12:01:00Z", 200)
    assert [event["cause"] for event in late["items"]] == ["cause 4", "cause 3"]
    late = api("viewer", "get", f"{address}&since=2026-11-20T12:01:00Z&after={late['next']}", 200)
    assert ([event["cause"] for event in late["items"]], late["next"]) == (["cause 2"], None)
    assert api("viewer", "get", f"{address}&after=nowhere", 422)["errors"][0]["path"] == "after"
    assert api("viewer", "get", f"{address}&since=2026-11-20T12:01:00", 422)["errors"][0]["path"] == "since"


def test_the_scheduler_tells_programs_what_its_page_says(api, ours):
    made = plan(decisions=[{"action": "start", "job": "j-1", "why": {"code": "fits"}}])
    Lease.objects.create(name="tick", holder="w1", epoch=3, wanted=4, done=4)
    job(on=ours)

    told = api("operator", "get", "/scheduler", 200)

    assert (told["state"], told["holder"], told["waiting"], told["unseen"]) == ("watching", "w1", 1, 0)
    assert [row["phase"] for row in told["phases"]] == ["snapshot", "plan", "all"]
    unknown = {"learned": None, "median": None, "jobs": 0, "since": None, "learned_at": None}
    assert told["overrun"] == unknown | {"factor": 1.0, "estimates": "learned"}
    LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=830_000, median_millionths=827_400, jobs=214, since=NOON)
    known = api("operator", "get", "/scheduler", 200)["overrun"]
    assert {name: known[name] for name in ("factor", "learned", "median", "jobs")} == {"factor": 0.83, "learned": 0.83, "median": 0.8274, "jobs": 214}
    QuotaNode.objects.filter(parent=None).update(policy={"estimates": "stated"})
    known = api("operator", "get", "/scheduler", 200)["overrun"]
    assert (known["factor"], known["estimates"], known["learned"]) == (1.0, "stated", 0.83)
    assert api("operator", "get", "/scheduler/plans", 200)["items"][0]["decided"] == 1
    assert api("operator", "get", f"/scheduler/plans/{made.pk}", 200)["decisions"][0]["job"] == "j-1"
    assert api("operator", "get", f"/scheduler/plans/{made.pk}/scenario", 200) == {"format": "gpufleet-scenario/1"}
    api("operator", "get", "/scheduler/plans/99999999", 404)


def test_why_tells_the_first_told_start_and_how_good_such_words_were(api, personas, ours):
    for hours in range(3):
        before = job(f"before-{hours}", on=ours, state=JobState.COMPLETED)
        told_at = now() - timedelta(days=1)
        due = told_at + timedelta(hours=2)
        ranged = {"earliest": due - timedelta(minutes=30), "expected": due, "latest": due + timedelta(minutes=90), "foreseen": due}
        Prediction.objects.create(job=before, at=told_at, started_at=due + timedelta(hours=hours), **ranged)
    mine = job("mine", on=ours)
    outlook(mine, "needs 8 GPUs")
    assert api("viewer", "get", f"/jobs/{mine.public_id}/why", 200)["first_told"] is None
    first = {"earliest": NOON + timedelta(hours=1), "expected": NOON + timedelta(hours=2), "latest": NOON + timedelta(hours=4)}
    Prediction.objects.create(job=mine, at=NOON, foreseen=NOON, **first)

    told = api("viewer", "get", f"/jobs/{mine.public_id}/why", 200)

    assert told["first_told"] == {"at": "2026-11-20T12:00:00Z", "started_at": None} | {
        key: at.isoformat().replace("+00:00", "Z") for key, at in first.items()
    }
    assert told["record"] == {
        "starts": 3,
        "as_far_ahead": False,
        "inside_percent": 66.7,
        "error_s": 3600,
        "width_s": 7200,
        "wait_s": told["record"]["wait_s"],
    }
