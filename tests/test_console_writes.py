"""Whatever the console's pages write, the API writes as well: each address of a page that takes a POST, and the operation that does the same."""

from django.urls import URLPattern, URLResolver, get_resolver

from gpufleet.api import api
from tests.url_expectations import EXPECTED

# By the name of the page's address. Where one page does several things, each has its operation.
WRITES = {
    "home_order": "PUT me/home/{page}, DELETE me/home/{page}",
    "clock": "PUT me/clock",
    # jobs
    "job_new": "POST jobs",
    "job_look": "POST fit",
    "job_recurring": "POST schedules",
    "job_view_new": "POST jobs/views",
    "job_view": "PATCH jobs/views/{public_id}",
    "job_view_end": "DELETE jobs/views/{public_id}",
    "jobs_bulk": "POST jobs/bulk",
    "jobs_bulk_do": "POST jobs/bulk",
    "job_plan_call_off": "DELETE jobs/planned-changes/{public_id}",
    "job_batch_undo": "POST jobs/batches/{public_id}/undo",
    "array_steer": "POST arrays/{public_id}/bulk",
    "job_cancel": "POST jobs/{public_id}/cancel",
    "job_connect": "POST jobs/{public_id}/connect",
    "job_hold": "POST jobs/{public_id}/hold",
    "job_release": "POST jobs/{public_id}/release",
    "job_enqueue": "POST jobs/{public_id}/enqueue",
    "job_start_now": "POST jobs/{public_id}/start-now",
    "job_change": "PATCH jobs/{public_id}, POST jobs/{public_id}/preview",
    "job_restart": "POST jobs/{public_id}/restart",
    "job_save": "POST jobs/{public_id}/checkpoint",
    "job_follow": "PUT jobs/{public_id}/follow, DELETE jobs/{public_id}/follow",
    "job_replicas": "PUT jobs/{public_id}/replicas, POST jobs/{public_id}/replicas/preview",
    "job_replace": "POST jobs/{public_id}/replacements, POST jobs/{public_id}/replacements/preview",
    "job_replace_stop": "POST jobs/{public_id}/replacements/stop",
    "job_service_level": "PUT jobs/{public_id}/service-level",
    "job_service_level_remove": "DELETE jobs/{public_id}/service-level",
    "schedule_new": "POST schedules",
    "schedule_edit": "PATCH schedules/{public_id}",
    "schedule_switch": "POST schedules/{public_id}/pause, POST schedules/{public_id}/resume",
    "schedule_run": "POST schedules/{public_id}/run",
    "schedule_take": "PATCH schedules/{public_id}",
    "schedule_remove": "DELETE schedules/{public_id}",
    "template_edit": "PUT templates",
    "template_speed": "PUT templates/throughput",
    "template_end": "POST templates/archive",
    "notices_mark": "POST me/notices/read",
    "notice_settings": "PUT me/notices/choices",
    "notices_test": "POST me/notices/test",
    "own_webhook": "PUT me/notices/webhook, DELETE me/notices/webhook",
    "webhook_new": "POST webhooks",
    "webhook_edit": "PATCH webhooks/{public_id}",
    "webhook_switch": "PATCH webhooks/{public_id}",
    "webhook_secret": "POST webhooks/{public_id}/secret",
    "webhook_remove": "DELETE webhooks/{public_id}",
    "webhook_test": "POST webhooks/{public_id}/test",
    "delivery_repeat": "POST webhooks/{public_id}/deliveries/{delivery_id}/redeliver",
    # hardware
    "scheduler_pause": "POST scheduler/pause",
    "scheduler_resume": "POST scheduler/resume",
    "cluster_add": "PUT clusters/{name}/slurm",
    "cluster_add_local": "POST clusters/{name}/local",
    "cluster_add_kubernetes": "PUT clusters/{name}/kubernetes",
    "kubernetes_import": "POST clusters/{name}/kubernetes/imports",
    "kubernetes_every": "PUT clusters/{name}/kubernetes/every",
    "slurm_import": "POST clusters/{name}/slurm/imports",
    "slurm_every": "PUT clusters/{name}/slurm/every",
    "slurm_accounts": "POST clusters/{name}/slurm/accounts",
    "cluster_give_up": "POST clusters/{name}/give-up",
    "cluster_remove": "POST clusters/{name}/remove",
    "inventory_import": "POST inventory/imports",
    "inventory_preview": "POST inventory/imports/{public_id}/apply",
    "inventory_discover": "POST inventory/discovery",
    "health_plans_call_off": "DELETE nodes/{public_id}/planned-health",
    "nodes_drain": "POST nodes/drain",
    "node_health": "POST nodes/{public_id}/health",
    "node_spare": "POST nodes/{public_id}/spare",
    "node_boundaries": "PUT nodes/{public_id}/boundaries",
    "gpu_health": "POST gpus/{public_id}/health",
    "gpu_geometry": "PUT gpus/{public_id}/geometry, DELETE gpus/{public_id}/geometry",
    "what-if-new": "POST what-ifs",
    "trace-new": "POST traces",
    "trace-own": "POST traces/own",
    "trace-remove": "DELETE traces/{public_id}",
    "sweep-new": "POST sweeps",
    "sweep-end": "DELETE sweeps/{public_id}",
    "what-if-end": "DELETE what-ifs/{public_id}",
    # telemetry and health
    "source_new": "POST telemetry/sources",
    "source_edit": "PATCH telemetry/sources/{public_id}",
    "source_test": "POST telemetry/sources/{public_id}/test",
    "source_remove": "DELETE telemetry/sources/{public_id}",
    "defragment": "POST defragmentations",
    "defragment_stop": "POST defragmentations/{public_id}/stop",
    "health_rule_new": "POST health/rules, POST health/rules/dry-run",
    "health_limits": "PATCH health/limits",
    "health_rule": "PATCH health/rules/{rule_id}, POST health/rules/dry-run",
    "health_rule_remove": "DELETE health/rules/{rule_id}",
    "alert_rule_new": "POST alerts/rules",
    "alert_rule": "PATCH alerts/rules/{rule_id}",
    "alert_rule_test": "POST alerts/rules/{rule_id}/test",
    "alert_rule_remove": "DELETE alerts/rules/{rule_id}",
    "silence_new": "POST alerts/silences",
    "silence_end": "DELETE alerts/silences/{silence_id}",
    "alert_acknowledge": "POST alerts/{alert_id}/acknowledge",
    "idle_policy": "PUT idle/policies/{quota_id}",
    "idle_policy_remove": "DELETE idle/policies/{quota_id}",
    "idle_exemption_new": "POST idle/exemptions",
    "idle_exemption_end": "DELETE idle/exemptions/{exemption_id}",
    "idle_notify": "POST idle/{episode_id}/notify",
    "idle_reclaim": "POST idle/{episode_id}/reclaim",
    "idle_snooze": "POST idle/{episode_id}/snooze",
    # quotas, people, money
    "reservation_new": "POST reservations, POST reservations/preview",
    "reservation_edit": "PATCH reservations/{public_id}",
    "reservation_decide": "POST reservations/{public_id}/approve, POST reservations/{public_id}/deny",
    "reservation_end": "POST reservations/{public_id}/end-window",
    "reservation_cancel": "POST reservations/{public_id}/cancel",
    "reservation_undo": "POST reservations/{public_id}/undo",
    "quota-root-new": "POST quotas",
    "quota-new": "POST quotas",
    "quota-edit": "PUT quotas/{public_id}",
    "quota-move": "POST quotas/{public_id}/move",
    "quota-archive": "POST quotas/{public_id}/archive",
    "quota-restore": "POST quotas/{public_id}/restore",
    "quota-editor": "POST quota-changes, PUT quota-changes/{public_id}, POST quota-changes/preview",
    "quota-change-step": "POST quota-changes/{public_id}/steps",
    "quota-week": "POST quota-changes/{public_id}/week, DELETE quota-changes/{public_id}/week",
    "quota-import": "POST quota-file",
    "role-new": "POST quotas/{public_id}/roles",
    "role-end": "DELETE roles/{role_id}",
    "energy_rate_new": "POST energy/rates",
    "energy_rate": "PATCH energy/rates/{public_id}",
    "energy_rate_remove": "DELETE energy/rates/{public_id}",
    "power_cap_new": "POST power/caps",
    "power_cap": "PATCH power/caps/{public_id}",
    "power_cap_remove": "DELETE power/caps/{public_id}",
    "power_rating": "PUT power/ratings/{gpu_type}",
    "budget_new": "POST budgets",
    "budget_edit": "PATCH budgets/{public_id}",
    "budget_exception": "POST budgets/{public_id}/exception, DELETE budgets/{public_id}/exception",
    "budget_remove": "DELETE budgets/{public_id}",
    "cost_exports": "POST cost-exports, POST costs/{month}/exports",
    "cost_mails": "POST cost-mails",
    "cost_mail_send": "POST cost-mails/{public_id}/send",
    "cost_mail_remove": "DELETE cost-mails/{public_id}",
    "cost_close": "POST costs/{month}/close",
    "cost_invoice": "POST costs/{month}/reconciliations",
    "rate_card_new": "POST rate-cards",
    "rate_card_edit": "PUT rate-cards/{public_id}",
    "rate_card_activate": "POST rate-cards/{public_id}/activate",
    "rate_card_discard": "DELETE rate-cards/{public_id}",
    "person-new": "POST people",
    "person-edit": "PUT people/{public_id}",
    "person-active": "POST people/{public_id}/activate, POST people/{public_id}/deactivate",
    "person-reset": "POST people/{public_id}/reset",
    "token-new": "POST tokens",
    "token-revoke": "DELETE tokens/{public_id}",
}
# What no program does.
OF_THE_BROWSER = {
    "columns": "A browser keeps which columns a list shows, in a cookie.",
    "job_draft": "A form keeps what is half typed; a program keeps its text itself, or submits a job with `draft`.",
    "job_draft_delete": "The same.",
    "account_login": "A program has a token.",
    "account_logout": "The same.",
    "account_change_password": "Whoever has a token is not to get a password by it.",
    "first_password": "The same.",
}


def _names(patterns: list[URLPattern | URLResolver], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for pattern in patterns:
        route = prefix + str(pattern.pattern)
        if isinstance(pattern, URLResolver):
            found |= _names(pattern.url_patterns, route)
        else:
            found[route] = pattern.name or route
    return found


def test_whatever_a_page_writes_the_api_writes():
    names = _names(get_resolver().url_patterns)
    written = {names[expect.route] for expect in EXPECTED if expect.method == "POST" and not expect.is_api}

    assert written == WRITES.keys() | OF_THE_BROWSER.keys(), "State the operation of the API that does the same as the page."
    assert not WRITES.keys() & OF_THE_BROWSER.keys()


def test_each_operation_that_is_named_is_there():
    paths = api.get_openapi_schema()["paths"]
    there = {f"{method.upper()} {path.removeprefix('/api/v1/')}" for path, methods in paths.items() for method in methods}
    named = {operation for operations in WRITES.values() for operation in operations.split(", ")}

    assert named - there == set()
