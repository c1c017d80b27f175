"""The paths that nodes had before they were renamed or moved: budgets count what was used there. Those of the past follow from the versions."""

import django.db.models.deletion
from django.db import migrations, models

import gpufleet.core.times


def from_versions(apps, _):
    version, node, earlier = (apps.get_model("quotas", name) for name in ("QuotaVersion", "QuotaNode", "QuotaPath"))
    places = {one.public_id: (one.pk, one.parent.public_id if one.parent else None, one.name) for one in node.objects.select_related("parent")}
    steps = [(key, at, said["parent"], said["name"]) for key, at, said in version.objects.order_by("at", "id").values_list("node__public_id", "at", "said")]
    tree = {key: (parent, name) for key, (_, parent, name) in places.items()}
    for key, _, parent, name in reversed(steps):
        tree[key] = (parent, name)  # what the first version says holds before it

    def path_of(key):
        parent, name = tree[key]
        return f"{path_of(parent)}/{name}" if parent in tree else name

    paths, found = {key: path_of(key) for key in tree}, []
    for place, (key, at, parent, name) in enumerate(steps):
        tree[key] = (parent, name)
        if place + 1 < len(steps) and steps[place + 1][1] == at:
            continue  # all of one change takes effect at once
        now = {key: path_of(key) for key in tree}
        found += [earlier(node_id=places[key][0], path=path, until=at) for key, path in paths.items() if path != now[key]]
        paths = now
    earlier.objects.bulk_create(found, batch_size=500)


class Migration(migrations.Migration):
    dependencies = [("quotas", "0004_a_change_may_be_a_preview")]

    operations = [
        migrations.CreateModel(
            name="QuotaPath",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("path", models.CharField(max_length=500)),
                ("until", gpufleet.core.times.MomentField()),
                (
                    "node",
                    models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="earlier_paths", to="quotas.quotanode"),
                ),
            ],
            options={
                "db_table": "quota_path",
                "indexes": [models.Index(fields=["path"], name="quota_path_path"), models.Index(fields=["node", "until"], name="quota_path_of_node")],
            },
        ),
        migrations.RunPython(from_versions, migrations.RunPython.noop),
    ]
