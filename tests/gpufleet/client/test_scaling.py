"""`gpufleet scale` against a console: shown, tried, set, and refused."""

import json

import pytest

from dashboards.slo.models import ServiceLevel
from gpufleet.client import DONE, REFUSED, USAGE
from scheduler.models import Job, JobState, ReplicaRule, Scaling
from tests.builders import job, spec_of

pytestmark = pytest.mark.django_db(transaction=True)


def test_the_replicas_of_a_service_are_shown_and_set(run, personas):
    spec = spec_of({"roles": [{"name": "server", "min": 1, "max": 5, "step": 2, "gpus": 1}]})
    served = job("serve", on=personas.nodes["acme/research/nlp"], state=JobState.QUEUED, job_class="inference", spec=spec, gpus_milli=1000)
    lead = {"who": "team_lead", "scopes": ("read", "submit")}

    status, out, _ = run("scale", served.public_id)
    assert (status, out) == (DONE, "server: 0 placed, 5 wanted, 1 to 5 in steps of 2\nWaits: The job does not run yet.\n")
    status, out, _ = run("scale", served.public_id, "3", "--dry-run", **lead)
    assert status == DONE and out and not Scaling.objects.exists()
    status, out, _ = run("scale", served.public_id, "3", "--reason", "Evening.", **lead)
    assert status == DONE and "server: 0 placed, 3 wanted" in out and "5 → 3" in out and "not running" in out
    assert Job.objects.get(pk=served.pk).spec["roles"][0]["desired"] == 3
    status, out, _ = run("scale", served.public_id, "--json")
    assert json.loads(out)["scalings"][0]["reason"] == "Evening."
    status, _, err = run("scale", served.public_id, "4", **lead)
    assert status == REFUSED and "From 1 to 5 in steps of 2: 3 or 5." in err
    assert run("scale", served.public_id, "--reason", "x")[0] == USAGE


def test_it_follows_its_metric_and_stops(run, personas):
    spec = spec_of({"roles": [{"name": "server", "min": 1, "max": 5, "gpus": 1}]})
    served = job("serve", on=personas.nodes["acme/research/nlp"], state=JobState.QUEUED, job_class="inference", spec=spec, gpus_milli=1000)
    lead = {"who": "team_lead", "scopes": ("read", "submit")}

    assert run("scale", served.public_id, "--follow", **lead)[0] == REFUSED
    ServiceLevel.objects.create(job=served, title="p99 latency", latency="l", wanted="w", objective_ms=250)
    status, out, _ = run("scale", served.public_id, "--follow", "--cooldown", "10m", **lead)
    assert status == DONE and "Follows its metric since" in out and ReplicaRule.objects.get().cooldown_seconds == 600
    assert run("scale", served.public_id, "3", **lead)[0] == REFUSED
    status, out, _ = run("scale", served.public_id, "3", "--no-follow", **lead)
    assert status == DONE and "3 wanted" in out and "Follows" not in out
    for words in (["--follow", "3"], ["--cooldown", "10m"], ["--no-follow", "--dry-run"]):
        assert run("scale", served.public_id, *words, **lead)[0] == USAGE


def test_a_replacement_is_shown_unless_it_is_to_be_applied(run, personas):
    spec = spec_of({"roles": [{"name": "server", "min": 2, "max": 2, "gpus": 1}]})
    served = job("serve", on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING, job_class="inference", spec=spec, gpus_milli=2000)
    lead = {"who": "team_lead", "scopes": ("read", "submit")}

    assert run("replace", served.public_id, **lead)[:2] == (DONE, "No replicas were replaced.\n")
    assert json.loads(run("replace", served.public_id, "--json")[1])["items"] == []
    for words in (["--reason", "New weights."], ["--role", "server"], ["--max-unavailable", "2"], ["--within", "5m"]):
        status, _, err = run("replace", served.public_id, *words, **lead)
        assert status == USAGE and "--apply" in err
    assert run("replace", served.public_id, "--apply", "--dry-run", **lead)[0] == USAGE
    assert run("replace", served.public_id, "--apply", "--reason", "New weights.", **lead)[0] == REFUSED, "it is asked for; nothing runs there"
