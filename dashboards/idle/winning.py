"""What reclaiming gains: the time that other jobs held the reclaimed GPUs, in the day after, or until they were reclaimed again."""

from datetime import datetime, timedelta

from dashboards.idle.models import IdleEpisode
from scheduler.models import Placement

WON_FOR = timedelta(days=1)


def won_back_follow(*, now: datetime) -> int:
    """Bring the figure of every episode up to date that was reclaimed in the last day. Returns how many changed."""
    changed = 0
    for episode in IdleEpisode.objects.filter(reclaimed_at__gte=now - WON_FOR - timedelta(hours=1)):
        won = won_back(episode, now=now)
        if won != episode.won_milli_millis:
            changed += IdleEpisode.objects.filter(pk=episode.pk).update(won_milli_millis=won)
    return changed


def won_back(episode: IdleEpisode, *, now: datetime) -> int:
    """Milli-GPU times milliseconds that other jobs held of the reclaimed GPUs, in the day after. Two queries."""
    if episode.reclaimed_at is None:
        return 0
    end = min(now, episode.reclaimed_at + WON_FOR)
    ends = dict.fromkeys(episode.gpus, end)
    again = IdleEpisode.objects.filter(reclaimed_at__gt=episode.reclaimed_at, reclaimed_at__lt=end).order_by("-reclaimed_at")
    for at, gpus in again.values_list("reclaimed_at", "gpus"):
        ends |= dict.fromkeys(ends.keys() & set(gpus), at)
    rows = Placement.objects.filter(gpu__in=episode.gpus, since__lt=end).exclude(job=episode.job_id).exclude(until__lte=episode.reclaimed_at)
    total = 0
    for gpu, milli, since, until in rows.values_list("gpu_id", "gpu_milli", "since", "until"):
        span = min(until or end, ends[gpu]) - max(since, episode.reclaimed_at)
        total += milli * max(0, int(span / timedelta(milliseconds=1)))
    return total
