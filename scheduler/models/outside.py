"""Work on the fleet's machines that gpufleet did not start and never touches: what it holds is nobody else's, and is counted as not ours (JOB-2)."""

from django.db import models
from django.db.models import F, Q

from gpufleet.core.times import MomentField
from scheduler.models.inventory import Cluster, Gpu, Node


class OutsideJob(models.Model):
    """A job that a cluster runs beside those of gpufleet, for as long as it holds the same. A job that grows or shrinks is a new row."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="outside_jobs")
    number = models.PositiveBigIntegerField(help_text="What the cluster calls it.")
    name = models.CharField(max_length=200, blank=True)
    person = models.CharField(max_length=100, blank=True)
    partition = models.CharField(max_length=100, blank=True)
    since = MomentField()
    until = MomentField(null=True, blank=True)

    class Meta:
        db_table = "outside_job"
        indexes = [models.Index(fields=["cluster", "until"], name="outside_job_cluster")]
        constraints = [
            models.UniqueConstraint(fields=["cluster", "number"], condition=Q(until__isnull=True), name="outside_job_open_once"),
            models.CheckConstraint(condition=Q(until__isnull=True) | Q(until__gte=F("since")), name="outside_job_ends_after_its_start"),
        ]

    def __str__(self) -> str:
        return f"{self.cluster_id}/{self.number}"


class OutsideSeat(models.Model):
    """What an outside job holds of one node: a row for each GPU, and one without a GPU for processors and memory."""

    job = models.ForeignKey(OutsideJob, on_delete=models.CASCADE, related_name="seats")
    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="outside_seats")
    gpu = models.ForeignKey(Gpu, null=True, blank=True, on_delete=models.CASCADE, related_name="outside_seats")
    cpus = models.PositiveIntegerField(default=0)
    memory_mib = models.PositiveBigIntegerField(default=0)

    class Meta:
        db_table = "outside_seat"
        constraints = [
            models.UniqueConstraint(fields=["job", "gpu"], condition=Q(gpu__isnull=False), name="outside_seat_gpu_once"),
            models.UniqueConstraint(fields=["job", "node"], condition=Q(gpu__isnull=True), name="outside_seat_node_once"),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} on {self.node_id}/{self.gpu_id}"
