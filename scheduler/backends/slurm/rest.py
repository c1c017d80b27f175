"""slurmrestd: what it is asked for reading, and its answers as values."""

import json
import logging
import os
import pwd
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from http.client import HTTPException
from time import monotonic
from typing import Any

from scheduler.backends.base import BackendError
from scheduler.backends.slurm.errors import SlurmDenied, SlurmSilent
from scheduler.backends.slurm.printed import allocated, exit_code_of, hostlist, indices, moment_of, number_of, state_of
from scheduler.backends.slurm.values import ENDED, RUNNING, SlurmJob, SlurmNode

log = logging.getLogger(__name__)
TOKEN_SECONDS = 600
REST_VERSION = "v0.0.38"  # of slurmrestd's interface: each has a form of its own, and this one is read
REST_TRIED_EACH = 600.0  # seconds at least between two times that a slurmrestd without it is asked for it
REST_PATH = re.compile(r"/slurm/(v[0-9]+\.[0-9]+\.[0-9]+)/jobs/?")


class _Stays(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: the token of the console's user goes to no other address."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


# Past any proxy of the environment, too.
STRAIGHT = urllib.request.build_opener(urllib.request.ProxyHandler({}), _Stays)


class RestUnspoken(BackendError):
    """slurmrestd has other versions of its interface than the one that is read."""


class Slurmrestd:
    """One that is read in place of Slurm's commands, where its address is set and it has the version that is read."""

    def __init__(self, url: str, *, command: Callable[..., str], seconds: float) -> None:
        self.url, self.command, self.seconds = url, command, seconds
        self._token: tuple[str, float] | None = None
        self._unspoken: tuple[str, float] | None = None  # what it has in place of the version that is read, and until when that is believed

    @property
    def unspoken(self) -> str:
        """Which versions it has in place of the one that is read, as far as it has been asked."""
        return self._unspoken[0] if self._unspoken is not None else ""

    @property
    def is_read(self) -> bool:
        return bool(self.url) and self._unspoken is None

    def read(self, what: str) -> dict[str, Any] | None:
        """What it says; None where the commands are to be asked."""
        if not self.url or (self._unspoken is not None and monotonic() <= self._unspoken[1]):
            return None
        try:
            found = self._answer(what)
        except RestUnspoken as fault:
            if self._unspoken is None:
                log.warning("%s", fault)
            self._unspoken = (str(fault), monotonic() + REST_TRIED_EACH)
            return None
        self._unspoken = None
        return found

    def _answer(self, what: str) -> dict[str, Any]:
        """Reading through slurmrestd costs its controller no process of ours; writes go by command, since REST cannot pin nodes before v0.0.40."""
        try:
            return _answered(self._got(f"slurm/{REST_VERSION}/{what}"))
        except urllib.error.HTTPError as fault:
            self._token = None
            if fault.code == 404 and (versions := self._versions()) and REST_VERSION not in versions:
                there = f"slurmrestd at {self.url} has {', '.join(versions)}"
                raise RestUnspoken(f"{there}; gpufleet reads {REST_VERSION}. Slurm's commands are used instead.") from None
            kind = SlurmDenied if fault.code in (401, 403) else BackendError
            raise kind(f"slurmrestd answered {fault.code} to {what}.") from None

    def _versions(self) -> list[str]:
        """In which it tells of jobs, by what it says of itself."""
        try:
            paths = self._got("openapi.json").get("paths")
        except urllib.error.HTTPError:
            return []
        except SlurmSilent:  # what it says of itself may be some megabytes
            return ["other versions"]
        found = [REST_PATH.fullmatch(path) for path in paths] if isinstance(paths, dict) else []
        return sorted({match[1] for match in found if match is not None}, key=lambda version: [int(part) for part in version[1:].split(".")])

    def _got(self, path: str) -> dict[str, Any]:
        request = urllib.request.Request(  # noqa: S310 - the address is an operator's, and http or https (services.hardware.slurm)
            f"{self.url.rstrip('/')}/{path}",
            headers={"X-SLURM-USER-NAME": pwd.getpwuid(os.getuid()).pw_name, "X-SLURM-USER-TOKEN": self._jwt()},
        )
        try:
            with STRAIGHT.open(request, timeout=self.seconds) as answer:
                found = json.loads(answer.read().decode(errors="replace"))  # names of others' jobs need not be UTF-8
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError, HTTPException) as fault:
            raise SlurmSilent(f"slurmrestd does not answer at {self.url}: {fault}") from None
        return found if isinstance(found, dict) else {}

    def _jwt(self) -> str:
        if self._token is None or monotonic() > self._token[1]:
            printed = self.command("scontrol", "token", f"lifespan={TOKEN_SECONDS}")
            self._token = (printed.strip().partition("=")[2], monotonic() + TOKEN_SECONDS / 2)
        return self._token[0]


def _answered(found: dict[str, Any]) -> dict[str, Any]:
    """What was asked for. Lists beside an error are empty, and nobody may take them for what there is."""
    if errors := found.get("errors"):
        words = "; ".join(str(one.get("description") or one.get("error") or one) if isinstance(one, dict) else str(one) for one in errors)
        raise BackendError(f"slurmrestd: {words}")
    return found


def job_of(one: Mapping[str, Any]) -> SlurmJob:
    nodes = hostlist(str(one.get("nodes") or ""))
    detail = one.get("gres_detail") or ()
    reason = str(one.get("state_reason") or "")
    state = state_of(one.get("job_state"))
    return SlurmJob(
        id=int(one["job_id"]),
        state=state,
        comment=str(one.get("comment") or ""),
        user=str(one.get("user_name") or one.get("user_id") or ""),
        nodes=nodes,
        gpus={node: indices(str(text)) for node, text in zip(nodes, detail, strict=False)},
        exit_code=exit_code_of(one) if state in ENDED else None,
        held=number_of(one.get("priority")) == 0 and state == "PENDING",
        reason=reason,
        started_at=moment_of(one.get("start_time")) if state in RUNNING or state in ENDED else None,
        ended_at=moment_of(one.get("end_time")) if state in ENDED else None,
        uid=number_of(one.get("user_id")),
        name=str(one.get("name") or ""),
        partition=str(one.get("partition") or ""),
        **allocated(str(one.get("tres_alloc_str") or "")),
    )


def node_of(one: Mapping[str, Any]) -> SlurmNode:
    states = one.get("state") or "UNKNOWN"
    flags = one.get("state_flags") or ()
    words = [*(states if isinstance(states, list) else [states]), *(flags if isinstance(flags, list) else [flags])]
    features = one.get("features") or ()
    return SlurmNode(
        name=str(one.get("name") or ""),
        address=str(one.get("address") or one.get("hostname") or ""),
        states=tuple(str(word).upper() for word in words if word),
        reason=str(one.get("reason") or ""),
        cpus=int(one.get("cpus") or 0),
        memory_mib=int(one.get("real_memory") or 0),
        gres=str(one.get("gres") or ""),
        features=tuple(features if isinstance(features, list) else [part for part in str(features).split(",") if part]),
        version=str(one.get("slurmd_version") or one.get("version") or ""),
    )
