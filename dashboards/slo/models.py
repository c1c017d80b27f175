"""What a service promises, how it does now, how it did, and when it broke its promise."""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now
from scheduler.models import Job

QUERY_LENGTH, TITLE_LENGTH = 1000, 40


class ServiceLevel(models.Model):
    """Queries of one inference job, its objective, and what the newest round read. A value that could not be read is null; `faults` says why."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="service_level")
    title = models.CharField(max_length=TITLE_LENGTH, help_text="What the latency is: p99 latency, time to first token.")
    latency = models.CharField(max_length=QUERY_LENGTH, help_text="PromQL that gives seconds.")
    objective_ms = models.PositiveIntegerField()
    rate = models.CharField(max_length=QUERY_LENGTH, blank=True, help_text="PromQL that gives requests a second.")
    wanted = models.CharField(max_length=QUERY_LENGTH, blank=True, help_text="PromQL that gives replicas.")
    revision = models.PositiveIntegerField(default=1)
    changed_at = MomentField(default=now)
    changed_by = models.CharField(max_length=160, blank=True)
    looked_at = MomentField(null=True, blank=True, help_text="When it was asked for last.")
    read_at = MomentField(null=True, blank=True, help_text="When its latency was read last.")
    latency_ms = models.FloatField(null=True, blank=True)
    requests = models.FloatField(null=True, blank=True)
    replicas_wanted = models.FloatField(null=True, blank=True)
    replicas = models.PositiveIntegerField(default=0)
    faults = models.JSONField(default=dict)
    over = models.PositiveSmallIntegerField(default=0, help_text="Rounds in a row over the objective, as far as they matter.")
    calm = models.PositiveSmallIntegerField(default=0, help_text="Rounds in a row within it.")

    class Meta:
        db_table = "service_level"

    def __str__(self) -> str:
        return f"{self.title} of {self.job_id}"


class ServiceSample(models.Model):
    """One minute of a service, from `at` on: its highest latency, and the newest of the rest."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="service_samples")
    at = MomentField()
    objective_ms = models.PositiveIntegerField()
    latency_ms = models.FloatField(null=True, blank=True)
    requests = models.FloatField(null=True, blank=True)
    replicas_wanted = models.FloatField(null=True, blank=True)
    replicas = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "service_sample"
        constraints = [models.UniqueConstraint(fields=["job", "at"], name="service_sample_once")]
        indexes = [models.Index(fields=["at"], name="service_sample_at")]

    def __str__(self) -> str:
        return f"{self.job_id} at {self.at:%H:%M}"


class BreachCause(models.TextChoices):
    CAPACITY = "capacity", "Missing capacity"
    CO_TENANT = "co_tenant", "Co-tenant"
    UNKNOWN = "unknown", "Unknown"


class BreachEnd(models.TextChoices):
    MET = "met", "Objective met"
    ENDED = "ended", "The job ended"
    UNREAD = "unread", "No reading"
    REMOVED = "removed", "Objective changed or removed"


class ServiceBreach(models.Model):
    """A time in which the latency of a service was over its objective."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="service_breaches")
    since = MomentField()
    until = MomentField(null=True, blank=True)
    end = models.CharField(max_length=8, choices=BreachEnd.choices, blank=True)
    objective_ms = models.PositiveIntegerField()
    worst_ms = models.FloatField()
    cause = models.CharField(max_length=10, choices=BreachCause.choices, default=BreachCause.UNKNOWN)
    said = models.CharField(max_length=400, blank=True, help_text="The cause in words. It may name jobs of others.")

    class Meta:
        db_table = "service_breach"
        constraints = [models.UniqueConstraint(fields=["job"], condition=Q(until__isnull=True), name="service_breach_one_open")]
        indexes = [models.Index(fields=["until"], name="service_breach_until")]

    def __str__(self) -> str:
        return f"{self.job_id} over {self.objective_ms} ms since {self.since:%H:%M}"
