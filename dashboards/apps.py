from django.apps import AppConfig


class DashboardsConfig(AppConfig):
    name = "dashboards"

    def ready(self) -> None:
        from dashboards.health.steps import steps_of_files
        from dashboards.topics import topics_register
        from scheduler.services.loop.observe import steps_seen

        topics_register()
        steps_seen.connect(steps_of_files, dispatch_uid="steps")
