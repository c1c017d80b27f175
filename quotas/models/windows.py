"""Capacity held by the calendar: reservations of a subtree, floors of a class, and each window of time that they come to (QTA-5, QTA-6)."""

from datetime import datetime
from zoneinfo import ZoneInfo

from django.db import models
from django.db.models import F, Q

from gpufleet.core.models import User
from gpufleet.core.recurrence import Times
from gpufleet.core.times import MomentField, now
from quotas.models.tree import QuotaNode


class ReservationState(models.TextChoices):
    REQUESTED = "requested", "Pending approval"
    APPROVED = "approved", "Approved"
    DENIED = "denied", "Denied"
    CANCELLED = "cancelled", "Cancelled"


class Shape(models.TextChoices):
    """What is reserved: GPUs anywhere, whole nodes, or GPUs inside one block of the topology."""

    GPUS = "gpus", "GPUs"
    NODES = "nodes", "Whole nodes"
    BLOCK = "block", "One block"


class Idle(models.TextChoices):
    """What happens to reserved GPUs that their owner does not use."""

    HELD = "held", "Keep idle for the owner"
    LENT = "lent", "Lend to preemptible jobs"


# Rules that are chosen and told in words; any other is told as it is written.
REPEATS = {
    "FREQ=DAILY": "Every day",
    "FREQ=WEEKLY;BYDAY=MO,TU,WE,TH,FR": "Monday to Friday",
    "FREQ=WEEKLY": "Every week",
    "FREQ=MONTHLY": "Every month",
}


class Reservation(models.Model):
    """GPUs of one type for a subtree, or for a class of jobs (a floor), once or again and again, or without an end (standing)."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    quota = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.PROTECT, related_name="reservations")
    job_class = models.CharField(max_length=12, blank=True, help_text="Of a floor: the class of jobs that may use it, from any leaf.")
    gpu_type = models.CharField(max_length=60)
    shape = models.CharField(max_length=6, choices=Shape.choices, default=Shape.GPUS)
    gpus_milli = models.PositiveBigIntegerField()
    nodes = models.PositiveIntegerField(null=True, blank=True, help_text="Whole nodes, where it is of nodes.")
    level = models.CharField(max_length=60, blank=True, help_text="Of a block: the level of the topology.")
    zone = models.CharField(max_length=60, default="UTC")
    starts_at = MomentField(help_text="When the first window starts.")
    ends_at = MomentField(null=True, blank=True, help_text="When the first window ends; null: standing.")
    rule = models.CharField(max_length=300, blank=True, help_text="RFC 5545, over the wall clock of its zone.")
    notice_s = models.PositiveIntegerField(default=600, help_text="So long before a window starts, jobs in its way are asked to leave.")
    lead_s = models.PositiveIntegerField(default=900, help_text="So long before a window starts, no job that would be in its way starts.")
    decay_s = models.PositiveIntegerField(null=True, blank=True, help_text="A window nobody has claimed so long after its start is released.")
    idle = models.CharField(max_length=4, choices=Idle.choices, default=Idle.HELD)
    purpose = models.CharField(max_length=300, blank=True)
    state = models.CharField(max_length=10, choices=ReservationState.choices, default=ReservationState.REQUESTED)
    requested_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    requested_name = models.CharField(max_length=160)
    requested_at = MomentField(default=now)
    decided_name = models.CharField(max_length=160, blank=True)
    decided_at = MomentField(null=True, blank=True)
    decision = models.CharField(max_length=300, blank=True, help_text="What the one who approved, denied or cancelled it said.")
    expanded_to = MomentField(null=True, blank=True, help_text="Its windows that start before this are written down.")
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "reservation"
        indexes = [models.Index(fields=["state", "gpu_type"], name="reservation_state")]
        constraints = [
            models.CheckConstraint(
                condition=Q(quota__isnull=False, job_class="") | (Q(quota__isnull=True) & ~Q(job_class="")), name="reservation_owner"
            ),
            models.CheckConstraint(condition=Q(gpus_milli__gt=0), name="reservation_has_gpus"),
            models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gt=F("starts_at")), name="reservation_ends_after_start"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"

    @property
    def times(self) -> Times:
        zone = ZoneInfo(self.zone)
        return Times(self.zone, _local(self.starts_at, zone), None if self.ends_at is None else _local(self.ends_at, zone), self.rule)

    @property
    def is_floor(self) -> bool:
        return self.quota_id is None

    @property
    def standing(self) -> bool:
        return self.ends_at is None

    @property
    def owner_label(self) -> str:
        return self.quota.path if self.quota is not None else f"{self.job_class} jobs"

    @property
    def repeats(self) -> str:
        """The rule in words; empty where it has none of its own."""
        return REPEATS.get(self.rule, "")


def _local(moment: datetime, zone: ZoneInfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None)


class Window(models.Model):
    """One window of an approved reservation, written down some time ahead so that what was promised and what came of it can be read later."""

    reservation = models.ForeignKey(Reservation, on_delete=models.CASCADE, related_name="windows")
    starts_at = MomentField()
    ends_at = MomentField(null=True, blank=True)
    cleared_at = MomentField(null=True, blank=True, help_text="When the jobs in its way were asked to leave.")
    leaving = models.JSONField(default=list, help_text="Public ids of the jobs that were asked to leave.")
    missing_milli = models.PositiveBigIntegerField(default=0, help_text="GPUs that no job could be asked for when it was cleared.")
    claimed_at = MomentField(null=True, blank=True, help_text="When a job that may use it was seen; only where unused windows are released.")
    released_at = MomentField(null=True, blank=True, help_text="Since when it holds nothing, as nobody had claimed it.")
    ended_early = models.BooleanField(default=False, help_text="Somebody ended this one of a rule; an approval does not resume it.")

    class Meta:
        db_table = "reservation_window"
        indexes = [
            models.Index(fields=["starts_at"], name="window_start"),
            models.Index(fields=["ends_at"], name="window_end", condition=Q(released_at__isnull=True)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["reservation", "starts_at"], name="window_once_per_start"),
            models.CheckConstraint(condition=Q(ends_at__isnull=True) | Q(ends_at__gte=F("starts_at")), name="window_ends_after_start"),
        ]

    def __str__(self) -> str:
        return f"{self.reservation_id} from {self.starts_at:%Y-%m-%d %H:%M}"

    @property
    def name(self) -> str:
        """As the engine knows it."""
        return f"{self.reservation.public_id}@{self.starts_at:%Y%m%dT%H%MZ}"

    def state_at(self, moment: datetime) -> str:
        if self.released_at is not None and self.released_at <= moment:
            return "released"
        if self.starts_at > moment:
            return "coming"
        return "active" if self.ends_at is None or self.ends_at > moment else "past"
