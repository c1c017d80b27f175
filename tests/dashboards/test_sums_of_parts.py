"""Jobs may hold eighths of GPUs. A sum of them is read at a glance: with one decimal, on every page alike."""

import re

import pytest
from django.urls import reverse

from scheduler.models import JobState
from tests.builders import cluster, job, mig_gpu, node, placement, pool

pytestmark = pytest.mark.django_db
TAGS = re.compile(r"<(script|svg)\b.*?</\1>|<[^>]*>", re.DOTALL)


@pytest.fixture
def pages(personas):
    """A team holds a GPU and three eighths of another one."""
    north = cluster(levels=("spine",), title="North hall")
    room = pool(of=north)
    alpha = node("alpha", of=north, gpus=2, at="s1", pool=room)
    split, nlp = mig_gpu(alpha), personas.nodes["acme/research/nlp"]
    placement(job("training", state=JobState.RUNNING, on=nlp, gpus_milli=1000), alpha.gpus.get(index=1))
    placement(job("slice", state=JobState.RUNNING, on=nlp, gpus_milli=375), split, mig=split.mig_instances.first(), gpu_milli=375)
    return [
        reverse("home_team"),
        reverse("cluster", args=[north.name]),
        reverse("pool", args=[north.name, room.name]),
        reverse("node", args=[alpha.public_id]),
        reverse("quotas"),
        reverse("quota", args=[nlp.public_id]),
    ]


def test_sums_of_parts_have_one_decimal(personas, pages):
    for page in pages:
        html = personas.client("superuser").get(page).content.decode()
        shown = TAGS.sub(" ", html[html.index("<main") :])

        assert re.search(r"(?<![\d.])1\.4(?![\d.])", shown), page
        assert "1.375" not in html, page
