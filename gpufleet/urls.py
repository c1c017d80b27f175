"""Every address of the console. Each app owns its own list; what belongs to no app is here."""

from django.urls import include, path

from gpufleet import clock, columns, errors, health, live, metrics, search
from gpufleet.api import api

urlpatterns = [
    # First, as programs ask most often, and what stands behind a hundred others is found last.
    path("api/v1/", api.urls),
    path("", include("dashboards.urls")),
    path("", include("scheduler.urls")),
    path("", include("quotas.urls")),
    path("accounts/", include("gpufleet.accounts")),
    path("search/", search.search_page, name="search"),
    path("search/suggest", search.search_suggest, name="search_suggest"),
    path("clock", clock.clock_set, name="clock"),
    path("columns", columns.columns_set, name="columns"),
    path("", include(live.urlpatterns)),
    path("metrics", metrics.metrics, name="metrics"),
    path("healthz", health.healthz, name="healthz"),
]

handler400 = errors.bad_request
handler403 = errors.forbidden
handler404 = errors.not_found
handler429 = errors.too_many_requests
handler500 = errors.server_error
