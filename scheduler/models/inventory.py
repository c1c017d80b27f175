"""Clusters, topology, nodes and GPUs: the hardware as it is, and the history of how it came to be so."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now


class Health(models.TextChoices):
    """HLT-7's life cycle, and `down` for what does not answer."""

    HEALTHY = "healthy", "Healthy"
    SUSPECT = "suspect", "Suspect"
    DRAINING = "draining", "Draining"
    DRAINED = "drained", "Drained"
    REPAIRING = "repairing", "Repairing"
    BURN_IN = "burn_in", "Burn-in"
    DOWN = "down", "Down"


# What counts as capacity, everywhere: work may be placed on it. Suspect hardware serves what tolerates it, draining hardware nothing new.
IN_SERVICE = frozenset({Health.HEALTHY, Health.SUSPECT})


class DrainWay(models.TextChoices):
    """What becomes of the jobs on a node that is drained."""

    FINISH = "finish", "Finish here"
    MOVE = "move", "Save and resume elsewhere"
    STOP = "stop", "Stop, also jobs that may not be preempted"


class GpuMode(models.TextChoices):
    WHOLE = "whole", "Whole"
    MIG = "mig", "MIG"
    MPS = "mps", "MPS"
    TIME_SLICE = "timeslice", "Time slice"


class GpuType(models.Model):
    """A model of GPU. `board` names the row of the MIG catalogue (scheduler/engine/model/mig.py), or is empty where the GPU can't be split."""

    name = models.CharField(max_length=60, primary_key=True)
    board = models.CharField(max_length=40, blank=True)
    memory_mib = models.PositiveIntegerField()
    hbm_gbps = models.PositiveIntegerField(default=0)
    rated_watts = models.PositiveIntegerField(null=True, blank=True, help_text="Of one GPU; null: as its maker states.")

    class Meta:
        db_table = "gpu_type"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name


class Cluster(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    name = models.SlugField(max_length=60, unique=True)
    title = models.CharField(max_length=120, blank=True)
    backend = models.CharField(max_length=20, default="simulated")
    created_at = MomentField(default=now)
    silent_since = MomentField(null=True, blank=True, help_text="Its back-end has not answered since: nothing new is placed there.")
    removed_at = MomentField(null=True, blank=True, help_text="It has left the fleet: only its history is there.")

    class Meta:
        db_table = "cluster"
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name

    @property
    def label(self) -> str:
        return self.title or self.name


class Pool(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="pools")
    name = models.SlugField(max_length=60)

    class Meta:
        db_table = "pool"
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], name="pool_once_per_cluster")]

    def __str__(self) -> str:
        return self.name


class TopologyLevel(models.Model):
    """A level of a cluster's topology, wide to narrow, as the operator names it (hall, spine, leaf, rack, …)."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="levels")
    depth = models.PositiveSmallIntegerField()
    name = models.SlugField(max_length=40)
    bandwidth_gbps = models.PositiveIntegerField(null=True, blank=True, help_text="Of one node's links into a domain of this level.")
    oversubscription_centi = models.PositiveIntegerField(default=100, help_text="200: twice as much can be asked for as there is.")
    is_rail_level = models.BooleanField(default=False, help_text="GPU i of each node below hangs on rail switch i of this domain.")

    class Meta:
        db_table = "topology_level"
        ordering = ["cluster", "depth"]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "depth"], name="level_depth_once"),
            models.UniqueConstraint(fields=["cluster", "name"], name="level_name_once"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def oversubscription(self) -> str:
        """`2:1` where the nodes below can ask for twice of what there is."""
        return f"{self.oversubscription_centi / 100:g}:1"


class Domain(models.Model):
    """One place of a level: `spine-1/leaf-3`. `path` is its whole name inside the cluster."""

    public_id = models.CharField(max_length=24, unique=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="domains")
    level = models.ForeignKey(TopologyLevel, on_delete=models.PROTECT, related_name="domains")
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.CASCADE, related_name="children")
    name = models.CharField(max_length=63)
    path = models.CharField(max_length=400)
    bandwidth_gbps = models.PositiveIntegerField(null=True, blank=True, help_text="Where it differs from its level's.")

    class Meta:
        db_table = "domain"
        ordering = ["cluster", "path"]
        constraints = [models.UniqueConstraint(fields=["cluster", "path"], name="domain_path_once")]

    def __str__(self) -> str:
        return self.path


class Node(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="nodes")
    pool = models.ForeignKey(Pool, null=True, blank=True, on_delete=models.SET_NULL, related_name="nodes")
    domain = models.ForeignKey(Domain, null=True, blank=True, on_delete=models.SET_NULL, related_name="nodes")
    name = models.CharField(max_length=120)
    gpu_type = models.ForeignKey(GpuType, null=True, blank=True, on_delete=models.PROTECT, related_name="nodes")
    island = models.CharField(max_length=120, blank=True, help_text="NVLink domain over several nodes; empty: the node is its own.")
    cpus = models.PositiveIntegerField(default=0)
    host_memory_mib = models.PositiveBigIntegerField(default=0)
    pcie_gbps = models.PositiveIntegerField(null=True, blank=True)
    pcie_lost = models.PositiveSmallIntegerField(default=0, help_text="Percent that the slowest GPU has lost of it, while a health rule finds that.")
    nvme_gbps = models.PositiveIntegerField(null=True, blank=True)
    labels = models.JSONField(default=dict, blank=True)
    spare = models.BooleanField(default=False)
    health = models.CharField(max_length=10, choices=Health.choices, default=Health.HEALTHY)
    health_since = MomentField(default=now)
    health_reason = models.CharField(max_length=300, blank=True)
    drain_way = models.CharField(max_length=10, blank=True, help_text="While it drains: what becomes of its jobs. Empty: they finish.")
    drain_at = MomentField(null=True, blank=True, help_text="While it drains: when jobs that still run are moved or stopped.")
    heartbeat_at = MomentField(null=True, blank=True)
    created_at = MomentField(default=now)
    removed_at = MomentField(null=True, blank=True)
    health_event: int | None = None  # no column: the step of its health that was written with this very object
    other_event: int | None = None  # no column: the same of its other steps

    class Meta:
        db_table = "node"
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["cluster", "name"], condition=Q(removed_at__isnull=True), name="node_name_once_per_cluster")]

    def __str__(self) -> str:
        return self.name


class PlannedHealth(models.Model):
    """Another health that a node is to have from a moment on; a drain with its way. The row goes when that begins or is called off."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.OneToOneField(Node, on_delete=models.CASCADE, related_name="planned_health")
    to = models.CharField(max_length=10, choices=Health.choices)
    begins_at = MomentField(db_index=True)
    way = models.CharField(max_length=10, choices=DrainWay.choices, blank=True, help_text="Of a drain: what becomes of jobs that run there.")
    at = MomentField(null=True, blank=True, help_text="Of a drain: when jobs that still run are moved or stopped; empty: as it begins.")
    reason = models.CharField(max_length=300)
    author_name = models.CharField(max_length=160)
    made_at = MomentField(default=now)

    class Meta:
        db_table = "planned_health"
        ordering = ["begins_at", "id"]

    def __str__(self) -> str:
        return f"{self.public_id} {self.begins_at:%Y-%m-%d %H:%M}"


class Gpu(models.Model):
    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="gpus")
    index = models.PositiveSmallIntegerField()
    gpu_type = models.ForeignKey(GpuType, on_delete=models.PROTECT, related_name="gpus")
    uuid = models.CharField(max_length=80, blank=True)
    memory_mib = models.PositiveIntegerField()
    mode = models.CharField(max_length=10, choices=GpuMode.choices, default=GpuMode.WHOLE)
    island = models.CharField(max_length=120, blank=True, help_text="Part of the node with its own NVLink; empty: the node's.")
    numa_node = models.PositiveSmallIntegerField(null=True, blank=True)
    pcie_generation = models.PositiveSmallIntegerField(null=True, blank=True)
    pcie_width = models.PositiveSmallIntegerField(null=True, blank=True)
    health = models.CharField(max_length=10, choices=Health.choices, default=Health.HEALTHY)
    health_since = MomentField(default=now)
    health_reason = models.CharField(max_length=300, blank=True)
    created_at = MomentField(default=now)
    removed_at = MomentField(null=True, blank=True)
    health_event: int | None = None  # no column: as a node's
    other_event: int | None = None

    class Meta:
        db_table = "gpu"
        ordering = ["node", "index"]
        constraints = [
            models.UniqueConstraint(fields=["node", "index"], condition=Q(removed_at__isnull=True), name="gpu_index_once_per_node"),
            models.UniqueConstraint(fields=["uuid"], condition=~Q(uuid="") & Q(removed_at__isnull=True), name="gpu_uuid_once"),
        ]

    def __str__(self) -> str:
        return f"{self.node_id}[{self.index}]"


class MigInstance(models.Model):
    """A slice of a GPU. Geometry is checked against the catalogue by the services that write it."""

    public_id = models.CharField(max_length=24, unique=True)
    gpu = models.ForeignKey(Gpu, on_delete=models.CASCADE, related_name="mig_instances")
    profile = models.CharField(max_length=30)
    start = models.PositiveSmallIntegerField()
    size = models.PositiveSmallIntegerField()
    uuid = models.CharField(max_length=80, blank=True)
    created_at = MomentField(default=now)
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "mig_instance"
        ordering = ["gpu", "start"]
        constraints = [models.UniqueConstraint(fields=["gpu", "start"], condition=Q(removed_at__isnull=True), name="mig_start_once_per_gpu")]

    def __str__(self) -> str:
        return f"{self.profile}@{self.start}"


class Nic(models.Model):
    """A network port of a node; `rail` is the index of the rail switch it hangs on."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="nics")
    name = models.CharField(max_length=40)
    rail = models.PositiveSmallIntegerField(null=True, blank=True)
    speed_gbps = models.PositiveIntegerField()
    health = models.CharField(max_length=10, choices=Health.choices, default=Health.HEALTHY)

    class Meta:
        db_table = "nic"
        ordering = ["node", "name"]
        constraints = [models.UniqueConstraint(fields=["node", "name"], name="nic_name_once_per_node")]

    def __str__(self) -> str:
        return self.name


class InventoryEvent(models.Model):
    """One change to a piece of hardware: health, geometry, place. Kept 400 days."""

    at = MomentField(default=now)
    node = models.ForeignKey(Node, null=True, on_delete=models.CASCADE, related_name="events")
    gpu = models.ForeignKey(Gpu, null=True, on_delete=models.CASCADE, related_name="events")
    cluster = models.ForeignKey(Cluster, null=True, on_delete=models.CASCADE, related_name="events")
    kind = models.CharField(max_length=40, help_text="added, removed, health, geometry, changed")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    cause = models.CharField(max_length=300, blank=True)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=160)

    class Meta:
        db_table = "inventory_event"
        indexes = [
            models.Index(fields=["node", "-at", "-id"], name="inventory_event_node"),
            models.Index(fields=["gpu", "-at", "-id"], name="inventory_event_gpu"),
            models.Index(fields=["-at", "-id"], name="inventory_event_at"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.kind}"


class InventoryImport(models.Model):
    """A file of hardware that was previewed, and perhaps applied. `digest` says what the preview showed: only that is ever applied.

    Previews that nobody applied are deleted after seven days; applied ones are kept 400 days.
    """

    public_id = models.CharField(max_length=24, unique=True)
    created_at = MomentField(default=now)
    created_by = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    created_by_name = models.CharField(max_length=160)
    source = models.CharField(max_length=200, help_text="The file's name, or the machine that was looked at.")
    form = models.CharField(max_length=4)
    text = models.TextField()
    remove_missing = models.BooleanField(default=False)
    digest = models.CharField(max_length=64)
    counts = models.JSONField(default=dict)
    notes = models.JSONField(default=list, blank=True, help_text="What an operator should know before applying it, in sentences.")
    applied_at = MomentField(null=True, blank=True)
    applied_by_name = models.CharField(max_length=160, blank=True)

    class Meta:
        db_table = "inventory_import"
        indexes = [models.Index(fields=["-created_at", "-id"], name="inventory_import_created")]

    def __str__(self) -> str:
        return f"{self.public_id} {self.source}"
