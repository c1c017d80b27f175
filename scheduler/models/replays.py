"""What the last days would have been under a drafted quota tree (QTA-7): asked for, played beside the console, and what came of it."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaChange


class ReplayState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    PLAYING = "playing", "Playing"
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


GOING_ON = (ReplayState.WAITING, ReplayState.PLAYING)


class QuotaReplay(models.Model):
    """One play of the last days with the tree as it is and as a change makes it."""

    change = models.ForeignKey(QuotaChange, on_delete=models.CASCADE, related_name="replays")
    change_revision = models.PositiveIntegerField(help_text="Of the change when it was asked for.")
    state = models.CharField(max_length=10, choices=ReplayState.choices, default=ReplayState.WAITING)
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_at = MomentField(default=now)
    seen_at = MomentField(default=now, help_text="When it last went on.")
    ended_at = MomentField(null=True, blank=True)
    hours = models.PositiveIntegerField(default=0, help_text="Played so far.")
    rows = models.JSONField(default=list, help_text="[key of a quota node, jobs, started, waited, held before and after]")
    fault = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "quota_replay"
        indexes = [models.Index(fields=["change", "-id"], name="quota_replay_of_change")]
        constraints = [models.UniqueConstraint(fields=["change"], condition=Q(state__in=("waiting", "playing")), name="quota_replay_one_at_a_time")]

    def __str__(self) -> str:
        return f"{self.state} replay of {self.change_id}"

    @property
    def goes_on(self) -> bool:
        return self.state in GOING_ON
