"""Views of lists that people keep under a name."""

from django.db import models
from django.db.models.functions import Lower

from gpufleet.core.models import User
from gpufleet.core.times import MomentField, now
from quotas.models import QuotaNode


class ViewedList(models.TextChoices):
    """The lists of which views are kept, by the names of their tables and addresses."""

    JOBS = "jobs", "Jobs"
    QUEUE = "queue", "Queue"
    NODES = "nodes", "Nodes"
    GPUS = "gpus", "GPUs"
    CLUSTERS = "clusters", "Clusters"


class SavedView(models.Model):
    """Filters and order of a list: its owner's, and also of those who see something of the subtree that it is shared with."""

    public_id = models.CharField(max_length=24, unique=True)
    owner = models.ForeignKey(User, on_delete=models.CASCADE, related_name="saved_views")
    list = models.CharField(max_length=16, default=ViewedList.JOBS)
    name = models.CharField(max_length=80)
    query = models.CharField(max_length=2000, blank=True, help_text="As the list's address has it, without the page.")
    shared_with = models.ForeignKey(QuotaNode, null=True, blank=True, on_delete=models.PROTECT, related_name="saved_views")
    is_default = models.BooleanField(default=False, help_text="Whether the list opens with it for its owner.")
    changed_at = MomentField(default=now)
    revision = models.PositiveIntegerField(default=1)

    class Meta:
        db_table = "saved_view"
        constraints = [
            models.UniqueConstraint("owner", "list", Lower("name"), name="saved_view_name_once"),
            models.UniqueConstraint(fields=["owner", "list"], condition=models.Q(is_default=True), name="saved_view_one_default"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.owner_id}"
