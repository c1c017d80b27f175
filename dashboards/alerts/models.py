"""What happened in the fleet, as the page Activity lists it."""

from django.db import models

from gpufleet.core.times import MomentField


class ActivityEntry(models.Model):
    """One line: an alert, an incident, a step against idle GPUs. Entries without a path concern the whole fleet."""

    at = MomentField()
    kind = models.CharField(max_length=20)
    title = models.CharField(max_length=200)
    text = models.CharField(max_length=500, blank=True)
    path = models.CharField(max_length=400, blank=True, help_text="Of the quota node that it concerns; empty: the whole fleet.")
    job = models.CharField(max_length=24, blank=True)
    link = models.CharField(max_length=200, blank=True)
    by = models.CharField(max_length=160, default="gpufleet")

    class Meta:
        db_table = "activity_entry"
        indexes = [models.Index(fields=["-at", "-id"], name="activity_at")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"
