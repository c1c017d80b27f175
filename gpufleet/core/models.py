"""The ground floor's tables: people, the one sequence of public ids, the audit log, the feed of changes."""

from django.contrib.auth.models import AbstractUser
from django.db import models

from gpufleet.core.times import MomentField, now


class User(AbstractUser):
    """A person who signs in. What they may do comes from their roles on the quota tree, never from Django's own permissions."""

    public_id = models.CharField(max_length=24, unique=True)
    display_name = models.CharField(max_length=120, blank=True)
    clock_utc = models.BooleanField(default=False, help_text="Show times in UTC rather than in the browser's zone.")
    home_order = models.JSONField(default=dict, blank=True, help_text="The two columns of each page of Home.")

    REQUIRED_FIELDS = ["email"]

    class Meta:
        db_table = "user"

    def __str__(self) -> str:
        return self.display_name or self.username

    def save(self, *args: object, **kwargs: object) -> None:
        if not self.public_id:
            from gpufleet.core.ids import public_id

            self.public_id = public_id("u")
        super().save(*args, **kwargs)  # type: ignore[arg-type]


class Sequence(models.Model):
    """The one counter behind every public id. A number is handed out once and never again, also when its row is gone."""

    name = models.CharField(max_length=20, primary_key=True)
    last = models.PositiveBigIntegerField(default=0)

    class Meta:
        db_table = "sequence"

    def __str__(self) -> str:
        return f"{self.name} at {self.last}"


class Installation(models.Model):
    """One row: when this console was set up, and which demo fleet (if any) was put into it."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    installed_at = MomentField(default=now)
    demo = models.CharField(max_length=10, default="none")
    demo_seed = models.PositiveIntegerField(default=0)

    class Meta:
        db_table = "installation"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="installation_one_row")]

    def __str__(self) -> str:
        return f"installed {self.installed_at:%Y-%m-%d}, demo {self.demo}"


class AuditEntry(models.Model):
    """One write by somebody: who, what, when, and the values before and after. Kept for ever, never changed."""

    at = MomentField(default=now)
    actor = models.ForeignKey(User, null=True, on_delete=models.SET_NULL, related_name="+")
    actor_name = models.CharField(max_length=160)
    via = models.CharField(max_length=40, help_text="session, token:<prefix>, system or sign-on")
    action = models.CharField(max_length=60)
    object_kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=120)
    quota_path = models.CharField(max_length=500, blank=True, help_text="The subtree it concerns; empty: the whole fleet.")
    # No foreign key: the log stays as it was written, whatever becomes of the node.
    quota_id = models.BigIntegerField(null=True, help_text="Its key, which moving and renaming don't change.")
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    reason = models.CharField(max_length=500, blank=True)
    request_id = models.CharField(max_length=36, blank=True)

    class Meta:
        db_table = "audit_entry"
        indexes = [
            models.Index(fields=["-at", "-id"], name="audit_at"),
            models.Index(fields=["object_kind", "object_id", "-id"], name="audit_object"),
            models.Index(fields=["quota_id", "-id"], name="audit_quota"),
        ]

    def __str__(self) -> str:
        return f"{self.at:%Y-%m-%d %H:%M:%S} {self.actor_name} {self.action} {self.object_kind} {self.object_id}"


class Feed(models.Model):
    """One row: the revision of the newest change.

    It is raised in the same transaction as the change, so revisions appear in the order of commits; an auto-increment id would not, and a reader that
    polls "greater than my last" would miss rows.
    """

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    rev = models.PositiveBigIntegerField(default=0)

    class Meta:
        db_table = "feed"
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="feed_one_row")]

    def __str__(self) -> str:
        return f"feed at {self.rev}"


class Change(models.Model):
    """What changed at one revision, for the live pages. Short-lived: a browser that is further behind takes a fresh snapshot."""

    rev = models.PositiveBigIntegerField(primary_key=True)
    at = MomentField()
    topic = models.CharField(max_length=40)
    rows = models.JSONField(default=list, help_text="Changed rows as the topic's snapshot has them.")

    class Meta:
        db_table = "change"
        indexes = [models.Index(fields=["at"], name="change_at")]

    def __str__(self) -> str:
        return f"{self.rev} {self.topic}"


class Progress(models.Model):
    """How far a piece of work that goes on for ever has come, by its name."""

    name = models.CharField(max_length=40, primary_key=True)
    reached_at = MomentField()

    class Meta:
        db_table = "progress"

    def __str__(self) -> str:
        return f"{self.name} until {self.reached_at:%Y-%m-%d %H:%M:%S}"
