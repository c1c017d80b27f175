"""The Celery application. Beat's timetable is code, not rows: what an admin may change lives in the models of the thing itself."""

import gc
import os
from typing import Any

import structlog
from celery import Celery, beat, signals
from celery.schedules import crontab
from django.db import connections

from gpufleet.collector import collect_seldom

collect_seldom()
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gpufleet.settings")

log = structlog.stdlib.get_logger(__name__)

app = Celery("gpufleet")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()
app.autodiscover_tasks(["gpufleet", "gpufleet.demo"])
app.conf.beat_schedule = {
    "heartbeat-default": {"task": "gpufleet.core.tasks.heartbeat", "schedule": 15.0, "args": ("default",), "options": {"expires": 15}},
    "heartbeat-scheduler": {
        "task": "gpufleet.core.tasks.heartbeat",
        "schedule": 15.0,
        "args": ("scheduler",),
        "options": {"expires": 15, "queue": "scheduler"},
    },
    "telemetry-rollup": {"task": "dashboards.tasks.telemetry_rollup_write", "schedule": 15.0, "options": {"expires": 15}},
    "telemetry-prometheus": {"task": "dashboards.tasks.telemetry_prometheus_collect", "schedule": 15.0, "options": {"expires": 15}},
    "services-look": {"task": "dashboards.tasks.services_look", "schedule": 15.0, "options": {"expires": 15}},
    "telemetry-local": {"task": "dashboards.tasks.telemetry_local_collect", "schedule": 5.0, "options": {"expires": 5}},
    "idle-look": {"task": "dashboards.tasks.idle_look", "schedule": 60.0, "options": {"expires": 60}},
    "health-look": {"task": "dashboards.tasks.health_look", "schedule": 15.0, "options": {"expires": 15}},
    "fingerprints": {"task": "dashboards.tasks.fingerprints_learn", "schedule": 60.0, "options": {"expires": 60}},
    "alerts-look": {"task": "dashboards.tasks.alerts_look", "schedule": 15.0, "options": {"expires": 15}},
    "ledger-hour": {"task": "gpufleet.tasks.ledger_hour_turn", "schedule": crontab(minute="0"), "options": {"expires": 600}},
    "timeline-review": {"task": "gpufleet.tasks.timeline_review_step", "schedule": 60.0, "options": {"expires": 60}},
    "tick": {"task": "scheduler.tasks.tick", "schedule": 1.0, "options": {"expires": 1, "queue": "scheduler"}},
    "forecast": {"task": "scheduler.tasks.forecast", "schedule": 10.0, "options": {"expires": 10}},
    "overrun": {"task": "scheduler.tasks.overrun_learn", "schedule": 60.0, "options": {"expires": 60}},
    "planned-health": {"task": "scheduler.tasks.planned_health", "schedule": 15.0, "options": {"expires": 15}},
    "planned-changes": {"task": "scheduler.tasks.planned_changes", "schedule": 15.0, "options": {"expires": 15}},
    "slurm-nodes": {"task": "scheduler.tasks.slurm_nodes", "schedule": 15.0, "options": {"expires": 15}},
    "local-nodes": {"task": "scheduler.tasks.local_nodes", "schedule": 60.0, "options": {"expires": 60}},
    "kubernetes-nodes": {"task": "scheduler.tasks.kubernetes_nodes", "schedule": 15.0, "options": {"expires": 15}},
    "slurm-imports": {"task": "scheduler.tasks.slurm_imports", "schedule": 60.0, "options": {"expires": 60}},
    "tell": {"task": "scheduler.tasks.tell", "schedule": 2.0, "options": {"expires": 2}},
    "schedules": {"task": "scheduler.tasks.schedules", "schedule": 5.0, "options": {"expires": 5}},
    "budgets": {"task": "scheduler.tasks.budgets", "schedule": 15.0, "options": {"expires": 15}},
    "quota-changes": {"task": "scheduler.tasks.quota_changes", "schedule": 5.0, "options": {"expires": 5}},
    "costs": {"task": "scheduler.tasks.costs", "schedule": 300.0, "options": {"expires": 300}},
    "plans-prune": {"task": "scheduler.tasks.plans_prune", "schedule": 60.0, "options": {"expires": 60}},
    "backends-tidy": {"task": "scheduler.tasks.backends_tidy", "schedule": 600.0, "options": {"expires": 600}},
    "retention-prune": {"task": "gpufleet.tasks.retention_prune_step", "schedule": 60.0, "options": {"expires": 60}},
    # People, machines and sensors of the demo. Does nothing on a console that is not one.
    "demo-step": {"task": "gpufleet.demo.tasks.demo_step", "schedule": 2.0, "options": {"expires": 2}},
}


@signals.worker_ready.connect
def tell_ready(sender: Any, **_: Any) -> None:
    log.info("ready", process=sender.hostname)


@signals.beat_init.connect
def tell_beat_ready(**_: Any) -> None:
    log.info("ready", process="beat")


@signals.beat_init.connect
def first_heartbeat(**_: Any) -> None:
    """Beat's own first heartbeat is due only after its interval; whoever asks the doctor right after the start must not be told that nothing runs."""
    for entry in app.conf.beat_schedule.values():
        if entry["task"] == "gpufleet.core.tasks.heartbeat":
            app.send_task(entry["task"], args=entry["args"], **entry["options"])


class Timetable(beat.Scheduler):
    """Wakes up when an entry is due. Celery's own wakes 10 ms before and asks again and again until then."""

    def adjust(self, n: float | None, drift: float = 0.001) -> float | None:
        return n + drift if n and n > 0 else n


@signals.worker_process_init.connect
def program_kept(**_: Any) -> None:
    """What a worker's process begins with stays: the garbage collector need not go through it at each of its rounds."""
    gc.freeze()


@signals.task_prerun.connect
@signals.task_postrun.connect
def connections_kept(sender: Any, **_: Any) -> None:
    """Between tasks give connections back to their pool, and keep open what is a file: opening it takes longer than most looks of the scheduler.

    Celery itself would close both, and the pool with them (`CELERY_DB_REUSE_MAX`).
    """
    if sender.request.is_eager:
        return
    for connection in connections.all(initialized_only=True):
        if connection.vendor != "sqlite" or connection.errors_occurred:
            connection.close()
