"""The whole API as its description says it: whatever is sent, no answer is a fault of ours or undocumented, and each has the form that was promised.

A few drawn requests of every operation in the suite, the same each time; thousands in the soak.
"""

import json
import os
from collections.abc import Iterator

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="The package schemathesis is not installed (requirements-dev.lock).")

from django.core.cache import cache  # noqa: E402
from django.core.signals import request_finished, request_started  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import close_old_connections, transaction  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from schemathesis import openapi  # noqa: E402
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance  # noqa: E402

from gpufleet.api import api  # noqa: E402
from scheduler.models import JobState  # noqa: E402
from scheduler.services import fitting  # noqa: E402
from tests import builders  # noqa: E402
from tests.personas import Personas  # noqa: E402

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large]
EXAMPLES = int(os.environ.get("TEST_API_EXAMPLES", "40"))
TURNS, STEPS = int(os.environ.get("TEST_API_TURNS", "60")), 10
SCOPES = ("read", "submit", "operate", "admin")


# What a description can't say (which names exist, rules between values) is refused with 422, which every operation documents.
# What can be read without doubt is taken although the description is stricter: "8" for 8, as forms and YAML write it.
NOT_PROMISED = [positive_data_acceptance, negative_data_rejection]


def schema():
    found = openapi.from_dict(json.loads(json.dumps(api.get_openapi_schema(), default=str)))
    found.app = get_wsgi_application()
    return found


SCHEMA = schema()


@pytest.fixture
def caller(personas: Personas, settings, monkeypatch) -> Iterator[dict[str, str]]:
    """A token that may do everything, over a fleet in which there is one of everything."""
    # A request of its own would close the connection, and with it the test's transaction.
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    settings.API_REQUESTS_PER_MINUTE = 1_000_000
    monkeypatch.setattr("gpufleet.api.AnonRateThrottle.allow_request", lambda *_: True)  # wrong tokens are tried with each request
    node = builders.node(gpus=2)
    builders.job(on=personas.nodes["acme/research/nlp"], owner=personas.users["superuser"])
    builders.placement(builders.job(on=personas.nodes["acme/research/nlp"], state=JobState.RUNNING), node.gpus.first())
    builders.plan()
    yield {"Authorization": f"Bearer {personas.token('superuser', *SCOPES)}"}
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.django_db
@SCHEMA.parametrize()
@settings(max_examples=4, deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate], suppress_health_check=QUIET)
def test_no_request_finds_a_fault(case, caller):
    case.call_and_validate(headers=caller, excluded_checks=NOT_PROMISED)


@pytest.mark.soak
@pytest.mark.django_db
@SCHEMA.parametrize()
@settings(max_examples=EXAMPLES, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=QUIET)
def test_thousands_of_requests_find_no_fault(case, caller):
    case.call_and_validate(headers=caller, excluded_checks=NOT_PROMISED)


@pytest.mark.soak
@pytest.mark.django_db
def test_requests_that_follow_from_answers_find_no_fault(caller):
    """What one operation told (ids, revisions, places in lists) is sent to others, in turns that nobody thought of."""

    asked: dict[str, int] = {}

    class Turns(SCHEMA.as_state_machine()):  # type: ignore[misc]
        # Each turn begins with the same fleet: the same draws are to lead to the same requests.
        def setup(self):
            super().setup()
            self.before = transaction.savepoint()
            cache.clear()
            fitting.GROUNDS.forget()

        def teardown(self):
            transaction.savepoint_rollback(self.before)
            super().teardown()

        def get_call_kwargs(self, case):
            return {"headers": caller}

        def validate_response(self, response, case, **named):
            asked[case.operation.label] = asked.get(case.operation.label, 0) + 1
            case.validate_response(response, headers=caller, excluded_checks=NOT_PROMISED)

    Turns.run(
        settings=settings(
            max_examples=TURNS, stateful_step_count=STEPS, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=QUIET
        )
    )
    assert sum(asked.values()) >= TURNS
    assert len(asked) > 10, f"nothing follows from anything: {asked}"
