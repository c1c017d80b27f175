"""How many replicas of a service were wanted when, and how long it took until they had their place (JOB-8)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now
from scheduler.models.jobs import Job


class ScalingEnd(models.TextChoices):
    PLACED = "placed", "Placed"
    RELEASED = "released", "Released"
    OVERTAKEN = "overtaken", "Changed again"
    ENDED = "ended", "The job ended"
    NOT_RUNNING = "not_running", "It did not run"


class Scaling(models.Model):
    """One change of the replicas that are wanted of a role. Open (`over_at` is null) until as many have their place."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="scalings")
    role = models.CharField(max_length=100)
    at = MomentField(default=now)
    before = models.PositiveIntegerField(help_text="How many were wanted before.")
    after = models.PositiveIntegerField(help_text="How many are wanted since.")
    stood = models.PositiveIntegerField(help_text="How many had their place then.")
    by_metric = models.BooleanField(default=False, help_text="Whether it followed its metric.")
    actor_name = models.CharField(max_length=160)
    reason = models.CharField(max_length=300, blank=True)
    over_at = MomentField(null=True, blank=True)
    end = models.CharField(max_length=12, choices=ScalingEnd.choices, blank=True)

    class Meta:
        db_table = "job_scaling"
        indexes = [
            models.Index(fields=["job", "-at", "-id"], name="scaling_job"),
            models.Index(fields=["at"], name="scaling_at"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "role"], condition=Q(over_at__isnull=True), name="scaling_one_open_per_role"),
            models.CheckConstraint(condition=Q(over_at__isnull=True, end="") | (Q(over_at__isnull=False) & ~Q(end="")), name="scaling_over_is_whole"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} from {self.before} to {self.after}"
