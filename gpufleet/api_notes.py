"""What is the same for many operations of the API and is told once: what the parts of addresses are, and which tokens get in."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

# By the step of the address before it: what the parameter names, and one of them.
PLACES: dict[str, tuple[str, Any]] = {
    "arrays": ("Id of the array.", "a-3"),
    "audit": ("Number of an entry of the audit log.", 9044),
    "batches": ("Id of the batch, as the answer to `POST /jobs/bulk` has it.", "b-5f0c2a91d3e4"),
    "clusters": ("Name of the cluster.", "alpha"),
    "defragmentations": ("Id of the defragmentation.", "df-8"),
    "deliveries": ("Id of a message to the webhook.", "dl-4be1a09c77d2f6e81b3a5c90"),
    "gpus": ("Id of the GPU.", "g-130"),
    "alerts": ("Id of the alert.", "al-31"),
    "incidents": ("Id of the incident.", "in-12"),
    "rules": ("Id of the rule.", "hr-3"),
    "silences": ("Id of the silence.", "si-5"),
    "exemptions": ("Id of the exemption.", "x-6"),
    "home": ("Page of Home: `overview`, `home_team`, `home_on_call` or `home_month`.", "home_team"),
    "idle": ("Id of the idle episode.", "e-21"),
    "policies": ("Id of the node of the tree that states the policy.", "q-9"),
    "imports": ("Id of the import, as its preview has it.", "i-3"),
    "jobs": ("Id of the job.", "j-417"),
    "nodes": ("Id of the node.", "n-17"),
    "planned-changes": ("Id of the planned change, as the answer to `POST /jobs/bulk` has it.", "pc-3"),
    "people": ("Id of the person.", "u-12"),
    "plans": ("Number of the plan.", 88120),
    "pools": ("Name of the pool.", "train"),
    "quota-changes": ("Id of the change.", "qc-3"),
    "quotas": ("Id of the node of the tree.", "q-9"),
    "roles": ("Number of the role, as lists of roles have it as `id`.", 31),
    "schedules": ("Id of the schedule.", "s-3"),
    "reservations": ("Id of the reservation.", "r-7"),
    "budgets": ("Id of the budget.", "b-4"),
    "caps": ("The power cap.", "pc-3"),
    "rates": ("The energy rate.", "er-3"),
    "ratings": ("The GPU type.", "H100-SXM-80GB"),
    "cost-exports": ("Id of the export.", "ce-8"),
    "cost-mails": ("Id of the e-mail.", "cm-6"),
    "costs": ("The month, as YYYY-MM.", "2026-03"),
    "rate-cards": ("Id of the rate card.", "rc-2"),
    "sources": ("Id of the Prometheus server.", "ps-1"),
    "templates": ("What a description names as its `template`: `notebook`, or `org/team:name` with `@3` for one version.", "acme/research/nlp:serve"),
    "fingerprints": ("What a description names as its `template`: `notebook`, or `org/team:name`.", "acme/research/nlp:serve"),
    "throughput": ("What a description names as its `template`: `notebook`, or `org/team:name`.", "acme/research/nlp:serve"),
    "traces": ("Id of the trace.", "tr-5"),
    "sweeps": ("Id of the sweep.", "sw-3"),
    "tokens": ("Id of the token; not its secret.", "t-9"),
    "views": ("Id of the saved view.", "v-2"),
    "webhooks": ("Id of the webhook.", "w-4"),
    "what-ifs": ("Id of the what-if.", "wi-12"),
}

ANY = ("read", "submit", "operate", "admin")
WRITING = ("submit", "operate", "admin")
STEERING = ("submit", "operate")
OPERATING = ("operate",)
HOOKING = ("operate", "admin")
_BY_SCOPES: dict[tuple[str, ...], str] = {
    (): "checkpoint_report step_times_report clock_choose home_order_put home_order_delete own_webhook_put own_webhook_delete",
    ("read",): "costs_read costs_file costs_of_period costs_file_of_period cost_export_make cost_export_make_of_period cost_exports cost_export"
    " cost_export_file reconciliations audit_entries audit_entry",
    ("read", "admin"): "rate_cards rate_card",
    ("submit",): "job_fit job_submit job_copy job_batch schedule_make",
    OPERATING: (
        "telemetry_sources telemetry_source_create telemetry_source_get telemetry_source_change telemetry_source_delete telemetry_source_test "
        "gpu_geometry gpu_geometry_delete gpu_health node_health node_boundaries nodes_drain_write planned_health_delete node_spare pause resume "
        "cluster_give_up_write cluster_remove_write "
        "cluster_slurm cluster_slurm_put cluster_slurm_types cluster_slurm_import cluster_slurm_every cluster_local_add "
        "cluster_kubernetes cluster_kubernetes_put cluster_kubernetes_import cluster_kubernetes_every "
        "cluster_outside inventory_discovery inventory_preview inventory_import inventory_apply"
        " health_rule_create health_rule_try health_rule_change health_rule_delete health_limits_change alert_rule_make alert_rule_update"
        " cluster_outside power_cap_make power_cap_update power_cap_delete power_rating"
        " energy_rate_make energy_rate_update energy_rate_delete energy_forecast_put energy_forecast_delete"
        " alert_rule_delete alert_rule_try silence_make silence_delete alert_take fleet_defragmentation defragmentation_create defragmentation_end"
    ),
    ("admin",): "cluster_slurm_accounts group_rule_list person_list person_get person_new person_change person_return person_end person_reset"
    " reservation_approved reservation_denied budget_make budget_update budget_delete budget_except budget_exception_over"
    " costs_close reconciliation_make cost_mails cost_mail_make cost_mail_send cost_mail_delete rate_card_make rate_card_put"
    " rate_card_activate rate_card_effects rate_card_delete"
    " quota_change_make quota_change_look quota_change_edit quota_change_step quota_file_import quota_week_ask quota_week_cancel"
    " quota_create quota_update quota_archive quota_move quota_restore role_create role_delete token_new token_delete",
    STEERING: "job_batch_undone service_level_put service_level_delete idle_notify idle_reclaim idle_snooze job_connected"
    " jobs_bulk job_view_update job_change job_change_look job_replicas_put job_replicas_look job_replacement_begin"
    " job_replacement_look job_replacement_stopped job_end job_save job_queued job_undeferred job_held job_released"
    " job_again job_said job_output job_output_search job_plan_call_off"
    " array_act job_output_stream job_earlier schedule_delete schedule_update schedule_hold schedule_go_on schedule_run",
    HOOKING: "idle_policy_put idle_policy_delete idle_exemption_create idle_exemption_delete"
    " webhooks webhook webhook_create webhook_update webhook_delete webhook_rotate webhook_try deliveries delivery delivery_again"
    " what_if_make what_if_options what_if_end trace_make trace_delete own_past own_trace_make sweep_make sweep_stop",
    WRITING: "reservation_make reservation_look reservation_update reservation_ended reservation_put_back reservation_window_ended"
    " job_view_create job_view_delete job_followed job_unfollowed notice_choices_put notices_mark notices_try template_put template_gone"
    " throughput_put",
}
# Of a token with any one of them, as far as the role of its owner reaches. What is not named is open to all.
SCOPES = {name: scopes for scopes, names in _BY_SCOPES.items() for name in names.split()}


@cache
def fields() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("api_fields.yaml").read_text())
    return read


def with_notes(document: dict[str, Any]) -> dict[str, Any]:
    """The same description with what every address names, what every field means, and the scopes that let a token through (`x-token-scopes`)."""
    for name, schema in document["components"]["schemas"].items():
        own = fields()["schemas"].get(name, {})
        for key, field in schema.get("properties", {}).items():
            if note := own.get(key) or fields()["words"].get(key):
                field.setdefault("description", note)
    for path, methods in document["paths"].items():
        steps = path.split("/")
        for operation in methods.values():
            operation["x-token-scopes"] = list(SCOPES.get(operation["operationId"], ANY))
            for row in operation.get("parameters", ()):
                if row["in"] == "path":
                    place = steps[steps.index(f"{{{row['name']}}}") - 1]
                    row["description"], row["example"] = PLACES[place]
                elif note := row["schema"].get("description"):
                    row.setdefault("description", note)
    return document
