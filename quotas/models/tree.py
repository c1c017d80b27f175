"""The quota tree and people's roles on it."""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Lower

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now


class NodeKind(models.TextChoices):
    ORG = "org", "Organisation"
    DEPARTMENT = "department", "Department"
    TEAM = "team", "Team"
    PROJECT = "project", "Project"
    USER = "user", "Person"


class Role(models.TextChoices):
    """What a person may be on a node of the tree; it holds for the whole subtree."""

    VIEWER = "viewer", "Viewer"
    SUBMITTER = "submitter", "Submitter"
    TEAM_LEAD = "team_lead", "Team lead"
    QUOTA_ADMIN = "quota_admin", "Quota admin"
    OPERATOR = "operator", "Operator"
    FINANCE = "finance", "Finance"
    SUPERUSER = "superuser", "Superuser"


class SharingTrust(models.TextChoices):
    """Whose jobs may share one GPU by MPS."""

    JOB = "job", "One job"
    QUOTA = "quota", "One queue"
    ANY = "any", "Anyone"


class Colocation(models.TextChoices):
    """Between which neighbours a service and other work need a boundary that was verified."""

    ANY = "any", "No boundary"
    GPU = "gpu", "Boundary on one GPU"
    NODE = "node", "Boundary on one GPU and one node"


class ReliefChoice(models.TextChoices):
    """What is done for a service that is over its objective because of jobs beside it."""

    NONE = "none", "Nothing"
    EVICT = "evict", "Evict a co-tenant"


class TypeChoice(models.TextChoices):
    """In which of the GPU types that it accepts a job is tried first."""

    FASTEST = "fastest", "Fastest"
    CHEAPEST = "cheapest", "Cheapest for the work"
    STATED = "stated", "In the stated order"


class Estimates(models.TextChoices):
    """How estimates of run times count in plans."""

    LEARNED = "learned", "Times the overrun factor"
    STATED = "stated", "As stated"


class QuotaNode(models.Model):
    """A node of the quota tree. `path` is its whole name (`org/nlp/exp`); it is rewritten for the subtree when a node moves or is renamed."""

    public_id = models.CharField(max_length=24, unique=True)
    parent = models.ForeignKey("self", null=True, blank=True, on_delete=models.PROTECT, related_name="children")
    name = models.SlugField(max_length=60)
    path = models.CharField(max_length=500, unique=True)
    depth = models.PositiveSmallIntegerField(default=0)
    kind = models.CharField(max_length=12, choices=NodeKind.choices)
    title = models.CharField(max_length=120, blank=True)
    cost_centre = models.CharField(max_length=40, blank=True)
    weight = models.PositiveIntegerField(default=1)
    priority = models.PositiveIntegerField(default=100)
    overcommit = models.BooleanField(default=False, help_text="The children's guarantees may add up to more than this node's own.")
    preempt_min_runtime_s = models.PositiveIntegerField(null=True, blank=True, help_text="Null: the nearest value above.")
    reclaim_min_runtime_s = models.PositiveIntegerField(null=True, blank=True, help_text="Null: the nearest value above.")
    submits_per_minute = models.PositiveIntegerField(null=True, blank=True, help_text="Null: the nearest value above; 0: no limit.")
    waiting_limit = models.PositiveIntegerField(null=True, blank=True, help_text="Null: the nearest value above; 0: no limit.")
    default_class = models.CharField(max_length=12, blank=True, help_text="Class of jobs that state none; empty: the nearest value above.")
    needs_approval = models.BooleanField(default=False, help_text="A second person approves changes of this node and of all below it.")
    policy = models.JSONField(default=dict, blank=True, help_text="Fleet-wide rules; the top alone has them.")
    revision = models.PositiveIntegerField(default=1)
    created_at = MomentField(default=now)
    archived_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "quota_node"
        ordering = ["path"]
        constraints = [
            models.UniqueConstraint(fields=["parent", "name"], name="quota_name_once_per_parent"),
            # A role on the top means the whole fleet, so there can only be one.
            models.UniqueConstraint(fields=["depth"], condition=Q(parent__isnull=True), name="quota_one_top"),
            # SQLite compares beginnings of texts without regard to case, so paths must never differ by case alone.
            models.CheckConstraint(condition=Q(path=Lower("path")), name="quota_path_is_lower_case"),
        ]

    def __str__(self) -> str:
        return self.path

    @property
    def label(self) -> str:
        return self.title or self.name


class QuotaShare(models.Model):
    """What a node is promised of one GPU type. `None`: unlimited (guarantee), no limit (limit), the node's own value (weight, priority)."""

    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="shares")
    gpu_type = models.CharField(max_length=60)
    guaranteed_milli = models.PositiveBigIntegerField(null=True, default=0)
    limit_milli = models.PositiveBigIntegerField(null=True, blank=True)
    weight = models.PositiveIntegerField(null=True, blank=True)
    priority = models.PositiveIntegerField(null=True, blank=True)

    class Meta:
        db_table = "quota_share"
        constraints = [models.UniqueConstraint(fields=["node", "gpu_type"], name="quota_share_once_per_type")]

    def __str__(self) -> str:
        return f"{self.node} {self.gpu_type}"


class RoleBinding(models.Model):
    """A person, or a group of the sign-on provider, has a role on a node and all below it."""

    user = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="role_bindings")
    group = models.CharField(max_length=200, blank=True, help_text="A group name as the sign-on provider sends it.")
    role = models.CharField(max_length=12, choices=Role.choices)
    node = models.ForeignKey(QuotaNode, on_delete=models.CASCADE, related_name="role_bindings")
    from_sign_on = models.BooleanField(default=False, help_text="Made by a group rule at sign-on, and taken away when the group goes.")
    granted_at = MomentField(default=now)
    granted_by = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")

    class Meta:
        db_table = "role_binding"
        constraints = [
            models.CheckConstraint(condition=Q(user__isnull=False, group="") | (Q(user__isnull=True) & ~Q(group="")), name="role_for_user_or_group"),
            models.UniqueConstraint(fields=["user", "role", "node"], condition=Q(user__isnull=False), name="role_once_per_user"),
            models.UniqueConstraint(fields=["group", "role", "node"], condition=~Q(group=""), name="role_once_per_group"),
        ]

    def __str__(self) -> str:
        return f"{self.user or self.group}: {self.role} on {self.node}"


class ServiceToken(models.Model):
    """A credential for programs. Only its hash is kept; what it may do is its owner's roles, narrowed by scopes and a subtree."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    prefix = models.CharField(max_length=12, unique=True)
    digest = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    node = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.CASCADE, related_name="tokens")
    made_with = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="made", help_text="The token that made it.")
    created_at = MomentField(default=now)
    expires_at = MomentField()
    last_used_at = MomentField(null=True, blank=True)
    revoked_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "service_token"
        constraints = [models.CheckConstraint(condition=Q(expires_at__gt=F("created_at")), name="token_expires_after_creation")]

    def __str__(self) -> str:
        return f"{self.name} ({self.prefix}…)"

    @property
    def state(self) -> str:
        if self.revoked_at is not None:
            return "revoked"
        return "expired" if self.expires_at <= now() else "valid"
