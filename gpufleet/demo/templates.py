"""Templates of the demo's company: what its training begins with, so that there is something to learn of each."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from dashboards.fingerprints.store import runs_learn, runs_note
from dashboards.telemetry.spans import MINUTES_KEPT
from gpufleet.core.models import User
from quotas.models import QuotaNode
from quotas.permissions import access_for_user
from scheduler.models import JobTemplate
from scheduler.services.jobs.templates import template_save

COMPANY = "veridia"
_TRAIN = {"class": "batch", "gpus": 8, "retries": 2}
# By the kind of work that begins with it: the name, the title, what it is for, and its description.
TEMPLATES: Mapping[str, tuple[str, str, str, Mapping[str, Any]]] = {
    "pretraining": (
        "pretraining",
        "Pretraining",
        "Large models on many nodes, with checkpoints every few minutes",
        _TRAIN | {"workers": 4, "checkpoint": {"interval_s": 720, "save_s": 20}},
    ),
    "fine-tuning": (
        "fine-tuning",
        "Fine-tuning",
        "A model adapted to one task; it waits for its data half of the time",
        _TRAIN | {"checkpoint": {"interval_s": 1200, "save_s": 20}},
    ),
    "simulation": ("simulation", "Simulation and rendering", "Scenes that are simulated, then rendered", _TRAIN | {"gpus": 4}),
    "embedding": ("embedding", "Embedding", "Shards of a corpus turned into vectors", _TRAIN | {"gpus": 4}),
}


def templates_seed(*, people: Mapping[str, User], now: datetime) -> None:
    node = QuotaNode.objects.get(path=COMPANY)
    access = access_for_user(people["root"], via="system")
    for name, title, about, body in TEMPLATES.values():
        template_save(access=access, node=node, name=name, title=title, about=about, body=dict(body), now=now - timedelta(days=40))


def phases_seed(*, now: datetime) -> None:
    """What a console that has run for a day has learned of its templates; the task would take minutes to come to all of it."""
    runs_note(since=now - MINUTES_KEPT, now=now)
    while runs_learn(now=now):
        pass


def templates_named() -> dict[str, str]:
    """The key of the template of each kind of work, of those that are still there."""
    keys = dict(JobTemplate.objects.filter(node__path=COMPANY, archived_at__isnull=True).values_list("name", "public_id"))
    return {kind: keys[name] for kind, (name, *_) in TEMPLATES.items() if name in keys}
