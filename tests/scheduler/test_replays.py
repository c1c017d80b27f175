"""The last days under a drafted tree: what a guarantee would have changed, cancelled and followed."""

import signal
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.faults import Conflict
from gpufleet.core.times import millis
from quotas.models import LedgerEntry, QuotaChange, QuotaNode, QuotaShare, Reservation, Window
from quotas.services.changes import Wanted, change_draft
from scheduler.loop.policy import policy
from scheduler.models import Attempt, Dependency, Gpu, QuotaReplay, Repartition
from scheduler.scenarios.reading import parse
from scheduler.services.forecasts import came, plays, replays
from scheduler.services.forecasts.replays import replay_run
from scheduler.services.forecasts.what_ifs import replay_ask, replay_cancel, replay_of, replay_teams
from scheduler.simulation.calendar import Promised
from scheduler.simulation.span import HOUR, played
from scheduler.snapshots import Snapshots
from scheduler.snapshots.jobs import Kinds
from scheduler.snapshots.windows import windows_of_span
from tests.builders import NOON
from tests.personas import Personas
from tests.scheduler.loop.worlds import H100, submit
from tests.scheduler.past_worlds import two_full_nodes

BOARD = "H100-SXM-80GB"


def _span(guaranteed: int, hours: int = 12) -> dict[str, list[int]]:
    """One team fills 16 GPUs for long; an hour later the other one wants 8 for an hour."""
    jobs: list[dict[str, Any]] = [
        {"name": f"j{place}", "quota": quota, "preemptible": True, "roles": [{"name": "worker", "gpus": 8, "min": 1}]}
        for place, quota in enumerate(("a", "b"))
    ]
    scenario = parse(
        {
            "format": "gpufleet-scenario/1",
            "now": "2026-11-02T00:00:00Z",
            "settings": {"forecast": "none", "reclaim_min_runtime_s": 0},
            "nodes": [{"name": f"n{place}", "gpu_type": "H100", "gpus": 8} for place in range(2)],
            "quotas": [{"name": "a", "guaranteed": 16 - guaranteed}, {"name": "b", "guaranteed": guaranteed}],
            "jobs": jobs,
        }
    )
    start = scenario.now
    rows = [[0, start, 10 * HOUR], [0, start, 10 * HOUR], [1, start + HOUR, HOUR]]
    told = list(played(scenario, rows, hours, lambda: True))
    assert [one["hour"] for one in told] == list(range(1, hours + 1))
    return told[-1]["table"]


def test_a_guarantee_ends_the_wait_and_what_is_held_adds_up():
    without, within = _span(0), _span(8)

    assert without["b"] == [1, 1, 9 * HOUR, 8000 * HOUR], "it waits for the others to end"
    assert within["b"][:2] == [1, 1] and within["b"][2] <= HOUR / 10
    assert without["a"][3] == 160_000 * HOUR
    assert within["a"][3] >= 150_000 * HOUR


def _waits(
    jobs: list[dict[str, Any]], rows: list[list[int]], calendar: tuple[Promised, ...] = (), step: int = 0, **usual: Any
) -> dict[str, list[int]]:
    """What jobs of "a" and "b" waited in 12 hours, and held, on two nodes with 8 GPUs in domains of their own."""
    document = {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-02T00:00:00Z",
        "settings": {"forecast": "none"} | usual,
        "topology": {"levels": ["leaf"]},
        "nodes": [{"name": f"n{place}", "gpu_type": BOARD, "gpus": 8, "path": {"leaf": f"l{place}"}} for place in range(2)],
        "quotas": [{"name": "a", "guaranteed": 8}, {"name": "b", "guaranteed": 0, "weight": 0}],
        "jobs": [{"name": f"j{place}", "preemptible": True} | job for place, job in enumerate(jobs)],
    }
    scenario = parse(document)
    told = list(played(scenario, [[place, scenario.now + at, length] for place, at, length in rows], 12, lambda: True, calendar, step=step))
    return told[-1]["table"]


ONE = {"quota": "a", "roles": [{"name": "w", "gpus": 8, "min": 1}]}


def test_a_plan_that_waits_for_its_step_is_made_in_the_next_hour():
    # Planned at 0:30. The second comes at 0:50, is taken in by 1:00, and nothing else happens for hours.
    table = _waits([ONE], [[0, HOUR // 2, 11 * HOUR], [0, 5 * HOUR // 6, 2 * HOUR]], step=HOUR)
    assert table["a"] == [2, 2, 2 * HOUR // 3, 8000 * 13 * HOUR]


def test_a_play_ends_within_an_hour_that_takes_too_long():
    document = {
        "format": "gpufleet-scenario/1",
        "now": "2026-11-02T00:00:00Z",
        "settings": {"forecast": "none"},
        "nodes": [{"name": "n0", "gpu_type": BOARD, "gpus": 8}],
        "quotas": [{"name": "a", "guaranteed": 8}],
        "jobs": [{"name": "j0"} | ONE],
    }
    scenario = parse(document)
    rows = [[0, scenario.now + HOUR + minute * 60_000, 10_000] for minute in range(1, 50)]
    asked = iter(range(10_000))
    assert [told["hour"] for told in played(scenario, rows, 12, lambda: next(asked) < 20)] == [1]
    assert next(asked) < 25, "what was not told is not gone on with"


def test_domains_parts_and_sizes_are_those_of_the_engine():
    pair = {"quota": "b", "roles": [{"name": "w", "gpus": 4, "min": 2}]}
    half = {"quota": "a", "roles": [{"name": "w", "gpus": 4, "min": 1}]}
    rows = [[0, 0, 4 * HOUR], [0, 0, 10 * HOUR], [0, 0, 10 * HOUR], [1, HOUR, HOUR]]

    free = _waits([half, pair], rows, max_moves=0)
    tied = _waits([half, pair | {"topology": {"required": "leaf"}}], rows, max_moves=0)
    assert free["b"] == [1, 1, 3 * HOUR, 8000 * HOUR], "it waits for four GPUs more"
    assert tied["b"] == [1, 1, 9 * HOUR, 8000 * HOUR], "eight are free by then, but not in one domain"

    shares = {"quota": "a", "sharing": "mps", "roles": [{"name": "w", "gpu_share": 0.5, "min": 16}]}
    slices = {"quota": "a", "sharing": "mig", "roles": [{"name": "w", "mig": "1g.10gb", "min": 7}]}
    parted = _waits([shares, slices], [[0, HOUR, HOUR], [1, HOUR, 2 * HOUR], [0, HOUR + 1, HOUR]])
    assert parted["a"] == [3, 3, HOUR - 1, 2 * 8000 * HOUR + 7 * 125 * 2 * HOUR], "the slices leave 15 GPUs"

    grows = {"quota": "a", "roles": [{"name": "w", "gpus": 4, "min": 1, "max": 4}]}
    assert _waits([grows], [[0, HOUR, 4 * HOUR]])["a"] == [1, 1, 0, 16_000 * HOUR], "four times the workers, a quarter of the time"


@pytest.mark.parametrize("held", [True, False])
def test_a_window_of_the_week_keeps_its_gpus(held: bool):
    begin = millis(datetime(2026, 11, 2, tzinfo=UTC))
    window = Promised("w", "b", None, 8000, BOARD, None, None, begin + 2 * HOUR, begin + 6 * HOUR, 600_000, 900_000, held, begin + HOUR // 2)
    jobs = [{"quota": name, "roles": [{"name": "w", "gpus": 8, "min": 1}]} for name in ("a", "b")]
    rows = [[0, HOUR, 3 * HOUR], [0, HOUR, 3 * HOUR], [0, HOUR, 3 * HOUR], [1, 3 * HOUR, HOUR]]

    without, within = _waits(jobs, rows, reclaim_min_runtime_s=0), _waits(jobs, rows, (window,), reclaim_min_runtime_s=0)

    assert without["b"][2] == HOUR, "it waits until others have ended"
    assert within["b"][2] == 0
    assert within["a"][2] > without["a"][2] - 3 * HOUR
    assert _waits(jobs, rows, (window._replace(known=begin + 11 * HOUR),), reclaim_min_runtime_s=0) == without, "not known before it is over"


@pytest.fixture
def world(personas: Personas) -> Personas:
    return two_full_nodes(personas)


def _draft(world: Personas) -> QuotaChange:
    def share(path: str, milli: int) -> dict[str, Any]:
        return {"op": "update", "node": world.nodes[path].public_id, "set": {"shares": {H100: {"guaranteed_milli": milli}}}}

    edits = [share("acme/research/nlp", 8_000), share("acme/research", 8_000), share("acme/product", 8_000), share("acme/product/search", 8_000)]
    return change_draft(access=world.access("superuser"), wanted=Wanted(edits), now=NOON)


def test_the_week_is_played_in_processes_of_its_own_and_read_by_team(world: Personas, client: Client):
    change, root = _draft(world), world.access("superuser")
    asked = replay_ask(access=root, change=change, now=NOON, begin=lambda key: None)
    with pytest.raises(Conflict):
        replay_ask(access=root, change=change, now=NOON, begin=lambda key: None)

    assert replay_run(key=asked.pk, clock=lambda: NOON) == "done"
    assert replay_run(key=asked.pk, clock=lambda: NOON) is None, "a doubled call finds it taken"

    found = replay_of(change, NOON)
    assert found is not None and found.hours == found.of_hours == 31, "nothing came before"
    teams = {one.path: one for one in replay_teams(root, found)}
    search = teams["acme/product/search"]
    assert search.jobs == 1 and search.started == (1, 1)
    assert search.waited[0] > 17 * HOUR and search.waited[1] < HOUR
    assert search.held == (16_000 * HOUR, 16_000 * HOUR)
    assert [one.path for one in replay_teams(world.access("viewer"), found)] == ["acme/research/nlp"]
    client.force_login(world.users["superuser"])
    page = client.get(reverse("quota-week", args=[change.public_id]), follow=True).content.decode()
    assert "1 → 1" in page and "16.0 → 16.0" in page


def test_a_draft_that_changes_nothing_changes_nothing_and_a_reservation_shows(world: Personas):
    root, team = world.access("superuser"), world.nodes["acme/research/nlp"]
    QuotaNode.objects.filter(path="acme/product").update(weight=0)
    QuotaShare.objects.filter(node__path__startswith="acme/research").update(guaranteed_milli=8000)
    spec = {"roles": [{"name": "w", "gpu_share": 0.5, "min": 4}], "sharing": "mps"}
    at = NOON - timedelta(hours=29)
    job = submit(team, name="parts", at=at, spec=spec | {"preemptible": "yes"})
    Attempt.objects.create(job=job, number=1, started_at=at, running_at=at, ended_at=at + timedelta(hours=1), outcome="completed")
    type(job).objects.filter(pk=job.pk).update(state="completed", ended_at=at + timedelta(hours=1), gpus_milli=2000)

    def played_week() -> dict[str, Any]:
        idle = {"op": "update", "node": world.nodes["acme"].public_id, "set": {"weight": 7}}  # it has no sibling
        change = change_draft(access=root, wanted=Wanted([idle]), now=NOON)
        asked = replay_ask(access=root, change=change, now=NOON, begin=lambda key: None)
        assert replay_run(key=asked.pk, clock=lambda: NOON) == "done"
        found = replay_of(change, NOON)
        assert found is not None
        teams = {one.path: one for one in replay_teams(root, found)}
        assert all(before == after for one in teams.values() for before, after in (one.started, one.waited, one.held))
        return teams

    before = played_week()
    assert before["acme/product/search"].waited[0] > 17 * HOUR
    facts = {"quota": world.nodes["acme/product/search"], "gpu_type": H100, "gpus_milli": 8000, "requested_name": "Root", "state": "approved"}
    begin, end = NOON - timedelta(hours=29), NOON - timedelta(hours=20)
    made = Reservation.objects.create(public_id="rv-1", name="Demo", starts_at=begin, ends_at=end, requested_at=NOON - timedelta(days=5), **facts)
    Window.objects.create(reservation=made, starts_at=begin, ends_at=end)

    after = played_week()
    assert after["acme/product/search"].waited[0] < HOUR
    assert after["acme/research/nlp"].held[0] > before["acme/research/nlp"].held[0], "what its borrower had done is done again"


def test_gpus_that_were_split_anew_lately_do_not_spoil_the_week(world: Personas):
    gpu = Gpu.objects.order_by("id")[0]
    Repartition.objects.create(gpu=gpu, cluster_id=gpu.node.cluster_id, at=NOON - timedelta(minutes=10))
    asked = replay_ask(access=world.access("superuser"), change=_draft(world), now=NOON, begin=lambda key: None)

    assert replay_run(key=asked.pk, clock=lambda: NOON) == "done"


def test_a_play_that_hangs_is_ended(world: Personas, monkeypatch: pytest.MonkeyPatch):
    class Hanging(plays.Play):
        def __init__(self, text: bytes, **options: Any) -> None:
            super().__init__(text, **options)
            self._process.send_signal(signal.SIGSTOP)

    monkeypatch.setattr(replays, "Play", Hanging)
    monkeypatch.setattr(replays, "SECONDS", 0.5)
    monkeypatch.setattr(replays, "LAST_PLAN_SECONDS", 0.5)
    asked = replay_ask(access=world.access("superuser"), change=_draft(world), now=NOON, begin=lambda key: None)
    looks = iter(range(60))  # each a quarter of a second or longer

    def clock() -> datetime:
        next(looks)
        return NOON

    assert replay_run(key=asked.pk, clock=clock) == "failed"
    assert "Fewer than 2 hours" in QuotaReplay.objects.get(pk=asked.pk).fault


def _came() -> list[came.Came]:
    kinds = Kinds(Snapshots().take(settings=policy().engine, now=NOON, start_timeout=policy().start_timeout).fleet.topology)
    return came.jobs_came(kinds, NOON, {H100})


def test_jobs_that_wait_for_others_are_not_played(world: Personas):
    team = world.nodes["acme/research/nlp"]
    first, later = (submit(team, name=name, at=NOON - timedelta(hours=3)) for name in ("first", "later"))
    before = len(_came())
    made = Dependency.objects.create(job=later, on=first)
    assert len(_came()) == before - 1

    type(first).objects.filter(pk=first.pk).update(state="completed", ended_at=NOON - timedelta(hours=2))
    Attempt.objects.create(job=first, number=1, started_at=NOON - timedelta(hours=3), ended_at=NOON - timedelta(hours=2), outcome="completed")
    assert len(_came()) == before and made.pk
    assert max(one.submitted for one in _came()) == (came.LENGTH - timedelta(hours=2)) // timedelta(milliseconds=1)


@pytest.mark.parametrize("elastic", [False, True])
def test_what_a_failed_node_cost_is_not_work(world: Personas, elastic: bool):
    begin = NOON - timedelta(hours=10)
    job = submit(
        world.nodes["acme/product/search"], name="one", at=begin, spec={"roles": [{"name": "w", "gpus": 1, "min": 1, "max": 2 if elastic else 1}]}
    )
    for number, (since, until, outcome) in enumerate(((0, 4, "lost"), (4, 6, "completed")), 1):
        at, end = begin + timedelta(hours=since), begin + timedelta(hours=until)
        Attempt.objects.create(job=job, number=number, started_at=at, running_at=at, ended_at=end, outcome=outcome)
        facts = {"gpu_type": H100, "gpu_milli": 2000 if elastic else 1000, "phase": "running", "share_class": "guaranteed", "quota": job.quota}
        facts |= {"attempt": number, "attempt_number": number, "job": job.public_id, "role": "w", "worker": 0, "cluster": "c", "node": "n0"}
        facts |= {"quota_path": job.quota.path, "job_class": "batch", "priority": 0, "preemptible": "yes", "parts": [], "began_at": at}
        LedgerEntry.objects.create(since=at, until=end, **facts)
    type(job).objects.filter(pk=job.pk).update(state="completed", ended_at=begin + timedelta(hours=6))

    (one,) = (one for one in _came() if one.submitted == (begin - NOON + came.LENGTH) // timedelta(milliseconds=1))
    assert one.work == (4 if elastic else 2) * HOUR


def test_a_window_that_was_over_when_its_reservation_was_approved_again_was_known(world: Personas):
    again = NOON - timedelta(days=1)
    facts = {"quota": world.nodes["acme/product/search"], "gpu_type": H100, "gpus_milli": 8000, "requested_name": "Root", "state": "approved"}
    times = {"starts_at": NOON - timedelta(days=3), "ends_at": NOON - timedelta(days=2), "requested_at": NOON - timedelta(days=5)}
    made = Reservation.objects.create(public_id="rv-1", name="Demo", rule="FREQ=DAILY", decided_at=again, **times, **facts)
    for days in (3, 1):
        begin = NOON - timedelta(days=days)
        Window.objects.create(reservation=made, starts_at=begin, ends_at=begin + timedelta(hours=9))

    paths = {node.pk: path for path, node in world.nodes.items()}
    found = windows_of_span(NOON - timedelta(days=7), NOON, paths=paths, types={H100}, levels=())
    assert [one.known for one in found] == [0, millis(again)]


def test_a_cancelled_or_lost_one_makes_room_for_the_next(world: Personas):
    change, root = _draft(world), world.access("superuser")
    first = replay_ask(access=root, change=change, now=NOON, begin=lambda key: None)
    assert replay_cancel(access=root, change=change, now=NOON)
    assert replay_run(key=first.pk, clock=lambda: NOON) is None

    second = replay_ask(access=root, change=change, now=NOON, begin=lambda key: None)
    QuotaReplay.objects.filter(pk=second.pk).update(state="playing")
    later = NOON + timedelta(minutes=2)
    found = replay_of(change, later)
    assert found is not None and found.state == "failed"
    third = replay_ask(access=root, change=change, now=later, begin=lambda key: None)
    assert QuotaReplay.objects.get(pk=second.pk).state == "failed"

    def clock() -> Any:
        """The first look of the run is followed by somebody's cancelling."""
        QuotaReplay.objects.filter(pk=third.pk, state="playing").update(state="cancelled")
        return later

    assert replay_run(key=third.pk, clock=clock) == "cancelled"
