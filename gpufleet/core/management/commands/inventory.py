"""`gpufleet inventory import|discover|connect-slurm|slurm|slurm-accounts|connect-kubernetes|kubernetes`: hardware without a browser."""

import getpass
import sys
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.management.base import BaseCommand, CommandError

from gpufleet.core.audit import Actor
from gpufleet.core.faults import Conflict
from gpufleet.core.times import now
from quotas.permissions import Access, Can, Grant
from scheduler.backends.base import BackendError
from scheduler.backends.slurm.values import Settings
from scheduler.hardware.discovery import NothingFound, machine_read
from scheduler.hardware.kubernetes import Described
from scheduler.hardware.slurm import Found, KnownType, UnknownType
from scheduler.imports.documents import FORMATS, KUBERNETES, Unreadable, decoded, format_of
from scheduler.presenters.hardware import difference_lines
from scheduler.services.hardware import kubernetes
from scheduler.services.hardware.checks import Step, StepsFailed
from scheduler.services.hardware.discovery import machine_document
from scheduler.services.hardware.imports import Preview, import_apply, import_preview
from scheduler.services.hardware.slurm import slurm_connect, slurm_document
from scheduler.services.hardware.slurm_accounts import accounts_propose, accounts_read
from scheduler.services.hardware.slurm_imports import import_every


class Command(BaseCommand):
    help = "Show what a file, or a look at this machine, would change in the inventory; with --apply, change it."

    def add_arguments(self, parser: ArgumentParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        read = actions.add_parser("import", help="from a YAML, JSON or CSV file; - reads standard input")
        read.add_argument("file")
        read.add_argument("--format", choices=(*FORMATS, KUBERNETES), help="by default by the file name; kubernetes: kubectl get nodes -o json")
        read.add_argument("--cluster", default="", help="of nodes of Kubernetes, which do not name one (default: kubernetes)")
        read.add_argument("--remove-missing", action="store_true", help="take out of the fleet what the file leaves out and nothing runs on")
        look = actions.add_parser("discover", help="from the NVIDIA driver of this machine")
        look.add_argument("--cluster", default="", help="where the machine belongs; by default where it is already, or local")
        look.add_argument("--print", action="store_true", help="only print what was found, as a file for an import elsewhere")
        connect = actions.add_parser("connect-slurm", help="try each step of the way to a Slurm cluster, and keep how it is reached")
        connect.add_argument("--cluster", required=True, help="name of the cluster; it is made where there is none")
        connect.add_argument("--folder", required=True, help="for logs and checkpoints, at the same path on the console and on every node")
        connect.add_argument("--conf", default="", help="path of slurm.conf; by default the machine's own")
        connect.add_argument("--partition", default="", help="by default the default partition")
        connect.add_argument("--account", default="", help="account that jobs are charged to in Slurm")
        connect.add_argument("--user", default="", help="user that jobs run as; needed where the console runs as root")
        connect.add_argument("--rest-url", default="", help="of slurmrestd, for reading; by default Slurm's commands")
        connect.add_argument("--node-logs", default="", help="folder of the nodes for logs, copied when asked for; by default the shared one")
        connect.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")
        slurm = actions.add_parser("slurm", help="from a Slurm cluster that is connected: nodes, GPUs, features, switches")
        slurm.add_argument("--cluster", required=True)
        slurm.add_argument("--gpu-type", action="append", default=[], metavar="GRES=NAME[:MIB]", help="type of the inventory for a type of GRES")
        slurm.add_argument("--remove-missing", action="store_true", help="take out of the fleet what Slurm no longer has and nothing runs on")
        slurm.add_argument("--every", type=int, metavar="MINUTES", help="from now on import it by itself so often; 0: never")
        slurm.add_argument("--print", action="store_true", help="only print what was found, as a file for an import elsewhere")
        join = actions.add_parser("connect-kubernetes", help="try each step of the way to a Kubernetes cluster, and keep how it is reached")
        join.add_argument("--cluster", required=True, help="name of the cluster; it is made where there is none")
        join.add_argument("--context", help="of the kubeconfig that GPUFLEET_KUBECONFIG names; in-cluster: the service account of the console's pod")
        join.add_argument("--namespace", help="where pods are made; by default that of the context")
        join.add_argument("--image", help="of jobs that name none")
        join.add_argument("--service-account", help="of the pods; by default that of the namespace")
        join.add_argument("--pull-secret", help="name of a Secret with which images are pulled")
        join.add_argument("--levels", help="labels of nodes that become levels, wide to narrow: LABEL=LEVEL,…; none: no label")
        join.add_argument("--runtime-class", help="of the pods, such as nvidia")
        join.add_argument("--priority-class", help="of the pods")
        join.add_argument("--tolerates", help="keys of taints, with commas between them, beside nvidia.com/gpu")
        join.add_argument("--uid", type=int, help="user id that pods run as; by default what their image says")
        join.add_argument("--claim", help="volume claim for checkpoints")
        join.add_argument("--mount", help="where pods see that volume")
        join.add_argument("--checkpoints", dest="checkpoint_folder", help="where the console sees the same volume; by default it does not")
        join.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")
        live = actions.add_parser("kubernetes", help="from a Kubernetes cluster that is connected: nodes and their GPUs")
        live.add_argument("--cluster", required=True)
        live.add_argument("--remove-missing", action="store_true", help="take out of the fleet what Kubernetes no longer has and nothing runs on")
        live.add_argument("--every", type=int, metavar="MINUTES", help="from now on import it by itself so often; 0: never")
        live.add_argument("--print", action="store_true", help="only print what was found, as a file for an import elsewhere")
        accounts = actions.add_parser("slurm-accounts", help="show what accounts of a Slurm cluster would change of the quotas")
        accounts.add_argument("--cluster", required=True)
        accounts.add_argument("--under", default="", metavar="PATH", help="quota node that the accounts lie below; by default the top")
        accounts.add_argument("--propose", action="store_true", help="keep that as a draft of a change of quotas, to be previewed and applied there")
        accounts.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")
        for action in (read, look, slurm, live):
            action.add_argument("--apply", action="store_true", help="make the changes that are shown")
            action.add_argument("--data-dir", help="folder of an embedded console (default: GPUFLEET_DATA_DIR, or ./data)")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["action"] == "connect-slurm":
            self._connect(options)
            return
        if options["action"] == "connect-kubernetes":
            self._connect_kubernetes(options)
            return
        if options["action"] == "slurm-accounts":
            self._accounts(options)
            return
        notes: tuple[str, ...] = ()
        if options["action"] == "import":
            source, text, form = self._file(options)
        elif options["action"] == "slurm":
            read = self._slurm(options)
            source, text, form, notes = f"Slurm of {options['cluster']}", read.text, "yaml", read.notes
        elif options["action"] == "kubernetes":
            found = self._kubernetes(options)
            source, text, form, notes = f"Kubernetes of {options['cluster']}", found.text, "yaml", found.notes
        else:
            source, text, form = self._machine(options)
        if options.get("print"):
            self.stdout.write(text, ending="")
            for note in notes:
                self.stderr.write(note)
            return
        access = command_line_access()
        preview = import_preview(
            access=access,
            text=text,
            form=form,
            source=source,
            remove_missing=bool(options.get("remove_missing")),
            cluster=str(options.get("cluster") or ""),
            notes=notes,
            now=now(),
        )
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
            raise CommandError(f"{name}: state the format with --format {'|'.join(FORMATS)}; its name does not show the format.")
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
            raise CommandError(f"No GPU could be read.\n{tried}\n{advice}", returncode=3) from nothing
        for note in machine.notes:
            self.stderr.write(note)
        return f"discovery of {machine.name}", machine_document(machine, options["cluster"]), "yaml"

    def _connect(self, options: dict[str, Any]) -> None:
        names = ("conf", "partition", "account", "user", "folder", "rest_url", "node_logs")
        chosen = Settings(**{name: options[name] for name in names})
        try:
            made = slurm_connect(access=command_line_access(), cluster=options["cluster"], settings=chosen, now=now())
        except ValidationError as fault:
            told = [f"--{name.replace('_', '-')}: {' '.join(messages)}" for name, messages in fault.message_dict.items()]
            raise CommandError("\n".join(told), returncode=2) from fault
        except StepsFailed as fault:
            self._steps(fault.steps)
            raise CommandError("Nothing was changed.", returncode=3) from fault
        self._steps(made.steps)
        if made.told:
            self.stdout.write(made.told)
        self.stdout.write(f"Connected. Import its nodes with: gpufleet inventory slurm --cluster {options['cluster']}")

    def _connect_kubernetes(self, options: dict[str, Any]) -> None:
        """What is not stated keeps its value."""
        names = {name: "checkpoint_folder" if name == "folder" else name for name in kubernetes.KEPT}
        given = {name: options[option] for name, option in names.items() if options[option] is not None}
        try:
            chosen = kubernetes.kubernetes_asked(options["cluster"], given)
            made = kubernetes.kubernetes_connect(access=command_line_access(), cluster=options["cluster"], settings=chosen, now=now())
        except ValidationError as fault:
            options_of = {name: "checkpoints" if name == "folder" else name.replace("_", "-") for name in fault.message_dict}
            told = [f"--{options_of[name]}: {' '.join(said)}" for name, said in fault.message_dict.items()]
            raise CommandError("\n".join(told), returncode=2) from fault
        except StepsFailed as fault:
            self._steps(fault.steps)
            raise CommandError("Nothing was changed.", returncode=3) from fault
        self._steps(made.steps)
        self.stdout.write(f"Connected. Import its nodes with: gpufleet inventory kubernetes --cluster {options['cluster']}")

    def _kubernetes(self, options: dict[str, Any]) -> Described:
        self._every(options)
        try:
            return kubernetes.kubernetes_document(cluster=options["cluster"])
        except ValidationError as fault:
            raise CommandError("\n".join(fault.messages), returncode=2) from fault
        except Unreadable as fault:
            raise CommandError("\n".join(str(line) for line in fault.faults), returncode=3) from fault
        except BackendError as fault:
            raise CommandError(str(fault), returncode=3) from fault

    def _steps(self, steps: list[Step]) -> None:
        for step in steps:
            self.stdout.write(f"{step.result:7}  {step.name:21}  {step.told}")
            for finding in filter(lambda one: one.do, step.findings):
                self.stdout.write(f"{'':32}{finding.do}")

    def _every(self, options: dict[str, Any]) -> None:
        if options["every"] is None:
            return
        try:
            row = import_every(access=command_line_access(), cluster=options["cluster"], minutes=options["every"], now=now())
        except ValidationError as fault:
            raise CommandError("\n".join(fault.messages), returncode=2) from fault
        self.stdout.write(f"Imported by itself every {row.import_minutes} minutes." if row.import_minutes else "Not imported by itself.")

    def _slurm(self, options: dict[str, Any]) -> Found:
        self._every(options)
        types = {}
        for word in options["gpu_type"]:
            gres, equals, known = word.partition("=")
            name, _, memory = known.partition(":")
            if not equals or not gres or not name or (memory and not memory.isdigit()):
                raise CommandError(f"--gpu-type {word}: write GRES=NAME or GRES=NAME:MIB, for example h100=H100-SXM-80GB:81559.", returncode=2)
            types[gres] = KnownType(name, int(memory) if memory else None)
        try:
            return slurm_document(cluster=options["cluster"], types=types)
        except ValidationError as fault:
            raise CommandError("\n".join(fault.messages), returncode=2) from fault
        except (UnknownType, BackendError) as fault:
            raise CommandError(str(fault), returncode=3) from fault

    def _accounts(self, options: dict[str, Any]) -> None:
        access = command_line_access(Can.ADMINISTER, Can.EDIT_QUOTA)
        try:
            read = accounts_read(access=access, cluster=options["cluster"], under=options["under"])
            for line in read.lines:
                self.stdout.write(line)
            for line in read.left_out:
                self.stdout.write(f"left out {line}")
            draft = accounts_propose(access=access, cluster=options["cluster"], read=read, now=now()) if options["propose"] else None
        except ValidationError as fault:
            raise CommandError("\n".join(fault.messages), returncode=2) from fault
        except BackendError as fault:
            raise CommandError(str(fault), returncode=3) from fault
        if not read.edits:
            self.stdout.write("Nothing to change.")
        elif draft is None:
            self.stdout.write("Nothing was changed. Run it again with --propose to keep this as a draft.")
        else:
            self.stdout.write(f"Draft {draft.public_id}: preview and apply it on the page Quota changes.")

    def _tell(self, preview: Preview, source: str) -> None:
        if preview.faults:
            lines = "\n".join(f"{source}:{fault}" for fault in preview.faults)
            raise CommandError(f"{lines}\n{len(preview.faults)} problems; nothing was changed.", returncode=2)
        for change in preview.plan.changes:
            fields = "; ".join(f"{name}: {before} -> {after}" for name, before, after in difference_lines(change))
            notes = ", ".join(change.notes)
            self.stdout.write(" ".join(part for part in (f"{change.kind:8}", change.what, change.name, fields, notes and f"({notes})") if part))
        for note in preview.notes:
            self.stdout.write(f"{'note':8} {note}")
        counts = ", ".join(f"{count} {kind}" for kind, count in preview.plan.counts_of())
        self.stdout.write(counts or "Nothing to change.")


def command_line_access(*more: Can) -> Access:
    """Whoever may run programs as the console's own user may operate the fleet; the audit log names that account."""
    actor = Actor(user=None, name=f"{getpass.getuser()} (command line)", via="command")
    return Access(actor, (Grant("", frozenset({Can.SEE, Can.OPERATE, *more})),))
