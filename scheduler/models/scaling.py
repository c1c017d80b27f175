"""How many replicas of a service were wanted when, and how long it took until they had their place (JOB-8)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now
from scheduler.models.jobs import Attempt, Job


class ScalingEnd(models.TextChoices):
    PLACED = "placed", "Placed"
    RELEASED = "released", "Released"
    OVERTAKEN = "overtaken", "Changed again"
    ENDED = "ended", "The job ended"
    NOT_RUNNING = "not_running", "It did not run"


class Scaling(models.Model):
    """One change of the replicas that are wanted of a role. Open (`over_at` is null) until as many have their place."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="scalings")
    role = models.CharField(max_length=100)
    at = MomentField(default=now)
    before = models.PositiveIntegerField(help_text="How many were wanted before.")
    after = models.PositiveIntegerField(help_text="How many are wanted since.")
    stood = models.PositiveIntegerField(help_text="How many had their place then.")
    by_metric = models.BooleanField(default=False, help_text="Whether it followed its metric.")
    actor_name = models.CharField(max_length=160)
    reason = models.CharField(max_length=300, blank=True)
    over_at = MomentField(null=True, blank=True)
    end = models.CharField(max_length=12, choices=ScalingEnd.choices, blank=True)
    ready_at = MomentField(null=True, blank=True, help_text="When as many could serve, of a job whose workers are asked.")

    class Meta:
        db_table = "job_scaling"
        indexes = [
            models.Index(fields=["job", "-at", "-id"], name="scaling_job"),
            models.Index(fields=["at"], name="scaling_at"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "role"], condition=Q(over_at__isnull=True), name="scaling_one_open_per_role"),
            models.CheckConstraint(condition=Q(over_at__isnull=True, end="") | (Q(over_at__isnull=False) & ~Q(end="")), name="scaling_over_is_whole"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} from {self.before} to {self.after}"


class WorkerState(models.Model):
    """A worker that is asked whether it can serve, or that was replaced in its place, as its back-end saw it last. Only `observe` writes it."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="worker_states")
    role = models.CharField(max_length=100)
    worker = models.PositiveIntegerField()
    up = models.BooleanField(default=False)
    began = models.PositiveIntegerField(default=0, help_text="Number of the order that replaced it in its place last; 0: none.")
    ready = models.BooleanField(null=True, help_text="Null: it is not asked.")
    since = MomentField(default=now, help_text="Since when it is ready, or is not.")
    first_at = MomentField(null=True, blank=True, help_text="When it was ready for the first time since it was begun.")
    why = models.CharField(max_length=200, blank=True, help_text="Why it is not ready.")

    class Meta:
        db_table = "worker_state"
        indexes = [models.Index(fields=["since"], name="worker_state_not_ready", condition=Q(ready=False))]
        constraints = [models.UniqueConstraint(fields=["attempt", "role", "worker"], name="worker_state_once")]

    def __str__(self) -> str:
        return f"{self.role} {self.worker} of {self.attempt_id}"


class ReplacementEnd(models.TextChoices):
    DONE = "done", "Done"
    STOPPED = "stopped", "Stopped"
    FAILED = "failed", "Stopped by itself"
    RESTARTED = "restarted", "The job started anew"
    ENDED = "ended", "The job ended"


class Replacement(models.Model):
    """The replicas of a service, started anew a few at a time. Open (`over_at` is null) until the last can serve. Who changes one holds its job."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="replacements")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="replacements")
    role = models.CharField(max_length=100)
    at = MomentField(default=now)
    max_unavailable = models.PositiveIntegerField(default=1)
    within_seconds = models.PositiveIntegerField(help_text="A new replica can serve by then, or no further one is taken down.")
    actor_name = models.CharField(max_length=160)
    reason = models.CharField(max_length=300, blank=True)
    over_at = MomentField(null=True, blank=True)
    end = models.CharField(max_length=12, choices=ReplacementEnd.choices, blank=True)
    why = models.CharField(max_length=300, blank=True, help_text="Why it stopped.")

    class Meta:
        db_table = "job_replacement"
        indexes = [
            models.Index(fields=["job", "-at", "-id"], name="replacement_job"),
            models.Index(fields=["at"], name="replacement_at"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job"], condition=Q(over_at__isnull=True), name="replacement_one_open_per_job"),
            models.CheckConstraint(
                condition=Q(over_at__isnull=True, end="") | (Q(over_at__isnull=False) & ~Q(end="")), name="replacement_over_is_whole"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} since {self.at}"


class StepEnd(models.TextChoices):
    READY = "ready", "Replaced"
    NEW = "new", "Was new already"
    LEFT = "left", "Left"
    FAILED = "failed", "Failed"


class ReplacementStep(models.Model):
    """One replica that is to be started anew. It is being replaced from `began_at` to `over_at`."""

    replacement = models.ForeignKey(Replacement, on_delete=models.CASCADE, related_name="steps")
    worker = models.PositiveIntegerField()
    began_at = MomentField(null=True, blank=True)
    sequence = models.PositiveIntegerField(default=0, help_text="Number of the order that its back-end was given.")
    over_at = MomentField(null=True, blank=True)
    end = models.CharField(max_length=12, choices=StepEnd.choices, blank=True)

    class Meta:
        db_table = "job_replacement_step"
        constraints = [models.UniqueConstraint(fields=["replacement", "worker"], name="replacement_step_once")]

    def __str__(self) -> str:
        return f"{self.worker} of {self.replacement_id}"


class ReplicaRule(models.Model):
    """A service that follows its metric. Who changes one holds its job."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="replica_rule")
    role = models.CharField(max_length=100)
    cooldown_seconds = models.PositiveIntegerField(help_text="So long it has to want fewer before it is given fewer.")
    since = MomentField(default=now)
    actor_name = models.CharField(max_length=160, help_text="Who had it follow.")
    read_at = MomentField(null=True, blank=True, help_text="When its metric was read last.")
    figure = models.PositiveIntegerField(null=True, blank=True, help_text="What it said then.")
    low_since = MomentField(null=True, blank=True, help_text="Since when it has said fewer than are wanted.")
    low_most = models.PositiveIntegerField(null=True, blank=True, help_text="The most that it has said in that time.")

    class Meta:
        db_table = "job_replica_rule"

    def __str__(self) -> str:
        return f"{self.job_id} follows its metric"
