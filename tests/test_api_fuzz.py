"""The whole API as its description says it: whatever is sent, no answer is a fault of ours or undocumented, and each has the form that was promised.

A few drawn requests of every operation in the suite, the same each time; in the soak also those at the edges of each description, some thousands.
TEST_API_EXAMPLES draws others.
"""

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

jsonschema_rs = pytest.importorskip("jsonschema_rs", reason="The package jsonschema-rs is not installed (requirements-dev.lock).")
schemathesis = pytest.importorskip("schemathesis", reason="The package schemathesis is not installed (requirements-dev.lock).")

from django.core.cache import cache  # noqa: E402
from django.core.signals import request_finished, request_started  # noqa: E402
from django.core.wsgi import get_wsgi_application  # noqa: E402
from django.db import close_old_connections, transaction  # noqa: E402
from hypothesis import HealthCheck, Phase, seed, settings  # noqa: E402
from schemathesis import openapi  # noqa: E402
from schemathesis.checks import load_all_checks  # noqa: E402
from schemathesis.core.failures import AcceptedNegativeData  # noqa: E402
from schemathesis.generation.feedback import FeedbackSources  # noqa: E402
from schemathesis.openapi.checks import RejectedPositiveData  # noqa: E402
from schemathesis.pytest._test_builder import build_operation_test  # noqa: E402
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance  # noqa: E402

from gpufleet.api import api  # noqa: E402
from scheduler.models import JobState  # noqa: E402
from scheduler.services.forecasts import grounds  # noqa: E402
from tests import builders  # noqa: E402
from tests.personas import Personas  # noqa: E402

QUIET = [HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much, HealthCheck.too_slow, HealthCheck.data_too_large]
SEED = os.environ.get("SOAK_SEED", "0")
EXAMPLES = int(os.environ.get("TEST_API_EXAMPLES", "0"))  # drawn anew for each operation in the soak, by SOAK_SEED; 0: those of the suite
TURNS, STEPS = int(os.environ.get("TEST_API_TURNS", "60")), 10
SCOPES = ("read", "submit", "operate", "admin")


@dataclass(frozen=True)
class Unsaid:
    """What a description can't say: for these operations a value that it allows may be refused at these paths, and nowhere else."""

    operations: str
    path: str
    why: str


LISTS = "|".join(
    operation["operationId"]
    for methods in api.get_openapi_schema()["paths"].values()
    for operation in methods.values()
    if {"after", "q"} <= {row["name"] for row in operation.get("parameters", ())}
)
DESCRIPTIONS = "job_submit|job_fit|job_copy|job_batch|job_change|job_change_look|schedule_make|schedule_update|template_put"
UNSAID = [
    Unsaid(LISTS, "after|before", "Places in a list are signed, and a page lies behind one row or before one."),
    Unsaid(LISTS, "cluster|pool|type|rule", "Which clusters, pools, GPU types and rules there are."),
    Unsaid("quota_list|templates|throughputs|job_history|job_views", "after", "Places in a list are signed."),
    Unsaid("checkpoint_report", "shard|shards|step", "What other ranks reported must agree with it."),
    Unsaid(
        DESCRIPTIONS, ".*", "Many rules between the values of a job, and which quotas, templates, types and jobs there are: a dry run tells them."
    ),
    Unsaid(
        "job_batch_told|jobs_bulk|array_act",
        "jobs|matching.*|priority|begins",
        "Jobs are named or matched, by parameters of the list, only one action takes a priority, and a moment lies ahead.",
    ),
    Unsaid(
        "job_view_create|job_view_update",
        "name|query|shared_with|default",
        "Names are used once, parameters are those of the list, and a node is one to share with.",
    ),
    Unsaid(
        "schedule_.*",
        "cron|zone|starts_at|ends_at|start_within_s|name|take_over|reason|description.*|",
        "Times lie ahead, in a zone that there is, by an expression in five fields.",
    ),
    Unsaid(
        "job_replicas_put|job_replicas_look",
        "replicas|role|follow",
        "The range and the roles are those of the job, a metric is stated to be followed, and one of both is asked for.",
    ),
    Unsaid("load_expected", "cluster|pool|quota", "Which clusters, pools and quota nodes there are, and a pool is one of a cluster."),
    Unsaid("job_replacement_begin|job_replacement_look", "role", "Which roles of the job have a range."),
    Unsaid(
        "power_cap_.*",
        "pool|zone|rule|starts_at|ends_at|note|reason",
        "Which pools and zones there are, a recurring time lies ahead and ends, and texts are printable.",
    ),
    Unsaid(
        "energy_rate_.*",
        "pool|zone|rule|starts_at|ends_at|note|reason|price_micros|",
        "Which pools and zones there are, a recurring time lies ahead and ends, a price or grams are stated, and texts are printable.",
    ),
    Unsaid("energy_forecast_.*", "pool|steps.*|ends_at|reason", "Which pools there are; steps follow each other from about now on."),
    Unsaid("template_gone", "ref", "Which templates there are."),
    Unsaid("throughput_put", "ref|speeds.*|adopt|seen", "Which templates and GPU types there are, what was stated, and what is measured."),
    Unsaid(
        "notice_choices_put",
        "zone|quiet_from|quiet_until|ways[.].*",
        "Hours have a beginning and an end, in a zone that there is; a way needs an address.",
    ),
    Unsaid(
        "own_webhook_put|webhook_.*",
        "url|quota|name|state|kinds|node",
        "Only addresses that may be called, nodes that there are, and so many of a node.",
    ),
    Unsaid(
        "quota_create|quota_update|quota_move|quota_archive|quota_restore",
        "parent|kind|name|title|reason|revision|cost_centre|shares.*|policy.*|",
        "What a node may be depends on those around it.",
    ),
    Unsaid("quota_update", ".*", "What was read may be sent along, other keys may not."),
    Unsaid("role_create", "role|username|group|", "A person or a group, and which there are."),
    Unsaid("person_new", "username", "A name is used once."),
    Unsaid("person_.*", "", "Nobody shuts himself out, nor the last superuser."),
    Unsaid("token_new", "scopes|expires_at|node", "No longer than a year from now, and no more than the token that makes it."),
    Unsaid("token_delete|role_delete", "", "Who may end it depends on what it can do."),
    Unsaid("gpu_health|node_health|node_spare|gpu_geometry", "to|spare|layout", "What may follow depends on what is there and what runs there."),
    Unsaid("node_health", "begins", "A moment lies ahead."),
    Unsaid("nodes_drain_write", "nodes|begins|at|to|health", "Which nodes there are, what may be drained, and a moment lies ahead."),
    Unsaid("cluster_give_up_write", "confirm", "It is the name of the cluster once more."),
    Unsaid(
        "health_rule_.*",
        "threshold|clear_below|group|name",
        "Of each signal levels are kept from its own on, a rule ends at or below its limit, only XIDs have kinds, and a name is printable.",
    ),
    Unsaid("alert_rule_.*", "clear_at|subject|name|floor|told|escalate_to|webhooks.*", "Its limits and recipients fit its figure, and are there."),
    Unsaid("quota_change_.*|quota_file_import", ".*", "What an edit may do depends on the tree as it is then."),
    Unsaid("reservation_.*|budget_.*", ".*", "Many rules between the values, and which nodes and types there are."),
    Unsaid("rate_card_make|rate_card_put", "name|valid_from|valid_to|lines", "Names, types and periods of prices."),
    Unsaid(
        "telemetry_source_.*",
        "name|url|sign_in|username|secret|unencrypted|tenant",
        "A name is used once, only addresses that may be called, and what a way of signing in needs.",
    ),
    Unsaid("quota_fairness", "type", "Which GPU types there are."),
    Unsaid("windows", "from|to", "A span ends after it begins, and is not too long."),
    Unsaid("costs_read|costs_file|costs_of_period|costs_file_of_period", "by|from|to", "Which labels and days there are, and their order."),
    Unsaid("cost_export_make|cost_export_make_of_period", "by|from|to|format", "Which labels and days there are, and which files are of months."),
    Unsaid("cost_mail_make", "team|people", "Which nodes and people there are, and who has an e-mail address."),
    Unsaid("defragmentation_create", "starts_at", "It starts within a week."),
    Unsaid("step_times_report", "seconds[.].*", "Ranks are whole numbers: a description says nothing of keys."),
    Unsaid("idle_exemption_create", "quota|job|until", "One of the two, that there is, until a time ahead."),
    Unsaid("inventory_preview", "[0-9]+:[0-9]+", "The text is a file of its own: its faults have a line and a column."),
    Unsaid(
        "what_if_make", "nodes.*|queue|change|", "Which nodes, quotas and drafts there are, each node named once, and something differs from today."
    ),
    Unsaid("own_trace_make", "days", "Jobs came in these days, and no more than are kept."),
    Unsaid(
        "sweep_make", "values|policies|trace", "Values and policies differ, nodes are whole, simulations are at most 200, and a trace has two jobs."
    ),
    Unsaid("trace_make", "files.*|nodes.*|limit|title", "The texts are files of their own, which name nodes or need some; a title has words."),
    Unsaid(
        "cluster_kubernetes_.*",
        ".*|",
        "Which clusters there are, which contexts this machine offers, which paths are absolute, and which steps fail.",
    ),
    Unsaid("cluster_slurm_.*|cluster_local_add", ".*|", "Which clusters there are, what their Slurm has, and which steps fail on this machine."),
    Unsaid("home_order_put", "columns", "Each part of the page once, in two columns."),
    Unsaid("inventory_discovery", "cluster|", "Which clusters there are."),
]


def refuses_what_it_does_not_describe(ctx, response, case):
    try:
        negative_data_rejection(ctx, response, case)
    except AcceptedNegativeData:
        if response.status_code == 413:  # refused for its size, before it was read
            return
        if not (reads_as_described(case) or says_nothing(case)):
            raise


def takes_what_it_describes(ctx, response, case):
    try:
        positive_data_acceptance(ctx, response, case)
    except RejectedPositiveData:
        if response.status_code == 412:  # no row is at the revision that was drawn
            return
        name = case.operation.definition.raw["operationId"]
        paths = [error["path"] for error in response.json().get("errors", ())] if response.status_code == 422 else []
        if not paths or not all(
            any(re.fullmatch(one.operations, name) and re.fullmatch(one.path, path, re.DOTALL) for one in UNSAID) for path in paths
        ):
            raise


def says_nothing(case) -> bool:
    """Whether a list was asked with an empty value, which is as good as none: of a parameter that comes twice the last one counts."""
    last = [value[-1] if isinstance(value, list) and value else value for value in (case.query or {}).values()]
    return bool(re.fullmatch(LISTS, case.operation.definition.raw["operationId"])) and "" in last


def reads_as_described(case) -> bool:
    """Whether the body is as described, once plain values are read as forms and YAML write them: "8" for 8, 0 for false, a number for a moment."""
    content = case.operation.definition.raw.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None or not isinstance(case.body, dict):
        return False
    wanted = content["schema"]
    whole = {"components": case.operation.schema.raw_schema["components"]} | wanted
    return bool(jsonschema_rs.Draft202012Validator(whole).is_valid(read_as(case.body, wanted, whole)))


def read_as(value: Any, wanted: dict[str, Any], whole: dict[str, Any]) -> Any:
    if "$ref" in wanted:
        wanted = whole["components"]["schemas"][wanted["$ref"].rpartition("/")[2]]
    options = [wanted, *(one for one in wanted.get("anyOf", ()) if "$ref" in one or "type" in one)]
    for option in options:
        if "$ref" in option:
            option = whole["components"]["schemas"][option["$ref"].rpartition("/")[2]]
        if isinstance(value, dict) and option.get("type") == "object":
            inner = option.get("properties", {})
            rest = option.get("additionalProperties")
            rest = rest if isinstance(rest, dict) else {}
            return {key: read_as(one, inner.get(key, rest), whole) for key, one in value.items()}
        if isinstance(value, list) and option.get("type") == "array":
            return [read_as(one, option.get("items", {}), whole) for one in value]
    kinds = {option.get("type") for option in options}
    if isinstance(value, bool) and "boolean" not in kinds and kinds & {"integer", "number"}:
        return int(value)
    if isinstance(value, str | int | float) and not isinstance(value, bool) and "boolean" in kinds and str(value).lower() in BOOLEANS:
        return BOOLEANS[str(value).lower()]
    if isinstance(value, str | float) and kinds & {"integer", "number"} and not (isinstance(value, str) and "string" in kinds):
        try:
            number = float(value)
        except ValueError:
            return value
        return int(number) if number.is_integer() and "integer" in kinds else number
    if isinstance(value, int | float | str) and any(option.get("format") == "date-time" for option in options):
        return "2026-11-20T12:00:00Z"
    return value


BOOLEANS = {word: truth for truth, words in ((True, "1 1.0 true t yes y on"), (False, "0 0.0 -0.0 false f no n off")) for word in words.split()}
BUILT_IN = [positive_data_acceptance, negative_data_rejection]
OURS = [takes_what_it_describes, refuses_what_it_does_not_describe]


def schema():
    found = openapi.from_dict(json.loads(json.dumps(api.get_openapi_schema(), default=str)))
    found.app = get_wsgi_application()
    return found


SCHEMA = schema()
load_all_checks()


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


def test_no_exception_is_for_an_operation_that_is_gone():
    names = [operation["operationId"] for methods in SCHEMA.raw_schema["paths"].values() for operation in methods.values()]

    gone = {part for one in UNSAID for part in one.operations.split("|") if not any(re.fullmatch(part, name) for name in names)}
    assert gone == set()


OPERATIONS = {result.ok().label: result.ok() for result in SCHEMA.get_all_operations()}
CHOSEN = settings(deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=QUIET)
FIXED = settings(CHOSEN, max_examples=4, derandomize=True)


def ask(label: str, caller: dict[str, str], chosen: settings, *, edges: bool) -> None:
    """Requests of one operation: its examples, drawn ones, and where it is asked for those at the edges of its description.

    They are made here and not by `SCHEMA.parametrize()`: it makes those of all operations while tests are collected, half a minute in every process
    of a run, and gives its tests one name for all operations, of which pytest-xdist runs one test.
    """
    SCHEMA.config.phases.coverage.enabled = edges

    def request(case):
        case.call_and_validate(headers=caller, excluded_checks=BUILT_IN, additional_checks=OURS)

    if not chosen.derandomize:
        request = seed(f"{SEED} {label}")(request)
    drawn = build_operation_test(
        config=SCHEMA.config,
        operation=OPERATIONS[label],
        test_func=request,
        given_kwargs={},
        feedback=FeedbackSources(),
        explicit_settings=chosen,
    )
    drawn()


@pytest.mark.django_db
@pytest.mark.parametrize("label", OPERATIONS)
def test_no_request_finds_a_fault(label, caller):
    ask(label, caller, FIXED, edges=False)


@pytest.mark.soak
@pytest.mark.django_db
@pytest.mark.parametrize("label", OPERATIONS)
def test_thousands_of_requests_find_no_fault(label, caller):
    ask(label, caller, settings(CHOSEN, max_examples=EXAMPLES) if EXAMPLES else FIXED, edges=True)


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
            grounds.GROUNDS.forget()

        def teardown(self):
            transaction.savepoint_rollback(self.before)
            super().teardown()

        def get_call_kwargs(self, case):
            return {"headers": caller}

        def validate_response(self, response, case, **named):
            asked[case.operation.label] = asked.get(case.operation.label, 0) + 1
            # Whether each operation takes what it describes is judged above, from the same draws each time; here it is what follows from what.
            case.validate_response(response, headers=caller, excluded_checks=BUILT_IN)

    Turns.run(
        settings=settings(
            max_examples=TURNS, stateful_step_count=STEPS, deadline=None, phases=[Phase.explicit, Phase.generate], suppress_health_check=QUIET
        )
    )
    assert sum(asked.values()) >= TURNS
    assert len(asked) > 10, f"nothing follows from anything: {asked}"
