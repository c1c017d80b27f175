"""The replicas of a service in the browser: the panel of its page, and the form that sets another number."""

import re

import pytest

from gpufleet.core.times import now
from scheduler.models import Job, JobState, Scaling, WorkerState
from scheduler.services.forecasts.grounds import GROUNDS
from tests.builders import attempt, job, node, placement, spec_of

pytestmark = pytest.mark.django_db
ROLE = {"name": "server", "min": 1, "max": 4, "gpus": 1}


@pytest.fixture
def served(personas):
    owner, team = personas.users["submitter"], personas.nodes["acme/research/nlp"]
    spec = spec_of({"roles": [ROLE], "grace_s": 30})
    found = job("serve", on=team, owner=owner, state=JobState.RUNNING, job_class="inference", spec=spec, gpus_milli=1000)
    run = attempt(found, running_at=now())
    for number, gpu in enumerate(node(gpus=2).gpus.order_by("index")):
        placement(found, gpu, attempt=run, worker=number, role="server")
    return found


def shown(personas, address, who="submitter", status=200, **sent):
    client = personas.client(who)
    answer = client.post(address, sent) if sent else client.get(address)
    assert answer.status_code == status, answer.content.decode()[-2000:]
    return re.sub(r"\s+", " ", answer.content.decode())


def test_the_page_of_a_service_shows_its_replicas_and_where_to_set_them(personas, served):
    page = shown(personas, f"/jobs/{served.public_id}/")
    assert "of 4 wanted, as many as find room; 1 to 4" in page and f'href="/jobs/{served.public_id}/replicas/"' in page
    assert f"/jobs/{served.public_id}/replicas/" not in shown(personas, f"/jobs/{served.public_id}/", who="viewer")
    Scaling.objects.create(job=served, role="server", at=now(), before=2, after=3, stood=2, actor_name="Ada", reason="Evening.")
    page = shown(personas, f"/jobs/{served.public_id}/")
    assert "2 → 3" in page and "Evening." in page and "bound 1 min" in page and 'data-part="replicas" data-again="10000"' in page


def test_a_number_is_previewed_applied_and_taken_back(personas, served):
    address = f"/jobs/{served.public_id}/replicas/"
    assert 'value="4"' in shown(personas, address)
    preview = shown(personas, address, replicas="1", preview="1", revision=str(served.revision))
    assert "Replicas wanted 4 → 1" in preview and not Scaling.objects.exists()
    client = personas.client("submitter")
    assert client.post(address, {"replicas": "3", "reason": "Night.", "revision": str(served.revision)}).status_code == 302
    assert Job.objects.get(pk=served.pk).spec["roles"][0]["desired"] == 3
    page = client.get(f"/jobs/{served.public_id}/").content.decode()
    assert "3 of 1 to 4 replicas are wanted." in page and 'name="undo"' in page
    back = dict(re.findall(r'<input type="hidden" name="(replicas|role|revision|undo)" value="([^"]*)"', page))
    assert client.post(address, back).status_code == 302
    assert Job.objects.get(pk=served.pk).spec["roles"] == [ROLE], "as many as find room, also in another range"
    assert [(row.before, row.after) for row in Scaling.objects.order_by("pk")] == [(4, 3), (3, 4)]
    assert client.post(address, {"replicas": "", "revision": str(Job.objects.get(pk=served.pk).revision)}).status_code == 422


def test_what_is_refused_says_so_at_the_field_and_keeps_what_was_typed(personas, served):
    address, revision = f"/jobs/{served.public_id}/replicas/", str(served.revision)
    for text, said in (("9", "From 1 to 4."), ("two", "Enter a whole number."), ("", "Enter a whole number."), ("9" * 30, "Enter a whole number.")):
        page = shown(personas, address, status=422, replicas=text, revision=revision)
        assert f'value="{text}"' in page and f'<div id="replicas-error"><p class="error">{said}</p></div>' in page
    assert "It has changed since you opened this page." in shown(personas, address, status=409, replicas="2", revision="77")
    assert "It has changed" in shown(personas, address, status=409, replicas="2")
    shown(personas, address, who="viewer", status=403)
    Job.objects.filter(pk=served.pk).update(job_class="batch")
    shown(personas, address, status=404)
    assert not Scaling.objects.exists()


SHARED = {"roles": [{"name": "router", "min": 1, "gpu_share": 0.5}, ROLE | {"max": 8}], "sharing": "mps"}
OF_GONE_LEVEL = {"roles": [ROLE | {"max": 8}], "topology": {"required": "row"}}


@pytest.mark.parametrize(("spec", "said"), [(SHARED, "GPU"), (OF_GONE_LEVEL, "")])
def test_the_page_stands_whatever_its_role_would_be_alone(personas, served, spec, said):
    """The other role alone is of parts, for which its sharing is stated; or a level of the fleet has gone since it began."""
    Job.objects.filter(pk=served.pk).update(spec=spec_of(spec))
    GROUNDS.forget()
    GROUNDS.read(now())
    assert "of 8 wanted" in shown(personas, f"/jobs/{served.public_id}/")
    waits = personas.client("submitter").get(f"/api/v1/jobs/{served.public_id}/replicas").json()["waits"]
    assert said in waits and bool(said) == bool(waits)


def test_replicas_that_come_by_twos_wait_for_room_for_two(personas, served):
    Job.objects.filter(pk=served.pk).update(spec=spec_of({"roles": [ROLE | {"min": 2, "step": 2, "gpus": 1}]}))
    node("one", gpus=1)
    GROUNDS.forget()
    GROUNDS.read(now())
    waits = personas.client("submitter").get(f"/api/v1/jobs/{served.public_id}/replicas").json()["waits"]
    assert waits and "are free for it" not in waits and "are idle for it" not in waits, waits


def test_room_elsewhere_is_none_where_all_workers_stand_in_one_domain(personas, served):
    Job.objects.filter(pk=served.pk).update(spec=spec_of({"roles": [ROLE], "topology": {"required": "node"}}))
    node("elsewhere", gpus=8)
    GROUNDS.forget()
    GROUNDS.read(now())
    waits = personas.client("submitter").get(f"/api/v1/jobs/{served.public_id}/replicas").json()["waits"]
    assert waits == "It needs idle GPUs beside its other workers, in the same node."


def test_the_page_says_how_many_replicas_are_ready_and_why_others_are_not(personas, served):
    address = f"/jobs/{served.public_id}/"
    assert "<dt>Ready</dt>" not in shown(personas, address)
    Job.objects.filter(pk=served.pk).update(launch={"ready": {"http": {"port": 8000, "path": "/health?key=inside"}}})
    run = served.attempts.get()
    WorkerState.objects.create(attempt=run, role="server", worker=0, ready=True, since=now(), first_at=now())
    WorkerState.objects.create(attempt=run, role="server", worker=1, ready=False, since=now(), why="Port 8000 answered 503.")
    Scaling.objects.create(job=served, role="server", at=now(), before=1, after=2, stood=1, actor_name="Ada", over_at=now(), end="placed")
    page = shown(personas, address)
    assert '<dt>Ready</dt><dd><span class="value">1</span><span class="note">of 2 placed</span>' in page
    assert "Server 1 on" in page and "Port 8000 answered 503." in page and "Until ready" in page
    assert "GET /health?key=inside on port 8000, every 5 s" in page
    assert "inside" not in shown(personas, address, who="viewer"), "the launch is told to those alone who may steer it"


def test_a_job_that_is_no_service_shows_which_of_its_workers_are_ready(personas, served):
    Job.objects.filter(pk=served.pk).update(
        launch={"ready": {"tcp": {}}}, job_class="interactive", spec=served.spec | {"roles": [{"name": "server", "min": 2, "gpus": 1}]}
    )
    page = shown(personas, f"/jobs/{served.public_id}/")
    assert "<h2>Workers</h2>" in page and "of 2 placed; 2 unknown" in page and "It has not been asked yet." in page
