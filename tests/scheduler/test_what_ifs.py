"""What-ifs: other nodes and settings than today's, asked for at a page and over the API, played, and told side by side."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from math import inf
from typing import Any, ClassVar

import pytest
from django.core.exceptions import ValidationError
from django.db import IntegrityError
from django.test import Client
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.models import AuditEntry
from gpufleet.core.times import millis
from quotas.models import QuotaNode
from quotas.services.changes import Wanted as Drafted
from quotas.services.changes import change_draft
from scheduler.engine.model.values import Fairness, Node, Settings
from scheduler.models import Attempt, Job, LearnedOverrun, QuotaReplay
from scheduler.models import Node as NodeRow
from scheduler.scenarios.reading import parse
from scheduler.services.forecasts import plays, replays
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.what_ifs import as_of, replay_teams, what_if_ask, what_if_cancel
from scheduler.simulation.paced import longest_step
from scheduler.simulation.policies import POLICIES
from scheduler.simulation.span import HOUR, Cost, Pace, pace_of, played, told_every, waits_told
from scheduler.whatifs.telling import Measure, TeamWait, measures, summary
from scheduler.whatifs.wanted import (
    RULES,
    NodeKind,
    NodesThere,
    Wanted,
    differing,
    nodes_changed,
    nodes_there,
    settings_changed,
    wanted_faults,
    wanted_of,
)
from tests import builders
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, submit
from tests.scheduler.past_worlds import two_full_nodes


def _fleet(*health: str) -> tuple[Node, ...]:
    """Nodes of 8 GPUs, two in each rack."""
    rows = [
        {"name": f"n{place}", "gpu_type": H100, "gpus": 8, "cluster": "c", "path": {"rack": f"r{place // 2}"}, "health": word}
        for place, word in enumerate(health)
    ]
    return parse({"format": "gpufleet-scenario/1", "now": "2026-11-02T00:00:00Z", "topology": {"levels": ["rack"]}, "nodes": rows}).nodes


KIND = NodeKind("c", H100, 8)


def test_new_nodes_repeat_the_racks_of_those_that_are_alike():
    fleet = _fleet("healthy", "healthy", "down")
    found = nodes_changed(fleet, Wanted(nodes={KIND: 4}))

    assert [(node.name, node.path[-1], node.island, node.health) for node in found if "+" in node.name] == [
        ("n0+1", "r0+1", "n0+1", "healthy"),
        ("n1+1", "r0+1", "n1+1", "healthy"),
        ("n0+2", "r0+2", "n0+2", "healthy"),
        ("n2+1", "r1+1", "n2+1", "healthy"),
    ]


def test_nodes_that_serve_leave_first_and_others_come_back():
    fleet = _fleet("healthy", "healthy", "down", "draining")

    assert [node.name for node in nodes_changed(fleet, Wanted(nodes={KIND: -1}))] == ["n0", "n2", "n3"]
    assert {node.health for node in nodes_changed(fleet, Wanted(return_nodes=True))} == {"healthy"}
    assert nodes_there(fleet) == [NodesThere(KIND, 4, 2)]


@pytest.mark.parametrize("name", RULES)
def test_each_setting_is_read_back_as_it_was_put(name: str):
    rule, settings = RULES[name], Settings(fairness=Fairness(step_ms=3_600_000))
    values: list[Any] = list(rule.choices) or ([True, False] if rule.is_switch else [0, 3600])

    for value in values if name != "order" else ():  # which is another policy, and no setting
        changed = settings_changed(settings, Wanted(policy={name: value}))
        assert rule.read(changed) == value
        assert rule.put(changed, rule.read(settings)) == settings


def test_what_is_as_today_is_no_change():
    there = [NodesThere(KIND, 3, 0)]
    wanted = Wanted(policy={"placement": "pack", "backfill": False}, nodes={KIND: 0}, return_nodes=True)

    found = differing(wanted, Settings(), there)
    assert found == Wanted(policy={"backfill": False}) and wanted_of(found.stored()) == found


def test_faults_are_told_at_their_fields():
    other = NodeKind("c", "A100", 8)
    wanted = Wanted(2, {"placement": "best", "half_life_s": 1, "usage_weight": 1}, {KIND: -4, other: 1})

    faults = wanted_faults(wanted, [NodesThere(KIND, 3, 0)])
    assert set(faults) == {"days", "policy.placement", "policy.half_life_s", "nodes.0.count", "nodes.1.gpu_type"}
    assert faults["nodes.0.count"] == ["There are only 3 such nodes."]


def test_waits_are_told_by_their_ranks_and_between_the_edges():
    assert waits_told([]) == {"jobs": 0, "p50": None, "p95": None, "counts": [0] * 9}
    told = waits_told([HOUR * 30, 0, 59_999, 60_000])
    assert (told["p50"], told["p95"], told["counts"]) == (59_999, HOUR * 30, [2, 1, 0, 0, 0, 0, 0, 0, 1])


def _figures(order: str, hours: int = 12) -> dict[str, Any]:
    """A job fills half of the node for long; a wide one waits for it; a small and short one that comes last fits before the wide one."""
    jobs = [{"name": f"j{place}", "quota": "a", "roles": [{"name": "w", "gpus": gpus, "min": 1}]} for place, gpus in enumerate((4, 8, 4))]
    document = {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-02T00:00:00Z",
        "settings": {"forecast": "none"},
        "nodes": [{"name": "n0", "gpu_type": H100, "gpus": 8}],
        "quotas": [{"name": "a", "guaranteed": 8}],
        "jobs": jobs,
    }
    scenario = parse(document)
    rows = [[place, scenario.now + (place + 1) * HOUR, work, work, work, "a"] for place, work in enumerate((4 * HOUR, HOUR, HOUR))]
    told = list(played(scenario, rows, hours, lambda: True, policy=POLICIES[order][0]))
    assert sum(held for one in told for held in one["course"][:1]) == told[-1]["figures"]["held"]
    return told[-1]["figures"]


def test_first_come_first_served_lets_nobody_pass():
    tree, fifo = _figures("tree"), _figures("fifo")

    assert tree["finished"] == fifo["finished"] == 3 and tree["held"] == fifo["held"] == (16 + 8 + 4) * 1000 * HOUR
    assert tree["waits"]["batch"]["counts"] == [2, 0, 0, 0, 0, 1, 0, 0, 0], "the small one runs in the gap before the wide one"
    assert fifo["waits"]["batch"]["counts"] == [1, 0, 0, 0, 0, 2, 0, 0, 0]
    assert (tree["completion"], fifo["completion"]) == (3 * HOUR, 4 * HOUR)
    assert (bool(tree["plans"]), fifo["plans"]) == (True, 0), "the other order looks for the room of one job alone"


def test_what_has_not_ended_counts_with_its_time_so_far():
    """Left out, those that take longest would make the mean look short; at 0 even more so."""
    assert (_figures("fifo", 4)["finished"], _figures("fifo", 4)["completion"]) == (0, (3 + 2 + 1) * HOUR // 3)


# Played on the fleet


@pytest.fixture
def world(personas: Personas) -> Personas:
    return two_full_nodes(personas)


def _kind() -> NodeKind:
    node = NodeRow.objects.select_related("cluster").first()
    assert node is not None
    return NodeKind(node.cluster.name, H100, 8)


def _asked(world: Personas, wanted: Wanted, who: str = "superuser") -> QuotaReplay:
    return what_if_ask(access=world.access(who), wanted=wanted, change=None, now=NOON, begin=lambda key: None)


def test_one_more_node_ends_the_wait(world: Personas, client: Client):
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    assert made.title == f"1 more node with 8 {H100} in {_kind().cluster}"
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()

    by = {one.key: one for one in measures(made.figures, made.hours)}
    assert by["gpus"].told == ("16", "24") and by["finished"].told == ("3", "3")
    late = by["wait_all_p95"]
    assert late.before is not None and late.after is not None and late.before > 17 * 3600 > 3600 > late.after
    assert by["gpu_hours"].told == ("336.0", "336.0")
    fair, idle = by["fairness"], by["fragmented"]
    assert fair.before is not None and fair.after is not None and fair.before > fair.after
    assert idle.told == ("0.0%", "0.0%"), "every job takes a whole node"
    assert len(made.figures["after"]["course"]["held"]) == made.hours == 31

    client.force_login(world.users["superuser"])
    page = client.get(reverse("what-if", args=[made.public_id])).content.decode()
    assert "the 95th percentile falls from 18" in page
    assert page.count("data-plot-document") == 4 and "Team search gains most" in page
    file = client.get(reverse("what-if-chart", args=[made.public_id, "waits"]), {"format": "csv"})
    assert b"".join(file).decode().splitlines()[:2] == ["Queue time,Today (jobs),What-if (jobs)", "Under 1 min,2,3"]

    told = client.get(f"/api/v1/what-ifs/{made.public_id}").json()
    assert told["result"]["summary"] and all(sentence in page.replace("&#x27;", "'") for sentence in told["result"]["summary"][:1])
    assert told["nodes"] == [{"cluster": _kind().cluster, "gpu_type": H100, "gpus": 8, "count": 1}]
    assert [one["path"] for one in told["teams"]] == ["acme/product/search", "acme/research/nlp"]
    client.force_login(world.users["viewer"])
    assert [one["path"] for one in client.get(f"/api/v1/what-ifs/{made.public_id}").json()["teams"]] == ["acme/research/nlp"]


@pytest.mark.parametrize(("minutes", "seconds"), [(1, 54), (5, 294)])
def test_it_may_take_so_many_minutes(world: Personas, monkeypatch: pytest.MonkeyPatch, minutes: int, seconds: float):
    given: list[float] = []

    class Noting(plays.Play):
        def __init__(self, text: bytes, **options: Any) -> None:
            given.append(options["seconds"])
            super().__init__(text, **options)

    monkeypatch.setattr(replays, "Play", Noting)
    made = _asked(world, Wanted(policy={"placement": "spread"}, minutes=minutes))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    assert given == [pytest.approx(seconds, abs=10)] * 2


def test_one_that_takes_longer_than_a_minute_runs_at_a_time_and_others_beside_it(world: Personas, client: Client):
    """Each has a worker for so long, and all of them would leave none for anything else."""
    client.force_login(world.users["superuser"])
    asked = {"policy": {"placement": "spread"}, "minutes": 15}
    first = client.post("/api/v1/what-ifs", asked, content_type="application/json")
    assert (first.status_code, first.json()["minutes"]) == (201, 15)

    client.force_login(world.users["operator"])
    refused = client.post("/api/v1/what-ifs", asked, content_type="application/json")
    assert refused.status_code == 422
    assert [fault["path"] for fault in refused.json()["errors"]] == ["minutes"]
    page = client.post(reverse("what-if-new"), {"days": 7, "placement": "spread", "minutes": 5})
    assert "Another what-if of more than a minute" in page.content.decode()
    assert client.post("/api/v1/what-ifs", {**asked, "minutes": 2}, content_type="application/json").status_code == 422
    assert client.post("/api/v1/what-ifs", {**asked, "minutes": 1}, content_type="application/json").status_code == 201


@pytest.mark.django_db(transaction=True)
def test_of_two_long_ones_in_one_instant_the_database_takes_one(world: Personas):
    """Neither sees the other before both are written: what keeps them apart is no look at what goes on."""
    QuotaReplay.objects.create(public_id="wi-a", is_long=True, asked_at=NOON)
    with pytest.raises(IntegrityError):
        QuotaReplay.objects.create(public_id="wi-b", is_long=True, asked_at=NOON)
    QuotaReplay.objects.create(public_id="wi-c", is_long=False, asked_at=NOON)
    QuotaReplay.objects.filter(public_id="wi-a").update(state="done", ended_at=NOON)
    QuotaReplay.objects.create(public_id="wi-d", is_long=True, asked_at=NOON)


def test_one_at_a_time_of_a_person_and_it_can_be_cancelled(world: Personas):
    first = _asked(world, Wanted(policy={"placement": "spread"}))
    with pytest.raises(Conflict):
        _asked(world, Wanted(policy={"placement": "spread"}))
    other = _asked(world, Wanted(policy={"placement": "spread"}), who="operator")

    assert what_if_cancel(access=world.access("operator"), found=first, now=NOON)
    assert not what_if_cancel(access=world.access("operator"), found=first, now=NOON)
    assert replay_run(key=first.pk, clock=lambda: NOON) is None
    assert _asked(world, Wanted(policy={"placement": "spread"})).pk > other.pk
    assert AuditEntry.objects.filter(action="what_if.start").count() == 3 and AuditEntry.objects.filter(action="what_if.cancel").count() == 1


def test_one_that_waits_for_a_worker_is_not_lost_with_it(world: Personas):
    """Each takes a minute of a worker, and a worker has other tasks."""
    first = _asked(world, Wanted(policy={"placement": "spread"}))
    later = NOON + timedelta(minutes=5)
    assert as_of(first, later).state == "waiting"
    what_if_ask(access=world.access("operator"), wanted=Wanted(policy={"placement": "spread"}), change=None, now=later, begin=lambda key: None)
    assert replay_run(key=first.pk, clock=lambda: later) == "done"

    lost = _asked(world, Wanted(policy={"placement": "spread"}))
    assert as_of(lost, NOON + timedelta(minutes=11)).fault == "Not started within 10 minutes."


def test_what_is_named_beside_a_draft_holds_though_it_is_as_today(world: Personas):
    """The draft may change the same setting."""
    edit = {"op": "update", "node": world.nodes["acme"].public_id, "set": {"policy": {"max_wait_batch_s": 3600}}}
    change = change_draft(access=world.access("superuser"), wanted=Drafted([edit]), now=NOON)
    wanted = Wanted(policy={"max_wait_batch_s": 0, "placement": None})

    made = what_if_ask(access=world.access("superuser"), wanted=wanted, change=change, now=NOON, begin=lambda key: None)
    assert made.asked["policy"] == {"max_wait_batch_s": 0} and made.changes[1:] == ["Longest wait, batch: none, as today"]


def test_jobs_that_ran_when_the_days_began_have_their_gpus_before_those_that_waited(world: Personas):
    """However long these had waited."""
    Attempt.objects.all().delete()
    Job.objects.all().delete()
    begin = NOON - timedelta(days=1)
    for came, since, until in ((-6, 3, 20), (-5, -4, 2), (-4, -3, 2), (1, 3, 20)):
        job = submit(QuotaNode.objects.get(path="acme/research/nlp"), gpus=8, name="one", at=begin + timedelta(hours=came))
        since_at, until_at = (begin + timedelta(hours=hours) for hours in (since, until))
        Attempt.objects.create(job=job, number=1, started_at=since_at, running_at=since_at, ended_at=until_at, outcome="completed")
        Job.objects.filter(pk=job.pk).update(state="completed", ended_at=until_at)

    made = _asked(world, Wanted(days=1, nodes={_kind(): 2}))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()
    (team,) = replay_teams(world.access("superuser"), made)
    assert (team.jobs, team.started) == (1, (1, 1)), "the others came before"
    assert [round(waited / HOUR, 1) for waited in team.waited] == [1.0, 0.0], "until both have ended: the oldest has the other node then"
    course = made.figures["before"]["course"]
    assert course["waiting"][1] == 2000 and course["held"][:3] == [16000, 16000, 16000]


def test_a_fleet_may_lose_all_of_its_nodes(world: Personas, client: Client):
    made = _asked(world, Wanted(nodes={_kind(): -2}))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()

    by = {one.key: one for one in measures(made.figures, made.hours)}
    assert by["gpus"].told == ("16", "0") and by["allocated"].told[1] == "–" and by["waiting"].told == ("0", "3")
    client.force_login(world.users["superuser"])
    assert client.get(reverse("what-if", args=[made.public_id])).status_code == 200


def test_it_states_the_factor_on_estimates_by_which_it_was_planned(world: Personas, client: Client):
    LearnedOverrun.objects.create(learnt_at=NOON, factor_millionths=800_000, jobs=90)
    with pytest.raises(ValidationError, match="Nothing differs from today"):
        _asked(world, Wanted(policy={"overrun": 0.8}))
    with pytest.raises(ValidationError, match=r"Enter a value from 0\.01 to 100\."):
        _asked(world, Wanted(policy={"overrun": 0}))
    made = _asked(world, Wanted(policy={"overrun": 1}))
    assert made.changes == ["Overrun factor: 1 instead of 0.8"]
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"

    client.force_login(world.users["superuser"])
    assert client.get(f"/api/v1/what-ifs/{made.public_id}").json()["result"]["overrun"] == {"before": 0.8, "after": 1.0}
    assert "the overrun factor: 0.8, in the what-if 1." in client.get(reverse("what-if", args=[made.public_id])).content.decode()
    assert client.get("/api/v1/what-ifs/options").json()["policy"]["overrun"] == 0.8
    assert "by it. 1: as stated. As today: 0.8." in client.get(reverse("what-if-new")).content.decode()


def test_a_chart_of_an_unknown_class_is_not_there(world: Personas, client: Client):
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    client.force_login(world.users["viewer"])
    address = reverse("what-if-chart", args=[made.public_id, "waits"])

    assert [client.get(address, {"class": name}).status_code for name in ("all", "batch", "inference")] == [200, 200, 404]


def test_what_changes_nothing_is_refused(world: Personas):
    with pytest.raises(ValidationError, match="Nothing differs from today"):
        _asked(world, Wanted(policy={"placement": "pack"}, nodes={_kind(): 0}, return_nodes=True))
    assert not QuotaReplay.objects.exists()


def test_a_fleet_without_jobs_says_so(personas: Personas):
    builders.node("n0", gpus=8)
    made = _asked(personas, Wanted(policy={"placement": "spread"}))

    assert replay_run(key=made.pk, clock=lambda: NOON) == "failed"
    made.refresh_from_db()
    assert made.fault == "No job was submitted or ran in these days."


def test_the_form_tells_faults_at_their_fields_and_begins_as_another_was_asked(world: Personas, client: Client):
    client.force_login(world.users["superuser"])
    address, row = reverse("what-if-new"), f"nodes:{_kind()}"

    nothing = client.post(address, {"days": "7"})
    assert nothing.status_code == 422 and "Nothing differs from today" in nothing.content.decode()
    faulty = client.post(address, {"days": "7", row: "-9", "usage_weight": "-1"})
    assert faulty.context["form"].errors == {row: ["There are only 2 such nodes."], "usage_weight": ["Enter a value from 0 to 1,000."]}

    sent = client.post(address, {"days": "3", "reclaim": "off", "max_wait_batch_s": "12h", row: "+2"})
    made = QuotaReplay.objects.get()
    assert sent["Location"] == reverse("what-if", args=[made.public_id])
    assert made.changes == [
        "Reclaim: off instead of on",
        "Longest wait, batch: 12h instead of none",
        f"2 more nodes with 8 {H100} in {_kind().cluster}",
    ]
    again = client.get(address, {"like": made.public_id}).context["form"]
    assert {name: again[name].value() for name in ("days", "reclaim", "max_wait_batch_s", row)} == {
        "days": 3,
        "reclaim": "off",
        "max_wait_batch_s": "12h",
        row: "+2",
    }


def test_options_have_what_may_be_changed(world: Personas, client: Client):
    client.force_login(world.users["operator"])
    told = client.get("/api/v1/what-ifs/options").json()

    assert set(told["policy"]) == set(RULES) and told["policy"]["placement"] == "pack"
    assert told["nodes"] == [{"cluster": _kind().cluster, "gpu_type": H100, "gpus": 8, "nodes": 2, "away": 0}]
    twice = {"nodes": [{"cluster": "c", "gpu_type": H100, "gpus": 8, "count": 1}] * 2}
    refused = client.post("/api/v1/what-ifs", twice, content_type="application/json")
    assert [one["path"] for one in refused.json()["errors"]] == ["nodes.1"]


def test_a_list_and_a_form_ask_a_fixed_number_of_questions(world: Personas, client: Client, django_assert_max_num_queries: Any):
    client.force_login(world.users["superuser"])
    for number in range(30):
        QuotaReplay.objects.create(public_id=f"wi-x{number}", state="done", asked_by=world.users["superuser"])
    with django_assert_max_num_queries(14):
        client.get(reverse("what-ifs"))
    with django_assert_max_num_queries(24):
        client.get(reverse("what-if-new"))


# Told


def _measures(**after: float) -> list[Measure]:
    names = {"wait_all_p50": 600.0, "wait_all_p95": 7200.0, "allocated": 0.8, "finished": 10.0, "completion": 14400.0, "preemptions": 2.0}
    kinds: dict[str, Any] = {"allocated": "percent", "finished": "count", "preemptions": "count"}
    return [Measure(key, key, kinds.get(key, "seconds"), value, after.get(key, value)) for key, value in names.items()]


def test_the_summary_says_what_differs_first():
    assert summary(_measures(), [TeamWait("a", 1.0, 1.0)]) == ["Nothing changes: jobs wait and run as today."]

    told = summary(_measures(wait_all_p95=3600.0, finished=11.0, preemptions=0.0), [TeamWait("a/b", 7200.0, 600.0), TeamWait("a/c", 0.0, 60.0)])
    assert [one.replace("\N{NO-BREAK SPACE}", " ") for one in told] == [
        "The median queue time stays at 10 min, the 95th percentile falls from 2 h to 1 h.",
        "1 more job finishes, the allocated share of GPUs stays at 80.0% and the number of preemptions falls from 2 to 0.",
        "Team b gains most (mean queue time 2 h → 10 min); team c loses most (0 s → 1 min).",
    ]
    shorter = summary(_measures(completion=10800.0), [])[-1].replace("\N{NO-BREAK SPACE}", " ")
    assert shorter.endswith("stays at 80.0% and the mean completion time falls from 4 h to 3 h.")
    lost = summary(_measures(finished=9.0), [TeamWait("a/b", 0.0, 0.0), TeamWait("a/c", 0.0, 30.0)])
    assert lost[-1].replace("\N{NO-BREAK SPACE}", " ") == "Team c loses most (mean queue time 0 s → 30 s)."


def test_a_change_that_does_not_show_is_none():
    assert replace(_measures()[2], after=0.80001).change == ""
    assert replace(_measures()[2], after=0.7).change == "\N{MINUS SIGN}10.0 points"


def test_the_step_is_as_fine_as_time_allows_and_hours_are_fewer_rather_than_coarse():
    minute = 60_000
    assert pace_of(168, Cost(1, 10), longest=5 * minute, spend=10_000) == Pace(168, 0)
    assert pace_of(168, Cost(10, 2000), longest=5 * minute, spend=400_000) == Pace(168, minute // 2)
    assert pace_of(168, Cost(80, 500), longest=5 * minute, spend=50_000) == Pace(31, 5 * minute)
    assert pace_of(168, Cost(80, inf), longest=5 * minute, spend=50_000) == Pace(31, 5 * minute), "no hour was over when it was measured"
    assert pace_of(168, Cost(80, 10), longest=5 * minute, spend=50_000) == Pace(37, 0), "a longer step makes no fewer plans"
    assert pace_of(168, Cost(9000, 500), longest=5 * minute, spend=50_000) == Pace(1, 5 * minute)


def test_short_jobs_are_not_held_back_by_long_steps():
    assert [longest_step(work) for work in (1000, 60_000, 600_000, 30 * 60_000, 30 * HOUR)] == [10_000, 10_000, 60_000, 180_000, 300_000]


class Told(plays.Play):
    """One that is told of, and goes on."""

    is_on = True

    def __init__(self, *told: tuple[int, int, bool]) -> None:
        self.told = told

    def messages(self, wait: float = 0.25) -> Iterator[dict[str, Any]]:
        yield from ({"ms": ms, "plans": plans} | ({"course": [0, 0]} if is_hour else {}) for ms, plans, is_hour in self.told)


def test_what_plans_cost_of_late_counts_of_either_side():
    """The first hours may be of an idle fleet."""
    cheap = Told((100, 50, True), (6000, 3000, True))
    pair = plays.Pair([cheap, Told((100, 50, True), (500, 100, True), (4600, 110, False))])
    pair.listen()
    assert pair.cost == Cost(4100 / 10, inf)

    pair = plays.Pair([cheap, Told((100, 50, True), (500, 100, True), (4600, 110, True))])
    pair.listen()
    assert pair.cost == Cost(4100 / 10, 2950) and pair.hours == 2
    pair = plays.Pair([cheap, Told((100, 50, True))])
    pair.listen()
    assert pair.cost is None


class Slow(plays.Play):
    """Its plans are said to take long, and it is heard of hour by hour."""

    seconds_an_hour: ClassVar[float] = 2.5

    def messages(self, wait: float = 0.25) -> Iterator[dict[str, Any]]:
        for told in super().messages(wait):
            hour = told.get("hour", 1)
            yield told | {"plans": 10 * hour, "ms": 1000 * self.seconds_an_hour * hour}
            return


def test_where_all_hours_take_too_long_the_last_ones_are_played_by_both(world: Personas, monkeypatch: pytest.MonkeyPatch, client: Client):
    monkeypatch.setattr(replays, "Play", Slow)
    monkeypatch.setattr(plays, "MEASURED_MS", 1)
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()

    assert made.hours == made.of_hours == 12 and made.skipped_hours == 19
    assert made.figures["from"] == millis(NOON - timedelta(hours=12)) and made.figures["step"] == 0
    # Of the 20 hours of each of the two jobs 2 lie in these; the third one had its run before.
    assert made.figures["before"]["held"] == made.figures["after"]["held"] == 2 * 8000 * 2 * HOUR
    assert all(len(made.figures[side]["course"]["held"]) == 12 for side in ("before", "after"))

    client.force_login(world.users["viewer"])
    page = client.get(reverse("what-if", args=[made.public_id])).content.decode()
    assert "Only the last 12 of 31 hours were simulated" in page and "too long" not in page
    told = client.get(f"/api/v1/what-ifs/{made.public_id}").json()
    assert (told["hours"], told["of_hours"], told["skipped_hours"]) == (12, 12, 19)


def test_an_error_tells_readers_nothing_of_what_they_may_not_see(world: Personas, monkeypatch: pytest.MonkeyPatch):
    class Broken(plays.Play):
        def __init__(self, *_: Any, **__: Any) -> None:
            raise OSError("/srv/acme/product/search")

    monkeypatch.setattr(replays, "Play", Broken)
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    with pytest.raises(OSError, match="search"):
        replay_run(key=made.pk, clock=lambda: NOON)
    made.refresh_from_db()
    assert (made.state, made.fault) == ("failed", "Internal error (OSError). The log has the details.")


def test_a_step_between_plans_is_said_beside_the_result(world: Personas, client: Client):
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    assert replay_run(key=made.pk, clock=lambda: NOON) == "done"
    made.refresh_from_db()
    client.force_login(world.users["viewer"])
    for step, is_said in ((0, False), (300_000, True)):
        QuotaReplay.objects.filter(pk=made.pk).update(figures=made.figures | {"step": step})
        page = client.get(reverse("what-if", args=[made.public_id])).content.decode().replace("\N{NO-BREAK SPACE}", " ")
        assert ("Plans are 5 min apart" in page) == is_said


def test_what_is_cut_off_early_is_said_strongly(world: Personas, client: Client):
    made = _asked(world, Wanted(nodes={_kind(): 1}))
    client.force_login(world.users["viewer"])
    for hours, told in ((3, "Cut off early: only 3 of 10 hours"), (6, "Only the first 6 of 10 hours"), (10, "")):
        QuotaReplay.objects.filter(pk=made.pk).update(state="done", hours=hours, asked=made.asked | {"hours": 10})
        page = client.get(reverse("what-if", args=[made.public_id])).content.decode()
        assert told in page and ("Cut off" in page) == (hours == 3) and ("Only the" in page) == (hours == 6)


def test_a_slow_play_of_few_hours_is_told_as_far_as_it_came():
    assert [told_every(hours) for hours in (12, 31, 168, 672)] == [1, 2, 6, 24]
