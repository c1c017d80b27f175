"""What the scheduler counts of itself (OPS-5): kept here and not in a process, so that all processes answer alike and a restart loses nothing."""

from django.db import models


class Measure(models.Model):
    """One number that only grows: a counter, or a part of a histogram (`scheduler.loop.measures` says which there are)."""

    name = models.CharField(max_length=60)
    labels = models.CharField(max_length=200, help_text="The values of its labels as a JSON list.")
    part = models.CharField(max_length=12, help_text="Of a histogram: the upper bound of a bucket, or sum (in microseconds).")
    value = models.PositiveBigIntegerField(default=0)

    class Meta:
        db_table = "measure"
        constraints = [models.UniqueConstraint(fields=["name", "labels", "part"], name="measure_once")]

    def __str__(self) -> str:
        return f"{self.name}{self.labels} {self.part}"
