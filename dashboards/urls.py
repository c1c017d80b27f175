from django.urls import path

from dashboards import views
from dashboards.idle import views as idle

urlpatterns = [
    path("", views.overview, name="overview"),
    path("overview/history", views.overview_history, name="overview-history"),
    path("fleet/", views.fleet_map, name="fleet"),
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
