"""The round of the idle rules: episodes opened, gone on with and ended from readings, and the steps that policies say taken in time.

A GPU without readings is not idle: then nothing opens, nothing is counted, and no step is taken. Late or doubled rounds are harmless. An allocation
at which a fault shows is passed over, and the others are gone on with.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import numpy as np
from django.db import transaction

from dashboards.idle.detection import Holds, Idleness, believed, idleness, of_parts
from dashboards.idle.models import IdleEpisode, IdleStep, Stage, Waste
from dashboards.idle.policies import Exempt, Rules, exempt_now, policies_read, steps_due
from dashboards.idle.steps import STAGE_ORDER, Act, acts_take, is_snoozed
from dashboards.readings import hardware_now
from dashboards.signals import Window, activity_window
from gpufleet.core.apart import done_apart
from gpufleet.core.bulk import objects_update, rows_insert
from gpufleet.core.ids import public_ids
from gpufleet.core.live.news import News
from gpufleet.core.progress import turn_take
from scheduler.loop.measures import ROUND_FAULTS
from scheduler.models import HOLDING, Placement
from scheduler.services.loop.measuring import tally

logger = logging.getLogger(__name__)

TURN = "idle"
PACE = timedelta(seconds=50)  # beat asks each minute, give or take
MINUTE, MILLISECOND = timedelta(minutes=1), timedelta(milliseconds=1)
# More of them are no bad rows: the fault is that of the round.
MOST_FAULTS = 20
# Of a round so much is counted at most: while the console was down nobody looked.
MOST_COUNTED = timedelta(minutes=5)
# What came before a reclaim must be told so long before it.
BETWEEN_STEPS = timedelta(minutes=10)
GOING = ("idle_millis", "wasted_milli_millis", "gpus", "idle_milli", "held_milli", "waste", "activity_centi", "seen_at")
NEW = (
    *("public_id", "job_id", "attempt_id", "quota_id", "owner_id", "gpu_type", "waste", "gpus", "held_milli", "idle_milli", "activity_centi"),
    *("started_at", "seen_at", "idle_millis", "wasted_milli_millis", "stage", "stage_at"),
)
STEP = ("episode_id", "at", "kind", "text")
ENDING = ("ended_at", "end_reason", "stage", "stage_at", "reclaimed_at")


@dataclass(slots=True)
class Holding:
    """What one attempt holds: its GPUs with shares, and since when."""

    attempt: int
    job: int
    job_class: str
    quota: int
    path: str
    owner: int | None
    gpus: dict[int, int] = field(default_factory=dict)
    since: dict[int, datetime] = field(default_factory=dict)
    types: dict[int, str] = field(default_factory=dict)

    @property
    def milli(self) -> int:
        return sum(self.gpus.values())


@dataclass(frozen=True, slots=True)
class Found:
    """How idle a holding is: its idle GPUs, and those of them whose readings would open an episode."""

    known: bool
    opens: tuple[int, ...]
    stays: tuple[int, ...]
    empty: bool
    activity: float


@dataclass(frozen=True, slots=True)
class Round:
    opened: int = 0
    ended: int = 0
    acted: int = 0
    unknown: int = 0
    lying: tuple[int, ...] = ()
    faults: int = 0


@dataclass(slots=True)
class Faults:
    """What could not be done in a round, by attempt. Each is logged and counted; too many of them end the round."""

    by_attempt: dict[int, str] = field(default_factory=dict)

    def note(self, attempt: int, episode: str, fault: Exception) -> None:
        if attempt not in self.by_attempt and len(self.by_attempt) == MOST_FAULTS:
            raise fault
        logger.error("The round of idle GPUs could not go on with attempt %s (episode %s).", attempt, episode or "none", exc_info=fault)
        tally.count(ROUND_FAULTS, TURN)
        self.by_attempt[attempt] = f"The last round could not go on with it ({type(fault).__name__}). The log says why; the next round tries again."

    def write(self, episodes: Iterable[IdleEpisode]) -> None:
        """On the episodes, where it has changed."""
        changed: dict[str, list[int]] = {}
        for episode in episodes:
            told = self.by_attempt.get(episode.attempt_id, "")
            if told != episode.fault:
                changed.setdefault(told, []).append(episode.pk)
        for told, keys in changed.items():
            IdleEpisode.objects.filter(pk__among=keys).update(fault=told)


def idle_turn(*, now: datetime) -> Round | None:
    """One round. None: another process just did it."""
    with transaction.atomic():
        if turn_take(name=TURN, now=now, at_least=PACE) is None:
            return None
    return idle_round(now=now)


def idle_round(*, now: datetime) -> Round:
    policies, exempt = policies_read(), exempt_now(now)
    holdings, clusters = holdings_open()
    watched = {key: rules for key, one in holdings.items() if (rules := policies.for_path(one.path)[1]).enabled and one.job_class in rules.classes}
    longest = max((rules.window_minutes for rules in watched.values()), default=0)
    episodes = {episode.attempt_id: episode for episode in IdleEpisode.objects.filter(ended_at__isnull=True).select_related("job", "quota", "owner")}
    if not longest and not episodes:
        return Round()
    holds = holds_of(holdings, clusters, now)
    window, lying = believed(activity_window(minutes=max(longest, 5), now=now), holds)
    window = of_parts(window, holds)
    at_work = frozenset(key for key, count in hardware_now(now=now).processes.items() if count)
    judged = {key: _judge(holdings[key], found, now, rules, lying, clusters, at_work) for key, rules, found in _idleness(window, watched)}
    return _write(holdings, watched, judged, episodes, exempt, tuple(sorted(lying)), now)


def holdings_open() -> tuple[dict[int, Holding], dict[int, int]]:
    """What every attempt holds now, and the cluster of each held GPU. One query."""
    rows = Placement.objects.filter(until__isnull=True, gpu__isnull=False, job__state__in=HOLDING).values_list(
        "attempt_id",
        "job_id",
        "job__job_class",
        "job__quota_id",
        "job__quota__path",
        "job__owner_id",
        "gpu_id",
        "gpu_milli",
        "since",
        "gpu__gpu_type_id",
        "node__cluster_id",
    )
    found: dict[int, Holding] = {}
    clusters: dict[int, int] = {}
    for attempt, job, job_class, quota, path, owner, gpu, milli, since, gpu_type, cluster in rows:
        one = found.get(attempt)
        if one is None:
            one = found[attempt] = Holding(attempt, job, job_class, quota, path, owner)
        one.gpus[gpu] = one.gpus.get(gpu, 0) + milli
        one.since[gpu] = max(since, one.since.get(gpu, since))
        one.types[gpu] = gpu_type
        clusters[gpu] = cluster
    return found, clusters


def holds_of(holdings: Mapping[int, Holding], clusters: Mapping[int, int], now: datetime) -> Holds:
    rows = [(gpu, clusters[gpu], one.job, (now - since) // MINUTE, one.gpus[gpu]) for one in holdings.values() for gpu, since in one.since.items()]
    return Holds(*np.array(rows, np.int64).reshape(-1, 5).T)


def _idleness(window: Window, watched: Mapping[int, Rules]) -> Iterable[tuple[int, Rules, tuple[Window, Idleness]]]:
    """Each watched attempt with what its own policy's window says. Policies that ask the same are answered once."""
    made: dict[tuple[int, int], tuple[Window, Idleness]] = {}
    for key, rules in watched.items():
        asked = (rules.window_minutes, rules.threshold_percent)
        if asked not in made:
            part = window.last(rules.window_minutes)
            made[asked] = part, idleness(part, threshold_percent=rules.threshold_percent)
        yield key, rules, made[asked]


def _judge(
    one: Holding,
    seen: tuple[Window, Idleness],
    now: datetime,
    rules: Rules,
    lying: frozenset[int],
    clusters: Mapping[int, int],
    at_work: frozenset[int],
) -> Found:
    """`at_work`: GPUs on which a process was counted, however little memory it holds."""
    window, idle = seen
    keys = sorted(one.gpus)
    rows = [(key, row) for key, row in zip(keys, window.places(keys).tolist(), strict=True) if row >= 0 and clusters[key] not in lying]
    known = [(key, row) for key, row in rows if idle.known[row]]
    start = now - MINUTE * rules.window_minutes
    stays = tuple(key for key, row in known if idle.stays[row])
    opens = tuple(key for key, row in known if idle.opens[row] and one.since[key] <= start)
    low = [(key, row) for key, row in known if key in set(stays)]
    return Found(
        known=len(known) == len(keys),
        opens=opens,
        stays=stays,
        empty=bool(low) and all(idle.empty[row] and key not in at_work for key, row in low),
        activity=float(np.mean(idle.mean[[row for _, row in low]])) if low else 0.0,
    )


def _write(
    holdings: Mapping[int, Holding],
    watched: Mapping[int, Rules],
    judged: Mapping[int, Found],
    episodes: Mapping[int, IdleEpisode],
    exempt: Exempt,
    lying: tuple[int, ...],
    now: datetime,
) -> Round:
    faults = Faults()
    made: list[IdleEpisode] = []
    acts: list[Act] = []
    unknown = sum(not found.known for found in judged.values())

    def write(attempts: Sequence[int]) -> Written:
        some = {key: copy(episodes[key]) for key in attempts if key in episodes}
        return _write_some(attempts, some, holdings, watched, judged, now)

    def failed(attempt: int, fault: Exception) -> None:
        faults.note(attempt, episodes[attempt].public_id if attempt in episodes else "", fault)

    parts = done_apart(sorted({*episodes, *judged}), write, failed=failed)
    ended = sum(part.ended for part in parts)
    for part in parts:
        made += part.made
        for episode in (*part.made, *part.going):
            if not judged[episode.attempt_id].stays:
                continue
            try:
                acts += _due(episode, holdings[episode.attempt_id].path, watched[episode.attempt_id], exempt, now)
            except Exception as fault:
                faults.note(episode.attempt_id, episode.public_id, fault)
    standing = {episode.pk: episode for episode in (*episodes.values(), *made)}

    def act_failed(act: Act, fault: Exception) -> None:
        faults.note(standing[act.episode].attempt_id, standing[act.episode].public_id, fault)

    acted = acts_take(acts=acts, failed=act_failed, now=now)
    faults.write(standing.values())
    return Round(len(made), ended, acted, unknown, lying, len(faults.by_attempt))


@dataclass(frozen=True, slots=True)
class Written:
    made: list[IdleEpisode]
    going: list[IdleEpisode]
    ended: int


def _write_some(
    attempts: Sequence[int],
    episodes: Mapping[int, IdleEpisode],
    holdings: Mapping[int, Holding],
    watched: Mapping[int, Rules],
    judged: Mapping[int, Found],
    now: datetime,
) -> Written:
    """Open, go on with and end the episodes of these attempts, in the caller's transaction."""
    going: list[IdleEpisode] = []
    over: list[tuple[IdleEpisode, str]] = []
    made = _open([key for key in attempts if key in judged and key not in episodes and judged[key].opens], holdings, watched, judged, now)
    for attempt, episode in episodes.items():
        found = judged.get(attempt)
        if attempt not in holdings:
            over.append((episode, "The job left its GPUs."))
        elif found is None:
            over.append((episode, "The policy no longer watches it."))
        elif found.stays:
            going.append(_gone_on(episode, holdings[attempt], found, now))
        elif found.known:
            over.append((episode, "The GPUs compute again."))
    objects_update(going, GOING)
    episodes_end(over, now)
    if made or over:
        news = News()
        news.add("overview", 1)
        news.publish()
    return Written(made, going, len(over))


def _open(
    keys: Sequence[int], holdings: Mapping[int, Holding], watched: Mapping[int, Rules], judged: Mapping[int, Found], now: datetime
) -> list[IdleEpisode]:
    made = []
    for key, public in zip(keys, public_ids("e", len(keys)) if keys else (), strict=True):
        one, found, rules = holdings[key], judged[key], watched[key]
        started = now - MINUTE * rules.window_minutes
        milli = sum(one.gpus[gpu] for gpu in found.opens)
        made.append(
            IdleEpisode(
                public_id=public,
                job_id=one.job,
                attempt_id=one.attempt,
                quota_id=one.quota,
                owner_id=one.owner,
                gpu_type=one.types[found.opens[0]],
                waste=Waste.EMPTY if found.empty else Waste.LOW,
                gpus=list(found.opens),
                held_milli=one.milli,
                idle_milli=milli,
                activity_centi=round(found.activity * 100),
                started_at=started,
                seen_at=now,
                idle_millis=rules.window_minutes * 60_000,
                wasted_milli_millis=milli * rules.window_minutes * 60_000,
                stage_at=now,
            )
        )
    rows_insert(IdleEpisode, NEW, [[getattr(episode, name) for name in NEW] for episode in made])
    stored = dict(IdleEpisode.objects.filter(public_id__among=[episode.public_id for episode in made]).values_list("public_id", "pk")) if made else {}
    for episode in made:
        episode.pk = stored[episode.public_id]
    opened = [(episode, f"{len(episode.gpus)} of its GPUs have been idle since {episode.started_at:%H:%M} UTC.") for episode in made]
    rows_insert(IdleStep, STEP, [(episode.pk, now, "opened", text) for episode, text in opened])
    return made


def _gone_on(episode: IdleEpisode, one: Holding, found: Found, now: datetime) -> IdleEpisode:
    # What was idle at the last round has been so until now. Nobody looked at more than a few minutes.
    gone = max(0, int(min(now - episode.seen_at, MOST_COUNTED) / MILLISECOND))
    episode.idle_millis += gone
    episode.wasted_milli_millis += episode.idle_milli * gone
    episode.gpus = list(found.stays)
    episode.idle_milli = sum(one.gpus[gpu] for gpu in found.stays)
    episode.held_milli = one.milli
    episode.waste = Waste.EMPTY if found.empty else Waste.LOW
    episode.activity_centi = round(found.activity * 100)
    episode.seen_at = now
    return episode


def episodes_end(over: Sequence[tuple[IdleEpisode, str]], now: datetime) -> None:
    """They are over, with the reasons. What lies between the last reading and now is not counted."""
    known = IdleEpisode.objects.select_for_update().order_by("pk").filter(pk__among=[episode.pk for episode, _ in over]) if over else ()
    standing = {episode.pk: episode for episode in known}  # somebody may have reclaimed its GPUs since it was read
    for episode, reason in over:
        stands = standing[episode.pk]
        episode.stage, episode.stage_at = stands.stage, stands.stage_at
        episode.ended_at, episode.end_reason = max(now, episode.started_at), reason
        if episode.stage == Stage.RECLAIMING:
            episode.stage, episode.stage_at, episode.reclaimed_at = Stage.RECLAIMED, now, now
    objects_update([episode for episode, _ in over], ENDING)
    rows_insert(IdleStep, STEP, [(episode.pk, now, "ended", reason) for episode, reason in over])


def _due(episode: IdleEpisode, path: str, rules: Rules, exempt: Exempt, now: datetime) -> list[Act]:
    """The next step of an episode, where its time has come: one a round, so that each is told before the next is taken."""
    if exempt.covers(episode.job_id, path) or not rules.acts_at(now) or is_snoozed(episode, now):
        return []
    reached = STAGE_ORDER.index(episode.stage)
    reclaims = rules.reclaims(idle_milli=episode.idle_milli, held_milli=episode.held_milli)
    for name in steps_due(rules, episode.idle_millis * MILLISECOND):
        stage = {"notify": Stage.NOTIFIED, "warn": Stage.WARNED, "warn_again": Stage.WARNED_AGAIN, "reclaim": Stage.RECLAIMING}[name]
        if STAGE_ORDER.index(stage) <= reached:
            continue
        if stage == Stage.RECLAIMING and (not reclaims or reached < STAGE_ORDER.index(Stage.WARNED) or now - episode.stage_at < BETWEEN_STEPS):
            return []
        return [Act(episode.pk, stage, hold=rules.hold_after, reclaim_after=rules.reclaim_minutes if reclaims else None)]
    return []
