"""The addresses of hardware, jobs and the scheduler."""

from django.urls import path

from scheduler.views import clusters, gpus, imports, jobs, loop, nodes, submitting, templates

urlpatterns = [
    path("jobs/", jobs.job_list, name="jobs"),
    path("jobs/new/", submitting.job_new, name="job_new"),
    path("jobs/new/look", submitting.job_look, name="job_look"),
    path("jobs/new/draft", submitting.job_draft_write, name="job_draft"),
    path("jobs/new/draft/<slug:public_id>/delete/", submitting.job_draft_delete, name="job_draft_delete"),
    path("jobs/<slug:public_id>/", jobs.job_page, name="job"),
    path("jobs/<slug:public_id>/log/", jobs.job_log_page, name="job_log"),
    path("jobs/<slug:public_id>/cancel/", jobs.job_cancel_page, name="job_cancel"),
    path("jobs/<slug:public_id>/hold/", jobs.job_hold_write, name="job_hold"),
    path("jobs/<slug:public_id>/release/", jobs.job_release_write, name="job_release"),
    path("templates/", templates.template_list, name="templates"),
    path("templates/edit/", templates.template_edit, name="template_edit"),
    path("templates/archive/", templates.template_end, name="template_end"),
    path("scheduler/pause/", loop.scheduler_pause_write, name="scheduler_pause"),
    path("scheduler/resume/", loop.scheduler_resume_write, name="scheduler_resume"),
    path("scheduler/scenario", loop.scenario_download, name="scenario"),
    path("scheduler/", loop.scheduler_page, name="scheduler"),
    path("scheduler/plans/<int:pk>/", loop.plan_page, name="plan"),
    path("scheduler/plans/<int:pk>/scenario", loop.plan_download, name="plan_scenario"),
    path("clusters/", clusters.cluster_list, name="clusters"),
    path("clusters/<slug:name>/", clusters.cluster_page, name="cluster"),
    path("nodes/", nodes.node_list, name="nodes"),
    path("nodes/<slug:public_id>/", nodes.node_page, name="node"),
    path("nodes/<slug:public_id>/health/", nodes.node_health, name="node_health"),
    path("nodes/<slug:public_id>/spare/", nodes.node_spare, name="node_spare"),
    path("gpus/", gpus.gpu_list, name="gpus"),
    path("gpus/catalogue/", gpus.mig_catalogue, name="mig_catalogue"),
    path("gpus/<slug:public_id>/", gpus.gpu_page, name="gpu"),
    path("gpus/<slug:public_id>/health/", gpus.gpu_health, name="gpu_health"),
    path("gpus/<slug:public_id>/geometry/", gpus.gpu_geometry, name="gpu_geometry"),
    path("inventory/import/", imports.inventory_import, name="inventory_import"),
    path("inventory/import/<slug:public_id>/", imports.inventory_preview, name="inventory_preview"),
    path("inventory/discover/", imports.inventory_discover, name="inventory_discover"),
]
