"""The phases of one run, as they were learned from telemetry that is long gone."""

from django.db import models

from gpufleet.core.times import MomentField
from scheduler.models import Attempt


class RunLearned(models.Model):
    """One attempt of a job that began with a template. A row without `looked_at` waits for its first look."""

    attempt = models.OneToOneField(Attempt, primary_key=True, on_delete=models.CASCADE, related_name="learned")
    template = models.CharField(max_length=60, help_text="As in the job.")
    since = MomentField(help_text="When it ran; minutes count from there.")
    due_at = MomentField(null=True, help_text="When it is looked at next; null: never again.")
    looked_at = MomentField(null=True)
    minutes = models.PositiveIntegerField(default=0)
    read = models.PositiveIntegerField(default=0, help_text="Minutes in which SM activity was read.")
    is_weak = models.BooleanField(default=False, help_text="A GPU had only the driver's utilization, of which no phases are told.")
    level = models.FloatField(null=True)
    period = models.FloatField(null=True)
    parts = models.JSONField(default=list, help_text="[phase, first minute, minutes, seconds, level of each counter] of each part.")

    sums = models.JSONField(default=dict, help_text="By phase: [seconds, level of each counter], for figures about many templates.")

    class Meta:
        db_table = "run_learned"
        indexes = [
            models.Index(fields=["template", "-since"], name="run_learned_template"),
            models.Index(fields=["due_at"], condition=models.Q(due_at__isnull=False), name="run_learned_due"),
            models.Index(fields=["since"], name="run_learned_since"),
        ]

    def __str__(self) -> str:
        return f"phases of {self.attempt_id}"
