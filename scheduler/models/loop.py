"""The loop's own memory: who leads, what was decided, what is promised, and what every waiting job was told (SCH-20, OPS-2)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now
from scheduler.models.inventory import Cluster, Gpu, MigInstance, Node
from scheduler.models.jobs import Job


class Lease(models.Model):
    """Who may decide. Every write of a decision names the epoch under which it was made; a newer epoch fences it off.

    `wanted` counts the events that ask for a plan, `done` those that a plan has seen, so no wish is lost and a doubled one costs nothing.
    """

    name = models.CharField(max_length=20, primary_key=True)
    holder = models.CharField(max_length=120, blank=True)
    epoch = models.PositiveBigIntegerField(default=0)
    expires_at = MomentField(null=True, blank=True)
    wanted = models.PositiveBigIntegerField(default=0)
    done = models.PositiveBigIntegerField(default=0)
    next_wake_at = MomentField(null=True, blank=True)
    paused_at = MomentField(null=True, blank=True)
    paused_by = models.CharField(max_length=160, blank=True)
    paused_reason = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "scheduler_lease"

    def __str__(self) -> str:
        return f"{self.name}: {self.holder or 'nobody'} at epoch {self.epoch}"


class UsualDemand(models.Model):
    """What jobs usually ask for, as the scenario's `demand`: between places that are equally good, the most room is left for it. One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    learnt_at = MomentField()
    parts = models.JSONField(default=list)

    class Meta:
        db_table = "usual_demand"

    def __str__(self) -> str:
        return f"{len(self.parts)} kinds of jobs"


class LearnedOverrun(models.Model):
    """How run times compare with estimates, as the scenario's `overrun`: by so much plans multiply estimates. One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    learnt_at = MomentField()
    factor_millionths = models.PositiveIntegerField(default=1_000_000, help_text="Bounded; 1 where too few jobs were known.")
    median_millionths = models.PositiveBigIntegerField(null=True, blank=True, help_text="As measured; null: no job was known.")
    jobs = models.PositiveIntegerField(default=0, help_text="Of so many jobs.")
    since = MomentField(null=True, blank=True, help_text="When the first of them ended.")

    class Meta:
        db_table = "learned_overrun"

    def __str__(self) -> str:
        return f"{self.factor_millionths / 1_000_000:g} of {self.jobs} jobs"


class KeptApart(models.Model):
    """Services and templates of which interference is predicted to break a service level, as the scenario's `apart`. One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    learnt_at = MomentField()
    pairs = models.JSONField(default=list)

    class Meta:
        db_table = "kept_apart"

    def __str__(self) -> str:
        return f"{len(self.pairs)} pairs kept apart"


class PlanRecord(models.Model):
    """A plan as it was made and what became of it. The scenario is kept, compressed, for as long as it can be replayed."""

    at = MomentField(default=now)
    epoch = models.PositiveBigIntegerField()
    wanted = models.PositiveBigIntegerField(default=0, help_text="The lease's count of events that this plan has seen.")
    phases = models.JSONField(default=dict, help_text="Milliseconds by phase: snapshot, plan, apply, record.")
    decisions = models.JSONField(default=list)
    dropped = models.JSONField(default=list, help_text="Decisions whose rows had changed, each with why.")
    waiting = models.PositiveIntegerField(default=0)
    metrics = models.JSONField(default=dict)
    next_wake_at = MomentField(null=True, blank=True)
    fault = models.TextField(blank=True, help_text="Why nothing was written: an invariant that did not hold, or an error.")
    scenario = models.BinaryField(null=True, help_text="gzip of the scenario in its plain-file form.")

    class Meta:
        db_table = "plan_record"
        indexes = [models.Index(fields=["-at", "-id"], name="plan_at")]

    def __str__(self) -> str:
        return f"plan {self.pk}"


class Promise(models.Model):
    """GPUs that a decision gave to a job while somebody else is still leaving them: taken the moment that all of them are free."""

    class Kind(models.TextChoices):
        START = "start", "Start"
        REPAIR = "repair", "Repair"
        GROW = "grow", "Grow"
        MOVE = "move", "Move"

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="promise")
    kind = models.CharField(max_length=8, choices=Kind.choices)
    made_at = MomentField(default=now)
    until = MomentField(help_text="Given up then.")
    after = models.JSONField(default=list, help_text="Public ids of the jobs that must be gone, shrunk or moved first.")
    plan = models.ForeignKey(PlanRecord, null=True, on_delete=models.SET_NULL, related_name="promises")
    cause = models.CharField(max_length=300, blank=True)
    backfilled = models.BooleanField(default=False)
    reclaimed_at = MomentField(null=True, blank=True, help_text="Handed to the attempt that takes it.")
    back_to = models.CharField(max_length=14, default="queued", help_text="Where its job waits again when the promise is given up.")

    class Meta:
        db_table = "promise"
        indexes = [models.Index(fields=["until"], name="promise_until")]

    def __str__(self) -> str:
        return f"{self.kind} of {self.job_id}"


class PromisedSeat(models.Model):
    promise = models.ForeignKey(Promise, on_delete=models.CASCADE, related_name="seats")
    role = models.CharField(max_length=40)
    worker = models.PositiveIntegerField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="+")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="promised")
    mig = models.ForeignKey(MigInstance, null=True, blank=True, on_delete=models.CASCADE, related_name="promised")
    gpu_milli = models.PositiveIntegerField(default=1000)

    class Meta:
        db_table = "promised_seat"
        constraints = [
            models.UniqueConstraint(fields=["gpu"], condition=Q(gpu_milli=1000, mig__isnull=True), name="gpu_promised_whole_once"),
            models.UniqueConstraint(fields=["mig"], condition=Q(mig__isnull=False), name="mig_instance_promised_once"),
        ]

    def __str__(self) -> str:
        return f"{self.gpu_id} for {self.promise_id}"


class Outlook(models.Model):
    """What the last plan said to a waiting job: all that blocks it, and when it is expected to start."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="outlook")
    at = MomentField(default=now)
    reasons = models.JSONField(default=list)
    codes = models.CharField(max_length=400, default=" ", help_text="Those of the reasons, each once, with a space on both sides.")
    predicted_start = MomentField(null=True, blank=True, help_text="When it is expected to start, between the earliest and the latest.")
    earliest_start = MomentField(null=True, blank=True)
    latest_start = MomentField(null=True, blank=True)
    late_since = MomentField(null=True, blank=True, help_text="It was to start then, and no later start has been foreseen since.")
    would_start_if = models.JSONField(null=True, blank=True)
    forecast_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "outlook"
        # Whoever looks for a code reads this and none of the reasons.
        indexes = [models.Index(fields=["codes", "job"], name="outlook_codes")]

    def __str__(self) -> str:
        return f"outlook of {self.job_id}"


class Prediction(models.Model):
    """What a job was told first about its start, and when it started: what later ranges are learnt from."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="prediction")
    at = MomentField(help_text="When it was told.")
    foreseen = MomentField(help_text="The start in the middle of the futures that were played, or by estimates alone.")
    soonest = MomentField(null=True, blank=True, help_text="One future in ten had it start sooner.")
    longest = MomentField(null=True, blank=True, help_text="One future in ten had it start later.")
    earliest = MomentField()
    expected = MomentField(help_text="The start that it was told, between the earliest and the latest.")
    latest = MomentField()
    started_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "prediction"
        indexes = [
            models.Index(fields=["-started_at", "-id"], name="prediction_started"),
            models.Index(fields=["at"], name="prediction_at"),
            models.Index(fields=["job"], name="prediction_open", condition=Q(started_at__isnull=True)),
        ]

    def __str__(self) -> str:
        return f"prediction of {self.job_id}"


class Repartition(models.Model):
    """A GPU that was split anew by a plan: what the rate per pool counts."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="repartitions")
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="+")
    at = MomentField(default=now)
    instances = models.JSONField(default=list)

    class Meta:
        db_table = "repartition"
        indexes = [models.Index(fields=["-at"], name="repartition_at")]

    def __str__(self) -> str:
        return f"{self.gpu_id} at {self.at}"
