"""Raw hardware state, the rules over it, what they found, and incidents.

Healthy hardware leaves no rows: of a counter only what it grew by in five minutes is kept, and only where that is more than nothing.
"""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now
from scheduler.models import Cluster, Gpu, Job, Node


class HealthFrame(models.Model):
    """The newest raw state of a cluster's devices, and what the running five minutes add up to. One row a cluster, overwritten."""

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="health_frame")
    at = MomentField()
    bucket_at = MomentField()
    source = models.CharField(max_length=20)
    devices = models.BinaryField(help_text="uint64, packed: a GPU's key doubled, a node's key doubled and one.")
    last = models.BinaryField(help_text="uint32 by signal and device, packed; the largest value: not read.")
    sums = models.BinaryField(help_text="As `last`: of the running five minutes.")
    logs = models.JSONField(default=list, help_text="Boots whose kernel log was read, with the number of the newest record; the last one read last.")
    slow_nics = models.JSONField(default=dict, help_text="Gb/s by node and network port, of those below their nominal speed.")

    class Meta:
        db_table = "health_frame"

    def __str__(self) -> str:
        return f"raw state of {self.cluster_id} at {self.at:%H:%M:%S}"


class HealthBucket(models.Model):
    """What one signal of one device came to in the five minutes from `at` on. Nothing is written where that is zero."""

    at = MomentField()
    device = models.BigIntegerField()
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="health_buckets")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="health_buckets")
    signal = models.CharField(max_length=20)
    code = models.PositiveIntegerField(default=0, help_text="Of an XID: its number.")
    value = models.PositiveBigIntegerField()

    class Meta:
        db_table = "health_bucket"
        indexes = [models.Index(fields=["node", "-at"], name="health_bucket_node")]
        constraints = [models.UniqueConstraint(fields=["at", "device", "signal", "code"], name="health_bucket_once")]

    def __str__(self) -> str:
        return f"{self.signal} {self.value} of {self.device} at {self.at:%H:%M}"


class Action(models.TextChoices):
    """What a rule does to the node, from the gentlest on."""

    NOTE = "note", "Note"
    SUSPECT = "suspect", "Mark suspect"
    DRAIN = "drain", "Drain"
    DOWN = "down", "Mark down"


class HealthRule(models.Model):
    """A threshold on one signal over a window. It holds until the signal stays below `clear_below` for `clear_minutes`."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    signal = models.CharField(max_length=20)
    group = models.CharField(max_length=20, blank=True, help_text="Of XIDs: which of the vendor's kinds; empty: all.")
    threshold = models.PositiveBigIntegerField()
    window_minutes = models.PositiveIntegerField()
    clear_below = models.PositiveBigIntegerField()
    clear_minutes = models.PositiveIntegerField()
    action = models.CharField(max_length=8, choices=Action.choices)
    enabled = models.BooleanField(default=True)
    revision = models.PositiveIntegerField(default=1)
    changed_at = MomentField(default=now)
    changed_by = models.CharField(max_length=160, default="gpufleet")
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "health_rule"
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name


class HealthSettings(models.Model):
    """How far rules may go by themselves. One row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    acts = models.BooleanField(default=True, help_text="Off: rules note what they find and change nothing.")
    most_percent = models.PositiveSmallIntegerField(default=10, help_text="Of a pool's nodes, so many at most are out of service by rule.")
    patience_minutes = models.PositiveIntegerField(default=30, help_text="How long work on a draining node may go on before it is moved.")
    repair_minutes = models.PositiveIntegerField(null=True, blank=True, help_text="After so long in repair, burn-in begins by itself; empty: never.")
    burn_in_minutes = models.PositiveIntegerField(default=10, help_text="How long the test job runs; 0: no test job.")
    burn_in_command = models.JSONField(default=list, help_text="What the test job runs on each node.")
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "health_settings"

    def __str__(self) -> str:
        return "health settings"


class Incident(models.Model):
    """One time that a node was not healthy, from the first sign to the way back."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="incidents")
    opened_at = MomentField()
    closed_at = MomentField(null=True, blank=True)
    title = models.CharField(max_length=300)
    rule = models.ForeignKey(HealthRule, null=True, blank=True, on_delete=models.SET_NULL, related_name="incidents")
    by_rule = models.BooleanField(default=False, help_text="Whether rules take the node through its life cycle.")
    worst = models.CharField(max_length=10, default="suspect", help_text="The worst health that the node had.")
    gpus = models.PositiveIntegerField(default=0, help_text="How many GPUs the node has.")
    out_milli_millis = models.BigIntegerField(default=0, help_text="Milli-GPU times milliseconds out of service.")
    lost_milli_millis = models.BigIntegerField(default=0, help_text="Milli-GPU times milliseconds of work that was not saved.")
    jobs = models.PositiveIntegerField(default=0, help_text="How many jobs lost GPUs.")
    burn_in = models.ForeignKey(Job, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        db_table = "incident"
        indexes = [models.Index(fields=["-opened_at"], name="incident_opened"), models.Index(fields=["node", "-opened_at"], name="incident_node")]
        constraints = [models.UniqueConstraint(fields=["node"], condition=Q(closed_at__isnull=True), name="incident_one_open_per_node")]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.title}"


class IncidentStep(models.Model):
    """A line of an incident: a change of health, a finding, what was done."""

    incident = models.ForeignKey(Incident, on_delete=models.CASCADE, related_name="steps")
    at = MomentField()
    text = models.CharField(max_length=300)
    health = models.CharField(max_length=10, blank=True, help_text="The node's health from then on, where the step changed it.")
    event = models.BigIntegerField(null=True, blank=True, unique=True, help_text="The inventory event that it tells of.")
    by = models.CharField(max_length=160, default="gpufleet")

    class Meta:
        db_table = "incident_step"
        indexes = [models.Index(fields=["incident", "at", "id"], name="incident_step_at")]

    def __str__(self) -> str:
        return self.text


class HealthFinding(models.Model):
    """A rule that holds for a device, from `since` until it is clear."""

    rule = models.ForeignKey(HealthRule, on_delete=models.CASCADE, related_name="findings")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="findings")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="findings")
    device = models.BigIntegerField()
    incident = models.ForeignKey(Incident, null=True, on_delete=models.SET_NULL, related_name="findings")
    since = MomentField()
    seen_at = MomentField()
    value = models.PositiveBigIntegerField()
    code = models.PositiveIntegerField(default=0)
    cleared_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "health_finding"
        indexes = [models.Index(fields=["node", "-since"], name="finding_node")]
        constraints = [models.UniqueConstraint(fields=["rule", "device"], condition=Q(cleared_at__isnull=True), name="finding_one_open")]

    def __str__(self) -> str:
        return f"{self.rule_id} of {self.device}"


class Straggler(models.Model):
    """A rank that slows its gang down."""

    public_id = models.CharField(max_length=24, unique=True)
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="stragglers")
    attempt = models.BigIntegerField(help_text="Key of the attempt.")
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="straggling")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="straggling")
    rank = models.PositiveIntegerField()
    ranks = models.PositiveIntegerField()
    since = MomentField()
    seen_at = MomentField()
    ended_at = MomentField(null=True, blank=True)
    percent = models.PositiveIntegerField(help_text="How far it is off the median of its gang.")
    measure = models.CharField(max_length=8, help_text="step: reported step times; sm: SM activity; nvlink: NVLink traffic.")
    cause = models.CharField(max_length=300)

    class Meta:
        db_table = "straggler"
        indexes = [models.Index(fields=["-since"], name="straggler_since")]
        constraints = [models.UniqueConstraint(fields=["attempt", "gpu"], condition=Q(ended_at__isnull=True), name="straggler_one_open")]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.job_id}"


class StepLook(models.Model):
    """The newest step times of a run's ranks: the last looks of fifteen seconds, each with a figure a rank."""

    attempt = models.OneToOneField("scheduler.Attempt", primary_key=True, on_delete=models.CASCADE, related_name="step_look")
    at = MomentField(help_text="The newest look.")
    ranks = models.PositiveIntegerField()
    figures = models.BinaryField(help_text="float32: looks by ranks, seconds a step, the newest look last; NaN: not reported.")
    flops = models.FloatField(null=True, help_text="Operations of one step of the whole job, where a rank told them.")
    precision = models.CharField(max_length=8, blank=True, help_text="Of those operations: bf16, fp8 and so on.")

    class Meta:
        db_table = "step_look"

    def __str__(self) -> str:
        return f"steps of {self.attempt_id}"
