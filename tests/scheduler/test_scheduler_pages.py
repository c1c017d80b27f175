"""The pages of the scheduler: who leads, what plans decided, and what is told while it is paused."""

from datetime import timedelta

import pytest
from django.urls import reverse

from gpufleet.core.times import now
from quotas.models import QuotaNode
from scheduler.models import (
    JobState,
    LearnedOverrun,
    Lease,
    Order,
)
from scheduler.services.forecasts import fitting, grounds
from tests.builders import NOON, cluster, job, node, outlook, plan
from tests.scheduler.read_pages import text

pytestmark = pytest.mark.django_db


@pytest.fixture
def ours(personas):
    return personas.nodes["acme/research/nlp"]


def test_the_page_tells_who_leads_and_what_is_late(personas):
    moment = now()
    lease = Lease.objects.create(name="tick", holder="worker-1", epoch=7, expires_at=moment + timedelta(hours=1), wanted=9, done=9)
    html = text(personas.client("operator"), "/scheduler/")
    assert "Deciding" in html and "worker-1, epoch 7" in html

    Lease.objects.filter(pk=lease.pk).update(expires_at=moment - timedelta(seconds=3))
    assert "Watching" in text(personas.client("operator"), "/scheduler/")
    Lease.objects.filter(pk=lease.pk).update(wanted=11)
    assert "Watching" in text(personas.client("operator"), "/scheduler/"), "a wish of this moment is not late"
    Lease.objects.filter(pk=lease.pk).update(expires_at=moment - timedelta(minutes=3))
    html = text(personas.client("operator"), "/scheduler/")
    assert "Overdue" in html and "2 changes wait for a plan" in html
    Lease.objects.filter(pk=lease.pk).update(paused_at=moment, paused_by="Oona", paused_reason="New switches.")
    html = text(personas.client("operator"), "/scheduler/")
    assert "Paused by Oona" in html and "New switches." in html


def test_the_page_tells_how_run_times_compare_with_estimates(personas):
    def told():
        return text(personas.client("operator"), "/scheduler/")

    assert "Not learned yet. Estimates count as stated." in told()
    LearnedOverrun.objects.create(learnt_at=NOON, median_millionths=1_234_567, jobs=12, since=NOON)
    assert "too few jobs, estimates count as stated" in told() and "18 more needed" in told()
    LearnedOverrun.objects.update(factor_millionths=3_000_000, median_millionths=4_250_000, jobs=1214)
    html = told()
    assert "plans multiply estimates by it" in html and "4.25" in html and "1,214" in html
    assert "the factor stays between 0.5 and 3" in html
    QuotaNode.objects.filter(path="acme").update(policy={"estimates": "stated"})
    assert "off by fleet-wide policy; learned: 3" in told()


def test_orders_that_fail_are_told_with_what_the_back_end_said(personas):
    Order.objects.create(cluster=cluster(), sequence=1, kind="stop", fault="no route to host", tries=3)
    Order.objects.create(cluster=cluster(), sequence=2, kind="start", due_at=now() + timedelta(hours=1))

    html = text(personas.client("operator"), "/scheduler/")

    assert "no route to host" in html
    assert "(1 failing)" in html


def test_a_plan_tells_what_it_decided_and_why(personas, ours):
    one, two = job("a", on=ours), job("b", on=ours)
    made = plan(
        decisions=[
            {
                "action": "evict",
                "job": one.public_id,
                "why": {"code": "reclaim", "for": two.public_id, "detail": "acme reclaims 8 GPUs"},
                "grace_s": 120,
            },
            {
                "action": "start",
                "job": two.public_id,
                "after": [one.public_id],
                "workers": [{"role": "worker", "index": 0, "node": "north/n1", "gpus": [0, 1]}],
                "why": {"code": "fits", "detail": "first in the order"},
            },
            {"action": "repartition", "node": "north/n2", "gpu": 3, "instances": [], "why": {"code": "repartition", "detail": "for a slice"}},
        ],
        dropped=[{"action": "grow", "job": one.public_id, "why": {"code": "grow"}, "dropped": "the job moved on"}],
        waiting=4,
    )

    html = text(personas.client("operator"), reverse("plan", args=[made.pk]))

    for part in ("is evicted", "Acme reclaims 8 GPUs.", "1 worker on n1", "GPU 3 of north/n2", "The job moved on.", "with 4 jobs left waiting"):
        assert part in html, part
    listed = text(personas.client("operator"), "/scheduler/?decided=yes")
    assert "plan 120 · " in listed, "where most of the time went, the longest first"
    assert "snapshot 8 · plan 120" in html
    assert "No plan matches" in text(personas.client("operator"), "/scheduler/?decided=no")
    plan(at=now() + timedelta(minutes=1))
    page = text(personas.client("operator"), "/scheduler/")
    last = page[page.index("What it did last") : page.index("<h2>Plans")]
    for part in (f"Plan {made.pk}", "is evicted", "Acme reclaims 8 GPUs.", two.public_id):
        assert part in last, part


def test_a_plan_that_broke_says_that_nothing_was_written(personas):
    made = plan(fault="GPU 3 of north/n1 is held twice", scenario=None)

    html = text(personas.client("operator"), reverse("plan", args=[made.pk]))

    assert "Nothing of it was written: GPU 3 of north/n1 is held twice" in html
    assert "scenario" not in html
    text(personas.client("operator"), reverse("plan_scenario", args=[made.pk]), 404)
    assert made.fault in text(personas.client("operator"), "/scheduler/?fault=yes")


def test_the_scenario_of_a_plan_is_downloaded_as_it_was(personas):
    answer = personas.client("operator").get(reverse("plan_scenario", args=[plan().pk]))

    assert answer.json() == {"format": "gpufleet-scenario/1"}
    assert "attachment" in answer["Content-Disposition"]


def paused() -> None:
    Lease.objects.update_or_create(name="tick", defaults={"paused_at": NOON, "paused_by": "Operator", "paused_reason": "New switches"})


def test_whoever_waits_is_told_that_the_scheduler_is_paused(personas, ours):
    waiting, running = job("waits", on=ours), job("runs", on=ours, state=JobState.RUNNING)
    assert "The scheduler was paused" not in text(personas.client("viewer"), "/jobs/")
    assert "It does so within seconds." in text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    paused()

    html = text(personas.client("viewer"), "/jobs/")
    assert "The scheduler was paused" in html and "New switches" in html
    told = text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    assert "It does so once it is resumed." in told and "within seconds" not in told
    outlook(waiting, "needs 8 GPUs")
    assert "The scheduler was paused" in text(personas.client("viewer"), f"/jobs/{waiting.public_id}/")
    assert "was paused" not in text(personas.client("viewer"), f"/jobs/{running.public_id}/")
    page = text(personas.client("operator"), "/scheduler/")
    assert "New switches Nothing" not in page and "decided once it is resumed" in page


def test_no_start_is_promised_while_the_scheduler_is_paused(personas, ours):
    node(gpus=4)
    description = {"name": "train", "quota": ours.path, "gpus": 1}
    grounds.GROUNDS.forget()
    assert fitting.fit_of(access=personas.access("submitter"), description=description, now=NOON).verdict == "now"
    paused()

    found = fitting.fit_of(access=personas.access("submitter"), description=description, now=NOON)

    assert (found.verdict, found.waits_for) == ("held", ("The scheduler is paused: it starts nothing until an operator resumes it.",))
