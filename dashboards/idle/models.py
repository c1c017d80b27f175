"""Idle episodes, what was done about each, and the policies that say what is to be done."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode
from scheduler.models import Attempt, Job


class Stage(models.TextChoices):
    """How far an episode has gone."""

    OPEN = "open", "Open"
    NOTIFIED = "notified", "Notified"
    WARNED = "warned", "Warned"
    WARNED_AGAIN = "warned_again", "Warned twice"
    RECLAIMING = "reclaiming", "Reclaiming"
    RECLAIMED = "reclaimed", "Reclaimed"


class Waste(models.TextChoices):
    EMPTY = "empty", "No process"
    LOW = "low", "Low activity"


class IdleEpisode(models.Model):
    """GPUs of one allocation that stay idle, from the first idle minute on. Open as long as `ended_at` is null."""

    public_id = models.CharField(max_length=24, unique=True)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="idle_episodes")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="idle_episodes")
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="+")
    owner = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    gpu_type = models.CharField(max_length=60)
    waste = models.CharField(max_length=8, choices=Waste.choices)
    gpus = models.JSONField(default=list, help_text="Keys of the GPUs that are idle, or were when it ended.")
    held_milli = models.PositiveBigIntegerField()
    idle_milli = models.PositiveBigIntegerField()
    activity_centi = models.PositiveIntegerField(help_text="Mean SM activity of the idle GPUs over the window, in hundredths of a percent.")
    started_at = MomentField()
    seen_at = MomentField(help_text="Until when readings show it. What is later is not counted.")
    idle_millis = models.BigIntegerField(default=0, help_text="Milliseconds that readings show it idle. The steps of a policy go by them.")
    ended_at = MomentField(null=True, blank=True)
    end_reason = models.CharField(max_length=200, blank=True)
    wasted_milli_millis = models.BigIntegerField(default=0, help_text="Milli-GPU times milliseconds.")
    stage = models.CharField(max_length=14, choices=Stage.choices, default=Stage.OPEN)
    stage_at = MomentField()
    fault = models.CharField(max_length=300, blank=True, help_text="Why the last round could not go on with it; empty where it could.")
    snoozed_until = MomentField(null=True, blank=True)
    snoozes = models.PositiveSmallIntegerField(default=0)
    reclaimed_at = MomentField(null=True, blank=True)
    won_milli_millis = models.BigIntegerField(default=0, help_text="What other jobs held of its GPUs in the day after they were reclaimed.")

    class Meta:
        db_table = "idle_episode"
        indexes = [
            models.Index(fields=["-started_at"], name="idle_started"),
            models.Index(fields=["job", "-started_at"], name="idle_job"),
            models.Index(fields=["ended_at"], name="idle_ended"),
        ]
        constraints = [models.UniqueConstraint(fields=["attempt"], condition=Q(ended_at__isnull=True), name="idle_one_open_per_attempt")]

    def __str__(self) -> str:
        return f"{self.public_id} of {self.job_id}"


class IdleStep(models.Model):
    """What happened in an episode: the audit trail that its page shows."""

    episode = models.ForeignKey(IdleEpisode, on_delete=models.CASCADE, related_name="steps")
    at = MomentField(default=now)
    kind = models.CharField(max_length=14)
    text = models.CharField(max_length=300)
    by = models.CharField(max_length=160, default="gpufleet")

    class Meta:
        db_table = "idle_step"
        indexes = [models.Index(fields=["episode", "at", "id"], name="idle_step_episode")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.episode_id}"


class IdlePolicy(models.Model):
    """What happens to idle allocations below a node, unless a node nearer to the job says otherwise. Minutes are those that readings show idle."""

    node = models.OneToOneField(QuotaNode, primary_key=True, on_delete=models.CASCADE, related_name="idle_policy")
    enabled = models.BooleanField(default=True)
    threshold_percent = models.PositiveSmallIntegerField(default=5)
    window_minutes = models.PositiveIntegerField(default=20)
    classes = models.JSONField(default=list, help_text="Job classes that it watches.")
    notify_minutes = models.PositiveIntegerField(null=True, blank=True)
    warn_minutes = models.PositiveIntegerField(null=True, blank=True)
    warn_again_minutes = models.PositiveIntegerField(null=True, blank=True)
    reclaim_minutes = models.PositiveIntegerField(null=True, blank=True)
    reclaim_share_percent = models.PositiveSmallIntegerField(
        default=50, help_text="A job is reclaimed only while at least this share of its GPUs is idle."
    )
    hold_after = models.BooleanField(default=False, help_text="A reclaimed job is held until its owner releases it.")
    weekdays = models.JSONField(default=list, help_text="0 is Monday. Steps are taken on these days; empty: on all.")
    hours_from = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Minutes after midnight, in the zone.")
    hours_until = models.PositiveSmallIntegerField(null=True, blank=True)
    zone = models.CharField(max_length=60, default="UTC")
    revision = models.PositiveIntegerField(default=1)
    changed_at = MomentField(default=now)

    class Meta:
        db_table = "idle_policy"

    def __str__(self) -> str:
        return f"idle policy of {self.node_id}"


class IdleExemption(models.Model):
    """A job, or all below a node, that no policy acts on until `until`. Its idle time is still shown."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.CASCADE, related_name="idle_exemptions")
    job = models.ForeignKey(Job, null=True, blank=True, on_delete=models.CASCADE, related_name="idle_exemptions")
    reason = models.CharField(max_length=300)
    until = MomentField()
    by = models.CharField(max_length=160)
    created_at = MomentField(default=now)
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "idle_exemption"
        constraints = [models.CheckConstraint(condition=Q(node__isnull=True) ^ Q(job__isnull=True), name="idle_exemption_of_one")]

    def __str__(self) -> str:
        return self.public_id
