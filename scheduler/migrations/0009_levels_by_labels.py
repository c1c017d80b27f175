"""Labels of nodes of Kubernetes become levels of the topology, and an import notes what an operator should know of that.

Clusters that are connected already go on without levels until somebody states labels for them.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0008_traces_of_the_own_past")]
    operations = [
        migrations.AddField(
            "KubernetesCluster",
            "levels",
            models.CharField(blank=True, default="none", help_text="Labels that become levels, wide to narrow: label=level, or none.", max_length=1000),
            preserve_default=False,
        ),
        migrations.AddField(
            "InventoryImport",
            "notes",
            models.JSONField(blank=True, default=list, help_text="What an operator should know before applying it, in sentences."),
        ),
        migrations.AlterField("Domain", "name", models.CharField(max_length=63)),
    ]
