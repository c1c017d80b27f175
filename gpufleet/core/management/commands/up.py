"""`gpufleet up`: the console, its worker and its clock in one process, with a demo fleet if wanted."""

import argparse
import ipaddress
import os
import shlex
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command, get_commands
from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError, connection, connections
from django.db.migrations.executor import MigrationExecutor

from gpufleet.core.private import folder_made_private
from gpufleet.core.sqlite.header import why_damaged
from gpufleet.core.upgrades import too_old

DAMAGED = "The database {path} cannot be used: {damage}. Restore it from a backup, or start with another --data-dir."
DEMO_SIZES = ("small", "large", "none")


def port_number(text: str) -> int:
    port = int(text)
    if not 0 < port < 65_536:
        raise argparse.ArgumentTypeError("a port is a number from 1 to 65535")
    return port


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


class Command(BaseCommand):
    help = "Run the whole console in one process: web server, worker and clock, over SQLite in the data folder."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
        parser.add_argument("--port", type=port_number, default=8000, help="port to listen on (default: 8000)")
        parser.add_argument("--demo", choices=DEMO_SIZES, default="none", help="fill an empty console with a simulated fleet (default: none)")
        parser.add_argument("--data-dir", help="folder that keeps everything (default: GPUFLEET_DATA_DIR, or ./data)")
        parser.add_argument(
            "--allow-demo-passwords", action="store_true", help="serve a demo, whose passwords everybody knows, to other machines as well"
        )

    def handle(self, *, host: str, port: int, demo: str, allow_demo_passwords: bool, **options: Any) -> None:
        if settings.PRODUCTION:
            raise CommandError(
                "gpufleet up is the one-process console. In the production profile web, worker and beat run apart: docs/operate/production.md."
            )
        from gpufleet import embedded
        from gpufleet.celery import app

        try:
            # Sessions, password hashes and the key lie there: nobody else on this machine reads them, and no file of ours is made readable.
            os.umask(0o077)
            folder_made_private(settings.DATA_DIR)
            path = settings.DATABASES["default"]["NAME"]
            if damage := why_damaged(Path(path)):
                raise CommandError(DAMAGED.format(path=path, damage=damage))
            with embedded.only_console(settings.DATA_DIR):
                listener = embedded.listen(host, port)
                self._migrate()
                held = self._demo(demo)
                if held != "none" and not is_loopback(host) and not allow_demo_passwords:
                    raise CommandError(
                        f"This data folder holds a demo whose passwords everybody knows, and {host} can be reached from other machines. "
                        "Leave --host away, use --demo none with a new --data-dir, or say --allow-demo-passwords."
                    )
                anybody = self._anybody()
                connections.close_all()
                shown = f"[{host}]" if ":" in host else host
                if is_loopback(host):
                    settings.OWN_URL = f"http://{shown}:{port}"
                status = embedded.serve(app, listener, lambda: self._announce(f"http://{shown}:{port}/", held, anybody=anybody))
        except embedded.CannotStart as error:
            raise CommandError(str(error)) from None
        except DatabaseError as error:
            path = settings.DATABASES["default"]["NAME"]
            raise CommandError(f"The database {path} cannot be used: {error}. Restore it from a backup, or start with another --data-dir.") from None
        if status:
            raise SystemExit(status)

    def _migrate(self) -> None:
        if why := too_old(connection):
            raise CommandError(why)
        executor = MigrationExecutor(connection)
        if executor.migration_plan(executor.loader.graph.leaf_nodes()):
            self.stdout.write("Preparing the database …")
            self.stdout.flush()
            call_command("migrate", verbosity=0, interactive=False)

    def _anybody(self) -> bool:
        from gpufleet.core.models import User

        return User.objects.exists()

    def _demo(self, wanted: str) -> str:
        """Seed the demo where there is none yet; returns which demo the folder now holds."""
        from gpufleet.core.models import Installation

        held = Installation.objects.values_list("demo", flat=True).first() or "none"
        if wanted in {"none", held}:
            return held
        if held != "none":
            self.stdout.write(f"This data folder holds the {held} demo, which is kept; for the {wanted} one name another folder with --data-dir.")
            return held
        if "seed_demo" not in get_commands():
            return "none"
        self.stdout.write(f"Seeding the {wanted} demo fleet …")
        self.stdout.flush()
        try:
            call_command("seed_demo", wanted, verbosity=0)
        except CommandError as error:
            self.stdout.write(f"No demo was put in: {error}")
            return "none"
        return wanted

    def _announce(self, address: str, demo: str, *, anybody: bool) -> None:
        lines = [f"gpufleet answers at {address}"]
        if demo != "none":
            lines.append("Sign in as oona (operator), tessa (team lead), fay (finance), vic (viewer) or root; the password is gpufleet-demo.")
        elif not anybody:
            # Quoted, as the folder may hold a space: the line is there to be copied.
            folder = shlex.quote(str(settings.DATA_DIR))
            lines.append(f"Nobody can sign in yet. Make the first person: gpufleet person create NAME --superuser --data-dir {folder}")
        lines.append("Ctrl-C stops it.")
        self.stdout.write("\n".join(lines))
        self.stdout.flush()
