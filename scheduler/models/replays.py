"""What the last days would have been under a drafted quota tree (QTA-7), other settings or another fleet (UI-10): asked for, played beside the
console, and what came of it."""

from datetime import datetime, timedelta

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaChange
from scheduler.models.traces import Trace


class ReplayState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    PLAYING = "playing", "Playing"
    DONE = "done", "Done"
    CANCELLED = "cancelled", "Cancelled"
    FAILED = "failed", "Failed"


GOING_ON = (ReplayState.WAITING, ReplayState.PLAYING)
# What has not gone on for so long was lost with its worker. One that waits may wait for a worker that plays others, mostly for a minute.
LOST_AFTER = {ReplayState.WAITING: timedelta(minutes=10), ReplayState.PLAYING: timedelta(seconds=60)}
LOST = {ReplayState.WAITING: "Not started within 10 minutes.", ReplayState.PLAYING: "No progress for a minute: its worker was stopped."}


class QuotaReplay(models.Model):
    """One what-if: a play of the last days, or of a trace, as the tree, the settings and the fleet are, and as they would be."""

    public_id = models.CharField(max_length=24, unique=True)
    change = models.ForeignKey(QuotaChange, null=True, blank=True, on_delete=models.CASCADE, related_name="replays")
    change_revision = models.PositiveIntegerField(default=0, help_text="Of the change when it was asked for.")
    trace = models.ForeignKey(Trace, null=True, blank=True, on_delete=models.SET_NULL, related_name="replays")
    asked = models.JSONField(default=dict, help_text="days, policy, nodes, return_nodes, and told in words; hours once it is known")
    is_long = models.BooleanField(default=False, help_text="Whether it may take more than a minute.")
    state = models.CharField(max_length=10, choices=ReplayState.choices, default=ReplayState.WAITING)
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_at = MomentField(default=now)
    seen_at = MomentField(default=now, help_text="When it last went on.")
    ended_at = MomentField(null=True, blank=True)
    hours = models.PositiveIntegerField(default=0, help_text="Played so far.")
    rows = models.JSONField(default=list, help_text="[key of a quota node, or a queue of a trace, jobs, started, waited, held before and after]")
    figures = models.JSONField(default=dict, help_text="from, in milliseconds; before and after: of the whole fleet, with a course by hour")
    fault = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "quota_replay"
        indexes = [
            models.Index(fields=["change", "-id"], name="quota_replay_of_change"),
            models.Index(fields=["-asked_at", "-id"], name="quota_replay_asked"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["change"], condition=Q(state__in=("waiting", "playing")), name="quota_replay_one_at_a_time"),
            models.UniqueConstraint(
                fields=["asked_by"], condition=Q(state__in=("waiting", "playing"), change__isnull=True), name="quota_replay_one_of_a_person"
            ),
            models.UniqueConstraint(fields=["is_long"], condition=Q(state__in=("waiting", "playing"), is_long=True), name="quota_replay_one_long"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.state}"

    @property
    def goes_on(self) -> bool:
        return self.state in GOING_ON

    @property
    def days(self) -> int:
        return int(self.asked.get("days", 7))

    @property
    def is_of_trace(self) -> bool:
        """Also of one that was removed since."""
        return bool(self.asked.get("trace"))

    @property
    def minutes(self) -> int:
        """That it may take."""
        return int(self.asked.get("minutes", 1))

    @property
    def on_own_fleet(self) -> bool:
        return self.is_of_trace and not self.asked.get("here")

    @property
    def replays(self) -> str:
        """What is played, in short."""
        if self.is_of_trace:
            return str(self.asked.get("trace_title", self.asked["trace"]))
        return "Last day" if self.days == 1 else f"Last {self.days} days"

    @property
    def base(self) -> str:
        """What the side is called in which nothing is changed."""
        return "Unchanged" if self.is_of_trace else "Today"

    @property
    def of_hours(self) -> int:
        """Hours that are played, from the first job on."""
        return int(self.asked.get("hours", 24 * self.days))

    @property
    def skipped_hours(self) -> int:
        """Hours that there is no time for, of a trace behind these, else before them: plans would have been too far apart."""
        return int(self.asked.get("skipped", 0))

    @property
    def all_hours(self) -> int:
        return self.of_hours + self.skipped_hours

    @property
    def is_cut_off(self) -> bool:
        return self.hours < self.of_hours

    @property
    def is_cut_off_early(self) -> bool:
        return 2 * self.hours < self.of_hours

    def is_lost(self, at: datetime) -> bool:
        return self.goes_on and at - self.seen_at > LOST_AFTER[ReplayState(self.state)]

    @property
    def outcome(self) -> str:
        """Its state; what was lost with its worker has failed, though its row is told so only when the next one is asked for."""
        return ReplayState.FAILED if self.is_lost(now()) else self.state

    @property
    def title(self) -> str:
        """What is changed, in short."""
        return "; ".join(self.changes) or "Nothing changed"

    @property
    def changes(self) -> list[str]:
        named = [f"Quota draft {self.change.public_id}: {self.change.title}"] if self.change is not None else []
        return [*named, *self.asked.get("told", ())]
