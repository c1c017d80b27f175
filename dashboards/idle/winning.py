"""What reclaiming gains: the time that other jobs held the reclaimed GPUs, in the day after, or until they were reclaimed again."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

from dashboards.idle.models import IdleEpisode
from gpufleet.core.bulk import objects_update
from scheduler.models import Placement

WON_FOR = timedelta(days=1)
MILLISECOND = timedelta(milliseconds=1)


def won_back_follow(*, now: datetime) -> int:
    """Bring the figure of every episode up to date that was reclaimed in the last day. Returns how many changed. As many queries for many."""
    episodes = list(IdleEpisode.objects.filter(reclaimed_at__gte=now - WON_FOR - timedelta(hours=1)).order_by("pk"))
    won = won_back(episodes, now=now)
    changed = [episode for episode in episodes if won[episode.pk] != episode.won_milli_millis]
    for episode in changed:
        episode.won_milli_millis = won[episode.pk]
    objects_update(changed, ("won_milli_millis",))
    return len(changed)


def won_back(episodes: Sequence[IdleEpisode], *, now: datetime) -> dict[int, int]:
    """By key of the episode: milli-GPU times milliseconds that other jobs held of the reclaimed GPUs, in the day after. Two queries."""
    won = {episode.pk: 0 for episode in episodes}
    reclaimed = [(episode, episode.reclaimed_at) for episode in episodes if episode.reclaimed_at is not None]
    if not reclaimed:
        return won
    first = min(at for _, at in reclaimed)
    again: dict[int, list[datetime]] = defaultdict(list)
    later = IdleEpisode.objects.filter(reclaimed_at__gt=first, reclaimed_at__lt=now).order_by("reclaimed_at")
    for moment, gpus in later.values_list("reclaimed_at", "gpus"):
        assert moment is not None, "they are later than the first"
        for gpu in gpus:
            again[gpu].append(moment)
    spans: dict[int, list[tuple[IdleEpisode, datetime, datetime]]] = defaultdict(list)
    for episode, at in reclaimed:
        for gpu in episode.gpus:
            following = again[gpu][bisect_right(again[gpu], at) :][:1]
            spans[gpu].append((episode, at, min(now, at + WON_FOR, *following)))
    rows = Placement.objects.filter(gpu__among=sorted(spans), since__lt=now).exclude(until__lte=first)
    for gpu, job, milli, since, until in rows.values_list("gpu_id", "job_id", "gpu_milli", "since", "until"):
        for episode, start, end in spans[gpu]:
            if job != episode.job_id:
                won[episode.pk] += milli * max(0, int((min(until or end, end) - max(since, start)) / MILLISECOND))
    return won
