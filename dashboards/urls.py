from django.urls import path

from dashboards import views

urlpatterns = [
    path("", views.overview, name="overview"),
    path("overview/history", views.overview_history, name="overview-history"),
    path("fleet/", views.fleet_map, name="fleet"),
]
