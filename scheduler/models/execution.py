"""What back-ends are told and what they and the ranks tell us: orders, checkpoints, and the simulated back-end's own memory (JOB-2, JOB-4)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from scheduler.models.inventory import Cluster, Gpu, GpuMode, InventoryImport
from scheduler.models.jobs import Attempt, Job


class OrderKind(models.TextChoices):
    START = "start", "Start"
    RESIZE = "resize", "Resize"
    REPLACE = "replace", "Replace"
    SIGNAL = "signal", "Signal"
    STOP = "stop", "Stop"
    LIMIT = "limit", "Limit"
    REPARTITION = "repartition", "Repartition"


class Order(models.Model):
    """One thing that a back-end is to do. Written with the decision, carried out after its commit, again and again until it is acknowledged.

    A back-end knows an order by attempt and sequence number and does it once, however often it is told.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="orders")
    attempt = models.ForeignKey(Attempt, null=True, blank=True, on_delete=models.CASCADE, related_name="orders")
    sequence = models.PositiveIntegerField()
    kind = models.CharField(max_length=12, choices=OrderKind.choices)
    payload = models.JSONField(default=dict)
    made_at = MomentField(default=now)
    due_at = MomentField(default=now, help_text="Starts are staggered, and a failed order is tried again later.")
    done_at = MomentField(null=True, blank=True)
    tries = models.PositiveIntegerField(default=0)
    fault = models.CharField(max_length=300, blank=True, help_text="What the back-end said to the last try.")

    class Meta:
        db_table = "backend_order"
        indexes = [models.Index(fields=["due_at", "id"], name="order_open", condition=Q(done_at__isnull=True))]
        constraints = [models.UniqueConstraint(fields=["attempt", "sequence"], condition=Q(attempt__isnull=False), name="order_sequence_once")]

    def __str__(self) -> str:
        return f"{self.kind} {self.attempt_id}/{self.sequence}"


class SplitState(models.TextChoices):
    DRAINING = "draining", "Draining"
    ORDERED = "ordered", "Ordered"
    DONE = "done", "Done"
    REFUSED = "refused", "Refused"
    CANCELLED = "cancelled", "Cancelled"


OPEN_SPLITS = (SplitState.DRAINING, SplitState.ORDERED)


class GpuSplit(models.Model):
    """A repartition that an operator asked for: the GPU drains, its back-end is told, and the inventory changes once that has confirmed it."""

    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="splits")
    mode = models.CharField(max_length=10, choices=GpuMode.choices)
    instances = models.JSONField(default=list, help_text="Wanted instances: [profile, start].")
    state = models.CharField(max_length=10, choices=SplitState.choices, default=SplitState.DRAINING)
    reason = models.CharField(max_length=300)
    health_before = models.CharField(max_length=10, blank=True, help_text="The GPU's health before it drained; empty: it was out of service already.")
    order = models.OneToOneField(Order, null=True, blank=True, on_delete=models.SET_NULL, related_name="split")
    asked_at = MomentField(default=now)
    asked_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    asked_by_name = models.CharField(max_length=160)
    settled_at = MomentField(null=True, blank=True)
    fault = models.CharField(max_length=300, blank=True, help_text="Why the back-end refused it.")

    class Meta:
        db_table = "gpu_split"
        indexes = [models.Index(fields=["gpu", "-asked_at"], name="gpu_split_gpu")]
        constraints = [models.UniqueConstraint(fields=["gpu"], condition=Q(state__in=("draining", "ordered")), name="gpu_split_open_once")]

    def __str__(self) -> str:
        return f"{self.state} split of {self.gpu_id}"


class Checkpoint(models.Model):
    """A saved state of a job. It counts once every shard is there and verified; what an attempt resumes from is the newest such."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="checkpoints")
    attempt = models.ForeignKey(Attempt, on_delete=models.CASCADE, related_name="checkpoints")
    step = models.PositiveBigIntegerField()
    location = models.CharField(max_length=500, blank=True)
    shards_expected = models.PositiveIntegerField(default=1)
    reported_at = MomentField(default=now)
    verified_at = MomentField(null=True, blank=True)
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "checkpoint"
        indexes = [models.Index(fields=["job", "-verified_at"], name="checkpoint_job")]
        constraints = [models.UniqueConstraint(fields=["attempt", "step"], name="checkpoint_step_once")]

    def __str__(self) -> str:
        return f"step {self.step} of {self.job_id}"


class CheckpointShard(models.Model):
    checkpoint = models.ForeignKey(Checkpoint, on_delete=models.CASCADE, related_name="shards")
    number = models.PositiveIntegerField()
    bytes = models.PositiveBigIntegerField(default=0)
    digest = models.CharField(max_length=128, blank=True)
    reported_at = MomentField(default=now)

    class Meta:
        db_table = "checkpoint_shard"
        constraints = [models.UniqueConstraint(fields=["checkpoint", "number"], name="shard_once")]

    def __str__(self) -> str:
        return f"shard {self.number} of {self.checkpoint_id}"


class SimulatedRun(models.Model):
    """What the simulated back-end remembers of one attempt. It belongs to that back-end alone: nothing else reads or writes it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="simulated_runs")
    attempt_key = models.CharField(max_length=40, unique=True)
    sequence = models.PositiveIntegerField(default=0)
    state = models.JSONField(default=dict)
    due_at = MomentField(null=True, blank=True, help_text="When something happens by itself next.")
    ended_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "simulated_run"
        indexes = [models.Index(fields=["cluster", "due_at"], name="simulated_run_due")]

    def __str__(self) -> str:
        return self.attempt_key


class ImportedCluster(models.Model):
    """A cluster whose nodes may be imported by themselves."""

    import_minutes = models.PositiveIntegerField(default=0, help_text="Its nodes are imported so often by themselves; 0: never.")
    imported_at = MomentField(null=True, blank=True)
    import_fault = models.CharField(max_length=300, blank=True, help_text="Why the last import by itself changed nothing.")
    import_waits = models.ForeignKey(
        InventoryImport,
        null=True,
        blank=True,
        on_delete=models.SET_NULL,
        related_name="+",
        help_text="A preview that an operator is to look at.",
    )

    class Meta:
        abstract = True


class RecordedRun(models.Model):
    """What a back-end remembers of one attempt."""

    attempt_key = models.CharField(max_length=40, unique=True)
    sequence = models.PositiveIntegerField(default=0)
    state = models.JSONField(default=dict)
    forgotten_at = MomentField(null=True, blank=True, help_text="Its end has been written down; the row is only there for its log.")

    class Meta:
        abstract = True

    def __str__(self) -> str:
        return self.attempt_key


class SlurmCluster(ImportedCluster):
    """How a cluster's Slurm is reached, and what its jobs run as (docs/operate/slurm.md)."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="slurm")
    conf = models.CharField(max_length=300, blank=True, help_text="Path of slurm.conf on the console's machine; empty: the machine's own.")
    partition = models.CharField(max_length=60, blank=True)
    account = models.CharField(max_length=60, blank=True)
    user = models.CharField(max_length=60, blank=True, help_text="User that jobs run as; empty: the console's own.")
    folder = models.CharField(max_length=300, help_text="For logs and checkpoints, at the same path on the console and on every node.")
    former_folders = models.JSONField(
        default=list, blank=True, help_text="Shared folders of before, the newest first: files of earlier jobs lie there."
    )
    rest_url = models.CharField(max_length=300, blank=True, help_text="Of slurmrestd, for reading; empty: Slurm's own commands.")
    node_logs = models.CharField(max_length=300, blank=True, help_text="Folder of the nodes for logs; empty: they lie in the shared one.")
    tag = models.CharField(max_length=16, unique=True, help_text="Marks this console's jobs in Slurm.")
    changed_at = MomentField(default=now)

    class Meta:
        db_table = "slurm_cluster"

    def __str__(self) -> str:
        return f"Slurm of {self.cluster_id}"


class SlurmRun(RecordedRun):
    """What the Slurm back-end remembers of one attempt. It belongs to that back-end alone: nothing else reads or writes it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="slurm_runs")

    class Meta:
        db_table = "slurm_run"
        indexes = [models.Index(fields=["cluster", "forgotten_at"], name="slurm_run_open")]


class KubernetesCluster(ImportedCluster):
    """How a cluster's Kubernetes is reached, and what its pods are given (docs/operate/kubernetes.md)."""

    cluster = models.OneToOneField(Cluster, on_delete=models.CASCADE, related_name="kubernetes")
    context = models.CharField(max_length=200, help_text="Of the kubeconfig that the console's machine offers.")
    namespace = models.CharField(max_length=63)
    image = models.CharField(max_length=500, blank=True, help_text="Of jobs that name none.")
    service_account = models.CharField(max_length=253, blank=True)
    pull_secret = models.CharField(max_length=253, blank=True)
    runtime_class = models.CharField(max_length=253, blank=True)
    priority_class = models.CharField(max_length=253, blank=True)
    tolerates = models.CharField(max_length=300, blank=True, help_text="Keys of taints, with commas between them.")
    levels = models.CharField(max_length=1000, blank=True, help_text="Labels that become levels, wide to narrow: label=level, or none.")
    uid = models.PositiveIntegerField(null=True, blank=True, help_text="User id that pods run as; empty: what their image says.")
    claim = models.CharField(max_length=253, blank=True, help_text="Volume claim for checkpoints.")
    mount = models.CharField(max_length=300, blank=True, help_text="Where pods see the volume.")
    folder = models.CharField(max_length=300, blank=True, help_text="Where the console sees the same volume; empty: it does not.")
    tag = models.CharField(max_length=16, unique=True, help_text="Marks this console's pods.")
    changed_at = MomentField(default=now)

    class Meta:
        db_table = "kubernetes_cluster"

    def __str__(self) -> str:
        return f"Kubernetes of {self.cluster_id}"


class KubernetesRun(RecordedRun):
    """What the Kubernetes back-end remembers of one attempt. It belongs to that back-end alone: nothing else reads or writes it."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="kubernetes_runs")

    class Meta:
        db_table = "kubernetes_run"
        indexes = [models.Index(fields=["cluster", "forgotten_at"], name="kubernetes_run_open")]
