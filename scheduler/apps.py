from django.apps import AppConfig


class SchedulerConfig(AppConfig):
    name = "scheduler"

    def ready(self) -> None:
        # Whoever asks for a plan calls a worker, from whatever program: Celery's own default would look for another broker.
        import gpufleet.celery  # noqa: F401
        from quotas.services.budgets import budget_turned
        from quotas.services.changes import tree_changed
        from scheduler.services.budgets import budget_seen
        from scheduler.services.loop.lease import tree_seen
        from scheduler.topics import topics_register

        topics_register()
        tree_changed.connect(tree_seen, dispatch_uid="tick")
        budget_turned.connect(budget_seen, dispatch_uid="budgets")
