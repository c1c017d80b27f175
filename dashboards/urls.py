from django.urls import path

from dashboards import views
from dashboards.alerts import views as alerts
from dashboards.fragmentation import views as fragmentation
from dashboards.gap import views as gap
from dashboards.health import views as health
from dashboards.home import views as home
from dashboards.idle import views as idle
from dashboards.prometheus import views as sources
from dashboards.slo import views as slo

urlpatterns = [
    path("", home.home, name="home"),
    path("overview/", home.fleet, name="overview"),
    path("home/team/", home.team, name="home_team"),
    path("home/on-call/", home.on_call, name="home_on_call"),
    path("home/waits/", home.waits, name="home_waits"),
    path("home/order/", home.order, name="home_order"),
    path("home/month/", home.month, name="home_month"),
    path("overview/history", views.overview_history, name="overview-history"),
    path("gpus/<slug:public_id>/course", views.gpu_course_chart, name="gpu-course"),
    path("nodes/<slug:public_id>/course", views.node_course_chart, name="node-course"),
    path("clusters/<slug:name>/course", views.cluster_course_chart, name="cluster-course"),
    path("clusters/<slug:name>/pools/<slug:pool>/course", views.pool_course_chart, name="pool-course"),
    path("quotas/<slug:public_id>/course", views.team_course_chart, name="quota-course"),
    path("jobs/<slug:public_id>/course", views.job_course_chart, name="job-course"),
    path("jobs/<slug:public_id>/service-level/", slo.service_level_edit, name="job_service_level"),
    path("jobs/<slug:public_id>/service-level/remove/", slo.service_level_remove_page, name="job_service_level_remove"),
    path("jobs/<slug:public_id>/service-level/course", slo.service_level_course, name="job-service-course"),
    path("fleet/", views.fleet_map, name="fleet"),
    path("telemetry/", sources.source_list, name="sources"),
    path("telemetry/new/", sources.source_new, name="source_new"),
    path("telemetry/<slug:public_id>/", sources.source_edit, name="source_edit"),
    path("telemetry/<slug:public_id>/test/", sources.source_test_write, name="source_test"),
    path("telemetry/<slug:public_id>/remove/", sources.source_remove, name="source_remove"),
    path("fragmentation/", fragmentation.fragmentation_page, name="fragmentation"),
    path("fragmentation/defragment", fragmentation.defragment, name="defragment"),
    path("fragmentation/defragmentations/<str:public_id>/stop", fragmentation.defragment_stop, name="defragment_stop"),
    path("fragmentation/history", fragmentation.fragmentation_history, name="fragmentation-history"),
    path("gap/", gap.gap_page, name="gap"),
    path("gap/gpus/", gap.gap_gpus, name="gap-gpus"),
    path("gap/week/", gap.gap_week, name="gap-week"),
    path("gap/history", gap.gap_history, name="gap-history"),
    path("incidents/", health.incident_list, name="incidents"),
    path("incidents/rules/", health.rule_list, name="health_rules"),
    path("incidents/rules/new/", health.rule_new, name="health_rule_new"),
    path("incidents/rules/limits/", health.limits_edit, name="health_limits"),
    path("incidents/rules/<slug:public_id>/", health.rule_edit, name="health_rule"),
    path("incidents/rules/<slug:public_id>/remove/", health.rule_remove_page, name="health_rule_remove"),
    path("incidents/<slug:public_id>/", health.incident_page, name="incident"),
    path("activity/", alerts.activity_page, name="activity"),
    path("activity/alerts/", alerts.alert_list, name="alerts"),
    path("activity/alerts/rules/", alerts.alert_rule_list, name="alert_rules"),
    path("activity/alerts/rules/new/", alerts.alert_rule_new, name="alert_rule_new"),
    path("activity/alerts/rules/<slug:public_id>/", alerts.alert_rule_edit, name="alert_rule"),
    path("activity/alerts/rules/<slug:public_id>/test/", alerts.alert_rule_test_write, name="alert_rule_test"),
    path("activity/alerts/rules/<slug:public_id>/remove/", alerts.alert_rule_remove_page, name="alert_rule_remove"),
    path("activity/alerts/silences/new/", alerts.silence_new, name="silence_new"),
    path("activity/alerts/silences/<slug:public_id>/end/", alerts.silence_end_write, name="silence_end"),
    path("activity/alerts/<slug:public_id>/", alerts.alert_page, name="alert"),
    path("activity/alerts/<slug:public_id>/acknowledge/", alerts.alert_acknowledge_write, name="alert_acknowledge"),
    path("idle/", idle.idle_list, name="idle"),
    path("idle/policies/", idle.idle_policies, name="idle_policies"),
    path("idle/policies/<slug:public_id>/", idle.idle_policy_edit, name="idle_policy"),
    path("idle/policies/<slug:public_id>/remove/", idle.idle_policy_remove, name="idle_policy_remove"),
    path("idle/exemptions/new/", idle.idle_exemption_new, name="idle_exemption_new"),
    path("idle/exemptions/<slug:public_id>/end/", idle.idle_exemption_end, name="idle_exemption_end"),
    path("idle/<slug:public_id>/", idle.idle_page, name="idle_episode"),
    path("idle/<slug:public_id>/notify/", idle.idle_notify_page, name="idle_notify"),
    path("idle/<slug:public_id>/reclaim/", idle.idle_reclaim_page, name="idle_reclaim"),
    path("idle/<slug:public_id>/snooze/", idle.idle_snooze_page, name="idle_snooze"),
]
