"""What others are told of jobs: the outbox of happenings, webhooks, and what was sent to them (docs/adr/0008)."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode


class Happening(models.Model):
    """A step of a job that somebody may want to be told, written with the step and gone once it is made into deliveries. The outbox.

    Nothing refers to it and it refers to nothing, so writing hundreds with a plan costs one statement without look-ups.
    """

    kind = models.CharField(max_length=20)
    at = MomentField()
    job = models.BigIntegerField(help_text="The job's key.")
    revision = models.PositiveIntegerField(help_text="The job's revision after it: happenings of one job are in this order.")
    owner = models.BigIntegerField(null=True, help_text="The key of the job's owner.")
    actor = models.BigIntegerField(null=True, help_text="The key of the person who did it; null: the system.")
    actor_name = models.CharField(max_length=160)
    from_state = models.CharField(max_length=14, blank=True)
    to_state = models.CharField(max_length=14)
    cause = models.CharField(max_length=300, blank=True)
    attempt = models.PositiveIntegerField(null=True, help_text="The number of the attempt.")

    class Meta:
        db_table = "happening"

    def __str__(self) -> str:
        return f"{self.kind} of {self.job}"


class WebhookState(models.TextChoices):
    ACTIVE = "active", "Active"
    PAUSED = "paused", "Paused"
    DISABLED = "disabled", "Disabled"


class HookForm(models.TextChoices):
    """What its messages look like."""

    JSON = "json", "gpufleet (signed JSON)"
    SLACK = "slack", "Slack-compatible"


class Webhook(models.Model):
    """An address that is told what happens to the jobs below a node of the tree, or to those that one person is told about.

    The secret is not kept: it is made from the installation's key and `salt` whenever something is signed, and `fingerprint` tells whether it is
    still the one that was shown.
    """

    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=80)
    node = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.PROTECT, related_name="webhooks")
    person = models.ForeignKey(User, null=True, blank=True, on_delete=models.CASCADE, related_name="webhooks")
    url = models.CharField(max_length=500)
    form = models.CharField(max_length=8, choices=HookForm.choices, default=HookForm.JSON)
    kinds = models.JSONField(default=list)
    state = models.CharField(max_length=10, choices=WebhookState.choices, default=WebhookState.ACTIVE)
    salt = models.CharField(max_length=64)
    fingerprint = models.CharField(max_length=16)
    revision = models.PositiveIntegerField(default=1)
    created_at = MomentField(default=now)
    author = models.ForeignKey(User, null=True, blank=True, on_delete=models.SET_NULL, related_name="+")
    author_name = models.CharField(max_length=160)
    failing_since = MomentField(null=True, blank=True)
    disabled_at = MomentField(null=True, blank=True)
    removed_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "webhook"
        constraints = [
            models.CheckConstraint(condition=Q(node__isnull=True) ^ Q(person__isnull=True), name="webhook_for_a_node_or_a_person"),
            models.CheckConstraint(
                condition=Q(state="disabled", disabled_at__isnull=False) | (~Q(state="disabled") & Q(disabled_at__isnull=True)),
                name="webhook_disabled_has_time",
            ),
            models.UniqueConstraint(fields=["person"], condition=Q(removed_at__isnull=True), name="webhook_one_a_person"),
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.name}"


class DeliveryState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    DELIVERED = "delivered", "Delivered"
    PARKED = "parked", "Given up"


class Delivery(models.Model):
    """One message to one webhook, with what became of it. It is sent until it is taken or given up, each time under the same id."""

    hook = models.ForeignKey(Webhook, on_delete=models.CASCADE, related_name="deliveries")
    public_id = models.CharField(max_length=40, unique=True)
    event = models.CharField(max_length=40, help_text="The id of what happened: the same for every hook and every time it is sent.")
    kind = models.CharField(max_length=20)
    job = models.CharField(max_length=24, blank=True, help_text="The public id of the job.")
    body = models.TextField()
    state = models.CharField(max_length=10, choices=DeliveryState.choices, default=DeliveryState.WAITING)
    attempts = models.PositiveIntegerField(default=0)
    made_at = MomentField(default=now)
    due_at = MomentField(default=now, help_text="Not sent before. Whoever sends it moves this on first, so that nobody else does meanwhile.")
    done_at = MomentField(null=True, blank=True)
    tried_at = MomentField(null=True, blank=True)
    status = models.PositiveSmallIntegerField(null=True, blank=True, help_text="What the last answer said.")
    duration_ms = models.PositiveIntegerField(null=True, blank=True)
    fault = models.CharField(max_length=300, blank=True)
    excerpt = models.CharField(max_length=500, blank=True, help_text="The beginning of the last answer, without control characters.")
    again_of = models.ForeignKey("self", null=True, blank=True, on_delete=models.SET_NULL, related_name="sent_again")

    class Meta:
        db_table = "delivery"
        indexes = [
            models.Index(fields=["hook", "due_at", "id"], name="delivery_due", condition=Q(state="waiting")),
            models.Index(fields=["made_at"], name="delivery_waiting", condition=Q(state="waiting")),
            models.Index(fields=["hook", "-id"], name="delivery_hook"),
            models.Index(fields=["done_at"], name="delivery_done", condition=Q(done_at__isnull=False)),
        ]
        constraints = [
            models.CheckConstraint(
                condition=Q(state="waiting", done_at__isnull=True) | (~Q(state="waiting") & Q(done_at__isnull=False)), name="delivery_done_has_time"
            )
        ]

    def __str__(self) -> str:
        return f"{self.public_id} {self.kind}"


class NoticeChoices(models.Model):
    """What a person wants to be told of, and how. Who has no row is told in the console of everything."""

    user = models.OneToOneField(User, primary_key=True, on_delete=models.CASCADE, related_name="notice_choices")
    ways = models.JSONField(default=dict, help_text="By kind: console, email, webhook.")
    zone = models.CharField(max_length=60, default="UTC")
    quiet_from = models.PositiveSmallIntegerField(null=True, blank=True, help_text="Minutes after midnight, in the zone.")
    quiet_until = models.PositiveSmallIntegerField(null=True, blank=True)
    quiet_rule = models.CharField(max_length=4, default="hold", help_text="hold or drop: what becomes of e-mail and webhook in quiet hours.")
    urgent = models.JSONField(default=list, help_text="Kinds that quiet hours do not keep back.")
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "notice_choices"
        constraints = [
            models.CheckConstraint(
                condition=Q(quiet_from__isnull=True, quiet_until__isnull=True) | Q(quiet_from__lt=1440, quiet_until__lt=1440),
                name="notice_quiet_hours_are_whole",
            )
        ]

    def __str__(self) -> str:
        return f"choices of {self.user_id}"


class JobFollow(models.Model):
    """Somebody wants to be told of a job that is not his own."""

    job = models.ForeignKey("scheduler.Job", on_delete=models.CASCADE, related_name="followers")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="followed")
    since = MomentField(default=now)

    class Meta:
        db_table = "job_follow"
        constraints = [models.UniqueConstraint(fields=["job", "user"], name="job_follow_once")]

    def __str__(self) -> str:
        return f"{self.user_id} follows {self.job_id}"


class Notice(models.Model):
    """What one person is told, of one job or of many at once. `in_console` ones are in the list behind the bell."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="notices")
    kind = models.CharField(max_length=12)
    at = MomentField()
    title = models.CharField(max_length=200)
    text = models.CharField(max_length=500, blank=True)
    job = models.CharField(max_length=24, blank=True, help_text="The public id of the job, where it is one.")
    link = models.CharField(max_length=200, blank=True, help_text="The page of what it is about, other than a job.")
    count = models.PositiveIntegerField(default=1, help_text="How many happenings it stands for.")
    in_console = models.BooleanField(default=True)
    read_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "notice"
        indexes = [
            models.Index(fields=["user", "-id"], name="notice_user"),
            models.Index(fields=["user"], name="notice_unread", condition=Q(read_at__isnull=True, in_console=True)),
            models.Index(fields=["at"], name="notice_at"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} for {self.user_id}: {self.title}"


class SendingState(models.TextChoices):
    WAITING = "waiting", "Waiting"
    SENT = "delivered", "Sent"
    FAILED = "parked", "Given up"
    DROPPED = "dropped", "Quiet hours"


class Sending(models.Model):
    """A notice on its way by e-mail or to the person's own webhook. Those of one way that are due together go out as one."""

    notice = models.ForeignKey(Notice, on_delete=models.CASCADE, related_name="sendings")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    way = models.CharField(max_length=8)
    state = models.CharField(max_length=10, choices=SendingState.choices, default=SendingState.WAITING)
    made_at = MomentField(default=now)
    due_at = MomentField()
    attempts = models.PositiveIntegerField(default=0)
    tried_since = MomentField(null=True, blank=True, help_text="When it was due for the first time and somebody took it up.")
    delivery = models.ForeignKey(
        Delivery, null=True, blank=True, on_delete=models.SET_NULL, related_name="sendings", help_text="The message to a webhook that it is part of."
    )
    done_at = MomentField(null=True, blank=True)
    fault = models.CharField(max_length=300, blank=True)

    class Meta:
        db_table = "sending"
        indexes = [
            models.Index(fields=["due_at", "id"], name="sending_due", condition=Q(state="waiting")),
            models.Index(fields=["user", "-id"], name="sending_user"),
        ]

    def __str__(self) -> str:
        return f"{self.way} of notice {self.notice_id}: {self.state}"
