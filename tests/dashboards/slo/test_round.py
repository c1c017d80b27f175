"""The rounds over services: what is kept, when an objective is broken, why, and who is told."""

import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import timedelta
from email.message import Message
from typing import Any

import pytest
from django.db import connection

from dashboards.alerts.defaults import default_rules
from dashboards.alerts.figures import figures_now
from dashboards.alerts.leads import leads_of
from dashboards.alerts.models import Alert
from dashboards.models import ActivityEntry
from dashboards.prometheus.models import PrometheusServer
from dashboards.slo import round as rounds
from dashboards.slo.judging import ROUNDS, Judged, judged
from dashboards.slo.models import BreachCause, BreachEnd, ServiceBreach, ServiceLevel, ServiceSample
from dashboards.slo.reading import Read, levels_read
from dashboards.slo.round import SILENT, services_round, services_turn
from dashboards.slo.selectors import is_answered
from dashboards.slo.services import level_facts, service_level_remove, service_level_set
from scheduler.models import Delivery, Job, JobState
from tests import builders
from tests.builders import NOON
from tests.dashboards.alert_worlds import rule
from tests.dashboards.prometheus_worlds import LOCAL
from tests.personas import Personas
from tests.prometheus import Answering

pytestmark = pytest.mark.django_db
ROUND = timedelta(seconds=15)


class Answers(Answering):
    """A Prometheus that answers what `by_service` holds; of the rest it has no series."""

    def __init__(self) -> None:
        self.by_service: dict[str, dict[str, float]] = {}
        self.asked: list[str] = []
        super().__init__()

    def answer(self, path: str, headers: Message) -> tuple[int, bytes]:
        (query,) = urllib.parse.parse_qs(urllib.parse.urlsplit(path).query)["query"]
        service, key = query.split(":")
        if key == "latency":
            self.asked.append(service)
        value = self.by_service.get(service, {}).get(key)
        result = [] if value is None else [{"metric": {}, "value": [1, str(value)]}]
        return 200, json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}}).encode()


@pytest.fixture
def answers() -> Iterator[Answers]:
    found = Answers()
    PrometheusServer.objects.create(public_id="ps-1", name="main", url=f"http://127.0.0.1:{found.port}", for_services=True)
    yield found
    found.stop()


def service(name: str = "chat", *, workers: int = 2, most: int = 4, of: Any = None) -> ServiceLevel:
    job = builders.job(
        name, state=JobState.RUNNING, job_class="inference", on=of, spec={"roles": [{"min": 1, "max": most, "gpus": 1}]}, gpus_milli=1000 * workers
    )
    node = builders.node(gpus=8)
    for worker, gpu in zip(range(workers), node.gpus.order_by("index"), strict=False):
        builders.placement(job, gpu, worker=worker, gpu_milli=1000)
    return ServiceLevel.objects.create(
        job=job, title="p99 latency", latency=f"{name}:latency", rate=f"{name}:rate", wanted=f"{name}:wanted", objective_ms=250
    )


def run(times: int, *, begin: int = 0) -> None:
    for number in range(times):
        services_round(now=NOON + ROUND * (begin + number), rules=LOCAL)


def test_what_was_read_is_kept_by_the_minute(answers: Answers) -> None:
    level = service()
    answers.by_service["chat"] = {"latency": 0.3, "rate": 40.0, "wanted": 2.5}
    run(1)
    answers.by_service["chat"] = {"latency": 0.1, "rate": 42.0}
    run(4, begin=1)

    level.refresh_from_db()
    assert (level.latency_ms, level.requests, level.replicas_wanted, level.replicas) == (100, 42, None, 2)
    assert level.looked_at == level.read_at == NOON + ROUND * 4
    told = list(ServiceSample.objects.order_by("at").values_list("at", "latency_ms", "requests", "replicas_wanted", "replicas", "objective_ms"))
    assert told == [(NOON, 300, 42, None, 2, 250), (NOON + timedelta(minutes=1), 100, 42, None, 2, 250)]


def test_one_slow_round_is_no_breach_and_one_fast_one_ends_none() -> None:
    over, calm, steps = 0, 0, []
    is_open = False
    for latency in (300, 100, 300, 300, None, 300, 100, 300, 100, 100, 100):
        over, calm, step = judged(over=over, calm=calm, latency_ms=latency, objective_ms=250, is_open=is_open)
        is_open = step == "opens" or (is_open and step != "ends")
        steps.append(str(step))
    assert steps == ["", "", "", "", "", "opens", "", "", "", "", "ends"]
    assert judged(over=ROUNDS - 1, calm=0, latency_ms=250, objective_ms=250, is_open=False).over == 0, "at its objective it is within it"


def test_missing_replicas_are_the_cause(answers: Answers) -> None:
    level = service(most=2)
    builders.webhook(level.job.quota, kinds=["service.breached", "service.resolved"])
    answers.by_service["chat"] = {"latency": 0.412, "wanted": 5.2}
    run(3)

    breach = ServiceBreach.objects.get()
    assert (breach.since, breach.worst_ms, breach.objective_ms, breach.cause) == (NOON + 2 * ROUND, 412, 250, BreachCause.CAPACITY)
    assert breach.said == "Runs 2 of 6 replicas wanted. Its description allows at most 2."
    line = ActivityEntry.objects.get()
    assert (line.kind, line.title, line.path, line.job) == ("service.breached", "chat is over its objective", "acme", level.job.public_id)
    assert line.text == "p99 latency 412 ms, objective 250 ms. Runs 2 of 6 replicas wanted. Its description allows at most 2."

    answers.by_service["chat"] = {"latency": 0.9, "wanted": 5.2}
    run(1, begin=3)
    answers.by_service["chat"] = {"latency": 0.2, "wanted": 2}
    run(3, begin=4)
    breach.refresh_from_db()
    assert (breach.until, breach.end, breach.worst_ms) == (NOON + 6 * ROUND, BreachEnd.MET, 900)
    assert breach.cause == BreachCause.CAPACITY, "what was found stays"
    assert [entry.kind for entry in ActivityEntry.objects.order_by("pk")] == ["service.breached", "service.resolved"]
    assert list(Delivery.objects.order_by("pk").values_list("kind", flat=True)) == ["service.breached", "service.resolved"]


def test_what_counting_in_floats_adds_is_no_replica(answers: Answers) -> None:
    service(workers=3)
    answers.by_service["chat"] = {"latency": 0.3, "wanted": 3.0000000000000004}
    run(3)
    assert ServiceBreach.objects.get().cause == BreachCause.UNKNOWN


def test_a_service_that_waits_says_why(answers: Answers) -> None:
    level = service(workers=0)
    Job.objects.update(state=JobState.PREEMPTED)
    builders.outlook(level.job, "Needs 4 GPUs; 2 are free.")
    answers.by_service["chat"] = {"latency": 2.0, "wanted": 1}
    run(3)

    assert ServiceBreach.objects.get().said == "Runs 0 of 1 replica wanted. The job is preempted. It waits: Needs 4 GPUs; 2 are free."


@pytest.mark.parametrize(("workers", "state", "said"), [(0, JobState.PREEMPTED, "The job is preempted."), (1, JobState.DEGRADED, "")])
def test_without_a_reading_of_what_is_wanted_it_wants_its_minimum(answers: Answers, workers: int, state: JobState, said: str) -> None:
    service(workers=workers)
    Job.objects.update(state=state, spec={"roles": [{"min": 2, "max": 4, "gpus": 1}]})
    answers.by_service["chat"] = {"latency": 2.0}
    run(3)

    breach = ServiceBreach.objects.get()
    assert (breach.cause, breach.said) == (BreachCause.CAPACITY, f"Runs {workers} of 2 replicas wanted. {said}".strip())


def beside(level: ServiceLevel, *, same_gpu: bool, since: Any, on: Any = None) -> Job:
    mine = level.job.placements.first()
    other = builders.job("train", state=JobState.RUNNING, on=on or level.job.quota)
    gpu = mine.gpu if same_gpu else mine.node.gpus.order_by("-index").first()
    if same_gpu:
        level.job.placements.update(gpu_milli=500)
    builders.placement(other, gpu, since=since, gpu_milli=500)
    return other


def test_who_shares_its_gpus_is_the_cause(answers: Answers) -> None:
    level = service()
    other = beside(level, same_gpu=True, since=NOON - timedelta(days=1))
    answers.by_service["chat"] = {"latency": 0.3, "wanted": 2}
    run(3)

    breach = ServiceBreach.objects.get()
    assert (breach.cause, breach.said) == (BreachCause.CO_TENANT, f"{other.public_id} shares its GPUs.")
    assert "Another job shares its GPUs." in ActivityEntry.objects.get().text, "a line names no other job"


@pytest.mark.parametrize(("minutes", "cause"), [(10, BreachCause.CO_TENANT), (45, BreachCause.UNKNOWN)])
def test_who_came_to_its_node_just_before_may_be_the_cause(answers: Answers, minutes: int, cause: str) -> None:
    level = service()
    beside(level, same_gpu=False, since=NOON - timedelta(minutes=minutes))
    answers.by_service["chat"] = {"latency": 0.3, "wanted": 2}
    run(3)

    breach = ServiceBreach.objects.get()
    assert breach.cause == cause
    if cause == BreachCause.UNKNOWN:
        assert breach.said == "It has the replicas that it wants, and no other job is new on its nodes."


def test_a_cause_that_shows_later_is_told(answers: Answers) -> None:
    service()
    answers.by_service["chat"] = {"latency": 0.3}
    run(3)
    assert ServiceBreach.objects.get().cause == BreachCause.UNKNOWN

    answers.by_service["chat"] = {"latency": 0.3, "wanted": 3}
    run(1, begin=3)
    assert ServiceBreach.objects.get().said == "Runs 2 of 3 replicas wanted."


def test_a_breach_ends_with_its_job_and_where_nothing_is_read_any_more(answers: Answers) -> None:
    first, second = service(), service("search")
    answers.by_service = {"chat": {"latency": 0.3}, "search": {"latency": 0.3}}
    run(3)
    Job.objects.filter(pk=first.job_id).update(state=JobState.CANCELLED, state_since=NOON + 3 * ROUND, ended_at=NOON + 3 * ROUND)
    answers.by_service, answers.asked = {}, []
    run(1, begin=3)
    assert answers.asked == ["search"], "of a job that ended nothing is asked"
    assert ServiceBreach.objects.get(job=first.job_id).end == BreachEnd.ENDED
    assert ServiceBreach.objects.get(job=second.job_id).until is None, "without a reading nothing is known"

    PrometheusServer.objects.update(for_services=False)
    services_round(now=NOON + 3 * ROUND + SILENT, rules=LOCAL)
    assert ServiceBreach.objects.get(job=second.job_id).end == BreachEnd.UNREAD


def test_a_server_from_which_no_gpus_are_read_answers_services(answers: Answers) -> None:
    """Applications often have a Prometheus of their own: read for GPUs it would be stale for ever."""
    level = service()
    answers.by_service["chat"] = {"latency": 0.2}
    PrometheusServer.objects.update(enabled=False)

    run(1)

    level.refresh_from_db()
    assert (level.latency_ms, is_answered()) == (200, True)


def test_answers_to_other_queries_are_not_taken(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    level = service()

    answers.by_service["chat"] = {"latency": 0.3}

    def changed_meanwhile(*asked: Any) -> list[Read]:
        found = levels_read(*asked)
        ServiceLevel.objects.update(latency="other", revision=2)
        return found

    monkeypatch.setattr(rounds, "levels_read", changed_meanwhile)
    assert services_round(now=NOON, rules=LOCAL) == 0
    level.refresh_from_db()
    assert level.latency_ms is None
    assert not ServiceSample.objects.exists()


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """It happens once, while the servers are asked."""
    waiting = [happens]

    def read(*asked: Any) -> list[Read]:
        found = levels_read(*asked)
        if waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(rounds, "levels_read", read)


def test_no_breach_begins_with_a_job_that_ended_meanwhile(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    service()
    answers.by_service["chat"] = {"latency": 0.3}
    run(2)
    meanwhile(monkeypatch, lambda: Job.objects.update(state=JobState.COMPLETED, state_since=NOON + 2 * ROUND, ended_at=NOON + 2 * ROUND))
    run(1, begin=2)
    assert not ServiceBreach.objects.exists()


def test_a_round_that_was_overtaken_writes_nothing(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    level = service()
    answers.by_service["chat"] = {"latency": 0.3}
    run(1)
    meanwhile(monkeypatch, lambda: run(1, begin=2))
    run(1, begin=1)
    level.refresh_from_db()
    assert (level.looked_at, level.over) == (NOON + 2 * ROUND, 2), "the newer answers stay, and each round counts once"


def test_what_was_slow_long_ago_is_no_part_of_a_breach(answers: Answers) -> None:
    service()
    answers.by_service["chat"] = {"latency": 0.3}
    run(3)
    answers.by_service["chat"] = {}
    services_round(now=NOON + 2 * ROUND + SILENT + ROUND, rules=LOCAL)
    assert ServiceBreach.objects.get().end == BreachEnd.UNREAD
    answers.by_service["chat"] = {"latency": 0.3}
    run(2, begin=100)
    assert not ServiceBreach.objects.filter(until__isnull=True).exists(), "two rounds are no breach"
    run(1, begin=102)
    assert ServiceBreach.objects.filter(until__isnull=True).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("stated_anew", [True, False])
def test_who_changes_a_service_in_a_round_has_the_last_word(
    answers: Answers, personas: Personas, monkeypatch: pytest.MonkeyPatch, stated_anew: bool
) -> None:
    chat, search = service(of=personas.nodes["acme"]), service("search", of=personas.nodes["acme"])
    answers.by_service = {name: {"latency": 0.3} for name in ("chat", "search")}
    run(3)
    access, told = personas.access("superuser"), []
    # Of one that the round asks, and of one that it has no time for.
    monkeypatch.setattr(rounds, "MOST_A_ROUND", 1)
    ServiceLevel.objects.filter(pk=search.pk).update(looked_at=NOON + 3 * ROUND)

    def change() -> None:
        moment = NOON + 4 * ROUND
        try:
            if stated_anew:
                service_level_set(access=access, job=chat.job, values=level_facts(chat) | {"objective_ms": 200}, now=moment)
            else:
                service_level_remove(access=access, job=search.job, now=moment)
            told.append("done")
        except Exception as fault:
            told.append(repr(fault))
        finally:
            connection.close()

    thread = threading.Thread(target=change)

    def held(**facts: Any) -> Judged:
        if not thread.ident:
            thread.start()
            thread.join(1)  # as far as it comes while the round goes on
        return judged(**facts)

    monkeypatch.setattr(rounds, "judged", held)
    run(1, begin=4)
    thread.join(30)

    assert told == ["done"]
    changed = chat if stated_anew else search
    assert ServiceBreach.objects.get(job=changed.job_id).end == BreachEnd.REMOVED


def test_a_server_is_asked_only_where_an_operator_allowed_it(answers: Answers) -> None:
    service()
    PrometheusServer.objects.update(for_services=False)
    assert services_round(now=NOON, rules=LOCAL) == 0
    assert answers.asked == []


def test_a_round_is_done_once_however_many_ask_for_it(answers: Answers) -> None:
    assert services_turn(now=NOON) == 0, "without services there is nothing to do"
    service()
    assert [services_turn(now=NOON + number * timedelta(seconds=5)) for number in range(4)] == [None, None, 1, None]


def test_those_not_asked_for_longest_come_first(answers: Answers, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b", "c"):
        service(name)
    monkeypatch.setattr(rounds, "MOST_A_ROUND", 2)
    run(3)
    assert answers.asked == ["a", "b", "c", "a", "b", "a"]


def test_many_services_cost_as_many_queries_as_one(answers: Answers, django_assert_max_num_queries: Any) -> None:
    names = [f"s{number}" for number in range(12)]
    for name in names:
        service(name, workers=1)
    answers.by_service = {name: {"latency": 0.3, "wanted": 1} for name in names}
    run(2)
    with django_assert_max_num_queries(22):
        run(1, begin=2)
    assert ServiceBreach.objects.count() == 12


def test_an_alert_rule_counts_them_by_team(answers: Answers, personas: Personas) -> None:
    level = service(of=personas.nodes["acme/research/nlp"])
    answers.by_service["chat"] = {"latency": 0.3}
    run(3)

    figures = figures_now(now=NOON, wanted=["service_breaches"])["service_breaches"]
    assert (figures[""], figures["acme/research/nlp"], figures["acme/research/vision"]) == (1, 1, 0)
    defaults = [row for row in default_rules() if row["figure"] in ("service_breaches", "scale_ups_late")]
    assert [row["told"] for row in defaults] == [["operator", "team_lead"]] * 2
    watched = rule(figure="service_breaches", threshold=1, clear_at=1)
    alert = Alert(rule=watched, subject="acme/research/nlp")
    assert [lead.address for lead in leads_of(personas.access("team_lead"), alert)] == [f"/jobs/{level.job.public_id}/"]
    assert leads_of(personas.access("team_lead"), Alert(rule=watched, subject="acme/research/vision")) == []
