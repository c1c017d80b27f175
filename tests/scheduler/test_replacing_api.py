"""Replicas that start anew over HTTP, in the browser and in a terminal: by those who may steer the job, and not over somebody else's change."""

import re

import pytest

from gpufleet.core.times import now
from scheduler.models import Cluster, Job, Order, OrderKind, Replacement, WorkerState
from tests.scheduler.test_replicas_api import ROLE, ask, service  # noqa: F401 - a fixture
from tests.scheduler.test_replicas_pages import shown

pytestmark = pytest.mark.django_db


@pytest.fixture
def served(personas):
    found = service(personas, launch={"ready": {"tcp": {}}})
    for worker in range(2):
        WorkerState.objects.create(attempt=found.attempts.get(), role="server", worker=worker, up=True, ready=True, since=now(), first_at=now())
    return found


def test_a_replacement_is_looked_at_begun_and_stopped(personas, ask, served):  # noqa: F811
    path = "/replacements"
    look = ask("POST", served, {"max_unavailable": 1}, path=f"{path}/preview").json()
    assert (look["role"], look["replicas"]) == ("server", [0, 1])
    assert look["sentences"][0] == "2 replicas of server start anew on their own GPUs, one at a time."
    assert not Replacement.objects.exists()
    tag = ask("GET", served, path=path)["ETag"]
    told = ask("POST", served, {"reason": "New weights."}, 201, path=path, **{"If-Match": tag}).json()
    (row,) = told["items"]
    assert (row["role"], row["by"], row["reason"], row["end"], row["done"]) == ("server", "Submitter", "New weights.", None, 0)
    assert [one["began_at"] is not None for one in row["replicas"]] == [True, False]
    assert Order.objects.get(kind=OrderKind.REPLACE).payload == {"workers": [["server", 0]]}
    assert "being replaced already" in ask("POST", served, {}, 409, path=path).content.decode()
    ask("POST", served, {"reason": "Enough."}, 412, path=f"{path}/stop", **{"If-Match": tag})
    told = ask("POST", served, {"reason": "Enough."}, path=f"{path}/stop").json()
    assert (told["items"][0]["end"], told["items"][0]["why"]) == ("stopped", "Enough.")
    ask("POST", served, {}, 409, path=f"{path}/stop")


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        ({"max_unavailable": 0}, "max_unavailable", "At least 1."),
        ({"within_s": 1}, "within_s", "At least 10s."),
        ({"role": "driver"}, "role", "Choose one of server."),
        ({"reason": "x" * 281}, "reason", "At most 280"),
        ({"count": 2}, "count", "no key"),
    ],
)
def test_what_is_wrong_is_told_at_its_field(personas, ask, served, body, path, words):  # noqa: F811
    (error,) = ask("POST", served, body, 422, path="/replacements").json()["errors"]
    assert error["path"] == path and words in error["message"]
    assert not Replacement.objects.exists()


def test_those_who_may_not_steer_it_see_it_and_change_nothing(personas, ask, served):  # noqa: F811
    ask("GET", served, path="/replacements", who="viewer")
    for tail in ("", "/preview", "/stop"):
        ask("POST", served, {}, 403, path=f"/replacements{tail}", who="viewer")
    assert personas.client("viewer").post(f"/jobs/{served.public_id}/replace/stop/").status_code == 403
    assert not Replacement.objects.exists()


def test_the_page_previews_begins_and_stops_it(personas, served):
    home, address = f"/jobs/{served.public_id}/", f"/jobs/{served.public_id}/replace/"
    assert address in shown(personas, home) and address not in shown(personas, home, who="viewer")
    page = shown(personas, address)
    assert "2 replicas of server start anew on their own GPUs, one at a time." in page and "At least 1 of 2 serve meanwhile" in page
    assert "No replica serves meanwhile." in shown(personas, address, max_unavailable="2", preview="1", revision=str(served.revision))
    for typed, said in ({"max_unavailable": "x"}, "Enter a whole number."), ({"within_s": "soon"}, "Enter a length such as 10m"):
        page = shown(personas, address, status=422, revision=str(served.revision), **typed)
        assert said in page and f'value="{next(iter(typed.values()))}"' in page
    Job.objects.update(revision=served.revision + 1)
    assert "It has changed since" in shown(personas, address, status=409, revision=str(served.revision))
    client = personas.client("submitter")
    assert client.post(address, {"within_s": "5m", "reason": "New weights.", "revision": str(served.revision + 1)}).status_code == 302
    assert Replacement.objects.get().within_seconds == 300
    page = re.sub(r"\s+", " ", client.get(home).content.decode())
    assert re.search(r'<dt>GPUs</dt><dd><span class="value">2</span><span class="note">at least 1; ', page), (
        "what it holds, not the least that it needs"
    )
    assert "Replacing replicas:</strong> 0 of 2" in page and "Server 0 starts anew" in page and address + "stop/" in page
    assert "being replaced already" in shown(personas, address)
    assert client.post(f"{address}stop/").status_code == 302
    page = re.sub(r"\s+", " ", client.get(home).content.decode())
    ended = page[page.index("Last replacement:") :]
    assert re.match(r"Last replacement:</strong> 0 of 2, stopped <time.*?</time>, begun <time.*?</time> by Submitter\.", ended), ended[:300]
    assert address + "stop/" not in page


def test_the_page_says_why_it_cannot_be_done(personas, served):
    Cluster.objects.update(backend="slurm")
    assert "Restart the job instead." in shown(personas, f"/jobs/{served.public_id}/replace/")
    batch = service(personas, ROLE, job_class="batch")
    shown(personas, f"/jobs/{batch.public_id}/replace/", status=404)
