from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("core", "0002_the_audit_is_append_only")]

    operations = [
        migrations.AddField("user", "home_order", models.JSONField(blank=True, default=dict, help_text="The two columns of each page of Home.")),
    ]
