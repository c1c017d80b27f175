"""What tests of one thing done to many jobs send and read."""

from typing import Any

from gpufleet.core.models import AuditEntry
from scheduler.models import Job, JobState
from tests.builders import NOON, attempt, job, node, placement


def running(on: Any, **fields: Any) -> Job:
    found = job("runs", on=on, state=JobState.RUNNING, gpus_milli=1000, **fields)
    placement(found, node(gpus=1).gpus.get(), attempt=attempt(found, running_at=NOON))
    return found


def call(client: Any, status: int = 200, *, dry: bool = False, key: str = "", **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    answer = client.post(f"/api/v1/jobs/bulk{'?dry_run=true' if dry else ''}", body, content_type="application/json", headers=headers)
    assert answer.status_code == status, answer.content
    return answer.json()


def named(*jobs: Job) -> list[dict[str, Any]]:
    return [{"id": found.public_id, "revision": found.revision} for found in jobs]


def effects(told: Any) -> dict[str, str]:
    return {verdict["id"]: verdict["effect"] for verdict in told["verdicts"]}


def entries() -> list[AuditEntry]:
    return list(AuditEntry.objects.filter(object_kind="job").order_by("id"))


def preview_page(client: Any, action: str, *jobs: Job, status: int = 200, **more: Any) -> str:
    answer = client.post("/jobs/bulk/", {"action": action, "row": [found.public_id for found in jobs], **more})
    assert answer.status_code == status, answer.content.decode()
    return answer.content.decode()
