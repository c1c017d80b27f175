"""`gpufleet scale` against a console: shown, tried, set, and refused."""

import json

import pytest

from gpufleet.client import DONE, REFUSED, USAGE
from scheduler.models import Job, JobState, Scaling
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
