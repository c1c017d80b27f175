"""How clusters of Kubernetes are reached, and what their back-end remembers."""

import django.db.models.deletion
from django.db import migrations, models

import gpufleet.core.times


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0006_kept_apart")]
    operations = [
        migrations.CreateModel(
            "KubernetesCluster",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("context", models.CharField(help_text="Of the kubeconfig that the console's machine offers.", max_length=200)),
                ("namespace", models.CharField(max_length=63)),
                ("image", models.CharField(blank=True, help_text="Of jobs that name none.", max_length=500)),
                ("service_account", models.CharField(blank=True, max_length=253)),
                ("pull_secret", models.CharField(blank=True, max_length=253)),
                ("runtime_class", models.CharField(blank=True, max_length=253)),
                ("priority_class", models.CharField(blank=True, max_length=253)),
                ("tolerates", models.CharField(blank=True, help_text="Keys of taints, with commas between them.", max_length=300)),
                ("uid", models.PositiveIntegerField(blank=True, help_text="User id that pods run as; empty: what their image says.", null=True)),
                ("claim", models.CharField(blank=True, help_text="Volume claim for checkpoints.", max_length=253)),
                ("mount", models.CharField(blank=True, help_text="Where pods see the volume.", max_length=300)),
                ("folder", models.CharField(blank=True, help_text="Where the console sees the same volume; empty: it does not.", max_length=300)),
                ("tag", models.CharField(help_text="Marks this console's pods.", max_length=16, unique=True)),
                ("changed_at", gpufleet.core.times.MomentField(default=gpufleet.core.times.now)),
                (
                    "import_minutes",
                    models.PositiveIntegerField(default=0, help_text="Its nodes are imported so often by themselves; 0: never."),
                ),
                ("imported_at", gpufleet.core.times.MomentField(blank=True, null=True)),
                (
                    "import_fault",
                    models.CharField(blank=True, help_text="Why the last import by itself changed nothing.", max_length=300),
                ),
                (
                    "import_waits",
                    models.ForeignKey(
                        blank=True,
                        help_text="A preview that an operator is to look at.",
                        null=True,
                        on_delete=django.db.models.deletion.SET_NULL,
                        related_name="+",
                        to="scheduler.inventoryimport",
                    ),
                ),
                ("cluster", models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name="kubernetes", to="scheduler.cluster")),
            ],
            options={"db_table": "kubernetes_cluster"},
        ),
        migrations.CreateModel(
            "KubernetesRun",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("attempt_key", models.CharField(max_length=40, unique=True)),
                ("sequence", models.PositiveIntegerField(default=0)),
                ("state", models.JSONField(default=dict)),
                (
                    "forgotten_at",
                    gpufleet.core.times.MomentField(
                        blank=True, help_text="Its end has been written down; the row is only there for its log.", null=True
                    ),
                ),
                ("cluster", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="kubernetes_runs", to="scheduler.cluster")),
            ],
            options={
                "db_table": "kubernetes_run",
                "indexes": [models.Index(fields=["cluster", "forgotten_at"], name="kubernetes_run_open")],
            },
        ),
    ]
