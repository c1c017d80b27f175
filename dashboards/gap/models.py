"""The gap over time: what each part had, by minute, quarter of an hour and hour."""

from django.db import models

from gpufleet.core.times import MomentField
from quotas.models import QuotaNode


class GapPart(models.Model):
    """One part that GPUs can be in: a cause for GPUs of a type in a pool, and whose they are. Figures name parts by their key."""

    cause = models.CharField(max_length=12)
    gpu_type = models.CharField(max_length=60)
    pool = models.CharField(max_length=120, blank=True)
    job_class = models.CharField(max_length=12, blank=True)
    quota = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.PROTECT, related_name="+")

    class Meta:
        db_table = "gap_part"
        constraints = [
            models.UniqueConstraint(fields=["cause", "gpu_type", "pool", "job_class", "quota"], name="gap_part_of_quota_once"),
            # Of nobody's: no value is equal to none.
            models.UniqueConstraint(fields=["cause", "gpu_type", "pool", "job_class"], condition=models.Q(quota__isnull=True), name="gap_part_once"),
        ]

    def __str__(self) -> str:
        return f"{self.cause} of {self.gpu_type}"


class GapRollup(models.Model):
    """The whole fleet divided into parts, from `at` on, as sums of `minutes` snapshots in milli-GPU."""

    span = models.PositiveSmallIntegerField(help_text="Seconds: 60, 900 or 3600.")
    at = MomentField()
    minutes = models.PositiveSmallIntegerField(help_text="How many snapshots are added up.")
    part_ids = models.BinaryField(help_text="Keys of the parts, ascending: differences of uint32, compressed.")
    sums = models.BinaryField(help_text="Compressed uint64, in the order of the parts.")

    class Meta:
        db_table = "gap_rollup"
        constraints = [models.UniqueConstraint(fields=["span", "at"], name="gap_rollup_once")]

    def __str__(self) -> str:
        return f"{self.span} s of the gap from {self.at:%Y-%m-%d %H:%M}"


class GapNewest(models.Model):
    """The newest snapshot GPU by GPU: the rows behind its figures. One row, overwritten."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    at = MomentField()
    pieces = models.BinaryField(help_text="Compressed uint64 columns: part, GPU, job (0: none) and milli-GPU.")

    class Meta:
        db_table = "gap_newest"

    def __str__(self) -> str:
        return f"the gap at {self.at:%Y-%m-%d %H:%M}"
