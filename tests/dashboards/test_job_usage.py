"""What a job has used, and how busy the GPUs of each of its workers are: by selector, page and API."""

from datetime import datetime, timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from dashboards import job_usage as usage
from dashboards.job_usage import JobUsage
from dashboards.models import NO_READING, NodeSample
from gpufleet.core.audit import SYSTEM
from gpufleet.core.times import now
from gpufleet.retention import KINDS
from quotas.models import LedgerClock, LedgerEntry
from quotas.permissions import Access, Can, Grant
from scheduler.models import Job, JobState, MigInstance, Node
from scheduler.selectors.jobs import attempt_sittings, job_attempts
from tests import builders
from tests.builders import NOON, attempt, gpu, job, mig_gpu, node, placement
from tests.dashboards.worlds import gpus_of, readings

pytestmark = pytest.mark.django_db

MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"
SEES = frozenset({Can.SEE})


def sample(of: Node, at: datetime, *percents: int) -> None:
    blank = bytes(len(percents))
    NodeSample.objects.create(node=of, at=at, sm_active=bytes(percents), memory_used=blank, allocated=blank)


def looked_at(of: Job, can: frozenset[Can] = frozenset(Can), *, at: datetime = NOON) -> JobUsage:
    attempts = job_attempts(of)
    sittings = attempt_sittings(attempts[0]) if attempts else []
    return usage.job_usage(Access(actor=SYSTEM, grants=(Grant("", can),)), of, attempts, sittings, now=at)


def means(found: JobUsage) -> list[tuple[int, int | None]]:
    assert found.attempt is not None
    return [(worker.index, worker.mean) for worker in found.attempt.workers]


def running(on=None, *, since: datetime = NOON - HOUR) -> Job:
    made = job(state=JobState.RUNNING, **({"on": on} if on else {}))
    attempt(made, started_at=since)
    return made


def entry(
    of: Job, since: datetime, until: datetime | None, *, milli: int = 1000, kind: str = H100, worker: int = 0, share: str = "guaranteed"
) -> None:
    run = of.attempts.order_by("number").last()
    LedgerEntry.objects.create(
        attempt=run.pk,
        job=of.public_id,
        attempt_number=run.number,
        role="worker",
        worker=worker,
        cluster="north",
        node="n",
        gpu_type=kind,
        gpu_milli=milli,
        parts=[],
        phase="running",
        share_class=share,
        quota=of.quota,
        quota_path=of.quota.path,
        job_class="batch",
        priority=50,
        preemptible="yes",
        began_at=since,
        since=since,
        until=until,
    )


class TestActivity:
    def test_the_mean_is_of_its_own_five_minutes_alone(self):
        """The five minutes in which it came are another's as well, and count for nobody."""
        of = node(gpus=2)
        mine = running()
        placement(mine, of.gpus.get(index=1), since=NOON - 22 * MINUTE)
        for minutes_ago, percent in ((30, 100), (25, 100), (20, 10), (15, 20), (10, NO_READING), (5, 60)):
            sample(of, NOON - minutes_ago * MINUTE, 77, percent)
        sample(node(gpus=2), NOON - 10 * MINUTE, 99, 99)

        found = looked_at(mine).attempt

        assert found.mean == found.workers[0].mean == 30
        assert found.workers[0].activity.percents == (10, 20, None, 60)

    def test_a_worker_that_moved_takes_its_readings_along(self):
        here, there = node(gpus=1), node("there", gpus=1)
        mine = running()
        placement(mine, here.gpus.get(), since=NOON - HOUR, until=NOON - 30 * MINUTE)
        placement(mine, there.gpus.get(), since=NOON - 30 * MINUTE)
        for number in range(12):
            at = NOON - HOUR + 5 * number * MINUTE
            sample(here, at, 20 if number < 6 else 100)
            sample(there, at, 0 if number < 6 else 40)

        worker = looked_at(mine).attempt.workers[0]

        assert (worker.node, worker.mean, worker.gpu_milli) == ("there", 30, 1000)
        assert worker.activity.percents == (20,) * 6 + (40,) * 6

    def test_now_is_what_the_newest_frame_says_and_no_reading_is_not_idle(self):
        of = node(gpus=4)
        mine = running()
        first, second, third, other = gpus_of(of)
        for number, device in enumerate((first, second, third)):
            placement(mine, device, worker=number)
        readings({first: 100, second: 3, third: None, other: 50}, at=NOON)
        builders.rate(H100, since=NOON - HOUR, micros=2_000_000)

        found = looked_at(mine).attempt

        held = found.now
        assert (held.held, held.busy, held.idle, held.unread, held.parts, held.percent) == (3000, 1030, 970, 1000, 0, 52)
        assert held.idle_micros_per_hour == 1_940_000
        assert [(worker.index, worker.now, worker.mean) for worker in found.workers] == [(1, 3, None), (0, 100, None), (2, None, None)]
        assert looked_at(mine, SEES).attempt.now.idle_micros_per_hour is None
        stale = looked_at(mine, at=NOON + HOUR).attempt
        assert (stale.now.percent, stale.now.unread, stale.workers[0].now) == (None, 3000, None)

    def test_parts_of_gpus_have_no_activity_of_their_own(self):
        split, shared = mig_gpu(node(gpus=1)), node(gpus=1)
        mine = running()
        placement(mine, split, worker=0, gpu_milli=428, mig=MigInstance.objects.filter(gpu=split).first(), since=NOON - HOUR)
        placement(mine, shared.gpus.get(), worker=1, gpu_milli=500, since=NOON - HOUR)
        for of in (split.node, shared):
            sample(of, NOON - 10 * MINUTE, 90)
        readings({split: 90, gpus_of(shared)[0]: 90}, at=NOON)

        found = looked_at(mine).attempt

        assert [(worker.parts, worker.mean, worker.now, worker.activity) for worker in found.workers] == [(True, None, None, None)] * 2
        assert (found.mean, found.now.percent, found.now.parts, found.now.held) == (None, None, 928, 928)

    def test_an_attempt_that_ended_tells_of_its_own_time(self):
        of = node(gpus=1)
        mine = running()
        placement(mine, of.gpus.get(), since=NOON - HOUR, until=NOON - 30 * MINUTE)
        mine.attempts.update(ended_at=NOON - 30 * MINUTE)
        for number in range(12):
            sample(of, NOON - HOUR + 5 * number * MINUTE, 50 if number < 6 else 100)
        readings({gpus_of(of)[0]: 100}, at=NOON)

        found = looked_at(mine).attempt

        assert (found.now, found.mean, found.workers[0].now) == (None, 50, None)
        later = looked_at(mine, at=NOON + timedelta(days=30)).attempt
        assert (later.mean, later.workers[0].activity) == (None, None)

    def test_a_worker_that_left_a_run_that_goes_on_is_not_among_those_who_hold(self):
        of = node(gpus=2)
        mine = running()
        placement(mine, of.gpus.get(index=0), worker=0, since=NOON - HOUR)
        placement(mine, of.gpus.get(index=1), worker=1, since=NOON - HOUR, until=NOON - 30 * MINUTE)
        sample(of, NOON - 50 * MINUTE, 80, 0)

        found = looked_at(mine).attempt

        assert ([worker.index for worker in found.workers], found.mean, found.now.held) == ([0], 80, 1000)

    def test_a_sample_from_before_a_gpu_came_is_nobodys(self):
        of = node(gpus=2)
        mine = running()
        placement(mine, of.gpus.get(index=0), since=NOON - HOUR)
        sample(of, NOON - 20 * MINUTE, 10)
        sample(of, NOON - 10 * MINUTE, 30, 99)

        assert means(looked_at(mine)) == [(0, 30)]

    def test_of_long_runs_of_large_gangs_every_nth_sample_is_read(self, monkeypatch):
        monkeypatch.setattr(usage, "MOST_SAMPLES", 8)
        mine = running()
        nodes = [node(gpus=1) for _ in range(2)]
        for number, of in enumerate(nodes):
            placement(mine, of.gpus.get(), worker=number, since=NOON - HOUR)
            for slot in range(12):
                sample(of, NOON - HOUR + 5 * slot * MINUTE, 10 * (slot % 3) + number)

        found = looked_at(mine).attempt

        assert found.every == 3
        assert means(looked_at(mine)) == [(0, 0), (1, 1)], "noon is a whole multiple of a quarter of an hour"
        assert len(found.workers[0].activity.percents) == 4

    def test_a_gang_costs_as_many_queries_as_one_worker_and_the_least_busy_come_first(self):
        def queries(workers: int) -> tuple[int, JobUsage]:
            mine = running()
            for number in range(workers):
                of = node(gpus=1)
                placement(mine, of.gpus.get(), worker=number, since=NOON - HOUR)
                sample(of, NOON - 10 * MINUTE, 100 - number)
            attempts = job_attempts(mine)
            sittings = attempt_sittings(attempts[0])
            access = Access(actor=SYSTEM, grants=(Grant("", frozenset(Can)),))
            with CaptureQueriesContext(connection) as asked:
                found = usage.job_usage(access, mine, attempts, sittings, now=NOON)
            return len(asked), found

        few, _ = queries(1)
        many, found = queries(40)

        assert few == many == 6
        assert [worker.index for worker in found.attempt.shown] == list(range(39, 23, -1))
        assert (found.attempt.others, found.attempt.mean) == (24, 80)
        assert found.attempt.workers[15].activity is not None and found.attempt.workers[16].activity is None

    def test_a_job_without_gpus_or_attempts_has_nothing_to_tell(self):
        assert looked_at(job()).attempt is None
        mine = running()
        placement(mine, gpu(), gpu=None, gpu_milli=0)
        assert looked_at(mine).attempt is None

    def test_samples_are_looked_for_as_long_as_they_are_kept(self):
        assert [kind.keep for kind in KINDS if kind.model == "dashboards.NodeSample"] == [usage.KEPT]


class TestSpent:
    @pytest.fixture(autouse=True)
    def ledger(self):
        LedgerClock.objects.create(pk=1, at=NOON, began_at=NOON - 9 * HOUR, decided_at=NOON)

    def test_all_attempts_are_charged_at_the_rates_of_their_time(self):
        mine = running()
        builders.rate(H100, since=NOON - timedelta(days=9), micros=2_000_000)
        builders.rate(H100, since=NOON - 2 * HOUR, micros=3_000_000)
        builders.rate(H100, since=NOON + HOUR, micros=9_000_000)
        entry(mine, NOON - 4 * HOUR, NOON - 3 * HOUR, milli=8000)  # 8 h at 2
        mine.attempts.update(ended_at=NOON - 3 * HOUR)
        attempt(mine, started_at=NOON - 3 * HOUR)
        entry(mine, NOON - 3 * HOUR, None, milli=500)  # 0.5 h at 2, 1 h at 3
        entry(running(), NOON - 4 * HOUR, None)

        spent = looked_at(mine).spent

        assert (spent.gpu_hours, spent.cost_micros, spent.without_rate) == (9.5, 20_000_000, ())
        hidden = looked_at(mine, SEES).spent
        assert (hidden.gpu_hours, hidden.cost_micros) == (9.5, None)

    def test_what_has_no_rate_is_named_and_not_free(self):
        mine = running()
        entry(mine, NOON - 2 * HOUR, NOON, kind=A100)
        assert (looked_at(mine).spent.cost_micros, looked_at(mine).spent.without_rate) == (None, (A100,))

        builders.rate(A100, since=NOON - HOUR, micros=1_000_000)
        assert (looked_at(mine).spent.cost_micros, looked_at(mine).spent.without_rate) == (1_000_000, (A100,))

    def test_workers_are_added_up_to_the_millisecond_and_rounded_once(self):
        mine = running()
        builders.rate(H100, since=NOON - timedelta(days=9), micros=1_000_000)
        for number in range(3):
            entry(mine, NOON - timedelta(milliseconds=1), NOON, worker=number)

        spent = looked_at(mine).spent

        assert spent.milli_millis == 3000
        assert spent.cost_micros == 1, "0.83 of a micro-unit, and not three times 0.28"

    def test_what_the_ledger_does_not_know_is_said(self):
        old = running(since=NOON - 20 * HOUR)
        entry(old, NOON - 9 * HOUR, None)
        assert looked_at(old).counted_from == NOON - 9 * HOUR
        assert looked_at(old).spent.gpu_hours == 9

        new = running()
        entry(new, NOON - HOUR, None)
        assert looked_at(new).counted_from is None

    def test_of_a_ledger_that_nobody_has_begun_nothing_is_said(self):
        """A console that was seeded and has not made a plan yet."""
        LedgerClock.objects.all().delete()
        known = running(since=NOON - 20 * HOUR)
        entry(known, NOON - 9 * HOUR, None)

        assert looked_at(known).spent.gpu_hours == 9
        assert looked_at(known).counted_from is None

    def test_what_the_ledger_was_given_of_the_time_before_it_is_counted(self):
        """The past of the demo is written down when it is seeded."""
        known = running(since=NOON - 20 * HOUR)
        entry(known, NOON - 20 * HOUR, NOON - 19 * HOUR)

        assert looked_at(known).spent.gpu_hours == 1
        assert looked_at(known).counted_from is None


class TestSeen:
    @pytest.fixture
    def busy(self, personas):
        moment = now()
        mine = running(personas.nodes["acme/research/nlp"], since=moment - HOUR)
        of = node("<b>alpha", gpus=2)
        for number, device in enumerate(gpus_of(of)):
            placement(mine, device, worker=number, since=moment - HOUR)
        slot = moment.replace(minute=moment.minute // 5 * 5, second=0, microsecond=0) - 10 * MINUTE
        sample(of, slot, 70, 30)
        readings(dict(zip(gpus_of(of), (60, 20), strict=True)), at=moment)
        LedgerClock.objects.create(pk=1, at=moment, began_at=moment - HOUR, decided_at=moment)
        entry(mine, moment - HOUR, moment, milli=2000)
        builders.rate(H100, since=moment - 9 * HOUR, micros=2_500_000)
        return mine

    def page(self, personas, who, of):
        return " ".join(personas.client(who).get(reverse("job", args=[of.public_id])).content.decode().split())

    def test_the_page_has_both_numbers_and_money_only_for_those_who_may_see_it(self, personas, busy):
        html = self.page(personas, "team_lead", busy)

        assert "Holds 2 GPUs, 0.8 busy (40%): <strong>1.2 idle but held</strong>, $3.00 an hour at the guaranteed rate." in html
        assert "they were 50% busy" in html
        assert "Cost so far" in html and "$5.00" in html and "2.00 GPU-hours" in html
        assert html.index("worker 1</th>") < html.index("worker 0</th>"), "the least busy first"
        assert "<b>alpha" not in html
        plain = self.page(personas, "viewer", busy)
        assert "<strong>1.2 idle but held</strong>." in plain and "GPU-hours so far" in plain
        assert "$" not in plain and "Cost" not in plain

    def test_the_page_of_a_large_gang_stays_short(self, personas, busy):
        big = node(gpus=30)
        for number, device in enumerate(gpus_of(big)):
            placement(busy, device, worker=number + 2, since=now() - HOUR)

        html = self.page(personas, "viewer", busy)

        assert html.count("no reading</span>") == 2 * 14
        assert "16 more workers, at least as busy" in html

    def test_parts_are_told_as_shared_and_never_as_idle(self, personas, busy):
        small = running(busy.quota)
        placement(small, mig_gpu(node(gpus=1)), gpu_milli=428, since=now() - HOUR)

        html = self.page(personas, "viewer", small)

        assert html.count("shared</span>") == 2
        assert "Holds 0.428 GPUs. " in html and "what one part computes is not measured" in html
        assert "idle but held" not in html and "no reading" not in html

    def test_a_job_that_never_held_a_gpu_has_no_such_panel(self, personas):
        waiting = job(on=personas.nodes["acme/research/nlp"])
        html = self.page(personas, "team_lead", waiting)
        assert "How busy" not in html and "so far</dt>" not in html

    def test_the_api_tells_the_same(self, personas, busy):
        told = personas.client("team_lead").get(f"/api/v1/jobs/{busy.public_id}/usage").json()

        assert (told["gpu_hours"], told["cost_micros"], told["currency"], told["mean_percent"], told["attempt"]) == (2.0, 5_000_000, "USD", 50, 1)
        assert told["now"] == {
            "held_milli": 2000,
            "busy_milli": 800,
            "idle_milli": 1200,
            "without_reading_milli": 0,
            "parts_milli": 0,
            "busy_percent": 40,
            "idle_micros_per_hour": 3_000_000,
        }
        assert [(one["index"], one["mean_percent"], one["now_percent"], one["devices"]) for one in told["workers"]] == [
            (1, 30, 20, "GPU 1"),
            (0, 70, 60, "GPU 0"),
        ]
        plain = personas.client("viewer").get(f"/api/v1/jobs/{busy.public_id}/usage").json()
        assert (plain["cost_micros"], plain["now"]["idle_micros_per_hour"], plain["gpu_hours"]) == (None, None, 2.0)
        assert personas.client("stranger").get(f"/api/v1/jobs/{busy.public_id}/usage").status_code in (403, 404)

    def test_before_it_starts_the_api_has_nothing_to_tell(self, personas):
        waiting = job(on=personas.nodes["acme/research/nlp"])
        told = personas.client("viewer").get(f"/api/v1/jobs/{waiting.public_id}/usage").json()
        assert (told["gpu_hours"], told["attempt"], told["now"], told["workers"]) == (0, None, None, [])
