"""The alert rules that a new console starts with. Operators change them on the page Alert rules."""

from typing import Any

# name, figure, subject, threshold, clear at, minutes, severity, told, escalate after
ROWS: tuple[tuple[str, str, str, float, float, int, str, list[str], int | None], ...] = (
    ("Idle share is high", "gap_percent", "", 45, 40, 30, "warning", ["operator"], None),
    ("Fragmented GPUs", "fragmented_gpus", "*", 64, 32, 30, "info", ["operator"], None),
    ("Long wait", "queue_wait", "interactive", 30, 15, 10, "warning", ["operator"], None),
    ("Guarantee at risk", "floor_gap", "*", 16, 8, 20, "warning", ["operator", "quota_admin"], None),
    ("Guarantees exceed the fleet", "guarantee_shortage", "*", 1, 1, 10, "warning", ["operator", "quota_admin"], None),
    ("Budget nearly used", "budget_percent", "*", 90, 85, 0, "warning", ["finance"], None),
    ("Cost of a team doubles", "cost_rise", "*", 2, 1.5, 0, "warning", ["finance"], None),
    ("Nodes out of service", "nodes_out", "*", 10, 5, 5, "warning", ["operator"], 60),
    ("Incident", "incidents", "*", 1, 1, 0, "warning", ["operator"], 120),
    ("Straggler", "stragglers", "*", 1, 1, 0, "warning", ["operator"], None),
    ("Service over its objective", "service_breaches", "*", 1, 1, 0, "warning", ["operator", "team_lead"], None),
    ("Scale-up is late", "scale_ups_late", "*", 1, 1, 0, "warning", ["operator", "team_lead"], None),
    ("Telemetry is stale", "telemetry_age", "*", 60, 30, 0, "critical", ["operator"], 30),
    ("Scheduler is overdue", "scheduler_overdue", "", 1, 1, 0, "critical", ["operator"], 15),
)
# Smaller amounts a week are no rise.
LEAST_COST = 100
FIELDS = ("name", "figure", "subject", "threshold", "clear_at", "for_minutes", "severity", "told", "escalate_minutes")


def default_rules() -> list[dict[str, Any]]:
    rules = [dict(zip(FIELDS, row, strict=True)) | {"escalate_to": ["superuser"] if row[-1] else []} for row in ROWS]
    return [rule | {"floor": LEAST_COST if rule["figure"] == "cost_rise" else 0} for rule in rules]
