import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("quotas", "0006_the_ledger_is_append_only"),
        ("scheduler", "0024_saved_view_revision"),
    ]

    operations = [
        migrations.AddField(
            model_name="schedule",
            name="written_with",
            field=models.ForeignKey(
                blank=True,
                help_text="The token with which it was last written; with its end by hand it is paused.",
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="quotas.servicetoken",
            ),
        ),
    ]
