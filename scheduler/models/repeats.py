"""What a caller has asked for once and may ask for again without harm."""

from django.db import models

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now


class SubmissionKey(models.Model):
    """A caller's own name for a submission. Asking again with the same name gives the same jobs and makes none."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=100)
    digest = models.CharField(max_length=64, help_text="Of the description, so that a name that is used twice by mistake is noticed.")
    jobs = models.JSONField(default=list, help_text="Public ids of what was submitted.")
    at = MomentField(default=now)

    class Meta:
        db_table = "submission_key"
        indexes = [models.Index(fields=["at"], name="submission_key_at")]
        constraints = [models.UniqueConstraint(fields=["user", "key"], name="submission_key_once")]

    def __str__(self) -> str:
        return f"{self.key} of {self.user_id}"


class JobBatch(models.Model):
    """One action that a person took on many jobs, with what became of each: what a repeated request is answered with, and what its page shows."""

    public_id = models.CharField(max_length=32, unique=True)
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="+")
    action = models.CharField(max_length=20)
    priority = models.IntegerField(null=True)
    reason = models.CharField(max_length=280, blank=True)
    at = MomentField(default=now)
    verdicts = models.JSONField(default=list, help_text="In the order in which the jobs were named: id, name, state, revision, effect, detail.")
    key = models.CharField(max_length=100, blank=True, help_text="The caller's own name for it, if it gave one.")
    digest = models.CharField(max_length=64, blank=True, help_text="Of what was asked under that name.")

    class Meta:
        db_table = "job_batch"
        indexes = [models.Index(fields=["at"], name="job_batch_at")]
        constraints = [models.UniqueConstraint(fields=["user", "key"], condition=~models.Q(key=""), name="job_batch_once")]

    def __str__(self) -> str:
        return f"{self.public_id} {self.action}"
