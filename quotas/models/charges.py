"""Months of charges (FIN-2): their lines, rated from the ledger. An open month is an estimate; of a closed one the database refuses every change."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField
from quotas.models.tree import QuotaNode


class ChargeMode(models.TextChoices):
    SHOWBACK = "showback", "Showback"
    CHARGEBACK = "chargeback", "Chargeback"


class ChargeMonth(models.Model):
    """A month in UTC. `digest` covers the month's lines and the digest of the closed month before it, so months form a chain."""

    first = models.DateField(unique=True)
    currency = models.CharField(max_length=3)
    mode = models.CharField(max_length=10, choices=ChargeMode.choices, default=ChargeMode.SHOWBACK)
    rated_to = MomentField(null=True, blank=True, help_text="Up to when usage is in its lines.")
    settled_to = models.DateField(null=True, blank=True, help_text="Days before this one are rated for good, at these prices.")
    corrected_to = MomentField(null=True, blank=True, help_text="Cards activated until then are in the corrections of closed months.")
    closed_at = MomentField(null=True, blank=True)
    closed_name = models.CharField(max_length=160, blank=True)
    line_count = models.PositiveBigIntegerField(default=0)
    milli_millis = models.BigIntegerField(default=0)
    effective_nanos = models.BigIntegerField(default=0)
    previous_digest = models.CharField(max_length=64, blank=True)
    digest = models.CharField(max_length=64, blank=True)

    class Meta:
        db_table = "charge_month"
        constraints = [
            models.CheckConstraint(
                condition=Q(closed_at__isnull=True, digest="") | (Q(closed_at__isnull=False) & ~Q(digest="")), name="month_closed_has_digest"
            )
        ]

    def __str__(self) -> str:
        return f"{self.first:%Y-%m}"


class ChargeUse(models.Model):
    """What a job computed on a day of what it held: thousandths of a GPU times milliseconds with telemetry. No part of the books."""

    month = models.ForeignKey(ChargeMonth, on_delete=models.CASCADE, related_name="uses")
    day = models.DateField()
    job = models.CharField(max_length=24)
    measured = models.BigIntegerField(help_text="Held on GPUs with readings.")
    computing = models.BigIntegerField()

    class Meta:
        db_table = "charge_use"
        constraints = [
            models.UniqueConstraint(fields=["month", "day", "job"], name="charge_use_once"),
            models.CheckConstraint(condition=Q(measured__gt=0, computing__gte=0), name="charge_use_measured"),
        ]

    def __str__(self) -> str:
        return f"{self.job} on {self.day}"


class ChargeLine(models.Model):
    """What was used of one thing on one day, and what it costs. Amounts are whole nano-units; of a correction they may be below zero."""

    month = models.ForeignKey(ChargeMonth, on_delete=models.PROTECT, related_name="lines")
    corrects = models.ForeignKey(ChargeMonth, null=True, blank=True, on_delete=models.PROTECT, related_name="corrections")
    day = models.DateField()
    job = models.CharField(max_length=24)
    quota = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="+")
    quota_path = models.CharField(max_length=500)
    owner = models.CharField(max_length=150, blank=True)
    cost_centre = models.CharField(max_length=40, blank=True)
    labels = models.JSONField(default=dict)
    cluster = models.CharField(max_length=60)
    gpu_type = models.CharField(max_length=60)
    share_class = models.CharField(max_length=10)
    preemptible = models.BooleanField()
    tier = models.CharField(max_length=60)
    pool = models.CharField(max_length=130, blank=True)
    card = models.CharField(max_length=24, blank=True, help_text="Public id of the rate card; empty: no price held.")
    list_micros = models.BigIntegerField(null=True)
    contracted_micros = models.BigIntegerField(null=True)
    discount_ppm = models.PositiveIntegerField(null=True)
    milli_millis = models.BigIntegerField(help_text="Thousandths of a GPU times milliseconds.")
    list_nanos = models.BigIntegerField()
    contracted_nanos = models.BigIntegerField()
    effective_nanos = models.BigIntegerField()
    # No column: how lines and the telemetry of their jobs are joined.
    use = models.ForeignObject(
        ChargeUse, on_delete=models.DO_NOTHING, from_fields=("month", "day", "job"), to_fields=("month", "day", "job"), null=True, related_name="+"
    )

    class Meta:
        db_table = "charge_line"
        indexes = [
            # With all that the month's page adds up, so that it reads no line itself.
            models.Index(fields=["month", "day", "share_class", "quota_path", "effective_nanos"], name="charge_line_by_day"),
            models.Index(
                fields=["month", "quota_path", "share_class", "card", "milli_millis", "list_nanos", "contracted_nanos", "effective_nanos"],
                name="charge_line_by_quota",
            ),
            models.Index(fields=["corrects"], name="charge_line_corrects", condition=Q(corrects__isnull=False)),
        ]

    def __str__(self) -> str:
        return f"{self.job} on {self.day}"


class ChargeSum(models.Model):
    """What all lines of a month add up to, by one of their columns and class. It is written in each transaction that writes lines of the month or
    what their jobs computed, so it is never older than they are; the database refuses its change once the month is closed."""

    month = models.ForeignKey(ChargeMonth, on_delete=models.CASCADE, related_name="sums")
    by = models.CharField(max_length=12, help_text="The column of a line.")
    key = models.CharField(max_length=500, blank=True, help_text="What lines have in that column.")
    share_class = models.CharField(max_length=10)
    lines = models.PositiveBigIntegerField()
    milli_millis = models.BigIntegerField()
    borrowed = models.BigIntegerField(help_text="Of the use, what was borrowed.")
    list_nanos = models.BigIntegerField()
    contracted_nanos = models.BigIntegerField()
    effective_nanos = models.BigIntegerField()
    unpriced = models.BigIntegerField(help_text="Of the use, what no price held for.")
    measured = models.BigIntegerField(help_text="Of the use, what has telemetry.")
    computing = models.BigIntegerField(help_text="Of that, what computed.")

    class Meta:
        db_table = "charge_sum"
        constraints = [models.UniqueConstraint(fields=["month", "by", "key", "share_class"], name="charge_sum_once")]

    def __str__(self) -> str:
        return f"{self.key} {self.share_class}"


class ChargeIdle(models.Model):
    """GPU time of a month that no team used, by cause: the ledger's capacity timeline, priced at the general price of the type."""

    month = models.ForeignKey(ChargeMonth, on_delete=models.PROTECT, related_name="idle")
    gpu_type = models.CharField(max_length=60)
    cause = models.CharField(max_length=12)
    milli_millis = models.BigIntegerField()
    effective_nanos = models.BigIntegerField()

    class Meta:
        db_table = "charge_idle"
        constraints = [models.UniqueConstraint(fields=["month", "gpu_type", "cause"], name="charge_idle_once")]

    def __str__(self) -> str:
        return f"{self.gpu_type} {self.cause}"


class ChargeIdleDay(models.Model):
    """How the idle time of a month and its cost lie over its days, for periods that have some of them. They add up to the month's exactly."""

    month = models.ForeignKey(ChargeMonth, on_delete=models.PROTECT, related_name="idle_days")
    day = models.DateField()
    gpu_type = models.CharField(max_length=60)
    cause = models.CharField(max_length=12)
    milli_millis = models.BigIntegerField()
    effective_nanos = models.BigIntegerField()

    class Meta:
        db_table = "charge_idle_day"
        constraints = [models.UniqueConstraint(fields=["month", "day", "gpu_type", "cause"], name="charge_idle_day_once")]

    def __str__(self) -> str:
        return f"{self.gpu_type} {self.cause} on {self.day}"


class Reconciliation(models.Model):
    """A month held against a supplier's invoice, and the table that explains the difference. Written once; a later one replaces it by being newer."""

    public_id = models.CharField(max_length=24, unique=True)
    month = models.ForeignKey(ChargeMonth, on_delete=models.PROTECT, related_name="reconciliations")
    reference = models.CharField(max_length=80, help_text="The supplier's number of the invoice.")
    currency = models.CharField(max_length=3)
    amount_nanos = models.BigIntegerField()
    fees_nanos = models.BigIntegerField(default=0, help_text="Taxes and fees in the amount.")
    basis = models.CharField(max_length=10, help_text="The price of the rate card that it was held against: contracted or list.")
    lines = models.JSONField(default=list, help_text="What the invoice says of each GPU type: hours and unit price.")
    steps = models.JSONField(help_text="The variance table, as it was then.")
    left_nanos = models.BigIntegerField(help_text="What nothing explains.")
    note = models.CharField(max_length=280, blank=True)
    closed_digest = models.CharField(max_length=64, blank=True, help_text="Of the closed month; empty while it was an estimate.")
    author_name = models.CharField(max_length=160)
    created_at = MomentField()

    class Meta:
        db_table = "charge_reconciliation"

    def __str__(self) -> str:
        return self.public_id


class CostMail(models.Model):
    """Costs of a subtree by e-mail, each month, to named people."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="+")
    people = models.ManyToManyField(User, related_name="+")
    day = models.PositiveSmallIntegerField(default=3, help_text="Of the month after, at 06:00 UTC.")
    author_name = models.CharField(max_length=160)
    created_at = MomentField()
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "cost_mail"

    def __str__(self) -> str:
        return self.public_id


class MailState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    SENT = "sent", "Sent"
    FAILED = "failed", "Given up"


class CostMailing(models.Model):
    """A month's e-mail to one person: what became of it."""

    mail = models.ForeignKey(CostMail, on_delete=models.CASCADE, related_name="mailings")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    first = models.DateField(help_text="The month that it is of.")
    state = models.CharField(max_length=10, choices=MailState.choices, default=MailState.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    made_at = MomentField()
    due_at = MomentField(help_text="Not sent before. Whoever sends it moves this on first, so that nobody else does meanwhile.")
    done_at = MomentField(null=True, blank=True)
    fault = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "cost_mailing"
        constraints = [models.UniqueConstraint(fields=["mail", "user", "first"], name="cost_mailing_once")]
        indexes = [models.Index(fields=["due_at"], name="cost_mailing_due", condition=Q(state="waiting"))]

    def __str__(self) -> str:
        return f"{self.mail_id} {self.first:%Y-%m}"
