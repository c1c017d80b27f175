"""The replicas of a service over HTTP: set by those who may steer it, within its range, and not over somebody else's change."""

import pytest

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.models import Job, JobEvent, JobState, Lease, Scaling, WorkerState
from tests.builders import attempt, job, node, placement, spec_of

pytestmark = pytest.mark.django_db
TEAM = "acme/research/nlp"
ROLE = {"name": "server", "min": 1, "max": 5, "gpus": 1}


def service(personas, *roles, workers=2, **fields):
    spec = spec_of({"roles": list(roles or [ROLE]), "grace_s": 30})
    facts = {"state": JobState.RUNNING, "job_class": "inference", "gpus_milli": 1000} | fields
    found = job("serve", on=personas.nodes[TEAM], owner=personas.users["submitter"], spec=spec, **facts)
    if found.state == JobState.RUNNING:
        run = attempt(found, running_at=now())
        for number, gpu in enumerate(node(gpus=workers).gpus.order_by("index")):
            placement(found, gpu, attempt=run, worker=number, role="server")
    return found


@pytest.fixture
def ask(personas):
    def call(method, of, body=None, status=200, *, who="submitter", path="/replicas", **headers):
        send = getattr(personas.client(who), method.lower())
        address = f"/api/v1/jobs/{of.public_id}{path}"
        answer = send(address, headers=headers) if body is None else send(address, body, content_type="application/json", headers=headers)
        assert answer.status_code == status, answer.content
        return answer

    return call


def test_replicas_are_read_and_set_and_written_down(personas, ask):
    served = service(personas)
    told = ask("GET", served)
    role = {"role": "server", "placed": 2, "ready": None, "wanted": 5, "stated": False, "min": 1, "max": 5, "step": 1}
    assert (told.json()["roles"], told.json()["scalings"], told.json()["bound_s"]) == ([role], [], 60)

    found = ask("PUT", served, {"replicas": 3, "reason": "Evening."}, **{"If-Match": told["ETag"]}).json()
    fresh = Job.objects.get(pk=served.pk)
    assert fresh.spec["roles"] == [ROLE | {"desired": 3}] and fresh.revision == found["revision"] == served.revision + 1
    assert found["roles"] == [role | {"wanted": 3, "stated": True}]
    (row,) = found["scalings"]
    assert (row["before"], row["after"], row["placed_before"], row["by"], row["reason"]) == (5, 3, 2, "Submitter", "Evening.")
    assert (row["end"], row["within_bound"], row["by_metric"]) == (None, True, False) and row["seconds"] >= 0
    assert JobEvent.objects.filter(job=served).latest("id").cause == "5 → 3 replicas wanted. Evening."
    entry = AuditEntry.objects.get(action="job.scale")
    assert (entry.before, entry.after, entry.reason) == ({"server": None}, {"server": 3}, "Evening.")
    assert Lease.objects.get(name="tick").wanted
    ask("PUT", served, {"replicas": 3})  # again, after a time-out say: nothing is written twice
    assert (Scaling.objects.count(), Job.objects.get(pk=served.pk).revision) == (1, fresh.revision)
    assert ask("GET", served, path="/description").json()["roles"][0]["desired"] == 3


def test_what_is_wrong_is_told_at_its_field_and_changes_nothing(personas, ask):
    served = service(personas, ROLE | {"max": 5, "step": 2})

    def told(body, status=422):
        return {error["path"]: error["message"] for error in ask("PUT", served, body, status).json()["errors"]}

    assert told({"replicas": 0}) == {"replicas": "From 1 to 5."} == told({"replicas": 6})
    assert told({"replicas": 2}) == {"replicas": "From 1 to 5 in steps of 2: 1 or 3."}
    assert told({"replicas": 3, "role": "driver"}) == {"role": "Choose one of server."}
    assert told({"replicas": 3, "reason": "x" * 281}).keys() == {"reason"}
    assert told({}).keys() == {"replicas"}
    ask("PUT", served, {"replicas": 3}, 412, **{"If-Match": '"77"'})
    ask("PUT", served, {"replicas": 3}, 403, who="viewer")
    ask("PUT", served, {"replicas": 3}, 403, who="stranger")
    two = service(personas, ROLE | {"name": "router"}, ROLE, state=JobState.QUEUED)
    assert "State one of router, server." in str(ask("PUT", two, {"replicas": 3}, 422).json())
    ask("PUT", two, {"replicas": 3, "role": "router"})
    assert [role.get("desired") for role in Job.objects.get(pk=two.pk).spec["roles"]] == [3, None]
    assert not Scaling.objects.filter(job=served).exists()


def test_only_a_service_that_goes_on_is_scaled(personas, ask):
    fixed, batch = service(personas, ROLE | {"max": 1}, state=JobState.QUEUED), service(personas, job_class="batch", state=JobState.QUEUED)
    ended = service(personas, state=JobState.COMPLETED, ended_at=now())
    for one in (fixed, batch):
        assert "is not a service" in ask("PUT", one, {"replicas": 1}, 409).json()["detail"]
        ask("GET", one, status=404)
    assert "has ended" in ask("PUT", ended, {"replicas": 2}, 409).json()["detail"]
    ask("GET", ended)


def test_the_preview_says_what_a_change_would_do_and_writes_nothing(personas, ask):
    served = service(personas)
    told = ask("POST", served, {"replicas": 1}, path="/replicas/preview").json()
    assert told["sentences"] and not Scaling.objects.exists()
    assert ask("POST", served, {"replicas": 9}, 422, path="/replicas/preview").json()["errors"][0]["path"] == "replicas"


def test_a_description_states_how_many_replicas_are_wanted(personas):
    node(gpus=4)

    def sent(status, **role):
        wish = {"name": "serve", "quota": TEAM, "class": role.pop("job_class", "inference"), "roles": [ROLE | role]}
        answer = personas.client("submitter").post("/api/v1/jobs", wish, content_type="application/json")
        assert answer.status_code == status, answer.content
        return answer.json()

    made = sent(201, desired=3)["jobs"][0]["id"]
    assert Job.objects.get(public_id=made).spec["roles"] == [ROLE | {"desired": 3}]
    for role, said in (
        ({"desired": 6}, "From 1 to 5."),
        ({"desired": 2, "max": 3, "step": 2}, "From 1 to 3 in steps of 2: 1 or 3."),
        ({"desired": 1, "max": 1}, "there is nothing to choose"),
        ({"desired": 3, "job_class": "batch"}, "Only a service"),
    ):
        (error,) = sent(422, **role)["errors"]
        assert error["path"] == "roles[0].desired" and said in error["message"]


def test_another_range_takes_the_number_along(personas, ask):
    served = service(personas, ROLE | {"desired": 2}, workers=2)
    ask("PATCH", served, {"workers": {"server": {"min": 2, "max": 6}}}, path="")
    assert Job.objects.get(pk=served.pk).spec["roles"][0]["desired"] == 2
    queued = service(personas, ROLE | {"desired": 5}, state=JobState.QUEUED)
    ask("PATCH", queued, {"workers": {"server": {"min": 2, "max": 3}}}, path="")
    assert Job.objects.get(pk=queued.pk).spec["roles"][0]["desired"] == 3
    ask("PATCH", queued, {"workers": {"server": {"min": 2}}}, path="")
    assert "desired" not in Job.objects.get(pk=queued.pk).spec["roles"][0]


def test_it_says_which_replicas_are_ready_and_why_others_are_not(personas, ask):
    served = service(personas, launch={"ready": {"tcp": {}}})
    run, since = served.attempts.get(), now()
    WorkerState.objects.create(attempt=run, role="server", worker=0, up=True, ready=True, since=since, first_at=since)
    told = ask("GET", served).json()
    assert (told["roles"][0]["placed"], told["roles"][0]["ready"]) == (2, 1)
    assert [(one["index"], one["ready"], one["why"]) for one in told["replicas"]] == [(0, True, ""), (1, None, "It has not been asked yet.")]
    WorkerState.objects.create(attempt=run, role="server", worker=1, up=True, ready=False, since=since, why="Port 8000 answered 503.")
    told = ask("GET", served).json()
    assert [(one["ready"], one["why"]) for one in told["replicas"]] == [(True, ""), (False, "Port 8000 answered 503.")]
    workers = ask("GET", served, path="").json()["attempts"][0]["workers"]
    assert [(one["index"], one["ready"], one["ready_since"] is None) for one in workers] == [(0, True, False), (1, False, False)]
    silent = service(personas)
    assert (ask("GET", silent).json()["roles"][0]["ready"], ask("GET", silent).json()["replicas"]) == (None, None)


@pytest.mark.parametrize(
    ("ready", "path", "words"),
    [
        ({}, "command", "State one of http, tcp and command."),
        ({"http": {}, "tcp": {}}, "tcp.port", "State one of http, tcp and command."),
        ({"http": {"path": "health"}}, "http.path", "it begins with /"),
        ({"http": {"path": "/a b"}}, "http.path", "without spaces"),
        ({"http": {"path": "/\r\nX: y"}}, "http.path", "without spaces"),
        ({"http": {"port": 65_536}}, "http.port", "At most 65535."),
        ({"http": {"host": "10.0.0.1"}}, "http.host", "There is no key host here"),
        ({"tcp": {"port": 0}}, "tcp.port", "At least 1."),
        ({"command": "curl x"}, "command", "A list is wanted."),
        ({"tcp": {}, "period_s": 0}, "period_s", "At least 1s."),
        ({"tcp": {}, "failures": 1000}, "failures", "At most 100."),
    ],
)
def test_a_probe_is_judged_as_it_is_submitted_at_its_field(personas, ready, path, words):
    body = {"name": "serve", "quota": TEAM, "class": "inference", "roles": [ROLE], "launch": {"command": ["serve"], "ready": ready}}
    answer = personas.client("submitter").post("/api/v1/jobs?dry_run=true", body, content_type="application/json")
    assert answer.status_code == 422, answer.content
    (error,) = answer.json()["errors"]
    assert error["path"] == f"launch.ready.{path}" and words in error["message"]


def test_a_probe_is_kept_in_one_form_and_said_again(personas, ask):
    body = {"name": "serve", "quota": TEAM, "class": "inference", "roles": [ROLE], "launch": {"command": ["serve"]}}
    body["launch"]["ready"] = {"http": {"port": 8000, "path": "/"}, "period_s": 5, "failures": 4}
    answer = personas.client("submitter").post("/api/v1/jobs", body, content_type="application/json", headers={"Idempotency-Key": "probe"})
    assert answer.status_code == 201, answer.content
    found = Job.objects.get(public_id=answer.json()["jobs"][0]["id"])
    assert found.launch["ready"] == {"http": {"port": 8000}, "failures": 4}
    assert ask("GET", found, path="/description").json()["launch"]["ready"] == {"http": {"port": 8000}, "failures": 4}
