"""What jobs are looked for by: their labels, the GPU types that they name or ran on, their cost centre, and the codes of what they wait for."""

import hashlib

import django.db.models.deletion
from django.db import migrations, models

AT_ONCE = 2000


def _value(value):
    text = str(value)
    return text if len(text) <= 160 else f"{text[:90]}…{hashlib.sha256(text.encode()).hexdigest()}"


def _marks(spec, labels):
    holders = [spec, *(role for role in spec.get("roles") or () if isinstance(role, dict))]
    types = dict.fromkeys(str(name) for holder in holders for name in holder.get("gpu_types") or ())
    yield from (("type", name, "") for name in types if len(name) <= 100)
    yield from (("label", key, _value(value)) for key, value in labels.items() if len(key) <= 100)


def fill(apps, editor):
    job, mark, outlook = (apps.get_model("scheduler", name) for name in ("Job", "JobMark", "Outlook"))
    last = 0
    while rows := list(job.objects.filter(pk__gt=last).order_by("pk").values_list("pk", "spec", "labels")[:AT_ONCE]):
        mark.objects.bulk_create(
            [mark(job_id=pk, kind=kind, key=key, value=value) for pk, spec, labels in rows for kind, key, value in _marks(spec, labels)],
            batch_size=AT_ONCE,
        )
        last = rows[-1][0]
    with editor.connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO job_mark (job_id, kind, key, value) SELECT DISTINCT placement.job_id, 'type', gpu.gpu_type_id, ''"
            " FROM placement JOIN gpu ON gpu.id = placement.gpu_id WHERE true ON CONFLICT (job_id, kind, key) DO NOTHING"
        )
    last = 0
    while told := list(outlook.objects.filter(pk__gt=last).order_by("pk").only("pk", "reasons")[:AT_ONCE]):
        for one in told:
            one.codes = f" {' '.join(sorted({str(reason['code']) for reason in one.reasons if 'code' in reason}))} "
        outlook.objects.bulk_update(told, ["codes"], batch_size=200)
        last = told[-1].pk


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0026_draft_repeat")]

    operations = [
        migrations.CreateModel(
            name="JobMark",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("kind", models.CharField(choices=[("label", "Label"), ("type", "GPU type")], max_length=8)),
                ("key", models.CharField(max_length=100)),
                ("value", models.CharField(blank=True, help_text="Of a label, as `mark_value` has it.", max_length=160)),
                (
                    "job",
                    models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name="marks", to="scheduler.job"),
                ),
            ],
            options={"db_table": "job_mark"},
        ),
        migrations.AddField(
            model_name="outlook",
            name="codes",
            field=models.CharField(default=" ", help_text="Those of the reasons, each once, with a space on both sides.", max_length=400),
        ),
        migrations.AddIndex(
            model_name="job",
            index=models.Index(
                condition=models.Q(("cost_centre", ""), _negated=True), fields=["cost_centre", "-submitted_at", "-id"], name="job_cost_centre"
            ),
        ),
        migrations.AddIndex(model_name="outlook", index=models.Index(fields=["codes", "job"], name="outlook_codes")),
        migrations.AddIndex(model_name="jobmark", index=models.Index(fields=["kind", "key", "value", "job"], name="job_mark_found")),
        migrations.AddConstraint(model_name="jobmark", constraint=models.UniqueConstraint(fields=("job", "kind", "key"), name="job_mark_once")),
        # Last: PostgreSQL makes no index on a table whose new rows are yet to be checked.
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
