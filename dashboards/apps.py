from django.apps import AppConfig


class DashboardsConfig(AppConfig):
    name = "dashboards"

    def ready(self) -> None:
        from dashboards.approvals import budget_told, change_told, reservation_told
        from dashboards.health.steps import steps_of_files
        from dashboards.topics import topics_register
        from quotas.services.changes import change_stepped
        from scheduler.services.budgets import budget_acted
        from scheduler.services.loop.observe import steps_seen
        from scheduler.services.windows.reservations import reservation_stepped

        topics_register()
        steps_seen.connect(steps_of_files, dispatch_uid="steps")
        change_stepped.connect(change_told, dispatch_uid="approvals")
        reservation_stepped.connect(reservation_told, dispatch_uid="approvals")
        budget_acted.connect(budget_told, dispatch_uid="approvals")
