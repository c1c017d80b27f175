"""A ledger of some weeks, made by hand, for tests of months and files."""

import itertools
from datetime import datetime, timedelta
from typing import Any

from quotas.models import LedgerEntry, QuotaNode

_attempts = itertools.count(1)
H100, A100 = "H100-SXM-80GB", "A100-SXM-80GB"


def used(
    quota: QuotaNode, since: datetime, hours: float | None, *, milli: int = 1000, job: str = "j-1", gpu_type: str = H100, **said: Any
) -> LedgerEntry:
    facts = {"role": "worker", "worker": 0, "cluster": "north", "node": "n1", "parts": [["g-1", milli, ""]], "phase": "running", "attempt_number": 1}
    facts |= {"share_class": "guaranteed", "job_class": "batch", "priority": 0, "preemptible": "no", "tier": "whole", "pool": ""} | said
    until = None if hours is None else since + timedelta(hours=hours)
    return LedgerEntry.objects.create(
        attempt=facts.pop("attempt", None) or next(_attempts),
        job=job,
        gpu_type=gpu_type,
        gpu_milli=milli,
        quota=quota,
        quota_path=quota.path,
        began_at=since,
        since=since,
        until=until,
        **facts,
    )
