"""One Slurm cluster: does each step of a job's way work, and do both sides say the same of its nodes?"""

import json
import os
import pwd
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from gpufleet.doctor import Check, Finding, some
from scheduler.backends.registry import slurm_settings
from scheduler.backends.slurm.client import Settings, SlurmClient, SlurmNode
from scheduler.backends.slurm.installing import SETTINGS, program_digest, program_text
from scheduler.models import SlurmCluster
from scheduler.services.hardware.slurm import Step, slurm_check
from scheduler.services.hardware.slurm_nodes import differences

DO = "Repair it as docs/operate/slurm.md says, then run the doctor again."


def checks_of(name: str) -> dict[str, Check]:
    row = SlurmCluster.objects.select_related("cluster").filter(cluster__name=name).first()
    if row is None:
        return {"connection": partial(_unknown, name)}
    steps = slurm_check(slurm_settings(row))
    checks: dict[str, Check] = {step.name: partial(_step, step) for step in steps}
    if row.import_minutes:
        checks["periodic import"] = partial(_imports, row)
    if steps[0].ok:
        client = SlurmClient(slurm_settings(row))
        checks["health of nodes"] = partial(_nodes, row)
        checks["nodes answer"] = partial(_answers, client)
        checks["versions of Slurm"] = partial(_versions, client)
        checks["verification on nodes"] = partial(_verification, client, slurm_settings(row))
    return checks


def _unknown(name: str) -> Iterator[Finding]:
    known = list(SlurmCluster.objects.order_by("cluster__name").values_list("cluster__name", flat=True))
    yield Finding(
        f"Cluster {name} is not connected to Slurm.",
        f"Connected: {some(known)}." if known else "No cluster is connected to Slurm.",
        "Connect it: gpufleet inventory connect-slurm.",
    )


def _step(step: Step) -> Iterator[Finding]:
    if not step.ok:
        yield Finding(f"{step.name}: {step.seen}", "Jobs for this cluster do not start until this works.", DO)


def _imports(row: SlurmCluster) -> Iterator[Finding]:
    if row.import_fault:
        told = f"The last import of {row.cluster.name} failed: {row.import_fault}"
        yield Finding(told, "The inventory may lag behind Slurm.", "Import it by hand: gpufleet inventory slurm.")
    if (waits := row.import_waits) is not None and waits.applied_at is None:
        yield Finding(
            f"Changes of {row.cluster.name} wait for an operator (preview {waits.public_id}).",
            "They move nodes, or change GPUs or how they are split.",
            "Look at the preview and apply it: the page of the cluster, Import from Slurm.",
            note=True,
        )


def _nodes(row: SlurmCluster) -> Iterator[Finding]:
    found = differences(row, SlurmClient(slurm_settings(row)).nodes())
    if found:
        told = [f"{one.node.name} ({one.node.health} here, {'+'.join(one.there.states).lower()} in Slurm)" for one in found]
        yield Finding(
            f"Slurm and the inventory differ on {some(told)}.",
            "They agree within 15 s when the worker runs and the console may change nodes in Slurm.",
            "Check that the console's user is an operator of Slurm (sacctmgr, or SlurmUser).",
        )


def _answers(client: SlurmClient) -> Iterator[Finding]:
    nodes = client.nodes()
    if silent := [node.name for node in nodes if any(state.startswith(("NOT_RESPONDING", "NO_RESPOND")) for state in node.states)]:
        yield Finding(f"Nodes do not answer Slurm: {some(silent)}.", "Nothing starts on them.", "Check slurmd and the network of these nodes.")
    if refused := [f"{node.name} ({node.reason})" for node in nodes if node.reason.startswith("gpufleet-verify ")]:
        yield Finding(
            f"Nodes refused a job: {some(refused)}.",
            "They did not have what was promised, or something was left on them. Slurm has drained them.",
            "docs/reasons.md explains each code. Repair the node, then scontrol update NodeName=… State=RESUME.",
        )


def _versions(client: SlurmClient) -> Iterator[Finding]:
    controller = client.config().get("SLURM_VERSION", "")
    others = _grouped([node for node in client.nodes() if node.version and node.version != controller])
    if controller and others:
        told = [f"{version}: {some(names)}" for version, names in sorted(others.items())]
        yield Finding(
            f"Slurm's controller is version {controller}; nodes have {some(told)}.",
            "Slurm allows this while it is upgraded, from older nodes to a newer controller.",
            "Finish the upgrade.",
            note=True,
        )


def _grouped(nodes: Sequence[SlurmNode]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for node in nodes:
        found.setdefault(node.version, []).append(node.name)
    return found


def _verification(client: SlurmClient, settings: Settings) -> Iterator[Finding]:
    """Whether nodes check promises: what Slurm runs there, as far as this machine has it under the same path."""
    config = client.config()
    user = settings.user or pwd.getpwuid(os.getuid()).pw_name
    write = f"Write it with gpufleet slurm prolog --write FOLDER --user {user} --tag {settings.tag} and set what it prints in slurm.conf."
    for name in ("Prolog", "Epilog"):
        pattern = config.get(name, "(null)")
        if pattern in ("", "(null)"):
            yield Finding(f"Slurm runs no {name}.", "Nodes do not verify what was promised.", write, note=True)
            continue
        if stuck := [str(path) for path in _matching(pattern) if not path.stat().st_mode & 0o111]:
            yield Finding(f"{name}: Slurm cannot execute {some(stuck)}.", "A job drains its node.", "Move it to another folder.")
        texts = {path: text for path in _matching(pattern) if (text := _text(path))}
        if not texts:
            yield Finding(f"{name}={pattern} cannot be read on this machine.", "Its version is not compared.", write, note=True)
        elif not (ours := {path: text for path, text in texts.items() if "gpufleet-verify" in text}):
            yield Finding(f"{name}={pattern} is not gpufleet's.", "Nodes do not verify what was promised.", write, note=True)
        elif program_digest(program_text()) not in map(program_digest, ours.values()):
            yield Finding(f"{name}={pattern} is of another version of gpufleet.", "It may refuse promises that it does not know.", write)
        elif not any(_is_ours(path, user, settings.tag) for path in ours):
            yield Finding(f"{name}={pattern} is not for jobs of {user} with the tag {settings.tag}.", "This console's jobs are not verified.", write)
    if config.get("Prolog", "(null)") not in ("", "(null)") and "Alloc" not in config.get("PrologFlags", ""):
        yield Finding("PrologFlags lacks Alloc.", "Only the first node of a gang verifies before the start.", "Set PrologFlags=Alloc in slurm.conf.")


def _matching(pattern: str) -> list[Path]:
    """A program, or those of a folder that are not hidden: Slurm takes patterns."""
    path = Path(pattern)
    found = path.parent.glob(path.name) if path.is_absolute() else ()
    return sorted(one for one in found if one.exists() and not one.name.startswith("."))


def _is_ours(program: Path, user: str, tag: str) -> bool:
    try:
        settings = json.loads(_text(program.resolve().parent / SETTINGS))
        return bool(user in settings["users"] and (not settings["tags"] or tag in settings["tags"]))
    except (ValueError, KeyError, TypeError):
        return False


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace") if path.is_file() else ""
    except OSError:
        return ""
