"""Changes of the quota tree as objects (QTA-7): drafts, proposals, what was applied, and every version of every node."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models.tree import QuotaNode


class ChangeState(models.TextChoices):
    PREVIEW = "preview", "Preview"  # its author's alone, until it is saved or decided
    DRAFT = "draft", "Draft"
    PROPOSED = "proposed", "Waiting for approval"
    APPROVED = "approved", "Approved"
    SCHEDULED = "scheduled", "Scheduled"
    APPLIED = "applied", "Applied"
    REJECTED = "rejected", "Rejected"
    WITHDRAWN = "withdrawn", "Withdrawn"
    FAILED = "failed", "Failed"


OPEN_STATES = (ChangeState.PREVIEW, ChangeState.DRAFT, ChangeState.PROPOSED, ChangeState.APPROVED, ChangeState.SCHEDULED, ChangeState.FAILED)


class QuotaChange(models.Model):
    """One or more edits of the tree that take effect together, or not at all."""

    public_id = models.CharField(max_length=24, unique=True)
    title = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True)
    state = models.CharField(max_length=10, choices=ChangeState.choices, default=ChangeState.DRAFT)
    edits = models.JSONField(default=list)
    bases = models.JSONField(default=dict, help_text="What the author saw of each node that is touched, by public id.")
    over_capacity = models.BooleanField(default=False, help_text="The guarantees may exceed the healthy capacity; the reason says why.")
    nodes = models.ManyToManyField(QuotaNode, related_name="changes", db_table="quota_change_node")
    author = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    author_name = models.CharField(max_length=160)
    approver = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    approver_name = models.CharField(max_length=160, blank=True)
    approved_at = MomentField(null=True, blank=True)
    decision_reason = models.CharField(max_length=500, blank=True, help_text="Of who approved or rejected it.")
    apply_at = MomentField(null=True, blank=True, help_text="When it takes effect by itself.")
    applied_at = MomentField(null=True, blank=True)
    applied_by_name = models.CharField(max_length=160, blank=True)
    before = models.JSONField(default=dict, help_text="Each touched node before it was applied, by public id; null: it did not exist.")
    after = models.JSONField(default=dict)
    fault = models.TextField(blank=True, help_text="Why it could not take effect at its time.")
    reverts = models.ForeignKey("self", null=True, on_delete=models.SET_NULL, related_name="reverted_by")
    revision = models.PositiveIntegerField(default=1)
    made_at = MomentField(default=now)
    changed_at = MomentField(default=now)

    class Meta:
        db_table = "quota_change"
        indexes = [
            models.Index(fields=["-changed_at", "-id"], name="quota_change_changed"),
            models.Index(fields=["apply_at"], name="quota_change_due", condition=Q(state="scheduled")),
        ]

    def __str__(self) -> str:
        return self.public_id

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES


class QuotaVersion(models.Model):
    """What a node said of itself from `at` on, until its next version."""

    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="versions")
    at = MomentField()
    said = models.JSONField()
    change = models.ForeignKey(QuotaChange, null=True, on_delete=models.SET_NULL, related_name="versions")

    class Meta:
        db_table = "quota_version"
        indexes = [models.Index(fields=["node", "-at", "-id"], name="quota_version_of_node")]

    def __str__(self) -> str:
        return f"{self.node} at {self.at:%Y-%m-%d %H:%M:%S}"


class QuotaPath(models.Model):
    """A path that a node had until a moment of the ledger, as it or a node above it was renamed or moved then. What was used before stands there."""

    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="earlier_paths")
    path = models.CharField(max_length=500)
    until = MomentField()

    class Meta:
        db_table = "quota_path"
        indexes = [models.Index(fields=["path"], name="quota_path_path"), models.Index(fields=["node", "until"], name="quota_path_of_node")]

    def __str__(self) -> str:
        return f"{self.path} until {self.until:%Y-%m-%d %H:%M:%S}"
