"""Leave to move more running jobs than a plan may by itself, so that waiting gangs find room (SCH-11)."""

from django.conf import settings
from django.db import models
from django.db.models import F, Q

from gpufleet.core.times import MomentField, now


class Defragmentation(models.Model):
    """So many jobs more may be moved, from a time on and for a while. It is over once they are moved, its time is over, or somebody stops it.

    One of a person and one of the rule may be open: that of the rule is over before the other begins.
    """

    class State(models.TextChoices):
        OPEN = "open", "Open"
        ENDED = "ended", "Ended"

    public_id = models.CharField(max_length=24, unique=True)
    state = models.CharField(max_length=5, choices=State.choices, default=State.OPEN)
    moves_most = models.PositiveSmallIntegerField()
    moves_done = models.PositiveSmallIntegerField(default=0)
    starts_at = MomentField()
    ends_at = MomentField()
    ended_at = MomentField(null=True, blank=True)
    ended_because = models.CharField(max_length=300, blank=True)
    reason = models.CharField(max_length=300)
    by_rule = models.BooleanField(default=False)
    asked_at = MomentField(default=now)
    asked_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_by_name = models.CharField(max_length=160)
    stopped_by = models.ForeignKey(settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+")
    told = models.CharField(max_length=7, blank=True, help_text="What people were told of it last: planned, begun or ended.")

    class Meta:
        db_table = "defragmentation"
        indexes = [models.Index(fields=["-asked_at", "-id"], name="defragmentation_asked")]
        constraints = [
            models.UniqueConstraint(fields=["by_rule"], condition=Q(state="open"), name="defragmentation_open_once_each"),
            models.CheckConstraint(condition=Q(moves_most__gte=1), name="defragmentation_moves"),
            models.CheckConstraint(condition=Q(ends_at__gt=F("starts_at")), name="defragmentation_lasts"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.moves_done} of {self.moves_most} moves"
