"""The fleet on which `gpufleet bench console --case fit` asks when jobs would start: full, with a long queue of all shapes.

Runs inside a console's own process (`manage.py shell`): what it prints is one line of JSON.
"""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from django.db import connection

from gpufleet.core.models import User
from gpufleet.core.times import now
from quotas.permissions import access_for_user
from scheduler.backends.registry import backends_all
from scheduler.benchmarks.cases import MIX, drawn
from scheduler.benchmarks.lists import signed_in
from scheduler.benchmarks.loop import GPUS, NODES, QUEUED, TEAMS, hardware, person, say, submit_all, team_of, tree, wish
from scheduler.models import Job, JobState
from scheduler.services.loop.tick import Memory, tick_run


def crowded(queued: int = QUEUED) -> None:
    """500 nodes full of jobs of all shapes, and so many that wait and that no plan has seen yet. All say how long they will take."""
    hardware(nodes=NODES, free_nodes=0)
    tree([team_of(number) for number in range(TEAMS)], NODES * GPUS // TEAMS)
    secrets = person()
    access = access_for_user(User.objects.get(username="root"))
    draw = random.Random(5)
    moment = now() - timedelta(minutes=20)
    # Those that run come first in every queue, so that the loop has a fleet that goes on and not one that it turns over.
    submit_all(access, [varied(draw, number) | {"priority": 20} for number in range(1600)], moment)
    memory = Memory()
    for _ in range(12):
        moment += timedelta(seconds=10)
        tick_run(holder="bench", now=moment, backends=backends_all(), memory=memory)
    submit_all(access, [varied(draw, number) for number in range(queued - Job.objects.filter(state=JobState.QUEUED).count())], moment)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
    say({"tokens": secrets, **{str(state): Job.objects.filter(state=state).count() for state in (JobState.RUNNING, JobState.QUEUED)}})


def varied(draw: random.Random, number: int) -> dict[str, Any]:
    workers, gpus = drawn(draw, MIX)
    estimate = draw.randrange(1800, 36_000)
    fields: dict[str, Any] = {"gpus": gpus, "estimate_s": estimate, "limit_s": 2 * estimate, "work_s": estimate, "priority": 10 * draw.randrange(2)}
    if workers > 1:
        fields |= {"workers": workers, "topology": draw.choice(({"preferred": "leaf"}, {"required": "leaf"}, {"required": "spine"}))}
    return wish(number, **fields)


MEASURES: dict[str, Callable[..., None]] = {"crowded": crowded, "signed_in": signed_in}
