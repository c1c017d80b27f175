"""What a job's row keeps of its description has one form: `roles` is there, each with its name, its minimum and the GPU types that it names.

Forms before it stay readable by versions before this one, so there is nothing to take back.
"""

from django.db import migrations

AT_ONCE = 500
LARGEST_WORKER = 8


def write(apps, editor):
    Job = apps.get_model("scheduler", "Job")
    jobs, changed = Job.objects, []
    for job in jobs.order_by("pk").only("pk", "spec", "gpus_milli").iterator(chunk_size=2000):
        spec = in_one_form(job.spec, job.gpus_milli)
        if spec != job.spec:
            job.spec = spec
            changed.append(job)
        if len(changed) == AT_ONCE:
            jobs.bulk_update(changed, ["spec"])
            changed = []
    jobs.bulk_update(changed, ["spec"])


def in_one_form(spec, gpus_milli):
    if not isinstance(spec, dict) or not isinstance(spec.get("roles") or [], list):
        return spec  # written by hand: no version reads it
    types = spec.get("gpu_types")
    roles = [_role(role, types) for role in spec.get("roles") or [_plain(gpus_milli)]]
    return {key: value for key, value in spec.items() if key != "gpu_types"} | {"roles": roles}


def _role(role, types):
    """`count` was short for a fixed number of workers; types that the job names hold for every role that names none."""
    if not isinstance(role, dict):
        return role
    found = {"name": "worker", "min": 1} | role
    if "count" in found:
        found["min"] = found["max"] = found.pop("count")
    if types and not found.get("gpu_types"):
        found["gpu_types"] = types
    return found


def _plain(gpus_milli):
    """The gang of a job that only says how many GPUs it needs: as few workers as possible."""
    gpus, part = divmod(gpus_milli, 1000)
    if part:
        return {"gpus": gpus + 1} if gpus else {"gpu_share": gpus_milli / 1000}
    each = next((size for size in range(min(gpus, LARGEST_WORKER), 0, -1) if gpus % size == 0), 0)
    return {"gpus": each, "min": gpus // each if each else 1}


class Migration(migrations.Migration):
    dependencies = [("scheduler", "0019_order_limit")]
    operations = [migrations.RunPython(write, migrations.RunPython.noop)]
