"""What a node has lost of the bandwidth of PCIe."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("scheduler", "0012_relief"),
    ]

    operations = [
        migrations.AddField(
            model_name="node",
            name="pcie_lost",
            field=models.PositiveSmallIntegerField(
                default=0, help_text="Percent that the slowest GPU has lost of it, while a health rule finds that."
            ),
        ),
    ]
