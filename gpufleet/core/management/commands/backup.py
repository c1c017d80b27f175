"""`gpufleet backup`: a whole copy of an embedded console, also while it runs."""

import argparse
import contextlib
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpufleet.core.private import folder_made_private

PAGES_AT_A_TIME = 4096


class Command(BaseCommand):
    help = "Copy an embedded console (database, key and uploads) into a new folder, also while it runs."
    requires_system_checks = []

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("folder", type=Path, help="where to put the copy; must not exist yet")

    def handle(self, *, folder: Path, **options: Any) -> None:
        database = settings.DATABASES["default"]
        if database["ENGINE"] != "gpufleet.core.sqlite":
            raise CommandError("This console keeps its data in PostgreSQL: use pg_dump, as docs/operate/production.md shows.")
        source: Path = database["NAME"]
        if not source.exists():
            raise CommandError(f"There is no database in {source.parent}.")
        os.umask(0o077)
        try:
            folder.mkdir(mode=0o700, parents=True)
        except OSError as error:
            raise CommandError(f"{folder} can't be made: {error.strerror}.") from None
        with contextlib.closing(sqlite3.connect(source)) as theirs, contextlib.closing(sqlite3.connect(folder / source.name)) as mine:
            theirs.backup(mine, pages=PAGES_AT_A_TIME)
            (verdict,) = mine.execute("PRAGMA quick_check").fetchone()
        if verdict != "ok":
            raise CommandError(f"The copy is damaged: {verdict}. Run gpufleet doctor on the console.")
        for name in ("secret_key", "media"):
            original = settings.DATA_DIR / name
            if original.is_dir():
                shutil.copytree(original, folder / name)
            elif original.exists():
                shutil.copy2(original, folder / name)
        folder_made_private(folder)
        self.stdout.write(f"Copied to {folder}.")
