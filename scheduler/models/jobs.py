"""Jobs, their attempts, where their workers sit, and what happened to them (JOB-1)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode
from scheduler.models.inventory import Gpu, MigInstance, Node


class JobClass(models.TextChoices):
    INFERENCE = "inference", "Inference"
    INTERACTIVE = "interactive", "Interactive"
    BATCH = "batch", "Batch"


class JobState(models.TextChoices):
    DRAFT = "draft", "Draft"
    QUEUED = "queued", "Queued"
    RESERVED = "reserved", "Reserved"
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    CHECKPOINTING = "checkpointing", "Checkpointing"
    PREEMPTED = "preempted", "Preempted"
    RESUMING = "resuming", "Resuming"
    DEGRADED = "degraded", "Degraded"
    COMPLETED = "completed", "Completed"
    FAILED = "failed", "Failed"
    CANCELLED = "cancelled", "Cancelled"


# A reserved job has been promised GPUs that somebody else still leaves (`Promise`); it holds none yet.
WAITING = (JobState.QUEUED, JobState.RESERVED, JobState.PREEMPTED)
HOLDING = (JobState.STARTING, JobState.RUNNING, JobState.CHECKPOINTING, JobState.RESUMING, JobState.DEGRADED)
ENDED = (JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED)


class Job(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=120)
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="jobs")
    owner = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="jobs")
    job_class = models.CharField(max_length=12, choices=JobClass.choices)
    priority = models.IntegerField(default=50)
    preemptible = models.CharField(max_length=14, default="yes", help_text="yes, no or when_borrowed")
    state = models.CharField(max_length=14, choices=JobState.choices, default=JobState.QUEUED)
    state_since = MomentField(default=now)
    revision = models.PositiveIntegerField(default=1)
    submitted_at = MomentField(default=now)
    ended_at = MomentField(null=True, blank=True)
    spec = models.JSONField(default=dict, help_text="Roles, topology wish, checkpoint settings: the job as the scenario format has it.")
    gpus_milli = models.PositiveBigIntegerField(default=0, help_text="What the minimum of its gang needs, for lists and sums.")
    estimate_seconds = models.PositiveIntegerField(null=True, blank=True)
    limit_seconds = models.PositiveIntegerField(null=True, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    cost_centre = models.CharField(max_length=40, blank=True)
    launch = models.JSONField(default=dict, blank=True, help_text="What a back-end starts: command, environment, working directory, secrets by name.")
    not_before = MomentField(null=True, blank=True)
    deadline = MomentField(null=True, blank=True)
    defer = models.CharField(max_length=8, null=True, blank=True, help_text="By what it may be deferred: price or carbon; null: not at all.")
    deferred_to = MomentField(null=True, blank=True, help_text="Not started before; once that has come, it waits as any other.")
    deferral = models.JSONField(null=True, blank=True, help_text="By which figures that was chosen; null: it is still to be judged, if at all.")
    held_at = MomentField(null=True, blank=True, help_text="Since when a person holds it back; it keeps its place in the queue.")
    array = models.CharField(max_length=24, blank=True, help_text="The public id of the array it is an element of.")
    array_index = models.PositiveIntegerField(null=True, blank=True)
    parameters = models.JSONField(default=dict, blank=True, help_text="Of an element of an array: the variables that are its own.")
    template = models.CharField(
        max_length=60, null=True, blank=True, help_text="The public id of the template that it began with, or the name of a shipped one."
    )
    template_version = models.PositiveIntegerField(null=True, blank=True)
    template_speeds = models.PositiveIntegerField(
        null=True, blank=True, help_text="Which speeds of its template it was given, by their number; null: its own, or none."
    )
    schedule = models.CharField(max_length=24, null=True, blank=True, help_text="The public id of the schedule that submitted it.")
    due_at = MomentField(null=True, blank=True, help_text="When that schedule was due; the wall clock may have been later.")
    retry_limit = models.PositiveSmallIntegerField(default=0)
    failures = models.PositiveIntegerField(default=0, help_text="Attempts that failed by the job's own doing, since it was submitted.")
    retry_at = MomentField(null=True, blank=True, help_text="Not tried again before: back-off after a failure or an eviction.")
    evictions = models.PositiveIntegerField(default=0)
    last_evicted_at = MomentField(null=True, blank=True)
    last_moved_at = MomentField(null=True, blank=True)
    degraded_since = MomentField(null=True, blank=True)
    set_aside_until = MomentField(null=True, blank=True, help_text="Planned without it until then: the engine's own check failed over it.")

    class Meta:
        db_table = "job"
        indexes = [
            models.Index(fields=["state", "-id"], name="job_state"),
            models.Index(fields=["quota", "-id"], name="job_quota"),
            models.Index(fields=["-submitted_at", "-id"], name="job_submitted"),
            models.Index(fields=["quota"], name="job_waiting", condition=Q(state__in=WAITING)),
            models.Index(fields=["array", "array_index"], name="job_array", condition=~Q(array="")),
            models.Index(fields=["cost_centre", "-submitted_at", "-id"], name="job_cost_centre", condition=~Q(cost_centre="")),
            models.Index(fields=["schedule", "due_at"], name="job_schedule", condition=Q(schedule__isnull=False)),
            models.Index(fields=["template", "-submitted_at", "-id"], name="job_template_made", condition=Q(template__isnull=False)),
            # What lies ahead of jobs is looked for in every tick, and few of them have any of it.
            *(
                models.Index(fields=[column], name=f"job_{column}", condition=Q(ended_at__isnull=True, **{f"{column}__isnull": False}))
                for column in ("not_before", "retry_at", "deadline", "set_aside_until", "deferred_to")
            ),
            models.Index(fields=["id"], name="job_to_be_judged", condition=Q(ended_at__isnull=True, defer__isnull=False, deferral__isnull=True)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state__in=ENDED, ended_at__isnull=False) | (~Q(state__in=ENDED) & Q(ended_at__isnull=True)),
                name="job_ended_has_time",
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"


class MarkKind(models.TextChoices):
    LABEL = "label", "Label"
    TYPE = "type", "GPU type"


class JobMark(models.Model):
    """What jobs are looked for by: a label, or a GPU type that it names or has run on. What counts is the job; this is its index."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="marks", db_index=False)
    kind = models.CharField(max_length=8, choices=MarkKind.choices)
    key = models.CharField(max_length=100)
    value = models.CharField(max_length=160, blank=True, help_text="Of a label, as `mark_value` has it.")

    class Meta:
        db_table = "job_mark"
        indexes = [models.Index(fields=["kind", "key", "value", "job"], name="job_mark_found")]
        constraints = [models.UniqueConstraint(fields=["job", "kind", "key"], name="job_mark_once")]

    def __str__(self) -> str:
        return f"{self.key}={self.value} of {self.job_id}"


class WaitKind(models.TextChoices):
    GPUS = "gpus", "For GPUs"
    QUOTA = "quota", "For quota"
    ASIDE = "aside", "Held, not due, or behind other jobs"


class Wait(models.Model):
    """What a job waits for since when, and how long it has waited for what before. All that is not written down was for GPUs, as it mostly is."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="wait")
    kind = models.CharField(max_length=8, choices=WaitKind.choices)
    since = MomentField()
    quota_ms = models.BigIntegerField(default=0)
    aside_ms = models.BigIntegerField(default=0)

    class Meta:
        db_table = "job_wait"

    def __str__(self) -> str:
        return f"{self.job_id} waits for {self.kind}"


class Dependency(models.Model):
    """`job` waits until `on` has ended: in any way, or only if it completed."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="dependencies")
    on = models.ForeignKey(Job, on_delete=models.PROTECT, related_name="dependents")
    if_completed = models.BooleanField(default=True)

    class Meta:
        db_table = "job_dependency"
        constraints = [
            models.UniqueConstraint(fields=["job", "on"], name="dependency_once"),
            models.CheckConstraint(condition=~Q(job=models.F("on")), name="dependency_on_another"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} after {self.on_id}"


class Attempt(models.Model):
    """One run of a job, from taking its GPUs to giving them back.

    An attempt that is asked to stop (`stop_asked_at`) says what its job becomes once its back-end has confirmed that it is gone (`stop_to`).
    """

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    started_at = MomentField(default=now)
    running_at = MomentField(null=True, blank=True)
    ended_at = MomentField(null=True, blank=True)
    outcome = models.CharField(max_length=20, blank=True, help_text="completed, failed, preempted, moved, cancelled or lost")
    cause = models.CharField(max_length=300, blank=True)
    sequence = models.PositiveIntegerField(default=0, help_text="The number of the last order that a back-end was given for it.")
    backfilled = models.BooleanField(default=False)
    reclaimed_at = MomentField(null=True, blank=True, help_text="When it was given its place, or more of it, by taking from other queues.")
    resumed_from = models.ForeignKey("scheduler.Checkpoint", null=True, blank=True, on_delete=models.SET_NULL, related_name="resumed_by")
    token_digest = models.CharField(max_length=64, blank=True, help_text="Of the token with which its ranks report; gone when it ends.")
    stop_to = models.CharField(max_length=14, blank=True)
    stop_outcome = models.CharField(max_length=20, blank=True)
    stop_cause = models.CharField(max_length=300, blank=True)
    stop_asked_at = MomentField(null=True, blank=True)
    stop_until = MomentField(null=True, blank=True, help_text="The end of its grace: then it is stopped by force.")
    warned_at = MomentField(null=True, blank=True, help_text="When it was told that its time limit is near.")
    exit_code = models.IntegerField(null=True, blank=True)

    class Meta:
        db_table = "attempt"
        indexes = [
            models.Index(fields=["stop_until"], name="attempt_open", condition=Q(ended_at__isnull=True)),
            models.Index(fields=["started_at", "id"], name="attempt_first_start", condition=Q(number=1)),
        ]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempt_number_once"),
            models.UniqueConstraint(fields=["job"], condition=Q(ended_at__isnull=True), name="attempt_one_open_per_job"),
            models.CheckConstraint(
                condition=Q(stop_to="", stop_asked_at__isnull=True) | (~Q(stop_to="") & Q(stop_asked_at__isnull=False)),
                name="attempt_stop_is_whole",
            ),
        ]

    def __str__(self) -> str:
        return f"attempt {self.number} of {self.job_id}"


class Placement(models.Model):
    """One worker's hold on one GPU or a part of it. An open row (`until` is null) is what makes the GPU taken."""

    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="placements")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="placements")
    role = models.CharField(max_length=40, default="worker")
    worker = models.PositiveIntegerField(default=0)
    node = models.ForeignKey(Node, on_delete=models.PROTECT, related_name="placements")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.PROTECT, related_name="placements")
    mig = models.ForeignKey(MigInstance, null=True, blank=True, on_delete=models.PROTECT, related_name="placements")
    gpu_milli = models.PositiveIntegerField(default=1000)
    since = MomentField(default=now)
    until = MomentField(null=True, blank=True)
    joining = models.BooleanField(default=False, help_text="Its worker was added to a run that goes on, and is not up yet.")
    leaving_since = MomentField(null=True, blank=True, help_text="Since when this worker of a gang that shrinks has been asked to go.")

    class Meta:
        db_table = "placement"
        indexes = [
            models.Index(fields=["gpu", "-since"], name="placement_gpu"),
            models.Index(fields=["node", "-since"], name="placement_node"),
            models.Index(fields=["job"], name="placement_job_open", condition=Q(until__isnull=True)),
            models.Index(fields=["until"], name="placement_until"),
        ]
        constraints = [
            models.UniqueConstraint(fields=["gpu"], condition=Q(until__isnull=True, gpu_milli=1000, mig__isnull=True), name="gpu_held_whole_once"),
            models.UniqueConstraint(fields=["mig"], condition=Q(until__isnull=True, mig__isnull=False), name="mig_instance_held_once"),
            models.CheckConstraint(condition=Q(gpu_milli__gte=0, gpu_milli__lte=1000), name="placement_within_one_gpu"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.gpu_id}"


class JobEvent(models.Model):
    """A transition or a note in a job's life, with its cause and who caused it. Kept 400 days."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="events")
    attempt = models.ForeignKey(Attempt, null=True, on_delete=models.CASCADE, related_name="events")
    at = MomentField(default=now)
    from_state = models.CharField(max_length=14, blank=True)
    to_state = models.CharField(max_length=14, blank=True)
    cause = models.CharField(max_length=300, blank=True)
    actor_name = models.CharField(max_length=160, default="gpufleet")
    detail = models.JSONField(default=dict, blank=True)

    class Meta:
        db_table = "job_event"
        indexes = [
            models.Index(fields=["job", "-at", "-id"], name="job_event_job"),
            models.Index(fields=["-at", "-id"], name="job_event_at"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.from_state} -> {self.to_state}"
