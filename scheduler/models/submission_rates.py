"""How fast people and nodes of the quota tree submit."""

from django.db import models
from django.db.models import Q

from gpufleet.core.models import User
from quotas.models import QuotaNode


class SubmissionRate(models.Model):
    """How much of its submission rate a person, or a node, has used. Whoever submits holds the row to the end of the transaction."""

    user = models.OneToOneField(User, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    node = models.OneToOneField(QuotaNode, null=True, blank=True, on_delete=models.CASCADE, related_name="+")
    full_at_us = models.BigIntegerField(default=0, help_text="When nothing of it is used any more, in microseconds since 1970.")

    class Meta:
        db_table = "submission_rate"
        constraints = [
            models.CheckConstraint(
                condition=Q(user__isnull=False, node__isnull=True) | Q(user__isnull=True, node__isnull=False), name="submission_rate_of_one"
            )
        ]

    def __str__(self) -> str:
        return f"{self.user or self.node}"
