"""Django's own, which would otherwise name a missing migration in a stack trace where a database is too old for this version."""

from typing import Any

from django.core.management import CommandError
from django.core.management.commands.migrate import Command as Migrate
from django.db import connections

from gpufleet.core.upgrades import too_old


class Command(Migrate):
    help = "Brings the database to this version, or an app to one of its migrations."

    def handle(self, *args: Any, **options: Any) -> None:
        if why := too_old(connections[options["database"]]):
            raise CommandError(why)
        super().handle(*args, **options)
