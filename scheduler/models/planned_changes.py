"""What people have planned for jobs."""

from django.db import models

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import ServiceToken
from scheduler.models.jobs import Job


class PlannedJobChange(models.Model):
    """An action on certain jobs that is to begin later, with the rights that its author has then. The row goes when it begins or is called off."""

    public_id = models.CharField(max_length=24, unique=True)
    author = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    written_with = models.ForeignKey(
        ServiceToken,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="The token with which it was planned; once that is revoked or expired it does not begin.",
    )
    action = models.CharField(max_length=20)
    priority = models.IntegerField(null=True)
    reason = models.CharField(max_length=280, blank=True)
    begins_at = MomentField(db_index=True)
    made_at = MomentField(default=now)
    jobs = models.ManyToManyField(Job, related_name="planned_changes", db_table="planned_job_change_job")
    key = models.CharField(max_length=100, blank=True, help_text="The caller's own name for it, if it gave one.")
    digest = models.CharField(max_length=64, blank=True, help_text="Of what was asked under that name.")

    class Meta:
        db_table = "planned_job_change"
        ordering = ["begins_at", "id"]
        constraints = [models.UniqueConstraint(fields=["author", "key"], condition=~models.Q(key=""), name="planned_job_change_once")]

    def __str__(self) -> str:
        return f"{self.public_id} {self.action} {self.begins_at:%Y-%m-%d %H:%M}"
