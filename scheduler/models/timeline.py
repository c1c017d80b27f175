"""The capacity timeline (QTA-8), what every GPU was good for at every instant, beside the ledger of who used it; and sums of both for fairness."""

from django.db import models
from django.db.models import F, Q

from gpufleet.core.times import MomentField, now
from scheduler.models.inventory import Gpu

# In which a thousandth of a GPU can be. Each has a column `<name>_milli`.
USES = ("used", "starting", "window", "draining", "down", "kept", "blocked", "unwanted")


class CapacityEntry(models.Model):
    """One GPU from `since` to `until`, its thousand thousandths divided among the uses: nothing is missing and nothing counts twice."""

    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="capacity")
    since = MomentField(default=now)
    until = MomentField(null=True, blank=True)
    used_milli = models.PositiveSmallIntegerField(default=0, help_text="Held by work that runs or is stopping.")
    starting_milli = models.PositiveSmallIntegerField(default=0, help_text="Held by work that is not up yet.")
    window_milli = models.PositiveSmallIntegerField(default=0, help_text="Empty for a window that has begun.")
    draining_milli = models.PositiveSmallIntegerField(default=0, help_text="Empty, and takes nothing new.")
    down_milli = models.PositiveSmallIntegerField(default=0, help_text="Empty and out of service: down, drained, in repair or burn-in.")
    kept_milli = models.PositiveSmallIntegerField(default=0, help_text="Free, but promised to a job.")
    blocked_milli = models.PositiveSmallIntegerField(default=0, help_text="Free while work waited for its type and could not be put there.")
    unwanted_milli = models.PositiveSmallIntegerField(default=0, help_text="Free, and nothing waited for its type.")

    class Meta:
        db_table = "capacity_entry"
        indexes = [
            models.Index(fields=["gpu", "since"], name="capacity_gpu"),
            models.Index(fields=["until"], name="capacity_until"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["gpu"], condition=Q(until__isnull=True), name="capacity_one_open_per_gpu"),
            models.CheckConstraint(condition=Q(until__isnull=True) | Q(until__gte=F("since")), name="capacity_ends_after_its_start"),
            models.CheckConstraint(
                condition=Q(
                    used_milli=1000
                    - F("starting_milli")
                    - F("window_milli")
                    - F("draining_milli")
                    - F("down_milli")
                    - F("kept_milli")
                    - F("blocked_milli")
                    - F("unwanted_milli")
                ),
                name="capacity_is_one_gpu",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} from {self.since:%Y-%m-%d %H:%M:%S}"


class UsageStep(models.Model):
    """Past use and capacity until `at`, the beginning of a step of fairness, each millisecond of it halved once for every half-life that it is ago.

    Sums of ledger and timeline that each step carries on from the one before; without one they are made anew.
    """

    at = MomentField()
    half_life_seconds = models.PositiveIntegerField()
    used = models.JSONField(default=dict, help_text="Milli-GPU times milliseconds by key of a quota node and GPU type, without what is below it.")
    capacity = models.JSONField(default=dict, help_text="The same of all GPUs, by type.")

    class Meta:
        db_table = "usage_step"
        constraints = [models.UniqueConstraint(fields=["at", "half_life_seconds"], name="usage_step_once")]

    def __str__(self) -> str:
        return f"usage until {self.at:%Y-%m-%d %H:%M:%S}"


class ShareStep(models.Model):
    """What each node of the quota tree could count on in an hour, by the first forecast in it: its fair share, in milli-GPU."""

    at = MomentField(unique=True, help_text="The beginning of the hour.")
    fair = models.JSONField(default=dict, help_text="Milli-GPU by public id of a quota node and GPU type; nothing where it is 0.")

    class Meta:
        db_table = "share_step"

    def __str__(self) -> str:
        return f"shares of {self.at:%Y-%m-%d %H:%M}"
