"""What a job starts, on whose account it runs and what that costs an hour: on its page, over the API and by the command line alike."""

from typing import Any

import pytest

from gpufleet.client.launched import HIDDEN, launch_facts, standing_facts
from gpufleet.core.times import now
from quotas.models import LedgerEntry, ShareClass
from scheduler.models import Job, JobState
from scheduler.presenters.standing import standing_told
from tests import builders
from tests.builders import attempt, gpu, job, placement
from tests.dashboards.test_job_usage import H100, entry
from tests.personas import Personas

pytestmark = pytest.mark.django_db
LAUNCH = {
    "image": "registry.example.org/nlp/train:1.4",
    "command": ["python", "train me.py", "--note=<b>"],
    "per": "gpu",
    "workdir": "/data/nlp",
    "env": {"SEED": "7", "NOTE": "<script>alert(1)</script>"},
    "secrets": {"HF_TOKEN": "hub-token"},
}


@pytest.fixture
def running(personas: Personas) -> Job:
    found = job("train", on=personas.nodes["acme/research/nlp"], owner=personas.users["submitter"], state=JobState.RUNNING, launch=LAUNCH)
    placement(found, gpu(), attempt=attempt(found, started_at=now()))
    return found


def page(personas: Personas, who: str, of: Job) -> str:
    answer = personas.client(who).get(f"/jobs/{of.public_id}/")
    assert answer.status_code == 200
    return answer.content.decode()


def test_who_may_steer_it_sees_what_it_starts_and_others_that_it_is_hidden(personas: Personas, running: Job) -> None:
    mine, others = page(personas, "submitter", running), page(personas, "viewer", running)

    for shown in (
        "<code>registry.example.org/nlp/train:1.4</code>",
        "<code>python &#x27;train me.py&#x27; &#x27;--note=&lt;b&gt;&#x27;</code>",
        "<dd>each of its GPUs</dd>",
        "<code>/data/nlp</code>",
        "<code>SEED=7</code>",
        "<code>NOTE=&lt;script&gt;alert(1)&lt;/script&gt;</code>",
        "<code>HF_TOKEN</code> is the secret <code>hub-token</code>",
    ):
        assert shown in mine
    for hidden in ("registry.example.org", "train me.py", "/data/nlp", "SEED", "HF_TOKEN", "hub-token"):
        assert hidden not in others
    assert "are visible to the owner and to managers of jobs of acme/research/nlp" in others
    assert "may read it" in others
    assert personas.client("submitter").get(f"/api/v1/jobs/{running.public_id}").json()["launch"] == LAUNCH
    assert personas.client("viewer").get(f"/api/v1/jobs/{running.public_id}").json()["launch"] is None


def test_the_command_line_says_the_same() -> None:
    assert dict(launch_facts(LAUNCH)) == {
        "Image": "registry.example.org/nlp/train:1.4",
        "Command": "python 'train me.py' '--note=<b>'",
        "Per": "a process for each GPU",
        "Folder": "/data/nlp",
        "Variable": "NOTE=<script>alert(1)</script>",
        "Secret": "HF_TOKEN is hub-token",
    }
    assert launch_facts({"shell": "echo a\n\x1b[2J"})[2:] == [("Script", "echo a"), ("Script", "�[2J"), ("Folder", "")]
    assert launch_facts(None) == [("Starts", HIDDEN)]
    usage: dict[str, Any] = {"micros_per_hour": 2_500_000, "currency": "EUR", "standing": None}
    assert standing_facts(usage) == [("Costs", "2.50 EUR an hour")]
    standing = {"guaranteed_milli": 8000, "reserved_milli": 0, "borrowed_milli": 500, "takers_text": "Others."}
    assert standing_facts(usage | {"micros_per_hour": None, "standing": standing}) == [("Stands as", "8 GPUs guaranteed, 0.5 GPUs borrowed. Others.")]


def test_on_whose_account_it_runs_and_what_that_costs_an_hour_is_told_while_it_runs(personas: Personas, running: Job) -> None:
    builders.rate(H100, since=running.attempts.get().started_at, micros=2_500_000)
    entry(running, now(), None, milli=8000, share=ShareClass.BORROWED)
    entry(running, now(), None, milli=4000, worker=1)
    told = personas.client("finance").get(f"/api/v1/jobs/{running.public_id}/usage").json()

    assert told["micros_per_hour"] == 30_000_000
    assert told["standing"] | {"takers_text": ""} == {
        "kind": "borrowed",
        "guaranteed_milli": 4000,
        "reserved_milli": 0,
        "borrowed_milli": 8000,
        "takers_text": "",
    }
    assert personas.client("viewer").get(f"/api/v1/jobs/{running.public_id}/usage").json()["micros_per_hour"] is None
    shown = page(personas, "viewer", running)
    assert "8 GPUs borrowed, 4 GPUs guaranteed" in shown
    assert "Teams whose guaranteed GPUs it stands on can take them back" in shown
    assert "an hour now" not in shown
    LedgerEntry.objects.update(until=now())
    assert personas.client("viewer").get(f"/api/v1/jobs/{running.public_id}/usage").json()["standing"] is None
    assert "<strong>borrowed</strong>" in shown
    assert "<strong>borrowed</strong>" not in page(personas, "viewer", running)


@pytest.mark.parametrize(
    ("preemptible", "holds", "words"),
    [
        ("no", {"borrowed": 1000}, "It is never preempted: it is not preemptible."),
        ("yes", {"borrowed": 1000, "guaranteed": 1000}, "can take them back"),
        ("when_borrowed", {"borrowed": 1000}, "can take them back"),
        ("when_borrowed", {"guaranteed": 1000}, "It is not preempted while it is within the guarantee."),
        ("yes", {"guaranteed": 1000}, "No other team can take it back while it is within the guarantee"),
        ("yes", {"reserved": 1000}, "while it is within its reservation"),
    ],
)
def test_what_could_take_it_back(preemptible: str, holds: dict[str, int], words: str) -> None:
    told = standing_told(Job(preemptible=preemptible), holds)
    assert told is not None
    assert words in told.takers
    assert standing_told(Job(preemptible=preemptible), {}) is None
