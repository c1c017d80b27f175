"""Jobs that are submitted again and again, and what came of each time that they were due."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode, ServiceToken
from scheduler.schedules.pattern import words_of


class Overlap(models.TextChoices):
    """What is done when a run is due while jobs of an earlier one have not ended."""

    ALLOW = "allow", "Submit it as well"
    SKIP = "skip", "Leave it out"
    REPLACE = "replace", "Cancel the earlier one"


class CatchUp(models.TextChoices):
    """What is done with times that passed while nobody looked."""

    NONE = "none", "Let them go"
    LAST = "last", "Submit the newest"
    ALL = "all", "Submit each, the oldest first"


class Schedule(models.Model):
    """A job and the times at which it is due. It is submitted with its owner's rights at that time."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=120)
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="schedules")
    owner = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="schedules")
    description = models.JSONField(default=dict, help_text="The job as it is submitted, without its quota.")
    cron = models.CharField(max_length=100)
    zone = models.CharField(max_length=60, default="UTC")
    overlap = models.CharField(max_length=10, choices=Overlap.choices, default=Overlap.SKIP)
    catch_up = models.CharField(max_length=10, choices=CatchUp.choices, default=CatchUp.LAST)
    start_within_s = models.PositiveIntegerField(null=True, blank=True, help_text="How late a run may still be submitted.")
    starts_at = MomentField(null=True, blank=True)
    ends_at = MomentField(null=True, blank=True)
    paused_at = MomentField(null=True, blank=True)
    paused_by = models.CharField(max_length=160, blank=True)
    paused_reason = models.CharField(max_length=300, blank=True)
    next_due = MomentField(null=True, blank=True, help_text="The first time that is not dealt with; null when there is none any more.")
    last_due = MomentField(null=True, blank=True, help_text="The last time that was dealt with.")
    refusals = models.PositiveIntegerField(default=0, help_text="Runs in a row that were refused, up to now.")
    written_with = models.ForeignKey(
        ServiceToken,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The token with which it was last written; with its end by hand it is paused.",
    )
    revision = models.PositiveIntegerField(default=1)
    created_at = MomentField(default=now)

    class Meta:
        db_table = "schedule"
        indexes = [
            models.Index(fields=["next_due"], name="schedule_due", condition=Q(paused_at__isnull=True, next_due__isnull=False)),
            models.Index(fields=["quota", "-id"], name="schedule_quota"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"

    @property
    def state(self) -> str:
        return "paused" if self.paused_at is not None else "ended" if self.next_due is None else "active"

    @property
    def when(self) -> str:
        """When it is due, in words where they say it."""
        return words_of(self.cron)


class RunOutcome(models.TextChoices):
    SUBMITTED = "submitted", "Submitted"
    DELAYED = "delayed", "Delayed"
    SKIPPED = "skipped", "Left out"
    MISSED = "missed", "Let go"
    REFUSED = "refused", "Refused"


class ScheduleRun(models.Model):
    """What came of a time at which a job was due. Of times that were let go together there is one row, for the last of them."""

    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="runs")
    due_at = MomentField()
    at = MomentField(default=now, help_text="When it was dealt with.")
    outcome = models.CharField(max_length=10, choices=RunOutcome.choices)
    jobs = models.JSONField(default=list, help_text="Public ids of what was submitted; of an array the first and the last.")
    job_count = models.PositiveIntegerField(default=0)
    note = models.CharField(max_length=300, blank=True)
    faults = models.JSONField(default=dict, help_text="Why it was refused, by path.")
    first_due = MomentField(null=True, blank=True, help_text="Of times that were let go together the first.")
    times = models.PositiveIntegerField(default=1, help_text="How many times it stands for.")
    by = models.CharField(max_length=160, blank=True, help_text="Who ran it by hand.")

    class Meta:
        db_table = "schedule_run"
        indexes = [models.Index(fields=["at"], name="schedule_run_at")]
        constraints = [models.UniqueConstraint(fields=["schedule", "due_at"], name="schedule_run_once")]

    def __str__(self) -> str:
        return f"{self.schedule_id} due {self.due_at}"
