"""What is made in Kubernetes for a run: a pod for each worker, a Secret with what nobody else is to read, and a Service by which ranks meet.

Kubernetes expands `$(NAME)` in arguments and variables: a job's own dollars are written twice, which it reads as one.
"""

import re
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from scheduler.backends.base import BackendRefused, StartOrder, WorkerSeat
from scheduler.backends.kubernetes.values import CONSOLE, CONTAINER, GATE, GPU, INDEX, MIG, OWNER, QUEUE, ROLE, RUN, SEQUENCE, Settings
from scheduler.backends.local_launch import NAME, probe_of, re_formed, secrets_of
from scheduler.jobs.stored import role_named

PORT = 29_500  # where ranks meet: each pod has an address of its own
READY_PORT = 18_080
LOST_AFTER = 60  # seconds after which a pod is ended whose node does not answer
SHELL = "/bin/sh"
PLAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
LONGEST_NAME = 63

# Asks a process to save its work if it has said what it does on USR1, else the first below it that have: as the ranks below a torchrun, which has
# not and would die of it.
TELL = "\n".join(
    (
        "gf_tell() {",
        "  local gf_pid gf_word gf_mask gf_of gf_told",
        "  gf_pid=$1 gf_told=1 gf_mask=0",
        '  { while read -r gf_word gf_mask; do [ "$gf_word" != SigCgt: ] || break; done < "/proc/$gf_pid/status"; } 2>/dev/null || return 1',
        '  gf_mask=0x0${gf_mask#"${gf_mask%???}"}',
        '  [ $(( gf_mask & 0x200 )) -eq 0 ] || { kill -USR1 "$gf_pid" 2>/dev/null; return 0; }',
        "  for gf_of in /proc/[0-9]*/stat; do",
        '    { read -r gf_word < "$gf_of"; } 2>/dev/null || continue',
        "    gf_mask=${gf_word##*) }; gf_mask=${gf_mask#* }; gf_mask=${gf_mask%% *}",
        '    if [ "$gf_mask" = "$gf_pid" ] && gf_tell "${gf_word%% *}"; then gf_told=0; fi',
        "  done",
        '  return "$gf_told"',
        "}",
    )
)
# One process for each GPU of a worker. The first that fails says with which code, and ends the others. TERM is passed on; USR1 is sent by `TELL`.
# Their lines begin with the number of their process, where the image has mkfifo and a sed that holds nothing back.
EACH_GPU = "\n".join(
    (
        "gf_pids= gf_readers= gf_code=0 gf_local=0",
        "gf_out=",
        "if echo | sed -u '' >/dev/null 2>&1; then gf_out=$(mktemp -d /dev/shm/gpufleet-XXXXXX 2>/dev/null) || gf_out=; fi",
        "trap 'for gf_pid in $gf_pids; do kill -TERM \"$gf_pid\" 2>/dev/null; done' TERM",
        'while [ "$gf_local" -lt "$LOCAL_WORLD_SIZE" ]; do',
        "  export RANK=$((GPUFLEET_FIRST_RANK + gf_local)) ROLE_RANK=$((GPUFLEET_FIRST_RANK + gf_local)) LOCAL_RANK=$gf_local",
        '  if [ "$gf_out" ] && mkfifo "$gf_out/$gf_local" 2>/dev/null; then',
        '    ( trap \'\' TERM; exec sed -u "s/^/$gf_local: /" ) < "$gf_out/$gf_local" &',
        '    gf_readers="$gf_readers $!"',
        '    "$@" > "$gf_out/$gf_local" 2>&1 &',
        "  else",
        '    "$@" &',
        "  fi",
        '  gf_pids="$gf_pids $!" gf_local=$((gf_local + 1))',
        "done",
        "gf_left=$gf_pids",
        'while [ "$gf_left" ]; do',
        "  gf_more=",
        "  for gf_pid in $gf_left; do",
        '    if kill -0 "$gf_pid" 2>/dev/null; then gf_more="$gf_more $gf_pid"; continue; fi',
        '    wait "$gf_pid"; gf_ended=$?',
        '    if [ "$gf_ended" -ne 0 ] && [ "$gf_code" -eq 0 ]; then',
        "      gf_code=$gf_ended",
        '      for gf_other in $gf_pids; do kill -TERM "$gf_other" 2>/dev/null; done',
        "    fi",
        "  done",
        "  gf_left=$gf_more",
        '  [ -z "$gf_left" ] || sleep 0.2',
        "done",
        "for gf_pid in $gf_readers; do",
        '  for gf_turn in 1 2 3 4 5 6 7 8 9 10; do kill -0 "$gf_pid" 2>/dev/null || break; sleep 0.2; done',
        "done",
        '[ -z "$gf_out" ] || rm -rf "$gf_out"',
        'exit "$gf_code"',
    )
)


@dataclass(frozen=True, slots=True)
class Made:
    """All objects of a run, or of the workers that join it. `service` and the first `secret` have the same name."""

    name: str
    pods: tuple[dict[str, Any], ...]
    secret: dict[str, Any]
    service: dict[str, Any] | None  # of a gang


def plain(text: str) -> str:
    """A part of a name in Kubernetes: small letters, digits and dashes. What had to be changed is told apart by a number."""
    if PLAIN.fullmatch(text):
        return text
    kept = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return f"{kept}-{zlib.crc32(text.encode()) % 65_536:04x}".lstrip("-")


def run_name(tag: str, key: str) -> str:
    job, _, attempt = key.rpartition(".")
    return f"gf-{tag}-{plain(f'{job}-{attempt}' if job else attempt)}"[:LONGEST_NAME].rstrip("-")


def pod_name(tag: str, key: str, seat: tuple[str, int], joined: int = 0) -> str:
    """`joined`: number of the order by which it came to a run that goes on, or begins anew in it: the pod that was there before keeps its name."""
    role, index = seat
    return f"{run_name(tag, key)}-{plain(role)}-{index}{f'-{joined}' if joined else ''}"


def secret_name(tag: str, key: str, joined: int = 0) -> str:
    """Of those who began with the run, or joined it by that order."""
    return f"{run_name(tag, key)}{f'-{joined}' if joined else ''}"


def made_for(
    order: StartOrder,
    settings: Settings,
    *,
    secret: Callable[[str, str], str | None],
    report_url: str = "",
    resume_from: str = "",
    joining: Mapping[tuple[str, int], str] | None = None,
) -> Made:
    """Raises `BackendRefused` for what Kubernetes cannot be asked for. `resume_from` is where pods see the checkpoint to go on from. `joining`: only
    these workers, by the names of their pods; they join a run that goes on, so that no gate holds them, and get the secrets of now."""
    seats = ranks_in_order(order)
    name = run_name(settings.tag, order.key)
    places = [(seat.role, seat.index) for seat in seats]
    pods = {place: pod_name(settings.tag, order.key, place) for place in places} if joining is None else joining
    meets, held = _meets(order), secret_name(settings.tag, order.key, 0 if joining is None else order.sequence)
    kept = {**_owned(order, report_url, resume_from, settings)}
    values = {**secrets_of(order, secret), "GPUFLEET_TOKEN": order.token, **_access(order)}
    return Made(
        name,
        tuple(
            _pod(order, settings, seat, rank, kept, (held, sorted(values)), name=pods[place], gated=joining is None and len(seats) > 1, meets=meets)
            for rank, (seat, place) in enumerate(zip(seats, places, strict=True))
            if place in pods
        ),
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": "Opaque",
            "metadata": {"name": held, "labels": _labels(order, settings)},
            "stringData": values,
        },
        _service(order, settings, name) if meets else None,
    )


def _meets(order: StartOrder) -> bool:
    """Whether its workers find each other by name: those of a gang, also of one that may become larger."""
    return len(order.workers) > 1 or bool(order.launch.get("in_place"))


def ranks_in_order(order: StartOrder) -> Sequence[WorkerSeat]:
    return sorted(order.workers, key=lambda seat: (seat.role, seat.index))


def _service(order: StartOrder, settings: Settings, name: str) -> dict[str, Any]:
    """Headless: it only gives pods names. Ranks look for the first before that is ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": _labels(order, settings)},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {CONSOLE: settings.tag, RUN: order.key}},
    }


def _labels(order: StartOrder, settings: Settings) -> dict[str, str]:
    return {"app.kubernetes.io/managed-by": "gpufleet", CONSOLE: settings.tag, RUN: order.key}


def _pod(
    order: StartOrder,
    settings: Settings,
    seat: WorkerSeat,
    place: int,
    kept: Mapping[str, str],
    secrets: tuple[str, Sequence[str]],
    *,
    name: str,
    gated: bool,
    meets: bool,
) -> dict[str, Any]:
    labels = {**_labels(order, settings), ROLE: plain(seat.role)[:LONGEST_NAME], INDEX: str(seat.index)}
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": max(1, order.grace_seconds),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [_only_on(seat.node)]}}},
        "tolerations": _tolerations(settings),
        "securityContext": _security(settings),
        "containers": [_container(order, settings, seat, place, kept, secrets)],
        "volumes": _volumes(order, settings, seat),
    }
    if meets:
        spec |= {"hostname": _host(seat), "subdomain": run_name(settings.tag, order.key)}
    if gated:
        spec["schedulingGates"] = [{"name": GATE}]
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if settings.pull_secret:
        spec["imagePullSecrets"] = [{"name": settings.pull_secret}]
    if settings.runtime_class:
        spec["runtimeClassName"] = settings.runtime_class
    if settings.priority_class:
        spec["priorityClassName"] = settings.priority_class
    about = {SEQUENCE: str(order.sequence), OWNER: order.owner, QUEUE: order.team}
    meta = {"name": name, "labels": labels, "annotations": about}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def _only_on(node: str) -> dict[str, Any]:
    """The scheduler and the kubelet still decide whether it has room, which `spec.nodeName` would leave to the kubelet alone."""
    return {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}


def _tolerations(settings: Settings) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"key": key, "operator": "Exists"} for key in dict.fromkeys((GPU, *settings.taints))]
    gone = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": LOST_AFTER}
    return [*found, *({"key": f"node.kubernetes.io/{key}", **gone} for key in ("not-ready", "unreachable"))]


def _security(settings: Settings) -> dict[str, Any]:
    found: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if settings.uid is not None:
        found |= {"runAsUser": settings.uid, "runAsGroup": settings.uid, "fsGroup": settings.uid, "runAsNonRoot": settings.uid > 0}
    return found


def _container(
    order: StartOrder, settings: Settings, seat: WorkerSeat, place: int, kept: Mapping[str, str], secrets: tuple[str, Sequence[str]]
) -> dict[str, Any]:
    """`secrets`: the name of a Secret, and the variables in it."""
    launch = order.launch
    image = str(launch.get("image") or settings.image)
    if not image:
        raise BackendRefused("The job names no image (launch.image), and its Kubernetes cluster has no default image.")
    argv = _argv(launch)
    if _per_gpu(order):
        argv = [SHELL, "-c", EACH_GPU, "gpufleet", *argv]
    own = _ranks(order, settings)[place]
    env: list[dict[str, Any]] = [{"name": name, "value": _plain_dollars(value)} for name, value in {**kept, **own}.items()]
    env += [{"name": name, "valueFrom": {"secretKeyRef": {"name": secrets[0], "key": name}}} for name in secrets[1]]
    found: dict[str, Any] = {
        "name": CONTAINER,
        "image": image,
        "command": [_plain_dollars(word) for word in argv],
        "env": env,
        "resources": {"requests": _amounts(order, seat), "limits": _amounts(order, seat)},
        "securityContext": {"allowPrivilegeEscalation": False, **({"capabilities": {"drop": ["ALL"]}} if settings.uid else {})},
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108 - of the pod, not of this machine
    }
    if settings.claim:
        found["volumeMounts"].append({"name": "checkpoints", "mountPath": settings.mount, "subPath": sub_path(settings.tag, order.job)})
    if workdir := str(launch.get("workdir") or ""):
        if not workdir.startswith("/") or "\0" in workdir:
            raise BackendRefused(f"The working directory {workdir} is not an absolute path.")
        found["workingDir"] = workdir
    if saves(order):
        wait = max(0, order.grace_seconds // 2)
        found["lifecycle"] = {"preStop": {"exec": {"command": [SHELL, "-c", f"{TELL}\ngf_tell 1; sleep {wait}"]}}}
    if probe := _probe(launch):
        found["readinessProbe"] = probe
    return found


def saves(order: StartOrder) -> bool:
    """Whether the job says that it saves its work when it is asked to (USR1)."""
    return bool(order.spec.get("checkpoint"))


def sub_path(tag: str, job: str) -> str:
    """Of the volume for checkpoints: a pod sees the folder of its own job alone."""
    return f"gpufleet-{tag}/checkpoints/{job}"


def _volumes(order: StartOrder, settings: Settings, seat: WorkerSeat) -> list[dict[str, Any]]:
    """`/dev/shm` of a container is 64 MiB unless it has one of its own: too little for ranks that share memory. What lies there counts as memory."""
    memory = _memory_mib(order, seat)
    found: list[dict[str, Any]] = [{"name": "shm", "emptyDir": {"medium": "Memory", **({"sizeLimit": f"{memory}Mi"} if memory else {})}}]
    if settings.claim:
        found.append({"name": "checkpoints", "persistentVolumeClaim": {"claimName": settings.claim}})
    return found


def _amounts(order: StartOrder, seat: WorkerSeat) -> dict[str, str]:
    if seat.gpu_milli != 1000 and not seat.mig and seat.gpus:
        raise BackendRefused("The Kubernetes back-end gives whole GPUs and MIG instances, and no shares of GPUs.")
    found: dict[str, str] = {}
    cpus, memory = role_named(order.spec, seat.role).get("cpus"), _memory_mib(order, seat)
    if cpus:
        found["cpu"] = f"{max(1, round(float(cpus) * 1000))}m"
    if memory:
        found["memory"] = f"{memory}Mi"
    if seat.mig:
        for profile in sorted(set(seat.mig)):
            found[f"{MIG}{profile.replace('+', '.')}"] = str(seat.mig.count(profile))
    elif seat.gpus:
        found[GPU] = str(len(seat.gpus))
    return found


def _memory_mib(order: StartOrder, seat: WorkerSeat) -> int:
    return int((role_named(order.spec, seat.role).get("host_memory_gb") or 0) * 1024)


def _argv(launch: Mapping[str, Any]) -> list[str]:
    shell, command = launch.get("shell"), launch.get("command")
    argv = [SHELL, "-c", str(shell)] if shell else command
    if not isinstance(argv, list) or not argv or not all(isinstance(part, str) and "\0" not in part for part in argv):
        raise BackendRefused("The job specifies no command: launch.command is a list of arguments.")
    return list(argv)


def _owned(order: StartOrder, report_url: str, resume_from: str, settings: Settings) -> dict[str, str]:
    """Variables that every worker has, without those that are kept in the Secret."""
    given = {**re_formed(order.launch), **{str(name): str(value) for name, value in (order.launch.get("env") or {}).items()}}
    own = {
        "GPUFLEET_JOB": order.job,
        "GPUFLEET_ATTEMPT": str(order.attempt),
        "GPUFLEET_RESUME_FROM": resume_from,
        "GPUFLEET_RESUME_STEP": str(order.resume_step),
        "GPUFLEET_GRACE_SECONDS": str(order.grace_seconds),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if settings.claim:
        own["GPUFLEET_CHECKPOINT_DIR"] = f"{settings.mount.rstrip('/')}/{order.attempt}"
    if report_url:
        own["GPUFLEET_REPORT_URL"] = report_url
    if order.access_token:
        own["GPUFLEET_PORT"] = str(order.launch["port"])
    if order.launch.get("ready"):
        own["GPUFLEET_READY_PORT"] = str(READY_PORT)
    found = {**given, **own}
    for name, value in found.items():
        if not NAME.fullmatch(name) or "\0" in value:
            raise BackendRefused(f"{name!r} is not a name of a variable, or its value contains a null character.")
    return found


def _access(order: StartOrder) -> dict[str, str]:
    return {"GPUFLEET_ACCESS_TOKEN": order.access_token} if order.access_token else {}


def _ranks(order: StartOrder, settings: Settings) -> list[dict[str, str]]:
    """The variables of each worker, as torchrun sets them: workers are nodes to it."""
    seats = ranks_in_order(order)
    counts = [max(1, len(seat.gpus)) if _per_gpu(order) else 1 for seat in seats]
    world, first, found = sum(counts), 0, []
    master = f"{_host(seats[0])}.{run_name(settings.tag, order.key)}" if _meets(order) else "127.0.0.1"
    for place, (seat, count) in enumerate(zip(seats, counts, strict=True)):
        rank = {"GPUFLEET_FIRST_RANK": str(first)} if _per_gpu(order) else {"RANK": str(first), "ROLE_RANK": str(first), "LOCAL_RANK": "0"}
        found.append(
            {
                **rank,
                "WORLD_SIZE": str(world),
                "LOCAL_WORLD_SIZE": str(count),
                "GROUP_RANK": str(place),
                "NODE_RANK": str(place),
                "GROUP_WORLD_SIZE": str(len(seats)),
                "ROLE_WORLD_SIZE": str(world),
                "MASTER_ADDR": master,
                "MASTER_PORT": str(PORT),
                "TORCHELASTIC_RUN_ID": order.key,
                "GPUFLEET_ROLE": seat.role,
            }
        )
        first += count
    return found


def _per_gpu(order: StartOrder) -> bool:
    return bool(order.launch.get("per", "worker") == "gpu")


def _host(seat: WorkerSeat) -> str:
    return f"{plain(seat.role)}-{seat.index}"[-LONGEST_NAME:].lstrip("-")


def _probe(launch: Mapping[str, Any]) -> dict[str, Any]:
    stated = probe_of(launch, READY_PORT)
    if stated is None:
        return {}
    if "command" in stated:
        way: dict[str, Any] = {"exec": {"command": [*stated["command"]]}}
    elif "http" in stated:
        way = {"httpGet": {"path": stated["http"]["path"], "port": stated["http"]["port"]}}
    else:
        way = {"tcpSocket": {"port": stated["tcp"]["port"]}}
    return {
        **way,
        "periodSeconds": max(1, ceil(stated["period_s"])),
        "timeoutSeconds": max(1, ceil(stated["timeout_s"])),
        "failureThreshold": max(1, int(stated["failures"])),
    }


def _plain_dollars(text: str) -> str:
    return text.replace("$", "$$")
