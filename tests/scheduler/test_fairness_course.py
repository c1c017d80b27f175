"""The plot of a node's fairness: what it held in each step equals the ledger, and past usage is the last that was counted."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from django.test import Client
from django.urls import reverse

from gpufleet.core.models import AuditEntry
from gpufleet.core.times import now
from scheduler.models import ShareStep, UsageStep
from scheduler.selectors.fairness import decayed_course, fair_course, held_course
from scheduler.services.forecasts.standing import TreeStanding, share_step_keep
from tests import builders
from tests.personas import Personas
from tests.quotas.chargeback.worlds import H100, used

DAY = datetime(2026, 3, 2, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.mark.django_db
def test_what_was_held_in_each_hour_and_what_was_counted(personas: Personas, client: Client):
    node = personas.nodes["acme/research/nlp"]
    used(node, DAY - HOUR, 1.5, milli=4000)
    used(node, DAY + 2 * HOUR, None, milli=2000)
    used(personas.nodes["acme/product"], DAY, 4, milli=8000)

    held = held_course("acme/research", H100, DAY, DAY + 4 * HOUR, HOUR)

    assert np.allclose(held, [2, 0, 2, 2])
    UsageStep.objects.create(at=DAY + HOUR, half_life_seconds=60, used={str(node.pk): {H100: 25}, "0": {H100: 50}}, capacity={H100: 100})
    moments = [DAY + hour * HOUR for hour in range(3)]
    assert decayed_course(personas.nodes["acme/research"], H100, moments, 60) == [None, 0.25, 0.25]
    for minutes, milli in ((5, 3_500), (25, 9_000), (65, 0)):
        share_step_keep(TreeStanding(DAY + timedelta(minutes=minutes), {(node.path, H100): milli, ("acme/gone", H100): 1}, {}, {}))
    assert ShareStep.objects.count() == 2, "the first of each hour"
    assert fair_course(node, H100, [DAY - HOUR, *moments, DAY + 3 * HOUR]) == [None, 3.5, 0, 0, None]
    assert fair_course(personas.nodes["acme"], H100, moments[:1]) == [0]
    builders.node("n1", gpus=8)
    client.force_login(personas.users["viewer"])
    page = client.get(reverse("fairness", args=[node.public_id])).content.decode()
    assert "Past usage" in page and "Half-life" in page


@pytest.mark.django_db
@pytest.mark.parametrize("weight", [0, 0.5])
def test_past_usage_is_shown_where_it_is_counted(personas: Personas, weight: float):
    """Where it has no weight nobody sums it up: a column of noughts would say that a team that used GPUs for weeks had used none."""
    builders.node("n1", gpus=8)
    personas.nodes["acme"].policy = {"usage_weight_millionths": round(1_000_000 * weight)}
    personas.nodes["acme"].save(update_fields=["policy"])
    address = reverse("fairness", args=[personas.nodes["acme/research/nlp"].public_id])

    page = personas.client("viewer").get(address).content.decode()
    chart = personas.client("viewer").get(address, {"chart": "1"}).json()

    told = personas.client("viewer").get(f"/api/v1{address}".rstrip("/"), {"type": H100}).json()

    assert ('data-said="Past usage"' in page) == ("Past usage" in str(chart)) == bool(weight)
    assert [row["past_usage_milli"] for row in told["now"]] == [0 if weight else None]


@pytest.mark.django_db
def test_the_chart_marks_changes_of_the_node_for_readers_of_its_audit(personas: Personas):
    node, beside = personas.nodes["acme/research/nlp"], personas.nodes["acme/product"]
    for of, reason in ((node, "More weight."), (beside, "Less weight.")):
        about = {"quota_path": of.path, "quota_id": of.pk, "reason": reason}
        AuditEntry.objects.create(actor_name="Quinn", via="session", action="quota.update", object_kind="quota", object_id=of.public_id, **about)

    def told(name: str) -> str:
        return str(personas.client(name).get(reverse("fairness", args=[node.public_id]), {"chart": "1"}).json()["table"])

    assert "Changed by Quinn: More weight.</li>" in told("quota_admin")
    assert "Less weight." not in told("quota_admin")
    assert "Quinn" not in told("viewer")


@pytest.mark.django_db
def test_programs_read_what_the_page_plots(personas: Personas):
    node = personas.nodes["acme/research/nlp"]
    builders.node("n1", gpus=8)
    used(node, now() - 2 * HOUR, None, milli=2000)
    address = f"/api/v1/quotas/{node.public_id}/fairness"
    reader = personas.client("viewer")
    told = reader.get(address, {"type": H100, "range": "6h"}).json()
    file = reader.get(reverse("fairness", args=[node.public_id]), {"type": H100, "range": "6h", "chart": "1", "format": "csv"})
    plotted = [line.split(",")[1] for line in b"".join(file.streaming_content).decode().splitlines()[1:]]

    assert told["step_seconds"] == 60
    assert len(told["at"]) == len(told["allocated"]) == len(told["past_usage"]) == len(told["fair_share"]) == 360
    assert (told["allocated"][0], told["allocated"][-1]) == (0, 2)
    assert told["allocated"] == [float(value) for value in plotted]
    assert [(row["path"], row["allocated_milli"]) for row in told["now"]] == [(node.path, 0)], "nothing runs by now that the ledger has not ended"
    assert reader.get(address, {"type": "H900"}).status_code == 422
    assert reader.get(f"/api/v1/quotas/{personas.nodes['acme/product'].public_id}/fairness", {"type": H100}).status_code == 404
