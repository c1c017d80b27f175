"""An entry of the ledger is closed once; otherwise the database refuses every change and every loss of a row."""

from django.db import migrations

from gpufleet.core.guards import closed_once

COLUMNS = (
    "id attempt job attempt_number role worker surplus cluster node gpu_type gpu_milli parts phase share_class quota_id quota_path"
    " job_class priority preemptible owner labels stated_cost_centre cost_centre began_at since tier pool"
)


class Migration(migrations.Migration):
    replaces = [("quotas", "0006_the_ledger_is_append_only")]
    dependencies = [("quotas", "0001_all_tables")]

    operations = [closed_once("ledger_entry", COLUMNS.split())]
