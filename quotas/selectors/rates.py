"""What GPUs cost."""

from datetime import datetime

from quotas.models import Rate


def rates_now(*, now: datetime) -> dict[str, int]:
    """What one GPU hour of each type costs now, in micro-units."""
    rows = Rate.objects.filter(valid_from__lte=now).order_by("valid_from").values_list("gpu_type", "micros_per_gpu_hour")
    return dict(rows)
