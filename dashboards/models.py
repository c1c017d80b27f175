"""Telemetry as the pages read it: the newest frame of each cluster, and roll-ups over time.

Single counters are not rows: 4,000 GPUs once a second would be. A frame is one row a cluster with one byte a GPU and counter.
"""

from django.db import models

from gpufleet.core.times import MomentField
from scheduler.models import Cluster, Node

NO_READING = 255


class TelemetryFrame(models.Model):
    """The newest reading of every GPU of a cluster, as columns of bytes in the order of `gpus` (percent, 255: no reading)."""

    cluster = models.OneToOneField(Cluster, primary_key=True, on_delete=models.CASCADE, related_name="frame")
    at = MomentField()
    source = models.CharField(max_length=20, help_text="nvml, prometheus or simulated")
    gpu_ids = models.BinaryField(help_text="Primary keys of the GPUs, little-endian uint32, in the order of the columns.")
    sm_active = models.BinaryField()
    memory_used = models.BinaryField()
    power_watts = models.BinaryField(help_text="uint16, 65535: no reading.")
    temperature_c = models.BinaryField()
    tensor_active = models.BinaryField(default=b"", help_text="Empty where the source has no such counter; likewise `dram_active`.")
    dram_active = models.BinaryField(default=b"")
    weak_ids = models.BinaryField(default=b"", help_text="Keys of GPUs whose SM activity is the driver's utilization. Not told: all, or none.")

    class Meta:
        db_table = "telemetry_frame"

    def __str__(self) -> str:
        return f"frame of {self.cluster_id} at {self.at:%H:%M:%S}"


class TelemetryMinute(models.Model):
    """What the frames of one minute add up to, per GPU of a cluster: the finest grain of the store, and what coarser roll-ups are made from.

    A measure that no frame of the minute has is empty bytes.
    """

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="minutes")
    at = MomentField(help_text="Where the minute begins.")
    frames = models.PositiveSmallIntegerField()
    is_rolled = models.BooleanField(default=False, help_text="Everything made from it has all of its frames.")
    looks = models.BinaryField(
        default=b"", help_text="uint16: the milliseconds of the minute at which its frames were read, so that none counts twice."
    )
    gpu_ids = models.BinaryField(help_text="Primary keys of the GPUs: differences of uint32, compressed.")
    sm_sum = models.BinaryField(help_text="uint16: percent added up.")
    sm_read = models.BinaryField(help_text="uint8: how many frames had a reading.")
    memory_sum = models.BinaryField()
    memory_read = models.BinaryField()
    tensor_sum = models.BinaryField(default=b"")
    tensor_read = models.BinaryField(default=b"")
    dram_sum = models.BinaryField(default=b"")
    dram_read = models.BinaryField(default=b"")
    power_sum = models.BinaryField(default=b"", help_text="uint32: watts added up.")
    power_read = models.BinaryField(default=b"")

    class Meta:
        db_table = "telemetry_minute"
        constraints = [models.UniqueConstraint(fields=["cluster", "at"], name="telemetry_minute_once")]
        indexes = [
            models.Index(fields=["at"], name="telemetry_minute_at"),
            models.Index(fields=["at"], condition=models.Q(is_rolled=False), name="telemetry_minute_open"),
        ]

    def __str__(self) -> str:
        return f"{self.frames} frames of {self.cluster_id} at {self.at:%H:%M}"


class GpuRollup(models.Model):
    """A quarter of an hour or an hour of every GPU of a cluster, from `at` on. Each measure is the mean of the minutes that have a reading."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="rollups")
    span = models.PositiveSmallIntegerField(help_text="Seconds: 900 or 3600.")
    at = MomentField()
    gpu_ids = models.BinaryField(help_text="As in a minute.")
    minutes = models.BinaryField(help_text="uint8: how many minutes have a reading of SM activity.")
    sm = models.BinaryField(help_text="uint16: hundredths of a percent, 65535: no reading. Likewise memory, tensor and dram.")
    memory = models.BinaryField()
    tensor = models.BinaryField(default=b"")
    dram = models.BinaryField(default=b"")
    power = models.BinaryField(default=b"", help_text="uint16: watts, 65535: no reading.")

    class Meta:
        db_table = "gpu_rollup"
        constraints = [models.UniqueConstraint(fields=["cluster", "span", "at"], name="gpu_rollup_once")]
        indexes = [models.Index(fields=["span", "at"], name="gpu_rollup_at")]

    def __str__(self) -> str:
        return f"{self.span} s of {self.cluster_id} from {self.at:%Y-%m-%d %H:%M}"


class JobRollup(models.Model):
    """A minute, a quarter of an hour or an hour of all jobs that held GPUs, from `at` on, in milli-GPU x milliseconds, so that sums are exact."""

    span = models.PositiveSmallIntegerField(help_text="Seconds: 60, 900 or 3600.")
    at = MomentField()
    job_ids = models.BinaryField(help_text="Primary keys of the jobs, ascending: differences of uint32, compressed.")
    sums = models.BinaryField(help_text="Compressed uint64: held, then computing, then held without a reading, each in the order of the jobs.")

    class Meta:
        db_table = "job_rollup"
        constraints = [models.UniqueConstraint(fields=["span", "at"], name="job_rollup_once")]

    def __str__(self) -> str:
        return f"{self.span} s of jobs from {self.at:%Y-%m-%d %H:%M}"


class NodeSample(models.Model):
    """Five minutes of one node, from `at` on: mean percent a GPU (255: no reading), in the order of GPU indices."""

    node = models.ForeignKey(Node, on_delete=models.CASCADE, related_name="samples")
    at = MomentField()
    sm_active = models.BinaryField()
    memory_used = models.BinaryField()
    allocated = models.BinaryField()

    class Meta:
        db_table = "node_sample"
        constraints = [models.UniqueConstraint(fields=["node", "at"], name="node_sample_once")]
        indexes = [models.Index(fields=["at"], name="node_sample_at")]

    def __str__(self) -> str:
        return f"{self.node_id} at {self.at:%H:%M}"


class FleetSample(models.Model):
    """One minute of one GPU type, from `at` on: how much there is, how much is handed out, how much of it computes. All in milli-GPU."""

    at = MomentField()
    gpu_type = models.CharField(max_length=60)
    capacity_milli = models.PositiveBigIntegerField()
    healthy_milli = models.PositiveBigIntegerField()
    allocated_milli = models.PositiveBigIntegerField()
    active_milli = models.PositiveBigIntegerField(help_text="SM activity summed over all GPUs.")
    unread_milli = models.PositiveBigIntegerField(default=0, help_text="GPUs without a reading, so that a gap is not taken for idleness.")

    class Meta:
        db_table = "fleet_sample"
        constraints = [models.UniqueConstraint(fields=["at", "gpu_type"], name="fleet_sample_once")]

    def __str__(self) -> str:
        return f"{self.gpu_type} at {self.at:%H:%M}"


# Further tables stand with what they are about.
from dashboards.alerts.models import ActivityEntry, Alert, AlertRule, Silence  # noqa: E402, F401
from dashboards.fingerprints.models import RunLearned  # noqa: E402, F401
from dashboards.fragmentation.models import FragmentationRollup  # noqa: E402, F401
from dashboards.gap.models import GapNewest, GapPart, GapRollup  # noqa: E402, F401
from dashboards.health.models import (  # noqa: E402, F401
    HealthBucket,
    HealthFinding,
    HealthFrame,
    HealthRule,
    HealthSettings,
    Incident,
    IncidentStep,
    StepLook,
    Straggler,
)
from dashboards.idle.models import IdleEpisode, IdleExemption, IdlePolicy, IdleStep  # noqa: E402, F401
from dashboards.prometheus.models import PrometheusServer  # noqa: E402, F401
from dashboards.slo.models import ServiceBreach, ServiceLevel, ServiceSample  # noqa: E402, F401
