"""Idle episodes of the demo's past: reservations and notebooks that held GPUs without using them, and what was done about each."""

import random
from collections import defaultdict
from datetime import datetime, timedelta

from dashboards.idle.models import IdleEpisode, IdlePolicy, IdleStep, Stage, Waste
from gpufleet.core.ids import public_ids
from quotas.models import QuotaNode
from scheduler.models import Attempt, Placement

HOARDS = ("reserved-dev", "notebook")
SHORTEST = timedelta(minutes=50)
# Past these idle minutes an episode of the past had reached a stage.
REACHED = ((90, Stage.WARNED_AGAIN), (60, Stage.WARNED), (30, Stage.NOTIFIED))
TOLD = {
    Stage.NOTIFIED: "The owner was notified.",
    Stage.WARNED: "The owner was warned.",
    Stage.WARNED_AGAIN: "The owner was warned again.",
}
WON_SHARE = 0.7


def wasting_seed(*, seed: int, now: datetime) -> int:
    """Episodes of attempts that are over, and policies on the tree. Returns how many episodes that were."""
    _policies(now)
    rng = random.Random(f"{seed} waste")  # noqa: S311 - a play, not a secret
    attempts = [
        one
        for one in Attempt.objects.filter(ended_at__isnull=False).select_related("job").order_by("pk")
        if one.job.labels.get("workload") in HOARDS and one.ended_at - one.started_at > SHORTEST  # type: ignore[operator]
    ]
    held: dict[int, list[tuple[int, int, str]]] = defaultdict(list)
    rows = Placement.objects.filter(attempt__in=[one.pk for one in attempts], gpu__isnull=False)
    for attempt, gpu, milli, gpu_type in rows.values_list("attempt_id", "gpu_id", "gpu_milli", "gpu__gpu_type_id"):
        held[attempt].append((gpu, milli, gpu_type))
    drawn = [(one, held[one.pk]) for one in attempts if held[one.pk] and rng.random() < 0.8]
    episodes, steps = [], []
    for (run, seats), public in zip(drawn, public_ids("e", len(drawn)) if drawn else (), strict=True):
        episode = _episode(run, seats, public, rng)
        episodes.append(episode)
        steps += _steps(episode)
    now_idle = _open_now(rng, now)
    episodes += now_idle
    steps += [step for one in now_idle for step in _steps(one)]
    IdleEpisode.objects.bulk_create(episodes, batch_size=500)
    IdleStep.objects.bulk_create(steps, batch_size=500)
    return len(episodes)


def _open_now(rng: random.Random, now: datetime) -> list[IdleEpisode]:
    """Reservations that hold GPUs now and use none of them."""
    runs = [
        run
        for run in Attempt.objects.filter(ended_at__isnull=True, started_at__lt=now - SHORTEST).select_related("job").order_by("pk")
        if run.job.labels.get("workload") == HOARDS[0]
    ]
    found = []
    for run, public in zip(runs, public_ids("e", len(runs)) if runs else (), strict=True):
        rows = Placement.objects.filter(attempt=run, until__isnull=True, gpu__isnull=False)
        seats = list(rows.values_list("gpu_id", "gpu_milli", "gpu__gpu_type_id"))
        if seats:
            run.ended_at = now  # as far as the episode knows; the run goes on
            episode = _episode(run, seats, public, rng)
            episode.seen_at, episode.ended_at, episode.end_reason = now, None, ""
            episode.stage = next((stage for least, stage in REACHED if now - episode.started_at >= timedelta(minutes=least)), Stage.OPEN)
            episode.stage_at, episode.reclaimed_at, episode.won_milli_millis = now, None, 0
            episode.idle_millis = int((now - episode.started_at) / timedelta(milliseconds=1))
            episode.wasted_milli_millis = episode.idle_milli * episode.idle_millis
            found.append(episode)
    return found


def _policies(now: datetime) -> None:
    """The whole company is notified and warned; one department also loses what nobody uses for three hours of a working day."""
    classes = ["batch", "interactive"]
    top = QuotaNode.objects.get(parent__isnull=True)
    IdlePolicy.objects.create(node=top, classes=classes, notify_minutes=30, warn_minutes=60, warn_again_minutes=90, changed_at=now)
    for node in QuotaNode.objects.filter(parent=top).order_by("path")[:1]:
        facts = {"classes": classes, "notify_minutes": 30, "warn_minutes": 90, "warn_again_minutes": 150, "reclaim_minutes": 180}
        hours = {"weekdays": [0, 1, 2, 3, 4], "hours_from": 8 * 60, "hours_until": 18 * 60, "zone": "Europe/Berlin"}
        IdlePolicy.objects.create(node=node, changed_at=now, **facts, **hours)


def _episode(attempt: Attempt, seats: list[tuple[int, int, str]], public: str, rng: random.Random) -> IdleEpisode:
    assert attempt.ended_at is not None
    span = attempt.ended_at - attempt.started_at
    started = attempt.started_at + span * rng.uniform(0.05, 0.3)
    reclaimed = attempt.outcome in ("preempted", "cancelled") and rng.random() < 0.6
    ended = attempt.ended_at if reclaimed else started + (attempt.ended_at - started) * rng.uniform(0.6, 1.0)
    idle = seats if rng.random() < 0.6 or len(seats) == 1 else seats[: max(1, len(seats) // 2)]
    milli = sum(part for _, part, _ in idle)
    minutes = (ended - started) / timedelta(minutes=1)
    stage = Stage.RECLAIMED if reclaimed else next((stage for least, stage in REACHED if minutes >= least), Stage.OPEN)
    idle_millis = int((ended - started) / timedelta(milliseconds=1))
    return IdleEpisode(
        public_id=public,
        job=attempt.job,
        attempt=attempt,
        quota_id=attempt.job.quota_id,
        owner_id=attempt.job.owner_id,
        gpu_type=seats[0][2],
        waste=Waste.EMPTY if rng.random() < 0.3 else Waste.LOW,
        gpus=[gpu for gpu, _, _ in idle],
        held_milli=sum(part for _, part, _ in seats),
        idle_milli=milli,
        activity_centi=rng.randrange(0, 320),
        started_at=started,
        seen_at=ended,
        ended_at=ended,
        end_reason="The job left its GPUs." if reclaimed else "The GPUs compute again.",
        idle_millis=idle_millis,
        wasted_milli_millis=milli * idle_millis,
        stage=stage,
        stage_at=ended,
        reclaimed_at=ended if reclaimed else None,
        won_milli_millis=int(milli * rng.uniform(2, 9) * 3_600_000 * WON_SHARE) if reclaimed else 0,
    )


def _steps(episode: IdleEpisode) -> list[IdleStep]:
    end = episode.ended_at or episode.seen_at
    found = [
        IdleStep(
            episode=episode, at=episode.started_at + timedelta(minutes=20), kind="opened", text=f"{len(episode.gpus)} of its GPUs have been idle."
        )
    ]
    for minutes, stage in reversed(REACHED):
        at = episode.started_at + timedelta(minutes=minutes)
        if at < end:
            found.append(IdleStep(episode=episode, at=at, kind=stage, text=TOLD[stage]))
    if episode.stage == Stage.RECLAIMED:
        found.append(IdleStep(episode=episode, at=end, kind="reclaiming", text="Reclaimed: others wait for this type.", by="Oona Okafor"))
    if episode.ended_at is not None:
        found.append(IdleStep(episode=episode, at=episode.ended_at, kind="ended", text=episode.end_reason))
    return found
