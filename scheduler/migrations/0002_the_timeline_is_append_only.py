"""An entry of the capacity timeline is closed once; otherwise the database refuses every change and every loss of a row."""

from django.db import migrations

from gpufleet.core.guards import closed_once

COLUMNS = "id gpu_id since used_milli starting_milli window_milli draining_milli down_milli kept_milli blocked_milli unwanted_milli"


class Migration(migrations.Migration):
    replaces = [("scheduler", "0006_the_timeline_is_append_only")]
    dependencies = [("scheduler", "0001_all_tables")]

    operations = [closed_once("capacity_entry", COLUMNS.split())]
