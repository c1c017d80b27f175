"""Prometheus servers that want a password, a token or a tenant."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0014_network_and_pcie_links")]
    operations = [
        migrations.AddField(
            "prometheusserver",
            "sign_in",
            models.CharField(
                choices=[("none", "Without signing in"), ("basic", "User name and password"), ("bearer", "Bearer token")],
                default="none",
                max_length=8,
            ),
        ),
        migrations.AddField("prometheusserver", "username", models.CharField(blank=True, default="", max_length=200), preserve_default=False),
        migrations.AddField(
            "prometheusserver",
            "sealed",
            models.TextField(blank=True, default="", help_text="The password or token, encrypted with the installation's key."),
            preserve_default=False,
        ),
        migrations.AddField(
            "prometheusserver",
            "tenant",
            models.CharField(
                blank=True, default="", help_text="Whose series are asked for, where a server keeps those of several.", max_length=200
            ),
            preserve_default=False,
        ),
    ]
