"""What people start from when they submit: templates of a subtree, and their own drafts."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode


class JobTemplate(models.Model):
    """A job as those below a node of the tree may begin with. What it says is in its versions."""

    public_id = models.CharField(max_length=24, unique=True)
    node = models.ForeignKey(QuotaNode, on_delete=models.PROTECT, related_name="job_templates")
    name = models.SlugField(max_length=60)
    archived_at = MomentField(null=True, blank=True)

    class Meta:
        db_table = "job_template"
        constraints = [models.UniqueConstraint(fields=["node", "name"], condition=Q(archived_at__isnull=True), name="job_template_once")]

    def __str__(self) -> str:
        return f"{self.node_id}:{self.name}"


class JobTemplateVersion(models.Model):
    """What a template said from a moment on. Rows are never changed, only followed by newer ones."""

    template = models.ForeignKey(JobTemplate, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    title = models.CharField(max_length=120)
    about = models.CharField(max_length=300, blank=True)
    body = models.JSONField(default=dict, help_text="A description, as far as it is given.")
    locked = models.JSONField(default=list, help_text="Paths whose values may not be changed.")
    limits = models.JSONField(default=dict, help_text="By path: least, most, one_of.")
    at = MomentField(default=now)
    author_name = models.CharField(max_length=160)
    reason = models.CharField(max_length=280, blank=True)

    class Meta:
        db_table = "job_template_version"
        constraints = [models.UniqueConstraint(fields=["template", "number"], name="job_template_version_once")]

    def __str__(self) -> str:
        return f"{self.template_id}@{self.number}"


class TemplateSpeeds(models.Model):
    """How fast jobs of a template run on each GPU type, as a person stated it. Rows are never changed, only followed by newer ones."""

    template = models.CharField(max_length=60, help_text="The public id of the template, or the name of a shipped one.")
    number = models.PositiveIntegerField()
    speeds = models.JSONField(default=dict, help_text="By GPU type; the fastest is 1, 0 is never used. Empty: nothing is stated any more.")
    runs = models.JSONField(default=dict, help_text="By GPU type: on how many completed runs a measured speed that was adopted rests.")
    at = MomentField(default=now)
    author_name = models.CharField(max_length=160)
    reason = models.CharField(max_length=280, blank=True)

    class Meta:
        db_table = "template_speeds"
        constraints = [models.UniqueConstraint(fields=["template", "number"], name="template_speeds_once")]

    def __str__(self) -> str:
        return f"speeds {self.number} of {self.template}"


class JobDraft(models.Model):
    """What somebody was about to submit. It is its owner's alone."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="job_drafts")
    public_id = models.CharField(max_length=24, unique=True)
    name = models.CharField(max_length=120, blank=True)
    text = models.TextField(help_text="The description as YAML, finished or not.")
    repeat = models.JSONField(default=dict, help_text="The fields that say when it is to recur, as typed.")
    saved_at = MomentField(default=now)

    class Meta:
        db_table = "job_draft"
        indexes = [models.Index(fields=["user", "-saved_at"], name="job_draft_user")]

    def __str__(self) -> str:
        return f"{self.public_id} of {self.user_id}"
