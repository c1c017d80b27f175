"""The usage ledger (QTA-8): who held what, when, in which phase and class. Written once, closed once, never changed (docs/adr/0005)."""

from django.db import models
from django.db.models import F, Q

from gpufleet.core.times import MomentField, now
from quotas.models.tree import QuotaNode


class Phase(models.TextChoices):
    STARTING = "starting", "Starting"
    RUNNING = "running", "Running"
    STOPPING = "stopping", "Stopping"


# What is charged: a run from its start to its end. Until it is up its GPUs are held for it, and that time is idle cost.
CHARGED = Q(gpu_milli__gt=0, phase__in=(Phase.RUNNING, Phase.STOPPING))


class ShareClass(models.TextChoices):
    """On whose account a worker stands: its owner's guarantee, a window that was reserved, or idle GPUs that are lent."""

    GUARANTEED = "guaranteed", "Guaranteed"
    RESERVED = "reserved", "Reserved"
    BORROWED = "borrowed", "Borrowed"


class LedgerClock(models.Model):
    """One row: the moment of the newest entry. Whoever writes usage locks it, and no entry is ever older than one before it.

    Two machines' clocks differ, and clocks are set back. As each writer takes the later of its own time and this one, intervals never have a
    negative length, and a GPU's next holder never begins before its last one has ended.
    """

    at = MomentField()
    began_at = MomentField(help_text="Usage before this moment is not in the ledger.")
    decided_at = MomentField(help_text="When the class of all that runs was last decided together.")
    unseen = models.JSONField(default=list, help_text="Clusters that do not answer: what runs there is decided anew when they do.")
    wanted_types = models.JSONField(default=list, help_text="GPU types that waiting work asks for; * stands for all.")

    class Meta:
        db_table = "ledger_clock"

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S}"


class LedgerEntry(models.Model):
    """What one worker held from `since` to `until`, all of it alike: a change of phase, class, place in the tree or size begins a new entry.

    Jobs and attempts are named, not referred to, as the ledger outlives them; the node of the tree is never deleted.
    """

    attempt = models.BigIntegerField(help_text="The key of the attempt.")
    job = models.CharField(max_length=24, help_text="The public id of the job.")
    attempt_number = models.PositiveIntegerField()
    role = models.CharField(max_length=40)
    worker = models.PositiveIntegerField()
    surplus = models.BooleanField(default=False, help_text="Above the minimum of an elastic gang.")
    cluster = models.CharField(max_length=60)
    node = models.CharField(max_length=120)
    gpu_type = models.CharField(max_length=60)
    gpu_milli = models.PositiveBigIntegerField()
    parts = models.JSONField(help_text="[GPU, milli, MIG profile or nothing] for each GPU of the worker.")
    tier = models.CharField(max_length=60, default="whole", help_text="whole, share or mig:PROFILE.")
    pool = models.CharField(max_length=130, blank=True, default="", help_text="CLUSTER/POOL; empty: in none.")
    phase = models.CharField(max_length=10, choices=Phase.choices)
    share_class = models.CharField(max_length=10, choices=ShareClass.choices)
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="usage")
    quota_path = models.CharField(max_length=500, help_text="As the tree was then.")
    job_class = models.CharField(max_length=12)
    priority = models.IntegerField()
    preemptible = models.CharField(max_length=14)
    owner = models.CharField(max_length=150, blank=True)
    labels = models.JSONField(default=dict)
    stated_cost_centre = models.CharField(max_length=40, blank=True, help_text="What the job itself says.")
    cost_centre = models.CharField(max_length=40, blank=True, help_text="The job's, else that of the nearest node above it that has one.")
    began_at = MomentField(help_text="When the attempt took its first GPUs.")
    since = MomentField(default=now)
    until = MomentField(null=True, blank=True)

    class Meta:
        db_table = "ledger_entry"
        indexes = [
            models.Index(fields=["attempt"], name="ledger_attempt"),
            models.Index(fields=["quota", "since"], name="ledger_quota"),
            models.Index(fields=["until"], name="ledger_until"),
            models.Index(fields=["since", "id"], name="ledger_since"),
            models.Index(fields=["job"], name="ledger_job"),
            models.Index(fields=["id"], name="ledger_open", condition=Q(until__isnull=True)),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["attempt", "role", "worker", "gpu_type"], condition=Q(until__isnull=True), name="ledger_one_open_per_worker"
            ),
            models.CheckConstraint(condition=Q(until__isnull=True) | Q(until__gte=F("since")), name="ledger_ends_after_its_start"),
        ]

    def __str__(self) -> str:
        return f"{self.job}.{self.attempt_number} {self.role} {self.worker}: {self.gpu_milli} of {self.gpu_type}"
