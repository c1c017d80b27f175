"""Fragmentation over time: what was free, and what of it was useless, by minute, quarter of an hour and hour."""

from django.db import models

from gpufleet.core.times import MomentField


class FragmentationRollup(models.Model):
    """The whole fleet from `at` on, as sums of `minutes` snapshots. Rows of a minute say besides how nodes are filled and what is kept out."""

    span = models.PositiveSmallIntegerField(help_text="Seconds: 60, 900 or 3600.")
    at = MomentField()
    minutes = models.PositiveSmallIntegerField(help_text="How many snapshots are added up.")
    figures = models.JSONField(help_text="Milli-GPU by GPU type and pool, and the largest gang by type and level.")

    class Meta:
        db_table = "fragmentation_rollup"
        constraints = [models.UniqueConstraint(fields=["span", "at"], name="fragmentation_rollup_once")]

    def __str__(self) -> str:
        return f"{self.span} s of fragmentation from {self.at:%Y-%m-%d %H:%M}"
