"""`gpufleet inventory import FILE [--apply]` and `gpufleet inventory discover`: hardware from files and from this machine, without a browser."""

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.hardware.discovery import NothingFound, machine_read
from scheduler.imports.documents import FORMATS, Unreadable, decoded, format_of
from scheduler.presenters.hardware import difference_lines
from scheduler.services.hardware.discovery import machine_document
from scheduler.services.hardware.imports import Preview, import_apply, import_preview


class Command(BaseCommand):
    help = "Show what a file, or a look at this machine, would change in the inventory; with --apply, change it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        read = actions.add_parser("import", help="from a YAML, JSON or CSV file; - reads standard input")
        read.add_argument("file")
        read.add_argument("--format", choices=FORMATS, help="by default the ending of the file's name tells")
        read.add_argument("--remove-missing", action="store_true", help="take out of the fleet what the file leaves out and nothing runs on")
        look = actions.add_parser("discover", help="from the NVIDIA driver of this machine")
        look.add_argument("--cluster", default="", help="where the machine belongs; by default where it is already, or local")
        look.add_argument("--print", action="store_true", help="only print what was found, as a file for an import elsewhere")
        for action in (read, look):
            action.add_argument("--apply", action="store_true", help="make the changes that are shown")
            action.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "import":
            source, text, form = self._file(options)
        else:
            source, text, form = self._machine(options)
            if options["print"]:
                self.stdout.write(text, ending="")
                return
        access = command_line_access()
        preview = import_preview(access=access, text=text, form=form, source=source, remove_missing=bool(options.get("remove_missing")), now=now())
        self._tell(preview, source)
        if preview.upload is None or not options["apply"]:
            if preview.upload is not None:
                self.stdout.write(f"Nothing was changed. Run it again with --apply, or apply {preview.upload.public_id} in the console.")
            return
        try:
            import_apply(access=access, upload=preview.upload, now=now())
        except Conflict as fault:
            raise CommandError(str(fault)) from fault
        self.stdout.write("Applied.")

    def _file(self, options: dict[str, Any]) -> tuple[str, str, str]:
        name = options["file"]
        form = options["format"] or format_of(name)
        if not form:
            raise CommandError(f"{name}: say what it is with --format {'|'.join(FORMATS)}; its name does not tell.")
        try:
            text = decoded(sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes())
        except OSError as fault:
            raise CommandError(f"{name}: {fault.strerror}.") from fault
        except Unreadable as fault:
            raise CommandError("\n".join(f"{name}:{line}" for line in fault.faults), returncode=2) from fault
        return Path(name).name if name != "-" else "standard input", text, form

    def _machine(self, options: dict[str, Any]) -> tuple[str, str, str]:
        try:
            machine = machine_read(virtual=settings.VIRTUAL_GPUS)
        except NothingFound as nothing:
            tried = "\n".join(f"  tried: {line}" for line in nothing.tried)
            advice = "\n".join(f"  {line}" for line in nothing.advice)
            raise CommandError(f"No GPU could be asked.\n{tried}\n{advice}", returncode=3) from nothing
        for note in machine.notes:
            self.stderr.write(note)
        return f"discovery of {machine.name}", machine_document(machine, options["cluster"]), "yaml"

    def _tell(self, preview: Preview, source: str) -> None:
        if preview.faults:
            lines = "\n".join(f"{source}:{fault}" for fault in preview.faults)
            raise CommandError(f"{lines}\n{len(preview.faults)} faults; nothing was changed.", returncode=2)
        for change in preview.plan.changes:
            fields = "; ".join(f"{name}: {before} -> {after}" for name, before, after in difference_lines(change))
            notes = ", ".join(change.notes)
            self.stdout.write(" ".join(part for part in (f"{change.kind:8}", change.what, change.name, fields, notes and f"({notes})") if part))
        counts = ", ".join(f"{count} {kind}" for kind, count in preview.plan.counts_of())
        self.stdout.write(counts or "Nothing to change.")


def command_line_access() -> Access:
    """Whoever may run programs as the console's own user may operate the fleet; the audit log names that account."""
    actor = Actor(user=None, name=f"{getpass.getuser()} (command line)", via="command")
    return Access(actor, (Grant("", frozenset({Can.SEE, Can.OPERATE})),))
