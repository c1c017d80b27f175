"""Files of a month or of another period that are written in the background, and for how long they may be downloaded."""

from django.db import models

from gpufleet.core.models import User
from gpufleet.core.times import MomentField


class ExportState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    WRITING = "writing", "Writing"
    DONE = "done", "Ready"
    FAILED = "failed", "Failed"
    EXPIRED = "expired", "Expired"


EXPORTING = (ExportState.WAITING, ExportState.WRITING)


class CostExport(models.Model):
    """A file that one person or token asked for. It is in the data folder under its public id, and nobody else downloads it."""

    public_id = models.CharField(max_length=24, unique=True)
    first = models.DateField(help_text="The first day that it is of.")
    last = models.DateField(help_text="The last day that it is of.")
    format = models.CharField(max_length=12)
    by = models.CharField(max_length=80, help_text="Of a summary: what it is by.")
    users = models.BooleanField(default=False, help_text="Whether names of people are in the file.")
    scope = models.JSONField(help_text="Topmost paths of the tree whose costs are in the file.")
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_name = models.CharField(max_length=160)
    state = models.CharField(max_length=10, choices=ExportState.choices, default=ExportState.WAITING)
    lines = models.PositiveBigIntegerField(default=0, help_text="Written so far.")
    of_lines = models.PositiveBigIntegerField(default=0)
    size = models.PositiveBigIntegerField(default=0, help_text="Bytes of the file.")
    fault = models.CharField(max_length=300, blank=True)
    asked_at = MomentField()
    seen_at = MomentField(help_text="When it last went on.")
    ended_at = MomentField(null=True, blank=True)
    expires_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "cost_export"
        indexes = [
            models.Index(fields=["asked_by", "-id"], name="cost_export_of_person"),
            models.Index(fields=["expires_at"], name="cost_export_expires", condition=models.Q(state="done")),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def goes_on(self) -> bool:
        return self.state in EXPORTING

    @property
    def percent(self) -> int:
        return min(100, 100 * self.lines // self.of_lines) if self.of_lines else 0
