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
