"""Traces that people have added to the what-if lab: jobs of another fleet, or of this one's past, with the fleet that they ran on."""

from datetime import datetime, timedelta
from typing import Any

from django.db import models

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now


class TraceState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    WRITING = "writing", "Writing"
    DONE = "done", "Done"
    FAILED = "failed", "Failed"


BEING_WRITTEN = (TraceState.WAITING, TraceState.WRITING)
LOST_AFTER = timedelta(minutes=15)
LOST_FAULT = "Not written within 15 minutes: its worker was stopped."


class Trace(models.Model):
    """A scenario whose jobs come one after another. It is read again by each what-if of it, and never changed once it is done."""

    public_id = models.CharField(max_length=24, unique=True)
    title = models.CharField(max_length=80)
    kind = models.CharField(max_length=10, help_text="Which trace its files were, or scenario, or own: of this fleet's past.")
    files = models.JSONField(default=list, help_text="The names of its files.")
    document = models.BinaryField(help_text="The scenario as JSON, compressed.")
    fleet = models.BinaryField(help_text="The same without jobs.")
    jobs = models.PositiveIntegerField()
    queues = models.JSONField(default=list, help_text="The names of queues that jobs are in.")
    nodes = models.PositiveIntegerField()
    gpus = models.PositiveIntegerField()
    hours = models.PositiveIntegerField(help_text="Until its last job would have ended, had none waited.")
    left_out = models.JSONField(default=list, help_text="[why, how many rows]")
    days = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Of this fleet's own past: how many.")
    state = models.CharField(max_length=10, choices=TraceState.choices, default=TraceState.DONE)
    fault = models.CharField(max_length=300, blank=True)
    created_at = MomentField(default=now)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        db_table = "trace"
        indexes = [models.Index(fields=["-created_at", "-id"], name="trace_created")]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.title}"

    def is_lost(self, at: datetime) -> bool:
        return self.state in BEING_WRITTEN and at - self.created_at > LOST_AFTER

    @property
    def outcome(self) -> str:
        """Its state; what was lost with its worker has failed."""
        return TraceState.FAILED if self.is_lost(now()) else self.state

    @property
    def why_failed(self) -> str:
        return LOST_FAULT if self.is_lost(now()) else self.fault

    @property
    def rows_left_out(self) -> list[dict[str, Any]]:
        return [{"why": why, "rows": rows} for why, rows in self.left_out]
