"""What happened in the fleet, as the page Activity lists it."""

from django.db import models
from django.db.models import Q

from gpufleet.core.times import MomentField, now


class ActivityEntry(models.Model):
    """One line: an alert, an incident, a step against idle GPUs. Entries without a path concern the whole fleet."""

    at = MomentField()
    kind = models.CharField(max_length=20)
    title = models.CharField(max_length=200)
    text = models.CharField(max_length=500, blank=True)
    path = models.CharField(max_length=400, blank=True, help_text="Of the quota node that it concerns; empty: the whole fleet.")
    job = models.CharField(max_length=24, blank=True)
    link = models.CharField(max_length=200, blank=True)
    by = models.CharField(max_length=160, default="gpufleet")

    class Meta:
        db_table = "activity_entry"
        indexes = [models.Index(fields=["-at", "-id"], name="activity_at")]

    def __str__(self) -> str:
        return f"{self.kind}: {self.title}"


class Severity(models.TextChoices):
    INFO = "info", "Info"
    WARNING = "warning", "Warning"
    CRITICAL = "critical", "Critical"


class AlertRule(models.Model):
    """A limit on one figure of the fleet. It fires once the figure is beyond it for `for_minutes`, and is over below `clear_at` for as long."""

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    figure = models.CharField(max_length=24)
    subject = models.CharField(
        max_length=400, blank=True, help_text="A GPU type, class, team, pool, node or cluster; * is each of them; empty: the whole."
    )
    threshold = models.FloatField()
    clear_at = models.FloatField()
    floor = models.FloatField(default=0, help_text="Of a rise of costs: smaller amounts a week do not count.")
    for_minutes = models.PositiveIntegerField(default=5)
    severity = models.CharField(max_length=10, choices=Severity.choices, default=Severity.WARNING)
    # Rules of figures by team may also name team_lead: people who lead the team of the alert, or a node above it.
    told = models.JSONField(default=list, help_text="Roles on the whole fleet whose people are told: operator, finance, quota_admin, superuser.")
    hooks = models.ManyToManyField("scheduler.Webhook", blank=True, related_name="alert_rules")
    escalate_minutes = models.PositiveIntegerField(
        null=True, blank=True, help_text="Not acknowledged for so long: the roles of `escalate_to` are told."
    )
    escalate_to = models.JSONField(default=list)
    enabled = models.BooleanField(default=True)
    revision = models.PositiveIntegerField(default=1)
    changed_at = MomentField(default=now)
    changed_by = models.CharField(max_length=160, default="gpufleet")
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "alert_rule"
        ordering = ["name", "pk"]

    def __str__(self) -> str:
        return self.name


class AlertState(models.TextChoices):
    PENDING = "pending", "Pending"
    FIRING = "firing", "Firing"
    RESOLVED = "resolved", "Resolved"


class Alert(models.Model):
    """One time that a rule held for a subject."""

    public_id = models.CharField(max_length=24, unique=True)
    rule = models.ForeignKey(AlertRule, on_delete=models.CASCADE, related_name="alerts")
    subject = models.CharField(max_length=400, blank=True)
    state = models.CharField(max_length=10, choices=AlertState.choices, default=AlertState.PENDING)
    value = models.FloatField()
    worst = models.FloatField()
    since = MomentField(help_text="When the figure went beyond the limit.")
    fired_at = MomentField(null=True, blank=True)
    calm_since = MomentField(null=True, blank=True, help_text="Since when the figure is back within its limit.")
    resolved_at = MomentField(null=True, blank=True)
    acknowledged_at = MomentField(null=True, blank=True)
    acknowledged_by = models.CharField(max_length=160, blank=True)
    note = models.CharField(max_length=300, blank=True)
    escalated_at = MomentField(null=True, blank=True)
    silenced = models.BooleanField(default=False, help_text="Whether it fired into a silence, so that nobody was told.")

    class Meta:
        db_table = "alert"
        indexes = [models.Index(fields=["-since"], name="alert_since")]
        constraints = [models.UniqueConstraint(fields=["rule", "subject"], condition=Q(resolved_at__isnull=True), name="alert_one_open")]

    def __str__(self) -> str:
        return f"{self.public_id}: {self.rule_id} of {self.subject or 'the fleet'}"


class Silence(models.Model):
    """Nobody is told of alerts of a rule, or of all, until `until`. They are listed all the same."""

    public_id = models.CharField(max_length=24, unique=True)
    rule = models.ForeignKey(AlertRule, null=True, blank=True, on_delete=models.CASCADE, related_name="silences")
    subject = models.CharField(max_length=400, blank=True, help_text="Only alerts of this subject; empty: all.")
    reason = models.CharField(max_length=300)
    until = MomentField()
    by = models.CharField(max_length=160)
    created_at = MomentField(default=now)
    ended_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "alert_silence"

    def __str__(self) -> str:
        return self.public_id
