"""Services over their objective beside others: what is known of them, what will be done next, and what was done (HLT-10)."""

from django.db import models

from gpufleet.core.times import MomentField
from scheduler.models.jobs import Job


class BesideHow(models.TextChoices):
    """Why a job counts as the cause."""

    SHARES = "shares", "shares its GPUs"
    CAME = "came", "came to its nodes shortly before"


class Relief(models.Model):
    """A service that is over its objective, and the jobs beside it that are the cause, as its newest reading has it. While no breach goes on with
    such a cause, `since` is null. What comes next is as the newest plan saw it."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="relief")
    since = MomentField(null=True, blank=True, help_text="Since when a breach goes on with co-tenants as its cause.")
    read_at = MomentField(help_text="When its latency was read last.")
    figure = models.CharField(max_length=40)
    latency_ms = models.FloatField()
    objective_ms = models.PositiveIntegerField()
    beside = models.JSONField(default=list, help_text="Public ids of the jobs that are the cause.")
    how = models.CharField(max_length=8, choices=BesideHow.choices, default=BesideHow.SHARES)
    evicted_at = MomentField(null=True, blank=True, help_text="When a job was evicted for it last, also for another service.")
    next_job = models.CharField(max_length=24, blank=True, help_text="Public id of the job that gives way next; empty: none.")
    next_at = MomentField(null=True, blank=True)
    refused = models.JSONField(default=dict, help_text="By public id, why a job beside it does not give way.")

    class Meta:
        db_table = "relief"

    def __str__(self) -> str:
        return f"relief of {self.job_id}"


class Relieved(models.Model):
    """A job that gave way for a service. Until `until` it is placed on none of the nodes of the service; null: as long as the breach goes on."""

    service = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="relieved_by")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="gave_way_for")
    at = MomentField()
    figure = models.CharField(max_length=40)
    latency_ms = models.FloatField()
    objective_ms = models.PositiveIntegerField()
    how = models.CharField(max_length=8, choices=BesideHow.choices)
    lost_gpu_seconds = models.PositiveBigIntegerField(help_text="Work that was lost, as the plan saw it.")
    plan = models.BigIntegerField(null=True, blank=True, help_text="Key of the plan record, as long as that is kept.")
    until = MomentField(null=True, blank=True)

    class Meta:
        db_table = "relieved"
        indexes = [
            models.Index(fields=["service", "-at", "-id"], name="relieved_service"),
            models.Index(fields=["until"], name="relieved_until"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} for {self.service_id}"
