"""The ledger has a page: it is read by time, and by job."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("quotas", "0004_reconciliations")]

    operations = [
        migrations.AddIndex(model_name="ledgerentry", index=models.Index(fields=["since", "id"], name="ledger_since")),
        migrations.AddIndex(model_name="ledgerentry", index=models.Index(fields=["job"], name="ledger_job")),
    ]
