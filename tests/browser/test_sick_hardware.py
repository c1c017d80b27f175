"""Hardware that falls ill: a GPU throttles, a rank slows its gang down. Rules act, and an operator reads and silences on the pages that there are."""

import hashlib
import hmac
import ipaddress
import json
import random
from datetime import timedelta

import numpy as np
import pytest
from playwright.sync_api import expect

from dashboards.alerts.models import Alert, AlertRule
from dashboards.alerts.round import alerts_round
from dashboards.health.models import HealthBucket, HealthRule, HealthSettings, Incident, Straggler
from dashboards.health.round import health_round
from dashboards.health.steps import LOOK, steps_report
from dashboards.health.stragglers import stragglers_round
from gpufleet.core.models import User
from gpufleet.core.times import now
from scheduler.backends.simulated import MemoryStore, SimulatedBackend
from scheduler.models import Cluster, Gpu, Health, Job, JobState, Node
from scheduler.services.loop.tick import Memory, tick_run
from scheduler.services.notify.delivering import deliveries_turn
from scheduler.services.notify.webhooks import secret_of
from tests import builders
from tests.browser.harness import LiveConsole
from tests.dashboards.health_worlds import looks
from tests.dashboards.worlds import gpus_of
from tests.receiver import LOOPBACK, Receiver, receiving
from tests.scheduler.loop.worlds import leaf, submit

pytestmark = pytest.mark.browser
PASSWORD = "correct horse battery"
MINUTE = timedelta(minutes=1)


def nodes_of(job: Job) -> set[str]:
    return set(job.placements.filter(until__isnull=True).values_list("node__name", flat=True))


def events(receiver: Receiver) -> list[str]:
    return [headers["Gpufleet-Event"] for headers, _ in receiver.calls]


def test_a_gpu_throttles_and_its_gang_is_moved_to_a_spare(live_console: LiveConsole, browser, settings):
    settings.WEBHOOKS = {"NETWORKS": (ipaddress.ip_network(LOOPBACK),), "HTTP": True, "GIVE_UP_DAYS": 5}
    pool, began = builders.pool(), now() - 20 * MINUTE
    for name in ("n0", "n1", "n2"):
        builders.node(name, gpus=8, pool=pool, spare=name == "n2", heartbeat_at=now())
    builders.rate("H100-SXM-80GB", since=began - 60 * MINUTE, micros=2_500_000)
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    facts = {"signal": "thermal", "threshold": 60, "window_minutes": 5, "clear_below": 20, "clear_minutes": 10, "action": "suspect"}
    HealthRule.objects.all().delete()
    HealthRule.objects.create(public_id="hr-1", name="Thermal throttling", **facts)
    HealthRule.objects.create(public_id="hr-2", name="Throttling goes on", **facts | {"threshold": 180, "action": "drain"})
    HealthSettings.objects.create(pk=1, most_percent=50, patience_minutes=0)
    rule = {"figure": "incidents", "threshold": 1, "clear_at": 1, "for_minutes": 0, "told": ["operator"], "escalate_minutes": 5}
    AlertRule.objects.all().delete()
    alerting = AlertRule.objects.create(public_id="ar-1", name="Incident", escalate_to=["superuser"], **rule)
    backends = {cluster.pk: SimulatedBackend(MemoryStore()) for cluster in Cluster.objects.all()}
    memory = Memory()

    def tick(at: object) -> None:
        live_console.do(tick_run, holder="one", now=at, backends=backends, memory=memory)

    work = {"preemptible": "yes", "estimate_s": 86_400, "work_s": 86_400, "grace_s": 10}
    saving = {"checkpoint": {"interval_s": 60, "save_s": 1, "restore_s": 1}}
    gang = submit(leaf("team", 24), workers=2, gpus=8, at=began, name="gang", spec=work | saving)
    for minutes in (0, 2, 4):
        tick(began + minutes * MINUTE)
    assert nodes_of(gang) == {"n0", "n1"}

    with receiving() as receiver:
        hook = builders.webhook(builders.quota(), url=receiver.url, name="On call", kinds=["alert.firing", "alert.escalated", "alert.resolved"])

        def look_on(at) -> None:
            live_console.do(health_round, now=at)
            live_console.do(alerts_round, now=at)
            live_console.do(deliveries_turn, clock=now, rng=random.Random(1))

        hot = list(Gpu.objects.select_related("node").order_by("pk"))
        live_console.do(looks, hot, {"thermal": {gpus_of(Node.objects.get(name="n0"))[3]: 1}}, start=now() - 2 * MINUTE, end=now())
        look_on(now())
        assert Node.objects.get(name="n0").health == Health.SUSPECT

        assert events(receiver) == ["alert.firing"]
        (headers, body) = receiver.calls[0]
        seconds = headers["Gpufleet-Signature"].split(",")[0].removeprefix("t=")
        signed = hmac.new(secret_of(hook).encode(), f"{seconds}.".encode() + body, hashlib.sha256).hexdigest()
        assert headers["Gpufleet-Signature"] == f"t={seconds},v1={signed}"
        assert json.loads(body)["subject"]["figure"] == "incidents"

        visitor = live_console.visit(browser, "root", password=PASSWORD)
        page = visitor.page
        visitor.open("/incidents/")
        findings = page.get_by_role("region", name="Rules that hold now")
        expect(findings).to_contain_text("Thermal throttling")
        findings.get_by_role("link", name="n0/3").click()
        expect(page.get_by_role("main")).to_contain_text("Suspect")
        later = now() + 2 * MINUTE
        live_console.do(looks, hot, {"thermal": {gpus_of(Node.objects.get(name="n0"))[3]: 1}}, start=now(), end=later)
        live_console.do(health_round, now=later)
        assert Node.objects.get(name="n0").health == Health.DRAINING
        for seconds in (0, 20, 40, 90):
            tick(later + timedelta(seconds=seconds))
        assert nodes_of(gang) == {"n1", "n2"}
        visitor.open(f"/jobs/{gang.public_id}/")
        expect(page.get_by_role("main")).to_contain_text("Running")
        assert Job.objects.get(pk=gang.pk).state == JobState.RUNNING

        live_console.do(health_round, now=now() + 8 * MINUTE)
        incident = Incident.objects.get()
        visitor.open(f"/incidents/{incident.public_id}/")
        expect(page.get_by_role("main")).to_contain_text("1 job was asked to save and moves to n2, a spare.")
        assert incident.out_milli_millis > 8000 * 5 * 60_000
        visitor.open("/incidents/")
        row = page.get_by_role("row").filter(has_text="n0").first
        expect(row).to_contain_text("$")
        visitor.open("/activity/alerts/")
        page.get_by_role("main").get_by_role("link", name="Incident").first.click()
        expect(page.get_by_role("region", name="Sent to webhooks")).to_contain_text("delivered", ignore_case=True)
        assert visitor.axe() == []
        page.get_by_role("main").get_by_role("link", name="Silence").click()
        page.get_by_label("Reason").fill("The node is with its vendor")
        page.get_by_role("main").get_by_role("button", name="Silence", exact=True).click()
        expect(page.get_by_text("nobody is told until")).to_be_visible()
        assert visitor.axe() == []

        fired = Alert.objects.get(rule=alerting)
        live_console.do(alerts_round, now=fired.fired_at + 30 * MINUTE)  # it would have been escalated
        Incident.objects.update(closed_at=now())
        live_console.do(alerts_round, now=now())
        live_console.do(alerts_round, now=now() + MINUTE)
        live_console.do(deliveries_turn, clock=now, rng=random.Random(1))
        assert Alert.objects.get(rule=alerting).resolved_at is not None
        assert events(receiver) == ["alert.firing"]
    assert visitor.watch.faults == []


def test_a_rank_that_slows_64_down_is_named_on_the_page_of_its_job_and_by_an_alert(live_console: LiveConsole, browser, settings):
    settings.WEBHOOKS = {"NETWORKS": (ipaddress.ip_network(LOOPBACK),), "HTTP": True, "GIVE_UP_DAYS": 5}
    User.objects.create_superuser("root", "root@example.org", PASSWORD)
    began = now() - 10 * MINUTE
    nodes = [builders.node(f"n{number}", gpus=8, spare=number == 8) for number in range(9)]
    job = builders.job("pretraining", state=JobState.RUNNING, gpus_milli=64_000, submitted_at=began)
    for worker, node in enumerate(nodes[:8]):
        for gpu in gpus_of(node):
            builders.placement(job, gpu, worker=worker, since=began)
    job.attempts.update(running_at=began, started_at=began)
    sick = gpus_of(nodes[4])[5]
    HealthBucket.objects.create(at=now() - 5 * MINUTE, device=2 * sick.pk, node=nodes[4], gpu=sick, signal="nvlink_errors", value=420)
    AlertRule.objects.all().delete()
    AlertRule.objects.create(public_id="ar-1", name="Straggler", figure="stragglers", threshold=1, clear_at=1, for_minutes=0, told=["operator"])
    rng, run, slow_from = np.random.default_rng(5), job.attempts.get(), now() - 4 * MINUTE
    named, means, at = None, [], began
    while named is None and at < slow_from + 10 * MINUTE:
        seconds = 1 + 0.02 * rng.standard_normal(64)
        if at >= slow_from:
            seconds[37] *= 1.15
            means.append(float(seconds.mean()))
        live_console.do(steps_report, attempt=run.pk, ranks=64, seconds=dict(enumerate(seconds.tolist())), at=at)
        live_console.do(stragglers_round, now=at + LOOK / 2)
        named = at + LOOK / 2 if Straggler.objects.exists() else None
        at += LOOK
    assert named is not None
    assert timedelta(0) < named - slow_from <= 2 * MINUTE
    assert np.mean(means) < 1.01, "the mean of the job does not show it"

    with receiving() as receiver:
        builders.webhook(builders.quota(), url=receiver.url, name="On call", kinds=["alert.firing"])
        live_console.do(alerts_round, now=now())
        live_console.do(deliveries_turn, clock=now, rng=random.Random(1))
        assert events(receiver) == ["alert.firing"]
    visitor = live_console.visit(browser, "root", password=PASSWORD)
    page = visitor.page
    visitor.open("/activity/alerts/")
    expect(page.get_by_role("main").get_by_role("link", name="Straggler").first).to_be_visible()
    visitor.open("/incidents/")
    page.get_by_role("region", name="Stragglers").get_by_role("link", name="pretraining").click()
    told = page.get_by_role("region", name="Stragglers").get_by_role("row").nth(1)
    for part in ("37 of 64", "n4/5", "NVLink errors: 420 errors in 30 min.", "n8"):
        expect(told).to_contain_text(part)
    assert visitor.axe() == []
    assert visitor.watch.faults == []
