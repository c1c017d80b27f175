"""Operations of a step, told by the ranks of a job: MFU is worked out from them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("dashboards", "0004_costs_that_rise")]
    operations = [
        migrations.AddField(
            "steplook", "flops", models.FloatField(help_text="Operations of one step of the whole job, where a rank told them.", null=True)
        ),
        migrations.AddField("steplook", "precision", models.CharField(blank=True, help_text="Of those operations: bf16, fp8 and so on.", max_length=8)),
    ]
